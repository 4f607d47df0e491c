"""An exercise of another kind: the answer is a test, and it is judged by what it catches.

The student's test takes an attention function and raises where that is wrong. It must pass for right attentions
(:mod:`lib.labs.right_ways`) and should fail for broken ones, which come from :data:`lib.verify.catalogue`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lib.labs.form import Call
from lib.labs.judging import a_kind, for_error, is_stub, shown, unfinished
from lib.labs.report import WRONG, Result, about_prints, indented, not_written, points, unusable, wrapped
from lib.labs.right_ways import RIGHT_WAYS, by_the_book
from lib.labs.running import Outcome, run, takes
from lib.verify import catalogue

OPTIONS = {"mask", "causal", "return_weights"}
USAGE = "attention takes query, key and value, then mask=, causal= and return_weights= by name"


class Asked(NamedTuple):
    """One call of attention that a test made."""

    query: np.ndarray
    key: np.ndarray
    mask: np.ndarray | None
    causal: bool

    @property
    def square(self) -> bool:
        """Whether there are as many queries as keys."""
        return self.query.shape[-2] == self.key.shape[-2]

    @property
    def scores(self) -> np.ndarray:
        """The scores (..., L, S)."""
        return self.query @ self.key.swapaxes(-1, -2) / np.sqrt(max(self.query.shape[-1], 1))


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a test did: with right attentions, with broken ones, and with two that are no attention at all.

    Attributes
    ----------
    alarms : tuple of (function, Outcome)
        Right attentions that the test fails for.
    alive : tuple of str
        Bugs that it passes for.
    asked : tuple of Asked
        The calls that it makes.
    values : tuple of array
        The values that it hands over, call by call.
    passes : frozenset of str
        Which of "zeros" (all results are 0) and "noise" (all are off by a few hundredths) it passes for.
    outcome : Outcome
        What came back from the test itself, for a right attention.
    refused : bool
        Whether a right attention raised, and not the test.
    """

    alarms: tuple[tuple[Callable, Outcome], ...]
    alive: tuple[str, ...]
    asked: tuple[Asked, ...]
    values: tuple[np.ndarray, ...]
    passes: frozenset[str]
    outcome: Outcome
    refused: bool

    def lives(self, *names: str) -> bool:
        """Say whether one of these bugs is alive."""
        return bool(set(names) & set(self.alive))

    @property
    def masks(self) -> list[np.ndarray]:
        """The masks that the test hands over."""
        return [np.asarray(call.mask) for call in self.asked if call.mask is not None]


@dataclass(frozen=True)
class Slip:
    """Something that tests of students lack.

    Attributes
    ----------
    name : str
    words : str
        What the test does or lacks, as a sentence.
    hint : str
        One hint that does not give the answer away.
    seen : callable
        Says of :class:`Evidence` whether this is it.
    """

    name: str
    words: str
    hint: str
    seen: Callable[[Evidence], Any]


@dataclass(frozen=True)
class Bug:
    """A broken attention from the catalogue, and a hint for whoever has not caught it."""

    name: str
    hint: str

    @property
    def wrong(self) -> str:
        """What is wrong with it."""
        return catalogue[self.name].wrong

    def function(self) -> Callable:
        """Make it."""
        return catalogue[self.name].function()


@dataclass(frozen=True, eq=False)
class Trial:
    """A test for the student to write.

    Attributes
    ----------
    name : str
        The test's name, as in the stub.
    bugs : tuple of Bug
        From easy to hard; each is worth a point.
    slips : tuple of Slip
        Of two that fit, the earlier one is named.
    """

    name: str
    bugs: tuple[Bug, ...]
    slips: tuple[Slip, ...]

    @property
    def points(self) -> int:
        """What catching every bug is worth."""
        return len(self.bugs)

    def judge(self, fn: Callable, seed: int = 0) -> Result:
        """Run a test against right and broken attentions; another seed takes them in another order."""
        refusal = self.refusal(fn)
        if refusal:
            return refusal
        ways, bugs = shuffled(RIGHT_WAYS, seed), shuffled(self.bugs, seed)
        tried = [(way, run(fn, call_with(way))) for way in ways]
        stub = next((o for _, o in tried if o.raised and o.raised.kind == "NotImplementedError"), None)
        if stub:
            return unfinished(self, fn, stub)
        hanging = next((way.__name__ for way, outcome in tried if outcome.hangs), None)
        caught = {bug.name: run(fn, call_with(bug.function())) for bug in bugs} if not hanging else {}
        hanging = hanging or next(("a broken attention" for o in caught.values() if o.hangs), None)
        if hanging:
            return self.hung(hanging)
        alive = tuple(bug.name for bug in self.bugs if not caught[bug.name].raised)
        evidence = gather(fn, tuple((way, o) for way, o in tried if o.raised), alive)
        if evidence.alarms:
            return self.alarm(evidence)
        return self.board(evidence) if alive else self.right(evidence, seed)

    def refusal(self, fn: Any) -> Result | None:
        """Say what keeps the test from being run at all, if something does."""
        if not callable(fn):
            why = f"The check needs the test itself, and was given {a_kind(fn)}. "
            return unusable(self, "no function", f"{why}Write {self.name}, without parentheses behind it.")
        if not takes(fn, 1):
            why = f"{self.name} must be callable as {self.name}(attention), and yours takes {shown(fn)}."
            return unusable(self, "signature", why)
        return not_written(self) if is_stub(fn) else None

    # What is said

    def right(self, evidence: Evidence, seed: int) -> Result:
        """Say in two lines what was caught."""
        every = f"{len(self.bugs)} of {len(self.bugs)} bugs caught"
        text = f"{self.name}: right. {points(self.points, self.points)}.\n"
        text += f"{every}, and no false alarm at {len(RIGHT_WAYS)} right attentions."
        if seed:
            text = f"{self.name}: right in another order, too (seed {seed})."
        text = "\n".join([text, *about_prints(evidence.outcome.printed)])
        return Result(self.name, "right", text, self.points, self.points)

    def alarm(self, evidence: Evidence) -> Result:
        """Say which right attention the test fails for, and with which words."""
        way, outcome = evidence.alarms[0]
        name, words, hint = diagnose_alarm(self, evidence)
        others = len(evidence.alarms) - 1
        lines = [f"{self.name}: not right yet. A false alarm: {points(0, self.points)}.", ""]
        lines += ["Your test fails for an attention that is right:", *indented(pasted(self, way).code(self.name))]
        lines += wrapped(f"({way.__name__}: {way.__doc__}{f' Your test fails for {others} more.' if others else ''})")
        *place, error = f"It stops in {outcome.raised}".split("\n")
        lines += [*place, *wrapped(error)]
        lines += ["", *wrapped(f"Looks like: {words}")] if words else []
        lines += ["", *wrapped(f"Hint: {hint}")]
        text = "\n".join(lines + about_prints(outcome.printed))
        return Result(self.name, WRONG, text, 0, self.points, name, "no false alarm")

    def board(self, evidence: Evidence) -> Result:
        """Show which bugs are caught, and which still live, each with a hint."""
        caught = [bug for bug in self.bugs if bug.name not in evidence.alive]
        slip = next((slip for slip in (*EVERYWHERE, *self.slips, *AT_LAST) if slip.seen(evidence)), None)
        so_far = points(len(caught), self.points)
        lines = [f"{self.name}: {len(caught)} of {len(self.bugs)} bugs caught, no false alarm. {so_far} so far."]
        if caught:
            lines += ["", *wrapped(f"Caught: {', '.join(bug.name for bug in caught)}.")]
        lines += ["", "Still alive:"]
        for number, bug in enumerate(self.bugs, start=1):
            lines += ["  " + line for line in wrapped(f"bug {number}: {bug.hint}")] if bug not in caught else []
        if slip:
            lines += ["", *wrapped(f"Looks like: {slip.words}"), "", *wrapped(f"Hint: {slip.hint}")]
        text = "\n".join(lines + about_prints(evidence.outcome.printed))
        mistake = slip.name if slip else None
        return Result(self.name, WRONG, text, len(caught), self.points, mistake, evidence.alive[0])

    def hung(self, where: str) -> Result:
        """Say that the test does not come back."""
        lines = [f"{self.name}: not right yet.", ""]
        lines += wrapped(f"Your test does not come back, and was cut off after some seconds, with {where}.")
        lines += ["", *wrapped("Hint: does every loop end, whatever attention gives back? Print its counter.")]
        return Result(self.name, WRONG, "\n".join(lines), 0, self.points, "hangs", "comes back")


def call_with(fn: Callable) -> Call:
    """Hand an attention over in a wrapper, so that nothing but its results tells one from another."""

    def attention(*arrays: Any, **options: Any) -> Any:
        if len(arrays) != 3 or not set(options) <= OPTIONS:
            raise TypeError(USAGE)
        return fn(*arrays, **options)

    return Call({"attention": attention})


def pasted(trial: Trial, way: Callable) -> Call:
    """Write the call that a student can paste."""
    name = way.__name__
    return Call({"attention": way}, {"attention": name}, f"from lib.labs.right_ways import {name}")


def shuffled(things: Iterable, seed: int) -> list:
    """Give things in their order, or in another one for another seed."""
    things = list(things)
    return [things[n] for n in np.random.default_rng(seed).permutation(len(things))] if seed else things


def gather(fn: Callable, alarms: tuple, alive: tuple[str, ...]) -> Evidence:
    """Look at the calls that a test makes, and at what it makes of results that are plainly wrong."""
    asked, values, errors = [], [], []

    def watched(query: Any, key: Any, value: Any, mask: Any = None, causal: bool = False, **others: Any) -> Any:
        if all(isinstance(x, np.ndarray) and x.ndim >= 2 for x in (query, key, value)):
            asked.append(Asked(query.copy(), key.copy(), None if mask is None else np.array(mask), bool(causal)))
            values.append(value.copy())
        try:
            return by_the_book(query, key, value, mask=mask, causal=causal, **others)
        except (TypeError, ValueError) as error:
            errors.append(error)
            raise

    outcome = run(fn, call_with(watched))
    refused = bool(errors) or bool(outcome.raised and outcome.raised.text == USAGE)
    passes = {name for name, off in (("zeros", zeros), ("noise", noise)) if not run(fn, call_with(off)).raised}
    return Evidence(alarms, alive, tuple(asked), tuple(values), frozenset(passes), outcome, refused)


def spoilt(results: Any, spoil: Callable) -> Any:
    """Change an output, or output and weights."""
    return tuple(spoil(x) for x in results) if isinstance(results, tuple) else spoil(results)


def zeros(*arrays: Any, **options: Any) -> Any:
    """Give nothing but zeros, in the right shape."""
    return spoilt(by_the_book(*arrays, **options), np.zeros_like)


def noise(*arrays: Any, **options: Any) -> Any:
    """Give results that are off by a few hundredths, here more and there less."""

    def spoil(x: np.ndarray) -> np.ndarray:
        return x + 0.03 * np.cos(np.arange(x.size, dtype=x.dtype)).reshape(x.shape)

    return spoilt(by_the_book(*arrays, **options), spoil)


# False alarms


def diagnose_alarm(trial: Trial, evidence: Evidence) -> tuple[str | None, str, str]:
    """Say what a false alarm looks like: (name, words, hint)."""
    raised = evidence.alarms[0][1].raised
    if raised.kind != "AssertionError":
        if evidence.refused:
            return "refused", "your test asks what attention does not take; read the error's words.", REFUSED
        return "raises", "", for_error(raised.kind, raised.text)
    content = [bug for bug in trial.bugs if bug.name in evidence.alive]
    if len(evidence.alarms) < len(RIGHT_WAYS) or exact(raised.code or ""):
        return "too_exact", "your test asks for every digit, and right attentions differ in the last ones.", EXACT
    if content:
        return "expects_a_bug", f"your test is content with a broken attention. {content[0].wrong}", EXPECTS
    return "wrong_expectation", "what your test expects is not what attention gives.", EXPECTATION


def exact(code: str) -> bool:
    """Say whether a line compares all digits; what is hidden is 0 exactly, so comparing with 0 is fine."""
    code = re.sub(r"[!=]= 0(?![.\d])", "", code)
    shapes = any(word in code for word in (".shape", ".dtype", "len(", ".ndim"))
    return not shapes and any(word in code for word in ("==", "array_equal", "!="))


REFUSED = "Print what you hand over: floating numbers, a boolean mask, as many keys as queries where causal is asked."
EXPECTS = "Work your expectation out on paper, for two keys. Which step of the equation is another there?"
EXACT = "What is 0.1 + 0.2 == 0.3? Which function of NumPy compares two arrays and forgives rounding?"
EXPECTATION = "Print what came and what you expected, side by side. Which of the two is right? Check it by hand."

# What tests of any kind lack

EVERYWHERE = (
    Slip(
        "never_calls",
        "your test never calls attention.",
        "Which line gives the function something to work on?",
        lambda e: not e.asked,
    ),
    Slip(
        "gives_back_a_verdict",
        "your test gives back its verdict. A test speaks by raising: what it gives back, nobody reads.",
        "Which statement raises where a condition is False?",
        lambda e: e.outcome.given is not None and {"zeros", "noise"} <= e.passes,
    ),
    Slip(
        "prints_a_verdict",
        "your test prints, and raises for nothing. Nobody reads the prints of a thousand tests.",
        "Which statement raises where a condition is False?",
        lambda e: e.outcome.printed and {"zeros", "noise"} <= e.passes,
    ),
    Slip(
        "numbers_not_looked_at",
        "your test passes for an attention that gives back nothing but 0: it does not look at the numbers.",
        "Take two keys with equal scores and the values 2 and 8. What must come out?",
        lambda e: {"zeros", "noise"} <= e.passes,
    ),
)
AT_LAST = (
    Slip(
        "too_loose",
        "your test forgives errors of a few hundredths.",
        "How large is rounding, and how much does your comparison allow?",
        lambda e: "noise" in e.passes,
    ),
)


# All tests together


def try_all(*tests: Callable, of: Iterable[Trial]) -> tuple[np.ndarray, list[str], list[str]]:
    """Run every test against every bug.

    Parameters
    ----------
    tests : callables
        A test that is not written yet, or raises a false alarm, catches nothing.
    of : iterable of Trial
        Whose bugs.

    Returns
    -------
    table : boolean array (bugs, tests)
        True where a test catches a bug.
    bugs : list of str
        Names of those caught by any test; the others keep theirs to themselves.
    tests : list of str
    """
    bugs = {f"{trial.name} {n}": bug for trial in of for n, bug in enumerate(trial.bugs, start=1)}
    table = np.zeros((len(bugs), len(tests)), bool)
    for column, test in enumerate(tests):
        if is_stub(test) or any(reacts(test, way) for way in RIGHT_WAYS):
            continue
        table[:, column] = [reacts(test, bug.function()) for bug in bugs.values()]
    names = [
        bug.name if row.any() else f"{number} (alive)" for (number, bug), row in zip(bugs.items(), table, strict=True)
    ]
    return table, names, [getattr(test, "__name__", "test") for test in tests]


def reacts(test: Callable, attention: Callable) -> bool:
    """Say whether a test fails for an attention, or does not come back."""
    outcome = run(test, call_with(attention))
    return outcome.hangs or outcome.raised is not None
