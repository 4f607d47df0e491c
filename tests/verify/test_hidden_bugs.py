"""Wrong implementations whose bug hides: in state, in shortcuts, in sizes, in views, in options together.

Each is the catalogue's correct body with something done before or after it, and no part of the catalogue.
"""

import numpy as np
import pytest
import torch

from lib.verify import check_attention
from lib.verify.wrong.body import attention
from tests.verify.test_unseen import softmax

# --- state: what one call leaves for the next


def fills_its_own_buffer(query, key, value, *, buffers={}):  # noqa: B006 - the bug
    output = attention(query, key, value)
    buffer = buffers.setdefault((output.shape, output.dtype), np.empty_like(output))
    buffer[...] = output
    return buffer


class KeepsTransposedKeys:
    """Prepare the keys once, as long as the same array comes."""

    def __init__(self):
        self.key = self.prepared = None

    def __call__(self, query, key, value):
        if self.key is not key:
            self.key, self.prepared = key, key.copy()
        return attention(query, self.prepared, value)


class KeepsMaskOfSameArray:
    def __init__(self):
        self.kept = {}

    def __call__(self, query, key, value, mask=None):
        if mask is not None:
            array, prepared = self.kept.get(id(mask), (None, None))
            mask = prepared if array is mask else self.kept.setdefault(id(mask), (mask, mask.clone()))[1]
        return attention(query, key, value, mask=mask)


class RunningMean(torch.nn.Module):
    """Centre the keys by a mean over the calls so far, in evaluation too."""

    def __init__(self):
        super().__init__()
        self.mean = {}

    def forward(self, query, key, value):
        new = key.mean(-2, keepdim=True).detach()
        mean = self.mean[new.shape, new.dtype] = 0.9 * self.mean.get((new.shape, new.dtype), 0 * new) + 0.1 * new
        return attention(query - 0.05 * mean.expand(*mean.shape[:-2], 1, -1), key, value)


# --- shortcuts: an option that changes nothing switches another one off


def full_mask_skips_causal(query, key, value, *, mask=None, causal=False):
    if mask is not None and mask.all():
        return attention(query, key, value)
    return attention(query, key, value, mask=mask, causal=causal)


def zero_bias_skips_mask(query, key, value, *, mask=None, bias=None):
    if bias is not None and not bias.any():
        return attention(query, key, value)
    return attention(query, key, value, mask=mask, bias=bias)


def scale_dropped_with_mask(query, key, value, *, mask=None, scale=None):
    return attention(query, key, value, mask=mask, scale=None if mask is not None else scale)


def softcap_dropped_with_causal(query, key, value, *, causal=False, softcap=None):
    return attention(query, key, value, causal=causal, softcap=None if causal else softcap)


def allowed_by_mask_or_causal(query, key, value, *, mask=None, causal=False):
    triangle = np.tri(query.shape[-2], key.shape[-2], dtype=bool)
    return attention(
        query, key, value, mask=triangle if mask is None and causal else triangle | mask if causal else mask
    )


# --- bias and scale


def bias_symmetrised(query, key, value, *, bias=None):
    if bias is not None and bias.shape[-1] == bias.shape[-2]:
        bias = (bias + bias.swapaxes(-1, -2)) / 2
    return attention(query, key, value, bias=bias)


def bias_instead_of_scores(query, key, value, *, bias=None):
    return attention(query if bias is None else 0 * query, key, value, bias=bias)


def nan_where_bias_hides_all(query, key, value, *, mask=None, bias=None):
    output = attention(query, key, value, mask=mask, bias=bias)
    empty = np.zeros(1, bool) if bias is None else np.isneginf(bias).all(-1)
    return np.where(empty[..., None], np.nan, output).astype(query.dtype)


def scale_of_two_at_most(query, key, value, *, scale=None):
    return attention(query, key, value, scale=None if scale is None else min(scale, 2.0))


def scale_made_positive(query, key, value, *, scale=None):
    return attention(query, key, value, scale=None if scale is None else abs(scale))


# --- sizes


def heads_beyond_eight_lost(query, key, value):
    output = attention(query, key, value)
    if output.ndim == 4:
        output[:, 8:] = 0
    return output


def batch_beyond_four_repeats(query, key, value):
    output = attention(query, key, value)
    if output.ndim > 2:
        output[4:] = output[:1]
    return output


def keys_beyond_2048_lost(query, key, value):
    return attention(query, key[..., :2048, :], value[..., :2048, :])


def head_size_of_256_at_most(query, key, value):
    return attention(query[..., :256], key[..., :256], value, scale=max(query.shape[-1], 1) ** -0.5)


def head_size_rounded_up(query, key, value):
    return attention(query, key, value, scale=(1 << max(query.shape[-1] - 1, 0).bit_length()) ** -0.5)


def last_rows_not_written(query, key, value):
    output, full = attention(query, key, value), query.shape[-2] // 8 * 8
    if full:
        output[..., full:, :] = 0
    return output


def offset_beyond_16_starts_again(query, key, value, *, causal=False, offset=None):
    return attention(query, key, value, causal=causal, offset=None if offset is None else offset % 16)


def half_precision_when_long(query, key, value):
    if key.shape[-2] < 256:
        return attention(query, key, value)
    return attention(*(x.astype(np.float16) for x in (query, key, value))).astype(query.dtype)


# --- views


def expanded_heads_misread(query, key, value):
    if key.ndim > 2 and key.strides[-3] == 0 and key.shape[-3] > 1:
        key = np.concatenate([key[..., :1, :, :], 0 * key[..., 1:, :, :]], axis=-3)
    return attention(query, key, value)


def expanded_mask_misread(query, key, value, *, mask=None):
    if mask is not None and mask.ndim > 2 and 0 in mask.strides:
        mask = np.ones_like(mask)
    return attention(query, key, value, mask=mask)


# --- float64


def float32_when_long(query, key, value):
    if key.shape[-2] <= 16:
        return attention(query, key, value)
    return attention(*(x.astype(np.float32) for x in (query, key, value))).astype(query.dtype)


def scale_with_eight_digits(query, key, value):
    return attention(query, key, value, scale=float(np.float32(max(query.shape[-1], 1) ** -0.5)))


# --- dropout


def weights_of(query, key):
    return torch.softmax(query @ key.mT / max(query.shape[-1], 1) ** 0.5, -1)


def dropped_before_softmax(query, key, value, *, dropout_p=0.0):
    scores = torch.nn.functional.dropout(query @ key.mT / max(query.shape[-1], 1) ** 0.5, dropout_p)
    return torch.softmax(scores, -1) @ value


def normalised_after_dropout(query, key, value, *, dropout_p=0.0):
    kept = torch.nn.functional.dropout(weights_of(query, key), dropout_p)
    return kept / kept.sum(-1, keepdim=True).clamp_min(1e-9) @ value


def same_dropout_each_time(query, key, value, *, dropout_p=0.0):
    weights = weights_of(query, key)
    kept = torch.rand(weights.shape, generator=torch.Generator().manual_seed(0)) >= dropout_p
    return weights * kept / (1 - dropout_p) @ value


def same_dropout_for_all_heads(query, key, value, *, dropout_p=0.0):
    weights = weights_of(query, key)
    return weights * torch.nn.functional.dropout(torch.ones_like(weights[(0,) * (weights.ndim - 2)]), dropout_p) @ value


def probability_to_keep(query, key, value, *, dropout_p=0.0):
    return torch.nn.functional.dropout(weights_of(query, key), 1 - dropout_p if dropout_p else 0.0) @ value


def output_dropped(query, key, value, *, dropout_p=0.0):
    return torch.nn.functional.dropout(weights_of(query, key) @ value, dropout_p)


# --- gradients


def second_tile_without_gradient(query, key, value):
    if key.shape[-2] > 32:
        key, value = (torch.cat([x[..., :32, :], x[..., 32:, :].detach()], -2) for x in (key, value))
    return attention(query, key, value)


def masked_query_detached(query, key, value, *, mask=None):
    return attention(query if mask is None else query.detach(), key, value, mask=mask)


def gradients_clamped(query, key, value):
    output = attention(query, key, value)
    if output.requires_grad:
        output.register_hook(lambda gradient: gradient.clamp(-3, 3))
    return output


class ReadsGradientAsContiguous(torch.autograd.Function):
    """An attention with its own backward pass, which forgets the strides of what comes in."""

    @staticmethod
    def forward(ctx, query, key, value):
        weights = weights_of(query, key)
        ctx.save_for_backward(query, key, value, weights)
        return weights @ value

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, weights = ctx.saved_tensors
        if not gradient.is_contiguous():
            gradient = gradient.as_strided(gradient.shape, torch.empty(gradient.shape).stride())
        of_weights = gradient @ value.mT
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * query.shape[-1] ** -0.5
        return of_scores @ key, of_scores.mT @ query, weights.mT @ gradient


def strides_of_gradient_forgotten(query, key, value):
    return ReadsGradientAsContiguous.apply(query, key, value)


NUMPY = {
    fills_its_own_buffer: "repeatable",
    KeepsTransposedKeys(): "repeatable",
    full_mask_skips_causal: "together",
    zero_bias_skips_mask: "together",
    scale_dropped_with_mask: "together",
    softcap_dropped_with_causal: "together",
    allowed_by_mask_or_causal: "together",
    bias_symmetrised: "bias",
    bias_instead_of_scores: "bias",
    nan_where_bias_hides_all: "empty rows",
    scale_of_two_at_most: "scale",
    scale_made_positive: "scale",
    heads_beyond_eight_lost: "batch and heads",
    batch_beyond_four_repeats: "batch and heads",
    keys_beyond_2048_lost: "lengths",
    head_size_of_256_at_most: "lengths",
    head_size_rounded_up: "equation",
    last_rows_not_written: "lengths",
    offset_beyond_16_starts_again: "alignment",
    half_precision_when_long: "lengths",
    expanded_heads_misread: "layouts",
    expanded_mask_misread: "layouts",
    float32_when_long: "float64",
    scale_with_eight_digits: "float64",
}
TORCH = {
    KeepsMaskOfSameArray(): "repeatable",
    RunningMean(): "repeatable",
    dropped_before_softmax: "dropout",
    normalised_after_dropout: "dropout",
    same_dropout_each_time: "dropout",
    same_dropout_for_all_heads: "dropout",
    probability_to_keep: "dropout",
    output_dropped: "dropout",
    second_tile_without_gradient: "gradients",
    masked_query_detached: "gradients",
    gradients_clamped: "gradients",
    strides_of_gradient_forgotten: "gradients",
}
CASES = [(f, "numpy", p) for f, p in NUMPY.items()] + [(f, "torch", p) for f, p in TORCH.items()]


def name(function):
    return getattr(function, "__name__", type(function).__name__)


@pytest.mark.parametrize(("function", "framework", "where"), CASES, ids=[name(f) for f, _, _ in CASES])
def test_hidden_bug_is_found(function, framework, where):
    report = check_attention(function, framework, properties=[where])
    assert [f.property for f in report.failures] == [where], report.text()
    (failure,) = report.failures
    assert "print(" in failure.example.code
    example = "\n".join(line for line in failure.example.code.splitlines() if not line.startswith("from "))
    with np.errstate(all="ignore"):
        exec(example, {name(function): function})  # it can be pasted and run


# --- what a failure is called


def one_query_gets_the_mean(query, key, value):
    if query.shape[-2] == 1:
        return np.repeat(value.mean(-2, keepdims=True), 1, -2)
    return attention(query, key, value)


def small_weights_left_out(query, key, value, *, return_weights=False):
    output, weights = attention(query, key, value, return_weights=True)
    return (output, np.where(weights < 0.01, 0, weights).astype(query.dtype)) if return_weights else output


def noise_on_weights(query, key, value):
    weights = softmax(query @ key.swapaxes(-1, -2) / max(query.shape[-1], 1) ** 0.5)
    return (weights + np.random.random_sample(weights.shape) * 1e-3) @ value  # noqa: NPY002


@pytest.mark.parametrize(
    ("function", "framework", "where"),
    [
        (one_query_gets_the_mean, "numpy", "axis"),
        (small_weights_left_out, "numpy", "weights"),
        (KeepsTransposedKeys(), "numpy", "repeatable"),
        (noise_on_weights, "numpy", "repeatable"),
        (masked_query_detached, "torch", "gradients"),
        (second_tile_without_gradient, "torch", "gradients"),
        (same_dropout_each_time, "torch", "dropout"),
    ],
    ids=lambda x: name(x) if callable(x) else None,
)
def test_an_unknown_bug_gets_no_name(function, framework, where):
    (failure,) = check_attention(function, framework, properties=[where]).failures
    assert failure.suspect is None, failure


@pytest.mark.parametrize(
    ("function", "framework", "where", "suspect"),
    [
        (lambda q, k, v: attention(q, k.detach(), v), "torch", "gradients", "keys_detached"),
        (probability_to_keep, "torch", "dropout", "dropout_keeps_what_it_should_drop"),
        (normalised_after_dropout, "torch", "dropout", "dropout_normalised_again"),
        (bias_instead_of_scores, "numpy", "bias", "bias_replaces_scores"),
    ],
    ids=["keys detached", "probability to keep", "normalised after dropout", "bias instead of scores"],
)
def test_a_known_bug_in_another_style_gets_its_name(function, framework, where, suspect):
    (failure,) = check_attention(function, framework, properties=[where]).failures
    assert failure.suspect == suspect, failure
