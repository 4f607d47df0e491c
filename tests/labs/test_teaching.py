"""The page for teachers says what the labs and their checkers say."""

import re

import pytest

from lib import labs
from lib.labs import softmax_and_attention
from scripts import notebooks, release_labs, teaching
from scripts.repository import ROOT
from tests.labs import masks_and_leaks as answers

TEXT = (ROOT / teaching.PAGE).read_text(encoding="utf8")


def test_its_tables_are_current():
    assert teaching.written(TEXT) == TEXT, "run: make labs"


def test_every_exercise_is_listed_once():
    listed = [name for *_, exercises in teaching.all_labs() for *_, name in exercises]
    assert sorted(listed) == sorted(labs.EXERCISES)


def test_minutes_and_points_are_the_labs():
    row = re.search(r"\| \[Lab 1: .*?\| (\d+) \| (\d+) \|", TEXT)
    exercises = softmax_and_attention.EXERCISES
    source = next(path for path in release_labs.sources() if path.stem == "softmax_and_attention")
    text = "\n".join(cell.source for cell in notebooks.read(source).cells)
    minutes = sum(int(n) for n in re.findall(r"^\*Difficulty \d of 5 · (\d+) minutes", text, re.MULTILINE))
    assert (int(row[1]), int(row[2])) == (minutes, sum(exercise.points for exercise in exercises))


def test_its_words_are_those_that_a_student_reads():
    said = labs.EXERCISES["masked_softmax"].judge(answers.wrong_masked_softmax__mask_inverted).text
    said = " ".join(said.split())
    words = re.search(r"Looks like: (.*?) Hint: (.*?)(?: Holds already|$)", said)
    assert f"- {words[1][0].upper()}{words[1][1:]} *{words[2]}*" in TEXT


@pytest.mark.parametrize("old", ["<!-- timing -->", "<!-- end of mistakes -->"])
def test_a_lost_place_for_a_table_is_seen(old):
    with pytest.raises(ValueError, match=r"teaching\.md: wanted one '<!-- "):
        teaching.written(TEXT.replace(old, ""))


def test_a_changed_word_is_seen():
    assert teaching.written(TEXT.replace("True hides where it should allow", "it hides")) == TEXT


def test_the_course_in_the_page_is_nbgraders():
    commands = re.findall(r"^nbgrader (\w+)", TEXT, re.MULTILINE)
    assert commands == ["generate_assignment", "autograde", "generate_feedback", "export"]
    assert "labs.check(" in TEXT and "seed=" in TEXT
