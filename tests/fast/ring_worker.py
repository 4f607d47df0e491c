"""What one process of the ring's tests does: test_ring.py starts several of these and reads what they print as JSON."""

import json
import os
import sys
import traceback

import torch
import torch.distributed as dist

from lib import fast
from lib.fast import ring

CASES = {
    "all": {"shape": (2, 2), "N": 40},
    "causal": {"shape": (2, 2), "N": 40, "causal": True},
    "long": {"shape": (1,), "N": 1600, "causal": True},  # several pieces and tiles, and a short last one
    "grouped": {"shape": (2, 6), "kv": (2, 3), "N": 16, "causal": True, "enable_gqa": True},
    "one key head for all": {"shape": (2, 4), "kv": (2, 1), "N": 16},
    "scale": {"shape": (2,), "N": 16, "scale": -0.3, "causal": True},
    "no heads": {"shape": (), "N": 16, "causal": True},
    "values of another size": {"shape": (2, 2), "N": 16, "Ev": 3},
    "half": {"shape": (2, 2), "N": 16, "dtype": torch.float16, "causal": True},
    "double": {"shape": (2, 2), "N": 16, "dtype": torch.float64, "causal": True},
    "large scores": {"shape": (2,), "N": 16, "size": 100.0, "causal": True},
}


def draw(shape, N, kv=None, Ev=8, dtype=torch.float32, size=1.0, **options):
    generator = torch.Generator().manual_seed(0)
    shapes = (*shape, N, 8), (*(kv or shape), N, 8), (*(kv or shape), N, Ev)
    inputs = [(torch.randn(s, generator=generator, dtype=torch.float64) * size).to(dtype) for s in shapes]
    return inputs, torch.randn(*shape, N, Ev, generator=generator, dtype=torch.float64).to(dtype), options


def equal_to_one_process():
    """Compare both ways to split with this process alone."""
    return {"ring": ring_alone(), "split keys": split_keys()}


def ring_alone():
    """Run every case in the ring and in this process alone; give the largest difference of output and gradients."""
    rank, processes = dist.get_rank(), dist.get_world_size()
    found = {}
    for name, case in CASES.items():
        inputs, cotangent, options = draw(**case)
        alone = [x.double().clone().requires_grad_() for x in inputs]
        wanted = fast.attention(*alone, backend="math", **options)
        wanted.backward(cotangent.double())
        mine = [ring.shard(x, rank, processes).requires_grad_() for x in inputs]
        before = [x.detach().clone() for x in mine]
        output = ring.ring_attention(*mine, **options)
        output.backward(ring.shard(cotangent, rank, processes))
        pairs = [(output, wanted), *((x.grad, y.grad) for x, y in zip(mine, alone, strict=True))]
        errors = [(one.double() - ring.shard(other, rank, processes)).abs().max().item() for one, other in pairs]
        untouched = all(torch.equal(one, other) for one, other in zip(before, mine, strict=True))
        found[name] = {"errors": errors, "dtype": str(output.dtype), "untouched": untouched}
    return found


def split_keys():
    """Attend to keys that are split unevenly, one part empty."""
    rank, processes = dist.get_rank(), dist.get_world_size()
    (query, key, value), _, _ = draw((2, 3), 10)
    edges = {1: [0, 10], 2: [0, 4, 10], 4: [0, 0, 3, 7, 10]}[processes]
    here = slice(edges[rank], edges[rank + 1])
    found = {}
    mask = torch.rand(10, 10, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[4] = False
    for name, whole, part in (
        ("all", {}, {}),
        ("causal", {"causal": True}, {"causal": True, "offset": -here.start}),
        ("mask", {"mask": mask}, {"mask": mask[:, here]}),
        ("softcap", {"softcap": 0.5, "scale": 2.0}, {"softcap": 0.5, "scale": 2.0}),
    ):
        given = ring.split_keys_attention(query, key[..., here, :], value[..., here, :], **part)
        found[name] = (given - fast.attention(query, key, value, **whole)).abs().max().item()
    return found


def part_of_a_group():
    """Make a ring of the last two processes only."""
    rank, processes = dist.get_rank(), dist.get_world_size()
    group = dist.new_group([processes - 2, processes - 1])
    inputs, _, options = draw((2,), 8, causal=True)
    if rank < processes - 2:
        return 0.0
    mine = [ring.shard(x, rank - processes + 2, 2).requires_grad_() for x in inputs]
    output = ring.ring_attention(*mine, group=group, **options)
    output.sum().backward()
    alone = [x.clone().requires_grad_() for x in inputs]
    wanted = fast.attention(*alone, **options)
    wanted.sum().backward()
    pairs = [(output, wanted), *((x.grad, y.grad) for x, y in zip(mine, alone, strict=True))]
    return max((one - ring.shard(other, rank - processes + 2, 2)).abs().max().item() for one, other in pairs)


def shapes_that_differ():
    x = torch.zeros(1, 4 if dist.get_rank() else 2, 8)
    ring.ring_attention(x, x, x)


def options_that_differ():
    x = torch.zeros(1, 4, 8)
    ring.ring_attention(x, x, x, causal=dist.get_rank() == 1)


def queries_that_differ():
    ring.split_keys_attention(torch.zeros(1 + dist.get_rank(), 8), torch.zeros(4, 8), torch.zeros(4, 8))


def a_peer_that_is_gone_before():
    x = torch.zeros(1, 4, 8)
    dist.barrier()  # all are connected
    if dist.get_rank() == 1:
        os._exit(0)
    ring.ring_attention(x, x, x, timeout=5)


def a_peer_that_goes_on_the_way():
    x = torch.zeros(1, 4, 8)
    if dist.get_rank() == 1:
        ring._Ring.pieces_with_gradients = lambda *_: os._exit(0)
    ring.ring_attention(x, x, x, timeout=5)


def a_peer_that_never_comes():
    x = torch.zeros(1, 4, 8)
    if dist.get_rank() == 1:
        import time

        time.sleep(8)
    ring.ring_attention(x, x, x, timeout=1)


def main():
    job, rank, processes, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=processes)
    try:
        result = {"result": globals()[job]()}
    except Exception as error:
        result = {"error": type(error).__name__, "text": str(error), "trace": traceback.format_exc()}
    print(json.dumps(result), flush=True)
    os._exit(0)  # a process whose peer is gone may wait for it when it ends


if __name__ == "__main__":
    main()
