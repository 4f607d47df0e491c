"""Attention without the (L, S) matrix: tiles and an online softmax.

The textbook body needs a whole row of scores before it can share anything out. Here a row arrives in pieces. Three
numbers carry what is known so far: the largest score, the sum of the exponentials, and the values added up with the
same exponentials. A new tile may bring a larger score; then the old sums shrink by exp(old largest − new largest),
and nothing has to be computed again. :func:`one_pass` is that loop, and all of the idea.

Memory: one tile of scores, however long the sequence is. The mask of a tile is made from the tile's positions, and a
tile that nobody may see is never computed.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from lib import arguments
from lib.reference.attention import allowed_pairs, masked_scores, weighted_sum
from lib.reference.merging import saturating_sum


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
    allowed: Bool[np.ndarray, "L S"]
    bias: Float[np.ndarray, "L S"] | None


def streaming_attention(
    query: Float[np.ndarray, "*batch L E"],
    key: Float[np.ndarray, "*batch S E"],
    value: Float[np.ndarray, "*batch S Ev"],
    *,
    mask: Bool[np.ndarray, "*batch L S"] | None = None,
    bias: Float[np.ndarray, "*batch L S"] | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    offset: int | Int[np.ndarray, " B"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    block_q: int | None = None,
    block_k: int | None = None,
) -> Float[np.ndarray, "*batch L Ev"] | tuple[Float[np.ndarray, "*batch L Ev"], Float[np.ndarray, "*batch L"]]:
    """Compute :func:`lib.reference.attention` tile by tile, without ever holding an (L, S) array.

        m ← max(m, sⱼ),   l ← l · exp(m_old − m) + exp(sⱼ − m),   o ← o · exp(m_old − m) + exp(sⱼ − m) vⱼ,
        output = o / l,   lse = m + log l

    Parameters
    ----------
    query, key, value : (..., L, E), (..., S, E), (..., S, Ev), floating
    mask, bias, causal, window, offset, scale, softcap, enable_gqa
        As in :func:`lib.reference.attention`.
    return_lse : bool
        Also return the log-sum-exp of each row of scores, which :func:`lib.reference.merge` joins partial results by.
    block_q, block_k : int ≥ 1
        How many queries and how many keys a tile has at most. Any sizes give the same result up to rounding; the
        default fits a tile into a processor's cache.

    Returns
    -------
    output : (..., L, Ev), of query's dtype
    lse : (..., L), float32 for half precision, otherwise of query's dtype; only with ``return_lse``
        log Σ exp(score) over the keys that the query may see, natural logarithm, scores after scale, softcap and
        bias. −∞ for a query that may see nothing. It stops at the dtype's largest number.

    Raises
    ------
    TypeError, ValueError
        As in :func:`lib.reference.attention`; and if a block size is no integer of at least 1.

    Notes
    -----
    Hidden positions, empty rows and scores beyond the dtype's range are handled as in
    :func:`lib.reference.attention`. Rows that one pass cannot carry are computed again with two passes, in float64 at
    least: the first finds the log-sum-exp, the second has the final weights at hand as the textbook body does.

    References
    ----------
    Milakov and Gimelshein (2018), "Online normalizer calculation for softmax". Rabe and Staats (2021),
    "Self-attention Does Not Need O(n²) Memory". Dao et al. (2022), "FlashAttention", section 3.1.

    Examples
    --------
    Two equal scores, values 2 and 8, one key at a time. The log-sum-exp of two scores of 0 is log 2:

    >>> query, key, value = np.zeros((1, 1)), np.zeros((2, 1)), np.array([[2.0], [8.0]])
    >>> output, lse = streaming_attention(query, key, value, block_k=1, return_lse=True)
    >>> output
    array([[5.]])
    >>> lse.round(4)
    array([0.6931])
    """
    call = arguments.check(
        np.ndarray, query, key, value, mask=mask, bias=bias, causal=causal, window=window, offset=offset,
        scale=scale, softcap=softcap, enable_gqa=enable_gqa,
    )  # fmt: skip
    arguments.require_bool("return_lse", return_lse)
    block_q, block_k = _block_sizes(block_q, block_k, call)
    output = np.empty((*call.batch, call.L, call.Ev), query.dtype)
    lse = np.empty((*call.batch, call.L), np.result_type(query.dtype, np.float32))
    for index, head in _heads(query, key, value, mask, bias, call):
        for start in range(0, call.L, block_q):
            rows = slice(start, min(start + block_q, call.L))
            output[index][rows], lse[index][rows] = _attend_rows(head, rows, call, block_k, lse.dtype)
    return (output, lse) if return_lse else output


def one_pass(
    query: Float[np.ndarray, "L E"], tiles: Iterator[Tile], Ev: int, call: arguments.Call, dtype: np.dtype
) -> tuple[Float[np.ndarray, "L Ev"], Float[np.ndarray, " L"], Bool[np.ndarray, " L"]]:
    """Compute output, log-sum-exp, and which rows need a second look, meeting each tile once: the online softmax."""
    query = np.ascontiguousarray(query, dtype)
    largest = np.full((len(query), 1), -np.inf, dtype)  # of the scores met so far
    total = np.zeros((len(query), 1), dtype)  # Σ exp(score − largest)
    output = np.zeros((len(query), Ev), dtype)  # Σ exp(score − largest) · value
    strange = np.zeros((len(query), 1), bool)  # met something that is not finite
    for key, value, allowed, bias in tiles:
        value = np.ascontiguousarray(value, dtype)
        scores = query @ np.ascontiguousarray(key, dtype).T  # (L, S) of this tile
        scores *= call.scale
        if call.softcap is not None:
            strange |= _not_finite(scores, allowed)  # softcap would make a bounded number of an overflow
            scores /= call.softcap
            np.tanh(scores, out=scores)
            scores *= call.softcap
        if bias is not None:
            scores += bias
        strange |= _not_finite(scores, allowed)
        if not allowed.all():
            np.copyto(scores, -np.inf, where=~allowed)
        finite = np.isfinite(value)
        if not finite.all():
            strange |= (allowed & ~finite.all(-1)).any(-1, keepdims=True)
            value = np.where(finite, value, 0)

        largest, shift, shrink = _rescale(largest, scores)
        scores -= shift
        exponentials = np.exp(scores, out=scores)
        total = total * shrink + exponentials.sum(-1, keepdims=True)
        output = output * shrink + exponentials @ value
    strange |= ~np.isfinite(output).all(-1, keepdims=True)
    output = output / np.where(total == 0, 1, total) + 0.0  # −0 becomes 0: a hidden value may not leave its sign
    return output, (largest + np.log(total))[:, 0], strange[:, 0]


def two_passes(
    query: Float[np.ndarray, "L E"], tiles: tuple[Iterator[Tile], Iterator[Tile]], Ev: int, call: arguments.Call,
    dtype: np.dtype,
) -> tuple[Float[np.ndarray, "L Ev"], Float[np.ndarray, " L"]]:  # fmt: skip
    """Compute output and log-sum-exp as the textbook body does, for rows with numbers at or beyond the limits."""

    def scores_of(tile: Tile) -> np.ndarray:
        return masked_scores(query, tile.key.astype(dtype), tile.allowed, tile.bias, call, saturate=True)[0]

    query = query.astype(dtype)
    largest = np.full((len(query), 1), -np.inf, dtype)
    total = np.zeros((len(query), 1), dtype)
    output = np.zeros((len(query), Ev), dtype)
    for tile in tiles[0]:
        scores = scores_of(tile)
        largest, shift, shrink = _rescale(largest, scores)
        total = total * shrink + np.exp(scores - shift).sum(-1, keepdims=True)
    for tile in tiles[1]:
        weights = np.exp(scores_of(tile) - shift) / total  # the final ones: each row sums to one over all tiles
        output = saturating_sum(output, weighted_sum(weights, tile.value.astype(dtype), tile.allowed))
    return output, (largest + np.log(total))[:, 0]


def _rescale(
    largest: Float[np.ndarray, "L 1"], scores: Float[np.ndarray, "L S"]
) -> tuple[Float[np.ndarray, "L 1"], Float[np.ndarray, "L 1"], Float[np.ndarray, "L 1"]]:
    """Meet a tile's scores: give the largest so far, what to subtract from scores, and how much old sums shrink."""
    larger = np.maximum(largest, scores.max(-1, keepdims=True))
    shift = np.where(np.isneginf(larger), 0, larger)  # a row that has seen nothing yet: exp(−∞ − 0) = 0
    return larger, shift, np.exp(largest - shift)


def _attend_rows(
    head: Head, rows: slice, call: arguments.Call, block_k: int, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Compute output and log-sum-exp for a block of queries: in one pass, and in two where that is not enough."""
    query, Ev = head.query[rows], head.value.shape[-1]
    with np.errstate(all="ignore"):  # rows of this kind are done again
        output, lse, strange = one_pass(query, _tiles(head, rows, call, block_k), Ev, call, dtype)
        if strange.any():
            wide = np.result_type(dtype, np.float64)
            narrow_tiles = tuple(_tiles(head, rows, call, max(1, block_k // 8)) for _ in range(2))
            again = two_passes(query, narrow_tiles, Ev, call, wide)
            limits = np.finfo(dtype).min, np.finfo(dtype).max
            output = np.where(strange[:, None], again[0], output)
            lse = np.where(strange, np.clip(again[1], *limits), lse)  # these rows are not empty
        return output.astype(query.dtype), lse.astype(dtype)


def _heads(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray | None, bias: np.ndarray | None,
    call: arguments.Call,
) -> Iterator[tuple[tuple[int, ...], Head]]:  # fmt: skip
    """Give each head's place among the leading axes, and what it works on: views, nothing is copied or repeated."""
    if 0 in call.batch:
        return
    shared = (*call.batch[:-1], call.batch[-1] // call.repeats) if call.repeats > 1 else call.batch
    query = np.broadcast_to(query, (*call.batch, call.L, call.E))
    key = np.broadcast_to(key, (*shared, call.S, call.E))
    value = np.broadcast_to(value, (*shared, call.S, call.Ev))
    mask, bias = (None if x is None else np.broadcast_to(x, call.scores_shape) for x in (mask, bias))
    offset = np.broadcast_to(call.offset, (*call.batch, 1))
    for index in np.ndindex(*call.batch):
        group = (*index[:-1], index[-1] // call.repeats) if call.repeats > 1 else index
        mask_here, bias_here = (None if x is None else x[index] for x in (mask, bias))
        yield index, Head(query[index], key[group], value[group], mask_here, bias_here, int(offset[index][0]))


def _tiles(head: Head, rows: slice, call: arguments.Call, block_k: int) -> Iterator[Tile]:
    """Cut a block of queries into tiles of keys, without those that nobody may see.

    A tile is an attention problem of its own, whose first query stands at another offset from its first key.
    """
    for keys, all_see_all in _key_blocks(head.offset, rows, call, block_k):
        tile = call._replace(
            batch=(), L=rows.stop - rows.start, S=keys.stop - keys.start, offset=head.offset + rows.start - keys.start
        )
        if all_see_all:
            tile = tile._replace(causal=False, window=(None, None))
        mask, bias = (None if x is None else x[rows, keys] for x in (head.mask, head.bias))
        allowed = allowed_pairs(tile, mask, bias)
        if allowed.any():
            yield Tile(head.key[keys], head.value[keys], allowed, bias)


def _key_blocks(offset: int, rows: slice, call: arguments.Call, block_k: int) -> Iterator[tuple[slice, bool]]:
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


def _not_finite(scores: Float[np.ndarray, "L S"], allowed: Bool[np.ndarray, "L S"]) -> Bool[np.ndarray, "L 1"] | bool:
    """Tell which queries see a score that is not finite."""
    finite = np.isfinite(scores)
    return False if finite.all() else (allowed & ~finite).any(-1, keepdims=True)


def _block_sizes(block_q: int | None, block_k: int | None, call: arguments.Call) -> tuple[int, int]:
    """Fill in and check the block sizes. Where the mask has edges, lower blocks leave less to compute in vain."""
    if block_q is None:
        block_q = 128 if call.causal or call.window != (None, None) else 256
    if block_k is None:
        block_k = 512
    return arguments.require_integer("block_q", block_q, 1), arguments.require_integer("block_k", block_k, 1)
