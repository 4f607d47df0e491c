"""Memory layouts, the tails of blocks, very many keys, empty inputs and inputs of the wrong dtype."""

from functools import cache

import numpy as np
import pytest
import torch

from lib import fast, masks, reference
from tests import oracle
from tests.bugs.conftest import BACKENDS
from tests.rules import draw, raised, some_mask


def layouts(x):
    """Yield the same numbers in other memory, with something else in between and behind."""
    other = np.array(np.nan).astype(x.dtype)  # NaN, or True in a mask
    wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), other)
    wide[..., ::2] = x
    yield wide[..., ::2]
    yield np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    yield np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1)
    yield np.ascontiguousarray(np.moveaxis(x, 1, 2)).swapaxes(1, 2)  # (B, L, H, E) storage
    yield np.ascontiguousarray(x[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1]
    long = np.full((*x.shape[:-2], x.shape[-2] + 3, x.shape[-1]), other)
    long[..., : x.shape[-2], :] = x
    yield long[..., : x.shape[-2], :]


@pytest.mark.parametrize("L", [1, 4])
@pytest.mark.parametrize("which", ["query", "key", "value", "mask", "bias"])
def test_L1_memory_layout_does_not_matter(attention, which, L):
    """Strided, transposed, reversed and padded storage, one input at a time, after a contiguous call.

    pytorch/pytorch#112577, pytorch/pytorch#187506, pytorch/pytorch#116333, ROCm/pytorch#3230,
    FlagOpen/FlagGems#5896, torch-spyre/torch-spyre#4331, flashinfer-ai/flashinfer#4270.
    """
    arrays = dict(zip(("query", "key", "value"), draw(L=L, dtype="float32"), strict=True))
    if which in ("mask", "bias"):
        arrays["mask"] = some_mask((2, 3, L, 5))
        arrays["bias"] = np.random.default_rng(3).normal(size=(2, 3, L, 5)).astype(np.float32)
    wanted = attention(**arrays)
    for other in layouts(arrays[which]):
        np.testing.assert_array_equal(other, arrays[which])
        np.testing.assert_allclose(attention(**{**arrays, which: other}), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("which", ["query", "key", "value", "mask", "bias"])
def test_L1_expanded_inputs(attention, which):
    """Stride 0: one head, one row or one number for all.

    pytorch/pytorch#112577, pytorch/pytorch#187506.
    """
    arrays = dict(zip(("query", "key", "value"), draw(dtype="float32"), strict=True))
    arrays["mask"] = some_mask((2, 3, 4, 5))
    arrays["bias"] = np.random.default_rng(3).normal(size=(2, 3, 4, 5)).astype(np.float32)
    x = arrays[which]
    for part in (x[:1], x[:, :1], x[..., :1, :], x[..., :1], x[:1, :1, :1, :1]):
        part = part if which != "mask" else part | True
        repeated = torch.from_numpy(part.copy()).expand(x.shape).numpy()  # writeable, so that torch gets its strides
        assert 0 in repeated.strides
        given = attention(**{**arrays, which: repeated})
        copied = attention(**{**arrays, which: repeated.copy()})
        np.testing.assert_allclose(given, copied, rtol=0, atol=1e-6)


@pytest.mark.parametrize("how", ["by hand", *BACKENDS])
def test_L1_memory_layout_of_the_outputs_gradient(how):
    """A gradient that comes strided, transposed or repeated.

    Dao-AILab/flash-attention#355.
    """
    inputs, mask = draw(), some_mask((4, 5))

    def backward(cotangent):
        if how == "by hand":
            return reference.attention_backward(cotangent, *inputs, mask=mask)[:3]
        leaves = [torch.tensor(x).requires_grad_() for x in inputs]
        output = fast.attention(*leaves, mask=torch.tensor(mask), backend=how)
        return [x.numpy() for x in torch.autograd.grad(output, leaves, torch.from_numpy(cotangent))]

    cotangent = draw(seed=5)[2][..., :4, :].copy()
    repeated = torch.ones(()).double().expand(cotangent.shape).numpy()
    pairs = [(other, cotangent) for other in layouts(cotangent) if min(other.strides) >= 0]
    for other, plain in [*pairs, (repeated, repeated.copy())]:
        for one, two in zip(backward(other), backward(plain), strict=True):
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-13)


def test_L1_a_call_remembers_nothing_of_the_last(attention):
    """Contiguous, strided, single, double, longer, shorter, masked, plain: each call is answered for itself.

    flashinfer-ai/flashinfer#4270 (a cached graph whose key omits strides and dtype).
    """
    calls = []
    for dtype in ("float32", "float64"):
        for shape, L, S in (((2,), 4, 5), ((3,), 4, 4), ((3,), 5, 4)):
            arrays = draw(shape, L, S, dtype=dtype)
            calls += [(arrays, {}), ([np.asfortranarray(x) for x in arrays], {}), (arrays, {"mask": some_mask((L, S))})]
    for arrays, options in [*calls, *calls[::-1]]:
        given = attention(*arrays, **options)
        wanted, _ = oracle.attention(*arrays, **options)
        assert given.dtype == arrays[0].dtype
        np.testing.assert_allclose(given, wanted, rtol=0, atol=1e-13 if given.dtype == np.float64 else 5e-6)


SIZES = (1, 31, 32, 33, 63, 64, 65)


@cache
def tail_problem(L, S):
    """Draw a problem with NaN in memory behind each array, and give its answers without and with causal."""
    r = np.random.default_rng(0)
    arrays = []
    for length, size in ((L, 4), (S, 4), (S, 2)):
        stored = np.full((1, 2, length + 64, size), np.nan, np.float32)
        stored[..., :length, :] = r.normal(size=(1, 2, length, size))
        arrays.append(stored[..., :length, :])
    query, key, value = (x.astype(float) for x in arrays)
    shares = np.exp(query @ key.swapaxes(-1, -2) / 2)
    answers = []
    for seen in (np.ones((L, S)), np.tri(L, S, S - L)):
        total = (shares * seen).sum(-1, keepdims=True)
        answers.append(shares * seen / np.where(total == 0, 1, total) @ value)
    return arrays, answers


@pytest.mark.parametrize("L", SIZES)
def test_L2_tails_of_blocks(attention, L):
    """Sizes around multiples of a block of 32, with NaN in the memory past the end.

    pytorch/pytorch#169222.
    """
    if attention.name.startswith("streaming"):
        attention = {"streaming": tiles(32, 32), "streaming-tiles": tiles(16, 32)}[attention.name]
    for S in SIZES:
        arrays, answers = tail_problem(L, S)
        for causal, wanted in zip((False, True), answers, strict=True):
            given = attention(*arrays, causal=causal, offset=S - L)
            np.testing.assert_allclose(given, wanted, rtol=0, atol=2e-6)


def tiles(block_q, block_k):
    return lambda *args, **options: reference.streaming_attention(*args, **options, block_q=block_q, block_k=block_k)


@pytest.fixture(scope="module")
def many_keys():
    """One query, 65537 keys, a mask, and the answer in double precision."""
    r = np.random.default_rng(1)
    query, key, value = (r.normal(size=(n, 2)).astype(np.float32) for n in (1, 65537, 65537))
    mask = r.random((1, 65537)) < 0.5
    shares = np.where(mask, np.exp(query.astype(float) @ key.T.astype(float) / 2**0.5), 0)
    return query, key, value, mask, shares / shares.sum() @ value


def test_L2_very_many_keys(attention, many_keys):
    """One query and 65537 keys with a mask: no index overflows, and no small share is lost.

    pytorch/pytorch#162588.
    """
    query, key, value, mask, wanted = many_keys
    if attention.name == "streaming-tiles":
        attention = tiles(1, 1000)  # 65537 = 65 · 1000 + 537
    np.testing.assert_allclose(attention(query, key, value, mask=mask), wanted, rtol=0, atol=1e-6)


def test_L2_very_many_keys_in_chunks(room, many_keys):
    """The same in chunks, the last one of a single key, joined by their log-sum-exp.

    pytorch/pytorch#162588.
    """
    query, key, value, mask, wanted = many_keys
    partial = room.attention_with_lse if room.name == "fast" else room.streaming_attention
    options = {} if room.name == "fast" else {"return_lse": True}
    parts = []
    for start in range(0, 65537, 16384):
        keys = slice(start, start + 16384)
        parts.append(partial(query, key[keys], value[keys], mask=mask[:, keys], **options))
    assert len(parts) == 5
    output, _ = room.module.merge([tuple(map(room.into, part)) for part in parts])
    np.testing.assert_allclose(output, wanted, rtol=0, atol=1e-6)


def test_E1_empty_and_single(attention):
    """No keys give zeros, no queries give nothing, and one of each gives the value.

    pytorch/pytorch#141218, pytorch/pytorch#141219, pytorch/pytorch#174939, pytorch/pytorch#174950,
    Dao-AILab/flash-attention#2470, Dao-AILab/flash-attention#2568.
    """
    query, key, value = draw()
    for options in ({}, {"causal": True, "offset": 0}, {"mask": np.ones((1, 1), bool)}, {"bias": np.zeros((1, 1))}):
        given = attention(query, key[..., :0, :], value[..., :0, :], **options)
        np.testing.assert_array_equal(given, np.zeros((2, 3, 4, 2)))
        assert attention(query[..., :0, :], key, value, **options).shape == (2, 3, 0, 2)
        assert attention(query[:0], key[:0], value[:0], **options).shape == (0, 3, 4, 2)
        assert attention(query[:, :0], key[:, :0], value[:, :0], **options).shape == (2, 0, 4, 2)
        assert attention(query, key, value[..., :0], **options).shape == (2, 3, 4, 0)
        one = attention(query[..., :1, :], key[..., :1, :], value[..., :1, :], **options)
        np.testing.assert_array_equal(one, value[..., :1, :])
    given = attention(query[..., :0], key[..., :0], value)  # heads of size 0: all scores are equal
    np.testing.assert_allclose(given, np.broadcast_to(value.mean(-2, keepdims=True), given.shape), rtol=1e-13)


def test_E1_a_pad_of_zero_cuts_nothing_off(room):
    """x[:, :, :-0] is empty: nothing to pad, nothing to drop and nothing to append must leave everything there.

    daydreamlive/scope#117.
    """
    query, key, value = draw((2, 1), L=3, S=3, E=2)
    padding = masks.padding(np.array([[3], [0]]), 3)  # (2, 1, 1, 3): no padding, and nothing else
    given = room.attention(query, key, value, mask=padding)
    np.testing.assert_allclose(given[0], oracle.attention(query[0], key[0], value[0])[0], rtol=0, atol=1e-14)
    assert (given[1] == 0).all()
    for window in (None, 0, 2):
        store = room.cache(2, 1, 3, 2, window=window)
        room.append(store, key, value)  # exactly full, so nothing has to be dropped
        assert list(store.lengths) == [3, 3]
        held_key, held_value, _ = room.append(store, key[:, :, :0], value[:, :, :0])  # and nothing more
        kept = 3 if window is None else window
        np.testing.assert_array_equal(held_key, key[:, :, 3 - kept :])
        np.testing.assert_array_equal(held_value, value[:, :, 3 - kept :])
    x = draw((), L=3, E=4)[0]
    np.testing.assert_array_equal(room.rotary(x, np.arange(3), rotary_dim=0), x)
    turned = room.rotary(x, np.arange(3), rotary_dim=4)
    assert turned.shape == x.shape
    assert not np.allclose(turned[1:], x[1:])


def test_E2_wrong_dtypes_are_named(attention):
    """Integers, mixed precision, and a mask or bias of another dtype are refused by name, not converted.

    jax-ml/jax#34114, jax-ml/jax#32242.
    """
    query, key, value = draw((), dtype="float32")
    text = raised(TypeError, attention, *(x.astype(int) for x in (query, key, value)))
    assert "query must be floating" in text
    assert "int64" in text
    text = raised(TypeError, attention, query, key.astype(float), value)
    assert "query float32, key float64, value float32" in text
    text = raised(TypeError, attention, query, key, value, mask=np.zeros((4, 5)))
    assert "mask must be boolean" in text
    assert "float64" in text
    text = raised(TypeError, attention, query, key, value, bias=np.zeros((4, 5)))
    assert text == "bias must have query's dtype float32, got float64"


def test_E2_a_single_precision_bias_beside_bfloat16(backend):
    """Refused too, so that no kernel meets it and makes NaN of its gradient.

    jax-ml/jax#32242.
    """
    x = torch.zeros(2, 3, dtype=torch.bfloat16)
    text = raised(TypeError, fast.attention, x, x, x, bias=torch.zeros(2, 2), backend=backend)
    assert text == "bias must have query's dtype bfloat16, got float32"
