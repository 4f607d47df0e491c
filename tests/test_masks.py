"""Masks are functions of positions, the same for arrays and tensors, and say what is wrong with what they are given."""

import itertools

import numpy as np
import pytest
import torch

from lib import masks
from tests.rules import raised

POSITIONS = ([0, 1, 2], [0, 1, 2, 3, 4]), ([3, 4], [0, 1, 2, 3, 4]), ([-2, 7, 0], [5, -1, 0, 3]), ([], [0]), ([1], [])
PAIRS = {
    "bidirectional": (masks.bidirectional, lambda q, k: True),
    "causal": (masks.causal, lambda q, k: k <= q),
    "document": (masks.document, lambda q, k: q == k),
    "prefix 0": (lambda q, k: masks.prefix(q, k, 0), lambda q, k: k <= q),
    "prefix 2": (lambda q, k: masks.prefix(q, k, 2), lambda q, k: k <= q or 0 <= k < 2),
}
for _left, _right in itertools.product((None, 0, 1, 3), repeat=2):
    PAIRS[f"window {_left} {_right}"] = (
        lambda q, k, left=_left, right=_right: masks.sliding_window(q, k, left, right),
        lambda q, k, left=_left, right=_right: (left is None or q - k <= left) and (right is None or k - q <= right),
    )


@pytest.mark.parametrize("name", PAIRS)
def test_each_pair_on_its_own(name):
    mask, may = PAIRS[name]
    for q_pos, k_pos in POSITIONS:
        wanted = np.array([[may(q, k) for k in k_pos] for q in q_pos], bool).reshape(len(q_pos), len(k_pos))
        unsigned = [] if min([*q_pos, *k_pos]) < 0 else [np.uint64]
        for dtype in (np.int8, np.int64, *unsigned):
            given = mask(np.array(q_pos, dtype), np.array(k_pos, dtype))
            assert given.dtype == bool
            np.testing.assert_array_equal(given, wanted)
        given = mask(torch.tensor(q_pos, dtype=torch.int32), torch.tensor(k_pos, dtype=torch.int64))
        assert given.dtype == torch.bool
        np.testing.assert_array_equal(given.numpy(), wanted)


@pytest.mark.parametrize("name", PAIRS)
def test_leading_axes_broadcast(name):
    mask, may = PAIRS[name]
    q_pos, k_pos = np.array([[[0, 1]], [[4, -1]]]), np.array([[0, 1, 2], [2, 0, 5], [3, 3, 3]])
    given = mask(q_pos, k_pos)
    assert given.shape == (2, 3, 2, 3)
    for a, b, i, j in np.ndindex(2, 3, 2, 3):
        assert given[a, b, i, j] == may(q_pos[a, 0, i], k_pos[b, j])
    np.testing.assert_array_equal(mask(torch.tensor(q_pos), torch.tensor(k_pos)).numpy(), given)


def test_lists_are_positions_too_alone_and_beside_tensors():
    assert isinstance(masks.causal([0, 1], [0, 1]), np.ndarray)
    assert isinstance(masks.causal([0, 1], np.arange(2)), np.ndarray)
    small = torch.arange(2, dtype=torch.uint8)
    for given in (masks.causal([-300, 300], small), masks.causal(small, [-300, 300]).mT):
        assert given.dtype == torch.bool
        assert given.tolist() == [[False, False], [True, True]] or given.tolist() == [[True, True], [False, False]]
    assert masks.causal([-300, 300], small).tolist() == [[False, False], [True, True]]
    assert masks.causal(small, [-300, 300]).tolist() == [[True, False], [True, False]]
    assert masks.prefix(small, small, [1]).shape == (1, 2, 2)
    assert masks.causal([], torch.arange(2)).shape == (0, 2)


def test_prefix_length_for_each_sequence():
    given = masks.prefix(np.arange(3), np.arange(3), np.array([0, 2]))
    assert given.astype(int).tolist() == [[[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[1, 1, 0], [1, 1, 0], [1, 1, 1]]]
    given = masks.prefix(torch.arange(3), torch.arange(3), torch.tensor([0, 2]))
    assert given.int().tolist() == [[[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[1, 1, 0], [1, 1, 0], [1, 1, 1]]]
    assert isinstance(masks.prefix(torch.arange(3), torch.arange(3), 2), torch.Tensor)
    assert isinstance(masks.prefix(torch.arange(3), torch.arange(3), np.int64(2)), torch.Tensor)


def test_padding_hides_what_is_behind_the_lengths():
    assert masks.padding(2, 3).tolist() == [[True, True, False]]
    assert masks.padding([0, 1, 3], 3).astype(int).tolist() == [[[0, 0, 0]], [[1, 0, 0]], [[1, 1, 1]]]
    given = masks.padding(torch.tensor([[0], [2]], dtype=torch.uint8), np.int64(2))
    assert given.dtype == torch.bool
    assert given.int().tolist() == [[[[0, 0]]], [[[1, 1]]]]
    assert masks.padding(torch.tensor([0, 1, 3]), 3).int().tolist() == [[[0, 0, 0]], [[1, 0, 0]], [[1, 1, 1]]]
    assert masks.padding([], 3).shape == (0, 1, 3)
    assert masks.padding([0], 0).shape == (1, 1, 0)
    assert masks.padding(torch.tensor([0]), 0).shape == (1, 1, 0)
    assert masks.padding(np.array([255], np.uint8), 300).sum() == 255


def test_masks_combine():
    q = np.arange(4)
    both = masks.causal(q, q) & masks.sliding_window(q, q, left=1) & masks.document([0, 0, 1, 1], [0, 0, 1, 1])
    assert both.astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    either = masks.prefix(q, q, 0) | masks.padding(1, 4)
    np.testing.assert_array_equal(either, masks.prefix(q, q, 1))


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_sums_of_positions_never_wrap_round(make):
    lowest, highest = -(2**63), 2**63 - 1
    ends = make([lowest, -1, 0, highest])
    for left in (1, highest, 2**64):
        for right in (1, highest, 2**64):
            given = masks.sliding_window(ends, ends, left, right)
            for i, q in enumerate(ends.tolist()):
                for j, k in enumerate(ends.tolist()):
                    assert bool(given[i, j]) == (q - left <= k <= q + right)


def test_positions_are_not_written_to():
    positions, lengths = np.arange(3), np.array([1, 2])
    masks.sliding_window(positions, positions, 1, 1)
    masks.prefix(positions, positions, lengths)
    masks.padding(lengths, 3)
    assert positions.tolist() == [0, 1, 2]
    assert lengths.tolist() == [1, 2]


P = np.arange(2)
WRONG = [
    (TypeError, lambda: masks.causal([0.5], P), "q_pos must hold integers, got float64"),
    (TypeError, lambda: masks.causal(P, [True]), "k_pos must hold integers, got bool"),
    (TypeError, lambda: masks.causal(P, ["a"]), "k_pos must hold integers, got <U1"),
    (TypeError, lambda: masks.causal(torch.tensor([0.5]), torch.arange(2)), "q_pos must hold integers, got float32"),
    (TypeError, lambda: masks.causal(None, P), "q_pos must hold integers, got object"),
    (TypeError, lambda: masks.causal([[0], [1, 2]], P),
     "q_pos must hold integers in rows of one length, got [[0], [1, 2]]"),
    (TypeError, lambda: masks.causal([2**64], P), "q_pos must hold integers, got object"),
    (ValueError, lambda: masks.causal([2**63], P),
     "q_pos must hold integers that fit int64, got [9223372036854775808]"),
    (ValueError, lambda: masks.causal(3, P),
     "q_pos must have a position axis, such as [0, 1, 2]; got the single number 3"),
    (ValueError, lambda: masks.causal(np.array([0, 2**63], np.uint64), P),
     "q_pos must hold integers that fit int64, got [0, 9223372036854775808]"),
    (ValueError, lambda: masks.causal(np.array([2**64 - 1], np.uint64), P),
     "q_pos must hold integers that fit int64, got [18446744073709551615]"),
    (TypeError, lambda: masks.causal(np.zeros(0, np.float32), P), "q_pos must hold integers, got float32"),
    *(
        (ValueError, call, f"{name} must have a position axis, such as [0, 1, 2]; got the single number 3")
        for name, call in (
            ("k_pos", lambda: masks.causal(P, 3)),
            ("q_pos", lambda: masks.sliding_window(3, P, 1)),
            ("k_pos", lambda: masks.sliding_window(P, 3, 1)),
            ("q_pos", lambda: masks.prefix(3, P, 1)),
            ("k_pos", lambda: masks.prefix(P, 3, 1)),
        )
    ),
    (TypeError, lambda: masks.document(P, torch.arange(2)),
     "q_ids and k_ids must be of one framework, got ndarray and Tensor"),
    (TypeError, lambda: masks.bidirectional(torch.arange(2), P),
     "q_pos and k_pos must be of one framework, got Tensor and ndarray"),
    (TypeError, lambda: masks.prefix(P, P, torch.tensor(1)),
     "q_pos and k_pos and length must be of one framework, got ndarray and ndarray and Tensor"),
    (ValueError, lambda: masks.causal([P, P], [P, P, P]),
     "the leading axes of q_pos and k_pos must broadcast, got (2,) and (3,)"),
    (ValueError, lambda: masks.prefix([P, P], P, [1, 2, 3]),
     "the leading axes of q_pos and k_pos and length must broadcast, got (2,) and () and (3,)"),
    (TypeError, lambda: masks.prefix(P, P, 1.0), "length must hold integers, got float64"),
    (ValueError, lambda: masks.prefix(P, P, [-1, 2]), "length must be 0 or more, got [-1, 2]"),
    (TypeError, lambda: masks.sliding_window(P, P, left=1.0), "left must be an integer or None, got float"),
    (TypeError, lambda: masks.sliding_window(P, P, right=True), "right must be an integer or None, got bool"),
    (ValueError, lambda: masks.sliding_window(P, P, right=-1), "right must be 0 or more (None for no bound), got -1"),
    (TypeError, lambda: masks.padding([1.5], 3), "lengths must hold integers, got float64"),
    (TypeError, lambda: masks.padding([1], 3.0), "S must be an integer, got float"),
    (TypeError, lambda: masks.padding([1], True), "S must be an integer, got bool"),
    (ValueError, lambda: masks.padding([1], -1), "S must be 0 or more, got -1"),
    (ValueError, lambda: masks.padding([1, 4], 3), "lengths must lie between 0 and S = 3, got [1, 4]"),
    (ValueError, lambda: masks.padding([-1, 3], 3), "lengths must lie between 0 and S = 3, got [-1, 3]"),
    (ValueError, lambda: masks.padding(torch.tensor(4), 3), "lengths must lie between 0 and S = 3, got 4"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "call", "text"), WRONG, ids=[text[:60] for _, _, text in WRONG])
def test_errors_name_argument_wanted_and_given(kind, call, text):
    assert raised(kind, call) == text
