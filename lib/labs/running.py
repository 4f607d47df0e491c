"""Run a student's function once, and say what it did, whatever it does."""

import contextlib
import ctypes
import inspect
import io
import linecache
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lib.labs.form import Call
from lib.verify.check import TimeUp, time_limit

SECONDS = 5.0  # that one call may take; the calls are tiny

LIB = str(Path(__file__).parents[1])
NOT_THEIRS = (LIB, "<frozen", "<__array_function__")
LIBRARIES = ("site-packages", "dist-packages", "/lib/python3", "\\Lib\\")


class Raised(NamedTuple):
    """An exception in the student's code."""

    kind: str  # the exception's class
    text: str  # its first line
    function: str | None  # the student's function in which it was raised
    line: int | None  # counted from that function's first line
    code: str | None  # that line

    def __str__(self) -> str:
        where = f"{self.function}, line {self.line}" if self.function else "your function"
        code = f":\n    {self.code}" if self.code else ""
        return f"{where}{code}\n{self.kind}: {self.text}" if code else f"{where}: {self.kind}: {self.text}"


class Outcome(NamedTuple):
    """What one call did."""

    given: Any = None  # what came back, arrays as NumPy's
    raised: Raised | None = None
    hangs: bool = False
    written: tuple[str, ...] = ()  # arguments that the call changed
    printed: int = 0  # lines


def run(fn: Callable, call: Call, torch: bool = False, patience: float = 1.0) -> Outcome:
    """Call a function, and keep what it prints, warns and raises from the reader; cut it off where it hangs.

    Parameters
    ----------
    fn : callable
    call : Call
    torch : bool
        Hand the arrays over as tensors.
    patience : float
        How many times :data:`SECONDS` the call may take, where the code is Python.

    Returns
    -------
    Outcome
    """
    copies = call.copies()
    arguments = [tensor(x) if torch and isinstance(x, np.ndarray) else x for x in copies]
    prints = io.StringIO()
    try:
        with quiet(prints), limit(patience * SECONDS):
            given = to_numpy(fn(*arguments))
    except TimeUp:
        return Outcome(hangs=True)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit() in an answer, too
        return Outcome(raised=describe(error), printed=lines(prints))
    before = zip(call.arguments.items(), copies, strict=True)
    written = tuple(name for (name, old), new in before if isinstance(old, np.ndarray) and not same(old, new))
    return Outcome(given, written=written, printed=lines(prints))


def tensor(array: np.ndarray) -> Any:
    """Give a tensor that shares the array's memory, so that writing to it shows."""
    import torch

    return torch.from_numpy(array)


def to_numpy(given: Any) -> Any:
    """Give tensors as arrays, alone and inside a tuple; everything else as it is."""
    if isinstance(given, tuple | list) and any(hasattr(x, "detach") or isinstance(x, np.ndarray) for x in given):
        return type(given)([to_numpy(x) for x in given]) if type(given) in (tuple, list) else given
    if hasattr(given, "detach"):
        given = given.detach().cpu()
        return given.double().numpy() if str(given.dtype) == "torch.bfloat16" else given.numpy()
    return given


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Say whether two arrays hold the same, NaN included."""
    return one.shape == other.shape and bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))


def lines(prints: io.StringIO) -> int:
    """Count the lines that were printed."""
    return len(prints.getvalue().splitlines())


@contextlib.contextmanager
def quiet(prints: io.StringIO) -> Iterator[None]:
    """Keep prints and warnings away: a warning on stderr would cost all points under nbgrader."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(prints), contextlib.redirect_stderr(prints):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Cut off what does not come back: by an alarm in a Unix main thread, as in a kernel; elsewhere by a thread."""
    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        with time_limit(seconds):
            yield
        return
    here, lock, over = threading.get_ident(), threading.Lock(), False

    def ring() -> None:
        with lock:
            if not over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(here), ctypes.py_object(TimeUp))

    timer = threading.Timer(seconds, ring)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            over = True
        timer.cancel()


def describe(error: BaseException) -> Raised:
    """Say what was raised, and at which line of the student's."""
    text = (str(error).strip() or "(no text)").splitlines()[0]
    found = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if is_theirs(frame.f_code.co_filename)]
    numbers = [number for frame, number in traceback.walk_tb(error.__traceback__) if frame in found]
    if not found:
        return Raised(type(error).__name__, text, None, None, None)
    code, number = found[-1].f_code, numbers[-1]
    line = linecache.getline(code.co_filename, number).strip() or None
    return Raised(type(error).__name__, text, code.co_name, number - code.co_firstlineno + 1, line)


def is_theirs(file: str) -> bool:
    """Say whether a file holds the student's code: not the book's, nor a library's."""
    inside_lib = file.startswith(NOT_THEIRS[0]) and "site-packages" not in NOT_THEIRS[0]
    return not (inside_lib or file.startswith(NOT_THEIRS) or any(part in file for part in LIBRARIES))


def takes(fn: Callable, count: int) -> bool:
    """Say whether a function can be called with so many arguments by position."""
    try:
        inspect.signature(fn).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature
        return True
    return True
