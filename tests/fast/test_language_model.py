"""The tiny language model: causal in every mode, the same with a cache and without, and able to learn."""

import re

import pytest
import torch
from torch.nn import functional as F

from lib.fast import KVCache, LanguageModel

V = 11
KINDS = [
    pytest.param({"positions": positions, "num_kv_heads": G}, id=f"{positions}-{G}")
    for positions in ("rotary", "learned")
    for G in (None, 1)
]


def made(seed=0, dtype=torch.float64, dropout=0.0, **options):
    """Make a model whose weights are large enough to make a difference."""
    torch.manual_seed(seed)
    model = LanguageModel(V, 8, 2, 2, max_length=16, dropout=dropout, **options).to(dtype)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model.eval()


def tokens(B=2, L=6, seed=0):
    return torch.randint(V, (B, L), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("options", KINDS)
def test_is_what_the_paper_draws(options):
    """Norm, attention, norm, MLP, each added to what goes by; a norm, and the embedding once more."""
    model, x = made(**options), tokens()
    h = F.embedding(x, model.embedding.weight)
    if model.position_embedding is not None:
        h = h + model.position_embedding.weight[: x.shape[1]]
    for block in model.blocks:
        h = h + block.attention(norm(block.attention_norm, h), causal=True)
        wide, narrow = block.mlp[0], block.mlp[2]
        inner = F.gelu(norm(block.mlp_norm, h) @ wide.weight.T + wide.bias)
        h = h + inner @ narrow.weight.T + narrow.bias
    torch.testing.assert_close(model(x), norm(model.norm, h) @ model.embedding.weight.T, atol=1e-11, rtol=0)


def test_one_block_is_enough():
    model = LanguageModel(V, 8, 1, 2, max_length=16).eval()
    caches = model.new_cache(2)
    logits = torch.cat([model(chunk, caches) for chunk in tokens().split(3, 1)], 1)
    torch.testing.assert_close(logits, model(tokens()), atol=1e-6, rtol=0)


def norm(layer, h):
    return F.layer_norm(h, h.shape[-1:], layer.weight, layer.bias)


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("chunks", [(7,), (3, 3, 1), (1,) * 7], ids=str)  # K1, K2
def test_chunks_through_a_cache_equal_the_whole(options, chunks):
    model, x = made(**options), tokens(L=7)
    caches = model.new_cache(2)
    logits = torch.cat([model(chunk, caches) for chunk in x.split(chunks, 1)], 1)
    torch.testing.assert_close(logits, model(x), atol=1e-11, rtol=0)
    assert [cache.lengths.tolist() for cache in caches] == [[7, 7]] * 2


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_generation_is_the_same_with_and_without_cache(options, seed):
    model, prompt = made(seed, **options), tokens(L=3, seed=seed)
    greedy = model.generate(prompt, 12)
    assert torch.equal(greedy, model.generate(prompt, 12, use_cache=False))
    assert torch.equal(greedy[:, :3], prompt)
    for n in range(3, 15):  # each token is the likeliest after those before it
        assert torch.equal(model(greedy[:, :n])[:, -1].argmax(-1), greedy[:, n])
    drawn = [
        model.generate(prompt, 12, temperature=2.0, generator=torch.Generator().manual_seed(s), use_cache=cached)
        for s, cached in ((seed, True), (seed, False), (seed + 100, True))
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_generation_uses_a_cache_of_the_size_it_needs_unless_told_otherwise(monkeypatch):
    model, made_caches = made(), []
    make = model.new_cache
    monkeypatch.setattr(model, "new_cache", lambda *given: made_caches.append(given) or make(*given))
    model.generate(tokens(L=3), 2, use_cache=False)
    assert made_caches == []
    model.generate(tokens(L=3), 2)
    assert made_caches == [(2, 5)]


def test_rows_of_a_batch_do_not_mix():
    model, prompt = made(), tokens(3, 4)
    together = model.generate(prompt, 8)
    for row, alone in zip(together, prompt, strict=True):
        assert torch.equal(model.generate(alone, 8), row)  # one row without a batch axis
        assert torch.equal(model.generate(alone[None], 8)[0], row)


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("cached", [False, True])
def test_changed_tokens_cannot_reach_the_past(options, training, cached):
    model, x = made(**options).train(training), tokens(L=8)
    caches = [model.new_cache(2) if cached else None for _ in range(2)]
    before = model(x, caches[0])
    for t in range(1, 8):
        changed = x.clone()
        changed[:, t:] = (changed[:, t:] + 1) % V
        after = model(changed, caches[1])
        assert torch.equal(after[:, :t], before[:, :t])
        assert (after[:, t] != before[:, t]).any()
        if cached:
            for cache in caches[1]:
                cache.reset()


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("training", [True, False])
def test_gradients_cannot_come_from_the_future(options, training):
    model, x = made(**options).train(training), tokens(1, 6)
    reached = []
    model.blocks[0].register_forward_pre_hook(lambda module, args: reached.append(args[0].requires_grad_()) or args)
    logits = model(x)
    for t in range(6):
        (gradient,) = torch.autograd.grad(logits[0, t].sum(), reached[0], retain_graph=True)
        assert (gradient[0, t + 1 :] == 0).all()
        assert (gradient[0, : t + 1] != 0).any(-1).all()


@pytest.mark.parametrize("mode", [True, False])
def test_generate_evaluates_and_puts_the_modes_back(mode):
    model = made(dropout=0.5).train(mode)
    model.blocks[0].mlp.train(not mode)
    modes = [module.training for module in model.modules()]
    assert torch.equal(model.generate(tokens(), 5), model.generate(tokens(), 5))
    assert torch.equal(model.generate(tokens(), 5), model.eval().generate(tokens(), 5, use_cache=False))
    model.train(mode)
    model.blocks[0].mlp.train(not mode)
    with pytest.raises(RuntimeError, match="probability tensor"):
        with torch.no_grad():
            model.embedding.weight.fill_(torch.nan)
        model.generate(tokens(), 5, temperature=1.0)
    assert [module.training for module in model.modules()] == modes


def test_draws_follow_the_probabilities():
    model, prompt = made(1), tokens(1, 3)
    wanted = (model(prompt)[0, -1] / 1.5).softmax(-1)
    generator = torch.Generator().manual_seed(0)
    drawn = model.generate(prompt.expand(20_000, 3), 1, temperature=1.5, generator=generator)[:, -1]
    shares = drawn.bincount(minlength=V) / len(drawn)
    assert (shares - wanted).abs().max() < 0.015


def test_a_tiny_temperature_is_greedy():
    model, prompt = made(), tokens()
    for temperature in (1e-3, 1e-300, 5e-324):
        assert torch.equal(model.generate(prompt, 8, temperature=temperature), model.generate(prompt, 8))


def test_draws_come_from_the_global_generator_unless_given():
    model, prompt = made(), tokens()
    torch.manual_seed(3)
    one = model.generate(prompt, 8, temperature=1.0)
    torch.manual_seed(3)
    assert torch.equal(model.generate(prompt, 8, temperature=1.0), one)


def test_learns_to_repeat_what_it_saw():
    """Cycles of three tokens: after one round, the rest is known."""
    torch.manual_seed(0)
    model = LanguageModel(V, 16, 2, 2, max_length=12)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(150):
        x = tokens(32, 3, seed=step).repeat(1, 4)
        loss = F.cross_entropy(model(x[:, :-1])[:, 2:].flatten(0, 1), x[:, 3:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    prompt = tokens(20, 3, seed=10**6)
    given = model.generate(prompt.repeat(1, 2), 6)
    assert (given == prompt.repeat(1, 4)).float().mean() > 0.95


def test_output_is_tied_to_the_embedding():
    model, x = made(), tokens()
    before = model(x)
    with torch.no_grad():
        model.embedding.weight[V - 1] *= 3
    unused = (x != V - 1).all(-1)
    assert unused.any()
    torch.testing.assert_close(model(x)[unused][..., -1], 3 * before[unused][..., -1])
    torch.testing.assert_close(model(x)[unused][..., :-1], before[unused][..., :-1])


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_state_is_what_the_docstring_says(positions):
    model = LanguageModel(V, 8, 2, 2, max_length=16, positions=positions)
    names = {name.split(".")[0] for name in model.state_dict()}
    assert names == {"embedding", "blocks", "norm"} | ({"position_embedding"} if positions == "learned" else set())
    assert model.embedding.weight.shape == (V, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.generate(tokens(), 4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    other = LanguageModel(V, 8, 2, 2, max_length=16, positions=positions)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(tokens()), model(tokens()))
    assert 0.015 < model.blocks[0].mlp[0].weight.std() < 0.025
    assert (model.blocks[0].mlp[0].bias == 0).all()


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_order_matters(positions):
    model, x = made(positions=positions), torch.tensor([[1, 2, 3, 4]])
    assert not torch.allclose(model(x)[0, -1], model(x[:, [1, 0, 2, 3]])[0, -1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("integers", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_dtypes(dtype, integers):
    model = made(dtype=dtype)
    prompt = tokens().to(integers)
    assert model(prompt).dtype == dtype
    given = model.generate(prompt, 3)
    assert (given.dtype, given.shape) == (torch.int64, (2, 9))


def test_nothing_to_generate_and_the_longest_sequence():
    model, prompt = made(), tokens(2, 6)
    assert torch.equal(model.generate(prompt, 0), prompt)
    assert model.generate(prompt, 10).shape == (2, 16)
    assert model(tokens(2, 0)).shape == (2, 0, V)


def test_generation_keeps_no_gradients_and_leaves_the_prompt():
    model, prompt = made(), tokens()
    before = prompt.clone()
    model.generate(prompt, 4)
    assert torch.equal(prompt, before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


def test_refused_tokens_leave_the_caches_as_they_were():
    model = made()
    caches = model.new_cache(2, 7)
    model(tokens(2, 6), caches)
    for wrong in (tokens(2, 2), torch.full((2, 1), V), tokens(3, 1)):
        with pytest.raises(ValueError):
            model(wrong, caches)
        assert [cache.lengths.tolist() for cache in caches] == [[6, 6]] * 2
    uneven = [model.new_cache(2, 8)[0], model.new_cache(2, 4)[1]]
    with pytest.raises(
        ValueError, match="caches must have room for 6 more tokens, got room for 4: nothing was appended"
    ):
        model(tokens(2, 6), uneven)
    assert uneven[0].lengths.tolist() == [0, 0]


def test_cache_has_the_models_sizes():
    caches = made(num_kv_heads=1).new_cache(3, 5)
    assert [cache.nbytes for cache in caches] == [3 * 1 * 5 * (4 + 4) * 8] * 2
    assert made().new_cache(1)[0].capacity == 16


MODEL = LanguageModel(V, 8, 2, 2, max_length=16)


def behind(*lengths):
    """Return caches that have seen this many tokens in each block."""
    caches = MODEL.new_cache(1)
    for cache, n in zip(caches, lengths, strict=True):
        cache.append(torch.zeros(1, 2, n, 4), torch.zeros(1, 2, n, 4))
    return caches


@pytest.mark.parametrize(
    "kind, wrong, text",
    [
        (ValueError, lambda: LanguageModel(0, 8, 2, 2, max_length=4), "vocab_size must be 1 or more, got 0"),
        (ValueError, lambda: LanguageModel(V, 0, 2, 2, max_length=4), "dim must be 1 or more, got 0"),
        (ValueError, lambda: LanguageModel(V, 8, 0, 2, max_length=4), "num_layers must be 1 or more, got 0"),
        (
            ValueError,
            lambda: LanguageModel(V, 8, 2, 3, max_length=4),
            "embed_dim (8) must be divisible by num_heads (3)",
        ),
        (ValueError, lambda: LanguageModel(V, 8, 2, 2, max_length=0), "max_length must be 1 or more, got 0"),
        (
            ValueError,
            lambda: LanguageModel(V, 8, 2, 2, max_length=4, positions="sine"),
            "positions must be rotary or learned, got 'sine'",
        ),
        (
            ValueError,
            lambda: LanguageModel(V, 8, 2, 2, max_length=4, dropout=2),
            "dropout must lie between 0 and 1, got 2",
        ),
        (TypeError, lambda: MODEL([[1]]), "tokens must be a torch.Tensor, got list"),
        (TypeError, lambda: MODEL(torch.ones(1, 2)), "tokens must hold integers, got torch.float32"),
        (TypeError, lambda: MODEL(torch.ones(1, 2).bool()), "tokens must hold integers, got torch.bool"),
        (ValueError, lambda: MODEL(torch.tensor([1])), "tokens must have shape (B, L), got (1,)"),
        (
            ValueError,
            lambda: MODEL(torch.tensor([[1, V]])),
            "tokens must lie between 0 and vocab_size - 1 = 10, got 11",
        ),
        (ValueError, lambda: MODEL(torch.tensor([[-1]])), "tokens must lie between 0 and vocab_size - 1 = 10, got -1"),
        (
            ValueError,
            lambda: MODEL(tokens(1, 17)),
            "a sequence must have at most max_length = 16 tokens, got 17 in tokens",
        ),
        (
            ValueError,
            lambda: MODEL(tokens(1, 3), behind(14, 14)),
            "a sequence must have at most max_length = 16 tokens, got 17 with 14 in caches",
        ),
        (
            TypeError,
            lambda: MODEL(tokens(1, 3), behind(0, 0)[:1]),
            "caches must be a list of 2 KVCache, one for each block",
        ),
        (
            TypeError,
            lambda: MODEL(tokens(1, 3), [None, None]),
            "caches must be a list of 2 KVCache, one for each block",
        ),
        (
            ValueError,
            lambda: MODEL(tokens(1, 3), behind(1, 2)),
            "caches must have no window and have seen the same tokens",
        ),
        (
            ValueError,
            lambda: MODEL(tokens(1, 3), [KVCache(1, 2, 8, 4, window=2) for _ in range(2)]),
            "caches must have no window and have seen the same tokens",
        ),
        (ValueError, lambda: MODEL(tokens(3, 1), behind(1, 1)), "key must have shape (B, G, L, E) = (1, 2, L, 4)"),
        (TypeError, lambda: MODEL.generate("cats chase", 3), "prompt must be a torch.Tensor, got str"),
        (ValueError, lambda: MODEL.generate(tokens(1, 0), 3), "prompt must hold at least one token, got shape (1, 0)"),
        (ValueError, lambda: MODEL.generate(tokens(0, 3), 3), "prompt must hold at least one token, got shape (0, 3)"),
        (
            ValueError,
            lambda: MODEL.generate(torch.tensor([99]), 3),
            "prompt must lie between 0 and vocab_size - 1 = 10",
        ),
        (TypeError, lambda: MODEL.generate(torch.ones(1, 2), 3), "prompt must hold integers, got torch.float32"),
        (
            ValueError,
            lambda: MODEL.generate(tokens(1, 6), 11),
            "at most max_length = 16 tokens, got 17 with 6 in prompt and max_new_tokens = 11",
        ),
        (ValueError, lambda: MODEL.generate(tokens(), -1), "max_new_tokens must be 0 or more, got -1"),
        (TypeError, lambda: MODEL.generate(tokens(), 2.5), "max_new_tokens must be an integer, got 2.5 (float)"),
        (ValueError, lambda: MODEL.generate(tokens(), 3, temperature=-1), "temperature must be 0 or more, got -1"),
        (TypeError, lambda: MODEL.generate(tokens(), 3, use_cache=1), "use_cache must be True or False, got 1 (int)"),
    ],
)
def test_errors_name_the_argument(kind, wrong, text):
    with pytest.raises(kind, match=re.escape(text)):
        wrong()
