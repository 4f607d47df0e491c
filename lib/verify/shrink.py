"""Make a failing probe as small and as plain as it can be while it still fails."""

import copy
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lib.verify.probe import Probe
from lib.verify.properties import RUNS, RUNS_STATEMENT, Property
from lib.verify.subject import DoesNotHold, Problem, Refusal, Subject

TRIES = 250  # how many simpler probes are asked for one failure
SECONDS = 3.0  # of computing for one failure at most: how busy the machine is must not change what is found


def shrink(
    subject: Subject, prop: Property, probe: Probe, problem: Problem, seconds: float = SECONDS
) -> tuple[Probe, Problem]:
    """Give the simplest probe found on which the property still fails in the same way.

    Parameters
    ----------
    subject : Subject
    prop : Property
    probe, problem
        Where it fails, and how.
    seconds : float
        Of computing, after which the simplest so far is given.

    Returns
    -------
    probe, problem
    """
    if not prop.shrinks:
        return probe, problem
    tries, deadline = TRIES, time.process_time() + seconds
    progress = True
    while progress:
        progress = False
        for simpler in candidates(probe):
            simpler = subject.fit(simpler)
            if complexity(simpler) >= complexity(probe) or not set(prop.needs) <= set(simpler.options):
                continue
            if tries == 0 or time.process_time() > deadline:
                return probe, problem
            tries -= 1
            found = _still_fails(subject, prop, simpler, problem)
            if found is not None:
                probe, problem, progress = simpler, found, True
                break
    return probe, problem


def _still_fails(subject: Subject, prop: Property, probe: Probe, before: Problem) -> Problem | None:
    """Ask again; another kind of failure does not count, nor one that is hard to see."""
    try:
        found = prop.holds(subject, probe)
    except (Refusal, TypeError, ValueError, LookupError, ArithmeticError):  # the simpler probe is no proper call
        return None
    if found is None or kind(found) != kind(before) or found.show != before.show:
        return None
    seen = min(size(before), 0.05, 0.9 / max(probe.S, 1))  # one key of many moves an output by so much
    return found if size(found) >= seen * 0.99 else None


def _check_runs(subject: Subject, probe: Probe) -> None:
    """Raise where an ordinary call fails."""
    error = subject.run(probe).error
    if error is not None:
        raise DoesNotHold(Problem(probe, subject.expected(probe).output, error, error))


_RUNS = Property(RUNS, RUNS_STATEMENT, lambda subject: (), _check_runs)


def shrink_call(subject: Subject, problem: Problem, seconds: float = SECONDS) -> tuple[Probe, Problem]:
    """Give the simplest call on which a function that takes no ordinary inputs fails with the same words.

    Parameters
    ----------
    subject : Subject
    problem : Problem
        A call, and the error that came of it.
    seconds : float
        Of computing.
    """
    words = _without_numbers(str(problem.given))

    def check(subject: Subject, probe: Probe) -> None:
        try:
            _check_runs(subject, probe)
        except DoesNotHold as failure:
            if _without_numbers(str(failure.problem.given)) == words:
                raise

    prop = replace(_RUNS, check=check)
    free = copy.copy(subject)  # not to be fitted to what the function takes: it is what it does not take that is shown
    free.form = copy.copy(subject.form)
    free.form.any_lengths = free.form.any_value_size = True
    probe, found = shrink(free, prop, problem.call, problem, seconds)
    return probe, problem._replace(call=probe, expected=found.expected, given=found.given)


def _without_numbers(text: str) -> str:
    return re.sub(r"[\d, ()]+", " ", text)


def kind(problem: Problem) -> str:
    """Tell apart an error, a wrong shape, NaN and wrong numbers."""
    if isinstance(problem.given, str) or isinstance(problem.expected, str):
        return "words"
    if np.shape(problem.given) != np.shape(problem.expected):
        return "shape"
    return "nan" if (np.isnan(problem.given) & ~np.isnan(problem.expected)).any() else "numbers"


def size(problem: Problem) -> float:
    """Give the largest difference; infinite where there is no number to compare."""
    if kind(problem) != "numbers":
        return np.inf
    with np.errstate(invalid="ignore"):
        return float(np.nan_to_num(np.abs(problem.given - problem.expected), nan=np.inf).max(initial=0))


def complexity(probe: Probe) -> tuple:
    """Order probes: fewer numbers, fewer options and layouts, plainer numbers."""
    numbers = sum(x.size for x in probe.arrays.values())
    plainness = sum(_plainness(x) for x in probe.arrays.values())
    settings = [v for v in probe.options.values() if isinstance(v, float | int | tuple) and not isinstance(v, bool)]
    return (
        numbers,
        len(probe.options) + len(probe.layouts),
        probe.query.ndim,
        plainness,
        sum(_setting(v) for v in settings),
    )


def _plainness(x: np.ndarray) -> int:
    """Count what makes numbers hard to read: 0 and True cost nothing, fractions most."""
    if x.dtype == bool:
        return int((~x).sum())
    size = np.abs(np.where(np.isfinite(x), x, 3))
    whole = size == np.round(size)
    cost = np.where(size == 0, 0, np.where(size == 1, 1, np.where(whole & (size < 10), 2, np.where(whole, 3, 5))))
    return int(cost.sum() + (x < 0).sum())


def _setting(value: Any) -> float:
    if isinstance(value, tuple):
        return sum(1 if v is None else 2 + v for v in value)
    return abs(value) + (0 if value == int(value) else 1)


def candidates(probe: Probe) -> Iterator[Probe]:
    """Suggest simpler probes, the boldest steps first."""
    yield from _fewer_leading_axes(probe)
    yield from _shorter(probe)
    yield from _narrower(probe)
    yield from _fewer_settings(probe)
    yield from _plainer(probe)


def _fewer_leading_axes(probe: Probe) -> Iterator[Probe]:
    lead = len(probe.lead)
    for axis in range(lead):
        if probe.lead[axis] > 1 and not probe.options.get("enable_gqa"):
            for keep in (slice(0, 1), slice(-1, None), slice(0, probe.lead[axis] - 1)):
                yield _cut(probe, axis - lead - 2, keep)
    if lead and probe.lead[0] == 1:
        yield _drop_first_axis(probe)
    if lead and probe.options.get("enable_gqa") and probe.key.shape[-3] > 1:
        each = probe.lead[-1] // probe.key.shape[-3]
        yield probe.change(
            query=probe.query[..., :-each, :, :], key=probe.key[..., :-1, :, :], value=probe.value[..., :-1, :, :]
        )


def _cut(probe: Probe, axis: int, keep: slice) -> Probe:
    """Keep a part of one leading axis, counted from the last, in every array that has it."""
    changes: dict[str, Any] = {}
    for name, x in probe.arrays.items():
        if -axis <= x.ndim and x.shape[axis] > 1:
            index = [slice(None)] * x.ndim
            index[axis] = keep
            x = x[tuple(index)]
        changes[name] = x
    offset = probe.options.get("offset")
    if isinstance(offset, np.ndarray) and axis == -probe.query.ndim:
        changes["offset"] = offset[keep]
    return probe.change(**changes)


def _drop_first_axis(probe: Probe) -> Probe:
    axes = probe.query.ndim
    changes: dict[str, Any] = {
        name: x[0] if x.ndim == axes and x.shape[0] == 1 else x for name, x in probe.arrays.items()
    }
    offset = probe.options.get("offset")
    if isinstance(offset, np.ndarray):
        changes["offset"] = int(offset[0])
    return probe.change(**changes)


def _shorter(probe: Probe) -> Iterator[Probe]:
    """Take queries or keys away: all but one, half, one."""
    tied = probe.L == probe.S and "offset" not in probe.options and ({"causal", "window"} & set(probe.options))
    if tied:
        for n in dict.fromkeys((2, 3, *_fewer(probe.L))):
            if 1 < n < probe.L:
                yield _rows(_keys(probe, np.arange(n)), np.arange(n))
        return
    for n in dict.fromkeys((1, *_fewer(probe.L))):
        if 0 < n < probe.L:
            yield _rows(probe, np.arange(n))
            yield _rows(probe, np.arange(probe.L - n, probe.L))
    for n in dict.fromkeys((2, 3, *_fewer(probe.S))):
        if 1 < n < probe.S:  # the softmax over one key says little
            yield _keys(probe, np.arange(n))
            yield _keys(probe, np.arange(probe.S - n, probe.S))


def _fewer(n: int) -> tuple[int, ...]:
    """Suggest lengths below n: half of it, and steps that shrink, so that the shortest is found soon."""
    return (n // 2, n - n // 4, n - n // 8, n - n // 32, n - 1)


def _rows(probe: Probe, rows: np.ndarray) -> Probe:
    changes = {"query": probe.query[..., rows, :]}
    for name in ("mask", "bias"):
        x = probe.options.get(name)
        if x is not None and x.shape[-2] > 1:
            changes[name] = x[..., rows, :]
    return probe.change(**changes)


def _keys(probe: Probe, keys: np.ndarray) -> Probe:
    changes = {"key": probe.key[..., keys, :], "value": probe.value[..., keys, :]}
    for name in ("mask", "bias"):
        x = probe.options.get(name)
        if x is not None and x.shape[-1] > 1:
            changes[name] = x[..., keys]
    return probe.change(**changes)


def _narrower(probe: Probe) -> Iterator[Probe]:
    for n in dict.fromkeys((1, probe.E // 2, probe.E - 1)):
        if 0 < n < probe.E:
            yield probe.change(query=probe.query[..., :n], key=probe.key[..., :n])
            if probe.Ev == probe.E:
                yield probe.change(query=probe.query[..., :n], key=probe.key[..., :n], value=probe.value[..., :n])
    for n in dict.fromkeys((1, probe.Ev // 2, probe.Ev - 1)):
        if 0 < n < probe.Ev:
            yield probe.change(value=probe.value[..., :n])


def _fewer_settings(probe: Probe) -> Iterator[Probe]:
    for name in probe.options:
        if name != "return_weights":  # what comes back would be another thing
            yield probe.change(**{name: None})
    for name in probe.layouts:
        yield probe.change(layouts={k: v for k, v in probe.layouts.items() if k != name})
    for name in ("scale", "softcap"):
        if name in probe.options:
            yield probe.change(**{name: 1.0})
    window = probe.options.get("window")
    if window:
        for plain in ((0, 0), (1, 0), (0, None), (None, 0)):
            yield probe.change(window=plain)
    if isinstance(probe.options.get("offset"), int):
        yield probe.change(offset=0)
        yield probe.change(offset=1)


def _plainer(probe: Probe) -> Iterator[Probe]:
    """Replace numbers by zeros, ones, counts, whole numbers; allow masked pairs."""
    for name in ("query", "key"):
        x = getattr(probe, name)
        yield probe.change(**{name: np.zeros_like(x)})
        yield probe.change(**{name: np.ones_like(x)})
    place = np.arange(probe.S)[:, None] * np.ones_like(probe.key)
    for alone in (0, probe.S - 1):
        yield probe.change(key=(place == alone) * 1.0)
    value = probe.value
    count = np.arange(1.0, probe.S + 1)[:, None] * np.ones(value.shape)
    for plain in ((count == probe.S) * 1.0, (count == 1) * 1.0, count):
        yield probe.change(value=plain)
    if probe.Ev == probe.S:
        yield probe.change(value=np.eye(probe.S) * np.ones(value.shape))
    for name in ("query", "key", "value", "bias"):
        x = probe.arrays.get(name)
        if x is None:
            continue
        yield probe.change(**{name: np.where(np.isfinite(x), np.round(x), x)})
        yield probe.change(**{name: np.where(np.isfinite(x), np.abs(x), x)})  # −∞ blocks, ∞ does not
        if x.size <= 8:
            yield from _single_entries(probe, name, x)
    mask = probe.options.get("mask")
    if mask is not None and mask.size <= 40:
        for index in np.argwhere(~mask):
            freed = mask.copy()
            freed[tuple(index)] = True
            yield probe.change(mask=freed)


def _single_entries(probe: Probe, name: str, x: np.ndarray) -> Iterator[Probe]:
    for index in np.ndindex(*x.shape):
        for plain in (0.0, 1.0, 2.0):
            if x[index] != plain:
                changed = x.copy()
                changed[index] = plain
                yield probe.change(**{name: changed})
