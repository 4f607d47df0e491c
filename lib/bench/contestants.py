"""What a worker can be asked to run. Each library is imported where it is used, so that a process holds one.

A contestant takes its options and gives a function without arguments: one call of what is measured, inputs ready,
returning what it computed.
"""

from collections.abc import Callable
from typing import Any

SEED = 0
H, E = 8, 64


def make(name: str, options: dict[str, Any]) -> Callable[[], Any]:
    """Prepare a contestant."""
    if name not in CONTESTANTS:
        raise ValueError(f"contestant must be one of {', '.join(CONTESTANTS)}, got {name!r}")
    return CONTESTANTS[name](**options)


# --- NumPy ---


def streaming(N: int, causal: bool = False, L: int | None = None) -> Callable[[], Any]:
    """Prepare ``reference.streaming_attention`` on (1, H, N, E), float32."""
    from lib.reference import streaming_attention

    query, key, value = _numpy_arrays(N, L)
    return lambda: streaming_attention(query, key, value, causal=causal)


def products_numpy(N: int, causal: bool = False) -> Callable[[], Any]:
    """Prepare the two bare products, 256 queries at a time: what attention would cost if softmax were free."""
    import numpy as np

    query, key, value = (x[0] for x in _numpy_arrays(N))
    scores, output = np.empty((256, N), np.float32), np.empty_like(query)

    def call() -> np.ndarray:
        for q, k, v, o in zip(query, key, value, output, strict=True):
            for start in range(0, N, 256):
                rows = slice(start, start + 256)
                tile = scores[: len(q[rows])]
                np.matmul(q[rows], k.T, out=tile)
                np.matmul(tile, v, out=o[rows])
        return output

    return call


def _numpy_arrays(N: int, L: int | None = None) -> list[Any]:
    import numpy as np

    rng = np.random.default_rng(SEED)
    return [rng.standard_normal((1, H, n, E), dtype=np.float32) for n in (L or N, N, N)]


# --- torch ---


def fast(backend: str = "auto", window: list[int] | None = None, **options: Any) -> Callable[[], Any]:
    """Prepare ``fast.attention``."""
    from lib.fast import attention

    window = None if window is None else tuple(window)
    causal = options.pop("causal", False)

    def call(query: Any, key: Any, value: Any) -> Any:
        return attention(query, key, value, causal=causal, window=window, backend=backend)

    return _with_gradients(call, **options)


def sdpa(window: list[int] | None = None, causal: bool = False, **options: Any) -> Callable[[], Any]:
    """Prepare ``torch.nn.functional.scaled_dot_product_attention``, with a boolean mask where it needs one."""
    import torch
    from torch.nn import functional as F

    from lib import masks

    mask = None
    if window is not None:
        positions = torch.arange(options["N"], device=options.get("device", "cpu"))
        mask = masks.sliding_window(positions, positions, *window)

    def call(query: Any, key: Any, value: Any) -> Any:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)

    return _with_gradients(call, **options)


def sdpa_best(causal: bool = False, **options: Any) -> Callable[[], Any]:
    """Prepare SDPA with the backend that is fastest here."""
    import time

    from torch.nn import attention
    from torch.nn import functional as F

    def with_backend(backend: Any) -> Callable[[], Any]:
        def call(query: Any, key: Any, value: Any) -> Any:
            with attention.sdpa_kernel(backend):
                return F.scaled_dot_product_attention(query, key, value, is_causal=causal)

        return _with_gradients(call, **options)

    def seconds(call: Callable[[], Any]) -> float:
        for _ in range(3):
            call()
        synchronize()
        start = time.perf_counter()
        for _ in range(5):
            call()
        synchronize()
        return time.perf_counter() - start

    found = {}
    for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"):
        try:
            call = with_backend(getattr(attention.SDPBackend, name))
            found[name] = seconds(call), call
        except (AttributeError, RuntimeError):  # not in this torch, or not for this input
            continue
    if not found:
        raise RuntimeError("SDPA has no fused backend for this input")
    return min(found.values(), key=lambda one: one[0])[1]


def products_torch(N: int, causal: bool = False) -> Callable[[], Any]:
    """Prepare the two bare products in torch, 256 queries at a time."""
    import torch

    query, key, value = (x[0] for x in _tensors(N))
    scores, output = torch.empty(256, N), torch.empty_like(query)

    def call() -> Any:
        for q, k, v, o in zip(query, key, value, output, strict=True):
            for start in range(0, N, 256):
                rows = slice(start, start + 256)
                tile = scores[: len(q[rows])]
                torch.matmul(q[rows], k.mT, out=tile)
                torch.matmul(tile, v, out=o[rows])
        return output

    return call


def decode(N: int, device: str = "cpu") -> Callable[[], Any]:
    """Prepare one step of decoding with ``fast.KVCache``, which holds N tokens at the start and one more each step."""
    import torch

    from lib.fast import KVCache, attention

    query, key, value = _tensors(N, device=device)
    store = KVCache(1, H, N + STEPS, E, dtype=key.dtype, device=device)
    store.append(key, value)
    q, k, v = (x[..., -1:, :].clone() for x in (query, key, value))

    def call() -> Any:
        held = store.append(k, v)
        with torch.no_grad():
            return attention(q, held.key, held.value, causal=True, **held.options)

    return call


def decode_sdpa(N: int, device: str = "cpu") -> Callable[[], Any]:
    """Prepare the same step with SDPA alone, on tensors allocated at the start."""
    import torch
    from torch.nn import functional as F

    query, key, value = _tensors(N, device=device)
    keys, values = (x.new_zeros(1, H, N + STEPS, E) for x in (key, value))
    keys[:, :, :N], values[:, :, :N] = key, value
    q, k, v = (x[..., -1:, :].clone() for x in (query, key, value))
    length = N

    def call() -> Any:
        nonlocal length
        keys[:, :, length : length + 1], values[:, :, length : length + 1] = k, v
        length += 1
        with torch.no_grad():
            return F.scaled_dot_product_attention(q, keys[:, :, :length], values[:, :, :length])

    return call


STEPS = 20_000  # how many tokens a decoding contestant has room for


def _tensors(
    N: int,
    L: int | None = None,
    E: int = E,
    Ev: int | None = None,
    batch: list[int] | None = None,
    strided: bool = False,
    device: str = "cpu",
) -> list[Any]:
    import torch

    torch.manual_seed(SEED)
    batch = [1, H] if batch is None else batch
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shapes = [(*batch, L or N, E), (*batch, N, E), (*batch, N, Ev or E)]
    if strided:  # the same numbers of axes, the lengths innermost in memory
        return [torch.randn(*batch, size, n, device=device, dtype=dtype).mT for *_, n, size in shapes]
    return [torch.randn(*shape, device=device, dtype=dtype) for shape in shapes]


def _with_gradients(call: Callable[..., Any], part: str = "forward", **options: Any) -> Callable[[], Any]:
    """Prepare the forward pass, the backward pass, or both."""
    import torch

    arrays = _tensors(**options)
    if part == "forward":

        def forward() -> Any:
            with torch.no_grad():
                return call(*arrays)

        return forward
    for array in arrays:
        array.requires_grad_()
    output = call(*arrays)
    upstream = torch.randn_like(output)
    if part == "backward":
        return lambda: torch.autograd.grad(output, arrays, upstream, retain_graph=True)
    return lambda: torch.autograd.grad(call(*arrays), arrays, upstream)


def synchronize() -> None:
    """Wait for the GPU, where there is one at work."""
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


CONTESTANTS = {
    "streaming": streaming, "products-numpy": products_numpy, "fast": fast, "sdpa": sdpa, "sdpa-best": sdpa_best,
    "products-torch": products_torch, "decode": decode, "decode-sdpa": decode_sdpa,
}  # fmt: skip
