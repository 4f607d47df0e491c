"""Write constraints.txt: the exact version of every package that the requirements bring along, as .venv has it now."""

import argparse
import re
from importlib import metadata

from packaging.requirements import Requirement

from scripts.repository import ROOT

HEADER = """\
# What the packages of requirements.txt bring along, pinned so that a clone next year builds the same book.
# Constraints install nothing by themselves. Written by `make constraints` after a change of requirements.txt.
"""


def required():
    """Return the requirements of requirements.txt."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf8").splitlines()
    return [Requirement(line.partition("#")[0]) for line in lines if re.match(r"\w", line)]


def closure(requirements):
    """Return {name: version} of what the requirements need, directly or not, on this machine."""
    found, waiting = {}, [(requirement.name, requirement.extras) for requirement in requirements]
    seen = set()
    while waiting:
        name, extras = waiting.pop()
        if (name.lower(), frozenset(extras)) in seen:
            continue
        seen.add((name.lower(), frozenset(extras)))
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another system, or switched off by a marker of its parent
        found[package.name] = package.version.partition("+")[0]  # torch's builds say their kind after a plus
        for text in package.requires or []:
            need = Requirement(text)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
                waiting.append((need.name, need.extras))
    return found


def main():
    """Write the file."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    left_open = {need.name for need in required() if "==" not in str(need.specifier)}  # triton: torch's own choice
    pins = sorted(closure(required()).items(), key=lambda pin: pin[0].lower())
    lines = "".join(f"{name}=={version}\n" for name, version in pins if name not in left_open)
    (ROOT / "constraints.txt").write_text(HEADER + lines, encoding="utf8")


if __name__ == "__main__":
    main()
