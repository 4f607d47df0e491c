"""Who may see whom: masks as functions of positions, one definition for NumPy and torch.

A mask answers one question for each pair of a query and a key: may this query attend to this key? True means *may
attend*, here and everywhere in this book. The functions compare positions, so a mask of any size, any offset and any
batch comes from the same line, and masks combine with ``&`` (both must allow) and ``|`` (one is enough).

Axes: ``L`` queries, ``S`` keys, ``...`` any leading axes, such as the batch. Positions are integers, as an array, a
tensor or a list. The result is of the same framework: a boolean array for arrays and lists, a boolean tensor on the
same device for tensors.

>>> import numpy as np
>>> positions = np.arange(3)
>>> causal(positions, positions).astype(int)
array([[1, 0, 0],
       [1, 1, 0],
       [1, 1, 1]])
>>> (causal(positions, positions) & padding(2, 3)).astype(int)
array([[1, 0, 0],
       [1, 1, 0],
       [1, 1, 0]])
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Int

INT64 = np.iinfo(np.int64)

__all__ = ["bidirectional", "causal", "document", "padding", "prefix", "sliding_window"]


def bidirectional(q_pos: Int[Any, "*batch L"], k_pos: Int[Any, "*batch S"]) -> Bool[Any, "*batch L S"]:
    """Let every query see every key, on both sides.

    Parameters
    ----------
    q_pos, k_pos : (..., L) and (..., S), integers
        Where the queries and the keys stand in the sequence.

    Returns
    -------
    (..., L, S), boolean
        True everywhere.

    Examples
    --------
    >>> bidirectional([0, 1], [0, 1, 2]).astype(int)
    array([[1, 1, 1],
           [1, 1, 1]])
    """
    q, k = _facing(q_pos, k_pos, "q_pos", "k_pos")
    return (q == q) & (k == k)


def causal(q_pos: Int[Any, "*batch L"], k_pos: Int[Any, "*batch S"]) -> Bool[Any, "*batch L S"]:
    """Let each query see itself and what stands before it: k_pos ≤ q_pos.

    Parameters
    ----------
    q_pos, k_pos : (..., L) and (..., S), integers
        Where the queries and the keys stand in the sequence. With a cache, the queries' positions start at the
        number of cached keys; nothing has to be guessed from the shapes.

    Returns
    -------
    (..., L, S), boolean

    References
    ----------
    Vaswani et al. (2017), "Attention Is All You Need", section 3.2.3.

    Examples
    --------
    Two new queries at positions 3 and 4, five keys:

    >>> causal([3, 4], [0, 1, 2, 3, 4]).astype(int)
    array([[1, 1, 1, 1, 0],
           [1, 1, 1, 1, 1]])
    """
    q, k = _facing(q_pos, k_pos, "q_pos", "k_pos")
    return k <= q


def sliding_window(
    q_pos: Int[Any, "*batch L"], k_pos: Int[Any, "*batch S"], left: int | None = None, right: int | None = None
) -> Bool[Any, "*batch L S"]:
    """Let each query see ``left`` keys before it, itself, and ``right`` keys after it.

    Parameters
    ----------
    q_pos, k_pos : (..., L) and (..., S), integers
        Where the queries and the keys stand in the sequence.
    left, right : int ≥ 0 or None
        How far a query sees to each side, itself not counted. None: as far as there are keys.

    Returns
    -------
    (..., L, S), boolean

    Raises
    ------
    TypeError, ValueError
        If ``left`` or ``right`` is no integer, or is negative.

    References
    ----------
    Beltagy, Peters and Cohan (2020), "Longformer: The Long-Document Transformer", section 3.1.

    Examples
    --------
    One key to the left, none to the right:

    >>> sliding_window([0, 1, 2], [0, 1, 2], left=1, right=0).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """
    for name, reach in (("left", left), ("right", right)):
        if reach is None:
            continue
        if isinstance(reach, bool) or not isinstance(reach, int | np.integer):
            raise TypeError(f"{name} must be an integer or None, got {type(reach).__name__}")
        if reach < 0:
            raise ValueError(f"{name} must be 0 or more (None for no bound), got {reach}")
    allowed = bidirectional(q_pos, k_pos)
    q, k = _facing(q_pos, k_pos, "q_pos", "k_pos")
    if left is not None and left <= INT64.max:
        allowed = allowed & (k >= q.clip(min=INT64.min + left) - left)  # clipped, so that no sum leaves int64
    if right is not None and right <= INT64.max:
        allowed = allowed & (k <= q.clip(max=INT64.max - right) + right)
    return allowed


def padding(lengths: Int[Any, "*batch"], S: int) -> Bool[Any, "*batch 1 S"]:
    """Let every query see the first ``lengths`` keys; the rest is padding.

    Parameters
    ----------
    lengths : (...), integers from 0 to S
        The number of real keys of each sequence. Its axes are the mask's leading axes: for a batch of B sequences
        with heads, pass ``lengths[:, None]`` and get (B, 1, 1, S).
    S : int
        The number of keys, padding included.

    Returns
    -------
    (..., 1, S), boolean
        The same keys for every query, so the query axis has size 1 and broadcasts.

    Raises
    ------
    TypeError, ValueError
        If ``lengths`` or ``S`` are no integers, or a length lies outside 0 to S.

    Examples
    --------
    >>> padding([1, 3], 3).astype(int)
    array([[[1, 0, 0]],
    <BLANKLINE>
           [[1, 1, 1]]])
    """
    if isinstance(S, bool) or not isinstance(S, int | np.integer):
        raise TypeError(f"S must be an integer, got {type(S).__name__}")
    if S < 0:
        raise ValueError(f"S must be 0 or more, got {S}")
    lengths = _integers(lengths, "lengths")
    if bool((lengths < 0).any()) or bool((lengths > S).any()):
        raise ValueError(f"lengths must lie between 0 and S = {S}, got {lengths.tolist()}")
    return _arange_like(S, lengths) < lengths[..., None, None]


def document(q_ids: Int[Any, "*batch L"], k_ids: Int[Any, "*batch S"]) -> Bool[Any, "*batch L S"]:
    """Let each query see the keys of its own document, where several documents share one sequence.

    Parameters
    ----------
    q_ids, k_ids : (..., L) and (..., S), integers
        Which document each query and each key belongs to. Equal numbers may attend to each other.

    Returns
    -------
    (..., L, S), boolean

    Examples
    --------
    >>> document([0, 0, 1], [0, 0, 1]).astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [0, 0, 1]])
    """
    q, k = _facing(q_ids, k_ids, "q_ids", "k_ids")
    return q == k


def prefix(
    q_pos: Int[Any, "*batch L"], k_pos: Int[Any, "*batch S"], length: Int[Any, "*batch"]
) -> Bool[Any, "*batch L S"]:
    """Let every query see the positions from 0 to ``length`` − 1, and the rest causally.

    Parameters
    ----------
    q_pos, k_pos : (..., L) and (..., S), integers
        Where the queries and the keys stand in the sequence.
    length : int ≥ 0, or (...) integers
        How many positions everybody may see: one number, or one for each sequence.

    Returns
    -------
    (..., L, S), boolean

    Raises
    ------
    TypeError, ValueError
        If ``length`` is no integer or is negative.

    References
    ----------
    Raffel et al. (2020), "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    section 3.2.1 ("causal with prefix").

    Examples
    --------
    >>> prefix([0, 1, 2, 3], [0, 1, 2, 3], length=2).astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    q, k = _facing(q_pos, k_pos, "q_pos", "k_pos")
    length = _integers(length, "length", like=k)
    if bool((length < 0).any()):
        raise ValueError(f"length must be 0 or more, got {length.tolist()}")
    _fit_together({"q_pos": q, "k_pos": k, "length": length[..., None, None]})
    return (k <= q) | ((k >= 0) & (k < length[..., None, None]))


def _facing(q: Any, k: Any, q_name: str, k_name: str) -> tuple[Any, Any]:
    """Stand the queries' numbers up as a column, the keys' as a row: (..., L, 1) and (..., 1, S)."""
    q = _integers(q, q_name, axes=1, like=k)
    k = _integers(k, k_name, axes=1, like=q)
    q, k = q[..., :, None], k[..., None, :]
    _fit_together({q_name: q, k_name: k})
    return q, k


def _integers(x: Any, name: str, axes: int = 0, like: Any = None) -> Any:
    """Give ``x`` as an int64 array, or as an int64 tensor when it is a tensor, or a list beside the tensor ``like``."""
    plain = not isinstance(x, np.ndarray) and not _is_tensor(x)
    if not _is_tensor(x):
        try:
            x = np.asarray(x)
        except ValueError:  # rows of different lengths
            raise TypeError(f"{name} must hold integers in rows of one length, got {x}") from None
        if x.size == 0 and x.dtype == np.float64:  # an empty list has no integers to show
            x = x.astype(np.int64)
    kind = str(x.dtype).removeprefix("torch.")
    if not kind.startswith(("int", "uint")):
        raise TypeError(f"{name} must hold integers, got {kind}")
    if x.ndim < axes:
        raise ValueError(f"{name} must have a position axis, such as [0, 1, 2]; got the single number {x.item()}")
    wide = x.long() if _is_tensor(x) else x.astype(np.int64, copy=False)  # wide enough for every position
    if kind == "uint64" and bool((wide < 0).any()):
        raise ValueError(f"{name} must hold integers that fit int64, got {x.tolist()}")
    return like.long().new_tensor(wide) if plain and _is_tensor(like) else wide


def _is_tensor(x: Any) -> bool:
    return hasattr(x, "requires_grad")  # known by what it has: this module never needs torch


def _fit_together(columns: dict[str, Any]) -> None:
    """Raise unless all are of one framework and their leading axes broadcast; the last two axes are the mask's own."""
    names = " and ".join(columns)
    if len({_is_tensor(x) for x in columns.values()}) > 1:
        given = " and ".join(type(x).__name__ for x in columns.values())
        raise TypeError(f"{names} must be of one framework, got {given}")
    leading = [tuple(x.shape[:-2]) for x in columns.values()]
    try:
        np.broadcast_shapes(*leading)
    except ValueError:
        given = " and ".join(map(str, leading))
        raise ValueError(f"the leading axes of {names} must broadcast, got {given}") from None


def _arange_like(S: int, like: Any) -> Any:
    """Count 0 … S − 1 in the framework and on the device of ``like``."""
    if isinstance(like, np.ndarray):
        return np.arange(S)
    return like.new_ones(S).cumsum(0) - 1
