"""Multi-head attention from explicit weights, on tensors: project, split into heads, attend, merge, project back."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from lib.fast.attention import attention
from lib.heads import check_head_counts, check_projections, check_score_axes, merge_heads, split_heads

__all__ = ["merge_heads", "multi_head_attention", "split_heads"]


def multi_head_attention(
    query: Float[Tensor, "*batch L D_q"],
    W_q: Float[Tensor, "D_q H*E"],
    W_k: Float[Tensor, "D_k G*E"],
    W_v: Float[Tensor, "D_v G*Ev"],
    W_o: Float[Tensor, "H*Ev D_o"],
    num_heads: int,
    num_kv_heads: int | None = None,
    *,
    key: Float[Tensor, "*batch S D_k"] | None = None,
    value: Float[Tensor, "*batch S D_v"] | None = None,
    b_q: Float[Tensor, " H*E"] | None = None,
    b_k: Float[Tensor, " G*E"] | None = None,
    b_v: Float[Tensor, " G*Ev"] | None = None,
    b_o: Float[Tensor, " D_o"] | None = None,
    mask: Bool[Tensor, "*batch H L S"] | None = None,
    bias: Float[Tensor, "*batch H L S"] | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    offset: int | Int[Tensor, " B"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    return_weights: bool = False,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "*batch L D_o"] | tuple[Float[Tensor, "*batch L D_o"], Float[Tensor, "*batch H L S"]]:
    """Let several heads attend, each with projections of its own, and mix what they found.

        head_h = attention(query W_q[:, head h], key W_k[:, head h], value W_v[:, head h])
        output = [head_1 … head_H] W_o + b_o

    The arguments, their shapes and their errors are those of :func:`lib.reference.multi_head_attention`; ``dropout_p``
    and ``backend`` are those of :func:`lib.fast.attention`. Gradients flow to the inputs, weights and biases. A weight
    is (in, out), the transpose of what ``torch.nn.Linear`` keeps; :class:`lib.fast.MultiHeadAttention` is the module.

    Parameters
    ----------
    query : (..., L, D_q), floating
    W_q, W_k, W_v, W_o : (D_q, H·E), (D_k, G·E), (D_v, G·Ev) and (H·Ev, D_o)
    num_heads, num_kv_heads : int ≥ 1
        H and G; G is H unless given, and each key/value head serves H/G query heads in a row.
    key, value : (..., S, D_k) and (..., S, D_v)
        ``query`` and ``key`` unless given.
    b_q, b_k, b_v, b_o : (H·E,), (G·E,), (G·Ev,) and (D_o,)
    mask, bias : (L, S) or (..., H, L, S), sizes of 1 broadcast
    causal, window, offset, scale, softcap, return_weights, dropout_p, backend
        As in :func:`lib.fast.attention`.

    Returns
    -------
    output : (..., L, D_o), of query's dtype
    weights : (..., H, L, S); only with ``return_weights``

    Raises
    ------
    TypeError, ValueError
        As in :func:`lib.reference.multi_head_attention` and :func:`lib.fast.attention`.

    References
    ----------
    Vaswani et al. (2017), "Attention Is All You Need", section 3.2.2.

    Examples
    --------
    Queries and keys of 0 give equal scores, so each head averages its own column, 2 and 8 in one, 0 and 4 in the other:

    >>> import torch
    >>> x = torch.tensor([[2.0, 0.0], [8.0, 4.0]])
    >>> nothing, same = torch.zeros(2, 2), torch.eye(2)
    >>> multi_head_attention(x, nothing, nothing, same, same, num_heads=2)
    tensor([[5., 2.],
            [5., 2.]])
    """
    H, G = check_head_counts(num_heads, num_kv_heads)
    key = query if key is None else key
    value = key if value is None else value
    inputs = {"query": query, "key": key, "value": value}
    check_projections(
        Tensor, inputs, {"W_q": W_q, "W_k": W_k, "W_v": W_v, "W_o": W_o},
        {"b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o}, H, G,
    )  # fmt: skip
    check_score_axes("mask", mask, inputs)
    check_score_axes("bias", bias, inputs)

    q = split_heads(_project(query, W_q, b_q), H)  # (..., H, L, E)
    k = split_heads(_project(key, W_k, b_k), G)  # (..., G, S, E)
    v = split_heads(_project(value, W_v, b_v), G)  # (..., G, S, Ev)
    found = attention(
        q, k, v, mask=mask, bias=bias, causal=causal, window=window, offset=offset, scale=scale, softcap=softcap,
        enable_gqa=True, return_weights=return_weights, dropout_p=dropout_p, backend=backend,
    )  # fmt: skip
    if return_weights:
        output, weights = found
        return _project(merge_heads(output), W_o, b_o), weights
    return _project(merge_heads(found), W_o, b_o)


def _project(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    return x @ W if b is None else x @ W + b
