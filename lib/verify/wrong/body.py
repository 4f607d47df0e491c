"""One correct attention for NumPy and torch alike, from which every wrong one is made by a small change.

It is written for reading and for changing: one step a line, no cleverness, nothing shared with :mod:`lib.reference` or
:mod:`lib.fast`, so that a mistake there cannot hide here. A wrong implementation is this text with a few lines replaced
(:mod:`lib.verify.wrong.entry`).
"""

import math

from lib.verify.wrong.tools import as_weights, drop, facing, grouping, namespace, narrow, positions, wide


def attention(
    query, key, value, *, mask=None, bias=None, causal=False, window=None, offset=None, scale=None, softcap=None,
    enable_gqa=False, return_weights=False, dropout_p=0.0
):  # fmt: skip
    """Compute softmax(softcap(scale · Q Kᵀ) + bias) V over the keys that mask, causal and window allow."""
    xp, dtype = namespace(query), query.dtype
    L, S, E = query.shape[-2], key.shape[-2], query.shape[-1]
    if scale is None:
        scale = 1 / math.sqrt(max(E, 1))
    if enable_gqa:
        group = grouping(query, key)  # (H,), the key/value head that serves each query head
        key, value = key[..., group, :, :], value[..., group, :, :]
    query, key, value = wide(query), wide(key), wide(value)  # float32 at least

    scores = (query * scale) @ key.swapaxes(-1, -2)  # (..., L, S)
    if softcap is not None:
        scores = softcap * xp.tanh(scores / softcap)
    if bias is not None:
        scores = scores + wide(bias)

    i, j = positions(query, L, S)  # (L, 1) and (1, S)
    i = i + facing(offset, scores) if offset is not None else i
    allowed = j >= 0  # (1, S), every key
    if mask is not None:
        allowed = allowed & mask
    if causal:
        allowed = allowed & (j <= i)
    if window is not None:
        left, right = window
        allowed = allowed & (j >= i - left) if left is not None else allowed
        allowed = allowed & (j <= i + right) if right is not None else allowed
    scores = xp.where(allowed, scores, -math.inf)
    value = xp.where(allowed.any(-2)[..., None], value, 0.0)  # where no query looks, NaN may stand

    top = xp.amax(scores, axis=-1, keepdims=True) if S else scores.sum(axis=-1, keepdims=True)  # (..., L, 1)
    top = xp.where(top == -math.inf, 0.0, top)  # a row without keys
    exponentials = xp.exp(scores - top)
    total = exponentials.sum(axis=-1, keepdims=True)  # (..., L, 1)
    weights = exponentials / xp.where(total == 0, 1.0, total)

    kept = drop(weights, dropout_p) if dropout_p else weights
    output = kept @ value  # (..., L, Ev)
    output = narrow(output, dtype)
    return (output, narrow(as_weights(weights, output), dtype)) if return_weights else output
