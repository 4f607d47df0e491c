"""Turns, pairs and memory: running contestants in processes of their own, one at a time."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lib.bench.arithmetic import Spread, calls_per_turn, exponent, ratios
from lib.bench.cases import Case, Contestant

PAUSE = 0.05  # seconds before a turn: the other process's threads stop spinning
ROOT = Path(__file__).parents[2]
SLOW = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # where they are set, NumPy may run slower than it could
TIMEOUT = 300.0  # seconds that one answer may take


class Effort(NamedTuple):
    """How thoroughly to measure."""

    pairs: int = 5
    turn: float = 0.4  # seconds of calls in a turn
    timeout: float = TIMEOUT
    clock: str = "wall"  # or "cpu": the process's own time, which other programs do not lengthen


class Result(NamedTuple):
    """What came out of a case."""

    case: Case
    value: float  # the number that the bar judges
    spread: Spread | None  # of the ratio over the pairs
    pairs: list[float]
    ours: list[float]  # seconds or bytes, one for each pair or size
    theirs: list[float]

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None where there is none."""
        return None if self.case.bar is None else self.case.bar.met(self.value)


class MeasurementError(RuntimeError):
    """A contestant failed, died or took too long."""


class Process:
    """A worker, with so many threads, and nothing else running in it."""

    def __init__(self, threads: int, timeout: float = TIMEOUT, command: list[str] | None = None) -> None:
        """Start the process."""
        self.timeout = timeout
        self._said = tempfile.TemporaryFile("w+", encoding="utf8")  # noqa: SIM115 (closed by close)
        self._process = subprocess.Popen(
            command or [sys.executable, "-m", "lib.bench.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._said, text=True, encoding="utf8", env=environment(threads),
        )  # fmt: skip
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, do: str, **request: Any) -> Any:
        """Send a request and wait for its answer."""
        try:
            print(json.dumps({"do": do, **request}), file=self._process.stdin, flush=True)
            line = self._answers.get(timeout=self.timeout)
        except queue.Empty:
            raise MeasurementError(f"no answer to {do!r} within {self.timeout:g} s") from None
        except OSError:  # the pipe is broken
            line = ""
        if not line:
            code = self._process.wait()
            raise MeasurementError(f"the process ended with status {code} on {do!r}{self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise MeasurementError(answer["error"])
        return answer["answer"]

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            with contextlib.suppress(OSError):  # something unsent to a dead process
                pipe.close()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def environment(threads: int) -> dict[str, str]:
    """Give a worker's environment: so many threads, and nothing that slows NumPy down."""
    found = {name: text for name, text in os.environ.items() if name not in SLOW}
    limits = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    path = os.pathsep.join(filter(None, [str(ROOT), found.get("PYTHONPATH")]))
    return {**found, **dict.fromkeys(limits, str(threads)), "PYTHONPATH": path}


def measure(case: Case, effort: Effort, say: Callable[[str], None] = lambda text: None) -> Result:
    """Measure a case; ``say`` is told how far it is."""
    how = {
        "time": _ratio, "speed": _ratio, "memory": _memory, "time growth": _time_growth,
        "memory growth": _memory_growth, "allocations": _allocations,
    }  # fmt: skip
    try:
        return how[case.measure](case, effort, say)
    except MeasurementError as error:
        raise MeasurementError(f"{case.group}: {case.title}: {error}") from None


def _ratio(case: Case, effort: Effort, say: Callable[[str], None]) -> Result:
    """Let two contestants take turns; the one that begins changes from pair to pair."""
    with _warm([case.ours, case.theirs], case.threads, effort) as (processes, calls):
        turns = _turns(processes, [calls, calls], effort, say)
    ours, theirs = turns
    quotients = ratios(theirs, ours) if case.measure == "speed" else ratios(ours, theirs)
    spread = Spread.of(quotients)
    return Result(case, spread.median, spread, quotients, [min(t) for t in ours], [min(t) for t in theirs])


def _turns(
    processes: list[Process], calls: list[int], effort: Effort, say: Callable[[str], None]
) -> list[list[list[float]]]:
    """Give for each process the seconds of its calls, turn by turn."""
    turns: list[list[list[float]]] = [[] for _ in processes]
    for pair in range(effort.pairs):
        say(f"pair {pair + 1} of {effort.pairs}")
        order = range(len(processes))
        for i in order if pair % 2 == 0 else reversed(order):
            time.sleep(PAUSE)
            turns[i].append(processes[i].ask("time", calls=calls[i], clock=effort.clock))
    return turns


@contextlib.contextmanager
def _warm(them: list[Contestant], threads: int, effort: Effort) -> Iterator[tuple[list[Process], int]]:
    """Start a process for each, warm, and tell how many calls make a turn of the slowest."""
    processes: list[Process] = []
    try:
        slowest = 0.0
        for contestant in them:
            processes.append(Process(threads, effort.timeout))
            seconds = processes[-1].ask("prepare", name=contestant.name, options=contestant.options)
            slowest = max(slowest, seconds)
        yield processes, calls_per_turn(slowest, effort.turn)
    finally:
        for process in processes:
            process.close()


def _time_growth(case: Case, effort: Effort, say: Callable[[str], None]) -> Result:
    """Let the sizes take turns in one process, a new one for each round, and fit the exponent of each round.

    Where code and data come to lie in memory is a new process's luck, and can change its speed by a third: sizes in
    processes of their own would differ by that, too. The longest comes first, so that the allocator has seen the
    largest arrays and hands out memory to all sizes alike.
    """
    best: list[list[float]] = []
    for pair in range(effort.pairs):
        say(f"round {pair + 1} of {effort.pairs}")
        best.append([])
        with Process(case.threads, effort.timeout) as process:
            for size in sorted(case.sizes, reverse=True):
                contestant = case.ours.at(size)
                seconds = process.ask("prepare", name=contestant.name, options=contestant.options)
                calls = calls_per_turn(seconds, effort.turn)
                best[-1].insert(0, min(process.ask("time", calls=calls, clock=effort.clock)))
    fits = [exponent(case.sizes, seconds) for seconds in best]
    spread = Spread.of(fits)
    return Result(case, spread.median, spread, fits, [Spread.of(size).median for size in zip(*best, strict=True)], [])


def _memory(case: Case, effort: Effort, say: Callable[[str], None]) -> Result:
    """Measure in fresh processes: what an earlier call left behind would hide what this one needs."""
    found = [_scratch(case.ours, case.threads, effort, say) for _ in range(min(3, effort.pairs))]
    spread = Spread.of(found)
    return Result(case, spread.median, spread, [], found, [])


def _memory_growth(case: Case, effort: Effort, say: Callable[[str], None]) -> Result:
    found = [_scratch(case.ours.at(size), case.threads, effort, say) for size in case.sizes]
    return Result(case, exponent(case.sizes, found), None, [], found, [])


def _scratch(contestant: Contestant, threads: int, effort: Effort, say: Callable[[str], None]) -> float:
    say(f"memory at N = {contestant.options['N']}")
    with Process(threads, effort.timeout) as process:
        return float(process.ask("scratch", name=contestant.name, options=contestant.options))


def _allocations(case: Case, effort: Effort, say: Callable[[str], None]) -> Result:
    """Compare what the last of some steps allocates with what the first one does."""
    say("step by step")
    with Process(case.threads, effort.timeout) as process:
        found = process.ask("allocations", name=case.ours.name, options=case.ours.options, steps=65)
    value = found[-1] / found[0] if found[0] else float(found[-1] == 0)
    return Result(case, value, None, [], [float(x) for x in found], [])
