"""Lab 3's judge: the bugs are alive, right attentions are right, and the board says what it should and no more."""

import numpy as np
import pytest

from lib import labs
from lib.labs import running, write_the_tests
from lib.labs.report import WIDTH
from lib.labs.right_ways import RIGHT_WAYS
from lib.verify import catalogue, check_attention
from tests.labs import write_the_tests as answers

TRIALS = write_the_tests.EXERCISES
BUGS = [bug for trial in TRIALS for bug in trial.bugs]


def test_the_bugs_are_numpys_and_each_is_asked_for_once():
    assert len({bug.name for bug in BUGS}) == len(BUGS) == 30
    assert all("numpy" in catalogue[bug.name].frameworks and not catalogue[bug.name].conventions for bug in BUGS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_hint_does_not_name_its_bug(bug):
    assert bug.name not in bug.hint and bug.hint[-1] in ".?"


@pytest.mark.parametrize("way", RIGHT_WAYS, ids=lambda way: way.__name__)
def test_right_ways_are_right(way):
    properties = ["equation", "axis", "sum to one", "mask", "masked zero", "empty rows", "causal", "extreme scores"]
    properties += ["shape and dtype", "inputs untouched", "batch and heads", "weights", "mask broadcasting"]
    report = check_attention(way, properties=properties)
    assert report.ok, str(report)
    assert not report.not_tested


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_every_slip_is_met_by_an_answer(trial):
    made = {n.split("__")[1] for n in vars(answers) if n.startswith(f"wrong_{trial.name}__")}
    assert {slip.name for slip in trial.slips} <= made
    for slip in trial.slips:
        assert slip.words[-1] == "." and slip.hint[-1] in ".?"


def test_the_board_keeps_the_names_of_living_bugs():
    text = labs.EXERCISES["test_equation"].judge(answers.wrong_test_equation__equal_scores__card).text
    caught, _, alive = text.partition("Still alive:")
    assert "not_normalised" in caught and "bug 5: What happens between the product and the softmax?" in alive
    assert "unscaled" not in text
    assert max(map(len, text.splitlines())) <= WIDTH


ALARM = """\
test_masks: not right yet. A false alarm: 0 of 8 points.

Your test fails for an attention that is right:
    from lib.labs.right_ways import by_the_book
    test_masks(by_the_book)
(by_the_book: Compute attention as the book does. Your test fails for 4 more.)
It stops in wrong_test_masks__expects_a_bug__inverted, line 2:
    assert np.allclose(attention(*CARD, mask=np.array([[True, False]])), 8)
AssertionError: (no text)

Looks like: your test is content with a broken attention. The mask is used the other
  way round: True hides where it should allow.

Hint: Work your expectation out on paper, for two keys. Which step of the equation
  is another there?"""


def test_a_false_alarm_is_told_by_its_variant_and_its_words():
    result = labs.EXERCISES["test_masks"].judge(answers.wrong_test_masks__expects_a_bug__inverted)
    assert result.text == ALARM and result.points == 0


def test_a_false_alarm_in_one_right_attention_costs_all_points():
    def test_equation(attention):
        answers.test_equation__oracle(attention)
        arrays = answers.some(40, 40, 4, 2)
        assert np.array_equal(attention(*arrays), RIGHT_WAYS[0](*arrays))

    result = labs.EXERCISES["test_equation"].judge(test_equation)
    assert (result.points, result.mistake) == (0, "too_exact")
    assert "by_the_book" not in result.text.split("import ")[1].split("\n")[0]


def test_a_test_cannot_tell_attentions_by_anything_but_results():
    seen = []

    def test_equation(attention):
        seen.append((attention.__name__, attention.__module__, attention.__doc__))

    labs.EXERCISES["test_equation"].judge(test_equation)
    assert len(seen) > len(RIGHT_WAYS) and len(set(seen)) == 1


def test_a_hang_with_a_broken_attention_only_is_cut_off(monkeypatch):
    monkeypatch.setattr(running, "SECONDS", 0.3)

    def test_equation(attention):
        while not np.allclose(attention(*answers.CARD), 5):
            pass

    result = labs.EXERCISES["test_equation"].judge(test_equation)
    assert result.mistake == "hangs" and "with a broken" in result.text


def stub(attention):
    """Say."""
    raise NotImplementedError()


def test_stubs_are_calm_everywhere(capsys):
    labs.check("test_causal", stub)
    assert capsys.readouterr().out.startswith("test_causal: not written yet.")
    table, bugs, _ = labs.caught(stub)
    assert not table.any() and bugs[0] == "test_equation 1 (alive)" and len(bugs) == 30


def test_caught_counts_no_test_that_cries_wolf():
    def always(attention):
        raise AssertionError

    table, bugs, names = labs.caught(always, answers.test_causal__prefixes)
    assert table.sum(axis=0)[0] == 0 and table.sum(axis=0)[1] >= 7
    assert names == ["always", "test_causal__prefixes"] and "causal_ignored" in bugs


@pytest.mark.parametrize("thing", [5, lambda: None, lambda a, b: None])
def test_what_is_no_test_is_said(thing):
    result = labs.EXERCISES["test_masks"].judge(thing)
    assert not result.ok and result.points == 0 and "test_masks" in result.text
