"""Four numerical mistakes that onnx's 93 Attention cases cannot see, and the tests that do.

Each mistake is made in lib itself, by exchanging one function for a wrong one. All 93 cases still pass, which shows
that they are no proof of it; then a check that the right implementations pass must fail. Should a later suite see one
of the four, the first half fails, and the list gets shorter.
"""

import sys

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from lib import reference
from tests.conformance import onnx_adapter
from tests.conformance.test_onnx_attention import ATOL, CASES
from tests.implementations import IMPLEMENTATIONS

# The mistakes. Each is reference.softmax with one line wrong, and still gives zeros for a row of −∞.


def no_maximum(scores):
    return share_out(np.exp(scores))


def one_maximum_for_all_rows(scores):
    top = scores.max(initial=-np.inf)
    return share_out(np.exp(scores - (0 if np.isneginf(top) else top)))


def epsilon_in_the_denominator(scores):
    return share_out(np.exp(scores - row_maximum(scores)), epsilon=1e-6)


def row_maximum(scores):
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    return np.where(np.isneginf(top), 0, top)


def share_out(exponentials, epsilon=0.0):
    total = exponentials.sum(-1, keepdims=True) + exponentials.dtype.type(epsilon)
    return exponentials / np.where(total == 0, 1, total)


def short_mask_allows(mask, S):
    """Pad a short mask with what allows: True, or 0."""
    missing = [(0, 0)] * (mask.ndim - 1) + [(0, S - mask.shape[-1])]
    return np.pad(mask, missing, constant_values=mask.dtype == bool)


# Where attention looks it up: the module, since lib.reference.attention is the function of that name.
SOFTMAX = sys.modules["lib.reference.attention"], "softmax"


# The checks. Each takes an attention function on NumPy arrays.


def large_scores_are_shared_out(attend):
    """Scores 2000 and 2000, values 2 and 8: the average, 5. exp(2000) is beyond float64 too."""
    query, key, value = np.array([[2000.0]]), np.ones((2, 1)), np.array([[2.0], [8.0]])
    np.testing.assert_allclose(attend(query, key, value), [[5.0]], rtol=1e-13)


def a_row_does_not_depend_on_another_rows_scores(attend):
    """Two equal scores of 0 in one row, and of 2000 in the next: each row is shared out by itself."""
    query, key, value = np.array([[0.0], [2000.0]]), np.ones((2, 1)), np.array([[2.0], [8.0]])
    np.testing.assert_allclose(attend(query, key, value), [[5.0], [5.0]], rtol=1e-13)


def weights_sum_to_one_in_float64(attend):
    """A constant value comes back as it is. One key has weight 1, the sum of exponentials that is the smallest."""
    for S in (1, 2, 50):
        keys = np.linspace(-3, 3, S)[:, None]
        np.testing.assert_allclose(attend(np.ones((1, 1)), keys, np.ones((S, 1))), [[1.0]], rtol=1e-13)


NUMERICAL = {
    no_maximum: large_scores_are_shared_out,
    one_maximum_for_all_rows: a_row_does_not_depend_on_another_rows_scores,
    epsilon_in_the_denominator: weights_sum_to_one_in_float64,
}


def assert_all_cases_pass():
    for case in CASES:
        given = onnx_adapter.attention(reference.attention, case.attributes, case.inputs, case.outputs)
        for slot, expected in case.outputs.items():
            ours, theirs = given[slot].astype(np.float64), expected.astype(np.float64)
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=ATOL[expected.dtype.name], err_msg=case.name)


@pytest.mark.parametrize("mistake", NUMERICAL, ids=lambda mistake: mistake.__name__)
def test_the_suite_passes_what_ours_does_not(mistake, monkeypatch):
    used = []
    monkeypatch.setattr(*SOFTMAX, lambda scores: used.append(mistake) or mistake(scores))
    assert_all_cases_pass()
    assert len(used) >= 93
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        NUMERICAL[mistake](reference.attention)


@pytest.mark.parametrize("check", NUMERICAL.values(), ids=lambda check: check.__name__)
@pytest.mark.parametrize("attend", IMPLEMENTATIONS, ids=repr)
def test_ours_passes_what_is_right(attend, check):
    check(attend)


def test_the_suite_sees_a_softmax_along_the_wrong_axis(monkeypatch):
    """The exchange has an effect: a mistake that the suite can see is seen."""
    monkeypatch.setattr(*SOFTMAX, lambda scores: share_out(np.exp(scores).swapaxes(-1, -2)).swapaxes(-1, -2))
    with pytest.raises(AssertionError, match="attention_"):
        assert_all_cases_pass()


# A short mask


def a_short_mask_hides_the_rest(given, bias):
    """One mask entry for two keys of equal scores, values 2 and 8. What it does not mention is hidden: 2, not 5."""
    case = next(case for case in CASES if case.name == f"attention_4d_attn_mask{'' if bias else '_bool'}")
    inputs = {"Q": np.zeros((1, 1, 1, 1)), "K": np.zeros((1, 1, 2, 1)), "V": np.array([2.0, 8.0]).reshape(1, 1, 2, 1)}
    inputs = {slot: x.astype(np.float32) for slot, x in inputs.items()}
    inputs["attn_mask"] = np.zeros((1, 1), np.float32) if bias else np.ones((1, 1), bool)
    output = given(case, inputs)
    assert output.item() == 2.0, output.item()


def by_onnx(case, inputs):
    return ReferenceEvaluator(case.model).run(None, inputs)[0]


def by_lib(case, inputs):
    return onnx_adapter.attention(reference.attention, case.attributes, inputs)["Y"]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("given", [by_onnx, by_lib])
def test_a_short_mask_hides_the_rest(given, bias):
    a_short_mask_hides_the_rest(given, bias)


@pytest.mark.parametrize("bias", [False, True])
def test_the_suite_passes_a_short_mask_that_allows_and_ours_does_not(bias, monkeypatch):
    """Its short masks all come with nonpad_kv_seqlen, which hides the same keys again."""
    monkeypatch.setattr(onnx_adapter, "pad_mask", short_mask_allows)
    assert_all_cases_pass()
    with pytest.raises(AssertionError, match=r"5\.0"):
        a_short_mask_hides_the_rest(by_lib, bias)


@pytest.mark.parametrize("attend", IMPLEMENTATIONS, ids=repr)
def test_lib_itself_refuses_a_short_mask(attend):
    """Padding is the adapter's. lib guesses neither: a mask has one entry for each key."""
    query, key = np.zeros((1, 4)), np.zeros((3, 4))
    for name, short in (("mask", np.ones((1, 2), bool)), ("bias", np.zeros((1, 2)))):
        with pytest.raises(
            ValueError, match=rf"^{name} must broadcast to the scores' shape .* = \(1, 3\), got \(1, 2\)"
        ):
            attend(query, key, key, **{name: short})
