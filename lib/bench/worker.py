"""The process that one contestant runs in: ``python -m lib.bench.worker``.

It reads one request a line and answers each with one line, both JSON. What the contestant itself prints goes to
standard error, so that it cannot be taken for an answer.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from lib.bench import contestants

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Worker:
    """Holds the contestant that is being measured."""

    def __init__(self) -> None:
        """Start without one."""
        self.call: Callable[[], Any] | None = None

    def prepare(self, name: str, options: dict[str, Any]) -> float:
        """Make a contestant, run it until it is warm, and give the seconds of its last call."""
        self.call = contestants.make(name, options)
        self.time(2)
        return self.time(1)[0]

    def time(self, calls: int, clock: str = "wall") -> list[float]:
        """Give the seconds of each call, after one that is not counted."""
        now, seconds = CLOCKS[clock], []
        for _ in range(calls + 1):
            start = now()
            self.call()
            contestants.synchronize()
            seconds.append(now() - start)
        return seconds[1:]

    def scratch(self, name: str, options: dict[str, Any]) -> int:
        """Give the bytes that one call needs at its peak, apart from its inputs and what it returns."""
        contestants.make(name, {**options, "N": min(options["N"], 256)})()  # loads what is loaded on first use
        call = contestants.make(name, options)
        if options.get("device") == "cuda":
            return _scratch_on_gpu(call)
        return _scratch(call)

    def allocations(self, name: str, options: dict[str, Any], steps: int) -> list[int]:
        """Give the bytes that each of some steps allocates, counted by torch itself."""
        from torch.profiler import profile

        call, found = contestants.make(name, options), []
        call()
        for _ in range(steps):
            with profile(profile_memory=True) as profiled:
                call()
            found.append(sum(max(e.self_cpu_memory_usage, 0) + _on_gpu(e) for e in profiled.events()))
        return found

    def answer(self, request: dict[str, Any]) -> Any:
        """Do what a request asks."""
        what = request.pop("do")
        return {"prepare": self.prepare, "time": self.time, "scratch": self.scratch, "allocations": self.allocations}[
            what
        ](**request)


def _on_gpu(event: Any) -> int:
    return max(getattr(event, "self_device_memory_usage", 0), 0)


def _scratch(call: Callable[[], Any]) -> int:
    """Compare the memory in use at the peak with that before; Linux forgets an earlier peak when asked to."""
    import resource

    forget_peak()
    before = _status("VmRSS") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
    returned = call()
    peak = _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
    return max(0, peak - before - _nbytes(returned))


_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def _scratch_on_gpu(call: Callable[[], Any]) -> int:
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    returned = call()
    torch.cuda.synchronize()
    return max(0, torch.cuda.max_memory_allocated() - before - _nbytes(returned))


def forget_peak() -> None:
    """Let the peak of this process's memory start again from what is in use."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:  # not Linux: the peak is that of the whole life, still an upper bound
        pass


def _status(name: str) -> int:
    """Read a number of bytes that Linux keeps about this process; 0 elsewhere."""
    try:
        with open("/proc/self/status") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(name + ":")), 0)
    except OSError:
        return 0


def _nbytes(returned: Any) -> int:
    several = returned if isinstance(returned, tuple | list) else [returned]
    return sum(x.nbytes for x in several)


def main() -> None:
    """Answer until there are no more requests."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        try:
            answer = {"answer": worker.answer(json.loads(line))}
        except Exception as error:  # the parent decides what an error means
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
