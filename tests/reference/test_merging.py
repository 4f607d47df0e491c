"""Attention over some keys, joined with attention over the others, is attention over all of them."""

import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.reference import attention, merge, streaming_attention
from tests.rules import raised

MANY = settings(derandomize=True, deadline=None, max_examples=60, database=None)
CLOSE = {"float16": 2e-3, "float32": 3e-6, "float64": 1e-14}


def normal(rng, *shape, dtype="float64"):
    return rng.normal(size=shape).astype(dtype)


def split(arrays, cuts, attend, **options):
    """Attend to the keys between the cuts, one part after the other."""
    query, key, value = arrays
    S = key.shape[-2]
    parts = []
    for start, stop in zip((0, *cuts), (*cuts, S), strict=True):
        here = dict(options)
        for name in ("mask", "bias"):
            if name in here:
                here[name] = here[name][..., start:stop]
        offset = here.get("offset", 0)
        here["offset"] = offset - start if isinstance(offset, int) else [n - start for n in offset]
        parts.append(attend(query, key[..., start:stop, :], value[..., start:stop, :], **here))
    return parts


@st.composite
def problems(draw, dtypes=("float64", "float32", "float16")):
    """Draw arrays, options, and where to cut the keys: anywhere, twice at the same place too."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from(dtypes))
    L, S = draw(st.integers(1, 6)), draw(st.integers(0, 9))
    arrays = tuple(normal(rng, 2, heads, n, 3, dtype=dtype) for heads, n in ((4, L), (2, S), (2, S)))
    reach = st.none() | st.integers(0, 4)
    options = {
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.tuples(reach, reach)),
        "offset": draw(st.integers(-3, 9) | st.lists(st.integers(-3, 9), min_size=2, max_size=2)),
        "softcap": draw(st.none() | st.just(1.5)),
        "enable_gqa": True,
    }
    if draw(st.booleans()):
        options["mask"] = rng.random((2, 1, L, S)) < 0.6
    if draw(st.booleans()):
        options["bias"] = np.where(rng.random((4, 1, S)) < 0.2, -np.inf, normal(rng, 4, 1, S)).astype(dtype)
    cuts = sorted(draw(st.lists(st.integers(0, S), max_size=4)))
    return arrays, options, cuts


def attend(*arrays, **options):
    return streaming_attention(*arrays, **options, return_lse=True)


@MANY
@given(problem=problems())
def test_split_anywhere_and_merge(problem):
    arrays, options, cuts = problem
    output, lse = merge(split(arrays, cuts, attend, **options))
    wanted, wanted_lse = attend(*arrays, **options)
    atol = CLOSE[str(wanted.dtype)]
    assert (output.dtype, lse.dtype) == (wanted.dtype, wanted_lse.dtype)
    np.testing.assert_allclose(output.astype(float), attention(*arrays, **options).astype(float), rtol=0, atol=2 * atol)
    np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(wanted_lse))
    np.testing.assert_allclose(lse, wanted_lse, rtol=0, atol=1e-14 if lse.dtype == np.float64 else 3e-6)


@MANY
@given(problem=problems(dtypes=("float64",)), order=st.randoms(use_true_random=False), first=st.integers(1, 5))
def test_order_and_grouping_change_nothing(problem, order, first):
    arrays, options, cuts = problem
    parts = split(arrays, cuts, attend, **options)
    wanted = merge(parts)
    shuffled = parts.copy()
    order.shuffle(shuffled)
    head, tail = parts[:first], parts[first:]
    grouped = [merge(head), merge(tail)] if tail else [merge(head)]
    for again in (merge(shuffled), merge(grouped), merge([merge([part]) for part in reversed(parts)])):
        for one, other in zip(again, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)


def test_two_parts_commute_to_the_last_bit():
    rng = np.random.default_rng(0)
    one, other = ((normal(rng, 3, 2), normal(rng, 3)) for _ in range(2))
    for a, b in zip(merge([one, other]), merge([other, one]), strict=True):
        assert a.tobytes() == b.tobytes()


def test_by_hand():
    # Weights 1/4 and 3/4: the average of 2 and 8 leans to 8, and two sums of 1 and 3 are a sum of 4.
    output, lse = merge([(np.array([[2.0]]), np.log([1.0])), (np.array([[8.0]]), np.log([3.0]))])
    assert output.item() == pytest.approx(6.5, rel=1e-15)
    assert np.exp(lse).item() == pytest.approx(4, rel=1e-15)


def test_one_part_comes_back_as_it_is():
    rng = np.random.default_rng(1)
    part = normal(rng, 2, 3, 4, dtype="float32"), normal(rng, 2, 3, dtype="float32")
    for one, other in zip(merge([part]), part, strict=True):
        assert one.tobytes() == other.tobytes()
        assert not np.shares_memory(one, other)


@pytest.mark.parametrize("empty", [0.0, np.nan, np.inf, 7.0])
def test_empty_parts_change_no_bit(empty):
    rng = np.random.default_rng(2)
    part = normal(rng, 3, 2), normal(rng, 3)
    nothing = np.full((3, 2), empty), np.full(3, -np.inf)
    for parts in ([nothing, part], [part, nothing], [nothing, nothing, part, nothing]):
        for one, other in zip(merge(parts), part, strict=True):
            assert one.tobytes() == other.tobytes()
    for parts in ([nothing], [nothing, nothing]):
        output, lse = merge(parts)
        np.testing.assert_array_equal(output, np.zeros((3, 2)))
        np.testing.assert_array_equal(lse, np.full(3, -np.inf))


def test_rows_are_empty_one_by_one():
    one = np.array([[1.0], [2.0], [np.nan]]), np.array([0.0, -np.inf, -np.inf])
    other = np.array([[np.nan], [4.0], [np.nan]]), np.array([-np.inf, 3.0, -np.inf])
    output, lse = merge([one, other])
    np.testing.assert_array_equal(output, [[1], [4], [0]])
    np.testing.assert_array_equal(lse, [0, 3, -np.inf])


def test_nan_that_counts_is_kept_to_its_row():
    one, other = (np.array([[np.nan], [1.0]]), np.zeros(2)), (np.array([[1.0], [1.0]]), np.array([0.0, np.nan]))
    for parts in ([one, other], [other, one]):
        output, lse = merge(parts)
        np.testing.assert_array_equal(output, [[np.nan], [np.nan]])
        np.testing.assert_array_equal(lse, [np.log(2), np.nan])
    fine = np.array([[3.0], [5.0]]), np.zeros(2)
    np.testing.assert_array_equal(merge([(np.array([[np.nan], [1.0]]), np.zeros(2)), fine])[0], [[np.nan], [3]])


@pytest.mark.parametrize("order", [1, -1])
def test_infinity_that_counts_is_kept(order):
    def part(*values):
        return np.array([values]), np.zeros(1)

    parts = [part(np.inf, -np.inf, np.inf, 1.0, -1.0), part(1.0, 1.0, -np.inf, np.inf, np.inf)][::order]
    np.testing.assert_array_equal(merge(parts)[0], [[np.inf, -np.inf, np.nan, np.inf, np.inf]])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_far_apart_and_at_the_limits(dtype):
    limit = np.finfo(dtype).max
    two, eight = np.full((1, 1), 2, dtype), np.full((1, 1), 8, dtype)

    def lse(x):
        return np.full(1, x, dtype)

    for low, high in ((-limit, limit), (0, 1000), (-limit, 0), (1, np.inf)):
        output, joint = merge([(two, lse(low)), (eight, lse(high))])
        assert output.item() == 8
        assert joint.item() in (high, limit)
    output, joint = merge([(two, lse(limit)), (eight, lse(limit))])
    assert output.item() == 5
    assert joint.item() == limit


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_values_at_the_limit_stay_finite(dtype):
    limit = np.finfo(dtype).max
    wanted = np.array([[limit, -limit]], dtype)
    for one, other in np.random.default_rng(4).normal(size=(200, 2)):  # shares that sum to a hair more than one too
        output, _ = merge([(wanted, np.array([lse], dtype)) for lse in (one, other)])
        np.testing.assert_allclose(output / limit, wanted / limit, rtol=1e-3)


def test_half_precision_is_joined_in_single_precision():
    part = np.full((1, 1), 2049 / 2048, np.float16), np.zeros(1, np.float32)
    output, lse = merge([part] * 1000)
    assert (output.dtype, lse.dtype) == (np.float16, np.float32)
    assert output.item() == part[0].item()  # float16 sums would have drifted
    np.testing.assert_allclose(lse, np.log(1000), rtol=1e-6)


def test_loses_at_most_twice_what_one_pass_loses():
    rng = np.random.default_rng(3)
    for dtype in ("float32", "float64"):
        arrays = tuple(normal(rng, 4, n, 32, dtype=dtype) for n in (50, 640, 640))
        exact = attention(*(x.astype(np.longdouble) for x in arrays))
        merged = merge(split(arrays, range(64, 640, 64), attend))[0]
        baseline = np.abs(attention(*arrays) - exact).max()
        assert np.abs(merged - exact).max() <= (1e-13 if dtype == "float64" else 2 * baseline)


def test_a_generator_holds_one_part_at_a_time():
    alive = []

    class Watched(np.ndarray):
        pass

    def parts():
        for n in range(5):
            output = np.full((2, 3), float(n)).view(Watched)
            alive.append(weakref.ref(output))
            assert sum(reference() is not None for reference in alive) <= 2  # the last one and this one
            yield output, np.zeros(2)

    np.testing.assert_allclose(merge(parts())[0], np.full((2, 3), 2.0))


def test_parts_are_not_written_to():
    parts = [(np.array([[np.nan], [1.0]]), np.array([-np.inf, 0.0])) for _ in range(3)]
    for part in parts:
        for array in part:
            array.flags.writeable = False
    merge(parts)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 2, 3), (2, 0, 0), (1, 1)])
def test_sizes_zero_and_one(shape):
    output, lse = merge([(np.ones(shape), np.ones(shape[:-1]))] * 2)
    assert output.shape == shape
    assert lse.shape == shape[:-1]
    np.testing.assert_array_equal(output, 1)


def wrong(array):
    """List calls that must fail, for a framework whose ``array(shape, dtype)`` makes zeros."""
    good = array((2, 3), "float32"), array((2,), "float32")
    kind = type(good[0])
    name = f"{kind.__module__.split('.')[0]}.{kind.__name__}"
    return [
        ([], ValueError, "partials must hold at least one pair (output, lse), got none"),
        (iter(()), ValueError, "partials must hold at least one pair (output, lse), got none"),
        (3, TypeError, "partials must be an iterable of pairs (output, lse), got 3 (int)"),
        (good, TypeError, f"partials[0] must be a pair (output, lse), got a {kind.__name__}"),
        ([good, (*good, good[1])], TypeError, "partials[1] must be a pair (output, lse), got a tuple of 3"),
        ([good, None], TypeError, "partials[1] must be a pair (output, lse), got a NoneType"),
        ([(0.5, good[1])], TypeError, f"partials[0]'s output must be a {name}, got float"),
        ([(good[0], None)], TypeError, f"partials[0]'s lse must be a {name}, got NoneType"),
        ([(array((2, 3), "int64"), good[1])], TypeError, "partials[0]'s output must be floating, got int64"),
        ([(good[0], array((2,), "bool"))], TypeError, "partials[0]'s lse must be floating, got bool"),
        ([good, (array((2, 3), "float64"), good[1])], TypeError,
         "partials[1]'s output must have partials[0]'s dtype float32, got float64"),
        ([good, good, (good[0], array((2,), "float64"))], TypeError,
         "partials[2]'s lse must have partials[0]'s dtype float32, got float64"),
        ([good, (array((1, 3), "float32"), good[1])], ValueError,
         "partials[1]'s output must have partials[0]'s shape (2, 3), got (1, 3)"),
        ([good, (good[0], array((1,), "float32"))], ValueError,
         "partials[1]'s lse must have partials[0]'s shape (2,), got (1,)"),
        ([(array((3,), "float32"), array((), "float32"))], ValueError,
         "partials[0]'s output must have shape (..., L, Ev), got (3,)"),
        ([(good[0], array((2, 3), "float32"))], ValueError,
         "partials[0]'s lse must have shape (..., L) = (2,) as its output, got (2, 3)"),
    ]  # fmt: skip


@pytest.mark.parametrize(("partials", "kind", "text"), wrong(lambda shape, dtype: np.zeros(shape, dtype)))
def test_errors(partials, kind, text):
    assert raised(kind, merge, partials) == text
