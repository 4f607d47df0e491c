"""Make .venv and install the book into it; do nothing when it is up to date.

Runs with the python3 that the reader has, before anything is installed: standard library only. The stamp inside .venv
holds the digest of the files that say what to install, so that a changed pin is installed once and only once.
"""

import argparse
import contextlib
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WANTED_BY = ("requirements.txt", "requirements-data.txt", "constraints.txt", "pyproject.toml")
OLDEST = (3, 11)


@contextlib.contextmanager
def only_one(name):
    """Let one process at a time do `name`: two `make` commands may run side by side."""
    path = ROOT / ".cache" / (name + ".lock")
    path.parent.mkdir(exist_ok=True)
    with open(path, "w") as lock:
        try:
            import fcntl
        except ImportError:  # Windows has no fcntl; there, two commands side by side are on their own
            yield
            return
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def digest():
    """Say in one word what has to be installed, and where: an environment that was moved must be made anew."""
    sha = hashlib.sha256(str(ROOT).encode())
    for name in WANTED_BY:
        sha.update((ROOT / name).read_bytes())
    return sha.hexdigest()


def python_of(folder):
    """Return the Python of a virtual environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def works(folder):
    """Say whether the environment has a Python that starts and a pip: a Python upgrade can leave neither."""
    python = python_of(folder)
    if not python.exists():
        return False
    return subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0


def make(folder):
    """Create the environment if there is none that works."""
    if works(folder):
        return
    print(f"Making {folder.name} with Python {sys.version.split()[0]} ...", flush=True)
    try:
        venv.create(folder, clear=True, with_pip=True)
    except subprocess.CalledProcessError:
        sys.exit(
            "This Python cannot make virtual environments with pip. On Debian and Ubuntu: apt install python3-venv"
        )


def install(folder):
    """Install the pins and `lib` itself, editable, unless the stamp says that both are there."""
    stamp = folder / "self-attention-book.stamp"
    wanted = digest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("Installing the pins of requirements.txt (the first time takes some minutes) ...", flush=True)
    command = [str(python_of(folder)), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    for wanted_files in (["-r", "requirements.txt", "-e", "."], ["--no-deps", "-r", "requirements-data.txt"]):
        done = subprocess.run([*command, *wanted_files], cwd=ROOT, check=False)
        if done.returncode != 0:
            sys.exit("The installation did not finish; pip's message above says why. Run the same command to go on.")
    stamp.write_text(wanted)


def main():
    """Make .venv ready for the other commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=".venv", help="the environment's folder (default: .venv)")
    arguments = parser.parse_args()
    if sys.version_info < OLDEST:
        wanted, given = ".".join(map(str, OLDEST)), sys.version.split()[0]
        sys.exit(f"This book needs Python {wanted} or newer; python3 is {given}. Try: make PYTHON=python{wanted} ...")
    folder = ROOT / arguments.folder
    with only_one("environment"):
        make(folder)
        install(folder)


if __name__ == "__main__":
    main()
