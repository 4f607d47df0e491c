"""All 8 RotaryEmbedding cases of onnx 1.23.2.

The cases bring tables of cosines and sines that are random numbers, so they check which features are paired, how a
pair is turned, and which row of a table belongs to which token: ``rotate_pairs``. For the angles themselves the same
nodes are run by ONNX's own evaluator with tables of true cosines, and ``rotary`` must agree with it.
"""

import numpy as np
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from lib import fast, reference
from tests.conformance import onnx_adapter

CASES = onnx_adapter.cases("RotaryEmbedding")
ROTATE_PAIRS = {"reference": reference.rotate_pairs, "fast": onnx_adapter.fast_rotate_pairs}
BASE = 10000.0


def test_the_suite_is_whole():
    assert len(CASES) == len({case.name for case in CASES}) == 8
    assert sum("interleaved" in case.attributes for case in CASES) == 3
    assert sum("rotary_embedding_dim" in case.attributes for case in CASES) == 3
    assert sum("position_ids" in case.inputs for case in CASES) == 5
    assert sum(case.inputs["X"].ndim == 3 for case in CASES) == 1


@pytest.mark.parametrize("name", ROTATE_PAIRS)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_gives_the_expected_output(case, name):
    given = onnx_adapter.rotary(ROTATE_PAIRS[name], case.attributes, case.inputs)
    assert given.dtype == case.outputs["Y"].dtype
    np.testing.assert_allclose(given, case.outputs["Y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_true_cosines_give_what_rotary_gives(case):
    x = case.inputs["X"]
    B, L = x.shape[0], x.shape[-2]
    positions = case.inputs.get("position_ids", np.arange(B * L).reshape(B, L))  # (B, L)
    pairs = case.inputs["cos_cache"].shape[-1]
    angles = np.arange(50)[:, None] * BASE ** (-np.arange(pairs) / pairs)  # (50, pairs)
    tables = {"cos_cache": np.cos(angles), "sin_cache": np.sin(angles)}
    if "position_ids" not in case.inputs:
        tables = {name: table[positions] for name, table in tables.items()}  # (B, L, pairs)
    inputs = case.inputs | {name: table.astype(x.dtype) for name, table in tables.items()}
    names = [name for name in case.model.graph.node[0].input if name]
    (expected,) = ReferenceEvaluator(case.model).run(None, dict(zip(names, inputs.values(), strict=True)))

    heads = reference.split_heads(x, case.attributes["num_heads"]) if x.ndim == 3 else x
    options = {"pairing": "interleaved" if case.attributes.get("interleaved") else "half"}
    options |= {"rotary_dim": case.attributes.get("rotary_embedding_dim"), "base": BASE}
    for turned in (
        reference.rotary(heads, positions, **options),
        fast.rotary(torch.tensor(heads), torch.tensor(positions), **options).numpy(),
    ):
        turned = reference.merge_heads(turned) if x.ndim == 3 else turned
        np.testing.assert_allclose(turned, expected, rtol=1e-5, atol=1e-6)
