"""The implementations under test, all called alike: NumPy arrays in, NumPy arrays out."""

import numpy as np
import torch

from lib import fast, reference

COMMON = frozenset({"mask", "bias", "causal", "window", "offset", "scale", "softcap", "enable_gqa"})


class Implementation:
    """A callable attention, and what may be asked of it."""

    def __init__(self, name, function, options, *, exact=True, torch=False, **fixed):
        self.name, self.function, self.options, self.torch, self.fixed = name, function, options, torch, fixed
        self.exact = exact  # nothing hidden matters, NaN and infinity included, and no score is beyond its range

    def __call__(self, query, key, value, **options):
        assert set(options) <= self.options, f"{self.name} has no {set(options) - self.options}"
        if self.torch:
            query, key, value = (to_torch(x) for x in (query, key, value))
            options = {name: to_torch(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
        result = self.function(query, key, value, **options, **self.fixed)
        return tuple(map(to_numpy, result)) if isinstance(result, tuple) else to_numpy(result)

    def __repr__(self):
        return self.name


def to_torch(array):
    """Share the array's memory and keep its layout, where torch can."""
    if array.flags.writeable and array.dtype.isnative and all(stride >= 0 for stride in array.strides):
        return torch.from_numpy(array)
    return torch.tensor(array.copy())


def to_numpy(result):
    return result.detach().numpy() if isinstance(result, torch.Tensor) else result


WEIGHTS = {"return_weights"}
IMPLEMENTATIONS = [
    Implementation("reference", reference.attention, COMMON | WEIGHTS),
    Implementation("streaming", reference.streaming_attention, COMMON),
    Implementation("streaming-tiles", reference.streaming_attention, COMMON, block_q=2, block_k=3),
    Implementation("fast-auto", fast.attention, COMMON | WEIGHTS, torch=True),
    Implementation("fast-math", fast.attention, COMMON | WEIGHTS, torch=True, backend="math"),
    Implementation("fast-sdpa", fast.attention, COMMON - {"softcap"}, exact=False, torch=True, backend="sdpa"),
]
