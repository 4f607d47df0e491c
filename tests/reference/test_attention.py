"""What the reference promises beyond the common rules: weights, exactness to the bit, and the ends of the range."""

import sys
import warnings

import ml_dtypes
import mpmath
import numpy as np
import pytest

from lib import reference
from lib.reference.attention import largest_entry, meets, saturating_scores
from tests import oracle
from tests.rules import bits, draw, some_mask

attention, softmax = reference.attention, reference.softmax
OPTIONS = {
    "plain": {},
    "mask": {"mask": some_mask((2, 1, 4, 5))},
    "bias": {"bias": np.random.default_rng(5).normal(size=(3, 4, 5))},
    "causal": {"causal": True, "offset": 1},
    "window": {"window": (1, 1), "offset": np.array([0, 2])},
    "empty rows": {"causal": True, "offset": -2},
    "softcap": {"softcap": 1.5},
    "scale": {"scale": -2.0},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_weights_are_those_of_the_loops(name, dtype):
    query, key, value = draw(dtype=dtype)
    options = {k: x.astype(dtype) if k == "bias" else x for k, x in OPTIONS[name].items()}
    output, weights = attention(query, key, value, return_weights=True, **options)
    _, wanted = oracle.attention(query, key, value, **options)
    assert weights.dtype == query.dtype
    assert weights.shape == (2, 3, 4, 5)
    tolerance = {"float64": 1e-14, "float32": 1e-6, "float16": 1e-3}[dtype]
    np.testing.assert_allclose(weights.astype(float), wanted, rtol=0, atol=tolerance)
    assert (weights[wanted == 0] == 0).all()
    np.testing.assert_array_equal(output, attention(query, key, value, **options))


def test_weights_of_grouped_and_broadcast_heads_have_the_scores_shape():
    query, key, value = draw((2, 4), shape_k=(1, 2))
    output, weights = attention(query, key, value, enable_gqa=True, return_weights=True)
    wanted = oracle.attention(query, key, value, enable_gqa=True)
    np.testing.assert_allclose(output, wanted[0], rtol=0, atol=1e-14)
    np.testing.assert_allclose(weights, wanted[1], rtol=0, atol=1e-14)
    query, key, _ = draw(())
    output, weights = attention(query, key, draw((3,))[2], return_weights=True)
    assert output.shape == (3, 4, 2)
    assert weights.shape == (3, 4, 5)


def test_results_belong_to_the_caller():
    query, key, value = draw((3,), shape_k=())
    before = value.copy()
    for shape in ((3,), ()):
        output, weights = attention(query, np.broadcast_to(key, (*shape, 5, 3)), value, return_weights=True)
        output[:] = weights[:] = 7  # writable, and no memory is shared
        np.testing.assert_array_equal(value, before)
    output = attention(np.zeros((1, 1)), np.zeros((1, 1)), np.ones((3, 1, 1)), return_weights=True)[0]
    output[0] = 5
    assert output.ravel().tolist() == [5, 1, 1]


@pytest.mark.parametrize("bad", [0.0, -1e300, 1e300, np.nan, np.inf, -np.inf])
def test_hidden_positions_change_no_bit(bad):
    query, key, value = draw(L=5)
    value -= 5  # a weight of 0 times a negative number is -0
    mask = some_mask((5, 5))
    mask[:, 4], mask[1] = False, False
    bias = np.where(mask, 0.0, -np.inf)
    for options in ({"mask": mask}, {"bias": bias}, {"mask": mask, "softcap": 2.0}, {"causal": True, "window": (2, 0)}):
        wanted = attention(query, key, value, return_weights=True, **options)
        other_key, other_value = key.copy(), value.copy()
        other_key[..., 4, :], other_value[..., 4, :] = bad, bad
        given = attention(query, other_key, other_value, return_weights=True, **options)
        rows = slice(0, 4 if "causal" in options else 5)
        for one, other in zip(wanted, given, strict=True):
            np.testing.assert_array_equal(bits(one[..., rows, :]), bits(other[..., rows, :]))


@pytest.mark.parametrize("bad", [7.0, np.nan, np.inf])
def test_hidden_bias_changes_no_bit(bad):
    query, key, value = draw()
    mask, bias = some_mask((4, 5)), np.random.default_rng(6).normal(size=(4, 5))
    changed = np.where(mask, bias, bad)
    np.testing.assert_array_equal(
        bits(attention(query, key, value, mask=mask, bias=bias)),
        bits(attention(query, key, value, mask=mask, bias=changed)),
    )


@pytest.mark.parametrize("bad", [1e3, 1e25, np.nan, np.inf])
def test_the_future_does_not_reach_the_past(bad):
    x = np.random.default_rng(7).normal(size=(2, 8, 4)).astype(np.float32)
    wanted = attention(x, x, x, causal=True, return_weights=True)
    for t in range(1, 8):
        y = x.copy()
        y[:, t:] = bad * np.random.default_rng(8).normal(size=y[:, t:].shape)
        given = attention(y, y, y, causal=True, return_weights=True)
        for one, other in zip(wanted, given, strict=True):
            np.testing.assert_array_equal(bits(one[:, :t]), bits(other[:, :t]))


def test_a_row_beyond_the_range_changes_no_bit_of_the_others():
    query, key, value = draw(dtype="float32")
    wanted = attention(query, key, value, return_weights=True)
    query[:, :, 2] = 3e38
    given = attention(query, key, value, return_weights=True)
    for one, other in zip(wanted, given, strict=True):
        np.testing.assert_array_equal(np.delete(one, 2, axis=-2), np.delete(other, 2, axis=-2))
        assert np.isfinite(other).all()


@pytest.mark.parametrize("name", OPTIONS)
def test_what_stays_in_the_range_is_computed_once(name, monkeypatch):
    room, dtypes = sys.modules["lib.reference.attention"], []
    body = room.attend
    monkeypatch.setattr(room, "attend", lambda *given, **also: dtypes.append(given[6]) or body(*given, **also))
    query, key, value = draw(dtype="float32")
    options = {k: x.astype("float32") if k == "bias" else x for k, x in OPTIONS[name].items()}
    attention(query, key, value, **options)
    assert dtypes == [np.float32]
    attention(query * np.float32(1e30), key * np.float32(1e30), value, **options)
    assert dtypes == [np.float32, np.float32, np.float64]


def test_no_output_is_minus_zero():
    output = attention(np.zeros((2, 1)), np.zeros((2, 1)), np.full((2, 1), -0.0))
    assert not np.signbit(output).any()
    hidden = attention(np.zeros((1, 1)), np.zeros((2, 1)), np.array([[0.0], [-1]]), mask=np.array([[True, False]]))
    assert not np.signbit(hidden).any()


# The ends of the range


def sixty_digits(query, key, value, **options):
    return oracle.attention(query, key, value, digits=True, **options)[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [0.25, 0.4, 0.6, 0.9])
def test_products_beyond_the_range_are_exact_again_once_scaled(dtype, size):
    # Scores of ordinary size from products that overflow: the scale brings them back.
    largest = int(np.finfo(dtype).maxexp)
    big = np.array(2.0 ** int(size * largest), dtype)
    query, key = np.array([[1, -0.5], [0.25, 1]], dtype) * big, np.array([[1, 0.5], [-1, 0.25], [0.5, 1]], dtype) * big
    value = np.array([[1], [2], [4]], dtype)
    scale = float(mpmath.mpf(2) ** (-2 * int(size * largest)))
    if scale > 0:
        given = attention(query, key, value, scale=scale)
        np.testing.assert_allclose(given, sixty_digits(query, key, value, scale=scale), rtol=1e-6)


def test_a_small_scale_brings_huge_products_back_in_double():
    query, key = np.array([[1e200]]), np.array([[1e200], [2e200]])
    value = np.array([[1.0], [2.0]])
    assert attention(query, key, value, scale=1e-308) == 2  # scores 1e92 and 2e92
    assert attention(query / 1e46, key / 1e46, value, scale=1e-308) == pytest.approx(
        sixty_digits(query / 1e46, key / 1e46, value, scale=1e-308).item(), rel=1e-12
    )  # scores 1 and 2
    assert attention(query, key, value, scale=0) == 1.5
    assert attention(-query, key, value, scale=1e-308) == 1


def test_scores_beyond_the_range_stop_at_its_end():
    query, value = np.array([[1e30]], np.float32), np.array([[1], [3]], np.float32)
    for key, wanted in (([1e30, 2e30], 3), ([-1e30, -2e30], 1), ([1e30, -1e30], 1), ([1e30, 1e30], 2)):
        assert attention(query, np.array(key, np.float32)[:, None], value) == wanted
    query, value = query.astype(float) * 1e270, value.astype(float)
    for key, wanted in (([1e300, 2e300], 2), ([-1e300, -2e300], 2), ([1e300, -1e300], 1)):  # both at the end: equal
        assert attention(query, np.array(key)[:, None], value) == wanted


def test_sums_that_cancel_beyond_the_range():
    # 1e60 - 1e60: infinity minus infinity on the way.
    query = np.array([[1e30, 1e30, 1]], np.float32)
    key = np.array([[1e30, -1e30, 0], [0, 0, 0]], np.float32)
    np.testing.assert_allclose(attention(query, key, np.array([[1], [3]], np.float32)), [[2]], rtol=1e-6)


def test_a_score_beyond_double_is_the_largest_number_though_its_terms_cancel():
    query = np.array([[1e200, 1e200, 1e200]])
    key = np.array([[1e200, 1e200, -1e200], [0, 0, 0]])  # a plain product gives infinity − infinity
    assert attention(query, key, np.array([[1.0], [3.0]])) == 1
    assert attention(-query, key, np.array([[1.0], [3.0]])) == 3


def test_offsets_without_a_sign():
    query, key, value = draw()
    wanted = attention(query, key, value, causal=True, offset=1)
    for dtype in (np.uint8, np.uint64, np.int8):
        offset = np.array([1, 1], dtype)
        np.testing.assert_array_equal(attention(query, key, value, causal=True, offset=offset), wanted)
        np.testing.assert_array_equal(attention(query, key, value, causal=True, offset=offset[0]), wanted)
    far = np.array([2**61 - 1, 2**61 - 2], np.uint64)  # as real numbers both would be 2**61
    np.testing.assert_array_equal(
        attention(query, key, value, window=(2**61 - 3, None), offset=far),
        attention(query, key, value, window=(2**61 - 3, None), offset=far.astype(np.int64)),
    )


def test_softcap_does_not_hide_an_overflow():
    # Added up from the left, 1e39 is beyond float32; the true score is 0.
    query, key = np.array([[1e20] * 4], np.float32), np.array([[1e19, -1e19, 1e19, -1e19]], np.float32)
    query, key = np.repeat(query, 8, 1).reshape(1, -1), np.repeat(key, 8, 1).reshape(1, -1)
    key = np.concatenate([key, 0 * key])
    value = np.array([[1], [3]], np.float32)
    np.testing.assert_allclose(attention(query, key, value, softcap=2.0), [[2]], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softcaps_of_any_size(dtype):
    query, key, value = draw(dtype=dtype)
    tiny = np.finfo(dtype).smallest_subnormal
    for softcap in (float(tiny), 1e-60, 1e-300):  # all scores become 0: the mean
        wanted = np.broadcast_to(value.mean(-2, keepdims=True), (2, 3, 4, 2))
        np.testing.assert_allclose(attention(query, key, value, softcap=softcap), wanted, rtol=1e-5)
    for softcap in (1e30, 1e60, 1e308):  # no score changes
        wanted = attention(query, key, value)
        np.testing.assert_allclose(attention(query, key, value, softcap=softcap), wanted, rtol=0, atol=1e-5)


def test_bias_at_the_ends():
    largest = np.finfo(np.float32).max
    query, key = np.zeros((1, 1), np.float32), np.zeros((3, 1), np.float32)
    value = np.array([[1], [2], [4]], np.float32)
    rows = ([largest, largest, 0], 1.5), ([-largest] * 3, 7 / 3), ([np.inf, 0, 0], 1), ([np.inf] * 3, 7 / 3)
    for row, wanted in rows:
        given = attention(query, key, value, bias=np.array([row], np.float32))
        np.testing.assert_allclose(given, [[wanted]], rtol=1e-6)
    # a score and a bias whose sum is beyond float32
    query, key = np.array([[-2e19]], np.float32), np.array([[1.5e19], [1e19], [0]], np.float32)
    bias = np.array([[-1e38, -3e38, -np.inf]], np.float32)
    assert attention(query, key, value, bias=bias, scale=1) == 1


def test_values_at_the_ends_stay_inside_the_hull():
    for dtype in (np.float16, np.float32, np.float64):
        largest = np.finfo(dtype).max
        r = np.random.default_rng(9)
        for S in range(1, 40):
            query, key = r.normal(size=(3, 2)).astype(dtype), r.normal(size=(S, 2)).astype(dtype)
            given = attention(query, key, np.full((S, 1), largest, dtype))
            assert np.isfinite(given).all()
            np.testing.assert_allclose(given.astype(float) / float(largest), 1, rtol=1e-3)


def test_nan_that_a_query_sees_spoils_that_query_only():
    query, key, value = draw()
    clean = attention(query, key, value, return_weights=True)
    query[0, 0, 1, 0] = np.nan
    for one, other in zip(clean, attention(query, key, value, return_weights=True), strict=True):
        spoilt = np.zeros(one.shape, bool)
        spoilt[0, 0, 1] = True
        assert np.isnan(other[spoilt]).all()
        np.testing.assert_array_equal(other[~spoilt], one[~spoilt])


# dtypes and memory


def test_bfloat16_of_ml_dtypes():
    query, key, value = (x.astype(ml_dtypes.bfloat16) for x in draw())
    output, weights = attention(query, key, value, mask=some_mask((4, 5)), return_weights=True)
    assert output.dtype == weights.dtype == ml_dtypes.bfloat16
    wanted = oracle.attention(*(x.astype(float) for x in (query, key, value)), mask=some_mask((4, 5)))
    np.testing.assert_allclose(output.astype(float), wanted[0], rtol=0.01, atol=0.01)
    assert attention(query * 0, key, np.full_like(value, 3e38)).astype(float).max() < np.inf


def test_long_double_keeps_its_digits():
    query, key, value = (x.astype(np.longdouble) for x in draw())
    given = attention(query, key, value)
    assert given.dtype == np.longdouble
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(np.longdouble(3))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ value
    assert np.abs(given - wanted).max() < 1e-15
    big = np.array([[np.longdouble("1e3000")]])
    assert attention(big, np.concatenate([big, -big]), np.array([[1], [3]], np.longdouble)) == 1


def test_the_other_byte_order():
    query, key, value = draw()
    given = attention(*(x.astype(">f8") for x in (query, key, value)))
    np.testing.assert_allclose(given, attention(query, key, value), rtol=0, atol=1e-15)
    assert given.dtype == np.dtype(">f8")


def views(x):
    """Yield other memory layouts of the same numbers."""
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    wide[..., ::2] = x
    yield "every second column", wide[..., ::2]
    yield "transposed", np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    yield "reversed", np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]
    yield "heads last", np.ascontiguousarray(np.moveaxis(x, 1, 2)).swapaxes(1, 2) if x.ndim > 2 else x
    yield "read-only", x.copy()
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    raw[:] = x
    yield "unaligned", raw


@pytest.mark.parametrize("name", ["query", "key", "value", "mask", "bias"])
def test_any_memory_layout_gives_the_same(name):
    query, key, value = draw(dtype="float32")
    inputs = {"query": query, "key": key, "value": value, "mask": some_mask((2, 3, 4, 5))}
    inputs["bias"] = np.random.default_rng(3).normal(size=(2, 3, 4, 5)).astype(np.float32)
    wanted = attention(**inputs)
    for layout, view in views(inputs[name]):
        view.flags.writeable = False
        given = attention(**{**inputs, name: view})
        np.testing.assert_allclose(given, wanted, rtol=0, atol=1e-6, err_msg=layout)


def test_broadcast_views_give_the_same():
    query, key, value = draw(())
    wide = (np.broadcast_to(x, (2, 3, *x.shape)) for x in (query, key, value))
    np.testing.assert_allclose(attention(*wide)[1, 2], attention(query, key, value), rtol=0, atol=1e-15)
    one = np.broadcast_to(np.float64(0.5), (4, 3))
    np.testing.assert_allclose(attention(one, key, value), attention(one.copy(), key, value), rtol=0, atol=1e-15)
    mask = np.broadcast_to(np.array([True, False, True, True, False]), (4, 5))
    np.testing.assert_array_equal(
        attention(query, key, value, mask=mask), attention(query, key, value, mask=mask.copy())
    )


def test_nothing_warns_and_the_callers_error_state_is_left_alone():
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        state = np.geterr()  # "raise" for all, underflow included
        query, key, value = draw(dtype="float32")
        attention(query * np.float32(50), key, value)
        softmax(np.array([0.0, 700, 1400]))
        key[..., 3, :] = 3e38
        attention(query, key, value, softcap=1e-60)
        attention(query * np.float32(1e30), key, value, mask=np.zeros((4, 5), bool))
        assert np.geterr() == state


# The helpers that streaming and the backward pass share


def test_saturating_scores_are_the_products_wherever_these_fit():
    r = np.random.default_rng(10)
    query, key = r.normal(size=(2, 4, 3)), r.normal(size=(2, 5, 3))
    given = saturating_scores(query, key, -0.3)
    np.testing.assert_allclose(given, query @ key.swapaxes(-1, -2) * -0.3, rtol=1e-14)
    np.testing.assert_allclose(saturating_scores(query * 2.0**900, key * 2.0**-900, 1.0), query @ key.mT, rtol=1e-13)
    with np.errstate(over="ignore"):
        given = saturating_scores(query * 2.0**900, key * 2.0**900, 2.0**-1000)
        np.testing.assert_allclose(given, np.ldexp(query @ key.mT, 800), rtol=1e-13)
        assert np.isposinf(saturating_scores(np.array([[1e300]]), np.array([[1e300]]), 1.0)).all()
    assert saturating_scores(np.zeros((2, 0)), np.zeros((3, 0)), 1.0).tolist() == [[0] * 3] * 2
    assert saturating_scores(np.zeros((1, 2)), np.ones((1, 2)), 1.0) == 0


def test_largest_entry_of_a_row():
    rows = np.array([[1.0, -3], [0, 0], [np.inf, 1], [np.nan, 1]])
    assert largest_entry(rows).ravel().tolist() == [3, 0, 1, 1]
    assert largest_entry(np.zeros((2, 0))).tolist() == [[0], [0]]


def test_meets_tells_who_sees_a_marked_key():
    pairs = np.array([[1, 0, 1], [0, 0, 0]], bool)
    marked = np.array([[0, 1], [1, 1], [0, 1]], bool)
    assert meets(pairs, marked).tolist() == [[False, True], [False, False]]
