"""Run the check in a child process, and end it where the function does not come back.

A property at which the child hangs or dies is a failure, and a new child asks the rest.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from lib.verify.check import EXPLAIN
from lib.verify.child import IMPORT
from lib.verify.properties import PROPERTIES, RUNS, RUNS_STATEMENT
from lib.verify.report import Failure, Report
from lib.verify.subject import UsageError

#: A finding that only a process of its own can make, beside the properties.
SILENT = "silent"
SILENT_STATEMENT = "A call prints nothing to standard output. Only judged when asked for by name."

STATEMENTS = {p.name: p.statement for p in PROPERTIES} | {RUNS: RUNS_STATEMENT, SILENT: SILENT_STATEMENT}
DEATHS = 3  # children that may hang or die before the rest is given up
PATIENCE = 60.0  # seconds that importing and explaining have at least
SHOWN = 20  # lines of the function's own output that are passed on


class InternalError(Exception):
    """The check itself failed; the text is its traceback."""


class Ended(NamedTuple):
    """How one child ended."""

    stage: str  # the property that was asked last
    why: str | None  # None: it came to its end


class Child(NamedTuple):
    """What one child told."""

    ended: Ended
    failures: list[Failure]  # without examples, as they were found
    outcomes: dict[str, str]  # of the other properties: "holds" or "not tested: …"
    report: Report | None


class Prints:
    """What the function writes: the first lines are passed on to standard error, all are counted."""

    def __init__(self) -> None:
        self.lines = 0  # on standard output, in calls
        self.first = ""
        self.passed_on = 0
        self.lock = threading.Lock()

    def drain(self, stream: Any, count: bool) -> None:
        """Read a stream to its end, however much comes."""
        for raw in iter(lambda: stream.readline(4096), b""):
            line = raw.decode("utf8", "replace").rstrip("\r\n")
            with self.lock:
                if count:
                    self.first = self.first or line
                    self.lines += 1
                self.passed_on += 1
                if self.passed_on <= SHOWN:
                    print(line, file=sys.stderr, flush=True)
                elif self.passed_on == SHOWN + 1:
                    print("… more output of the function is not shown", file=sys.stderr, flush=True)


def check(
    request: dict[str, Any], timeout: float, tell: Callable[[str], None] = lambda stage: None
) -> tuple[Report, Prints]:
    """Check a function in child processes.

    Parameters
    ----------
    request : dict
        ``target``, ``framework``, ``names``, ``conventions`` and ``properties``, all of which JSON can hold.
    timeout : float
        Seconds that one property may take.
    tell : callable
        Is told each stage.

    Returns
    -------
    report : Report
    prints : Prints
        What the function wrote to standard output.

    Raises
    ------
    UsageError
        If there is nothing to check.
    InternalError
        If the check itself raised.
    """
    names = [p.name for p in PROPERTIES]
    wanted = [n for n in names if request["properties"] is None or n in request["properties"]]
    silent = SILENT in (request["properties"] or ())  # unasked, a print is a note: it makes no attention wrong
    prints, children, left = Prints(), [], wanted
    for _ in range(DEATHS):
        child = _run({**request, "properties": left}, timeout, prints, tell)
        children.append(child)
        stage, why = child.ended
        if why is None or stage in (RUNS, EXPLAIN):
            break
        found = [f.property for f in child.failures]  # asked again, to be explained
        left = [n for n in left if n != stage and (n in found or n not in child.outcomes)]
        if not left:
            break
    report = _merged(children, request, wanted)
    return _with_prints(report, prints, silent), prints


def _run(request: dict[str, Any], timeout: float, prints: Prints, tell: Callable[[str], None]) -> Child:
    """Run one child to its end, or until it takes too long."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "events"
        path.touch()
        process = _start(request, path)
        readers = [
            threading.Thread(target=prints.drain, args=(stream, count), daemon=True)
            for stream, count in ((process.stdout, True), (process.stderr, False))
        ]
        for reader in readers:
            reader.start()
        try:
            events, ended = _watch(process, path, timeout, tell)
        finally:
            _kill(process)
        call = Path(f"{path}.call")
        if ended.why and ended.stage not in (IMPORT, EXPLAIN) and call.exists():
            last = call.read_bytes().decode("utf8", "replace").strip()
            ended = ended._replace(why=f"{ended.why}; the last call had {last}")
        for reader in readers:
            reader.join(1)  # a process that the function left behind may hold the pipe
    return _understood(events, ended, request["target"])


def _start(request: dict[str, Any], path: Path) -> subprocess.Popen:
    """Start a child that finds this package, and nothing to read on standard input."""
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", "lib.verify.child", json.dumps(request), str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,  # its own group, so that its children end with it
    )


def _watch(
    process: subprocess.Popen, path: Path, timeout: float, tell: Callable[[str], None]
) -> tuple[list[tuple[str, Any]], Ended]:
    """Read events until the child ends or a stage takes too long."""
    events: list[tuple[str, Any]] = []
    stage, since = IMPORT, time.monotonic()
    with path.open(encoding="utf8") as file:
        rest = ""
        while True:
            over = process.poll() is not None
            rest += file.read()
            *lines, rest = rest.split("\n")
            for line in lines:
                ((kind, value),) = json.loads(line).items()
                if kind == "stage":
                    stage, since = value, time.monotonic()
                    tell(stage)
                events.append((kind, value))
            if over:
                return events, Ended(stage, _cause(process.returncode))
            limit = max(timeout, PATIENCE) if stage in (IMPORT, EXPLAIN) else timeout
            if time.monotonic() - since > limit:
                return events, Ended(stage, f"did not come back within {limit:g} s (--timeout sets how long it may)")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)


def _cause(code: int) -> str:
    """Say how a process ended that told no report."""
    if code < 0:
        with contextlib.suppress(ValueError):
            hint = "; the memory may have run out" if -code == signal.SIGKILL else ""
            return f"crashed Python: {signal.Signals(-code).name} ({signal.strsignal(-code)}){hint}"
    return f"ended Python, with exit code {code}"


def _kill(process: subprocess.Popen) -> None:
    """End a child and what it started."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
    process.wait()


def _understood(events: list[tuple[str, Any]], ended: Ended, target: str) -> Child:
    """Sort the events of a child."""
    failures, outcomes, report = [], {}, None
    for kind, value in events:
        if kind == "failure":
            failures.append(Failure.from_dict(value))
        elif kind == "outcome":
            outcomes[value[0]] = value[1]
        elif kind == "report":
            report = Report.from_dict(value)
        elif kind == "usage":
            raise UsageError(value)
        elif kind == "internal":
            raise InternalError(value)
        elif kind == "ended":
            ended = Ended(ended.stage, f"ended Python: {value}")
    if report is not None:
        ended = Ended(ended.stage, None)
    elif ended.stage == IMPORT:
        raise UsageError(f"importing {target.rpartition(':')[0]} {ended.why}")
    return Child(ended, failures, outcomes, report)


def _merged(children: list[Child], request: dict[str, Any], wanted: list[str]) -> Report:
    """Put together what the children told; the last one knows most."""
    name = request["target"].replace(".", ":").rpartition(":")[2]
    reports = [c.report for c in children if c.report is not None]
    base = reports[-1] if reports else Report(name, request["framework"] or "numpy")
    failures = {f.property: f for c in children for f in c.failures} | {f.property: f for f in base.failures}
    outcomes: dict[str, str] = {}
    notes = list(base.notes)
    for child in children:
        outcomes |= child.outcomes
        stage, why = child.ended
        if why is None:
            continue
        if stage == EXPLAIN:
            notes.append(
                f"the failures have no examples and no suspects: while they were looked for, the function {why}"
            )
        else:
            failures[stage] = Failure(stage, f"the function {why}", statement=STATEMENTS[stage])
    holds = [n for n in wanted if outcomes.get(n) == "holds"]
    not_tested = {n: outcomes[n].removeprefix("not tested: ") for n in wanted if outcomes.get(n, "holds") != "holds"}
    if RUNS not in failures:
        given_up = f"the check was given up after {DEATHS} properties at which the function did not come back"
        not_tested |= {n: given_up for n in wanted if n not in failures and n not in outcomes}
    order = list(STATEMENTS)
    inside = sorted(failures.values(), key=lambda f: order.index(f.property))
    return Report(base.function, base.framework, inside, holds, not_tested, base.refused, notes, base.conventions)


def _with_prints(report: Report, prints: Prints, judged: bool) -> Report:
    """Add what the function printed, as a failure, or as a note where that was not asked."""
    more = f", and {prints.lines - 1} lines more in all calls" if prints.lines > 1 else ""
    text = f"the function prints: {prints.first[:80]!r}{more}"
    if prints.lines and judged:
        report.failures.append(Failure(SILENT, text, statement=SILENT_STATEMENT))
    elif prints.lines:
        report.notes.append(text)
    elif judged and not any(f.property == RUNS for f in report.failures):
        report.holds.append(SILENT)
    return report
