"""Scaled dot-product attention as the equation says it: softmax(QKᵀ/√E + bias)V over the keys a query may see.

Everything a reader should be able to check is in :func:`attend`, a dozen lines of it. The rest fills in the options
and looks after the corners: what stands at a hidden position, queries that see nothing, products beyond the dtype's
range.
"""

import math

import numpy as np
from jaxtyping import Bool, Float, Int

from lib import arguments, masks
from lib.reference.softmax import softmax


def attention(
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
    return_weights: bool = False,
) -> Float[np.ndarray, "*batch L Ev"] | tuple[Float[np.ndarray, "*batch L Ev"], Float[np.ndarray, "*batch L S"]]:
    """Average the values, each weighted by how well its key matches the query.

        output = softmax(softcap(scale · Q Kᵀ) + bias) V,  over the keys that mask, causal and window all allow

    Axes: L queries, S keys, E head size, Ev value size, B batch, H query heads, G key/value heads. Heads are axis −3:
    (B, H, L, E). All leading axes broadcast.

    Parameters
    ----------
    query : (..., L, E), floating
    key : (..., S, E)
    value : (..., S, Ev)
        Of one dtype: float16, float32 or float64 (bfloat16 and long double, where NumPy knows them).
    mask : boolean, broadcasts to (..., L, S)
        True = this query may attend to this key.
    bias : of query's dtype, broadcasts to (..., L, S)
        Added to the scores after scale and softcap. −∞ blocks as the mask does.
    causal : bool
        Each query sees the keys at its own position and before. Needs ``offset`` when L ≠ S.
    window : (left, right)
        A query at position i sees the keys from i − left to i + right, itself not counted. None on a side: no bound.
        Needs ``offset`` when L ≠ S.
    offset : int, or integers of shape (B,)
        The position of the first query among the keys, for all or for each batch entry. 0 unless given.
    scale : float
        What the products are multiplied by, 1/√E unless given. Any given number is used as it is, 0 too.
    softcap : float > 0
        Bounds the scores smoothly before mask and bias: softcap · tanh(score / softcap).
    enable_gqa : bool
        Let each of G key/value heads serve H/G query heads in a row.
    return_weights : bool
        Also return the weights.

    Returns
    -------
    output : (..., L, Ev), of query's dtype
    weights : (..., L, S), of query's dtype; only with ``return_weights``
        Each row sums to one. A query that may attend to nothing has output 0 and weights 0.

    Raises
    ------
    TypeError
        If an argument is of the wrong type, or a dtype is an integer or differs between the arrays.
    ValueError
        If shapes do not fit, a number is out of range, or L ≠ S with causal or window and no offset.

    Notes
    -----
    What stands at a position that a query may not see does not change that query's output by a bit, NaN and infinity
    included. The softmax runs in float32 at least. Rows whose finite inputs give scores beyond the dtype's range are
    computed again in float64 at least, where scores stop at the largest number instead of turning into NaN.

    References
    ----------
    Vaswani et al. (2017), "Attention Is All You Need", section 3.2.1. Grouped heads: Ainslie et al. (2023), "GQA".

    Examples
    --------
    One query and two keys with equal scores, values 2 and 8: the average, 5. With the second key hidden: 2.

    >>> query, key, value = np.zeros((1, 1)), np.zeros((2, 1)), np.array([[2.0], [8.0]])
    >>> attention(query, key, value)
    array([[5.]])
    >>> attention(query, key, value, mask=np.array([[True, False]]), return_weights=True)
    (array([[2.]]), array([[1., 0.]]))
    """
    call = arguments.check(
        np.ndarray, query, key, value, mask=mask, bias=bias, causal=causal, window=window, offset=offset,
        scale=scale, softcap=softcap, enable_gqa=enable_gqa,
    )  # fmt: skip
    arguments.require_bool("return_weights", return_weights)
    allowed = allowed_pairs(call, mask, bias)
    if call.repeats != 1:  # 0 where there are no query heads
        key, value = (np.repeat(x, call.repeats, axis=-3) for x in (key, value))
    dtype = np.result_type(query.dtype, np.float32)
    output, weights, overflowed = attend(query, key, value, allowed, bias, call, dtype)
    if overflowed.any():
        wide = np.result_type(query.dtype, np.float64)
        again = attend(query, key, value, allowed, bias, call, wide, saturate=True)
        output = np.where(overflowed[..., None], again[0], output)
        weights = np.where(overflowed[..., None], again[1], weights)
    output = np.broadcast_to(output, (*call.batch, call.L, call.Ev)).astype(query.dtype)
    if return_weights:
        return output, np.broadcast_to(weights, call.scores_shape).astype(query.dtype)
    return output


def attend(
    query: Float[np.ndarray, "*batch L E"],
    key: Float[np.ndarray, "*batch S E"],
    value: Float[np.ndarray, "*batch S Ev"],
    allowed: Bool[np.ndarray, "*batch L S"],
    bias: Float[np.ndarray, "*batch L S"] | None,
    call: arguments.Call,
    dtype: np.dtype,
    saturate: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute output, weights, and which rows left the dtype's range: the textbook body of attention."""
    query, key, value = (np.asarray(x, dtype=dtype) for x in (query, key, value))
    with np.errstate(all="ignore"):  # rows that leave the range are found below and done again
        scores, in_range = masked_scores(query, key, allowed, bias, call, saturate)  # (..., L, S)
        weights = np.where(allowed, softmax(scores), 0)  # each row sums to one; where: hidden stays 0 in a row of NaN
        output = weighted_sum(weights, value, allowed)  # (..., L, Ev)
    return output, weights, ~(in_range & np.isfinite(output).all(-1))


def masked_scores(
    query: Float[np.ndarray, "*batch L E"],
    key: Float[np.ndarray, "*batch S E"],
    allowed: Bool[np.ndarray, "*batch L S"],
    bias: Float[np.ndarray, "*batch L S"] | None,
    call: arguments.Call,
    saturate: bool,
) -> tuple[Float[np.ndarray, "*batch L S"], Bool[np.ndarray, "*batch L"]]:
    """Compute how well each query matches each key, −∞ where hidden, and which rows stayed in the dtype's range."""
    scores = query @ key.swapaxes(-1, -2) * call.scale  # (..., L, S)
    if saturate:
        scores = np.where(np.isfinite(scores), scores, saturating_scores(query, key, call.scale))
    in_range = np.isfinite(scores)  # before softcap, which would make a bounded number of an overflow
    if call.softcap is not None:
        scores = call.softcap * np.tanh(scores / call.softcap)
    if bias is not None:
        scores = scores + bias
    if saturate:
        scores = np.clip(scores, np.finfo(scores.dtype).min, np.finfo(scores.dtype).max)
    in_range = in_range & np.isfinite(scores) | ~allowed
    return np.where(allowed, scores, -np.inf), in_range.all(-1)


def saturating_scores(
    query: Float[np.ndarray, "*batch L E"], key: Float[np.ndarray, "*batch S E"], scale: float
) -> Float[np.ndarray, "*batch L S"]:
    """Compute scale · Q Kᵀ without an overflow on the way: powers of two are taken out first and put back last."""
    q_power, k_power = (np.frexp(largest_entry(x))[1] for x in (query, key))  # (..., L, 1), (..., S, 1)
    products = np.ldexp(query, -q_power) @ np.ldexp(key, -k_power).swapaxes(-1, -2)  # (..., L, S), at most E in size
    factor, power = math.frexp(scale)
    return np.ldexp(products * factor, q_power + k_power.swapaxes(-1, -2) + power)


def largest_entry(x: Float[np.ndarray, "... E"]) -> Float[np.ndarray, "... 1"]:
    """Give the size of the largest entry of each row, and 1 where it is not finite."""
    size = np.abs(x).max(-1, keepdims=True, initial=0)
    return np.where(np.isfinite(size), size, 1)


def weighted_sum(
    weights: Float[np.ndarray, "*batch L S"],
    value: Float[np.ndarray, "*batch S Ev"],
    allowed: Bool[np.ndarray, "*batch L S"],
) -> Float[np.ndarray, "*batch L Ev"]:
    """Compute weights · value such that a value which a query may not see cannot touch it.

    A plain product would let NaN and infinity through, since 0 · NaN is NaN. So the finite values are multiplied
    alone, and what else a query may see is then written over its output: infinity, or NaN.
    """
    finite = np.isfinite(value)
    limits = np.finfo(value.dtype).min, np.finfo(value.dtype).max  # weights may sum to a hair more than one
    output = np.clip(weights @ (value if finite.all() else np.where(finite, value, 0)), *limits)
    output = output + 0.0  # −0 becomes 0: a hidden negative value may not even leave its sign
    if finite.all():
        return output
    up, down = meets(allowed, value == np.inf), meets(allowed, value == -np.inf)
    undefined = meets(allowed, np.isnan(value)) | meets(allowed & (weights == 0), np.isinf(value)) | (up & down)
    return np.where(undefined, np.nan, np.where(up, np.inf, np.where(down, -np.inf, output)))


def meets(pairs: Bool[np.ndarray, "*batch L S"], marked: Bool[np.ndarray, "*batch S Ev"]) -> np.ndarray:
    """Tell for each query and column whether one of the query's keys is marked: (..., L, Ev)."""
    return pairs.astype(np.float32) @ marked.astype(np.float32) > 0


def allowed_pairs(
    call: arguments.Call, mask: Bool[np.ndarray, "*batch L S"] | None, bias: Float[np.ndarray, "*batch L S"] | None
) -> Bool[np.ndarray, "*batch L S"]:
    """Combine every restriction of a call: a key is seen only where mask, bias, causal and window all allow it."""
    allowed = np.ones((call.L, call.S), dtype=bool)
    if mask is not None:
        allowed = allowed & mask
    if bias is not None:
        allowed = allowed & ~np.isneginf(bias)
    q_pos = np.asarray(call.offset, dtype=np.int64) + np.arange(call.L)  # (..., L)
    k_pos = np.arange(call.S)
    if call.causal:
        allowed = allowed & masks.causal(q_pos, k_pos)
    if call.window != (None, None):
        allowed = allowed & masks.sliding_window(q_pos, k_pos, *call.window)
    return allowed
