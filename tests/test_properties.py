"""What is true of any attention, on generated inputs: the same ones at every run.

Each property is a function of an implementation and a drawn problem; it is also run on the broken ones of
tests/broken.py that it must notice, with the same inputs.
"""

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lib import reference
from tests import oracle
from tests.broken import Broken
from tests.implementations import IMPLEMENTATIONS
from tests.rules import bits

REPEATABLE = settings(
    derandomize=True, deadline=None, max_examples=30, database=None, report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
UNSHRUNK = settings(REPEATABLE, max_examples=90, phases=[Phase.generate])  # where a failure is expected, any will do
ROUNDING = 1e-12


class Problem:
    """Arrays and options that fit each other, drawn by hypothesis, filled by a seeded generator."""

    def __init__(self, draw):
        self.B, self.G, self.L, self.S, self.E, self.Ev = (draw(st.integers(1, n)) for n in (2, 2, 5, 6, 3, 3))
        self.H = self.G * draw(st.integers(1, 2))
        self.r = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        self.size = draw(st.sampled_from([0.1, 1.0, 10.0]))
        self.query = self.numbers(self.B, self.H, self.L, self.E)
        self.key, self.value = (
            self.numbers(self.B, self.G, self.S, self.E),
            self.numbers(self.B, self.G, self.S, self.Ev),
        )
        self.options = {"enable_gqa": True}
        if draw(st.booleans()):
            shape = draw(
                st.sampled_from([(self.L, self.S), (self.B, 1, self.L, self.S), (self.H, 1, self.S), (self.S,)])
            )
            self.options["mask"] = self.r.random(shape) < 0.7
        if draw(st.booleans()):
            shape = draw(st.sampled_from([(self.L, self.S), (self.H, self.L, self.S), (self.S,)]))
            self.options["bias"] = self.numbers(*shape)
            self.options["bias"][self.r.random(shape) < 0.2] = -np.inf
        if draw(st.booleans()):
            self.options["scale"] = draw(st.sampled_from([0.0, -0.5, 0.3, 2.0]))
        if draw(st.booleans()):
            self.options["softcap"] = draw(st.sampled_from([0.5, 5.0]))
        if draw(st.booleans()):
            self.options["causal"] = True
        if draw(st.booleans()):
            side = st.none() | st.integers(0, 4)
            self.options["window"] = (draw(side), draw(side))
        whole = st.integers(-3, 6)
        offset = draw(st.sampled_from(["one", "each"]))
        self.options["offset"] = draw(whole) if offset == "one" else np.array([draw(whole) for _ in range(self.B)])

    def numbers(self, *shape):
        return self.size * self.r.normal(size=shape)

    def __repr__(self):
        return f"B{self.B} H{self.H} G{self.G} L{self.L} S{self.S} E{self.E} Ev{self.Ev} x{self.size} {self.options}"

    def asked_of(self, attention):
        """Return the options that an implementation has."""
        return {name: x for name, x in self.options.items() if name in attention.options}

    def run(self, attention, query=None, key=None, value=None, **options):
        query, key, value = (
            mine if other is None else other
            for mine, other in ((self.query, query), (self.key, key), (self.value, value))
        )
        return attention(query, key, value, **{**self.asked_of(attention), **options})

    def seen(self, attention):
        restrictions = ("mask", "bias", "causal", "window", "offset")
        options = {name: x for name, x in self.asked_of(attention).items() if name in restrictions}
        return oracle.visible((self.B, self.H, self.L, self.S), **options)


problems = st.composite(lambda draw: Problem(draw))()
PROPERTIES = []


def prop(*faults):
    """Register a property and the mistakes it must notice."""

    def register(check):
        PROPERTIES.append((check, faults))
        return check

    return register


def close(given, wanted):
    np.testing.assert_allclose(given, wanted, rtol=ROUNDING, atol=ROUNDING * 100)


@prop("heads_tiled", "offset_first_only", "window_counts_self", "softcap_after_mask", "scale_squared", "no_scale",
      "bias_before_softcap", "mask_drops_causal", "mask_or_causal", "causal_strict", "mask_inverted",
      "epsilon")  # fmt: skip
def equals_the_loops(attention, p):
    close(p.run(attention), oracle.attention(p.query, p.key, p.value, **p.asked_of(attention))[0])


@prop("softmax_over_queries", "epsilon", "mask_after_softmax", "mask_fill_small", "mask_ignored", "empty_row_mean")
def rows_sum_to_one_and_hidden_weights_are_zero(attention, p):
    units = np.broadcast_to(np.eye(p.S), (p.B, p.G, p.S, p.S))  # with these values, output and weights are the same
    weights, seen = p.run(attention, value=units), p.seen(attention)
    close(weights.sum(-1), seen.any(-1).astype(float))
    assert (weights[~seen] == 0).all()
    assert (weights >= 0).all()


@prop("softmax_over_queries", "value_is_key", "hidden_key_leaks", "mask_ignored", "mask_as_number")
def output_stays_inside_the_hull_of_the_visible_values(attention, p):
    key = p.key.copy()
    if attention.exact:
        key[:, :, -1] = np.where(p.seen(attention)[..., -1].any(), key[:, :, -1], np.nan)
    seen = p.seen(attention)
    values = np.repeat(p.value, p.H // p.G, axis=1)[:, :, None]  # (B, H, 1, S, Ev)
    low = np.where(seen[..., None], values, np.inf).min(-2)
    high = np.where(seen[..., None], values, -np.inf).max(-2)
    empty = ~seen.any(-1)
    low[empty], high[empty] = 0, 0
    output = p.run(attention, key=key)
    assert (output >= low - ROUNDING * p.size).all()
    assert (output <= high + ROUNDING * p.size).all()


@prop("one_key_forgotten")
def order_of_the_keys_does_not_matter(attention, p):
    order = p.r.permutation(p.S)
    seen = p.seen(attention)  # positions move along with the keys
    whole = {"causal": False, "window": None, "offset": None, "mask": seen}
    if "bias" in p.options:
        whole["bias"] = p.options["bias"]
    wanted = p.run(attention, **whole)
    whole["mask"] = seen[..., order]
    if "bias" in p.options:
        whole["bias"] = np.broadcast_to(p.options["bias"], seen.shape)[..., order]
    close(p.run(attention, key=p.key[:, :, order], value=p.value[:, :, order], **whole), wanted)


@prop("first_query_special")
def order_of_the_queries_carries_over(attention, p):
    order = p.r.permutation(p.L)
    seen = p.seen(attention)
    whole = {"causal": False, "window": None, "offset": None, "mask": seen}
    wanted = p.run(attention, **whole)[:, :, order]
    whole["mask"] = seen[:, :, order]
    if "bias" in p.options:
        whole["bias"] = np.broadcast_to(p.options["bias"], seen.shape)[:, :, order]
    close(p.run(attention, query=p.query[:, :, order], **whole), wanted)


@prop("no_maximum", "bias_times", "mask_fill_small")
def shifting_a_row_of_scores_changes_nothing(attention, p):
    bias = p.options.get("bias", np.zeros(p.S))
    for shift in (1.0, -300.0, 1e4):
        shifted = np.broadcast_to(bias, (p.B, p.H, p.L, p.S)) + shift * p.r.normal(size=(p.B, p.H, p.L, 1))
        np.testing.assert_allclose(p.run(attention, bias=shifted), p.run(attention, bias=bias), rtol=1e-9, atol=1e-9)


@prop("causal_ignored", "causal_flipped", "mask_drops_causal", "mask_or_causal", "causal_bottom_right")
def the_future_does_not_reach_the_past(attention, p):
    offset = int(p.r.integers(-1, 3))
    options = {"causal": True, "offset": offset}
    wanted = p.run(attention, **options)
    t = int(p.r.integers(0, p.S))  # keys from t on change: nothing before query t - offset may
    key, value = p.key.copy(), p.value.copy()
    key[:, :, t:], value[:, :, t:] = 1e3 * p.numbers(*key[:, :, t:].shape), 1e3 * p.numbers(*value[:, :, t:].shape)
    past = slice(0, max(t - offset, 0))
    given = p.run(attention, key=key, value=value, **options)
    np.testing.assert_array_equal(bits(given[:, :, past] + 0.0), bits(wanted[:, :, past] + 0.0))


@prop("batch_mixed", "offset_first_only", "one_maximum_far", "heads_tiled", "heads_first")
def batch_entries_and_heads_are_alone(attention, p):
    together = p.run(attention)
    for b in range(p.B):
        for h in range(p.H):
            g = h // (p.H // p.G)
            options = {"enable_gqa": False}
            for name in ("mask", "bias"):
                if name in p.options:
                    options[name] = np.broadcast_to(p.options[name], (p.B, p.H, p.L, p.S))[b, h]
            if isinstance(p.options["offset"], np.ndarray):
                options["offset"] = int(p.options["offset"][b])
            close(together[b, h], p.run(attention, p.query[b, h], p.key[b, g], p.value[b, g], **options))


@prop("writes_value", "writes_bias")
def inputs_are_not_written(attention, p):
    for name in {"mask", "bias"} & set(p.options):
        p.options[name] = np.broadcast_to(p.options[name], (p.B, p.H, p.L, p.S)).copy()
    if "mask" in p.options:
        p.options["mask"][..., -1] = False
    arrays = [x for x in (p.query, p.key, p.value, *p.options.values()) if isinstance(x, np.ndarray)]
    before = [x.tobytes() for x in arrays]
    first = p.run(attention)
    assert [x.tobytes() for x in arrays] == before
    np.testing.assert_array_equal(p.run(attention), first)


@prop("contiguous_only")
def memory_layouts_do_not_matter(attention, p):
    def strided(x):
        wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan)
        wide[..., ::2] = x
        return wide[..., ::2]

    wanted = p.run(attention)
    close(p.run(attention, strided(p.query), strided(p.key), strided(p.value)), wanted)
    turned = (np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) for x in (p.query, p.key, p.value))
    close(p.run(attention, *turned), wanted)
    backwards = (np.ascontiguousarray(x[::-1, :, ::-1])[::-1, :, ::-1] for x in (p.query, p.key, p.value))
    close(p.run(attention, *backwards), wanted)
    one = np.broadcast_to(p.value[:, :, :1], p.value.shape)
    close(p.run(attention, value=one), p.run(attention, value=one.copy()))


@prop("causal_top_left", "causal_bottom_right", "first_query_special")
def offset_moves_queries_along_the_keys(attention, p):
    # A query at position i answers the same whether it comes alone with its offset or among others.
    whole = p.run(attention)
    for i in range(p.L):
        options = {"offset": p.options["offset"] + i}
        for name in ("mask", "bias"):
            if name in p.options:
                options[name] = np.broadcast_to(p.options[name], (p.B, p.H, p.L, p.S))[:, :, i : i + 1]
        close(p.run(attention, query=p.query[:, :, i : i + 1], **options), whole[:, :, i : i + 1])


@prop("mask_or_causal", "mask_drops_causal", "window_ignored", "causal_strict", "window_counts_self")
def all_restrictions_are_one_mask(attention, p):
    explicit = {"mask": p.seen(attention), "causal": False, "window": None, "offset": None}
    if "bias" in p.options:
        explicit["bias"] = np.where(np.isneginf(p.options["bias"]), 0, p.options["bias"])
    close(p.run(attention), p.run(attention, **explicit))


@prop("mask_after_softmax", "mask_fill_small", "mask_fill_huge", "empty_row_mean")
def more_keys_that_nobody_sees_change_nothing(attention, p):
    key = np.concatenate([p.key, 1e3 * p.numbers(p.B, p.G, 2, p.E)], -2)
    value = np.concatenate([p.value, 1e3 * p.numbers(p.B, p.G, 2, p.Ev)], -2)
    seen = np.concatenate([p.seen(attention), np.zeros((p.B, p.H, p.L, 2), bool)], -1)
    options = {"mask": seen, "causal": False, "window": None, "offset": None}
    if "bias" in p.options:
        bias = np.broadcast_to(p.options["bias"], (p.B, p.H, p.L, p.S))
        options["bias"] = np.concatenate([bias, np.zeros((p.B, p.H, p.L, 2))], -1)
    close(p.run(attention, key=key, value=value, **options), p.run(attention))


@prop("value_is_key", "ignores_value_sum")
def output_is_linear_in_the_values(attention, p):
    other = p.numbers(*p.value.shape)
    sums = p.run(attention, value=2 * p.value - 3 * other)
    np.testing.assert_allclose(
        sums, 2 * p.run(attention) - 3 * p.run(attention, value=other), rtol=1e-10, atol=1e-10 * p.size
    )


ODD = {"one_key_forgotten", "first_query_special", "one_maximum_far", "contiguous_only", "ignores_value_sum"}


class Odd(Broken):
    """Mistakes that only a property can tell."""

    def __init__(self, fault):
        super().__init__(None)
        self.odd = fault

    def __repr__(self):
        return self.odd

    def __call__(self, query, key, value, **options):
        if self.odd == "one_key_forgotten":  # the last key gets half its value
            value = np.concatenate([value[..., :-1, :], value[..., -1:, :] / 2], -2)
        if self.odd == "contiguous_only" and not value.flags.c_contiguous:
            value = np.lib.stride_tricks.as_strided(value, strides=np.empty(value.shape).strides)
        output = super().__call__(query, key, value, **options)
        if self.odd == "first_query_special":
            output = np.concatenate([output[..., :1, :] + 1, output[..., 1:, :]], -2)
        if self.odd == "one_maximum_far" and output.ndim > 2:
            output = output + 1e-6 * output.max()
        return np.abs(output) if self.odd == "ignores_value_sum" else output


def sweep(check, attention, how=REPEATABLE):
    """Run a property on the same drawn problems, whoever is asked."""

    @how
    @given(p=problems)
    def run(p):
        with warnings.catch_warnings(), np.errstate(all="warn"):
            warnings.simplefilter("error")
            check(attention, p)

    run()


@pytest.mark.parametrize("implementation", [i for i in IMPLEMENTATIONS if i.name != "streaming"], ids=repr)
@pytest.mark.parametrize("check", [check for check, _ in PROPERTIES], ids=lambda check: check.__name__)
def test_holds(check, implementation):
    sweep(check, implementation)


@pytest.mark.parametrize(
    ("check", "fault"),
    [pytest.param(check, fault, id=f"{check.__name__}-{fault}") for check, faults in PROPERTIES for fault in faults],
)
def test_notices(check, fault):
    with pytest.raises(AssertionError):
        sweep(check, Odd(fault) if fault in ODD else Broken(fault), UNSHRUNK)


@pytest.mark.parametrize("check", [check for check, _ in PROPERTIES], ids=lambda check: check.__name__)
def test_lets_a_right_one_pass(check):
    sweep(check, Broken())


@REPEATABLE
@given(p=problems, cut=st.lists(st.integers(0, 6), max_size=3))
def test_keys_can_be_split_anywhere_and_merged(p, cut):
    edges = sorted({0, p.S, *(min(c, p.S) for c in cut)})
    parts = []
    for start, stop in itertools.pairwise(edges):
        options = dict(p.options)
        for name in ("mask", "bias"):
            if name in options:
                options[name] = np.broadcast_to(options[name], (p.B, p.H, p.L, p.S))[..., start:stop]
        options["offset"] = options["offset"] - start
        keys, values = p.key[:, :, start:stop], p.value[:, :, start:stop]
        parts.append(reference.streaming_attention(p.query, keys, values, return_lse=True, **options))
    whole = reference.streaming_attention(p.query, p.key, p.value, return_lse=True, **p.options)
    for joined in (reference.merge(parts), reference.merge(parts[::-1])):
        for one, other in zip(joined, whole, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)
