"""Heads: several attentions side by side, each on its own slice of the features. One definition for NumPy and torch.

A projection gives each position H·D features, head after head. Splitting makes the heads an axis of their own, so that
attention treats them as a batch; merging puts their outputs side by side again.

    (..., L, H·D)  ── reshape ──▶  (..., L, H, D)  ── swap axes ──▶  (..., H, L, D)

The reshape alone would not do: read as (..., H, L, D), the same memory mixes positions with heads.
"""

from typing import Any

import numpy as np
from jaxtyping import Shaped

from lib import arguments

__all__ = ["merge_heads", "split_heads"]


def split_heads(x: Shaped[Any, "*batch L H*D"], num_heads: int) -> Shaped[Any, "*batch H L D"]:
    """Give each head its own axis: (..., L, H·D) to (..., H, L, D).

    Parameters
    ----------
    x : (..., L, H·D), array or tensor
        Features of each position, head after head: head h owns the columns h·D to (h + 1)·D − 1.
    num_heads : int ≥ 1
        H, the number of heads.

    Returns
    -------
    (..., H, L, D)
        A view of ``x`` where its memory allows.

    Raises
    ------
    TypeError, ValueError
        If ``x`` is no array or tensor, ``num_heads`` is no positive integer, or H does not divide the features.

    References
    ----------
    Vaswani et al. (2017), "Attention Is All You Need", section 3.2.2.

    Examples
    --------
    Two positions, two heads of two features. Each head keeps its two columns of every position:

    >>> x = np.array([[0, 1, 100, 101], [10, 11, 110, 111]])
    >>> split_heads(x, 2)
    array([[[  0,   1],
            [ 10,  11]],
    <BLANKLINE>
           [[100, 101],
            [110, 111]]])
    """
    _require_axes("x", x, 2, "(..., L, H·D)")
    H = arguments.require_integer("num_heads", num_heads, 1)
    *leading, L, features = x.shape
    if features % H != 0:
        raise ValueError(f"x's last axis ({features}) must be divisible by num_heads ({H})")
    return x.reshape(*leading, L, H, features // H).swapaxes(-3, -2)


def merge_heads(x: Shaped[Any, "*batch H L D"]) -> Shaped[Any, "*batch L H*D"]:
    """Put the heads' features side by side: (..., H, L, D) to (..., L, H·D), the inverse of :func:`split_heads`.

    Parameters
    ----------
    x : (..., H, L, D), array or tensor
        What each head found for each position.

    Returns
    -------
    (..., L, H·D)
        Head after head, a copy where the memory's order asks for one.

    Raises
    ------
    TypeError, ValueError
        If ``x`` is no array or tensor, or has fewer than three axes.

    Examples
    --------
    >>> x = np.array([[[0, 1], [10, 11]], [[100, 101], [110, 111]]])
    >>> merge_heads(x)
    array([[  0,   1, 100, 101],
           [ 10,  11, 110, 111]])
    """
    _require_axes("x", x, 3, "(..., H, L, D)")
    *leading, H, L, D = x.shape
    return x.swapaxes(-3, -2).reshape(*leading, L, H * D)


def check_head_counts(num_heads: int, num_kv_heads: int | None) -> tuple[int, int]:
    """Give H and G, or raise unless each of G key/value heads can serve the same number of query heads."""
    H = arguments.require_integer("num_heads", num_heads, 1)
    G = H if num_kv_heads is None else arguments.require_integer("num_kv_heads", num_kv_heads, 1)
    if H % G != 0:
        raise ValueError(f"num_heads ({H}) must be divisible by num_kv_heads ({G})")
    return H, G


def check_projections(
    array_type: type, inputs: dict[str, Any], weights: dict[str, Any], biases: dict[str, Any], H: int, G: int
) -> None:
    """Raise unless inputs, weights and biases are of one dtype and device and their shapes make H and G heads.

    ``inputs`` holds query, key and value; ``weights`` W_q, W_k, W_v and W_o; ``biases`` b_q, b_k, b_v and b_o, each
    of which may be None.
    """
    given_biases = {name: b for name, b in biases.items() if b is not None}
    for name, array in {**inputs, **weights, **given_biases}.items():
        arguments.require_array(name, array, array_type)
        _like_query(name, array, inputs["query"])
    for name, array in inputs.items():
        _require_axes(name, array, 2, "(..., length, features)")
    W_q, W_k, W_v, W_o = weights.values()
    for (name, W), source in zip(weights.items(), (*inputs, None), strict=True):
        _fits_input(name, W, source, None if source is None else inputs[source].shape[-1])
    if W_q.shape[1] % H != 0:
        raise ValueError(f"W_q's columns ({W_q.shape[1]}) must be divisible by num_heads ({H})")
    if W_v.shape[1] % G != 0:
        raise ValueError(f"W_v's columns ({W_v.shape[1]}) must be divisible by num_kv_heads ({G})")
    E, Ev = W_q.shape[1] // H, W_v.shape[1] // G
    if W_k.shape[1] != G * E:
        raise ValueError(f"W_k must have num_kv_heads · E = {G} · {E} = {G * E} columns, got {W_k.shape[1]}")
    if W_o.shape[0] != H * Ev:
        raise ValueError(f"W_o must have num_heads · Ev = {H} · {Ev} = {H * Ev} rows, got {W_o.shape[0]}")
    for (name, b), (W_name, W) in zip(biases.items(), weights.items(), strict=True):
        if b is not None and tuple(b.shape) != (W.shape[1],):
            raise ValueError(f"{name} must have shape ({W.shape[1]},), as many as {W_name}'s columns, got {_shape(b)}")


def check_score_axes(name: str, array: Any, inputs: dict[str, Any]) -> None:
    """Raise where a mask or bias for all heads could be read as one for each batch entry, or the other way round.

    Scores are (..., H, L, S). A mask of shape (B, L, S) would be broadcast as (H, L, S): wrong without a word when
    B = H. So a mask says nothing about heads and batch, (L, S), or it says both.
    """
    if not hasattr(array, "shape"):  # None, or what attention's own check refuses
        return
    axes = 1 + max(len(x.shape) for x in inputs.values())
    if 2 < len(array.shape) != axes:
        wanted = "(H, L, S)" if axes == 3 else "(B, H, L, S)"
        raise ValueError(
            f"{name} must have axes (L, S) or {wanted}, where sizes of 1 broadcast, got {_shape(array)}; "
            f"for one {name} a batch entry, the same for all heads, write {name}[:, None]"
        )


def _fits_input(name: str, W: Any, source: str | None, features: int | None) -> None:
    """Raise unless W is (in, out) and takes the features it is given."""
    if len(W.shape) != 2:
        raise ValueError(f"{name} must have shape (in, out), got {_shape(W)}")
    if source is not None and W.shape[0] != features:
        hint = ""
        if W.shape[1] == features:
            hint = "; torch.nn.Linear keeps its weight as (out, in): pass it transposed"
        raise ValueError(f"{name} must have shape (in, out) with {source}'s in = {features}, got {_shape(W)}{hint}")


def _like_query(name: str, array: Any, query: Any) -> None:
    if arguments.dtype_name(array) not in arguments.FLOATS:
        raise TypeError(
            f"{name} must be floating (float16, bfloat16, float32 or float64), got {arguments.dtype_name(array)}"
        )
    if arguments.dtype_name(array) != arguments.dtype_name(query):
        raise TypeError(
            f"{name} must have query's dtype {arguments.dtype_name(query)}, got {arguments.dtype_name(array)}"
        )
    if getattr(array, "device", None) != getattr(query, "device", None):
        raise ValueError(f"{name} must be on query's device {query.device}, got {array.device}")


def _require_axes(name: str, x: Any, axes: int, wanted: str) -> None:
    if not (isinstance(x, np.ndarray) or hasattr(x, "requires_grad")):  # a tensor is known by what it has
        raise TypeError(f"{name} must be an array or a tensor, got {type(x).__name__}")
    if len(x.shape) < axes:
        raise ValueError(f"{name} must have shape {wanted}, got {_shape(x)}")


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(x.shape)
