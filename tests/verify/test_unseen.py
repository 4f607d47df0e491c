"""Wrong implementations that are no part of the catalogue, in other people's styles: each is caught, and where.

They were written by hand, without looking at the probes: loops, einsum, modules, keyword defaults, tricks.
"""

import math

import numpy as np
import pytest
import torch

from lib.verify import check_attention


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


# --- NumPy


def loop_forgets_last_query(query, key, value):
    output = np.zeros((query.shape[0], value.shape[1]), query.dtype)
    for i in range(max(len(query) - 1, 1)):
        scores = np.array([query[i] @ k for k in key]) / math.sqrt(query.shape[1])
        output[i] = softmax(scores) @ value
    return output


def loop_starts_from_first_value(query, key, value, *, causal=False):
    """An online softmax that counts the first key twice."""
    rows = []
    for i, q in enumerate(query):
        total, row = 0.0, np.array(value[0], float)
        total += 1.0
        top = q @ key[0] / math.sqrt(len(q))
        for j in range(i + 1 if causal else len(key)):
            s = q @ key[j] / math.sqrt(len(q))
            new = max(top, s)
            shrink, weight = math.exp(top - new), math.exp(s - new)
            total, row, top = total * shrink + weight, row * shrink + weight * value[j], new
        rows.append(row / total)
    return np.array(rows, query.dtype)


def einsum_with_letters_swapped(q, k, v):
    weights = softmax(np.einsum("...ld,...sd->...ls", q, k) / math.sqrt(q.shape[-1]))
    return np.einsum("...ls,...sd->...ld", weights[..., ::-1], v[..., ::-1, :] * 1)[..., ::-1]


def einsum_scaled_by_length(q, k, v, mask=None):
    s = np.einsum("...ld,...sd->...ls", q, k) * len(q) ** -0.5
    if mask is not None:
        s = np.where(mask, s, -np.inf)
    return np.einsum("...ls,...sd->...ld", softmax(s), v)


def mask_by_multiplying(query, key, value, *, mask=None):
    scores = query @ np.swapaxes(key, -1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores * mask
    return softmax(scores) @ value


def mask_of_keys_only(query, key, value, *, mask=None):
    scores = query @ np.swapaxes(key, -1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = np.where(mask.any(axis=-2, keepdims=True), scores, -np.inf)
    return softmax(scores) @ value


def mask_default_remembered(query, key, value, *, mask=None, seen=[]):  # noqa: B006 - the bug: what a default remembers
    scores = query @ np.swapaxes(key, -1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        seen.append(mask)
    if seen and seen[-1].shape[-2:] == scores.shape[-2:]:
        scores = np.where(seen[-1].reshape(-1, *scores.shape[-2:])[0], scores, -1e30)
    return softmax(scores) @ value


def triangle_of_keys(query, key, value, *, is_causal=True):
    scores = query @ np.swapaxes(key, -1, -2) / math.sqrt(query.shape[-1])
    if is_causal:
        scores = scores + np.triu(np.full(scores.shape[-2:], -1e4), 1)
    return softmax(scores) @ value


def cached_on_identity(query, key, value, *, cache={}):  # noqa: B006 - the bug: results kept by shape
    weights = cache.setdefault(
        (query.shape, key.shape, query.dtype), softmax(query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1]))
    )
    return weights @ value


def clipped_scores(query, key, value):
    scores = np.clip(query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1]), -50, 50)
    return softmax(scores) @ value


def largest_only(query, key, value):
    """The sum runs over the 32 largest weights: a sparse approximation that is called exact."""
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    if scores.shape[-1] > 32:
        cut = np.partition(scores, -32, axis=-1)[..., -32, None]
        scores = np.where(scores >= cut, scores, -np.inf)
    return softmax(scores) @ value


def rounded_weights(query, key, value):
    weights = softmax(query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1]))
    return np.round(weights, 3).astype(query.dtype) @ value


def heads_by_reshaping(query, key, value):
    """Heads are folded into the length, so that they attend to each other."""
    shape = query.shape
    if query.ndim == 4:
        query, key, value = (x.reshape(x.shape[0], 1, -1, x.shape[-1]) for x in (query, key, value))
    output = softmax(query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])) @ value
    return output.reshape(*shape[:-1], value.shape[-1])


def groups_by_modulo(query, key, value, *, enable_gqa=False):
    if enable_gqa:
        heads = [h % key.shape[-3] for h in range(query.shape[-3])]
        key, value = key[..., heads, :, :], value[..., heads, :, :]
    return softmax(query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])) @ value


def window_as_band(query, key, value, *, window=None):
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    if window is not None:
        width = max(side for side in (*window, 0) if side is not None)
        far = np.abs(np.arange(len(query))[:, None] - np.arange(len(key))) > width
        scores = np.where(far, -np.inf, scores)
    return softmax(scores) @ value


# --- torch


class PostNormalised(torch.nn.Module):
    """Each output is divided by its length, as a layer norm put in the wrong place does."""

    def forward(self, query, key, value):
        output = torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1) @ value
        return output / output.norm(dim=-1, keepdim=True).clamp_min(1e-6)


class DropsInEvaluation(torch.nn.Module):
    """``functional.dropout`` is called without ``training=self.training``."""

    def forward(self, query, key, value):
        weights = torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1)
        return torch.nn.functional.dropout(weights, 0.1) @ value


class ScalesByWrongBuffer(torch.nn.Module):
    """The scale was computed once, for a head size of 64."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(64**-0.5))

    def forward(self, query, key, value):
        return torch.softmax(query @ key.mT * self.scale.to(query.dtype), -1) @ value


def half_in_between(query, key, value):
    weights = torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1)
    return (weights.half() @ value.half()).to(query.dtype)


def fills_tensor_of_caller(query, key, value, attn_mask=None):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if attn_mask is not None:
        attn_mask |= ~attn_mask.any(-1, keepdim=True)
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    return torch.softmax(scores, -1) @ value


def stops_gradient_of_key(query, key, value):
    return torch.softmax(query @ key.detach().mT / query.shape[-1] ** 0.5, -1) @ value


def triangle_leaks_one(query, key, value, is_causal=False):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(2), -torch.inf)
    return torch.softmax(scores, -1) @ value


BLOCK = {"half_scores": "may-overflow", "empty_rows": "nan"}
WRONG = {
    loop_forgets_last_query: ("numpy", {}, "equation"),
    loop_starts_from_first_value: ("numpy", {}, "equation"),
    einsum_with_letters_swapped: ("numpy", {}, "equation"),
    einsum_scaled_by_length: ("numpy", {}, "axis"),
    mask_by_multiplying: ("numpy", {}, "mask"),
    mask_of_keys_only: ("numpy", {}, "mask"),
    mask_default_remembered: ("numpy", {}, "repeatable"),
    triangle_of_keys: ("numpy", {"causal": "is_causal"}, "causal"),
    cached_on_identity: ("numpy", {}, "axis"),
    clipped_scores: ("numpy", {}, "extreme scores"),
    largest_only: ("numpy", {}, "lengths"),
    rounded_weights: ("numpy", {}, "sum to one"),
    heads_by_reshaping: ("numpy", {}, "batch and heads"),
    groups_by_modulo: ("numpy", {}, "grouped heads"),
    window_as_band: ("numpy", {}, "window"),
    PostNormalised(): ("torch", {}, "equation"),
    DropsInEvaluation(): ("torch", {}, "repeatable"),
    ScalesByWrongBuffer(): ("torch", {}, "equation"),
    half_in_between: ("torch", {}, "float64"),
    fills_tensor_of_caller: ("torch", {"mask": "attn_mask"}, "inputs untouched"),
    stops_gradient_of_key: ("torch", {}, "gradients"),
    triangle_leaks_one: ("torch", {"causal": "is_causal"}, "causal"),
}


def name(x):
    return getattr(x, "__name__", type(x).__name__) if callable(x) else None


@pytest.mark.parametrize("function", WRONG, ids=name)
def test_unseen_bug_is_caught(function):
    framework, names, where = WRONG[function]
    report = check_attention(function, framework, names, BLOCK, properties=[where])
    assert [f.property for f in report.failures] == [where], report.text()
    example = report.failures[0].example
    assert example is not None and "print(" in example.code


def softmax_over_queries_and_more(query, key, value, mask=None):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, -2) @ value


def mask_inverted_and_more(query, key, value, mask=None):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask, -torch.inf)
    return torch.softmax(scores, -1) @ value


def mask_inverted_in_numpy_and_more(query, key, value, mask=None):
    scores = query @ np.swapaxes(key, -1, -2) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = np.where(mask, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


@pytest.mark.parametrize(
    ("function", "framework", "where", "suspect"),
    [
        (softmax_over_queries_and_more, "torch", "axis", "softmax_over_queries"),
        (mask_inverted_and_more, "torch", "mask", "mask_inverted"),
        (mask_inverted_in_numpy_and_more, "numpy", "mask", "mask_inverted"),
    ],
)
def test_empty_rows_of_nan_do_not_hide_the_bugs_name(function, framework, where, suspect):
    for properties in (None, [where]):
        failures = {f.property: f for f in check_attention(function, framework, properties=properties).failures}
        assert failures[where].suspect == suspect
