"""The check itself, in a process of its own: whatever the function does to its process, the tool survives it.

It is started by :mod:`lib.verify.watch` as ``python -m lib.verify.child REQUEST EVENTS``: what to check as JSON, and
the file to which each event is written as a line of JSON the moment it happens.
"""

import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from lib.verify.check import check_attention
from lib.verify.report import Failure
from lib.verify.subject import UsageError, listeners
from lib.verify.target import load

#: The stage before the first property.
IMPORT = "import"
#: How many letters are kept of what a call was like.
LONGEST = 200


class Events:
    """Where to tell what happens. A file, because the function under test may print, and may close what it likes."""

    def __init__(self, path: str) -> None:
        self.path = path

    def tell(self, kind: str, value: Any) -> None:
        """Write one event."""
        with Path(self.path).open("a", encoding="utf8") as file:
            file.write(json.dumps({kind: value}) + "\n")

    def listen(self) -> None:
        """Note each call down, in a file that keeps the last one."""
        if not hasattr(os, "pwrite"):
            return
        file = os.open(f"{self.path}.call", os.O_CREAT | os.O_WRONLY)
        listeners.append(lambda probe: os.pwrite(file, probe.summary[:LONGEST].ljust(LONGEST).encode(), 0))

    def progress(self, name: str, outcome: Failure | str | None) -> None:
        """Write what :func:`check_attention` tells."""
        if outcome is None:
            self.tell("stage", name)
        elif isinstance(outcome, Failure):
            self.tell("failure", outcome.to_dict())
        else:
            self.tell("outcome", [name, outcome])


def run(request: dict[str, Any], events: Events) -> None:
    """Import the function and check it."""
    events.tell("stage", IMPORT)
    prints = _prints_to_stderr()
    try:
        target = load(request["target"])
    finally:
        _prints_to(prints)
    framework = request["framework"] or target.framework
    notes = [note for note in target.notes if not (request["framework"] and note.startswith("taken for"))]
    events.listen()
    report = check_attention(
        target.fn,
        framework,
        request["names"],
        request["conventions"],
        properties=request["properties"],
        progress=events.progress,
        imported=target.imported,
    ).to_dict()
    report["notes"] = notes + report["notes"]
    events.tell("report", report)


def _prints_to_stderr() -> int:
    """Send what an import prints to standard error: only what calls print is counted."""
    kept = os.dup(1)
    os.dup2(2, 1)
    return kept


def _prints_to(kept: int) -> None:
    with contextlib.suppress(ValueError, AttributeError):  # closed, or replaced
        sys.stdout.flush()
    os.dup2(kept, 1)
    os.close(kept)


def _end_with(parent: int) -> None:
    """End when the parent is gone, so that a function that hangs does not stay behind."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    """Run one request; what ends it is an event too."""
    faulthandler.enable(all_threads=False)  # a crash shows its line on standard error
    events = Events(sys.argv[2])
    if hasattr(os, "fork"):
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        run(json.loads(sys.argv[1]), events)
    except UsageError as error:
        events.tell("usage", str(error))
    except Exception:
        events.tell("internal", traceback.format_exc())
    except BaseException as error:  # sys.exit() in the function, KeyboardInterrupt
        events.tell("ended", f"{type(error).__name__}({error})")
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(0)  # not even what the module registered with atexit can hold us up


if __name__ == "__main__":
    main()
