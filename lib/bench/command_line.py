"""The command line: ``python -m lib.bench``.

What ``--json`` prints, on standard output and nothing else there::

    {
      "schema": 1,
      "machine": {"processor", "cores", "system", "python", "numpy", "torch", "load"},
      "device": "cpu" | "cuda",
      "pairs": how many,
      "clock": "wall" | "cpu",
      "ok": no bar was missed,
      "results": [{
        "group": name, "case": title, "threads": int,
        "measure": "time" | "speed" | "memory" | "time growth" | "memory growth" | "allocations",
        "ours": {"name", "options", "measured": [seconds or bytes, ...]},
        "theirs": the same | null,
        "sizes": [N, ...] of a growth,
        "value": median, "least": smallest | null, "most": largest | null, "pairs": [the single ratios or exponents],
        "bar": {"kind": "at most" | "at least" | "about", "limit", "within"} | null,
        "met": bool | null
      }]
    }

``value`` is our time over theirs ("time"), theirs over ours ("speed"), bytes ("memory"), the exponent p of N^p
("growth"), or the bytes of a late step over those of the first ("allocations"). On wrong usage or a failure
``{"schema": 1, "error": message}``.
"""

import argparse
import contextlib
import difflib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from lib.bench import report
from lib.bench.cases import GROUPS, ON_CPU, ON_CUDA, Case, Choice, cases
from lib.bench.measuring import TIMEOUT, Effort, MeasurementError, Result, measure

MET, MISSED, USAGE, FAILED, INTERRUPTED = 0, 1, 2, 3, 130
LEAST_PAIRS = 3

DESCRIPTION = "Measure lib's attention beside torch's, as ratios taken in turns, each library in a process of its own."

EPILOG = """\
groups:
{groups}

examples:
  python -m lib.bench --quick                        small sizes, about two minutes
  python -m lib.bench --group streaming              one group, all of its bars
  python -m lib.bench --group fast --n 2048 --threads 1 --pairs 9
  python -m lib.bench --json > results.json          for machines; progress goes to standard error
  python -m lib.bench --show results.json            the table of what was stored; without a file, the book's
  python -m lib.bench --group streaming --plot streaming.png
  python -m lib.bench --device cuda --group triton

how to read a line:
  N = 1024, causal, 1 thread   1.04 × sdpa (0.99 to 1.08)   ≤ 1.10  met   21.0 ms : 20.2 ms
  the case; the median over the pairs, the smallest and the largest; the bar and the verdict; both times.
  A shared machine makes single ratios jump. Trust the median, take more pairs, and look at the load.

exit status:
  0  every bar was met, or there was none
  1  a bar was missed
  2  wrong usage
  3  a measurement failed: a contestant raised, died or took too long
"""


class UsageError(ValueError):
    """The command line asks for what there is not."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are caught, so that --json can have them too."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving."""
        raise UsageError(message)


def parser() -> Parser:
    """Describe the arguments."""
    groups = "\n".join(f"  {name:<11} {text}" for name, text in GROUPS.items())
    found = Parser(
        prog="python -m lib.bench",
        description=DESCRIPTION,
        epilog=EPILOG.format(groups=groups),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = found.add_argument
    add("--group", action="append", default=[], metavar="G", help="measure only this group; may be repeated")
    add("--device", default="cpu", metavar="D", help="cpu or cuda (default cpu)")
    add("--n", nargs="+", metavar="N", help="sequence lengths instead of each group's own")
    add("--threads", nargs="+", metavar="T", help="numbers of threads (default 1 2)")
    add("--pairs", metavar="P", help="how often the contestants take turns (default 5, at least 3)")
    add("--clock", default="wall", metavar="C",
        help="wall, or cpu: the process's own time, which a busy machine disturbs less (one thread only)")  # fmt: skip
    add("--timeout", metavar="S", help=f"seconds that one turn may take (default {TIMEOUT:g})")
    add("--quick", action="store_true", help="smaller sizes, one thread, short turns, three pairs")
    add("--json", action="store_true", help="print for machines")
    add("--plot", metavar="FILE", help="draw the ratios against N into this file (.png, .svg or .pdf)")
    add("--show", nargs="?", const=report.STORED, metavar="FILE",
        help="print stored results, from --json, and measure nothing; without FILE, the book's")  # fmt: skip
    add("--list", action="store_true", help="list the cases and their bars, and measure nothing")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; give the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # a terminal without × and ≤ gets something
    as_json = "--json" in arguments
    try:
        return _run(parser().parse_args(arguments))
    except UsageError as error:
        return _stopped(f"{error}\nTry python -m lib.bench --help.", USAGE, as_json)
    except MeasurementError as error:
        return _stopped(str(error), FAILED, as_json)
    except KeyboardInterrupt:
        return _stopped("stopped", INTERRUPTED, as_json)
    except BrokenPipeError:  # | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return MET


def _run(options: argparse.Namespace) -> int:
    if options.show is not None:
        return _show(options)
    device = _one_of("--device", options.device, ("cpu", "cuda"))
    clock = _one_of("--clock", options.clock, ("wall", "cpu"))
    groups = _groups(options.group, device)
    choice = Choice(
        device=device,
        threads=_integers("--threads", options.threads, 1) or ((1,) if options.quick or clock == "cpu" else (1, 2)),
        sizes=_integers("--n", options.n, 1),
        quick=options.quick,
    )
    effort = Effort(
        pairs=_integer("--pairs", options.pairs, LEAST_PAIRS) or (LEAST_PAIRS if options.quick else Effort().pairs),
        turn=0.1 if options.quick else Effort().turn,
        timeout=_seconds(options.timeout),
        clock=clock,
    )
    if clock == "cpu" and (device != "cpu" or choice.threads != (1,)):
        raise UsageError("--clock cpu adds up what all threads do: use it with --threads 1 and --device cpu")
    plan = [case for group in groups for case in cases(group, choice)]
    if options.list:
        for case in plan:
            print(f"{case.group:<11} {case.title}, {case.threads} thread(s)".ljust(70), case.bar or "no bar")
        return MET
    if options.plot is not None:
        _can_be_drawn(options.plot, plan)
    if device == "cuda":
        _require_cuda()
    machine = report.machine()
    results = _measure(plan, effort, machine, options.json)
    _plot(results, options.plot)
    if options.json:
        plain = report.plain(results, machine, effort, device)
        print(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(f"\n{report.summary(results)}")
    return _status(results)


def _measure(plan: list, effort: Effort, machine: dict[str, Any], as_json: bool) -> list[Result]:
    """Measure one case after the other, and print each as soon as it is known."""
    if not as_json:
        print(report.heading(machine, effort.pairs))
    results: list[Result] = []
    for number, case in enumerate(plan, 1):
        place = f"[{number}/{len(plan)}] {case.group}: {case.title}"
        _progress(place)
        results.append(measure(case, effort, lambda text, place=place: _progress(f"{place}: {text}", again=True)))
        _progress("")
        if not as_json:
            _print_last(results)
    return results


def _print_last(results: list[Result]) -> None:
    """Print the last result, and before it, where one begins, the name of its group."""
    group = results[-1].case.group
    if len(results) == 1 or results[-2].case.group != group:
        print(f"\n{group}: {GROUPS.get(group, '')}")
    print("  " + report.line(results[-1]), flush=True)


def _show(options: argparse.Namespace) -> int:
    """Print what was measured earlier."""
    mixed = {
        "--device": options.device != "cpu", "--n": options.n, "--threads": options.threads, "--pairs": options.pairs,
        "--clock": options.clock != "wall", "--timeout": options.timeout, "--quick": options.quick,
        "--json": options.json, "--list": options.list,
    }  # fmt: skip
    if given := [name for name, it in mixed.items() if it]:
        raise UsageError(f"--show measures nothing: {', '.join(given)} cannot be given with it")
    try:
        stored = report.read(options.show)
    except (OSError, ValueError) as error:
        raise UsageError(f"--show: {error}") from None
    groups = list(dict.fromkeys(result.case.group for result in stored.results))
    for name in options.group:
        _one_of("--group", name, groups)
    results = [result for result in stored.results if result.case.group in (options.group or groups)]
    if options.plot is not None:
        _can_be_drawn(options.plot, [result.case for result in results])
    print(report.heading(stored.machine, stored.pairs))
    for n in range(len(results)):
        _print_last(results[: n + 1])
    _plot(results, options.plot)
    print(f"\n{report.summary(results)}")
    return _status(results)


def _plot(results: list[Result], path: str | None) -> None:
    for file in report.plot(results, path) if path is not None else ():
        print(f"drew {file}", file=sys.stderr)


def _status(results: list[Result]) -> int:
    return MISSED if any(result.met is False for result in results) else MET


def _progress(text: str, again: bool = False) -> None:
    """Say how far it is: at a terminal on one line that is written over, elsewhere a line for each case."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text and not again:
        print(text, file=sys.stderr, flush=True)


def _groups(given: list[str], device: str) -> list[str]:
    """Read ``--group``."""
    usual = ON_CPU if device == "cpu" else ON_CUDA
    for name in given:
        _one_of("--group", name, GROUPS)
        if name not in usual:
            raise UsageError(f"--group {name} cannot be measured on {device}: there is {', '.join(usual)}")
    return [name for name in usual if name in given] if given else list(usual)


def _one_of(option: str, given: str, known: Sequence[str]) -> str:
    if given in known:
        return given
    close = difflib.get_close_matches(given, known, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    raise UsageError(f"{option} must be one of {', '.join(known)}, got {given!r}{meant}")


def _integers(option: str, given: list[str] | None, least: int) -> tuple[int, ...] | None:
    return None if given is None else tuple(_integer(option, text, least) for text in given)


def _integer(option: str, given: str | None, least: int) -> int | None:
    """Read an integer.

    Examples
    --------
    >>> _integer("--pairs", "5", 3)
    5
    """
    if given is None:
        return None
    try:
        number = int(given)
    except ValueError:
        number = least - 1
    if number < least:
        raise UsageError(f"{option} must be an integer of {least} or more, got {given!r}")
    return number


def _seconds(given: str | None) -> float:
    if given is None:
        return TIMEOUT
    try:
        found = float(given)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise UsageError(f"--timeout must be a number of seconds above 0, got {given!r}")
    return found


def _can_be_drawn(path: str, plan: list[Case]) -> None:
    """Find out before the measuring, not after it."""
    file = Path(path)
    if file.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot must end with .png, .svg or .pdf, got {path!r}")
    if not file.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {file.parent}")
    if not report.drawable(plan):
        raise UsageError("--plot draws ratios against N: it needs two sizes or more, such as --n 1024 2048")


def _require_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        raise UsageError(f"--device cuda: torch {torch.__version__} finds no CUDA device here")


def _stopped(message: str, status: int, as_json: bool) -> int:
    """Say why there is no result, for people and, if asked, for machines."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print(f"lib.bench: {message}", file=sys.stderr)
    if as_json:
        print(json.dumps({"schema": report.SCHEMA, "error": message}, indent=2, ensure_ascii=False))
    return status
