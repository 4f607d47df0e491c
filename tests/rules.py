"""The rules of the contract (DESIGN section 4), each a function that takes an attention and raises where it is broken.

A rule says which options it needs and which of ``tests.broken``'s mistakes it must notice. test_contract.py runs every
rule on every implementation, and every rule on its mistakes.
"""

import warnings
from typing import NamedTuple

import numpy as np

from tests import oracle

TOLERANCE = {"float64": 1e-13, "float32": 1e-6, "float16": 1e-3}
RULES = []


class Rule(NamedTuple):
    """A check, what it needs, and the mistakes it must notice."""

    check: object
    needs: frozenset
    exact: bool  # needs an implementation for which nothing hidden matters
    kills: tuple

    def __repr__(self):
        return self.check.__name__


def rule(*kills, needs=(), exact=False):
    """Register a rule."""

    def register(check):
        RULES.append(Rule(check, frozenset(needs), exact, kills))
        return check

    return register


def draw(shape_q=(2, 3), L=4, S=5, E=3, Ev=2, shape_k=None, dtype="float64", seed=0):
    """Return query, key and value with the given leading axes, from a seeded generator."""
    r = np.random.default_rng(seed)
    shape_k = shape_q if shape_k is None else shape_k
    shapes = (*shape_q, L, E), (*shape_k, S, E), (*shape_k, S, Ev)
    return tuple((2 * r.normal(size=shape)).astype(dtype) for shape in shapes)


def equals_loops(attention, query, key, value, digits=False, **options):
    """Assert that output, dtype and shape are those of the loops."""
    given = attention(query, key, value, **options)
    wanted, _ = oracle.attention(query, key, value, digits=digits, **options)
    assert given.dtype == query.dtype
    assert given.shape == wanted.shape
    np.testing.assert_allclose(given.astype(float), wanted, rtol=0, atol=4 * TOLERANCE[str(query.dtype)])


def weights_of(attention, query, key, **options):
    """Find the weights of any attention: with the unit vectors as values, output and weights are the same."""
    return attention(query, key, np.eye(key.shape[-2], dtype=query.dtype), **options)


def some_mask(shape, seed=1):
    """Return a mask that allows about half of the pairs, and each query at least one."""
    mask = np.random.default_rng(seed).random(shape) < 0.5
    mask[..., 0] |= ~mask.any(-1)
    return mask


@rule("softmax_over_queries", "softmax_over_heads", "no_scale", "scale_value_size", "scale_all_heads", "epsilon",
      "ignores_query", "batch_mixed", "single_softmax")  # fmt: skip
def equation(attention):
    """Softmax over the keys of scale · QKᵀ, times V; scale is one over the root of the head size."""
    equals_loops(attention, *draw())
    equals_loops(attention, *draw((), 1, 3, 5, 2))
    for L, S in ((4, 4), (2, 6), (6, 2)):
        equals_loops(attention, *draw((2,), L, S, 4, 3, dtype="float32"))


@rule("value_is_key")
def equation_with_equal_sizes(attention):
    """The values are averaged, not the keys, also where the sizes do not tell them apart."""
    equals_loops(attention, *draw((2,), 3, 3, 3, 3))


@rule("softmax_over_queries", "epsilon", "mask_after_softmax", needs=["mask", "causal"])
def rows_sum_to_one(attention):
    """The weights of each query sum to one over the keys it may see, and are zero elsewhere."""
    query, key, _ = draw(S=4)
    for options in ({}, {"mask": some_mask((2, 3, 4, 4))}, {"causal": True}):
        weights = weights_of(attention, query, key, **options)
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=0, atol=1e-15)
        seen = oracle.visible(weights.shape, **options)
        assert (weights[~seen] == 0).all()
        assert (weights[seen] > 0).all()


@rule("mask_inverted", "mask_ignored", "mask_as_number", "mask_fill_small", "mask_after_softmax",
      "mask_skips_first_head", "mask_batch_as_heads", needs=["mask"])  # fmt: skip
def mask_true_may_attend(attention):
    """True = may attend, whatever leading axes the mask has."""
    query, key, value = draw()
    for shape in ((4, 5), (1, 5), (4, 1), (2, 1, 4, 5), (3, 4, 5), (2, 3, 4, 5), (2, 1, 1, 5), (5,), ()):
        mask = np.True_ if shape == () else some_mask(shape)
        equals_loops(attention, query, key, value, mask=np.asarray(mask))


@rule("accepts_number_masks", needs=["mask"])
def mask_of_numbers_is_refused(attention):
    """A mask of 0 and 1 could mean anything: a TypeError points to bias."""
    query, key, value = draw()
    for dtype in (float, int, np.float32, np.uint8):
        error = raised(TypeError, attention, query, key, value, mask=np.ones((4, 5), dtype))
        assert "mask must be boolean" in error
        assert "bias=" in error
        assert np.dtype(dtype).name in error


@rule("bias_ignored", "bias_times", "bias_twice", needs=["bias"])
def bias_is_added(attention):
    """The bias is added to the scaled scores, whatever leading axes it has."""
    query, key, value = draw()
    for shape in ((4, 5), (1, 5), (4, 1), (3, 1, 1), (2, 1, 4, 5), (5,)):
        equals_loops(attention, query, key, value, bias=np.random.default_rng(2).normal(size=shape))


@rule("mask_fill_small", needs=["bias", "mask"])
def bias_of_minus_infinity_blocks(attention):
    """-inf in the bias hides a key exactly as the mask does."""
    query, key, value = draw()
    mask = some_mask((4, 5))
    mask[1] = False
    bias = np.where(mask, 0.0, -np.inf)
    equals_loops(attention, query, key, value, bias=bias)
    blocked = attention(query, key, value, bias=bias)
    np.testing.assert_allclose(blocked, attention(query, key, value, mask=mask), rtol=0, atol=1e-15)
    assert (blocked[..., 1, :] == 0).all()


@rule("causal_ignored", "causal_strict", "causal_flipped", needs=["causal"])
def causal_sees_itself_and_before(attention):
    """Query i sees the keys 0 … i."""
    query, key, value = draw(L=5)
    equals_loops(attention, query, key, value, causal=True)
    np.testing.assert_array_equal(attention(query, key, value, causal=True)[..., 0, :], value[..., 0, :])


@rule("causal_top_left", "causal_bottom_right", "offset_first_only", "causal_strict", needs=["causal", "offset"])
def offset_is_the_first_querys_position(attention):
    """The offset places the first query among the keys, for all or for each batch entry."""
    query, key, value = draw()
    offsets = [-7, -2, 0, 1, 2, 9, np.int64(1), np.array([0, 3]), np.array([-5, 9]), np.array([2]), [1, 0]]
    for offset in offsets:
        equals_loops(attention, query, key, value, causal=True, offset=offset)
    equals_loops(attention, *draw(L=5), causal=True, offset=-1)
    equals_loops(attention, query, key, value, causal=True, offset=np.array([[0, 1, 2], [3, -1, 0]]))


@rule("guesses_alignment", needs=["causal", "window", "offset"])
def alignment_is_never_guessed(attention):
    """Causal or window with L ≠ S needs an offset; the error explains both alignments."""
    query, key, value = draw()
    for options in ({"causal": True}, {"window": (1, 0)}, {"window": (None, 1)}, {"causal": True, "window": (1, 1)}):
        error = raised(ValueError, attention, query, key, value, **options)
        assert "offset=" in error
        assert "top-left" in error
        assert "bottom-right" in error
    attention(query, key, value, window=(None, None))  # hides nothing, so nothing has to be aligned


@rule("window_counts_self", "window_left_only", "window_swapped", "window_ignored", "window_zero_is_none",
      needs=["window", "offset", "causal"])  # fmt: skip
def window_does_not_count_the_query(attention):
    """window=(left, right): the keys from i − left to i + right; None is unbounded."""
    query, key, value = draw(L=5)
    sides = (None, 0, 1, 2, 7)
    for left in sides:
        for right in sides:
            equals_loops(attention, query, key, value, window=(left, right))
    equals_loops(attention, query, key, value, window=(2, 1), offset=np.array([-1, 2]))
    equals_loops(attention, query, key, value, window=[1, 1], causal=True)
    equals_loops(attention, query[..., :2, :], key, value, window=(1, 0), offset=3)


@rule("mask_or_causal", "mask_drops_causal", "window_ignored", "bias_ignored", "causal_ignored",
      needs=["mask", "bias", "causal", "window", "offset"])  # fmt: skip
def restrictions_compose(attention):
    """All restrictions together hide what any one of them hides."""
    query, key, value = draw()
    bias = np.random.default_rng(3).normal(size=(3, 4, 5))
    bias[:, :, 3] = -np.inf
    options = {"mask": some_mask((2, 1, 4, 5)), "causal": True, "window": (2, None), "offset": np.array([1, 2])}
    equals_loops(attention, query, key, value, bias=bias, **options)
    equals_loops(attention, query, key, value, **options)
    seen = oracle.visible((2, 3, 4, 5), **options)
    np.testing.assert_allclose(
        attention(query, key, value, **options), attention(query, key, value, mask=seen), rtol=0, atol=1e-15
    )


@rule("mask_fill_huge", "empty_row_mean", "empty_row_nan", needs=["mask", "causal", "offset"])
def empty_rows_give_zero(attention):
    """A query that may see nothing gets output 0, no NaN, no warning, and leaves the other rows alone."""
    query, key, value = draw()
    mask = some_mask((4, 5))
    mask[2] = False
    output = attention(query, key, value, mask=mask)
    assert (output[..., 2, :] == 0).all()
    equals_loops(attention, query, key, value, mask=mask)
    equals_loops(attention, query, key, value, mask=np.zeros((1, 1), bool))
    equals_loops(attention, query, key, value, causal=True, offset=-2)
    assert (weights_of(attention, query, key, mask=mask)[..., 2, :] == 0).all()


@rule("mask_fill_small", "mask_after_softmax", needs=["mask"])
def hidden_numbers_change_no_bit(attention):
    """Finite numbers at hidden positions change no bit of the output."""
    query, key, value = draw(dtype="float32")
    mask = some_mask((4, 5))
    mask[:, 3] = False
    wanted = attention(query, key, value, mask=mask)
    equals_loops(attention, query, key, value, mask=mask)
    for size in (0, -1, 1e3, 1e18):
        other_key, other_value = key.copy(), value.copy()
        other_key[..., 3, :] = other_value[..., 3, :] = size
        np.testing.assert_array_equal(bits(attention(query, other_key, other_value, mask=mask)), bits(wanted))


@rule("hidden_nan_leaks", "hidden_key_leaks", needs=["mask", "causal", "window"], exact=True)
def hidden_nan_and_infinity_change_nothing(attention):
    """NaN and infinity at hidden positions leave the output as it was."""
    query, key, value = draw(L=5)
    mask = np.ones((5, 5), bool)
    mask[:, 4] = False
    for options, last in (({"mask": mask}, 5), ({"causal": True}, 4), ({"window": (1, 0)}, 4), ({"window": (0, 0)}, 4)):
        wanted = attention(query, key, value, **options)
        for bad in (np.nan, np.inf, -np.inf):
            for where in ((key,), (value,), (key, value)):
                changed = [x.copy() for x in where]
                for x in changed:
                    x[..., 4, :] = bad
                    x[0, ..., 4, 0] = 1.0  # not the whole position, either
                arrays = {"key": key, "value": value, **dict(zip(names(where, key), changed, strict=True))}
                given = attention(query, arrays["key"], arrays["value"], **options)
                np.testing.assert_allclose(given[..., :last, :], wanted[..., :last, :], rtol=0, atol=1e-13)


@rule("hidden_nan_leaks", needs=["mask", "bias"], exact=True)
def visible_nan_and_infinity_are_not_hidden(attention):
    """A query that may see NaN or infinity gets it, and no other query does."""
    query, key, value = (
        np.zeros((4, 1)),
        np.zeros((3, 1)),
        np.array([[1.0, 1, 1], [np.nan, np.inf, -np.inf], [2, 2, 2]]),
    )
    mask = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 0], [1, 0, 0]], bool)
    wanted = [[np.nan, np.inf, -np.inf], [1.5] * 3, [np.nan, np.inf, -np.inf], [1.0] * 3]
    np.testing.assert_array_equal(attention(query, key, value, mask=mask), wanted)
    value[2, 1] = -np.inf  # infinity of both signs: undefined for who sees both
    np.testing.assert_array_equal(attention(query, key, value, mask=mask)[:, 1], [np.nan, -np.inf, np.inf, 1])
    far = np.zeros((4, 3))
    far[:, 1] = -1e6  # a visible weight that underflows to 0, times infinity
    assert np.isnan(attention(query, key, value, mask=mask, bias=far)[0, 1:]).all()


@rule(
    "softcap_ignored", "softcap_clips", "bias_before_softcap", "softcap_after_mask", needs=["softcap", "mask", "bias"]
)
def softcap_comes_before_mask_and_bias(attention):
    """softcap · tanh(score / softcap), then mask and bias."""
    query, key, value = draw()
    bias = 5 * np.random.default_rng(4).normal(size=(4, 5))
    for softcap in (0.5, 1, 3.0, 1e6, np.float32(2)):
        equals_loops(attention, query, key, value, softcap=softcap)
        equals_loops(attention, query, key, value, softcap=softcap, mask=some_mask((4, 5)), bias=bias)


@rule("scale_divides", "scale_squared", "scale_zero_is_none", needs=["scale", "causal", "offset"])
def scale_is_used_as_it_is(attention):
    """Any given scale is used as it is: zero, one and negative numbers too."""
    query, key, value = draw()
    for scale in (0.0, 1, -0.7, 3.0, 1e-300, np.float32(0.25)):
        equals_loops(attention, query, key, value, scale=scale)
        equals_loops(attention, query, key, value, scale=scale, causal=True, offset=0)
    np.testing.assert_allclose(
        attention(query, key, value, scale=0), np.broadcast_to(value.mean(-2, keepdims=True), (2, 3, 4, 2)), atol=1e-14
    )


@rule("heads_tiled", "heads_first", needs=["enable_gqa", "mask", "causal"])
def key_heads_serve_query_heads_in_a_row(attention):
    """Query head h reads key/value head h // (H / G)."""
    for H, G in ((4, 2), (6, 3), (6, 2), (3, 1), (2, 2)):
        query, key, value = draw((2, H), 4, 4, shape_k=(2, G))
        equals_loops(attention, query, key, value, enable_gqa=True)
        equals_loops(attention, query, key, value, enable_gqa=True, causal=True, mask=some_mask((2, H, 4, 4)))
    equals_loops(attention, *draw((4,), shape_k=(2,)), enable_gqa=True)
    equals_loops(attention, *draw((3, 4), shape_k=(1, 2)), enable_gqa=True)


@rule("batch_mixed")
def leading_axes_broadcast(attention):
    """Query, key and value may have different leading axes, as many as one likes."""
    for shape_q, shape_k in (
        ((2, 3), (3,)),
        ((3,), (2, 3)),
        ((2, 1), (1, 3)),
        ((), (2,)),
        ((2, 1, 3, 2), (2, 2, 1, 2)),
    ):
        equals_loops(attention, *draw(shape_q, shape_k=shape_k))
    query, key, _ = draw((2, 3))
    equals_loops(attention, query, key, draw((5, 1, 3))[2])


@rule("no_maximum", "one_maximum", exact=True)
def large_scores_are_no_problem(attention):
    """Scores of any size give weights: the largest of each row is subtracted first."""
    query = np.array([[1e4], [1.0], [-1e4]])
    key, value = np.array([[1.0], [2.0], [3.0]]), np.array([[1.0], [2.0], [4.0]])
    np.testing.assert_array_equal(attention(query, key, value, scale=1)[[0, 2], 0], [4, 1])
    equals_loops(attention, query, key, value, scale=1)


@rule("half_scores", "half_softmax", needs=["mask"])
def half_precision_is_computed_in_single(attention):
    """Half-precision products beyond 65504 do not overflow, and the softmax runs in float32."""
    query, key = np.full((1, 64), 40, np.float16), np.full((2, 64), 40, np.float16)
    np.testing.assert_array_equal(attention(query, key, np.array([[1], [3]], np.float16)), [[2]])
    q, k, v = draw((2, 3), 4, 60, 8, 2, dtype="float16")
    wanted, _ = oracle.attention(q, k, v)
    given = attention(q, k, v, mask=np.ones((1, 60), bool))
    assert np.abs(given - wanted).max() < 2e-3 * np.abs(wanted).max()
    many = attention(np.zeros((1, 1), np.float16), np.zeros((4096, 1), np.float16), np.ones((4096, 1), np.float16))
    np.testing.assert_allclose(many, 1, rtol=1e-3)


@rule("wide_output")
def output_has_the_inputs_dtype(attention):
    """float16, float32 and float64 come back as what they were."""
    for dtype in ("float16", "float32", "float64"):
        equals_loops(attention, *draw(dtype=dtype))


@rule("accepts_integers", "accepts_mixed", needs=["bias"])
def dtypes_are_neither_mixed_nor_integers(attention):
    """Integers and mixed dtypes are a TypeError that names what came."""
    arrays = dict(zip(("query", "key", "value"), draw(), strict=True))
    for name, array in arrays.items():
        error = raised(TypeError, attention, **{**arrays, name: array.astype(int)})
        assert name in error and "floating" in error and "int64" in error
        error = raised(TypeError, attention, **{**arrays, name: array.astype(np.float32)})
        assert "float32" in error and "float64" in error and "query" in error
    error = raised(TypeError, attention, **arrays, bias=np.zeros((4, 5), np.float32))
    assert "bias" in error and "float32" in error and "float64" in error


@rule("size_one_axis", needs=["mask", "causal"])
def sizes_zero_and_one_work(attention):
    """Any axis may have size 0 or 1: nothing crashes, and shapes are what they should be."""
    for B, H, L, S, E, Ev in np.ndindex(3, 3, 3, 3, 3, 3):
        if min(B, H, L, S, E, Ev) < 2:
            query, key, value = draw((B, H), L, S, E, Ev)
            equals_loops(attention, query, key, value)
    for L, S in ((0, 3), (3, 0), (0, 0), (1, 1), (1, 3)):
        query, key, value = draw((2,), L, S)
        equals_loops(attention, query, key, value, mask=np.ones((L, S), bool))
        equals_loops(attention, query, key, value, causal=True, **({"offset": 0} if L != S else {}))


@rule(needs=["mask", "bias", "causal", "window", "offset", "enable_gqa"])
def sizes_zero_work_with_every_option(attention):
    """Empty axes go with every option, grouped heads and an offset for each of no batch entries included."""
    for H, G in ((0, 0), (0, 2), (2, 1)):
        for B, L, S in ((0, 2, 3), (2, 0, 3), (2, 2, 0), (1, 0, 0), (0, 0, 0)):
            query, key, value = draw((B, H), L, S, shape_k=(B, G))
            options = {"mask": np.ones((B, 1, L, S), bool), "bias": np.zeros((L, S)), "causal": True, "window": (1, 1)}
            given = attention(query, key, value, enable_gqa=True, offset=np.zeros(B, int), **options)
            np.testing.assert_array_equal(given, np.zeros((B, H, L, 2)))
            np.testing.assert_array_equal(
                attention(query, key, value, enable_gqa=True, causal=True, offset=[0] * B), np.zeros((B, H, L, 2))
            )


@rule("writes_value", "writes_bias", needs=["mask", "bias"])
def inputs_are_never_written(attention):
    """Every byte of every input is the same after the call, and the same call gives the same answer."""
    query, key, value = draw(dtype="float32")
    mask = some_mask((4, 5))
    mask[:, 2] = False
    inputs = {"query": query, "key": key, "value": value, "mask": mask, "bias": np.zeros((4, 5), np.float32)}
    before = {name: x.tobytes() for name, x in inputs.items()}
    first = attention(**inputs)
    assert {name: x.tobytes() for name, x in inputs.items()} == before
    np.testing.assert_array_equal(attention(**inputs), first)


def names(where, key):
    """Name the arrays that were changed."""
    return ["key" if x is key else "value" for x in where]


def bits(array):
    """See the bits of an array: equal numbers of different sign differ here."""
    return array.view(f"u{array.itemsize}")


def raised(kind, function, *args, **options):
    """Return the text of the error that the call must raise, without a warning on the way."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            function(*args, **options)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")
