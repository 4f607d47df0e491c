"""Attention without the (L, S) matrix: tiles and an online softmax.

The textbook body of attention needs a whole row of scores before it can share anything out. Here a row arrives in
pieces. Three numbers carry what is known so far: the largest score, the sum of the exponentials, and the values added
up with the same exponentials. A new tile may bring a larger score; then the old sums shrink by
exp(old largest − new largest), and nothing has to be computed again. :func:`one_pass` is that loop, and all of the
idea. :func:`one_pass_fast` below it is what becomes of the loop when every step over a tile is counted.

Memory: one tile of scores in each thread, however long the sequence is. The mask of a tile is made from the tile's
positions, and a tile that nobody may see is never computed.
"""

import functools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from lib import arguments
from lib.reference.attention import masked_scores, weighted_sum
from lib.reference.merging import saturating_sum
from lib.reference.threads import share
from lib.reference.tiles import Heads, Tile, Tiler, stacks

LEAST_TOTAL, MOST_TOTAL = 2.0**-32, 2.0**100  # a row whose sum of exponentials lies between them needs no maximum
UNPACKED = 100**3  # OpenBLAS first copies the factors of products that take more multiplications than this
TILE = 2**17  # scores in a tile of few queries: half a MiB in float32, which a processor's cache holds
STACK = 4  # heads at most that are computed together
WORTH_THREADS = 2**20  # scores from which on starting threads pays


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
    :func:`lib.reference.attention`. Blocks of queries are shared out among as many threads as NumPy's products use;
    the result is the same for any number of them. While it runs, NumPy's products have one thread each.

    There are three bodies, from fast to careful, and a row that one cannot carry is computed again by the next. The
    fast one needs no maximum, and asks only that a row's sum of exponentials come out at a reasonable size. The
    textbook one is the online softmax. The last makes two passes, in float64 at least: the first finds the
    log-sum-exp, the second has the final weights at hand as the textbook body of :func:`lib.reference.attention` does.

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
    output = np.empty((*(call.batch or (1,)), call.L, call.Ev), query.dtype)
    lse = np.empty(output.shape[:-1], np.result_type(query.dtype, np.float32))
    if lse.size > 0:
        reach = Reach.of(query, key, call, lse.dtype)
        all_heads = list(stacks(query, key, value, mask, bias, call, STACK))
        blocks = -(-call.L // block_q)

        def work(jobs: Iterable[int]) -> None:
            tiler, scratch = Tiler(call, block_k, lse.dtype), Scratch(lse.dtype)
            with np.errstate(all="ignore"):  # rows that leave the range are found and done again
                for job in jobs:
                    place, heads = all_heads[job // blocks]
                    stop = call.L - job % blocks * block_q  # the last block first: with causal it is the longest job
                    rows = slice(max(0, stop - block_q), stop)
                    output[place][:, rows], lse[place][:, rows] = _attend_rows(heads, rows, tiler, reach, scratch)

        share(work, blocks * len(all_heads), worth_it=lse.size * call.S >= WORTH_THREADS)
    if not call.batch:
        output, lse = output[0], lse[0]
    return (output, lse) if return_lse else output


def one_pass(
    query: Float[np.ndarray, "L E"], tiles: Iterator[Tile], Ev: int, call: arguments.Call, dtype: np.dtype
) -> tuple[Float[np.ndarray, "L Ev"], Float[np.ndarray, " L"], Bool[np.ndarray, " L"]]:
    """Compute output, log-sum-exp, and which rows need another look, meeting each tile once: the online softmax."""
    query = np.ascontiguousarray(query, dtype)
    largest = np.full((len(query), 1), -np.inf, dtype)  # of the scores met so far
    total = np.zeros((len(query), 1), dtype)  # Σ exp(score − largest)
    output = np.zeros((len(query), Ev), dtype)  # Σ exp(score − largest) · value
    strange = np.zeros(len(query), bool)  # met something that is not finite
    for key, value, allowed, bias, *_ in tiles:
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
        if allowed is not None:
            np.copyto(scores, -np.inf, where=~allowed)
        value, spoilt = _finite_values(np.ascontiguousarray(value, dtype), allowed)
        strange |= spoilt

        largest, shift, shrink = _rescale(largest, scores)
        scores -= shift
        exponentials = np.exp(scores, out=scores)
        total = total * shrink + exponentials.sum(-1, keepdims=True)
        output = output * shrink + exponentials @ value
    strange |= ~np.isfinite(output).all(-1)
    output = output / np.where(total == 0, 1, total) + 0.0  # −0 becomes 0: a hidden value may not leave its sign
    return output, (largest + np.log(total))[:, 0], strange


def one_pass_fast(
    query: Float[np.ndarray, "H L E"], tiles: Iterator[Tile], Ev: int, call: arguments.Call, reach: "Reach",
    scratch: "Scratch",
) -> tuple[Float[np.ndarray, "H L Ev"], Float[np.ndarray, "H L"], Bool[np.ndarray, "H L"]]:  # fmt: skip
    """Compute what :func:`one_pass` does, in the fewest steps over a tile: often exp2 and a sum besides the products.

    - No maximum. It keeps exponentials in range, and most rows stay there without it. A row whose total comes out
      between 2⁻³² and 2¹⁰⁰ has shown that it did; any other needs another look.
    - Powers of two. exp(score) is 2 to the power score · log₂e. The factor goes into the query, and exp2 is cheaper.
    - Several heads at once. A step then does more for what it costs to begin it, and threads wait less for each other.
    - Keys come first. With tiles of shape (S, L) both products read their factors along memory, and nothing is copied.
    - In place. Each step writes where an earlier one wrote: fresh memory would cost more than the arithmetic.
    - Checks only where ``reach`` does not rule out that they find something. What a row may not see can bring a check
      about; it cannot change what the check does to the row.
    """
    dtype, (H, L, E) = scratch.dtype, query.shape
    query_T = np.multiply(query.mT, reach.factor, out=scratch("query", H, E, L), dtype=dtype)
    total, output, alone = scratch("total", H, L), scratch("output", H, L, Ev), scratch("alone", H, L, Ev)
    total[...], output[...] = 0, 0
    strange, seen = np.zeros((H, L), bool), np.zeros((H, L), np.int64)  # seen: how many keys
    for key, value, allowed, bias, limit, counts in tiles:
        key, value, S = scratch.in_rows("key", key), scratch.in_rows("value", value), key.shape[-2]
        powers = multiply(key, query_T, out=scratch("powers", H, S, L))  # (H, S, L) of this tile: log₂ of exp(score)
        if not reach.safe:
            strange |= _not_finite(powers.mT, allowed)
        if call.softcap is not None:
            np.tanh(powers, out=powers)
            powers *= in_powers_of_two(call.softcap, dtype)
        if bias is not None:
            powers += np.multiply(bias.mT, in_powers_of_two(1, dtype), out=scratch("bias", H, S, L))
            strange |= _not_finite(powers.mT, allowed)
        if reach.deep or bias is not None:
            np.maximum(powers, np.finfo(dtype).minexp, out=powers)  # below, exp2 is slow, and adds nothing to a total
        exponentials = np.exp2(powers, out=powers)
        if allowed is None:
            seen += S
            if S == 1:
                alone[...] = value
        else:
            np.fmin(exponentials, limit, out=exponentials)  # 0 where hidden, even of NaN
            value, spoilt = _finite_values(value, allowed)
            strange |= spoilt
            seen += counts
            if (counts == 1).any():
                h, i = np.nonzero(np.broadcast_to(counts == 1, (H, L)))
                alone[h, i] = value[h, np.broadcast_to(allowed, (H, L, S))[h, i].argmax(-1)]
        total += scratch.ones(S) @ exponentials
        output += multiply(exponentials.mT, value, out=scratch("part", H, L, Ev))
    strange |= _not_finite(output, None)
    lse = np.log(total)
    if not (total.min() >= LEAST_TOTAL and total.max() <= MOST_TOTAL):  # NaN is neither
        strange |= (seen > 0) & ~((total >= LEAST_TOTAL) & (total <= MOST_TOTAL))
        np.maximum(total, np.finfo(dtype).tiny, out=total)  # a row that saw nothing becomes 0 / tiny
    output /= total[..., None]
    if (one := seen == 1).any():
        output[one] = alone[one]  # one value exactly, which e · value / e need not be
    output += 0.0
    return output, lse, strange


def two_passes(
    query: Float[np.ndarray, "L E"], tiles: tuple[Iterator[Tile], Iterator[Tile]], Ev: int, call: arguments.Call,
    dtype: np.dtype,
) -> tuple[Float[np.ndarray, "L Ev"], Float[np.ndarray, " L"]]:  # fmt: skip
    """Compute output and log-sum-exp as the textbook body does, for rows with numbers at or beyond the limits."""

    def scores_of(tile: Tile) -> np.ndarray:
        return masked_scores(query, tile.key.astype(dtype), pairs(tile), tile.bias, call, saturate=True)[0]

    def pairs(tile: Tile) -> np.ndarray:
        return np.ones((len(query), len(tile.key)), bool) if tile.allowed is None else tile.allowed

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
        output = saturating_sum(output, weighted_sum(weights, tile.value.astype(dtype), pairs(tile)))
    return output, (largest + np.log(total))[:, 0]


def _rescale(
    largest: Float[np.ndarray, "L 1"], scores: Float[np.ndarray, "L S"]
) -> tuple[Float[np.ndarray, "L 1"], Float[np.ndarray, "L 1"], Float[np.ndarray, "L 1"]]:
    """Meet a tile's scores: give the largest so far, what to subtract from scores, and how much old sums shrink."""
    larger = np.maximum(largest, scores.max(-1, keepdims=True))
    shift = np.where(np.isneginf(larger), 0, larger)  # a row that has seen nothing yet: exp(−∞ − 0) = 0
    return larger, shift, np.exp(largest - shift)


def _attend_rows(
    heads: Heads, rows: slice, tiler: Tiler, reach: "Reach", scratch: "Scratch"
) -> tuple[Float[np.ndarray, "H L Ev"], Float[np.ndarray, "H L"]]:
    """Compute output and log-sum-exp for a block of queries, each row by the first body that can carry it."""
    query, Ev = heads.query[:, rows], heads.value.shape[-1]
    output, lse, strange = one_pass_fast(query, tiler.tiles(heads, rows), Ev, tiler.call, reach, scratch)
    if not reach.exact:
        strange[...] = True
    for h in np.flatnonzero(strange.any(-1)):
        _mend(output[h], lse[h], strange[h], heads.head(h), rows, tiler)
    return output, lse


def _mend(
    output: Float[np.ndarray, "L Ev"], lse: Float[np.ndarray, " L"], strange: Bool[np.ndarray, " L"], head: Heads,
    rows: slice, tiler: Tiler,
) -> None:  # fmt: skip
    """Put the careful bodies' results in place of the strange rows of one head."""
    query, Ev, call, dtype = head.query[rows], head.value.shape[-1], tiler.call, lse.dtype
    careful = one_pass(query, tiler.tiles(head, rows), Ev, call, dtype)
    output[strange], lse[strange] = careful[0][strange], careful[1][strange]
    strange = strange & careful[2]
    if strange.any():
        narrow = Tiler(call, max(1, tiler.block_k // 8), dtype)
        twice = narrow.tiles(head, rows), narrow.tiles(head, rows)
        again = two_passes(query, twice, Ev, call, np.result_type(dtype, np.float64))
        output[strange] = again[0][strange]
        lse[strange] = np.clip(again[1][strange], np.finfo(dtype).min, np.finfo(dtype).max)  # these rows are not empty


# --- What the fast body stands on ---


class Reach(NamedTuple):
    """How far scores can go, as far as norms tell. By Cauchy and Schwarz, |q · k| ≤ |q| |k|."""

    factor: np.floating  # what the query is multiplied by
    exact: bool  # the factor has all its digits
    safe: bool  # no product leaves the dtype's range
    deep: bool  # some power of two may be too small for the dtype

    @classmethod
    def of(cls, query: np.ndarray, key: np.ndarray, call: arguments.Call, dtype: np.dtype) -> "Reach":
        """Look at all queries and keys once."""
        with np.errstate(all="ignore"):
            cap = call.softcap
            factor = in_powers_of_two(call.scale, dtype) if cap is None else dtype.type(call.scale / cap)
            sizes = largest_norm(query, dtype) * abs(factor), largest_norm(key, dtype)
            most, limit = sizes[0] * sizes[1], np.finfo(dtype).max / 4
            safe = max(*sizes, most) < limit and not np.isnan(most)
            most = most if cap is None else in_powers_of_two(cap, dtype)
            exact = abs(factor) >= np.finfo(dtype).tiny or call.scale == 0
            return cls(factor, bool(exact), bool(safe), not most < -np.finfo(dtype).minexp)


def largest_norm(x: Float[np.ndarray, "*batch N E"], dtype: np.dtype, block: int = 1024) -> float:
    """Compute a bound of all rows' norms; NaN if there is one. A block at a time, so that scratch stays small.

    Examples
    --------
    >>> float(largest_norm(np.array([[3.0, 4.0], [0.0, 1.0]]), np.dtype(float)))
    5.0
    """
    ones, squares = np.ones(x.shape[-1], dtype), [dtype.type(np.finfo(dtype).tiny)]  # squares may vanish: at least this
    with np.errstate(all="ignore"):
        for index in np.ndindex(*x.shape[:-2]):
            for start in range(0, x.shape[-2], block):
                rows = x[index][start : start + block].astype(dtype, copy=False)
                squares = [np.maximum(squares[0], ((rows * rows) @ ones).max())]
        return np.sqrt(squares[0])


def in_powers_of_two(score: float, dtype: np.dtype) -> np.floating:
    """Multiply by log₂e, rounded once: exp(score) is 2 to this power."""
    wide = np.result_type(dtype, np.float64).type
    return dtype.type(wide(score) / np.log(wide(2)))


class Scratch:
    """A thread's own memory, which each step and each job uses again."""

    def __init__(self, dtype: np.dtype) -> None:
        """Start with nothing."""
        self.dtype, self._held, self._views = np.dtype(dtype), {}, {}

    def __call__(self, name: str, *shape: int) -> np.ndarray:
        """Give an array of this shape, with whatever was in it."""
        view = self._views.get((name, shape))
        if view is None:
            size = math.prod(shape)
            if name not in self._held or self._held[name].size < size:
                self._held[name] = _aligned(size, self.dtype)
                self._views = {asked: view for asked, view in self._views.items() if asked[0] != name}
            view = self._views[name, shape] = self._held[name][:size].reshape(shape)
        return view

    def ones(self, size: int) -> np.ndarray:
        """Give as many ones: a sum is a product with them, and products are faster."""
        held = self._held.get("ones")
        if held is None or held.size < size:
            held = self._held["ones"] = np.ones(size, self.dtype)
        return held[:size]

    def in_rows(self, name: str, x: np.ndarray) -> np.ndarray:
        """Give ``x`` as it is, or a copy in the dtype and order that products are fast with: row after row."""
        size = self.dtype.itemsize
        if x.dtype == self.dtype and x.strides[-2:] == (x.shape[-1] * size, size):
            return x
        copy = self(name, *x.shape)
        copy[...] = x
        return copy


def _aligned(size: int, dtype: np.dtype, to: int = 64) -> np.ndarray:
    """Make an array that starts where a vector register likes to read: it saves a seventh of a product's time."""
    raw = np.empty(size * dtype.itemsize + to, np.uint8)
    start = -raw.ctypes.data % to
    return raw[start : start + size * dtype.itemsize].view(dtype)


def multiply(
    a: Float[np.ndarray, "H N K"], b: Float[np.ndarray, "H K M"], out: Float[np.ndarray, "H N M"]
) -> Float[np.ndarray, "H N M"]:
    """Compute a @ b as one call with a stack of products, each so small that OpenBLAS copies no factor first.

    Examples
    --------
    >>> multiply(np.ones((1, 4, 3)), np.ones((1, 3, 2)), out=np.empty((1, 4, 2)))[0, 0]
    array([3., 3.])
    """
    (H, N, K), M = a.shape, b.shape[-1]
    height = _stack_height(N, K * M)
    stack = H, N // height, height
    np.matmul(a.reshape(*stack, K), b[:, None], out=out.reshape(*stack, M))
    return out


@functools.lru_cache
def _stack_height(rows: int, size: int) -> int:
    """Give the most rows that divide ``rows`` and take no more than ``UNPACKED`` multiplications; all, if too few.

    Twelve rows are what the innermost loop of OpenBLAS likes best.
    """
    most = UNPACKED // max(size, 1)
    if most >= rows:
        return rows
    heights = [height for height in range(8, most + 1) if rows % height == 0]
    return max([height for height in heights if height % 12 == 0] or heights, default=rows)


def _not_finite(scores: Float[np.ndarray, "*H L S"], allowed: Bool[np.ndarray, "*H L S"] | None) -> np.ndarray | bool:
    """Tell which queries see a score that is not finite."""
    finite = np.isfinite(scores)
    if finite.all():
        return False
    return (~finite if allowed is None else allowed & ~finite).any(-1)


def _finite_values(
    value: Float[np.ndarray, "*H S Ev"], allowed: Bool[np.ndarray, "*H L S"] | None
) -> tuple[Float[np.ndarray, "*H S Ev"], np.ndarray | bool]:
    """Put 0 in place of what is not finite, and tell which queries see it: 0 · NaN would reach the others, too."""
    finite = np.isfinite(value)
    if finite.all():
        return value, False
    spoilt = True if allowed is None else (allowed & ~finite.all(-1)[..., None, :]).any(-1)
    return np.where(finite, value, 0), spoilt


def _block_sizes(block_q: int | None, block_k: int | None, call: arguments.Call) -> tuple[int, int]:
    """Fill in and check the block sizes.

    Where the mask has edges, lower blocks leave less to compute in vain. A row of a tile is no power of two long: its
    columns would fall on the same few places of the cache. It is a multiple of 12 and of the widest vector register,
    and the number of rows is a power of two: products of such sizes are the fastest.
    """
    if block_q is None:
        block_q = 192 if call.causal or call.window != (None, None) else 240
    block_q = arguments.require_integer("block_q", block_q, 1)
    if block_k is None:
        most = TILE // max(1, min(block_q, call.L))
        block_k = min(max(512, 1 << most.bit_length() >> 1), 4096)
    return block_q, arguments.require_integer("block_k", block_k, 1)
