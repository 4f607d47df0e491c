"""What is made of the results: a table for people, JSON for machines, a plot for a page."""

import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from lib.bench.arithmetic import Bar, Spread, in_bytes, in_seconds
from lib.bench.cases import Case, Contestant
from lib.bench.measuring import Effort, Result

SCHEMA = 1
STORED = Path(__file__).parent / "stored" / "cpu.json"  # what the book shows; `make measure` writes it anew
WIDTH = 54  # of a case's title in the table


def line(result: Result) -> str:
    """Say a result in one line: what was measured, its bar and the verdict.

    A line looks like ``N = 1024, causal, 1 thread    1.04 × sdpa (0.99 to 1.08)    ≤ 1.10  met    21.0 ms : 20.2 ms``.
    """
    case = result.case
    title = f"{case.title}, {case.threads} thread{'s' if case.threads > 1 else ''}"
    verdict = {True: "met", False: "MISSED", None: ""}[result.met]
    bar = ""
    if case.bar is not None:
        sign = {"at most": "≤", "at least": "≥", "about": "="}[case.bar.kind]
        bar = f"{sign} {in_bytes(case.bar.limit)}" if case.measure == "memory" else str(case.bar)
    return f"{title:<{WIDTH}}  {said(result):<40}  {bar:<12} {verdict:<6}  {behind(result)}".rstrip()


def said(result: Result) -> str:
    """Say the number that counts, and how far the single measurements lie around it."""
    case, value, spread = result.case, result.value, result.spread
    if case.measure == "memory":
        return in_bytes(value)
    around = f" ({spread.least:.2f} to {spread.most:.2f})" if spread is not None else ""
    if case.measure == "time":
        return f"{value:.2f} × {case.theirs.name}{around}"
    if case.measure == "speed":
        return f"{value:.2f} × faster than {case.theirs.name}{around}"
    return f"{'p = ' if 'growth' in case.measure else ''}{value:.2f}{around}"


def behind(result: Result) -> str:
    """Say the measurements themselves."""
    case = result.case
    if case.measure in ("time", "speed"):
        return " : ".join(in_seconds(Spread.of(them).median) for them in (result.ours, result.theirs))
    unit = in_seconds if case.measure == "time growth" else in_bytes
    if case.measure == "allocations":
        return f"{unit(result.ours[0])} to {unit(result.ours[-1])}"
    return ", ".join(map(unit, result.ours))


def heading(machine: dict[str, Any], pairs: int) -> str:
    """Say in a line where it was measured, and how often."""
    busy = f"; load {machine['load'][0]:.1f}" if machine["load"] else ""
    where = f"{machine['processor']}, {machine['cores']} cores{busy}"
    return f"{where}; numpy {machine['numpy']}, torch {machine['torch']}; {pairs} pairs"


def summary(results: Sequence[Result]) -> str:
    """Say how many bars were met, and name those that were not."""
    judged = [result for result in results if result.met is not None]
    if not judged:
        return "No bar belongs to these sizes."
    missed = [f"{r.case.group}: {r.case.title}, {r.case.threads} thread(s): {said(r)}" for r in judged if not r.met]
    return "\n".join([f"{len(judged) - len(missed)} of {len(judged)} bars met.", *(f"MISSED  {one}" for one in missed)])


def plain(results: Sequence[Result], machine: dict[str, Any], effort: Effort, device: str) -> dict[str, Any]:
    """Give the results as what JSON can hold."""
    return {
        "schema": SCHEMA,
        "machine": machine,
        "device": device,
        "pairs": effort.pairs,
        "clock": effort.clock,
        "ok": all(result.met is not False for result in results),
        "results": [_plain(result) for result in results],
    }


def _plain(result: Result) -> dict[str, Any]:
    case, spread = result.case, result.spread
    return {
        "group": case.group,
        "case": case.title,
        "measure": case.measure,
        "threads": case.threads,
        "ours": {"name": case.ours.name, "options": case.ours.options, "measured": result.ours},
        "theirs": case.theirs
        and {"name": case.theirs.name, "options": case.theirs.options, "measured": result.theirs},
        "sizes": list(case.sizes),
        "value": result.value,
        "least": spread and spread.least,
        "most": spread and spread.most,
        "pairs": result.pairs,
        "bar": case.bar and case.bar._asdict(),
        "met": result.met,
    }  # fmt: skip


class Stored(NamedTuple):
    """What ``python -m lib.bench --json`` printed, read again."""

    machine: dict[str, Any]
    device: str
    pairs: int
    clock: str
    results: list[Result]


def read(path: str | Path = STORED) -> Stored:
    """Read a file that ``python -m lib.bench --json`` was printed into; without a path, the one that the book shows.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it holds something else, or the error that ended the measuring.

    Examples
    --------
    >>> stored = read()
    >>> stored.device, stored.results[0].case.group
    ('cpu', 'streaming')
    """
    text = Path(path).read_text(encoding="utf8")
    wanted = f"{path}: wanted what python -m lib.bench --json prints (schema {SCHEMA})"
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{wanted}, got no JSON: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        schema = f"schema {found.get('schema')!r}" if isinstance(found, dict) else f"a {type(found).__name__}"
        raise ValueError(f"{wanted}, got {schema}")
    if "error" in found:
        raise ValueError(f"{path}: the measuring ended with an error: {found['error']}")
    try:
        results = [_read(one) for one in found["results"]]
        return Stored(found["machine"], found["device"], found["pairs"], found["clock"], results)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{wanted}, but a field is missing or of another kind: {error!r}") from None


def _read(one: dict[str, Any]) -> Result:
    """Undo :func:`_plain`."""

    def contestant(it: dict[str, Any] | None) -> Contestant | None:
        return it and Contestant(it["name"], it["options"])

    bar = one["bar"] and Bar(**one["bar"])
    case = Case(
        one["group"], one["case"], one["measure"], contestant(one["ours"]), contestant(one["theirs"]), bar,
        one["threads"], tuple(one["sizes"]),
    )  # fmt: skip
    spread = None if one["least"] is None else Spread(one["value"], one["least"], one["most"])
    theirs = one["theirs"]["measured"] if one["theirs"] else []
    return Result(case, one["value"], spread, one["pairs"], one["ours"]["measured"], theirs)


def machine() -> dict[str, Any]:
    """Name the machine and the versions, as far as they can change a ratio."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
        "torch": metadata.version("torch"),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,  # others at work make numbers worse
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf8") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def plot(results: Sequence[Result], path: str) -> list[str]:
    """Draw the ratios against N, a picture for each group, and give the files' names.

    With several groups the name of each is put before the file's ending.
    """
    from lib import figures  # opens matplotlib, so only where a picture is asked for

    groups = drawable([result.case for result in results])
    files = []
    for group in groups:
        sizes, series = ratios_by_size([result for result in results if result.case.group == group])
        mine = [result.case for result in results if result.case.group == group and result.case.measure in TIMED]
        quotient = "SDPA's time / ours" if mine[0].measure == "speed" else "our time / theirs"
        ax = figures.lines(sizes, series, f"{group}: {quotient}", xlabel="N", ylabel=quotient, xscale="log")
        file = Path(path)
        files.append(str(file if len(groups) == 1 else file.with_stem(f"{file.stem}-{group}")))
        ax.figure.savefig(files[-1])
    return files


TIMED = ("time", "speed")
MOST_LINES = 6  # of a picture


def drawable(cases: Sequence[Case]) -> list[str]:
    """Name the groups that are measured at two sizes or more."""
    sizes: dict[str, set[int]] = {}
    for case in cases:
        if case.measure in TIMED:
            sizes.setdefault(case.group, set()).add(case.ours.options["N"])
    return [group for group, found in sizes.items() if len(found) > 1]


def ratios_by_size(results: Sequence[Result]) -> tuple[list[int], dict[str, list[float]]]:
    """Sort one group's ratios into lines: the sizes, and for each kind of case its ratio at each of them.

    Kinds that lack a size are left out, and of more than six those with the largest ratios are kept.
    """
    found: dict[str, dict[int, float]] = {}
    for result in results:
        if result.case.measure in TIMED:
            kind = kind_of(result.case.title, result.case.threads)
            found.setdefault(kind, {})[result.case.ours.options["N"]] = result.value
    sizes = sorted(set().union(*found.values()))
    full = {kind: [line[N] for N in sizes] for kind, line in found.items() if len(line) == len(sizes)}
    kept = sorted(full, key=lambda kind: max(full[kind]), reverse=True)[:MOST_LINES]
    return sizes, {kind: full[kind] for kind in full if kind in kept}


def kind_of(title: str, threads: int) -> str:
    """Leave the size out of a case's title.

    Examples
    --------
    >>> kind_of("N = 1024, causal", 2)
    'causal, 2 threads'
    """
    parts = [part for part in title.split(", ") if not part.startswith("N = ")]
    return ", ".join([*parts, f"{threads} thread{'s' if threads > 1 else ''}"])
