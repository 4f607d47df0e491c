"""Masks inverted, added as numbers, broadcast along the wrong axis, or dropped by a fast path."""

import numpy as np
import pytest
import torch

from lib import fast, masks
from tests import oracle
from tests.rules import draw, raised, some_mask

QUERY, KEY, VALUE = np.zeros((1, 1)), np.zeros((2, 1)), np.array([[1.0], [2.0]])


def test_M1_true_means_may_attend(attention):
    """The first key alone: 1; both: 1.5. A mask that is inverted gives 2, and one without effect 1.5.

    lucidrains/x-transformers#160, lucidrains/x-transformers#164, lucidrains/halonet-pytorch#4,
    InseeFrLab/torchTextClassifiers#92, microsoft/onnxscript#580, lucidrains/memory-compressed-attention#2,
    lucidrains/flamingo-pytorch#10, facebookresearch/ParlAI#3068, espnet/espnet#1273, opendilab/DI-engine#333,
    harvard-edge/cs249r_book#1785.
    """
    for mask, wanted in (([[True, False]], 1), ([[False, True]], 2), ([[True, True]], 1.5)):
        assert attention(QUERY, KEY, VALUE, mask=np.array(mask)) == wanted


def test_M1_in_a_layer(layer):
    """The same through a layer; the last row does not show it, since a causal row that is inverted is empty there.

    rasbt/LLMs-from-scratch#1061, rasbt/LLMs-from-scratch#1062, InseeFrLab/torchTextClassifiers#92.
    """
    x = np.array([[1.0, 2], [3, 6], [5, 10]])
    means = np.array([[1.0, 2], [2, 4], [3, 6]])
    np.testing.assert_allclose(layer.plain(x, mask=np.tril(np.ones((3, 3), bool))), means, rtol=1e-15)
    np.testing.assert_allclose(layer.plain(x, causal=True), means, rtol=1e-15)
    only_first = np.array([[True, False, False]] * 3)
    np.testing.assert_array_equal(layer.plain(x, 2, mask=only_first), [x[0]] * 3)


def test_M1_every_maker_of_masks_says_true_for_may_attend(attention):
    """What lib.masks makes goes into attention as it is: real tokens, the past, the neighbours, the own document.

    lucidrains/x-transformers#164, harvard-edge/cs249r_book#1785.
    """
    positions = np.arange(3)
    made = {
        "padding": (masks.padding(np.array(2), 3), [[1, 1, 0]] * 3),
        "causal": (masks.causal(positions, positions), [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        "window": (masks.sliding_window(positions, positions, 1, 0), [[1, 0, 0], [1, 1, 0], [0, 1, 1]]),
        "document": (masks.document(np.array([0, 0, 1]), np.array([0, 0, 1])), [[1, 1, 0], [1, 1, 0], [0, 0, 1]]),
    }
    for name, (mask, wanted) in made.items():
        weights = attention(np.zeros((3, 1)), np.zeros((3, 1)), np.eye(3), mask=mask)
        assert (weights > 0).astype(int).tolist() == wanted, name


def test_M2_numbers_are_added_and_booleans_are_no_numbers(attention):
    """0 and 1 in a bias are added to the scores, 1.26894; as a mask they are refused, and True is not 1.

    open-mmlab/mmdetection#12351, huggingface/transformers#41443, keras-team/keras#20511, pytorch/pytorch#136816,
    pytorch/pytorch#141018, pytorch/pytorch#21518, harvard-edge/cs249r_book#1785.
    """
    added = attention(QUERY, KEY, VALUE, bias=np.array([[1.0, 0.0]]))
    np.testing.assert_allclose(added, 1.2689414213699951, rtol=1e-14)
    assert attention(QUERY, KEY, VALUE, mask=np.array([[True, False]])) == 1  # and not the number above
    for numbers in (np.array([[1.0, 0.0]]), np.array([[1, 0]])):
        assert "mask must be boolean" in raised(TypeError, attention, QUERY, KEY, VALUE, mask=numbers)
    assert "bias must be floating" in raised(TypeError, attention, QUERY, KEY, VALUE, bias=np.array([[True, False]]))


@pytest.mark.parametrize("B", [2, 3])
def test_M4_each_batch_entry_has_its_own_mask(attention, B):
    """One mask a batch entry serves all its heads, with as many entries as heads and with more.

    ArrowLuo/CLIP4Clip#22, line/lighthouse#77, lsdefine/attention-is-all-you-need-keras#28,
    lsdefine/attention-is-all-you-need-keras#36, reczoo/FuxiCTR#130, keras-team/keras#20488,
    tensorflow/tensorflow#60626, jax-ml/jax#28974.
    """
    query, key = np.zeros((B, 2, 1, 1)), np.zeros((B, 2, 2, 1))
    value = np.array([[[[10.0 * b + 1], [10 * b + 2]]] * 2 for b in range(B)])
    mask = np.zeros((B, 1, 1, 2), bool)
    for b in range(B):
        mask[b, ..., b % 2] = True
    wanted = [[10 * b + 1 + b % 2] * 2 for b in range(B)]  # 1, 1 and 12, 12, then 21, 21
    np.testing.assert_array_equal(attention(query, key, value, mask=mask)[..., 0, 0], wanted)
    if B == 3:
        assert "mask" in raised(ValueError, attention, query, key, value, mask=mask[:, 0])  # neither heads nor all
    per_head = np.array([[True, False], [False, True]])[:, None]  # (H, 1, S)
    given = attention(query, key, value, mask=per_head)[..., 0, 0]
    np.testing.assert_array_equal(given, [[10 * b + 1, 10 * b + 2] for b in range(B)])


@pytest.mark.parametrize("B", [2, 3])
def test_M4_a_layer_refuses_a_mask_that_could_be_read_two_ways(layer, B):
    """(B, L, S) would broadcast as (H, L, S), wrong without a word when B = H: refused, with what to write instead.

    ArrowLuo/CLIP4Clip#22, lsdefine/attention-is-all-you-need-keras#28, reczoo/FuxiCTR#130, keras-team/keras#20488.
    """
    x = np.arange(4.0 * B).reshape(B, 2, 2)
    mask = np.zeros((B, 2, 2), bool)
    for b in range(B):
        mask[b, :, b % 2] = True
    assert "write mask[:, None]" in raised(ValueError, layer.plain, x, 2, mask=mask)
    given = layer.plain(x, 2, mask=mask[:, None])
    np.testing.assert_array_equal(given, [[x[b, b % 2]] * 2 for b in range(B)])


@pytest.mark.parametrize("shape", [(2, 3), (3,), (), (2, 1, 3)])
def test_M6_mask_and_causal_hold_on_every_path(attention, shape):
    """Both at once, whatever else is asked: weights, a bias, a softcap, a scale, any number of axes.

    keras-team/keras#23038, keras-team/keras#23040, facebookresearch/xformers#103, facebookresearch/xformers#1135,
    pytorch/pytorch#99282, tensorflow/tensorflow#60626.
    """
    mask = some_mask((5, 5))
    both = mask & np.tril(np.ones((5, 5), bool))
    query, key, value = draw(shape, L=5)
    for extra in ({}, {"bias": np.ones((5, 5))}, {"softcap": 9.0}, {"scale": 0.1}, {"return_weights": True}):
        if set(extra) <= attention.options:
            given = attention(query, key, value, mask=mask, causal=True, **extra)
            wanted = attention(query, key, value, mask=both, **extra)
            pairs = zip(given, wanted, strict=True) if isinstance(given, tuple) else [(given, wanted)]
            for one, other in pairs:
                np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)
            if isinstance(given, tuple):
                assert (given[1][..., ~both] == 0).all()


def test_M6_mask_and_causal_hold_under_dropout(backend):
    """Dropout takes another path: what is hidden stays hidden, and what is kept is scaled up.

    keras-team/keras#23038, keras-team/keras#23040.
    """
    torch.manual_seed(0)
    mask = some_mask((5, 5))
    both = torch.tensor(mask & np.tril(np.ones((5, 5), bool)))
    units = torch.eye(5, dtype=torch.float64)
    weights = torch.zeros(40, 5, 1).double(), torch.zeros(40, 5, 1).double(), units.expand(40, 5, 5)
    dropped = fast.attention(*weights, mask=torch.tensor(mask), causal=True, dropout_p=0.5, backend=backend)
    assert (dropped[:, ~both] == 0).all()
    assert (dropped[:, both] != 0).any(0).all()
    kept = (2 * both / both.sum(-1, keepdim=True).clamp(min=1)).double().expand_as(dropped)
    torch.testing.assert_close(dropped[dropped != 0], kept[dropped != 0])


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_M6_in_a_layer(layer, weights, batch):
    """The layer's fast paths too: with and without weights, with and without a batch.

    pytorch/pytorch#99282, pytorch/pytorch#96941, pytorch/pytorch#131254, facebookresearch/xformers#103.
    """
    r = np.random.default_rng(0)
    x, projections = r.normal(size=(*batch, 5, 4)), [r.normal(size=(4, 4)) for _ in range(4)]
    mask = some_mask((5, 5))
    both = mask & np.tril(np.ones((5, 5), bool))
    given = layer(x, *projections, 2, mask=mask, causal=True, return_weights=weights)
    wanted = layer(x, *projections, 2, mask=both)
    np.testing.assert_allclose(given[0] if weights else given, wanted, rtol=0, atol=1e-13)
    if weights:
        assert (given[1][..., ~both] == 0).all()
    assert not np.allclose(wanted, layer(x, *projections, 2, mask=mask), atol=1e-3)


def test_M6_a_mask_of_the_wrong_shape_is_never_unused(attention):
    """A mask that does not fit is an error, also where causal alone would do.

    pytorch/pytorch#131254.
    """
    query, key, value = draw(L=5)
    for shape in ((4, 5), (5, 4), (4, 5, 5), (1, 2, 3, 5, 5)):
        assert "mask" in raised(ValueError, attention, query, key, value, mask=np.ones(shape, bool), causal=True)


def test_I1_inputs_are_as_they_were(attention):
    """No byte of query, key, value, mask or bias changes, and the second call answers as the first.

    d2l-ai/d2l-en (its masked softmax writes into the caller's scores); a drill set that accepts it.
    """
    query, key, value = draw(dtype="float32")
    options = {"mask": some_mask((4, 5)), "bias": np.ones((4, 5), np.float32), "causal": True, "offset": 1}
    arrays = [query, key, value, options["mask"], options["bias"]]
    before = [x.tobytes() for x in arrays]
    first, second = (attention(query, key, value, **options) for _ in range(2))
    assert [x.tobytes() for x in arrays] == before
    assert first.tobytes() == second.tobytes()
    wanted = oracle.attention(query, key, value, **options)[0]
    np.testing.assert_allclose(second, wanted, rtol=0, atol=1e-6)


def test_I1_outputs_are_not_the_inputs(room):
    """Writing into what rotary or a cache returned does not change what was given.

    d2l-ai/d2l-en; a drill set that accepts functions which write into their inputs.
    """
    x = np.random.default_rng(0).normal(size=(1, 2, 3, 4))
    before = x.tobytes()
    room.rotary(x, np.zeros(3))[...] = 9  # turned by nothing, and yet no view
    cache = room.cache(1, 2, 8, 4)
    key, value, _ = room.append(cache, x, x)
    key[...] = value[...] = 9
    assert x.tobytes() == before
