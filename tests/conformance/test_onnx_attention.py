"""All 93 Attention cases of onnx 1.23.2, which nobody here wrote: every output of every case.

``reference`` gives every output of the operator. ``streaming_attention`` has no weights, and ``fast`` gives weights but
no scores; what they cannot give is taken from ``wanted``, and the number of arrays compared is asserted, so that
nothing drops out unseen.
"""

from collections import Counter

import numpy as np
import pytest

from lib import reference
from tests.conformance import onnx_adapter

CASES = onnx_adapter.cases("Attention")
ATOL = {"float32": 1e-7, "float16": 5e-4, "bfloat16": 5e-3}


def tiles(*arrays, **options):
    return reference.streaming_attention(*arrays, **options, block_q=2, block_k=3)


SCORES = {onnx_adapter.RAW, onnx_adapter.SOFTCAPPED, onnx_adapter.BIASED}
SCORES_AND_WEIGHTS = SCORES | {onnx_adapter.WEIGHTS}
IMPLEMENTATIONS = {  # and the modes of qk_matmul_output that each cannot give
    "reference": (reference.attention, set()),
    "streaming": (reference.streaming_attention, SCORES_AND_WEIGHTS),
    "streaming-tiles": (tiles, SCORES_AND_WEIGHTS),
    "fast-auto": (onnx_adapter.fast_attention, SCORES),
    "fast-math": (onnx_adapter.fast_math_attention, SCORES),
}


def wanted(case, lacking):
    mode = case.attributes.get("qk_matmul_output_mode", onnx_adapter.RAW)
    return [slot for slot in case.outputs if slot != "qk_matmul_output" or mode not in lacking]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_gives_the_expected_outputs(case, name):
    attend, lacking = IMPLEMENTATIONS[name]
    slots = wanted(case, lacking)
    given = onnx_adapter.attention(attend, case.attributes, case.inputs, slots)
    for slot in slots:
        expected = case.outputs[slot]
        assert given[slot].dtype == expected.dtype, slot
        assert given[slot].shape == expected.shape, slot
        np.testing.assert_allclose(
            given[slot].astype(np.float64), expected.astype(np.float64), rtol=1e-3, atol=ATOL[expected.dtype.name],
            err_msg=slot,
        )  # fmt: skip


def test_the_suite_is_whole():
    assert len(CASES) == len({case.name for case in CASES}) == 93
    operator_versions = Counter(case.model.opset_import[0].version for case in CASES)
    assert operator_versions == {23: 69, 24: 13, 25: 11}
    assert Counter(case.inputs["Q"].dtype.name for case in CASES) == {"float32": 82, "float16": 6, "bfloat16": 5}
    assert Counter(case.inputs["Q"].ndim for case in CASES) == {4: 68, 3: 25}


def test_no_output_is_left_uncompared():
    """The expected outputs, and how many of them each implementation is asked for: 18 are scores or weights."""
    slots = Counter(slot for case in CASES for slot in case.outputs)
    assert slots == {"Y": 93, "present_key": 21, "present_value": 21, "qk_matmul_output": 18}
    shown = [case for case in CASES if "qk_matmul_output" in case.outputs]
    modes = Counter(case.attributes.get("qk_matmul_output_mode", onnx_adapter.RAW) for case in shown)
    assert modes == {
        onnx_adapter.RAW: 3, onnx_adapter.SOFTCAPPED: 2, onnx_adapter.BIASED: 7, onnx_adapter.WEIGHTS: 6,
    }  # fmt: skip
    compared = {
        name: sum(len(wanted(case, lacking)) for case in CASES) for name, (_, lacking) in IMPLEMENTATIONS.items()
    }
    assert compared == {
        "reference": 153, "streaming": 135, "streaming-tiles": 135, "fast-auto": 141, "fast-math": 141,
    }  # fmt: skip
