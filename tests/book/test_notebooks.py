"""Every notebook of the book keeps every rule, and the table of contents names every page."""

from functools import cache

import pytest

from scripts import notebook_rules, notebooks
from scripts.repository import ROOT

PATHS = notebooks.paths()
read = cache(notebook_rules.read)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.relative_to(ROOT).as_posix())
@pytest.mark.parametrize("rule", notebook_rules.RULES, ids=lambda rule: rule.__name__)
def test_keeps_the_rule(path, rule):
    complaints = list(rule(read(path)))
    assert not complaints, "\n".join([rule.__doc__, *complaints])


def test_there_are_notebooks():
    assert PATHS
