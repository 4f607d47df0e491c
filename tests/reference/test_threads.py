"""Jobs are shared out once each, errors end them, and BLAS has its threads back whatever happened."""

import threading
import time

import numpy as np
import pytest

from lib.reference import streaming_attention, threads
from lib.reference.threads import one_blas_thread, share


@pytest.fixture
def blas(monkeypatch):
    """Stand in for BLAS: a setting that starts at 3, and the list of what it was set to."""

    class Setting:
        value = 3
        log: list

    Setting.log = []

    def put(count):
        Setting.value = count
        Setting.log.append(count)

    monkeypatch.setattr(threads, "BLAS", (lambda: Setting.value, put))
    return Setting


@pytest.mark.parametrize("jobs", [0, 1, 2, 3, 100])
@pytest.mark.parametrize("worth_it", [True, False])
def test_every_job_is_done_once(blas, jobs, worth_it):
    done = []
    share(lambda numbers: done.extend(numbers), jobs, worth_it)
    assert sorted(done) == list(range(jobs))
    assert blas.value == 3


@pytest.mark.parametrize(("jobs", "worth_it", "wanted"), [(50, True, 3), (2, True, 2), (50, False, 1), (1, True, 1)])
def test_as_many_threads_as_blas_had_and_no_more_than_jobs(blas, jobs, worth_it, wanted):
    used, settings = set(), set()
    together = threading.Barrier(wanted, timeout=10)

    def work(numbers):
        used.add(threading.get_ident())
        settings.add(blas.value)
        together.wait()  # all of them are here at once
        for _ in numbers:
            pass

    share(work, jobs, worth_it)
    assert len(used) == wanted
    assert threading.get_ident() in used
    assert settings == {1}
    assert blas.log == [1, 3]


@pytest.mark.parametrize("where", ["caller", "other"])
def test_an_error_stops_everybody_and_is_raised(blas, where):
    caller, done = threading.get_ident(), []

    def work(numbers):
        for number in numbers:
            if (threading.get_ident() == caller) == (where == "caller"):
                raise KeyError(number)
            done.append(number)
            time.sleep(0.001)

    with pytest.raises(KeyError):
        share(work, 10**6)
    assert len(done) < 10**5
    assert blas.value == 3
    assert threading.active_count() == 1 or all(not t.name.startswith("ThreadPool") for t in threading.enumerate())


def test_the_setting_is_put_back_by_the_last_of_several(blas):
    with one_blas_thread() as outer:
        with one_blas_thread() as inner:
            assert (outer, inner, blas.value) == (3, 3, 1)
        assert blas.value == 1
    assert blas.log == [1, 3]


def test_one_thread_is_left_as_it_is(blas):
    blas.value = 1
    with one_blas_thread() as count:
        assert count == 1
    assert blas.log == []


def test_an_unknown_blas_is_left_alone(monkeypatch):
    monkeypatch.setattr(threads, "BLAS", None)
    done = []
    share(done.append, 3)
    assert len(done) == 1  # one thread did it
    monkeypatch.setattr(np._core._multiarray_umath, "__file__", "/no/such/library")
    assert threads._openblas() is None


@pytest.mark.skipif(threads.BLAS is None, reason="NumPy stands on another BLAS than OpenBLAS")
def test_the_real_setting_is_as_it_was_after_a_call_and_after_an_error(monkeypatch):
    get, put = threads.BLAS
    before = get()
    x = np.ones((2, 600, 4), np.float32)
    try:
        put(2)
        seen = []
        original = threads.share

        def spy(work, jobs, worth_it):
            def watched(numbers):
                seen.append(get())
                work(numbers)

            original(watched, jobs, worth_it)

        import sys

        monkeypatch.setattr(sys.modules["lib.reference.streaming"], "share", spy)
        monkeypatch.setattr(sys.modules["lib.reference.streaming"], "WORTH_THREADS", 0)
        streaming_attention(x, x, x)
        assert seen == [1, 1]
        assert get() == 2

        def broken(*_):
            raise RuntimeError("broken")

        monkeypatch.setattr(sys.modules["lib.reference.streaming"], "_attend_rows", broken)
        with pytest.raises(RuntimeError, match="broken"):
            streaming_attention(x, x, x)
        assert get() == 2
    finally:
        put(before)
