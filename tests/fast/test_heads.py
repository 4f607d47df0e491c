"""Heads on tensors: equal to the reference, with gradients, dropout and kernels of fast.attention."""

import re

import numpy as np
import pytest
import torch

from lib import fast, reference
from lib.fast import merge_heads, multi_head_attention, split_heads

F64 = {"dtype": torch.float64}


def make(seed=0, B=2, L=3, S=4, D=6, H=4, G=2, E=3, Ev=2, D_o=5, dtype=torch.float64):
    """Return query, key and the weights W_q, W_k, W_v, W_o, each (in, out)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (B, L, D), (B, S, D), (D, H * E), (D, G * E), (D, G * Ev), (H * Ev, D_o)
    query, key, *weights = (torch.randn(shape, generator=generator, **F64).to(dtype) for shape in shapes)
    return query, key, weights


def test_split_and_merge_tensors():  # A2, A3
    b, h, row, d = torch.meshgrid(*(torch.arange(n) for n in (2, 2, 3, 2)), indexing="ij")
    x = 1000 * b + 100 * h + 10 * row + d
    merged = merge_heads(x)
    assert merged[0].tolist()[:2] == [[0, 1, 100, 101], [10, 11, 110, 111]]
    assert torch.equal(split_heads(merged, 2), x)
    assert split_heads(merged, 2).data_ptr() == merged.data_ptr()  # a view
    assert fast.split_heads is reference.split_heads  # one definition for both


OPTIONS = [
    {},
    {"causal": True, "offset": 1},
    {"window": (1, 0), "offset": 0},
    {"mask": np.array([[True, False, True, True]])},
    {"mask": np.array([[[[True, False, True, True]]], [[[False, False, False, False]]]])},
    {"bias": np.linspace(-1, 1, 12).reshape(3, 4)},
    {"softcap": 2.0},
    {"scale": 0.7},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("G", [4, 2, 1])
def test_equals_the_reference(options, biased, G):
    query, key, weights = make(G=G)
    biases = [torch.linspace(-1, 1, W.shape[1], **F64) for W in weights] if biased else [None] * 4
    names = ("b_q", "b_k", "b_v", "b_o")
    arrays = {n: None if b is None else b.numpy() for n, b in zip(names, biases, strict=True)}
    tensors = {n: torch.tensor(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
    wanted = reference.multi_head_attention(
        query.numpy(), *(W.numpy() for W in weights), 4, G, key=key.numpy(), **arrays, **options, return_weights=True
    )
    tensors.update(zip(names, biases, strict=True))
    output, shares = multi_head_attention(query, *weights, 4, G, key=key, **tensors, return_weights=True)
    np.testing.assert_allclose(output, wanted[0], atol=1e-12)
    np.testing.assert_allclose(shares, wanted[1], atol=1e-12)
    for backend in ("auto", "math", *(() if "softcap" in options else ("sdpa",))):
        output = multi_head_attention(query, *weights, 4, G, key=key, **tensors, backend=backend)
        np.testing.assert_allclose(output, wanted[0], atol=1e-12)


@pytest.mark.parametrize("H", [2, 3])  # B = H and B ≠ H
def test_each_batch_entry_gets_its_own_mask(H):  # M4
    value = torch.tensor([[[1.0], [2.0]], [[11.0], [12.0]]]).repeat_interleave(H, -1)
    mask = torch.tensor([[[True, False]], [[False, True]]])  # (B, 1, S)
    nothing, same = torch.zeros(H, H), torch.eye(H)
    output = multi_head_attention(value, nothing, nothing, same, same, H, mask=mask[:, None])
    assert torch.equal(output, torch.tensor([1.0, 12.0])[:, None, None].expand(2, 2, H))
    with pytest.raises(ValueError, match=re.escape("mask must have axes (L, S) or (B, H, L, S)")):
        multi_head_attention(value, nothing, nothing, same, same, H, mask=mask)
    with pytest.raises(ValueError, match=re.escape("bias must have axes (L, S) or (B, H, L, S)")):
        multi_head_attention(value, nothing, nothing, same, same, H, bias=mask.float())


def test_each_key_value_head_serves_neighbours():  # G1
    zeros, value = torch.zeros(1, 1), torch.ones(1, 1)
    W_q, W_k, W_v = torch.zeros(1, 4), torch.zeros(1, 2), torch.tensor([[1.0, 2.0]])
    output = multi_head_attention(zeros, W_q, W_k, W_v, torch.eye(4), 4, 2, value=value)
    assert output.tolist() == [[1.0, 1.0, 2.0, 2.0]]


@pytest.mark.parametrize("options", [{}, {"causal": True, "offset": 1}, {"softcap": 2.0}], ids=str)
def test_gradients_of_inputs_weights_and_biases(options):
    query, key, weights = make(B=1, L=2, S=3, D=3, H=2, G=1, E=2, Ev=2, D_o=2)
    biases = [torch.linspace(-1, 1, W.shape[1], **F64) for W in weights]
    leaves = [x.requires_grad_() for x in (query, key, *weights, *biases)]

    def output(query, key, W_q, W_k, W_v, W_o, b_q, b_k, b_v, b_o):
        return multi_head_attention(
            query, W_q, W_k, W_v, W_o, 2, 1, key=key, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o, **options
        )

    assert torch.autograd.gradcheck(output, leaves)


@pytest.mark.parametrize("return_weights", [False, True])
def test_a_query_without_keys_has_finite_gradients(return_weights):  # N1, N4
    query, key, weights = make()
    leaves = [x.requires_grad_() for x in (query, key, *weights)]
    mask = torch.tensor([[False], [True], [True]]).expand(3, 4)
    found = multi_head_attention(query, *weights, 4, 2, key=key, mask=mask, return_weights=return_weights)
    output = found[0] if return_weights else found
    assert torch.equal(output[:, 0], torch.zeros(2, 5, **F64))
    output[:, 1:].sum().backward()
    assert all(x.grad.isfinite().all() for x in leaves)
    assert torch.equal(query.grad[:, 0], torch.zeros(2, 6, **F64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_keeps_the_dtype(dtype):
    query, key, weights = make(dtype=dtype)
    output, shares = multi_head_attention(query, *weights, 4, 2, key=key, return_weights=True)
    assert output.dtype == shares.dtype == dtype


def test_dropout_spares_the_returned_weights():  # D1
    query, key, weights = make()
    torch.manual_seed(0)
    dropped, shares = multi_head_attention(query, *weights, 4, 2, key=key, dropout_p=0.5, return_weights=True)
    output, wanted = multi_head_attention(query, *weights, 4, 2, key=key, return_weights=True)
    assert torch.equal(shares, wanted)
    assert not torch.allclose(dropped, output)


X, SQUARE = torch.zeros(2, 3, 4), torch.zeros(4, 4)


def call(x=X, W_q=SQUARE, W_k=SQUARE, W_v=SQUARE, W_o=SQUARE, num_heads=2, num_kv_heads=None, **options):
    return multi_head_attention(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, **options)


@pytest.mark.parametrize("name", ["key", "value", "W_q", "W_k", "W_v", "W_o", "b_q", "b_k", "b_v", "b_o"])
def test_every_array_is_checked_by_its_name(name):
    with pytest.raises(TypeError, match=f"^{name} must be a torch.Tensor, got str$"):
        call(**{name: "four"})


@pytest.mark.parametrize(
    "kind, wrong, text",
    [
        (TypeError, lambda: split_heads("x", 1), "x must be an array or a tensor, got str"),
        (TypeError, lambda: call(x=np.zeros((3, 4))), "query must be a torch.Tensor, got numpy.ndarray"),
        (TypeError, lambda: call(W_o=np.zeros((4, 4))), "W_o must be a torch.Tensor, got numpy.ndarray"),
        (TypeError, lambda: call(W_k=SQUARE.double()), "W_k must have query's dtype float32, got float64"),
        (ValueError, lambda: call(b_k=torch.zeros(4, device="meta")), "b_k must be on query's device cpu, got meta"),
        (ValueError, lambda: call(W_v=torch.zeros(6, 4)), "keeps its weight as (out, in): pass it transposed"),
        (ValueError, lambda: call(num_heads=6, num_kv_heads=4), "num_heads (6) must be divisible by num_kv_heads (4)"),
        (ValueError, lambda: call(dropout_p=1.5), "dropout_p must lie between 0 and 1, got 1.5"),
        (ValueError, lambda: call(backend="flash"), "backend must be one of auto, sdpa, triton, math, got 'flash'"),
    ],
)
def test_errors_name_the_argument(kind, wrong, text):
    with pytest.raises(kind, match=re.escape(text)):
        wrong()
