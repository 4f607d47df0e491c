"""The softmax against mpmath, in every dtype, along every axis, and at the ends of the range."""

import mpmath
import numpy as np
import pytest

from lib.reference import softmax
from tests.rules import bits, raised


def shares(row):
    """Compute a row's softmax with sixty digits."""
    exps = [mpmath.exp(mpmath.mpf(float(x))) for x in row]
    return [float(e / mpmath.fsum(exps)) for e in exps]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 4e-16), ("float32", 3e-7), ("float16", 5e-4)])
def test_equals_sixty_digits(dtype, tolerance):
    scores = (5 * np.random.default_rng(0).normal(size=(20, 7))).astype(dtype)
    given = softmax(scores)
    assert given.dtype == scores.dtype
    np.testing.assert_allclose(given.astype(float), [shares(row) for row in scores], rtol=0, atol=tolerance)


def test_long_double_keeps_its_digits():
    scores = np.array([1, 2, 4], np.longdouble)
    given = softmax(scores)
    assert given.dtype == np.longdouble
    wanted = np.exp(scores) / np.exp(scores).sum()
    assert np.abs(given - wanted).max() < 4 * np.finfo(np.longdouble).eps


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3, np.int64(1)])
def test_shares_out_along_the_axis(axis):
    scores = np.random.default_rng(1).normal(size=(2, 3, 4))
    given = softmax(scores, axis)
    np.testing.assert_allclose(given.sum(int(axis)), 1, rtol=0, atol=1e-15)
    moved = softmax(np.moveaxis(scores, axis, -1))
    np.testing.assert_allclose(np.moveaxis(given, axis, -1), moved, rtol=0, atol=1e-15)


def test_last_axis_unless_said_otherwise():
    np.testing.assert_array_equal(softmax(np.zeros((2, 4))), np.full((2, 4), 0.25))


@pytest.mark.parametrize("shift", [0, 1e4, -1e4, 1e15, -1e15])
def test_large_scores_do_not_overflow(shift):
    np.testing.assert_array_equal(softmax(np.array([shift, shift], float)), [0.5, 0.5])
    np.testing.assert_array_equal(softmax(np.array([0.0, 1e4, 2e4, 3e4]) + shift), [0, 0, 0, 1])


def test_scores_at_the_ends_of_the_range():
    largest = np.finfo(np.float64).max
    np.testing.assert_array_equal(softmax(np.array([largest, -largest, largest])), [0.5, 0, 0.5])


def test_hidden_scores_get_exactly_zero():
    np.testing.assert_array_equal(softmax(np.array([0.0, -np.inf, 0.0])), [0.5, 0, 0.5])
    np.testing.assert_array_equal(softmax(np.array([-np.inf, -np.inf])), [0, 0])
    rows = softmax(np.array([[-np.inf, -np.inf], [1.0, 1.0]]))
    np.testing.assert_array_equal(rows, [[0, 0], [0.5, 0.5]])
    assert bits(rows).max() == bits(np.array([0.5])).item()  # no -0


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)])
def test_empty_rows_stay_empty(shape):
    assert softmax(np.zeros(shape)).shape == shape


def test_nan_and_infinity_spoil_their_own_row_only():
    given = softmax(np.array([[0, np.nan], [0, np.inf], [0, 0]]))
    assert np.isnan(given[0]).all()
    assert np.isnan(given[1]).any()
    np.testing.assert_array_equal(given[2], [0.5, 0.5])


def test_half_precision_is_shared_out_in_single():
    given = softmax(np.zeros(4096, np.float16))  # a sum in float16 would stop growing at 2048
    np.testing.assert_array_equal(given, np.full(4096, 1 / 4096, np.float16))


def test_writes_nothing_and_returns_something_new():
    for dtype in ("float16", "float32", "float64"):
        scores = np.array([1.0, 2.0], dtype)
        before = scores.tobytes()
        given = softmax(scores)
        given[:] = 7
        assert scores.tobytes() == before


def test_views_and_read_only_arrays():
    scores = np.random.default_rng(2).normal(size=(6, 8))
    for view in (scores[::2, ::-1], scores.T, np.broadcast_to(scores[0], (3, 8))):
        view.flags.writeable = False
        np.testing.assert_allclose(softmax(view), softmax(view.copy()), rtol=0, atol=1e-16)


X = np.zeros((2, 3))


@pytest.mark.parametrize(
    ("kind", "args", "text"),
    [
        (TypeError, ([0.0, 1.0],), "scores must be a numpy.ndarray, got list"),
        (TypeError, (X.astype(int),), "scores must be floating, got int64"),
        (TypeError, (X.astype(bool),), "scores must be floating, got bool"),
        (TypeError, (X.astype(complex),), "scores must be floating, got complex128"),
        (TypeError, (np.ma.masked_array(X),),
         "scores must be a plain numpy.ndarray, got a masked array: pass its mask as mask="),
        (ValueError, (X, 2), "axis must be one of scores' 2 axes, got 2 for shape (2, 3)"),
        (ValueError, (X, -3), "axis must be one of scores' 2 axes, got -3 for shape (2, 3)"),
        (ValueError, (np.array(1.0),), "axis must be one of scores' 0 axes, got -1 for shape ()"),
        (TypeError, (X, 1.0), "axis must be an integer, got 1.0 (float)"),
        (TypeError, (X, None), "axis must be an integer, got None (NoneType)"),
        (TypeError, (X, (0, 1)), "axis must be an integer, got (0, 1) (tuple)"),
    ],
)  # fmt: skip
def test_errors_name_argument_wanted_and_given(kind, args, text):
    assert raised(kind, softmax, *args) == text
