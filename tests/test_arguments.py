"""What the checks give back: every default filled in, for arrays and tensors alike. (Errors: test_bad_input.py.)"""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from lib import arguments
from tests.rules import raised

X = np.zeros((2, 3, 4, 6))


def check(query=X, key=X, value=X, **options):
    return arguments.check(np.ndarray, query, key, value, **options)


def test_sizes_and_defaults():
    call = check(np.zeros((2, 3, 4, 6)), np.zeros((2, 3, 5, 6)), np.zeros((2, 3, 5, 7)))
    assert call == arguments.Call((2, 3), 4, 5, 6, 7, 1, 1 / math.sqrt(6), None, False, (None, None), 0)
    assert call.scores_shape == (2, 3, 4, 5)
    tensors = torch.zeros(2, 3, 4, 6), torch.zeros(2, 3, 5, 6), torch.zeros(2, 3, 5, 7)
    assert arguments.check(torch.Tensor, *tensors) == call


def test_leading_axes_are_broadcast():
    assert check(np.zeros((2, 1, 4, 6)), np.zeros((3, 5, 6)), np.zeros((5, 1, 1, 5, 7))).batch == (5, 2, 3)
    assert check(np.zeros((4, 6)), np.zeros((5, 6)), np.zeros((5, 7))).batch == ()


@pytest.mark.parametrize(("H", "G", "repeats"), [(6, 2, 3), (4, 4, 1), (3, 1, 3), (0, 0, 1), (0, 2, 0)])
def test_grouped_heads(H, G, repeats):
    call = check(np.zeros((2, H, 4, 6)), np.zeros((2, G, 5, 6)), np.zeros((2, G, 5, 6)), enable_gqa=True)
    assert call.batch == (2, H)
    assert call.repeats == repeats


@pytest.mark.parametrize("E", [0, 1, 2, 64])
def test_scale_is_one_over_the_root_of_the_head_size(E):
    assert check(*[np.zeros((3, E))] * 3).scale == 1 / math.sqrt(max(E, 1))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(0, 0.0), (-1, -1.0), (0.5, 0.5), (np.float16(0.5), 0.5), (np.int8(3), 3.0), (Fraction(1, 4), 0.25),
     (10**300, 1e300), (np.longdouble(2), 2.0)],
)  # fmt: skip
def test_numbers_become_floats(given, wanted):
    scale = check(scale=given).scale
    assert scale == wanted
    assert type(scale) is float
    if wanted > 0:
        assert check(softcap=given).softcap == wanted


def test_long_doubles_beyond_float_are_not_finite():
    huge = np.longdouble("1e4000")
    assert raised(ValueError, check, scale=huge) == f"scale must be finite, got {huge!r} (longdouble)"


@pytest.mark.parametrize("flag", [True, np.True_])
def test_flags_become_bool(flag):
    assert check(causal=flag).causal is True


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(None, (None, None)), ((None, None), (None, None)), ([1, 2], (1, 2)), ((np.int8(1), None), (1, None)),
     ((0, 2**70), (0, 2**61))],
)  # fmt: skip
def test_windows_become_pairs(given, wanted):
    assert check(window=given).window == wanted


@pytest.mark.parametrize("given", [3, np.int8(3), np.array(3), torch.tensor(3)])
def test_single_offsets_become_int(given):
    offset = check(offset=given).offset
    assert offset == 3
    assert type(offset) is int
    assert check(offset=2**61).offset == 2**61
    assert check(offset=-(2**61)).offset == -(2**61)


@pytest.mark.parametrize("given", [[1, 2], (1, 2), np.array([1, 2], np.uint8)])
def test_offsets_of_batch_entries_face_the_queries(given):
    offset = check(offset=given).offset
    assert offset.shape == (2, 1, 1)
    assert offset.ravel().tolist() == [1, 2]
    assert check(np.zeros((2, 4, 6)), np.zeros((2, 4, 6)), np.zeros((2, 4, 6)), offset=given).offset.shape == (2, 1)
    assert check(offset=np.zeros((2, 3), int)).offset.shape == (2, 3, 1)
    assert check(offset=[5]).offset.shape == (1, 1, 1)
    tensors = [torch.zeros(2, 3, 4, 6)] * 3
    assert arguments.check(torch.Tensor, *tensors, offset=torch.tensor([1, 2])).offset.shape == (2, 1, 1)


def test_offsets_at_the_ends():
    assert check(offset=np.array([2**61, -(2**61)])).offset.ravel().tolist() == [2**61, -(2**61)]
    for bad in (2**61 + 1, -(2**61) - 1):
        assert str(bad) in raised(ValueError, check, offset=np.array([0, bad]))
    unsigned = np.array([0, 2**64 - 1], np.uint64)
    assert raised(ValueError, check, offset=unsigned).endswith(f"got {2**64 - 1}")


def test_offsets_on_a_device_are_not_looked_at():
    tensors = [torch.zeros(2, 3, 4, 6, device="meta")] * 3
    offset = torch.zeros(2, dtype=torch.int64, device="meta")
    assert arguments.check(torch.Tensor, *tensors, offset=offset).offset.shape == (2, 1, 1)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble", ">f4", ml_dtypes.bfloat16])
def test_floating_dtypes_of_numpy(dtype):
    x = np.zeros((3, 2), dtype)
    assert check(x, x, x, bias=np.zeros((3, 3), dtype)).L == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_dtypes_of_torch(dtype):
    x = torch.zeros(3, 2, dtype=dtype)
    assert arguments.check(torch.Tensor, x, x, x, bias=torch.zeros(3, 3, dtype=dtype)).L == 3


def test_eight_bit_floats_are_refused():
    x = torch.zeros(3, 2).to(torch.float8_e4m3fn)
    text = raised(TypeError, arguments.check, torch.Tensor, x, x, x)
    assert text == "query must be floating (float16, bfloat16, float32 or float64), got float8_e4m3fn"


@pytest.mark.parametrize(
    "shape", [(), (1,), (5,), (1, 1), (4, 5), (1, 5), (3, 4, 5), (2, 3, 4, 5), (2, 1, 1, 1), (1, 3, 4, 1)]
)
def test_masks_and_biases_that_broadcast_are_welcome(shape):
    arrays = np.zeros((2, 3, 4, 6)), np.zeros((2, 3, 5, 6)), np.zeros((2, 3, 5, 6))
    assert check(*arrays, mask=np.ones(shape, bool), bias=np.zeros(shape)).scores_shape == (2, 3, 4, 5)


def test_dtype_names_are_the_same_for_both_frameworks():
    for name in ("float16", "float32", "float64", "int64", "bool"):
        assert arguments.dtype_name(np.zeros(1, name)) == name
        assert arguments.dtype_name(torch.zeros(1, dtype=getattr(torch, name))) == name


def test_integers():
    assert arguments.require_integer("n", np.int16(3)) == 3
    assert type(arguments.require_integer("n", np.int16(3))) is int
    assert arguments.require_integer("n", 0, 0) == 0
    assert raised(ValueError, arguments.require_integer, "n", 0, 1) == "n must be 1 or more, got 0"
    for wrong in (1.0, True, None, "1"):
        text = raised(TypeError, arguments.require_integer, "n", wrong, 1)
        assert text == f"n must be an integer, got {wrong!r} ({type(wrong).__name__})"


def test_long_things_are_shown_in_part():
    assert raised(TypeError, check, scale="x" * 58) == f"scale must be a real number, got '{'x' * 58}' (str)"
    assert raised(TypeError, check, scale="x" * 59) == f"scale must be a real number, got '{'x' * 56}... (str)"


def test_the_hint_at_grouped_heads_comes_only_where_it_may_help():
    hint = "pass enable_gqa=True"
    four, two = np.zeros((2, 4, 5, 6)), np.zeros((2, 2, 5, 6))
    assert hint in raised(ValueError, check, four, two, two)
    assert hint not in raised(ValueError, check, four, np.zeros((3, 4, 5, 6)), np.zeros((3, 4, 5, 6)))
    assert hint not in raised(ValueError, check, four, four, np.zeros((3, 5, 6)))
    assert hint not in raised(ValueError, check, np.zeros((3, 4, 5, 6)), two, two, enable_gqa=True)
