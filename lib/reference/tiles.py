"""Cutting an attention problem into tiles: some queries of one head against some of its keys.

A tile is an attention problem of its own, whose first query stands at another offset from its first key. Its mask is
made from positions, and a tile that nobody may see is never made.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from lib import arguments
from lib.reference.attention import allowed_pairs

MOST_EDGES = 4  # masks of tiles that are kept: a diagonal has one or two, a window's two sides as many


class Head(NamedTuple):
    """One attention problem without leading axes: what one head of one batch entry works on."""

    query: Float[np.ndarray, "L E"]
    key: Float[np.ndarray, "S E"]
    value: Float[np.ndarray, "S Ev"]
    mask: Bool[np.ndarray, "L S"] | None  # views: broadcasting copies nothing
    bias: Float[np.ndarray, "L S"] | None
    offset: int  # the position of the first query among the keys


class Tile(NamedTuple):
    """Some queries of a head against some of its keys."""

    key: Float[np.ndarray, "S E"]
    value: Float[np.ndarray, "S Ev"]
    allowed: Bool[np.ndarray, "L S"] | None  # None: every query may see every key
    bias: Float[np.ndarray, "L S"] | None
    limit: Float[np.ndarray, "S L"] | None  # what a weight can be: 0 where hidden, else the dtype's largest number
    counts: Int[np.ndarray, " L"] | None  # how many keys each query may see, where something is hidden


class Seen(NamedTuple):
    """Who may see whom in a tile, as a tile has it; None throughout where nothing is hidden."""

    allowed: Bool[np.ndarray, "L S"] | None
    limit: Float[np.ndarray, "S L"] | None
    counts: Int[np.ndarray, " L"] | None

    @classmethod
    def of(cls, allowed: Bool[np.ndarray, "L S"], dtype: np.dtype) -> "Seen":
        """Derive limits and counts."""
        return cls(allowed, np.multiply(allowed.T, np.finfo(dtype).max, dtype=dtype, order="C"), allowed.sum(-1))


def heads(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray | None, bias: np.ndarray | None,
    call: arguments.Call,
) -> Callable[[tuple[int, ...]], Head]:  # fmt: skip
    """Give the function that finds a head by its place among the leading axes: views, nothing is copied or repeated."""
    shared = (*call.batch[:-1], call.batch[-1] // call.repeats) if call.repeats > 1 else call.batch
    query = np.broadcast_to(query, (*call.batch, call.L, call.E))
    key = np.broadcast_to(key, (*shared, call.S, call.E))
    value = np.broadcast_to(value, (*shared, call.S, call.Ev))
    mask, bias = (None if x is None else np.broadcast_to(x, call.scores_shape) for x in (mask, bias))
    offset = np.broadcast_to(call.offset, (*call.batch, 1))

    def head(index: tuple[int, ...]) -> Head:
        group = (*index[:-1], index[-1] // call.repeats) if call.repeats > 1 else index
        mask_here, bias_here = (None if x is None else x[index] for x in (mask, bias))
        return Head(query[index], key[group], value[group], mask_here, bias_here, int(offset[index][0]))

    return head


class Tiler:
    """Makes the tiles of a call. Each thread has its own: it keeps the masks that many tiles share."""

    def __init__(self, call: arguments.Call, block_k: int, dtype: np.dtype) -> None:
        """Cut keys into blocks of at most ``block_k``."""
        self.call, self.block_k, self.dtype = call, block_k, dtype
        self._edges: dict[tuple[int, int, int], Seen] = {}

    def tiles(self, head: Head, rows: slice) -> Iterator[Tile]:
        """Cut a block of queries into tiles of keys, without those that nobody may see."""
        for keys, all_see_all in key_blocks(head.offset, rows, self.call, self.block_k):
            key, value = head.key[keys], head.value[keys]
            bias = None if head.bias is None else head.bias[rows, keys]
            mask = None if head.mask is None else head.mask[rows, keys]
            if all_see_all and mask is None and bias is None:
                yield Tile(key, value, None, None, None, None)
                continue
            seen = self._seen(head.offset + rows.start - keys.start, rows, keys, all_see_all, mask, bias)
            if seen.counts is None or seen.counts.any():
                yield Tile(key, value, seen.allowed, bias, seen.limit, seen.counts)

    def _seen(
        self, offset: int, rows: slice, keys: slice, all_see_all: bool, mask: np.ndarray | None, bias: np.ndarray | None
    ) -> "Seen":
        """Tell who may see whom in a tile."""
        shape = rows.stop - rows.start, keys.stop - keys.start
        tile = self.call._replace(batch=(), L=shape[0], S=shape[1], offset=offset)
        if all_see_all:
            tile = tile._replace(causal=False, window=(None, None))
        if mask is not None or bias is not None:
            allowed = allowed_pairs(tile, mask, bias)
            return Seen(None, None, None) if allowed.all() else Seen.of(allowed, self.dtype)
        if (*shape, offset) not in self._edges:
            if len(self._edges) == MOST_EDGES:
                self._edges.clear()
            self._edges[*shape, offset] = Seen.of(allowed_pairs(tile, None, None), self.dtype)
        return self._edges[*shape, offset]


def key_blocks(offset: int, rows: slice, call: arguments.Call, block_k: int) -> Iterator[tuple[slice, bool]]:
    """Cut the keys that these queries may reach into blocks, and tell where causal and window hide nothing.

    The reach of one query is an interval that moves along with it. Keys before the block's left-most interval and
    after its right-most one are skipped; what all intervals share needs no mask.
    """
    first, last = offset + rows.start, offset + rows.stop - 1  # positions of the block's first and last query
    left, right = call.window
    right = 0 if call.causal else right  # causal is a window with nothing on the right
    reached = (0 if left is None else first - left), (call.S if right is None else last + right + 1)
    shared = (0 if left is None else last - left), (call.S if right is None else first + right + 1)
    begin, end = (min(max(edge, 0), call.S) for edge in reached)
    shared_begin, shared_end = (min(max(edge, begin), end) for edge in shared)
    if shared_end - shared_begin < rows.stop - rows.start:  # too little to be worth a tile of its own
        shared_begin = shared_end = end
    for start, stop, all_see_all in (
        (begin, shared_begin, False), (shared_begin, shared_end, True), (shared_end, end, False)
    ):  # fmt: skip
        for k in range(start, stop, block_k):
            yield slice(k, min(k + block_k, stop)), all_see_all
