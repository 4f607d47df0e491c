"""Multi-head attention as a layer: the projections are learnt, everything else is lib.fast.attention."""

from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor, nn

from lib import arguments
from lib.fast.attention import attention
from lib.fast.cache import KVCache
from lib.heads import check_head_counts, check_score_axes, merge_heads, split_heads
from lib.positions import require_pairing, rotary

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(nn.Module):
    """Let several heads attend, each with learnt projections of its own, and mix what they found.

        output = o_proj([head_1 … head_H]),    head_h = attention(q_proj(query)_h, k_proj(key)_h, v_proj(value)_h)

    Axes: L queries, S keys, E head size, B batch, H query heads, G key/value heads. The batch comes first.

    Parameters
    ----------
    embed_dim : int ≥ 1
        Features of the queries and of the output.
    num_heads : int ≥ 1
        H. Divides ``embed_dim`` unless ``head_dim`` is given.
    num_kv_heads : int ≥ 1
        G, H unless given. Each serves H/G query heads in a row; 1 is multi-query attention.
    head_dim : int ≥ 1
        E, embed_dim/H unless given.
    kdim, vdim : int ≥ 1
        Features of the keys and values, where they come from another sequence. ``embed_dim`` unless given.
    bias : bool
        Whether the four projections add a bias.
    dropout : float from 0 to 1
        The probability of dropping a weight, in training only.
    rotary_pairing : "interleaved" or "half"
        Turn queries and keys by their positions, with this pairing. None: no rotary positions.
    rotary_base, rotary_dim
        As ``base`` and ``rotary_dim`` in :func:`lib.fast.rotary`.
    device, dtype
        Of the parameters; torch's defaults unless given.

    Attributes
    ----------
    q_proj, k_proj, v_proj, o_proj : torch.nn.Linear
        All of the layer's state: weights (out, in) of shapes (H·E, embed_dim), (G·E, kdim), (G·E, vdim) and
        (embed_dim, H·E), and a bias (out,) each. Head h owns the rows h·E to (h + 1)·E − 1 of the first three.

    Raises
    ------
    TypeError, ValueError
        If a size is no positive integer, the heads do not divide, or an option is out of range.

    Notes
    -----
    ``torch.nn.MultiheadAttention`` differs by choice: there True in a mask means *may not attend*, the weights are
    averaged over heads unless asked otherwise and hold the dropout, and a query that may attend to nothing gives NaN.
    ``from_torch`` takes over its weights.

    References
    ----------
    Vaswani et al. (2017), "Attention Is All You Need", section 3.2.2.

    Examples
    --------
    With projections that change nothing and queries of 0, each head averages its own column:

    >>> layer = MultiHeadAttention(embed_dim=2, num_heads=2, bias=False)
    >>> for projection in (layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj):
    ...     _ = projection.weight.data.copy_(torch.eye(2))
    >>> with torch.no_grad():
    ...     layer(torch.zeros(1, 2), torch.tensor([[2.0, 0.0], [8.0, 4.0]]))
    tensor([[5., 2.]])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        rotary_pairing: str | None = None,
        rotary_base: float = 10000.0,
        rotary_dim: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make the four projections, initialised as ``torch.nn.Linear`` does."""
        super().__init__()
        embed_dim = arguments.require_integer("embed_dim", embed_dim, 1)
        self.num_heads, self.num_kv_heads = check_head_counts(num_heads, num_kv_heads)
        if head_dim is None and embed_dim % self.num_heads != 0:
            raise ValueError(
                f"embed_dim ({embed_dim}) must be divisible by num_heads ({self.num_heads}), or head_dim given"
            )
        E = embed_dim // self.num_heads if head_dim is None else arguments.require_integer("head_dim", head_dim, 1)
        kdim = embed_dim if kdim is None else arguments.require_integer("kdim", kdim, 1)
        vdim = embed_dim if vdim is None else arguments.require_integer("vdim", vdim, 1)
        arguments.require_bool("bias", bias)
        if not 0 <= arguments.require_real("dropout", dropout) <= 1:
            raise ValueError(f"dropout must lie between 0 and 1, got {dropout}")
        self.dropout = float(dropout)
        self.rotary = None if rotary_pairing is None else _rotary_options(rotary_pairing, rotary_base, rotary_dim, E)
        options = {"bias": bool(bias), "device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, self.num_heads * E, **options)
        self.k_proj = nn.Linear(kdim, self.num_kv_heads * E, **options)
        self.v_proj = nn.Linear(vdim, self.num_kv_heads * E, **options)
        self.o_proj = nn.Linear(self.num_heads * E, embed_dim, **options)

    @property
    def head_dim(self) -> int:
        """Give E, the size of a head."""
        return self.q_proj.out_features // self.num_heads

    def forward(
        self,
        query: Float[Tensor, "*batch L embed_dim"],
        key: Float[Tensor, "*batch S kdim"] | None = None,
        value: Float[Tensor, "*batch S vdim"] | None = None,
        *,
        mask: Bool[Tensor, "*batch H L S"] | None = None,
        bias: Float[Tensor, "*batch H L S"] | None = None,
        causal: bool = False,
        window: tuple[int | None, int | None] | None = None,
        offset: int | Int[Tensor, " B"] | None = None,
        positions: Real[Tensor, "*batch L"] | None = None,
        cache: KVCache | None = None,
        lengths: Int[Tensor, " B"] | None = None,
        need_weights: bool = False,
        average_weights: bool = False,
    ) -> Float[Tensor, "*batch L embed_dim"] | tuple[Float[Tensor, "*batch L embed_dim"], Float[Tensor, "..."]]:
        """Attend from each query to the keys it may see.

        Parameters
        ----------
        query : (..., L, embed_dim)
            The sequence that asks; in self-attention it is the only one.
        key : (..., S, kdim)
            The sequence that is asked, in cross-attention. ``query`` unless given.
        value : (..., S, vdim)
            ``key`` unless given.
        mask, bias : (L, S) or (..., H, L, S), sizes of 1 broadcast
            As in :func:`lib.fast.attention`: True in the mask = may attend. With a batch, (B, L, S) is refused, since
            it could be read as (H, L, S). For padded keys: ``mask=masks.padding(lengths[:, None], S)``.
        causal, window, offset
            As in :func:`lib.fast.attention`.
        positions : (L,) or (B, L)
            Where the tokens stand, for rotary: 0 … L − 1 unless given. Self-attention only.
        cache : KVCache
            Append these tokens' keys and values and attend to all it holds. Needs ``causal=True``; offset and
            positions come from the cache, and so does the window if the cache has one.
        lengths : (B,), integers
            With a cache: how many of the L tokens are real, see ``KVCache.append``.
        need_weights : bool
            Also return the weights of each head.
        average_weights : bool
            Return their mean over the heads instead.

        Returns
        -------
        output : (..., L, embed_dim)
            A query that may attend to nothing gets what o_proj makes of 0, and finite gradients.
        weights : (..., H, L, S), or (..., L, S) if averaged; only with ``need_weights``
            Those before dropout, so that each row sums to one.

        Raises
        ------
        TypeError, ValueError
            If an argument does not fit, or options are combined that contradict each other.
        """
        arguments.require_bool("need_weights", need_weights)
        arguments.require_bool("average_weights", average_weights)
        if average_weights and not need_weights:
            raise ValueError("average_weights needs need_weights=True")
        self_attention = (key is None or key is query) and (value is None or value is query)
        key = query if key is None else key
        value = key if value is None else value
        inputs = {"query": query, "key": key, "value": value}
        self._check_inputs(inputs)
        check_score_axes("mask", mask, inputs)
        check_score_axes("bias", bias, inputs)
        if cache is not None:
            _require_decoding(self_attention, causal, offset, positions, window, cache)
        elif lengths is not None:
            raise ValueError("lengths needs cache=; without one, hide padding with mask=")
        if positions is not None and not self.rotary:
            raise ValueError("positions needs a layer made with rotary_pairing=")
        if self.rotary and not self_attention:
            raise ValueError("a layer with rotary_pairing needs self-attention, but key or value was given")

        q = split_heads(self.q_proj(query), self.num_heads)  # (..., H, L, E)
        k = split_heads(self.k_proj(key), self.num_kv_heads)  # (..., G, S, E)
        v = split_heads(self.v_proj(value), self.num_kv_heads)  # (..., G, S, E)

        if self.rotary:
            if cache is not None:
                positions = cache.positions(q.shape[-2])  # (B, L)
            elif positions is None:
                positions = torch.arange(q.shape[-2], device=q.device)  # (L,)
            q, k = rotary(q, positions, **self.rotary), rotary(k, positions, **self.rotary)
        options = {"mask": mask, "window": window, "offset": offset}
        if cache is not None:
            held = cache.append(k, v, lengths)
            k, v, options = held.key, held.value, _with_held(options, held)

        found = attention(
            q, k, v, bias=bias, causal=causal, **options, enable_gqa=True, return_weights=need_weights,
            dropout_p=self.dropout if self.training else 0.0,
        )  # fmt: skip
        if not need_weights:
            return self.o_proj(merge_heads(found))
        output, weights = found
        return self.o_proj(merge_heads(output)), weights.mean(-3) if average_weights else weights

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> Self:
        """Make a layer with the weights of a ``torch.nn.MultiheadAttention``, giving its outputs.

        Parameters
        ----------
        module : torch.nn.MultiheadAttention
            With or without bias, with the keys' and values' features of its own or not. Its weights are copied, and
            its dropout, dtype, device and training mode taken over. The new layer wants the batch first, whatever
            ``batch_first`` says, and True in its masks means *may attend*: pass ``mask=~attn_mask``.

        Returns
        -------
        MultiHeadAttention

        Raises
        ------
        TypeError, ValueError
            If it is no such module, or has ``add_bias_kv`` or ``add_zero_attn``, which append keys that no sequence
            has.

        Examples
        --------
        >>> theirs = nn.MultiheadAttention(4, 2, batch_first=True)
        >>> ours, x = MultiHeadAttention.from_torch(theirs), torch.ones(1, 3, 4)
        >>> torch.allclose(ours(x), theirs(x, x, x)[0])
        True
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise TypeError(f"module must be a torch.nn.MultiheadAttention, got {type(module).__name__}")
        for name, used in (("add_bias_kv", module.bias_k is not None), ("add_zero_attn", module.add_zero_attn)):
            if used:
                raise ValueError(f"module must be without {name}, which appends a key that no sequence has")
        layer = cls(
            module.embed_dim, module.num_heads, kdim=module.kdim, vdim=module.vdim, dropout=module.dropout,
            bias=module.in_proj_bias is not None, device=module.out_proj.weight.device,
            dtype=module.out_proj.weight.dtype,
        )  # fmt: skip
        if module.in_proj_weight is not None:  # (3 · embed_dim, embed_dim): the three on top of each other
            weights = module.in_proj_weight.chunk(3)
        else:
            weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        projections = (layer.q_proj, layer.k_proj, layer.v_proj)
        with torch.no_grad():
            for projection, weight in zip(projections, weights, strict=True):
                projection.weight.copy_(weight)
            layer.o_proj.weight.copy_(module.out_proj.weight)
            if module.in_proj_bias is not None:
                for projection, bias in zip(projections, module.in_proj_bias.chunk(3), strict=True):
                    projection.bias.copy_(bias)
                layer.o_proj.bias.copy_(module.out_proj.bias)
        return layer.train(module.training)

    def extra_repr(self) -> str:
        """Name the heads, which the projections do not show."""
        return f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, dropout={self.dropout}"

    def _check_inputs(self, inputs: dict[str, Tensor]) -> None:
        """Raise unless each input is (..., length, features) of its projection, in dtype and device too."""
        for (name, x), projection in zip(inputs.items(), (self.q_proj, self.k_proj, self.v_proj), strict=True):
            arguments.require_array(name, x, Tensor)
            if x.ndim < 2 or x.shape[-1] != projection.in_features:
                wanted = f"(..., length, {projection.in_features})"
                raise ValueError(f"{name} must have shape {wanted}, got {tuple(x.shape)}")
            if x.dtype != projection.weight.dtype and not torch.is_autocast_enabled(x.device.type):
                raise TypeError(f"{name} must have the layer's dtype {projection.weight.dtype}, got {x.dtype}")
            if x.device != projection.weight.device:
                raise ValueError(f"{name} must be on the layer's device {projection.weight.device}, got {x.device}")


def _rotary_options(pairing: str, base: float, rotary_dim: int | None, E: int) -> dict[str, Any]:
    require_pairing("rotary_pairing", pairing)
    if arguments.require_real("rotary_base", base) <= 0:
        raise ValueError(f"rotary_base must be positive, got {base}")
    rotary_dim = E if rotary_dim is None else arguments.require_integer("rotary_dim", rotary_dim, 0)
    if rotary_dim % 2 != 0 or rotary_dim > E:
        raise ValueError(f"rotary_dim must be even and at most the head size {E}, got {rotary_dim}")
    return {"pairing": pairing, "base": float(base), "rotary_dim": rotary_dim}


def _require_decoding(
    self_attention: bool, causal: bool, offset: Any, positions: Any, window: Any, cache: KVCache
) -> None:
    """Raise where an option contradicts a cache, which knows where its tokens stand."""
    if not isinstance(cache, KVCache):
        raise TypeError(f"cache must be a lib.fast.KVCache, got {type(cache).__name__}")
    if not self_attention:
        raise ValueError("cache needs self-attention, but key or value was given")
    if not causal:
        raise ValueError("cache needs causal=True: a token must not see those appended after it")
    for name, given in (("offset", offset), ("positions", positions)):
        if given is not None:
            raise ValueError(f"{name} comes from the cache and must not be given with it")
    if cache.window is not None and window not in (None, (cache.window, 0), [cache.window, 0]):
        raise ValueError(f"window must be the cache's ({cache.window}, 0), or not be given, got {window}")


def _with_held(options: dict[str, Any], held: Any) -> dict[str, Any]:
    """Add what the cache says to what the caller said: both masks must allow, and either may bring the window."""
    given, kept = options["mask"], held.mask
    mask = given if kept is None else kept if given is None else given & kept
    return {"mask": mask, "window": held.window or options["window"], "offset": held.offset}
