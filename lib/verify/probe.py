"""One call of attention, written down: arrays in the contract's form, options, dtype and memory layout.

A probe is what a property asks with, what shrinking makes smaller, and what a failure shows. Its arrays are float64 and
hold numbers that every floating dtype can hold, unless a property says otherwise; :class:`lib.verify.subject.Subject`
turns them into what the function under test takes.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

ARRAYS = ("query", "key", "value", "mask", "bias")
OPTIONS = (
    "mask", "bias", "causal", "window", "offset", "scale", "softcap", "enable_gqa", "return_weights", "dropout_p",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Probe:
    """A call: three arrays, the options that are set, and how the arrays are to be made.

    Attributes
    ----------
    query, key, value : (..., L, E), (..., S, E), (..., S, Ev), float64
    options : dict
        The contract's options that are passed, ``mask`` boolean (True = may attend) and ``bias`` floating.
    dtype : str
        What query, key, value and bias are cast to.
    layouts : dict
        For an array's name, how it lies in memory: a key of :data:`lib.verify.layouts.NUMPY`.
    corner : str or None
        What is unusual about this call, such as "no keys". A function that raises here refuses it, which is reported;
        at an ordinary call it would be a failure.

    Examples
    --------
    >>> probe = Probe(np.zeros((1, 2)), np.zeros((3, 2)), np.ones((3, 1)), {"causal": True})
    >>> probe.L, probe.S, probe.E, probe.Ev, probe.lead
    (1, 3, 2, 1, ())
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    options: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    layouts: dict[str, str] = field(default_factory=dict)
    corner: str | None = None
    memo: dict = field(default_factory=dict, repr=False)  # the expected answer, kept by the oracle

    @property
    def L(self) -> int:
        """The number of queries."""
        return self.query.shape[-2]

    @property
    def S(self) -> int:
        """The number of keys."""
        return self.key.shape[-2]

    @property
    def E(self) -> int:
        """The head size."""
        return self.query.shape[-1]

    @property
    def Ev(self) -> int:
        """The value size."""
        return self.value.shape[-1]

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading axes of the query: batch and heads."""
        return self.query.shape[:-2]

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape that the output should have, (..., L, Ev)."""
        if self.options.get("enable_gqa"):
            return (*self.lead, self.L, self.Ev)
        lead = np.broadcast_shapes(self.lead, self.key.shape[:-2], self.value.shape[:-2])
        return (*lead, self.L, self.Ev)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Every array of the call by its name, mask and bias included where they are set."""
        found = {"query": self.query, "key": self.key, "value": self.value}
        return found | {name: self.options[name] for name in ("mask", "bias") if name in self.options}

    @property
    def summary(self) -> str:
        """Say in a few words what the call is like.

        Examples
        --------
        >>> draw(0, 2, 3, causal=True).summary
        'L = 2, S = 3, E = 4, Ev = 2, float32, causal'
        """
        axes = [f"leading axes {self.lead}"] if self.lead else []
        sizes = [f"L = {self.L}", f"S = {self.S}", f"E = {self.E}", f"Ev = {self.Ev}"]
        return ", ".join([*axes, *sizes, self.dtype, *self.options, *sorted(set(self.layouts.values()))])

    def change(self, **changes: Any) -> "Probe":
        """Give a probe with other arrays, options, dtype, layouts or corner; an option of None is taken out.

        Examples
        --------
        >>> probe = Probe(np.zeros((1, 2)), np.zeros((3, 2)), np.ones((3, 1)), {"causal": True, "scale": 1.0})
        >>> probe.change(causal=None, softcap=2.0).options
        {'scale': 1.0, 'softcap': 2.0}
        """
        fields = {name: changes.pop(name) for name in tuple(changes) if name not in OPTIONS}
        options = {name: value for name, value in {**self.options, **changes}.items() if value is not None}
        return replace(self, options=options, memo={}, **fields)

    def lift(self, axes: int) -> "Probe":
        """Add leading axes of size 1 until query, key and value have ``axes`` axes."""
        missing = axes - self.query.ndim
        if missing <= 0:
            return self
        lifted = {name: getattr(self, name)[(None,) * missing] for name in ("query", "key", "value")}
        return self.change(**lifted)

    def only_query(self, i: int, keys: np.ndarray | slice = slice(None)) -> "Probe":
        """Keep one query and some of the keys, and no option that chooses among keys."""
        return self.change(
            query=self.query[..., i : i + 1, :],
            key=self.key[..., keys, :],
            value=self.value[..., keys, :],
            mask=None,
            bias=None,
            causal=None,
            window=None,
            offset=None,
        )


def numbers(rng: np.random.Generator, *shape: int, steps: int = 16) -> np.ndarray:
    """Draw numbers from −2 to 2 in steps of 1/8: short to print, and exact in every dtype, bfloat16 included."""
    return rng.integers(-steps, steps + 1, shape) / 8.0


def draw(
    seed: int, L: int, S: int, E: int = 4, Ev: int = 2, lead: tuple[int, ...] = (), groups: int | None = None,
    **options: Any,
) -> Probe:  # fmt: skip
    """Draw a probe of a given shape; ``groups`` gives key and value fewer heads than the query."""
    rng = np.random.default_rng(seed)
    kv_lead = lead if groups is None else (*lead[:-1], groups)
    return Probe(numbers(rng, *lead, L, E), numbers(rng, *kv_lead, S, E), numbers(rng, *kv_lead, S, Ev), _set(options))


def equal_scores(values: Any, L: int = 1, E: int = 1, **options: Any) -> Probe:
    """Make the card's probe: queries and keys of zeros, so that every key's score is equal; values as given."""
    values = np.asarray(values, dtype=float)
    if values.ndim == 1:
        values = values[:, None]
    lead, S = values.shape[:-2], values.shape[-2]
    return Probe(np.zeros((*lead, L, E)), np.zeros((*lead, S, E)), values, _set(options))


def some_mask(seed: int, *shape: int) -> np.ndarray:
    """Draw a boolean mask in which every query may attend to at least one key, and one key is hidden somewhere."""
    rng = np.random.default_rng(seed)
    mask = rng.random(shape) < 0.6
    if shape[-1] > 1:
        mask[..., 0, -1] = False
    empty = ~mask.any(-1)
    mask[..., 0] |= empty
    return mask


def _set(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
