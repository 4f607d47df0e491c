"""The same numbers, lying differently in memory: what a view, a transpose or an expand hands to a function.

Each entry makes from a contiguous array one with equal values and other strides, and is written as an expression of
``x``, so that a failure can show it.
"""

from typing import Any

import numpy as np

#: For NumPy. ``reversed`` has negative strides, which torch does not know.
NUMPY = {
    "transposed": "np.ascontiguousarray({x}.swapaxes(-1, -2)).swapaxes(-1, -2)",
    "every second": "np.repeat({x}, 2, axis=-1)[..., ::2]",
    "every second row": "np.repeat({x}, 2, axis=-2)[..., ::2, :]",
    "reversed": "{x}[..., ::-1, :].copy()[..., ::-1, :]",
    "broadcast": "np.broadcast_to({x}[..., :1, :], {x}.shape)",
    "broadcast along axis -3": "np.broadcast_to({x}[..., :1, :, :], {x}.shape)",
    "part of a larger array": "np.concatenate([{x}, {x}], axis=-2)[..., {x}.shape[-2]:, :]",
    "heads last but one": "np.ascontiguousarray({x}.swapaxes(-2, -3)).swapaxes(-2, -3)",
}

#: For torch.
TORCH = {
    "transposed": "{x}.mT.contiguous().mT",
    "every second": "{x}.repeat_interleave(2, -1)[..., ::2]",
    "every second row": "{x}.repeat_interleave(2, -2)[..., ::2, :]",
    "broadcast": "{x}[..., :1, :].expand({x}.shape)",
    "broadcast along axis -3": "{x}[..., :1, :, :].expand({x}.shape)",
    "part of a larger array": "torch.cat([{x}, {x}], -2)[..., {x}.shape[-2]:, :]",
    "heads last but one": "{x}.swapaxes(-2, -3).contiguous().swapaxes(-2, -3)",
}

#: These repeat one row, or one head, and change what the array holds.
BROADCAST = ("broadcast", "broadcast along axis -3")


def expression(layout: str, name: str, framework: str) -> str:
    """Give the expression that lays the array called ``name`` out."""
    return (NUMPY if framework == "numpy" else TORCH)[layout].format(x=name)


def lay_out(array: Any, layout: str, framework: str, module: Any) -> Any:
    """Give an array or tensor of the same values in another layout."""
    names = {"x": array, "np" if framework == "numpy" else "torch": module}
    return eval(expression(layout, "x", framework), names)


def available(framework: str, lead: tuple[int, ...]) -> list[str]:
    """List the layouts that exist in a framework for arrays with these leading axes."""
    names = list(NUMPY if framework == "numpy" else TORCH)
    return [name for name in names if lead or name not in ("heads last but one", "broadcast along axis -3")]


def seen_through(array: np.ndarray, layout: str) -> np.ndarray:
    """Give the values that the layout shows: those that broadcast repeat the first row, or the first head."""
    return lay_out(array, layout, "numpy", np).copy() if layout in BROADCAST else array
