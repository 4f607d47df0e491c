"""A course from beginning to end: released, handed in, graded by nbgrader."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lib import labs
from scripts import notebooks, release_labs

NAMES = [path.stem for path in release_labs.sources()]


GRADE = """
import json, sys
from nbgrader.apps import NbGraderAPI
from traitlets.config import Config

config = Config()
config.CourseDirectory.root = sys.argv[1]
config.CourseDirectory.course_id = "book"
api = NbGraderAPI(config=config)
for name in sys.argv[3:]:
    if sys.argv[2] == "release":
        done = api.generate_assignment(name, create=True)
        assert done["success"], done["log"] + done.get("error", "")
    else:
        for student in sorted(api.get_submitted_students(name)):
            done = api.autograde(name, student, create=True)
            assert done["success"], done["log"] + done.get("error", "")
with api.gradebook as book:
    if sys.argv[2] == "grade":
        grades = [book.find_assignment(name).submissions for name in sys.argv[3:]]
        print(json.dumps([[s.student.id, s.name, s.score, s.max_score] for all in grades for s in all]))
"""


def nbgrader(course, what, *names):
    """Release or grade in a process of its own; return what it prints last."""
    environment = {
        **os.environ,
        "HOME": str(course),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # nbgrader runs `alembic`
    }
    command = [sys.executable, "-c", GRADE, str(course), what, *names]
    ran = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.strip().rpartition("\n")[2]


def solved(name):
    """Return the cells of the lab's solution by their names in nbgrader."""
    cells = notebooks.read(next(path for path in release_labs.sources() if path.stem == name)).cells
    return {cell.metadata.nbgrader.grade_id: cell.source for cell in cells if "nbgrader" in cell.metadata}


def hand_in(course, student, name, answers):
    """Hand in a released lab with answers in the place of some stubs."""
    notebook = notebooks.read(course / "release" / name / f"{name}.ipynb")
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") in answers:
            cell.source = answers[cell.metadata.nbgrader.grade_id]
    target = course / "submitted" / student / name / f"{name}.ipynb"
    target.parent.mkdir(parents=True)
    target.write_text(notebooks.text_of(notebook), encoding="utf8")


def half(name):
    """Return answers to the first half of the exercises, and how many points they are worth."""
    cells = solved(name)
    answers = [grade_id for grade_id, source in cells.items() if "### BEGIN SOLUTION" in source]
    answers = answers[: len(answers) // 2]
    worth = 0
    for exercise in labs.EXERCISES.values():
        source = next((s for s in cells.values() if f'labs.check("{exercise.name}"' in s), "")
        defined = any(f"def {exercise.name}(" in cells[grade_id] for grade_id in answers)
        worth += exercise.points if source and defined else 0
    return {grade_id: cells[grade_id] for grade_id in answers}, worth


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """Release every lab, hand each in three times, and grade."""
    folder = tmp_path_factory.mktemp("course")
    list(release_labs.write_course(folder))
    nbgrader(folder, "release", *NAMES)
    for name in NAMES:
        hand_in(folder, "solves", name, solved(name))
        hand_in(folder, "sleeps", name, {})
        hand_in(folder, "halves", name, half(name)[0])
    grades = json.loads(nbgrader(folder, "grade", *NAMES))
    return folder, {(student, name): (score, most) for student, name, score, most in grades}


def score(course, student, name):
    return course[1][student, name]


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_gets_full_marks(course, name):
    got, most = score(course, "solves", name)
    assert got == most > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_untouched_version_gets_nothing(course, name):
    assert score(course, "sleeps", name)[0] == 0


@pytest.mark.parametrize("name", NAMES)
def test_half_of_the_answers_get_their_part(course, name):
    got, most = score(course, "halves", name)
    assert got == half(name)[1]
    assert 0 < got < most


@pytest.mark.parametrize("name", NAMES)
def test_what_nbgrader_releases_is_what_the_book_shows(course, name):
    released = notebooks.read(course[0] / "release" / name / f"{name}.ipynb")
    source = next(path for path in release_labs.sources() if path.stem == name)
    shown = notebooks.read(release_labs.student_path(source))
    links = re.compile(r"\]\([^)]*\)")
    assert [links.sub("", cell.source).rstrip() for cell in released.cells] == [
        links.sub("", cell.source).rstrip() for cell in shown.cells
    ]
