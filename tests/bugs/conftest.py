"""What the tests run on: every attention, both rooms of lib, every multi-head layer. NumPy arrays in and out."""

import numpy as np
import pytest
import torch

from lib import fast, reference
from tests.implementations import IMPLEMENTATIONS, to_numpy, to_torch

ROOMS = {"reference": reference, "fast": fast}
BACKENDS = ("auto", "math", "sdpa")


@pytest.fixture(params=IMPLEMENTATIONS, ids=repr)
def attention(request):
    return request.param


@pytest.fixture(params=[x for x in IMPLEMENTATIONS if x.exact], ids=repr)
def exact_attention(request):
    """Give those for which nothing hidden matters; SDPA's kernels let NaN through, as backend="sdpa" says."""
    return request.param


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture(params=ROOMS)
def room(request):
    """Give the heads, positions and caches of either room of lib."""
    return Room(request.param)


@pytest.fixture
def its_room(attention):
    """Give the room that an attention belongs to."""
    return Room("fast" if attention.torch else "reference")


@pytest.fixture(params=["reference", "fast", "module"])
def layer(request):
    """Give multi-head attention: from explicit weights in either room, and as a torch module."""
    return Layer(request.param)


class Room:
    """One room of lib, whose functions are called with arrays and answer with arrays."""

    def __init__(self, name):
        self.name, self.module = name, ROOMS[name]

    def __repr__(self):
        return self.name

    def __getattr__(self, name):
        function = getattr(self.module, name)

        def call(*args, **options):
            result = function(*map(self.into, args), **{key: self.into(x) for key, x in options.items()})
            return tuple(map(to_numpy, result)) if isinstance(result, tuple) else to_numpy(result)

        return call

    def cache(self, *sizes, window=None):
        """Make a key/value cache in double precision."""
        return self.module.KVCache(
            *sizes, window=window, dtype=np.float64 if self.name == "reference" else torch.double
        )

    def append(self, cache, key, value, lengths=None):
        """Append arrays to the cache; give the keys and values held, and attention's options that go with them."""
        held = cache.append(self.into(key), self.into(value), lengths)
        options = {name: np.asarray(x) if hasattr(x, "shape") else x for name, x in held.options.items()}
        return to_numpy(held.key), to_numpy(held.value), {name: x for name, x in options.items() if x is not None}

    def into(self, x):
        return to_torch(x) if self.name == "fast" and isinstance(x, np.ndarray) else x


class Layer:
    """Multi-head attention with given weights, (in, out) each."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name

    def __call__(self, query, W_q, W_k, W_v, W_o, num_heads, num_kv_heads=None, **options):
        if self.name != "module":
            room = Room(self.name)
            return room.multi_head_attention(query, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, **options)
        module = fast.MultiHeadAttention(
            W_q.shape[0], num_heads, num_kv_heads=num_kv_heads, head_dim=W_q.shape[1] // num_heads,
            kdim=W_k.shape[0], vdim=W_v.shape[0], bias=False, dtype=torch.float64,
        )  # fmt: skip
        projections = module.q_proj, module.k_proj, module.v_proj, module.o_proj
        with torch.no_grad():
            for projection, W in zip(projections, (W_q, W_k, W_v, W_o), strict=True):
                projection.weight.copy_(torch.tensor(W.T.copy()))
            options = {name: to_torch(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
            options["need_weights"] = options.pop("return_weights", False)
            result = module(to_torch(query), **options)
        return tuple(map(to_numpy, result)) if isinstance(result, tuple) else to_numpy(result)

    def plain(self, query, num_heads=1, **options):
        """Call with queries and keys of 0, so that all scores are equal, and values and outputs as they are."""
        D = query.shape[-1]
        return self(query, np.zeros((D, D)), np.zeros((D, D)), np.eye(D), np.eye(D), num_heads, **options)
