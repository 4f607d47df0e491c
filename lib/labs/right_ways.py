"""Five right ways to compute attention, which no test may reject. They differ in what nobody promised: the last digits.

Each takes ``attention(query, key, value, *, mask=None, causal=False, return_weights=False)``: (..., L, E), (..., S, E),
(..., S, Ev) to (..., L, Ev), and to (output, weights) where the weights are asked for.

>>> query, key, value = np.zeros((1, 1)), np.zeros((2, 1)), np.array([[2.0], [8.0]])
>>> [float(way(query, key, value)[0, 0]) for way in RIGHT_WAYS]
[5.0, 5.0, 5.0, 5.0, 5.0]
"""

import math

import numpy as np

from lib import reference


def by_the_book(query, key, value, *, mask=None, causal=False, return_weights=False):
    """Compute attention as the book does."""
    return reference.attention(query, key, value, mask=mask, causal=causal, return_weights=return_weights)


def last_key_first(query, key, value, *, mask=None, causal=False, return_weights=False):
    """Add the keys up from the last to the first."""
    allowed = who_sees_whom(query, key, mask, causal)[..., ::-1]
    output, weights = reference.attention(
        query, key[..., ::-1, :], value[..., ::-1, :], mask=allowed, return_weights=True
    )
    return (output, weights[..., ::-1]) if return_weights else output


def in_tiles(query, key, value, *, mask=None, causal=False, return_weights=False):
    """Take two keys at a time, and never hold a whole row of scores."""
    allowed = who_sees_whom(query, key, mask, causal)
    output = reference.streaming_attention(query, key, value, mask=allowed, block_k=2)
    if not return_weights:
        return output
    one_hot = np.broadcast_to(np.eye(key.shape[-2], dtype=value.dtype), (*key.shape[:-1], key.shape[-2]))
    return output, reference.streaming_attention(query, key, one_hot, mask=allowed, block_k=2)


def row_by_row(query, key, value, *, mask=None, causal=False, return_weights=False):
    """Work out one query after the other, in Python's own numbers."""
    allowed = who_sees_whom(query, key, mask, causal)
    weights = np.zeros(allowed.shape, query.dtype)
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    for place in np.ndindex(*allowed.shape[:-1]):
        seen = np.flatnonzero(allowed[place])
        if len(seen):
            top = max(float(scores[place][j]) for j in seen)
            shares = [math.exp(float(scores[place][j]) - top) for j in seen]
            weights[place][seen] = [share / math.fsum(shares) for share in shares]
    output = weights @ value
    return (output, weights) if return_weights else output


def in_columns(query, key, value, *, mask=None, causal=False, return_weights=False):
    """Store the output column by column, and take powers of 2 in the place of powers of e."""
    allowed = who_sees_whom(query, key, mask, causal)
    scores = query @ key.swapaxes(-1, -2) * (math.log2(math.e) / math.sqrt(query.shape[-1]))
    scores = np.where(allowed, scores, -math.inf)
    top = scores.max(axis=-1, keepdims=True)
    powers = np.exp2(scores - np.where(top == -math.inf, 0.0, top))
    total = powers.sum(axis=-1, keepdims=True)
    weights = (powers / np.where(total == 0, 1.0, total)).astype(query.dtype)
    output = np.asfortranarray(weights @ value)
    return (output, weights) if return_weights else output


def who_sees_whom(query, key, mask, causal):
    """Give mask and causal as one array of booleans (..., L, S); refuse what :func:`by_the_book` refuses."""
    reference.attention(query, key, key, mask=mask, causal=causal)
    L, S = query.shape[-2], key.shape[-2]
    allowed = np.tril(np.ones((L, S), bool)) if causal else np.ones((L, S), bool)
    lead = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    return np.broadcast_to(allowed if mask is None else allowed & mask, (*lead, L, S))


RIGHT_WAYS = (by_the_book, last_key_first, in_tiles, row_by_row, in_columns)
