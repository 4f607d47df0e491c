"""The backward pass of attention, by hand: from the output's gradient to those of query, key, value and bias.

Write the forward pass as five steps, and go back through them from the last to the first. d· stands for the gradient
of a loss, as ``grad_·`` does in the code; ∘ multiplies element by element.

    A = scale · Q Kᵀ                     dQ = scale · dA K          dK = scale · dAᵀ Q
    C = softcap · tanh(A / softcap)      dA = dC ∘ (1 − (C / softcap)²)
    S = C + bias, −∞ where hidden        dC = dbias = dS
    P = softmax(S), row by row           dS = P ∘ (dP − rowsum(P ∘ dP))
    O = P V                              dP = dO Vᵀ                 dV = Pᵀ dO

Matrix products: Oᵢ = Σⱼ Pᵢⱼ Vⱼ means that Vⱼ reaches every query i with weight Pᵢⱼ, so its gradient collects Pᵢⱼ dOᵢ
over the queries; and Pᵢⱼ changes the loss by dOᵢ · Vⱼ. The softmax: see :func:`softmax_backward`. An array that was
broadcast, or a key that served several query heads, was used several times: its gradients add up.

What is hidden has weight 0, hence gradient 0. A row without any key has nothing but zeros.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from lib import arguments
from lib.reference.attention import allowed_pairs, masked_scores, meets
from lib.reference.softmax import softmax


class Gradients(NamedTuple):
    """The gradients of a loss, each of the shape and dtype of its array."""

    query: Float[np.ndarray, "*batch L E"]
    key: Float[np.ndarray, "*batch S E"]
    value: Float[np.ndarray, "*batch S Ev"]
    bias: Float[np.ndarray, "*batch L S"] | None


def attention_backward(
    grad_output: Float[np.ndarray, "*batch L Ev"],
    query: Float[np.ndarray, "*batch L E"],
    key: Float[np.ndarray, "*batch S E"],
    value: Float[np.ndarray, "*batch S Ev"],
    *,
    mask: Bool[np.ndarray, "*batch L S"] | None = None,
    bias: Float[np.ndarray, "*batch L S"] | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    offset: int | Int[np.ndarray, " B"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    enable_gqa: bool = False,
) -> Gradients:
    """Carry the gradient of attention's output back to query, key, value and bias.

        dV = Pᵀ dO,   dS = P ∘ (dO Vᵀ − rowsum(dO ∘ O)),   dQ = scale · dS K,   dK = scale · dSᵀ Q

    P are the weights, O the output, d· the gradient of a loss. With a softcap, dS is multiplied by its slope before
    it goes on to dQ and dK; dbias is dS itself.

    Parameters
    ----------
    grad_output : (..., L, Ev), of query's dtype
        How the loss changes with each number of the output.
    query, key, value, mask, bias, causal, window, offset, scale, softcap, enable_gqa
        What :func:`lib.reference.attention` was called with.

    Returns
    -------
    Gradients
        ``query``, ``key``, ``value`` and ``bias`` (None without a bias), each of its array's shape and dtype. Axes
        that were broadcast and query heads that shared a key are summed over.

    Raises
    ------
    TypeError, ValueError
        As in :func:`lib.reference.attention`; and if ``grad_output`` has not the output's shape and dtype.

    Notes
    -----
    What stands at a hidden position has gradient 0 and changes no other gradient, NaN and infinity included. A query
    that may attend to nothing gives and gets gradient 0. Computed in float32 at least; gradients that leave the
    dtype's range on the way are computed again in the next wider one.

    References
    ----------
    Dao et al. (2022), "FlashAttention", appendix B.2, for rowsum(dO ∘ O) = rowsum(P ∘ dP).

    Examples
    --------
    Weights 0.5 and 0.5, values 2 and 8. More of the second key would raise the output, more of the first lower it:

    >>> query, key, value = np.zeros((1, 1)), np.array([[1.0], [0.0]]), np.array([[2.0], [8.0]])
    >>> gradients = attention_backward(np.ones((1, 1)), query, key, value, bias=np.zeros((1, 2)))
    >>> gradients.value
    array([[0.5],
           [0.5]])
    >>> gradients.bias
    array([[-1.5,  1.5]])
    >>> gradients.query
    array([[-1.5]])
    """
    call = arguments.check(
        np.ndarray, query, key, value, mask=mask, bias=bias, causal=causal, window=window, offset=offset,
        scale=scale, softcap=softcap, enable_gqa=enable_gqa,
    )  # fmt: skip
    _check_grad_output(grad_output, query, call)
    allowed = allowed_pairs(call, mask, bias)
    shared = [np.repeat(x, call.repeats, axis=-3) if call.repeats != 1 else x for x in (key, value)]
    arrays = grad_output, query, *shared
    dtype = np.result_type(query.dtype, np.float32)
    gradients, rows = _backward(*arrays, allowed, bias, call, dtype)
    columns = _not_finite(gradients.key) | _not_finite(gradients.value) | (rows[..., None] & allowed).any(-2)
    if columns.any():  # a row that left the range sees a key
        wider = np.float64 if dtype == np.float32 else np.longdouble
        again, _ = _backward(*arrays, allowed, bias, call, np.dtype(wider), saturate=True)
        lost = Gradients(rows, columns, columns, rows)
        gradients = Gradients(*(np.where(i[..., None], b, a) for i, a, b in zip(lost, gradients, again, strict=True)))
    with np.errstate(all="ignore"):  # a gradient beyond the dtype's range is infinite
        return Gradients(
            query=_sum_to(gradients.query, query.shape).astype(query.dtype),
            key=_sum_to(_sum_groups(gradients.key, key.shape, call), key.shape).astype(query.dtype),
            value=_sum_to(_sum_groups(gradients.value, value.shape, call), value.shape).astype(query.dtype),
            bias=None if bias is None else _sum_to(gradients.bias, bias.shape).astype(query.dtype),
        )


def softmax_backward(
    weights: Float[np.ndarray, "..."], grad_weights: Float[np.ndarray, "..."], axis: int = -1
) -> Float[np.ndarray, "..."]:
    """Carry the gradient of a softmax's weights back to its scores.

        dS_j = P_j (dP_j − Σ_k P_k dP_k)

    Because ∂P_k/∂S_j = P_k (1[j = k] − P_j): raising one score raises its own weight and takes from all others what
    they give up. So a gradient that is the same for every weight changes nothing.

    Parameters
    ----------
    weights : (..., S), floating
        What :func:`lib.reference.softmax` returned; its input is not needed.
    grad_weights : of weights' shape and dtype
    axis : int
        The axis along which the weights sum to one.

    Returns
    -------
    (..., S), of weights' dtype
        Computed in float32 at least. Each row sums to zero.

    Raises
    ------
    TypeError, ValueError
        If the arrays are not floating, differ in dtype or shape, or have no such axis.

    Examples
    --------
    >>> softmax_backward(np.array([0.5, 0.5]), np.array([2.0, 8.0]))
    array([-1.5,  1.5])
    """
    for name, array in (("weights", weights), ("grad_weights", grad_weights)):
        arguments.require_array(name, array, np.ndarray)
        if arguments.dtype_name(array) not in arguments.FLOATS:
            raise TypeError(f"{name} must be floating, got {arguments.dtype_name(array)}")
    if weights.dtype != grad_weights.dtype:
        raise TypeError(f"grad_weights must have weights' dtype {weights.dtype}, got {grad_weights.dtype}")
    if weights.shape != grad_weights.shape:
        raise ValueError(f"grad_weights must have weights' shape {weights.shape}, got {grad_weights.shape}")
    axis = arguments.require_integer("axis", axis)
    if not -weights.ndim <= axis < weights.ndim:
        raise ValueError(f"axis must be one of weights' {weights.ndim} axes, got {axis} for shape {weights.shape}")
    P, dP = (np.asarray(x, np.result_type(x.dtype, np.float32)) for x in (weights, grad_weights))
    with np.errstate(all="ignore"):  # a gradient beyond the dtype's range is infinite
        return (P * (dP - (P * dP).sum(axis, keepdims=True))).astype(weights.dtype)


def _backward(
    grad_output: Float[np.ndarray, "*batch L Ev"],
    query: Float[np.ndarray, "*batch L E"],
    key: Float[np.ndarray, "*batch S E"],
    value: Float[np.ndarray, "*batch S Ev"],
    allowed: Bool[np.ndarray, "*batch L S"],
    bias: Float[np.ndarray, "*batch L S"] | None,
    call: arguments.Call,
    dtype: np.dtype,
    saturate: bool = False,
) -> tuple[Gradients, Bool[np.ndarray, "*batch L"]]:
    """Go back through the five steps, on all leading axes; also tell which rows left the dtype's range."""
    grad_output, query, key, value = (np.asarray(x, dtype=dtype) for x in (grad_output, query, key, value))
    with np.errstate(all="ignore"):  # rows that leave the range are found below and done again
        scores, in_range = masked_scores(query, key, allowed, bias, call, saturate)
        weights = np.where(allowed, softmax(scores), 0)  # (..., L, S); where: a row of NaN may not reach hidden keys

        grad_value = _product(weights.swapaxes(-1, -2), grad_output, allowed.swapaxes(-1, -2))  # (..., S, Ev)
        grad_weights = np.where(allowed, grad_output @ value.swapaxes(-1, -2), 0)
        fixed = np.abs(scores) >= np.finfo(dtype).max  # hidden (−∞), or stopped at the largest number
        grad_scores = np.where(fixed, 0, softmax_backward(weights, grad_weights))  # (..., L, S); dbias too

        grad_products = grad_scores
        if call.softcap is not None:
            products, _ = masked_scores(query, key, allowed, None, call._replace(softcap=None), saturate)
            grad_products = grad_scores * (1 - np.tanh(products / call.softcap) ** 2)  # hidden: 1 − (−1)² = 0
        grad_query = call.scale * _product(grad_products, key, allowed)  # (..., L, E)
        grad_key = call.scale * _product(grad_products.swapaxes(-1, -2), query, allowed.swapaxes(-1, -2))
    gradients = Gradients(grad_query, grad_key, grad_value, grad_scores)
    return gradients, ~in_range | _not_finite(grad_query) | _not_finite(grad_scores)


def _product(
    weights: Float[np.ndarray, "*batch N M"],
    x: Float[np.ndarray, "*batch M D"],
    allowed: Bool[np.ndarray, "*batch N M"],
) -> Float[np.ndarray, "*batch N D"]:
    """Compute weights · x such that NaN and infinity in x reach only the rows that may see them."""
    finite = np.isfinite(x)
    if finite.all():
        return weights @ x
    return np.where(meets(allowed, ~finite), np.nan, weights @ np.where(finite, x, 0))


def _sum_groups(
    gradient: Float[np.ndarray, "*batch N D"], shape: tuple[int, ...], call: arguments.Call
) -> Float[np.ndarray, "*batch N D"]:
    """Add up the query heads that share a key/value head: (..., H, N, D) to (..., G, N, D) of ``shape``."""
    if call.repeats == 1:
        return gradient
    *batch, _, N, D = gradient.shape
    return gradient.reshape(*batch, shape[-3], call.repeats, N, D).sum(-3)


def _sum_to(gradient: Float[np.ndarray, "..."], shape: tuple[int, ...]) -> Float[np.ndarray, "..."]:
    """Add up along the axes that broadcasting from ``shape`` made."""
    gradient = gradient.sum(tuple(range(gradient.ndim - len(shape))))
    stretched = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return gradient.sum(stretched, keepdims=True)


def _not_finite(x: Float[np.ndarray, "*batch N D"]) -> Bool[np.ndarray, "*batch N"]:
    return ~np.isfinite(x).all(-1)


def _check_grad_output(grad_output: np.ndarray, query: np.ndarray, call: arguments.Call) -> None:
    arguments.require_array("grad_output", grad_output, np.ndarray)
    if grad_output.dtype != query.dtype:
        wanted, given = (arguments.dtype_name(x) for x in (query, grad_output))
        raise TypeError(f"grad_output must have query's dtype {wanted}, got {given}")
    shape = (*call.batch, call.L, call.Ev)
    if grad_output.shape != shape:
        raise ValueError(f"grad_output must have the output's shape (..., L, Ev) = {shape}, got {grad_output.shape}")
