"""The layer: equal to torch's own and to explicit weights, cached and not, and what is refused."""

import copy
import itertools
import re

import pytest
import torch
from torch import nn

from lib import masks
from lib.fast import KVCache, MultiHeadAttention, multi_head_attention, rotary, split_heads

F64 = {"dtype": torch.float64}
CLOSE = {"atol": 1e-12, "rtol": 0}


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **F64)


def made(cls=MultiHeadAttention, *args, seed=0, **options):
    """Make a layer with random weights and biases (torch's own starts with biases of 0)."""
    torch.manual_seed(seed)
    layer = cls(*args, **F64, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


CONFIGURATIONS = [
    pytest.param(dict(zip(("bias", "batch_first", "kdim", "vdim"), choice, strict=True)), id=str(choice))
    for choice in itertools.product([True, False], [True, False], [None, 5], [None, 7])
]


@pytest.mark.parametrize("options", CONFIGURATIONS)
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_gives_the_outputs_of_torchs_own(options, heads):
    theirs = made(nn.MultiheadAttention, 8, heads, **options)
    ours = MultiHeadAttention.from_torch(theirs)
    query, key, value = (
        randn(3, 4, 8),
        randn(3, 5, options["kdim"] or 8, seed=1),
        randn(3, 5, options["vdim"] or 8, seed=2),
    )
    mask = torch.rand(3, heads, 4, 5, generator=torch.Generator().manual_seed(3)) < 0.7
    mask[..., 0] = True  # their rows without keys are NaN
    padding = masks.padding(torch.tensor([[5], [3], [1]]), 5)  # (B, 1, 1, S)
    bias = randn(4, 5, seed=4)
    cases = [  # what they are told, and what we are told
        ({}, {}),
        ({"attn_mask": ~mask[0, 0]}, {"mask": mask[0, 0]}),
        ({"attn_mask": ~mask.flatten(0, 1)}, {"mask": mask}),
        ({"key_padding_mask": ~padding[:, 0, 0]}, {"mask": padding}),
        ({"key_padding_mask": ~padding[:, 0, 0], "attn_mask": ~mask.flatten(0, 1)}, {"mask": mask & padding}),
        ({"attn_mask": bias}, {"bias": bias}),
    ]

    def sides(x):
        return x if options["batch_first"] else x.transpose(0, 1)

    for told, asked in cases:
        for average in (True, False):
            output, weights = theirs(*map(sides, (query, key, value)), average_attn_weights=average, **told)
            given, shares = ours(query, key, value, need_weights=True, average_weights=average, **asked)
            torch.testing.assert_close(given, sides(output), **CLOSE)
            torch.testing.assert_close(shares, weights, **CLOSE)
        torch.testing.assert_close(ours(query, key, value, **asked), sides(output), **CLOSE)


@pytest.mark.parametrize("training", [True, False])
def test_self_attention_causal_and_unbatched_equal_torchs_own(training):
    theirs = made(nn.MultiheadAttention, 8, 2, batch_first=True).train(training)
    ours, x = MultiHeadAttention.from_torch(theirs), randn(3, 4, 8)
    hidden = nn.Transformer.generate_square_subsequent_mask(4, **F64)
    wanted = theirs(x, x, x, attn_mask=hidden, is_causal=True, need_weights=False)[0]
    torch.testing.assert_close(ours(x, causal=True), wanted, **CLOSE)
    torch.testing.assert_close(ours(x, x, x, causal=True), wanted, **CLOSE)
    torch.testing.assert_close(ours(x[0]), theirs(x[0], x[0], x[0])[0], **CLOSE)


def test_from_torch_gives_the_same_gradients():
    theirs = made(nn.MultiheadAttention, 8, 2, batch_first=True)
    ours, x = MultiHeadAttention.from_torch(theirs), randn(3, 4, 8)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    theirs(*[inputs[0]] * 3)[0].pow(2).sum().backward()
    ours(inputs[1]).pow(2).sum().backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad, **CLOSE)
    packed = torch.cat([p.weight.grad for p in (ours.q_proj, ours.k_proj, ours.v_proj)])
    torch.testing.assert_close(packed, theirs.in_proj_weight.grad, **CLOSE)


def test_from_torch_copies_and_takes_over_mode_dropout_and_dtype():
    theirs = nn.MultiheadAttention(8, 2, dropout=0.25, dtype=torch.bfloat16).eval()
    ours = MultiHeadAttention.from_torch(theirs)
    assert (ours.dropout, ours.training, ours.q_proj.weight.dtype) == (0.25, False, torch.bfloat16)
    before = theirs.in_proj_weight.clone()
    with torch.no_grad():
        ours.q_proj.weight.zero_()
    assert torch.equal(theirs.in_proj_weight, before)
    assert all(p.requires_grad and p.is_leaf for p in ours.parameters())


@pytest.mark.parametrize("G", [4, 2, 1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("head_dim", [None, 3])
def test_equals_explicit_weights(G, bias, head_dim):
    layer = made(MultiHeadAttention, 8, 4, num_kv_heads=G, bias=bias, head_dim=head_dim, kdim=5, vdim=6)
    query, key, value = randn(2, 3, 8), randn(2, 4, 5, seed=1), randn(2, 4, 6, seed=2)
    projections = {"q": layer.q_proj, "k": layer.k_proj, "v": layer.v_proj, "o": layer.o_proj}
    biases = {f"b_{name}": p.bias for name, p in projections.items()}
    wanted = multi_head_attention(
        query, *(p.weight.mT for p in projections.values()), 4, G, key=key, value=value, **biases, return_weights=True
    )
    for given, expected in zip(layer(query, key, value, need_weights=True), wanted, strict=True):
        torch.testing.assert_close(given, expected, **CLOSE)
    assert layer.head_dim == (head_dim or 2)
    E = layer.head_dim
    shapes = {name: tuple(p.weight.shape) for name, p in projections.items()}
    assert shapes == {"q": (4 * E, 8), "k": (G * E, 5), "v": (G * E, 6), "o": (8, 4 * E)}


def test_state_loads_into_another_layer():
    one, other = made(MultiHeadAttention, 8, 2, seed=1), made(MultiHeadAttention, 8, 2, seed=2)
    assert sorted(one.state_dict()) == sorted(
        f"{p}_proj.{kind}" for p in "qkvo" for kind in ("weight", "bias")
    )  # all of the state: nothing that a call leaves behind
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(randn(2, 3, 8)), other(randn(2, 3, 8)))
    assert torch.equal(one(randn(2, 3, 8)), copy.deepcopy(one)(randn(2, 3, 8)))


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_rows_without_keys_are_zero_and_have_finite_gradients(need_weights, training):
    """torch's own layer gives NaN gradients for the whole batch here."""
    layer, x = made(MultiHeadAttention, 8, 2).train(training), randn(2, 3, 8).requires_grad_()
    mask = torch.tensor([[False] * 3, [True] * 3, [True] * 3])
    found = layer(x, mask=mask, need_weights=need_weights)
    output = found[0] if need_weights else found
    torch.testing.assert_close(output[:, 0], layer.o_proj.bias.expand(2, 8), **CLOSE)
    if need_weights:
        assert (found[1][:, :, 0] == 0).all()
        torch.testing.assert_close(found[1][:, :, 1:].sum(-1), torch.ones(2, 2, 2, **F64), **CLOSE)
    output.pow(2).sum().backward()
    assert all(p.grad.isfinite().all() for p in (x, *layer.parameters()))


def test_dropout_in_training_only():  # D1
    layer, x = made(MultiHeadAttention, 8, 2, dropout=0.5), randn(2, 5, 8)
    plain = MultiHeadAttention(8, 2, **F64)
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer.eval()(x), plain(x))
    assert torch.equal(layer(x), layer(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    output, weights = layer(x, need_weights=True)
    assert torch.equal(weights, plain(x, need_weights=True)[1])  # those before dropout
    assert not torch.allclose(output, plain(x))
    torch.manual_seed(0)
    mean = layer(x[:1].expand(4000, 5, 8)).mean(0)
    assert (mean - plain(x)[0]).abs().max() < 0.1  # dropping changes no expectation


def test_average_of_the_weights():
    layer, x = made(MultiHeadAttention, 8, 4), randn(2, 3, 8)
    each, mean = (layer(x, need_weights=True, average_weights=average)[1] for average in (False, True))
    assert (each.shape, mean.shape) == ((2, 4, 3, 3), (2, 3, 3))
    assert torch.equal(mean, each.mean(1))
    assert isinstance(layer(x), torch.Tensor)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("rotary_dim", [None, 2])
def test_rotary_turns_queries_and_keys(pairing, rotary_dim):
    options = {"rotary_pairing": pairing, "rotary_dim": rotary_dim, "rotary_base": 100.0}
    layer, x = made(MultiHeadAttention, 8, 2, num_kv_heads=1, **options), randn(2, 3, 8)
    turn = {"positions": [0, 1, 2], "pairing": pairing, "rotary_dim": rotary_dim, "base": 100.0}
    q, k = rotary(split_heads(layer.q_proj(x), 2), **turn), rotary(split_heads(layer.k_proj(x), 1), **turn)
    scores = q @ k.mT / 2  # √4
    torch.testing.assert_close(layer(x, need_weights=True)[1], scores.softmax(-1), **CLOSE)
    moved = layer(x, positions=torch.tensor([[5, 6, 7], [0, 1, 2]]), causal=True)  # all of a row moved: no change
    torch.testing.assert_close(moved, layer(x, causal=True), **CLOSE)
    assert not torch.allclose(layer(x, positions=torch.tensor([0, 2, 9])), layer(x))


@pytest.mark.parametrize("pairing", [None, "interleaved", "half"])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("chunks", [(7,), (3, 3, 1), (1,) * 7], ids=str)
def test_with_a_cache_chunks_equal_the_full_pass(pairing, window, chunks):
    layer = made(MultiHeadAttention, 8, 4, num_kv_heads=2, rotary_pairing=pairing).eval()
    x, bias = randn(2, 7, 8), randn(7, 7, seed=1)
    reach = None if window is None else (window, 0)
    cache = KVCache(2, 2, 7, 2, window=None if chunks == (7,) else window, **F64)
    outputs = [layer(chunk, causal=True, window=reach, cache=cache) for chunk in x.split(chunks, 1)]
    torch.testing.assert_close(torch.cat(outputs, 1), layer(x, causal=True, window=reach), **CLOSE)
    if window is None:
        cache.reset()
        outputs, start = [], 0
        for chunk in x.split(chunks, 1):
            end = start + chunk.shape[1]
            outputs.append(layer(chunk, causal=True, cache=cache, bias=bias[start:end, :end]))
            start = end
        torch.testing.assert_close(torch.cat(outputs, 1), layer(x, causal=True, bias=bias), **CLOSE)


def test_rotary_knows_self_attention_by_its_tensors():
    layer, x = made(MultiHeadAttention, 8, 2, rotary_pairing="half"), randn(2, 3, 8)
    for same in ((x,), (x, x), (x, None, x), (x, x, x)):
        assert torch.equal(layer(*same), layer(x))
    for other in ((x, x.clone()), (x, x, x.clone()), (x, None, x.clone()), (x, x.clone(), x)):
        with pytest.raises(ValueError, match="needs self-attention, but key or value was given"):
            layer(*other)


def test_rotary_base_is_the_papers_unless_given():
    layers = [made(MultiHeadAttention, 8, 2, rotary_pairing="half", **base) for base in ({}, {"rotary_base": 10000.0})]
    x, far = randn(1, 3, 8), torch.tensor([0, 7, 5000])
    assert torch.equal(layers[0](x, positions=far), layers[1](x, positions=far))


def test_with_a_cache_of_bounded_memory():
    layer = made(MultiHeadAttention, 8, 2, rotary_pairing="half").eval()
    x, cache = randn(2, 30, 8), KVCache(2, 2, 5, 4, window=3, **F64)
    outputs = [layer(token, causal=True, cache=cache) for token in x.split(1, 1)]
    torch.testing.assert_close(torch.cat(outputs, 1), layer(x, causal=True, window=(3, 0)), **CLOSE)


def test_with_a_cache_and_rows_of_different_lengths():
    layer = made(MultiHeadAttention, 8, 2, rotary_pairing="interleaved").eval()
    x, cache, lengths = randn(2, 5, 8), KVCache(2, 2, 6, 4, **F64), torch.tensor([2, 4])
    first = layer(x[:, :4], causal=True, cache=cache, lengths=lengths)
    step = torch.stack([x[0, 2:3], x[1, 4:5]])
    second, weights = layer(step, causal=True, cache=cache, need_weights=True)
    for b, n in enumerate(lengths.tolist()):
        wanted, shares = layer(x[b, : n + 1], causal=True, need_weights=True)
        torch.testing.assert_close(torch.cat([first[b, :n], second[b]]), wanted, **CLOSE)
        torch.testing.assert_close(weights[b, :, 0, : n + 1], shares[:, n], **CLOSE)
        assert (weights[b, :, 0, n + 1 :] == 0).all()


def test_a_mask_beside_a_cache_hides_keys_too():
    layer = made(MultiHeadAttention, 8, 2).eval()
    x, cache = randn(2, 3, 8), KVCache(2, 2, 4, 4, **F64)
    mask = torch.tensor([False, True, True])
    layer(x[:, :2], causal=True, cache=cache, lengths=[2, 2])
    wanted = layer(x, causal=True, mask=mask)[:, 2:]
    torch.testing.assert_close(layer(x[:, 2:], causal=True, cache=cache, mask=mask), wanted, **CLOSE)


def test_a_mask_beside_a_cache_of_rows_of_different_lengths():
    layer = made(MultiHeadAttention, 8, 2).eval()
    x, cache = randn(2, 4, 8), KVCache(2, 2, 4, 4, **F64)
    mask = torch.tensor([False, True, True])
    layer(x[:, :2], causal=True, cache=cache, lengths=[2, 1])
    output = layer(x[:, 2:3], causal=True, cache=cache, mask=mask)
    for b, kept in enumerate(([0, 1, 2], [0, 2])):
        wanted = layer(x[b, kept], causal=True, mask=mask[: len(kept)])[-1:]
        torch.testing.assert_close(output[b], wanted, **CLOSE)


@pytest.mark.parametrize("training", [True, False])
def test_future_cannot_reach_the_past(training):  # C5, by gradient and by perturbation
    layer = made(MultiHeadAttention, 8, 2, rotary_pairing="half").train(training)
    x = randn(2, 6, 8).requires_grad_()
    for t in range(6):
        (reach,) = torch.autograd.grad(layer(x, causal=True)[:, t].sum(), x)
        assert (reach[:, t + 1 :] == 0).all()
        assert (reach[:, : t + 1] != 0).any(-1).all()
    moved = x.detach().clone()
    moved[:, 4:] += 1e3
    assert torch.equal(layer(moved, causal=True)[:, :4], layer(x, causal=True)[:, :4])


def test_in_bfloat16_autocast():
    layer, x = MultiHeadAttention(8, 2, rotary_pairing="half"), torch.randn(2, 3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x, causal=True)
        from_half = layer(x.bfloat16(), causal=True)
    assert output.dtype == from_half.dtype == torch.bfloat16
    assert (output - layer(x, causal=True)).abs().max() < 0.05
    assert (output - from_half).abs().max() < 0.05


def test_weights_in_autocast():
    layer, x = MultiHeadAttention(8, 2), torch.randn(2, 3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        output, weights = layer(x, causal=True, need_weights=True)
    assert output.dtype == weights.dtype == torch.bfloat16
    assert (weights - layer(x, causal=True, need_weights=True)[1]).abs().max() < 0.02


@pytest.mark.parametrize("B, L", [(0, 3), (2, 0), (1, 1)])
def test_sizes_zero_and_one(B, L):
    layer = MultiHeadAttention(8, 2, rotary_pairing="half")
    output, weights = layer(torch.zeros(B, L, 8), causal=True, need_weights=True)
    assert (output.shape, weights.shape) == ((B, L, 8), (B, 2, L, L))


def test_sizes_of_any_kind():
    assert MultiHeadAttention(7, 2, head_dim=4)(torch.zeros(1, 3, 7)).shape == (1, 3, 7)
    thin = MultiHeadAttention(8, 2, kdim=1, vdim=1)
    assert thin(torch.zeros(1, 3, 8), torch.zeros(1, 5, 1), torch.zeros(1, 5, 1)).shape == (1, 3, 8)
    x = randn(2, 3, 8)
    layer = made(MultiHeadAttention, 8, 2, rotary_pairing="half", rotary_dim=0)  # nothing turns
    assert torch.equal(layer(x), copied(layer, made(MultiHeadAttention, 8, 2))(x))
    turned = made(MultiHeadAttention, 8, 2, rotary_pairing="half", rotary_base=1)  # all pairs turn alike
    assert turned.rotary["base"] == 1
    assert MultiHeadAttention(8, 2, dropout=1).dropout == 1


def copied(source, target):
    """Give the target with the source's weights."""
    target.load_state_dict(source.state_dict())
    return target


def test_takes_over_the_device():
    ours = MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2, device="meta"))
    assert {x.device.type for x in ours.parameters()} == {"meta"}


@pytest.mark.parametrize("window", [None, (3, 0), [3, 0]], ids=str)
def test_the_window_of_a_cache_may_be_said_again(window):
    layer, x = made(MultiHeadAttention, 8, 2), randn(2, 5, 8)
    wanted = layer(x, causal=True, window=(3, 0))
    output = layer(x, causal=True, window=window, cache=KVCache(2, 2, 8, 4, **F64, window=3))
    torch.testing.assert_close(output, wanted, **CLOSE)


def test_says_its_heads():
    assert "num_heads=4, num_kv_heads=2, dropout=0.1" in repr(MultiHeadAttention(8, 4, num_kv_heads=2, dropout=0.1))


LAYER, TURNING, X = MultiHeadAttention(8, 2), MultiHeadAttention(8, 2, rotary_pairing="half"), torch.zeros(2, 3, 8)


def cached(layer=LAYER, x=X, **options):
    return layer(x, cache=KVCache(2, 2, 8, 4), **options)


@pytest.mark.parametrize(
    "kind, wrong, text",
    [
        (ValueError, lambda: MultiHeadAttention(0, 1), "embed_dim must be 1 or more, got 0"),
        (
            ValueError,
            lambda: MultiHeadAttention(8, 3),
            "embed_dim (8) must be divisible by num_heads (3), or head_dim given",
        ),
        (
            ValueError,
            lambda: MultiHeadAttention(8, 4, num_kv_heads=3),
            "num_heads (4) must be divisible by num_kv_heads (3)",
        ),
        (ValueError, lambda: MultiHeadAttention(8, 2, head_dim=0), "head_dim must be 1 or more, got 0"),
        (TypeError, lambda: MultiHeadAttention(8, 2, kdim=1.5), "kdim must be an integer, got 1.5 (float)"),
        (ValueError, lambda: MultiHeadAttention(8, 2, vdim=0), "vdim must be 1 or more, got 0"),
        (TypeError, lambda: MultiHeadAttention(8, 2, bias=1), "bias must be True or False, got 1 (int)"),
        (ValueError, lambda: MultiHeadAttention(8, 2, dropout=1.5), "dropout must lie between 0 and 1, got 1.5"),
        (
            ValueError,
            lambda: MultiHeadAttention(8, 2, rotary_pairing="halves"),
            "rotary_pairing must be one of interleaved, half, got 'halves'",
        ),
        (
            ValueError,
            lambda: MultiHeadAttention(9, 3, rotary_pairing="half"),
            "rotary_dim must be even and at most the head size 3, got 3",
        ),
        (
            ValueError,
            lambda: MultiHeadAttention(8, 2, rotary_pairing="half", rotary_dim=6),
            "rotary_dim must be even and at most the head size 4, got 6",
        ),
        (
            ValueError,
            lambda: MultiHeadAttention(8, 2, rotary_pairing="half", rotary_base=0),
            "rotary_base must be positive, got 0",
        ),
        (TypeError, lambda: LAYER(X.numpy()), "query must be a torch.Tensor, got numpy.ndarray"),
        (ValueError, lambda: LAYER(X[..., :7]), "query must have shape (..., length, 8), got (2, 3, 7)"),
        (ValueError, lambda: LAYER(X, X[..., :7]), "key must have shape (..., length, 8), got (2, 3, 7)"),
        (ValueError, lambda: LAYER(X[0, 0]), "query must have shape (..., length, 8), got (8,)"),
        (TypeError, lambda: LAYER(X.double()), "query must have the layer's dtype torch.float32, got torch.float64"),
        (ValueError, lambda: LAYER(X.to("meta")), "query must be on the layer's device cpu, got meta"),
        (
            ValueError,
            lambda: LAYER(X, mask=torch.ones(2, 3, 3, dtype=torch.bool)),
            "mask must have axes (L, S) or (B, H, L, S), where sizes of 1 broadcast, got (2, 3, 3)",
        ),
        (ValueError, lambda: LAYER(X, bias=torch.ones(2, 3, 3)), "bias must have axes (L, S) or (B, H, L, S)"),
        (TypeError, lambda: LAYER(X, mask=torch.ones(3, 3)), "mask must be boolean (True = may attend), got float32"),
        (TypeError, lambda: LAYER(X, need_weights=1), "need_weights must be True or False, got 1 (int)"),
        (
            TypeError,
            lambda: LAYER(X, need_weights=True, average_weights=1),
            "average_weights must be True or False, got 1 (int)",
        ),
        (ValueError, lambda: LAYER(X, X, X[..., :7]), "value must have shape (..., length, 8), got (2, 3, 7)"),
        (ValueError, lambda: MultiHeadAttention(8, 2, kdim=0), "kdim must be 1 or more, got 0"),
        (ValueError, lambda: MultiHeadAttention(8, 2, vdim=0), "vdim must be 1 or more, got 0"),
        (ValueError, lambda: MultiHeadAttention(8, 2, dropout=-0.5), "dropout must lie between 0 and 1, got -0.5"),
        (TypeError, lambda: MultiHeadAttention(8, 2, dropout="0"), "dropout must be a real number, got '0' (str)"),
        (
            TypeError,
            lambda: MultiHeadAttention(8, 2, rotary_pairing="half", rotary_base="1"),
            "rotary_base must be a real number, got '1' (str)",
        ),
        (
            TypeError,
            lambda: MultiHeadAttention(8, 2, rotary_pairing="half", rotary_dim=2.0),
            "rotary_dim must be an integer, got 2.0 (float)",
        ),
        (
            ValueError,
            lambda: MultiHeadAttention(8, 2, rotary_pairing="half", rotary_dim=-2),
            "rotary_dim must be 0 or more, got -2",
        ),
        (ValueError, lambda: LAYER(X, average_weights=True), "average_weights needs need_weights=True"),
        (ValueError, lambda: LAYER(X, lengths=[1, 2]), "lengths needs cache=; without one, hide padding with mask="),
        (ValueError, lambda: LAYER(X, positions=[0, 1, 2]), "positions needs a layer made with rotary_pairing="),
        (
            ValueError,
            lambda: TURNING(X, X.clone()),
            "a layer with rotary_pairing needs self-attention, but key or value",
        ),
        (
            ValueError,
            lambda: TURNING(X, positions=[0, 1]),
            "positions must have shape (3,) or one row for each batch entry",
        ),
        (TypeError, lambda: LAYER(X, causal=True, cache=[]), "cache must be a lib.fast.KVCache, got list"),
        (ValueError, lambda: cached(), "cache needs causal=True: a token must not see those appended after it"),
        (
            ValueError,
            lambda: cached(causal=True, key=X.clone()),
            "cache needs self-attention, but key or value was given",
        ),
        (
            ValueError,
            lambda: cached(causal=True, offset=0),
            "offset comes from the cache and must not be given with it",
        ),
        (
            ValueError,
            lambda: cached(TURNING, causal=True, positions=[0, 1, 2]),
            "positions comes from the cache and must not be given with it",
        ),
        (
            ValueError,
            lambda: LAYER(X, causal=True, window=(2, 0), cache=KVCache(2, 2, 8, 4, window=3)),
            "window must be the cache's (3, 0), or not be given, got (2, 0)",
        ),
        (
            ValueError,
            lambda: cached(x=X[0], causal=True),
            "key must have shape (B, G, L, E) = (2, 2, L, 4), got (2, 3, 4)",
        ),
        (
            TypeError,
            lambda: MultiHeadAttention.from_torch(LAYER),
            "module must be a torch.nn.MultiheadAttention, got Multi",
        ),
        (
            ValueError,
            lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2, add_bias_kv=True)),
            "module must be without add_bias_kv, which appends a key that no sequence has",
        ),
        (
            ValueError,
            lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2, add_zero_attn=True)),
            "module must be without add_zero_attn, which appends a key that no sequence has",
        ),
    ],
)
def test_errors_name_the_argument(kind, wrong, text):
    with pytest.raises(kind, match=re.escape(text)):
        wrong()
