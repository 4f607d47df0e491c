"""Overflow, half precision, double precision lost on the way, dropout outside training."""

import numpy as np
import pytest
import torch

from lib import fast, reference
from tests import oracle
from tests.rules import draw, some_mask


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shift", [0, 1e4, -1e4])
def test_P1_scores_of_ten_thousand(attention, dtype, shift):
    """Scores 1e4 · (1, 2, 3), and all moved by a constant: one-hot, never NaN, and the constant changes nothing.

    pytorch/pytorch#121558; a drill set that accepts a softmax without the maximum.
    """
    query, value = np.ones((2, 1), dtype), np.array([[1], [2], [4]], dtype)
    key, bias = 1e4 * np.array([[1], [2], [3]], dtype), np.full((1, 3), shift, dtype)
    np.testing.assert_array_equal(attention(query, key, value, bias=bias), [[4], [4]])
    query[0] = 0  # one row of equal scores beside one of large ones: each has a maximum of its own
    np.testing.assert_allclose(attention(query, key, value, bias=bias), [[7 / 3], [4]], rtol=1e-6)


def test_P1_huge_bfloat16(backend):
    """Inputs of 133120 in bfloat16: all scores are equal, and the mean of 0, 1 and 2 is 1.

    pytorch/pytorch#121558.
    """
    x = torch.full((1, 2, 3, 8), 133120.0, dtype=torch.bfloat16)
    value = torch.arange(3.0).to(torch.bfloat16)[:, None].expand(1, 2, 3, 8)
    for options in ({}, {"causal": True}):
        output = fast.attention(x, x, value, backend=backend, **options)
        assert (output[..., -1, :] == 1).all()
        assert output.isfinite().all()


def test_P2_half_precision_products_do_not_overflow(attention):
    """40 · 40 · 64 = 102400 is beyond float16's 65504, and the scores must not be infinite: the mean of 1 and 3.

    pytorch/pytorch#60939, pytorch/pytorch#60940, pytorch/pytorch#119131, Dao-AILab/flash-attention#49,
    ultralytics/ultralytics#24990, PaddlePaddle/Paddle#41933, tinygrad/tinygrad#4985, microsoft/onnxruntime#28198.
    """
    query, key = np.full((1, 64), 40, np.float16), np.full((2, 64), 40, np.float16)
    value = np.array([[1], [3]], np.float16)
    for options in ({}, {"mask": np.ones((1, 2), bool)}, {"bias": np.zeros((1, 2), np.float16)}):
        given = attention(query, key, value, **options)
        np.testing.assert_array_equal(given, [[2]])
        assert given.dtype == np.float16
    key[0] = 39  # scores 12480 and 12800, from products beyond 65504 both: the second wins
    np.testing.assert_array_equal(attention(query, key, value), [[3]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_P4_masks_in_half_precision(dtype, backend):
    """No fill value that the dtype cannot hold, and at most twice the error of the plain body in that dtype.

    NVIDIA/apex#1052, NVIDIA/apex#1105, facebookresearch/fairseq#3575, facebookresearch/mmf#962,
    huggingface/lerobot#710, ahrefs/ocannl#548, keras-team/keras#17571, tensorflow/tensorflow#59657,
    tensorflow/tensorflow#46064, tensorflow/tensorflow#46321, google/flax#982, openai/gpt-2#122,
    huggingface/transformers#6915,
    huggingface/diffusers#3483, apple/axlearn#18, tinygrad/tinygrad#12280, Dao-AILab/flash-attention#118, d2l-ai/d2l-en.
    """
    query, key, value = (torch.tensor(x).to(dtype) for x in draw((1, 2), 16, 16, 32, 8))
    mask = some_mask((16, 16))
    exact, _ = oracle.attention(*(x.double().numpy() for x in (query, key, value)), mask=mask)
    mask = torch.tensor(mask)
    plain = torch.softmax((query @ key.mT / 32**0.5).masked_fill(~mask, -torch.inf), -1) @ value
    given = fast.attention(query, key, value, mask=mask, backend=backend)
    assert given.dtype == dtype
    assert np.abs(given.double().numpy() - exact).max() <= 2 * np.abs(plain.double().numpy() - exact).max()


@pytest.mark.parametrize("function", [reference.attention, reference.streaming_attention])
def test_P4_masks_in_half_precision_in_numpy(function):
    """The same for the reference and its tiles.

    NVIDIA/apex#1052, google/flax#982, tensorflow/tensorflow#46064.
    """
    query, key, value = draw((1, 2), 16, 16, 32, 8, dtype="float16")
    mask = some_mask((16, 16))
    exact, _ = oracle.attention(query, key, value, mask=mask)
    scores = np.where(mask, query @ key.swapaxes(-1, -2) / np.float16(32**0.5), np.float16(-np.inf))
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    plain = (shares / shares.sum(-1, keepdims=True)) @ value
    assert plain.dtype == np.float16
    given = function(query, key, value, mask=mask)
    assert given.dtype == np.float16
    assert np.abs(given - exact).max() <= 2 * np.abs(plain - exact).max()


def test_P5_double_precision_stays_double(attention):
    """No softmax in float32 on the way: within 1e-14 · S of sixty digits; a mask and a bias change nothing about it.

    huggingface/transformers#48459, huggingface/transformers#48466, jax-ml/jax#34114.
    """
    query, key, value = draw((2,), 4, 7)
    for options in ({}, {"mask": some_mask((4, 7))}, {"bias": np.random.default_rng(1).normal(size=(4, 7))}):
        wanted, _ = oracle.attention(query, key, value, digits=True, **options)
        given = attention(query, key, value, **options)
        assert given.dtype == np.float64
        assert np.abs(given - wanted).max() < 1e-14 * 7


def test_D1_no_dropout_in_evaluation():
    """Evaluation is repeatable and equals no dropout; in training the mean is kept, and weights are those before it.

    pytorch/pytorch#124464, pytorch/pytorch#99293, pytorch/pytorch#27968, huggingface/pytorch-image-models#1978,
    karpathy/nanoGPT#240, facebookresearch/vjepa2#160, wenet-e2e/wenet#2699, NVIDIA/torch-harmonics#221,
    pytorch/torchtune#1049.
    """
    torch.manual_seed(0)
    layer, x = fast.MultiHeadAttention(4, 2, dropout=0.5), torch.randn(2, 5, 4)
    without = fast.MultiHeadAttention(4, 2)
    without.load_state_dict(layer.state_dict())
    with torch.no_grad():
        wanted, weights = without(x, need_weights=True)
        layer.eval()
        assert torch.equal(layer(x), layer(x))
        torch.testing.assert_close(layer(x), wanted)
        torch.testing.assert_close(layer(x, need_weights=True)[0], wanted)
        layer.train()
        assert not torch.equal(layer(x), layer(x))
        output, given = layer(x, need_weights=True)
        assert not torch.allclose(output, wanted)  # dropped, with weights as without
        torch.testing.assert_close(given, weights)
        torch.testing.assert_close(given.sum(-1), torch.ones(2, 2, 5))
        many = layer(x.repeat(2000, 1, 1)).reshape(2000, 2, 5, 4)
    error = (many.mean(0) - wanted).abs() / (many.std(0) / 2000**0.5)
    assert error.max() < 5  # standard errors


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_D1_a_language_model_in_evaluation(positions):
    """The same for a whole model: its attention, its MLP and its embeddings.

    karpathy/nanoGPT#240, pytorch/torchtune#1049, pytorch/pytorch#99293.
    """
    torch.manual_seed(0)
    model = fast.LanguageModel(
        vocab_size=5, dim=4, num_layers=1, num_heads=2, max_length=6, positions=positions, dropout=0.5
    )  # fmt: skip
    tokens = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        assert not torch.equal(model(tokens), model(tokens))
        model.eval()
        assert torch.equal(model(tokens), model(tokens))


def test_D1_functions_drop_only_when_asked(backend):
    """Without dropout_p nothing is dropped; with it the mean over many heads is kept.

    pytorch/pytorch#124464.
    """
    torch.manual_seed(0)
    query, key, value = (torch.tensor(x) for x in draw((1, 1), 3, 4))
    wanted = torch.tensor(oracle.attention(*(x.numpy() for x in (query, key, value)))[0])
    torch.testing.assert_close(fast.attention(query, key, value, backend=backend), wanted, rtol=0, atol=1e-14)
    many = [x.expand(2000, 1, *x.shape[2:]) for x in (query, key, value)]
    dropped = fast.attention(*many, dropout_p=0.3, backend=backend)
    error = (dropped.mean(0) - wanted[0]).abs() / (dropped.std(0) / 2000**0.5)
    assert error.max() < 5  # standard errors
