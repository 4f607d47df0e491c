"""The groups hold the cases that the bars were set for, and only those are judged."""

import numpy as np
import pytest
import torch

from lib import reference
from lib.bench import contestants
from lib.bench.arithmetic import Bar
from lib.bench.cases import GROUPS, ON_CPU, ON_CUDA, Choice, cases


def bars(group, **choice):
    return {(case.title, case.threads): case.bar for case in cases(group, Choice(**choice)) if case.bar is not None}


def test_every_group_has_cases_where_it_can_be_measured():
    for device, groups in (("cpu", ON_CPU), ("cuda", ON_CUDA)):
        assert set(groups) <= set(GROUPS)
        for group in groups:
            found = cases(group, Choice(device=device))
            assert found
            assert {case.group for case in found} == {group}
            assert all(case.theirs is not None for case in found if case.measure in ("time", "speed"))
            assert all(len(case.sizes) > 1 for case in found if "growth" in case.measure)
    assert set(ON_CPU) | set(ON_CUDA) == set(GROUPS)


def test_titles_tell_cases_apart():
    everything = [case for group in ON_CPU for case in cases(group, Choice())]
    assert len({(case.group, case.title, case.threads) for case in everything}) == len(everything)


def test_streaming_bars():
    found = bars("streaming")
    for N in (1024, 2048, 4096):
        for causal in ("causal", "not causal"):
            assert found[f"N = {N}, {causal}", 1] == Bar("at most", 1.10)
            assert found[f"N = {N}, {causal}", 2] == Bar("at most", 1.15)
    for threads in (1, 2):
        assert found["scratch at N = 16384, causal", threads] == Bar("at most", 16 * 2**20)
    assert found["time ~ N^p, causal", 1] == Bar("about", 2.0, 0.1)
    assert found["scratch ~ N^p", 1] == Bar("about", 0.0, 0.1)


def test_streaming_is_not_judged_below_1024_nor_with_many_threads():
    timed = [case for case in cases("streaming", Choice(sizes=(512,), threads=(1, 4))) if case.measure == "time"]
    assert len(timed) == 4
    assert not any(case.bar for case in timed)


def test_fast_bars():
    assert set(bars("fast").values()) == {Bar("at most", 1.03)}
    assert len(bars("fast")) == 3 * 2 * 2 * 2  # sizes, causal or not, with or without backward, threads
    assert {title.split(", ")[1] for title, _ in bars("slow-paths")} == {
        "2-D", "3-D", "5-D", "Ev = 32", "innermost stride ≠ 1",
    }  # fmt: skip
    assert set(bars("slow-paths").values()) == {Bar("at least", 2.5)}
    assert bars("slow-paths", sizes=(2048,)) == {}
    assert list(bars("window").values()) == [Bar("at least", 8.0)]
    assert bars("decode")["a token over a cache of 8192", 1] == Bar("at most", 1.1)


def test_triton_bars():
    found = bars("triton", device="cuda")
    assert len(found) == 2 * 2 * 2 * 2
    assert {(title.rsplit(", ", 1)[1], bar) for (title, _), bar in found.items()} == {
        ("forward", Bar("at least", 0.9)), ("backward", Bar("at least", 0.8)),
    }  # fmt: skip


def test_quick_measures_less():
    for group in ON_CPU:
        quick, whole = (cases(group, Choice(quick=quick, threads=(1,))) for quick in (True, False))
        longest = max(case.ours.options.get("N", 0) for case in quick)
        assert longest < max(case.ours.options.get("N", 0) for case in whole)


def test_sizes_of_ones_own():
    for group in ON_CPU:
        found = {case.ours.options["N"] for case in cases(group, Choice(sizes=(64, 128))) if "N" in case.ours.options}
        assert found <= {64, 128}


# --- Contestants compute the same thing ---


def result(name, **options):
    returned = contestants.make(name, options)()
    return returned.numpy() if isinstance(returned, torch.Tensor) else returned


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"batch": []}, {"batch": [3]}, {"batch": [1, 2, 4]}, {"Ev": 32}, {"strided": True},
     {"window": [5, 0]}, {"window": [3, 2]}, {"E": 16}],
    ids=str,
)  # fmt: skip
def test_fast_and_sdpa_do_the_same(options):
    np.testing.assert_allclose(result("fast", N=40, **options), result("sdpa", N=40, **options), rtol=0, atol=2e-6)


@pytest.mark.parametrize("part", ["both", "backward"])
def test_gradients_of_fast_and_sdpa_are_the_same(part):
    one, other = (contestants.make(name, {"N": 24, "causal": True, "part": part})() for name in ("fast", "sdpa"))
    assert len(one) == len(other) == 3
    for ours, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{"N": 40}, {"N": 40, "causal": True}, {"N": 40, "L": 1}], ids=str)
def test_streaming_is_given_what_its_name_says(options):
    query, key, value = contestants._numpy_arrays(40, options.get("L"))
    wanted = reference.attention(query, key, value, causal=options.get("causal", False))
    np.testing.assert_allclose(result("streaming", **options), wanted, rtol=0, atol=2e-6)
    assert wanted.shape == (1, 8, options.get("L", 40), 64)


def test_decoding_steps_are_the_same_and_grow_the_cache():
    ours, theirs = (contestants.make(name, {"N": 16}) for name in ("decode", "decode-sdpa"))
    steps = [(ours(), theirs()) for _ in range(3)]
    for one, other in steps:
        assert one.shape == (1, 8, 1, 64)
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6)
    assert not torch.equal(steps[0][0], steps[1][0])  # one token more


@pytest.mark.parametrize("N", [1, 256, 300])
def test_bare_products(N):
    query, key, value = contestants._numpy_arrays(N)
    wanted = (query.astype(float) @ key.swapaxes(-1, -2)) @ value
    np.testing.assert_allclose(result("products-numpy", N=N), wanted[0], rtol=0, atol=1e-4 * N)
    q, k, v = (x.double() for x in contestants._tensors(N))
    torch.testing.assert_close(
        contestants.make("products-torch", {"N": N})().double(), (q @ k.mT @ v)[0], rtol=0, atol=1e-4 * N
    )


def test_an_unknown_contestant_is_an_error():
    with pytest.raises(ValueError, match="got 'numba'"):
        contestants.make("numba", {})
