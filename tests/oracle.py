"""Attention by plain loops over batch, query and key: slow, and so plain that it can be checked by reading.

Numbers are Python floats, added up exactly (math.fsum), or mpmath's with sixty digits. Nothing of lib is used.
A key that a query may not see is never touched, so what stands there cannot matter.
"""

import math

import mpmath
import numpy as np

mpmath.mp.dps = 60


def attention(
    query, key, value, *, mask=None, bias=None, causal=False, window=None, offset=None, scale=None, softcap=None,
    enable_gqa=False, digits=False,
):  # fmt: skip
    """Return output and weights in float64. ``digits``: compute with sixty digits and no limit to the range."""
    number = (lambda x: mpmath.mpf(float(x))) if digits else float
    exp, tanh, total = (mpmath.exp, mpmath.tanh, mpmath.fsum) if digits else (math.exp, math.tanh, math.fsum)
    (L, E), (S, Ev) = query.shape[-2:], value.shape[-2:]
    repeats = query.shape[-3] // key.shape[-3] if enable_gqa and key.shape[-3] else 1
    grouped = [(*x.shape[:-3], x.shape[-3] * repeats) if enable_gqa else x.shape[:-2] for x in (key, value)]
    batch = np.broadcast_shapes(query.shape[:-2], *grouped)
    scale = number(1) / number(max(E, 1)) ** number(0.5) if scale is None else number(scale)
    output, weights = np.zeros((*batch, L, Ev)), np.zeros((*batch, L, S))
    for b in np.ndindex(*batch):
        kv = (*b[:-1], b[-1] // repeats) if enable_gqa else b
        for i in range(L):
            scores = {}
            for j in range(S):
                if not may_attend(b, i, j, mask, bias, causal, window, offset):
                    continue
                products = [number(at(query, b, i, e)) * number(at(key, kv, j, e)) for e in range(E)]
                score = total(products) * scale
                if softcap is not None:
                    score = number(softcap) * tanh(score / number(softcap))
                if bias is not None:
                    score += number(at(bias, b, i, j))
                scores[j] = score
            if not scores:
                continue
            largest = max(scores.values())
            shares = {j: exp(score - largest) for j, score in scores.items()}
            whole = total(shares.values())
            for j, share in shares.items():
                weights[(*b, i, j)] = float(share / whole)
            for d in range(Ev):
                terms = [share / whole * number(at(value, kv, j, d)) for j, share in shares.items()]
                output[(*b, i, d)] = float(total(terms))
    return output, weights


def may_attend(b, i, j, mask=None, bias=None, causal=False, window=None, offset=None):
    """Tell whether query i of batch entry b may see key j."""
    position = i
    if offset is not None:
        entries = np.asarray(offset)
        position += int(entries[tuple(0 if n == 1 else k for n, k in zip(entries.shape, b, strict=False))])
    left, right = (None, None) if window is None else window
    return not (
        (mask is not None and not at(mask, b, i, j))
        or (bias is not None and float(at(bias, b, i, j)) == -math.inf)
        or (causal and j > position)
        or (left is not None and j < position - left)
        or (right is not None and j > position + right)
    )


def at(array, b, i, j):
    """Read one number of an array whose axes broadcast to (*b, i, j)."""
    index = (*b, i, j)[len(b) + 2 - array.ndim :]
    return array[tuple(0 if n == 1 else k for n, k in zip(array.shape, index, strict=True))]


def visible(shape, **restrictions):
    """Return which pairs may attend, as a boolean array of shape (*batch, L, S)."""
    return np.array(
        [may_attend(index[:-2], *index[-2:], **restrictions) for index in np.ndindex(*shape)], dtype=bool
    ).reshape(shape)
