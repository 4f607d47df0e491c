"""The rules of the book's notebooks: what running them cannot show.

Each rule is a function that takes a Page and yields its complaints. They close the holes of a comparison by execution
(cleared outputs, counts out of order, warnings), and keep the pages readable everywhere: alone, on Colab, by a screen
reader. `python -m scripts.notebook_rules book/equation.ipynb` checks one notebook.
"""

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat

from scripts import notebooks, prose_numbers, repository
from scripts.repository import ROOT

MIME_TYPES = {"text/plain", "text/html", "text/markdown", "text/latex", "image/png"}
TAGS = {"remove-cell", "hide-input", "hide-output", "hide-cell"}
HTML_TAGS = {"details", "summary", "br", "sub", "sup", "kbd", "em", "strong", "code"}
LARGEST = 1_000_000  # bytes
SHORTEST_ALT = 40  # characters
# What each exercise of a lab has, in this order.
PARTS_OF_AN_EXERCISE = {
    "'*Difficulty D of 5 · M minutes · Chapter: [...](...)*'": (
        r"^\*Difficulty [1-5] of 5 · \d+ minutes · Chapter: \[.+\)\*$"
    ),
    "'**Goal.**'": r"^\*\*Goal\.\*\* ",
    "a stub with a docstring": r'^def \w+\([^)]*\):\n    """\w',
    "the gap, '# YOUR CODE HERE' or a solution": r"# YOUR CODE HERE|### BEGIN SOLUTION",
    "'Hint 1', folded": r"^<details>\n<summary>Hint 1: ",
    "'Hint 2', folded": r"^<details>\n<summary>Hint 2: ",
    "the check": r"^labs\.check\(",
    "'**Stretch.**'": r"^\*\*Stretch\.\*\* ",
}
# (notebook, cell id) -> why that cell's output may go uncompared. Nothing so far.
UNCOMPARED = {}


@dataclass
class Page:
    """One notebook and where it is."""

    path: Path
    notebook: nbformat.NotebookNode
    root: Path = ROOT

    @property
    def name(self):
        """The notebook's path in the repository."""
        return self.path.relative_to(self.root).as_posix()

    @property
    def is_chapter(self):
        """Whether the page teaches; the intro and the labs have forms of their own."""
        return self.path.parent.name == "book" and self.path.stem != "intro"

    @property
    def is_lab(self):
        """Whether the page is a lab, as students get it or solved."""
        return "labs" in self.path.relative_to(self.root).parts

    def cells(self, kind):
        """Return the cells of a kind with their place in the notebook."""
        return [(place, cell) for place, cell in enumerate(self.notebook.cells) if cell.cell_type == kind]

    @property
    def code(self):
        """Every code cell with its place."""
        return self.cells("code")

    @property
    def prose(self):
        """Every Markdown cell with its place."""
        return self.cells("markdown")

    @property
    def text(self):
        """All prose of the page."""
        return "\n\n".join(cell.source for _, cell in self.prose)


def read(path, root=ROOT):
    """Read a notebook as a page."""
    path = Path(path).resolve()
    return Page(path, notebooks.read(path), Path(root).resolve())


# How a notebook is stored


def is_valid(page):
    """The file follows the notebook format, and every cell has an id of its own."""
    raw = nbformat.reads(page.path.read_text(encoding="utf8"), as_version=nbformat.NO_CONVERT)
    if (raw.nbformat, raw.nbformat_minor) != (4, 5):
        yield f"notebook format is {raw.nbformat}.{raw.nbformat_minor}, wanted 4.5 (make refresh writes it)"
        return
    try:
        nbformat.validate(raw)
    except nbformat.ValidationError as error:
        yield f"not a valid notebook: {str(error).splitlines()[0]}"
    ids = [cell.get("id") for cell in raw.cells]
    if len(set(ids)) != len(ids):
        yield "two cells have the same id"


def kernel_is_python3(page):
    """The kernel is `python3`, the one that every installation has."""
    kernel = page.notebook.metadata.get("kernelspec", {}).get("name")
    if kernel != "python3":
        yield f"the kernel is {kernel!r}, wanted 'python3'"


def metadata_is_clean(page):
    """No time stamps, versions or editor's notes: they change without a reason."""
    extra = sorted(set(page.notebook.metadata) - notebooks.NOTEBOOK_KEYS)
    if extra:
        yield f"notebook metadata holds {', '.join(extra)} (make refresh removes it)"
    if page.notebook.metadata.get("language_info", notebooks.LANGUAGE) != notebooks.LANGUAGE:
        yield "language_info names a version of Python (make refresh removes it)"
    for place, cell in enumerate(page.notebook.cells):
        extra = sorted(set(cell.metadata) - notebooks.CELL_KEYS)
        if extra:
            yield f"cell {place}: metadata holds {', '.join(extra)} (make refresh removes it)"
        for tag in cell.metadata.get("tags", []):
            if tag not in TAGS and not tag.startswith(("nbval", "raises")):
                yield f"cell {place}: tag {tag!r} is none of {', '.join(sorted(TAGS))}"


def names_no_machine(page):
    """Nothing in the file names a folder or an address in memory of the machine that ran it."""
    pattern = re.compile(
        r"(?<![\w.])/(?:home|root|tmp|Users|usr|opt|work|var|mnt)/\w+|site-packages|0x[0-9a-f]{6,}|[A-Z]:\\\\Users"
    )
    for place, cell in page.code:
        for output in cell.outputs:
            words = prose_numbers.text_of_output(output) + "\n".join(output.get("traceback", []))
            for found in pattern.findall(words)[:1]:
                yield f"cell {place}: the output shows {found!r}, which is another on each machine"


def is_small(page):
    """The file is small enough to open on a phone."""
    size = page.path.stat().st_size
    if size > LARGEST:
        yield f"the file has {size} bytes, wanted at most {LARGEST}"


# What running it cannot show


def outputs_are_complete(page):
    """Every code cell was run, once, from top to bottom."""
    for wanted, (place, cell) in enumerate(page.code, start=1):
        if not cell.source.strip():
            yield f"cell {place}: an empty code cell"
        if cell.execution_count is None:
            yield f"cell {place}: not executed, its outputs are cleared (make refresh runs it)"
        elif cell.execution_count != wanted:
            yield f"cell {place}: execution count {cell.execution_count} is out of order, wanted {wanted}"
        for output in cell.outputs:
            if output.get("execution_count", cell.execution_count) != cell.execution_count:
                yield f"cell {place}: an output has another execution count ({output.execution_count}) than its cell"


def output_is_calm(page):
    """No warning, no traceback, nothing but text and PNG figures."""
    for place, cell in page.code:
        for output in cell.outputs:
            if output.output_type == "error":
                yield f"cell {place}: stores an error ({output.ename}); catch it and print what it says"
            elif output.get("name") == "stderr":
                yield f"cell {place}: writes to stderr: {output.text.strip().splitlines()[-1][:80]!r}"
            for kind in sorted(set(output.get("data", {})) - MIME_TYPES):
                yield f"cell {place}: an output of type {kind}, wanted text or PNG"


def everything_is_compared(page):
    """No cell asks the comparison to look away."""
    for place, cell in page.code:
        marks = re.findall(r"#\s*((?:NBVAL|PYTEST_VALIDATE)_\w+)", cell.source)
        marks += [tag for tag in cell.metadata.get("tags", []) if tag.startswith(("nbval", "raises"))]
        if marks and (page.name, cell.id) not in UNCOMPARED:
            yield f"cell {place}: {marks[0]} takes its output out of the comparison"


# What a reader meets


def opens_with_badge(page):
    """The first cell is the title with the badge that _config.yml gives."""
    first = page.notebook.cells[0] if page.notebook.cells else None
    if first is None or first.cell_type != "markdown" or not first.source.startswith("# "):
        yield "the first cell is not a title ('# ...')"
        return
    wanted, given = repository.badge(page.name, page.root), repository.BADGE.findall(first.source)
    if given != [wanted]:
        yield f"the badge is {given[0] if given else 'missing'}, wanted {wanted} (make set-repository writes it)"


def sets_up_colab(page):
    """The second cell is the bootstrap cell that _config.yml gives; the book does not show it."""
    second = page.notebook.cells[1] if len(page.notebook.cells) > 1 else None
    if second is None or second.cell_type != "code" or second.source != repository.bootstrap(page.root):
        yield "the second cell is not the bootstrap cell for the address in _config.yml (make set-repository writes it)"
    elif "remove-cell" not in second.metadata.get("tags", []):
        yield "the bootstrap cell lacks the tag 'remove-cell'"


def figures_have_alt_text(page):
    """Every figure says in words what is to be seen: one figure a cell, `mystnb.image.alt` in its metadata."""
    for place, cell in page.code:
        count = sum("image/png" in output.get("data", {}) for output in cell.outputs)
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        if count > 1:
            yield f"cell {place}: {count} figures in one cell, wanted one, so that each has its own alt text"
        if count and not alt:
            yield f"cell {place}: a figure without alt text (metadata mystnb.image.alt)"
        elif count and (len(alt) < SHORTEST_ALT or re.search(r"\.(png|svg|jpe?g)\b", alt)):
            yield f"cell {place}: alt text {alt!r} says too little; say what is to be seen, with its decisive numbers"
    for place, cell in page.prose:
        for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", cell.source):
            if len(alt) < SHORTEST_ALT:
                yield f"cell {place}: the image {target} has alt text {alt!r}, wanted {SHORTEST_ALT} characters or more"


def numbers_are_computed(page):
    """Every decimal in prose and alt text is shown by a cell of this notebook, or cited (see scripts.prose_numbers)."""
    shown = prose_numbers.shown(page.notebook)
    drawn = prose_numbers.with_roundings(shown)
    for place, cell in enumerate(page.notebook.cells):
        text, where, numbers = cell.source, "prose", shown
        if cell.cell_type != "markdown":
            text, where, numbers = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", ""), "alt text", drawn
        cited = cell.metadata.get("book", {}).get("cited", {})
        for number, reason in cited.items():
            if len(str(reason)) < 10:
                yield f"cell {place}: the cited number {number} needs a reason in the metadata"
        for number in prose_numbers.unsupported(text, numbers, cited):
            yield f"cell {place}: the number {number} in the {where} appears in no cell of this notebook"


def is_plain_markdown(page):
    """Markdown, `<details>` and math only, so that Colab shows what the book shows."""
    forbidden = {
        r"^\s*(?:`{3,}|~{3,}|:{3,})\s*\{": "a MyST directive",
        r"^\s*:{3,}": "a MyST directive",
        r"\{[a-zA-Z][\w:.+-]*\}`": "a MyST role",
        r"^\([\w-]+\)=\s*$": "a MyST target",
        r"^\$\$\s*\([\w:-]+\)": "an equation label",
        r"^\+\+\+": "a MyST block break",
        r"\{\{.*\}\}": "a MyST substitution",
        r"\]\(attachment:": "an attachment",
    }
    for place, cell in page.prose:
        prose = re.sub(r"(?ms)^\s*```(?!\s*\{).*?^\s*```", "", cell.source)
        for pattern, what in forbidden.items():
            if re.search(pattern, prose, re.MULTILINE):
                yield f"cell {place}: {what}, which Colab does not show"
        without_code = re.sub(r"`[^`\n]*`|\$[^$]*\$", "", prose)
        for tag in sorted(set(re.findall(r"</?([a-zA-Z][\w-]*)[\s/>]", without_code)) - HTML_TAGS):
            yield f"cell {place}: the HTML tag <{tag}>, wanted one of {', '.join(sorted(HTML_TAGS))}"
        if re.search(r"</summary>[^\S\n]*\n[^\S\n]*\S", prose):
            yield f"cell {place}: the line after </summary> must be empty, or its Markdown is not rendered"


def headings_are_plain(page):
    """One title, levels in steps of one, no math (it breaks the sidebar)."""
    level = 0
    for place, cell in page.prose:
        prose = re.sub(r"(?ms)^\s*```.*?^\s*```", "", cell.source)
        for marks, heading in re.findall(r"^(#{1,6})\s+(.+)$", prose, re.MULTILINE):
            if "$" in heading:
                yield f"cell {place}: math in the heading {heading!r}"
            if len(marks) == 1 and level:
                yield f"cell {place}: a second title {heading!r}"
            if len(marks) > level + 1:
                yield f"cell {place}: the heading {heading!r} skips a level"
            level = len(marks)


def has_the_bones(page):
    """A chapter has the parts that readers find on every page."""
    opening = "\n".join(cell.source for place, cell in page.prose if place <= 3)
    if "after this page you can" not in opening.lower():
        yield "the first screen does not say 'After this page you can'"
    if not re.search(r"\b\d+\s+minutes\b", opening):
        yield "the first screen does not say how many minutes the page takes"
    if not page.is_chapter:
        return
    headings = re.findall(r"^## +(.+?)\s*$", page.text, re.MULTILINE)
    for wanted in ("Check yourself", "In one minute"):
        if wanted not in headings:
            yield f"the section '## {wanted}' is missing"
    questions = page.text.partition("## Check yourself")[2].partition("\n## ")[0]
    if questions.count("<details>") < 3:
        yield f"'Check yourself' has {questions.count('<details>')} folded answers, wanted three or more"
    if page.text.count("<details>") != page.text.count("</details>"):
        yield "a <details> is not closed"


def has_the_exercises_of_a_lab(page):
    """A lab is made of exercises, each with the same parts, in the same order."""
    if not page.is_lab:
        return
    whole = "\n".join(cell.source for cell in page.notebook.cells)
    exercises = re.findall(r"(?ms)^## Exercise (\d+): [^\n]+\n(.*?)(?=^## |\Z)", whole)
    if [int(number) for number, _ in exercises] != list(range(1, len(exercises) + 1)) or not exercises:
        yield f"exercises are numbered {[int(number) for number, _ in exercises]}, wanted 1, 2, 3 and so on"
    for number, text in exercises:
        place = 0
        for what, pattern in PARTS_OF_AN_EXERCISE.items():
            found = re.compile(pattern, re.MULTILINE).search(text, place)
            if not found:
                yield f"exercise {number}: {what} is missing, or not at its place"
                break
            place = found.end()
    minutes = sum(int(n) for n in re.findall(r"^\*Difficulty [1-5] of 5 · (\d+) minutes", whole, re.MULTILINE))
    stated = re.search(r"\b(\d+)\s+minutes\b", whole)
    if stated and not minutes <= int(stated[1]) <= 2 * minutes:
        yield f"the lab states {stated[1]} minutes, its exercises take {minutes} together"


RULES = (
    is_valid,
    kernel_is_python3,
    metadata_is_clean,
    names_no_machine,
    is_small,
    outputs_are_complete,
    output_is_calm,
    everything_is_compared,
    opens_with_badge,
    sets_up_colab,
    figures_have_alt_text,
    numbers_are_computed,
    is_plain_markdown,
    headings_are_plain,
    has_the_bones,
    has_the_exercises_of_a_lab,
)


def complaints(page):
    """Return everything that the rules have to say about a page."""
    return [f"{page.name}: {complaint} [{rule.__name__}]" for rule in RULES for complaint in rule(page)]


def main():
    """Check the notebooks named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "notebooks", nargs="*", type=Path, help="notebooks to check (default: every notebook of the book)"
    )
    paths = parser.parse_args().notebooks or notebooks.paths()
    found = [complaint for path in paths for complaint in complaints(read(path))]
    print("\n".join(found) if found else f"{len(paths)} notebooks keep all {len(RULES)} rules.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
