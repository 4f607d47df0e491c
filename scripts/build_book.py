"""Build the book strictly: every page anew, every warning an error.

A page that was built with a warning would be taken as done the next time, so nothing of an earlier build is kept.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.environment import only_one
from scripts.repository import ROOT

INDEX = ROOT / "_build" / "html" / "index.html"


def build():
    """Run Jupyter Book; return its exit status."""
    shutil.rmtree(ROOT / "_build", ignore_errors=True)
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ".", "-W", "-n", "--keep-going", "-q"]
    return subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL).returncode


def main():
    """Build, and print the address of the page to open."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print("Building the book ...", flush=True)
    with only_one("build"):
        status = build()
    if status != 0 or not INDEX.exists():
        sys.exit("The book was not built: each line above is something to mend (a warning is an error here).")
    print(f"The book is built. Open this page:\n  {INDEX.as_uri()}")


if __name__ == "__main__":
    main()
