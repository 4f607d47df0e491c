"""What attention may be given: one set of checks and error texts for NumPy and torch.

Every message names the argument, what was wanted and what came. The checks look at shapes, dtypes and plain Python
values only, so that they are the same for both frameworks. They never write to what they look at.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

FLOATS = ("float16", "bfloat16", "float32", "float64", "float96", "float128")
FARTHEST = 2**61  # positions are int64, and a few of them are added up


class Call(NamedTuple):
    """A checked call of attention, with every default filled in."""

    batch: tuple[int, ...]  # the leading axes, broadcast; with heads, the last of them counts the query heads
    L: int  # queries
    S: int  # keys
    E: int  # head size
    Ev: int  # value size
    repeats: int  # query heads to each key/value head
    scale: float  # what scores are multiplied by
    softcap: float | None
    causal: bool
    window: tuple[int | None, int | None]  # (None, None): unbounded
    offset: Any  # the position of the first query: an int, or integers of shape (..., 1) that face (..., L)

    @property
    def scores_shape(self) -> tuple[int, ...]:
        """Give the shape of the scores, (..., L, S)."""
        return (*self.batch, self.L, self.S)


def check(
    array_type: type,
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    window: Any = None,
    offset: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    """Check the arguments of an attention function and fill in the defaults.

    Parameters
    ----------
    array_type : type
        ``numpy.ndarray`` or ``torch.Tensor``: what the arrays must be.
    query, key, value, mask, bias, causal, window, offset, scale, softcap, enable_gqa
        As in :func:`lib.reference.attention`.

    Returns
    -------
    Call

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype.
    ValueError
        If a shape does not fit, a number is out of range, or the causal alignment would have to be guessed.

    Examples
    --------
    >>> x = np.zeros((2, 3, 4))
    >>> check(np.ndarray, x, x, x, causal=True).scale
    0.5
    """
    arrays = {"query": query, "key": key, "value": value}
    _check_dtypes(array_type, arrays, mask, bias)
    for name, flag in (("causal", causal), ("enable_gqa", enable_gqa)):
        require_bool(name, flag)
    batch, repeats = _leading_axes(arrays, enable_gqa)
    (L, E), S, Ev = query.shape[-2:], key.shape[-2], value.shape[-1]
    _fits("mask", mask, (*batch, L, S))
    _fits("bias", bias, (*batch, L, S))
    window = _window(window)
    if offset is None and L != S and (causal or window != (None, None)):
        raise ValueError(_which_alignment("causal" if causal else "window", L, S))
    return Call(
        batch=batch,
        L=L,
        S=S,
        E=E,
        Ev=Ev,
        repeats=repeats,
        scale=1 / math.sqrt(max(E, 1)) if scale is None else require_real("scale", scale),
        softcap=None if softcap is None else _positive("softcap", softcap),
        causal=bool(causal),
        window=window,
        offset=_offset(array_type, offset, batch),
    )


def check_partials(array_type: type, partials: Any) -> Iterator[tuple[Any, Any]]:
    """Give the pairs (output, lse) of partial results one by one, each checked against the first.

    Parameters
    ----------
    array_type : type
        ``numpy.ndarray`` or ``torch.Tensor``: what the arrays must be.
    partials
        As in :func:`lib.reference.merge`.

    Raises
    ------
    TypeError, ValueError
        While the pairs are taken: if one is no pair of floating arrays, if shapes, dtypes or devices do not fit, or if
        there is none.

    Examples
    --------
    >>> [lse for output, lse in check_partials(np.ndarray, [(np.zeros((1, 2)), np.zeros(1))])]
    [array([0.])]
    """
    if not isinstance(partials, Iterable):
        raise TypeError(f"partials must be an iterable of pairs (output, lse), got {_shown(partials)}")
    dtypes, shapes, home = {}, {}, None  # of the first pair; the arrays themselves can go once they are used
    for i, pair in enumerate(partials):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            given = f"a {type(pair).__name__}" + (f" of {len(pair)}" if isinstance(pair, tuple | list) else "")
            raise TypeError(f"partials[{i}] must be a pair (output, lse), got {given}")
        for part, array in zip(("output", "lse"), pair, strict=True):
            name = f"partials[{i}]'s {part}"
            require_array(name, array, array_type)
            dtype, shape, device = dtype_name(array), tuple(array.shape), getattr(array, "device", None)
            home = home or device
            if dtype not in FLOATS:
                raise TypeError(f"{name} must be floating, got {dtype}")
            if dtypes.setdefault(part, dtype) != dtype:
                raise TypeError(f"{name} must have partials[0]'s dtype {dtypes[part]}, got {dtype}")
            if device != home:
                raise ValueError(f"{name} must be on partials[0]'s device {home}, got {device}")
            if shapes.setdefault(part, shape) != shape:
                raise ValueError(f"{name} must have partials[0]'s shape {shapes[part]}, got {shape}")
        output, lse = (tuple(array.shape) for array in pair)
        if len(output) < 2:
            raise ValueError(f"partials[{i}]'s output must have shape (..., L, Ev), got {output}")
        if lse != output[:-1]:
            raise ValueError(f"partials[{i}]'s lse must have shape (..., L) = {output[:-1]} as its output, got {lse}")
        yield pair[0], pair[1]
    if not shapes:
        raise ValueError("partials must hold at least one pair (output, lse), got none")


def dtype_name(array: Any) -> str:
    """Name an array's dtype the same way for NumPy and torch, such as ``float32``."""
    return _dtype_name(array.dtype)


@functools.lru_cache
def _dtype_name(dtype: Any) -> str:
    return dtype.name if hasattr(dtype, "name") else str(dtype).removeprefix("torch.")


def require_bool(name: str, flag: Any) -> None:
    """Raise unless ``flag`` is True or False."""
    if not isinstance(flag, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {_shown(flag)}")


def require_real(name: str, number: Any) -> float:
    """Give ``number`` as a float, or raise unless it is one finite real number."""
    if type(number) is not float and (isinstance(number, bool) or not isinstance(number, Real)):
        raise TypeError(f"{name} must be a real number, got {_shown(number)}")
    try:
        as_float = float(number)
    except OverflowError:  # an int with more digits than a float can have
        as_float = math.inf
    if not math.isfinite(as_float):
        raise ValueError(f"{name} must be finite, got {_shown(number)}")
    return as_float


def require_integer(name: str, number: Any, minimum: int | None = None) -> int:
    """Give ``number`` as an int, or raise unless it is an integer of at least ``minimum``."""
    if type(number) is not int and (isinstance(number, bool) or not isinstance(number, Integral)):
        raise TypeError(f"{name} must be an integer, got {_shown(number)}")
    if minimum is not None and number < minimum:
        raise ValueError(f"{name} must be {minimum} or more, got {number}")
    return int(number)


def require_array(name: str, array: Any, array_type: type) -> None:
    """Raise unless ``array`` is of the framework's own type."""
    if type(array) is array_type:
        return
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} must be a plain numpy.ndarray, got a masked array: pass its mask as mask=")
    if isinstance(array, np.matrix):  # its indexing and its * mean something else
        raise TypeError(f"{name} must be a plain numpy.ndarray, got a numpy.matrix: pass numpy.asarray({name})")
    if not isinstance(array, array_type):
        wanted = f"{array_type.__module__.split('.')[0]}.{array_type.__name__}"
        given = f"{type(array).__module__.split('.')[0]}.{type(array).__name__}".removeprefix("builtins.")
        other = {"numpy.ndarray": "; lib.fast takes tensors", "torch.Tensor": "; lib.reference takes NumPy arrays"}
        hint = other[wanted] if given in ("numpy.ndarray", "torch.Tensor") else ""
        raise TypeError(f"{name} must be a {wanted}, got {given}{hint}")


def _check_dtypes(array_type: type, arrays: dict[str, Any], mask: Any, bias: Any) -> None:
    dtypes = []
    for name, array in arrays.items():
        require_array(name, array, array_type)
        dtypes.append(dtype_name(array))
        if dtypes[-1] not in FLOATS:
            raise TypeError(f"{name} must be floating (float16, bfloat16, float32 or float64), got {dtypes[-1]}")
    if len(set(dtypes)) > 1:
        given = ", ".join(f"{name} {dtype_name(array)}" for name, array in arrays.items())
        raise TypeError(f"query, key and value must share one dtype, got {given}")
    if mask is not None:
        require_array("mask", mask, array_type)
        if dtype_name(mask) != "bool":
            raise TypeError(
                f"mask must be boolean (True = may attend), got {dtype_name(mask)}; "
                "an additive mask (0 and -inf) goes to bias="
            )
    if bias is not None:
        require_array("bias", bias, array_type)
        if dtype_name(bias) == "bool":
            raise TypeError("bias must be floating and is added to the scores, got bool; a boolean mask goes to mask=")
        if dtype_name(bias) != dtype_name(arrays["query"]):
            raise TypeError(f"bias must have query's dtype {dtype_name(arrays['query'])}, got {dtype_name(bias)}")
    home = getattr(arrays["query"], "device", None)
    for name, array in (*arrays.items(), ("mask", mask), ("bias", bias)):
        if array is not None and getattr(array, "device", None) != home:
            raise ValueError(f"{name} must be on query's device {home}, got {array.device}")


def _leading_axes(arrays: dict[str, Any], enable_gqa: bool) -> tuple[tuple[int, ...], int]:
    """Broadcast the leading axes; with grouped heads, count how many query heads share a key/value head."""
    wanted = {"query": "(..., L, E)", "key": "(..., S, E)", "value": "(..., S, Ev)"}
    for name, array in arrays.items():
        if array.ndim < 2:
            raise ValueError(f"{name} must have shape {wanted[name]}, got {tuple(array.shape)}")
    query, key, value = (tuple(array.shape) for array in arrays.values())
    if key[-1] != query[-1]:
        raise ValueError(f"key must have shape (..., S, E) with query's E = {query[-1]}, got {key}")
    if value[-2] != key[-2]:
        raise ValueError(f"value must have shape (..., S, Ev) with key's S = {key[-2]}, got {value}")
    if not enable_gqa and query[:-2] == key[:-2] == value[:-2]:
        return query[:-2], 1
    repeats = _group_size(query, key, value) if enable_gqa else 1
    leading = [query[:-2]] + [(*s[:-3], s[-3] * repeats) if enable_gqa else s[:-2] for s in (key, value)]
    try:
        return np.broadcast_shapes(*leading), repeats
    except ValueError:
        hint = ""
        if min(len(s) for s in leading) >= 1 and leading[0][-1] != leading[1][-1]:
            hint = "; for fewer key/value heads than query heads pass enable_gqa=True"
        raise ValueError(
            f"the leading axes of query {query}, key {key} and value {value} must broadcast{hint}"
        ) from None


def _group_size(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    for name, shape in (("query", query), ("key", key), ("value", value)):
        if len(shape) < 3:
            raise ValueError(f"{name} must have a head axis (..., heads, length, size) with enable_gqa, got {shape}")
    H, G = query[-3], key[-3]
    if value[-3] != G:
        raise ValueError(f"value must have as many heads as key, {G}, got {value[-3]}")
    if G == 0 and H == 0:
        return 1
    if G == 0 or H % G != 0:
        raise ValueError(f"the query heads ({H}) must be divisible by the key/value heads ({G})")
    return H // G


def _fits(name: str, array: Any, scores_shape: tuple[int, ...]) -> None:
    """Raise unless ``array`` broadcasts to the scores without making them larger."""
    if array is None:
        return
    try:
        fits = np.broadcast_shapes(tuple(array.shape), scores_shape) == scores_shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} must broadcast to the scores' shape (..., L, S) = {scores_shape}, got {tuple(array.shape)}"
        )


def _window(window: Any) -> tuple[int | None, int | None]:
    if window is None:
        return None, None
    if not isinstance(window, tuple | list) or len(window) != 2:
        raise TypeError(f"window must be a pair (left, right) of integers or None, got {_shown(window)}")
    left, right = (
        None if reach is None else _reach(f"window's {side} side", reach)
        for side, reach in zip(("left", "right"), window, strict=True)
    )
    return left, right


def _reach(name: str, reach: Any) -> int:
    reach = require_integer(name, reach)
    if reach < 0:
        raise ValueError(f"{name} must be 0 or more (None for no bound), got {reach}")
    return min(reach, FARTHEST)


def _offset(array_type: type, offset: Any, batch: tuple[int, ...]) -> Any:
    """Give the offset as an int, or as integers that face the queries: (batch entries, 1, …, 1)."""
    if offset is None:
        return 0
    if isinstance(offset, list | tuple):
        try:
            offset = np.asarray(offset) if offset else np.empty(0, dtype=int)  # an empty batch has no offsets
        except ValueError:  # rows of different lengths
            raise TypeError(f"offset must be an integer, or integers of shape (B,), got {_shown(offset)}") from None
    if not hasattr(offset, "shape") or tuple(offset.shape) == ():
        offset = require_integer("offset", offset.item() if hasattr(offset, "item") else offset)
        _offset_in_range(offset)
        return offset
    if not isinstance(offset, array_type | np.ndarray):
        require_array("offset", offset, array_type)
    if not dtype_name(offset).startswith(("int", "uint")):
        raise TypeError(f"offset must be an integer, or integers of shape (B,), got {dtype_name(offset)}")
    entries = tuple(offset.shape)
    fits = len(entries) <= len(batch) and all(n in (1, m) for n, m in zip(entries, batch, strict=False))
    if not fits:
        raise ValueError(f"offset must be one integer, or one for each batch entry: shape {batch[:1]}, got {entries}")
    if str(offset.device) == "cpu":  # on a GPU, looking would make the CPU wait
        for number in np.asarray(offset).flat:
            _offset_in_range(int(number))
    return offset.reshape(entries + (1,) * (len(batch) - len(entries) + 1))


def _offset_in_range(offset: int) -> None:
    if abs(offset) > FARTHEST:
        raise ValueError(f"offset must lie between -2**61 and 2**61, got {offset}")


def _positive(name: str, number: Any) -> float:
    number = require_real(name, number)
    if number <= 0:
        raise ValueError(f"{name} must be positive (None for no cap), got {number}")
    return number


def _which_alignment(argument: str, L: int, S: int) -> str:
    return (
        f"{argument} needs offset= because there are L = {L} queries and S = {S} keys, and two alignments are in use: "
        "offset=0 puts the first query at the first key (top-left, as torch's is_causal does); "
        f"offset={S - L} puts the last query at the last key (bottom-right, as decoding with a cache needs)"
    )


def _shown(thing: Any) -> str:
    text = repr(thing)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(thing).__name__})"
