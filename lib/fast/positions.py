"""Positions on tensors: sinusoidal, rotary and ALiBi. The arithmetic is the same for both frameworks: lib.positions."""

from typing import Any

import torch
from jaxtyping import Float, Real
from torch import Tensor

from lib import positions as shared
from lib.positions import rotary, rotate_pairs

__all__ = ["alibi_bias", "alibi_slopes", "rotary", "rotate_pairs", "sinusoidal"]


def sinusoidal(
    positions: Real[Tensor, "*batch L"], dim: int, base: float = 10000.0, *, dtype: torch.dtype | None = None
) -> Float[Tensor, "*batch L dim"]:
    """Give each position a vector of sines and cosines: :func:`lib.reference.sinusoidal` as a tensor.

    Parameters
    ----------
    positions : (..., L), integers or real numbers
        The result is on their device. A list becomes a tensor.
    dim, base
        As in :func:`lib.reference.sinusoidal`.
    dtype : torch.dtype
        torch's default dtype unless given. Computed in float64.

    Returns
    -------
    (..., L, dim)

    Examples
    --------
    >>> sinusoidal([0], 4)
    tensor([[0., 1., 0., 1.]])
    """
    return shared.sinusoidal(_tensor(positions), dim, base, dtype=dtype)


def alibi_slopes(num_heads: int, *, dtype: torch.dtype | None = None, device: Any = None) -> Float[Tensor, " H"]:
    """Give each head the slope of its penalty on distance: :func:`lib.reference.alibi_slopes` as a tensor.

    Parameters
    ----------
    num_heads : int ≥ 1
    dtype, device
        torch's defaults unless given.

    Returns
    -------
    (H,)

    Examples
    --------
    >>> alibi_slopes(2)
    tensor([0.0625, 0.0039])
    """
    return torch.tensor(shared.slope_of_each_head(num_heads), dtype=dtype, device=device)


def alibi_bias(
    num_heads: int,
    q_pos: Real[Tensor, "*batch L"],
    k_pos: Real[Tensor, "*batch S"],
    *,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*batch H L S"]:
    """Penalise distance, head by head: :func:`lib.reference.alibi_bias` as a tensor.

    Parameters
    ----------
    num_heads : int ≥ 1
    q_pos, k_pos : (..., L) and (..., S), integers or real numbers
        The result is on their device. A list becomes a tensor.
    dtype : torch.dtype
        torch's default dtype unless given.

    Returns
    -------
    (..., H, L, S)

    Examples
    --------
    >>> alibi_bias(1, [2], [0, 1, 2]) * 256  # one head's slope is 1/256
    tensor([[[-2., -1.,  0.]]])
    """
    return shared.alibi_bias(num_heads, _tensor(q_pos), _tensor(k_pos), dtype=dtype)


def _tensor(positions: Any) -> Tensor:
    return torch.as_tensor(positions)
