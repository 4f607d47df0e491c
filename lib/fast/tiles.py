"""Tiles: where position alone hides keys, give each tile of queries only the keys that it may see.

A causal mask hides half of all pairs, a window nearly all of them; a kernel that is handed a mask visits the hidden
pairs too. Here they are cut away before the kernel is called, tile by tile, and the tile's outputs are put together.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lib import arguments


class Tile(NamedTuple):
    """Some queries and the keys that they may see."""

    rows: slice  # queries
    keys: slice

    @property
    def pairs(self) -> int:
        """Count its pairs of a query and a key."""
        return (self.rows.stop - self.rows.start) * (self.keys.stop - self.keys.start)


def without_void_limits(call: arguments.Call) -> arguments.Call:
    """Drop causal and window where they hide nothing, as in a decoding step: its query is the last position.

    Examples
    --------
    >>> x = torch.zeros(1, 1), torch.zeros(9, 1), torch.zeros(9, 1)
    >>> without_void_limits(arguments.check(Tensor, *x, causal=True, offset=8)).causal
    False
    >>> without_void_limits(arguments.check(Tensor, *x, causal=True, offset=7)).causal
    True
    """
    if not call.causal and call.window == (None, None):
        return call
    positions = _positions(call)
    if positions is None:
        return call
    first, last = positions
    left, right = call.window
    if left is not None and last - left <= 0:
        left = None
    if right is not None and first + right >= call.S - 1:
        right = None
    return call._replace(causal=call.causal and first < call.S - 1, window=(left, right))


def tiles_of(call: arguments.Call, rows: int) -> list[Tile]:
    """Cut the queries into tiles of so many rows, and give each the keys between its first and its last visible one.

    Parameters
    ----------
    call : Call
        Its causal, window and offset say what is visible.
    rows : int
        How many queries a tile has; the last one may have fewer.

    Returns
    -------
    list of Tile

    Examples
    --------
    Six queries, each sees itself and two before:

    >>> x = torch.zeros(6, 1)
    >>> for tile in tiles_of(arguments.check(Tensor, x, x, x, causal=True, window=(2, None)), rows=3):
    ...     print(tile.rows, tile.keys)
    slice(0, 3, None) slice(0, 3, None)
    slice(3, 6, None) slice(1, 6, None)
    """
    positions = _positions(call)
    left, right = call.window
    if call.causal:
        right = 0 if right is None else min(right, 0)
    tiles = []
    for start in range(0, call.L, rows):
        stop = min(start + rows, call.L)
        first, last = 0, call.S
        if positions is not None:
            lowest, highest = positions[0] + start, positions[1] - (call.L - stop)
            first = 0 if left is None else min(max(lowest - left, 0), call.S)
            last = call.S if right is None else min(max(highest + right + 1, first), call.S)
        tiles.append(Tile(slice(start, stop), slice(first, last)))
    return tiles


def in_tiles(
    body: Callable[..., Float[Tensor, "*batch rows Ev"]],
    tiles: list[Tile],
    query: Float[Tensor, "*batch L E"],
    key: Float[Tensor, "*batch S E"],
    value: Float[Tensor, "*batch S Ev"],
    mask: Bool[Tensor, "*batch L S"] | None,
    bias: Float[Tensor, "*batch L S"] | None,
    call: arguments.Call,
    dropout_p: float,
) -> Float[Tensor, "*batch L Ev"]:
    """Call the body once for each tile, with the part of every argument that belongs to it, and join the outputs."""
    outputs = []
    queries = query.split([tile.rows.stop - tile.rows.start for tile in tiles], dim=-2)
    strips = (_strips(x, [tile.keys for tile in tiles]) for x in (key, value))
    for (rows, keys), q, k, v in zip(tiles, queries, *strips, strict=True):
        L, S = rows.stop - rows.start, keys.stop - keys.start
        if S == 0:  # these queries may attend to nothing
            outputs.append(query.new_zeros((*call.batch, L, call.Ev)))
            continue
        part = without_void_limits(call._replace(L=L, S=S, offset=call.offset + (rows.start - keys.start)))
        pairs = (_part(x, rows, keys) for x in (mask, bias))
        outputs.append(body(q, k, v, *pairs, part, dropout_p))
    return torch.cat(outputs, dim=-2)


def _positions(call: arguments.Call) -> tuple[int, int] | None:
    """Give the lowest position of a first query and the highest of a last one; None if asking would stop a GPU."""
    if isinstance(call.offset, int):
        return call.offset, call.offset + call.L - 1
    if call.offset.device.type != "cpu" or call.offset.numel() == 0:
        return None
    return int(call.offset.min()), int(call.offset.max()) + call.L - 1


def _strips(x: Float[Tensor, "*batch S E"], strips: list[slice]) -> Iterator[Float[Tensor, "*batch strip E"]]:
    """Give x[..., strip, :] for each strip; where gradients flow, cut x once at every edge and join the pieces.

    The gradient of a slice is a whole array of zeros around its own numbers, one for each tile; that of pieces is not.
    """
    if not (x.requires_grad and torch.is_grad_enabled()):
        for strip in strips:
            yield x[..., strip, :]
        return
    edges = sorted({0, x.shape[-2], *(edge for strip in strips for edge in (strip.start, strip.stop))})
    sizes = [stop - start for start, stop in pairwise(edges)]
    pieces = dict(zip(edges, x.split(sizes, dim=-2), strict=False))
    for strip in strips:
        inside = [piece for edge, piece in pieces.items() if strip.start <= edge < strip.stop]
        yield torch.cat(inside or [x[..., :0, :]], dim=-2)


def _part(x: Tensor | None, rows: slice, keys: slice) -> Tensor | None:
    """Take a tile out of (..., L, S), of which each axis may be missing or 1: then it counts for all."""
    if x is None or x.ndim == 0:
        return x
    x = x if x.shape[-1] == 1 else x[..., keys]
    return x if x.ndim == 1 or x.shape[-2] == 1 else x[..., rows, :]
