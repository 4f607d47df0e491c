"""The catalogue and the properties test each other: every entry is killed and named, every property is needed."""

import re
from functools import cache

import numpy as np
import pytest

from lib.verify import PROPERTIES, catalogue
from lib.verify.diagnosis import Failed, diagnose
from lib.verify.form import find_out
from lib.verify.properties import RUNS
from lib.verify.shrink import shrink
from lib.verify.subject import Subject
from lib.verify.wrong.entry import correct_source

BY_NAME = {prop.name: prop for prop in PROPERTIES}
#: Entries that no output tells apart, so that either name is right.
ALIASES: dict[str, set[str]] = {}


def subject_of(entry, framework=None):
    function = entry.function()
    if entry.module:
        function.eval()
    return Subject(function, framework or entry.frameworks[0], {}, entry.conventions)


@cache
def killed(name, framework):
    """What kills an entry, by the one property that it is meant for: (subject, Failed), or (subject, None)."""
    entry = catalogue[name]
    subject = subject_of(entry, framework)
    broken = find_out(subject)
    if broken is not None:
        return subject, Failed(None, broken.call, broken) if entry.killed_by == RUNS else None
    prop = BY_NAME.get(entry.killed_by)
    if prop is None or prop.untestable(subject):
        return subject, None
    found = prop.judge(subject)
    return subject, Failed(prop, *found) if isinstance(found, tuple) else None


@cache
def failing(name):
    """Every property that an entry fails."""
    subject = subject_of(catalogue[name])
    if find_out(subject) is not None:
        return (RUNS,)
    asked = [prop for prop in PROPERTIES if prop.untestable(subject) is None]
    return tuple(prop.name for prop in asked if isinstance(prop.judge(subject), tuple))


# --- what the catalogue says


def test_size():
    assert len(catalogue) >= 60


@pytest.mark.parametrize("entry", catalogue, ids=lambda e: e.name)
def test_entry_is_well_formed(entry):
    assert re.fullmatch(r"[a-z][a-z0-9_]+", entry.name)
    assert entry.wrong.endswith(".") and len(entry.wrong) < 160
    assert entry.wrong[0].isupper() or entry.wrong.startswith(("causal", "dropout_p", "−"))  # a name
    assert entry.killed_by == RUNS or entry.killed_by in BY_NAME
    assert entry.report is None or re.fullmatch(
        r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+|https://[\w.-]+/[\w./-]+|[\w.-]+/[\w.-]+#\d+",
        entry.report,
    )
    assert entry.source != correct_source() and entry.diff()
    changed = [line for line in entry.diff().splitlines() if line[0] in "+-"]
    assert len(changed) <= 14, "a small named change"


def test_explanations_differ():
    assert len({entry.wrong for entry in catalogue}) == len(catalogue)


def test_changed_texts_differ():
    assert len({entry.source for entry in catalogue if not entry.module}) == len([e for e in catalogue if not e.module])


def test_a_third_was_reported_publicly():
    assert sum(entry.report is not None for entry in catalogue) * 3 >= len(catalogue)


# --- every entry is killed and named


@pytest.mark.parametrize("entry", [e for e in catalogue if "numpy" in e.frameworks], ids=lambda e: e.name)
def test_killed(entry):
    _, failed = killed(entry.name, "numpy")
    assert failed is not None, f"{entry.killed_by} should kill {entry.name}: {entry.wrong}"
    assert failed.problem.detail and failed.problem.show


@pytest.mark.parametrize("entry", [e for e in catalogue if "numpy" not in e.frameworks], ids=lambda e: e.name)
def test_killed_in_torch(entry):
    _, failed = killed(entry.name, "torch")
    assert failed is not None, f"{entry.killed_by} should kill {entry.name}: {entry.wrong}"


def named(name, framework):
    subject, failed = killed(name, framework)
    if failed is None:
        return "not killed"
    if failed.prop is not None:
        failed = Failed(failed.prop, *shrink(subject, failed.prop, failed.probe, failed.problem))
    (found,) = diagnose(subject, [failed])
    return found.entry.name if found else None


def test_diagnosed_by_the_right_name():
    given = {entry.name: named(entry.name, entry.frameworks[0]) for entry in catalogue}
    wrong = {name: other for name, other in given.items() if other != name and other not in ALIASES.get(name, ())}
    assert len(wrong) <= 0.05 * len(catalogue), wrong


# --- every property is needed


def witness(prop):
    """An entry that only this property kills; one that needs no torch, where there is one."""
    found = [entry for entry in catalogue if entry.killed_by == prop.name and entry.alone]
    return next((e for e in found if "numpy" in e.frameworks), *found[:1]) if found else None


@pytest.mark.parametrize("prop", PROPERTIES, ids=lambda p: p.name)
def test_property_is_needed(prop):
    entry = witness(prop)
    assert entry is not None, f"no entry is killed by {prop.name} alone: {matrix()}"
    assert failing(entry.name) == (prop.name,), f"{entry.name} fails {failing(entry.name)}; in all: {matrix()}"


def matrix():
    """For each property, how many entries name it and how many of them no other property should kill."""
    rows = []
    for prop in PROPERTIES:
        its = [entry for entry in catalogue if entry.killed_by == prop.name]
        rows.append(f"{prop.name} {len(its)} ({sum(entry.alone for entry in its)} alone)")
    return "; ".join(rows)


# --- the correct body is correct


@pytest.mark.parametrize("conventions", [{"alignment": "top-left"}, {"masked_nan": "blocked"}])
def test_body_holds_everything(conventions):
    from lib.verify.wrong import body

    subject = Subject(body.attention, "numpy", {}, conventions)
    assert find_out(subject) is None
    failed = [
        prop.name for prop in PROPERTIES if not prop.untestable(subject) and isinstance(prop.judge(subject), tuple)
    ]
    assert failed == []


def test_entry_says_where_it_differs():
    entry = catalogue["mask_inverted"]
    query, key, value = np.zeros((1, 1)), np.zeros((2, 1)), np.array([[2.0], [8.0]])
    assert entry.function()(query, key, value, mask=np.array([[True, False]])) == 8
    assert any(line.startswith("+") for line in entry.diff().splitlines())


def test_lookup():
    assert "unscaled" in catalogue and "no_such_bug" not in catalogue
    with pytest.raises(KeyError):
        catalogue["no_such_bug"]
    assert catalogue.names[0] == next(iter(catalogue)).name
