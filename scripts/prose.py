"""The prose of the project, file by file: Markdown pages, and the Markdown cells of notebooks."""

import re

from scripts import notebooks
from scripts.repository import ROOT

FENCE = re.compile(r"(?ms)^[ \t]*(`{3,}|~{3,}).*?^[ \t]*\1[ \t]*$")


def markdown_files(root=ROOT):
    """Return every Markdown page of the repository."""
    return sorted([*root.glob("*.md"), *(root / "book").rglob("*.md")])


def texts(root=ROOT):
    """Yield (path, Markdown) for every page; a notebook gives its Markdown cells, an empty line between them."""
    for path in markdown_files(root):
        yield path, path.read_text(encoding="utf8")
    for path in notebooks.paths(root):
        cells = notebooks.read(path).cells
        yield path, "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def without_code(text):
    """Blank out fenced blocks, code spans, math and the addresses of links; lines stay where they are."""
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])  # noqa: E731
    for pattern in (FENCE, r"`[^`\n]*`", r"(?s)\$\$.*?\$\$", r"\$[^$\n]*\$", r"(?<=\])\([^)]*\)", r"<?https?://\S+"):
        text = re.sub(pattern, blank, text)
    return text
