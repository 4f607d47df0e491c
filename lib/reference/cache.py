"""A key/value cache of NumPy arrays. Where each token goes is in lib.cache, for both frameworks."""

from functools import partial
from typing import Any

import numpy as np

from lib import arguments, cache

__all__ = ["KVCache"]


class KVCache(cache.KVCache):
    """Keep the keys and values of all tokens so far, in memory that is allocated once.

    Append a whole prompt, chunks of it, or one token at a time, with rows of equal or different lengths. Each time,
    ``attention(query, held.key, held.value, causal=True, **held.options)`` gives these queries' rows of a pass over
    the whole sequence.

    Parameters
    ----------
    batch, num_kv_heads, capacity, E : int ≥ 1
        B, G, the number of slots in each row, and the size of a key.
    Ev : int ≥ 1
        The size of a value, E unless given.
    dtype : floating dtype
        float64 unless given.
    window : int ≥ 0
        How many tokens before itself a query may reach: ``window=(window, 0)`` of a full pass. A full row then drops
        what is out of reach instead of raising. The keys are moved once for every capacity − window tokens, so a
        capacity of twice the window moves each key about once; a chunk may have up to capacity − window tokens.

    Raises
    ------
    TypeError, ValueError
        If a size is no positive integer, ``dtype`` is not floating, or ``capacity`` is not above ``window``.

    Notes
    -----
    Positions count all tokens seen, so rotary keys keep their angles when others are dropped. Memory: B · G ·
    capacity · (E + Ev) numbers, all at the start; ``nbytes`` says how many bytes.

    Examples
    --------
    Two tokens, then a third. Its query may read all three, and stands at position 2:

    >>> store = KVCache(batch=1, num_kv_heads=1, capacity=4, E=1)
    >>> _ = store.append(np.zeros((1, 1, 2, 1)), np.array([[[[2.0], [8.0]]]]))
    >>> store.positions(1)
    array([[2]])
    >>> held = store.append(np.zeros((1, 1, 1, 1)), np.array([[[[5.0]]]]))
    >>> held.value[0, 0, :, 0], held.offset
    (array([2., 8., 5.]), 2)
    >>> store.nbytes  # 1 · 1 · 4 · (1 + 1) numbers of 8 bytes
    64
    """

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        capacity: int,
        E: int,
        Ev: int | None = None,
        *,
        dtype: Any = np.float64,
        window: int | None = None,
    ) -> None:
        """Allocate the cache, all of it zero."""
        if np.dtype(dtype).name not in arguments.FLOATS:
            raise TypeError(f"dtype must be floating, got {np.dtype(dtype).name}")
        super().__init__(batch, num_kv_heads, capacity, E, Ev, window, partial(np.zeros, dtype=dtype))
