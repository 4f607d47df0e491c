"""Every kind of mistake has a test, and every test says whose report it stands for."""

import ast
import re
from pathlib import Path

import pytest

# fmt: off
KINDS = (
    "A1", "A2", "A3", "M1", "M2", "M4", "M6", "N1", "N2", "N3", "N4", "C1", "C3", "C4", "C5", "P1",
    "P2", "P4", "P5", "G1", "S1", "D1", "L1", "L2", "R1", "K1", "K2", "W1", "I1", "E1", "E2", "X1",
)
# fmt: on
REPORT = re.compile(r"[\w.-]+/[\w.-]+#\d+")  # owner/repository#number
WITHOUT_NUMBER = ("d2l-ai/d2l-en", "drill set", "SDPA tutorial")  # known faults of teaching material that nobody filed


def written_tests():
    """List name and docstring of each test beside this file."""
    paths = [path for path in sorted(Path(__file__).parent.glob("test_*.py")) if path != Path(__file__)]
    nodes = [node for path in paths for node in ast.parse(path.read_text(encoding="utf8")).body]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return [(function.name, ast.get_docstring(function) or "") for function in functions]


TESTS = written_tests()


def kind_of(name):
    return name.split("_")[1] if re.match(r"test_[A-Z]\d_", name) else None


def test_every_kind_has_a_test():
    assert len(set(KINDS)) == 32
    assert {kind_of(name) for name, _ in TESTS} - {None} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_names_reports(kind):
    said = " ".join(said for name, said in TESTS if kind_of(name) == kind)
    assert REPORT.search(said) or any(source in said for source in WITHOUT_NUMBER)


def test_every_test_names_reports():
    silent = [name for name, said in TESTS if not REPORT.search(said) and not any(s in said for s in WITHOUT_NUMBER)]
    assert not silent


def test_every_name_is_used_once():
    names = [name for name, _ in TESTS]
    assert len(names) == len(set(names))
