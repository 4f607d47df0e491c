"""Positions on arrays: sinusoidal, rotary and ALiBi. The arithmetic is the same for both frameworks: lib.positions."""

import numpy as np
from jaxtyping import Float

from lib.positions import alibi_bias, rotary, rotate_pairs, sinusoidal, slope_of_each_head

__all__ = ["alibi_bias", "alibi_slopes", "rotary", "rotate_pairs", "sinusoidal"]


def alibi_slopes(num_heads: int) -> Float[np.ndarray, " H"]:
    """Give each head the slope of its penalty on distance: a geometric row from steep to flat.

        slope_h = 2^(−8h/H),    h = 1 … H,    for H a power of two

    Parameters
    ----------
    num_heads : int ≥ 1
        H. Between two powers of two n and 2n, the slopes of n heads come first, then the 1st, 3rd, 5th, … of 2n heads,
        until there are H: the rule of the paper's released code.

    Returns
    -------
    (H,), float64

    Raises
    ------
    TypeError, ValueError
        If ``num_heads`` is no positive integer.

    References
    ----------
    Press, Smith and Lewis (2022), "Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation", section 3.

    Examples
    --------
    Four heads, and a fifth with the first slope of eight heads:

    >>> alibi_slopes(4)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625])
    >>> alibi_slopes(5)[4]
    np.float64(0.5)
    """
    return np.array(slope_of_each_head(num_heads))
