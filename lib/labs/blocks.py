"""Small attention blocks for the leak test: each takes x (L, E) and gives (L, E); some see the future.

>>> x = np.array([[1.0], [2.0], [4.0]])
>>> running_mean(x).ravel().tolist()
[1.0, 1.5, 2.3333333333333335]
>>> sees_everything(np.zeros((3, 1))).shape
(3, 1)
"""

import numpy as np

from lib import reference


def scores_of(x: np.ndarray) -> np.ndarray:
    """Compare each position with each; (L, L)."""
    return x @ x.T / np.sqrt(x.shape[-1])


def past(L: int) -> np.ndarray:
    """Give the causal mask; (L, L)."""
    return np.tril(np.ones((L, L), bool))


def seen(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Let each position attend to what the mask allows."""
    return reference.attention(x, x, x, mask=mask)


# No future


def causal(x: np.ndarray) -> np.ndarray:
    """Attend to itself and what came before."""
    weights = reference.softmax(np.where(past(len(x)), scores_of(x), -np.inf))
    return weights @ x


def near(x: np.ndarray) -> np.ndarray:
    """Attend to itself and one position before."""
    return seen(x, past(len(x)) & ~np.tril(np.ones((len(x), len(x)), bool), -2))


def running_mean(x: np.ndarray) -> np.ndarray:
    """Average all positions up to one's own."""
    return np.cumsum(x, axis=0) / np.arange(1, len(x) + 1)[:, None]


def each_alone(x: np.ndarray) -> np.ndarray:
    """Change each position by itself."""
    return np.tanh(x)


# The future, plainly


def sees_everything(x: np.ndarray) -> np.ndarray:
    """Attend without a mask."""
    return seen(x, np.ones((len(x), len(x)), bool))


def sees_the_future_only(x: np.ndarray) -> np.ndarray:
    """Attend with the mask turned over."""
    return seen(x, past(len(x)).T)


def mean_of_all(x: np.ndarray) -> np.ndarray:
    """Subtract the mean of all positions."""
    return x - x.mean(axis=0)


# The future, through a small gap


def sees_the_next(x: np.ndarray) -> np.ndarray:
    """Attend one position too far: the diagonal of the mask is off by one."""
    return seen(x, np.tril(np.ones((len(x), len(x)), bool), 1))


def first_sees_the_second(x: np.ndarray) -> np.ndarray:
    """Attend causally, except that the first position sees the second."""
    mask = past(len(x))
    mask[:1, 1:2] = True
    return seen(x, mask)


def last_but_one_sees_the_last(x: np.ndarray) -> np.ndarray:
    """Attend causally, except that the last position but one sees the last."""
    mask = past(len(x))
    mask[-2:-1, -1:] = True
    return seen(x, mask)


def masks_after_the_softmax(x: np.ndarray) -> np.ndarray:
    """Set the future's weights to 0 after the softmax: its sum has seen the future."""
    return (reference.softmax(scores_of(x)) * past(len(x))) @ x


def softmax_over_queries(x: np.ndarray) -> np.ndarray:
    """Share out along the queries: later queries take weight from earlier ones."""
    return reference.softmax(np.where(past(len(x)), scores_of(x), -np.inf), axis=0) @ x


def faintly(x: np.ndarray) -> np.ndarray:
    """Attend causally, plus a ten-thousandth of the last position."""
    return causal(x) + 1e-4 * x[-1:]
