"""Where the book's notebooks are, and how they are read and written without noise."""

from pathlib import Path

import nbformat

from scripts.repository import ROOT

BOOK = ROOT / "book"
# What a notebook's metadata may hold. Everything else is what some editor left behind: time stamps, versions, paths.
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {"name": "python", "pygments_lexer": "ipython3"}
NOTEBOOK_KEYS = {"kernelspec", "language_info", "accelerator", "colab"}
CELL_KEYS = {"tags", "mystnb", "nbgrader", "book"}


def paths(root=ROOT):
    """Return every notebook of the book, in order."""
    folder = Path(root) / "book"
    hidden = {"_build", ".ipynb_checkpoints"}
    return sorted(path for path in folder.rglob("*.ipynb") if not hidden & set(path.parts))


def read(path):
    """Read a notebook of format 4."""
    return nbformat.read(path, as_version=4)


def clean(notebook):
    """Take out of the metadata what changes without a reason, and state the kernel as every notebook does."""
    kept = {key: value for key, value in notebook.metadata.items() if key in NOTEBOOK_KEYS}
    notebook.metadata = nbformat.from_dict({**kept, "kernelspec": KERNELSPEC, "language_info": LANGUAGE})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in sorted(CELL_KEYS & set(cell.metadata))})
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
    return notebook


def text_of(notebook):
    """Return the notebook's file as it is written: one indent, sorted keys, a newline at the end."""
    return nbformat.writes(notebook, version=nbformat.NO_CONVERT).rstrip("\n") + "\n"
