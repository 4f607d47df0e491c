"""Every exercise on answers as students give them: right ones pass in any style, wrong ones are named."""

import dataclasses

import pytest

from lib import labs
from lib.labs import running
from lib.labs.report import WIDTH
from tests.labs import masks_and_leaks, softmax_and_attention, write_the_tests

MODULES = (softmax_and_attention, masks_and_leaks, write_the_tests)
ENOUGH_RIGHT, ENOUGH_WRONG, SHARE = 4, 6, 0.9

FUNCTIONS = {name: thing for module in MODULES for name, thing in vars(module).items() if callable(thing)}
CHECKED = [name for name in labs.EXERCISES if any(f.startswith(f"{name}__") for f in FUNCTIONS)]
RIGHT = [name for name in FUNCTIONS if name.partition("__")[0] in CHECKED]
WRONG = [name for name in FUNCTIONS if name.removeprefix("wrong_").partition("__")[0] in CHECKED and name not in RIGHT]


def exercise_of(name):
    return name.removeprefix("wrong_").partition("__")[0]


def mistake_of(name):
    return name.split("__")[1]


@pytest.fixture(scope="module")
def judged():
    """Judge every wrong answer once; what hangs need not hang for long."""
    results = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in WRONG:
            patch.setattr(running, "SECONDS", 0.5 if mistake_of(name) == "hangs" else 30.0)
            results[name] = labs.EXERCISES[exercise_of(name)].judge(FUNCTIONS[name])
    return results


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("seed", [0, 2026])
def test_a_right_answer_gets_full_points_in_any_style(name, seed):
    exercise = labs.EXERCISES[exercise_of(name)]
    result = exercise.judge(FUNCTIONS[name], seed)
    assert result.ok, result.text
    assert result.points == exercise.points
    lines = [line for line in result.text.splitlines() if not line.startswith("(")]
    assert len(lines) <= 2 and max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_rejected(judged, name):
    result = judged[name]
    assert not result.ok
    assert result.points < result.out_of
    assert "Traceback" not in result.text


@pytest.mark.parametrize("name", CHECKED)
def test_wrong_answers_are_named(judged, name):
    named = {wrong: judged[wrong].mistake == mistake_of(wrong) for wrong in WRONG if exercise_of(wrong) == name}
    missed = [f"{wrong}: {judged[wrong].mistake}" for wrong, right in named.items() if not right]
    assert sum(named.values()) >= SHARE * len(named), missed


@pytest.mark.parametrize("name", CHECKED)
def test_there_are_enough_answers(name):
    assert sum(exercise_of(right) == name for right in RIGHT) >= ENOUGH_RIGHT
    assert sum(exercise_of(wrong) == name for wrong in WRONG) >= ENOUGH_WRONG


def test_every_exercise_has_answers():
    assert set(labs.EXERCISES) == set(CHECKED)


@pytest.mark.parametrize("name", [name for name in CHECKED if isinstance(labs.EXERCISES[name], labs.Exercise)])
def test_every_known_mistake_is_rejected_and_named(name):
    exercise = labs.EXERCISES[name]
    for mistake in exercise.mistakes:
        result = exercise.judge(dataclasses.replace(mistake).does)
        assert not result.ok, mistake.name
        assert result.mistake == mistake.name
        assert mistake.words[-1] == "." and mistake.hint[-1] in ".?"
