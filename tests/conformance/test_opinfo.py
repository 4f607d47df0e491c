"""torch's own samples: 25 of scaled_dot_product_attention and 192 of multi_head_attention_forward, in two dtypes.

The expected output is what torch's function gives for the sample. Half of the samples have dropout; with the same seed
it must drop the same weights, so those are compared too.

What is left out of the comparison, by reason (the counts are asserted):

- multi_head_attention_forward, 192 of 192: ``bias_k`` and ``bias_v``, a key and a value that no sequence has, are not
  options of ``fast.multi_head_attention`` and ``MultiHeadAttention``. Each sample is run twice: without them through
  these two, and as it comes with the one key appended between lib's projections and lib's attention.
- multi_head_attention_forward, 96 of 192: the weights of samples with dropout. torch returns those after dropout, lib
  those before it, whose rows sum to one. Outputs are compared.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lib import fast, reference

ROOT = Path(__file__).parents[2]
DTYPES = (torch.float32, torch.float64)
# Samples are numbers up to 9, so scores are large, and rounding a score is a relative error of the weight of that size.
SDPA_SCORES, MHA_SCORES = 1e3, 1e5


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    path = tmp_path_factory.mktemp("opinfo") / "samples.pt"
    command = [sys.executable, "-m", "tests.conformance.opinfo_samples", path]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}, check=True)
    return torch.load(path)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small tensors only: a second thread would wait, and burn a core doing so."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def seeded(function, *arguments, **options):
    torch.manual_seed(1)
    return function(*arguments, **options)


def close(given, expected, scores):
    """Allow a rounding error times the size of the scores, measured against the largest number expected, or 1."""
    given, expected = given.detach(), expected.detach()
    atol = torch.finfo(expected.dtype).eps * scores * max(1.0, float(expected.abs().max()))
    assert (given.dtype, given.shape) == (expected.dtype, expected.shape)
    assert float((given - expected).abs().max()) <= atol  # NaN fails too


# scaled_dot_product_attention


def of_sdpa(query, attn_mask=None, is_causal=False, **options):
    """Translate SDPA's options to those of lib.fast.attention."""
    if attn_mask is not None:
        options["mask" if attn_mask.dtype == torch.bool else "bias"] = attn_mask
    return options | {"causal": is_causal, "offset": 0 if is_causal else None}  # SDPA's causal is top-left


def test_sdpa_samples_are_whole(samples):
    for dtype in DTYPES:
        found = samples["scaled_dot_product_attention", dtype]
        assert len(found) == 25
        assert sum(options["dropout_p"] > 0 for _, options in found) == 12
        assert sum(options["is_causal"] for _, options in found) == 12
        assert sum("attn_mask" in options for _, options in found) == 1
        assert Counter(tuple(x.ndim for x in arrays) for arrays, _ in found) == {(3,) * 3: 8, (4,) * 3: 9, (3, 4, 4): 8}


@pytest.mark.parametrize("backend", ["auto", "sdpa", "math"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("i", range(25))
def test_sdpa_output_and_gradients(samples, i, dtype, backend):
    arrays, options = samples["scaled_dot_product_attention", dtype][i]
    arrays = [x.detach().requires_grad_() for x in arrays]
    expected = seeded(F.scaled_dot_product_attention, *arrays, **options)
    given = seeded(fast.attention, *arrays, **of_sdpa(*arrays[:1], **options), backend=backend)
    close(given, expected, SDPA_SCORES)
    grad_output = torch.linspace(-1, 1, expected.numel(), dtype=dtype).reshape(expected.shape)
    for ours, theirs in zip(*(torch.autograd.grad(x, arrays, grad_output) for x in (given, expected)), strict=True):
        close(ours, theirs, SDPA_SCORES)


@pytest.mark.parametrize("attend", [reference.attention, reference.streaming_attention])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sdpa_output_without_dropout_in_numpy(samples, dtype, attend):
    found = [(arrays, o) for arrays, o in samples["scaled_dot_product_attention", dtype] if o["dropout_p"] == 0]
    assert len(found) == 13
    for arrays, options in found:
        translated = {name: option for name, option in of_sdpa(*arrays[:1], **options).items() if name != "dropout_p"}
        translated = {n: x.numpy() if isinstance(x, torch.Tensor) else x for n, x in translated.items()}
        given = attend(*(x.numpy() for x in arrays), **translated)
        close(torch.from_numpy(given), F.scaled_dot_product_attention(*arrays, **options), SDPA_SCORES)


# multi_head_attention_forward


class Sample(NamedTuple):
    """A sample of multi_head_attention_forward: its arguments in their order, then its keywords."""

    query: torch.Tensor  # (L, D), or (L, B, D)
    key: torch.Tensor
    value: torch.Tensor
    embed_dim_to_check: int
    num_heads: int
    in_proj_weight: torch.Tensor | None  # (3D, D)
    in_proj_bias: torch.Tensor
    bias_k: torch.Tensor | None
    bias_v: torch.Tensor | None
    add_zero_attn: bool
    dropout_p: float
    out_proj_weight: torch.Tensor
    out_proj_bias: torch.Tensor
    q_proj_weight: torch.Tensor | None
    k_proj_weight: torch.Tensor | None
    v_proj_weight: torch.Tensor | None
    attn_mask: torch.Tensor | None  # (L, S), or (B·H, L, S), added to the scores
    training: bool
    use_separate_proj_weight: bool


def mha_samples(samples, dtype):
    return [Sample(*arguments, **options) for arguments, options in samples["multi_head_attention_forward", dtype]]


def torchs(sample):
    """Return torch's output, batch first, and its weights, those of each head."""
    output, weights = seeded(F.multi_head_attention_forward, **sample._asdict(), average_attn_weights=False)
    return batch_first(output), weights


def batch_first(x):
    return x if x.ndim == 2 else x.transpose(0, 1)


def translated(sample):
    """Return inputs, batch first, the three weights and biases as torch keeps them, and the options."""
    inputs = [batch_first(x) for x in (sample.query, sample.key, sample.value)]
    weights = (sample.q_proj_weight, sample.k_proj_weight, sample.v_proj_weight)
    if not sample.use_separate_proj_weight:
        weights = sample.in_proj_weight.chunk(3)
    bias = sample.attn_mask
    if bias is not None and bias.ndim == 3:
        bias = bias.reshape(*inputs[0].shape[:-2], sample.num_heads, *bias.shape[-2:])  # (B, H, L, S), or (H, L, S)
    return inputs, weights, sample.in_proj_bias.chunk(3), bias


def by_explicit_weights(sample):
    (query, key, value), weights, (b_q, b_k, b_v), bias = translated(sample)
    W_q, W_k, W_v, W_o = (W.T for W in (*weights, sample.out_proj_weight))
    return fast.multi_head_attention(
        query, W_q, W_k, W_v, W_o, sample.num_heads, key=key, value=value, b_q=b_q, b_k=b_k, b_v=b_v,
        b_o=sample.out_proj_bias, bias=bias, dropout_p=sample.dropout_p, return_weights=True,
    )  # fmt: skip


def by_module(sample):
    (query, key, value), weights, _, bias = translated(sample)
    theirs = nn.MultiheadAttention(sample.embed_dim_to_check, sample.num_heads, sample.dropout_p, dtype=query.dtype)
    state = {"in_proj_weight": torch.cat(weights), "in_proj_bias": sample.in_proj_bias}
    state |= {"out_proj.weight": sample.out_proj_weight, "out_proj.bias": sample.out_proj_bias}
    theirs.load_state_dict(state)
    layer = fast.MultiHeadAttention.from_torch(theirs.train(sample.training))
    torch.manual_seed(1)  # making a layer draws numbers
    output, weights = layer(query, key, value, bias=bias, need_weights=True)
    return output.detach(), weights.detach()


def with_appended_key(sample):
    """Append ``bias_k`` and ``bias_v`` as one more key and value after the projections; a mask never hides them."""
    inputs, weights, biases, bias = translated(sample)
    q, k, v = (F.linear(x, W, b) for x, W, b in zip(inputs, weights, biases, strict=True))
    k, v = (torch.cat([x, x0.expand(*x.shape[:-2], 1, -1)], -2) for x, x0 in ((k, sample.bias_k), (v, sample.bias_v)))
    q, k, v = (fast.split_heads(x, sample.num_heads) for x in (q, k, v))
    bias = None if bias is None else F.pad(bias, (0, 1))
    output, weights = fast.attention(q, k, v, bias=bias, dropout_p=sample.dropout_p, return_weights=True)
    return F.linear(fast.merge_heads(output), sample.out_proj_weight, sample.out_proj_bias), weights


def test_mha_samples_are_whole(samples):
    for dtype in DTYPES:
        found = mha_samples(samples, dtype)
        assert len(found) == 192
        assert sum(sample.bias_k is not None and sample.bias_v is not None for sample in found) == 192  # left out
        assert sum(sample.training and sample.dropout_p == 0.5 for sample in found) == 96  # their weights are left out
        assert sum(sample.use_separate_proj_weight for sample in found) == 96
        assert Counter(None if s.attn_mask is None else s.attn_mask.ndim for s in found) == {None: 64, 2: 64, 3: 64}
        assert Counter(sample.query.ndim for sample in found) == {2: 96, 3: 96}
        assert not any(sample.add_zero_attn for sample in found)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mha_outputs_and_weights(samples, dtype):
    compared = Counter()
    for sample in mha_samples(samples, dtype):
        without = sample._replace(bias_k=None, bias_v=None)
        expected = {True: torchs(sample), False: torchs(without)}
        for ours in (with_appended_key, by_explicit_weights, by_module):
            appended = ours is with_appended_key
            output, weights = seeded(ours, sample if appended else without)
            close(output, expected[appended][0], MHA_SCORES)
            compared[ours.__name__, "outputs"] += 1
            if not sample.training:
                close(weights, expected[appended][1], MHA_SCORES)
                compared[ours.__name__, "weights"] += 1
    assert {count for (_, what), count in compared.items() if what == "outputs"} == {192}
    assert {count for (_, what), count in compared.items() if what == "weights"} == {96}
