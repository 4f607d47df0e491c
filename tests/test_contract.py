"""Every rule of the contract on every implementation, and every rule on the mistakes it must notice."""

import numpy as np
import pytest

from tests.broken import FAULTS, Broken
from tests.implementations import IMPLEMENTATIONS
from tests.rules import RULES


def suits(rule, implementation):
    return rule.needs <= implementation.options and (implementation.exact or not rule.exact)


@pytest.mark.parametrize(
    ("rule", "implementation"),
    [pytest.param(r, i, id=f"{r}-{i}") for r in RULES for i in IMPLEMENTATIONS if suits(r, i)],
)
def test_rule_holds(rule, implementation):
    rule.check(implementation)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_rule_lets_a_right_one_pass(rule):
    rule.check(Broken())


@pytest.mark.parametrize(("rule", "fault"), [(rule, fault) for rule in RULES for fault in rule.kills], ids=str)
def test_rule_notices(rule, fault):
    with pytest.raises((AssertionError, ValueError)), np.errstate(all="ignore"):
        rule.check(Broken(fault))


def test_every_mistake_is_noticed():
    assert {fault for rule in RULES for fault in rule.kills} == set(FAULTS)
