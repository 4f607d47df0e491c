"""The labs' checkers: what is wrong with an answer, in the student's words.

``check(name, fn)``
    Judge an answer and print what came of it. Under nbgrader it gives points, too.
``show(fn, *arguments)``
    Call the student's function and print what it gives; calm where it is not written yet.
``caught(*tests)``
    Which broken attentions each of the student's own tests catches.
``EXERCISES``
    Every exercise by its name.
"""

import os
from collections.abc import Callable
from typing import Any

from lib.labs import masks_and_leaks, softmax_and_attention, write_the_tests
from lib.labs.form import Call, Checkable, Exercise, Mistake, Property
from lib.labs.judging import is_stub
from lib.labs.report import Result, value
from lib.labs.running import run
from lib.labs.trials import Trial, try_all

#: Every exercise by its name.
EXERCISES: dict[str, Checkable] = {
    exercise.name: exercise
    for lab in (softmax_and_attention, masks_and_leaks, write_the_tests)
    for exercise in lab.EXERCISES
}

__all__ = [
    "EXERCISES",
    "Call",
    "Checkable",
    "Exercise",
    "Mistake",
    "Property",
    "Result",
    "Trial",
    "caught",
    "check",
    "grading",
    "show",
]


def grading() -> bool:
    """Say whether nbgrader runs this notebook, to grade or to validate it: it sets NBGRADER_EXECUTION."""
    return os.environ.get("NBGRADER_EXECUTION") in ("autograde", "validate")


def check(name: str, fn: Callable, seed: int = 0) -> float | None:
    """Judge an answer, and print what came of it.

    Parameters
    ----------
    name : str
        The exercise.
    fn : callable
        The student's function.
    seed : int
        Another seed asks with other numbers: for hidden tests.

    Returns
    -------
    None or float
        Nothing, so that a notebook shows the text alone. Under nbgrader: the points, which nbgrader reads from the
        cell's last value.

    Raises
    ------
    AssertionError
        Under nbgrader, where the answer gets no points.
    ValueError
        If there is no such exercise.

    Examples
    --------
    >>> def softmax(scores):
    ...     raise NotImplementedError()
    >>> check("softmax", softmax)
    softmax: not written yet. Fill the gap in the cell above, run it, then this one.
    """
    if name not in EXERCISES:
        raise ValueError(f"name must be an exercise, one of {', '.join(EXERCISES)}; got {name!r}")
    result = EXERCISES[name].judge(fn, seed)
    print(result.text)
    if not grading():
        return None
    if result.points <= 0:
        raise AssertionError(result.text)
    return result.points


def show(fn: Callable, *arguments: Any) -> None:
    """Call the student's function and print what it gives.

    Where it is not written yet, it says so, and where it raises, it names the student's line: no traceback.

    Examples
    --------
    >>> import numpy as np
    >>> show(np.exp, np.array([0.0]))
    exp gives [1.]
    """
    name = getattr(fn, "__name__", "the function")
    functions = [argument.__name__ for argument in arguments if hasattr(argument, "__name__")]
    if is_stub(fn):
        print(f"{name}: not written yet.")
        return
    outcome = run(fn, Call({str(n): argument for n, argument in enumerate(arguments)}))
    if outcome.hangs:
        print(f"{name} does not come back, and was cut off.")
    elif outcome.raised and outcome.raised.kind == "NotImplementedError":
        print(f"{outcome.raised.function or name}: not written yet.")
    elif outcome.raised:
        print(f"{name} stops in {outcome.raised}")
    else:
        name += f"({functions[0]}, …)" if functions else ""
        text = value(outcome.given)
        print(f"{name} gives {text}" if "\n" not in text else f"{name} gives\n{text}")


def caught(*tests: Callable) -> tuple:
    """Run each of the student's tests against every broken attention of lab 3.

    Returns
    -------
    table : boolean array (bugs, tests)
        True where a test catches a bug. A test that is not written yet catches none, nor one that cries wolf.
    bugs : list of str
        The names of those that are caught; the others keep theirs to themselves.
    tests : list of str

    Examples
    --------
    >>> def test_nothing(attention):
    ...     pass
    >>> table, bugs, tests = caught(test_nothing)
    >>> int(table.sum()), bugs[0], tests
    (0, 'test_equation 1 (alive)', ['test_nothing'])
    """
    return try_all(*tests, of=write_the_tests.EXERCISES)
