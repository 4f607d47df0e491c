"""Check the Triton kernel on a GPU: is it exact, forward and backward, and is it quick? One command, a few minutes.

    .venv/bin/python -m scripts.gpu_check              # --no-speed: leave the benchmark out

Exact means: against float64, its error is at most twice that of a plain implementation in the same dtype, which writes
out all scores. The benchmark is ``python -m lib.bench --device cuda --group triton``: bfloat16, N = 4096 and 16384,
head sizes 64 and 128, forward and backward, against the quickest backend that torch's SDPA has here.

Exit status: 0 all is well, 1 something is wrong or too slow, 2 there is no GPU.
"""

import argparse
import sys
from typing import Any, NamedTuple

import torch

from lib import arguments, masks
from lib.bench import command_line
from lib.fast import triton_attention

NO_GPU = 2
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Case(NamedTuple):
    """Shapes and options of a call."""

    L: int
    S: int
    E: int = 64
    Ev: int = 64
    batch: tuple[int, ...] = (2, 4)
    groups: int | None = None  # key/value heads; None: as many as query heads
    options: dict[str, Any] = {}  # noqa: RUF012 (nobody writes to it)

    def __str__(self) -> str:
        """Say what is not the default."""
        changed = [
            f"{name}={x}" for name, x in zip(self._fields, self, strict=True) if x != self._field_defaults.get(name)
        ]
        return ", ".join(changed)


CASES = [
    *(Case(L, S, options=options) for L, S in ((1, 1), (1, 1000), (127, 127), (128, 4096), (1000, 777)) for options in (
        {}, {"causal": True, "offset": S - L}, {"window": (100, 20), "offset": S - L},
    )),
    *(Case(300, 300, E, Ev, options={"causal": True}) for E, Ev in ((1, 1), (16, 16), (20, 100), (80, 80), (128, 128))),
    *(Case(300, 400, 128, 128, options=options) for options in ({"scale": 0.0}, {"scale": -0.3}, {"scale": 2.0})),
    Case(500, 500, batch=(2, 8), groups=2, options={"causal": True}),
    Case(500, 500, batch=(2, 8), groups=1, options={"window": (64, 0)}),
    Case(200, 300, options={"causal": True, "offset": -100}),  # the first 100 queries see nothing
    Case(2048, 2048, 128, 128, batch=(1, 2), options={"causal": True}),
]  # fmt: skip


class Errors(NamedTuple):
    """Largest differences from float64, of the output and of the gradients of query, key and value."""

    ours: dict[str, float]
    plain: dict[str, float]
    unit: dict[str, float]  # the size of the exact numbers, times the dtype's epsilon

    def too_large(self) -> list[str]:
        """Name what is off by more than twice what the plain implementation is; NaN is."""
        return [name for name, x in self.ours.items() if not x <= 2 * self.plain[name] + self.unit[name]]


def compare(case: Case, dtype: torch.dtype, device: str = "cuda") -> Errors:
    """Compute a case by the kernel, plainly, and exactly."""
    generator = torch.Generator().manual_seed(0)
    heads = (*case.batch[:-1], case.groups or case.batch[-1]) if case.batch else ()
    shapes = [(*case.batch, case.L, case.E), (*heads, case.S, case.E), (*heads, case.S, case.Ev)]
    shapes.append((*case.batch, case.L, case.Ev))
    *inputs, output_grad = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    options = {**case.options, "enable_gqa": case.groups is not None}
    exact = _results(plain, [x.double() for x in inputs], output_grad.double(), options)
    found = [_results(f, inputs, output_grad, options) for f in (triton_attention.attention, plain)]
    names = ("output", "query's gradient", "key's gradient", "value's gradient")
    differences = [
        {name: float((x.double() - y).abs().max()) for name, x, y in zip(names, result, exact, strict=True)}
        for result in found
    ]
    sizes = {name: float(x.abs().max()) for name, x in zip(names, exact, strict=True)}
    return Errors(*differences, {name: torch.finfo(dtype).eps * size for name, size in sizes.items()})


def _results(function: Any, inputs: list[torch.Tensor], output_grad: torch.Tensor, options: dict) -> list[torch.Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    output = function(*leaves, **options)
    return [output.detach(), *torch.autograd.grad(output, leaves, output_grad)]


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    """Compute attention as the equation says, every step in the inputs' dtype; a query that sees nothing gets 0."""
    call = arguments.check(torch.Tensor, query, key, value, **options)
    if call.repeats > 1:
        key, value = (x.repeat_interleave(call.repeats, -3) for x in (key, value))
    i = call.offset + torch.arange(call.L, device=query.device)
    j = torch.arange(call.S, device=query.device)
    visible = masks.sliding_window(i, j, *call.window)
    visible = visible & masks.causal(i, j) if call.causal else visible
    scores = (query @ key.mT * call.scale).masked_fill(~visible, torch.finfo(query.dtype).min)
    weights = torch.softmax(scores, -1).masked_fill(~visible, 0)
    return weights @ value


def check(device: str = "cuda") -> list[str]:
    """Compare all cases, print a line for each, and name those that are wrong."""
    wrong = []
    for case in CASES:
        for dtype in DTYPES:
            name = f"{arguments.dtype_name(torch.empty(0, dtype=dtype))}: {case}"
            errors = compare(case, dtype, device)
            bad = errors.too_large()
            ratio = max(x / max(errors.plain[part], errors.unit[part]) for part, x in errors.ours.items())
            print(f"{'WRONG' if bad else 'ok':5}  error {ratio:4.2f} × plain's  {name}  {', '.join(bad)}", flush=True)
            wrong += [name] if bad else []
    return wrong


def main(given: list[str] | None = None) -> int:
    """Run the command line; give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-speed", action="store_true", help="leave the benchmark out")
    options = parser.parse_args(given)
    if not torch.cuda.is_available():
        print("no GPU: CUDA is not available here, so there is nothing to check", file=sys.stderr)
        return NO_GPU
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    wrong = check()
    print(f"{len(wrong)} of {len(CASES) * len(DTYPES)} are wrong" if wrong else "all are exact", flush=True)
    slow = 0 if options.no_speed else command_line.main(["--device", "cuda", "--group", "triton"])
    return int(bool(wrong or slow))


if __name__ == "__main__":
    sys.exit(main())
