"""What several exercises share: drawn numbers, the property of untouched arguments, mistakes from the catalogue."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lib.labs.form import Call, Mistake, Property
from lib.verify import catalogue
from lib.verify.probe import numbers

Calls = Callable[[np.random.Generator], list[Call]]


def call(**arguments: Any) -> Call:
    """Make a call; lists become arrays.

    Examples
    --------
    >>> print(call(scores=[[0.0, 1.0]]).code("softmax"))
    scores = np.array([[0.0, 1.0]])
    softmax(scores)
    """
    return Call({name: np.array(x) if isinstance(x, list) else x for name, x in arguments.items()})


def untouched(calls: Calls, what: str = "arguments") -> Property:
    """Make the property that a call writes to none of its arguments."""
    return Property(
        f"{what} untouched",
        "The caller's arrays are the same after the call as before.",
        calls,
        "Which line of yours writes into an array that came in?",
        untouched=True,
    )


def qkv(rng: np.random.Generator, L: int, S: int, E: int, Ev: int, **more: Any) -> Call:
    """Draw queries (L, E), keys (S, E) and values (S, Ev)."""
    return call(query=numbers(rng, L, E), key=numbers(rng, S, E), value=numbers(rng, S, Ev), **more)


def known(name: str, words: str, hint: str) -> Mistake:
    """Take a mistake of attention from :data:`lib.verify.catalogue`; it gives (output, weights).

    Examples
    --------
    >>> known("unscaled", "your scores are not scaled.", "Which step lies between product and softmax?").name
    'unscaled'
    """
    wrong = catalogue[name].function()

    def does(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray | None = None) -> tuple:
        options = {} if mask is None else {"mask": np.atleast_2d(mask)}
        return wrong(query, key, value, return_weights=True, **options)

    return Mistake(name, words, hint, does)
