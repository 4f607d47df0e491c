"""What holds for merging in NumPy holds in torch; and gradients go through it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib import fast, reference
from tests.reference.test_merging import CLOSE, MANY, attend, problems, split, wrong
from tests.rules import raised


def tensors(x):
    """Turn every array into a tensor."""
    if isinstance(x, dict):
        return {name: tensors(part) for name, part in x.items()}
    if isinstance(x, list | tuple):
        return type(x)(tensors(part) for part in x)
    return torch.tensor(x) if isinstance(x, np.ndarray) else x


def leaves(*arrays):
    return tuple(x.clone().requires_grad_() for x in arrays)


@MANY
@given(problem=problems())
def test_attention_with_lse_equals_the_reference(problem):
    arrays, options, _ = problem
    wanted = attend(*arrays, **options)
    given = fast.attention_with_lse(*tensors(arrays), **tensors(options))
    for one, other in zip(given, wanted, strict=True):
        assert one.numpy().dtype == other.dtype
        np.testing.assert_array_equal(np.isneginf(one.numpy()), np.isneginf(other))
        np.testing.assert_allclose(one.numpy().astype(float), other.astype(float), rtol=0, atol=CLOSE[str(other.dtype)])


@MANY
@given(problem=problems())
def test_merge_equals_the_reference(problem):
    arrays, options, cuts = problem
    parts = split(arrays, cuts, attend, **options)
    for one, other in zip(fast.merge(tensors(parts)), reference.merge(parts), strict=True):
        assert one.numpy().dtype == other.dtype
        np.testing.assert_allclose(one.numpy().astype(float), other.astype(float), rtol=0, atol=CLOSE[str(other.dtype)])


@MANY
@given(problem=problems(dtypes=("float64",)), seed=st.integers(0, 99))
def test_gradients_through_split_and_merge_are_those_of_the_whole(problem, seed):
    arrays, options, cuts = problem
    arrays, options = tensors(arrays), tensors(options)
    if isinstance(options["offset"], torch.Tensor):
        options["offset"] = options["offset"].tolist()
    whole, pieces = leaves(*arrays), leaves(*arrays)
    outputs = (
        fast.attention_with_lse(*whole, **options),
        fast.merge(split(pieces, cuts, fast.attention_with_lse, **options)),
    )
    generator = torch.Generator().manual_seed(seed)
    directions = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in outputs[0]]
    for inputs, (output, lse) in zip((whole, pieces), outputs, strict=True):
        seen = lse.isfinite()
        loss = (output * directions[0]).sum() + (lse[seen] * directions[1][seen]).sum()
        loss.backward()
        assert all(x.grad.isfinite().all() for x in inputs)
    for one, other in zip(whole, pieces, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-13)


def test_gradcheck():
    generator = torch.Generator().manual_seed(0)
    query, key, value, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 3, 2), (2, 4, 2), (2, 4, 3), (3, 4))
    )

    def joint(query, key, value, bias):
        arrays = query, key, value
        return fast.merge(split(arrays, (1, 3), fast.attention_with_lse, bias=bias, softcap=2.0, offset=1, causal=True))

    assert torch.autograd.gradcheck(joint, (query, key, value, bias))

    outputs = [torch.randn(3, 2, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    lses = [torch.randn(3, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(lambda *x: fast.merge(zip(x[:3], x[3:], strict=True)), (*outputs, *lses))


def test_the_gradient_of_an_lse_is_the_weights():
    query = torch.zeros(1, 1, dtype=torch.float64)
    key = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    bias = torch.tensor([[0.0, np.log(3)]], dtype=torch.float64, requires_grad=True)
    fast.attention_with_lse(query, key, key, bias=bias)[1].sum().backward()
    torch.testing.assert_close(bias.grad, torch.tensor([[0.25, 0.75]], dtype=torch.float64))


@pytest.mark.parametrize("empty", [0.0, np.nan, np.inf])
def test_empty_parts_have_gradients_of_zero(empty):
    part = leaves(torch.tensor([[2.0], [3.0]]), torch.tensor([1.0, 2.0]))
    nothing = leaves(torch.full((2, 1), empty), torch.full((2,), -torch.inf))
    for parts in ([part, nothing], [nothing, part], [nothing, nothing]):
        output, lse = fast.merge(parts)
        (output.sum() + lse[lse.isfinite()].sum()).backward()
        assert not nothing[0].grad.any()
        assert not nothing[1].grad.any()
    torch.testing.assert_close(part[0].grad, torch.full((2, 1), 2.0))
    torch.testing.assert_close(part[1].grad, torch.full((2,), 2.0))


def test_an_empty_row_has_an_lse_of_minus_infinity_and_no_nan_in_its_gradients():
    query, key, value = leaves(torch.ones(2, 1), torch.ones(2, 1), torch.ones(2, 1))
    output, lse = fast.attention_with_lse(query, key, value, mask=torch.tensor([[False, False], [True, True]]))
    assert output.tolist() == [[0], [1]]
    assert lse[0] == -torch.inf
    (output.sum() + lse.clamp(min=-1e9).sum()).backward()
    for x in (query, key, value):
        assert x.grad.isfinite().all()


def test_no_keys_at_all():
    query, key = leaves(torch.ones(2, 3), torch.ones(0, 3))
    output, lse = fast.attention_with_lse(query, key, key)
    assert output.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert lse.tolist() == [-torch.inf, -torch.inf]
    assert lse.dtype == torch.float32
    output, lse = fast.merge([(output, lse), fast.attention_with_lse(query, query, query)])
    output.sum().backward()
    assert query.grad.isfinite().all()


def test_lse_beyond_the_range_stops_at_the_largest_number():
    big = torch.full((1, 2), 1e30)
    limit = torch.finfo(torch.float32).max
    output, lse = fast.attention_with_lse(big, big, torch.ones(1, 1))
    assert (output.item(), lse.item(), lse.dtype) == (1, limit, torch.float32)
    output, lse = fast.attention_with_lse(big, -big, torch.ones(1, 1))
    assert (output.item(), lse.item()) == (1, -limit)


def test_bfloat16_has_a_float32_lse():
    x = torch.ones(2, 2, dtype=torch.bfloat16)
    output, lse = fast.attention_with_lse(x, x, x)
    assert (output.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    assert [y.dtype for y in fast.merge([(output, lse)] * 2)] == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("order", [1, -1])
def test_infinity_that_counts_is_kept(order):
    inf = torch.inf
    parts = [(torch.tensor([x]), torch.zeros(1)) for x in ([inf, -inf, inf, 1, -1], [1, 1, -inf, inf, inf])][::order]
    torch.testing.assert_close(fast.merge(parts)[0], torch.tensor([[inf, -inf, torch.nan, inf, inf]]), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_far_apart_and_at_the_limits(dtype):
    limit = torch.finfo(dtype).max
    two, eight = torch.full((1, 1), 2, dtype=dtype), torch.full((1, 1), 8, dtype=dtype)
    for low, high in ((-limit, limit), (0, 1000), (-limit, 0), (1, torch.inf)):
        output, lse = fast.merge(
            [(two, torch.full((1,), low, dtype=dtype)), (eight, torch.full((1,), high, dtype=dtype))]
        )
        assert output.item() == 8
        assert lse.item() in (high, limit)
    most = torch.tensor([[limit, -limit]], dtype=dtype)
    for pair in torch.randn(200, 2, 1, generator=torch.Generator().manual_seed(0)).to(dtype):
        assert fast.merge([(most, lse) for lse in pair])[0].isfinite().all()


def test_a_row_of_nan_gives_hidden_values_no_gradient():
    query, key, value = leaves(torch.tensor([[torch.nan], [1.0]]), torch.ones(2, 1), torch.ones(2, 1))
    output, lse = fast.attention_with_lse(query, key, value, causal=True)
    output.sum().backward()
    assert output[0].isnan() and lse[0].isnan()
    assert value.grad[0].isnan()
    assert value.grad[1].item() == 0.5


def zeros(shape, dtype):
    return torch.zeros(shape, dtype=getattr(torch, dtype))


@pytest.mark.parametrize(("partials", "kind", "text"), wrong(zeros))
def test_errors(partials, kind, text):
    assert raised(kind, fast.merge, partials) == text


def test_other_frameworks_and_devices():
    array = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
    good = torch.zeros(2, 3), torch.zeros(2)
    assert raised(TypeError, fast.merge, [array]) == (
        "partials[0]'s output must be a torch.Tensor, got numpy.ndarray; lib.reference takes NumPy arrays"
    )
    assert raised(TypeError, reference.merge, [good]) == (
        "partials[0]'s output must be a numpy.ndarray, got torch.Tensor; lib.fast takes tensors"
    )
    elsewhere = torch.zeros(2, 3, device="meta"), torch.zeros(2)
    assert raised(ValueError, fast.merge, [good, elsewhere]) == (
        "partials[1]'s output must be on partials[0]'s device cpu, got meta"
    )
    assert raised(ValueError, fast.merge, [(good[0], elsewhere[0][0])]) == (
        "partials[0]'s lse must be on partials[0]'s device cpu, got meta"
    )


def test_attention_with_lse_checks_its_arguments():
    x = torch.zeros(2, 3)
    assert "mask must be boolean" in raised(TypeError, fast.attention_with_lse, x, x, x, mask=x)
    assert "needs offset=" in raised(ValueError, fast.attention_with_lse, x, x[:1], x[:1], causal=True)
    assert "bias must broadcast" in raised(ValueError, fast.attention_with_lse, x, x, x, bias=x)


def test_attention_with_lse_takes_any_scale():
    query, key, value = torch.tensor([[2.0]]), torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [5.0]])
    output, lse = fast.attention_with_lse(query, key, value, scale=0.5)  # scores 1 and 3
    torch.testing.assert_close(lse, torch.tensor([1.0, 3.0]).logsumexp(-1, keepdim=True))
    torch.testing.assert_close(output, torch.softmax(torch.tensor([[1.0, 3.0]]), -1) @ value)
