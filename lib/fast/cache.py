"""A key/value cache of tensors. Where each token goes is in lib.cache, for both frameworks."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lib import cache

__all__ = ["KVCache"]


class KVCache(cache.KVCache):
    """Keep the keys and values of all tokens so far, in memory that is allocated once.

    The same cache as :class:`lib.reference.KVCache`, made of tensors, for the same call of :func:`lib.fast.attention`.
    It is for inference: gradients stop at it, so keys and values that require a gradient are kept without one, and no
    step holds on to the one before.

    Parameters
    ----------
    batch, num_kv_heads, capacity, E : int ≥ 1
        B, G, the number of slots in each row, and the size of a key.
    Ev : int ≥ 1
        The size of a value, E unless given.
    dtype, device
        torch's defaults unless given. ``dtype`` is floating.
    window : int ≥ 0
        How many tokens before itself a query may reach: ``window=(window, 0)`` of a full pass. A full row then drops
        what is out of reach instead of raising. The keys are moved once for every capacity − window tokens, so a
        capacity of twice the window moves each key about once; a chunk may have up to capacity − window tokens.

    Raises
    ------
    TypeError, ValueError
        If a size is no positive integer, ``dtype`` is not floating, or ``capacity`` is not above ``window``.

    Notes
    -----
    ``held.key`` and ``held.value`` are views, overwritten by later appends: finish with them first. Memory: B · G ·
    capacity · (E + Ev) numbers, all at the start; ``nbytes`` says how many bytes.

    Examples
    --------
    Two tokens, then a third. Its query may read all three, and stands at position 2:

    >>> store = KVCache(batch=1, num_kv_heads=1, capacity=4, E=1)
    >>> _ = store.append(torch.zeros(1, 1, 2, 1), torch.tensor([[[[2.0], [8.0]]]]))
    >>> held = store.append(torch.zeros(1, 1, 1, 1), torch.tensor([[[[5.0]]]]))
    >>> held.value[0, 0, :, 0], held.offset
    (tensor([2., 8., 5.]), 2)
    """

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        capacity: int,
        E: int,
        Ev: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: Any = None,
        window: int | None = None,
    ) -> None:
        """Allocate the cache, all of it zero."""
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"dtype must be floating, got {dtype}")
        super().__init__(batch, num_kv_heads, capacity, E, Ev, window, partial(torch.zeros, dtype=dtype, device=device))

    def append(self, key: Tensor, value: Tensor, lengths: Any = None) -> cache.Held:
        """Write the next tokens of each row, without their gradients: ``reference.KVCache.append``."""
        key, value = (x.detach() if isinstance(x, Tensor) else x for x in (key, value))
        return super().append(key, value, lengths)

    def _movable(self, x: Tensor) -> Tensor:
        return x.clone()

    def _integers(self, numbers: np.ndarray) -> Tensor:
        return torch.as_tensor(numbers, device=self._key.device)
