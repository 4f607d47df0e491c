"""Make the students' versions of the labs, and an instructor's course, from their one source.

The source of a lab is its solved version, `book/labs/solutions/NAME.ipynb`, with nbgrader's markers. nbgrader's own
preprocessors take the solutions and the hidden tests out; the rest of the student's version, `book/labs/NAME.ipynb`,
differs in its title, its badge and its links, since it stands in another folder. Its outputs come from running it.
"""

import argparse
import posixpath
import re
import sys
from pathlib import Path

from nbgrader.preprocessors import ClearHiddenTests, ClearSolutions

from scripts import notebooks, refresh_notebooks, repository
from scripts.repository import ROOT

SOLUTIONS = "book/labs/solutions"
SOLVED = " (solved)"  # at the end of the source's title
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def sources(root=ROOT):
    """Return the source of every lab, in order."""
    return sorted((Path(root) / SOLUTIONS).glob("*.ipynb"))


def student_path(source):
    """Return where the student's version of a source stands: one folder up."""
    return source.parent.parent / source.name


def student_version(source, root=ROOT):
    """Return the student's version of a source, without outputs."""
    notebook = notebooks.read(source)
    for preprocessor in (ClearSolutions(), ClearHiddenTests()):
        notebook, _ = preprocessor.preprocess(notebook, {})
    path = student_path(source)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = moved(cell.source, source.parent, path.parent)
        else:
            cell.source = cell.source.rstrip()
            cell.outputs, cell.execution_count = [], None
    for_students(notebook, path.relative_to(root).as_posix(), root)
    return notebooks.clean(notebook)


def for_students(notebook, name, root=ROOT):
    """Give the first cell the title and the badge of the student's version."""
    first = notebook.cells[0]
    first.source = first.source.replace(SOLVED, "", 1)
    first.source = repository.BADGE.sub(lambda _: repository.badge(name, root), first.source)


def moved(text, before, after):
    """Write relative links anew for a page that moves to another folder."""

    def anew(match):
        target = posixpath.normpath(posixpath.join(before.as_posix(), match[2]))
        return match[1] + posixpath.relpath(target, after.as_posix()) + match[3]

    return LINK.sub(anew, text)


def is_current(source, root=ROOT):
    """Say whether the student's version holds what its source gives; outputs are compared by running it."""
    path = student_path(source)
    if not path.exists():
        return False
    stored, fresh = notebooks.read(path), student_version(source, root)
    return [content(cell) for cell in stored.cells] == [content(cell) for cell in fresh.cells]


def content(cell):
    """Return what a cell holds apart from its outputs."""
    return cell.cell_type, cell.id, cell.source, dict(cell.metadata)


def release(source):
    """Write and run the student's version of a source; say whether the file changed."""
    path = student_path(source)
    before = path.read_text(encoding="utf8") if path.exists() else None
    new = student_version(source)
    if before is not None and is_current(source):
        new = notebooks.read(path)  # keep what is stored, and look whether its outputs still are what comes
    path.write_text(notebooks.text_of(new), encoding="utf8")
    refresh_notebooks.refresh(path)
    return path.read_text(encoding="utf8") != before


def write_course(folder, root=ROOT):
    """Write the sources as nbgrader wants them, `source/NAME/NAME.ipynb`; yield what was written.

    Title and badge are the student's, and links lead to the repository, since no other page of the book is there.
    """
    for source in sources(root):
        notebook = notebooks.read(source)
        for_students(notebook, student_path(source).relative_to(root).as_posix(), root)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = to_repository(cell.source, source.parent.relative_to(root), root)
        target = Path(folder) / "source" / source.stem / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(notebooks.text_of(notebook), encoding="utf8")
        yield target


def to_repository(text, folder, root=ROOT):
    """Make relative links lead to the repository."""
    address, branch = repository.settings(root)

    def anew(match):
        target = posixpath.normpath(posixpath.join(folder.as_posix(), match[2]))
        return f"{match[1]}{address}/blob/{branch}/{target}{match[3]}"

    return LINK.sub(anew, text)


def main():
    """Release every lab, or write a course."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="*", type=Path, help=f"sources to release (default: all in {SOLUTIONS})")
    parser.add_argument("--course", type=Path, metavar="FOLDER", help="write the sources into an nbgrader course")
    arguments = parser.parse_args()
    if arguments.course:
        for target in write_course(arguments.course):
            print(target)
        return
    wanted = [path.resolve() for path in arguments.sources] or sources()
    unknown = [path for path in wanted if path not in sources()]
    if unknown:
        sys.exit(f"sources: wanted notebooks in {SOLUTIONS}, got {unknown[0]}")
    for source in wanted:
        refresh_notebooks.refresh(source)
        changed = release(source)
        print(f"{student_path(source).relative_to(ROOT)}: {'written' if changed else 'nothing changed'}", flush=True)
    from scripts import teaching  # it needs what stands here

    teaching.main()


if __name__ == "__main__":
    main()
