"""Sharing jobs among threads, each of which computes its matrix products alone.

NumPy's BLAS has threads of its own, which split one product. Whole heads are better pieces: nothing has to be waited
for in the middle of them, and what lies between the products is shared out too. So the jobs get as many threads as
BLAS had, and BLAS gets one for as long as they run.
"""

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np


def share(work: Callable[[Iterator[int]], None], jobs: int, worth_it: bool = True) -> None:
    """Let ``work`` run in as many threads as NumPy's products would use; each is handed an iterator of its jobs.

    Every job 0 … jobs − 1 is taken once, in that order. An error in one thread stops the others before their next job
    and is raised. Where it is not worth it, and where BLAS does not tell how many threads it has, the caller's thread
    does it all.

    Examples
    --------
    >>> done = []
    >>> share(done.extend, 5)
    >>> sorted(done)
    [0, 1, 2, 3, 4]
    """
    todo = _Jobs(jobs)
    with one_blas_thread() as threads:
        others = min(threads, jobs) - 1 if worth_it else 0
        if others < 1:
            work(todo)
            return
        with ThreadPoolExecutor(others) as pool:
            started = [pool.submit(todo.stop_on_error, work) for _ in range(others)]
            todo.stop_on_error(work)
        for one in started:
            one.result()


class _Jobs:
    """Numbers from 0 on that several threads take turns with; iterating ends early when one of them fails."""

    def __init__(self, jobs: int) -> None:
        """Start with job 0."""
        self._left, self._lock = iter(range(jobs)), threading.Lock()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        with self._lock:
            return next(self._left)

    def stop_on_error(self, work: Callable[[Iterator[int]], None]) -> None:
        """Do the work; if it fails, leave no jobs to the others."""
        try:
            work(self)
        except BaseException:
            with self._lock:
                self._left = iter(())
            raise


# --- How many threads BLAS uses, and how to say that it should be one ---

_lock, _inside, _threads = threading.Lock(), 0, 1


@contextmanager
def one_blas_thread() -> Iterator[int]:
    """Let NumPy's products run in one thread each, and give how many threads they used before.

    The setting belongs to the whole process. It is put back when the last of those who asked for it is done, however
    they ended; meanwhile products elsewhere in the process run in one thread too, and are as right as ever. Of a BLAS
    other than OpenBLAS nothing is known: nothing is set, and 1 is given.
    """
    global _inside, _threads
    if BLAS is None:
        yield 1
        return
    get, put = BLAS
    with _lock:
        if _inside == 0:
            _threads = get()
            if _threads > 1:
                put(1)
        _inside += 1
        threads = _threads
    try:
        yield threads
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _threads > 1:
                put(_threads)


def _openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Find the two functions of the OpenBLAS that NumPy has loaded, whatever its builders put around their names."""
    try:
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # looks into the libraries it needs, too
    except (AttributeError, OSError, TypeError):
        return None
    for prefix, suffix in itertools.product(("scipy_", ""), ("64_", "", "_64")):
        try:
            get = getattr(library, f"{prefix}openblas_get_num_threads{suffix}")
            put = getattr(library, f"{prefix}openblas_set_num_threads{suffix}")
        except AttributeError:
            continue
        get.restype, get.argtypes = ctypes.c_int, []
        put.restype, put.argtypes = None, [ctypes.c_int]
        return get, put
    return None


BLAS = _openblas()
