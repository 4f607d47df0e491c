"""Partial results in torch: attention that also returns its log-sum-exp, and the joining of such results.

:mod:`lib.reference.merging` says why a log-sum-exp is all that a partial result must keep. Here the same two lines
carry gradients, so that a model may attend to some keys here and to others there, and still be trained.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lib import arguments
from lib.fast.attention import textbook

Partial = tuple[Float[Tensor, "*batch L Ev"], Float[Tensor, "*batch L"]]


def attention_with_lse(
    query: Float[Tensor, "*batch L E"],
    key: Float[Tensor, "*batch S E"],
    value: Float[Tensor, "*batch S Ev"],
    *,
    mask: Bool[Tensor, "*batch L S"] | None = None,
    bias: Float[Tensor, "*batch L S"] | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    offset: int | Int[Tensor, " B"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    enable_gqa: bool = False,
) -> Partial:
    """Compute :func:`lib.fast.attention` and the log-sum-exp of each row of scores, both with gradients.

        lse = log Σⱼ exp(scoreⱼ),  over the keys that the query may see

    Parameters
    ----------
    query, key, value, mask, bias, causal, window, offset, scale, softcap, enable_gqa
        As in :func:`lib.fast.attention`.

    Returns
    -------
    output : (..., L, Ev), of query's dtype
    lse : (..., L), float32 for half precision, otherwise of query's dtype
        Natural logarithm, scores after scale, softcap and bias. −∞ for a query that may see nothing. It stops at the
        dtype's largest number.

    Raises
    ------
    TypeError, ValueError
        As in :func:`lib.fast.attention`.

    Notes
    -----
    Computed by the "math" body, whose notes in :func:`lib.fast.attention` hold here: torch's fused kernels give no
    gradient to a log-sum-exp.

    Examples
    --------
    Two equal scores of 0: the average of the values, and log 2.

    >>> query, key, value = torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([[2.0], [8.0]])
    >>> attention_with_lse(query, key, value)
    (tensor([[5.]]), tensor([0.6931]))
    """
    call = arguments.check(
        Tensor, query, key, value, mask=mask, bias=bias, causal=causal, window=window, offset=offset,
        scale=scale, softcap=softcap, enable_gqa=enable_gqa,
    )  # fmt: skip
    output, _, lse = textbook(query, key, value, mask, bias, call, dropout_p=0.0)
    return output, lse


def merge(partials: Iterable[Partial]) -> Partial:
    """Join attention over disjoint sets of keys into attention over all of them.

        lse = log Σᵢ exp(lseᵢ),    output = Σᵢ exp(lseᵢ − lse) · outputᵢ

    Parameters
    ----------
    partials : iterable of pairs (output, lse), at least one
        ``output`` (..., L, Ev) and ``lse`` (..., L), as :func:`lib.fast.attention_with_lse` returns them, on one
        device. All outputs share shape and dtype, and so do all lse. Where lse is −∞, a part had nothing to see: what
        its output holds there is not looked at.

    Returns
    -------
    output : (..., L, Ev), of the parts' dtype
    lse : (..., L), of the parts' dtype
        0 and −∞ where every part is empty, with gradients of 0.

    Raises
    ------
    TypeError
        If ``partials`` is not iterable, holds something other than pairs of floating tensors, or mixes dtypes.
    ValueError
        If there are no partials, or shapes or devices do not fit.

    Notes
    -----
    As in :func:`lib.reference.merge`: associative and commutative up to rounding, computed in float32 at least, and
    one part at a time.

    References
    ----------
    Rabe and Staats (2021), "Self-attention Does Not Need O(n²) Memory", section 3. Liu, Zaharia and Abbeel (2023),
    "Ring Attention with Blockwise Transformers for Near-Infinite Context".

    Examples
    --------
    Two keys with score 0 and value 2, one with score 0 and value 8. Three equal weights: 12 / 3 = 4.

    >>> one = torch.tensor([[2.0]]), torch.tensor([2.0]).log()
    >>> other = torch.tensor([[8.0]]), torch.tensor([1.0]).log()
    >>> output, lse = merge([one, other])
    >>> output, lse.exp()
    (tensor([[4.]]), tensor([3.]))
    """
    joint = top = total = None  # the output so far; its lse is top + log(total)
    for output, lse in arguments.check_partials(Tensor, partials):
        dtype = torch.promote_types(torch.promote_types(output.dtype, lse.dtype), torch.float32)
        part = output.masked_fill(lse.isneginf()[..., None], 0)
        part_lse = lse.to(dtype).clamp(max=torch.finfo(dtype).max)  # +∞ would leave NaN to the others
        if joint is None:
            joint, total = torch.zeros_like(part), torch.zeros_like(part_lse)
            top = torch.full_like(part_lse, -torch.inf)
        before, top = top, torch.maximum(top, part_lse.detach())
        shift = top.masked_fill(top.isneginf(), 0)  # where nothing was seen yet: exp(−∞ − 0) = 0
        old, new = total * torch.exp(before - shift), torch.exp(part_lse - shift)  # (..., L), the larger is 1 or more
        total = old + new
        share = total.masked_fill(total == 0, 1)
        joint = _saturating_sum(joint * (old / share)[..., None], part * (new / share)[..., None])
        joint_lse = top + share.log()
    return joint.to(output.dtype), joint_lse.to(lse.dtype)


def _saturating_sum(a: Float[Tensor, "..."], b: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Add up finite numbers to a finite number: shares of the largest number may sum to a hair more than it."""
    limits = torch.finfo(a.dtype).min, torch.finfo(a.dtype).max
    return torch.where(a.detach().isfinite() & b.detach().isfinite(), (a + b).clamp(*limits), a + b)
