"""Scaled dot-product attention in torch: what you would run, on CPU and GPU, with gradients.

Two bodies compute the same thing. :func:`sdpa` hands the work to torch's fused kernels; :func:`textbook` is the plain
body, for what the kernels lack (softcap, weights, dropout that spares the returned weights) and for the corners where
they are not exact.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lib import arguments, masks

BACKENDS = ("auto", "sdpa", "math")


def attention(
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
    return_weights: bool = False,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "*batch L Ev"] | tuple[Float[Tensor, "*batch L Ev"], Float[Tensor, "*batch L S"]]:
    """Average the values, each weighted by how well its key matches the query.

        output = softmax(softcap(scale · Q Kᵀ) + bias) V,  over the keys that mask, causal and window all allow

    The options, their shapes and their errors are those of :func:`lib.reference.attention`; two are added. Gradients
    flow to query, key, value and bias.

    Parameters
    ----------
    query, key, value : (..., L, E), (..., S, E), (..., S, Ev), floating
        Of one dtype (float16, bfloat16, float32, float64) and on one device.
    mask, bias, causal, window, offset, scale, softcap, enable_gqa, return_weights
        As in :func:`lib.reference.attention`.
    dropout_p : float from 0 to 1
        Drop each weight with this probability and scale up the others. Whoever calls decides when: pass 0 in
        evaluation. Returned weights are those before dropout, so their rows sum to one.
    backend : "auto", "sdpa" or "math"
        Which body computes it. "auto" takes SDPA's kernels where they can do what is asked.

    Returns
    -------
    output : (..., L, Ev), of query's dtype
    weights : (..., L, S), of query's dtype; only with ``return_weights``
        A query that may attend to nothing has output 0, weights 0 and finite gradients.

    Raises
    ------
    TypeError, ValueError
        As in :func:`lib.reference.attention`; and ValueError if ``dropout_p`` is out of range, ``backend`` is
        unknown, or "sdpa" is asked for what it cannot do.

    Notes
    -----
    What stands at hidden positions, by backend. "math": changes nothing, NaN and infinity included, nor do the
    gradients. "sdpa": finite values change nothing; NaN and infinity leak (0 · NaN is NaN inside the kernels).
    "auto": as "math" on the CPU, where a result that is not finite is computed again by "math"; elsewhere as "sdpa",
    since looking would make the CPU wait for the device. Where finite inputs give scores beyond the dtype's range,
    "math" computes again in float64, and scores stop at the largest number instead of turning into NaN.

    References
    ----------
    Vaswani et al. (2017), "Attention Is All You Need", section 3.2.1.

    Examples
    --------
    One query and two keys with equal scores, values 2 and 8: the average, 5. With the second key hidden: 2.

    >>> query, key, value = torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([[2.0], [8.0]])
    >>> attention(query, key, value)
    tensor([[5.]])
    >>> attention(query, key, value, mask=torch.tensor([[True, False]]), return_weights=True)
    (tensor([[2.]]), tensor([[1., 0.]]))
    """
    call = arguments.check(
        Tensor, query, key, value, mask=mask, bias=bias, causal=causal, window=window, offset=offset,
        scale=scale, softcap=softcap, enable_gqa=enable_gqa,
    )  # fmt: skip
    arguments.require_bool("return_weights", return_weights)
    if not 0 <= arguments.require_real("dropout_p", dropout_p) <= 1:
        raise ValueError(f"dropout_p must lie between 0 and 1, got {dropout_p}")
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    lacking = [name for name, asked in (("softcap", softcap is not None), ("return_weights", return_weights)) if asked]
    if backend == "sdpa" and lacking:
        raise ValueError(f"backend 'sdpa' has no {' and no '.join(lacking)}; use backend='auto' or 'math'")

    if backend == "sdpa" or (backend == "auto" and not lacking and dropout_p == 0):
        output = sdpa(query, key, value, mask, bias, call, dropout_p)
        if backend == "sdpa" or output.device.type != "cpu" or _is_finite(output):
            return output
    output, weights = textbook(query, key, value, mask, bias, call, dropout_p)
    return (output, weights) if return_weights else output


def sdpa(
    query: Float[Tensor, "*batch L E"],
    key: Float[Tensor, "*batch S E"],
    value: Float[Tensor, "*batch S Ev"],
    mask: Bool[Tensor, "*batch L S"] | None,
    bias: Float[Tensor, "*batch L S"] | None,
    call: arguments.Call,
    dropout_p: float = 0.0,
) -> Float[Tensor, "*batch L Ev"]:
    """Compute the output with torch's fused kernels, which want four axes: (batch, heads, length, size)."""
    if 0 in (*call.scores_shape, call.E, call.Ev):  # nothing to fuse, and some kernels divide by a size
        return textbook(query, key, value, mask, bias, call, dropout_p)[0]
    restricted = mask is not None or bias is not None or call.window != (None, None)
    top_left = isinstance(call.offset, int) and call.offset == 0
    is_causal = call.causal and top_left and not restricted  # the kernels' own causal is top-left
    attn_mask = None
    if not is_causal and (restricted or call.causal):
        attn_mask = allowed_pairs(call, mask, bias, query.device)
        if bias is not None:
            attn_mask = bias.masked_fill(~attn_mask, -torch.inf)  # the kernels take one mask: fold both into it
        attn_mask = _four_axes(attn_mask.expand(call.scores_shape))
    query, key, value = (_four_axes(x) for x in broadcast_heads(query, key, value, call))
    output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=call.scale
    )
    return output.reshape(*call.batch, call.L, call.Ev)


def textbook(
    query: Float[Tensor, "*batch L E"],
    key: Float[Tensor, "*batch S E"],
    value: Float[Tensor, "*batch S Ev"],
    mask: Bool[Tensor, "*batch L S"] | None,
    bias: Float[Tensor, "*batch L S"] | None,
    call: arguments.Call,
    dropout_p: float = 0.0,
) -> tuple[Float[Tensor, "*batch L Ev"], Float[Tensor, "*batch L S"]]:
    """Compute output and weights as the equation says, in float32 at least; in float64 where scores overflow."""
    allowed = allowed_pairs(call, mask, bias, query.device)
    arrays = broadcast_heads(query, key, value, call)
    dtype = torch.promote_types(query.dtype, torch.float32)
    output, weights, in_range = _attend(*(x.to(dtype) for x in arrays), allowed, bias, call, dropout_p)
    if not in_range:
        output, weights, _ = _attend(*(x.double() for x in arrays), allowed, bias, call, dropout_p, saturate=True)
    return output.to(query.dtype), weights.to(query.dtype)


def _attend(
    query: Float[Tensor, "*batch L E"],
    key: Float[Tensor, "*batch S E"],
    value: Float[Tensor, "*batch S Ev"],
    allowed: Bool[Tensor, "*batch L S"],
    bias: Float[Tensor, "*batch L S"] | None,
    call: arguments.Call,
    dropout_p: float,
    saturate: bool = False,
) -> tuple[Tensor, Tensor, bool]:
    scores = _saturating_scores(query, key, call.scale) if saturate else _products(query, key) * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if bias is not None:
        scores = scores + bias
    if saturate:
        scores = scores.clamp(torch.finfo(scores.dtype).min, torch.finfo(scores.dtype).max)
    scores = scores.masked_fill(~allowed, -torch.inf)  # (..., L, S)
    weights = _softmax(scores)
    output = _weighted_sum(F.dropout(weights, dropout_p), value, allowed)  # (..., L, Ev)
    in_range = bool((scores.isfinite() | ~allowed).all()) and _is_finite(output)
    return output, weights, in_range


def _softmax(scores: Float[Tensor, "*batch L S"]) -> Float[Tensor, "*batch L S"]:
    """Share out each row; a row of −∞ only gets weights 0, and a gradient of 0 rather than NaN."""
    if scores.shape[-1] == 0:
        return scores
    top = scores.detach().amax(-1, keepdim=True)
    exponentials = torch.exp(scores - top.masked_fill(top.isneginf(), 0))
    total = exponentials.sum(-1, keepdim=True)
    return exponentials / total.masked_fill(total == 0, 1)


def _products(query: Float[Tensor, "*batch L E"], key: Float[Tensor, "*batch S E"]) -> Float[Tensor, "*batch L S"]:
    """Compute Q Kᵀ such that a key of NaN or infinity spoils its own column only, gradients included."""
    finite = key.detach().isfinite()
    if finite.all():
        return query @ key.mT
    usable = finite.all(-1)[..., None, :]  # (..., 1, S)
    with torch.no_grad():
        spoilt = query @ key.mT
    return torch.where(usable, query @ key.masked_fill(~finite, 0).mT, spoilt)


def _saturating_scores(
    query: Float[Tensor, "*batch L E"], key: Float[Tensor, "*batch S E"], scale: float
) -> Float[Tensor, "*batch L S"]:
    """Compute scale · Q Kᵀ without an overflow on the way: each row is divided by its largest entry first."""
    if query.shape[-1] == 0:
        return _products(query, key)
    q_size, k_size = (x.detach().abs().amax(-1, keepdim=True) for x in (query, key))
    q_size, k_size = (torch.where((x > 0) & x.isfinite(), x, 1) for x in (q_size, k_size))
    limits = torch.finfo(query.dtype).min, torch.finfo(query.dtype).max
    return _products(query / q_size, key / k_size) * (q_size * k_size.mT).clamp(*limits) * scale


def _weighted_sum(
    weights: Float[Tensor, "*batch L S"], value: Float[Tensor, "*batch S Ev"], allowed: Bool[Tensor, "*batch L S"]
) -> Float[Tensor, "*batch L Ev"]:
    """Compute weights · value such that NaN and infinity reach only the queries that may see them."""
    finite = value.detach().isfinite()
    if finite.all():
        return weights @ value
    output = weights @ value.masked_fill(~finite, 0)
    rest = value.detach().masked_fill(finite, 0)
    allowed = allowed.expand(weights.shape)
    for s in (~finite).nonzero()[:, -2].unique().tolist():
        product = weights[..., s, None] * rest[..., s, None, :]  # (..., L, 1) · (..., 1, Ev)
        output = output + product.masked_fill(~allowed[..., s, None], 0)
    return output


def allowed_pairs(
    call: arguments.Call,
    mask: Bool[Tensor, "*batch L S"] | None,
    bias: Float[Tensor, "*batch L S"] | None,
    device: torch.device,
) -> Bool[Tensor, "*batch L S"]:
    """Combine every restriction of a call: a key is seen only where mask, bias, causal and window all allow it."""
    allowed = torch.ones((call.L, call.S), dtype=torch.bool, device=device)
    if mask is not None:
        allowed = allowed & mask
    if bias is not None:
        allowed = allowed & ~bias.detach().isneginf()
    q_pos = torch.as_tensor(call.offset, dtype=torch.int64, device=device) + torch.arange(call.L, device=device)
    k_pos = torch.arange(call.S, device=device)
    if call.causal:
        allowed = allowed & masks.causal(q_pos, k_pos)
    if call.window != (None, None):
        allowed = allowed & masks.sliding_window(q_pos, k_pos, *call.window)
    return allowed


def broadcast_heads(query: Tensor, key: Tensor, value: Tensor, call: arguments.Call) -> tuple[Tensor, Tensor, Tensor]:
    """Give each query head its key/value head, and all three the same leading axes (views where possible)."""
    if call.repeats > 1:
        key, value = (x.repeat_interleave(call.repeats, dim=-3) for x in (key, value))
    query, key, value = (x.expand(*call.batch, *x.shape[-2:]) for x in (query, key, value))
    return query, key, value


def _four_axes(x: Tensor) -> Tensor:
    """Fold or add leading axes until there are two: (..., heads, length, size) to (batch, heads, length, size)."""
    if x.ndim < 4:
        return x[(None,) * (4 - x.ndim)]
    return x if x.ndim == 4 else x.flatten(0, -4)


def _is_finite(x: Tensor) -> bool:
    return bool(x.detach().isfinite().all())
