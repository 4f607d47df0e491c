"""Check the spelling of prose, of code and of its comments; prose in British English.

codespell knows common misspellings in any English. For prose, scripts/british.txt adds the words that American English
spells otherwise; code keeps the names that libraries gave (`color=`, `normalize`).
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts import notebooks, prose
from scripts.repository import ROOT

# The title of a work keeps its spelling: italics that are a whole title, not a stressed word.
TITLE = re.compile(r"\*[A-Z][^*\n]{15,}\*")
BRITISH = ROOT / "scripts" / "british.txt"
# Right words that codespell takes for wrong ones, and names that examples mistype on purpose ("did you mean ...?").
RIGHT = "ans,fo,nd,notin,ot,te,pinter"
MISTYPED = "atention,blok,maks,rigth"


def write_copies(folder):
    """Write the prose, and the code of notebooks, as plain text under the names that they have here."""
    for path, text in prose.texts():
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(TITLE.sub("", prose.without_code(text)), encoding="utf8")


def misspelt(arguments, folder):
    """Run codespell in a folder; return its complaints."""
    command = [sys.executable, "-m", "codespell_lib", "--ignore-words-list", f"{RIGHT},{MISTYPED}", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout.splitlines()


def code_of(notebook):
    """Return the code of a notebook's cells."""
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")


def main():
    """Check everything."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_copies(folder)
        found = misspelt(["--dictionary", "-", "--dictionary", str(BRITISH), "."], folder)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in notebooks.paths():
            (folder / f"{path.stem}.py").write_text(code_of(notebooks.read(path)), encoding="utf8")
        found += misspelt(["."], folder)
    found += misspelt(
        ["lib", "scripts", "tests", "conftest.py", "Makefile", "_config.yml", "--skip", "*.pyc,british.txt"], ROOT
    )
    print("\n".join(found) if found else "Spelling: nothing found.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
