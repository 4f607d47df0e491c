"""The Triton kernel equals the reference, in Triton's interpreter; the plan takes it where due; errors say why."""

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lib import arguments, fast
from lib.fast import triton_attention
from scripts import gpu_check
from tests.fast import triton_in_interpreter as program

ROOT = Path(__file__).parents[2]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton, which is for Linux")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=1500, encoding="utf8",
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


@functools.cache
def in_interpreter():
    """Run all cases once, in a process of their own."""
    ran = run("-m", "tests.fast.triton_in_interpreter")
    assert ran.returncode == 0, f"{ran.stdout[-500:]}\n{ran.stderr[-3000:]}"
    return [json.loads(line) for line in ran.stdout.splitlines()]


@needs_triton
@pytest.mark.parametrize("limit", ["all", "causal", "window"])
@pytest.mark.parametrize("S", program.SIZES)
@pytest.mark.parametrize("L", program.SIZES)
def test_equals_the_reference_forward_and_backward(limit, L, S):
    found = [errors for kind, name, errors in in_interpreter() if (kind, name) == ("equal", f"{limit} {L} {S}")]
    assert [len(errors) for errors in found] == [4]
    assert max(found[0]) < 5e-6  # sums of a hundred numbers in single precision


@needs_triton
def test_equals_the_reference_whatever_is_asked():
    errors = {name: max(errors) for kind, name, errors in in_interpreter() if kind == "equal"}
    assert len(errors) == 3 * 36 + 12 + 4 + 4 + 3
    assert {name: error for name, error in errors.items() if not error < 5e-6} == {}
    assert errors["no query sees anything"] == 0
    assert errors["what stands at hidden keys"] == 0


@needs_triton
def test_half_precision_is_as_exact_as_a_plain_body():
    assert [(name, wrong) for kind, name, wrong in in_interpreter() if kind == "half" and wrong] == []
    assert sum(kind == "half" for kind, *_ in in_interpreter()) == 3


@needs_triton
def test_bfloat16_is_refused_in_the_interpreter():
    text = "query must be float16 or float32 in Triton's interpreter, which computes bfloat16 wrongly"
    assert [found for kind, _, found in in_interpreter() if kind == "refused"] == [[text, text]]


def test_the_judge_sees_what_is_too_large():
    good = {"output": 1e-3, "query's gradient": 0.0}
    assert gpu_check.Errors({"output": 2e-3, "query's gradient": 0.0}, good, dict.fromkeys(good, 0.0)).too_large() == []
    bad = {"output": 2.1e-3, "query's gradient": float("nan")}
    assert gpu_check.Errors(bad, good, dict.fromkeys(good, 1e-5)).too_large() == list(bad)


def test_the_plain_body_is_attention():
    case = gpu_check.Case(9, 12, batch=(2, 4), groups=2, options={"causal": True, "window": (3, 1), "offset": -2})
    query, key, value = (torch.randn(2, n, size, 8, dtype=torch.float64) for n, size in ((4, 9), (2, 12), (2, 12)))
    options = {**case.options, "enable_gqa": True}
    wanted = fast.attention(query, key, value, backend="math", **options)
    torch.testing.assert_close(gpu_check.plain(query, key, value, **options), wanted, rtol=0, atol=1e-14)


# --- errors ---

X = torch.zeros(2, 3, 4)
CHECKED = [
    ({"query": X[0, 0]}, "query must have shape (..., L, E), got (4,)"),
    ({"window": (-1, 0)}, "window's left side must be 0 or more (None for no bound), got -1"),
    ({"causal": True, "key": X[:, :2], "value": X[:, :2]}, "causal needs offset= because there are L = 3 queries"),
    ({"query": X.double(), "key": X.double(), "value": X.double()},
     "the Triton kernel has no float64; use lib.fast.attention"),
    ({"offset": [0, 1], "causal": True},
     "the Triton kernel has no offset for each batch entry; use lib.fast.attention"),
    ({"value": torch.zeros(2, 3, 200)},
     "the Triton kernel has no head size above 128 (E = 4, Ev = 200); use lib.fast.attention"),
    ({"key": X[:, :0], "value": X[:, :0]}, "the Triton kernel has no sizes of 0; use lib.fast.attention"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "text"), CHECKED, ids=[text[:50] for _, text in CHECKED])
def test_error_says_what_is_wrong(wrong, text):
    with pytest.raises(ValueError) as caught:
        triton_attention.attention(**{"query": X, "key": X, "value": X, **wrong})
    assert str(caught.value).startswith(text)


LACKS = [
    ({"mask": torch.ones(3, 3, dtype=torch.bool)}, "mask"),
    ({"bias": torch.zeros(3, 3)}, "bias"),
    ({"softcap": 1.0}, "softcap"),
    ({"dropout_p": 0.1}, "dropout"),
    ({"return_weights": True}, "return_weights"),
    ({"offset": torch.tensor([0, 1]), "causal": True}, "offset for each batch entry"),
    ({"softcap": 1.0, "bias": torch.zeros(3, 3)}, "softcap and no bias"),
    ({"value": torch.zeros(2, 3, 129)}, "head size above 128 (E = 4, Ev = 129)"),
]


@pytest.mark.parametrize(("asked", "lacks"), LACKS, ids=[lacks for _, lacks in LACKS])
def test_the_backend_names_what_it_lacks(asked, lacks):
    for function in (fast.attention, fast.explain):
        with pytest.raises(ValueError) as caught:
            function(**{"query": X, "key": X, "value": X, "backend": "triton", **asked})
        assert str(caught.value) == f"backend 'triton' has no {lacks}; use backend='auto' or 'math'"


@needs_triton
def test_tensors_on_the_cpu_are_an_error(monkeypatch):
    monkeypatch.setattr(triton_attention, "is_interpreted", lambda: False)
    wanted = (
        "query must be on a GPU (device cuda) for the Triton kernel, got cpu; to try the kernel without one, set "
        "TRITON_INTERPRET=1 before Python starts"
    )
    for function in (triton_attention.attention, lambda *x: fast.attention(*x, backend="triton")):
        with pytest.raises(ValueError) as caught:
            function(X, X, X)
        assert str(caught.value) == wanted


def test_no_triton_is_an_error(monkeypatch):
    monkeypatch.setattr(triton_attention, "_has_triton", lambda: False)
    with pytest.raises(ImportError) as caught:
        fast.attention(X, X, X, backend="triton")
    wanted = "the Triton kernel needs the package triton, which there is for Linux: pip install triton"
    assert str(caught.value) == wanted


def test_lib_works_where_there_is_no_triton():
    code = (
        "import sys; sys.modules['triton'] = None\n"  # import triton is an ImportError from here on
        "import torch; from lib import fast; from lib.fast import triton_kernels\n"
        "x = torch.ones(2, 2); print(fast.attention(x, x, x, causal=True, window=(1, 0)).tolist())"
    )
    ran = run("-W", "error", "-c", code)
    assert ran.stdout.strip() == "[[1.0, 1.0], [1.0, 1.0]]", ran.stderr


def test_importing_fast_loads_no_triton():
    ran = run("-c", "import sys; from lib import fast; fast.triton_attention; print('triton' in sys.modules)")
    assert ran.stdout.strip() == "False", ran.stderr


# --- the plan ---


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Let "auto" think that the tensors are where the kernel runs well."""
    monkeypatch.setattr(triton_attention, "is_worth_it", lambda query: True)


LONG = torch.zeros(1, 2, 64, 8)
TAKEN = [{"window": (5, 0)}, {"causal": True, "offset": -3}, {"causal": True, "window": (5, 5)}, {"window": (None, 3)},
         {"causal": True, "scale": -1.0}]  # fmt: skip
LEFT = [{}, {"causal": True}, {"causal": True, "offset": 63}, {"window": (63, 63)},
        {"window": (5, 0), "bias": torch.zeros(64, 64)}, {"window": (5, 0), "mask": torch.ones(64, dtype=torch.bool)},
        {"window": (5, 0), "softcap": 1.0}, {"window": (5, 0), "dropout_p": 0.5}, {"window": (5, 0), "backend": "sdpa"},
        {"window": (5, 0), "return_weights": True}, {"window": (5, 0), "offset": [1]}]  # fmt: skip


@pytest.mark.parametrize("options", TAKEN, ids=str)
def test_auto_takes_it_where_sdpa_would_need_a_mask(on_a_gpu, options):
    wanted = (
        "triton: our Triton kernel, in one call; SDPA has no fused kernel for a window, nor for causal with an offset"
    )
    assert fast.explain(LONG, LONG, LONG, **options) == f"{wanted}; tiles hidden by causal and window are skipped"
    assert not fast.explain(LONG.double(), LONG.double(), LONG.double(), **options).startswith("triton")


@pytest.mark.parametrize("options", LEFT, ids=str)
def test_auto_leaves_it_elsewhere(on_a_gpu, options):
    assert not fast.explain(LONG, LONG, LONG, **options).startswith("triton")


def test_auto_leaves_it_on_the_cpu():
    assert fast.explain(LONG, LONG, LONG, window=(5, 0)).startswith("sdpa")


def test_the_plan_is_what_runs(on_a_gpu, monkeypatch):
    monkeypatch.setattr(triton_attention, "run", lambda *inputs: inputs)
    query, key, value, call = fast.attention(LONG, LONG, LONG, window=(5, 0))
    assert (query is LONG, key is LONG, value is LONG, call.window) == (True, True, True, (5, 0))


def test_explicit_choice_is_explained(monkeypatch):
    monkeypatch.setattr(triton_attention, "require_runnable", lambda query: None)
    wanted = "triton: our Triton kernel, in one call; backend='triton' asks for it; every query sees every key"
    assert fast.explain(LONG, LONG, LONG, backend="triton") == wanted
    assert "a size is 0" in fast.explain(LONG[..., :0, :], LONG, LONG, backend="triton")


@pytest.mark.parametrize("offset", [0, 3, -5, 40, -40, 2**61, -(2**61)])
@pytest.mark.parametrize("limits", [{}, {"causal": True}, {"window": (2, 1)}, {"window": (None, 3)}], ids=str)
def test_the_band_is_what_causal_and_window_say(limits, offset):
    query, key = torch.zeros(6, 1), torch.zeros(9, 1)
    call = arguments.check(torch.Tensor, query, key, key, **limits, offset=offset)
    low, high = triton_attention._band(call)
    assert -6 <= low <= 9
    assert -6 <= high <= 9
    distance = np.arange(9) - np.arange(6)[:, None]
    position = distance - offset
    wanted = np.ones((6, 9), bool)
    if limits.get("causal"):
        wanted &= position <= 0
    left, right = limits.get("window", (None, None))
    wanted &= (left is None) | (position >= -(left or 0))
    wanted &= (right is None) | (position <= (right or 0))
    np.testing.assert_array_equal((distance >= low) & (distance <= high), wanted)


def test_every_dtype_and_head_size_has_a_tile(monkeypatch):
    monkeypatch.setattr(triton_attention, "is_interpreted", lambda: False)
    for name in ("forward", "backward_query", "backward_key_value"):
        for dtype in triton_attention.DTYPES:
            for size in (1, 16, 64, 65, 128):
                tile = triton_attention._tile(name, dtype, size)
                assert all(n & (n - 1) == 0 for n in tile[:3])  # powers of two


# --- on a GPU ---


@needs_gpu
@pytest.mark.parametrize("dtype", gpu_check.DTYPES, ids=str)
@pytest.mark.parametrize("case", gpu_check.CASES, ids=str)
def test_on_a_gpu_it_is_as_exact_as_a_plain_body(case, dtype):
    assert gpu_check.compare(case, dtype).too_large() == []


@needs_gpu
def test_results_on_a_gpu_are_the_same_in_every_run():
    def once():
        torch.manual_seed(0)
        x = torch.randn(1, 2, 1000, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        output = fast.attention(x, x, x, window=(100, 0))
        return output, *torch.autograd.grad(output.float().square().sum(), x)

    assert all(torch.equal(*pair) for pair in zip(once(), once(), strict=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_the_check_says_that_there_is_no_gpu(capsys):
    assert gpu_check.main([]) == 2
    assert capsys.readouterr().err == "no GPU: CUDA is not available here, so there is nothing to check\n"
