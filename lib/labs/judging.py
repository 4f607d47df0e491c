"""Judge an answer: ask every property, make the first failure small, and name the mistake."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from lib.labs.form import Call, Exercise, Mistake, Property
from lib.labs.report import Result, hung, not_written, right, unusable, wrong
from lib.labs.running import Outcome, run, takes

TRIES = 200  # how many smaller calls are asked for one failure
NEARLY = 0.75  # the share of telling calls on which a mistake must do what the answer does
HERE = 0.85  # how much the first property that fails counts in that share
TOLERANCE = {2: 1e-2, 4: 1e-4, 8: 1e-8}  # by the bytes of a floating number


class Problem(NamedTuple):
    """What is wrong with an outcome."""

    kind: str  # raises, nothing, kind, count, shape, dtype, nan, values, writes
    detail: str


class Found(NamedTuple):
    """The failure that is shown: the smallest call of the first property that fails."""

    prop: Property
    call: Call
    expected: Any
    outcome: Outcome
    problem: Problem


def judge(exercise: Exercise, fn: Callable, seed: int = 0) -> Result:
    """Judge an answer.

    Parameters
    ----------
    exercise : Exercise
    fn : callable
        What the student wrote.
    seed : int
        Another seed asks with other numbers.

    Returns
    -------
    Result
    """
    names = list(exercise.properties[0].calls(np.random.default_rng(0))[0].arguments)
    if not callable(fn):
        return unusable(
            exercise,
            "no function",
            f"The check needs the function itself, and was given {a_kind(fn)}. "
            f"Write {exercise.name}, without parentheses behind it.",
        )
    if not takes(fn, len(names)):
        text = f"{exercise.name} must be callable as {exercise.name}({', '.join(names)}), and yours takes {shown(fn)}."
        return unusable(exercise, "signature", text)
    if is_stub(fn):
        return not_written(exercise)
    first = exercise.asked(seed)[0][1][0]
    torch = wants_tensors(fn, first)
    outcomes: list[tuple[Property, Call, Outcome]] = []
    for prop, calls in exercise.asked(seed):
        for call in calls:
            outcome = run(fn, call, torch)
            if outcome.hangs:
                return hung(exercise, prop, call)
            if outcome.raised and outcome.raised.kind == "NotImplementedError" and not outcomes:
                return unfinished(exercise, fn, outcome)
            outcomes.append((prop, call, outcome))
    return verdict(exercise, fn, outcomes, torch, seed)


def verdict(exercise: Exercise, fn: Callable, outcomes: list, torch: bool, seed: int) -> Result:
    """Say what the outcomes come to."""
    failing: dict[str, tuple[Property, Call, Outcome, Problem]] = {}
    for prop, call, outcome in outcomes:
        if prop.name in failing:
            continue
        problem = what_is_wrong(exercise, prop, exercise.right(*call.copies()), outcome)
        if problem:
            failing[prop.name] = (prop, call, outcome, problem)
    holding = [prop for prop in exercise.properties if prop.name not in failing]
    printed = sum(outcome.printed for *_, outcome in outcomes)
    if not failing:
        return right(exercise, len(outcomes), printed, seed)
    prop, call, outcome, problem = next(iter(failing.values()))
    found = shrink(exercise, fn, torch, prop, call, outcome, problem)
    name, words, hint = diagnose(exercise, found, outcomes, seed)
    earned = sum(p.points for p in holding) if exercise.properties[0] in holding else 0
    return wrong(exercise, found, (name, words, hint), holding, earned, printed)


# What is wrong


def what_is_wrong(exercise: Exercise, prop: Property, expected: Any, outcome: Outcome) -> Problem | None:
    """Compare an outcome with what a right answer gives."""
    if outcome.raised:
        return Problem("raises", str(outcome.raised))
    if prop.untouched:
        names = " and ".join(outcome.written)
        return Problem("writes", f"{names} changed during the call") if outcome.written else None
    given = outcome.given
    if given is None:
        return Problem("nothing", "None came back")
    if len(exercise.returns) == 1:
        return unlike(expected, given, exercise.returns[0])
    wanted = " and ".join(exercise.returns)
    if not isinstance(given, tuple | list):
        return Problem("count", f"one thing came back, {a_kind(given)}; wanted {len(expected)}: {wanted}")
    if len(given) != len(expected):
        return Problem("count", f"{len(given)} things came back, wanted {len(expected)}: {wanted}")
    problems = (unlike(e, g, words) for e, g, words in zip(expected, given, exercise.returns, strict=True))
    return next((problem for problem in problems if problem), None)


def unlike(expected: Any, given: Any, words: str) -> Problem | None:
    """Say how one result differs from what it should be."""
    if isinstance(expected, bool):
        if not isinstance(given, bool | np.bool_) and not (np.ndim(given) == 0 and np.asarray(given).dtype == bool):
            return Problem("kind", f"{a_kind(given)} came back, wanted True or False")
        return Problem("values", "it is the other way round") if bool(given) != expected else None
    a_number = np.ndim(expected) == 0 and isinstance(given, int | float)
    if not isinstance(given, np.ndarray | np.generic) and not a_number:
        return Problem("kind", f"{a_kind(given)} came back, wanted an array: {words}")
    given = np.asarray(given)
    if given.shape != np.shape(expected):
        return Problem("shape", f"{words} has shape {given.shape}, wanted {np.shape(expected)}")
    if expected.dtype == bool:
        if given.dtype != bool:
            return Problem("dtype", f"{words} has dtype {given.dtype}, wanted bool")
        return None if np.array_equal(expected, given) else Problem("values", f"{words} is another")
    if given.dtype.kind not in "fiub":
        return Problem("dtype", f"{words} has dtype {given.dtype}, wanted numbers")
    if (np.isnan(given) & ~np.isnan(expected)).any():
        return Problem("nan", f"{words} holds NaN")
    return None if close(expected, given) else Problem("values", f"{words} differs")


def close(one: Any, other: Any) -> bool:
    """Compare two arrays as closely as the coarser dtype allows; NaN equals NaN."""
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        return False
    coarse = max(TOLERANCE.get(x.dtype.itemsize, 1e-8) if x.dtype.kind == "f" else 1e-8 for x in (one, other))
    with np.errstate(all="ignore"):
        size = np.abs(one, where=np.isfinite(one), out=np.zeros(one.shape)).max(initial=1.0)
    return bool(np.allclose(one.astype(float), other.astype(float), rtol=0, atol=coarse * size, equal_nan=True))


def a_kind(thing: Any) -> str:
    """Name a kind of thing, with its shape where it has one."""
    if thing is None:
        return "None"
    if isinstance(thing, np.ndarray):
        return f"an array of shape {thing.shape}"
    words = {"list": "a list", "tuple": f"a tuple of {len(thing)}" if isinstance(thing, tuple) else ""}
    return words.get(type(thing).__name__) or f"a {type(thing).__name__}"


# How small it can be


def shrink(
    exercise: Exercise, fn: Callable, torch: bool, prop: Property, call: Call, outcome: Outcome, problem: Problem
) -> Found:
    """Make the call smaller while the property fails in the same way."""
    tries, progress = TRIES, True
    while progress and tries:
        progress = False
        for smaller in exercise.smaller(call):
            tries -= 1
            if not tries:
                break
            expected, again = exercise.right(*smaller.copies()), run(fn, smaller, torch)
            found = None if again.hangs else what_is_wrong(exercise, prop, expected, again)
            if found and found.kind == problem.kind and visible(exercise, expected, again, found):
                call, outcome, problem, progress = smaller, again, found, True
                break
    return Found(prop, call, exercise.right(*call.copies()), outcome, problem)


def visible(exercise: Exercise, expected: Any, outcome: Outcome, problem: Problem) -> bool:
    """Say whether the difference can be seen in four decimals."""
    if problem.kind != "values":
        return True
    pairs = zip(expected, outcome.given, strict=True) if len(exercise.returns) > 1 else [(expected, outcome.given)]
    gaps = [np.abs(np.asarray(e, float) - np.asarray(g, float)) for e, g in pairs]
    return any(np.nan_to_num(gap, nan=np.inf).max(initial=0) > 0.01 for gap in gaps)


# Which mistake it is


def diagnose(exercise: Exercise, found: Found, outcomes: list, seed: int) -> tuple[str | None, str, str]:
    """Name the mistake: (name, words, hint); no name where no known mistake matches."""
    kind, prop = found.problem.kind, found.prop
    if kind == "nothing":
        if found.outcome.printed:
            return "prints", "your function prints its result and gives nothing back.", RETURN
        return "forgets_to_return", "your function computes something and gives nothing back.", RETURN
    best = most_alike(exercise, outcomes, prop, seed)
    if best is not None:
        return best.name, best.words, best.hint
    written = {name: None for *_, outcome in outcomes for name in outcome.written}
    if kind == "writes" or (written and kind == "values"):
        names = " and ".join(written)
        return "writes", f"your function changes {names}, which belongs to whoever calls it.", WRITES
    if kind in ("kind", "count"):
        return kind, "", LIST if found.problem.detail.startswith("a list") else RETURNS
    if is_constant(exercise, outcomes):
        return "hard_coded", "your function gives the same answer whatever it is given.", HARD_CODED
    if kind == "raises":
        return "raises", "", for_error(found.outcome.raised.kind, found.outcome.raised.text)
    if kind == "shape":
        return "shape", "", SHAPE
    if kind == "dtype" and found.problem.detail.endswith("wanted bool"):
        return "dtype", "", BOOLEANS
    return None, "", prop.hint


RETURN = "Which word hands a result to whoever called the function?"
RETURNS = "Look at the line with `return`, and at the docstring's Returns."
LIST = "Which function of NumPy makes an array of a list? Give back what it makes."
BOOLEANS = (
    "What is the dtype of a comparison such as j <= i? An array to be filled can have it from the start: dtype=bool."
)
WRITES = "Operators such as += and assignments such as x[...] = write into the array that came in. Work on a new one."
HARD_CODED = "Does every argument take part in what you compute? Numbers of the example have no place in the function."
TRUTH = (
    "`if`, `and`, `or`, `not`, `assert` and a chain such as a <= b <= c want one answer, and an array holds one for "
    "each entry. Entry by entry: & and |, with each comparison in brackets, or np.where. One answer for all: .all()."
)
READ = "Read the error's last line: what does it say, and about which value? Print that value just before."
RAISES = {
    "ValueError": "Print the shape of every array in that line. Do they fit the operation?",
    "IndexError": "Print the shape of the array in that line. Do that axis and that position exist?",
    "AxisError": "Print the shape of the array in that line. Does it have that axis?",
    "NameError": "Where does that name get its value? A letter of the page, such as E, has none until you give it one; "
    "a function of another notebook has to be copied into this one. Or is it a slip of the keyboard?",
    "OverflowError": "A number grew too large there. Which one went in, and what could be subtracted from it first?",
    "TypeError": "Print the type of everything in that line. Which one is not what you think?",
    "AttributeError": "Print the type of what stands before the dot. Does it have a part of that name?",
}
SHAPE = "Write the shape behind every line of your function, as a comment. Where does it stop being what you want?"


def for_error(kind: str, text: str) -> str:
    """Give the hint for an error by its kind, and by its words where these say more."""
    return TRUTH if "truth value of an array" in text else RAISES.get(kind, READ)


def most_alike(exercise: Exercise, outcomes: list, first: Property, seed: int) -> Mistake | None:
    """Find the known mistake that does what the answer does where the mistake shows.

    What happens at the first property that fails counts most: a second mistake may show elsewhere.
    """
    best, best_share = None, 0.0
    for mistake, theirs in known_outcomes(exercise, seed):
        here, everywhere, without_error = [], [], []
        for (prop, _, mine), (their, shows) in zip(outcomes, theirs, strict=True):
            agrees = alike(mine, their)
            if shows:
                everywhere.append(agrees)
                here += [agrees] if prop is first else []
                without_error += [] if their.raised else [agrees]
            elif prop is first and not agrees:  # wrong where the known mistake is right
                here.append(False)
        if without_error and not any(without_error):
            continue  # an error of the same kind alone says little
        share = HERE * mean(here) + (1 - HERE) * mean(everywhere)
        if share > best_share + 1e-9:
            best, best_share = mistake, share
    return best if best_share >= NEARLY else None


def mean(agreed: list[bool]) -> float:
    """Give the share of True; 0 of nothing."""
    return sum(agreed) / len(agreed) if agreed else 0.0


@cache
def known_outcomes(exercise: Exercise, seed: int) -> list[tuple[Mistake, list[tuple[Outcome, bool]]]]:
    """Run every known mistake on every call, and say where it shows."""
    calls = [(prop, call) for prop, calls in exercise.asked(seed) for call in calls]
    expected = [exercise.right(*call.copies()) for _, call in calls]
    found = []
    for mistake in exercise.mistakes:
        done = [run(mistake.does, call, patience=100) for _, call in calls]
        shows = [
            what_is_wrong(exercise, prop, right, outcome) is not None
            for (prop, _), right, outcome in zip(calls, expected, done, strict=True)
        ]
        found.append((mistake, list(zip(done, shows, strict=True))))
    return found


def alike(one: Outcome, other: Outcome) -> bool:
    """Say whether two functions did the same."""
    if one.raised or other.raised:
        return bool(one.raised and other.raised and one.raised.kind == other.raised.kind)
    if one.written != other.written:
        return False
    pairs = [(one.given, other.given)]
    if isinstance(one.given, tuple | list) and isinstance(other.given, tuple | list):
        if len(one.given) != len(other.given):
            return False
        pairs = list(zip(one.given, other.given, strict=True))
    if any((a is None) != (b is None) for a, b in pairs):
        return False
    try:
        return all(a is b or (is_boolean(a) == is_boolean(b) and close(a, b)) for a, b in pairs)
    except (TypeError, ValueError):
        return False


def is_boolean(thing: Any) -> bool:
    """Say whether a result is True and False throughout."""
    return np.asarray(thing).dtype == bool


def is_constant(exercise: Exercise, outcomes: list) -> bool:
    """Say whether every call gave the same, although different things were asked."""
    given = [outcome for *_, outcome in outcomes if not outcome.raised]
    return len(given) == len(outcomes) > 1 and all(alike(given[0], other) for other in given[1:])


# What is not written yet


def is_stub(fn: Callable) -> bool:
    """Say whether a function has no body beyond its docstring, `pass` or `...`."""
    body = body_of(fn)
    return body is not None and all(is_nothing(statement) for statement in body)


def body_of(fn: Callable) -> list[ast.stmt] | None:
    """Give a function's statements without its docstring, or None where there is no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(fn)))
    except (OSError, TypeError, SyntaxError):
        return None
    found = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)
    if found is None:
        return None
    first = found.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return found.body[1:] if documented and isinstance(first.value.value, str) else found.body


def is_nothing(statement: ast.stmt) -> bool:
    """Say whether a statement is `pass`, `...` or the stub's `raise NotImplementedError()`."""
    if isinstance(statement, ast.Raise):
        return "NotImplementedError" in ast.dump(statement)
    ellipsis = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass) or (ellipsis and statement.value.value is ...)


def unfinished(exercise: Exercise, fn: Callable, outcome: Outcome) -> Result:
    """Say which function is still a stub: this one, or one that it calls."""
    where = outcome.raised.function
    if where not in (None, getattr(fn, "__name__", None)):
        return not_written(exercise, f"It calls {where}, which is not written yet.")
    if body_of(fn):
        text = "There is code; now delete the line with `raise`."
        return not_written(exercise, text)
    return not_written(exercise)


def wants_tensors(fn: Callable, call: Call) -> bool:
    """Say whether a function takes torch's tensors and no NumPy arrays."""
    if "torch" not in sys.modules:
        return False
    outcome = run(fn, call)
    return bool(outcome.raised) and run(fn, call, torch=True).raised is None


def shown(fn: Callable) -> str:
    """Write a function's parameters down."""
    names = list(inspect.signature(fn).parameters)
    return f"({', '.join(names)})" if names else "no arguments"
