"""ONNX's Attention and RotaryEmbedding as calls of lib.

Inputs and attributes are renamed here, heads split, the past put before the present, and a short mask made long. What
remains, the attention itself, is computed by lib. The cases, inputs and expected outputs alike, come with the onnx
package, and are made in memory when its test modules are imported.
"""

from importlib import import_module
from typing import NamedTuple

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

from lib import arguments, fast, masks
from lib.reference import merge_heads, split_heads
from lib.reference.attention import allowed_pairs, masked_scores

SLOTS = {
    "Attention": (
        ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"),
        ("Y", "present_key", "present_value", "qk_matmul_output"),
    ),
    "RotaryEmbedding": (("X", "cos_cache", "sin_cache", "position_ids"), ("Y",)),
}
RAW, SOFTCAPPED, BIASED, WEIGHTS = range(4)  # qk_matmul_output_mode: which step of the computation is shown


class Case(NamedTuple):
    """One of the suite's cases: a node's attributes, inputs and expected outputs, by the operator's own names."""

    name: str
    model: onnx.ModelProto
    attributes: dict
    inputs: dict
    outputs: dict

    def __repr__(self):
        return self.name


def cases(operator):
    """List the suite's cases of one operator, without those that only spell it out in smaller operators."""
    import_module(f"onnx.backend.test.case.node.{operator.lower()}")
    found = import_module("onnx.backend.test.case.node")._NodeTestCases
    found = [case for case in found if case.model.graph.node[0].op_type == operator and len(case.model.graph.node) == 1]
    return [_read(case, *SLOTS[operator]) for case in found if not case.name.endswith("_expanded")]


def _read(case, input_slots, output_slots):
    (node,), ((inputs, outputs),) = case.model.graph.node, case.data_sets
    given = {slot: name for slot, name in zip(input_slots, node.input, strict=False) if name}  # "" skips a slot
    made = {slot: name for slot, name in zip(output_slots, node.output, strict=False) if name}
    return Case(
        case.name.removeprefix("test_"),
        case.model,
        {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute},
        dict(zip(given, inputs, strict=True)),
        dict(zip(made, outputs, strict=True)),
    )


def attention(attend, attributes, inputs, wanted=("Y",)):
    """Compute the wanted outputs of ONNX's Attention with ``attend``, a function called as lib.reference.attention."""
    query, key, value = (inputs[slot] for slot in "QKV")
    flat = query.ndim == 3  # (B, L, H·E)
    if flat:
        query = split_heads(query, attributes["q_num_heads"])
        key, value = (split_heads(x, attributes["kv_num_heads"]) for x in (key, value))
    if "past_key" in inputs:
        key = np.concatenate([inputs["past_key"], key], axis=-2)
        value = np.concatenate([inputs["past_value"], value], axis=-2)
    outputs = {"present_key": key, "present_value": value}

    dtype = query.dtype
    if attributes.get("softmax_precision") == TensorProto.DOUBLE:  # lib's softmax runs in float32 at least by itself
        query, key, value = (x.astype(np.float64) for x in (query, key, value))
    options = options_of_attention(attributes, inputs, query, key)
    mode = attributes.get("qk_matmul_output_mode", RAW) if "qk_matmul_output" in wanted else None
    if mode == WEIGHTS:
        output, outputs["qk_matmul_output"] = attend(query, key, value, **options, return_weights=True)
    else:
        output = attend(query, key, value, **options)
        if mode is not None:
            outputs["qk_matmul_output"] = scores(query, key, value, options, mode)
    outputs["Y"] = merge_heads(output) if flat else output
    return {slot: outputs[slot].astype(dtype, copy=False) for slot in wanted}


def options_of_attention(attributes, inputs, query, key):
    """Translate everything but query, key and value."""
    L, S = query.shape[-2], key.shape[-2]
    options = {"enable_gqa": True, "scale": attributes.get("scale"), "softcap": attributes.get("softcap") or None}
    options["causal"] = bool(attributes.get("is_causal", 0))
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    options["window"] = (None if left == -1 else left, None if right == -1 else right)
    if "nonpad_kv_seqlen" in inputs:  # a cache of fixed size, the queries being the last tokens written to it
        lengths = inputs["nonpad_kv_seqlen"]
        options["offset"] = lengths - L
        options["mask"] = masks.padding(lengths[:, None], S)  # (B, 1, 1, S)
    else:
        options["offset"] = inputs["past_key"].shape[-2] if "past_key" in inputs else 0
    if "attn_mask" in inputs:
        mask = pad_mask(inputs["attn_mask"], S)
        if mask.dtype == bool:
            options["mask"] = mask & options.get("mask", True)
        else:
            options["bias"] = mask.astype(query.dtype)
    return options


def pad_mask(mask, S):
    """Make a short mask as long as there are keys: what it does not mention, it hides."""
    missing = [(0, 0)] * (mask.ndim - 1) + [(0, S - mask.shape[-1])]
    return np.pad(mask, missing, constant_values=False if mask.dtype == bool else -np.inf)


def scores(query, key, value, options, mode):
    """Compute the scores on their way to the softmax: the raw ones, after softcap, or with all restrictions."""
    shown = {"scale"} if mode == RAW else {"scale", "softcap"} if mode == SOFTCAPPED else set(options)
    options = {name: option for name, option in options.items() if name in shown} | {"enable_gqa": True}
    call = arguments.check(np.ndarray, query, key, value, **options)
    allowed = allowed_pairs(call, options.get("mask"), options.get("bias"))
    key = np.repeat(key, call.repeats, axis=-3)
    return masked_scores(query, key, allowed, options.get("bias"), call, saturate=False)[0]


def rotary(rotate_pairs, attributes, inputs):
    """Compute ONNX's RotaryEmbedding with one of lib's ``rotate_pairs``."""
    x, cos, sin = inputs["X"], inputs["cos_cache"], inputs["sin_cache"]
    flat = x.ndim == 3  # (B, L, H·E)
    if flat:
        x = split_heads(x, attributes["num_heads"])
    if "position_ids" in inputs:
        cos, sin = cos[inputs["position_ids"]], sin[inputs["position_ids"]]
    pairing = "interleaved" if attributes.get("interleaved") else "half"
    turned = rotate_pairs(x, cos[:, None], sin[:, None], pairing=pairing)  # (B, 1, L, pairs): the same for all heads
    return merge_heads(turned) if flat else turned


def on_tensors(function, **fixed):
    """Let a function of lib.fast take and give NumPy arrays, bfloat16 included, which torch cannot read as such."""

    def call(*arrays, **options):
        options = {name: _tensor(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
        result = function(*map(_tensor, arrays), **options, **fixed)
        dtype = arrays[0].dtype
        return tuple(_array(x, dtype) for x in result) if isinstance(result, tuple) else _array(result, dtype)

    return call


fast_attention = on_tensors(fast.attention)
fast_math_attention = on_tensors(fast.attention, backend="math")
fast_rotate_pairs = on_tensors(fast.rotate_pairs)


def _tensor(x):
    if x.dtype.name == "bfloat16":
        return torch.tensor(x.view(np.int16)).view(torch.bfloat16)
    return torch.tensor(x)


def _array(x, dtype):
    return x.view(torch.int16).numpy().view(dtype) if x.dtype == torch.bfloat16 else x.numpy()
