"""What a check says, in the student's words."""

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.labs.form import Call, Property

WIDTH = 84  # characters that fit beside a page's sidebars
RIGHT, WRONG, NOT_WRITTEN = "right", "wrong", "not written"


@dataclass(frozen=True)
class Result:
    """What came of a check.

    Attributes
    ----------
    name : str
        The exercise's.
    state : str
        "right", "wrong" or "not written".
    text : str
        What the student reads.
    points, out_of : int
        What nbgrader is told.
    mistake : str or None
        The known mistake that the answer makes.
    prop : str or None
        The property that fails first.
    """

    name: str
    state: str
    text: str
    points: float
    out_of: float
    mistake: str | None = None
    prop: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the answer is right."""
        return self.state == RIGHT

    def __str__(self) -> str:
        return self.text


def right(exercise: Any, calls: int, printed: int = 0, seed: int = 0) -> Result:
    """Say in two lines what was checked; in one for the other numbers of a hidden test."""
    names = ", ".join(prop.name for prop in exercise.properties)
    text = [
        f"{exercise.name}: right. {points(exercise.points, exercise.points)}.",
        f"Checked with {calls} calls: {names}.",
    ]
    if seed:
        text = [f"{exercise.name}: right with other numbers, too (seed {seed})."]
    return Result(exercise.name, RIGHT, "\n".join(text + about_prints(printed)), exercise.points, exercise.points)


def not_written(exercise: Any, why: str = "") -> Result:
    """Say calmly that there is nothing to check yet."""
    what = why or "Fill the gap in the cell above, run it, then this one."
    text = "\n".join(wrapped(f"{exercise.name}: not written yet. {what}"))
    return Result(exercise.name, NOT_WRITTEN, text, 0, exercise.points)


def unusable(exercise: Any, mistake: str, why: str) -> Result:
    """Say that there is nothing that could be called."""
    text = "\n".join(wrapped(f"{exercise.name}: not right yet. {why}"))
    return Result(exercise.name, WRONG, text, 0, exercise.points, mistake)


def hung(exercise: Any, prop: Property, call: Call) -> Result:
    """Say which call did not come back."""
    lines = [
        f"{exercise.name}: not right yet.",
        "",
        "It does not come back, and was cut off after some seconds, at this call:",
        *indented(call.code(exercise.name)),
        "",
        *wrapped("Hint: does every loop end? Print its counter, and call your function with this example."),
    ]
    return Result(exercise.name, WRONG, "\n".join(lines), 0, exercise.points, "hangs", prop.name)


def wrong(exercise: Any, found: Any, diagnosis: tuple, holding: list, earned: float, printed: int) -> Result:
    """Say which property fails, on which call, what was expected and given, which mistake it may be, and one hint."""
    name, words, hint = diagnosis
    lines = [f"{exercise.name}: not right yet. {points(earned, exercise.points)} so far.", ""]
    lines += wrapped(f"What must hold: {found.prop.statement}")
    lines += ["", "The smallest call found that shows it:", *indented(found.call.code(exercise.name))]
    lines += comparison(exercise, found)
    if words:
        lines += ["", *wrapped(f"Looks like: {words}")]
    lines += ["", *wrapped(f"Hint: {hint}")]
    if holding:
        lines += ["", *wrapped(f"Holds already: {', '.join(prop.name for prop in holding)}.")]
    text = "\n".join(lines + about_prints(printed))
    return Result(exercise.name, WRONG, text, earned, exercise.points, name, found.prop.name)


def comparison(exercise: Any, found: Any) -> list[str]:
    """Show expected and given side by side, or the student's line that raised."""
    if found.problem.kind == "raises":
        *place, error = f"It stops in {found.problem.detail}".split("\n")
        return [*place, *wrapped(error)]
    if found.problem.kind == "writes":
        return [f"After it, {found.problem.detail}."]
    names = [words.split(" (")[0] for words in exercise.returns]
    shown = []
    for title, thing in (("expected", found.expected), ("given", found.outcome.given)):
        if len(names) > 1 and isinstance(thing, tuple | list) and len(thing) == len(names):
            shown += [line for n, x in zip(names, thing, strict=True) for line in titled(f"{title} {n}", value(x))]
        else:
            shown += titled(title, value(thing))
    told = found.problem.kind in ("shape", "dtype", "kind", "count")
    return [*shown, *wrapped(f"({found.problem.detail})")] if told else shown


def titled(title: str, text: str) -> list[str]:
    """Put a title before a text, or above it where it has several lines."""
    return [f"{title}:", *indented(text)] if "\n" in text else [f"{title}: {text}"]


def value(thing: Any) -> str:
    """Write a result for people: four decimals, and the shape where it is no plain matrix.

    Examples
    --------
    >>> print(value(np.array([[1 / 3, 2 / 3]])))
    [[0.3333 0.6667]]
    """
    if isinstance(thing, tuple):
        return "\n".join(value(x) for x in thing)
    if isinstance(thing, np.ndarray):
        thing = thing + 0.0 if thing.dtype.kind == "f" else thing  # no minus zero
        return np.array2string(thing, precision=4, suppress_small=True, max_line_width=WIDTH - 8, threshold=60)
    return textwrap.shorten(repr(thing), 200)


def points(earned: float, out_of: float) -> str:
    """Write points.

    Examples
    --------
    >>> points(1, 4)
    '1 of 4 points'
    """
    return f"{earned:g} of {out_of:g} points"


def about_prints(printed: int) -> list[str]:
    """Tell where a function's own prints went."""
    if not printed:
        return []
    lines = "1 printed line is" if printed == 1 else f"{printed} printed lines are"
    return [f"({lines} not shown here; call your function to see them.)"]


def wrapped(text: str) -> list[str]:
    """Break a sentence into lines."""
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def indented(text: str) -> list[str]:
    """Move a text to the right."""
    return ["    " + line for line in text.split("\n")]
