"""Run notebooks and store their outputs without noise.

Only what a reader sees changes the file: no time stamps, no versions, no editor's metadata, execution counts 1, 2, 3.
A figure whose pixels did not change keeps its bytes, and a notebook in which nothing changed is not written at all.
"""

import argparse
import sys
from pathlib import Path

import nbformat
import numpy as np
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from scripts import figures_equal, notebooks
from scripts.repository import ROOT


def figures(cell):
    """Return the cell's outputs that hold a figure."""
    return [output for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]


def keep_same_figures(old, new):
    """Give a figure its stored bytes back when every pixel is the same: compressors differ, pictures do not."""
    stored = {cell.id: figures(cell) for cell in old.cells if cell.cell_type == "code" and "id" in cell}
    for cell in new.cells:
        for before, after in zip(stored.get(cell.get("id"), []), figures(cell), strict=False):
            one, other = (output["data"]["image/png"] for output in (before, after))
            if one.strip() == other.strip() or np.array_equal(figures_equal.decode(one), figures_equal.decode(other)):
                after["data"]["image/png"] = one


def rerun(path, timeout):
    """Execute one notebook in its own folder and return it as it should be stored."""
    notebook = notebooks.read(path)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        timeout=timeout,
        startup_timeout=180,  # a busy machine starts a kernel slowly
        kernel_name="python3",
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    return notebooks.clean(notebook)


def refresh(path, timeout=120):
    """Run `path`, write it if what it shows has changed, and say whether it was written."""
    before = path.read_text(encoding="utf8")
    new = rerun(path, timeout)
    keep_same_figures(nbformat.reads(before, as_version=4), new)
    after = notebooks.text_of(new)
    if after == before:
        return False
    path.write_text(after, encoding="utf8")
    return True


def main():
    """Refresh the notebooks named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "notebooks", nargs="*", type=Path, help="notebooks to run (default: every notebook of the book)"
    )
    parser.add_argument("--timeout", type=int, default=120, help="seconds that one cell may take (default: 120)")
    arguments = parser.parse_args()
    failed = False
    for path in arguments.notebooks or notebooks.paths():
        path = path.resolve()
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        try:
            changed = refresh(path, arguments.timeout)
        except CellExecutionError as error:
            failed = True
            print(f"{shown}: a cell failed, nothing was written\n{error}", file=sys.stderr)
        else:
            print(f"{shown}: {'outputs written' if changed else 'nothing changed'}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
