"""The conventions page is true: its Python runs, and each line of its table is what the libraries do."""

import inspect
import re

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator
from torch.nn import functional as F

from lib import fast, reference
from scripts.repository import ROOT

PAGE = (ROOT / "book" / "conventions.md").read_text(encoding="utf8")
NAN = float("nan")


def line(name):
    """Return the cells of one line of the table "Ours and others", lib's first."""
    table = PAGE.split("## Ours and others")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines() if row.startswith("|")]
    return next(cells for title, *cells in rows if title == name)


def lines():
    table = PAGE.split("## Ours and others")[1].split("\n## ")[0]
    rows = [row.strip("|").split("|")[0].strip() for row in table.splitlines() if row.startswith("|")]
    return [title for title in rows if title and set(title) != {"-"}]


def column(*numbers):
    """Return values of shape (S, 1)."""
    return torch.tensor(numbers)[:, None]


def sdpa(value, mask=None, L=1, **options):
    """PyTorch's function where every score is 0."""
    key = torch.zeros(len(value), 1)
    return F.scaled_dot_product_attention(torch.zeros(L, 1), key, value, attn_mask=mask, **options)


def ours(value, mask=None, L=1, **options):
    """lib.fast where every score is 0."""
    return fast.attention(torch.zeros(L, 1), torch.zeros(len(value), 1), value, mask=mask, **options)


def mha(value, heads=1, **options):
    """Return nn.MultiheadAttention where every score is 0 and values pass as they are: output and weights."""
    size = value.shape[-1]
    layer = torch.nn.MultiheadAttention(size, heads, bias=False, dropout=options.pop("dropout", 0.0))
    layer.train(options.pop("training", True))
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat([torch.zeros(2 * size, size), torch.eye(size)]))
        layer.out_proj.weight.copy_(torch.eye(size))
        return layer(value[:1], value, value, **options)


def onnx_attention(query, key, value, mask=None, **attributes):
    """Run the ONNX operator with ONNX's own reference evaluator."""
    feeds = {"Q": query, "K": key, "V": value} | ({} if mask is None else {"M": mask})
    node = helper.make_node("Attention", list(feeds), ["Y"], **attributes)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", onnx.defs.onnx_opset_version())])
    return ReferenceEvaluator(model).run(None, feeds)[0]


def onnx_zeros(value, mask=None, L=1, **attributes):
    """Run the ONNX operator where every score is 0."""
    S = len(value)
    query, key = (np.zeros((1, 1, length, 1), np.float32) for length in (L, S))
    return onnx_attention(query, key, np.float32(value)[None, None], mask, **attributes)[0, 0]


def test_every_python_block_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 4
    torch.manual_seed(0)
    names = {}
    dtype = torch.get_default_dtype()
    try:
        for block in blocks:
            exec(compile(block, "conventions.md", "exec"), names)
    finally:
        torch.set_default_dtype(dtype)


def test_every_line_of_the_table_has_a_test():
    tested = {name.removeprefix("test_line_") for name in globals() if name.startswith("test_line_")}
    assert {re.sub(r"\W+", "_", title).lower() for title in lines()} == tested


def test_line_boolean_mask_true_means():
    assert line("boolean mask, True means") == ["may attend", "may attend", "**blocked**", "may attend"]
    value, mask = column(1.0, 2.0), torch.tensor([[True, False]])
    assert ours(value, mask) == 1
    assert sdpa(value, mask) == 1
    assert mha(value, attn_mask=mask)[0] == 2
    assert mha(value, key_padding_mask=mask[0])[0] == 2
    assert onnx_zeros(value.numpy(), mask.numpy()) == 1


def test_line_floating_mask():
    assert line("floating mask") == ["goes to `bias=`, added", "added", "added", "added"]
    value, mask = column(1.0, 2.0), torch.tensor([[1.0, 0.0]])
    wanted = pytest.approx((np.e * 1 + 1 * 2) / (np.e + 1))
    assert ours(value, bias=mask).item() == wanted
    with pytest.raises(TypeError, match="mask must be boolean"):
        ours(value, mask)
    assert sdpa(value, mask).item() == wanted
    assert mha(value, attn_mask=mask)[0].item() == wanted
    assert onnx_zeros(value.numpy(), mask.numpy()).item() == wanted


def test_line_causal_l_2_s_5():
    assert line("causal, L = 2, S = 5") == ["needs `offset=`", "top-left", "needs a mask of yours", "top-left"]
    top_left = [[1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0]]
    with pytest.raises(ValueError, match="causal needs offset="):
        ours(torch.eye(5), L=2, causal=True)
    assert ours(torch.eye(5), L=2, causal=True, offset=0).tolist() == top_left
    assert sdpa(torch.eye(5), L=2, is_causal=True).tolist() == top_left
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        mha(column(1.0, 2.0), is_causal=True)
    assert onnx_zeros(np.eye(5), L=2, is_causal=1).tolist() == top_left


def test_line_empty_row():
    assert line("empty row") == ["0", "0", "**NaN** with weights, 0 without", "0"]
    value, allowed = column(1.0, 2.0), torch.tensor([[False, False]])
    assert ours(value, allowed) == 0
    assert sdpa(value, allowed) == 0
    assert mha(value, attn_mask=~allowed)[0].isnan()
    assert mha(value, attn_mask=~allowed, need_weights=False)[0] == 0
    assert onnx_zeros(value.numpy(), allowed.numpy()) == 0


def test_line_default_scale():
    assert line("default scale") == ["1/√E", "1/√E", "1/√(head size)", "1/√E"]
    query, key, value = torch.ones(1, 4), torch.stack([torch.ones(4), torch.zeros(4)]), column(1.0, 0.0)
    wanted = pytest.approx(1 / (1 + np.exp(-2)))  # scores 4 / √4 and 0
    assert fast.attention(query, key, value).item() == wanted
    assert reference.attention(*(x.numpy() for x in (query, key, value))).item() == wanted
    assert F.scaled_dot_product_attention(query, key, value).item() == wanted
    assert onnx_attention(*(x.numpy()[None, None] for x in (query, key, value))).item() == wanted

    layer = torch.nn.MultiheadAttention(8, 2, bias=False)  # two heads of size 4: 1/√4, not 1/√8
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.eye(8).repeat(3, 1))
        _, weights = layer(torch.ones(1, 8), torch.stack([torch.ones(8), torch.zeros(8)]), torch.zeros(2, 8))
    assert weights[0, 0].item() == wanted


def test_line_layout():
    heads_apart = "(..., L, E)"
    packed = "(L, B, H·E); `batch_first=True`: (B, L, H·E)"
    assert line("layout") == [heads_apart, heads_apart, packed, "(B, H, L, E) or (B, L, H·E)"]
    query, key, value = np.ones((2, 3, 5, 4)), np.ones((2, 3, 7, 4)), np.ones((2, 3, 7, 6))
    assert reference.attention(query, key, value).shape == (2, 3, 5, 6)
    tensors = [torch.from_numpy(x) for x in (query, key, value)]
    assert fast.attention(*tensors).shape == F.scaled_dot_product_attention(*tensors).shape == (2, 3, 5, 6)
    assert onnx_attention(*(np.float32(x) for x in (query, key, value))).shape == (2, 3, 5, 6)
    packed = np.ones((2, 5, 12), np.float32), np.ones((2, 7, 12), np.float32), np.ones((2, 7, 18), np.float32)
    assert onnx_attention(*packed, q_num_heads=3, kv_num_heads=3).shape == (2, 5, 18)

    query, key = torch.ones(5, 2, 12), torch.ones(7, 2, 12)
    output, weights = torch.nn.MultiheadAttention(12, 3)(query, key, key)  # (L, B, H·E)
    assert output.shape == (5, 2, 12)
    assert weights.shape == (2, 5, 7)
    layer = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    assert layer(query.transpose(0, 1), key.transpose(0, 1), key.transpose(0, 1))[0].shape == (2, 5, 12)


def test_line_grouped_heads_4_on_2():
    assert line("grouped heads 4 on 2") == ["0, 0, 1, 1", "0, 0, 1, 1", "no", "0, 0, 1, 1"]
    query, key = torch.zeros(1, 4, 1, 1), torch.zeros(1, 2, 1, 1)
    value = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1)
    assert fast.attention(query, key, value, enable_gqa=True).flatten().tolist() == [0, 0, 1, 1]
    assert F.scaled_dot_product_attention(query, key, value, enable_gqa=True).flatten().tolist() == [0, 0, 1, 1]
    assert onnx_attention(*(x.numpy() for x in (query, key, value))).ravel().tolist() == [0, 0, 1, 1]
    options = inspect.signature(torch.nn.MultiheadAttention).parameters
    assert not [name for name in options if "kv_heads" in name or "gqa" in name]


def test_line_returned_weights():
    assert line("returned weights") == ["per head, before dropout", "no", "mean over heads, **after** dropout", "no"]
    torch.manual_seed(0)
    query, key, value = torch.zeros(2, 5, 4), torch.zeros(2, 7, 4), torch.ones(2, 7, 4)
    _, weights = fast.attention(query, key, value, return_weights=True, dropout_p=0.5)
    assert weights.shape == (2, 5, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 5))
    assert isinstance(F.scaled_dot_product_attention(query, key, value), torch.Tensor)
    assert mha(torch.ones(7, 4), heads=2)[1].shape == (1, 7)  # two heads, one matrix
    dropped = mha(torch.ones(7, 4), dropout=0.5)[1]
    assert abs(dropped.sum().item() - 1) > 0.1  # some of seven weights, each doubled: never a whole
    assert isinstance(onnx_zeros(np.ones((7, 1))), np.ndarray)


def test_line_nan_in_a_hidden_value():
    assert line("NaN in a hidden value") == ["no effect", "leaks", "leaks", "leaks"]
    value, allowed = column(1.0, NAN), torch.tensor([[True, False]])
    assert ours(value, allowed) == 1
    zeros = np.zeros((1, 1)), np.zeros((2, 1))
    assert reference.attention(*zeros, value.double().numpy(), mask=allowed.numpy()) == 1
    assert sdpa(value, allowed).isnan()
    assert mha(value, attn_mask=~allowed)[0].isnan()
    assert np.isnan(onnx_zeros(value.numpy(), allowed.numpy()))


def test_line_dropout_while_evaluating():
    assert line("dropout while evaluating") == ["as you pass it", "as you pass it", "off after `.eval()`", "no"]
    torch.manual_seed(0)
    value = torch.ones(101, 1)  # an odd number of weights, some dropped, the others doubled: never a whole
    assert (ours(value, dropout_p=0.5) - 1).abs() > 1e-3  # neither function knows of training
    assert (sdpa(value, dropout_p=0.5) - 1).abs() > 1e-3
    assert (mha(value, dropout=0.5)[0] - 1).abs() > 1e-3
    assert mha(value, dropout=0.5, training=False)[0].item() == pytest.approx(1)
    schema = onnx.defs.get_schema("Attention")
    assert not [name for name in schema.attributes if "dropout" in name]


def test_window_does_not_count_the_query_itself():
    _, weights = fast.attention(*[torch.zeros(3, 1)] * 3, window=(1, 0), return_weights=True)
    assert (weights > 0).tolist() == [[True, False, False], [True, True, False], [False, True, True]]
