"""A language model small enough to read in five minutes: embed, attend and think in blocks, guess the next token.

    tokens (B, L) ─ embedding ─▶ (B, L, dim) ─ blocks ─▶ (B, L, dim) ─ norm, embeddingᵀ ─▶ logits (B, L, vocab_size)

Every block adds to a running sum: first what attention found, then what the MLP makes of it. The logits at position i
guess token i + 1, and depend on tokens 0 … i only.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lib import arguments
from lib.fast.cache import KVCache
from lib.fast.module import MultiHeadAttention

__all__ = ["Block", "LanguageModel"]

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Block(nn.Module):
    """Attend causally, then think about each position by itself, each after a norm and added to what came in.

        x = x + attention(norm(x)),    then    x = x + mlp(norm(x))

    Parameters
    ----------
    dim, num_heads, num_kv_heads, dropout, rotary_pairing
        As in :class:`lib.fast.MultiHeadAttention`. Dropout also falls on what attention and MLP add.

    References
    ----------
    The norm before each part: Radford et al. (2019), "Language Models are Unsupervised Multitask Learners",
    section 2.3.
    """

    def __init__(
        self, dim: int, num_heads: int, num_kv_heads: int | None, dropout: float, rotary_pairing: str | None
    ) -> None:
        """Make the two norms, the attention and an MLP four times as wide as the input."""
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = MultiHeadAttention(
            dim, num_heads, num_kv_heads=num_kv_heads, dropout=dropout, rotary_pairing=rotary_pairing
        )
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "B L dim"], cache: KVCache | None = None) -> Float[Tensor, "B L dim"]:
        """Add to each position what it and those before it offer."""
        x = x + self.dropout(self.attention(self.attention_norm(x), causal=True, cache=cache))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class LanguageModel(nn.Module):
    """Guess the next token from those before it: a decoder-only transformer with a tied output.

    Parameters
    ----------
    vocab_size : int ≥ 1
        Tokens are the integers from 0 to vocab_size − 1.
    dim : int ≥ 1
        Features of a position; divisible by ``num_heads``.
    num_layers : int ≥ 1
        The number of blocks.
    num_heads, num_kv_heads : int ≥ 1
        H and G, as in :class:`lib.fast.MultiHeadAttention`.
    max_length : int ≥ 1
        The longest sequence, prompt and generated tokens together.
    positions : "rotary" or "learned"
        Turn queries and keys by their positions (interleaved pairs, an even head size), or add a learnt vector.
    dropout : float from 0 to 1
        In training only.

    Attributes
    ----------
    embedding : torch.nn.Embedding (vocab_size, dim)
        Reads a token, and as the output layer recognises it: the two are tied.
    position_embedding : torch.nn.Embedding (max_length, dim), or None
        Only with learned positions.
    blocks : torch.nn.ModuleList of Block
    norm : torch.nn.LayerNorm
        This is all of the model's state. A call keeps nothing: what was seen before lives in the caches that are passed
        in, one :class:`lib.fast.KVCache` for each block, made by ``new_cache``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    Tied output: Press and Wolf (2017), "Using the Output Embedding to Improve Language Models". Initial weights of
    deviation 0.02: Radford et al. (2018), "Improving Language Understanding by Generative Pre-Training", section 4.1.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> model = LanguageModel(vocab_size=10, dim=8, num_layers=2, num_heads=2, max_length=16)
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 10])
    >>> generated = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4)
    >>> generated.shape, torch.equal(generated, model.generate(torch.tensor([[1, 2, 3]]), 4, use_cache=False))
    (torch.Size([1, 7]), True)
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        num_layers: int,
        num_heads: int,
        *,
        max_length: int,
        num_kv_heads: int | None = None,
        positions: str = "rotary",
        dropout: float = 0.0,
    ) -> None:
        """Make the embedding and the blocks, with small random weights from torch's global generator."""
        super().__init__()
        if positions not in ("rotary", "learned"):
            raise ValueError(f"positions must be rotary or learned, got {positions!r}")
        vocab_size, dim = (arguments.require_integer(n, x, 1) for n, x in (("vocab_size", vocab_size), ("dim", dim)))
        self.max_length = arguments.require_integer("max_length", max_length, 1)
        num_layers = arguments.require_integer("num_layers", num_layers, 1)
        pairing = "interleaved" if positions == "rotary" else None
        self.embedding = nn.Embedding(vocab_size, dim)
        self.position_embedding = nn.Embedding(self.max_length, dim) if positions == "learned" else None
        self.blocks = nn.ModuleList(Block(dim, num_heads, num_kv_heads, dropout, pairing) for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(
        self, tokens: Int[Tensor, "B L"], caches: list[KVCache] | None = None
    ) -> Float[Tensor, "B L vocab_size"]:
        """Give a score to each possible next token, at each position.

        Parameters
        ----------
        tokens : (B, L), integers from 0 to vocab_size − 1
            A whole sequence, or with ``caches`` the tokens after those already seen.
        caches : list of KVCache
            From ``new_cache``. The tokens' keys and values are appended.

        Returns
        -------
        (B, L, vocab_size)
            Logits: softmax over the last axis makes them probabilities of token i + 1.

        Raises
        ------
        TypeError, ValueError
            If the tokens are no integers of shape (B, L), one is out of range, or the sequence gets too long. Caches
            are then as they were before.
        """
        self._check_tokens("tokens", tokens)
        L = tokens.shape[1]
        if caches is None:
            self._check_length(L, "in tokens")
            positions = torch.arange(L, device=tokens.device)  # (L,)
        else:
            self._check_caches(caches, L)
            positions = caches[0].positions(L)  # (B, L)
        x = self.embedding(tokens.long())  # (B, L, dim)
        if self.position_embedding is not None:
            x = x + self.position_embedding(positions)
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            x = block(x, cache)
        return F.linear(self.norm(x), self.embedding.weight)  # (B, L, vocab_size), the embedding read backwards

    def new_cache(self, batch: int, capacity: int | None = None) -> list[KVCache]:
        """Make an empty cache for each block, with room for ``capacity`` tokens a row, ``max_length`` unless given."""
        capacity = self.max_length if capacity is None else capacity
        like = {"dtype": self.embedding.weight.dtype, "device": self.embedding.weight.device}
        layers = [block.attention for block in self.blocks]
        return [KVCache(batch, layer.num_kv_heads, capacity, layer.head_dim, **like) for layer in layers]

    @torch.no_grad()
    def generate(
        self,
        prompt: Int[Tensor, "*B L"],
        max_new_tokens: int,
        *,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
        use_cache: bool = True,
    ) -> Int[Tensor, "*B L+max_new_tokens"]:
        """Continue the prompt token by token, in evaluation mode; the modules' modes are put back at the end.

        Parameters
        ----------
        prompt : (B, L) or (L,), integers from 0 to vocab_size − 1, with L ≥ 1
        max_new_tokens : int ≥ 0
        temperature : float ≥ 0
            0 takes the likeliest token. Otherwise tokens are drawn from softmax(logits / temperature).
        generator : torch.Generator
            Where draws come from: the same seed gives the same tokens. torch's global generator unless given.
        use_cache : bool
            Compute each token's keys and values once instead of at every step. The tokens are the same, up to
            rounding where two are equally likely.

        Returns
        -------
        (B, L + max_new_tokens) or (L + max_new_tokens,), int64
            The prompt and what follows.

        Raises
        ------
        TypeError, ValueError
            If the prompt is empty, no integers, out of range or too long, or an option is out of range.
        """
        arguments.require_array("prompt", prompt, Tensor)
        single = prompt.ndim == 1
        tokens = prompt[None] if single else prompt
        self._check_tokens("prompt", tokens)
        if tokens.numel() == 0:
            raise ValueError(f"prompt must hold at least one token, got shape {tuple(prompt.shape)}")
        new = arguments.require_integer("max_new_tokens", max_new_tokens, 0)
        self._check_length(tokens.shape[1] + new, f"with {tokens.shape[1]} in prompt and max_new_tokens = {new}")
        if arguments.require_real("temperature", temperature) < 0:
            raise ValueError(f"temperature must be 0 or more, got {temperature}")
        arguments.require_bool("use_cache", use_cache)

        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            tokens = fresh = tokens.long()
            caches = self.new_cache(len(tokens), tokens.shape[1] + new) if use_cache else None
            for _ in range(new):
                logits = self(fresh if use_cache else tokens, caches)[:, -1]  # (B, vocab_size)
                fresh = _choose(logits, temperature, generator)  # (B, 1)
                tokens = torch.cat([tokens, fresh], 1)
        finally:
            for module, mode in modes:
                module.training = mode
        return tokens[0] if single else tokens

    def _check_tokens(self, name: str, tokens: Any) -> None:
        """Raise unless the tokens are (B, L) integers that the embedding has."""
        arguments.require_array(name, tokens, Tensor)
        if tokens.dtype not in INTEGERS:
            raise TypeError(f"{name} must hold integers, got {tokens.dtype}")
        if tokens.ndim != 2:
            raise ValueError(f"{name} must have shape (B, L), got {tuple(tokens.shape)}")
        last = self.embedding.num_embeddings - 1
        wrong = tokens[(tokens < 0) | (tokens > last)]
        if len(wrong):
            raise ValueError(f"{name} must lie between 0 and vocab_size - 1 = {last}, got {wrong[0].item()}")

    def _check_length(self, length: int, where: str) -> None:
        if length > self.max_length:
            raise ValueError(
                f"a sequence must have at most max_length = {self.max_length} tokens, got {length} {where}"
            )

    def _check_caches(self, caches: list[KVCache], L: int) -> None:
        """Raise unless there is a cache for each block, all have seen the same, and all have room for L more."""
        if not isinstance(caches, list | tuple) or [type(cache) for cache in caches] != [KVCache] * len(self.blocks):
            raise TypeError(f"caches must be a list of {len(self.blocks)} KVCache, one for each block: see new_cache")
        seen = caches[0].lengths
        if any(cache.window is not None or cache.lengths.tolist() != seen.tolist() for cache in caches):
            raise ValueError("caches must have no window and have seen the same tokens: see new_cache")
        self._check_length(int(seen.max()) + L, f"with {seen.max()} in caches")
        room = min(cache.capacity for cache in caches) - int(seen.max())
        if room < L:
            raise ValueError(f"caches must have room for {L} more tokens, got room for {room}: nothing was appended")


def _choose(logits: Float[Tensor, "B V"], temperature: float, generator: torch.Generator | None) -> Int[Tensor, "B 1"]:
    """Take the likeliest token, or draw one."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    scores = (logits - logits.amax(-1, keepdim=True)).double() / temperature  # at most 0, however small the temperature
    return torch.multinomial(scores.softmax(-1), 1, generator=generator)
