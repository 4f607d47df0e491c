"""What a property is, and the few ways in which properties compare."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from lib.verify.probe import Probe
from lib.verify.subject import DoesNotHold, Problem, Refusal, Subject

#: Pairs of query and key at which long probes end for a function that takes as many queries as keys only.
MOST_PAIRS = 300_000


def always(subject: Subject) -> str | None:
    """Apply to every function."""
    return None


@dataclass(frozen=True)
class Property:
    """One thing that attention must do, asked with probes from small to large.

    Attributes
    ----------
    name : str
    statement : str
        What holds, in one plain sentence.
    probes : function of a subject
        The calls to ask with, the simplest first.
    check : function of a subject and a probe
        Returns if the property holds there; raises DoesNotHold or Refusal.
    needs : tuple of str
        Options without which there is nothing to test.
    applies : function of a subject
        Gives the reason why there is nothing to test, or None.
    shrinks : bool
        Whether a smaller probe says the same; with too few numbers, shares are left to chance.
    """

    name: str
    statement: str
    probes: Callable[[Subject], Iterable[Probe]]
    check: Callable[[Subject, Probe], None]
    needs: tuple[str, ...] = ()
    applies: Callable[[Subject], str | None] = always
    shrinks: bool = True

    def untestable(self, subject: Subject) -> str | None:
        """Give the reason why this property cannot be tested on a function, or None."""
        for option in self.needs:
            if not subject.has(option):
                return subject.not_tested.get(option, f"no argument named {option}")
        return self.applies(subject)

    def holds(self, subject: Subject, probe: Probe) -> Problem | None:
        """Ask with one probe; give what is wrong, or None. A refusal passes through."""
        try:
            self.check(subject, probe)
        except DoesNotHold as failure:
            return failure.problem
        return None

    def judge(self, subject: Subject) -> tuple[Probe, Problem] | str | None:
        """Ask with every probe until one fails.

        Returns
        -------
        The probe and what is wrong; or None, where the property holds; or why nothing could be tested.
        """
        asked, refusals = 0, []
        for probe in self.probes(subject):
            probe = subject.fit(probe)
            if not subject.form.any_lengths and probe.L * probe.S > MOST_PAIRS:
                continue
            try:
                problem = self.holds(subject, probe)
            except Refusal as refusal:
                subject.refused.setdefault(refusal.corner, refusal.error)
                refusals.append(refusal)
                continue
            asked += 1
            if problem is not None:
                return probe, problem
        if not asked:
            return f"refused: {refusals[0]}" if refusals else "nothing to ask with"
        return None


def same(given: np.ndarray, expected: np.ndarray, tolerance: np.ndarray | float) -> bool:
    """Compare within a tolerance; NaN equals NaN, and infinity itself."""
    return not differs(given, expected, tolerance).any()


def differs(given: np.ndarray, expected: np.ndarray, tolerance: np.ndarray | float) -> np.ndarray:
    """Mark the entries that differ by more than a tolerance."""
    with np.errstate(invalid="ignore"):
        close = (np.abs(given - expected) <= tolerance) | (given == expected)
    return ~(close | (np.isnan(given) & np.isnan(expected)))


def require_same(
    probe: Probe,
    given: np.ndarray,
    expected: np.ndarray,
    tolerance: np.ndarray | float,
    detail: str = "",
    basis: str = "",
) -> None:
    """Raise DoesNotHold where an output differs from what is expected."""
    wrong = differs(given, expected, tolerance)
    if wrong.any():
        raise DoesNotHold(Problem(probe, expected, given, detail or where(given, expected, wrong), basis=basis))


def where(given: np.ndarray, expected: np.ndarray, wrong: np.ndarray) -> str:
    """Say in one sentence where two outputs differ."""
    if np.isnan(given[wrong]).any():
        return "NaN came out"
    if np.isinf(given[wrong]).any():
        return "infinity came out"
    rows = sorted({int(i) for i in np.nonzero(wrong)[-2]}) if wrong.ndim >= 2 else []
    off = np.abs(given - expected)[wrong].max()
    which = "every query" if len(rows) == wrong.shape[-2] else f"query {', '.join(map(str, rows[:5]))}"
    return f"{which} is off, by up to {off:.3g}"


def agrees_with_equation(subject: Subject, probe: Probe) -> None:
    """Compare a call with the equation; queries that may see nothing are left to another property."""
    answer = subject.expected(probe)
    given = subject.output(probe)
    expected = np.where(answer.empty[..., None], given, answer.output)
    require_same(probe, given, expected, answer.tolerance)


def alone(subject: Subject, probe: Probe, i: int, keys: np.ndarray) -> np.ndarray:
    """Give what the function itself gives for one query with some of the keys and no option that chooses; (..., Ev)."""
    call = probe.only_query(i, keys)
    if not subject.form.any_lengths:
        return subject.expected(call).output[..., 0, :]
    return subject.output(call)[..., 0, :]


def as_if_alone(subject: Subject, probe: Probe, why: str = "") -> None:
    """Ask that each query gives what it gives alone with the keys that it may see.

    The comparison is with the function itself, so that a mistake in the equation is not reported here again.
    """
    answer = subject.expected(probe)
    given = subject.output(probe)
    allowed = answer.allowed.reshape(-1, probe.L, probe.S)[0]  # these probes choose the same keys everywhere
    expected = given.copy()
    for i in range(probe.L):
        if allowed[i].any():
            expected[..., i, :] = alone(subject, probe, i, np.flatnonzero(allowed[i]))
    wrong = differs(given, expected, 2 * answer.tolerance)
    if wrong.any():
        i = int(np.nonzero(wrong)[-2][0])
        keys = ", ".join(map(str, np.flatnonzero(allowed[i])))
        detail = f"query {i} may see key {keys} and nothing else; alone with that, it gives something else"
        detail = f"{why}: {detail}" if why else detail
        basis = "what the function itself gives for each query alone with the keys that it may see"
        raise DoesNotHold(Problem(probe, expected, given, detail, basis=basis))


def leads(subject: Subject, *wanted: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Keep those leading axes that the function takes."""
    return (lead for lead in wanted if len(lead) + 2 in subject.form.axes)


def explicit_scale(subject: Subject, scale: float = 0.5) -> dict[str, float]:
    """Pass the scale where one can, so that a wrong default is reported once and not by every property."""
    return {"scale": scale} if subject.has("scale") else {}
