"""Tiles give what one piece gives, gradients included, and leave no visible pair out; the plan says what is done."""

import numpy as np
import pytest
import torch

from lib import arguments, fast, masks, reference
from lib.fast import plan as plans
from lib.fast import triton_attention
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


FLAG = "in one call; causal by the kernel's own flag, which skips what it hides"
LITTLE = "in one call; causal and window as a mask: tiles would save little"
ALL = "in one call; every query sees every key"
SMALL = "a tile's scores take at most 64 MiB in float32"


def visited(tiles, share):
    return f"in {tiles}; {share}% of all pairs are visited, which causal and window allow"


@pytest.mark.parametrize(
    ("queries", "keys", "options", "wanted"),
    [
        (512, 512, {"causal": True}, FLAG),
        (300, 300, {"causal": True, "scale": 0.5}, FLAG),
        (300, 300, {"causal": True, "scale": 0.0}, visited("5 tiles of 64 queries", 60)),
        (1999, 1999, {"causal": True, "scale": -0.5}, visited("8 tiles of 250 queries", 56)),
        (300, 300, {"causal": True, "offset": 1}, visited("5 tiles of 64 queries", 60)),
        (1000, 1000, {"window": (200, 100)}, visited("7 tiles of 150 queries", 40)),
        (1000, 1000, {"window": (10, 10)}, visited("16 tiles of 64 queries", 8)),
        (10000, 10000, {"window": (2000, 2000)}, visited("20 tiles of 512 queries", 40)),
        (1000, 1000, {"window": (300, None), "causal": True}, visited("7 tiles of 150 queries", 38)),
        (1000, 1000, {"window": (301, 5), "causal": True}, visited("7 tiles of 150 queries", 38)),
        (1000, 1000, {"window": (None, 5)}, visited("8 tiles of 125 queries", 57)),
        (1000, 1000, {"window": (5, None)}, visited("8 tiles of 125 queries", 57)),
        (128, 320, {"causal": True, "offset": 192}, visited("2 tiles of 64 queries", 90)),
        (128, 320, {"causal": True, "offset": 193}, LITTLE),
        (60, 600, {"window": (5, 0), "offset": 0}, LITTLE),  # a single tile
        (200, 200, {"window": (5, 5), "offset": -1000}, LITTLE),  # nothing to see
        (512, 512, {"window": (500, 500)}, LITTLE),
        (512, 512, {"window": (511, 511)}, ALL),
        (1, 512, {"causal": True, "offset": 511}, ALL),
    ],
)
def test_tiles_are_about_as_long_as_a_window_is_wide_and_taken_where_they_save_much(queries, keys, options, wanted):
    query, key = torch.zeros(queries, 1), torch.zeros(keys, 1)
    assert fast.explain(query, key, key, **options) == f"sdpa: torch's fused kernels (SDPA), {wanted}"


@pytest.mark.parametrize(
    ("queries", "keys", "options", "wanted"),
    [
        (4096, 4096, {}, "in one call; SDPA has no softcap"),
        (4097, 4096, {}, f"in 2 tiles of 4096 queries; SDPA has no softcap; {SMALL}"),
        (5000, 5000, {"window": (4990, 4990)}, f"in 2 tiles of 3355 queries; SDPA has no softcap; {SMALL}"),
        (5000, 5000, {"window": (10, 0)}, visited("79 tiles of 64 queries; SDPA has no softcap", 1)),
        (5000, 5000, {"return_weights": True}, "in one call; SDPA has no softcap and no return_weights"),
        (5000, 5000, {"backend": "math", "causal": True},
         visited("8 tiles of 625 queries; backend='math' asks for it", 56)),
    ],
)  # fmt: skip
def test_the_plain_body_takes_tiles_so_that_its_scores_stay_small(queries, keys, options, wanted):
    query, key = torch.zeros(queries, 1), torch.zeros(keys, 1)
    assert fast.explain(query, key, key, softcap=1.0, **options) == f"math: the plain body, {wanted}"


NO_KERNEL = "SDPA has no fused kernel for a window, nor for causal with an offset"
SKIPPED = "tiles hidden by causal and window are skipped"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"window": (5, 0)}, f"triton: our Triton kernel, in one call; {NO_KERNEL}; {SKIPPED}"),
        ({"causal": True, "offset": 1}, f"triton: our Triton kernel, in one call; {NO_KERNEL}; {SKIPPED}"),
        ({"backend": "triton", "causal": True},
         f"triton: our Triton kernel, in one call; backend='triton' asks for it; {SKIPPED}"),
        ({"backend": "triton"},
         "triton: our Triton kernel, in one call; backend='triton' asks for it; every query sees every key"),
        ({"causal": True}, f"sdpa: torch's fused kernels (SDPA), {FLAG}"),
        ({}, f"sdpa: torch's fused kernels (SDPA), {ALL}"),
        ({"window": (5, 0), "backend": "sdpa"}, "sdpa: torch's fused kernels (SDPA), " + LITTLE),
        ({"window": (5, 0), "backend": "math"}, "math: the plain body, in one call; backend='math' asks for it"),
        ({"window": (5, 0), "softcap": 1.0}, "math: the plain body, in one call; SDPA has no softcap"),
        ({"window": (5, 0), "mask": torch.tensor(True)}, f"sdpa: torch's fused kernels (SDPA), {LITTLE}; the kernel "
         "visits what mask hides too (where causal or window say the same, they are faster)"),
        ({"window": (5, 0), "bias": torch.zeros(1)}, "sdpa: torch's fused kernels (SDPA), " + LITTLE),
        ({"window": (5, 0), "offset": [1, 2]}, "sdpa: torch's fused kernels (SDPA), " + LITTLE),
        ({"window": (5, 0), "dropout_p": 0.5}, "math: the plain body, in one call; SDPA has no fused kernel for "
         "dropout on the CPU, and its own plain body is no faster"),
    ],
    ids=str,
)  # fmt: skip
def test_on_a_gpu_the_triton_kernel_is_taken_where_sdpa_would_need_a_mask(monkeypatch, options, wanted):
    monkeypatch.setattr(triton_attention, "is_worth_it", lambda query: True)
    monkeypatch.setattr(triton_attention, "require_runnable", lambda query: None)
    x = torch.zeros(2, 40, 1)
    assert fast.explain(x, x, x, **options) == wanted


@pytest.mark.parametrize(
    ("options", "lacks"),
    [
        ({"backend": "triton", "mask": torch.tensor(True), "bias": torch.zeros(1), "dropout_p": 0.1},
         "mask and no bias and no dropout"),
        ({"backend": "triton", "dropout_p": 1, "return_weights": True}, "return_weights and no dropout"),
        ({"backend": "sdpa", "softcap": 1.0, "return_weights": True}, "softcap and no return_weights"),
    ],
    ids=str,
)  # fmt: skip
def test_a_backend_that_lacks_what_is_asked_says_what(options, lacks):
    x = torch.zeros(2, 40, 1)
    with pytest.raises(ValueError) as caught:
        fast.explain(x, x, x, **options)
    assert str(caught.value) == f"backend {options['backend']!r} has no {lacks}; use backend='auto' or 'math'"


def test_the_triton_backend_says_where_it_cannot_run():
    x = torch.zeros(2, 40, 1)
    with pytest.raises((ValueError, ImportError), match="the Triton kernel"):
        fast.explain(x, x, x, backend="triton")
