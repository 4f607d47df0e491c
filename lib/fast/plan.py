"""Which way a call of attention takes, and why: torch's kernels, the Triton kernel, or the plain body; tiles or not."""

from typing import NamedTuple

import torch
from torch import Tensor

from lib import arguments
from lib.fast import triton_attention
from lib.fast.tiles import Tile, tiles_of, without_void_limits

BACKENDS = ("auto", "sdpa", "triton", "math")
WORTH_IT = 0.9  # tiles are taken where they leave at most this share of all pairs of a query and a key
SCORES = 2**24  # entries of the scores that the plain body may hold at once without tiles: 64 MiB in float32


class Plan(NamedTuple):
    """How a call is computed."""

    body: str  # "sdpa", "triton" or "math"
    call: arguments.Call  # without the limits that hide nothing
    tiles: list[Tile] | None  # None: all queries and all keys at once
    notes: tuple[str, ...]  # why, in words, the most important first

    def __str__(self) -> str:
        """Say it in one line."""
        how = f"in {len(self.tiles)} tiles of {self.tiles[0].rows.stop} queries" if self.tiles else "in one call"
        names = {"sdpa": "torch's fused kernels (SDPA)", "triton": "our Triton kernel", "math": "the plain body"}
        return f"{self.body}: {names[self.body]}, {how}; {'; '.join(self.notes)}"


def make_plan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    call: arguments.Call,
    dropout_p: float,
    return_weights: bool,
    backend: str,
) -> Plan:
    """Choose the way of a checked call.

    Parameters
    ----------
    query, key, value, mask, bias, dropout_p, return_weights, backend
        As in :func:`lib.fast.attention`.
    call : Call
        What :func:`lib.arguments.check` made of them.

    Returns
    -------
    Plan

    Raises
    ------
    ValueError
        If ``backend`` is "sdpa" or "triton" and the call asks for what it cannot do.
    ImportError
        If ``backend`` is "triton" and there is no Triton.
    """
    lacking = _asked({"softcap": call.softcap is not None, "return_weights": return_weights})
    if backend == "triton" or (backend == "auto" and triton_attention.is_worth_it(query)):
        limits = {"mask": mask is not None, "bias": bias is not None, "dropout": dropout_p > 0}
        triton_lacking = [*lacking, *_asked(limits), *triton_attention.lacking(query, call)]
    else:
        triton_lacking = ["a GPU"]
    for name, lacks in (("sdpa", lacking), ("triton", triton_lacking)):
        if backend == name and lacks:
            raise ValueError(f"backend {name!r} has no {' and no '.join(lacks)}; use backend='auto' or 'math'")
    if not isinstance(call.offset, int):  # int64, so that a tile's shift cannot overflow
        call = call._replace(offset=torch.as_tensor(call.offset, dtype=torch.int64))
    call = without_void_limits(call)
    if 0 in (*call.scores_shape, call.E, call.Ev):
        return Plan("math", call, None, ("there is nothing to fuse: a size is 0",))
    if backend == "triton":
        triton_attention.require_runnable(query)
        return _triton_plan(call, "backend='triton' asks for it")
    if backend == "math":
        why = "backend='math' asks for it"
    elif lacking:
        why = f"SDPA has no {' and no '.join(lacking)}"
    elif backend == "auto" and dropout_p:
        why = "SDPA has no fused kernel for dropout on the CPU, and its own plain body is no faster"
    elif not triton_lacking and _sdpa_needs_a_mask(call):
        return _triton_plan(call, "SDPA has no fused kernel for a window, nor for causal with an offset")
    else:
        return _sdpa_plan(query, key, value, mask, bias, call, dropout_p)
    return _math_plan(call, why, return_weights)


def _asked(options: dict[str, bool]) -> list[str]:
    return [name for name, is_asked in options.items() if is_asked]


def _sdpa_needs_a_mask(call: arguments.Call) -> bool:
    """Tell whether the kernels' own causal cannot say what causal and window hide."""
    return _is_limited(call) and not is_causal_for_sdpa(call, None, None)


def _is_limited(call: arguments.Call) -> bool:
    return call.causal or call.window != (None, None)


def _triton_plan(call: arguments.Call, why: str) -> Plan:
    skips = "tiles hidden by causal and window are skipped" if _is_limited(call) else "every query sees every key"
    return Plan("triton", call, None, (why, skips))


def _sdpa_plan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    call: arguments.Call,
    dropout_p: float,
) -> Plan:
    tiles, notes = None, []
    if is_causal_for_sdpa(call, mask, bias):
        notes.append("causal by the kernel's own flag, which skips what it hides")
    elif _is_limited(call):
        tiles, note = _tiles_worth_taking(call, _rows(call))
        notes.append(note)
    if mask is not None:
        notes.append("the kernel visits what mask hides too (where causal or window say the same, they are faster)")
    if query.device.type == "cpu":
        notes += _copies(query, key, value, call)
        if bias is not None and bias.requires_grad and torch.is_grad_enabled():
            notes.append("a bias that wants a gradient has no fused kernel on the CPU: SDPA takes its plain body")
        if dropout_p:
            notes.append("dropout has no fused kernel on the CPU: SDPA takes its plain body")
    return Plan("sdpa", call, tiles, tuple(notes) or ("every query sees every key",))


def _math_plan(call: arguments.Call, why: str, return_weights: bool) -> Plan:
    if return_weights:
        return Plan("math", call, None, (why,))
    entries = 1
    for size in call.scores_shape:
        entries *= size
    tiles, note = None, None
    if _is_limited(call):
        tiles, note = _tiles_worth_taking(call, _rows(call))
    if tiles is None and entries > SCORES:
        rows = max(1, SCORES * call.L // entries)
        tiles, note = tiles_of(call, rows), f"a tile's scores take at most {4 * SCORES // 2**20} MiB in float32"
    return Plan("math", call, tiles, (why,) if tiles is None else (why, note))


def is_causal_for_sdpa(call: arguments.Call, mask: Tensor | None, bias: Tensor | None) -> bool:
    """Tell whether the kernels' own causal says all that the call asks: top-left, and nothing else is hidden.

    On the CPU they multiply its −∞ by the scale, which makes NaN of it for 0, and +∞ for less.
    """
    top_left = isinstance(call.offset, int) and call.offset == 0
    nothing_else = mask is None and bias is None and call.window == (None, None)
    return call.causal and top_left and nothing_else and call.scale > 0


def _rows(call: arguments.Call) -> int:
    """Choose a tile's number of queries: about a window's width, or an eighth of all where only causal limits."""
    left, right = call.window
    if call.causal:
        right = 0
    if left is None or right is None:
        return max(64, -(-call.L // 8))
    return min(512, max(64, (left + right) // 2))


def _tiles_worth_taking(call: arguments.Call, rows: int) -> tuple[list[Tile] | None, str]:
    tiles = tiles_of(call, rows)
    share = sum(tile.pairs for tile in tiles) / (call.L * call.S)
    if len(tiles) == 1 or share > WORTH_IT or share == 0:
        return None, "causal and window as a mask: tiles would save little"
    return tiles, f"{share:.0%} of all pairs are visited, which causal and window allow"


def _copies(query: Tensor, key: Tensor, value: Tensor, call: arguments.Call) -> list[str]:
    """Say what is copied so that the CPU's kernel stays on its fast path."""
    notes = []
    strided = [name for name, x in (("query", query), ("key", key), ("value", value)) if x.stride(-1) != 1]
    if strided:
        verb = "is" if len(strided) == 1 else "are"
        notes.append(f"{', '.join(strided)} {verb} copied first, since the innermost stride is not 1")
    if call.Ev != call.E:
        short = "value" if call.Ev < call.E else "query and key"
        notes.append(f"{short} padded with zeros, since SDPA wants Ev = E (E = {call.E}, Ev = {call.Ev})")
    return notes
