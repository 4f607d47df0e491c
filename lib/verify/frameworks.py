"""NumPy and torch behind one small face: make arrays, read them back, compare them. torch is imported on demand."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from lib.verify import layouts


class NumPy:
    """Arrays of NumPy."""

    name = "numpy"
    array = "numpy.ndarray"
    dtypes = ("float32", "float64", "float16")

    def __init__(self, device: str = "cpu") -> None:
        self.module = np

    def make(self, x: np.ndarray, dtype: str, layout: str | None = None) -> np.ndarray:
        """Make an array of a dtype and a memory layout that nobody else holds."""
        with np.errstate(over="ignore"):
            made = np.array(x, dtype=dtype, order="C", copy=True)
        return layouts.lay_out(made, layout, self.name, np) if layout else made

    def read(self, x: np.ndarray) -> np.ndarray:
        """Copy a result to float64."""
        return np.array(x, dtype=np.float64)

    def owns(self, x: Any) -> bool:
        """Say whether ``x`` is an array of this framework."""
        return isinstance(x, np.ndarray | np.generic)

    def real(self, x: np.ndarray) -> bool:
        """Say whether ``x`` holds real numbers, and not objects, text or complex numbers."""
        return x.dtype.kind in "fiub"

    def dtype(self, x: np.ndarray) -> str:
        """Name the dtype."""
        return x.dtype.name

    def snapshot(self, x: np.ndarray) -> bytes:
        """Take the bytes of an array, to see later whether it was written to."""
        return x.tobytes()

    def seed(self, seed: int) -> None:
        """Seed the framework's own generator."""
        np.random.seed(seed)  # noqa: NPY002 - functions under test may draw from the global generator

    @contextlib.contextmanager
    def randomness(self) -> Iterator[None]:
        """Put the global generator back at the end."""
        state = np.random.get_state()  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002

    def quietly(self) -> Any:
        """Give a context for calls without gradients."""
        return np.errstate(divide="warn", over="warn", invalid="warn", under="ignore")


class Torch:
    """Tensors of torch."""

    name = "torch"
    array = "torch.Tensor"
    dtypes = ("float32", "float64", "float16", "bfloat16")

    def __init__(self, device: str = "cpu") -> None:
        import torch

        self.module, self.device = torch, device

    def make(self, x: np.ndarray, dtype: str, layout: str | None = None) -> Any:
        """Make a tensor of a dtype and a memory layout that nobody else holds."""
        made = self.module.tensor(np.ascontiguousarray(x)).to(getattr(self.module, dtype)).to(self.device)
        return layouts.lay_out(made, layout, self.name, self.module) if layout else made

    def read(self, x: Any) -> np.ndarray:
        """Copy a result to float64."""
        return x.detach().to("cpu", self.module.float64).numpy().copy()

    def owns(self, x: Any) -> bool:
        """Say whether ``x`` is a tensor."""
        return isinstance(x, self.module.Tensor)

    def real(self, x: Any) -> bool:
        """Say whether ``x`` holds real numbers, and not complex ones."""
        return not x.is_complex()

    def dtype(self, x: Any) -> str:
        """Name the dtype."""
        return str(x.dtype).removeprefix("torch.")

    def snapshot(self, x: Any) -> bytes:
        """Take the bytes of a tensor, to see later whether it was written to."""
        plain = self.module.empty(x.numel(), dtype=x.dtype)  # a view of one entry may claim stride 0 and be contiguous
        plain.copy_(x.detach().flatten())
        return plain.view(self.module.uint8).numpy().tobytes()

    def seed(self, seed: int) -> None:
        """Seed torch's and NumPy's generators."""
        if self.device == "cpu":
            self.module.default_generator.manual_seed(seed)  # manual_seed goes round all devices, which takes long
        else:
            self.module.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - functions under test may draw from the global generator

    @contextlib.contextmanager
    def randomness(self) -> Iterator[None]:
        """Put the global generators back at the end."""
        devices = [] if self.device == "cpu" else [self.module.device(self.device)]
        kinds = {"device_type": devices[0].type} if devices else {}
        with NumPy().randomness(), self.module.random.fork_rng(devices, **kinds):
            yield

    def quietly(self) -> Any:
        """Give a context for calls without gradients."""
        return self.module.no_grad()


def named(framework: str, device: str = "cpu") -> NumPy | Torch:
    """Give the framework of a name."""
    if framework not in ("numpy", "torch"):
        raise ValueError(f'framework must be "numpy" or "torch", got {framework!r}')
    return NumPy(device) if framework == "numpy" else Torch(device)
