"""Start a notebook with the parts that every chapter has (badge, bootstrap cell, objectives, self-check, summary)."""

import argparse
import sys
from pathlib import Path

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from scripts import notebooks, repository
from scripts.repository import ROOT

OPENING = """One sentence that says what this page lets you do.

**After this page you can**

- ...

*20 minutes. Builds on [the equation](equation.ipynb).*"""

QUESTION = """<details>
<summary>A question?</summary>

The answer, and why each other answer is wrong.

</details>"""

CLOSING = f"""## Check yourself

{chr(10).join([QUESTION + chr(10)] * 3)}
## In one minute

- ..."""


def page(name, title):
    """Return a new notebook with the bones of a chapter."""
    heading, setup = repository.first_cells(name, title)
    return new_notebook(
        cells=[
            new_markdown_cell(f"{heading}\n\n{OPENING}"),
            new_code_cell(setup, metadata={"tags": ["remove-cell"]}),
            new_code_cell("import numpy as np\n\nfrom lib import reference"),
            new_markdown_cell("## A question\n\n**Before you run the cell:** what will come out?"),
            new_code_cell("print(reference.softmax(np.array([0.0, 0.0])))"),
            new_markdown_cell(CLOSING),
        ]
    )


def main():
    """Write the notebook, unless the file is there already."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="for example book/masks.ipynb")
    parser.add_argument("title", help="for example 'Masks: who may see whom'")
    arguments = parser.parse_args()
    path = arguments.path.resolve()
    if path.exists():
        sys.exit(f"path: wanted a new file, but {arguments.path} exists")
    new = page(path.relative_to(ROOT).as_posix(), arguments.title)
    path.write_text(notebooks.text_of(notebooks.clean(new)), encoding="utf8")
    print(f"{arguments.path} is written. Next: add it to _toc.yml, then make refresh NB={arguments.path}")


if __name__ == "__main__":
    main()
