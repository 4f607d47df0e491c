"""The softmax: from scores to weights that sum to one."""

import numpy as np
from jaxtyping import Float

from lib import arguments


def softmax(scores: Float[np.ndarray, "..."], axis: int = -1) -> Float[np.ndarray, "..."]:
    """Turn scores into weights: exp(score), shared out so that each row sums to one.

        softmax(x)_j = exp(x_j − m) / Σ_k exp(x_k − m),    m = max_k x_k

    Subtracting the maximum changes nothing in the result, since exp(−m) cancels, and keeps exp from overflowing.

    Parameters
    ----------
    scores : (..., S), floating
        One row of scores per query. A score of −∞ gets weight 0.
    axis : int
        The axis whose entries share out the whole: the keys' axis, the last one, in attention.

    Returns
    -------
    (..., S), the dtype of ``scores``
        The weights. Computed in float32 at least. A row of −∞ only, or an empty one, gets weights 0.

    Raises
    ------
    TypeError, ValueError
        If ``scores`` is no floating array, or has no such axis.

    References
    ----------
    Goodfellow, Bengio and Courville (2016), *Deep Learning*, section 4.1, on overflow and the subtracted maximum.

    Examples
    --------
    Two equal scores share the whole; a hidden key leaves it to the other:

    >>> softmax(np.array([0.0, 0.0]))
    array([0.5, 0.5])
    >>> softmax(np.array([0.0, -np.inf]))
    array([1., 0.])
    """
    arguments.require_array("scores", scores, np.ndarray)
    if arguments.dtype_name(scores) not in arguments.FLOATS:
        raise TypeError(f"scores must be floating, got {arguments.dtype_name(scores)}")
    axis = arguments.require_integer("axis", axis)
    if not -scores.ndim <= axis < scores.ndim:
        raise ValueError(f"axis must be one of scores' {scores.ndim} axes, got {axis} for shape {scores.shape}")
    x = np.asarray(scores, dtype=np.result_type(scores.dtype, np.float32))
    with np.errstate(all="ignore"):  # a small share may become 0; NaN or +∞ gives a row of NaN, not a warning
        top = x.max(axis, keepdims=True, initial=-np.inf)
        exponentials = np.exp(x - np.where(np.isneginf(top), 0, top))  # a row of −∞ becomes a row of exp(−∞) = 0
        total = exponentials.sum(axis, keepdims=True)
        weights = exponentials / np.where(total == 0, 1, total)
    return weights.astype(scores.dtype, copy=False)
