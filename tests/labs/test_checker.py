"""What the checkers say, and how they hold still: stubs, errors, hangs, prints, nbgrader."""

import math
import threading
import time

import numpy as np
import pytest

from lib import labs
from lib.labs import judging, running
from lib.labs.form import Call
from lib.labs.running import run


def said(capsys, name, fn, **options):
    assert labs.check(name, fn, **options) is None
    return capsys.readouterr().out


# Not written yet


def softmax(scores):
    """Turn scores into weights."""
    # YOUR CODE HERE
    raise NotImplementedError()


def softmax_of_dots(scores):
    """Turn scores into weights."""


def softmax_with_the_line_left(scores):
    e = np.exp(scores)
    raise NotImplementedError()
    return e / e.sum(axis=-1, keepdims=True)


def softmax_of_another(scores):
    return softmax(scores)


@pytest.mark.parametrize("stub", [softmax, softmax_of_dots])
def test_a_stub_is_calmly_not_written_yet(capsys, stub):
    assert said(capsys, "softmax", stub) == (
        "softmax: not written yet. Fill the gap in the cell above, run it, then this one.\n"
    )


def test_a_left_over_raise_is_named(capsys):
    text = said(capsys, "softmax", softmax_with_the_line_left)
    assert "not written yet" in text
    assert "There is code; now delete the line with `raise`." in text


def test_a_stub_that_is_called_is_named(capsys):
    assert "It calls softmax, which is not written yet." in said(capsys, "softmax", softmax_of_another)


def test_show_is_calm_about_stubs(capsys):
    labs.show(softmax, np.zeros((1, 2)))
    labs.show(softmax_of_another, np.zeros((1, 2)))
    assert capsys.readouterr().out == "softmax: not written yet.\n" * 2


# What is wrong


def softmax_over_columns(scores):
    return np.exp(scores) / np.exp(scores).sum(axis=0)


WRONG_AXIS = """\
softmax: not right yet. 0 of 4 points so far.

What must hold: Each row of the result is exp(score), divided by the sum of
  exp(score) along that row.

The smallest call found that shows it:
    scores = np.array([[0.0, 0.0]])
    softmax(scores)
expected: [[0.5 0.5]]
given: [[1. 1.]]

Looks like: your sum runs down the columns (axis 0): each column sums to one, and
  the rows do not.

Hint: In an array of shape (L, S), which axis counts the keys that one query chooses
  from?

Holds already: scores untouched.
"""


def test_a_wrong_answer_is_told_the_whole_story(capsys):
    assert said(capsys, "softmax", softmax_over_columns) == WRONG_AXIS


def two_at_once(query, key, value):
    weights = softmax_over_columns(query @ key.T)
    print("weights", weights.shape)
    return weights @ value, weights


def test_two_results_are_shown_by_their_names_and_prints_are_counted(capsys):
    text = said(capsys, "attention", two_at_once)
    for wanted in ("expected output:", "expected weights:", "given output:", "printed lines are not shown here"):
        assert wanted in text


def helper(scores):
    return scores.mean(axis=7)


def softmax_with_a_helper(scores):
    shifted = scores - 1
    return helper(shifted)


def test_an_error_names_the_students_line(capsys):
    text = said(capsys, "softmax", softmax_with_a_helper)
    assert "It stops in helper, line 2:\n    return scores.mean(axis=7)\nAxisError: axis 7 is out of bounds" in text
    assert "Traceback" not in text and "running.py" not in text and ".venv" not in text


def test_an_error_inside_a_library_names_the_students_line():
    def loads(scores):
        return np.linalg.inv(scores)

    raised = run(loads, Call({"scores": np.zeros((2, 2))})).raised
    assert (raised.function, raised.line, raised.code) == ("loads", 2, "return np.linalg.inv(scores)")


def test_an_error_without_source_is_told_without_a_line():
    scope = {}
    exec("def f(scores):\n    return scores.nothing", scope)
    assert "'nothing'" in run(scope["f"], Call({"scores": np.zeros(1)})).raised.text


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (np.zeros((2, 3)), "was given an array of shape (2, 3)"),
        (None, "was given None"),
        (lambda: None, "must be callable as softmax(scores), and yours takes no arguments"),
        (lambda a, b: None, "yours takes (a, b)"),
    ],
)
def test_what_cannot_be_called_is_said(capsys, thing, text):
    assert text in said(capsys, "softmax", thing).replace("\n ", "")


def test_leaving_python_does_not_end_the_kernel(capsys):
    def leaves(scores):
        raise SystemExit(3)

    assert "SystemExit" in said(capsys, "softmax", leaves)


def test_warnings_and_errors_stay_off_the_standard_error(capsys):
    labs.check("softmax", lambda scores: np.exp(scores * 1000) / 0)
    assert capsys.readouterr().err == ""


def test_an_unknown_exercise_is_a_mistake_of_the_notebook():
    with pytest.raises(ValueError, match=r"name must be an exercise, one of softmax, .*; got 'sofmax'"):
        labs.check("sofmax", softmax)


# Hints for errors that beginners meet


def one_answer_wanted(scores):
    return scores if scores > 0 else -scores


def letter_of_the_page(query, key):
    return query @ key.T / np.sqrt(E)


def overflow(scores):
    return np.array([[math.exp(s) for s in row] for row in scores]) / row_sum(scores)


def row_sum(scores):
    return np.array([[sum(math.exp(s) for s in row)] for row in scores])


def a_list(scores):
    return [list(row) for row in scores]


@pytest.mark.parametrize(
    ("name", "fn", "hint"),
    [
        ("softmax", one_answer_wanted, judging.TRUTH),
        ("scaled_scores", letter_of_the_page, judging.RAISES["NameError"]),
        ("softmax", overflow, judging.RAISES["OverflowError"]),
        ("softmax", a_list, judging.LIST),
        ("causal_mask", lambda L: np.triu(np.ones((L, L))), judging.BOOLEANS),
    ],
)
def test_an_error_gets_the_hint_that_leads_on(capsys, name, fn, hint):
    assert f"Hint: {hint}" in " ".join(said(capsys, name, fn).split())


def test_a_test_gets_the_hint_for_an_array_of_answers(capsys):
    def test_equation(attention):
        assert attention(np.zeros((2, 1)), np.zeros((2, 1)), np.ones((2, 1))) == 1

    assert f"Hint: {judging.TRUTH}" in " ".join(said(capsys, "test_equation", test_equation).split())


# Hanging


def endless(scores):
    while True:
        scores = scores + 1


def sleeping(scores):
    time.sleep(60)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(running, "SECONDS", 0.3)


@pytest.mark.parametrize("fn", [endless, sleeping])
def test_a_hang_is_cut_off(impatient, capsys, fn):
    text = said(capsys, "softmax", fn)
    assert "It does not come back, and was cut off" in text
    assert "softmax(scores)" in text


def test_a_hang_is_cut_off_outside_the_main_thread_too(impatient):
    outcomes = []
    call = Call({"scores": np.zeros((1, 2))})
    thread = threading.Thread(target=lambda: outcomes.append(run(endless, call)))
    thread.start()
    thread.join(60)
    assert outcomes[0].hangs


def test_what_comes_back_in_time_is_not_cut_off_later(monkeypatch):
    monkeypatch.setattr(running, "SECONDS", 0.2)
    done = []

    def work():
        done.append(run(lambda scores: scores, Call({"scores": np.zeros(1)})).hangs)
        time.sleep(0.5)
        done.append("undisturbed")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert done == [False, "undisturbed"]


# nbgrader


def right(scores):
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def no_maximum(scores):
    return np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("how", ["autograde", "validate"])
def test_nbgrader_gets_points(monkeypatch, how):
    monkeypatch.setenv("NBGRADER_EXECUTION", how)
    assert labs.check("softmax", right) == 4
    assert labs.check("softmax", right, seed=7) == 4
    assert labs.check("softmax", no_maximum) == 3
    for nothing in (softmax, softmax_over_columns, 5):
        with pytest.raises(AssertionError, match="softmax: not"):
            labs.check("softmax", nothing)


def test_elsewhere_nothing_is_raised_or_shown(monkeypatch):
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    assert [labs.check("softmax", fn) for fn in (right, no_maximum, softmax)] == [None] * 3


def test_another_seed_asks_with_other_numbers():
    one, other = (
        [call.arguments["scores"] for _, calls in labs.EXERCISES["softmax"].asked(s) for call in calls] for s in (0, 1)
    )
    assert any(a.shape != b.shape or not np.array_equal(a, b) for a, b in zip(one, other, strict=True))
