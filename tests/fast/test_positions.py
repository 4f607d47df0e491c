"""Positions on tensors: equal to those on arrays, with gradients, dtypes and devices of torch."""

import re

import numpy as np
import pytest
import torch

from lib import reference
from lib.fast import alibi_bias, alibi_slopes, attention, rotary, rotate_pairs, sinusoidal

PAIRINGS = ("interleaved", "half")


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("rotary_dim", [None, 4, 0])
@pytest.mark.parametrize("positions", [[3, 1, 4], [0.5, 2.0, -7.0], [[3, 1, 4], [1, 5, 9]]], ids=str)
def test_rotary_equals_the_reference(pairing, rotary_dim, positions):
    x = randn(2, 2, 3, 8)
    options = {"pairing": pairing, "rotary_dim": rotary_dim, "base": 500.0}
    wanted = reference.rotary(x.numpy(), positions, **options)
    for given in (torch.tensor(positions), np.array(positions), positions):  # tensor, array or list
        np.testing.assert_allclose(rotary(x, given, **options), wanted, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("rotary_dim", [4, 2])
def test_gradients_of_rotary(pairing, rotary_dim):
    x = randn(2, 3, 4).requires_grad_()
    options = {"pairing": pairing, "rotary_dim": rotary_dim}
    assert torch.autograd.gradcheck(lambda x: rotary(x, [2, 5, 7], **options), x)
    assert torch.autograd.gradgradcheck(lambda x: rotary(x, [2, 5, 7], **options), x)
    upstream = randn(2, 3, 4, seed=1)  # a rotation's gradient is the rotation backwards
    (given,) = torch.autograd.grad(rotary(x, [2, 5, 7], **options), x, upstream)
    torch.testing.assert_close(given, rotary(upstream, [-2, -5, -7], **options), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_products_depend_on_the_distance_only(pairing):  # R1
    a, b = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).double(), torch.tensor([[2.0, -1.0, 0.5, 1.0]]).double()

    def product(i, j):
        return (rotary(a, [i], pairing=pairing) * rotary(b, [j], pairing=pairing)).sum().item()

    assert product(3, 1) == pytest.approx(product(10, 8), abs=1e-13)
    assert product(3, 1) != pytest.approx(product(10, 1), abs=1e-2)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_turned_in_single_precision(pairing, dtype):
    x = randn(2, 300, 8).to(dtype)
    positions = torch.arange(300) + 100_000
    given = rotary(x, positions, pairing=pairing)
    assert given.dtype == dtype
    exact = rotary(x.double(), positions, pairing=pairing)
    size = given.double().abs().clamp(min=torch.finfo(dtype).tiny)
    step = torch.finfo(dtype).eps * 2.0 ** torch.floor(torch.log2(size))
    assert ((given.double() - exact).abs() <= step / 2 + 1e-6).all()  # rounded once, at the end


def test_views_and_unchanged_input():
    x = randn(4, 3, 8)
    wanted, before = rotary(x, [1, 2, 3]), x.clone()
    for view in (
        x.mT.contiguous().mT,
        x.repeat_interleave(2, -1)[..., ::2],
        x.transpose(0, 1).contiguous().transpose(0, 1),
    ):
        assert torch.equal(rotary(view, [1, 2, 3]), wanted)
    assert torch.equal(x, before)
    assert torch.equal(rotary(x[:1].expand(4, 3, 8), [1, 2, 3]), wanted[:1].expand(4, 3, 8))


@pytest.mark.parametrize("dim", [0, 2, 6])
def test_sinusoidal_equals_the_reference(dim):
    positions = torch.tensor([[0, 1, 2], [17, 4095, 100_000]])
    wanted = reference.sinusoidal(positions.numpy(), dim)
    np.testing.assert_allclose(sinusoidal(positions, dim, dtype=torch.float64), wanted, atol=1e-10)
    given = sinusoidal([0, 1, 2], dim)
    assert (given.dtype, given.shape) == (torch.float32, (3, dim))
    assert torch.equal(given, sinusoidal(torch.arange(3), dim, dtype=torch.float64).float())


@pytest.mark.parametrize("H", [1, 2, 3, 8, 12])
def test_alibi_equals_the_reference(H):
    assert alibi_slopes(H).dtype == torch.float32
    np.testing.assert_array_equal(alibi_slopes(H, dtype=torch.float64), reference.alibi_slopes(H))
    q_pos, k_pos = torch.tensor([[3], [5]]), torch.arange(6)
    given = alibi_bias(H, q_pos, k_pos, dtype=torch.float64)
    np.testing.assert_array_equal(given, reference.alibi_bias(H, q_pos.numpy(), k_pos.numpy()))
    assert alibi_bias(H, [0], [0, 1]).dtype == torch.float32


def test_alibi_in_attention():
    q, k, v = randn(2, 3, 4), randn(2, 5, 4, seed=1), randn(2, 5, 4, seed=2)
    bias = alibi_bias(2, [2, 3, 4], torch.arange(5), dtype=torch.float64)
    wanted = reference.attention(q.numpy(), k.numpy(), v.numpy(), bias=bias.numpy(), causal=True, offset=2)
    np.testing.assert_allclose(attention(q, k, v, bias=bias, causal=True, offset=2), wanted, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_alibi_never_blocks_however_far(dtype):
    assert alibi_bias(8, [10**40 // 10**34], [0], dtype=dtype).isfinite().all()


def test_results_are_on_the_device_of_what_is_given():
    positions = torch.arange(3, device="meta")
    assert sinusoidal(positions, 4).device.type == "meta"
    assert alibi_bias(2, positions, positions).device.type == "meta"
    assert alibi_slopes(2, device="meta").device.type == "meta"
    assert rotary(torch.zeros(3, 4, device="meta"), [0, 1, 2]).device.type == "meta"


X = torch.zeros(2, 3, 4)


@pytest.mark.parametrize(
    "kind, wrong, text",
    [
        (TypeError, lambda: rotary(X.long(), [0, 1, 2]), "x must be floating, got int64"),
        (
            ValueError,
            lambda: rotary(X, [0, 1]),
            "positions must have shape (3,) or one row for each batch entry (2, 3)",
        ),
        (TypeError, lambda: rotary(X, torch.zeros(3).bool()), "positions must hold integers or real numbers, got bool"),
        (
            TypeError,
            lambda: rotary(X.numpy(), torch.arange(3)),
            "positions must be a list or an array, as x is an array",
        ),
        (ValueError, lambda: rotary(X, [0, 1, 2], pairing=None), "pairing must be one of interleaved, half, got None"),
        (TypeError, lambda: sinusoidal([0], 2, dtype=torch.int32), "dtype must be floating, got int32"),
        (
            ValueError,
            lambda: sinusoidal(torch.tensor(5), 2),
            "positions must have a position axis, such as [0, 1, 2]; got",
        ),
        (ValueError, lambda: alibi_slopes(0), "num_heads must be 1 or more, got 0"),
        (
            TypeError,
            lambda: reference.alibi_bias(1, torch.arange(2), np.arange(2)),
            "q_pos and k_pos must be of one framework, got Tensor and ndarray",
        ),
        (
            ValueError,
            lambda: rotate_pairs(X, torch.zeros(3, 3), torch.zeros(3, 3), pairing="half"),
            "cos and sin must have at most E/2 = 2 pairs, got 3",
        ),
    ],
)
def test_errors_name_the_argument(kind, wrong, text):
    with pytest.raises(kind, match=re.escape(text)):
        wrong()
