"""No false alarm for correct implementations in unusual styles: other signatures, shapes, conventions, algorithms."""

import functools
import math
import time

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float

from lib.verify import check_attention
from lib.verify.wrong.body import attention
from tests.verify.test_unseen import softmax


def wide(x):
    return x.astype(np.result_type(x.dtype, np.float32))


def scores_of(query, key):
    """Scale first, in float32 at least."""
    return wide(query) * wide(query).dtype.type(max(query.shape[-1], 1) ** -0.5) @ wide(key).swapaxes(-1, -2)


def in_float32(query, key):
    kind = torch.promote_types(query.dtype, torch.float32)
    return (query.to(kind) * max(query.shape[-1], 1) ** -0.5) @ key.to(kind).mT


# --- algorithms


def pair_by_pair(query, key, value, mask=None):
    lead = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    q, k, v = (np.broadcast_to(x, (*lead, *x.shape[-2:])).astype(float) for x in (query, key, value))
    seen = np.broadcast_to(True if mask is None else mask, (*lead, q.shape[-2], k.shape[-2]))
    output = np.zeros((*lead, q.shape[-2], v.shape[-1]))
    for index in np.ndindex(*lead, q.shape[-2]):
        *b, i = index
        keys = np.flatnonzero(seen[index])
        scores = [math.fsum(q[(*b, i)] * k[(*b, j)]) / max(q.shape[-1], 1) ** 0.5 for j in keys]
        parts = [math.exp(s - max(scores)) for s in scores]
        for part, j in zip(parts, keys, strict=True):
            output[index] += part / math.fsum(parts) * v[(*b, j)]
    return output.astype(query.dtype)


def logarithms(query, key, value, *, mask=None):
    scores = scores_of(query, key)
    scores = scores if mask is None else np.where(mask, scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-1e38)
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(scores - top).sum(-1, keepdims=True)) + top
    return (np.exp(scores - np.where(np.isinf(total), 0, total)) @ wide(value)).astype(query.dtype)


def tiles_of_seven(query, key, value, mask=None):
    scores, values = scores_of(query, key).astype(float), wide(value)
    scores = scores if mask is None else np.where(mask, scores, -np.inf)
    top = np.full((*scores.shape[:-1], 1), -1e300)
    total, output = np.zeros_like(top), np.zeros((1, value.shape[-1]))
    for start in range(0, key.shape[-2], 7):
        part = scores[..., start : start + 7]
        higher = np.maximum(top, part.max(-1, keepdims=True))
        weights, kept = np.exp(part - higher), np.exp(top - higher)
        total, top = total * kept + weights.sum(-1, keepdims=True), higher
        output = output * kept + weights @ values[..., start : start + 7, :]
    empty = np.zeros((*scores.shape[:-1], value.shape[-1]))
    return (output / np.where(total > 0, total, 1) + empty).astype(query.dtype)


def two_halves_merged(query, key, value):
    def part(keys):
        scores = scores_of(query, key[..., keys, :])
        top = scores.max(-1, keepdims=True, initial=-1e38)
        weights = np.exp(scores - top)
        return top, weights.sum(-1, keepdims=True), weights @ wide(value[..., keys, :])

    half = key.shape[-2] // 2
    (top, total, output), (top2, total2, output2) = part(slice(half)), part(slice(half, None))
    highest = np.maximum(top, top2)
    a, b = np.exp(top - highest), np.exp(top2 - highest)
    total = a * total + b * total2
    return ((a * output + b * output2) / np.where(total > 0, total, 1)).astype(query.dtype)


def root_of_scale_on_both(query, key, value):
    root = wide(query).dtype.type(max(query.shape[-1], 1) ** -0.25)
    scores = (wide(query) * root) @ (wide(key) * root).swapaxes(-1, -2)
    return attention(scores, np.eye(key.shape[-2], dtype=scores.dtype), wide(value), scale=1.0).astype(query.dtype)


def float64_inside(query, key, value, mask=None, causal=False):
    wider = (x.astype(np.float64) for x in (query, key, value))
    return attention(*wider, mask=mask, causal=causal).astype(query.dtype)


def columns_of_fortran(query, key, value):
    return np.asfortranarray(attention(query, key, value))


def nan_replaced_after_softmax(query, key, value, mask=None):
    scores = in_float32(query, key)
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return (torch.nan_to_num(scores.softmax(-1)) @ value.to(scores.dtype)).to(query.dtype)


def checkpointed(query, key, value):
    return torch.utils.checkpoint.checkpoint(attention, query, key, value, use_reentrant=False)


class OwnBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value):
        weights = in_float32(query, key).softmax(-1)
        ctx.save_for_backward(query, key, value, weights)
        return (weights @ value.to(weights.dtype)).to(query.dtype)

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, weights = ctx.saved_tensors
        of_weights = gradient @ value.mT
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * query.shape[-1] ** -0.5
        return of_scores @ key, of_scores.mT @ query, weights.mT @ gradient


def own_backward(query, key, value):
    return OwnBackward.apply(query, key, value)


def dropout_by_hand(query, key, value, *, dropout_p: float = 0.0):
    weights = in_float32(query, key).softmax(-1)
    kept = torch.rand_like(weights) >= dropout_p
    return (weights * kept / (1 - dropout_p) @ value.to(weights.dtype)).to(query.dtype)


# --- signatures


def annotated(
    query: Float[np.ndarray, "*B L E"],
    key: Float[np.ndarray, "*B S E"],
    value: Float[np.ndarray, "*B S Ev"],
    *,
    mask: Bool[np.ndarray, "..."] | None = None,
) -> Float[np.ndarray, "*B L Ev"]:
    return attention(query, key, value, mask=mask)


def keywords_only(*, Q, K, V, M=None):
    return attention(Q, K, V, mask=M)


def positional_only(q, k, v, /, mask=None):
    return attention(q, k, v, mask=mask)


def anything(*args, **options):
    return attention(*args, **options)


class Layer:
    def attend(self, query, key, value, mask=None):
        return attention(query, key, value, mask=mask)

    __call__ = attend


class TorchLayer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, query, key, value, mask=None):
        output, weights = attention(query, key, value, mask=mask, return_weights=True)
        return self.drop(output), weights


def with_more_behind(query, key, value):
    return attention(query, key, value), None, {"maximum": 1.0}


def one_argument_for_both(query, key, value, attn_mask=None):
    if attn_mask is None or attn_mask.dtype == bool:
        return attention(query, key, value, mask=attn_mask)
    return attention(query, key, value, bias=attn_mask)


def prints_and_waits(query, key, value):
    print("scores:", query.shape)
    time.sleep(0.001)
    return attention(query, key, value)


# --- what is taken, and conventions


def needs_heads(query, key, value, mask=None):
    _batch, _heads, _length, _size = query.shape
    return attention(query, key, value, mask=mask)


def as_many_queries_as_keys(query, key, value, causal=False, mask=None):
    if query.shape[-2] != key.shape[-2]:
        raise ValueError("for self-attention")
    return attention(query, key, value, mask=mask, causal=causal)


def no_empty_rows(query, key, value, mask=None):
    if mask is not None and not mask.any(-1).all():
        raise ValueError("a query sees no key")
    return attention(query, key, value, mask=mask)


def float64_only(query, key, value, mask=None):
    if query.dtype != np.float64:
        raise TypeError("float64, please")
    return attention(query, key, value, mask=mask)


def length_first(query, key, value, mask=None, enable_gqa=False):
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return attention(query, key, value, mask=mask, enable_gqa=enable_gqa).transpose(1, 2)


def true_blocks(query, key, value, *, mask=None):
    return attention(query, key, value, mask=None if mask is None else ~mask)


def lowest_number_for_masked(query, key, value, mask=None):
    scores = scores_of(query, key)
    scores = scores if mask is None else np.where(mask, scores, np.finfo(scores.dtype).min)
    weights = softmax(scores) if key.shape[-2] else scores
    return (weights @ wide(value)).astype(query.dtype)


def nan_for_empty_rows(query, key, value, mask=None):
    scores = in_float32(query, key)
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) @ value.to(scores.dtype)).to(query.dtype)


def without_gradients(query, key, value):
    with torch.inference_mode():
        return attention(query, key, value)


STYLES = {
    "pair by pair": (pair_by_pair, {}),
    "logarithms": (logarithms, {}),
    "tiles of seven": (tiles_of_seven, {}),
    "two halves merged": (two_halves_merged, {}),
    "root of scale on both": (root_of_scale_on_both, {}),
    "float64 inside": (float64_inside, {}),
    "Fortran order": (columns_of_fortran, {}),
    "NaN replaced after softmax": (nan_replaced_after_softmax, {"framework": "torch"}),
    "checkpointed": (checkpointed, {"framework": "torch"}),
    "own backward": (own_backward, {"framework": "torch"}),
    "dropout by hand": (dropout_by_hand, {"framework": "torch"}),
    "annotated": (annotated, {}),
    "keywords only": (keywords_only, {"names": {"query": "Q", "key": "K", "value": "V", "mask": "M"}}),
    "positional only": (positional_only, {}),
    "anything": (anything, {}),
    "partial": (functools.partial(attention, causal=False, softcap=None), {}),
    "method": (Layer().attend, {}),
    "callable object": (Layer(), {}),
    "module in training mode": (TorchLayer().train(), {"framework": "torch"}),
    "more behind the output": (with_more_behind, {}),
    "one argument for mask and bias": (one_argument_for_both, {"names": {"mask": "attn_mask", "bias": "attn_mask"}}),
    "prints and waits": (prints_and_waits, {}),
    "four axes only": (needs_heads, {}),
    "as many queries as keys": (as_many_queries_as_keys, {"conventions": {"lengths": "equal"}}),
    "refuses empty rows": (no_empty_rows, {}),
    "float64 only": (float64_only, {}),
    "length before heads": (length_first, {"framework": "torch", "conventions": {"layout": "BLHE"}}),
    "True = block": (true_blocks, {"conventions": {"mask_true": "block"}}),
    "mean for empty rows": (lowest_number_for_masked, {"conventions": {"empty_rows": "mean"}}),
    "NaN for empty rows": (nan_for_empty_rows, {"framework": "torch", "conventions": {"empty_rows": "nan"}}),
    "no gradients": (without_gradients, {"framework": "torch", "conventions": {"gradients": "none"}}),
}


@pytest.mark.parametrize("style", STYLES)
def test_no_false_alarm(style):
    function, options = STYLES[style]
    report = check_attention(function, **options)
    assert report.ok, "\n" + report.text()
    assert {"shape and dtype", "equation", "axis", "sum to one", "extreme scores", "lengths"} <= set(report.holds)


def test_what_is_refused_is_said_and_not_passed():
    report = check_attention(no_empty_rows, properties=["empty rows"])
    assert report.holds == [] and report.refused.keys() == {"a query that may attend to nothing"}
    assert "a query sees no key" in report.not_tested["empty rows"]
