"""What someone found who had not read the catalogue: paths that long calls take, and what a report says and shows."""

import contextlib
import io
import math

import numpy as np
import pytest
import torch

from lib import reference
from lib.verify import PROPERTIES, catalogue, check_attention, check_causal
from lib.verify.form import find_out
from lib.verify.subject import Subject

# --- long calls take another path


def right(query, key, value, **options):
    return reference.attention(query, key, value, **options)


def forgets(option, length):
    """A function whose path for long calls has forgotten one option."""

    def attention(query, key, value, *, mask=None, bias=None, causal=False, window=None, offset=None, scale=None,
                  softcap=None, enable_gqa=False):  # fmt: skip
        options = {
            "mask": mask, "bias": bias, "causal": causal, "window": window, "offset": offset, "scale": scale,
            "softcap": softcap, "enable_gqa": enable_gqa,
        }  # fmt: skip
        if key.shape[-2] > length:
            options[option] = False if option == "causal" else None
        if offset is not None and options["offset"] is None:
            options["offset"] = 0
        return right(query, key, value, **options)

    return attention


@pytest.mark.parametrize("length", [64, 256])
@pytest.mark.parametrize("option", ["mask", "bias", "causal", "window", "offset", "scale", "softcap"])
def test_option_forgotten_when_long(option, length):
    report = check_attention(forgets(option, length), properties=["lengths", "equation"])
    assert [f.property for f in report.failures] == ["lengths"]


def test_default_scale_forgotten_when_long():
    def attention(query, key, value):
        return right(query, key, value, scale=1.0 if key.shape[-2] > 64 else None)

    report = check_attention(attention)
    assert [f.property for f in report.failures] == ["lengths"] and report.suspect == "scale_lost_when_long"
    assert report.failures[0].example.sizes["S"] == 65


@pytest.mark.parametrize("side", [0, 1])
def test_open_side_of_a_window_is_open_however_long(side):
    def attention(query, key, value, *, window=None):
        if window is not None:
            window = [128 if w is None and n == side else w for n, w in enumerate(window)]
        return right(query, key, value, window=window)

    report = check_attention(attention)
    assert [f.property for f in report.failures] == ["lengths"]


def test_a_bug_whose_own_property_holds_is_not_named():
    def attention(query, key, value, *, causal=False, offset=None):
        offset = offset if offset is None or hasattr(offset, "shape") else min(offset, 63)
        return right(query, key, value, causal=causal, offset=offset)

    report = check_attention(attention)
    assert [(f.property, f.suspect) for f in report.failures] == [("lengths", None)]


def test_groups_forgotten_when_long():
    def attention(query, key, value, *, enable_gqa=False):
        if enable_gqa and key.shape[-2] > 128:
            order = np.arange(query.shape[-3]) % key.shape[-3]
            key, value, enable_gqa = key[..., order, :, :], value[..., order, :, :], False
        return right(query, key, value, enable_gqa=enable_gqa)

    report = check_attention(attention)
    assert [f.property for f in report.failures] == ["lengths"]


def test_option_that_is_wrong_when_short_is_not_told_again():
    report = check_attention(catalogue["softcap_without_factor"].function())
    assert "lengths" not in [f.property for f in report.failures]


# --- the catalogue's relatives

BY_NAME = {prop.name: prop for prop in PROPERTIES}
RELATIVES = [
    pytest.param(variant, id=f"{entry.name}-{n}")
    for entry in catalogue
    for n, variant in enumerate(entry.variants()[1:], 1)
]


@pytest.mark.parametrize("entry", RELATIVES)
def test_relative_is_killed(entry):
    subject = Subject(entry.function(), entry.frameworks[0], {}, entry.conventions)
    assert find_out(subject) is None
    assert isinstance(BY_NAME[entry.killed_by].judge(subject), tuple)


def test_relatives_are_named():
    def attention(query, key, value):
        """Tiles of 64, where the catalogue's have 32."""
        scores = query @ key.swapaxes(-1, -2) / query.dtype.type(math.sqrt(query.shape[-1] or 1))
        top = scores.max(-1, keepdims=True, initial=-1e30)
        weights = np.exp(scores - top)
        S = key.shape[-2]
        kept = np.arange(S) < (S - S % 64 if S > 64 else S)
        return (weights * kept / (weights * kept).sum(-1, keepdims=True).clip(1e-30)) @ value

    report = check_attention(attention, conventions={"dtypes": "float32,float64"})
    assert report.suspect == "last_tile_lost"


# --- what a report says first


def test_precision_stands_back_where_more_is_wrong():
    def attention(query, key, value, *, window=None):
        scores = query @ key.swapaxes(-1, -2) / query.dtype.type(math.sqrt(query.shape[-1] or 1))  # overflows in half
        if window is not None:
            i, j = np.arange(scores.shape[-2])[:, None], np.arange(scores.shape[-1])
            scores = np.where((j + i) % 3 == 0, -np.inf, scores)  # and nobody's bug
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e30))
        return (weights / weights.sum(-1, keepdims=True).clip(1e-30) @ value).astype(query.dtype)

    report = check_attention(attention, properties=["window", "half precision"])
    found = {f.property: f.suspect for f in report.failures}
    assert found == {"window": None, "half precision": "half_products_overflow"}
    assert report.suspect is None
    assert check_attention(attention, properties=["half precision"]).suspect == "half_products_overflow"


def test_chance_is_told_first():
    def attention(query, key, value):
        return right(query, key, value) + np.random.random_sample(value.shape[-1:]) * 1e-2  # noqa: NPY002

    text = str(check_attention(attention, conventions={"dtypes": "float64"}))
    assert text.split("\n1. ")[1].startswith("repeatable")


def test_another_order_of_axes_is_offered_where_nothing_runs():
    def attention(q, k, v):
        weights = np.einsum("blhe,bshe->bhls", q, k) / math.sqrt(q.shape[-1])
        weights = np.exp(weights - weights.max(-1, keepdims=True))
        return np.einsum("bhls,bshv->blhv", weights / weights.sum(-1, keepdims=True), v)

    (failure,) = check_attention(attention).failures
    assert failure.property == "runs" and "layout=BLHE" in failure.hint
    assert "lengths" not in failure.message
    report = check_attention(attention, conventions={"layout": "BLHE", "dtypes": "float32"})
    assert "equation" in report.holds and "batch and heads" in report.holds


def test_a_function_that_raises_gets_a_small_example():
    def attention(query, key, value):
        raise KeyError("no such head")

    (failure,) = check_attention(attention).failures
    assert failure.example.sizes == {"L": 1, "S": 2, "E": 1, "Ev": 1, "leading axes": []}
    assert "no such head" in failure.message


# --- examples, pasted and run


def pasted(failure, function, name=None):
    """Run an example; give what it prints and the lines of comment."""
    space, out = {name or function.__name__: function}, io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(failure.example.code, "<example>", "exec"), space)
    return out.getvalue().strip(), [line for line in failure.example.code.split("\n") if line.startswith("#")]


def test_missing_gradient_is_shown_as_it_prints():
    function = catalogue["keys_detached"].function()
    report = check_attention(function, "torch", properties=["gradients"])
    printed, comments = pasted(report.failures[0], function)
    assert printed == "None" and "# given     None" in comments
    assert report.failures[0].message == "the gradient of key is missing"


def test_gradient_of_an_empty_row_is_expected_to_be_finite():
    function = catalogue["empty_rows_cleared_at_the_end"].function()
    (failure,) = check_attention(function, "torch", properties=["gradients of empty rows"]).failures
    printed, comments = pasted(failure, function)
    assert "nan" in printed
    expected = "\n".join(comments).split("# expected")[1].split("# given")[0]
    assert "nan" not in expected and "any finite numbers pass" in "\n".join(comments)


def test_a_written_mask_is_shown_as_booleans():
    function = catalogue["mask_turned_in_place"].function()
    (failure,) = check_attention(function, properties=["inputs untouched"]).failures
    printed, comments = pasted(failure, function)
    assert "True" in printed or "False" in printed
    assert any("True" in line for line in comments)


def test_where_what_is_expected_comes_from_is_said():
    (failure,) = check_attention(catalogue["softmax_over_queries"].function(), properties=["axis"]).failures
    assert "# wanted: what the function itself gives for each query when the others are changed" in failure.example.code


@pytest.mark.parametrize("name", ["last_tile_lost", "causal_by_whole_tiles", "last_queries_lost", "half_sums"])
def test_long_examples_are_short_to_read(name):
    function = catalogue[name].function()
    (failure,) = check_attention(function, properties=[catalogue[name].killed_by]).failures
    lines = failure.example.code.split("\n")
    assert len(lines) < 30 and max(map(len, lines)) <= 110
    printed, comments = pasted(failure, function)
    assert printed and "..." not in "\n".join(comments)


def test_a_row_that_differs_is_shown():
    function = catalogue["queries_beyond_128_lost"].function()
    (failure,) = check_attention(function, properties=["lengths"]).failures
    assert failure.example.shown.startswith("output[12")
    printed, _ = pasted(failure, function)
    assert printed == str(failure.example.given.astype(np.float32))


def test_float64_is_silent_where_float32_is_wrong_too():
    failed = {f.property for f in check_attention(catalogue["scores_negated"].function()).failures}
    assert "equation" in failed and "float64" not in failed


# --- models: a statistic is no missing mask


@pytest.fixture
def model():
    generator = torch.Generator().manual_seed(0)
    table, positions, mix, out = (
        torch.randn(*shape, generator=generator) * 0.5 for shape in ((11, 8), (64, 8), (8, 8), (8, 11))
    )

    def make(before, masked=True):
        def model(tokens):
            x = before(table[tokens] + positions[: tokens.shape[-1]])
            scores = x @ mix @ x.mT / math.sqrt(8)
            if masked:
                scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -torch.inf)
            return (x + scores.softmax(-1) @ x) @ out

        return model

    return make


STATISTICS = {
    "mean": lambda x: x - x.mean(-2, keepdim=True),
    "norm": lambda x: x / x.std((-1, -2), keepdim=True),
    "sum": lambda x: x + x.sum(-2, keepdim=True) * 0.1,
}
TOKENS = torch.randint(0, 11, (2, 12), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", STATISTICS)
def test_statistic_of_the_sequence_before_a_causal_layer(model, name):
    report = check_causal(model(STATISTICS[name]), TOKENS)
    assert not report.ok and report.suspect == "sequence_statistics"


def test_statistic_of_the_batch(model):
    report = check_causal(model(lambda x: x - x.mean((0, 1), keepdim=True)), TOKENS)
    assert report.suspect == "batch_statistics"


def test_missing_mask_is_still_a_missing_mask(model):
    report = check_causal(model(lambda x: x, masked=False), TOKENS)
    assert report.suspect == "no_mask"
    assert check_causal(model(lambda x: x), TOKENS).ok


# --- what a function takes


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_function_has_a_signature():
    @torch.jit.script
    def attention(query, key, value, attn_mask: torch.Tensor | None = None, is_causal: bool = False):
        scores = torch.matmul(query * query.size(-1) ** -0.5, key.transpose(-2, -1))
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -1e30)
        return torch.matmul(scores.softmax(-1), value)

    report = check_attention(attention, "torch", {"mask": "attn_mask"}, properties=["mask", "empty rows", "causal"])
    assert report.holds == ["mask"] and [f.suspect for f in report.failures] == ["empty_rows_mean"]
    assert "is_causal" in report.not_tested["causal"]


def test_bias_alone_may_hide_every_key():
    report = check_attention(lambda q, k, v, bias=None: right(q, k, v, bias=bias), properties=["empty rows"])
    assert "bias of −∞" in report.not_tested["empty rows"]


def test_a_hang_says_which_call_it_was():
    def attention(query, key, value, *, causal=False):
        while causal:
            pass
        return right(query, key, value)

    (failure,) = check_attention(attention, timeout=1).failures
    assert failure.message.endswith("the last call had L = 2, S = 4, E = 4, Ev = 4, float32, causal")
