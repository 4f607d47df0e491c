"""Tiles give what the whole gives: for every option, every size of block, and in every corner."""

import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import masks
from lib.arguments import Call
from lib.reference import attention, streaming_attention, threads
from lib.reference.tiles import MOST_EDGES, Tiler, key_blocks, stacks
from tests import oracle
from tests.rules import raised

streaming = sys.modules["lib.reference.streaming"]  # the file; lib.reference.streaming_attention is its function
MANY = settings(derandomize=True, deadline=None, max_examples=80, database=None)
CLOSE = {"float16": 2e-3, "float32": 3e-6, "float64": 1e-14}
EDGES = [1, 31, 32, 33, 63, 64, 65]
RESTRICTIONS = "mask", "bias", "causal", "window", "offset"
MAX = float(np.finfo(np.float32).max)


BODIES = "fast", "textbook", "two passes"


def by_body(monkeypatch, body, meet=lambda query, tile: None):
    """Let one of the three bodies compute all rows; ``meet`` is told of each tile that it meets."""

    def met(query, tiles):
        for tile in tiles:
            meet(query, tile)
            yield tile

    fast, textbook, two = streaming.one_pass_fast, streaming.one_pass, streaming.two_passes

    def only_fast(query, tiles, *rest):
        output, lse, strange = fast(query, met(query, tiles), *rest)
        assert not strange.any()
        return output, lse, strange

    def only_textbook(query, tiles, *rest):
        output, lse, strange = textbook(query, met(query, tiles), *rest)
        assert not strange.any()
        return output, lse, strange

    def hand_on(query, tiles, Ev, *rest):
        rows = query.shape[:-1]
        return np.zeros((*rows, Ev)), np.zeros(rows), np.ones(rows, bool)

    def last(query, tiles, *rest):
        output, lse = two(query, (met(query, tiles[0]), tiles[1]), *rest)
        return output, np.where(np.isneginf(lse), -MAX, lse)  # this body is for rows that see something

    if body == "fast":
        monkeypatch.setattr(streaming, "one_pass_fast", only_fast)
        return
    monkeypatch.setattr(streaming, "one_pass_fast", hand_on)
    monkeypatch.setattr(streaming, "one_pass", only_textbook if body == "textbook" else hand_on)
    monkeypatch.setattr(streaming, "two_passes", last)


def normal(rng, *shape, dtype="float64"):
    return rng.normal(size=shape).astype(dtype)


@st.composite
def calls(draw, dtypes=("float64", "float32", "float16")):
    """Draw query, key, value and options, with grouped heads, broadcast leading axes and empty rows."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from(dtypes))
    B, G, repeats = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    L, S, E, Ev = draw(st.integers(0, 9)), draw(st.integers(0, 9)), draw(st.integers(0, 4)), draw(st.integers(0, 4))
    query = normal(rng, B, G * repeats, L, E, dtype=dtype)
    key = normal(rng, draw(st.sampled_from((1, B))), G, S, E, dtype=dtype)
    value = normal(rng, draw(st.sampled_from((1, B))), G, S, Ev, dtype=dtype)
    reach = st.none() | st.integers(0, 6)
    options = {
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.tuples(reach, reach)),
        "offset": draw(st.integers(-4, 8) | st.lists(st.integers(-4, 8), min_size=B, max_size=B)),
        "scale": draw(st.none() | st.sampled_from((0.0, -0.5, 2.0))),
        "softcap": draw(st.none() | st.just(1.5)),
        "enable_gqa": repeats > 1 or draw(st.booleans()),
    }
    if draw(st.booleans()):
        options["mask"] = rng.random((B, 1, L, S)) < 0.6
    if draw(st.booleans()):
        bias = normal(rng, G * repeats, draw(st.sampled_from((1, L))), S, dtype=dtype)
        options["bias"] = np.where(rng.random(bias.shape) < 0.2, -np.inf, bias).astype(dtype)
    return (query, key, value), options


# --- The same result as the whole ---


@MANY
@given(call=calls(), block_q=st.integers(1, 10), block_k=st.integers(1, 10))
def test_equals_attention_with_any_options_and_blocks(call, block_q, block_k):
    arrays, options = call
    wanted = attention(*arrays, **options)
    given = streaming_attention(*arrays, **options, block_q=block_q, block_k=block_k)
    assert given.dtype == wanted.dtype
    assert given.shape == wanted.shape
    np.testing.assert_allclose(given.astype(float), wanted.astype(float), rtol=0, atol=10 * CLOSE[str(wanted.dtype)])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("L", EDGES)
@pytest.mark.parametrize("S", EDGES)
def test_edges_of_blocks_read_nothing_past_the_end(L, S, causal):
    rng = np.random.default_rng(L * 100 + S)
    buffers = [np.full((2, n + 40, 8), np.nan, np.float32) for n in (L, S, S)]
    query, key, value = (buffer[:, 7 : 7 + n] for buffer, n in zip(buffers, (L, S, S), strict=True))
    for array in (query, key, value):
        array[...] = rng.normal(size=array.shape)
    options = {"causal": causal, "offset": S - L}
    given = streaming_attention(query, key, value, **options, block_q=32, block_k=32)
    np.testing.assert_allclose(given, attention(query, key, value, **options), rtol=0, atol=CLOSE["float32"])


@pytest.mark.parametrize("L", [1, 255, 256, 257])
@pytest.mark.parametrize("S", [1, 511, 512, 513])
@pytest.mark.parametrize("causal", [False, True])
def test_edges_of_the_default_blocks(L, S, causal):
    rng = np.random.default_rng(0)
    query, key, value = normal(rng, L, 4), normal(rng, S, 4), normal(rng, S, 3)
    options = {"causal": causal, "offset": S - L}
    given = streaming_attention(query, key, value, **options)
    np.testing.assert_allclose(given, attention(query, key, value, **options), rtol=0, atol=CLOSE["float64"])


@MANY
@given(call=calls(), block=st.integers(1, 10))
def test_lse_is_log_of_summed_exponentials(call, block):
    (query, key, value), options = call
    _, lse = streaming_attention(query, key, value, **options, return_lse=True, block_q=block, block_k=block)
    wanted = log_sum_exp(query, key, value, options)
    assert lse.shape == wanted.shape
    assert lse.dtype == (np.float64 if query.dtype == np.float64 else np.float32)
    np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(wanted))
    np.testing.assert_allclose(lse, wanted, rtol=0, atol=1e-14 if lse.dtype == np.float64 else 1e-5)


def log_sum_exp(query, key, value, options):
    """Compute the log-sum-exp in float64 from the scores, one row at a time."""
    query, key = query.astype(float), key.astype(float)
    if options["enable_gqa"]:
        key = np.repeat(key, query.shape[1] // key.shape[1], axis=1)
    key, _ = np.broadcast_arrays(key, key[:1] + np.zeros((len(query), 1, 1, 1)))
    scale = options["scale"] if options["scale"] is not None else 1 / np.sqrt(max(query.shape[-1], 1))
    scores = scale * np.einsum("bhle,bhse->bhls", query, key)
    if options["softcap"]:
        scores = options["softcap"] * np.tanh(scores / options["softcap"])
    scores = scores + options.get("bias", np.float64(0)).astype(float)
    seen = oracle.visible(scores.shape, **{n: options[n] for n in RESTRICTIONS if n in options})
    lse = np.full(scores.shape[:-1], -np.inf)
    for index in np.ndindex(lse.shape):
        row = scores[index][seen[index]]
        if row.size:
            lse[index] = row.max() + np.log(np.exp(row - row.max()).sum())
    return lse


def test_lse_of_the_worked_example():
    query, key, value = np.zeros((1, 1)), np.zeros((2, 1)), np.array([[2.0], [8.0]])
    output, lse = streaming_attention(query, key, value, return_lse=True)
    assert output.item() == 5
    assert lse.item() == np.log(2)
    hidden = streaming_attention(query, key, value, return_lse=True, mask=np.array([[True, False]]))
    assert [x.item() for x in hidden] == [2, 0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_loses_at_most_twice_what_a_plain_implementation_loses(dtype):
    rng = np.random.default_rng(3)
    query, key, value = (normal(rng, 4, n, 64, dtype=dtype) for n in (300, 700, 700))
    q, k, v = (x.astype(np.longdouble) for x in (query, key, value))

    def plain(q, k, v, number):
        scores = (q @ k.swapaxes(-1, -2)) / number(8)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True)) @ v

    exact = plain(q, k, v, np.longdouble)
    baseline = np.abs(plain(query, key, value, query.dtype.type) - exact).max()
    error = np.abs(streaming_attention(query, key, value, block_q=64, block_k=96) - exact).max()
    assert error <= (1e-13 if dtype == "float64" else 2 * baseline)


# --- The bodies agree ---

TAILS = [(1, 1), (15, 16), (16, 15), (17, 33), (240, 512), (241, 513), (255, 257), (300, 1100)]
KINDS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (20, 3)},
    "mask": {"mask": 0.5},
    "bias": {"bias": 1.0},
    "softcap": {"softcap": 2.0},
    "all": {"causal": True, "window": (90, None), "mask": 0.7, "bias": 2.0, "softcap": 3.0},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", ["fast", "textbook"])
@pytest.mark.parametrize(("L", "S"), TAILS)
def test_each_body_alone_gives_what_attention_gives(monkeypatch, body, kind, L, S):
    by_body(monkeypatch, body)
    rng = np.random.default_rng(L + S)
    options = {"offset": S - L, **KINDS[kind]}
    if "mask" in options:
        options["mask"] = rng.random((L, S)) < options["mask"]
    for dtype, atol in (("float32", 5e-6), ("float64", 1e-13)):
        arrays = [normal(rng, 2, n, 16, dtype=dtype) for n in (L, S, S)]
        if "bias" in options:
            options["bias"] = (KINDS[kind]["bias"] * normal(rng, L, S)).astype(dtype)
        given, lse = streaming_attention(*arrays, **options, return_lse=True)
        np.testing.assert_allclose(given, attention(*arrays, **options), rtol=0, atol=atol)
        full = {"causal": False, "enable_gqa": False, "softcap": None, "scale": None, **options}
        wanted = log_sum_exp(*(x[None] for x in arrays), full)[0]
        np.testing.assert_allclose(lse, wanted, rtol=0, atol=5e-6 if dtype == "float32" else 1e-13)


@MANY
@given(call=calls(("float64",)), block_q=st.integers(1, 10), block_k=st.integers(1, 10))
def test_the_bodies_agree_on_any_options(call, block_q, block_k):
    arrays, options = call
    options |= {"block_q": block_q, "block_k": block_k, "return_lse": True}
    with pytest.MonkeyPatch.context() as patch:
        by_body(patch, "textbook")
        textbook = streaming_attention(*arrays, **options)
    fast = streaming_attention(*arrays, **options)
    for one, other in zip(fast, textbook, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
def test_each_row_goes_to_the_first_body_that_can_carry_it(monkeypatch, causal):
    asked = {}

    def note(name):
        body = getattr(streaming, name)

        def wrapped(query, *rest):
            found = body(query, *rest)
            asked.setdefault(name, []).append(found)
            return found

        monkeypatch.setattr(streaming, name, wrapped)

    for name in ("one_pass_fast", "one_pass", "two_passes"):
        note(name)
    rng = np.random.default_rng(1)
    query, key, value = (normal(rng, 40, 8, dtype="float32") for _ in range(3))
    streaming_attention(query, key, value, causal=causal)
    assert list(asked) == ["one_pass_fast"]
    query[7] *= 1e3 * np.sign(key[0] @ query[7])  # scores around a thousand: exp leaves float32's range
    wanted = attention(query, key, value, causal=causal)
    np.testing.assert_allclose(streaming_attention(query, key, value, causal=causal), wanted, rtol=0, atol=1e-5)
    assert list(asked) == ["one_pass_fast", "one_pass"]
    np.testing.assert_array_equal(np.argwhere(asked["one_pass_fast"][-1][2]), [[0, 7]])
    query[9] = 1e38 * np.sign(query[9])
    wanted = attention(query, key, value, causal=causal)
    np.testing.assert_allclose(streaming_attention(query, key, value, causal=causal), wanted, rtol=0, atol=1e-5)
    assert list(asked) == ["one_pass_fast", "one_pass", "two_passes"]
    np.testing.assert_array_equal(np.nonzero(asked["one_pass"][-1][2])[0], [9])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("low", [-30, -80, -140, -2000, 30, 60, 80, 140, 2000])
def test_scores_far_from_zero_keep_their_precision(dtype, low):
    rng = np.random.default_rng(2)
    query, key, value = (normal(rng, 30, 8, dtype=dtype) for _ in range(3))
    query[:, 0], key[:, 0] = low * np.sqrt(8), 1  # every score is moved by the same number
    given, lse = streaming_attention(query, key, value, return_lse=True)
    moved, moved_lse = attention(query[:, 1:], key[:, 1:], value, scale=1 / np.sqrt(8)), lse - low
    small = 1e-6 if dtype == "float32" else 1e-14
    np.testing.assert_allclose(given, moved, rtol=0, atol=small * (5 + abs(low)))
    calm = streaming_attention(query[:, 1:], key[:, 1:], value, scale=1 / np.sqrt(8), return_lse=True)[1]
    np.testing.assert_allclose(moved_lse, calm, rtol=0, atol=small * (5 + abs(low)))


@pytest.mark.parametrize("bias", [-40.0, -1000.0, 40.0, 1000.0])
def test_a_bias_far_from_zero_keeps_its_precision(bias):
    rng = np.random.default_rng(3)
    query, key, value = (normal(rng, 30, 8, dtype="float32") for _ in range(3))
    slope = np.linspace(bias, 0, 30, dtype=np.float32) * np.ones((30, 1), np.float32)
    wanted = attention(query.astype(float), key.astype(float), value.astype(float), bias=slope.astype(float))
    np.testing.assert_allclose(streaming_attention(query, key, value, bias=slope), wanted, rtol=0, atol=2e-4)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, MAX, 1e20])
@pytest.mark.parametrize("where", ["key", "value"])
@pytest.mark.parametrize("restriction", ["causal", "mask", "bias"])
def test_hidden_poison_brings_no_other_body_into_play(monkeypatch, poison, where, restriction):
    rng = np.random.default_rng(4)
    arrays = {name: normal(rng, 300, 8, dtype="float32") for name in ("query", "key", "value")}
    mask = np.ones((300, 300), bool)
    mask[:, 250:] = False
    options = {"causal": {"causal": True}, "mask": {"mask": mask},
               "bias": {"bias": np.where(mask, 0, -np.inf).astype(np.float32)}}[restriction]  # fmt: skip
    options["return_lse"] = True
    before = streaming_attention(**arrays, **options)
    by_body(monkeypatch, "fast") if restriction != "causal" else None
    arrays[where] = arrays[where].copy()
    arrays[where][250:] = poison
    after = streaming_attention(**arrays, **options)
    for one, other in zip(before, after, strict=True):
        assert one[:250].tobytes() == other[:250].tobytes()


def test_a_scale_too_small_for_the_dtype_is_left_to_the_textbook():
    query, key = np.full((2, 1), 1e20, np.float32), np.array([[1e20], [2e20]], np.float32)
    value = np.array([[0.0], [1.0]], np.float32)
    scale = 1e-46
    np.testing.assert_allclose(
        streaming_attention(query, key, value, scale=scale), attention(query, key, value, scale=scale), rtol=1e-6
    )


def test_norms_bound_every_product():
    rng = np.random.default_rng(5)
    for size in (1e-30, 1e-3, 1.0, 1e15, 1e25):
        x = (size * rng.normal(size=(2, 3, 3000, 5))).astype(np.float32)
        norm = streaming.largest_norm(x, np.dtype(np.float32))
        assert norm >= 0.999999 * np.linalg.norm(x.astype(float), axis=-1).max()
    x[1, 1, 2999, 2] = np.nan
    assert np.isnan(streaming.largest_norm(x, np.dtype(np.float32)))


@pytest.mark.parametrize("N", [1, 7, 8, 9, 16, 24, 240, 241, 509, 512])
@pytest.mark.parametrize("K", [0, 1, 64, 512])
@pytest.mark.parametrize("M", [0, 1, 240, 4096])
def test_stacks_of_products_give_what_one_product_gives(N, K, M):
    rng = np.random.default_rng(6)
    a, b = normal(rng, 3, K, N).mT, normal(rng, 3, K, M)
    out = np.full((3, N, M), np.nan)
    assert streaming.multiply(a, b, out=out) is out
    np.testing.assert_allclose(out, a @ b, rtol=0, atol=1e-12)


def test_products_are_stacked_by_a_height_that_divides():
    for rows in range(1, 600):
        for size in (1, 512, 15360, 32768, 10**5, 10**7):
            height = streaming._stack_height(rows, size)
            assert rows % height == 0
            assert height == rows or (height >= 8 and height * size <= streaming.UNPACKED)
    assert streaming._stack_height(512, 240 * 64) == 64
    assert streaming._stack_height(240, 512 * 64) == 24


def test_scratch_is_aligned_and_used_again():
    scratch = streaming.Scratch(np.dtype(np.float32))
    first = scratch("x", 3, 5)
    assert first.ctypes.data % 64 == 0
    assert np.shares_memory(first, scratch("x", 5))
    assert not np.shares_memory(first, scratch("y", 5))
    assert scratch("x", 100).ctypes.data % 64 == 0
    plain = np.ones((4, 3), np.float32)
    assert scratch.in_rows("z", plain) is plain
    for other in (plain.astype(np.float16), plain.T, plain[:, ::2]):
        copy = scratch.in_rows("z", other)
        assert copy.dtype == np.float32 and copy.flags.c_contiguous
        np.testing.assert_array_equal(copy, other)


def test_masks_of_tiles_alike_are_made_once_and_few_are_kept():
    call = Call((), 400, 400, 4, 4, 1, 0.5, None, True, (None, None), 0)
    x = np.zeros((400, 4))
    [(_, heads)] = stacks(x, x, x, None, None, call, 1)
    tiler = Tiler(call, 64, np.dtype(float))
    met = [tile for start in (64, 128, 192) for tile in tiler.tiles(heads, slice(start, start + 64))]
    masked = [tile for tile in met if tile.allowed is not None]
    assert len(masked) == 3
    assert len({id(tile.allowed) for tile in masked}) == 1
    for start in range(0, 400, 7):
        for tile in tiler.tiles(heads, slice(start, min(start + 7 + start % 5, 400))):
            if tile.allowed is not None:
                np.testing.assert_array_equal(tile.limit > 0, tile.allowed.T)
        assert len(tiler._edges) <= MOST_EDGES


# --- Threads ---


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (30, 10)}], ids=str)
def test_any_number_of_threads_gives_the_same_bits(monkeypatch, options):
    rng = np.random.default_rng(7)
    arrays = [normal(rng, 3, 2, 300, 8, dtype="float32") for _ in range(3)]
    monkeypatch.setattr(streaming, "WORTH_THREADS", 0)
    found = []
    for count in (1, 2, 5):
        monkeypatch.setattr(threads, "BLAS", (lambda count=count: count, lambda count: None))
        found.append([x.tobytes() for x in streaming_attention(*arrays, **options, return_lse=True, block_q=32)])
    assert found[0] == found[1] == found[2]


# --- What is hidden changes nothing ---


@MANY
@given(
    call=calls(),
    block=st.integers(1, 10),
    pick=st.integers(0, 10**6),
    poison=st.sampled_from((np.nan, np.inf, -np.inf, 6e4, -6e4, 0.0)),
)
def test_what_a_query_may_not_see_changes_none_of_its_bits(call, block, pick, poison):
    (query, key, value), options = call
    (B, H, L, _), (_, G, S, _) = query.shape, key.shape
    if L == 0:
        return
    b, h, i = np.unravel_index(pick % (B * H * L), (B, H, L))
    hidden = ~oracle.visible((B, H, L, S), **{n: options[n] for n in RESTRICTIONS if n in options})[b, h, i]
    spoilt = key.copy(), value.copy()
    for array in spoilt:
        array[b % len(array), h // (H // G), hidden] = poison
    blocks = {"block_q": block, "block_k": block, "return_lse": True}
    before = streaming_attention(query, key, value, **options, **blocks)
    after = streaming_attention(query, *spoilt, **options, **blocks)
    for one, other in zip(before, after, strict=True):
        assert one[b, h, i].tobytes() == other[b, h, i].tobytes()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, MAX, -MAX])
def test_the_future_does_not_reach_the_past(poison):
    rng = np.random.default_rng(5)
    query, key, value = (normal(rng, 2, 70, 4, dtype="float32") for _ in range(3))
    before = streaming_attention(query, key, value, causal=True, block_q=16, block_k=16)
    for array in (query, key, value):
        array[:, 40:] = poison
    after = streaming_attention(query, key, value, causal=True, block_q=16, block_k=16)
    assert before[:, :40].tobytes() == after[:, :40].tobytes()


def test_a_row_beyond_the_range_changes_no_bit_of_its_neighbours():
    rng = np.random.default_rng(6)
    query, key, value = normal(rng, 9, 4, dtype="float32"), normal(rng, 20, 4, dtype="float32"), normal(rng, 20, 3)
    value = value.astype(np.float32)
    before = streaming_attention(query, key, value, return_lse=True, block_k=8)
    query[4] = 1e38
    key[2, 1] = 100.0  # the fifth query overflows; the others see this key too, so it changes in both runs
    after = streaming_attention(query, key, value, return_lse=True, block_k=8)
    query[4] = 0
    calm = streaming_attention(query, key, value, return_lse=True, block_k=8)
    others = np.arange(9) != 4
    for one, other, first in zip(after, calm, before, strict=True):
        assert one[others].tobytes() == other[others].tobytes()
        assert np.isfinite(one).all()
        assert one[others].tobytes() != first[others].tobytes()


def test_empty_rows_are_zero_and_their_lse_minus_infinity():
    rng = np.random.default_rng(7)
    query, key, value = normal(rng, 2, 6, 4), normal(rng, 2, 6, 4), normal(rng, 2, 6, 3)
    output, lse = streaming_attention(query, key, value, causal=True, offset=-2, return_lse=True, block_q=4, block_k=3)
    assert not output[:, :2].any()
    assert not np.signbit(output[:, :2]).any()
    assert np.isneginf(lse[:, :2]).all()
    assert np.isfinite(lse[:, 2:]).all()


@pytest.mark.parametrize("value", [-1.0, -MAX, -0.0])
def test_hidden_negative_values_leave_no_sign(value):
    zeros = np.zeros((3, 2))
    values = np.array([[value, 0.0], [0.0, 0.0], [value, 0.0]])
    mask = np.array([[False, True, False]])
    assert not np.signbit(streaming_attention(zeros, zeros, values, mask=mask, block_k=1)).any()


@pytest.mark.parametrize(
    ("batch", "L", "S", "E", "Ev"),
    [((), 0, 3, 2, 2), ((), 3, 0, 2, 2), ((), 0, 0, 2, 2), ((), 3, 3, 0, 2), ((), 3, 3, 2, 0), ((0,), 3, 3, 2, 2),
     ((2, 0), 1, 1, 1, 1), ((1, 1), 1, 1, 1, 1)],
)  # fmt: skip
def test_sizes_zero_and_one(batch, L, S, E, Ev):
    rng = np.random.default_rng(8)
    query, key, value = normal(rng, *batch, L, E), normal(rng, *batch, S, E), normal(rng, *batch, S, Ev)
    output, lse = streaming_attention(query, key, value, return_lse=True)
    assert output.shape == (*batch, L, Ev)
    assert lse.shape == (*batch, L)
    np.testing.assert_allclose(output, attention(query, key, value), rtol=1e-14)
    assert np.isneginf(lse).all() if S == 0 else np.isfinite(lse).all()


def test_no_query_heads_for_some_key_heads():
    query, key = np.ones((2, 0, 3, 4)), np.ones((2, 2, 5, 4))
    output, lse = streaming_attention(query, key, key, enable_gqa=True, return_lse=True)
    assert output.shape == (2, 0, 3, 4)
    assert lse.shape == (2, 0, 3)


# --- Beyond the dtype's range, and visible NaN and infinity ---

F32, F64 = np.float32, np.float64
BEYOND = {
    "products": (F32, [[1e38, 1e38]], [[1e3, 0], [0, 1e3], [-1e3, 0]], {}),
    "all scores to minus infinity": (F32, [[1e38, 1e38]], [[-1e3, 0], [-2e3, 0]], {}),
    "sums that cancel": (F32, [[1e38, 1e38, 1e38, 1e38]], [[-3, -3, 3, 3], [0, 0, 0, 0]], {"scale": 1.0}),
    "scale brings it back": (F32, [[1e30, 0]], [[1e20, 0], [2e20, 0]], {"scale": 1e-50}),
    "scale takes it away": (F32, [[1.0, 2.0]], [[1, 0], [0, 1]], {"scale": 1e300}),
    "scale times query": (F32, [[1e38, 0]], [[1e-38, 0], [-1e-38, 0]], {"scale": 10.0}),
    "softcap": (F32, [[1e30, 0]], [[1e20, 0], [-1e20, 0]], {"scale": 1e-49, "softcap": 5.0}),
    "bias on top": (F32, [[1e38, 0]], [[3, 0], [2, 0]], {"scale": 1.0, "bias": [[3e38, 0]]}),
    "bias below": (F32, [[1e38, 0]], [[-3, 0], [-2, 0]], {"scale": 1.0, "bias": [[-3e38, -3e38]]}),
    "bias of infinity": (F32, [[1.0, 0]], [[1, 0], [2, 0]], {"bias": [[np.inf, 0]]}),
    "beyond float64": (F64, [[1e300, 0]], [[1e300, 0], [2e300, 0], [-1e300, 0]], {}),
    "all below float64": (F64, [[1e300, 0]], [[-1e300, 0], [-2e300, 0]], {}),
    "beyond float64 and back": (F64, [[1e200, 0]], [[1e200, 0], [2e200, 0]], {"scale": 1e-300}),
}


@pytest.mark.parametrize("block_k", [1, 2, 512])
@pytest.mark.parametrize("name", BEYOND)
def test_beyond_the_range_as_attention(name, block_k):
    dtype, query, key, options = BEYOND[name]
    query, key = np.array(query, dtype), np.array(key, dtype)
    options = {k: np.array(v, dtype) if k == "bias" else v for k, v in options.items()}
    value = np.array([[1.0, -2.0], [3.0, 4.0], [0.5, 8.0]], dtype)[: len(key)]
    wanted = attention(query, key, value, **options)
    given, lse = streaming_attention(query, key, value, **options, block_k=block_k, return_lse=True)
    assert np.isfinite(given).all()
    np.testing.assert_allclose(given, wanted, rtol=3e-6 if dtype is F32 else 1e-13)
    assert np.isfinite(lse).all()  # it stops at the largest number


def test_values_at_the_limit():
    for dtype in (np.float32, np.float64):
        limit = np.finfo(dtype).max
        query, key = np.zeros((2, 4), dtype), np.zeros((7, 4), dtype)
        for block_k in (1, 3, 512):
            value = np.full((7, 2), limit, dtype) * np.array([1, -1], dtype)
            given = streaming_attention(query, key, value, block_k=block_k)
            assert np.isfinite(given).all()
            np.testing.assert_allclose(given, attention(query, key, value), rtol=1e-6)


def test_half_precision_scores_do_not_overflow():
    query = key = np.full((2, 64), 40, np.float16)  # 64 · 40² = 102400, beyond float16's 65504
    value = np.array([[1.0], [3.0]], np.float16)
    output, lse = streaming_attention(query, key, value, return_lse=True, block_k=1)
    np.testing.assert_array_equal(output, np.full((2, 1), 2, np.float16))
    np.testing.assert_allclose(lse, 12800 + np.log(2), rtol=1e-6)
    assert lse.dtype == np.float32


def test_numbers_that_become_zero_are_no_error_whatever_the_callers_state():
    query, key = np.array([[20.0]], np.float16), np.array([[20.0], [-20.0]], np.float16)
    value, smaller = np.full((2, 1), 6e-8, np.float16), np.full((2, 1), 3e-8, np.float16)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(streaming_attention(query, key, value, block_k=1), value[:1])
        assert streaming_attention(query, key, smaller, scale=0.001).shape == (1, 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["query", "key", "value", "far value"])
@pytest.mark.parametrize("block", [1, 2, 512])
def test_visible_nan_and_infinity_as_attention(bad, where, block):
    rng = np.random.default_rng(9)
    query, key, value = normal(rng, 5, 4), normal(rng, 6, 4), normal(rng, 6, 3)
    key[3] *= 1e4  # so far from some queries that its weight is 0
    {"query": query, "key": key, "value": value, "far value": value}[where][3 if where == "far value" else 2, 1] = bad
    wanted = attention(query, key, value, causal=True, offset=1)
    given = streaming_attention(query, key, value, causal=True, offset=1, block_q=block, block_k=block)
    assert np.isfinite(given).any()
    np.testing.assert_allclose(given, wanted, rtol=1e-13)


def test_nothing_is_hidden_from_the_check_by_a_softcap():
    # −3e38 − 3e38 + 3e38 + 3e38 is 0, but on the way a float32 sum stops at −∞, which a softcap would turn into −5.
    query, key = np.full((1, 4), 1e38, np.float32), np.array([[-3, -3, 3, 3], [0, 0, 0, 0]], np.float32)
    value = np.array([[0.0], [1.0]], np.float32)
    np.testing.assert_array_equal(streaming_attention(query, key, value, scale=1.0, softcap=5.0), [[0.5]])


# --- What is computed, and with how much memory ---


@MANY
@given(
    offset=st.integers(-40, 40), start=st.integers(0, 20), height=st.integers(1, 20), S=st.integers(0, 60),
    block_k=st.integers(1, 30), causal=st.booleans(),
    left=st.none() | st.integers(0, 30), right=st.none() | st.integers(0, 30),
)  # fmt: skip
def test_blocks_of_keys_leave_out_what_nobody_sees(offset, start, height, S, block_k, causal, left, right):
    call = Call((), 99, S, 1, 1, 1, 1.0, None, causal, (left, right), offset)
    positions = offset + np.arange(start, start + height)
    allowed = masks.sliding_window(positions, np.arange(S), left, right)
    if causal:
        allowed = allowed & masks.causal(positions, np.arange(S))
    visited = np.zeros(S, int)
    for keys, all_see_all in key_blocks(offset, slice(start, start + height), call, block_k):
        assert 0 < keys.stop - keys.start <= block_k
        assert not all_see_all or allowed[:, keys].all()
        visited[keys] += 1
    assert visited.max(initial=0) <= 1
    np.testing.assert_array_equal(visited == 1, allowed.any(0))


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 1.0), ({"causal": True}, 0.54), ({"window": (16, 0)}, 0.047), ({"window": (16, 16)}, 0.0625),
     ({"mask": np.arange(1024) < 100}, 0.13), ({"causal": True, "offset": -1024}, 0.0)],
)  # fmt: skip
@pytest.mark.parametrize("body", BODIES)
def test_tiles_that_nobody_sees_are_not_computed(monkeypatch, body, options, most):
    computed = []
    by_body(monkeypatch, body, lambda query, tile: computed.append(query.shape[-2] * tile.key.shape[-2]))
    x = normal(np.random.default_rng(0), 1024, 4)
    if "mask" in options:
        options = {"mask": np.broadcast_to(options["mask"], (1024, 1024))}
    streaming_attention(x, x, x, **options, block_q=32, block_k=32)
    assert 0.75 * most * 1024**2 <= sum(computed) <= most * 1024**2


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"window": (100, 100)}, {"softcap": 3.0}],
    ids=["plain", "causal", "window", "softcap"],
)
def test_scratch_does_not_grow_with_the_sequence(options):
    def scratch(N):
        x = normal(np.random.default_rng(0), N, 16, dtype="float16")  # float16: nothing can be used as it stands
        mask = np.broadcast_to(np.arange(N) < N - 5, (N, N))
        return peak(lambda: streaming_attention(x, x, x, mask=mask, return_lse=True, **options))

    small, large = scratch(2048), scratch(4096)
    assert large <= 3 * 2**20  # an (L, S) array of bytes alone would take 16 MiB
    assert large <= 1.05 * small


def test_scratch_of_the_second_look_does_not_grow_either():
    def scratch(N):
        x = np.full((N, 64), 1e20, np.float32)
        return peak(lambda: streaming_attention(x, x, x, block_q=64, block_k=64, return_lse=True))

    small, large = scratch(512), scratch(1024)
    assert large <= 2**19
    assert large <= 1.05 * small


def peak(call):
    """Return how many bytes a call has in use at most, apart from what it returns."""
    tracemalloc.start()
    try:
        returned = call()
        return tracemalloc.get_traced_memory()[1] - sum(x.nbytes for x in returned)
    finally:
        tracemalloc.stop()


def test_grouped_heads_share_their_keys_without_copies():
    query, key = np.zeros((1, 64, 1, 64)), np.zeros((1, 1, 2048, 64))
    scratch = peak(lambda: streaming_attention(query, key, key, enable_gqa=True, return_lse=True))
    assert scratch < 4 * key.nbytes  # repeated keys would take 64 times as much


# --- Inputs ---


def views(array):
    """Give the same numbers in other strides: every second one, transposed storage, reversed, read-only."""
    doubled = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    doubled[..., ::2] = array
    frozen = array.copy()
    frozen.flags.writeable = False
    return {
        "strided": doubled[..., ::2],
        "transposed": array.swapaxes(-1, -2).copy().swapaxes(-1, -2),
        "reversed": array[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
        "read-only": frozen,
        "fortran": np.asfortranarray(array),
    }


@pytest.mark.parametrize("name", ["query", "key", "value", "bias", "mask"])
@pytest.mark.parametrize("view", ["strided", "transposed", "reversed", "read-only", "fortran"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_views_give_what_copies_give(name, view, dtype):
    rng = np.random.default_rng(10)
    arrays = {n: normal(rng, 2, size, 8, dtype=dtype) for n, size in (("query", 20), ("key", 30), ("value", 30))}
    arrays |= {"bias": normal(rng, 2, 20, 30, dtype=dtype), "mask": rng.random((2, 20, 30)) < 0.7}
    wanted = streaming_attention(**arrays, block_q=8, block_k=8)
    given = streaming_attention(**arrays | {name: views(arrays[name])[view]}, block_q=8, block_k=8)
    atol = 1e-3 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(given.astype(float), wanted.astype(float), rtol=0, atol=atol)


def test_broadcast_views_and_a_head_for_all():
    rng = np.random.default_rng(11)
    query, key, value = normal(rng, 3, 1, 9, 4), normal(rng, 1, 5, 7, 4), normal(rng, 7, 2)
    mask = rng.random((5, 1, 7)) < 0.7
    wanted = attention(query, key, value, mask=mask)
    stretched = np.broadcast_to(query, (3, 5, 9, 4)), key, np.broadcast_to(value, (3, 1, 7, 2))
    for arrays in ((query, key, value), stretched):
        np.testing.assert_allclose(streaming_attention(*arrays, mask=mask, block_k=3), wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("beyond", [False, True])
def test_inputs_are_not_written_to(beyond):
    rng = np.random.default_rng(12)
    query, key, value = (normal(rng, 9, 4, dtype="float32") for _ in range(3))
    bias, mask = normal(rng, 9, 9, dtype="float32"), rng.random((9, 9)) < 0.8
    if beyond:
        query[3], value[2] = 1e38, np.nan
    everything = query, key, value, bias, mask
    before = [x.tobytes() for x in everything]
    streaming_attention(query, key, value, bias=bias, mask=mask, softcap=2.0, causal=True, block_k=4)
    assert [x.tobytes() for x in everything] == before


def test_the_output_is_the_callers_own():
    x = np.ones((1, 1))
    first = streaming_attention(x, x, x)
    first[:] = 7
    assert streaming_attention(x, x, x).item() == 1


# --- Errors ---

X = np.zeros((3, 4))
WRONG = [
    ({"block_q": 0}, ValueError, "block_q must be 1 or more, got 0"),
    ({"block_k": -3}, ValueError, "block_k must be 1 or more, got -3"),
    ({"block_q": 2.0}, TypeError, "block_q must be an integer, got 2.0 (float)"),
    ({"block_k": True}, TypeError, "block_k must be an integer, got True (bool)"),
    ({"return_lse": 1}, TypeError, "return_lse must be True or False, got 1 (int)"),
    ({"mask": np.ones((3, 3))}, TypeError,
     "mask must be boolean (True = may attend), got float64; an additive mask (0 and -inf) goes to bias="),
    ({"softcap": 0.0}, ValueError, "softcap must be positive (None for no cap), got 0.0"),
    ({"key": np.zeros((3, 4), np.float32)}, TypeError,
     "query, key and value must share one dtype, got query float64, key float32, value float64"),
    ({"value": np.zeros((2, 4))}, ValueError, "value must have shape (..., S, Ev) with key's S = 3, got (2, 4)"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "kind", "text"), WRONG, ids=[text for _, _, text in WRONG])
def test_errors(change, kind, text):
    call = {"query": X, "key": X, "value": X} | change
    assert raised(kind, streaming_attention, **call) == text


def test_weights_are_not_on_offer():
    assert "return_weights" in raised(TypeError, streaming_attention, X, X, X, return_weights=True)
