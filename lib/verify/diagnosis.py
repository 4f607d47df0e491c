"""Which known bug is it? Compare what a function does with what the catalogue's wrong implementations do.

First, on the failing example: which entries give what the function gives? Those few are then compared with the function
on a fixed set of probes that touches every property. An entry that agrees everywhere is the diagnosis; one that agrees
nearly everywhere is what the failure looks like.
"""

import itertools
import re
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from lib.verify import oracle
from lib.verify.oracle import EPSILON
from lib.verify.probe import Probe
from lib.verify.properties import PROPERTIES, RUNS, Property
from lib.verify.properties.base import differs
from lib.verify.properties.training import EMPTY_GRADIENTS, GRADIENTS, backward
from lib.verify.shrink import size
from lib.verify.subject import DoesNotHold, Outcome, Problem, Subject
from lib.verify.wrong import Entry, catalogue

#: An entry must agree with the function on this share of the probes on which it differs from a correct one.
NEARLY = 0.75

#: Below this share of the probes on which an entry is wrong, agreement on the others says nothing.
ENOUGH = 0.7

GRADIENT_PROPERTIES = (GRADIENTS, EMPTY_GRADIENTS)


class Suspect(NamedTuple):
    """The known bug that a failure matches."""

    entry: Entry
    exact: bool  # agrees on every probe, not only on most

    @property
    def sentence(self) -> str:
        """Say it for people."""
        words = "This is the known bug" if self.exact else "This looks like the known bug"
        return f"{words} {self.entry.name}: {self.entry.wrong}"


class Failed(NamedTuple):
    """A property that does not hold, with the probe and what is wrong there."""

    prop: Property | None  # None: the function does not even take ordinary inputs
    probe: Probe
    problem: Problem


def diagnose(subject: Subject, failed: list[Failed], holds: Collection[str] = ()) -> list[Suspect | None]:
    """Name the known bug behind each failure.

    Parameters
    ----------
    subject : Subject
    failed : list
        What failed, shrunk.
    holds : collection of str
        The properties that hold: a bug that fails one of them is another one.

    Returns
    -------
    list of Suspect or None, one for each failure
    """
    entries = [v for e in catalogue if subject.framework.name in e.frameworks for v in e.variants()]
    if any(f.prop is None for f in failed):
        return [_runs_suspect(f, entries) if f.prop is None else None for f in failed]
    matching = [[e for e in entries if _gives_the_same(subject, e, f)] for f in failed]
    shown = [f.problem.call for f in failed if f.problem.show == "output"]
    probes = [*_fingerprint(subject), *(call for call in shown if not call.options.get("dropout_p"))]
    candidates = {e.changes: e for found in matching for e in found}
    outcomes = [_seeded(subject, probe) for probe in probes] if candidates else []
    shares = {changes: _agreement(subject, e, probes, outcomes) for changes, e in candidates.items()}
    of_gradients = {e.changes: e for f, found in zip(failed, matching, strict=True) if _of_gradients(f) for e in found}
    slopes = {changes: _gradient_agreement(subject, e) for changes, e in of_gradients.items()}
    best = [_best(f, found, shares, slopes) for f, found in zip(failed, matching, strict=True)]
    other = {b.entry.changes for b in best if b and b.entry.killed_by in holds and _fails(subject, b.entry)}
    return [b if b and b.entry.changes not in other else None for b in best]


class Shares(NamedTuple):
    """How far function and entry agree: on probes where the entry is wrong, and on the others."""

    telling: float | None  # None: the entry is right on all of them
    others: float
    among: float  # of all probes, the share on which the entry is wrong

    def of(self, failed: Failed, gradients: float | None) -> float:
        """Give one number, 1 only for agreement everywhere. The others count less: a second bug may show there.

        A bug that shows on most probes is known by all of them together; one that shows on few, by these few.
        """
        chance = failed.problem.show.startswith("second call") or failed.prop.name == "dropout"
        silent = _of_gradients(failed) or chance  # no single output tells
        telling = self.telling if self.telling is not None else float(silent)
        telling *= 1.0 if gradients is None else gradients
        if telling == self.others == 1.0:
            return 1.0
        seldom = telling * (0.6 + 0.4 * self.others)
        weight = self.among, 0.4 * (1 - self.among)
        often = (weight[0] * telling + weight[1] * self.others) / sum(weight) if telling >= ENOUGH else 0.0
        return 0.999 * max(seldom, often)


def _fails(subject: Subject, entry: Entry) -> bool:
    """Say whether an entry fails the property that is meant for it, asked as the function is."""
    prop = next(p for p in PROPERTIES if p.name == entry.killed_by)
    try:
        return isinstance(prop.judge(_as_subject(entry, subject)), tuple)
    except Exception:  # it is no call for it
        return False


def _of_gradients(failed: Failed) -> bool:
    return failed.problem.show.endswith(".grad")


def _best(
    failed: Failed, found: list[Entry], shares: dict[tuple, Shares], slopes: dict[tuple, float]
) -> Suspect | None:
    """Choose the entry that agrees most; of equals, the one that this property is meant for."""
    if not found:
        return None
    share = {
        e.changes: shares[e.changes].of(failed, slopes.get(e.changes) if _of_gradients(failed) else None) for e in found
    }
    entry = max(found, key=lambda e: (share[e.changes], e.killed_by == failed.prop.name))
    return Suspect(entry, share[entry.changes] == 1) if share[entry.changes] >= NEARLY else None


def _runs_suspect(failed: Failed, entries: list[Entry]) -> Suspect | None:
    """For a function that gives back no array: what it gives back says which bug it is."""
    for word, name in (("gave back nothing", "forgets_to_return"), ("gave back a list", "returns_a_list")):
        if word in str(failed.problem.given):
            return Suspect(next(e for e in entries if e.name == name), True)
    return None


def _gives_the_same(subject: Subject, entry: Entry, failed: Failed) -> bool:
    """Say whether an entry does on the failing example what the function does there, and that is wrong."""
    wrong = _as_subject(entry, subject)
    probe, show = failed.problem.call, failed.problem.show
    if entry.killed_by == RUNS or show.startswith("strided"):  # which no entry gets wrong
        return False
    if show.startswith("second call") or failed.prop.name == "dropout":  # chance is at work: look at how it fails
        by_chance = (_fails_alike(_asked(failed, wrong), failed.problem) for _ in range(20))
        return entry.killed_by == failed.prop.name and any(by_chance) and not _fails_sooner(failed, wrong)
    mine, theirs = _seeded(subject, probe), _seeded(wrong, _for_entry(subject, probe))
    if not _alike(mine, theirs, _tolerance(subject, probe), probe):
        return False
    if show.endswith(".grad"):
        return _still_wrong(failed, wrong) and _gradients_agree(subject, wrong, probe)
    if show == "output" and isinstance(failed.problem.expected, np.ndarray) and theirs.error is None:
        if theirs.output.shape == failed.problem.expected.shape and not _differs_from(theirs.output, failed):
            return False
        return _still_wrong(failed, wrong)  # what was expected may be another of the function's own outputs
    return failed.prop.name == entry.killed_by or _still_wrong(failed, wrong)


def _fails_sooner(failed: Failed, wrong: Subject) -> bool:
    """Say whether an entry fails on a probe of dropout that the function passed before it failed."""
    if failed.prop.name != "dropout":
        return False
    earlier = itertools.takewhile(lambda p: not _same_call(p, failed.probe), failed.prop.probes(wrong))
    return any(_asked(failed._replace(probe=p), wrong) is not None for p in earlier)


def _same_call(probe: Probe, other: Probe) -> bool:
    return probe.options == other.options and probe.value.shape[-2:] == other.value.shape[-2:]


def _fails_alike(found: Problem | None, problem: Problem) -> bool:
    """Say whether two failures are of one kind and, to a factor of a hundred, of one size."""
    if found is None or found.show != problem.show or _words(found.detail) != _words(problem.detail):
        return False
    return size(problem) / 100 <= size(found) <= size(problem) * 100


def _words(detail: str) -> str:
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}", detail)


def _differs_from(output: np.ndarray, failed: Failed) -> bool:
    return bool(differs(output, failed.problem.expected, 1e-15).any())


def _still_wrong(failed: Failed, wrong: Subject) -> bool:
    return _asked(failed, wrong) is not None


def _asked(failed: Failed, wrong: Subject) -> Problem | None:
    """Ask an entry what the function failed."""
    try:
        return failed.prop.holds(wrong, failed.probe)
    except Exception:  # it refuses
        return None


def _gradients_agree(subject: Subject, wrong: Subject, probe: Probe) -> bool:
    """Compare the gradients of all arrays, or that there are none."""
    mine, theirs = (_gradients(s, probe) for s in (subject, wrong))
    if isinstance(mine, str) or isinstance(theirs, str):
        return mine == theirs
    return not any(differs(x, theirs[n], 1e-4 * (1 + np.abs(np.nan_to_num(x)).max())).any() for n, x in mine.items())


def _gradients(subject: Subject, probe: Probe) -> dict[str, np.ndarray] | str:
    try:
        return backward(subject, probe, subject.outcome(probe, gradients=True))
    except DoesNotHold as failure:
        return str(failure.problem.given)


def _gradient_agreement(subject: Subject, entry: Entry) -> float:
    """Give the share of gradient probes on which function and entry have the same gradients."""
    wrong = _as_subject(entry, subject)
    probes = [subject.fit(p) for prop in GRADIENT_PROPERTIES if not prop.untestable(subject)
              for p in prop.probes(subject) if p.key.size < 100]  # fmt: skip
    agreeing = [_gradients_agree(subject, wrong, p) for p in probes]
    return sum(agreeing) / max(len(agreeing), 1)


def _seeded(subject: Subject, probe: Probe) -> Outcome:
    subject.framework.seed(0)
    return subject.run(probe, watch=True)


def _agreement(subject: Subject, entry: Entry, probes: list[Probe], outcomes: list[Outcome]) -> Shares:
    """Give the shares of probes on which function and entry do the same."""
    wrong = _as_subject(entry, subject)
    telling, others = [], []
    for probe, mine in zip(probes, outcomes, strict=True):
        if mine.error is not None and probe.corner:
            continue
        theirs = _seeded(wrong, _for_entry(subject, probe))
        tolerance = _tolerance(subject, probe)
        right = _is_right(wrong, subject, probe, theirs, tolerance)
        (others if right else telling).append(_alike(mine, theirs, tolerance, probe))
    among = len(telling) / max(len(telling) + len(others), 1)
    return Shares(sum(telling) / len(telling) if telling else None, sum(others) / len(others) if others else 1.0, among)


def _is_right(wrong: Subject, subject: Subject, probe: Probe, theirs: Outcome, tolerance: np.ndarray) -> bool:
    answer = subject.expected(probe)
    right_output = theirs.error is None and theirs.output.shape == answer.output.shape
    if not right_output or theirs.dtype != probe.dtype or theirs.written:
        return False
    expected = np.where(answer.empty[..., None], theirs.output, answer.output)
    if differs(theirs.output, expected, tolerance).any():
        return False
    if theirs.weights is None:
        return True
    right = theirs.weights.shape == answer.weights.shape
    return right and not differs(theirs.weights, answer.weights, 1e-3).any()


def _alike(mine: Outcome, theirs: Outcome, tolerance: np.ndarray, probe: Probe) -> bool:
    """Compare two outcomes: error or not, output, dtype, weights, and what was written to."""
    if (mine.error is None) != (theirs.error is None):
        return False
    if mine.error is not None:
        return True
    if mine.output.shape != theirs.output.shape or mine.dtype != theirs.dtype or mine.written != theirs.written:
        return False
    if tolerance.shape[:-1] != mine.output.shape[:-1]:
        tolerance = np.max(tolerance, initial=0)
    largest = np.abs(theirs.output[np.isfinite(theirs.output)]).max(initial=0)
    rounding = 8 * EPSILON[probe.dtype] * largest  # what was expected may be an exact 0
    if differs(mine.output, theirs.output, 2 * tolerance + 1e-9 + rounding).any():
        return False
    if mine.weights is None or theirs.weights is None:
        asked = probe.options.get("return_weights", False)  # some give a tuple without being asked
        return not asked or (mine.weights is None) == (theirs.weights is None)
    if mine.weights.shape != theirs.weights.shape:
        return False
    return not differs(mine.weights, theirs.weights, 1e-3 + 2 * np.max(tolerance, initial=0)).any()


def _tolerance(subject: Subject, probe: Probe) -> np.ndarray:
    tolerance = subject.expected(probe).tolerance
    return np.where(np.isfinite(tolerance), tolerance, 1e-3)


def _as_subject(entry: Entry, subject: Subject) -> Subject:
    """Wrap an entry such that it takes the same probes: in the contract's own form."""
    wrong = _wrapped(entry.name, entry.changes, subject.framework.name)
    wrong.form, wrong.conventions = subject.form, subject.conventions
    return wrong.under(mask_true="attend", layout="BHLE")


@cache
def _wrapped(name: str, changes: tuple, framework: str) -> Subject:
    entry = replace(catalogue[name], changes=changes)
    function = entry.function()
    if entry.module:
        function.eval()
    return Subject(function, framework)


def _for_entry(subject: Subject, probe: Probe) -> Probe:
    """Write out the offset that bottom-right alignment stands for: the entries align top-left by themselves."""
    alignment = subject.conventions.alignment or subject.form.alignment
    return oracle.aligned(probe, alignment) if alignment == "bottom-right" else probe


def _fingerprint(subject: Subject) -> list[Probe]:
    """Take a few probes of every property that can be tested on the function."""
    probes: list[Probe] = []
    for prop in PROPERTIES:
        if prop.untestable(subject) or prop.name in (
            "gradients",
            "gradients of empty rows",
            "masked NaN",
            "repeatable",
        ):
            continue
        found = [p for p in prop.probes(subject) if p.dtype != "bfloat16" and p.query.size + p.key.size < 4000]
        found = [p for p in found if not p.options.get("dropout_p")]
        many = min(len(found), 60 if prop.name == "lengths" else 16)
        spread = {int(0.618034 * n * len(found)) % len(found) for n in range(many)}  # in no step with how they repeat
        probes += [subject.fit(found[n]) for n in sorted(spread)]
    return (
        probes
        if subject.conventions.empty_rows == "zero"
        else [p for p in probes if not subject.expected(p).empty.any()]
    )
