"""A known wrong implementation: the correct body with a few lines replaced, and what there is to say about it."""

import difflib
import inspect
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from lib.verify.wrong import body, tools


@dataclass(frozen=True)
class Entry:
    """One wrong implementation.

    Attributes
    ----------
    name : str
    wrong : str
        What is wrong, in plain words.
    changes : tuple of (old, new)
        Lines of the correct body and what stands there instead; each ``old`` occurs once.
    killed_by : str
        The name of the property that shows it.
    report : str or None
        A public report of this bug.
    alone : bool
        Whether no other property shows it.
    conventions : dict
        Under which conventions it is wrong, where these are not the default.
    frameworks : tuple of str
        Where it exists.
    module : bool
        Whether it is a torch module, with a training and an evaluation mode.
    others : tuple of (old, new)
        The same bug with other numbers in it, such as another size of tile: each makes one more wrong function, with
        ``old`` in the changes replaced by ``new``. They have the entry's name.
    """

    name: str
    wrong: str
    changes: tuple[tuple[str, str], ...]
    killed_by: str
    report: str | None = None
    alone: bool = False
    conventions: dict[str, str] = field(default_factory=dict)
    frameworks: tuple[str, ...] = ("numpy", "torch")
    module: bool = False
    others: tuple[tuple[str, str], ...] = ()

    def variants(self) -> tuple["Entry", ...]:
        """Give the entry itself, then the same bug with other numbers.

        Examples
        --------
        >>> from lib.verify import catalogue
        >>> [entry.changes[0][1][-4:] for entry in catalogue["epsilon_in_denominator"].variants()][:3]
        ['1e-8', '1e-3', '1e-4']
        """
        return (self, *(self._with(old, new) for old, new in self.others))

    def _with(self, old: str, new: str) -> "Entry":
        if not any(old in text for _, text in self.changes):
            raise ValueError(f"{self.name}: {old!r} stands in none of the changes")
        changes = tuple((right, text.replace(old, new)) for right, text in self.changes)
        return replace(self, changes=changes, others=())

    @property
    def source(self) -> str:
        """The text of the wrong function."""
        return _changed(self.name, self.changes)

    def diff(self) -> str:
        """Show the change, line by line: − what is right, + what stands there instead."""
        lines = difflib.unified_diff(correct_source().splitlines(), self.source.splitlines(), n=1, lineterm="")
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))

    def function(self) -> Callable:
        """Make the wrong function: ``fn(query, key, value, **options)``, for NumPy and torch alike.

        Examples
        --------
        >>> import numpy as np
        >>> from lib.verify import catalogue
        >>> wrong = catalogue["mask_inverted"].function()
        >>> query, key, value = np.zeros((1, 1)), np.zeros((2, 1)), np.array([[2.0], [8.0]])
        >>> wrong(query, key, value, mask=np.array([[True, False]]))
        array([[8.]])
        """
        return _module(self) if self.module else _compiled(self)


class Catalogue:
    """The known wrong implementations, by name and in order.

    Examples
    --------
    >>> from lib.verify import catalogue
    >>> len(catalogue) >= 60, "mask_inverted" in catalogue
    (True, True)
    >>> print(catalogue["causal_strict"].diff())
         if causal:
    -        allowed = allowed & (j <= i)
    +        allowed = allowed & (j < i)
         if window is not None:
    """

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self._entries = {entry.name: entry for entry in entries}
        if len(self._entries) != len(entries):
            raise ValueError("two entries of the catalogue have one name")

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __repr__(self) -> str:
        return f"<{len(self)} wrong implementations: {', '.join(list(self._entries)[:3])}, …>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(self._entries)


@cache
def correct_source() -> str:
    """Give the text of the correct body."""
    return inspect.getsource(body.attention)


def _changed(name: str, changes: tuple[tuple[str, str], ...]) -> str:
    text = correct_source()
    for old, new in changes:
        if text.count(old) != 1:
            raise ValueError(f"{name}: {old!r} must stand once in the body, and stands {text.count(old)} times")
        text = text.replace(old, new)
    return text


@cache
def _namespace(name: str) -> dict[str, Any]:
    return {**vars(tools), **vars(body), "training": False, "__name__": f"lib.verify.wrong.{name}"}


def _compiled(entry: Entry) -> Callable:
    """Compile the changed text, such that tracebacks and ``inspect`` show it."""
    file = f"<{entry.name}>"
    text = entry.source
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = dict(_namespace(entry.name))
    exec(compile(text, file, "exec"), space)
    function = space["attention"]
    function.__name__ = entry.name
    return function


def _module(entry: Entry) -> Any:
    """Wrap the function in a torch module that tells it whether it is in training mode."""
    import torch

    function = _compiled(entry)

    class Attention(torch.nn.Module):
        __signature__ = inspect.signature(function)

        def forward(self, *arrays: Any, **options: Any) -> Any:
            function.__globals__["training"] = self.training
            return function(*arrays, **options)

    Attention.forward.__signature__ = inspect.signature(lambda self: None).replace(
        parameters=[
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *inspect.signature(function).parameters.values(),
        ]
    )
    Attention.__name__ = entry.name
    return Attention()
