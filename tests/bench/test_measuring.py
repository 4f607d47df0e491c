"""Processes that answer, fail, die and hang; and what is made of their answers."""

import os
import subprocess
import sys

import pytest

from lib.bench import measuring
from lib.bench.arithmetic import Bar, Spread
from lib.bench.cases import Case, Contestant
from lib.bench.measuring import Effort, MeasurementError, Process, measure

SMALL = {"N": 32, "causal": False}
QUICK = Effort(pairs=3, turn=0.0)


def worker(code):
    return [sys.executable, "-c", code]


class Played:
    """Stands in for Process: answers with the seconds that were written down for its contestant."""

    seconds: dict
    log: list

    def __init__(self, threads, timeout=None):
        self.threads = threads

    def ask(self, do, **request):
        if do == "prepare":
            self.key = request["name"], request["options"].get("N")
            return 1.0
        if do == "time":
            self.log.append(self.key)
            return self.seconds[self.key].pop(0)
        if do == "scratch":
            return self.seconds[request["options"]["N"]]
        return self.seconds["steps"]

    def close(self):
        self.log.append("closed")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@pytest.fixture
def played(monkeypatch):
    monkeypatch.setattr(measuring, "Process", Played)
    monkeypatch.setattr(measuring, "PAUSE", 0.0)
    Played.log = []
    return Played


def case(measure, bar=None, theirs=None, sizes=(), ours=None):
    return Case("g", "t", measure, ours or Contestant("a", {"N": 8}), theirs, bar, 1, sizes)


def test_contestants_take_turns_and_swap_who_begins(played):
    played.seconds = {("a", 8): [[3.0, 4.0], [6.0], [1.0]], ("b", 8): [[1.0, 2.0], [2.0], [2.0]]}
    found = measure(case("time", Bar("at most", 3.0), Contestant("b", {"N": 8})), QUICK)
    a, b = ("a", 8), ("b", 8)
    assert played.log == [a, b, b, a, a, b, "closed", "closed"]
    assert found.pairs == [3.0, 3.0, 0.5]
    assert found.value == 3.0
    assert found.spread == Spread(3.0, 0.5, 3.0)
    assert found.met is True
    assert (found.ours, found.theirs) == ([3.0, 6.0, 1.0], [1.0, 2.0, 2.0])


def test_speed_is_their_time_over_ours(played):
    played.seconds = {("a", 8): [[1.0], [1.0], [1.0]], ("b", 8): [[2.0], [4.0], [3.0]]}
    found = measure(case("speed", Bar("at least", 3.5), Contestant("b", {"N": 8})), QUICK)
    assert found.pairs == [2.0, 4.0, 3.0]
    assert found.met is False


def test_growth_is_fitted_round_by_round(played):
    played.seconds = {("a", 10): [[1.0], [2.0], [1.0]], ("a", 20): [[4.0], [4.0], [8.0]]}
    found = measure(case("time growth", Bar("about", 2.0, 0.1), sizes=(10, 20)), QUICK)
    assert found.pairs == pytest.approx([2, 1, 3])
    assert found.value == pytest.approx(2)
    assert found.met is True
    assert found.ours == [1.0, 4.0]
    assert played.log == [("a", 20), ("a", 10), "closed"] * 3  # one process for the sizes of a round


def test_memory_and_its_growth(played):
    played.seconds = {8: 500, 16: 1000, 32: 2000}
    found = measure(case("memory", Bar("at most", 499)), QUICK)
    assert (found.value, found.met) == (500, False)
    found = measure(case("memory growth", None, sizes=(8, 16, 32)), QUICK)
    assert found.value == pytest.approx(1)
    assert found.met is None
    assert found.ours == [500, 1000, 2000]


@pytest.mark.parametrize(("steps", "value"), [([100, 90, 100], 1.0), ([100, 101, 150], 1.5), ([0, 0, 0], 1.0)])
def test_allocations_compare_the_last_step_with_the_first(played, steps, value):
    played.seconds = {"steps": steps}
    assert measure(case("allocations", Bar("at most", 1.01)), QUICK).value == value


def test_a_failure_names_the_case_and_ends_the_processes(played):
    played.seconds = {("a", 8): []}

    def ask(self, do, **request):
        raise MeasurementError("ValueError: no")

    played_ask, Played.ask = Played.ask, ask
    try:
        with pytest.raises(MeasurementError, match=r"^g: t: ValueError: no$"):
            measure(case("time", None, Contestant("b", {"N": 8})), QUICK)
    finally:
        Played.ask = played_ask
    assert played.log == ["closed"]


# --- Real processes ---


def test_a_worker_answers():
    with Process(1) as process:
        assert process.ask("prepare", name="streaming", options=SMALL) > 0
        seconds = process.ask("time", calls=3)
        assert len(seconds) == 3
        assert min(seconds) > 0
        with pytest.raises(MeasurementError, match=r"contestant must be one of .*, got 'nobody'"):
            process.ask("prepare", name="nobody", options={})
        assert len(process.ask("time", calls=2, clock="cpu")) == 2  # an error does not end it


def test_scratch_sees_what_a_call_needs_and_not_what_it_returns():
    code = """
import numpy as np
from lib.bench import worker
def call():
    needed = np.ones(2**23)  # 64 MiB
    returned = np.ones(2**21)  # 16 MiB
    return returned
worker.contestants.make = lambda name, options: call
print(worker.Worker().scratch("x", {"N": 1}) / 2**20)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=measuring.ROOT)
    assert 60 <= float(ran.stdout) <= 70


def test_what_a_contestant_prints_is_no_answer():
    code = (
        "from lib.bench import worker, contestants\n"
        "contestants.CONTESTANTS['loud'] = lambda: lambda: print('{\"answer\": 7}', flush=True)\n"
        "worker.main()"
    )
    with Process(1, command=worker(code)) as process:
        assert process.ask("prepare", name="loud", options={}) < 5
        assert len(process.ask("time", calls=1)) == 1


def test_a_process_that_dies_is_reported_with_its_last_words():
    code = "import sys; input(); print('out of memory', file=sys.stderr); sys.exit(9)"
    with (
        Process(1, command=worker(code)) as process,
        pytest.raises(MeasurementError, match=r"ended with status 9 on 'time': out of memory"),
    ):
        process.ask("time", calls=1)
    with Process(1, command=worker("raise SystemExit(4)")) as process:
        process._process.wait()
        with pytest.raises(MeasurementError, match="status 4"):
            process.ask("time", calls=1)


def test_a_process_that_hangs_is_given_up_and_ended():
    with (
        Process(1, timeout=0.2, command=worker("import time; time.sleep(60)")) as process,
        pytest.raises(MeasurementError, match=r"no answer to 'time' within 0.2 s"),
    ):
        process.ask("time", calls=1)
    assert process._process.poll() is not None


def test_the_environment_sets_threads_and_drops_what_slows_numpy(monkeypatch):
    for name in measuring.SLOW:
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    found = measuring.environment(2)
    assert not set(measuring.SLOW) & set(found)
    assert found["OMP_NUM_THREADS"] == found["OPENBLAS_NUM_THREADS"] == found["MKL_NUM_THREADS"] == "2"
    assert found["PYTHONPATH"].split(os.pathsep)[1:] == ["somewhere"]
    assert "OPENBLAS_CORETYPE" in os.environ  # the caller's own stays
