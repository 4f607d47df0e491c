"""The cache of tensors: equal to a pass over the whole sequence and to the cache of arrays, with no step holding on
to the one before."""

import gc
import re
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import reference
from lib.fast import KVCache, attention, rotary

QUICK = settings(derandomize=True, deadline=None, max_examples=60)
H, G, E, EV = 4, 2, 6, 3
F64 = {"dtype": torch.float64}


def sequences(B, T, seed=0):
    """Return query, key and value of B sequences of T tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(B, n, T, size, generator=generator, **F64) for n, size in ((H, E), (G, E), (G, EV))]


def whole(query, key, value, window=None):
    positions = torch.arange(query.shape[-2])
    reach = None if window is None else (window, 0)
    return attention(
        rotary(query, positions), rotary(key, positions), value, causal=True, window=reach, enable_gqa=True
    )


def through(store, query, key, value, lengths=None, backend="auto"):
    positions = store.positions(query.shape[-2])
    held = store.append(rotary(key, positions), value, lengths)
    options = {"causal": True, "enable_gqa": True, "backend": backend, **held.options}
    return attention(rotary(query, positions), held.key, held.value, **options)


def in_chunks(store, tokens, chunks, **options):
    parts = zip(*(x.split(chunks, dim=2) for x in tokens), strict=True)
    return torch.cat([through(store, *part, **options) for part in parts], 2)


@pytest.mark.parametrize("chunks", [(7,), (3, 3, 1), (1,) * 7, (4, 1, 1, 1)], ids=str)  # K1, K2
@pytest.mark.parametrize("window", [None, 0, 2, 100])
@pytest.mark.parametrize("backend", ["auto", "sdpa", "math"])
def test_any_chunks_equal_the_full_pass(chunks, window, backend):
    tokens = sequences(2, 7)
    store = KVCache(2, G, 7 if window is None or window < 7 else 108, E, EV, window=window, **F64)
    output = in_chunks(store, tokens, chunks, backend=backend)
    torch.testing.assert_close(output, whole(*tokens, window), atol=1e-13, rtol=0)


@pytest.mark.parametrize("capacity, chunks", [(4, (1,) * 40), (8, (5, 5, 1, 4, 5, 1, 1, 3, 5, 5, 5))])
def test_a_window_lets_sequences_grow_in_bounded_memory(capacity, chunks):
    tokens = sequences(2, 40)
    store = KVCache(2, G, capacity, E, EV, window=3, **F64)
    memory = store._key.data_ptr(), store._value.data_ptr(), store.nbytes
    torch.testing.assert_close(in_chunks(store, tokens, chunks), whole(*tokens, 3), atol=1e-13, rtol=0)
    assert memory == (store._key.data_ptr(), store._value.data_ptr(), 2 * G * capacity * (E + EV) * 8)


@QUICK
@given(st.data())
def test_equals_the_cache_of_arrays(data):
    """The same appends and resets give the same views, masks and offsets."""
    B = data.draw(st.integers(1, 3))
    window = data.draw(st.none() | st.integers(0, 4))
    capacity = 24 if window is None else data.draw(st.integers(window + 4, window + 9))
    ours, theirs = KVCache(B, 1, capacity, 2, **F64, window=window), reference.KVCache(B, 1, capacity, 2, window=window)
    rng = np.random.default_rng(0)
    for counts in data.draw(st.lists(st.lists(st.integers(0, 4), min_size=B, max_size=B), max_size=6)):
        if data.draw(st.integers(0, 5)) == 0:
            row = data.draw(st.none() | st.integers(0, B - 1))
            ours.reset(row)
            theirs.reset(row)
        L = data.draw(st.integers(max(counts), 4))
        key, value = rng.normal(size=(2, B, 1, L, 2))
        held, wanted = ours.append(torch.tensor(key), torch.tensor(value), counts), theirs.append(key, value, counts)
        assert type(held.offset) is int or held.offset.dtype == torch.int64
        for part, array in zip(held, wanted, strict=True):
            assert (part is None) == (array is None)
            if array is not None:
                np.testing.assert_array_equal(part, array)
        np.testing.assert_array_equal(ours.positions(2), theirs.positions(2))
        np.testing.assert_array_equal(ours.lengths, theirs.lengths)


def test_ragged_rows_equal_their_own_full_pass():
    tokens, lengths = sequences(2, 6), torch.tensor([2, 5])
    store = KVCache(2, G, 6, E, EV, **F64)
    first = through(store, *(x[:, :, :5] for x in tokens), lengths)
    step = [torch.stack([x[0, :, 2:3], x[1, :, 5:6]]) for x in tokens]
    second = through(store, *step)
    for b, n in enumerate(lengths.tolist()):
        wanted = whole(*(x[b, :, : n + 1] for x in tokens))
        torch.testing.assert_close(torch.cat([first[b, :, :n], second[b]], 1), wanted, atol=1e-13, rtol=0)
    assert first.isfinite().all()


def test_overflow_loses_nothing():
    store = KVCache(1, 1, 2, 1)
    store.append(torch.ones(1, 1, 2, 1), torch.ones(1, 1, 2, 1))
    with pytest.raises(
        ValueError, match="the cache is full: row 0 keeps 2 tokens and 1 more would exceed capacity = 2"
    ):
        store.append(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))
    assert store.lengths.tolist() == [2]
    assert (store._key == 1).all() and (store._value == 1).all()


def test_reset_forgets_nan():
    store = KVCache(2, 1, 3, 1, **F64)
    nan = torch.full((2, 1, 3, 1), torch.nan, **F64)
    store.append(nan, nan)
    store.reset(1)
    assert store.lengths.tolist() == [3, 0]
    assert (store._key[1] == 0).all() and store._key[0].isnan().all()


@pytest.mark.parametrize("lengths", [None, [1, 2]])
def test_gradients_stop_at_the_cache(lengths):
    store = KVCache(2, 1, 8, 1, **F64)
    key = torch.ones(2, 1, 2, 1, **F64, requires_grad=True)
    for _ in range(3):
        held = store.append(key * 2, key * 3, lengths)
    assert not held.key.requires_grad and not store._key.requires_grad
    query = torch.ones(2, 1, 2, 1, **F64, requires_grad=True)
    attention(query, held.key, held.value, causal=True, **held.options).sum().backward()
    assert query.grad is not None and key.grad is None


def test_no_step_holds_on_to_an_earlier_one():
    """What was appended can be freed, and the views share the memory that was allocated at the start."""
    store = KVCache(1, 1, 300, 4, window=100)
    storage = store._key.untyped_storage().data_ptr()
    alive = []
    for _ in range(400):
        key = torch.randn(1, 1, 1, 4, requires_grad=True) * 2
        held = store.append(key, key)
        assert held.key.untyped_storage().data_ptr() == storage
        alive.append(weakref.ref(key))
    del key, held
    gc.collect()
    assert not any(ref() is not None for ref in alive)


@pytest.mark.parametrize("dtype, size", [(torch.float16, 2), (torch.bfloat16, 2), (torch.float32, 4), (None, 4)])
def test_bytes_are_those_of_the_formula(dtype, size):
    store = KVCache(3, 2, 7, 4, 5, dtype=dtype)
    assert store.nbytes == 3 * 2 * 7 * (4 + 5) * size
    assert store.nbytes == store._key.untyped_storage().nbytes() + store._value.untyped_storage().nbytes()
    assert store._key.dtype == (dtype or torch.float32)


@pytest.mark.parametrize("lengths", [None, [1, 1], torch.tensor([1, 1])], ids=["none", "list", "tensor"])
def test_works_in_inference_mode(lengths):
    with torch.inference_mode():
        store = KVCache(2, 1, 2, 1)
        held = store.append(torch.ones(2, 1, 1, 1), torch.ones(2, 1, 1, 1), lengths)
    assert held.value.sum() == 2


def test_everything_is_on_the_device_asked_for():
    store = KVCache(2, 1, 8, 4, device="meta")
    assert store._key.device.type == store._value.device.type == store._integers(np.arange(2)).device.type == "meta"


KEY = torch.zeros(2, 1, 3, 4)


@pytest.mark.parametrize(
    "kind, wrong, text",
    [
        (TypeError, lambda: KVCache(2, 1, 8, 4, dtype=torch.int64), "dtype must be floating, got torch.int64"),
        (ValueError, lambda: KVCache(2, 1, 3, 4, window=3), "capacity must be at least window + 1 = 4"),
        (
            TypeError,
            lambda: KVCache(2, 1, 8, 4).append(KEY.numpy(), KEY),
            "key must be a torch.Tensor, got numpy.ndarray",
        ),
        (
            TypeError,
            lambda: KVCache(2, 1, 8, 4).append(KEY, KEY.half()),
            "value must have the cache's dtype float32, got",
        ),
        (
            ValueError,
            lambda: KVCache(2, 1, 8, 4).append(KEY.to("meta"), KEY),
            "key must be on the cache's device cpu, got meta",
        ),
        (
            ValueError,
            lambda: KVCache(2, 1, 8, 4).append(KEY[:1], KEY),
            "key must have shape (B, G, L, E) = (2, 1, L, 4)",
        ),
        (ValueError, lambda: KVCache(2, 1, 8, 4).append(KEY, KEY, [4, 0]), "lengths must lie between 0 and L = 3"),
    ],
)
def test_errors_name_the_argument(kind, wrong, text):
    with pytest.raises(kind, match=re.escape(text)):
        wrong()
