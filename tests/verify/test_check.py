"""Reports, examples, conventions, wrong usage, and the entry for pytest."""

import contextlib
import io
import json
import math
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch

from lib import reference, verify
from lib.verify import UsageError, cases, catalogue, check_attention
from lib.verify.properties import PROPERTIES


def textbook(query, key, value, *, mask=None, hidden=False, swap=False):
    """The plain implementation, with its choices."""
    if swap:
        query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    kind = np.result_type(query.dtype, np.float32)
    scores = (query.astype(kind) / math.sqrt(query.shape[-1] or 1)) @ key.astype(kind).swapaxes(-1, -2)
    if mask is not None:
        scores = np.where(~mask if hidden else mask, scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True, initial=-1e38)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    output = (weights / np.where(total > 0, total, 1) @ value.astype(kind)).astype(query.dtype)
    return output.swapaxes(1, 2) if swap else output


def true_blocks(query, key, value, *, mask=None):
    return textbook(query, key, value, mask=mask, hidden=True)


def length_before_heads(query, key, value):
    return textbook(query, key, value, swap=query.ndim == 4)


# --- a report


def test_report_of_a_correct_function():
    report = check_attention(textbook)
    assert report.ok and bool(report) and report.failures == [] and report.suspect is None
    assert report.function == "textbook" and report.framework == "numpy"
    assert report.not_tested["window"] == "no argument named window"
    assert set(report.holds) | set(report.not_tested) == {p.name for p in PROPERTIES}
    assert str(report).startswith(f"textbook holds all {len(report.holds)} properties that were tested.")


def test_report_of_a_wrong_function():
    report = check_attention(catalogue["mask_inverted"].function(), properties=["equation", "mask"])
    assert not report.ok and report.holds == ["equation"] and report.suspect == "mask_inverted"
    (failure,) = report.failures
    assert failure.property == "mask" and failure.exact and failure.explanation == catalogue["mask_inverted"].wrong
    text = report.text()
    assert text.startswith("mask_inverted fails 1 of 2 properties.")
    assert "This is the known bug mask_inverted: " in text and failure.report in text
    assert max(map(len, text.splitlines())) <= 120
    assert "\033[" not in text and "\033[" in report.text(color=True)


@pytest.mark.parametrize(
    ("function", "properties", "headline"),
    [
        (textbook, ["axis"], "textbook holds the one property that was tested."),
        (textbook, ["axis", "mask"], "textbook holds all 2 properties that were tested."),
        (textbook, ["axis", "window"], "textbook holds the one property that was tested."),
        (textbook, ["window"], "No property of textbook could be tested."),
        (true_blocks, ["mask"], "true_blocks fails the one property that was tested."),
        (true_blocks, ["mask", "axis"], "true_blocks fails 1 of 2 properties."),
    ],
)
def test_headline_reads_well(function, properties, headline):
    assert check_attention(function, properties=properties).text().split("\n")[0] == headline


def test_json_is_the_report():
    report = check_attention(catalogue["no_maximum_subtracted"].function(), properties=["extreme scores", "mask"])
    read = json.loads(report.to_json())
    assert read == report.to_dict()
    assert read["ok"] is False and read["holds"] == ["mask"]
    (failure,) = read["failures"]
    assert failure["suspect"]["name"] == "no_maximum_subtracted" and failure["example"]["code"]


def test_same_call_same_report():
    first, second = (
        check_attention(catalogue["causal_strict"].function(), properties=["causal", "cache"]).to_json() for _ in "ab"
    )
    assert first == second


def test_state_is_left_alone():

    class Attention(torch.nn.Module):
        def forward(self, query, key, value):
            assert not self.training
            return torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1) @ value

    module = Attention().train()
    assert check_attention(module, "torch", properties=["equation"]).ok
    assert module.training


# --- examples


def run_example(failure, function):
    """Paste the example: run its code with the function at hand, and give what it prints."""
    code = "\n".join(line for line in failure.example.code.splitlines() if not line.startswith("from "))
    printed = io.StringIO()
    printing = np.printoptions(precision=4)  # the code sets its own; this puts back what was there before
    with contextlib.redirect_stdout(printed), np.errstate(all="ignore"), printing:
        exec(code, {function.__name__: function})
    return printed.getvalue().strip()


SMALL = {
    "mask_inverted": "mask",
    "unscaled": "equation",
    "softmax_over_queries": "axis",
    "causal_strict": "causal",
    "scale_ignored": "scale",
    "window_counts_itself": "window",
    "offset_one_too_far": "alignment",
    "empty_rows_nan": "empty rows",
    "mask_tiled_over_heads": "mask broadcasting",
    "softcap_after_bias": "softcap",
    "epsilon_in_denominator": "sum to one",
    "nan_behind_mask": "masked NaN",
    "weights_transposed": "weights",
    "returns_float64": "shape and dtype",
    "query_scaled_in_place": "inputs untouched",
    "half_products_overflow": "half precision",
    "no_maximum_subtracted": "extreme scores",
    "grouped_heads_tiled": "grouped heads",
}


@pytest.mark.parametrize("name", [n for n in SMALL if n in catalogue])
def test_example_runs_and_shows_the_difference(name):
    entry = catalogue[name]
    function = entry.function()
    report = check_attention(function, conventions=entry.conventions, properties=[SMALL[name]])
    (failure,) = report.failures
    example = failure.example
    printed = run_example(failure, function)
    given = [line[1:].strip() for line in example.code.splitlines() if line.startswith("#")]
    expected, shown = " ".join(given).split("given")
    expected = expected.split("expected", 1)[1]
    assert "".join(expected.split()) != "".join(shown.split()), example.code
    assert printed
    if isinstance(example.given, np.ndarray):
        assert all(numbers_close(a, b) for a, b in zip(numbers(printed), numbers(shown), strict=True)), (printed, shown)
    large = {"half precision": 64, "grouped heads": 6}.get(SMALL[name], 4 if SMALL[name] == "shape and dtype" else 3)
    sizes = [example.sizes[letter] for letter in ("L", "S", "E", "Ev")] + example.sizes["leading axes"]
    assert max(sizes) <= large, example.code
    assert max(map(len, example.code.splitlines())) <= 160


def numbers(text):
    text = text.replace("[", " ").replace("]", " ")
    return [word for word in text.split() if word not in ("...",)]


def numbers_close(a, b):
    with contextlib.suppress(ValueError):
        return math.isclose(float(a), float(b), rel_tol=1e-3, abs_tol=1e-3) or (a == b == "nan")
    return True  # words: a dtype, a shape


def test_example_imports_the_function_where_it_can():
    function = true_blocks
    code = check_attention(function, properties=["mask"]).failures[0].example.code
    assert f"from {__name__} import true_blocks" in code
    space = {}
    exec(code, space)
    assert (
        space["output"].ravel()[0]
        == check_attention(function, properties=["mask"]).failures[0].example.given.ravel()[0]
    )


def test_example_uses_the_functions_own_names():
    def mine(queries, keys, values, attn_mask=None):
        return textbook(queries, keys, values, mask=attn_mask, hidden=True)

    names = {"query": "queries", "key": "keys", "value": "values", "mask": "attn_mask"}
    code = check_attention(mine, names=names, properties=["mask"]).failures[0].example.code
    assert "mine(queries=query, keys=key, values=value, attn_mask=mask)" in code


# --- conventions are guessed, and used


def test_polarity_is_guessed():
    report = check_attention(true_blocks)
    hint = next(f.hint for f in report.failures if f.property == "mask")
    assert "It looks like True = block: pass conventions={'mask_true': 'block'}" in report.text().replace("\n   ", "")
    assert "--convention mask_true=block" in hint
    assert check_attention(true_blocks, conventions={"mask_true": "block"}).ok


def test_layout_is_guessed():
    report = check_attention(length_before_heads)
    assert any(f.hint and "conventions={'layout': 'BLHE'}" in f.hint for f in report.failures), report.text()
    assert check_attention(length_before_heads, conventions={"layout": "BLHE"}).ok


@pytest.mark.parametrize(("rows", "value"), [("nan", np.nan), ("mean", None)])
def test_empty_rows_are_guessed(rows, value):
    def mine(query, key, value_, *, mask=None):
        output = textbook(query, key, value_, mask=mask)
        if mask is not None:
            instead = np.nan if rows == "nan" else value_.mean(-2, keepdims=True, dtype=np.float64)
            output = np.where(~mask.any(-1, keepdims=True), instead, output).astype(query.dtype)
        return output

    report = check_attention(mine)
    assert [f.property for f in report.failures] == ["empty rows"], report.text()
    assert f"conventions={{'empty_rows': '{rows}'}}" in report.failures[0].hint
    assert check_attention(mine, conventions={"empty_rows": rows}).ok


def test_alignment_is_seen():
    def mine(query, key, value, *, causal=False):
        L, S = query.shape[-2], key.shape[-2]
        return textbook(query, key, value, mask=np.tri(L, S, S - L, dtype=bool) if causal else None)

    report = check_attention(mine)
    assert report.ok and any("aligned bottom-right (seen, not declared)" in note for note in report.notes)
    wrong = check_attention(mine, conventions={"alignment": "top-left"}, properties=["alignment"])
    assert not wrong.ok and "conventions={'alignment': 'bottom-right'}" in wrong.failures[0].hint


def test_a_bug_gets_no_hint():
    report = check_attention(catalogue["mask_ignored"].function(), properties=["mask"])
    assert report.failures[0].hint is None


def test_leaks_are_noted_and_judged_when_asked():
    report = check_attention(textbook, properties=["masked NaN"])
    assert report.ok and any("NaN in a masked value" in note for note in report.notes)
    assert not check_attention(textbook, conventions={"masked_nan": "blocked"}, properties=["masked NaN"]).ok


# --- wrong usage


def two(query, key):
    return query


def needs_more(query, key, value, dropout):
    return query


USAGE = [
    ({"fn": 3}, "fn must be a function of query, key and value, got int"),
    ({"fn": torch.nn.Identity}, "is a class: pass Identity(…)"),
    ({"fn": torch.nn.Identity()}, 'Identity is a torch module: pass framework="torch"'),
    ({"fn": two}, "fn must take query, key and value; two takes (query, key)"),
    ({"fn": lambda: 1}, "fn must take query, key and value; <lambda> takes ()"),
    ({"fn": needs_more}, "'dropout' has no default"),
    ({"fn": textbook, "framework": "jax"}, 'framework must be "numpy" or "torch", got \'jax\''),
    ({"fn": textbook, "names": {"attn_mask": "mask"}}, "the contract's name comes first: mask=attn_mask"),
    (
        {"fn": textbook, "names": {"mask": "attn_mask"}},
        "names says that mask is called 'attn_mask', but textbook takes",
    ),
    ({"fn": textbook, "conventions": {"mask": "block"}}, "conventions must be among mask_true"),
    ({"fn": textbook, "conventions": {"mask_true": "hide"}}, "mask_true must be attend or block, got 'hide'"),
    ({"fn": textbook, "conventions": {"dtypes": "int8"}}, "must name floating dtypes such as float32, got 'int8'"),
    ({"fn": textbook, "conventions": ["mask_true"]}, "conventions must be a dict"),
    ({"fn": textbook, "properties": ["masks"]}, "properties must be among shape and dtype"),
]


@pytest.mark.parametrize(("arguments", "text"), USAGE, ids=[text[:40] for _, text in USAGE])
def test_usage_errors(arguments, text):
    with pytest.raises(UsageError) as caught:
        check_attention(**arguments)
    assert text in str(caught.value)
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, ValueError)


# --- functions that misbehave


def test_raises():
    def broken(query, key, value):
        raise RuntimeError("no luck today")

    report = check_attention(broken)
    assert [f.property for f in report.failures] == ["runs"] and not report.ok
    assert "RuntimeError: no luck today" in report.failures[0].message and "test_check.py" in report.text()


@pytest.mark.parametrize(
    ("body", "text", "suspect"),
    [
        (lambda o: None, "gave back nothing (None)", "forgets_to_return"),
        (lambda o: o.tolist(), "gave back a list", "returns_a_list"),
    ],
)
def test_gives_back_something_else(body, text, suspect):
    def mine(query, key, value):
        return body(textbook(query, key, value))

    report = check_attention(mine)
    assert text in report.failures[0].message and report.failures[0].suspect == suspect


def test_numbers_that_are_not_real():
    def mine(query, key, value):
        return textbook(query, key, value).astype(complex)

    assert "gave back numbers of dtype complex128" in check_attention(mine).failures[0].message
    report = check_attention(lambda query, key, value: np.array([[object()]]))
    assert "gave back numbers of dtype object" in report.failures[0].message


def test_an_error_without_text():
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError("no text either")

    def mine(query, key, value):
        raise Silent

    assert "Silent: (no text)" in check_attention(mine).failures[0].message


def test_generators_are_left_alone():
    def mine(query, key, value, dropout_p=0.0):
        np.random.seed(3)  # noqa: NPY002 - what people do
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout_p)

    before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    check_attention(mine, "torch", properties=["equation", "dropout"])
    assert (np.random.get_state()[1] == before[0]).all()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[1])


def test_other_framework_is_recognised():
    report = check_attention(torch.nn.functional.scaled_dot_product_attention)
    assert 'pass framework="torch"' in report.text()


def test_hangs():
    def sleepy(query, key, value):
        time.sleep(5)

    start = time.monotonic()
    report = check_attention(sleepy, timeout=0.2)
    assert "the function did not come back within 0.2 s" in report.failures[0].message
    assert time.monotonic() - start < 4


def test_hangs_at_one_length():
    def slow_when_long(query, key, value):
        if key.shape[-2] > 600:
            time.sleep(5)
        return textbook(query, key, value)

    report = check_attention(slow_when_long, timeout=1.5, properties=["equation", "lengths"])
    assert report.holds == ["equation"] and report.failures[0].property == "lengths"


def test_prints(capsys):
    def chatty(query, key, value):
        print("hello")
        return textbook(query, key, value)

    assert check_attention(chatty, properties=["equation"]).ok


def test_warns():
    def warner(query, key, value):
        return textbook(query, key, value) + np.array(0, query.dtype) * np.float32(np.exp(np.float32(200)))

    report = check_attention(warner, properties=["equation"])
    assert not report.ok and any("it warns: RuntimeWarning" in note for note in report.notes)


def test_progress_is_told():
    told = []
    check_attention(true_blocks, properties=["equation", "mask", "bias"], progress=lambda *now: told.append(now))
    assert told[0] == ("runs", None) and told[-1] == ("explain", None)
    assert ("equation", None) in told and ("equation", "holds") in told
    assert ("bias", "not tested: no argument named bias") in told
    (failure,) = [outcome for _, outcome in told if isinstance(outcome, verify.Failure)]
    assert failure.property == "mask"


# --- for pytest


def test_cases_are_one_for_each_property():
    found = cases(reference.attention)
    assert [p.id for p in found] == [p.name for p in PROPERTIES]
    skipped = {p.id: p.marks[0].kwargs["reason"] for p in found if p.marks}
    assert skipped["gradients"] == "not tested: gradients are torch's" and "mask" not in skipped


def test_cases_in_a_test_file(tmp_path):
    test = """
        import pytest
        from lib import verify
        from lib.verify import catalogue

        @pytest.mark.parametrize("case", verify.cases(catalogue["mask_inverted"].function()))
        def test_attention(case):
            if case.name in ("equation", "mask", "scale"):
                case.check()
    """
    (tmp_path / "test_mine.py").write_text(textwrap.dedent(test))
    command = [sys.executable, "-m", "pytest", "-q", "-rfs", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_attention[mask]" in done.stdout and "This is the known bug mask_inverted" in done.stdout
    assert "1 failed" in done.stdout and "not tested: gradients are torch's" in done.stdout


def test_conventions_are_described():
    assert set(verify.CONVENTIONS) >= {"mask_true", "alignment", "layout", "empty_rows"}
    assert all(meaning for _, meaning in verify.CONVENTIONS.values())
