"""Run the Triton kernel in Triton's interpreter, beside the reference: a program for test_triton_attention.py.

A program of its own, because the interpreter has to be chosen before Triton is imported. It prints a line of JSON for
each case: its name and the largest differences of the output and of the gradients of query, key and value, as a share
of the largest number where that is above 1.
"""

import json
import os
import warnings

import numpy as np
import torch

from lib import fast, reference
from scripts import gpu_check

SIZES = (1, 15, 16, 17, 64, 100)


def differences(query, key, value, make=torch.tensor, **options):
    """Compare a call with the reference; ``make`` makes tensors of the arrays."""
    leaves = [make(x).detach().requires_grad_() for x in (query, key, value)]
    output = fast.attention(*leaves, backend="triton", **options)
    output_grad = np.random.default_rng(1).normal(size=tuple(output.shape)).astype(query.dtype)
    gradients = torch.autograd.grad(output, leaves, make(output_grad))
    arrays = [x.astype(np.float64) for x in (query, key, value)]
    wanted = [reference.attention(*arrays, **options)]
    wanted += reference.attention_backward(output_grad.astype(np.float64), *arrays, **options)[:3]
    return [
        float(np.abs(x.detach().numpy() - y).max() / max(1, np.abs(y).max()))
        for x, y in zip((output, *gradients), wanted, strict=True)
    ]


def draw(query, key, value=None, dtype=np.float32):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(dtype) for shape in (query, key, value or key)]


def limits(L, S):
    yield "all", {}
    yield "causal", {"causal": True, "offset": S - L}
    yield "window", {"window": (20, 9), "offset": S - L}


def cases():
    """Give every case: name, inputs, options."""
    for L in SIZES:
        for S in SIZES:
            for name, options in limits(L, S):
                yield f"{name} {L} {S}", draw((L, 16), (S, 16)), options
    square = draw((100, 16), (100, 16))
    for name, options in {
        "causal from the first key": {"causal": True},
        "window to the left": {"window": (33, None)},
        "window to the right": {"window": (None, 40)},
        "window of one": {"window": (0, 0)},
        "causal and window": {"causal": True, "window": (40, 40)},
        "the first queries see nothing": {"causal": True, "offset": -40},
        "no query sees anything": {"causal": True, "offset": -(2**61)},
        "the last queries see nothing": {"window": (3, 3), "offset": 50},
        "far beyond the keys": {"window": (3, None), "offset": 2**61},
        "scale 0": {"scale": 0.0, "causal": True},
        "negative scale": {"scale": -1.5, "causal": True},
        "large scale": {"scale": 8.0, "causal": True},
    }.items():
        yield name, square, options
    few = {"causal": True, "offset": 3, "enable_gqa": True}
    yield "grouped", draw((2, 4, 17, 16), (2, 2, 20, 16)), few
    yield "one key head for all", draw((4, 17, 16), (1, 20, 16)), few
    yield "broadcast heads", draw((2, 3, 17, 16), (3, 20, 16), (2, 1, 20, 16)), {"window": (5, 5), "offset": 3}
    yield "five axes, grouped", draw((2, 1, 2, 17, 16), (1, 2, 1, 20, 16)), few
    for E, Ev in ((1, 1), (24, 40), (128, 128), (5, 100)):
        yield f"E = {E}, Ev = {Ev}", draw((17, E), (20, E), (20, Ev)), {"causal": True, "offset": 3}


def special():
    """Give what the reference is not needed for, or what is called in a way of its own."""
    arrays = draw((2, 3, 17, 16), (2, 3, 20, 16))
    # Every second number of every second row, heads where rows were: no stride is that of a contiguous tensor.
    yield "strided", differences(*arrays, make=_strided, window=(5, 5), offset=3)
    leaves = [torch.tensor(x) for x in arrays]
    leaves[0].requires_grad_()
    output = fast.attention(*leaves, backend="triton")
    output.sum().backward()  # a gradient of stride 0
    wanted = reference.attention_backward(np.ones(output.shape), *(x.astype(np.float64) for x in arrays))
    yield "gradient of a sum, for the query alone", [float(np.abs(leaves[0].grad.numpy() - wanted[0]).max())]
    hidden = [x.copy() for x in arrays]
    hidden[1][..., 18:, :], hidden[2][..., 18:, :] = 1e30, -1e30
    options = {"causal": True, "offset": 0, "backend": "triton"}
    outputs = [fast.attention(*map(torch.tensor, x), **options) for x in (arrays, hidden)]
    yield "what stands at hidden keys", [float((outputs[0] - outputs[1]).abs().max())]


def _strided(x):
    wide = torch.zeros(x.shape[0], 2 * x.shape[2], x.shape[1], 2 * x.shape[3])
    view = wide[:, ::2, :, ::2].transpose(1, 2)
    return view.copy_(torch.tensor(x))


def half_precision():
    """Give the errors of float16, and what they may be: twice those of a plain implementation."""
    for name, case in {
        "causal": gpu_check.Case(100, 100, 16, 16, (1,), options={"causal": True}),
        "grouped window": gpu_check.Case(17, 64, 32, 24, (2,), 1, {"window": (20, 9), "offset": 40}),
        "large numbers": gpu_check.Case(17, 17, 128, 128, (), options={"scale": 0.3}),
    }.items():
        yield f"float16, {name}", gpu_check.compare(case, torch.float16, "cpu").too_large()


def refused():
    """Give the error that bfloat16 raises in the interpreter."""
    x = torch.zeros(1, 16, dtype=torch.bfloat16)
    for function in (fast.triton_attention.attention, lambda *x: fast.attention(*x, backend="triton")):
        try:
            function(x, x, x)
        except ValueError as error:
            yield str(error)


def main():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton itself is imported by the first call
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    for name, inputs, options in cases():
        print(json.dumps(["equal", name, differences(*inputs, **options)]), flush=True)
    for name, found in special():
        print(json.dumps(["equal", name, found]), flush=True)
    for name, found in half_precision():
        print(json.dumps(["half", name, found]), flush=True)
    print(json.dumps(["refused", "bfloat16", list(refused())]), flush=True)


if __name__ == "__main__":
    main()
