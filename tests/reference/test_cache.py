"""The cache of arrays: what comes out equals a pass over the whole sequence, and memory never grows."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.reference import KVCache, attention, rotary

QUICK = settings(derandomize=True, deadline=None, max_examples=60)
H, G, E, EV = 4, 2, 6, 3


def sequences(B, T, seed=0):
    """Return query, key and value of B sequences of T tokens."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(B, n, T, size)) for n, size in ((H, E), (G, E), (G, EV))]


def whole(query, key, value, window=None, positions=None):
    """Compute the full pass, with rotary positions."""
    positions = np.arange(query.shape[-2]) if positions is None else positions
    query, key = rotary(query, positions), rotary(key, positions)
    reach = None if window is None else (window, 0)
    return attention(query, key, value, causal=True, window=reach, enable_gqa=True)


def through(store, query, key, value, lengths=None):
    """Append the tokens and compute their outputs, with positions from the cache."""
    positions = store.positions(query.shape[-2])
    held = store.append(rotary(key, positions), value, lengths)
    return attention(rotary(query, positions), held.key, held.value, causal=True, enable_gqa=True, **held.options)


def in_chunks(store, query, key, value, chunks):
    assert sum(chunks) == query.shape[-2]
    outputs, start = [], 0
    for n in chunks:
        outputs.append(through(store, *(x[:, :, start : start + n] for x in (query, key, value))))
        start += n
    return np.concatenate(outputs, axis=-2)


@pytest.mark.parametrize("chunks", [(7,), (3, 3, 1), (1,) * 7, (4, 1, 1, 1), (1, 6), (0, 7, 0)], ids=str)  # K1, K2
@pytest.mark.parametrize("window", [None, 0, 1, 2, 100])
@pytest.mark.parametrize("B", [1, 2])
def test_any_chunks_equal_the_full_pass(chunks, window, B):
    tokens = sequences(B, 7)
    store = KVCache(B, G, 7 if window is None or window < 7 else 108, E, EV, window=window)
    np.testing.assert_allclose(in_chunks(store, *tokens, chunks), whole(*tokens, window), atol=1e-13)
    assert store.lengths.tolist() == [7] * B


@pytest.mark.parametrize(
    "window, capacity, chunks", [(3, 4, (1,) * 40), (3, 8, (5, 5, 1, 4, 5, 1, 1, 3, 5, 5, 5)), (0, 1, (1,) * 40)]
)
def test_a_window_lets_sequences_grow_in_bounded_memory(window, capacity, chunks):
    tokens = sequences(2, 40)
    store = KVCache(2, G, capacity, E, EV, window=window)
    before = store.nbytes
    np.testing.assert_allclose(in_chunks(store, *tokens, chunks), whole(*tokens, window), atol=1e-13)
    assert store.nbytes == before == 2 * G * capacity * (E + EV) * 8
    assert store.lengths.tolist() == [40, 40]


@QUICK
@given(st.data())
def test_rows_of_different_lengths_equal_their_own_full_pass(data):
    """Rows come in chunks with padding at their ends; each real query gets what it gets alone."""
    B = data.draw(st.integers(1, 3))
    window = data.draw(st.none() | st.integers(0, 4))
    plan = data.draw(st.lists(st.lists(st.integers(0, 4), min_size=B, max_size=B), max_size=6))
    capacity = 24 if window is None else data.draw(st.integers(window + 4, window + 9))
    store = KVCache(B, G, capacity, E, EV, window=window)
    rng = np.random.default_rng(0)
    seen = [[], [], [], []]  # query, key, value and output of each append, with its counts
    for counts in plan:
        L = data.draw(st.integers(max(counts), 4))
        tokens = [rng.normal(size=(B, n, L, size)) for n, size in ((H, E), (G, E), (G, EV))]
        output = through(store, *tokens, np.array(counts))
        assert np.isfinite(output).all()
        for kept, x in zip(seen, (*tokens, output), strict=True):
            kept.append([x[b, :, :n] for b, n in enumerate(counts)])
    assert store.lengths.tolist() == [sum(counts[b] for counts in plan) for b in range(B)]
    for b in range(B if plan else 0):
        query, key, value, output = (np.concatenate([chunk[b] for chunk in kept], -2) for kept in seen)
        np.testing.assert_allclose(output, whole(query, key, value, window), atol=1e-12)


def test_ragged_prefill_then_steps():
    tokens, lengths = sequences(3, 9), np.array([2, 5, 3])
    store = KVCache(3, G, 9, E, EV)
    outputs = [through(store, *(x[:, :, :5] for x in tokens), lengths)]
    for step in range(3):
        index = (lengths + step)[:, None, None, None]
        outputs.append(through(store, *(np.take_along_axis(x, index, axis=2) for x in tokens)))
    assert store.lengths.tolist() == [5, 8, 6]
    for b, n in enumerate(lengths):
        wanted = whole(*(x[b, :, : n + 3] for x in tokens))
        np.testing.assert_allclose(outputs[0][b, :, :n], wanted[:, :n], atol=1e-13)
        for step in range(3):
            np.testing.assert_allclose(outputs[1 + step][b, :, 0], wanted[:, n + step], atol=1e-13)


def test_what_is_held_for_equal_rows_and_for_ragged_ones():
    key = np.zeros((2, 1, 3, 1))
    store = KVCache(2, 1, 8, 1)
    held = store.append(key, key)
    assert held.options == {"offset": 0, "mask": None, "window": None}
    assert np.shares_memory(held.key, store.append(key[:, :, :1], key[:, :, :1]).key)  # a view, nothing is copied
    held = store.append(key, key, [3, 1])
    assert (held.offset, held.key.shape, held.window) == (4, (2, 1, 7, 1), None)
    np.testing.assert_array_equal(held.mask[:, 0, 0].sum(-1), [7, 5])
    held = store.append(key[:, :, :1], key[:, :, :1])
    np.testing.assert_array_equal(held.offset, [7, 5])


def test_a_single_step_reads_its_window_only_and_needs_no_mask():
    x = np.arange(12.0).reshape(1, 1, 12, 1)
    store = KVCache(1, 1, 8, 1, window=2)
    for position in range(12):
        held = store.append(x[:, :, position : position + 1], x[:, :, position : position + 1])
        np.testing.assert_array_equal(held.value.ravel(), x.ravel()[max(0, position - 2) : position + 1])
        assert held.options == {"offset": min(position, 2), "mask": None, "window": None}


def test_a_chunk_with_a_window_says_so():
    x = np.zeros((1, 1, 4, 1))
    held = KVCache(1, 1, 8, 1, window=2).append(x, x)
    assert held.options == {"offset": 0, "mask": None, "window": (2, 0)}
    assert KVCache(1, 1, 8, 1, window=3).append(x, x).window is None  # all four lie within reach of the last


def test_positions_count_tokens_seen_not_tokens_held():
    x = np.zeros((2, 1, 1, 1))
    store = KVCache(2, 1, 3, 1, window=2)
    for _ in range(10):
        held = store.append(x, x)
    assert held.key.shape[2] == 3
    np.testing.assert_array_equal(store.positions(2), [[10, 11], [10, 11]])
    store.reset(0)
    np.testing.assert_array_equal(store.positions(1), [[0], [10]])


def snapshot(store):
    return store._key.tobytes(), store._value.tobytes(), store._seen.tobytes(), store._dropped.tobytes()


@pytest.mark.parametrize(
    "window, advice",
    [(None, "make a larger cache, or reset the row"), (1, "append at most capacity − window = 4 tokens at a time")],
)
def test_overflow_says_so_and_loses_nothing(window, advice):
    tokens = sequences(2, 9)
    store = KVCache(2, G, 5, E, EV, window=window)
    first = in_chunks(store, *(x[:, :, :4] for x in tokens), (2, 2))
    before = snapshot(store)
    too_many = 5 if window else 2
    with pytest.raises(ValueError, match=re.escape("the cache is full: row 1 keeps")) as error:
        store.append(*(np.ones((2, G, 5, size)) for size in (E, EV)), [0, too_many])
    kept = 1 if window else 4
    assert f"keeps {kept} tokens and {too_many} more would exceed capacity = 5; nothing was appended" in str(
        error.value
    )
    assert advice in str(error.value)
    assert snapshot(store) == before
    last = through(store, *(x[:, :, 4:5] for x in tokens))
    wanted = whole(*(x[:, :, :5] for x in tokens), window)
    np.testing.assert_allclose(np.concatenate([first, last], -2), wanted, atol=1e-13)


def test_reset_makes_a_new_cache_of_the_same_memory():
    tokens = sequences(2, 6)
    store, fresh = KVCache(2, G, 6, E, EV), KVCache(2, G, 6, E, EV)
    memory = store._key
    store.append(np.full((2, G, 6, E), np.nan), np.full((2, G, 6, EV), np.inf))
    store.reset()
    assert snapshot(store) == snapshot(fresh)
    assert store._key is memory
    np.testing.assert_array_equal(in_chunks(store, *tokens, (3, 3)), in_chunks(fresh, *tokens, (3, 3)))


class Distant:
    """Numbers that can only be listed, as those of a tensor on another device."""

    def __init__(self, numbers):
        self.numbers = numbers

    def tolist(self):
        return self.numbers

    def __repr__(self):
        return f"Distant({self.numbers})"


def test_lengths_that_can_only_be_listed():
    store, x = KVCache(2, 1, 4, 1), np.zeros((2, 1, 3, 1))
    store.append(x, x, Distant([1, 3]))
    assert store.lengths.tolist() == [1, 3]


def test_nothing_is_moved_before_a_row_would_overflow(monkeypatch):
    store, x, moved = KVCache(1, 1, 4, 1, window=1), np.arange(8.0).reshape(1, 1, 8, 1), []
    monkeypatch.setattr(store, "_movable", lambda slots: moved.append(slots.ravel().tolist()) or slots)
    for count, wanted in ((3, []), (1, []), (1, [[3], [3]])):  # full, and then one too many: one of key, one of value
        seen = int(store.lengths[0])
        store.append(*[x[:, :, seen : seen + count]] * 2)
        assert moved == wanted


@pytest.mark.parametrize("rows", [1, [1], (1,), np.array([1]), np.array(1), np.int64(1), Distant([1])], ids=str)
def test_reset_of_one_row_leaves_the_others(rows):
    tokens = sequences(2, 8)
    store = KVCache(2, G, 6, E, EV)
    in_chunks(store, *(x[:, :, :4] for x in tokens), (4,))
    store.reset(rows)
    assert store.lengths.tolist() == [4, 0]
    output = through(store, *(x[:, :, 4:6] for x in tokens))
    np.testing.assert_allclose(output[0], whole(*(x[0, :, :6] for x in tokens))[:, 4:], atol=1e-13)
    np.testing.assert_allclose(output[1], whole(*(x[1, :, 4:6] for x in tokens)), atol=1e-13)
    store.reset([])
    assert store.lengths.tolist() == [6, 2]


def test_nothing_is_left_behind_in_free_slots():
    """Slots that hold nothing are zero, so that a dropped NaN or the padding of a row can never leak."""
    x = np.full((2, 1, 3, 1), np.nan)
    store = KVCache(2, 1, 6, 1, window=2)
    store.append(x, x, [3, 1])
    assert np.isnan(store._key).sum() == 4
    for _ in range(6):
        store.append(np.ones((2, 1, 2, 1)), np.ones((2, 1, 2, 1)), [2, 1])
    assert not np.isnan(store._key).any()
    for row, held in enumerate(store._seen - store._dropped):
        assert (store._key[row, :, held:] == 0).all()


def test_the_cache_copies_what_it_is_given():
    x = np.ones((1, 1, 1, 1))
    store = KVCache(1, 1, 2, 1)
    held = store.append(x, x)
    x[:] = 7
    assert held.key.item() == held.value.item() == 1
    lengths = store.lengths
    lengths[:] = 99
    assert store.lengths.tolist() == [1]


@pytest.mark.parametrize("dtype, size", [(np.float16, 2), (np.float32, 4), (np.float64, 8), ("float32", 4)])
@pytest.mark.parametrize("Ev", [None, 5])
def test_bytes_are_those_of_the_formula(dtype, size, Ev):
    store = KVCache(3, 2, 7, 4, Ev, dtype=dtype)
    assert store.nbytes == 3 * 2 * 7 * (4 + (Ev or 4)) * size
    assert store.nbytes == sum(array.nbytes for array in (store._key, store._value))
    key, value = np.ones((3, 2, 1, 4), dtype), np.ones((3, 2, 1, Ev or 4), dtype)
    assert store.append(key, value).value.dtype == np.dtype(dtype)


def test_half_the_key_value_heads_take_half_the_bytes():
    assert 2 * KVCache(1, 2, 8, 4).nbytes == KVCache(1, 4, 8, 4).nbytes


KEY = np.zeros((2, 1, 3, 4))


def append(key=KEY, value=KEY, lengths=None, **options):
    KVCache(2, 1, 8, 4, **options).append(key, value, lengths)


@pytest.mark.parametrize(
    "kind, wrong, text",
    [
        (ValueError, lambda: KVCache(0, 1, 8, 4), "batch must be 1 or more, got 0"),
        (ValueError, lambda: KVCache(1, 0, 8, 4), "num_kv_heads must be 1 or more, got 0"),
        (ValueError, lambda: KVCache(1, 1, 0, 4), "capacity must be 1 or more, got 0"),
        (TypeError, lambda: KVCache(1, 1, 8, 4.0), "E must be an integer, got 4.0 (float)"),
        (ValueError, lambda: KVCache(1, 1, 8, 4, 0), "Ev must be 1 or more, got 0"),
        (ValueError, lambda: KVCache(1, 1, 8, 4, window=-1), "window must be 0 or more, got -1"),
        (TypeError, lambda: KVCache(1, 1, 8, 4, window=(3, 0)), "window must be an integer, got (3, 0) (tuple)"),
        (ValueError, lambda: KVCache(1, 1, 3, 4, window=3), "capacity must be at least window + 1 = 4"),
        (TypeError, lambda: KVCache(1, 1, 8, 4, dtype=int), "dtype must be floating, got int64"),
        (TypeError, lambda: append(key=[1.0]), "key must be a numpy.ndarray, got list"),
        (
            TypeError,
            lambda: append(value=KEY.astype(np.float32)),
            "value must have the cache's dtype float64, got float32",
        ),
        (ValueError, lambda: append(key=KEY[0]), "key must have shape (B, G, L, E) = (2, 1, L, 4), got (1, 3, 4)"),
        (ValueError, lambda: append(key=KEY[:1]), "key must have shape (B, G, L, E) = (2, 1, L, 4), got (1, 1, 3, 4)"),
        (ValueError, lambda: append(Ev=2), "value must have shape (B, G, L, Ev) = (2, 1, L, 2), got (2, 1, 3, 4)"),
        (ValueError, lambda: append(value=KEY[:, :, :2]), "value must hold as many tokens as key, 3, got 2"),
        (TypeError, lambda: append(lengths=[1.0, 2.0]), "lengths must hold integers, got float64"),
        (TypeError, lambda: append(lengths=[True, False]), "lengths must hold integers, got bool"),
        (ValueError, lambda: append(lengths=[1]), "lengths must have shape (B,) = (2,), got (1,)"),
        (ValueError, lambda: append(lengths=3), "lengths must have shape (B,) = (2,), got ()"),
        (ValueError, lambda: append(lengths=[4, 0]), "lengths must lie between 0 and L = 3, got [4, 0]"),
        (ValueError, lambda: append(lengths=[-1, 0]), "lengths must lie between 0 and L = 3, got [-1, 0]"),
        (ValueError, lambda: KVCache(2, 1, 8, 4).reset(2), "rows must lie between 0 and 1, got 2"),
        (ValueError, lambda: KVCache(2, 1, 8, 4).reset([0, -1]), "rows must lie between 0 and 1, got [0, -1]"),
        (TypeError, lambda: KVCache(2, 1, 8, 4).reset(0.5), "rows must be an integer, got 0.5 (float)"),
        (ValueError, lambda: KVCache(2, 1, 8, 4).positions(-1), "count must be 0 or more, got -1"),
    ],
)
def test_errors_name_the_argument(kind, wrong, text):
    with pytest.raises(kind, match=re.escape(text)):
        wrong()


def test_a_refused_append_or_reset_changes_nothing():
    store = KVCache(2, 1, 4, 4)
    store.append(KEY, KEY)
    before = snapshot(store)
    attempts = [
        lambda: store.append(KEY, KEY),
        lambda: store.append(KEY, KEY[:, :, :2]),
        lambda: store.append(KEY[:, :, :1], KEY[:, :, :1].astype(np.float32)),
        lambda: store.append(KEY, KEY, [9, 9]),
        lambda: store.reset([0, 5]),
    ]
    for attempt in attempts:
        with pytest.raises((TypeError, ValueError)):
            attempt()
        assert snapshot(store) == before
