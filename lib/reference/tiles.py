"""Cutting an attention problem into tiles: some queries of one head against some of its keys.

A tile is an attention problem of its own, whose first query stands at another offset from its first key. Its mask is
made from positions, and a tile that nobody may see is never made.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from lib import arguments
from lib.reference.attention import allowed_pairs

EVEN = 32  # keys without a mask come in multiples of it, where others follow
MOST_EDGES = 4  # masks of tiles that are kept: a diagonal has one or two, a window's two sides as many


class Heads(NamedTuple):
    """Attention problems that are computed together: some heads of one batch entry. Or one, without the axis H."""

    query: Float[np.ndarray, "*H L E"]
    key: Float[np.ndarray, "*H S E"]
    value: Float[np.ndarray, "*H S Ev"]
    mask: Bool[np.ndarray, "*H L S"] | None  # views: broadcasting copies nothing
    bias: Float[np.ndarray, "*H L S"] | None
    offset: int  # the position of the first query among the keys

    def head(self, h: int) -> "Heads":
        """Give one of them."""
        mask, bias = (None if x is None else x[h] for x in (self.mask, self.bias))
        return Heads(self.query[h], self.key[h], self.value[h], mask, bias, self.offset)


class Tile(NamedTuple):
    """Some queries of a head, or of several, against some of its keys."""

    key: Float[np.ndarray, "*H S E"]
    value: Float[np.ndarray, "*H S Ev"]
    allowed: Bool[np.ndarray, "*H L S"] | None  # None: every query may see every key; without H: the same for all
    bias: Float[np.ndarray, "*H L S"] | None
    limit: Float[np.ndarray, "*H S L"] | None  # what a weight can be: 0 where hidden, else the dtype's largest number
    counts: Int[np.ndarray, "*H L"] | None  # how many keys each query may see, where something is hidden


class Seen(NamedTuple):
    """Who may see whom in a tile, as a tile has it; None throughout where nothing is hidden."""

    allowed: Bool[np.ndarray, "*H L S"] | None
    limit: Float[np.ndarray, "*H S L"] | None
    counts: Int[np.ndarray, "*H L"] | None

    @classmethod
    def of(cls, allowed: Bool[np.ndarray, "*H L S"], dtype: np.dtype) -> "Seen":
        """Derive limits and counts."""
        return cls(allowed, np.multiply(allowed.mT, np.finfo(dtype).max, dtype=dtype, order="C"), allowed.sum(-1))


def stacks(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray | None, bias: np.ndarray | None,
    call: arguments.Call, most: int,
) -> Iterator[tuple[tuple[int | slice, ...], Heads]]:  # fmt: skip
    """Give all heads, up to ``most`` at a time, and their places among the leading axes: nothing is copied or repeated.

    Heads are taken together that follow one another on the last leading axis; with grouped heads those that share a
    key head; and none where each has an offset of its own.
    """
    batch = call.batch or (1,)
    shared = (*batch[:-1], batch[-1] // call.repeats)
    query = np.broadcast_to(query, (*batch, call.L, call.E))
    key = np.broadcast_to(key, (*shared, call.S, call.E))
    value = np.broadcast_to(value, (*shared, call.S, call.Ev))
    mask, bias = (None if x is None else np.broadcast_to(x, (*batch, call.L, call.S)) for x in (mask, bias))
    offset = np.broadcast_to(call.offset, (*batch, 1))
    if offset.strides[-2] != 0 and batch[-1] > 1:
        most = 1
    group = call.repeats if call.repeats > 1 else batch[-1]
    starts = [start for first in range(0, batch[-1], group) for start in range(first, first + group, most)]
    for *index, _ in np.ndindex(*batch[:-1], 1):
        for start in starts:
            place = *index, slice(start, min(start + most, (start // group + 1) * group))
            if call.repeats > 1:
                size, one = len(query[place]), (*index, start // call.repeats)
                pairs = [np.broadcast_to(x[one], (size, *x.shape[-2:])) for x in (key, value)]
            else:
                pairs = [key[place], value[place]]
            restrictions = [None if x is None else x[place] for x in (mask, bias)]
            yield place, Heads(query[place], *pairs, *restrictions, int(offset[*index, start, 0]))


class Tiler:
    """Makes the tiles of a call. Each thread has its own: it keeps the masks that many tiles share."""

    def __init__(self, call: arguments.Call, block_k: int, dtype: np.dtype) -> None:
        """Cut keys into blocks of at most ``block_k``."""
        self.call, self.block_k, self.dtype = call, block_k, dtype
        self._edges: dict[tuple[int, int, int], Seen] = {}

    def tiles(self, head: Heads, rows: slice) -> Iterator[Tile]:
        """Cut a block of queries into tiles of keys, without those that nobody may see."""
        for keys, all_see_all in key_blocks(head.offset, rows, self.call, self.block_k):
            key, value = head.key[..., keys, :], head.value[..., keys, :]
            bias = None if head.bias is None else head.bias[..., rows, keys]
            mask = None if head.mask is None else head.mask[..., rows, keys]
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
        alike = mask is None and bias is None
        if alike and (*shape, offset) in self._edges:
            return self._edges[*shape, offset]
        tile = self.call._replace(batch=(), L=shape[0], S=shape[1], offset=offset)
        if all_see_all:
            tile = tile._replace(causal=False, window=(None, None))
        allowed = allowed_pairs(tile, mask, bias)
        seen = Seen(None, None, None) if allowed.all() else Seen.of(allowed, self.dtype)
        if alike:
            if len(self._edges) == MOST_EDGES:
                self._edges.clear()
            self._edges[*shape, offset] = seen
        return seen


def key_blocks(offset: int, rows: slice, call: arguments.Call, block_k: int) -> Iterator[tuple[slice, bool]]:
    """Cut the keys that these queries may reach into blocks, and tell where causal and window hide nothing.

    The reach of one query is an interval that moves along with it. Keys before the block's left-most interval and
    after its right-most one are skipped; what all intervals share needs no mask, and is cut to a length that products
    are fast with.
    """
    first, last = offset + rows.start, offset + rows.stop - 1  # positions of the block's first and last query
    left, right = call.window
    right = 0 if call.causal else right  # causal is a window with nothing on the right
    reached = (0 if left is None else first - left), (call.S if right is None else last + right + 1)
    shared = (0 if left is None else last - left), (call.S if right is None else first + right + 1)
    begin, end = (min(max(edge, 0), call.S) for edge in reached)
    shared_begin, shared_end = (min(max(edge, begin), end) for edge in shared)
    shared_end -= (shared_end - shared_begin) % EVEN if shared_end < end else 0
    if shared_end - shared_begin < rows.stop - rows.start:  # too little to be worth a tile of its own
        shared_begin = shared_end = end
    for start, stop, all_see_all in (
        (begin, shared_begin, False), (shared_begin, shared_end, True), (shared_end, end, False)
    ):  # fmt: skip
        for k in range(start, stop, block_k):
            yield slice(k, min(k + block_k, stop)), all_see_all
