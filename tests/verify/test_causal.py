"""check_causal is itself tested: models that leak in known ways, and models that do not."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lib import fast, verify
from lib.verify.causal import _picks
from lib.verify.causal_patterns import SUSPECTS, name_leak

V, D, L = 11, 8, 6
WHOLE = "whole pass"


@pytest.fixture(autouse=True)
def seeded():
    """Use the same weights each time, and one thread: the models are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tokens():
    return torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


def past(i, j):
    return j <= i


class Model(nn.Module):
    """A small model. ``allow(i, j)`` says who sees whom, and the other options go wrong one by one."""

    def __init__(self, allow=past, layers=1, allow_at=(), mix=None, forget=0, dropout=0.0, restart=False, chunked=None):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(V, D), nn.Embedding(32, D)
        self.layers = nn.ModuleList(nn.Linear(D, 3 * D) for _ in range(layers))
        self.out, self.dropout = nn.Linear(D, V), nn.Dropout(dropout)
        self.allows = [dict(allow_at).get(i, allow) for i in range(layers)]
        self.mix, self.forget, self.restart, self.chunked = mix, forget, restart, chunked
        self.norm = nn.BatchNorm1d(D) if mix == "batch norm" else None

    def new_cache(self, batch):
        return [[] for _ in self.layers]

    def forward(self, tokens, caches=None):
        B, n = tokens.shape
        start = 0 if not caches or not caches[0] else sum(k.shape[1] for k, _ in caches[0])
        first = 0 if self.restart else start
        x = self.embedding(tokens) + self.positions(torch.arange(first, first + n))
        if self.mix == "mean":
            x = x + x.mean(1, keepdim=True)
        if self.mix == "last":
            x = x + x[:, -1:]
        if self.mix == "rows":
            x = x + x.roll(1, 0)
        if self.norm is not None:
            x = self.norm(x.flatten(0, 1)).view(B, n, D)
        for i, (layer, allow) in enumerate(zip(self.layers, self.allows, strict=True)):
            q, k, v = layer(x).chunk(3, -1)
            if caches is not None:
                caches[i].append((k, v))
                held = caches[i][-self.forget :] if self.forget else caches[i]
                k, v = (torch.cat([pair[j] for pair in held], 1) for j in (0, 1))
            S = k.shape[1]
            rows, columns = torch.arange(S - n, S)[:, None], torch.arange(S)
            seen = allow(rows, columns) if not takes_model(allow) else allow(rows, columns, self)
            if caches is not None and self.chunked is not None:
                seen = self.chunked(rows, columns, start)
            weights = (q @ k.mT / D**0.5).masked_fill(~seen, -torch.inf).softmax(-1)
            x = x + self.dropout(torch.nan_to_num(weights) @ v)
        return self.out(x)


@pytest.mark.parametrize("wrap, access", [(lambda x: (x, None), "[0]"), (lambda x: {"logits": x}, '["logits"]')])
def test_the_code_of_an_example_unwraps(tokens, wrap, access):
    report = verify.check_causal(lambda t: wrap(nn.functional.one_hot(t.roll(-1, 1), V).float()), tokens)
    assert f"model(before){access}.detach()" in report.failures[0].example.code


def takes_model(allow):
    return allow.__code__.co_argcount == 3


def everything(i, j):
    return j >= 0 * i


def by_mode(training):
    """Causal only when the model's mode is this one."""
    return lambda i, j, model: (j <= i) | (model.training != training)


def leaks(report, question="perturbation"):
    return {(f.way, f.mode): f for f in report.failures if f.property.startswith(question)}


# What holds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"positions": "learned", "dropout": 0.2, "num_kv_heads": 1}])
def test_lib_holds_in_every_mode_and_way(tokens, options):
    model = fast.LanguageModel(V, D, 2, 2, max_length=L, **options)
    report = verify.check_causal(model, tokens)
    assert report.ok, report
    assert not report.refused
    ways = (WHOLE, "prefill", "prefill and steps", "chunks", "single steps")
    wanted = {f"perturbation, {way}, {mode}" for way in ways for mode in ("evaluation", "training")}
    wanted |= {f"gradient, {WHOLE}, {mode}" for mode in ("evaluation", "training")}
    wanted |= {f"agreement, {way}, evaluation" for way in ways[1:]} | {"padding, whole pass, evaluation"}
    assert wanted <= set(report.holds)
    assert report.exact[f"perturbation, {WHOLE}, evaluation"] and report.exact[f"gradient, {WHOLE}, training"]
    seen = report.seen[f"gradient, {WHOLE}, evaluation"]
    assert (seen[np.tril_indices(L)] > 0).all() and (seen[np.triu_indices(L, 1)] == 0).all()
    assert "does not see the future" in str(report) and "to the last bit" in str(report)


def test_this_files_model_holds(tokens):
    for model in (Model(), Model(layers=3, dropout=0.3)):
        report = verify.check_causal(model, tokens)
        assert report.ok and not report.refused, report


class Encoder(nn.Module):
    def __init__(self, masked, batch_first=True):
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 2, 16, batch_first=batch_first)
        self.embedding, self.masked, self.out = nn.Embedding(V, D), masked, nn.Linear(D, V)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]) if self.masked else None
        return self.out(self.encoder(self.embedding(tokens), mask=mask))


def test_torch_encoder_with_its_mask_holds(tokens):
    report = verify.check_causal(Encoder(True), tokens)
    assert report.ok, report
    assert report.not_tested["passes with a cache"] == "no cache interface was found (pass cache=)"


def test_torch_encoder_without_mask_leaks(tokens):
    report = verify.check_causal(Encoder(False), tokens)
    assert report.suspect == "no_mask"
    assert set(leaks(report)) == set(leaks(report, "gradient")) == {(WHOLE, "evaluation"), (WHOLE, "training")}
    failure = leaks(report)[WHOLE, "evaluation"]
    assert failure.message.startswith("position 0 saw position 1 (change 0.")
    assert {(t, u) for t, u, _ in failure.pairs} == {(t, u) for t in range(L) for u in range(t + 1, L)}


def test_torch_encoder_with_batch_and_time_swapped(tokens):
    report = verify.check_causal(Encoder(False, batch_first=False), tokens)
    assert not leaks(report) and {f.suspect for f in report.failures} == {"batch_and_time_swapped"}
    assert "no output changes with a token before its own" in str(report)


# What leaks: the model, the suspect, the modes and the pairs -------------------------------------------------------

EVERY = {(t, u) for t in range(L) for u in range(t + 1, L)}
NEXT = {(t, t + 1) for t in range(L - 1)}
BOTH = {"evaluation", "training"}
LEAKING = {
    "no mask": ({"allow": everything}, "no_mask", BOTH, EVERY),
    "mask inverted": ({"allow": lambda i, j: j > i}, "mask_inverted", BOTH, EVERY),
    "off by one": ({"allow": lambda i, j: j <= i + 1}, "off_by_one", BOTH, NEXT),
    "off by one, 2 layers": (
        {"allow": lambda i, j: j <= i + 1, "layers": 2}, "off_by_one", BOTH, NEXT | {(t, t + 2) for t in range(L - 2)},
    ),
    "causal only when training": ({"allow": by_mode(True)}, "mask_only_in_training", {"evaluation"}, EVERY),
    "causal dropped in training": ({"allow": by_mode(False)}, "mask_only_in_evaluation", {"training"}, EVERY),
    "mean over time": ({"mix": "mean"}, None, BOTH, EVERY),
    "the last token for all": ({"mix": "last"}, "last_token", BOTH, {(t, L - 1) for t in range(L - 1)}),
    "one layer of three": ({"layers": 3, "allow_at": {1: everything}.items()}, "no_mask", BOTH, EVERY),
    "blocks": ({"allow": lambda i, j: j // 2 <= i // 2}, "block_unmasked", BOTH, {(0, 1), (2, 3), (4, 5)}),
    "prefix": ({"allow": lambda i, j: (j <= i) | (j < 3)}, "prefix_unmasked", BOTH, {(0, 1), (0, 2), (1, 2)}),
    "batch norm": ({"mix": "batch norm"}, "batch_statistics", {"training"}, EVERY),
    "dropout hides nothing": (
        {"allow": lambda i, j: j <= i + 1, "dropout": 0.5}, "off_by_one", BOTH, NEXT,
    ),
    "one pair": ({"allow": lambda i, j: (j <= i) | ((i == 2) & (j == 4))}, None, BOTH, {(2, 4)}),
}  # fmt: skip


@pytest.mark.parametrize("case", LEAKING)
def test_a_leak_is_caught_where_it_is(tokens, case):
    options, suspect, modes, pairs = LEAKING[case]
    report = verify.check_causal(Model(**options), tokens, cache=False)
    for question in ("perturbation", "gradient"):
        found = leaks(report, question)
        assert {mode for _, mode in found} == modes
        for (_, mode), failure in found.items():
            if mode == "training" and options.get("dropout"):
                continue  # what is dropped reaches nobody in that pass
            assert {(t, u) for t, u, _ in failure.pairs} == pairs
            assert suspect is None or failure.suspect == suspect
    assert report.ok is False and not report


def test_a_function_that_averages_over_time(tokens):
    embed = nn.Embedding(V, V)
    model = lambda tokens: embed(tokens) + embed(tokens).mean(1, keepdim=True)  # noqa: E731
    report = verify.check_causal(model, tokens)
    assert report.suspect == "sequence_statistics"


def test_a_leak_through_the_batch(tokens):
    report = verify.check_causal(Model(mix="rows"), tokens, cache=False)
    assert not leaks(report) and set(leaks(report, "rows")) == {(WHOLE, "evaluation"), (WHOLE, "training")}
    failure = leaks(report, "rows")[WHOLE, "evaluation"]
    assert failure.message.startswith("position 0 of row 1 saw position 0 of row 0") and failure.suspect == "rows_mixed"


def test_one_row_gets_a_second(tokens):
    assert leaks(verify.check_causal(Model(mix="rows"), tokens[:1], cache=False), "rows")


def test_only_several_tokens_together(tokens):
    def model(tokens):  # tells where the tokens ahead are 0 both: no single change shows it
        x = nn.functional.one_hot(tokens, V).float()
        both = (tokens[:, 1:-1] != tokens_before[: len(tokens), 1:-1]) & (
            tokens[:, 2:] != tokens_before[: len(tokens), 2:]
        )
        return x + nn.functional.pad(both.float(), (0, 2))[..., None]

    tokens_before = tokens.clone()
    report = verify.check_causal(model, tokens)
    assert not report.ok and "and later ones, changed together" in report.failures[0].message


def chooses_half(x):
    """Let the half of the tokens that score highest through, as experts that choose their tokens do."""
    score = x.sum(-1)
    return x * (score >= score.median(1, keepdim=True).values)[..., None]


UNUSUAL = {
    "experts choose tokens": lambda t, x: chooses_half(x),
    "only the largest of all": lambda t, x: x + x.detach().amax(1, keepdim=True),
    "sorted tokens": lambda t, x: x + t.sort(1).values[..., None],
    "count of different tokens": lambda t, x: x * torch.tensor([len(row.unique()) for row in t])[:, None, None],
    "positions count the pads to come": lambda t, x: x + (torch.arange(t.shape[1]) + (t == 0).sum(1, True))[..., None],
    "everybody sees pads": lambda t, x: x + (x * (t == 0)[..., None]).sum(1, keepdim=True),
    "the sum of the whole below the line": lambda t, x: x.exp().cumsum(1) / x.exp().sum(1, keepdim=True),
    "a hundred thousandth of the mean": lambda t, x: x + 1e-5 * x.mean(1, keepdim=True),
    "Fourier transform over time": lambda t, x: torch.fft.fft(x, dim=1).real,
}
HOLDING = {
    "sum so far": lambda t, x: x.cumsum(1),
    "largest so far": lambda t, x: x.cummax(1).values,
    "positions count the pads so far": lambda t, x: x + (t == 0).cumsum(1)[..., None],
    "pads hidden": lambda t, x: (x * (t != 0)[..., None]).cumsum(1),
    "each its own": lambda t, x: torch.where(x.sum(-1, keepdim=True) > 0, x, 0 * x),
    "bfloat16": lambda t, x: x.bfloat16().cumsum(1),
}


def mixing(mix):
    """Embed tokens, mix them, and give logits."""
    torch.manual_seed(0)
    embed = nn.Embedding(V, V)
    return lambda tokens: mix(tokens, embed(tokens))


@pytest.mark.parametrize("how", UNUSUAL)
def test_an_unusual_leak_is_caught(how):
    tokens = torch.tensor([[3, 1, 4, 1, 5, 0, 2, 6], [2, 0, 5, 3, 5, 8, 0, 7]])
    report = verify.check_causal(mixing(UNUSUAL[how]), tokens)
    assert not report.ok and {f.property.split(",")[0] for f in report.failures} & {"perturbation", "padding"}


@pytest.mark.parametrize("how", HOLDING)
def test_an_unusual_model_that_holds(how):
    tokens = torch.tensor([[3, 1, 4, 1, 5, 0, 2, 6], [2, 0, 5, 3, 5, 8, 0, 7]])
    report = verify.check_causal(mixing(HOLDING[how]), tokens)
    assert report.ok, report


# With a cache ------------------------------------------------------------------------------------------------------


def test_causal_dropped_in_later_chunks(tokens):
    model = Model(chunked=lambda i, j, start: (j <= i) | (start > 0))
    report = verify.check_causal(model, tokens)
    found = leaks(report)
    assert set(found) == {("chunks", "evaluation"), ("chunks", "training")}
    assert {(t, u) for t, u, _ in found["chunks", "evaluation"].pairs} == {(3, 4)}
    assert report.suspect == "chunk_unmasked"
    assert "fed in chunks of 3, 2, 1" in str(report)


def test_causal_dropped_in_the_first_chunk(tokens):
    model = Model(chunked=lambda i, j, start: (j <= i) | (start == 0))
    found = leaks(verify.check_causal(model, tokens))
    assert {way for way, _ in found} == {"prefill", "prefill and steps", "chunks"}
    assert found["chunks", "training"].suspect == "prefill_unmasked"


def test_causal_dropped_in_every_chunk(tokens):
    found = leaks(verify.check_causal(Model(chunked=lambda i, j, start: j >= 0 * i), tokens))
    assert found["chunks", "evaluation"].suspect == "cache_unmasked"


@pytest.mark.parametrize(
    "options, suspect",
    [
        ({"forget": 2}, "cache_sees_fewer"),
        ({"chunked": lambda i, j, start: j <= i - start}, "cache_sees_fewer"),
        ({"allow": lambda i, j: (j <= i) & (j > i - 3), "chunked": lambda i, j, start: j <= i}, "cache_sees_more"),
        ({"restart": True}, "cache_positions"),
    ],
)
def test_steps_that_disagree_with_the_whole_pass(tokens, options, suspect):
    report = verify.check_causal(Model(**options), tokens)
    found = leaks(report, "agreement")
    assert ("single steps", "evaluation") in found and (WHOLE, "evaluation") not in found
    assert found["single steps", "evaluation"].suspect == suspect
    assert "position" in found["single steps", "evaluation"].message and not leaks(report)


def test_an_adapter_for_a_model_of_another_kind(tokens):
    model = Model()
    model.new_cache = None

    def start(batch):
        caches = [[] for _ in model.layers]
        return lambda tokens: model(tokens, caches)

    assert "passes with a cache" in verify.check_causal(model, tokens).not_tested
    report = verify.check_causal(model, tokens, cache=start)
    assert report.ok and "agreement, single steps, training" in report.holds


class NewNames(Model):
    def forward(self, tokens, cache=None, use_cache=None):
        cache = self.new_cache(len(tokens)) if cache is None and use_cache else cache
        return SimpleNamespace(logits=super().forward(tokens, cache), cache=cache)


class OldNames(Model):
    def forward(self, tokens, past_key_values=None, **kwargs):
        if past_key_values is None and kwargs.get("use_cache"):
            past_key_values = self.new_cache(len(tokens))
        return SimpleNamespace(logits=super().forward(tokens, past_key_values), past_key_values=past_key_values)


@pytest.mark.parametrize("kind", [NewNames, OldNames])
def test_the_interface_of_transformers_is_found(tokens, kind):
    report = verify.check_causal(kind(), tokens)
    assert report.ok and not report.refused and "agreement, single steps, evaluation" in report.holds
    report = verify.check_causal(kind(chunked=lambda i, j, start: (j <= i) | (start > 0)), tokens)
    assert report.suspect == "chunk_unmasked"


def test_a_cache_that_refuses_chunks(tokens):
    def start(batch):
        def feed(tokens):
            raise NotImplementedError("one token at a time")

        return feed

    report = verify.check_causal(Model(), tokens, cache=start)
    assert report.ok and "one token at a time" in report.refused["chunks, training"]


# Other models ------------------------------------------------------------------------------------------------------


def averages(tokens):
    x = np.eye(V)[tokens]
    return np.cumsum(x, 1) / np.arange(1, x.shape[1] + 1)[:, None]


def test_numpy_is_asked_by_perturbation_only(tokens):
    report = verify.check_causal(averages, tokens.numpy())
    assert report.ok and report.framework == "numpy"
    assert report.not_tested["gradient, whole pass, as it is"] == "the model is NumPy's"
    report = verify.check_causal(lambda t: averages(t[:, ::-1])[:, ::-1], tokens.numpy())
    assert report.suspect == "mask_inverted"


def test_a_model_of_vectors():
    x = torch.randn(2, L, D)
    good, bad = (nn.TransformerEncoderLayer(D, 2, 16, batch_first=True, dropout=0.0) for _ in range(2))
    mask = nn.Transformer.generate_square_subsequent_mask(L)
    report = verify.check_causal(lambda x: good(x, src_mask=mask[: x.shape[1], : x.shape[1]]), x)
    assert report.ok and f"gradient, {WHOLE}, as it is" in report.holds
    assert set(leaks(verify.check_causal(bad, x), "gradient")) == {(WHOLE, "evaluation"), (WHOLE, "training")}


def test_a_model_that_ignores_its_input_holds_trivially(tokens):
    report = verify.check_causal(lambda t: torch.zeros(*t.shape, V), tokens)
    assert report.ok and any("holds trivially" in note for note in report.notes)


def test_no_embedding_is_not_passed(tokens):
    class OneHot(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(V, V)

        def forward(self, tokens):
            return self.out(nn.functional.one_hot(tokens, V).float())

    report = verify.check_causal(OneHot(), tokens)
    assert report.not_tested["gradient, whole pass, training"] == "no embedding module was called with the tokens"
    assert not [title for title in report.holds if title.startswith("gradient")]


def test_what_depends_on_the_length_alone(tokens):
    report = verify.check_causal(lambda t: averages(t.numpy()).astype("float32") * t.shape[1], tokens)
    assert [f.suspect for f in report.failures] == ["length_matters"]
    assert "when the sequence is cut off from 1 on" in report.failures[0].message


def test_float_noise_is_told_from_equal_bits(tokens):
    def model(tokens):
        x = averages(tokens)
        return (x + 1e-16 * x.sum(1, keepdims=True)).astype(np.float64)

    report = verify.check_causal(model, tokens.numpy())
    assert report.ok and report.exact["perturbation, whole pass, as it is"] is False
    assert any(note.startswith("within float noise") for note in report.notes)


def test_a_function_before_a_module(tokens):
    inner = Model(allow=by_mode(True))
    report = verify.check_causal(lambda t: inner(t), tokens, module=inner)
    assert set(leaks(report, "gradient")) == {(WHOLE, "evaluation")}
    assert set(leaks(verify.check_causal(inner.forward, tokens))) == {(WHOLE, "evaluation")}


def test_many_positions_are_asked_at_some():
    assert _picks(5, 8) == [0, 1, 2, 3, 4]
    picks = _picks(1000, 32)
    assert len(picks) <= 32 and {0, 1, 998, 999} <= set(picks)
    tokens = torch.randint(0, V, (1, 100))
    model = lambda t: nn.functional.one_hot(t.roll(-1, 1), V).float()  # noqa: E731
    report = verify.check_causal(model, tokens)
    assert (0, 1) in [pair[:2] for pair in report.failures[0].pairs] and not report.failures[0].drawing


# What is left behind, and what is shown ----------------------------------------------------------------------------


def test_nothing_is_left_behind(tokens):
    model = Model(mix="batch norm", dropout=0.5)
    model.layers[0].train(False)
    modes = [m.training for m in model.modules()]
    before = {name: x.clone() for name, x in model.state_dict().items()}
    given = tokens.clone()
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    verify.check_causal(model, tokens)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), states[0]) and torch.equal(tokens, given)
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())


def test_the_report_draws_and_can_be_run(tokens):
    model = Model(allow=lambda i, j: j <= i + 1)
    report = verify.check_causal(model, tokens, cache=False)
    failure = leaks(report)[WHOLE, "evaluation"]
    assert failure.drawing[0].split() == ["input", *"012345"]
    assert failure.drawing[3].split() == ["output", "2", *"###!.."]
    assert failure.example.sizes == {"B": 1, "L": 2}
    scope = {"model": model}
    exec(failure.example.code, scope)
    shown = eval(failure.example.shown, scope)
    assert float(shown) == pytest.approx(failure.example.given)
    assert "sees the future: " in str(report) and "known bug off_by_one" in str(report)
    assert '"pairs"' in report.to_json()


def test_state_between_calls_is_a_failure(tokens):
    calls = []

    def model(tokens):
        calls.append(1)
        return nn.functional.one_hot(tokens, V).float() * len(calls)

    report = verify.check_causal(model, tokens)
    assert [f.property for f in report.failures] == ["repeatable, whole pass, as it is"]


def test_nan_is_a_failure(tokens):
    report = verify.check_causal(lambda t: torch.full((*t.shape, V), torch.nan), tokens)
    assert report.failures[0].property == "finite, whole pass, as it is"


def test_masked_words_do_not_hide_a_leak(tokens):
    def model(tokens):
        x = nn.functional.one_hot(tokens.roll(-1, 1), V).float()
        x[..., 0], x[..., 1] = -torch.inf, -1e9
        return x

    assert not verify.check_causal(model, tokens).ok


def test_every_pattern_has_an_explanation():
    ones = np.ones((4, 4), bool)
    assert name_leak(ones, ones) == "no_mask" and name_leak(np.tri(4, dtype=bool), ones) is None
    assert all(text and not text.endswith(".") for text in SUSPECTS.values())


# Bad usage ---------------------------------------------------------------------------------------------------------

GOOD = torch.tensor([[1, 2, 3]])


def logits(*shape, dtype=torch.float32):
    return lambda tokens: torch.zeros(*shape, dtype=dtype)


@pytest.mark.parametrize(
    "model, tokens, options, text",
    [
        (3, GOOD, {}, "model must be callable: tokens (B, L) to logits (B, L, V); got int"),
        (Model, GOOD, {}, "model must be an instance; Model is a class: pass Model(…)"),
        (Model(), [[1, 2]], {}, "tokens must be a torch.Tensor or a numpy.ndarray, got list"),
        (Model(), np.array([[1, 2]]), {}, "tokens must be a torch.Tensor for a torch module, got a numpy.ndarray"),
        (Model(), GOOD.float(), {}, "tokens must hold integers, got float32"),
        (Model(), GOOD.bool(), {}, "tokens must hold integers, got bool"),
        (Model(), GOOD[0], {}, "tokens must have shape (B, L), got (3,)"),
        (Model(), GOOD[:, :1], {}, "at least 1 row and 2 positions, (B, L) = (1, 1)"),
        (Model(), -GOOD, {}, "tokens must be 0 or more, got -3"),
        (Model(), GOOD * 0, {}, "or pass vocabulary="),
        (Model(), GOOD, {"vocabulary": 3}, "tokens must lie below vocabulary = 3, got 3"),
        (Model(), GOOD, {"vocabulary": 1}, "vocabulary must be an integer of 2 or more, got 1"),
        (Model(), GOOD, {"vocabulary": 99}, "below vocabulary = 99: IndexError"),
        (Model(), GOOD, {"cache": 3}, "cache must be a function: cache(batch)"),
        (Model(), GOOD, {"module": 3}, "module must be a torch.nn.Module, got int"),
        (Model(), GOOD + 20, {}, "the model raised at tokens of shape (1, 3): IndexError"),
        (lambda t: None, GOOD, {}, "gave back nothing (None), logits of shape (B, L, V) were wanted: is a `return`"),
        (lambda t: "no", GOOD, {}, "the model gave back a str"),
        (lambda t: t[..., None], GOOD, {}, "the model's logits must be floating, got int64"),
        (logits(1, 2, V), GOOD, {}, "must have shape (B, L, V) = (1, 3, V), got (1, 2, 11): one position is missing"),
        (logits(1, 1, V), GOOD, {}, "some models give only the last position unless targets are passed too"),
        (logits(3, 1, V), GOOD, {}, "batch and length are swapped"),
        (logits(1, 7, V), GOOD, {}, "must have shape (B, L, V) = (1, 3, V), got (1, 7, 11)"),
    ],
)  # fmt: skip
def test_bad_usage_is_told(model, tokens, options, text):
    with pytest.raises(verify.UsageError) as error:
        verify.check_causal(model, tokens, **options)
    assert text in str(error.value)


@pytest.mark.parametrize("wrap", [lambda x: (x, None), lambda x: [x], lambda x: {"logits": x}])
def test_logits_may_come_wrapped(tokens, wrap):
    assert verify.check_causal(lambda t: wrap(nn.functional.one_hot(t, V).float()), tokens).ok
