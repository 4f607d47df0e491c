"""What the fast one promises beyond the common rules: gradients, backends, dropout, precision and memory layouts."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck as torch_gradcheck
from torch.autograd import gradgradcheck

from lib import arguments, fast, reference
from lib.fast import triton_attention
from lib.fast.attention import allowed_pairs
from tests.rules import draw, some_mask

attention, explain = fast.attention, fast.explain
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
MASK = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
OPTIONS = {
    "plain": {},
    "mask": {"mask": MASK},
    "mask of a batch": {"mask": torch.tensor(some_mask((2, 1, 4, 5)))},
    "causal": {"causal": True, "offset": 1},
    "causal from the left": {"causal": True, "offset": 0},
    "empty rows": {"causal": True, "offset": -2},
    "offsets": {"causal": True, "offset": torch.tensor([-1, 3])},
    "window": {"window": (1, 0), "offset": 2},
    "scale": {"scale": -0.7},
    "scale 0": {"scale": 0.0},
    "softcap": {"softcap": 0.8},
    "softcap and mask": {"softcap": 0.8, "mask": MASK},
    "everything": {"softcap": 3.0, "mask": MASK, "causal": True, "window": (3, None), "offset": 2, "scale": 0.9},
}


def tensors(dtype=torch.float64, grad=False, device="cpu", **shapes):
    arrays = (torch.tensor(x).to(dtype).to(device) for x in draw(**shapes))
    return tuple(x.requires_grad_(grad) for x in arrays)


def small(**shapes):
    """Return what gradcheck can afford: it calls once for each number."""
    return tensors(grad=True, **{"shape_q": (2, 1), "E": 2, **shapes})


def gradcheck(function, inputs):
    return torch_gradcheck(function, inputs, atol=1e-8, rtol=1e-6)


def bias(*shape, grad=False, dtype=torch.float64):
    numbers = np.random.default_rng(11).normal(size=shape or (3, 4, 5))
    return torch.tensor(numbers).to(dtype).requires_grad_(grad)


def numpy_options(options):
    return {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in options.items()}


def backends_for(options):
    return ("auto", "math") if "softcap" in options else ("auto", "math", "sdpa")


CASES = [(name, backend) for name, options in OPTIONS.items() for backend in backends_for(options)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "backend"), CASES)
def test_equals_the_reference(name, backend, device):
    inputs = tensors(device=device)
    options = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in OPTIONS[name].items()}
    given = attention(*inputs, bias=bias().to(device), backend=backend, **options).cpu()
    arrays = [x.cpu().numpy() for x in inputs]
    wanted = reference.attention(*arrays, bias=bias().numpy(), **numpy_options(OPTIONS[name]))
    np.testing.assert_allclose(given.numpy(), wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("backend", ["auto", "math"])
def test_weights_equal_the_references(name, backend):
    query, key, value = tensors()
    output, weights = attention(query, key, value, return_weights=True, backend=backend, **OPTIONS[name])
    wanted = reference.attention(*draw(), return_weights=True, **numpy_options(OPTIONS[name]))
    np.testing.assert_allclose(output.numpy(), wanted[0], rtol=0, atol=1e-14)
    np.testing.assert_allclose(weights.numpy(), wanted[1], rtol=0, atol=1e-14)
    assert weights.shape == (2, 3, 4, 5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_output_and_weights_have_the_inputs_dtype(dtype):
    output, weights = attention(*tensors(dtype), return_weights=True)
    assert output.dtype == weights.dtype == dtype
    for backend in ("auto", "math", "sdpa"):
        assert attention(*tensors(dtype), mask=MASK, backend=backend).dtype == dtype


@pytest.mark.parametrize("backend", ["auto", "math", "sdpa"])
def test_zeros_of_rows_that_see_nothing_have_no_sign(backend):
    query, key, value = tensors()
    output = attention(query, key, -value.abs(), mask=MASK, backend=backend)
    assert (output[..., 1, :] == 0).all()
    assert not output[..., 1, :].signbit().any()


# Gradients


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_gradients_are_right(name, backend):
    assert gradcheck(lambda *x: attention(*x, backend=backend, **OPTIONS[name]), small())


@pytest.mark.parametrize("backend", ["auto", "math", "sdpa"])
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 1, 4, 5), (1, 5), (4, 1), (5,)])
def test_gradients_to_the_bias(backend, shape):
    inputs = (*small(shape_q=(2, 3), E=1, Ev=1), bias(*shape, grad=True))
    options = {"mask": MASK, "causal": True, "offset": 2, "backend": backend}
    assert gradcheck(lambda *x: attention(*x[:3], bias=x[3], **options), inputs)


@pytest.mark.parametrize("backend", ["auto", "math", "sdpa"])
def test_gradients_to_the_bias_alone(backend):
    inputs = tensors()
    assert gradcheck(lambda b: attention(*inputs, bias=b, mask=MASK, backend=backend), (bias(4, 5, grad=True),))
    blocked = bias(4, 5)
    blocked[:, 3] = -torch.inf
    blocked.requires_grad_()
    attention(*inputs, bias=blocked, backend=backend).square().sum().backward()
    assert blocked.grad.isfinite().all()
    assert (blocked.grad[:, 3] == 0).all()
    assert (blocked.grad[:, :3] != 0).all()


@pytest.mark.parametrize("backend", ["auto", "math", "sdpa"])
def test_gradients_of_grouped_heads(backend):
    inputs = small(shape_q=(1, 4), shape_k=(1, 2), E=1, Ev=1)
    options = {"enable_gqa": True, "mask": MASK, "backend": backend}
    assert gradcheck(lambda *x: attention(*x, **options), inputs)


def test_gradients_through_the_weights():
    for options in ({}, {"mask": MASK}, {"softcap": 0.8, "causal": True, "offset": -1}):
        assert gradcheck(lambda *x, o=options: attention(*x, return_weights=True, **o), small())


def test_gradients_of_gradients():
    inputs = tensors(shape_q=(2,), L=2, S=3, E=2, grad=True)
    for options in ({}, {"mask": torch.tensor([[1, 0, 1], [0, 0, 0]]).bool()}, {"softcap": 0.8}):
        assert gradgradcheck(lambda *x, o=options: attention(*x, backend="math", **o), inputs)


def gradients(inputs, loss=lambda output: output.square().sum(), **options):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    loss(attention(*leaves, **options)).backward()
    return [x.grad for x in leaves]


@pytest.mark.parametrize("backend", ["auto", "math", "sdpa"])
def test_an_empty_row_leaves_all_gradients_finite(backend):
    inputs = tensors()
    wanted = gradients([x[..., [0, 2, 3], :] if x.shape[-2] == 4 else x for x in inputs], mask=MASK[[0, 2, 3]])
    given = gradients(inputs, mask=MASK, backend=backend)
    assert (given[0][..., 1, :] == 0).all()
    torch.testing.assert_close(given[0][..., [0, 2, 3], :], wanted[0], rtol=0, atol=1e-13)
    for one, other in zip(given[1:], wanted[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)
    nothing = gradients(inputs, mask=torch.zeros(1, 1, dtype=torch.bool), backend=backend)
    assert all((x == 0).all() for x in nothing)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
@pytest.mark.parametrize(
    "options", [{"mask": True}, {"causal": True, "offset": 0}, {"softcap": 2.0, "mask": True}, {"bias": True}]
)
@pytest.mark.parametrize("backend", ["auto", "math"])
@pytest.mark.parametrize("where", ["key", "value", "both"])
def test_what_is_hidden_changes_no_gradient(bad, options, backend, where):
    query, key, value = tensors()
    hidden = torch.ones(4, 5, dtype=torch.bool)
    hidden[:, 4] = False
    options = {k: hidden if k == "mask" else x for k, x in options.items()}
    if "bias" in options:
        options["bias"] = torch.zeros(4, 5).double().masked_fill(~hidden, -torch.inf)
    wanted = gradients((query, key, value), backend=backend, **options)
    if where in ("key", "both"):
        key[..., 4, :] = bad
        key[0, 0, 4, 0] = 1.0
    if where in ("value", "both"):
        value[..., 4, :] = bad
        value[0, 0, 4, 0] = 1.0
    given = gradients((query, key, value), backend=backend, **options)
    for one, other in zip(given, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert (given[1][..., 4, :] == 0).all()
    assert (given[2][..., 4, :] == 0).all()


def test_a_query_of_nan_gives_hidden_values_no_gradient():
    query, key, value = tensors(shape_q=(), L=2, S=2)
    query[0] = torch.nan
    for backend in ("auto", "math"):
        given = gradients((query, key, value), lambda output: output.sum(), causal=True, backend=backend)
        assert given[2][0].isnan().all()
        assert given[2][1].isfinite().all()


def test_a_query_of_nan_that_sees_nothing_leaves_the_gradients_finite():
    query, key, value = tensors()
    query[..., 1, :] = torch.nan  # MASK's row 1 is empty
    for backend in ("auto", "math"):
        assert all(x.isfinite().all() for x in gradients((query, key, value), mask=MASK, backend=backend))


def test_a_visible_infinity_leaves_the_other_columns_gradients_alone():
    query, key, value = tensors()
    value[..., 0] = torch.inf
    given = gradients((query, key, value), lambda output: output[..., 1].sum())
    wanted = gradients((query, key, value[..., 1:]), lambda output: output.sum())
    torch.testing.assert_close(given[0], wanted[0], rtol=0, atol=1e-13)
    torch.testing.assert_close(given[1], wanted[1], rtol=0, atol=1e-13)
    torch.testing.assert_close(given[2][..., 1:], wanted[2], rtol=0, atol=1e-13)


@pytest.mark.parametrize("backend", ["auto", "math", "sdpa"])
def test_zero_cotangents_give_zero(backend):
    inputs = (*tensors(grad=True), bias(grad=True))
    output = attention(*inputs[:3], bias=inputs[3], mask=MASK, backend=backend)
    for gradient in torch.autograd.grad(output, inputs, torch.zeros_like(output)):
        assert (gradient == 0).all()


@pytest.mark.parametrize("backend", ["auto", "math"])
def test_rows_beyond_the_range_leave_all_gradients_finite(backend):
    query, key, value = tensors(torch.float32)
    wanted = gradients((query, key, value), lambda o: o[..., [0, 1, 3], :].square().sum(), backend=backend)
    query[..., 2, :] = 3e38
    given = gradients((query, key, value), lambda o: o[..., [0, 1, 3], :].square().sum(), backend=backend)
    for one, other in zip(given, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
    given = gradients((query, key, value), backend=backend, softcap=3.0)
    assert all(x.isfinite().all() for x in given)


def test_gradients_where_scores_overflow_in_single_precision():
    # products near 1e42, brought back by the scale: computed in float64, and differentiable there
    query, key, value = (x * size for x, size in zip(tensors(), (1e21, 1e21, 1), strict=True))
    options = {"scale": 1e-42, "mask": MASK}
    wanted = gradients((query, key, value), **options)
    given = gradients([x.float() for x in (query, key, value)], backend="math", **options)
    for one, other in zip(given, wanted, strict=True):
        torch.testing.assert_close(one.double() / other.abs().max(), other / other.abs().max(), rtol=0, atol=1e-5)


# Backends


@pytest.fixture
def calls(monkeypatch):
    """Record the calls of SDPA: what its arguments were, by name."""
    seen = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def recorded(query, key, value, **options):
        seen.append({"query": query, "key": key, "value": value, **options})
        return kernel(query, key, value, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", recorded)
    return seen


@pytest.mark.parametrize(
    ("options", "mask", "is_causal"),
    [({}, None, False), ({"causal": True, "offset": 0}, None, True), ({"causal": True, "offset": 1}, torch.bool, False),
     ({"causal": True, "offset": torch.tensor([0, 0])}, torch.bool, False), ({"mask": MASK}, torch.bool, False),
     ({"window": (1, 1), "offset": 0}, torch.bool, False),
     ({"window": (None, None), "causal": True, "offset": 0}, None, True),
     ({"bias": bias()}, torch.float64, False), ({"bias": bias(), "causal": True, "offset": 0}, torch.float64, False)],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["auto", "sdpa"])
def test_sdpa_gets_the_cheapest_mask_that_says_it(calls, options, mask, is_causal, backend):
    attention(*tensors(), backend=backend, **options)
    assert len(calls) == 1
    assert calls[0]["is_causal"] is is_causal
    assert (None if calls[0]["attn_mask"] is None else calls[0]["attn_mask"].dtype) == mask
    assert calls[0]["dropout_p"] == 0


@pytest.mark.parametrize(
    ("options", "times"),
    [({"backend": "math"}, 0), ({"softcap": 1.0}, 0), ({"return_weights": True}, 0), ({"dropout_p": 0.5}, 0),
     ({"backend": "sdpa", "dropout_p": 0.5}, 1), ({"mask": MASK}, 1), ({}, 1)],
)  # fmt: skip
def test_auto_takes_sdpa_where_it_can(calls, options, times):
    attention(*tensors(), **options)
    assert len(calls) == times


@pytest.mark.parametrize("backend", ["auto", "sdpa"])
def test_sdpa_never_sees_an_empty_problem(calls, backend):
    for shapes in ({"L": 0}, {"S": 0}, {"E": 0}, {"Ev": 0}, {"shape_q": (0, 3)}):
        attention(*tensors(**shapes), bias=torch.zeros(1, 1).double(), backend=backend)
    assert calls == []


@pytest.fixture
def textbooks(monkeypatch):
    """Count the calls of the plain body."""
    module = __import__("sys").modules["lib.fast.attention"]
    seen, body = [], module.textbook

    def recorded(*args):
        seen.append(args)
        return body(*args)

    monkeypatch.setattr(module, "textbook", recorded)
    return seen


@pytest.mark.parametrize(("name", "backend"), [case for case in CASES if case[1] != "math"])
def test_ordinary_numbers_are_computed_once(textbooks, name, backend):
    attention(*tensors(), backend=backend, **OPTIONS[name])
    attention(*tensors(torch.bfloat16), backend=backend, **OPTIONS[name])
    assert len(textbooks) == (2 if "softcap" in OPTIONS[name] else 0)


def test_gradients_of_ordinary_numbers_are_computed_once(textbooks):
    for options in ({}, {"mask": MASK}, {"bias": bias()}, {"bias": bias().masked_fill(~MASK, -torch.inf)}):
        gradients(tensors(), **options)
    assert textbooks == []


def test_auto_looks_twice_at_what_sdpa_spoils(textbooks):
    one, two = torch.tensor([[1e20]]), torch.tensor([[1.0], [3.0]])
    # all scores of a row are beyond the range: SDPA gives 0, as if it saw nothing
    assert attention(one, torch.tensor([[-1e20], [-2e20]]), two).item() == 1
    # the bias lifts a score that is beyond the range above one that is not
    keys = torch.tensor([[-4e18], [-2e18]])
    assert attention(one, keys, two, bias=torch.tensor([[3.3e38, -3.3e38]]), scale=1).item() == 1
    assert attention(one, keys / 2, two, bias=torch.tensor([[3.3e38, -3.3e38]]), scale=1).item() == 1
    # NaN
    assert attention(one, torch.tensor([[1e20], [2e20]]), two).item() == 3
    assert len(textbooks) == 4
    # infinity at a hidden position: the output is right, the gradients would not be
    inputs = [x.requires_grad_() for x in (torch.ones(1, 1), torch.tensor([[1.0], [-math.inf]]), two)]
    mask = torch.tensor([[True, False]])
    with torch.no_grad():
        assert attention(*inputs, mask=mask).item() == 1
    assert attention(*(x.detach() for x in inputs), mask=mask).item() == 1
    assert len(textbooks) == 4
    attention(*inputs, mask=mask).backward()
    assert all(x.grad.isfinite().all() for x in inputs)
    attention(inputs[0], *(x.detach() for x in inputs[1:]), mask=mask)
    assert len(textbooks) == 6


@pytest.mark.parametrize(
    ("query", "keys", "options"),
    [
        ([1e20, 0.0], [[-1e20, 0.0], [-2e20, 0.0]], {}),
        ([-1e20, 0.0], [[1e20, 0.0], [2e20, 0.0]], {}),
        ([1e19], [[-3.5e19], [-3.6e19]], {"scale": 1.0}),
        ([1e15, 0.0], [[-1e15, 0.0], [-2e15, 0.0]], {"scale": 1e10}),
        ([1e20, 0.0], [[-1e20, 0.0], [-2e20, 0.0]], {"scale": 1e-30}),
        ([1e19, 0.0], [[-1.5e19, 0.0], [-1.5e19, 0.0]],
         {"scale": 1.0, "bias": torch.tensor([[-3e38, -3.3e38], [0, -torch.inf]])}),
        ([1e19, 0.0], [[-4e19, 0.0], [-1e19, 0.0]], {"scale": 1.0, "bias": torch.tensor([[3.3e38, 0], [0, 0]])}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["auto", "math"])
def test_scores_below_the_range_are_not_lost(query, keys, options, backend):
    # where SDPA has lost a row's scores it gives 0, as if the query saw nothing; the other row merely begins with 0
    query, keys = torch.tensor([query, [0.0] * len(query)]), torch.tensor(keys)
    values = torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    assert attention(query, keys, values, backend=backend, **options)[0].tolist() == [0, 1]


def test_a_score_that_rounding_takes_out_of_the_range_is_not_lost():
    query, key, scale = torch.tensor([[1.009291]]), torch.tensor([[-1.0006608]]), 3.3692723e38
    assert 1.009291 * 1.0006608 * scale < torch.finfo(torch.float32).max
    assert attention(query, key, torch.ones(1, 1), scale=scale, backend="sdpa").item() == 0
    assert attention(query, key, torch.ones(1, 1), scale=scale).item() == 1


def test_scores_above_and_below_the_range_of_float64():
    numbers = {"dtype": torch.float64}
    query, keys = torch.tensor([[1e200, 1e200]], **numbers), torch.tensor([[1e200, 1e200], [1e200, -1e200]], **numbers)
    values = torch.tensor([[1.0], [3.0]], **numbers)
    assert attention(query, keys, values).item() == 1
    assert attention(query, -keys, values).item() == 3


def test_scores_that_only_the_scale_brings_back_into_range():
    numbers = {"dtype": torch.float64}
    query = torch.tensor([[1e155, -3e154], [-2e155, 1.0], [1e-3, 0.0], [2e155, 2e155]], **numbers)
    keys = torch.tensor([[1e155, 2e155], [-1e155, 1e150], [3e155, -3e155]], **numbers)
    values = torch.tensor([[1.0], [3.0], [7.0]], **numbers)
    wanted = attention(query * 1e-155, keys * 1e-155, values, scale=1.0)
    for backend in ("auto", "math"):
        given = attention(query, keys, values, scale=1e-310, backend=backend)
        torch.testing.assert_close(given, wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("backend", ["auto", "math"])
def test_infinity_and_nan_in_what_is_seen(backend):
    query = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [0.0, 1.0], [torch.inf, 1.0]])
    values = torch.tensor([[1.0], [3.0]])
    for bad, wanted in ((torch.inf, [1, 3, torch.nan]), (-torch.inf, [3, 1, torch.nan]), (torch.nan, [torch.nan] * 3)):
        output = attention(query[:3], torch.tensor([[bad, 1.0], [2.0, 3.0]]), values, backend=backend)
        torch.testing.assert_close(output[:, 0], torch.tensor(wanted).float(), equal_nan=True)
    keys = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
    assert attention(query, keys, values, backend=backend)[3].item() == 3
    assert attention(query, keys * 0, values, backend=backend)[3].isnan()
    assert attention(query * torch.nan, keys, values * torch.inf, backend=backend).isnan().all()
    no_columns = attention(query[:, :0], keys[:, :0], torch.tensor([[1.0, torch.nan], [3.0, 1.0]]), backend=backend)
    torch.testing.assert_close(no_columns, torch.tensor([[2.0, torch.nan]]).expand(4, 2), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_averages_of_the_largest_number_are_finite(dtype):
    query, key, value = tensors(dtype, L=200, S=50, Ev=1)
    value[:] = torch.finfo(dtype).max
    assert attention(query, key, value, backend="math").isfinite().all()
    assert attention(query, key, -value, backend="math").isfinite().all()


def test_math_computes_ordinary_rows_once(monkeypatch):
    module = __import__("sys").modules["lib.fast.attention"]
    seen, attend = [], module.attend

    def recorded(*args, **options):
        seen.append(args)
        return attend(*args, **options)

    monkeypatch.setattr(module, "attend", recorded)
    query, key, value = tensors(torch.float32)
    key[..., 4, :] = torch.nan
    hidden = MASK.clone()
    hidden[:, 4] = False
    for options in ({}, {"softcap": 2.0}, {"bias": bias(dtype=torch.float32)}):
        attention(query, key, value, mask=hidden, backend="math", **options)
    assert len(seen) == 3
    query[..., 3, :] = 3e38
    attention(query, key, value, mask=hidden, backend="math")
    assert len(seen) == 6


def test_large_but_harmless_numbers_are_computed_once(textbooks):
    query, key, value = tensors(torch.float32)
    attention(query * 1e15, key * 1e15, value)
    attention(query * 1e15, key * 1e15, value, mask=MASK)  # an empty row asks for a closer look
    attention(query, key, value, bias=torch.full((4, 5), -3e37))
    attention(query, key, value, bias=torch.tensor([[0.0, 0, -torch.inf, 0, 0]]))
    far = torch.tensor([[1e20, 0.0], [0.0, 1e20]])
    attention(far[:1], far[1:], torch.tensor([[0.0, 1.0]]))  # an output may begin with 0
    attention(query, key, torch.full_like(value, 3e37))  # what comes out is finite, the sum of it is not
    assert textbooks == []
    attention(query * 1e15, key * 1e15, value, mask=MASK, scale=1e10)
    assert len(textbooks) == 1


@pytest.mark.parametrize(
    ("shape_q", "L", "sizes"),
    [((), 5, {}), ((3,), 5, {}), ((2, 2, 3), 5, {}), ((2, 3), 5, {"E": 6, "Ev": 2}), ((2, 3), 5, {"E": 2, "Ev": 6})],
)
def test_the_kernel_gets_what_its_fast_path_wants(calls, shape_q, L, sizes):
    query, key, value = tensors(shape_q=shape_q, L=L, **sizes)
    wanted = attention(query, key, value, backend="math")
    output = attention(query.mT.contiguous().mT, key, value)
    torch.testing.assert_close(output, wanted, rtol=0, atol=1e-14)
    for name in ("query", "key", "value"):
        x = calls[0][name]
        assert x.ndim == 4
        assert x.stride(-1) == 1
        assert x.shape[-1] == max(query.shape[-1], value.shape[-1])


@pytest.mark.parametrize(("H", "G", "grouped"), [(6, 2, True), (4, 2, True), (4, 1, False), (2, 2, False)])
def test_the_kernel_gets_grouped_heads_and_small_masks_as_they_are(calls, H, G, grouped):
    query, key, value = tensors(shape_q=(2, H), shape_k=(2, G), L=5, S=4)
    padding = torch.tensor([[[[True, True, False, True]]], [[[True, False, False, False]]]])
    output = attention(query, key, value, enable_gqa=True, mask=padding)
    assert calls[0]["enable_gqa"] is grouped
    assert calls[0]["key"].data_ptr() == key.data_ptr()  # no copy
    assert calls[0]["attn_mask"].shape == (2, 1, 1, 4)
    wanted = attention(query, key, value, enable_gqa=True, mask=padding, backend="math")
    torch.testing.assert_close(output, wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("batch", "shape", "four"),
    [((2, 3), (1, 3, 1, 5), (1, 3, 1, 5)), ((2, 3), (5,), (1, 1, 1, 5)), ((2, 2, 3), (4, 5), (1, 1, 4, 5)),
     ((2, 2, 3), (3, 4, 5), (1, 3, 4, 5)), ((2, 2, 3), (2, 1, 1, 4, 1), (4, 1, 4, 1)), ((3,), (3, 1, 5), (1, 3, 1, 5)),
     ((2, 2, 3), (2, 3, 1, 5), (4, 3, 1, 5))],
)  # fmt: skip
def test_the_kernel_gets_masks_of_four_axes_and_none_is_made_larger(calls, batch, shape, four):
    query, key, value = tensors(shape_q=batch)
    mask = torch.tensor(some_mask(shape))
    output = attention(query, key, value, mask=mask)
    assert calls[0]["attn_mask"].shape == four
    torch.testing.assert_close(output, attention(query, key, value, mask=mask, backend="math"), rtol=0, atol=1e-14)


@pytest.mark.parametrize("backend", ["auto", "sdpa", "math"])
@pytest.mark.parametrize("options", [{"window": (99, 0)}, {"window": (99, 0), "bias": bias(300)}])
def test_long_sequences_are_computed_in_tiles(calls, textbooks, options, backend):
    inputs = tensors(shape_q=(2,), L=300, S=300)
    output = attention(*inputs, backend=backend, **options)
    (used, unused) = (textbooks, calls) if backend == "math" else (calls, textbooks)
    assert len(used) == 5  # of 64 queries
    assert unused == []
    wanted = reference.attention(*(x.numpy() for x in inputs), **numpy_options(options))
    np.testing.assert_allclose(output.numpy(), wanted, rtol=0, atol=1e-14)


def test_the_triton_backend_hands_the_call_to_its_kernel(monkeypatch):
    monkeypatch.setattr(triton_attention, "require_runnable", lambda query: None)
    monkeypatch.setattr(triton_attention, "run", lambda *given: given)
    inputs = tensors(torch.float32)
    *given, call = attention(*inputs, causal=True, offset=1, backend="triton")
    assert all(one is other for one, other in zip(given, inputs, strict=True))
    assert call.causal and call.offset == 1


def test_only_auto_on_the_cpu_looks_at_the_numbers(textbooks):
    spoilt = torch.full((2, 3), torch.nan)
    assert attention(spoilt, spoilt, spoilt, backend="sdpa").isnan().all()
    elsewhere = torch.zeros(2, 3, device="meta")  # has no numbers
    for options in ({"causal": True}, {"causal": True, "offset": 1}, {"window": (1, 0)}, {"bias": elsewhere[:, :2]}):
        assert attention(elsewhere, elsewhere, elsewhere, **options).shape == (2, 3)
    assert textbooks == []
    assert attention(spoilt, spoilt, spoilt).isnan().all()
    assert len(textbooks) == 1


def test_explain_says_what_is_copied_and_what_is_slower():
    x = torch.zeros(1, 1, 8, 4)
    text = explain(x.mT.contiguous().mT, x, x[..., ::2], mask=torch.ones(8, 8, dtype=torch.bool))
    assert "query, value are copied" in text
    assert "value padded with zeros" in text
    assert "(E = 4, Ev = 2)" in text
    assert "visits what mask hides" in text
    assert "key is copied" in explain(x, x.mT.contiguous().mT, x)
    assert "query and key padded" in explain(x[..., :2], x[..., :2], x)
    assert "a bias that wants a gradient" in explain(x, x, x, bias=torch.zeros(8, 8, requires_grad=True))
    assert explain(x, x, x, bias=torch.zeros(8, 8)) == explain(x, x, x)
    assert explain(x, x, x, softcap=1.0) == "math: the plain body, in one call; SDPA has no softcap"
    assert "no softcap and no return_weights" in explain(x, x, x, softcap=1.0, return_weights=True)
    assert "dropout" in explain(x, x, x, dropout_p=0.1)
    assert "dropout has no fused kernel" in explain(x, x, x, dropout_p=0.1, backend="sdpa")
    assert "asks for it" in explain(x, x, x, backend="math")
    assert "every query sees every key" in explain(x[..., :1, :], x, x, causal=True, offset=7)
    assert "a size is 0" in explain(x[..., :0], x[..., :0], x)


def test_explain_computes_nothing_and_checks_like_attention(monkeypatch):
    x = torch.zeros(1, 1, 8, 4)
    wrong = {
        "backend must be one of": {"backend": "fast"},
        "dropout_p must lie": {"dropout_p": 2.0},
        "mask must be boolean": {"mask": x},
        "has no softcap": {"backend": "sdpa", "softcap": 1.0},
    }
    for text, options in wrong.items():
        with pytest.raises((TypeError, ValueError), match=text):
            explain(x, x, x, **options)
    with pytest.raises(TypeError, match="unexpected keyword argument 'is_causal'"):
        explain(x, x, x, is_causal=True)
    monkeypatch.setattr(torch, "matmul", None)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", None)
    assert explain(x, x, x)


# Dropout


def test_dropout_drops_weights_and_scales_up_the_others():
    torch.manual_seed(0)
    query, key = torch.zeros(1, 1), torch.zeros(1000, 1)
    for backend in ("auto", "math", "sdpa"):
        kept = attention(query, key, torch.eye(1000), dropout_p=0.25, backend=backend)[0]
        assert kept.unique().tolist() == [0, pytest.approx(1 / 1000 / 0.75, rel=1e-5)]
        assert (kept > 0).float().mean().item() == pytest.approx(0.75, abs=0.05)


def test_returned_weights_are_those_before_dropout():
    torch.manual_seed(0)
    inputs = tensors()
    output, weights = attention(*inputs, dropout_p=0.5, return_weights=True)
    torch.testing.assert_close(weights, attention(*inputs, return_weights=True)[1], rtol=0, atol=0)
    assert not torch.allclose(output, attention(*inputs))


def test_dropout_is_the_seeds_and_the_callers():
    inputs = tensors()
    torch.manual_seed(3)
    first, second = (attention(*inputs, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(3)
    torch.testing.assert_close(attention(*inputs, dropout_p=0.5), first, rtol=0, atol=0)
    assert not torch.equal(first, second)
    state = torch.get_rng_state()
    attention(*inputs, dropout_p=0)
    attention(*inputs, dropout_p=0.0, return_weights=True)
    assert torch.equal(torch.get_rng_state(), state)


def test_dropping_everything_gives_zero_and_gradients_pass_through_dropout():
    inputs = tensors()
    assert (attention(*inputs, dropout_p=1) == 0).all()

    def seeded(*x):
        torch.manual_seed(1)
        return attention(*x, dropout_p=0.4, mask=MASK)

    assert gradcheck(seeded, small())


# Exactness of math


@pytest.mark.parametrize("large", [1.0, 3e38])
def test_math_computes_half_precision_in_single_precision(large):
    inputs = tensors(torch.bfloat16)
    inputs[0][..., 2, :] = large
    given = attention(*inputs, mask=MASK, backend="math", return_weights=True)
    wanted = attention(*(x.float() for x in inputs), mask=MASK, backend="math", return_weights=True)
    for one, other in zip(given, wanted, strict=True):
        assert torch.equal(one, other.bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("large", [1.0, 3e38])
@pytest.mark.parametrize("name", OPTIONS)
def test_log_sum_exps_equal_the_references(name, large, dtype):
    wide = torch.promote_types(dtype, torch.float32)
    inputs = tensors(dtype)
    inputs[0][..., 2, :] = large
    _, lse = fast.attention_with_lse(*inputs, **OPTIONS[name])
    arrays = [x.to(wide).numpy() for x in inputs]
    _, wanted = reference.streaming_attention(*arrays, return_lse=True, **numpy_options(OPTIONS[name]))
    assert lse.dtype == wide
    np.testing.assert_allclose(lse, wanted, rtol=1e-12 if wide == torch.float64 else 1e-5)


@pytest.mark.parametrize("limit", [{"causal": True}, {"window": (1, 0)}, {}], ids=str)
def test_pairs_are_compared_on_the_inputs_device(limit):
    call = arguments.check(torch.Tensor, *tensors(), offset=np.array([1, 2]), **limit)
    allowed = allowed_pairs(call, None, None, torch.device("meta"))
    assert allowed.device.type == "meta"
    assert allowed.shape[-2:] == (4, 5)


def test_offsets_of_a_small_unsigned_type():
    inputs = tensors()
    wanted = fast.attention_with_lse(*inputs, causal=True, offset=torch.tensor([3, 1]))
    given = fast.attention_with_lse(*inputs, causal=True, offset=np.array([3, 1], dtype=np.uint16))
    for one, other in zip(given, wanted, strict=True):
        assert torch.equal(one, other)


def test_log_sum_exps_of_no_keys_are_minus_infinity():
    _, lse = fast.attention_with_lse(*tensors(S=0))
    torch.testing.assert_close(lse, torch.full((2, 3, 4), -torch.inf, dtype=torch.float64))


@pytest.mark.parametrize("bad", [1e3, 1e200, math.nan, math.inf])
def test_math_changes_no_bit_for_what_is_hidden(bad):
    query, key, value = tensors(L=5)
    hidden = torch.tensor(some_mask((5, 5)))
    hidden[:, 4] = False
    for options in ({"mask": hidden}, {"causal": True}, {"mask": hidden, "softcap": 2.0}):
        rows = 4 if "causal" in options else 5
        wanted = attention(query, key, value, backend="math", return_weights=True, **options)
        other_key, other_value = key.clone(), value.clone()
        other_key[..., 4, :], other_value[..., 4, :] = bad, bad
        given = attention(query, other_key, other_value, backend="math", return_weights=True, **options)
        for one, other in zip(given, wanted, strict=True):
            assert one[..., :rows, :].numpy().tobytes() == other[..., :rows, :].numpy().tobytes()


@pytest.mark.parametrize("backend", ["auto", "math", "sdpa"])
def test_finite_futures_do_not_reach_the_past(backend):
    x = torch.randn(2, 3, 8, 4, generator=torch.Generator().manual_seed(0))
    wanted = attention(x, x, x, causal=True, backend=backend)
    for t in range(1, 8):
        y = x.clone()
        y[..., t:, :] = 1e3
        given = attention(y, y, y, causal=True, backend=backend)
        assert given[..., :t, :].numpy().tobytes() == wanted[..., :t, :].numpy().tobytes()


def test_a_row_beyond_the_range_changes_no_bit_of_the_others():
    query, key, value = tensors(torch.float32)
    wanted = attention(query, key, value, backend="math", return_weights=True)
    query[:, :, 2] = 3e38
    given = attention(query, key, value, backend="math", return_weights=True)
    for one, other in zip(given, wanted, strict=True):
        assert torch.equal(one[:, :, [0, 1, 3]], other[:, :, [0, 1, 3]])
        assert one.isfinite().all()


def test_math_and_auto_equal_the_reference_beyond_the_range():
    r = np.random.default_rng(12)
    for _ in range(30):
        query, key, value = (
            (r.choice([-1, 1], shape) * 10.0 ** r.uniform(-38, 38.5, shape)).astype(np.float32)
            for shape in ((3, 2), (4, 2), (4, 2))
        )
        options = {"mask": r.random((3, 4)) < 0.7, "bias": (10 ** r.uniform(30, 38.5, (3, 4))).astype(np.float32)}
        size = np.abs(value).max()
        wanted = reference.attention(query, key, value, **options)
        for backend in ("auto", "math"):
            given = attention(
                *map(torch.tensor, (query, key, value)),
                backend=backend,
                **{k: torch.tensor(x) for k, x in options.items()},
            )
            np.testing.assert_allclose(given.numpy() / size, wanted / size, rtol=0, atol=1e-5)


# Memory and modes


def views(x):
    """Yield other memory layouts of the same numbers."""
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
    wide[..., ::2] = x
    yield "every second column", wide[..., ::2]
    yield "transposed", x.mT.contiguous().mT
    yield "heads last", x.transpose(1, 2).contiguous().transpose(1, 2)
    yield "batch last", x.movedim(0, -1).contiguous().movedim(-1, 0)
    flat = torch.zeros(x.numel() + 3, dtype=x.dtype)
    flat[3:] = x.reshape(-1)
    yield "from the middle of a buffer", flat[3:].view(x.shape)


@pytest.mark.parametrize("backend", ["auto", "math", "sdpa"])
@pytest.mark.parametrize("name", ["query", "key", "value", "mask", "bias", "gradient of the output"])
def test_any_memory_layout_gives_the_same(name, backend):
    query, key, value = tensors(torch.float32)
    inputs = {"query": query, "key": key, "value": value, "mask": torch.tensor(some_mask((2, 3, 4, 5)))}
    inputs["bias"] = bias(2, 3, 4, 5, dtype=torch.float32)
    cotangent = torch.tensor(draw(L=4, seed=9)[2][..., :4, :]).float()

    def run(inputs, cotangent):
        leaves = {k: x.detach().requires_grad_() if x.is_floating_point() else x for k, x in inputs.items()}
        output = attention(**leaves, backend=backend)
        output.backward(cotangent)
        return [output.detach(), *(x.grad for x in leaves.values() if x.is_floating_point())]

    wanted = run(inputs, cotangent)
    for layout, view in views(inputs.get(name, cotangent)):
        given = run({**inputs, name: view}, cotangent) if name in inputs else run(inputs, view)
        for one, other in zip(given, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5, msg=lambda text, where=layout: f"{where}: {text}")


@pytest.mark.parametrize("backend", ["auto", "math", "sdpa"])
def test_expanded_inputs_give_the_same_gradients(backend):
    query, key, value = tensors(shape_q=())
    wide = [x.detach().clone().requires_grad_() for x in (query, key, value)]
    attention(*(x.expand(2, 3, *x.shape) for x in wide), backend=backend).square().sum().backward()
    narrow = gradients((query, key, value), backend=backend)
    for one, other in zip(wide, narrow, strict=True):
        torch.testing.assert_close(one.grad, 6 * other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3), (1, 2, 1, 3)])
@pytest.mark.parametrize("backend", ["auto", "math", "sdpa"])
def test_any_number_of_leading_axes(shape, backend):
    query, key, value = draw(shape)
    for options in ({}, {"mask": some_mask((4, 5))}, {"mask": some_mask((*shape, 4, 5))}, {"bias": np.ones((1, 5))}):
        given = attention(
            *map(torch.tensor, (query, key, value)), backend=backend, **{k: torch.tensor(x) for k, x in options.items()}
        )
        np.testing.assert_allclose(given, reference.attention(query, key, value, **options), rtol=0, atol=1e-14)


def test_inputs_are_not_written_and_results_are_not_the_inputs():
    for backend in ("auto", "math", "sdpa"):
        inputs = [*tensors(torch.float32, shape_q=(1, 1), L=1, S=1), torch.ones(1, 1).bool(), torch.zeros(1, 1)]
        before = [x.numpy().tobytes() for x in inputs]
        output = attention(*inputs[:3], mask=inputs[3], bias=inputs[4], backend=backend)
        output.fill_(7)
        assert [x.numpy().tobytes() for x in inputs] == before


def test_without_gradients():
    inputs = tensors(grad=True)
    with torch.no_grad():
        assert not attention(*inputs).requires_grad
    with torch.inference_mode():
        assert attention(*inputs, mask=MASK).is_inference()
    assert attention(*inputs).requires_grad
    assert attention(*inputs, return_weights=True)[1].requires_grad
    assert not attention(*(x.detach() for x in inputs)).requires_grad


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}, {"return_weights": True}, {"dropout_p": 0.5}])
def test_autocast_changes_neither_dtypes_nor_the_plain_body(half, options):
    inputs = tensors(torch.float32, grad=True)
    with torch.autocast("cpu", half):
        torch.manual_seed(0)
        given = attention(*inputs, mask=MASK, backend="math", **options)
        auto = attention(*inputs, mask=MASK, **options)
    torch.manual_seed(0)
    wanted = attention(*inputs, mask=MASK, backend="math", **options)
    (given, auto, wanted) = (x[0] if isinstance(x, tuple) else x for x in (given, auto, wanted))
    assert given.dtype == auto.dtype == torch.float32
    assert torch.equal(given, wanted)
    auto.sum().backward()
    assert all(x.grad.dtype == torch.float32 and x.grad.isfinite().all() for x in inputs)


def test_parameters_are_tensors():
    query, key, value = (torch.nn.Parameter(x) for x in tensors())
    attention(query, key, value).sum().backward()
    assert value.grad is not None
