"""Who meets whom: the groups, their cases, and the bar of each.

A bar belongs to the sizes it was set for. At other sizes the same case is measured and not judged.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from lib.bench.arithmetic import Bar

H, E = 8, 64  # heads and head size of every case that does not say otherwise
SIZES = (1024, 2048, 4096)
LONG = (2048, 4096, 8192, 16384)  # what memory is measured at
GROUPS = {
    "streaming": "reference.streaming_attention beside torch's SDPA: time, growth with N, scratch memory",
    "products": "each beside the two bare matrix products, in its own library: what the softmax costs",
    "fast": "fast.attention where SDPA is on its fast path: forward, and forward with backward",
    "slow-paths": "fast.attention where SDPA leaves its fast path: 2-D, 3-D, 5-D, Ev = 32, strided",
    "window": "fast.attention with a window of 256 keys beside SDPA with the equivalent mask",
    "decode": "one token at a time over a cache, beside SDPA on preallocated tensors",
    "triton": "the Triton kernel beside SDPA's best backend, bfloat16 (needs --device cuda)",
}
ON_CUDA = ("fast", "slow-paths", "window", "decode", "triton")
ON_CPU = ("streaming", "products", "fast", "slow-paths", "window", "decode")


class Contestant(NamedTuple):
    """Something of lib.bench.contestants, and what it is given."""

    name: str
    options: dict[str, Any]

    def at(self, N: int) -> "Contestant":
        """Give the same at another length."""
        return Contestant(self.name, {**self.options, "N": N})


class Case(NamedTuple):
    """One line of the table."""

    group: str
    title: str
    measure: str  # "time", "speed", "memory", "time growth", "memory growth", "allocations"
    ours: Contestant
    theirs: Contestant | None  # None where nobody is met
    bar: Bar | None
    threads: int
    sizes: tuple[int, ...] = ()  # for growth


class Choice(NamedTuple):
    """What the command line asked for."""

    device: str = "cpu"
    threads: tuple[int, ...] = (1, 2)
    sizes: tuple[int, ...] | None = None  # None: each group's own
    quick: bool = False

    def lengths(self, usual: tuple[int, ...]) -> tuple[int, ...]:
        """Give the sizes to measure at."""
        if self.sizes is not None:
            return self.sizes
        return usual[:-1] if self.quick and len(usual) > 1 else usual


def cases(group: str, choice: Choice) -> list[Case]:
    """List a group's cases."""
    return list(MAKERS[group](choice))


def _streaming(choice: Choice) -> Iterator[Case]:
    for threads in choice.threads:
        for N in choice.lengths(SIZES):
            for causal in (False, True):
                options = {"N": N, "causal": causal}
                bar = Bar("at most", {1: 1.10, 2: 1.15}[threads]) if N >= 1024 and threads <= 2 else None
                yield Case(
                    "streaming", f"N = {N}, {_causal(causal)}", "time", Contestant("streaming", options),
                    Contestant("sdpa", options), bar, threads,
                )  # fmt: skip
    sizes = choice.sizes or ((512, 1024, 2048) if choice.quick else SIZES)
    if len(set(sizes)) > 1:
        bar = Bar("about", 2.0, 0.1) if min(sizes) >= 1024 else None
        for causal in (False, True):
            ours = Contestant("streaming", {"causal": causal})
            title = f"time ~ N^p, {_causal(causal)}"
            yield Case("streaming", title, "time growth", ours, None, bar, 1, tuple(sorted(set(sizes))))
    long = choice.sizes or (LONG[:2] if choice.quick else LONG)
    for threads in choice.threads:
        for causal in (False, True):
            plain = Contestant("streaming", {"causal": causal})
            title = f"scratch at N = {max(long)}, {_causal(causal)}"
            bar = Bar("at most", 16 * 2**20)
            yield Case("streaming", title, "memory", plain.at(max(long)), None, bar, threads)
    if len(set(long)) > 1:
        plain, bar = Contestant("streaming", {"causal": False}), Bar("about", 0.0, 0.1)
        yield Case("streaming", "scratch ~ N^p", "memory growth", plain, None, bar, 1, tuple(sorted(set(long))))


def _products(choice: Choice) -> Iterator[Case]:
    for N in choice.lengths(SIZES):
        for name, products in (("streaming", "products-numpy"), ("sdpa", "products-torch")):
            options = {"N": N, "causal": False}
            yield Case(
                "products", f"N = {N}, {name}", "time", Contestant(name, options), Contestant(products, options), None,
                1,
            )  # fmt: skip


def _fast(choice: Choice) -> Iterator[Case]:
    for threads in _threads(choice):
        for N in choice.lengths(SIZES):
            for causal in (False, True):
                for part in ("forward", "both"):
                    options = {"N": N, "causal": causal, "part": part, "device": choice.device}
                    title = f"N = {N}, {_causal(causal)}, {_part(part)}"
                    yield _meet("fast", title, "time", options, Bar("at most", 1.03), threads)


def _slow_paths(choice: Choice) -> Iterator[Case]:
    layouts = {
        "2-D": {"batch": []},
        "3-D": {"batch": [H]},
        "5-D": {"batch": [1, 2, 4]},
        "Ev = 32": {"Ev": 32},
        "innermost stride ≠ 1": {"strided": True},
    }
    for N in choice.lengths((512, 1024, 4096) if choice.quick else (4096,)):
        for title, options in layouts.items():
            options = {"N": N, "causal": False, "device": choice.device, **options}
            bar = Bar("at least", 2.5) if N == 4096 and choice.device == "cpu" else None
            yield _meet("slow-paths", f"N = {N}, {title}", "speed", options, bar, 1)


def _window(choice: Choice) -> Iterator[Case]:
    for N in choice.lengths((1024, 2048, 8192) if choice.quick else (8192,)):
        options = {"N": N, "window": [256, 0], "device": choice.device}
        bar = Bar("at least", 8.0) if N == 8192 and choice.device == "cpu" else None
        yield _meet("window", f"N = {N}, window = (256, 0)", "speed", options, bar, 1)


def _decode(choice: Choice) -> Iterator[Case]:
    for N in choice.lengths((1024, 2048, 8192) if choice.quick else (8192,)):
        options = {"N": N, "device": choice.device}
        bar = Bar("at most", 1.1) if N == 8192 and choice.device == "cpu" else None
        title = f"a token over a cache of {N}"
        ours, theirs = Contestant("decode", options), Contestant("decode-sdpa", options)
        yield Case("decode", title, "time", ours, theirs, bar, 1)
        bar = Bar("at most", 1.01)
        yield Case("decode", f"bytes allocated, step 65 to step 1, {N}", "allocations", ours, None, bar, 1)
        if choice.device == "cpu":
            options = {"N": N, "L": 1}
            ours, theirs = Contestant("streaming", options), Contestant("sdpa", options)
            yield Case("decode", f"streaming, 1 query, {N} keys", "time", ours, theirs, None, 1)


def _triton(choice: Choice) -> Iterator[Case]:
    for N in choice.lengths((4096, 16384)):
        for size in (64, 128):
            for causal in (False, True):
                for part, least in (("forward", 0.9), ("backward", 0.8)):
                    options = {"N": N, "E": size, "causal": causal, "part": part, "device": choice.device}
                    title = f"N = {N}, E = {size}, {_causal(causal)}, {_part(part)}"
                    bar = Bar("at least", least) if N >= 4096 else None
                    ours = Contestant("fast", {**options, "backend": "triton"})
                    yield Case("triton", title, "speed", ours, Contestant("sdpa-best", options), bar, 1)


def _meet(group: str, title: str, measure: str, options: dict, bar: Bar | None, threads: int) -> Case:
    return Case(group, title, measure, Contestant("fast", options), Contestant("sdpa", options), bar, threads)


def _threads(choice: Choice) -> tuple[int, ...]:
    """Give the numbers of threads: on a GPU they make no difference."""
    return choice.threads if choice.device == "cpu" else choice.threads[:1]


def _causal(causal: bool) -> str:
    return "causal" if causal else "not causal"


def _part(part: str) -> str:
    return {"both": "forward + backward"}.get(part, part)


MAKERS = {
    "streaming": _streaming, "products": _products, "fast": _fast, "slow-paths": _slow_paths, "window": _window,
    "decode": _decode, "triton": _triton,
}  # fmt: skip
