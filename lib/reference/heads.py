"""Multi-head attention from explicit weights: project, split into heads, attend, merge, project back."""

import numpy as np
from jaxtyping import Bool, Float, Int

from lib.heads import check_head_counts, check_projections, check_score_axes, merge_heads, split_heads
from lib.reference.attention import attention

__all__ = ["merge_heads", "multi_head_attention", "split_heads"]


def multi_head_attention(
    query: Float[np.ndarray, "*batch L D_q"],
    W_q: Float[np.ndarray, "D_q H*E"],
    W_k: Float[np.ndarray, "D_k G*E"],
    W_v: Float[np.ndarray, "D_v G*Ev"],
    W_o: Float[np.ndarray, "H*Ev D_o"],
    num_heads: int,
    num_kv_heads: int | None = None,
    *,
    key: Float[np.ndarray, "*batch S D_k"] | None = None,
    value: Float[np.ndarray, "*batch S D_v"] | None = None,
    b_q: Float[np.ndarray, " H*E"] | None = None,
    b_k: Float[np.ndarray, " G*E"] | None = None,
    b_v: Float[np.ndarray, " G*Ev"] | None = None,
    b_o: Float[np.ndarray, " D_o"] | None = None,
    mask: Bool[np.ndarray, "*batch H L S"] | None = None,
    bias: Float[np.ndarray, "*batch H L S"] | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    offset: int | Int[np.ndarray, " B"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    return_weights: bool = False,
) -> Float[np.ndarray, "*batch L D_o"] | tuple[Float[np.ndarray, "*batch L D_o"], Float[np.ndarray, "*batch H L S"]]:
    """Let several heads attend, each with projections of its own, and mix what they found.

        head_h = attention(query W_q[:, head h], key W_k[:, head h], value W_v[:, head h])
        output = [head_1 … head_H] W_o + b_o

    Axes: L queries, S keys, E head size, Ev value size, B batch, H query heads, G key/value heads, D features.

    Parameters
    ----------
    query : (..., L, D_q), floating
        The sequence that asks. In self-attention it is the only one.
    W_q, W_k, W_v : (D_q, H·E), (D_k, G·E) and (D_v, G·Ev)
        The projections, as (in, out): features @ W. Head h owns the columns h·E to (h + 1)·E − 1.
        ``torch.nn.Linear`` keeps (out, in); pass its weight transposed.
    W_o : (H·Ev, D_o)
        What mixes the heads, as (in, out).
    num_heads : int ≥ 1
        H, the number of query heads.
    num_kv_heads : int ≥ 1
        G, the number of key/value heads, H unless given. Each serves H/G query heads in a row: query head h reads
        key/value head ⌊h / (H/G)⌋. G = 1 is multi-query attention.
    key : (..., S, D_k)
        The sequence that is asked, ``query`` unless given.
    value : (..., S, D_v)
        What it hands over, ``key`` unless given.
    b_q, b_k, b_v, b_o : (H·E,), (G·E,), (G·Ev,) and (D_o,)
        Added after each projection.
    mask, bias : (L, S) or (..., H, L, S), sizes of 1 broadcast
        As in :func:`lib.reference.attention`. With a batch, (B, L, S) is refused, since it could be read as
        (H, L, S): write ``mask[:, None]``.
    causal, window, offset, scale, softcap, return_weights
        As in :func:`lib.reference.attention`. ``scale`` is 1/√E of the head, not of all features.

    Returns
    -------
    output : (..., L, D_o), of query's dtype
    weights : (..., H, L, S); only with ``return_weights``

    Raises
    ------
    TypeError, ValueError
        If shapes do not make H and G heads, dtypes differ, or as in :func:`lib.reference.attention`.

    References
    ----------
    Vaswani et al. (2017), "Attention Is All You Need", section 3.2.2. Multi-query: Shazeer (2019), "Fast Transformer
    Decoding: One Write-Head is All You Need". Grouped: Ainslie et al. (2023), "GQA".

    Examples
    --------
    Queries and keys of 0 give equal scores, so each head averages its own column, 2 and 8 in one, 0 and 4 in the other:

    >>> x = np.array([[2.0, 0.0], [8.0, 4.0]])
    >>> nothing, same = np.zeros((2, 2)), np.eye(2)
    >>> multi_head_attention(x, nothing, nothing, same, same, num_heads=2)
    array([[5., 2.],
           [5., 2.]])
    """
    H, G = check_head_counts(num_heads, num_kv_heads)
    key = query if key is None else key
    value = key if value is None else value
    inputs = {"query": query, "key": key, "value": value}
    check_projections(
        np.ndarray, inputs, {"W_q": W_q, "W_k": W_k, "W_v": W_v, "W_o": W_o},
        {"b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o}, H, G,
    )  # fmt: skip
    check_score_axes("mask", mask, inputs)
    check_score_axes("bias", bias, inputs)

    q = split_heads(_project(query, W_q, b_q), H)  # (..., H, L, E)
    k = split_heads(_project(key, W_k, b_k), G)  # (..., G, S, E)
    v = split_heads(_project(value, W_v, b_v), G)  # (..., G, S, Ev)
    output, weights = attention(
        q, k, v, mask=mask, bias=bias, causal=causal, window=window, offset=offset, scale=scale, softcap=softcap,
        enable_gqa=True, return_weights=True,
    )  # fmt: skip
    output = _project(merge_heads(output), W_o, b_o)  # (..., L, D_o)
    return (output, weights) if return_weights else output


def _project(x: np.ndarray, W: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    return x @ W if b is None else x @ W + b
