"""Where a key/value cache puts each token, and what its queries may read. One definition for NumPy and torch.

A decoder makes one token at a time, and the keys and values of all earlier tokens stay the same. The cache keeps them
in two arrays that are allocated once, one slot for each token:

    slot      0  1  2  3  4  5  6  7          capacity = 8
    row 0     a  b  c  d  .  .  .  .          4 tokens seen
    row 1     p  q  .  .  .  .  .  .          2 tokens seen: rows may differ

Two numbers describe a row: how many tokens it has seen, which is the next token's position, and how many it has
dropped. A slot is a position minus what was dropped. Without a window nothing is dropped. With one, a row that is full
drops the tokens that no query can reach any more and moves the rest to the front: memory stays bounded, the keys stay
in order, and positions go on counting.

Slots that hold nothing are zero at all times, so that no leftover can leak through a mask (0 · NaN is NaN).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from lib import arguments, masks

__all__ = ["Held", "KVCache"]


class Held(NamedTuple):
    """What the queries of the tokens just appended may read.

    ``attention(query, held.key, held.value, causal=True, **held.options)``
    """

    key: Float[Any, "B G S E"]  # a view of the cache: good until the next append
    value: Float[Any, "B G S Ev"]
    offset: int | Int[Any, " B"]  # where the first query stands among these keys; an int where all rows agree
    mask: Bool[Any, "B 1 1 S"] | None  # which keys a row holds; None where all rows hold all of them
    window: tuple[int, int] | None  # None where every key lies within reach of every query

    @property
    def options(self) -> dict[str, Any]:
        """Give attention's keywords that belong to these keys: offset, mask and window."""
        return {"offset": self.offset, "mask": self.mask, "window": self.window}


class KVCache:
    """Keep the keys and values of all tokens so far; the rooms ``reference`` and ``fast`` say of which arrays."""

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        capacity: int,
        E: int,
        Ev: int | None,
        window: int | None,
        zeros: Callable[[tuple[int, ...]], Any],
    ) -> None:
        """Allocate the two arrays with ``zeros(shape)``."""
        Ev = E if Ev is None else Ev
        sizes = {"batch": batch, "num_kv_heads": num_kv_heads, "capacity": capacity, "E": E, "Ev": Ev}
        B, G, slots, E, Ev = (arguments.require_integer(name, size, 1) for name, size in sizes.items())
        self.capacity = slots
        self.window = None if window is None else arguments.require_integer("window", window, 0)
        if self.window is not None and slots <= self.window:
            raise ValueError(
                f"capacity must be at least window + 1 = {self.window + 1}, a token and all it may reach, got {slots}"
            )
        self._key, self._value = zeros((B, G, slots, E)), zeros((B, G, slots, Ev))
        self._seen, self._dropped = np.zeros(B, dtype=np.int64), np.zeros(B, dtype=np.int64)
        self._next: int | None = 0  # the slot of the next token, where it is the same in all rows

    @property
    def lengths(self) -> Int[np.ndarray, " B"]:
        """Give the number of tokens each row has seen, dropped ones included: the position of its next token."""
        return self._seen.copy()

    @property
    def nbytes(self) -> int:
        """Give the bytes of both arrays: B · G · capacity · (E + Ev) · bytes of a number, however many are in use."""
        return self._key.nbytes + self._value.nbytes

    def positions(self, count: int) -> Int[Any, "B count"]:
        """Give the positions of the next ``count`` tokens of each row, for rotary or learned positions.

        They count all tokens seen, not those still held.
        """
        count = arguments.require_integer("count", count, 0)
        return self._integers(self._seen[:, None] + np.arange(count))

    def append(self, key: Any, value: Any, lengths: Any = None) -> Held:
        """Write the next tokens of each row, and give what their queries may read, themselves included.

        Parameters
        ----------
        key : (B, G, L, E), of the cache's dtype
            Keys of the next L tokens: a whole prompt, a chunk of it, or one token. Already rotated, where they are.
        value : (B, G, L, Ev)
        lengths : (B,), integers from 0 to L
            How many of the L tokens are real, for rows of different lengths; the rest of a row is padding at its end
            and is not kept. All are real unless given.

        Returns
        -------
        Held
            ``attention(query, held.key, held.value, causal=True, **held.options)`` gives each real query what it gets
            in a pass over its whole row. The outputs of padding queries mean nothing.

        Raises
        ------
        TypeError, ValueError
            If shapes, dtype or lengths do not fit, or a row is full. The cache is then as it was before.
        """
        L = self._check(key, value)
        if lengths is None and self._next is not None and self._next + L <= self.capacity:
            return self._append_to_all(key, value, L)
        counts = self._check_counts(lengths, L)
        self._make_room(counts)
        start = self._seen - self._dropped  # (B,), the slot of each row's first new token
        self._write(key, value, start, counts, L)
        self._seen = self._seen + counts
        self._next = self._common_slot()
        return self._held(start, counts, L)

    def reset(self, rows: int | Sequence[int] | None = None) -> None:
        """Forget everything, or everything in the given rows, so that their next token has position 0.

        Parameters
        ----------
        rows : int or integers from 0 to B − 1
            All rows unless given.

        Raises
        ------
        TypeError, ValueError
            If there is no such row.
        """
        B = len(self._seen)
        rows = range(B) if rows is None else rows.tolist() if hasattr(rows, "tolist") else rows
        chosen = [arguments.require_integer("rows", row) for row in (rows if hasattr(rows, "__iter__") else [rows])]
        if any(not 0 <= row < B for row in chosen):
            raise ValueError(f"rows must lie between 0 and {B - 1}, got {rows}")
        for row in chosen:
            self._key[row], self._value[row] = 0, 0
            self._seen[row] = self._dropped[row] = 0
        self._next = self._common_slot()

    def _append_to_all(self, key: Any, value: Any, L: int) -> Held:
        """Append where all rows agree and have room: what nearly every step does, so in as few operations as can be."""
        start, end = self._next, self._next + L
        self._key[:, :, start:end], self._value[:, :, start:end] = key, value
        self._seen += L
        self._next = end
        first = self._first(start)
        return self._cut(first, end, start - first, None, start - first + L - 1)

    def _common_slot(self) -> int | None:
        """Give the slot of the next token, or None where rows differ."""
        slots = self._seen - self._dropped
        return int(slots[0]) if (slots == slots[0]).all() else None

    def _make_room(self, counts: Int[np.ndarray, " B"]) -> None:
        """Move what is still in reach to the front of the rows that would overflow; raise before anything is moved."""
        held = self._seen - self._dropped
        needed = held if self.window is None else np.minimum(held, self.window)
        too_many = needed + counts > self.capacity
        if too_many.any():
            row = int(too_many.argmax())
            advice = "make a larger cache, or reset the row"
            if self.window is not None:
                advice = f"append at most capacity − window = {self.capacity - self.window} tokens at a time"
            raise ValueError(
                f"the cache is full: row {row} keeps {needed[row]} tokens and {counts[row]} more would exceed "
                f"capacity = {self.capacity}; nothing was appended: {advice}"
            )
        for row in np.flatnonzero(held + counts > self.capacity):
            out, n = held[row] - needed[row], needed[row]
            for array in (self._key, self._value):
                array[row, :, :n] = self._movable(array[row, :, out : out + n])
                array[row, :, n:] = 0
            self._dropped[row] += out

    def _write(self, key: Any, value: Any, start: np.ndarray, counts: np.ndarray, L: int) -> None:
        """Put the real tokens into the slots from ``start`` on: by slices where all rows agree, else one by one."""
        if (start == start[0]).all() and (counts == L).all():
            slots = slice(start[0], start[0] + L)
            self._key[:, :, slots], self._value[:, :, slots] = key, value
            return
        rows, columns = np.nonzero(np.arange(L) < counts[:, None])  # each real token's row, and its place in it
        slots = start[rows] + columns
        self._key[rows, :, slots] = key[rows, :, columns]
        self._value[rows, :, slots] = value[rows, :, columns]

    def _held(self, start: np.ndarray, counts: np.ndarray, L: int) -> Held:
        """Cut out the slots that some query may read, and say what each row's queries may read of them."""
        end = start + counts
        first, last = self._first(int(start.min())), int(end.max())
        offset, mask = start - first, None
        if (end < last).any():
            mask = masks.padding(self._integers(end[:, None] - first), last - first)
        same = (offset == offset[0]).all()
        farthest = int(offset.max()) + L - 1
        return self._cut(first, last, int(offset[0]) if same else self._integers(offset), mask, farthest)

    def _first(self, start: int) -> int:
        """Give the first slot that a query in slot ``start`` may reach."""
        return 0 if self.window is None else max(0, start - self.window)

    def _cut(self, first: int, last: int, offset: Any, mask: Any, farthest: int) -> Held:
        """Give the slots from ``first`` to ``last``, of which a query sees up to ``farthest`` before its own."""
        return Held(
            key=self._key[:, :, first:last],
            value=self._value[:, :, first:last],
            offset=offset,
            mask=mask,
            window=None if self.window is None or farthest <= self.window else (self.window, 0),
        )

    def _check(self, key: Any, value: Any) -> int:
        """Give L, or raise unless key and value fit the cache."""
        arrays = {"key": (key, self._key, "E"), "value": (value, self._value, "Ev")}
        for name, (array, home, size) in arrays.items():
            arguments.require_array(name, array, type(home))
            given, kept = arguments.dtype_name(array), arguments.dtype_name(home)
            if given != kept:
                raise TypeError(f"{name} must have the cache's dtype {kept}, got {given}")
            if getattr(array, "device", None) != getattr(home, "device", None):
                raise ValueError(f"{name} must be on the cache's device {home.device}, got {array.device}")
            B, G, _, width = home.shape
            if len(array.shape) != 4 or (array.shape[0], array.shape[1], array.shape[3]) != (B, G, width):
                wanted = f"(B, G, L, {size}) = ({B}, {G}, L, {width})"
                raise ValueError(f"{name} must have shape {wanted}, got {tuple(array.shape)}")
        if key.shape[2] != value.shape[2]:
            raise ValueError(f"value must hold as many tokens as key, {key.shape[2]}, got {value.shape[2]}")
        return key.shape[2]

    def _check_counts(self, lengths: Any, L: int) -> Int[np.ndarray, " B"]:
        """Give how many tokens of each row are real, or raise unless they are (B,) integers from 0 to L."""
        B = len(self._seen)
        if lengths is None:
            return np.full(B, L)
        counts = np.asarray(lengths.tolist() if hasattr(lengths, "tolist") else lengths)
        if counts.dtype.kind not in "iu":
            raise TypeError(f"lengths must hold integers, got {counts.dtype}")
        if counts.shape != (B,):
            raise ValueError(f"lengths must have shape (B,) = ({B},), got {counts.shape}")
        if (counts < 0).any() or (counts > L).any():
            raise ValueError(f"lengths must lie between 0 and L = {L}, got {counts.tolist()}")
        return counts

    def _movable(self, x: Any) -> Any:
        """Give slots that can be moved within their own array: NumPy itself copies where both sides overlap."""
        return x

    def _integers(self, numbers: np.ndarray) -> Any:
        """Give integers as the kind of array that attention wants beside these keys."""
        return numbers
