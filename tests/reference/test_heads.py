"""Heads on arrays: how features are split and merged, which head reads which, and what is refused."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.reference import attention, merge_heads, multi_head_attention, split_heads
from tests import oracle

QUICK = settings(derandomize=True, deadline=None, max_examples=60)
SIZES = st.integers(0, 3)


def weights_for(rng, D=6, H=4, G=2, E=3, Ev=2, D_o=5, D_k=None, D_v=None, dtype=np.float64):
    """Return W_q, W_k, W_v, W_o, each (in, out)."""
    shapes = (D, H * E), (D if D_k is None else D_k, G * E), (D if D_v is None else D_v, G * Ev), (H * Ev, D_o)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def by_loops(query, key, value, weights, H, G, biases=(0, 0, 0, 0), **options):
    """Compute multi-head attention with one plain attention for each head, its columns cut out by hand."""
    (W_q, W_k, W_v, W_o), (b_q, b_k, b_v, b_o) = weights, biases
    q, k, v = query @ W_q + b_q, key @ W_k + b_k, value @ W_v + b_v
    E, Ev = W_q.shape[1] // H, W_v.shape[1] // G
    outputs, shares = [], []
    for h in range(H):
        g = h * G // H
        output, share = oracle.attention(
            q[..., h * E : (h + 1) * E], k[..., g * E : (g + 1) * E], v[..., g * Ev : (g + 1) * Ev], **options
        )
        outputs.append(output)
        shares.append(share)
    return np.concatenate(outputs, -1) @ W_o + b_o, np.stack(shares, -3)


def test_split_keeps_each_heads_own_columns():  # A2
    B, H, L, D = 2, 2, 3, 2
    x = np.broadcast_to(np.repeat(np.arange(H), D), (B, L, H * D))  # x[b, l, h·D + d] = h
    split = split_heads(x, H)
    assert split.shape == (B, H, L, D)
    assert all((split[:, h] == h).all() for h in range(H))
    np.testing.assert_array_equal(merge_heads(split), x)


def test_merge_puts_heads_side_by_side():  # A3
    b, h, row, d = np.ogrid[:1, :2, :2, :2]
    np.testing.assert_array_equal(merge_heads(100 * h + 10 * row + d + b), [[[0, 1, 100, 101], [10, 11, 110, 111]]])


@QUICK
@given(st.lists(SIZES, max_size=3), SIZES, st.integers(1, 4), SIZES)
def test_merge_undoes_split(batch, L, H, D):
    x = np.arange(int(np.prod([*batch, L, H, D]))).reshape(*batch, L, H * D)
    split = split_heads(x, H)
    assert split.shape == (*batch, H, L, D)
    for index in np.ndindex(*split.shape):
        *b, h, position, d = index
        assert split[index] == x[(*b, position, h * D + d)]
    np.testing.assert_array_equal(merge_heads(split), x)


def test_splitting_is_a_view_of_the_same_memory():
    x = np.zeros((2, 3, 8))
    assert np.shares_memory(split_heads(x, 4), x)


@pytest.mark.parametrize("batch", [(), (2,), (4,), (2, 3)])
@pytest.mark.parametrize("H, G", [(1, 1), (4, 4), (4, 2), (4, 1), (6, 3)])
def test_equals_one_attention_for_each_head(batch, H, G):
    rng = np.random.default_rng(0)
    weights = weights_for(rng, H=H, G=G, D_k=7, D_v=5)
    biases = [rng.normal(size=W.shape[1]) for W in weights]
    query, key, value = (rng.normal(size=(*batch, n, d)) for n, d in ((3, 6), (4, 7), (4, 5)))
    mask = rng.random((3, 4)) < 0.7
    output, shares = multi_head_attention(
        query, *weights, H, G, key=key, value=value, mask=mask, return_weights=True,
        **dict(zip(("b_q", "b_k", "b_v", "b_o"), biases, strict=True)),
    )  # fmt: skip
    wanted, wanted_shares = by_loops(query, key, value, weights, H, G, biases, mask=mask)
    assert output.shape == (*batch, 3, 5)
    assert shares.shape == (*batch, H, 3, 4)
    np.testing.assert_allclose(output, wanted, atol=1e-12)
    np.testing.assert_allclose(shares, wanted_shares, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"causal": True},
        {"window": (1, 0)},
        {"window": (1, 2), "causal": True, "offset": 0},
        {"scale": 0.3},
        {"scale": 0.0},
        {"softcap": 1.5},
        {"bias": np.arange(9.0).reshape(3, 3) / 4},
        {"mask": np.tril(np.ones((3, 3), bool), -1)},
        {"causal": True, "offset": 2},
    ],
    ids=str,
)
def test_passes_on_every_option(options):
    rng = np.random.default_rng(1)
    x, weights = rng.normal(size=(2, 3, 6)), weights_for(rng)
    output, shares = multi_head_attention(x, *weights, 4, 2, return_weights=True, **options)
    wanted, wanted_shares = by_loops(x, x, x, weights, 4, 2, **options)
    np.testing.assert_allclose(output, wanted, atol=1e-12)
    np.testing.assert_allclose(shares, wanted_shares, atol=1e-12)
    np.testing.assert_array_equal(multi_head_attention(x, *weights, 4, 2, **options), output)


def test_key_is_query_and_value_is_key_unless_given():
    rng = np.random.default_rng(2)
    x, y, weights = rng.normal(size=(2, 3, 6)), rng.normal(size=(2, 5, 6)), weights_for(rng)
    same = multi_head_attention(x, *weights, 4, 2, key=x, value=x)
    np.testing.assert_array_equal(multi_head_attention(x, *weights, 4, 2), same)
    cross = multi_head_attention(x, *weights, 4, 2, key=y, value=y)
    np.testing.assert_array_equal(multi_head_attention(x, *weights, 4, 2, key=y), cross)


@pytest.mark.parametrize("H", [2, 3])  # B = H and B ≠ H
def test_each_batch_entry_gets_its_own_mask(H):  # M4
    B = 2
    value = np.array([[[1.0], [2.0]], [[11.0], [12.0]]]).repeat(H, axis=-1)  # every head reads its own column
    nothing, same = np.zeros((H, H)), np.eye(H)
    mask = np.array([[[True, False]], [[False, True]]])  # (B, 1, S)
    output = multi_head_attention(value, nothing, nothing, same, same, H, mask=mask[:, None])
    np.testing.assert_array_equal(output[0], np.full((2, H), 1.0))
    np.testing.assert_array_equal(output[1], np.full((2, H), 12.0))
    for name in ("mask", "bias"):
        array = np.broadcast_to(mask, (B, 2, 2)) if name == "mask" else np.zeros((B, 2, 2))
        with pytest.raises(ValueError, match=re.escape(f"{name} must have axes (L, S) or (B, H, L, S)")) as error:
            multi_head_attention(value, nothing, nothing, same, same, H, **{name: array})
        assert f"got (2, 2, 2); for one {name} a batch entry, the same for all heads, write {name}[:, None]" in str(
            error.value
        )


def test_without_a_batch_a_mask_may_have_heads():
    x, nothing, same = np.array([[1.0, 1.0], [2.0, 2.0]]), np.zeros((2, 2)), np.eye(2)
    mask = np.array([[[True, False]], [[False, True]]])  # (H, 1, S)
    np.testing.assert_array_equal(
        multi_head_attention(x, nothing, nothing, same, same, 2, mask=mask), [[1.0, 2.0], [1.0, 2.0]]
    )


def test_each_key_value_head_serves_neighbours():  # G1
    nothing = np.zeros((1, 4))
    value = np.array([[1.0, 2.0]])
    output = multi_head_attention(
        np.zeros((1, 1)), nothing, np.zeros((1, 2)), value, np.eye(4), 4, 2, value=np.ones((1, 1))
    )
    np.testing.assert_array_equal(output, [[1.0, 1.0, 2.0, 2.0]])


def test_scale_is_that_of_the_head():  # S1 with two heads
    q = np.ones((1, 8))
    kv = np.concatenate([np.ones((1, 8)), np.zeros((1, 8))])
    _, shares = multi_head_attention(q, *[np.eye(8)] * 4, 2, key=kv, return_weights=True)
    np.testing.assert_allclose(shares[:, 0, 0], 0.8807970779778823, rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_keeps_the_dtype(dtype):
    rng = np.random.default_rng(3)
    x, weights = rng.normal(size=(3, 6)).astype(dtype), weights_for(rng, dtype=dtype)
    output, shares = multi_head_attention(x, *weights, 4, 2, return_weights=True)
    assert output.dtype == shares.dtype == dtype


def test_a_query_without_keys_gets_the_last_bias():
    rng = np.random.default_rng(4)
    x, weights = rng.normal(size=(2, 6)), weights_for(rng)
    output = multi_head_attention(x, *weights, 4, 2, mask=np.array([[False, False], [True, True]]), b_o=np.arange(5.0))
    np.testing.assert_array_equal(output[0], np.arange(5.0))


def test_hidden_nan_changes_nothing_and_inputs_stay():
    rng = np.random.default_rng(5)
    x, y, weights = rng.normal(size=(2, 3, 6)), rng.normal(size=(2, 4, 6)), weights_for(rng)
    mask = np.array([True, True, True, False])
    clean = multi_head_attention(x, *weights, 4, 2, key=y, mask=mask)
    y[:, 3] = np.nan
    before = [array.tobytes() for array in (x, y, *weights)]
    np.testing.assert_array_equal(multi_head_attention(x, *weights, 4, 2, key=y, mask=mask), clean)
    assert before == [array.tobytes() for array in (x, y, *weights)]


@QUICK
@given(st.sampled_from([(), (0,), (1,), (2,)]), SIZES, SIZES)
def test_sizes_zero_and_one(batch, L, S):
    rng = np.random.default_rng(6)
    weights = weights_for(rng)
    output, shares = multi_head_attention(
        rng.normal(size=(*batch, L, 6)), *weights, 4, 2, key=rng.normal(size=(*batch, S, 6)), return_weights=True
    )
    assert (output.shape, shares.shape) == ((*batch, L, 5), (*batch, 4, L, S))
    assert np.isfinite(output).all()


def test_strided_and_reversed_views_give_the_same():
    rng = np.random.default_rng(7)
    x, weights = rng.normal(size=(2, 3, 6)), weights_for(rng)
    wanted = multi_head_attention(x, *weights, 4, 2)
    views = [np.asfortranarray(x), np.repeat(x, 2, axis=-1)[..., ::2], x[..., ::-1].copy()[..., ::-1]]
    for view in views:
        np.testing.assert_allclose(multi_head_attention(view, *weights, 4, 2), wanted, atol=1e-12)
        np.testing.assert_array_equal(split_heads(view, 3), split_heads(x, 3))


def test_a_mask_for_each_head_where_only_the_keys_have_a_batch():
    rng = np.random.default_rng(11)
    query, key, weights = rng.normal(size=(3, 6)), rng.normal(size=(2, 3, 6)), weights_for(rng)
    mask = rng.random((2, 4, 3, 3)) < 0.6
    given = multi_head_attention(query, *weights, 4, 2, key=key, mask=mask)
    wanted = multi_head_attention(np.stack([query] * 2), *weights, 4, 2, key=key, mask=mask)
    np.testing.assert_allclose(given, wanted, atol=1e-12)


def test_perturbing_the_future_changes_nothing_before():  # C5
    rng = np.random.default_rng(8)
    x, weights = rng.normal(size=(2, 5, 6)), weights_for(rng)
    before = multi_head_attention(x, *weights, 4, 2, causal=True)
    x[:, 3:] += 1e3 * rng.normal(size=(2, 2, 6))
    np.testing.assert_array_equal(multi_head_attention(x, *weights, 4, 2, causal=True)[:, :3], before[:, :3])


X, SQUARE = np.zeros((2, 3, 4)), np.zeros((4, 4))


def call(x=X, W_q=SQUARE, W_k=SQUARE, W_v=SQUARE, W_o=SQUARE, num_heads=2, num_kv_heads=None, **options):
    return multi_head_attention(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, **options)


@pytest.mark.parametrize("name", ["key", "value", "W_q", "W_k", "W_v", "W_o", "b_q", "b_k", "b_v", "b_o"])
def test_every_array_is_checked_by_its_name(name):
    with pytest.raises(TypeError, match=f"^{name} must be a numpy.ndarray, got str$"):
        call(**{name: "four"})


@pytest.mark.parametrize(
    "kind, wrong, text",
    [
        (TypeError, lambda: split_heads([[1.0]], 1), "x must be an array or a tensor, got list"),
        (ValueError, lambda: split_heads(np.zeros(4), 2), "x must have shape (..., L, H·D), got (4,)"),
        (ValueError, lambda: split_heads(X, 3), "x's last axis (4) must be divisible by num_heads (3)"),
        (ValueError, lambda: split_heads(X, 0), "num_heads must be 1 or more, got 0"),
        (TypeError, lambda: split_heads(X, 2.0), "num_heads must be an integer, got 2.0 (float)"),
        (ValueError, lambda: merge_heads(np.zeros((2, 3))), "x must have shape (..., H, L, D), got (2, 3)"),
        (TypeError, lambda: call(x=[[1.0]]), "query must be a numpy.ndarray, got list"),
        (ValueError, lambda: call(num_heads=0), "num_heads must be 1 or more, got 0"),
        (TypeError, lambda: call(num_heads=2.0), "num_heads must be an integer, got 2.0 (float)"),
        (
            ValueError,
            lambda: call(x=X[0], mask=np.ones((1, 2, 3, 3), bool)),
            "mask must have axes (L, S) or (H, L, S), where sizes of 1 broadcast, got (1, 2, 3, 3)",
        ),
        (
            TypeError,
            lambda: call(x=X.astype(int)),
            "query must be floating (float16, bfloat16, float32 or float64), got",
        ),
        (TypeError, lambda: call(key=X.astype(np.float32)), "key must have query's dtype float64, got float32"),
        (TypeError, lambda: call(W_k=SQUARE.astype(np.float32)), "W_k must have query's dtype float64, got float32"),
        (TypeError, lambda: call(b_o=[0.0]), "b_o must be a numpy.ndarray, got list"),
        (ValueError, lambda: call(x=np.zeros(4)), "query must have shape (..., length, features), got (4,)"),
        (ValueError, lambda: call(W_q=np.zeros(4)), "W_q must have shape (in, out), got (4,)"),
        (
            ValueError,
            lambda: call(W_q=np.zeros((5, 4))),
            "W_q must have shape (in, out) with query's in = 4, got (5, 4)",
        ),
        (
            ValueError,
            lambda: call(W_v=np.zeros((6, 4))),
            "torch.nn.Linear keeps its weight as (out, in): pass it transposed",
        ),
        (ValueError, lambda: call(W_k=np.zeros((4, 6))), "W_k must have num_kv_heads · E = 2 · 2 = 4 columns, got 6"),
        (ValueError, lambda: call(W_o=np.zeros((6, 4))), "W_o must have num_heads · Ev = 2 · 2 = 4 rows, got 6"),
        (ValueError, lambda: call(num_heads=3), "W_q's columns (4) must be divisible by num_heads (3)"),
        (ValueError, lambda: call(W_v=np.zeros((4, 3))), "W_v's columns (3) must be divisible by num_kv_heads (2)"),
        (ValueError, lambda: call(num_heads=6, num_kv_heads=4), "num_heads (6) must be divisible by num_kv_heads (4)"),
        (ValueError, lambda: call(num_kv_heads=0), "num_kv_heads must be 1 or more, got 0"),
        (ValueError, lambda: call(b_v=np.zeros(3)), "b_v must have shape (4,), as many as W_v's columns, got (3,)"),
        (TypeError, lambda: call(mask=[[True]]), "mask must be a numpy.ndarray, got list"),
        (TypeError, lambda: call(mask=np.ones((3, 3))), "mask must be boolean (True = may attend), got float64"),
        (ValueError, lambda: call(key=np.zeros((2, 5, 4)), causal=True), "causal needs offset= because"),
    ],
)
def test_errors_name_the_argument(kind, wrong, text):
    with pytest.raises(kind, match=re.escape(text)):
        wrong()


def test_a_transposed_weight_is_recognised_and_another_is_not():
    with pytest.raises(ValueError, match=re.escape("got (6, 4); torch.nn.Linear keeps its weight as (out, in)")):
        call(W_q=np.zeros((6, 4)))
    with pytest.raises(ValueError, match=re.escape("got (6, 5)") + "$"):
        call(W_q=np.zeros((6, 5)))


def test_the_whole_equals_its_parts():
    rng = np.random.default_rng(9)
    x, (W_q, W_k, W_v, W_o) = rng.normal(size=(2, 3, 6)), weights_for(rng, G=4)
    q, k, v = split_heads(x @ W_q, 4), split_heads(x @ W_k, 4), split_heads(x @ W_v, 4)
    wanted = merge_heads(attention(q, k, v, causal=True)) @ W_o
    np.testing.assert_array_equal(multi_head_attention(x, W_q, W_k, W_v, W_o, 4, causal=True), wanted)
