"""Compile the Triton kernels for GPUs that need not be here, and say what each takes of a processor.

    .venv/bin/python -m scripts.gpu_compile --capability 90 --dtype bfloat16 --size 64

For every kernel: shared memory in bytes, registers of a thread, and how many bytes of them had to be spilled to memory.
This is how the table of tiles in lib/fast/triton_attention.py was chosen. The interpreter runs kernels that the
compiler would refuse; here it does not get past. Exit status 1: one does not compile, or takes too much shared memory.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch

from lib.fast import triton_attention

SHARED = {80: 163, 90: 227, 100: 227}  # KiB for a program, by compute capability


class Device:
    """What Triton's compiler asks of a driver, for a GPU of a given compute capability."""

    def __init__(self, capability):
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self):
        """Say what to compile for."""
        return self.target

    def get_current_device(self):
        """Give its number."""
        return 0

    def get_current_stream(self, device):
        """Give no stream: nothing runs."""
        return 0


def compiled(capability, dtype, size):
    """Compile the kernels as a causal call, with gradients, would; yield name, tile and result, one by one."""
    import triton

    kernels, (run, found) = triton.JITFunction, (triton.JITFunction.run, [])

    def compile_only(kernel, *arguments, **options):
        found.append((kernel.fn.__name__, run(kernel, *arguments, **{**options, "warmup": True})))

    triton.runtime.driver.set_active(Device(capability))
    inputs = [torch.zeros(1, heads, 256, size, dtype=dtype, requires_grad=True) for heads in (4, 2, 2)]
    with mock.patch.object(kernels, "run", compile_only), mock.patch.object(triton_attention, "require_runnable"):
        output = triton_attention.attention(*inputs, causal=True, enable_gqa=True)
        output.backward(torch.zeros_like(output))
    for name, result in found:
        yield name, triton_attention._tile(name, dtype, size), result


def resources(result):
    """Give a compiled kernel's registers of a thread and its spilled bytes, as Nvidia's own tool says them."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(result.asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return tuple(int(re.search(rf"{name}:(\d+)", said.stdout)[1]) for name in ("REG", "STACK"))


def main(given=None):
    """Run the command line; give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, choices=SHARED, default=80, help="compute capability, times 10")
    parser.add_argument("--dtype", choices=["float16", "bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--size", type=int, default=64, help="head size")
    options = parser.parse_args(given)
    status = 0
    for name, tile, result in compiled(options.capability, getattr(torch, options.dtype), options.size):
        registers, spilled = resources(result)
        print(
            f"{name:<20} {tile}: shared {result.metadata.shared}, registers {registers}, spilled {spilled}", flush=True
        )
        status |= result.metadata.shared > SHARED[options.capability] * 1024
    return status


if __name__ == "__main__":
    sys.exit(main())
