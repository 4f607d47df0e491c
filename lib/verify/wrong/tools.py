"""What the body needs and what reads the same for NumPy and torch."""

from typing import Any

import numpy as np


def is_numpy(x: Any) -> bool:
    """Say whether ``x`` is an array of NumPy; torch is not imported for that."""
    return isinstance(x, np.ndarray | np.generic)


def namespace(x: Any) -> Any:
    """Give the module whose functions work on ``x``."""
    if is_numpy(x):
        return np
    import torch

    return torch


def cast(x: Any, dtype: Any) -> Any:
    """Give ``x`` in another dtype, named or taken from an array."""
    if is_numpy(x):
        return np.asarray(x).astype(dtype, copy=False)
    return x.to(getattr(namespace(x), dtype) if isinstance(dtype, str) else dtype)


def wide(x: Any) -> Any:
    """Give ``x`` in float32 at least."""
    return cast(x, "float32") if x.dtype.itemsize == 2 else x


narrow = cast


def positions(like: Any, L: int, S: int) -> tuple[Any, Any]:
    """Count the queries down, (L, 1), and the keys across, (1, S)."""
    xp = namespace(like)
    return xp.arange(L)[:, None], xp.arange(S)[None, :]


def facing(offset: Any, scores: Any) -> Any:
    """Give an offset, one or one per batch entry, the axes that face (..., L, 1)."""
    return offset if not hasattr(offset, "shape") else offset.reshape(-1, *(1,) * (scores.ndim - 1))


def grouping(query: Any, key: Any) -> Any:
    """Say which key/value head serves each query head: H/G in a row share one."""
    H, G = query.shape[-3], key.shape[-3]
    return namespace(query).arange(H) // (H // G)


def drop(weights: Any, p: float) -> Any:
    """Set each weight to 0 with probability p, and let the others grow so that the expected sum stays."""
    if is_numpy(weights):
        kept = np.random.random_sample(weights.shape) >= p  # noqa: NPY002 - seeded by who calls
        return weights * kept / (1 - p)
    return namespace(weights).nn.functional.dropout(weights, p)


def as_weights(weights: Any, output: Any) -> Any:
    """Give the weights the leading axes of the output."""
    shape = (*output.shape[:-1], weights.shape[-1])
    return namespace(weights).broadcast_to(weights, shape) if tuple(weights.shape) != shape else weights


def as_stored(x: Any) -> Any:
    """Read the memory that a view looks at from its start, as code that forgets strides does."""
    base = x.base if is_numpy(x) else x._base
    if base is None:
        return x
    flat = base.reshape(-1)
    count = 1
    for n in x.shape:
        count *= n
    return flat[namespace(x).arange(count) % max(flat.shape[0], 1)].reshape(x.shape)


def shuffled(value: Any) -> Any:
    """Draw an order of the keys."""
    S = value.shape[-2]
    return np.random.permutation(S) if is_numpy(value) else namespace(value).randperm(S)  # noqa: NPY002


def summed(x: Any, dtype: Any) -> Any:
    """Sum each row one by one in a dtype, as a loop in half precision does; (..., 1)."""
    if dtype.itemsize != 2:
        return x.sum(-1)[..., None]
    total = cast(x[..., :1] * 0, dtype)
    for s in range(x.shape[-1]):
        total = cast(total + cast(x[..., s : s + 1], dtype), dtype)
    return wide(total)
