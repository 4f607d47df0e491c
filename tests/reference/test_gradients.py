"""The backward pass by hand: equal to autograd and to finite differences, and undisturbed by what is hidden."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import fast
from lib.reference import Gradients, attention, attention_backward, softmax, softmax_backward
from tests.reference.test_streaming import calls, normal, views
from tests.rules import raised

MANY = settings(derandomize=True, deadline=None, max_examples=80, database=None)
NAMES = Gradients._fields
# The dtypes that have a wider one: on some machines long double is float64 by another name.
WIDENED = ["float32"] + ["float64"] * bool(np.finfo(np.longdouble).max > np.finfo(np.float64).max)


def some_problem(seed=0, dtype="float64", L=5, S=6):
    """Give grad_output, query, key, value and a bias: two heads, four sizes that all differ."""
    rng = np.random.default_rng(seed)
    shapes = (2, L, 3), (2, L, 4), (2, S, 4), (2, S, 3), (2, L, S)
    return [normal(rng, *shape, dtype=dtype) for shape in shapes]


def autograd(grad_output, query, key, value, **options):
    """Let torch compute the same gradients."""
    leaves = {n: torch.tensor(x, requires_grad=True) for n, x in (("query", query), ("key", key), ("value", value))}
    options = {n: torch.tensor(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
    if "bias" in options:
        leaves["bias"] = options["bias"].requires_grad_()
    output = fast.attention(**leaves, **{n: x for n, x in options.items() if n != "bias"}, backend="math")
    output.backward(torch.tensor(grad_output))
    return {name: np.zeros(x.shape) if x.grad is None else x.grad.numpy() for name, x in leaves.items()}


def assert_close(given, wanted, **tolerance):
    """Compare with autograd's dictionary: values, shapes and dtypes."""
    for name in NAMES:
        one = getattr(given, name)
        if name not in wanted:
            assert one is None
            continue
        assert one.shape == wanted[name].shape, name
        np.testing.assert_allclose(one, wanted[name], **{"rtol": 0, "atol": 1e-12} | tolerance, err_msg=name)


# --- The right numbers ---


@MANY
@given(call=calls(dtypes=("float64",)), seed=st.integers(0, 99))
def test_equals_autograd_with_any_options(call, seed):
    arrays, options = call
    grad_output = np.random.default_rng(seed).normal(size=attention(*arrays, **options).shape)
    assert_close(attention_backward(grad_output, *arrays, **options), autograd(grad_output, *arrays, **options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True, "offset": 1},
        {"window": (1, 2), "offset": 0},
        {"softcap": 0.7},
        {"scale": -1.3},
        {"mask": np.array([[True, True, False, True, True, False]])},
        {"causal": True, "offset": -2, "softcap": 2.0},
    ],
    ids=lambda options: ", ".join(options) or "plain",
)
def test_equals_finite_differences(options):
    grad_output, *arrays = some_problem()
    given = attention_backward(grad_output, *arrays[:3], bias=arrays[3], **options)

    def loss():
        return (grad_output * attention(*arrays[:3], bias=arrays[3], **options)).sum()

    for array, gradient in zip(arrays, given, strict=True):
        for index in np.ndindex(array.shape):
            here, step = array[index], 1e-5
            array[index] = here + step
            above = loss()
            array[index] = here - step
            slope = (above - loss()) / (2 * step)
            array[index] = here
            assert slope == pytest.approx(gradient[index], abs=2e-9)


def test_by_hand():
    # Weights 1/2, 1/2; values 2 and 8; the output is 5. dS = P ∘ (dP − 5) = 1/2 · (2 − 5), 1/2 · (8 − 5).
    query, key, value = np.array([[2.0]]), np.array([[1.0], [1.0]]), np.array([[2.0], [8.0]])
    given = attention_backward(np.ones((1, 1)), query, key, value, bias=np.zeros((1, 2)))
    np.testing.assert_array_equal(given.value, [[0.5], [0.5]])
    np.testing.assert_array_equal(given.bias, [[-1.5, 1.5]])
    np.testing.assert_array_equal(given.query, [[0]])  # equal keys pull both ways
    np.testing.assert_array_equal(given.key, [[-3], [3]])
    assert attention_backward(np.ones((1, 1)), query, key, value).bias is None


@pytest.mark.parametrize("enable_gqa", [False, True])
def test_what_was_used_several_times_adds_up(enable_gqa):
    rng = np.random.default_rng(1)
    query, bias = normal(rng, 2, 6, 3, 4), normal(rng, 1, 1, 5)
    key, value = normal(rng, 3 if enable_gqa else 1, 5, 4), normal(rng, 2, 3 if enable_gqa else 1, 5, 2)
    mask, grad_output = rng.random((6, 3, 5)) < 0.7, normal(rng, 2, 6, 3, 2)
    options = {"mask": mask, "enable_gqa": enable_gqa}
    given = attention_backward(grad_output, query, key, value, bias=bias, **options)
    assert_close(given, autograd(grad_output, query, key, value, bias=bias, **options))
    repeats = 2 if enable_gqa else 6
    long = attention_backward(
        grad_output, query, *(np.broadcast_to(np.repeat(x, repeats, -3), (2, 6, 5, x.shape[-1])) for x in (key, value)),
        bias=np.broadcast_to(bias, (2, 6, 3, 5)), mask=mask,
    )  # fmt: skip
    for name, shape in (("key", key.shape), ("value", value.shape)):
        heads = getattr(long, name).reshape(2, -1, repeats, *shape[-2:]).sum(2)
        np.testing.assert_allclose(getattr(given, name), heads.sum(0) if len(shape) == 3 else heads, atol=1e-13)
    np.testing.assert_allclose(given.bias, long.bias.sum((0, 1, 2))[None, None], atol=1e-13)


def test_a_bias_with_fewer_axes_than_the_scores():
    grad_output, query, key, value, _ = some_problem()
    for shape in ((), (6,), (1, 6), (5, 1), (2, 1, 1)):
        bias = np.random.default_rng(2).normal(size=shape)
        given = attention_backward(grad_output, query, key, value, bias=bias)
        assert_close(given, autograd(grad_output, query, key, value, bias=bias))


def test_a_gradient_of_zero_gives_zero_and_the_pass_is_linear():
    grad_output, query, key, value, bias = some_problem()
    for gradient in attention_backward(np.zeros_like(grad_output), query, key, value, bias=bias):
        assert not gradient.any()
    once = attention_backward(grad_output, query, key, value, bias=bias)
    twice = attention_backward(2 * grad_output, query, key, value, bias=bias)
    for one, other in zip(once, twice, strict=True):
        assert (2 * one).tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_loses_at_most_twice_what_a_plain_implementation_loses(dtype):
    rng = np.random.default_rng(3)
    arrays = [normal(rng, 4, n, 32, dtype=dtype) for n in (200, 200, 300, 300)]

    def plain(dO, Q, K, V):
        S = (Q @ K.swapaxes(-1, -2)) * Q.dtype.type(32**-0.5)
        P = np.exp(S - S.max(-1, keepdims=True))
        P = P / P.sum(-1, keepdims=True)
        dP = dO @ V.swapaxes(-1, -2)
        dS = P * (dP - (P * dP).sum(-1, keepdims=True)) * Q.dtype.type(32**-0.5)
        return dS @ K, dS.swapaxes(-1, -2) @ Q, P.swapaxes(-1, -2) @ dO

    exact = plain(*(x.astype(np.longdouble) for x in arrays))
    for gradient, baseline, wanted in zip(attention_backward(*arrays), plain(*arrays), exact, strict=False):
        assert gradient.dtype == dtype
        assert np.abs(gradient - wanted).max() <= 2 * np.abs(baseline - wanted).max()


# --- What is hidden ---


@MANY
@given(
    call=calls(dtypes=("float64",)),
    picked=st.integers(0, 10**6),
    poison=st.sampled_from((np.nan, np.inf, -np.inf, 1e8, 0.0)),
)
def test_a_key_that_nobody_sees_changes_no_bit_and_has_gradient_zero(call, picked, poison):
    (query, key, value), options = call
    (B, H, L, _), (_, G, S, _) = query.shape, key.shape
    if S == 0:
        return
    g, s = np.unravel_index(picked % (G * S), (G, S))
    if len(key) != len(value):  # one of them would serve two batch entries
        key, value = (np.broadcast_to(x, (B, *x.shape[1:])) for x in (key, value))
    mask = np.broadcast_to(options.get("mask", True), (B, H, L, S)).copy()
    mask[:, g * (H // G) : (g + 1) * (H // G), :, s] = False
    options = options | {"mask": mask}
    spoilt = key.copy(), value.copy()
    for array in spoilt:
        array[:, g, s] = poison
    grad_output = np.random.default_rng(picked).normal(size=attention(query, key, value, **options).shape)
    before = attention_backward(grad_output, query, key, value, **options)
    after = attention_backward(grad_output, query, *spoilt, **options)
    for one, other in zip(before, after, strict=True):
        assert one is other is None or one.tobytes() == other.tobytes()
    assert not after.key[:, g, s].any()
    assert not after.value[:, g, s].any()


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["grad_output", "query", "key", "value"])
def test_nan_and_infinity_reach_only_those_who_may_see_them(where, bad, softcap):
    problem = dict(zip(("grad_output", "query", "key", "value"), some_problem(L=6), strict=False))
    options = {"causal": True, "softcap": softcap}
    before = attention_backward(**problem, **options)
    spoilt = {n: x.copy() for n, x in problem.items()}
    at = 3
    spoilt[where][0, at, 1] = bad
    after = attention_backward(**spoilt, **options)
    # Row 3 of grad_output and query belongs to query 3, which sees keys 0 … 3. Row 3 of key and value is seen by
    # queries 3 … 5, whose weights reach every key.
    if where in ("grad_output", "query"):
        clean = {"query": np.arange(6) != at, "key": np.arange(6) > at, "value": np.arange(6) > at}
    else:
        clean = {"query": np.arange(6) < at, "key": np.zeros(6, bool), "value": np.zeros(6, bool)}
    for name, rows in clean.items():
        one, other = getattr(before, name), getattr(after, name)
        assert one[1].tobytes() == other[1].tobytes()  # the other head
        assert one[0, rows].tobytes() == other[0, rows].tobytes()
        assert np.isfinite(other[0, rows]).all()
    if where == "query" and np.isinf(bad):
        assert not after.query[0, at].any()  # its scores stop at the largest number, however it moves
    else:
        assert not np.isfinite(after.query[0, at]).all()


def test_scores_that_stopped_at_the_largest_number_have_gradients_of_zero():
    query, key, value = np.array([[np.inf]]), np.array([[1.0], [2.0]]), np.array([[2.0], [8.0]])
    bias = np.array([[0.0, np.inf]])
    for options in ({"query": query}, {"query": query, "bias": bias}, {"query": np.ones((1, 1)), "bias": bias}):
        given = attention_backward(np.ones((1, 1)), key=key, value=value, **options)
        assert given.query.item() == 0
        assert given.bias is None or not given.bias.any()
        assert given.value.sum() == 1


def test_rows_that_see_nothing_have_gradients_of_zero():
    grad_output, query, key, value, bias = some_problem(L=6)
    given = attention_backward(grad_output, query, key, value, bias=bias, causal=True, offset=-2)
    assert not given.query[:, :2].any()
    assert not given.bias[:, :2].any()
    rest = attention_backward(grad_output[:, 2:], query[:, 2:], key, value, bias=bias[:, 2:], causal=True, offset=0)
    for name in ("key", "value"):
        np.testing.assert_allclose(getattr(given, name), getattr(rest, name), atol=1e-15)
    np.testing.assert_allclose(given.query[:, 2:], rest.query, atol=1e-15)


def test_hidden_pairs_have_a_bias_gradient_of_zero():
    grad_output, query, key, value, bias = some_problem()
    mask = np.random.default_rng(4).random((2, 5, 6)) < 0.5
    bias[0, :, 2] = -np.inf
    given = attention_backward(grad_output, query, key, value, bias=bias, mask=mask).bias
    assert not given[~mask].any()
    assert not given[0, :, 2].any()
    np.testing.assert_allclose(given.sum(-1), 0, atol=1e-15)  # raising all scores of a row changes nothing


# --- Range ---


def test_half_precision_is_computed_in_single_precision():
    query = key = np.full((2, 64), 40, np.float16)  # scores of 102400 before scaling
    value = np.array([[1.0], [3.0]], np.float16)
    given = attention_backward(np.ones((2, 1), np.float16), query, key, value)
    np.testing.assert_array_equal(given.value, np.ones((2, 1), np.float16))
    # dS = 1/2 · (1 − 2) and 1/2 · (3 − 2) in both rows; dK = 1/8 · 2 rows · dS · 40
    np.testing.assert_array_equal(given.key, np.repeat(np.array([[-5], [5]], np.float16), 64, 1))
    assert all(x.dtype == np.float16 for x in given[:3])


@pytest.mark.parametrize(
    "options",
    [{}, {"softcap": 5.0}, {"causal": True}, {"scale": 1e-35}, {"scale": 1e-35, "softcap": 5.0}],
    ids=lambda options: ", ".join(options) or "plain",
)
def test_scores_beyond_the_range_as_autograd(options):
    grad_output, query, key, value, _ = some_problem(dtype="float32", L=6)
    query[0, 3] *= 1e25
    key[0, 1] *= 1e15
    given = attention_backward(grad_output, query, key, value, **options)
    wanted = autograd(grad_output, query, key, value, **options)
    for name, gradient in wanted.items():
        assert np.isfinite(getattr(given, name)).all()
        size = np.abs(gradient).max(-1, keepdims=True)
        np.testing.assert_allclose(getattr(given, name) / (size + 1), gradient / (size + 1), rtol=0, atol=1e-5)


def test_a_row_beyond_the_range_gives_the_keys_that_others_see_too_their_gradient():
    # The first query's scores are −1e60 and −2e60: in single precision both are −∞, and its weights would be 0.
    grad_output, value = np.ones((2, 1), np.float32), np.array([[1], [3]], np.float32)
    query, key = np.array([[-1e30], [1]], np.float32), np.array([[1e30], [2e30]], np.float32)
    assert attention_backward(grad_output[:1], query[:1], key, value).value.tolist() == [[1], [0]]
    assert attention_backward(grad_output, query, key, value).value.tolist() == [[1], [1]]
    assert attention_backward(grad_output, query, -key, value).value.tolist() == [[1], [1]]
    causal = attention_backward(grad_output, query, key, value, causal=True)  # and the second key is seen by one alone
    assert causal.value.tolist() == [[1], [1]]


def test_scores_beyond_single_precision_keep_their_order():
    query, key = np.array([[1e20]], np.float32), np.array([[1e20], [2e20]], np.float32)  # scores 1e40 and 2e40
    given = attention_backward(np.ones((1, 1), np.float32), query, key, np.array([[1], [3]], np.float32))
    np.testing.assert_array_equal(given.value, [[0], [1]])


def test_what_stays_in_the_range_is_computed_once(monkeypatch):
    room, dtypes = sys.modules["lib.reference.gradients"], []
    body = room._backward
    monkeypatch.setattr(room, "_backward", lambda *given, **also: dtypes.append(given[7]) or body(*given, **also))
    grad_output, query, key, value, bias = some_problem(dtype="float32")
    for options in ({}, {"causal": True, "offset": -2}, {"softcap": 2.0}, {"mask": np.eye(5, 6, dtype=bool)}):
        dtypes.clear()
        attention_backward(grad_output, query, key, value, bias=bias, **options)
        assert dtypes == [np.float32]
    attention_backward(grad_output, query * np.float32(1e30), key * np.float32(1e30), value, bias=bias)
    assert dtypes[-1] == np.float64


def test_a_row_beyond_the_range_changes_no_bit_of_what_it_does_not_see():
    grad_output, query, key, value, _ = some_problem(dtype="float32", L=6)
    key[0, 0] *= 1e15
    before = attention_backward(grad_output, query, key, value, causal=True)
    query[0, 3] *= 1e25
    after = attention_backward(grad_output, query, key, value, causal=True)
    assert all(np.isfinite(x).all() for x in after[:3])
    for name, rows in (("query", np.arange(6) != 3), ("key", np.arange(6) > 3), ("value", np.arange(6) > 3)):
        assert getattr(before, name)[0, rows].tobytes() == getattr(after, name)[0, rows].tobytes()
        assert getattr(before, name)[1].tobytes() == getattr(after, name)[1].tobytes()


@pytest.mark.parametrize("dtype", WIDENED)
@pytest.mark.parametrize("huge", ["grad_output", "query", "key", "value"])
def test_finite_arrays_give_no_nan(dtype, huge):
    limit = np.finfo(dtype).max
    for pair in ("grad_output", "query", "key", "value"):
        problem = dict(zip(("grad_output", "query", "key", "value"), some_problem(dtype=dtype), strict=False))
        for name in (huge, pair):
            problem[name][:, ::2] = np.sign(problem[name][:, ::2]) * limit / 4
        for options in ({}, {"softcap": 3.0}, {"scale": 1e-300}):
            for gradient in attention_backward(**problem, **options)[:3]:
                assert not np.isnan(gradient).any()


# --- Shapes, views, errors ---


@pytest.mark.parametrize(
    ("batch", "L", "S", "E", "Ev"),
    [((), 0, 3, 2, 2), ((), 3, 0, 2, 2), ((), 3, 3, 0, 2), ((), 3, 3, 2, 0), ((0,), 3, 3, 2, 2), ((1, 1), 1, 1, 1, 1)],
)
def test_sizes_zero_and_one(batch, L, S, E, Ev):
    rng = np.random.default_rng(5)
    arrays = [normal(rng, *batch, *shape) for shape in ((L, Ev), (L, E), (S, E), (S, Ev))]
    bias = normal(rng, 1, S)
    given = attention_backward(*arrays, bias=bias)
    for one, array in zip(given, (*arrays[1:], bias), strict=True):
        assert one.shape == array.shape
        assert np.isfinite(one).all()
    assert_close(given, autograd(*arrays, bias=bias))


def test_no_query_heads_for_some_key_heads():
    grad_output, query, key, value = np.ones((0, 3, 2)), np.ones((0, 3, 4)), np.ones((2, 5, 4)), np.ones((2, 5, 2))
    given = attention_backward(grad_output, query, key, value, enable_gqa=True)
    assert given.query.shape == (0, 3, 4)
    np.testing.assert_array_equal(given.key, np.zeros((2, 5, 4)))
    np.testing.assert_array_equal(given.value, np.zeros((2, 5, 2)))


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("view", ["strided", "transposed", "reversed", "read-only", "fortran"])
def test_views_give_what_copies_give(which, view):
    problem = some_problem()
    wanted = attention_backward(*problem[:4], bias=problem[4])
    problem[which] = views(problem[which])[view]
    before = [x.tobytes() for x in problem]
    given = attention_backward(*problem[:4], bias=problem[4])
    for one, other in zip(given, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)
    assert [x.tobytes() for x in problem] == before


X = np.zeros((3, 4))
WRONG = [
    ({"grad_output": np.zeros((3, 2))}, ValueError,
     "grad_output must have the output's shape (..., L, Ev) = (3, 4), got (3, 2)"),
    ({"grad_output": np.zeros((1, 3, 4))}, ValueError,
     "grad_output must have the output's shape (..., L, Ev) = (3, 4), got (1, 3, 4)"),
    ({"grad_output": np.zeros((3, 4), np.float32)}, TypeError,
     "grad_output must have query's dtype float64, got float32"),
    ({"grad_output": 1.0}, TypeError, "grad_output must be a numpy.ndarray, got float"),
    ({"grad_output": torch.zeros(3, 4)}, TypeError,
     "grad_output must be a numpy.ndarray, got torch.Tensor; lib.fast takes tensors"),
    ({"key": np.zeros((3, 5))}, ValueError, "key must have shape (..., S, E) with query's E = 4, got (3, 5)"),
    ({"causal": 1}, TypeError, "causal must be True or False, got 1 (int)"),
    ({"mask": np.ones((3, 2), bool)}, ValueError,
     "mask must broadcast to the scores' shape (..., L, S) = (3, 3), got (3, 2)"),
    ({"bias": np.ones((3, 2))}, ValueError,
     "bias must broadcast to the scores' shape (..., L, S) = (3, 3), got (3, 2)"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "kind", "text"), WRONG, ids=[text for _, _, text in WRONG])
def test_errors(change, kind, text):
    call = {"grad_output": X, "query": X, "key": X, "value": X} | change
    assert raised(kind, attention_backward, **call) == text


# --- The softmax alone ---


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_softmax_backward_equals_autograd(axis, dtype):
    rng = np.random.default_rng(6)
    scores, grad_weights = normal(rng, 3, 4, 5, dtype=dtype), normal(rng, 3, 4, 5, dtype=dtype)
    given = softmax_backward(softmax(scores, axis), grad_weights, axis)
    leaf = torch.tensor(scores.astype(float), requires_grad=True)
    torch.softmax(leaf, axis).backward(torch.tensor(grad_weights.astype(float)))
    atol = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-15}[dtype]
    np.testing.assert_allclose(given, leaf.grad.numpy(), rtol=0, atol=atol)
    np.testing.assert_allclose(given.astype(float).sum(axis), 0, atol=5 * atol)
    assert given.dtype == dtype


def test_softmax_backward_computes_half_precision_in_single_precision():
    half = np.full(2, 0.5, np.float16)
    given = softmax_backward(half, np.array([60000, -60000], np.float16))  # their sum of squares is no matter
    np.testing.assert_array_equal(given, np.array([30000, -30000], np.float16))
    many = np.full(4096, 2.0**-12, np.float16)
    np.testing.assert_array_equal(softmax_backward(many, np.full(4096, 3, np.float16)), 0)


def test_softmax_backward_beyond_the_range_does_not_warn():
    given = softmax_backward(np.array([0.001, 0.999], np.float32), np.array([3e38, -3e38], np.float32))
    assert given[0] == np.inf


def test_softmax_backward_of_an_equal_push_on_all_weights_is_zero():
    weights = softmax(np.array([[1.0, 2.0, 3.0], [0.0, -np.inf, 0.0]]))
    np.testing.assert_allclose(softmax_backward(weights, np.full((2, 3), 7.0)), 0, atol=1e-15)


SOFTMAX_WRONG = [
    ((np.zeros(2, int), np.zeros(2)), {}, TypeError, "weights must be floating, got int64"),
    ((np.zeros(2), np.zeros(2, bool)), {}, TypeError, "grad_weights must be floating, got bool"),
    (([0.5, 0.5], np.zeros(2)), {}, TypeError, "weights must be a numpy.ndarray, got list"),
    (
        (np.zeros(2), np.zeros(2, np.float32)),
        {},
        TypeError,
        "grad_weights must have weights' dtype float64, got float32",
    ),
    ((np.zeros(2), np.zeros((2, 2))), {}, ValueError, "grad_weights must have weights' shape (2,), got (2, 2)"),
    ((np.zeros(2), np.zeros(2)), {"axis": 1}, ValueError, "axis must be one of weights' 1 axes, got 1 for shape (2,)"),
    ((np.zeros(2), np.zeros(2)), {"axis": None}, TypeError, "axis must be an integer, got None (NoneType)"),
]


@pytest.mark.parametrize(("arrays", "options", "kind", "text"), SOFTMAX_WRONG, ids=[w[-1] for w in SOFTMAX_WRONG])
def test_softmax_backward_errors(arrays, options, kind, text):
    assert raised(kind, softmax_backward, *arrays, **options) == text
