"""What an exercise is made of: calls that ask, properties that must hold, mistakes that are known."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

#: How much of a call may change while it is made smaller.
Axes = Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the student's function.

    Attributes
    ----------
    arguments : dict
        By the names that the stub has, in its order; they are handed over by position.
    shown : dict
        For an argument that is no array and no number, what a reader should see in its place.
    before : str
        A line that comes first, such as the import of what is shown.

    Examples
    --------
    >>> print(Call({"scores": np.zeros((1, 2)), "axis": 0}).code("softmax"))
    scores = np.array([[0.0, 0.0]])
    softmax(scores, 0)
    """

    arguments: dict[str, Any]
    shown: dict[str, str] = field(default_factory=dict)
    before: str = ""

    def code(self, name: str) -> str:
        """Write the call as Python that can be pasted into a cell."""
        lines, words = [self.before] if self.before else [], []
        for argument, value in self.arguments.items():
            if isinstance(value, np.ndarray):
                lines.append(f"{argument} = np.array({plain(value)})")
            words.append(self.shown.get(argument) or (argument if isinstance(value, np.ndarray) else repr(value)))
        return "\n".join([*lines, f"{name}({', '.join(words)})"])

    def change(self, **arguments: Any) -> "Call":
        """Give the call with other arguments."""
        return Call({**self.arguments, **arguments}, self.shown, self.before)

    def copies(self) -> list[Any]:
        """Give the arguments, arrays as fresh copies that the function may spoil."""
        return [value.copy() if isinstance(value, np.ndarray) else value for value in self.arguments.values()]


def plain(array: np.ndarray) -> str:
    """Write an array's entries as Python, infinities as NumPy's."""
    text = repr((array + 0.0 if array.dtype.kind == "f" else array).tolist())
    return text.replace("-inf", "-np.inf").replace(" inf", " np.inf").replace("[inf", "[np.inf")


@dataclass(frozen=True)
class Property:
    """Something that must hold of every right answer.

    Attributes
    ----------
    name : str
        In two or three words, for the list of what was checked.
    statement : str
        What must hold, as a sentence.
    calls : callable
        ``calls(rng)``: the calls that ask, the smallest first.
    hint : str
        What to think about where no known mistake matches; it does not give the answer away.
    points : int
        What it is worth. Nothing counts unless the exercise's first property holds.
    untouched : bool
        Whether it is about the arguments, which must be the same after the call, and not about what comes back.
    """

    name: str
    statement: str
    calls: Callable[[np.random.Generator], list[Call]]
    hint: str
    points: int = 1
    untouched: bool = False


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that students give: a function that does the same, and what to say about it.

    Attributes
    ----------
    name : str
    words : str
        What the student's function does, as a sentence that starts with "your" or "you".
    hint : str
        One hint that does not give the answer away.
    does : callable
        It takes the exercise's arguments and makes the mistake.
    """

    name: str
    words: str
    hint: str
    does: Callable


class Checkable(Protocol):
    """What :func:`lib.labs.check` asks of an exercise: a name, points, and a judgement."""

    name: str

    @property
    def points(self) -> int:
        """What a right answer is worth."""

    def judge(self, fn: Callable, seed: int) -> Any:
        """Give a :class:`lib.labs.report.Result`."""


@dataclass(frozen=True, eq=False)
class Exercise:
    """A function for the student to write.

    Attributes
    ----------
    name : str
        The function's name, as in the stub.
    right : callable
        A right answer, from which the expected values come.
    properties : tuple of Property
        The first is the basis: where it fails, nothing else counts.
    mistakes : tuple of Mistake
        Of two that fit equally well, the earlier one is named.
    returns : tuple of str
        What comes back, in words that name the shape; two for a function that gives back two arrays.
    axes : dict
        For each array, the letter of each axis. Axes with one letter are made smaller together.
    kept : tuple of str
        Arrays whose numbers stay as they are when a call is made smaller.
    proper : callable
        Says of arguments whether the exercise asks for them; what is made smaller must stay proper.

    Examples
    --------
    >>> from lib import labs
    >>> labs.EXERCISES["softmax"].points
    4
    """

    name: str
    right: Callable
    properties: tuple[Property, ...]
    mistakes: tuple[Mistake, ...]
    returns: tuple[str, ...]
    axes: Axes = field(default_factory=dict)
    kept: tuple[str, ...] = ("value",)  # values that differ show what is taken from where
    proper: Callable[..., bool] = lambda *arguments: True

    @property
    def points(self) -> int:
        """What a right answer is worth."""
        return sum(prop.points for prop in self.properties)

    def asked(self, seed: int) -> list[tuple[Property, list[Call]]]:
        """Give every property with its calls; another seed draws other numbers."""
        return [(prop, prop.calls(np.random.default_rng([seed, n]))) for n, prop in enumerate(self.properties)]

    def judge(self, fn: Callable, seed: int = 0) -> Any:
        """Judge an answer; see :func:`lib.labs.judging.judge`."""
        from lib.labs.judging import judge  # judging needs what stands here

        return judge(self, fn, seed)

    def smaller(self, call: Call) -> Iterator[Call]:
        """Suggest smaller calls: an entry fewer on one axis, then plainer numbers."""
        for smaller in (
            *shorter(call, self.axes),
            *plainer(call, [name for name in self.axes if name not in self.kept]),
        ):
            if self.proper(*smaller.arguments.values()):
                yield smaller


def shorter(call: Call, axes: Axes) -> Iterator[Call]:
    """Take one entry away along each lettered axis, from the end and from the start."""
    arrays = {name: call.arguments[name] for name in axes if isinstance(call.arguments.get(name), np.ndarray)}
    sizes = {letter: size for n, x in arrays.items() for letter, size in zip(axes[n], x.shape, strict=True)}
    for letter, size in sizes.items():
        for keep in (slice(0, size - 1), slice(1, size)) if size > 1 else ():
            cut = {}
            for name, x in arrays.items():
                index = tuple(keep if other == letter else slice(None) for other in axes[name])
                cut[name] = x[index].copy()
            yield call.change(**cut)


def plainer(call: Call, names: list[str]) -> Iterator[Call]:
    """Replace one entry by 0 or 1, or by True."""
    for name in names:
        x = call.arguments.get(name)
        if not isinstance(x, np.ndarray) or x.dtype.kind not in "fb":
            continue
        for index in np.ndindex(*x.shape):
            for wanted in (True,) if x.dtype == bool else (0.0, 1.0):
                if not np.isfinite(x[index]) or cost(x[index]) > cost(wanted):
                    changed = x.copy()
                    changed[index] = wanted
                    yield call.change(**{name: changed})


def cost(number: Any) -> float:
    """Say how hard a number is to read: 0 and True cost nothing, 1 a little, fractions most."""
    if isinstance(number, bool | np.bool_):
        return 0.0 if number else 1.0
    return 0.0 if number == 0 else 1.0 if number == 1 else 2.0 if number == np.round(number) else 3.0
