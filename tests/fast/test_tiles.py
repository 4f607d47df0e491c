"""Tiles give what one piece gives, gradients included, and leave no visible pair out; the plan says what is done."""

import numpy as np
import pytest
import torch

from lib import arguments, fast, masks, reference
from lib.fast import plan as plans
from lib.fast.tiles import tiles_of, without_void_limits
from tests.rules import draw, some_mask

L, S = 9, 12
OFFSETS = [0, 3, -4, 8, 40, -40, torch.tensor([3, -5])]
LIMITS = [
    {"causal": True}, {"window": (2, 0)}, {"window": (2, 1)}, {"window": (0, 0)}, {"window": (None, 1)},
    {"window": (3, None)}, {"causal": True, "window": (1, 4)}, {"causal": True, "window": (None, None)},
]  # fmt: skip
MORE = {
    "nothing else": {},
    "mask": {"mask": torch.tensor(some_mask((2, 1, L, S)))},
    "padding": {"mask": torch.tensor(some_mask((2, 1, 1, S)))},
    "mask of queries": {"mask": torch.tensor(some_mask((L, 1)))},
    "one mask for all": {"mask": torch.tensor(True)},
    "bias": {"bias": torch.tensor(np.random.default_rng(1).normal(size=(3, L, S)))},
    "bias of keys": {"bias": torch.tensor(np.random.default_rng(2).normal(size=S))},
    "softcap": {"softcap": 0.7},
}


@pytest.fixture
def small_tiles(monkeypatch):
    """Take tiles of two or three queries wherever something is hidden."""
    monkeypatch.setattr(plans, "WORTH_IT", 1.0)
    monkeypatch.setattr(plans, "_rows", lambda call: 2 if call.window[0] is None else 3)


def tensors(grad=False, **shapes):
    return [torch.tensor(x).requires_grad_(grad) for x in draw(**{"L": L, "S": S, "shape_q": (2, 3), **shapes})]


def call_of(**options):
    return arguments.check(torch.Tensor, *tensors(), **options)


def to_numpy(options):
    return {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in options.items()}


@pytest.mark.parametrize("offset", OFFSETS, ids=str)
@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("backend", ["auto", "math"])
def test_tiles_equal_the_reference(small_tiles, limits, offset, backend):
    query, key, value = tensors()
    for more in MORE.values():
        options = {**limits, **more, "offset": offset}
        given = fast.attention(query, key, value, backend=backend, **options)
        wanted = reference.attention(*draw(shape_q=(2, 3), L=L, S=S), **to_numpy(options))
        np.testing.assert_allclose(given.numpy(), wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("offset", [0, 3, -4, -40], ids=str)
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_gradients_of_tiles_equal_those_of_one_piece(small_tiles, limits, offset):
    for more in MORE.values():
        found = []
        for backend in ("math", "auto"):
            inputs = tensors(grad=True)
            options = {
                **limits,
                **more,
                "offset": offset,
                "return_weights": backend == "math",
            }  # with weights: one piece
            output = fast.attention(*inputs, backend=backend, **options)
            output = output[0] if backend == "math" else output
            output.square().sum().backward()
            found.append([x.grad for x in inputs])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


def test_grouped_heads_in_tiles(small_tiles):
    query, key, value = draw(shape_q=(2, 6), shape_k=(2, 2), L=L, S=S)
    options = {"enable_gqa": True, "causal": True, "offset": 3}
    given = fast.attention(*map(torch.tensor, (query, key, value)), **options)
    np.testing.assert_allclose(given, reference.attention(query, key, value, **options), rtol=0, atol=1e-14)


def test_many_scores_of_the_plain_body_are_computed_in_tiles(monkeypatch):
    query, key, value = tensors()
    wanted = fast.attention(query, key, value, softcap=0.7)
    monkeypatch.setattr(plans, "SCORES", 6 * 4 * S)
    assert "in 3 tiles of 4 queries" in fast.explain(query, key, value, softcap=0.7)
    torch.testing.assert_close(fast.attention(query, key, value, softcap=0.7), wanted, rtol=0, atol=1e-14)
    monkeypatch.setattr(plans, "SCORES", 1)
    assert "in 9 tiles of 1 queries" in fast.explain(query, key, value, softcap=0.7)


@pytest.mark.parametrize("offset", OFFSETS, ids=str)
@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 4, 9, 100])
def test_tiles_cover_each_query_once_and_no_less_than_it_may_see(limits, offset, rows):
    tiles = tiles_of(call_of(**limits, offset=offset), rows)
    assert [i for tile in tiles for i in range(L)[tile.rows]] == list(range(L))
    q_pos = torch.as_tensor(offset).reshape(-1, 1) + torch.arange(L)
    visible = torch.ones(1, L, S, dtype=torch.bool)
    if limits.get("causal"):
        visible = visible & masks.causal(q_pos, torch.arange(S))
    if limits.get("window"):
        visible = visible & masks.sliding_window(q_pos, torch.arange(S), *limits["window"])
    tight = not isinstance(
        offset, torch.Tensor
    )  # with an offset for each batch entry, a tile sees what any of them does
    for tile in tiles:
        seen = visible[:, tile.rows].any(1).any(0).nonzero()[:, 0].tolist()
        keys = list(range(S)[tile.keys])
        assert set(seen) <= set(keys)
        assert keys == seen or not tight or not seen


@pytest.mark.parametrize("offset", [*OFFSETS, 11, 10, torch.tensor([11, 12])], ids=str)
@pytest.mark.parametrize("limits", [*LIMITS, {"window": (50, 50)}, {"window": (50, 0)}, {"window": (0, 50)}], ids=str)
def test_limits_that_hide_nothing_are_dropped_and_no_others(limits, offset):
    call = call_of(**limits, offset=offset)
    kept = without_void_limits(call)
    q_pos, k_pos = torch.as_tensor(offset).reshape(-1, 1) + torch.arange(L), torch.arange(S)
    hides_causal = limits.get("causal", False) and not bool(masks.causal(q_pos, k_pos).all())
    assert kept.causal == hides_causal
    for side, (now, before) in enumerate(zip(kept.window, call.window, strict=True)):
        alone = (before, None) if side == 0 else (None, before)
        hides = before is not None and not bool(masks.sliding_window(q_pos, k_pos, *alone).all())
        assert now == (before if hides else None)


@pytest.mark.parametrize("offset", [[3, -5], np.array([3, -5]), np.array([120, 3], dtype=np.int8)], ids=str)
def test_offsets_of_any_integer_type(small_tiles, offset):
    query, key, value = tensors()
    given = fast.attention(query, key, value, window=(2, 1), offset=offset)
    offset = np.asarray(offset, dtype=np.int64)
    wanted = reference.attention(*draw(shape_q=(2, 3), L=L, S=S), window=(2, 1), offset=offset)
    np.testing.assert_allclose(given.numpy(), wanted, rtol=0, atol=1e-14)


def test_tiles_that_save_little_are_not_taken(monkeypatch):
    x = torch.zeros(1, 1, 512, 4)
    assert "in one call" in fast.explain(x, x, x, causal=True)
    assert "the kernel's own flag" in fast.explain(x, x, x, causal=True)
    assert "tiles of 64 queries" in fast.explain(x, x, x, causal=True, scale=-1.0)
    assert "save little" in fast.explain(x, x, x, window=(500, 500))
    assert "every query sees every key" in fast.explain(x, x, x, window=(511, 511))
    assert "every query sees every key" in fast.explain(x[..., :1, :], x, x, causal=True, offset=511)
