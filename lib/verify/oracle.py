"""What a call should give, and how far from it a correct implementation may end up in the call's dtype.

The expected values come from :mod:`lib.reference` in float64. The tolerance is the rounding error that a plain
implementation in the same dtype can make: scores are off by a few units in the last place of the terms they are summed
from, and the softmax passes that on to the weights. So a probe whose softmax is one-hot stays sharp however large its
scores are, and what stands at hidden positions loosens nothing.
"""

import math
from typing import NamedTuple

import numpy as np

from lib import arguments, reference
from lib.reference.attention import allowed_pairs
from lib.verify.probe import Probe

#: The distance from 1 to the next number.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Answer(NamedTuple):
    """What a call should give."""

    output: np.ndarray  # (..., L, Ev)
    weights: np.ndarray  # (..., L, S)
    allowed: np.ndarray  # (..., L, S), which keys each query may see
    tolerance: np.ndarray  # (..., L, 1), how far each query's output may be off

    @property
    def empty(self) -> np.ndarray:
        """(..., L), the queries that may attend to nothing."""
        return ~self.allowed.any(-1)


def answer(probe: Probe, alignment: str = "top-left", empty_rows: str = "zero") -> Answer:
    """Compute what a call should give under declared conventions.

    Parameters
    ----------
    probe : Probe
    alignment : "top-left" or "bottom-right"
        Where the first query stands when causal or window is asked for, L ≠ S, and no offset is given.
    empty_rows : "zero", "nan" or "mean"
        What a query that may attend to nothing gives.

    Returns
    -------
    Answer

    Examples
    --------
    >>> probe = Probe(np.zeros((1, 1)), np.zeros((2, 1)), np.array([[2.0], [8.0]]))
    >>> answer(probe).output
    array([[5.]])
    """
    call = (_content(probe), alignment, empty_rows)
    if call not in _known:
        if len(_known) >= 20_000:
            _known.clear()
        _known[call] = _answer(probe, alignment, empty_rows)
    return _known[call]


_known: dict[tuple, Answer] = {}  # the same calls are asked of every function


def _content(probe: Probe) -> tuple:
    """Give what an answer depends on, such that equal calls are found again."""
    if not probe.memo:
        options = {k: v for k, v in probe.options.items() if not isinstance(v, np.ndarray)}
        arrays = [probe.query, probe.key, probe.value]
        arrays += [v for _, v in sorted(probe.options.items()) if isinstance(v, np.ndarray)]
        held = tuple((x.shape, x.tobytes()) for x in arrays)
        probe.memo["content"] = held, tuple(sorted(probe.options)), repr(sorted(options.items())), probe.dtype
    return probe.memo["content"]


def aligned(probe: Probe, alignment: str) -> Probe:
    """Write the offset that an alignment stands for into a probe that needs one and has none."""
    restricted = probe.options.get("causal") or "window" in probe.options
    if restricted and "offset" not in probe.options and probe.L != probe.S:
        return probe.change(offset=0 if alignment == "top-left" else probe.S - probe.L)
    return probe


def _answer(probe: Probe, alignment: str, empty_rows: str) -> Answer:
    options = {k: v for k, v in aligned(probe, alignment).options.items() if k not in ("return_weights", "dropout_p")}
    query, key, value = probe.query, probe.key, probe.value
    output, weights = reference.attention(query, key, value, return_weights=True, **options)
    call = arguments.check(np.ndarray, query, key, value, **options)
    allowed = np.broadcast_to(allowed_pairs(call, options.get("mask"), options.get("bias")), call.scores_shape)
    if call.repeats > 1:
        key, value = (np.repeat(x, call.repeats, axis=-3) for x in (key, value))
    empty = ~allowed.any(-1)[..., None]
    if empty_rows == "nan":
        output, weights = np.where(empty, np.nan, output), np.where(empty, np.nan, weights)
    elif empty_rows == "mean" and call.S:
        output = np.where(empty, value.mean(-2, keepdims=True), output)
        weights = np.where(empty, 1 / call.S, weights)
    return Answer(output, weights, allowed, _tolerance(probe, query, key, value, output, allowed, call, options))


def _tolerance(
    probe: Probe,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    output: np.ndarray,
    allowed: np.ndarray,
    call: arguments.Call,
    options: dict,
) -> np.ndarray:
    """Bound each output row's rounding error; (..., L, 1)."""
    if 0 in (*call.scores_shape, call.Ev):
        return np.zeros((*call.batch, call.L, 1))
    eps = EPSILON[probe.dtype]
    bias = options.get("bias", np.zeros(()))
    with np.errstate(all="ignore"):
        scores = query @ key.swapaxes(-1, -2) * call.scale
        terms = np.abs(query) @ np.abs(key).swapaxes(-1, -2) * abs(call.scale)  # what rounding is relative to
        if call.softcap is not None:
            scores = call.softcap * np.tanh(scores / call.softcap)
            terms = np.minimum(terms, 4 * call.softcap) + call.softcap
        scores = np.where(allowed, scores + bias, -np.inf)
        terms = np.where(allowed, terms + np.abs(bias), 0)
        delta = 4 * eps * terms.max(-1, keepdims=True)  # (..., L, 1), how far a score may be off
        top = scores.max(-1, keepdims=True)
        log_weights = scores - top - np.log(np.exp(scores - top).sum(-1, keepdims=True))
        low, weights, high = (np.exp(np.minimum(log_weights + shift, 0)) for shift in (-2 * delta, 0, 2 * delta))
        off = np.maximum(high - weights, weights - low)
        off = np.minimum(off, high.sum(-1, keepdims=True) - high)  # a key can only win what others may lose
        off = np.where(allowed, off, 0)
        seen = np.where(allowed[..., None], np.abs(value)[..., None, :, :], 0)  # (..., L, S, Ev)
        spread = np.where(allowed[..., None], np.abs(value[..., None, :, :] - output[..., None, :]), 0).max(-1)
        bound = (off * spread).sum(-1, keepdims=True) + 8 * eps * seen.max((-1, -2))[..., None]
    return np.where(np.isfinite(bound), bound, math.inf)
