"""Softmax over the wrong axis, heads split or merged by the wrong view or read in the wrong order, wrong scale."""

import math

import numpy as np
import pytest
import torch

from lib import fast, masks
from tests import oracle
from tests.rules import draw


@pytest.mark.parametrize("leading", [(), (2,), (2, 2), (1, 2, 2)])
def test_A1_softmax_over_the_keys(attention, leading):
    """The softmax runs over the keys, whatever the number of axes: each of two keys gets a half.

    labmlai/annotated_deep_learning_paper_implementations#146, PetrochukM/PyTorch-NLP#2,
    nerminnuraydogan/vision-transformer#1, nerdai/llms-from-scratch-rs#30, FudanNLP/fastNLP#254,
    jadore801120/attention-is-all-you-need-pytorch#52.
    """
    query, key, value = np.zeros((*leading, 3, 4)), np.zeros((*leading, 2, 4)), np.eye(2)
    np.testing.assert_array_equal(attention(query, key, value), np.full((*leading, 3, 2), 0.5))
    if "return_weights" in attention.options:
        weights = attention(query, key, value, return_weights=True)[1]
        np.testing.assert_array_equal(weights, np.full((*leading, 3, 2), 0.5))


@pytest.mark.parametrize("B", [1, 2, 3])
def test_A2_split_and_merge_keep_heads_with_their_positions(attention, its_room, B):
    """Splitting moves an axis, it does not only reshape: each head reads its own columns of every position.

    reczoo/FuxiCTR#30, 649453932/Chinese-Text-Classification-Pytorch#10 and
    649453932/Chinese-Text-Classification-Pytorch#53, onnx/onnx#7118, llvm/torch-mlir#4470,
    rish-16/tokenlearner-pytorch#1.
    """
    H, L, D = 2, 3, 2
    x = np.zeros((B, L, H * D))
    for h in range(H):
        x[:, :, h * D : (h + 1) * D] = h
    value = its_room.split_heads(x, H)
    assert value.shape == (B, H, L, D)
    for h in range(H):
        assert (value[:, h] == h).all()
    zeros = np.zeros((B, H, L, D))
    np.testing.assert_allclose(its_room.merge_heads(attention(zeros, zeros, value)), x, rtol=1e-15)
    counted = np.arange(float(B * L * H * D)).reshape(B, L, H * D)
    np.testing.assert_array_equal(its_room.merge_heads(its_room.split_heads(counted, H)), counted)


def test_A2_a_layers_heads_keep_their_columns(layer):
    """The same through a layer whose queries and keys are 0: each position gets the mean of its own columns.

    onnx/onnx#7118, llvm/torch-mlir#4470, reczoo/FuxiCTR#30.
    """
    x = np.zeros((3, 3, 4))
    x[..., 2:] = 1
    np.testing.assert_allclose(layer.plain(x, num_heads=2), x, rtol=1e-15)


def test_A3_merged_heads_stand_side_by_side(room):
    """Merging gives row l the features of head 0, then head 1; B ≠ H, so that no other order fits.

    jsbaan/transformer-from-scratch#6 (#4), hackiey/QAnet-pytorch#2, 649453932/Chinese-Text-Classification-Pytorch#53,
    gazelle93/Transformer-Various-Positional-Encoding#1.
    """
    out = np.array([100.0 * h + 10 * row + d for h in range(2) for row in range(2) for d in range(2)])
    merged = room.merge_heads(np.stack([out.reshape(2, 2, 2) + 1000 * b for b in range(3)]))
    np.testing.assert_array_equal(merged[0], [[0, 1, 100, 101], [10, 11, 110, 111]])
    np.testing.assert_array_equal(merged[2], merged[0] + 2000)


def test_A3_batch_entries_do_not_mix(layer):
    """A layer fed with the batch first answers each entry as if it were alone, with and without the batch axis.

    aipixel/AEMatter#3, gazelle93/Transformer-Various-Positional-Encoding#1.
    """
    r = np.random.default_rng(0)
    x, weights = r.normal(size=(3, 5, 4)), [r.normal(size=(4, 4)) for _ in range(4)]
    whole = layer(x, *weights, 2)
    for b in range(3):
        np.testing.assert_allclose(layer(x[b : b + 1], *weights, 2)[0], whole[b], rtol=0, atol=1e-13)
        np.testing.assert_allclose(layer(x[b], *weights, 2), whole[b], rtol=0, atol=1e-13)


def test_G1_query_heads_share_key_heads_in_a_row(attention):
    """Heads 0 and 1 read key/value head 0, heads 2 and 3 read head 1; with as many of both, each reads its own.

    onnx/onnx#7274, ekzhang/jax-js#180, apple/axlearn#842, PSAL-POSTECH/ONNXim#34, EricLBuehler/candle-vllm#52.
    """
    value = np.ones((1, 2, 5, 1)) * np.array([1.0, 2.0])[:, None, None]
    given = attention(np.zeros((1, 4, 3, 2)), np.zeros((1, 2, 5, 2)), value, enable_gqa=True)
    np.testing.assert_allclose(given[0, :, :, 0], np.array([[1, 1, 2, 2]]).T * np.ones(3), rtol=1e-15)
    own = np.ones((1, 4, 5, 1)) * np.arange(4.0)[:, None, None]
    given = attention(np.zeros((1, 4, 3, 2)), np.zeros((1, 4, 5, 2)), own, enable_gqa=True)
    np.testing.assert_allclose(given[0, :, 0, 0], [0, 1, 2, 3], rtol=1e-15)


def test_G1_storage_by_positions(attention):
    """From (B, S, H, D) storage: a repeat along axis 1 would repeat positions instead of heads.

    PrimeIntellect-ai/prime-rl#2681, ByteDance-Seed/VeOmni#162.
    """
    query, key, value = draw((2, 4), shape_k=(2, 2))
    stored = (np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (query, key, value))
    wanted = oracle.attention(query, key, value, enable_gqa=True)[0]
    np.testing.assert_allclose(attention(*stored, enable_gqa=True), wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("G", [1, 2, 4])
def test_G1_in_a_layer(layer, G):
    """Four query heads and G key/value heads, whose values say which head they are.

    onnx/onnx#7274, PSAL-POSTECH/ONNXim#34, apple/axlearn#842.
    """
    W_v = np.outer([1, 0, 0, 0], np.arange(1.0, G + 1))  # head g hands over g + 1
    given = layer(np.ones((2, 3, 4)), np.zeros((4, 4)), np.zeros((4, G)), W_v, np.eye(4), 4, G)
    np.testing.assert_allclose(given[0, 0], np.repeat(W_v[0], 4 // G), rtol=1e-15)


def test_S1_scale_is_one_over_the_root_of_the_head_size(attention):
    """Scores are multiplied by one over the root of E, with heads or without, whatever the size of the values.

    esceptico/perceiver-io#9, mlc-ai/mlc-llm#3426 (on every path), cneuralnetwork/solving-ml-papers#1 (hidden by equal
    sizes); drill sets that accept the size of the values.
    """
    query, key, value = np.ones((1, 4)), np.array([[1.0] * 4, [0.0] * 4]), np.array([[1.0], [0.0]])
    wanted = 1 / (1 + math.exp(-2))
    assert wanted == pytest.approx(0.880797, abs=1e-6)
    for heads in ((), (2,), (1, 2)):
        many = (np.broadcast_to(x, (*heads, *x.shape)).copy() for x in (query, key, value))
        np.testing.assert_allclose(attention(*many), np.full((*heads, 1, 1), wanted), rtol=1e-12)
    options = {"mask": np.ones((1, 2), bool)}, {"bias": np.zeros((1, 2))}, {"causal": True, "offset": 1}, {}
    options += ({"window": (1, 0), "offset": 1}, {"softcap": 1e9}, {"return_weights": True})
    for option in options:
        for size in (1, 3, 4):
            if set(option) <= attention.options:
                given = attention(query, key, np.repeat(value, size, 1), **option)
                output = given[0] if isinstance(given, tuple) else given
                np.testing.assert_allclose(output, [[wanted] * size], rtol=1e-12)


def test_S1_a_layer_scales_by_its_heads_and_not_by_all_features(layer):
    """Two heads of size 4 on 4 features: H · E is not the model's width, and neither it nor the width is the scale.

    lucidrains/vit-pytorch#65, Graylab/DL4Proteins-notebooks#12, omihub777/ViT-CIFAR#11,
    FrancescoSaverioZuppichini/ViT#1, FareedKhan-dev/train-llm-from-scratch#3, juho-lee/set_transformer#18,
    coreylowman/dfdx#171, karpathy/ng-video-lecture#6, karpathy/ng-video-lecture#28, karpathy/ng-video-lecture#55,
    huggingface/diffusers#4154.
    """
    x, both = np.array([[1.0] * 4, [0.0] * 4]), np.concatenate([np.eye(4)] * 2, 1)  # both heads read every feature
    given = layer(x, both, both, both, both.T / 2, 2)
    np.testing.assert_allclose(given, [[1 / (1 + math.exp(-2))] * 4, [0.5] * 4], rtol=1e-12)
    # two heads of size 2, four features: the score is 2 / √2, and would be 2 / √4 with the scale of all features
    given = layer(x, np.eye(4), np.eye(4), np.eye(4), np.eye(4), 2)
    np.testing.assert_allclose(given[0], [1 / (1 + math.exp(-(2**0.5)))] * 4, rtol=1e-12)


@pytest.mark.parametrize("H, E, D", [(2, 3, 5), (3, 1, 2), (1, 4, 2)])
def test_width_of_the_heads_need_not_be_the_models(layer, H, E, D):
    """H · E ≠ D, and keys and values from inputs of other widths: the weights alone decide.

    huggingface/diffusers#4154.
    """
    r = np.random.default_rng(0)
    query, key, value = r.normal(size=(2, 4, D)), r.normal(size=(2, 6, D + 1)), r.normal(size=(2, 6, D + 2))
    W_q, W_k, W_v, W_o = (r.normal(size=size) for size in ((D, H * E), (D + 1, H * E), (D + 2, H * E), (H * E, D)))
    given = layer(query, W_q, W_k, W_v, W_o, H, key=key, value=value)
    found = [
        oracle.attention(query @ W_q[:, e], key @ W_k[:, e], value @ W_v[:, e])[0]
        for e in (slice(h * E, (h + 1) * E) for h in range(H))
    ]
    np.testing.assert_allclose(given, np.concatenate(found, -1) @ W_o, rtol=0, atol=1e-12)


def test_the_answer_depends_on_query_and_key(attention):
    """Attention that forgets its query, or its keys, is no attention: a popular drill set lets it pass."""
    query, key, value = np.array([[3.0], [-3.0]]), np.array([[1.0], [-1.0]]), np.array([[1.0], [0.0]])
    likely = 1 / (1 + math.exp(-6))
    np.testing.assert_allclose(attention(query, key, value), [[likely], [1 - likely]], rtol=1e-12)
    np.testing.assert_allclose(attention(query, -key, value), [[1 - likely], [likely]], rtol=1e-12)


def test_a_block_is_what_its_text_says():
    """Norm first, then attention, then add, and the same with the MLP: what Block's docstring says.

    harvardnlp/annotated-transformer#1, harvardnlp/annotated-transformer#13, harvardnlp/annotated-transformer#100,
    harvardnlp/annotated-transformer#110 (text says one thing, code another).
    """
    torch.manual_seed(0)
    block = fast.LanguageModel(vocab_size=5, dim=8, num_layers=1, num_heads=2, max_length=6).blocks[0]
    equation = "x = x + attention(norm(x)),    then    x = x + mlp(norm(x))"
    assert equation in type(block).__doc__
    x = torch.randn(1, 4, 8)
    between = x + block.attention(block.attention_norm(x), causal=True)
    torch.testing.assert_close(block(x), between + block.mlp(block.mlp_norm(between)))


def test_X1_valid_lengths_give_the_means_of_the_first_keys(attention):
    """The first two of ten keys for one sequence, the first six for the other: the worked example of d2l-ai/d2l-en."""
    key, value = np.ones((2, 10, 2)), np.repeat(np.arange(40.0).reshape(1, 10, 4), 2, 0)
    mask = masks.padding(np.array([[2], [6]]), 10)  # (B, 1, S)
    given = attention(np.ones((2, 1, 2)), key, value, mask=mask.reshape(2, 1, 10))
    np.testing.assert_allclose(given, [[[2, 3, 4, 5]], [[10, 11, 12, 13]]], rtol=1e-14)
