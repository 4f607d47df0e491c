"""Scaled dot-product attention in torch: what you would run, on CPU and GPU, with gradients.

Three bodies compute the same thing. :func:`sdpa` hands the work to torch's fused kernels; ``triton_attention`` is a
fused kernel of our own, for windows on a GPU; :func:`textbook` is the plain body, for what the kernels lack (softcap,
weights, dropout that spares the returned weights) and for the corners where they are not exact.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lib import arguments, masks
from lib.fast import triton_attention
from lib.fast.plan import BACKENDS, is_causal_for_sdpa, make_plan
from lib.fast.tiles import in_tiles


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
    backend : "auto", "sdpa", "triton" or "math"
        Which body computes it. "auto" takes SDPA's kernels where they can do what is asked; on an Nvidia GPU, for a
        window or causal with an offset, which SDPA knows only as a mask, our Triton kernel
        (:mod:`lib.fast.triton_attention`).

    Returns
    -------
    output : (..., L, Ev), of query's dtype
    weights : (..., L, S), of query's dtype; only with ``return_weights``
        A query that may attend to nothing has output 0, weights 0 and finite gradients.

    Raises
    ------
    TypeError, ValueError
        As in :func:`lib.reference.attention`; and ValueError if ``dropout_p`` is out of range, ``backend`` is
        unknown, or "sdpa" or "triton" is asked for what it cannot do.
    ImportError
        If ``backend`` is "triton" and there is no Triton.

    Notes
    -----
    What stands at hidden positions, by backend. "math": changes no bit of the output, NaN and infinity included, nor
    of the gradients. "sdpa" and "triton": finite values change nothing as long as their scores stay in the dtype's
    range; NaN and infinity leak (0 · NaN is NaN inside the kernels). "auto" on the CPU: changes nothing beyond
    rounding, since a result that SDPA spoilt is computed again by "math"; elsewhere as "sdpa", since looking would
    make the CPU wait for the device. Where finite inputs give scores beyond the dtype's range, "math" computes those
    rows again in float64, and scores stop at the largest number instead of turning into NaN.

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
    chosen = _checked(
        query, key, value, mask=mask, bias=bias, causal=causal, window=window, offset=offset, scale=scale,
        softcap=softcap, enable_gqa=enable_gqa, return_weights=return_weights, dropout_p=dropout_p, backend=backend,
    )  # fmt: skip
    plan = make_plan(query, key, value, *chosen)
    if plan.body == "triton":
        return triton_attention.run(query, key, value, plan.call)
    inputs = (query, key, value, mask, bias, plan.call, dropout_p)
    if plan.body == "sdpa":
        output = in_tiles(sdpa, plan.tiles, *inputs) if plan.tiles else sdpa(*inputs)
        if (
            backend == "sdpa"
            or output.device.type != "cpu"
            or can_be_trusted(output, query, key, value, bias, plan.call)
        ):
            return output
    if plan.tiles:
        return in_tiles(lambda *part: textbook(*part)[0], plan.tiles, *inputs)
    output, weights, _ = textbook(*inputs)
    return (output, weights) if return_weights else output


def explain(
    query: Float[Tensor, "*batch L E"],
    key: Float[Tensor, "*batch S E"],
    value: Float[Tensor, "*batch S Ev"],
    **options: Any,
) -> str:
    """Say in one line which way a call of :func:`attention` takes, and why; compute nothing.

    Parameters
    ----------
    query, key, value, **options
        As in :func:`attention`.

    Returns
    -------
    str
        The body, the number of tiles, what is skipped and what is copied. Where "auto" would find SDPA's result
        spoilt (NaN at a hidden position, scores out of range), the plain body computes it again; numbers are not
        looked at here.

    Raises
    ------
    TypeError, ValueError
        As in :func:`attention`.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 2048, 8)
    >>> explain(x, x, x)
    "sdpa: torch's fused kernels (SDPA), in one call; every query sees every key"
    >>> explain(x, x, x, causal=True, window=(255, 0))
    "sdpa: torch's fused kernels (SDPA), in 17 tiles of 127 queries; 17% of all pairs are visited, which causal and ..."
    >>> explain(x, x, x, return_weights=True)
    'math: the plain body, in one call; SDPA has no return_weights'
    """
    return str(make_plan(query, key, value, *_checked(query, key, value, **options)))


def _checked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    return_weights: bool = False,
    dropout_p: float = 0.0,
    backend: str = "auto",
    **options: Any,
) -> tuple[Tensor | None, Tensor | None, arguments.Call, float, bool, str]:
    """Check a call's arguments; give those that choose its way, in the order in which make_plan takes them."""
    call = arguments.check(Tensor, query, key, value, mask=mask, bias=bias, **options)
    arguments.require_bool("return_weights", return_weights)
    if not 0 <= arguments.require_real("dropout_p", dropout_p) <= 1:
        raise ValueError(f"dropout_p must lie between 0 and 1, got {dropout_p}")
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    return mask, bias, call, dropout_p, return_weights, backend


def sdpa(
    query: Float[Tensor, "*batch L E"],
    key: Float[Tensor, "*batch S E"],
    value: Float[Tensor, "*batch S Ev"],
    mask: Bool[Tensor, "*batch L S"] | None,
    bias: Float[Tensor, "*batch L S"] | None,
    call: arguments.Call,
    dropout_p: float,
) -> Float[Tensor, "*batch L Ev"]:
    """Compute the output with torch's fused kernels, which want four axes: (batch, heads, length, size)."""
    is_causal = is_causal_for_sdpa(call, mask, bias)
    attn_mask = None
    if not is_causal and (call.causal or call.window != (None, None) or mask is not None or bias is not None):
        limits = list(_limits(call, mask, None, query.device))
        attn_mask = functools.reduce(torch.logical_and, limits) if limits else None
        if bias is not None:  # the kernels take one mask: fold both into it
            attn_mask = bias if attn_mask is None else torch.where(attn_mask, bias, -torch.inf)
        attn_mask = _mask_axes(attn_mask, call)
    grouped = call.repeats > 1 and key.shape[-3] > 1  # the kernels share a key head among query heads without a copy
    query, key, value = (four_axes(x) for x in broadcast_heads(query, key, value, call, repeat=not grouped))
    if query.device.type == "cpu":  # or the kernel silently takes a path that is several times slower
        query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
        query, key, value = (_padded(x, max(call.E, call.Ev)) for x in (query, key, value))
    output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=call.scale,
        enable_gqa=grouped,
    )  # fmt: skip
    if output.shape[-1] != call.Ev:
        output = output[..., : call.Ev]
    if attn_mask is not None:
        output = output + 0.0  # a row that sees nothing gives −0 for negative values: 0, as in the reference
    if output.dtype != query.dtype:  # autocast's kernels return half precision
        output = output.to(query.dtype)
    shape = (*call.batch, call.L, call.Ev)
    return output if output.shape == shape else output.reshape(shape)


def _padded(x: Float[Tensor, "... E"], width: int) -> Float[Tensor, "... width"]:
    """Add columns of zeros: they change no product of a query and a key, and come off a value's end again."""
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def can_be_trusted(
    output: Float[Tensor, "*batch L Ev"],
    query: Float[Tensor, "*batch L E"],
    key: Float[Tensor, "*batch S E"],
    value: Float[Tensor, "*batch S Ev"],
    bias: Float[Tensor, "*batch L S"] | None,
    call: arguments.Call,
) -> bool:
    """Tell whether SDPA's output can be kept: nothing hidden leaked, no score left the range. Reads little.

    NaN in the output shows most of it. What it does not show: scores that became −∞, whose row is 0 as if it saw
    nothing, or whose loss a large bias covers; and infinity in a hidden key or in a query that sees nothing, which
    spoils gradients only.
    """
    if not _is_finite(output):
        return False
    inputs = [x for x in (query, key, value, bias) if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs) and not all(map(_is_finite, inputs[:2])):
        return False
    largest_bias = 0.0
    if bias is not None:
        largest_bias = float(bias.detach().abs().masked_fill(bias.isinf(), 0).amax())
    else:
        first = output.detach()[..., 0]
        if first.all() or not (output.detach()[first == 0] == 0).all(-1).any():  # few rows: the others are not read
            return True
    limit = torch.finfo(torch.promote_types(query.dtype, torch.float32)).max - largest_bias
    q_size, k_size = float(query.detach().abs().amax()), float(key.detach().abs().amax())
    return call.E * q_size * k_size * max(1.0, abs(call.scale)) < limit / 2


def textbook(
    query: Float[Tensor, "*batch L E"],
    key: Float[Tensor, "*batch S E"],
    value: Float[Tensor, "*batch S Ev"],
    mask: Bool[Tensor, "*batch L S"] | None,
    bias: Float[Tensor, "*batch L S"] | None,
    call: arguments.Call,
    dropout_p: float,
) -> tuple[Float[Tensor, "*batch L Ev"], Float[Tensor, "*batch L S"], Float[Tensor, "*batch L"]]:
    """Compute output, weights and log-sum-exp as the equation says; in float64 the rows whose scores overflow."""
    allowed = allowed_pairs(call, mask, bias, query.device)
    arrays = broadcast_heads(query, key, value, call)
    dtype = torch.promote_types(query.dtype, torch.float32)
    options = {"bias": bias, "call": call, "dropout_p": dropout_p}
    with torch.autocast(query.device.type, enabled=False):  # it would put the products into half precision again
        output, weights, lse, in_range = attend(*(x.to(dtype) for x in arrays), allowed, **options)
        if not in_range.all():
            rows = in_range[..., None]
            # What overflows is hidden from the first pass, so that its gradients are finite.
            output, weights, lse, _ = attend(*(x.to(dtype) for x in arrays), allowed & rows, **options)
            again = attend(*(x.double() for x in arrays), allowed & ~rows, **options, saturate=True)
            output, weights = torch.where(rows, output, again[0]), torch.where(rows, weights, again[1])
            lse = torch.where(in_range, lse, again[2].clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)).to(dtype)
    return output.to(query.dtype), weights.to(query.dtype), lse


def attend(
    query: Float[Tensor, "*batch L E"],
    key: Float[Tensor, "*batch S E"],
    value: Float[Tensor, "*batch S Ev"],
    allowed: Bool[Tensor, "*batch L S"],
    bias: Float[Tensor, "*batch L S"] | None,
    call: arguments.Call,
    dropout_p: float,
    saturate: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Bool[Tensor, "*batch L"]]:
    """Compute output, weights, log-sum-exp, and which rows stayed in the dtype's range: the textbook body."""
    scores = _products(query, key) * call.scale  # (..., L, S)
    if saturate:
        scores = torch.where(scores.isfinite(), scores, _saturating_scores(query, key, call.scale))
    in_range = scores.detach().isfinite()  # before softcap, which would make a bounded number of an overflow
    if call.softcap is not None:
        scores = scores.masked_fill(~allowed, 0)  # tanh hands NaN back to the gradients even where it is not used
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if bias is not None:
        scores = scores + bias
    if saturate:
        scores = scores.clamp(torch.finfo(scores.dtype).min, torch.finfo(scores.dtype).max)
    scores = scores.masked_fill(~allowed, -torch.inf)
    weights, lse = _softmax(scores)  # (..., L, S), each row sums to one; (..., L)
    weights = weights.masked_fill(~allowed, 0)  # a row of NaN may not reach the gradients of hidden values
    output = _weighted_sum(F.dropout(weights, dropout_p), value, allowed)  # (..., L, Ev)
    in_range = (in_range & scores.detach().isfinite() | ~allowed).all(-1) & output.detach().isfinite().all(-1)
    return output, weights, lse, in_range


def _softmax(scores: Float[Tensor, "*batch L S"]) -> tuple[Float[Tensor, "*batch L S"], Float[Tensor, "*batch L"]]:
    """Share out each row, and give log Σ exp; a row of −∞ only gets weights 0, −∞, and gradients of 0, not NaN."""
    if scores.shape[-1] == 0:
        return scores, scores.sum(-1) - torch.inf
    top = scores.detach().amax(-1, keepdim=True)
    exponentials = torch.exp(scores - top.masked_fill(top.isneginf(), 0))
    total = exponentials.sum(-1, keepdim=True)
    total = total.masked_fill(total == 0, 1)
    return exponentials / total, (top + total.log()).squeeze(-1)


def _products(query: Float[Tensor, "*batch L E"], key: Float[Tensor, "*batch S E"]) -> Float[Tensor, "*batch L S"]:
    """Compute Q Kᵀ such that NaN and infinity spoil their own row or column only, gradients included."""
    q_finite, k_finite = query.detach().isfinite(), key.detach().isfinite()
    if q_finite.all() and k_finite.all():
        return query @ key.mT
    usable = q_finite.all(-1)[..., :, None] & k_finite.all(-1)[..., None, :]  # (..., L, S)
    with torch.no_grad():
        spoilt = query @ key.mT
    return torch.where(usable, query.masked_fill(~q_finite, 0) @ key.masked_fill(~k_finite, 0).mT, spoilt)


def _saturating_scores(
    query: Float[Tensor, "*batch L E"], key: Float[Tensor, "*batch S E"], scale: float
) -> Float[Tensor, "*batch L S"]:
    """Compute scale · Q Kᵀ without an overflow on the way: powers of two are taken out first and put back last."""
    q_power, k_power = _power_of_two(query), _power_of_two(key)  # (..., L, 1), (..., S, 1)
    products = _products(_ldexp(query, -q_power), _ldexp(key, -k_power))  # (..., L, S), at most E in size
    factor, power = math.frexp(scale)
    return _ldexp(products * factor, q_power + k_power.mT + power)


def _power_of_two(x: Float[Tensor, "... E"]) -> Int[Tensor, "... 1"]:
    """Give the exponent of each row's largest entry, and of 1 where that is not finite."""
    size = x.detach().abs().amax(-1, keepdim=True) if x.shape[-1] else x.new_zeros((*x.shape[:-1], 1))
    return torch.frexp(size.masked_fill(~size.isfinite(), 1)).exponent


def _ldexp(x: Float[Tensor, "..."], power: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Multiply by 2**power in four steps, because 2**power alone can leave the range."""
    for step in range(4):
        x = x * torch.exp2(((power + step) // 4).to(x.dtype))  # the four quotients add up to power
    return x


def _weighted_sum(
    weights: Float[Tensor, "*batch L S"], value: Float[Tensor, "*batch S Ev"], allowed: Bool[Tensor, "*batch L S"]
) -> Float[Tensor, "*batch L Ev"]:
    """Compute weights · value such that NaN and infinity reach only the queries that may see them."""
    finite = value.detach().isfinite()
    limits = torch.finfo(value.dtype).min, torch.finfo(value.dtype).max  # weights may sum to a hair more than one
    output = (weights @ value.masked_fill(~finite, 0)).clamp(*limits) + 0.0  # −0 becomes 0, as in the reference
    if finite.all():
        return output
    weighed, unweighed, value = allowed & (weights > 0), allowed & (weights == 0), value.detach()
    up, down = _meets(weighed, value == torch.inf), _meets(weighed, value == -torch.inf)
    undefined = _meets(allowed, value.isnan()) | _meets(unweighed, value.isinf()) | (up & down)
    return output.masked_fill(up, torch.inf).masked_fill(down, -torch.inf).masked_fill(undefined, torch.nan)


def _meets(pairs: Bool[Tensor, "*batch L S"], marked: Bool[Tensor, "*batch S Ev"]) -> Bool[Tensor, "*batch L Ev"]:
    """Tell for each query and column whether one of the query's keys is marked."""
    return pairs.float() @ marked.float() > 0


def allowed_pairs(
    call: arguments.Call,
    mask: Bool[Tensor, "*batch L S"] | None,
    bias: Float[Tensor, "*batch L S"] | None,
    device: torch.device,
) -> Bool[Tensor, "*batch L S"]:
    """Combine every restriction of a call: a key is seen only where mask, bias, causal and window all allow it."""
    allowed = torch.ones((call.L, call.S), dtype=torch.bool, device=device)
    return functools.reduce(torch.logical_and, _limits(call, mask, bias, device), allowed)


def _limits(
    call: arguments.Call, mask: Tensor | None, bias: Tensor | None, device: torch.device
) -> Iterator[Bool[Tensor, "..."]]:
    """Give one by one what hides keys from queries, each as small as it comes."""
    if mask is not None:
        yield mask
    if bias is not None:
        yield ~bias.isneginf()
    if call.causal or call.window != (None, None):
        q_pos = torch.as_tensor(call.offset, dtype=torch.int64, device=device) + torch.arange(call.L, device=device)
        k_pos = torch.arange(call.S, device=device)
        if call.causal:
            yield masks.causal(q_pos, k_pos)
        if call.window != (None, None):
            yield masks.sliding_window(q_pos, k_pos, *call.window)


def broadcast_heads(
    query: Tensor, key: Tensor, value: Tensor, call: arguments.Call, repeat: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Give each query head its key/value head, and all three the same leading axes (views where possible).

    With ``repeat=False`` the key/value heads stay as few as they are.
    """
    batch = call.batch
    if query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return query, key, value
    if call.repeats != 1:  # 0 where there are no query heads
        if not repeat:
            batch = (*call.batch[:-1], call.batch[-1] // call.repeats)
        elif key.shape[-3] != 1:  # a single head is expanded below, which copies nothing
            key, value = (x.repeat_interleave(call.repeats, dim=-3) for x in (key, value))
    query = query.expand(*call.batch, *query.shape[-2:])
    key, value = (x.expand(*batch, *x.shape[-2:]) for x in (key, value))
    return query, key, value


def four_axes(x: Tensor) -> Tensor:
    """Fold or add leading axes until there are two: (..., heads, length, size) to (batch, heads, length, size)."""
    if x.ndim < 4:
        return x[(None,) * (4 - x.ndim)]
    return x if x.ndim == 4 else x.flatten(0, -4)


def _mask_axes(x: Tensor, call: arguments.Call) -> Tensor:
    """Give a mask or bias four axes as well. What is 1 stays 1: the kernels turn all they get into floats."""
    if len(call.batch) > 2 and x.ndim > 3:  # folded with the other batch axes
        x = x.expand(*call.batch[:-1], *x.shape[-3:]).flatten(0, -4)
    return x[(None,) * (4 - x.ndim)]


def _is_finite(x: Tensor) -> bool:
    total = x.detach().sum(dtype=torch.promote_types(x.dtype, torch.float32))  # quick; NaN and infinity stay in it
    return math.isfinite(total) or bool(x.detach().isfinite().all())
