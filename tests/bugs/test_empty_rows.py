"""Rows with nothing left to see, fill values that are no wall, NaN behind a mask: forwards and backwards."""

import warnings

import numpy as np
import pytest
import torch

from lib import fast, reference
from tests import oracle
from tests.bugs.conftest import BACKENDS
from tests.rules import draw, some_mask

SHUT = np.array([[False, False], [True, True]])


def gradients(how, inputs, cotangent, **options):
    """Give the gradients of query, key, value (and bias), by hand in NumPy or by torch's autograd."""
    if how == "by hand":
        found = reference.attention_backward(cotangent, *inputs, **options)
        return [x for x in found if x is not None]
    options = {name: torch.tensor(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    leaves = [torch.tensor(x).requires_grad_() for x in inputs]
    if "bias" in options:
        leaves.append(options["bias"].requires_grad_())
    output = fast.attention(*leaves[:3], **options, backend=how)
    return [x.numpy() for x in torch.autograd.grad(output, leaves, torch.tensor(cotangent))]


@pytest.mark.parametrize("S", [1, 2, 40])
def test_N1_an_empty_row_gives_zero(attention, S):
    """No NaN, no mean of the values, no warning; the other rows do not notice.

    pytorch/pytorch#103749, pytorch/pytorch#103963, pytorch/pytorch#109517, pytorch/pytorch#26098,
    pytorch/pytorch#27968, pytorch/pytorch#131060, pytorch/pytorch#131863, pytorch/pytorch#81077, NVIDIA/apex#1390,
    patrick-kidger/equinox#274, ml-explore/mlx#2608, robertknight/rten#1321, tracel-ai/cubecl#1070,
    lucidrains/memory-compressed-attention#2, onnx/onnx#8054, Dao-AILab/flash-attention#1778, d2l-ai/d2l-en.
    """
    query, key, value = draw((), L=2, S=S)
    mask = np.array([[False], [True]]) & np.ones(S, bool)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = attention(query, key, value, mask=mask)
        alone = attention(query[:1], key, value, mask=mask[:1])  # L = 1
    assert given[0].tobytes() == alone.tobytes() == bytes(16)  # zero, and +0
    np.testing.assert_allclose(given[1], attention(query, key, value)[1], rtol=0, atol=1e-14)
    if "return_weights" in attention.options:
        weights = attention(query, key, value, mask=mask, return_weights=True)[1]
        assert (weights[0] == 0).all()
        np.testing.assert_allclose(weights[1].sum(), 1, rtol=1e-14)


def test_N1_whatever_empties_the_row(attention):
    """Emptied by a bias of -inf, by causal or a window that lie elsewhere, or by two that leave nothing together.

    facebookresearch/xformers#722, pytorch/pytorch#81077, microsoft/onnxruntime#28904.
    """
    query, key, value = draw((2,), L=2, S=2)
    empty = (
        {"bias": np.where(SHUT, 0, -np.inf)},
        {"mask": np.array([False, True]), "causal": True},
        {"causal": True, "offset": -1},
        {"window": (0, 0), "offset": -1},
        {"mask": np.array([[True, False], [True, True]]), "bias": np.array([[-np.inf, 0], [0, 0]])},
    )
    for options in empty:
        given = attention(query, key, value, **options)
        assert (given[:, 0] == 0).all()
        np.testing.assert_allclose(given, oracle.attention(query, key, value, **options)[0], rtol=0, atol=1e-14)
    assert (attention(query, key, value, mask=np.zeros((2, 2), bool)) == 0).all()


def test_N1_plus_infinity_is_not_hidden(exact_attention):
    """An infinite bias wins; it does not hide.

    pytorch/pytorch#157727 (its review), facebookresearch/xformers#722.
    """
    query, key, value = draw((), L=2, S=2)
    given = exact_attention(query, key, value, bias=np.array([[np.inf, 0], [0, 0]]))
    np.testing.assert_array_equal(given[0], value[0])
    np.testing.assert_allclose(given[1], exact_attention(query, key, value)[1], rtol=0, atol=1e-15)


def test_N1_in_a_layer(layer):
    """An empty row through a layer with weights, in a batch whose other entry sees everything.

    pytorch/pytorch#41508, ml-explore/mlx#2608.
    """
    x = np.array([[[1.0, 2], [3, 6]]] * 2)
    mask = np.ones((2, 1, 2, 2), bool)
    mask[0, 0, 0] = False
    output, weights = layer.plain(x, 2, mask=mask, return_weights=True)
    np.testing.assert_array_equal(output, [[[0, 0], [2, 4]], [[2, 4], [2, 4]]])
    np.testing.assert_array_equal(weights, np.where(mask, 0.5, 0) * np.ones((2, 2, 2, 2)))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_N2_added_masks_may_overflow_to_minus_infinity(attention, dtype):
    """Causal and left padding [0, 0, 1, 1], each as the dtype's smallest number: the sum is -inf, and never NaN.

    huggingface/transformers#28533, huggingface/transformers#27114, huggingface/transformers#26421,
    NVIDIA-NeMo/Automodel#2658.
    """
    lowest = np.finfo(dtype).min
    causal, real = np.tril(np.ones((4, 4), bool)), np.array([False, False, True, True])
    with np.errstate(over="ignore"):
        bias = np.where(causal, 0, lowest).astype(dtype) + np.where(real, 0, lowest).astype(dtype)
    assert np.isneginf(bias).any()
    query, key, _ = draw((), L=4, S=4, dtype=dtype)
    weights = attention(query, key, np.eye(4, dtype=dtype), bias=bias)
    assert np.isfinite(weights).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=2e-3)  # each row holds a finite score
    assert (weights[np.isneginf(bias)] == 0).all()
    for i in (2, 3):  # rows that have a key of their own
        assert (weights[i, ~(causal[i] & real)] == 0).all()


def test_N2_the_smallest_number_of_half_precision_plus_a_score(attention):
    """-65504 + (-16) is -inf in half precision: rows of such keys only still share out their weight.

    huggingface/transformers#17306.
    """
    query, key = np.full((2, 1), -4, np.float16), np.full((2, 1), 4, np.float16)
    bias = np.array([[0, -65504], [-65504, -65504]], np.float16)
    weights = attention(query, key, np.eye(2, dtype=np.float16), bias=bias, scale=1)
    np.testing.assert_array_equal(weights, [[1, 0], [0.5, 0.5]])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_no_fill_value_is_mistaken_for_a_wall(attention, dtype):
    """Visible scores far below any fill value in use, hidden scores of 0: the hidden weight is exactly 0.

    d2l-ai/d2l-en (fills with -1e6); a drill set that accepts a fill of -20; google/flax#982, openai/gpt-2#122.
    """
    low = {"float64": -1e12, "float32": -1e12, "float16": -6e4}[dtype]
    query, key = np.full((1, 1), low, dtype), np.array([[1], [0], [1]], dtype)
    mask = np.array([[True, False, True]])
    weights = attention(query, key, np.eye(3, dtype=dtype), mask=mask, scale=1)
    np.testing.assert_array_equal(weights, [[0.5, 0, 0.5]])


HIDDEN = [(np.nan, 1), (1, np.nan), (1, np.inf), (1, -np.inf), (np.inf, -np.inf), (np.nan, np.nan)]


@pytest.mark.parametrize("key_is, value_is", HIDDEN)
def test_N3_nan_at_a_hidden_position_stays_there(exact_attention, key_is, value_is):
    """NaN or infinity in a key or value that nobody may see: the answer is that without the key.

    pytorch/pytorch#101967.
    """
    query, key, value = draw((2,), L=3, S=4)
    wanted = exact_attention(query, key[:, :3], value[:, :3])
    key[:, 3], value[:, 3] = key_is, value_is
    hiders = ({"mask": np.array([True, True, True, False])}, {"bias": np.array([0, 0, 0, -np.inf])})
    hiders += ({"causal": True, "offset": 0, "mask": np.ones((3, 4), bool)},)
    for options in hiders:
        given = exact_attention(query, key, value, **options)
        if "causal" in options:
            wanted = exact_attention(query, key[:, :3], value[:, :3], causal=True)
        np.testing.assert_allclose(given, wanted, rtol=0, atol=1e-15)


def test_N3_large_numbers_at_a_hidden_position_change_nothing(attention):
    """Finite numbers at a hidden position change no bit, on backend="sdpa" too, which does not promise more.

    pytorch/pytorch#101967.
    """
    query, key, value = draw((2,), L=3, S=4)
    mask = np.array([True, True, True, False])
    wanted = attention(query, key, value, mask=mask)
    for size in (0, -1e6, 1e30):
        key[:, 3], value[:, 3] = size, -size
        assert attention(query, key, value, mask=mask).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("how", ["by hand", "auto", "math"])
@pytest.mark.parametrize("key_is, value_is", HIDDEN)
def test_N3_nan_at_a_hidden_position_changes_no_gradient(how, key_is, value_is):
    """Backwards as forwards: gradients are those without the key, whose own are 0.

    pytorch/pytorch#101967, Xilinx/brevitas#1591.
    """
    query, key, value = draw((2,), L=3, S=4)
    cotangent = draw((2,), L=3, seed=5)[2][:, :3]
    wanted = gradients(how, (query, key[:, :3], value[:, :3]), cotangent)
    key[:, 3], value[:, 3] = key_is, value_is
    given = gradients(how, (query, key, value), cotangent, mask=np.array([True, True, True, False]))
    np.testing.assert_allclose(given[0], wanted[0], rtol=0, atol=1e-14)
    for one, other in zip(given[1:], wanted[1:], strict=True):
        np.testing.assert_allclose(one[:, :3], other, rtol=0, atol=1e-14)
        assert (one[:, 3] == 0).all()


@pytest.mark.parametrize("how", ["by hand", *BACKENDS])
def test_N4_an_empty_row_leaves_gradients_finite(how):
    """The loss looks at row 1 only: gradients as if row 0 did not exist, and 0 for the query of row 0.

    pytorch/pytorch#41508, pytorch/pytorch#189045, pytorch/pytorch#196170, robertknight/rten#1321,
    tracel-ai/cubecl#1070, Xilinx/brevitas#1591.
    """
    query, key, value = draw((), L=2, S=2)
    cotangent = np.array([[0.0, 0.0], [0.7, -1.3]])
    given = gradients(how, (query, key, value), cotangent, mask=SHUT)
    wanted = gradients(how, (query[1:], key, value), cotangent[1:], mask=SHUT[1:])
    assert (given[0][0] == 0).all()
    np.testing.assert_allclose(given[0][1:], wanted[0], rtol=0, atol=1e-14)
    for one, other in zip(given[1:], wanted[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)
    # a loss that looks at the empty row too gets the same: it is 0 whatever the inputs are
    again = gradients(how, (query, key, value), cotangent + np.array([[1, 1], [0, 0]]), mask=SHUT)
    for one, other in zip(again, given, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_N4_in_a_layer_no_parameter_gets_nan(need_weights, training):
    """One row without keys in one entry of the batch: outputs and every gradient stay finite, in both modes.

    pytorch/pytorch#41508 (still NaN in torch 2.13 with need_weights=True).
    """
    torch.manual_seed(0)
    layer, x = fast.MultiHeadAttention(4, 2, dropout=0.1).train(training), torch.randn(2, 3, 4)
    mask = torch.ones(2, 1, 3, 3, dtype=torch.bool)
    mask[1, :, 0] = False
    found = layer(x.requires_grad_(), mask=mask, need_weights=need_weights)
    output = found[0] if need_weights else found
    torch.testing.assert_close(output[1, 0], layer.o_proj.bias)  # what the projection makes of 0
    output.square().sum().backward()
    for tensor in (output, x.grad, *(p.grad for p in layer.parameters())):
        assert tensor.isfinite().all()


@pytest.mark.parametrize("how", ["by hand", *BACKENDS])
def test_gradient_to_the_bias_alone(how):
    """Only the bias asks for a gradient, of every shape that broadcasts: it is that of finite differences.

    pytorch/pytorch#188302.
    """
    query, key, value = draw((2, 2), L=3, S=4)
    weighting = draw((2, 2), L=3, seed=5)[2][..., :3, :]
    for shape in ((2, 2, 3, 4), (3, 4), (2, 1, 1, 4), (1, 1)):
        bias = np.random.default_rng(2).normal(size=shape)
        if how == "by hand":
            given = reference.attention_backward(weighting, query, key, value, bias=bias).bias
        else:
            leaf = torch.tensor(bias, requires_grad=True)
            output = fast.attention(*map(torch.tensor, (query, key, value)), bias=leaf, backend=how)
            (output * torch.tensor(weighting)).sum().backward()
            given = leaf.grad.numpy()
        assert given.shape == shape
        index = np.unravel_index(np.argmax(np.abs(given)), shape)
        losses = []
        for step in (1e-5, -1e-5):
            moved = bias.copy()
            moved[index] += step
            losses.append((reference.attention(query, key, value, bias=moved) * weighting).sum())
        np.testing.assert_allclose(given[index], (losses[0] - losses[1]) / 2e-5, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("how", ["by hand", *BACKENDS])
def test_gradients_under_a_mask_are_those_of_finite_differences(how):
    """A mask, an empty row, causal and grouped heads at once, and every gradient as a numerical one says.

    pytorch/pytorch#178251.
    """
    inputs = draw((1, 4), L=3, S=3, E=2, shape_k=(1, 2))
    mask = some_mask((3, 3))
    mask[1] = False
    options = {"mask": mask, "causal": True, "enable_gqa": True}
    cotangent = draw((1, 4), L=3, seed=5)[2][..., :3, :]
    given = gradients(how, inputs, cotangent, **options)
    for n, gradient in enumerate(given):
        for index in np.ndindex(*gradient.shape):
            losses = []
            for step in (1e-5, -1e-5):
                moved = [x.copy() for x in inputs]
                moved[n][index] += step
                losses.append((reference.attention(*moved, **options) * cotangent).sum())
            np.testing.assert_allclose(gradient[index], (losses[0] - losses[1]) / 2e-5, rtol=0, atol=1e-8)


@pytest.mark.parametrize("how", ["by hand", *BACKENDS])
def test_no_cotangent_no_gradient(how):
    """vjp(0) is exactly 0: with a mask, with an empty row, with weights that are all on one key.

    erfanzar/jax-flash-attn2#1.
    """
    query, key, value = draw((2,), L=2, S=2)
    for size in (1, 1e3):
        for options in ({}, {"mask": SHUT}, {"causal": True}, {"bias": np.where(SHUT, 0, -np.inf)}):
            for gradient in gradients(how, (size * query, key, value), np.zeros((2, 2, 2)), **options):
                assert (gradient == 0).all()
