"""Every argument, wrong in every way: the error names the argument, what was wanted and what came.

The texts are compared whole, on every implementation, so that none of them ever prints the wrong variable. Then random
calls: whatever is thrown at an attention, it answers with finite numbers or with an error of ours.
"""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lib import fast, reference
from tests.rules import raised

FUNCTIONS = {
    "reference": (reference.attention, np.asarray, "numpy.ndarray"),
    "streaming": (reference.streaming_attention, np.asarray, "numpy.ndarray"),
    "fast": (fast.attention, torch.as_tensor, "torch.Tensor"),
}


def arrays(L=4, S=5, dtype="float32", heads=3, kv_heads=3):
    shapes = {"query": (2, heads, L, 6), "key": (2, kv_heads, S, 6), "value": (2, kv_heads, S, 2)}
    return {name: np.zeros(shape, dtype) for name, shape in shapes.items()}


def zeros(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


A = arrays()
MASK, BIAS = "mask must be boolean (True = may attend), got ", "bias must have query's dtype float32, got "
ADDITIVE = "; an additive mask (0 and -inf) goes to bias="
FLOATING = " must be floating (float16, bfloat16, float32 or float64), got "
PAIR = "window must be a pair (left, right) of integers or None, got "
OFFSET = "offset must be an integer, or integers of shape (B,), got "
SCORES = " must broadcast to the scores' shape (..., L, S) = (2, 3, 4, 5), got "
ALIGNMENTS = (
    " needs offset= because there are L = 4 queries and S = 5 keys, and two alignments are in use: offset=0 puts the "
    "first query at the first key (top-left, as torch's is_causal does); offset=1 puts the last query at the last key "
    "(bottom-right, as decoding with a cache needs)"
)
WRONG = [
    # arrays: type, dtype, shape
    *((TypeError, {name: zeros(2, 5, 6, dtype=dtype)}, f"{name}{FLOATING}{dtype}")
      for name in ("query", "key", "value") for dtype in ("int64", "bool", "complex64", "uint8")),
    (TypeError, {"key": A["key"].astype("float64")},
     "query, key and value must share one dtype, got query float32, key float64, value float32"),
    (TypeError, {"query": A["query"].astype("float16")},
     "query, key and value must share one dtype, got query float16, key float32, value float32"),
    (ValueError, {"query": zeros(6)}, "query must have shape (..., L, E), got (6,)"),
    (ValueError, {"key": zeros(6)}, "key must have shape (..., S, E), got (6,)"),
    (ValueError, {"value": zeros()}, "value must have shape (..., S, Ev), got ()"),
    (ValueError, {"key": zeros(2, 3, 5, 7)}, "key must have shape (..., S, E) with query's E = 6, got (2, 3, 5, 7)"),
    (ValueError, {"value": zeros(2, 3, 4, 2)}, "value must have shape (..., S, Ev) with key's S = 5, got (2, 3, 4, 2)"),
    (ValueError, {"query": zeros(4, 3, 4, 6)},
     "the leading axes of query (4, 3, 4, 6), key (2, 3, 5, 6) and value (2, 3, 5, 2) must broadcast"),
    (ValueError, {"key": zeros(2, 5, 6), "value": zeros(2, 5, 2)},
     "the leading axes of query (2, 3, 4, 6), key (2, 5, 6) and value (2, 5, 2) must broadcast; for fewer key/value "
     "heads than query heads pass enable_gqa=True"),
    (ValueError, {"query": zeros(4, 4, 6), "key": zeros(2, 5, 6), "value": zeros(2, 5, 2)},
     "the leading axes of query (4, 4, 6), key (2, 5, 6) and value (2, 5, 2) must broadcast; for fewer key/value "
     "heads than query heads pass enable_gqa=True"),
    (ValueError, {"query": zeros(4, 6), "key": zeros(2, 5, 6), "value": zeros(3, 5, 2)},
     "the leading axes of query (4, 6), key (2, 5, 6) and value (3, 5, 2) must broadcast"),
    # mask and bias
    *((TypeError, {"mask": zeros(4, 5, dtype=dtype)}, MASK + dtype + ADDITIVE)
      for dtype in ("float32", "int64", "uint8")),
    (TypeError, {"bias": zeros(4, 5, dtype="bool")},
     "bias must be floating and is added to the scores, got bool; a boolean mask goes to mask="),
    *((TypeError, {"bias": zeros(4, 5, dtype=dtype)}, BIAS + dtype) for dtype in ("float64", "float16", "int64")),
    *((ValueError, {"mask": zeros(*shape, dtype="bool")}, f"mask{SCORES}{shape}")
      for shape in ((4, 4), (5, 4), (3, 1, 4, 5), (1, 2, 3, 4, 5), (2, 4, 5), (0, 5))),
    *((ValueError, {"bias": zeros(*shape)}, f"bias{SCORES}{shape}") for shape in ((4, 4), (2, 4, 5), (6,))),
    # flags
    *((TypeError, {name: flag}, f"{name} must be True or False, got {shown}")
      for name in ("causal", "enable_gqa")
      for flag, shown in ((1, "1 (int)"), (None, "None (NoneType)"), ("yes", "'yes' (str)"))),
    # window
    *((TypeError, {"window": window, "offset": 0}, PAIR + shown) for window, shown in (
        (2, "2 (int)"), ((1,), "(1,) (tuple)"), ((1, 2, 3), "(1, 2, 3) (tuple)"), ("12", "'12' (str)"),
        (np.array([1, 2]), "array([1, 2]) (ndarray)"), (True, "True (bool)"))),
    (TypeError, {"window": (1.0, 0), "offset": 0}, "window's left side must be an integer, got 1.0 (float)"),
    (TypeError, {"window": (1, "0"), "offset": 0}, "window's right side must be an integer, got '0' (str)"),
    (TypeError, {"window": (True, 0), "offset": 0}, "window's left side must be an integer, got True (bool)"),
    (ValueError, {"window": (-1, 0), "offset": 0}, "window's left side must be 0 or more (None for no bound), got -1"),
    (ValueError, {"window": [0, -3], "offset": 0}, "window's right side must be 0 or more (None for no bound), got -3"),
    # alignment and offset
    (ValueError, {"causal": True}, "causal" + ALIGNMENTS),
    (ValueError, {"window": (1, None)}, "window" + ALIGNMENTS),
    (ValueError, {"causal": True, "window": (1, None)}, "causal" + ALIGNMENTS),
    *((TypeError, {"offset": offset}, f"offset must be an integer, got {shown}") for offset, shown in (
        (1.0, "1.0 (float)"), (True, "True (bool)"), ("1", "'1' (str)"), (np.float32(1), "1.0 (float)"),
        (np.array(2.5), "2.5 (float)"), (np.True_, "True (bool)"))),
    (TypeError, {"offset": [0.0, 1.0]}, OFFSET + "float64"),
    (TypeError, {"offset": [[0], [1, 2]]}, OFFSET + "[[0], [1, 2]] (list)"),
    (TypeError, {"offset": [True, False]}, OFFSET + "bool"),
    *((ValueError, {"offset": offset},
       f"offset must be one integer, or one for each batch entry: shape (2,), got {shape}")
      for offset, shape in (([0, 1, 2], (3,)), ([], (0,)), (np.zeros((2, 3, 4), int), (2, 3, 4)),
                            (np.zeros((2, 4), int), (2, 4)), (np.zeros((3, 3), int), (3, 3)))),
    (ValueError, {"offset": 2**61 + 1}, f"offset must lie between -2**61 and 2**61, got {2**61 + 1}"),
    (ValueError, {"offset": -(2**70)}, f"offset must lie between -2**61 and 2**61, got {-(2**70)}"),
    (ValueError, {"offset": np.array([0, 2**63 - 1])}, f"offset must lie between -2**61 and 2**61, got {2**63 - 1}"),
    (ValueError, {"offset": np.array([0, -(2**62)])}, f"offset must lie between -2**61 and 2**61, got {-(2**62)}"),
    # scale and softcap
    *((TypeError, {name: number}, f"{name} must be a real number, got {shown}")
      for name in ("scale", "softcap")
      for number, shown in (("1", "'1' (str)"), (True, "True (bool)"), (1j, "1j (complex)"), ([1.0], "[1.0] (list)"),
                            (np.complex64(1), f"{np.complex64(1)!r} (complex64)"), (np.True_, "np.True_ (bool)"))),
    *((ValueError, {name: number}, f"{name} must be finite, got {shown}")
      for name in ("scale", "softcap")
      for number, shown in ((float("nan"), "nan (float)"), (float("-inf"), "-inf (float)"),
                            (10**400, "1" + "0" * 56 + "... (int)"), (np.float32("inf"), "np.float32(inf) (float32)"))),
    (ValueError, {"softcap": 0}, "softcap must be positive (None for no cap), got 0.0"),
    (ValueError, {"softcap": -2.5}, "softcap must be positive (None for no cap), got -2.5"),
    # grouped heads
    (ValueError, {"enable_gqa": True, **arrays(kv_heads=2)},
     "the query heads (3) must be divisible by the key/value heads (2)"),
    (ValueError, {"enable_gqa": True, **arrays(kv_heads=0)},
     "the query heads (3) must be divisible by the key/value heads (0)"),
    (ValueError, {"enable_gqa": True, "value": zeros(2, 1, 5, 2)}, "value must have as many heads as key, 3, got 1"),
    *((ValueError, {"enable_gqa": True, name: zeros(*shape)},
       f"{name} must have a head axis (..., heads, length, size) with enable_gqa, got {shape}")
      for name, shape in (("query", (4, 6)), ("key", (5, 6)), ("value", (5, 2)))),
]  # fmt: skip


def call_with(function, make, wrong):
    """Call with good arrays, except for what is wrong; lists and numbers stay what they are."""
    options = {**A, **wrong}
    made = {
        name: make(x) if isinstance(x, np.ndarray) and x.dtype.kind in "biufc" and name != "window" else x
        for name, x in options.items()
    }
    return function(made.pop("query"), made.pop("key"), made.pop("value"), **made)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("kind", "wrong", "text"), WRONG, ids=[f"{next(iter(wrong))}: {text}"[:90] for _, wrong, text in WRONG]
)
def test_error_says_what_is_wrong(name, kind, wrong, text):
    function, make, _ = FUNCTIONS[name]
    assert raised(kind, call_with, function, make, wrong) == text


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("argument", ["query", "key", "value", "mask", "bias"])
def test_arrays_must_be_of_the_frameworks_own_type(name, argument):
    function, make, wanted = FUNCTIONS[name]
    other, hint = (
        (torch.zeros(2, 5, 6), "torch.Tensor; lib.fast takes tensors")
        if wanted == "numpy.ndarray"
        else (zeros(2, 5, 6), "numpy.ndarray; lib.reference takes NumPy arrays")
    )
    for wrong, shown in ([[1.0]], "list"), (1.5, "float"), ("abc", "str"), (other, hint):
        good = {key: make(x) for key, x in A.items()}
        text = raised(TypeError, function, **{**good, argument: wrong})
        assert text == f"{argument} must be a {wanted}, got {shown}"
    for missing in ("query", "key", "value"):
        text = raised(TypeError, function, **{**{key: make(x) for key, x in A.items()}, missing: None})
        assert text == f"{missing} must be a {wanted}, got NoneType"


@pytest.mark.parametrize("function", [reference.attention, reference.streaming_attention])
def test_arrays_of_another_algebra_are_refused(function):
    for argument in ("query", "key", "value", "mask", "bias"):
        text = raised(TypeError, function, **{**A, argument: np.ma.masked_array(zeros(4, 5))})
        assert text == f"{argument} must be a plain numpy.ndarray, got a masked array: pass its mask as mask="
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            matrix = np.matrix(zeros(4, 5))
        text = raised(TypeError, function, **{**A, argument: matrix})
        assert text == f"{argument} must be a plain numpy.ndarray, got a numpy.matrix: pass numpy.asarray({argument})"


def test_a_tensor_offset_does_not_belong_to_arrays():
    text = raised(TypeError, reference.attention, **A, causal=True, offset=torch.tensor([0, 1]))
    assert text == "offset must be a numpy.ndarray, got torch.Tensor; lib.fast takes tensors"


def test_arrays_and_lists_are_offsets_for_tensors_too():
    tensors = {name: torch.as_tensor(x) for name, x in A.items()}
    for offset in ([0, 1], (0, 1), np.array([0, 1], np.uint8), torch.tensor([0, 1]), torch.tensor([0, 1]).int()):
        assert fast.attention(**tensors, causal=True, offset=offset).shape == (2, 3, 4, 2)
    assert fast.attention(**tensors, causal=True, offset=torch.tensor(1)).shape == (2, 3, 4, 2)


def test_everything_on_one_device():
    for argument in ("key", "value", "mask", "bias"):
        good = {name: torch.as_tensor(x) for name, x in A.items()}
        shape, dtype = ((2, 3, 5, 6), torch.bool if argument == "mask" else torch.float32)
        text = raised(ValueError, fast.attention, **{**good, argument: torch.zeros(shape, dtype=dtype, device="meta")})
        assert text == f"{argument} must be on query's device cpu, got meta"


FAST_ONLY = [
    (TypeError, {"return_weights": 1}, "return_weights must be True or False, got 1 (int)"),
    (TypeError, {"dropout_p": "0"}, "dropout_p must be a real number, got '0' (str)"),
    (TypeError, {"dropout_p": None}, "dropout_p must be a real number, got None (NoneType)"),
    (ValueError, {"dropout_p": float("nan")}, "dropout_p must be finite, got nan (float)"),
    (ValueError, {"dropout_p": -0.1}, "dropout_p must lie between 0 and 1, got -0.1"),
    (ValueError, {"dropout_p": 1.5}, "dropout_p must lie between 0 and 1, got 1.5"),
    (ValueError, {"backend": "flash"}, "backend must be one of auto, sdpa, triton, math, got 'flash'"),
    (ValueError, {"backend": None}, "backend must be one of auto, sdpa, triton, math, got None"),
    (ValueError, {"backend": ["math"]}, "backend must be one of auto, sdpa, triton, math, got ['math']"),
    (ValueError, {"backend": np.array(["a", "b"])},
     "backend must be one of auto, sdpa, triton, math, got array(['a', 'b'], dtype='<U1')"),
    (ValueError, {"backend": "sdpa", "softcap": 1.0},
     "backend 'sdpa' has no softcap; use backend='auto' or 'math'"),
    (ValueError, {"backend": "sdpa", "return_weights": True},
     "backend 'sdpa' has no return_weights; use backend='auto' or 'math'"),
    (ValueError, {"backend": "sdpa", "softcap": 1.0, "return_weights": True},
     "backend 'sdpa' has no softcap and no return_weights; use backend='auto' or 'math'"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "wrong", "text"), FAST_ONLY, ids=[text[:60] for *_, text in FAST_ONLY])
def test_error_of_the_fast_one_says_what_is_wrong(kind, wrong, text):
    tensors = {name: torch.as_tensor(x) for name, x in A.items()}
    assert raised(kind, fast.attention, **tensors, **wrong) == text


def test_return_weights_is_a_flag_in_the_reference_too():
    for flag, shown in ((0, "0 (int)"), ("no", "'no' (str)"), (None, "None (NoneType)")):
        text = raised(TypeError, reference.attention, **A, return_weights=flag)
        assert text == f"return_weights must be True or False, got {shown}"
    assert reference.attention(**A, return_weights=np.False_).shape == (2, 3, 4, 2)


def test_options_are_named():
    for function, make, _ in FUNCTIONS.values():
        good = [make(x) for x in A.values()]
        assert "positional" in raised(TypeError, function, *good, make(np.ones((4, 5), bool)))
        assert "attn_mask" in raised(TypeError, function, *good, attn_mask=None)


# Random calls. Sizes are small, values and numbers anything that is finite, up to the ends of the range.

SIZES = st.integers(0, 3)


@st.composite
def calls(draw):
    """Draw a call that is right in its shapes and dtypes, and wild in its numbers."""
    dtype = draw(st.sampled_from(["float16", "float32", "float64"]))
    B, H, L, S, E, Ev = (draw(SIZES) for _ in range(6))
    gqa = draw(st.booleans())
    G = draw(st.sampled_from([g for g in range(1, 4) if H % g == 0])) if gqa else H
    floats = st.floats(width=np.dtype(dtype).itemsize * 8, allow_nan=False, allow_infinity=False)

    def array(*shape):
        return draw(hnp.arrays(dtype, shape, elements=floats))

    options = {"enable_gqa": gqa}
    if draw(st.booleans()):
        options["mask"] = draw(hnp.arrays(bool, draw(st.sampled_from([(L, S), (1, S), (B, 1, L, S), (B, H, L, 1)]))))
    if draw(st.booleans()):
        elements = floats | st.just(float("-inf"))
        options["bias"] = draw(hnp.arrays(dtype, draw(st.sampled_from([(L, S), (H, L, S)])), elements=elements))
    if draw(st.booleans()):
        options["causal"] = True
    if draw(st.booleans()):
        sides = st.none() | st.integers(0, 4) | st.integers(2**62, 2**65)
        options["window"] = (draw(sides), draw(sides))
    if draw(st.booleans()) or L != S:
        offsets = st.integers(-4, 4) | st.integers(-(2**61), 2**61)
        options["offset"] = draw(offsets | hnp.arrays(np.int64, (B,), elements=st.integers(-(2**61), 2**61)))
    if draw(st.booleans()):
        options["scale"] = draw(st.floats(allow_nan=False, allow_infinity=False))
    if draw(st.booleans()):
        options["softcap"] = draw(st.floats(min_value=0, exclude_min=True, allow_infinity=False))
    return (array(B, H, L, E), array(B, G, S, E), array(B, G, S, Ev)), options


END = float(np.finfo(np.float64).max)


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(
    derandomize=True, deadline=None, max_examples=150, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(call=calls())
@example(call=((np.full((1, 1, 1, 1), END),) * 3, {"scale": END}))
@example(call=((np.full((1, 1, 3, 2), END), np.full((1, 1, 3, 2), -END), np.full((1, 1, 3, 1), END)), {"scale": 0.0}))
@example(call=((np.full((1, 1, 1, 1), 3e38, "f4"),) * 3, {"bias": np.full((1, 1), -3e38, "f4"), "softcap": 1e-60}))
def test_random_calls_give_finite_numbers_inside_the_hull(name, call):
    (query, key, value), options = call
    function, make, _ = FUNCTIONS[name]
    options = {k: make(x) if isinstance(x, np.ndarray) else x for k, x in options.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output = np.asarray(function(make(query), make(key), make(value), **options))
    assert output.dtype == query.dtype
    assert np.isfinite(output).all()
    if value.size and output.size:
        repeats = output.shape[1] // value.shape[1]
        low, high = (f(value.astype(float), axis=-2, keepdims=True) for f in (np.min, np.max))
        low, high = (np.repeat(x, repeats, axis=1) for x in (np.minimum(low, 0), np.maximum(high, 0)))  # empty rows: 0
        eps, least = (float(getattr(np.finfo(query.dtype), x)) for x in ("eps", "smallest_subnormal"))
        shrunk = output / (1 + 4 * eps)
        assert (shrunk >= low - 8 * least).all()
        assert (shrunk <= high + 8 * least).all()


ANYTHING = st.sampled_from(
    [None, True, False, 0, 1, -1, 2**70, 0.5, float("nan"), float("inf"), 1j, "x", b"x", (), (1,), (1, 2), (None, -1),
     [0, 1], {}, object(), len, np.zeros(3), np.zeros((4, 5), bool), np.zeros((2, 3, 4, 5), np.float32), np.array("x"),
     np.zeros((4, 5), object), np.float16(2), np.int8(1), torch.zeros(4, 5), torch.tensor(1), torch.zeros(2).long()]
)  # fmt: skip
NAMES = ("query", "key", "value", "mask", "bias", "causal", "window", "offset", "scale", "softcap", "enable_gqa")


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(derandomize=True, deadline=None, max_examples=300, database=None)
@given(wrong=st.dictionaries(st.sampled_from(NAMES), ANYTHING, min_size=1, max_size=3))
def test_random_arguments_are_answered_or_refused_by_name(name, wrong):
    function, make, _ = FUNCTIONS[name]
    try:
        call_with(function, make, wrong)
    except (TypeError, ValueError) as error:
        assert any(argument in str(error) for argument in wrong) or "offset=" in str(error)
