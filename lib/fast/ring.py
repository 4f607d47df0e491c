"""Attention over a sequence that is split across processes: each holds a part, and together they hold it once.

Two ways to split, both exact:

:func:`ring_attention`
    Every process holds the queries, keys and values of its part of the sequence. Pieces of keys and values travel
    around the ring of processes; each process attends to a piece as it comes by and merges what it finds into its
    running result, as in the online softmax. For training and long prompts: it has a backward pass.
:func:`split_keys_attention`
    Every process holds all queries and a part of the keys. Each attends to its part, and one exchange merges the
    results by their log-sum-exp. For decoding over a long cache, where there is one query.

Who holds which of 8 chunks; each passes its piece of keys and values to the next, the last one to the first::

    process 0        process 1        process 2        process 3
    chunks 0, 7      chunks 1, 6      chunks 2, 5      chunks 3, 4
      └── k, v ──▶     └── k, v ──▶     └── k, v ──▶     └── k, v ──▶ (0)

**Load.** Under a causal mask the last part of a sequence sees everything and the first nearly nothing. So the sequence
is cut into twice as many chunks as there are processes, and each takes one from the front and one from the back
(:func:`shard`): then all have the same work.

Start it with ``torchrun --nproc-per-node 4 -m lib.fast.ring``, which compares with one process and measures memory.
On the CPU it talks through gloo, between GPUs through nccl.
"""

import argparse
import datetime
import itertools
import resource
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from lib import arguments
from lib.fast.merging import attention_with_lse

PIECE = 128  # keys that travel at once
ROWS = 128  # queries that look at a piece at once: with PIECE, the only scores there are


def shard(x: Float[Tensor, "... N E"], rank: int, processes: int) -> Float[Tensor, "... n E"]:
    """Take the part of a whole sequence that a process holds: chunk ``rank`` from the front and one from the back.

    Parameters
    ----------
    x : (..., N, E)
        The whole sequence; N must be a multiple of 2 · ``processes``.
    rank, processes : int
        Which process of how many.

    Returns
    -------
    (..., N / processes, E)

    Raises
    ------
    ValueError
        If N cannot be cut into that many equal chunks, or there is no such process.

    Examples
    --------
    >>> x = torch.arange(8).reshape(8, 1)
    >>> [shard(x, rank, 2)[:, 0].tolist() for rank in (0, 1)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    if not 0 <= rank < processes:
        raise ValueError(f"rank must be one of 0 to {processes - 1}, got {rank}")
    N = x.shape[-2]
    if N == 0 or N % (2 * processes):
        raise ValueError(f"the length must be a multiple of 2 · {processes} processes = {2 * processes}, got {N}")
    chunks = x.chunk(2 * processes, dim=-2)
    return torch.cat([chunks[rank], chunks[2 * processes - 1 - rank]], dim=-2)


def unshard(parts: list[Float[Tensor, "... n E"]]) -> Float[Tensor, "... N E"]:
    """Put the parts of all processes, in the order of their ranks, together again.

    Examples
    --------
    >>> x = torch.arange(8).reshape(8, 1)
    >>> unshard([shard(x, rank, 2) for rank in (0, 1)]).equal(x)
    True
    """
    front, back = zip(*(part.chunk(2, dim=-2) for part in parts), strict=True)
    return torch.cat([*front, *reversed(back)], dim=-2)


def ring_attention(
    query: Float[Tensor, "*batch H n E"],
    key: Float[Tensor, "*batch G n E"],
    value: Float[Tensor, "*batch G n Ev"],
    *,
    causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    group: Any = None,
    timeout: float = 60.0,
) -> Float[Tensor, "*batch H n Ev"]:
    """Attend over a sequence of which every process holds the part that :func:`shard` gives it.

    Parameters
    ----------
    query, key, value : (..., n, E), (..., n, E), (..., n, Ev), floating
        This process's part. All processes call with the same shapes, dtypes and options.
    causal : bool
        Each position of the whole sequence sees itself and those before.
    scale, enable_gqa
        As in :func:`lib.fast.attention`.
    group : ProcessGroup, optional
        The processes of the ring; by default all.
    timeout : float
        Seconds to wait for a neighbour before giving up.

    Returns
    -------
    (..., n, Ev), of query's dtype
        This process's part of the output. Gradients flow, around the ring too, as long as all processes call
        ``backward``.

    Raises
    ------
    TypeError, ValueError
        As in :func:`lib.fast.attention`; and ValueError, on every process, if the processes' arguments differ.
    RuntimeError
        If there is no process group, or a neighbour is gone or does not answer in time.

    References
    ----------
    Liu, Zaharia and Abbeel (2023), "Ring Attention with Blockwise Transformers for Near-Infinite Context". The order
    of the chunks is the one called zigzag or striped in public code; the merging is Milakov and Gimelshein (2018).
    """
    arrays = {"query": query, "key": key, "value": value}
    call = arguments.check(Tensor, query, key, value, causal=causal, scale=scale, enable_gqa=enable_gqa)
    if call.L != call.S or call.L == 0 or call.L % 2:
        raise ValueError(
            "query and key must hold the same part of the sequence, of an even length (two chunks, see shard), "
            f"got {call.L} queries and {call.S} keys"
        )
    ring = _Ring.join(group, timeout, query.device)
    ring.agree(
        {**{name: (tuple(x.shape), str(x.dtype)) for name, x in arrays.items()}, "causal": causal, "scale": scale}
    )
    if call.batch:  # one key/value head for all is grouped too: it travels once
        G = key.shape[-3] if key.ndim > 2 else 1
        call = call._replace(repeats=call.batch[-1] // G)
        key, value = (x.expand(*call.batch[:-1], G, *x.shape[-2:]) for x in (key, value))
    return _RingAttention.apply(query.expand(*call.batch, *query.shape[-2:]), key, value, call, ring)


def split_keys_attention(
    query: Float[Tensor, "*batch L E"],
    key: Float[Tensor, "*batch s E"],
    value: Float[Tensor, "*batch s Ev"],
    *,
    group: Any = None,
    timeout: float = 60.0,
    **options: Any,
) -> Float[Tensor, "*batch L Ev"]:
    """Attend to keys that are split across the processes, with all queries everywhere; no gradients.

    Parameters
    ----------
    query : (..., L, E)
        The same on all processes.
    key, value : (..., s, E), (..., s, Ev)
        This process's keys, any number of them, none included.
    group, timeout
        As in :func:`ring_attention`.
    **options
        mask, bias, causal, window, offset, scale, softcap and enable_gqa as in
        :func:`lib.fast.attention_with_lse`, about this process's keys: ``offset`` is the position of the first query
        among them, negative where they come later.

    Returns
    -------
    (..., L, Ev), of query's dtype; the same on all processes

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As in :func:`ring_attention`.
    """
    with torch.no_grad():
        output, lse = attention_with_lse(query, key, value, **options)
        ring = _Ring.join(group, timeout, query.device)
        ring.agree({"query": (tuple(query.shape), str(query.dtype)), "Ev": value.shape[-1]})
        top = lse.clone()
        ring.all_reduce(top, dist.ReduceOp.MAX)
        share = torch.exp(lse - top.masked_fill(top.isneginf(), 0))[..., None]  # 0 for a part that holds nothing
        together = torch.cat([output.to(lse.dtype) * share, share], dim=-1)  # numerators and denominators, one message
        ring.all_reduce(together, dist.ReduceOp.SUM)
        total = together[..., -1:]
        return (together[..., :-1] / total.masked_fill(total == 0, 1)).to(query.dtype)


class _RingAttention(torch.autograd.Function):
    """The ring's forward and backward pass."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, call: arguments.Call, ring: "_Ring") -> Tensor:
        dtype = torch.promote_types(query.dtype, torch.float32)
        output = query.new_zeros((*query.shape[:-1], value.shape[-1]), dtype=dtype)  # running Σ weight · value
        lse = query.new_full(query.shape[:-1], -torch.inf, dtype=dtype)  # running log Σ exp(score)
        for k, v, k_start in ring.pieces(key, value):
            for rows, q_start in ring.tiles(query):
                scores = _scores(query[..., rows, :].to(dtype), k.to(dtype), call, q_start, k_start)
                if scores is not None:
                    _merge_into(output[..., rows, :], lse[..., rows], scores, _repeat(v.to(dtype), call))
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.call, ctx.ring = call, ring
        return output.to(query.dtype)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, output, lse = ctx.saved_tensors
        call, ring, dtype = ctx.call, ctx.ring, output.dtype
        delta = (d_output * output).sum(-1, keepdim=True)  # (..., n, 1)  Σ dweight · weight of each row
        d_query, d_key, d_value = (torch.zeros_like(x, dtype=dtype) for x in (query, key, value))
        for k, v, k_start, d_k, d_v in ring.pieces_with_gradients(key, value, d_key, d_value):
            for rows, q_start in ring.tiles(query):
                q, g = query[..., rows, :].to(dtype), d_output[..., rows, :].to(dtype)
                scores = _scores(q, k.to(dtype), call, q_start, k_start)
                if scores is None:
                    continue
                weights = torch.exp(scores - lse[..., rows, None])  # (..., rows, piece)
                d_scores = weights * (g @ _repeat(v.to(dtype), call).mT - delta[..., rows, :]) * call.scale
                d_query[..., rows, :] += d_scores @ _repeat(k.to(dtype), call)
                d_k += _sum_groups(d_scores.mT @ q, call)
                d_v += _sum_groups(weights.mT @ g, call)
        return d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype), None, None


def _scores(query: Tensor, key: Tensor, call: arguments.Call, q_start: int, k_start: int) -> Tensor | None:
    """Score a tile of queries against a piece of keys, both of consecutive positions; None if all is hidden."""
    rows, columns = query.shape[-2], key.shape[-2]
    if call.causal and k_start > q_start + rows - 1:
        return None
    scores = query @ _repeat(key, call).mT
    scores *= call.scale
    if call.causal and k_start + columns - 1 > q_start:
        q_pos = q_start + torch.arange(rows, device=query.device)
        k_pos = k_start + torch.arange(columns, device=query.device)
        scores.masked_fill_(k_pos > q_pos[:, None], -torch.inf)
    return scores


def _merge_into(output: Tensor, lse: Tensor, scores: Tensor, value: Tensor) -> None:
    """Merge one more piece into a running result, in place: the online softmax, with log-sum-exp as its memory."""
    merged = torch.logaddexp(lse, torch.logsumexp(scores, dim=-1))  # (..., rows)
    finite = merged.masked_fill(merged.isneginf(), 0)  # rows that have seen nothing yet keep output 0
    output *= torch.exp(lse - finite)[..., None]
    scores.sub_(finite[..., None]).exp_()  # now the weights
    output += scores @ value
    lse.copy_(merged)


def _repeat(x: Tensor, call: arguments.Call) -> Tensor:
    return x if call.repeats == 1 else x.repeat_interleave(call.repeats, dim=-3)


def _sum_groups(x: Tensor, call: arguments.Call) -> Tensor:
    """Add up the gradients of the query heads that share a key/value head."""
    return x if call.repeats == 1 else x.unflatten(-3, (-1, call.repeats)).sum(-3)


class _Ring(NamedTuple):
    """The processes, who of them is asking, and how long to wait for a neighbour."""

    group: Any
    rank: int
    processes: int
    timeout: float

    @classmethod
    def join(cls, group: Any, timeout: float, device: torch.device) -> "_Ring":
        """Find this process's place, and see that all the others are there."""
        timeout = arguments.require_real("timeout", timeout)
        if timeout <= 0:
            raise ValueError(f"timeout must be positive seconds, got {timeout}")
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "there is no process group: start with torchrun and call torch.distributed.init_process_group first"
            )
        ring = cls(group, dist.get_rank(group), dist.get_world_size(group), timeout)
        if ring.rank < 0:
            raise RuntimeError("this process is not in the group that it was given")
        if dist.get_backend(group) == "gloo":
            with ring.patience("reach the start"):
                dist.monitored_barrier(group, datetime.timedelta(seconds=timeout))
        return ring

    def agree(self, arguments_here: dict[str, Any]) -> None:
        """Stop on every process, with the same words, if one of them was called otherwise."""
        everywhere: list[Any] = [None] * self.processes
        with self.patience("say what they were called with"):
            dist.all_gather_object(everywhere, arguments_here, self.group)
        for rank, there in enumerate(everywhere):
            for name, one in everywhere[0].items():
                if there.get(name) != one:
                    raise ValueError(
                        f"the processes must agree on {name}: process 0 has {one}, process {rank} {there.get(name)}"
                    )

    def all_reduce(self, x: Tensor, operation: Any) -> None:
        """Combine a tensor over all processes, in place."""
        with self.patience("combine the results"):
            dist.all_reduce(x, operation, self.group)

    def pieces(self, key: Tensor, value: Tensor) -> "itertools.chain[tuple[Tensor, Tensor, int]]":
        """Let every piece of every process come by: its keys, its values, and its first position."""
        return ((k, v, start) for k, v, start, *_ in self.pieces_with_gradients(key, value))

    def pieces_with_gradients(self, key: Tensor, value: Tensor, *gradients: Tensor) -> Any:
        """Let every piece come by, with what travels with it; gradients travel on until they are home again."""
        for here, start_of in self._cuts(key.shape[-2]):
            carried = [x[..., here, :].contiguous() for x in (key, value, *gradients)]
            for step in range(self.processes):
                source = (self.rank - step) % self.processes
                yield carried[0], carried[1], start_of(source), *carried[2:]
                if step < self.processes - 1:
                    carried = self._pass_on(carried)
            if gradients:
                for gradient, home in zip(gradients, self._pass_on(carried[2:]), strict=True):
                    gradient[..., here, :] = home

    def tiles(self, query: Tensor) -> Any:
        """Cut this process's queries into tiles of consecutive positions; give rows and first position of each."""
        for here, start_of in self._cuts(query.shape[-2], ROWS):
            yield here, start_of(self.rank)

    def _cuts(self, n: int, size: int = PIECE) -> Any:
        """Cut a part of n positions, which is two chunks; give each cut and its first position on any process."""
        chunk = n // 2
        for half, first in itertools.product((0, 1), range(0, chunk, size)):
            here = slice(half * chunk + first, half * chunk + min(first + size, chunk))

            def start_of(rank: int, half: int = half, first: int = first) -> int:
                return chunk * (rank if half == 0 else 2 * self.processes - 1 - rank) + first

            yield here, start_of

    def _pass_on(self, tensors: list[Tensor]) -> list[Tensor]:
        """Hand tensors to the next process and take the previous one's."""
        if self.processes == 1:
            return tensors
        following, previous = (self._global_rank(self.rank + step) for step in (1, -1))
        received = [torch.empty_like(x) for x in tensors]
        sends = [dist.P2POp(dist.isend, x, following, self.group) for x in tensors]
        receives = [dist.P2POp(dist.irecv, x, previous, self.group) for x in received]
        with self.patience(
            f"exchange with their neighbours (process {self.rank}: {previous} before, {following} after)"
        ):
            for work in dist.batch_isend_irecv(sends + receives):
                work.wait(datetime.timedelta(seconds=self.timeout))
        return received

    def _global_rank(self, rank: int) -> int:
        rank %= self.processes
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def patience(self, what: str) -> "_Patience":
        """Turn the back end's error into one that says what was being waited for."""
        return _Patience(self, what)


class _Patience:
    """Say which step of the ring failed."""

    def __init__(self, ring: _Ring, what: str) -> None:
        self.ring, self.what = ring, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, RuntimeError):
            first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise RuntimeError(
                f"the {self.ring.processes} processes of the ring could not {self.what} within "
                f"{self.ring.timeout:g} s: one is gone, late, or was called with other arguments ({first_line})"
            ) from error


def main(arguments_given: list[str] | None = None) -> None:
    """Compare the ring with one process, and say how much memory each process needed."""
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node P -m lib.fast.ring",
        description="Attention over a sequence split across processes: its error against one process, its memory.",
    )
    parser.add_argument(
        "--length", type=int, default=8192, help="positions of the whole sequence (default: %(default)s)"
    )
    parser.add_argument("--heads", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--size", type=int, default=64, help="of a head (default: %(default)s)")
    parser.add_argument("--causal", action="store_true", help="each position sees itself and those before")
    parser.add_argument("--no-check", action="store_true", help="measure only; compare with nothing")
    given = parser.parse_args(arguments_given)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        _demonstrate(given, device)
    finally:
        dist.destroy_process_group()


def _demonstrate(given: argparse.Namespace, device: torch.device) -> None:
    rank, processes = dist.get_rank(), dist.get_world_size()
    if device.type == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())

    def part(seed: int) -> Tensor:
        """Draw this process's part chunk by chunk, so that nobody ever holds the whole."""
        shape = (1, given.heads, given.length // (2 * processes), given.size)
        draws = [
            torch.randn(shape, generator=torch.Generator().manual_seed(1000 * seed + chunk))
            for chunk in (rank, 2 * processes - 1 - rank)
        ]
        return torch.cat(draws, dim=-2).to(device)

    small = torch.zeros(1, given.heads, 2, given.size, device=device)
    ring_attention(small, small, small, causal=given.causal)  # what the back end needs is there before we measure
    before = _peak(device)
    query, key, value = (part(seed) for seed in range(3))
    output = ring_attention(query, key, value, causal=given.causal)
    used = torch.tensor(float(_peak(device) - before))
    peaks = [torch.zeros_like(used) for _ in range(processes)]
    dist.all_gather(peaks, used)
    if rank == 0:
        print(
            f"{processes} processes, N = {given.length}: at most {max(map(float, peaks)):.1f} MiB in each", flush=True
        )
    if given.no_check:
        return
    whole = []
    for x in (query, key, value, output):
        parts = [torch.empty_like(x) for _ in range(processes)]
        dist.all_gather(parts, x.contiguous())
        whole.append(unshard(parts))
    if rank == 0:
        from lib.fast.attention import attention

        error = (attention(*whole[:3], causal=given.causal) - whole[3]).abs().max().item()
        print(f"largest difference from one process: {error:.1e}", flush=True)


def _peak(device: torch.device) -> float:
    """Give the most memory that this process has held so far, in MiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


if __name__ == "__main__":
    main()
