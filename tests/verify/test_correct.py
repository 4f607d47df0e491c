"""No false alarm: implementations that people rely on hold every property under the conventions that they declare."""

import math
from functools import cache

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from torch.nn.functional import scaled_dot_product_attention

from lib import fast, reference
from lib.verify import PROPERTIES, check_attention
from lib.verify.wrong import body

# --- torch


def sdpa_4d(query, key, value, *, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, dropout_p=0.0):
    if query.ndim != 4:
        raise ValueError("four axes, please")
    return scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def sdpa_3d(query, key, value, *, attn_mask=None, is_causal=False, scale=None):
    if query.ndim != 3:
        raise ValueError("three axes, please")
    return scaled_dot_product_attention(query, key, value, attn_mask, is_causal=is_causal, scale=scale)


@cache
def one_head(size, dtype):
    """Make a module whose projections change nothing, so that its core shows."""
    module = torch.nn.MultiheadAttention(size, 1, bias=False, batch_first=True, dtype=dtype)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(size, dtype=dtype).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(size, dtype=dtype))
    return module.eval()


def multihead(query, key, value, *, mask=None, is_causal=False, need_weights=False):
    """Call torch.nn.MultiheadAttention with the mask as it wants it, and causal written out."""
    hidden = torch.zeros(query.shape[-2], key.shape[-2], dtype=torch.bool) if mask is None else mask
    if is_causal:
        hidden = hidden | torch.ones_like(hidden).triu(1)
    module = one_head(query.shape[-1], query.dtype)
    output, weights = module(query, key, value, attn_mask=hidden, need_weights=need_weights)
    return (output, weights) if need_weights else output


# --- as Hugging Face's models write it


def repeat_kv(x, n):
    batch, heads, length, size = x.shape
    return x[:, :, None].expand(batch, heads, n, length, size).reshape(batch, heads * n, length, size)


def eager(query, key, value, *, attention_mask=None, scaling=None):
    """Group heads without being asked; add the mask; softmax in float32, back to the query's dtype."""
    n = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, n), repeat_kv(value, n)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = torch.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value), weights


def eager_masked(query, key, value, *, mask=None, scaling=None):
    """Make the additive mask as the library does: the dtype's lowest number where a key is hidden."""
    additive = None
    if mask is not None:
        lowest = torch.finfo(query.dtype).min
        additive = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, lowest)
    return eager(query, key, value, attention_mask=additive, scaling=scaling)


# --- ONNX


def onnx_reference(query, key, value, *, attn_mask=None, is_causal=False, scale=None, softcap=None):
    """Run ONNX's own reference of the operator Attention."""
    inputs = {"Q": query, "K": key, "V": value} | ({} if attn_mask is None else {"attn_mask": attn_mask})
    attributes = {"is_causal": int(is_causal)}
    attributes |= {n: float(x) for n, x in (("scale", scale), ("softcap", softcap)) if x is not None}
    if scale is None:
        attributes["softmax_precision"] = TensorProto.DOUBLE if query.dtype == np.float64 else TensorProto.FLOAT
    kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in inputs.items()}
    node = helper.make_node("Attention", list(inputs), ["Y"], **attributes)
    values = [helper.make_tensor_value_info(name, kinds[name], x.shape) for name, x in inputs.items()]
    graph = helper.make_graph([node], "graph", values, [helper.make_tensor_value_info("Y", kinds["Q"], None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    return ReferenceEvaluator(model).run(None, inputs)[0]


# --- other styles


def pure_python(query, key, value, *, mask=None, causal=False, scale=None):
    """Loop over lists of Python's own numbers."""
    L, S, E, Ev = len(query), len(key), query.shape[-1], value.shape[-1]
    q, k, v = query.tolist(), key.tolist(), value.tolist()
    scale = 1 / math.sqrt(E or 1) if scale is None else scale
    rows = []
    for i in range(L):
        seen = [j for j in range(S) if (mask is None or mask[i if len(mask) > 1 else 0][j]) and (j <= i or not causal)]
        scores = [scale * sum(a * b for a, b in zip(q[i], k[j], strict=True)) for j in seen]
        parts = [math.exp(s - max(scores)) for s in scores]
        row = [0.0] * Ev
        for part, j in zip(parts, seen, strict=True):
            row = [r + part / sum(parts) * x for r, x in zip(row, v[j], strict=True)]
        rows.append(row)
    return np.array(rows, query.dtype).reshape(L, Ev)


def einsum(q, k, v, mask=None, causal=False):
    """Write the two products with einsum, and combine masks first."""
    kind = np.result_type(q.dtype, np.float32)
    s = np.einsum("...ld,...sd->...ls", q.astype(kind) / np.sqrt(max(q.shape[-1], 1)), k.astype(kind))
    seen = np.ones(s.shape[-2:], bool) if mask is None else mask
    if causal:
        seen = seen & np.tri(*s.shape[-2:], dtype=bool)
    s = np.where(seen, s, -np.inf)
    m = np.max(s, axis=-1, keepdims=True, initial=-np.finfo(kind).max)
    p = np.exp(s - m)
    d = p.sum(-1, keepdims=True)
    return np.einsum("...ls,...sd->...ld", p / np.where(d > 0, d, 1), v.astype(kind)).astype(q.dtype)


def powers_of_two(query, key, value, *, scale=None, bias=None):
    """Take exp2 of scores multiplied by log₂e, as kernels do."""
    kind = np.result_type(query.dtype, np.float32)
    scale = (1 / np.sqrt(max(query.shape[-1], 1)) if scale is None else scale) * np.log2(np.e)
    scores = (query.astype(kind) * kind.type(scale)) @ key.astype(kind).swapaxes(-2, -1)
    if bias is not None:
        scores = scores + bias.astype(kind) * kind.type(np.log2(np.e))
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.finfo(kind).max)
    parts = np.exp2(scores - top)
    total = parts.sum(-1, keepdims=True)
    return ((parts @ value.astype(kind)) / np.where(total > 0, total, 1)).astype(query.dtype)


def blocked(query, key, value, *, mask=None):
    """Run over blocks of 16 keys with a running maximum, and divide once at the end."""
    kind = np.result_type(query.dtype, np.float32)
    q, k, v = (x.astype(kind) for x in (query, key, value))
    lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    L, S = q.shape[-2], k.shape[-2]
    seen = np.broadcast_to(True if mask is None else mask, (*lead, L, S))
    top = np.full((*lead, L, 1), -np.inf, kind)
    total, output = np.zeros((*lead, L, 1), kind), np.zeros((*lead, L, v.shape[-1]), kind)
    for start in range(0, S, 16):
        part = slice(start, start + 16)
        scores = q @ k[..., part, :].swapaxes(-1, -2) / kind.type(np.sqrt(max(q.shape[-1], 1)))
        scores = np.where(seen[..., part], scores, -np.inf)
        higher = np.maximum(top, scores.max(-1, keepdims=True))
        safe = np.where(np.isfinite(higher), higher, 0)
        kept, weights = np.exp(top - safe), np.exp(scores - safe)
        total = total * kept + weights.sum(-1, keepdims=True)
        output = output * kept + weights @ v[..., part, :]
        top = higher
    return (output / np.where(total > 0, total, 1)).astype(query.dtype)


def flattened_heads(query, key, value, *, mask=None):
    """Fold batch and heads into one axis, and use bmm."""
    B, H, L, E = query.shape
    S, Ev = key.shape[-2], value.shape[-1]
    query, key, value = query.reshape(-1, L, E), key.reshape(-1, S, E), value.reshape(-1, S, Ev)
    kind = torch.promote_types(query.dtype, torch.float32)
    scores = torch.bmm(query.to(kind) * max(E, 1) ** -0.5, key.to(kind).transpose(1, 2))
    if mask is not None:
        hidden = ~mask.expand(B, H, L, S).reshape(-1, L, S)
        scores = scores.masked_fill(hidden, torch.finfo(kind).min)
        weights = torch.softmax(scores, -1).masked_fill(hidden, 0)
    else:
        weights = torch.softmax(scores, -1)
    return torch.bmm(weights, value.to(kind)).to(query.dtype).view(B, H, L, Ev)


def query_by_query(query, key, value, *, mask=None):
    """Loop over the queries in torch, and stack."""
    kind = torch.promote_types(query.dtype, torch.float32)
    rows = []
    for i in range(query.shape[-2]):
        scores = (key.to(kind) * query[..., i : i + 1, :].to(kind)).sum(-1) / max(query.shape[-1], 1) ** 0.5  # (..., S)
        if mask is not None:
            scores = torch.where(mask[..., min(i, mask.shape[-2] - 1), :], scores, -torch.inf)
        empty = (scores == -torch.inf).all(-1, keepdim=True)
        weights = torch.where(empty, 0, scores).softmax(-1).masked_fill(empty, 0)
        rows.append((weights[..., None] * value.to(kind)).sum(-2))
    if not rows:
        return query.new_zeros(*query.shape[:-1], value.shape[-1])
    return torch.stack(rows, -2).to(query.dtype)


MHA = {"mask_true": "block", "empty_rows": "zero", "alignment": "top-left", "half_scores": "may-overflow"}
SDPA = {"mask": "attn_mask", "causal": "is_causal"}
CORRECT = {
    "reference.attention": (reference.attention, "numpy", {}, {"masked_nan": "blocked"}),
    "reference.streaming_attention": (reference.streaming_attention, "numpy", {}, {"masked_nan": "blocked"}),
    "the catalogue's body": (body.attention, "numpy", {}, {"masked_nan": "blocked", "alignment": "top-left"}),
    "the catalogue's body in torch": (body.attention, "torch", {}, {}),
    "fast.attention": (fast.attention, "torch", {}, {}),
    "fast.attention, math": (lambda q, k, v, **o: fast.attention(q, k, v, backend="math", **o), "torch", {}, {}),
    "SDPA as it is": (
        scaled_dot_product_attention,
        "torch",
        {**SDPA, "bias": "attn_mask", "enable_gqa": "enable_gqa", "dropout_p": "dropout_p", "scale": "scale"},
        {"alignment": "top-left"},
    ),
    "SDPA, 4-D, mask": (sdpa_4d, "torch", SDPA, {"alignment": "top-left"}),
    "SDPA, 3-D, mask": (sdpa_3d, "torch", SDPA, {"alignment": "top-left"}),
    "SDPA, 4-D, bias": (
        sdpa_4d,
        "torch",
        {"bias": "attn_mask", "causal": "is_causal"},
        {"alignment": "top-left"},
    ),
    "SDPA, 3-D, bias": (sdpa_3d, "torch", {"bias": "attn_mask"}, {}),
    "torch.nn.MultiheadAttention": (
        multihead,
        "torch",
        {"causal": "is_causal", "return_weights": "need_weights"},
        MHA,
    ),
    "eager, additive mask": (eager, "torch", {"bias": "attention_mask", "scale": "scaling"}, {}),
    "eager, mask": (eager_masked, "torch", {"scale": "scaling"}, {"empty_rows": "mean"}),
    "onnx.reference": (
        onnx_reference,
        "numpy",
        {**SDPA, "bias": "attn_mask"},
        {"alignment": "top-left", "half_scores": "may-overflow"},
    ),
    "pure Python": (pure_python, "numpy", {}, {}),
    "einsum": (einsum, "numpy", {}, {"alignment": "top-left"}),
    "exp2": (powers_of_two, "numpy", {}, {}),
    "blocks of keys": (blocked, "numpy", {}, {}),
    "flattened heads": (flattened_heads, "torch", {}, {}),
    "query by query": (query_by_query, "torch", {}, {}),
}


@pytest.mark.parametrize("name", CORRECT)
def test_no_false_alarm(name):
    function, framework, names, conventions = CORRECT[name]
    report = check_attention(function, framework, names, conventions)
    assert report.ok, "\n" + report.text()
    assert {"shape and dtype", "equation", "axis", "sum to one", "extreme scores", "layouts"} <= set(report.holds)
    assert set(report.holds) | set(report.not_tested) == {p.name for p in PROPERTIES}


def test_onnx_is_what_we_think():
    assert onnx.defs.onnx_opset_version() >= 24
