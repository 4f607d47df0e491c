"""Flash attention on a GPU: how the Triton kernels of ``lib.fast.triton_kernels`` are called, with gradients.

That module has the algorithm. Here stands what surrounds it: checks, the sizes of tiles, and the link to autograd.
Triton is imported at the first call only, so that this module can be imported where there is none.

Without a GPU the kernels can be run, slowly, in Triton's interpreter: set ``TRITON_INTERPRET=1`` before Python starts.
"""

import functools
import importlib.util
from types import ModuleType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lib import arguments

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDEST = 128  # head size: wider tiles would no longer fit
LARGEST_SCALE = 2e38  # times log₂ e, it is still a float32


class Tile(NamedTuple):
    """How a kernel cuts its work, and how the GPU shall do it."""

    rows: int  # in a program's own block
    columns: int  # in each tile that it goes over
    num_warps: int  # groups of 32 threads that share a program
    num_stages: int  # tiles on their way from memory at once


# By kernel, bytes of a number, and head size filled up to a power of two (64 stands for what is smaller, too). Chosen
# by compiling for compute capability 8.0 and 9.0: tiles as large as registers hold with little spilling, and stages
# that a data-centre GPU's shared memory takes (163 KiB and more). Their speed has not been measured yet:
# scripts/gpu_check.py does it.
TILES = {
    ("forward", 2, 64): Tile(128, 64, 4, 3),
    ("forward", 2, 128): Tile(128, 64, 8, 3),
    ("forward", 4, 64): Tile(64, 32, 4, 2),
    ("forward", 4, 128): Tile(64, 32, 4, 2),
    ("backward_query", 2, 64): Tile(128, 64, 8, 3),
    ("backward_query", 2, 128): Tile(128, 64, 8, 2),
    ("backward_query", 4, 64): Tile(32, 32, 4, 2),
    ("backward_query", 4, 128): Tile(32, 32, 8, 1),
    ("backward_key_value", 2, 64): Tile(128, 64, 8, 2),
    ("backward_key_value", 2, 128): Tile(128, 32, 8, 2),
    ("backward_key_value", 4, 64): Tile(32, 32, 4, 2),
    ("backward_key_value", 4, 128): Tile(32, 16, 4, 1),
}
IN_THE_INTERPRETER = Tile(64, 32, 1, 1)  # small, so that short sequences have several


def attention(
    query: Float[Tensor, "*batch L E"],
    key: Float[Tensor, "*batch S E"],
    value: Float[Tensor, "*batch S Ev"],
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    offset: int | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "*batch L Ev"]:
    """Compute :func:`lib.fast.attention` by the Triton kernels: in tiles, without ever holding an (L, S) array.

        output = softmax(scale · Q Kᵀ) V,  over the keys that causal and window allow

    Tiles that causal and window hide wholly are not visited. Gradients flow to query, key and value, and need no (L, S)
    array either. They are the same in every run.

    Parameters
    ----------
    query, key, value : (..., L, E), (..., S, E), (..., S, Ev), float16, bfloat16 or float32
        On a GPU; E and Ev up to 128, all sizes at least 1. Any strides; a last axis without gaps is quickest.
    causal, window, scale, enable_gqa
        As in :func:`lib.reference.attention`.
    offset : int, optional
        The position of the first query among the keys, one for all batch entries.

    Returns
    -------
    output : (..., L, Ev), of query's dtype
        A query that may attend to nothing has output 0 and finite gradients.

    Raises
    ------
    TypeError, ValueError
        As in :func:`lib.reference.attention`; ValueError if the kernels lack what is asked, or cannot run where the
        tensors are.
    ImportError
        If there is no Triton.

    Notes
    -----
    What stands at hidden positions: finite numbers change nothing; NaN and infinity leak within a tile (0 · NaN is
    NaN). Scores have to stay within float32. In Triton's interpreter (``TRITON_INTERPRET=1``) CPU tensors work too, and
    bfloat16 is refused, since it comes out wrong there.

    References
    ----------
    Dao et al. (2022), "FlashAttention"; Dao (2023), "FlashAttention-2"; Milakov and Gimelshein (2018), "Online
    normalizer calculation for softmax". The algorithm, line by line: ``lib.fast.triton_kernels``.

    Examples
    --------
    What it does not do, it says:

    >>> x = torch.zeros(1, 200)
    >>> attention(x, x, x)
    Traceback (most recent call last):
    ValueError: the Triton kernel has no head size above 128 (E = 200, Ev = 200); use lib.fast.attention
    """
    call = arguments.check(
        Tensor, query, key, value, causal=causal, window=window, offset=offset, scale=scale, enable_gqa=enable_gqa
    )
    absent = lacking(query, call)
    if 0 in (*call.scores_shape, call.E, call.Ev):
        absent.append("sizes of 0")
    if absent:
        raise ValueError(f"the Triton kernel has no {' and no '.join(absent)}; use lib.fast.attention")
    require_runnable(query)
    return run(query, key, value, call)


def lacking(query: Tensor, call: arguments.Call) -> list[str]:
    """Name what a checked call asks for and the kernels do not have."""
    asked = {
        "offset for each batch entry": not isinstance(call.offset, int),
        arguments.dtype_name(query): query.dtype not in DTYPES,
        f"head size above {WIDEST} (E = {call.E}, Ev = {call.Ev})": max(call.E, call.Ev) > WIDEST,
    }
    return [name for name, is_asked in asked.items() if is_asked]


def require_runnable(query: Tensor) -> None:
    """Raise unless the kernels can run here, on query's device and dtype."""
    if not _has_triton():
        raise ImportError("the Triton kernel needs the package triton, which there is for Linux: pip install triton")
    if not is_interpreted():
        if query.device.type != "cuda":
            raise ValueError(
                f"query must be on a GPU (device cuda) for the Triton kernel, got {query.device}; to try the kernel "
                "without one, set TRITON_INTERPRET=1 before Python starts"
            )
    elif query.dtype == torch.bfloat16:
        raise ValueError("query must be float16 or float32 in Triton's interpreter, which computes bfloat16 wrongly")


def is_worth_it(query: Tensor) -> bool:
    """Tell whether query is where the kernels are meant to run: an Nvidia GPU of compute capability 8 or more."""
    if query.device.type != "cuda" or torch.version.hip or not _has_triton():
        return False
    return torch.cuda.get_device_capability(query.device) >= (8, 0)


def is_interpreted() -> bool:
    """Tell whether Triton's interpreter runs the kernels; it was decided when they were imported."""
    return type(_kernels().forward).__name__ == "InterpretedFunction"


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def run(
    query: Float[Tensor, "*batch L E"],
    key: Float[Tensor, "*batch S E"],
    value: Float[Tensor, "*batch S Ev"],
    call: arguments.Call,
) -> Float[Tensor, "*batch L Ev"]:
    """Compute a checked call that :func:`lacking` and :func:`require_runnable` have nothing against."""
    from lib.fast.attention import broadcast_heads, four_axes  # which imports this module

    query, key, value = (four_axes(x) for x in broadcast_heads(query, key, value, call, repeat=False))
    scale = min(max(call.scale, -LARGEST_SCALE), LARGEST_SCALE)
    output = _Attention.apply(query, key, value, *_band(call), scale)
    return output.reshape(*call.batch, call.L, call.Ev)


def _band(call: arguments.Call) -> tuple[int, int]:
    """Say causal, window and offset as low and high: key j is visible to query i where low ≤ j − i ≤ high.

    j − i lies between −L and S; what is beyond is cut off, so that 32 bits will do.

    Examples
    --------
    >>> x = torch.zeros(6, 1)
    >>> _band(arguments.check(Tensor, x, x, x, causal=True, window=(2, None)))
    (-2, 0)
    >>> _band(arguments.check(Tensor, x, x, x))
    (-6, 6)
    """
    left, right = call.window
    if call.causal:
        right = 0
    low = -call.L if left is None else call.offset - left
    high = call.S if right is None else call.offset + right
    return tuple(min(max(end, -call.L), call.S) for end in (low, high))


class _Attention(torch.autograd.Function):
    """query (B, H, L, E), key (B, G, S, E), value (B, G, S, Ev) to output (B, H, L, Ev)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, low: int, high: int, scale: float) -> Tensor:
        output = query.new_empty((*query.shape[:3], value.shape[3]))
        lse = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
        ctx.limits = low, high, scale
        _launch("forward", [query, key, value, output], [lse], ctx.limits)
        ctx.save_for_backward(query, key, value, output, lse)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, lse = ctx.saved_tensors
        delta = torch.empty_like(lse)
        query_grad = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        arrays = [query, key, value, output, output_grad, query_grad]
        _launch("backward_query", arrays, [lse, delta], ctx.limits)
        if not any(ctx.needs_input_grad[1:3]):
            return query_grad, None, None, None, None, None
        key_grad, value_grad = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (key, value))
        arrays = [query, key, value, output_grad, key_grad, value_grad]
        _launch("backward_key_value", arrays, [lse, delta], ctx.limits)
        return query_grad, key_grad, value_grad, None, None, None


def _launch(name: str, arrays: list[Tensor], rows: list[Tensor], limits: tuple[int, int, float]) -> None:
    """Start a kernel: as many programs as it takes to give every block of every head to one.

    ``arrays`` have four axes and any strides, and begin with query, key, value; ``rows`` are (B, H, L), contiguous.
    """
    query, _, value = arrays[:3]
    (batch, heads, L, E), (groups, S, Ev) = query.shape, value.shape[1:]
    width, width_v = (max(16, 1 << (size - 1).bit_length()) for size in (E, Ev))
    tile = _tile(name, query.dtype, max(E, Ev))
    blocks_of, sharers = (S, groups) if name == "backward_key_value" else (L, heads)
    programs = -(-blocks_of // tile.rows) * batch * sharers
    with torch.cuda.device_of(query):
        getattr(_kernels(), name)[programs,](
            *arrays, *rows, *(x.stride() for x in arrays), L, S, *limits, heads, heads // groups,
            E=E, Ev=Ev, ROWS=tile.rows, COLUMNS=tile.columns, WIDTH=width, WIDTH_V=width_v,
            num_warps=tile.num_warps, num_stages=tile.num_stages, enable_fp_fusion=True,
        )  # fmt: skip


def _tile(name: str, dtype: torch.dtype, size: int) -> Tile:
    """Look up how a kernel cuts its work for a head size."""
    return IN_THE_INTERPRETER if is_interpreted() else TILES[name, dtype.itemsize, 64 if size <= 64 else 128]


def _kernels() -> ModuleType:
    """Import the kernels, and with them Triton."""
    from lib.fast import triton_kernels

    return triton_kernels
