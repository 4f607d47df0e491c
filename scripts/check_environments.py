"""Compare every notebook's outputs in other environments: threads, vector units, the oldest supported versions.

A number that changes with the machine is no result. Text outputs are compared exactly everywhere; figures too, except
with another matplotlib, which draws other pixels.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from scripts import notebooks
from scripts.environment import make, only_one, python_of
from scripts.repository import ROOT

# The oldest numpy and matplotlib that the book supports: those of Colab's image. For Pythons newer than Colab's, the
# oldest numpy that exists for them.
OLDEST = {"numpy": {(3, 11): "2.0.2", (3, 12): "2.0.2", (3, 13): "2.1.3"}, "matplotlib": "3.10.0"}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class Environment:
    """Where the notebooks are run: a name for the table, variables to set, and a Python."""

    name: str
    variables: dict = field(default_factory=dict)
    python: Path = Path(sys.executable)


def threads(count):
    """Return the environment with so many threads for every library."""
    name = f"{count} thread" + ("s" if count > 1 else "")
    return Environment(name, dict.fromkeys(THREADS, str(count)))


def vector_units_above_baseline():
    """Return the vector units that numpy would choose on this processor beyond those it always has."""
    show = "import json, numpy; print(json.dumps(numpy.show_config(mode='dicts')['SIMD Extensions'].get('found', [])))"
    return json.loads(subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout)


def fewer_vector_units():
    """Return the environment in which torch stops at AVX2 and numpy at its baseline."""
    off = vector_units_above_baseline()
    name = f"torch at avx2, numpy without {' '.join(off) or 'nothing (its baseline is all this processor has)'}"
    return Environment(name, {"ATEN_CPU_CAPABILITY": "avx2", "NPY_DISABLE_CPU_FEATURES": " ".join(off)})


def oldest_versions():
    """Return the environment with the oldest numpy and matplotlib, in a virtual environment of its own.

    It sees the packages of .venv behind its own, so that torch is the same one and is not installed a second time.
    """
    numpy, matplotlib = OLDEST["numpy"].get(sys.version_info[:2]), OLDEST["matplotlib"]
    if numpy is None:
        sys.exit(
            f"No oldest numpy is listed for Python {sys.version.split()[0]}: add it to scripts/check_environments.py"
        )
    folder = ROOT / ".envs" / f"numpy-{numpy}-matplotlib-{matplotlib}"
    folder.parent.mkdir(exist_ok=True)
    with only_one(folder.name):
        make(folder)
        python = python_of(folder)
        behind = Path(subprocess_output(sys.executable, "import sysconfig; print(sysconfig.get_path('purelib'))"))
        own = Path(subprocess_output(python, "import sysconfig; print(sysconfig.get_path('purelib'))"))
        command = [python, "-m", "pip", "install", "-qq", "--no-deps", "--ignore-installed"]
        if not all((own / f"{name}.dist-info").exists() for name in (f"numpy-{numpy}", f"matplotlib-{matplotlib}")):
            subprocess.run([*command, f"numpy=={numpy}", f"matplotlib=={matplotlib}"], check=True)
        (own / "behind.pth").write_text(f"import site; site.addsitedir({str(behind)!r})\n")
    given = subprocess_output(python, "import numpy, matplotlib; print(numpy.__version__, matplotlib.__version__)")
    if given != f"{numpy} {matplotlib}":
        sys.exit(
            f"The environment {folder.name} imports numpy and matplotlib {given}: remove the folder and try again."
        )
    return Environment(f"numpy {numpy}, matplotlib {matplotlib}", {"BOOK_COMPARE_FIGURES": "0"}, python)


def subprocess_output(python, code):
    """Return what a line of Python prints."""
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def compare(environment, paths):
    """Run nbval on the notebooks in an environment; return (cells compared, cells that differ, pytest's report)."""
    command = [environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    nbval = [
        "--nbval",
        "--nbval-current-env",
        "--nbval-cell-timeout",
        "120",
        "--nbval-kernel-startup-timeout",
        "180",
        "--color",
        "no",
    ]
    variables = {**os.environ, **environment.variables}
    done = subprocess.run([*command, *nbval, *paths], cwd=ROOT, env=variables, capture_output=True, text=True)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?)\b", done.stdout)}
    differ = sum(counts.get(word, 0) for word in ("failed", "error", "errors"))
    if done.returncode != 0:
        differ = max(differ, 1)
    return counts.get("passed", 0) + differ, differ, done.stdout + done.stderr


def main():
    """Compare all, print the table, and fail where an output differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "notebooks", nargs="*", type=Path, help="notebooks to compare (default: every notebook of the book)"
    )
    paths = parser.parse_args().notebooks or notebooks.paths()
    rows, reports = [], []
    for prepare in (lambda: threads(1), lambda: threads(2), fewer_vector_units, oldest_versions):
        environment = prepare()
        print(f"Comparing: {environment.name} ...", flush=True)
        cells, differ, report = compare(environment, paths)
        rows.append((environment.name, str(len(paths)), str(cells), f"no: {differ} cells" if differ else "yes"))
        if differ:
            reports.append(f"--- {environment.name} ---\n{report}")
    print("\n".join(reports))
    table = [("environment", "notebooks", "cells", "equal"), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print(" | ".join(entry.ljust(width) for entry, width in zip(row, widths, strict=True)).rstrip())
    equal = sum(row[3] == "yes" for row in rows)
    print(f"{equal} of {len(rows)} environments equal")
    sys.exit(equal != len(rows))


if __name__ == "__main__":
    main()
