"""The future seen, the past hidden, offsets lost while decoding, windows that count the query, rotary pairs mixed."""

import numpy as np
import pytest
import torch

from lib import fast
from tests import oracle
from tests.rules import draw, raised


def seen(attention, L, S, **options):
    """Tell who sees whom: equal scores, and the unit vectors as values."""
    return (attention(np.zeros((L, 1)), np.zeros((S, 1)), np.eye(S), **options) > 0).astype(int).tolist()


def test_C1_alignment_is_what_was_asked_for(attention):
    """Two queries, five keys: bottom-right sees 4 and 5 keys, top-left 1 and 2; nobody guesses.

    Dao-AILab/flash-attention#20, Dao-AILab/flash-attention#282, Dao-AILab/flash-attention#351,
    Dao-AILab/flash-attention#402, Dao-AILab/flash-attention#951, Dao-AILab/flash-attention#1778,
    pytorch/pytorch#103082, pytorch/pytorch#108108, ml-explore/mlx#2835, pytorch/executorch#22426,
    openvinotoolkit/openvino#36680, HKUSTDial/flash-sparse-attention#213, NVIDIA/TransformerEngine#960,
    onnx/onnx#8054, onnx/onnx#8068, microsoft/onnxruntime#28904, facebookresearch/xformers#931.
    """
    assert seen(attention, 2, 5, causal=True, offset=3) == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert seen(attention, 2, 5, causal=True, offset=0) == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
    text = raised(ValueError, seen, attention, 2, 5, causal=True)
    assert "offset=3" in text
    assert "offset=0" in text
    # more queries than keys, bottom-right: the first query sees nothing and gets 0
    assert seen(attention, 3, 2, causal=True, offset=-1) == [[0, 0], [1, 0], [1, 1]]
    assert seen(attention, 3, 2, causal=True, offset=0) == [[1, 0], [1, 1], [1, 1]]


def test_C3_one_query_at_the_end_sees_everything(attention):
    """A decode step is causal and not causal at once.

    pytorch/pytorch#103082, pytorch/pytorch#108108, ml-explore/mlx#2835, pytorch/executorch#22426.
    """
    query, key, value = draw((2,), L=1, S=16)
    given = attention(query, key, value, causal=True, offset=15)
    np.testing.assert_allclose(given, attention(query, key, value), rtol=0, atol=1e-14)
    np.testing.assert_allclose(given, oracle.attention(query, key, value)[0], rtol=0, atol=1e-14)


def test_C4_causal_and_mask_compose(attention):
    """Three tokens, the first is padding: 0, then 2, then the mean of 2 and 4.

    onnx/onnx#8054, microsoft/onnxruntime#28904, keras-team/keras#23038. (torch's SDPA takes both on one of its paths,
    raises on another, and its text says that it always raises.)
    """
    zeros, value = np.zeros((3, 1)), np.array([[1.0], [2.0], [4.0]])
    hidden = np.array([False, True, True])
    for options in ({"mask": hidden}, {"bias": np.where(hidden, 0, -np.inf)}):
        np.testing.assert_array_equal(attention(zeros, zeros, value, causal=True, **options), [[0], [2], [3]])


@pytest.mark.parametrize("size", [1e3, 1e-3])
@pytest.mark.parametrize("extra", [{}, {"window": (2, None)}, {"mask": True}, {"softcap": 5.0}])
def test_C5_the_future_changes_no_bit_of_the_past(attention, size, extra):
    """Perturb everything from t + 1 on: outputs and weights up to t are the same to the bit.

    keras-team/keras#23038, facebookresearch/xformers#103, facebookresearch/xformers#1135, pytorch/pytorch#96941,
    rasbt/LLMs-from-scratch#1061.
    """
    if not set(extra) <= attention.options:
        extra = {}  # backend="sdpa" has no softcap
    extra = {"mask": np.array([False, True, True, True, True, True])} if "mask" in extra else extra
    x = np.random.default_rng(0).normal(size=(2, 3, 6, 4)).astype(np.float32)
    units = np.broadcast_to(np.eye(6, dtype=np.float32), (2, 3, 6, 6)).copy()
    for t in (0, 2, 4):
        y = x.copy()
        y[..., t + 1 :, :] += size * np.random.default_rng(1).normal(size=y[..., t + 1 :, :].shape)
        for before, after in ((x, y), (units, units)):  # the output, then the weights
            one = attention(x, x, before, causal=True, **extra)[..., : t + 1, :]
            other = attention(y, y, after, causal=True, **extra)[..., : t + 1, :]
            assert one.tobytes() == other.tobytes()


def test_C5_in_a_layer(layer):
    """The same through a layer, and the future does change the future.

    pytorch/pytorch#99282, pytorch/pytorch#96941, rasbt/LLMs-from-scratch#1062.
    """
    r = np.random.default_rng(0)
    x, projections = r.normal(size=(2, 6, 4)), [r.normal(size=(4, 4)) for _ in range(4)]
    before = layer(x, *projections, 2, causal=True)
    for t in range(5):
        y = x.copy()
        y[:, t + 1 :] += 1e3 * r.normal(size=y[:, t + 1 :].shape)
        after = layer(y, *projections, 2, causal=True)
        np.testing.assert_allclose(after[:, : t + 1], before[:, : t + 1], rtol=0, atol=1e-13)
        assert not np.allclose(after[:, t + 1 :], before[:, t + 1 :], atol=1e-3)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_C5_a_language_model_does_not_see_the_future(training, positions):
    """Causal in training and in evaluation.

    pytorch/tutorials#2478, pytorch/tutorials (the SDPA tutorial ties is_causal to training mode).
    """
    torch.manual_seed(0)
    model = fast.LanguageModel(
        vocab_size=11, dim=8, num_layers=2, num_heads=2, max_length=6, positions=positions
    ).train(training)  # fmt: skip
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    with torch.no_grad():
        before = model(tokens)
        for t in range(5):
            changed = tokens.clone()
            changed[:, t + 1 :] = 9
            after = model(changed)
            torch.testing.assert_close(after[:, : t + 1], before[:, : t + 1], rtol=0, atol=1e-6)
            assert not torch.allclose(after[:, t + 1 :], before[:, t + 1 :], atol=1e-3)


def decode(attention, room, chunks, window=None, capacity=16, rotary=False):
    """Run chunks of a sequence through a cache, and the whole sequence in one pass; return both."""
    L = sum(chunks)
    query, key, value = draw((2, 2), L=L, S=L, E=4)
    causal = {"causal": True} if window is None else {"causal": True, "window": (window, 0)}
    turned = (room.rotary(query, np.arange(L)), room.rotary(key, np.arange(L))) if rotary else (query, key)
    whole = attention(*turned, value, **causal)
    cache = room.cache(2, 2, capacity, 4, 2, window=window)
    parts, start = [], 0
    for n in chunks:
        q, k, v = (x[:, :, start : start + n].copy() for x in (query, key, value))
        if rotary:  # positions come from the cache
            positions = np.asarray(cache.positions(n))
            q, k = room.rotary(q, positions), room.rotary(k, positions)
        held_key, held_value, options = room.append(cache, k, v)
        parts.append(attention(q, held_key, held_value, causal=True, **options))
        start += n
    return np.concatenate(parts, axis=2), whole


@pytest.mark.parametrize("rotary", [False, True])
def test_K1_one_token_at_a_time_equals_the_whole_pass(attention, its_room, rotary):
    """Seven steps with a cache, positions counted by it.

    rasbt/LLMs-from-scratch#697, skyzh/tiny-llm#46.
    """
    given, wanted = decode(attention, its_room, [1] * 7, rotary=rotary)
    np.testing.assert_allclose(given, wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("chunks", [[1] * 12, [3, 1, 1, 4, 1, 2]])
def test_K1_positions_go_on_when_old_keys_are_dropped(attention, its_room, chunks):
    """A window of two and room for six: keys are dropped, and rotary angles go on counting all tokens seen.

    VeloxQuant-MLX#389, VeloxQuant-MLX#392, karpathy/nanochat#456.
    """
    given, wanted = decode(attention, its_room, chunks, window=2, capacity=6, rotary=True)
    np.testing.assert_allclose(given, wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("window", [None, 2])
def test_K1_rows_of_different_lengths(attention, its_room, window):
    """Prompts of 4, 1 and 3 tokens, then three steps each: every row counts for itself.

    karpathy/nanochat#485 (the first row's length used for all), skyzh/tiny-llm#46.
    """
    lengths, steps = np.array([4, 1, 3]), 3
    query, key, value = draw((3, 2), L=7, S=7, E=4)
    cache = its_room.cache(3, 2, 8, 4, 2, window=window)
    found = [[] for _ in lengths]
    for step in range(steps + 1):
        counts = lengths if step == 0 else np.ones(3, int)
        n, start = counts.max(), np.zeros(3, int) if step == 0 else lengths + step - 1
        positions = np.asarray(cache.positions(int(n)))
        assert (positions[:, 0] == start).all()
        q, k, v = (np.stack([x[b, :, start[b] : start[b] + n] for b in range(3)]) for x in (query, key, value))
        q, k = its_room.rotary(q, positions), its_room.rotary(k, positions)
        held_key, held_value, options = its_room.append(cache, k, v, counts)
        output = attention(q, held_key, held_value, causal=True, **options)
        for b in range(3):
            found[b].append(output[b, :, : counts[b]])
    for b, length in enumerate(lengths + steps):
        q, k = (its_room.rotary(x[b, :, :length].copy(), np.arange(length)) for x in (query, key))
        options = {} if window is None else {"window": (window, 0)}
        wanted = oracle.attention(q, k, value[b, :, :length], causal=True, **options)[0]
        np.testing.assert_allclose(np.concatenate(found[b], 1), wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("chunks", [[3, 3, 1], [7], [1, 6], [2, 1, 1, 3]])
def test_K2_chunks_equal_the_whole_pass(attention, its_room, chunks):
    """Prefill in chunks: a chunk is causal inside, and sees all that came before.

    rasbt/LLMs-from-scratch#697, vllm-project/vllm#5678; a drill set whose cache is not masked on a longer append.
    """
    for rotary in (False, True):
        given, wanted = decode(attention, its_room, chunks, rotary=rotary)
        np.testing.assert_allclose(given, wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("chunks", [[1] * 7, [3, 3, 1]])
@pytest.mark.parametrize("pairing", [None, "interleaved", "half"])
def test_K2_in_a_module(chunks, pairing):
    """The same through the layer with its own projections, grouped heads and rotary positions.

    rasbt/LLMs-from-scratch#697, skyzh/tiny-llm#46, vllm-project/vllm#5678.
    """
    torch.manual_seed(0)
    layer = fast.MultiHeadAttention(8, 4, num_kv_heads=2, rotary_pairing=pairing, dtype=torch.float64)
    x, cache = torch.randn(2, 7, 8, dtype=torch.float64), fast.KVCache(2, 2, 7, 2, dtype=torch.float64)
    with torch.no_grad():
        given = torch.cat([layer(part, causal=True, cache=cache) for part in x.split(chunks, 1)], 1)
        torch.testing.assert_close(given, layer(x, causal=True), rtol=0, atol=1e-13)


def test_W1_a_window_does_not_count_the_query(attention):
    """left=1: itself and one before. The two sides are independent, and the window holds while decoding.

    huggingface/transformers#39408, huggingface/transformers#29623, huggingface/transformers#40700,
    vllm-project/vllm#3385, zml/zml#763, ml-explore/mlx#3552, karpathy/nanochat#456.
    """
    assert seen(attention, 4, 4, window=(1, 0)) == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert seen(attention, 4, 4, window=(1, None), causal=True) == seen(attention, 4, 4, window=(1, 0))
    assert seen(attention, 4, 4, window=(0, 0)) == np.eye(4).astype(int).tolist()
    assert seen(attention, 3, 3, window=(0, 1)) == [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
    assert seen(attention, 3, 3, window=(1, 1)) == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    assert seen(attention, 1, 4, window=(1, 0), offset=3) == [[0, 0, 1, 1]]
    assert seen(attention, 1, 4, window=(1, 0), causal=True, offset=2) == [[0, 1, 1, 0]]


def test_W1_each_row_of_a_batch_has_its_own_window(attention):
    """Rows of different lengths, one query each at its own end: none uses the first row's.

    karpathy/nanochat#485.
    """
    query, key, value = draw((3,), L=1, S=6)
    offsets = np.array([5, 2, 0])
    given = attention(query, key, value, causal=True, window=(1, 0), offset=offsets)
    for b, offset in enumerate(offsets):
        keys = slice(max(offset - 1, 0), offset + 1)
        wanted, _ = oracle.attention(query[b], key[b, keys], value[b, keys])
        np.testing.assert_allclose(given[b], wanted, rtol=0, atol=1e-14)


A, B = np.array([[1.0, 2, 3, 4]]), np.array([[2.0, -1, 0.5, 1]])
PAIRS = {"interleaved": [(0, 1), (2, 3)], "half": [(0, 2), (1, 3)]}


def by_complex_numbers(x, position, pairs):
    """Turn pair i by position / 10000^(2i/4), by hand."""
    turned = np.zeros(4)
    for i, (a, b) in enumerate(pairs):
        z = complex(x[0, a], x[0, b]) * np.exp(1j * position / 10000 ** (2 * i / 4))
        turned[a], turned[b] = z.real, z.imag
    return turned


@pytest.mark.parametrize("pairing", PAIRS)
def test_R1_rotary_products_depend_on_the_distance_alone(room, pairing):
    """⟨R₃a, R₁b⟩ = ⟨R₁₀a, R₈b⟩, lengths stay, and each pairing gives its own, known numbers.

    raiyanyahya/how-to-train-your-gpt#6, EleutherAI/gpt-neox#834, karpathy/nanochat#264,
    vllm-project/vllm-ascend#12820, Tencent/ncnn#6833; a drill set that accepts the identity.
    """

    def turned(x, position):
        return room.rotary(x, np.array([position]), pairing=pairing)

    near, far = turned(A, 3) @ turned(B, 1).T, turned(A, 10) @ turned(B, 8).T
    np.testing.assert_allclose(near, far, rtol=1e-12)
    for x in (A, B):
        for position in (0, 3, 1000):
            wanted = by_complex_numbers(x, position, PAIRS[pairing])
            np.testing.assert_allclose(turned(x, position)[0], wanted, rtol=0, atol=1e-12)
            np.testing.assert_allclose(np.linalg.norm(turned(x, position)), np.linalg.norm(x), rtol=1e-14)
    np.testing.assert_array_equal(turned(A, 0), A)
    assert not np.allclose(turned(A, 3), A, atol=0.1)  # it turns something


def test_R1_the_pairings_are_the_same_up_to_a_permutation(room):
    """Features 0, 2, 1, 3 of the one are those of the other, so only mixing them is wrong; and they do differ.

    EleutherAI/gpt-neox#834, karpathy/nanochat#264, vllm-project/vllm-ascend#12820.
    """
    order = [0, 2, 1, 3]
    half = room.rotary(A[:, order].copy(), np.array([6]), pairing="half")
    interleaved = room.rotary(A, np.array([6]), pairing="interleaved")
    np.testing.assert_allclose(half, interleaved[:, order], rtol=1e-14)
    assert not np.allclose(room.rotary(A, np.array([6]), pairing="half"), interleaved, atol=0.1)


def test_R1_every_pair_has_an_angle_of_its_own(room):
    """Cosines and sines whose halves differ: none is dropped and none stands in for another.

    Tencent/ncnn#6833.
    """
    x, angles = np.array([[1.0, 0, 1, 0, 1, 0, 1, 0]]), np.array([[0.1, 0.2, 0.3, 0.4]])
    turned = room.rotate_pairs(x, np.cos(angles), np.sin(angles), pairing="interleaved")
    np.testing.assert_allclose(np.arctan2(turned[:, 1::2], turned[:, 0::2]), angles, rtol=1e-14)
    halves = np.array([[1.0, 1, 1, 1, 0, 0, 0, 0]])
    turned = room.rotate_pairs(halves, np.cos(angles), np.sin(angles), pairing="half")
    np.testing.assert_allclose(np.arctan2(turned[:, 4:], turned[:, :4]), angles, rtol=1e-14)


@pytest.mark.parametrize("pairing", PAIRS)
@pytest.mark.parametrize("rotary_dim", [None, 2])
def test_R1_gradients_pass_through_the_rotation(pairing, rotary_dim):
    """The backward pass is exercised too: by finite differences.

    Dao-AILab/flash-attention#569.
    """
    x = torch.tensor(draw((2,), E=4)[0]).requires_grad_()
    options = {"pairing": pairing, "rotary_dim": rotary_dim}
    assert torch.autograd.gradcheck(lambda y: fast.rotary(y, torch.arange(4), **options), (x,))
