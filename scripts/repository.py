"""The one address of the repository, and what is derived from it: badges and bootstrap cells.

The address stands in _config.yml (`repository: url`). Every notebook opens with two cells that name it:
scripts.set_repository writes them and the book's tests compare them, both with the functions below.
"""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
COLAB = "https://colab.research.google.com/github"
BADGE = re.compile(r"^\[Open in Colab\]\(.*\)$", re.MULTILINE)
ADDRESS = re.compile(r"https://github\.com/[A-Za-z0-9-]+/[A-Za-z0-9._-]+")


def settings(root=ROOT):
    """Return the repository's address and branch as _config.yml states them."""
    repository = yaml.safe_load((Path(root) / "_config.yml").read_text(encoding="utf8"))["repository"]
    return repository["url"], repository["branch"]


def badge(path, root=ROOT):
    """Return the Markdown line that opens the notebook at `path` (relative to the root) on Colab."""
    address, branch = settings(root)
    return f"[Open in Colab]({COLAB}/{address.removeprefix('https://github.com/')}/blob/{branch}/{path})"


def bootstrap(root=ROOT):
    """Return the source of the cell that installs `lib` on Colab and does nothing anywhere else."""
    address, branch = settings(root)
    return f'import sys\n\nif "google.colab" in sys.modules:\n    %pip install -q "git+{address}@{branch}"'


def first_cells(path, title, root=ROOT):
    """Return the sources of a new notebook's first two cells."""
    return f"# {title}\n\n{badge(path, root)}", bootstrap(root)
