"""Telling order apart: sinusoidal and rotary positions, and ALiBi. One definition for NumPy and torch.

Attention alone does not know the order of its keys. Three ways to tell it:

``sinusoidal``
    a vector of sines for each position, added to the input;
``rotary``
    queries and keys turned by angles that grow with their positions, so that scores depend on the distance only;
``alibi_bias``
    a penalty on each score that grows with the distance.

Positions are given, never guessed: with a cache the next one is the number of tokens seen so far, however many of
their keys are still held. They are integers, or real numbers where positions are stretched.
"""

import sys
from typing import Any

import numpy as np
from jaxtyping import Float, Real

from lib import arguments

__all__ = ["alibi_bias", "rotary", "rotate_pairs", "sinusoidal"]

PAIRINGS = ("interleaved", "half")


def sinusoidal(
    positions: Real[Any, "*batch L"], dim: int, base: float = 10000.0, *, dtype: Any = None
) -> Float[Any, "*batch L dim"]:
    """Give each position a vector of sines and cosines, from fast waves to slow ones.

        P[pos, 2i] = sin(pos / base^(2i/dim)),    P[pos, 2i + 1] = cos(pos / base^(2i/dim))

    Parameters
    ----------
    positions : (..., L), integers or real numbers
        An array or a list, or a tensor; the result is of the same framework.
    dim : even int ≥ 0
        The size of the vectors.
    base : float > 0
        The slowest wave is almost base · 2π positions long.
    dtype : floating dtype
        Of the result: float64 for arrays and torch's default dtype for tensors, unless given. Computed in float64.

    Returns
    -------
    (..., L, dim)

    Raises
    ------
    TypeError, ValueError
        If ``positions`` holds no real numbers, ``dim`` is odd or negative, or ``base`` is not positive.

    References
    ----------
    Vaswani et al. (2017), "Attention Is All You Need", section 3.5.

    Examples
    --------
    Position 0 is sin 0 and cos 0. With base 4, the second wave runs at half the speed of the first:

    >>> sinusoidal([0, 1, 2], 4, base=4).round(2)
    array([[ 0.  ,  1.  ,  0.  ,  1.  ],
           [ 0.84,  0.54,  0.48,  0.88],
           [ 0.91, -0.42,  0.84,  0.54]])
    """
    positions = _reals(positions, "positions", axes=1)
    angles = _angles(positions, _even("dim", dim), base)  # (..., L, dim/2)
    xp = _framework(angles)
    waves = xp.stack([xp.sin(angles), xp.cos(angles)], -1)  # (..., L, dim/2, 2)
    return _cast(waves.reshape(*positions.shape, dim), _result_dtype(xp, dtype))


def rotary(
    x: Float[Any, "*batch L E"],
    positions: Real[Any, "*entries L"],
    *,
    pairing: str = "interleaved",
    base: float = 10000.0,
    rotary_dim: int | None = None,
) -> Float[Any, "*batch L E"]:
    """Turn each pair of features by an angle that grows with the position.

        (a, b) ↦ (a cos φ − b sin φ, a sin φ + b cos φ),    φ = position / base^(2i/rotary_dim) for pair i

    Queries and keys are turned, values are not. The product of a turned query and a turned key depends on the
    difference of their positions only, and no vector changes its length.

    Parameters
    ----------
    x : (..., L, E), floating
        Queries or keys, with heads (B, H, L, E).
    positions : (L,), or one row for each batch entry: (B, L)
        Where each of the L stands. Leading axes are matched with the first axes of ``x``, and are the same for all
        heads.
    pairing : "interleaved" or "half"
        Which features are a pair: neighbours (0, 1), (2, 3), …, as in the paper; or feature i of the first half with
        feature i of the second, as in GPT-NeoX and Llama checkpoints of the transformers library. The same up to a
        permutation of features, and wrong when mixed.
    base : float > 0
        How much slower the last pair turns than the first, almost.
    rotary_dim : even int from 0 to E
        Turn the first ``rotary_dim`` features and leave the rest. E unless given.

    Returns
    -------
    (..., L, E), of x's dtype
        Angles are computed in float64, the rotation in float32 at least.

    Raises
    ------
    TypeError, ValueError
        If ``x`` is not floating, positions do not fit, ``pairing`` is unknown, ``rotary_dim`` is odd or too large, or
        ``base`` is not positive.

    References
    ----------
    Su et al. (2021), "RoFormer: Enhanced Transformer with Rotary Position Embedding", sections 3.2 and 3.4.

    Examples
    --------
    A quarter of a turn takes (1, 0) to (0, 1), and half a turn to (−1, 0):

    >>> x = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    >>> rotary(x, [0, np.pi / 2, np.pi]).round(2) + 0
    array([[ 1.,  0.],
           [ 0.,  1.],
           [-1.,  0.]])
    """
    _require_floating("x", x, "(..., L, E)")
    E = x.shape[-1]
    rotary_dim = _even("x's last axis", E) if rotary_dim is None else _even("rotary_dim", rotary_dim)
    if rotary_dim > E:
        raise ValueError(f"rotary_dim must be at most E = {E}, got {rotary_dim}")
    positions = _facing_queries(_reals_like(positions, x), x)  # (..., L)
    angles = _angles(positions, rotary_dim, base)  # (..., L, rotary_dim/2)
    xp = _framework(x)
    return rotate_pairs(x, xp.cos(angles), xp.sin(angles), pairing=pairing)


def rotate_pairs(
    x: Float[Any, "*batch L E"], cos: Float[Any, "*batch L pairs"], sin: Float[Any, "*batch L pairs"], *, pairing: str
) -> Float[Any, "*batch L E"]:
    """Turn pair i of features by the angle whose cosine and sine are given: what :func:`rotary` does once it has them.

    Parameters
    ----------
    x : (..., L, E), floating
    cos, sin : broadcast to (..., L, pairs)
        For the first 2 · pairs features; the rest is left as it is.
    pairing : "interleaved" or "half"
        As in :func:`rotary`.

    Returns
    -------
    (..., L, E), of x's dtype

    Raises
    ------
    TypeError, ValueError
        If ``x``, ``cos`` or ``sin`` is not floating, there are more pairs than features, or ``pairing`` is unknown.

    Examples
    --------
    A quarter of a turn, cosine 0 and sine 1, for features (0, 1) and (2, 3), then for (0, 2) and (1, 3):

    >>> x, zeros, ones = np.array([[1.0, 2.0, 3.0, 4.0]]), np.zeros((1, 2)), np.ones((1, 2))
    >>> rotate_pairs(x, zeros, ones, pairing="interleaved")
    array([[-2.,  1., -4.,  3.]])
    >>> rotate_pairs(x, zeros, ones, pairing="half")
    array([[-3., -4.,  1.,  2.]])
    """
    for name, array in (("x", x), ("cos", cos), ("sin", sin)):
        _require_floating(name, array, "(..., L, features)")
    require_pairing("pairing", pairing)
    pairs = cos.shape[-1]
    if sin.shape[-1] != pairs:
        raise ValueError(f"cos and sin must have one entry for each pair, got {tuple(cos.shape)}, {tuple(sin.shape)}")
    if 2 * pairs > x.shape[-1]:
        raise ValueError(f"cos and sin must have at most E/2 = {x.shape[-1] // 2} pairs, got {pairs}")
    for name, array in (("cos", cos), ("sin", sin)):
        if not _broadcasts(array.shape[:-1], x.shape[:-1]):
            wanted = (*x.shape[:-1], pairs)
            raise ValueError(f"{name} must broadcast to (..., L, pairs) = {wanted}, got {tuple(array.shape)}")
    xp = _framework(x)
    compute = xp.promote_types(x.dtype, xp.float32)
    cos, sin = _cast(cos, compute), _cast(sin, compute)
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if pairing == "interleaved":
        a, b, axis = turned[..., 0::2], turned[..., 1::2], -1  # (a, b), (a, b), …
    else:
        a, b, axis = turned[..., :pairs], turned[..., pairs:], -2  # (a, a, …), (b, b, …)
    a, b = a * cos - b * sin, a * sin + b * cos  # (..., L, pairs), half precision times float32 is float32
    turned = xp.stack([a, b], axis).reshape(turned.shape)
    return xp.concatenate([_cast(turned, x.dtype), rest], -1)


def alibi_bias(
    num_heads: int, q_pos: Real[Any, "*batch L"], k_pos: Real[Any, "*batch S"], *, dtype: Any = None
) -> Float[Any, "*batch H L S"]:
    """Penalise distance: each head subtracts its slope times how far the key is from the query.

        bias[h, i, j] = −slope_h · abs(q_pos[i] − k_pos[j])

    Parameters
    ----------
    num_heads : int ≥ 1
        H. The slopes are those of ``alibi_slopes(num_heads)``.
    q_pos, k_pos : (..., L) and (..., S), integers or real numbers
        Where queries and keys stand, as for a mask. Arrays or lists, or tensors.
    dtype : floating dtype
        Of the result, which attention wants to be query's. float64 for arrays and torch's default dtype for tensors,
        unless given.

    Returns
    -------
    (..., H, L, S)
        For attention's ``bias``; the causal mask is given besides. The paper is about causal attention, where keys
        stand before the query; on the other side the same penalty is used.

    Raises
    ------
    TypeError, ValueError
        If ``num_heads`` is no positive integer, or positions are no real numbers.

    References
    ----------
    Press, Smith and Lewis (2022), "Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation", section 3.

    Examples
    --------
    Two heads have the slopes 1/16 and 1/256:

    >>> alibi_bias(2, [0, 1, 2], [0, 1, 2])[0]
    array([[ 0.    , -0.0625, -0.125 ],
           [-0.0625,  0.    , -0.0625],
           [-0.125 , -0.0625,  0.    ]])
    """
    slopes = slope_of_each_head(num_heads)
    q, k = _reals(q_pos, "q_pos", axes=1), _reals(k_pos, "k_pos", axes=1)
    if isinstance(q, np.ndarray) != isinstance(k, np.ndarray):
        raise TypeError(f"q_pos and k_pos must be of one framework, got {type(q).__name__} and {type(k).__name__}")
    xp = _framework(q)
    distances = abs(q[..., None, :, None] - k[..., None, None, :])  # (..., 1, L, S)
    bias = 0 - _reals_like(slopes, distances)[:, None, None] * distances  # (..., H, L, S)
    dtype = _result_dtype(xp, dtype)
    return _cast(xp.clip(bias, float(xp.finfo(dtype).min), None), dtype)  # far away is far away, and never −∞


def slope_of_each_head(num_heads: int) -> list[float]:
    """List ALiBi's slopes: 2^(−8/H), 2^(−16/H), …, 2^(−8); other H take every second slope of twice as many heads.

    For H heads that are no power of two the rule is that of the paper's released code: the slopes of n heads, the
    largest power of two below H, and then the 1st, 3rd, 5th, … slope of 2n heads.
    """
    H = arguments.require_integer("num_heads", num_heads, 1)
    n = 2 ** (H.bit_length() - 1)

    def geometric(heads: int) -> list[float]:
        return [2.0 ** (-8 * i / heads) for i in range(1, heads + 1)]

    return (geometric(n) + geometric(2 * n)[0::2])[:H]


def require_pairing(name: str, pairing: Any) -> None:
    """Raise unless ``pairing`` is one of the two that are in use."""
    if pairing not in PAIRINGS:
        raise ValueError(f"{name} must be one of {', '.join(PAIRINGS)}, got {pairing!r}")


def _angles(positions: Any, dim: int, base: float) -> Any:
    """Multiply each position by each pair's speed, base^(−2i/dim), in float64: (...) to (..., dim/2)."""
    base = arguments.require_real("base", base)
    if base <= 0:
        raise ValueError(f"base must be positive, got {base}")
    speeds = [base ** (-2 * i / dim) for i in range(dim // 2)]
    return positions[..., None] * _reals_like(speeds, positions)


def _facing_queries(positions: Any, x: Any) -> Any:
    """Put size-1 axes for the heads between the batch entries and L, so that positions face (..., L)."""
    *batch, L = x.shape[:-1]
    *entries, length = positions.shape
    fits = length == L and len(entries) <= len(batch)
    if not (fits and all(n in (1, m) for n, m in zip(entries, batch, strict=False))):
        wanted = f"({L},)" + (f" or one row for each batch entry ({batch[0]}, {L})" if batch else "")
        raise ValueError(f"positions must have shape {wanted}, got {tuple(positions.shape)}")
    return positions.reshape(*entries, *(1,) * (len(batch) - len(entries)), L)


def _broadcasts(shape: Any, to: Any) -> bool:
    try:
        return np.broadcast_shapes(tuple(shape), tuple(to)) == tuple(to)
    except ValueError:
        return False


def _even(name: str, number: Any) -> int:
    number = arguments.require_integer(name, number, 0)
    if number % 2 != 0:
        raise ValueError(f"{name} must be even, since features are turned in pairs, got {number}")
    return number


def _reals(x: Any, name: str, axes: int) -> Any:
    """Give ``x`` as a float64 array, or as a float64 tensor when it is a tensor."""
    x = x if _is_tensor(x) else np.asarray(x)
    kind = arguments.dtype_name(x)
    if not kind.startswith(("int", "uint", "float", "bfloat")):
        raise TypeError(f"{name} must hold integers or real numbers, got {kind}")
    if len(x.shape) < axes:
        raise ValueError(f"{name} must have a position axis, such as [0, 1, 2]; got the single number {x.item()}")
    return _cast(x, _framework(x).float64)


def _reals_like(numbers: Any, like: Any, name: str = "positions") -> Any:
    """Give ``numbers`` in float64 in the framework and on the device of ``like``."""
    numbers = _reals(numbers, name, axes=1)
    if isinstance(like, np.ndarray):
        if _is_tensor(numbers):
            raise TypeError(f"{name} must be a list or an array, as x is an array, got a tensor")
        return numbers
    return (numbers if _is_tensor(numbers) else _framework(like).from_numpy(numbers)).to(like.device)


def _require_floating(name: str, x: Any, wanted: str) -> None:
    if not (isinstance(x, np.ndarray) or _is_tensor(x)):
        raise TypeError(f"{name} must be an array or a tensor, got {type(x).__name__}")
    if arguments.dtype_name(x) not in arguments.FLOATS:
        raise TypeError(f"{name} must be floating, got {arguments.dtype_name(x)}")
    if len(x.shape) < 2:
        raise ValueError(f"{name} must have shape {wanted}, got {tuple(x.shape)}")


def _is_tensor(x: Any) -> bool:
    return hasattr(x, "requires_grad")  # known by what it has: this module never needs torch


def _framework(x: Any) -> Any:
    """Give the module whose functions work on ``x``: NumPy, or torch, which is loaded if there is a tensor."""
    return np if isinstance(x, np.ndarray) else sys.modules["torch"]


def _result_dtype(xp: Any, dtype: Any) -> Any:
    """Give the dtype that was asked for, if it is floating, or the framework's default."""
    if dtype is None:
        return np.float64 if xp is np else xp.get_default_dtype()
    name = np.dtype(dtype).name if xp is np else str(dtype).removeprefix("torch.")
    if name not in arguments.FLOATS:
        raise TypeError(f"dtype must be floating, got {name}")
    return dtype


def _cast(x: Any, dtype: Any) -> Any:
    return x.astype(dtype, copy=False) if isinstance(x, np.ndarray) else x.to(dtype)
