"""The sentences that the book carries from page to page."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class ThreeTokens(NamedTuple):
    """A three-token sentence with projections small enough to follow by hand."""

    tokens: tuple[str, str, str]
    X: Float[np.ndarray, "3 4"]  # one row per token: is it an animal, an action, a hunter, hunted?
    W_q: Float[np.ndarray, "4 4"]  # what a token asks for
    W_k: Float[np.ndarray, "4 4"]  # what a token offers to be found by
    W_v: Float[np.ndarray, "4 2"]  # what a token hands over


def cats_chase_mice() -> ThreeTokens:
    """Give the sentence "cats chase mice" with its features and three projections.

    The features are (animal, action, hunter, hunted). Animals ask for the action. The action asks for the hunter, and
    half as loudly for the hunted. Each token is found by its own features.

    Returns
    -------
    ThreeTokens
        ``tokens`` and the float64 arrays ``X`` (3, 4), ``W_q`` (4, 4), ``W_k`` (4, 4), ``W_v`` (4, 2). New arrays at
        each call.

    Examples
    --------
    >>> tokens, X, W_q, W_k, W_v = cats_chase_mice()
    >>> (X @ W_q) @ (X @ W_k).T
    array([[0., 2., 0.],
           [4., 0., 2.],
           [0., 2., 0.]])
    """
    X = np.array([[1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 1]], dtype=float)
    W_q = np.array([[0, 2, 0, 0], [0, 0, 4, 2], [0, 0, 0, 0], [0, 0, 0, 0]], dtype=float)
    W_k = np.eye(4)
    W_v = np.array([[1, 0], [0, 2], [1, 0], [0, 0]], dtype=float)
    return ThreeTokens(("cats", "chase", "mice"), X, W_q, W_k, W_v)
