"""Joining partial results: attention over some keys and attention over the others give attention over all.

A log-sum-exp is all that a partial result must keep of its scores. It says how much weight its keys would get beside
the others: exp(lse) of each part is the denominator of its softmax, and the joint denominator is their sum.
"""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

from lib import arguments

Partial = tuple[Float[np.ndarray, "*batch L Ev"], Float[np.ndarray, "*batch L"]]


def merge(partials: Iterable[Partial]) -> Partial:
    """Join attention over disjoint sets of keys into attention over all of them.

        lse = log Σᵢ exp(lseᵢ),    output = Σᵢ exp(lseᵢ − lse) · outputᵢ

    The same queries, some of the keys in each part: chunks of a cache, the devices of a ring, a shared beginning.
    The order of the parts and how they are grouped change nothing but the rounding, so partial results can be merged
    again.

    Parameters
    ----------
    partials : iterable of pairs (output, lse), at least one
        ``output`` (..., L, Ev) and ``lse`` (..., L), as ``streaming_attention(..., return_lse=True)`` returns them.
        All outputs share shape and dtype, and so do all lse. Where lse is −∞, a part had nothing to see: what its
        output holds there is not looked at.

    Returns
    -------
    output : (..., L, Ev), of the parts' dtype
    lse : (..., L), of the parts' dtype
        0 and −∞ where every part is empty.

    Raises
    ------
    TypeError
        If ``partials`` is not iterable, holds something other than pairs of floating arrays, or mixes dtypes.
    ValueError
        If there are no partials, or shapes do not fit.

    Notes
    -----
    Computed in float32 at least, one part at a time, so that a generator never holds more than one. A part keeps to
    the keys' own positions: the offset of a part whose first key is key number n is ``offset − n``.

    References
    ----------
    Rabe and Staats (2021), "Self-attention Does Not Need O(n²) Memory", section 3. Liu, Zaharia and Abbeel (2023),
    "Ring Attention with Blockwise Transformers for Near-Infinite Context".

    Examples
    --------
    Two keys with score 0 and value 2, one with score 0 and value 8. Three equal weights: 12 / 3 = 4.

    >>> output, lse = merge([(np.array([[2.0]]), np.log([2.0])), (np.array([[8.0]]), np.log([1.0]))])
    >>> output.round(12)
    array([[4.]])
    >>> np.exp(lse).round(12)
    array([3.])
    """
    joint, top, total = 0.0, -np.inf, 0.0  # the output so far; its lse is top + log(total)
    for output, lse in arguments.check_partials(np.ndarray, partials):
        dtype = np.result_type(output.dtype, lse.dtype, np.float32)
        with np.errstate(all="ignore"):  # exp(−∞), log 0, parts that are not finite
            part = np.where(np.isneginf(lse)[..., None], 0, output)
            part_top = np.minimum(lse, np.finfo(dtype).max)  # of dtype; +∞ would leave NaN to the others
            before, top = top, np.maximum(top, part_top)
            shift = np.where(np.isneginf(top), 0, top)  # where nothing was seen yet: exp(−∞ − 0) = 0
            old, new = total * np.exp(before - shift), np.exp(part_top - shift)  # (..., L), the larger one is 1 or more
            total = old + new
            share = np.where(total == 0, 1, total)
            joint = saturating_sum(joint * (old / share)[..., None], part * (new / share)[..., None])
            merged = joint.astype(output.dtype), (top + np.log(total)).astype(lse.dtype)
    return merged


def saturating_sum(a: Float[np.ndarray, "..."], b: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Add up finite numbers to a finite number: shares of the largest number may sum to a hair more than it."""
    both_finite = np.isfinite(a) & np.isfinite(b)
    return np.where(both_finite, np.clip(a + b, np.finfo(b.dtype).min, np.finfo(b.dtype).max), a + b)
