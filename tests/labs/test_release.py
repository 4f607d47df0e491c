"""The students' versions come from their sources, and nothing of a solution comes along."""

import re
import shutil

import pytest
from nbformat.v4 import new_code_cell

from lib import labs
from scripts import notebook_rules, notebooks, release_labs, repository
from scripts.repository import ROOT

SOURCES = release_labs.sources()
FIRST = next(path for path in SOURCES if path.stem == "softmax_and_attention")
MARKERS = re.compile(r"BEGIN SOLUTION|END SOLUTION|HIDDEN TESTS")


def ids(path):
    return path.stem


def gaps(notebook):
    """Return, for every cell with a solution, the lines between the markers."""
    for cell in notebook.cells:
        for text in re.findall(r"### BEGIN (?:SOLUTION|HIDDEN TESTS)\n(.*?)### END", cell.source, re.DOTALL):
            yield cell, [line.strip() for line in text.splitlines() if line.strip()]


def test_there_are_labs():
    assert SOURCES
    assert {path.name for path in (ROOT / "book/labs").glob("*.ipynb")} == {path.name for path in SOURCES}


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_the_students_version_is_current(source):
    assert release_labs.is_current(source), "run: make labs"


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_no_solution_leaks(source):
    path = release_labs.student_path(source)
    text = path.read_text(encoding="utf8")
    assert not MARKERS.search(text)
    student = notebooks.read(path)
    given = {line.strip() for cell in student.cells for line in cell.source.splitlines()}
    solved = list(gaps(notebooks.read(source)))
    assert solved
    for cell, lines in solved:
        assert [line for line in lines if line in given] == [], cell.id
    for cell in student.cells:
        assert all("right" not in output.get("text", "") for output in cell.get("outputs", [])), cell.id


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_only_the_first_cell_of_a_students_version_leads_to_solutions(source):
    cells = notebooks.read(release_labs.student_path(source)).cells
    assert [n for n, cell in enumerate(cells) if "(solutions/" in cell.source] == [0]
    assert cells[0].source.count("(solutions/") == 1


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_an_untouched_version_is_calm(source):
    for cell in notebooks.read(release_labs.student_path(source)).cells:
        for output in cell.get("outputs", []):
            assert output.output_type == "stream" and output.name == "stdout"
        if "labs.check(" in cell.source:
            assert all("not written yet" in output.text for output in cell.outputs)


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_the_solution_is_right(source):
    checks = [cell for cell in notebooks.read(source).cells if "labs.check(" in cell.source]
    for cell in checks:
        said = "".join(output.text for output in cell.outputs)
        assert said.count(": right") == cell.source.count("labs.check("), said


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_nbgraders_metadata_fit_the_exercises(source):
    cells = notebooks.read(source).cells
    marked = [cell for cell in cells if "nbgrader" in cell.metadata]
    names = [cell.metadata.nbgrader.grade_id for cell in marked]
    assert len(set(names)) == len(names)
    checked = []
    for cell in cells:
        about = cell.metadata.get("nbgrader", {})
        assert about.get("schema_version", 3) == 3
        assert bool(about.get("solution")) == ("### BEGIN SOLUTION" in cell.source), cell.id
        assert bool(about.get("grade")) == (cell.cell_type == "code" and "labs.check(" in cell.source), cell.id
        if about.get("grade"):
            (name,) = set(re.findall(r'labs\.check\("(\w+)"', cell.source))
            assert about.locked and about.points == labs.EXERCISES[name].points, name
            checked.append(name)
    assert checked and len(set(checked)) == len(checked)


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_the_stub_takes_what_the_check_hands_over(source):
    for cell in notebooks.read(source).cells:
        for name, arguments in re.findall(r"^def (\w+)\(([^)]*)\):", cell.source, re.MULTILINE):
            exercise = labs.EXERCISES.get(name)
            if isinstance(exercise, labs.Exercise):
                (_, calls), *_ = exercise.asked(0)
                assert [word.split("=")[0].strip() for word in arguments.split(",")] == list(calls[0].arguments)


# Tests of the tests: what must not pass does not


@pytest.fixture
def copy(tmp_path):
    """Return a copy of the first lab, in a repository of its own."""
    shutil.copy(ROOT / "_config.yml", tmp_path)
    for path in (FIRST, release_labs.student_path(FIRST)):
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return tmp_path / FIRST.relative_to(ROOT)


def change(path, place, **what):
    notebook = notebooks.read(path)
    for name, value in what.items():
        setattr(notebook.cells[place], name, value)
    path.write_text(notebooks.text_of(notebook), encoding="utf8")


def test_a_changed_source_is_seen(copy):
    assert release_labs.is_current(copy, copy.parents[3])
    change(copy, 2, source="Another introduction.")
    assert not release_labs.is_current(copy, copy.parents[3])


def test_an_edited_student_version_is_seen(copy):
    change(release_labs.student_path(copy), -1, source="Another end.")
    assert not release_labs.is_current(copy, copy.parents[3])


def test_a_missing_student_version_is_seen(copy):
    release_labs.student_path(copy).unlink()
    assert not release_labs.is_current(copy, copy.parents[3])


def test_a_solution_in_an_unmarked_cell_is_refused(copy):
    notebook = notebooks.read(copy)
    notebook.cells.append(new_code_cell("### BEGIN SOLUTION\nx = 1\n### END SOLUTION"))
    copy.write_text(notebooks.text_of(notebook), encoding="utf8")
    with pytest.raises(RuntimeError, match="Solution region detected in a non-solution cell"):
        release_labs.student_version(copy, copy.parents[3])


def test_links_move_with_the_page():
    before, after = ROOT / "book/labs/solutions", ROOT / "book/labs"
    text = "[a](../../equation.ipynb#scale) [b](../lab.ipynb) [c](lab.ipynb) [d](https://x.org/y) [e](#here)"
    moved = "[a](../equation.ipynb#scale) [b](lab.ipynb) [c](solutions/lab.ipynb) [d](https://x.org/y) [e](#here)"
    assert release_labs.moved(text, before, after) == moved


def test_a_course_has_the_students_badge_and_links_that_lead_somewhere(tmp_path):
    written = list(release_labs.write_course(tmp_path))
    assert [path.relative_to(tmp_path).as_posix() for path in written] == [
        f"source/{path.stem}/{path.name}" for path in SOURCES
    ]
    address, _ = repository.settings()
    for path in written:
        first = notebooks.read(path).cells[0].source
        assert f"/book/labs/{path.name})" in first.splitlines()[2]
        assert release_labs.SOLVED not in first
        for target in re.findall(r"\]\(([^)]+)\)", first):
            assert target.startswith("https://")
            if target.startswith(f"{address}/blob/main/"):
                assert (ROOT / target.removeprefix(f"{address}/blob/main/").partition("#")[0]).exists()


# The rule of labs


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("## Exercise 2:", "## Exercise 3:", "exercises are numbered [1, 3, 3, 4]"),
        ("*Difficulty 2 of 5", "*Difficulty 6 of 5", "'*Difficulty D of 5"),
        ("**Goal.**", "Goal.", "'**Goal.**' is missing"),
        ("<summary>Hint 2:", "<summary>Then:", "'Hint 2', folded is missing"),
        ("labs.check(", "print(", "the check is missing"),
        ("**Stretch.**", "More.", "'**Stretch.**' is missing"),
        ('"""Turn', "'''Turn", "a stub with a docstring is missing"),
        ("*60 minutes", "*20 minutes", "the lab states 20 minutes, its exercises take 50 together"),
    ],
)
def test_the_rule_of_labs_sees_what_is_missing(copy, old, new, complaint):
    notebook = notebooks.read(copy)
    for cell in notebook.cells:
        cell.source = cell.source.replace(old, new)
    copy.write_text(notebooks.text_of(notebook), encoding="utf8")
    page = notebook_rules.read(copy, copy.parents[3])
    assert complaint in "\n".join(notebook_rules.has_the_exercises_of_a_lab(page))
