"""The tool that breaks lib: which mistakes it makes, that a loaded module really gets them, and what it reports."""

import subprocess
import sys
import tomllib
import types

import pytest

from scripts import mutate
from scripts.mutants import ROOT, mutants
from scripts.mutate import SURVIVORS, TESTS, Runner, transplant

SOURCE = '''
"""A module."""

import math

__all__ = ["f"]
LIMIT = 3


def f(x: int, y: int = 1) -> int:
    """Say something; 7 is no number of the code."""
    if x < y and not math.isinf(x):
        raise ValueError(f"x must be {y} or more")
    with open("a", mode="b") as file:
        total = sum(i for i in x if i)
    for i in file:
        total += x.item()
    return max(x, y, 0) if x else -total
'''


def names(source):
    return [mutant.name for mutant in mutants("scratch.py", source)]


def test_makes_each_kind_of_mistake():
    assert names(SOURCE) == [
        "module: `LIMIT = 3` → `pass`",
        "module: `3` → `4`",
        "module: `3` → `2`",
        "f: `1` → `2`",
        "f: `1` → `0`",
        "f: `if x < y and (not math.isinf(x)): raise ValueError(f'x must be {y} or more')` → "
        "`if not (x < y and (not math.isinf(x))): raise ValueError(f'x must be {y} or more')`",
        "f: `x < y and (not math.isinf(x))` → `x < y or not math.isinf(x)`",
        "f: `x < y and (not math.isinf(x))` → `x < y`",
        "f: `x < y and (not math.isinf(x))` → `not math.isinf(x)`",
        "f: `x < y` → `x <= y`",
        "f: `not math.isinf(x)` → `math.isinf(x)`",
        "f: `raise ValueError(f'x must be {y} or more')` → `pass`",
        "f: `with open('a', mode='b') as file: total = sum((i for i in x if i))` → "
        "`if True: total = sum((i for i in x if i))`",
        "f: `open('a', mode='b')` → `open('a')`",
        "f: `open('a', mode='b')` → `open('', mode='b')`",
        "f: `mode='b'` → `mode=''`",
        "f: `total = sum((i for i in x if i))` → `pass`",
        "f: `sum((i for i in x if i))` → `prod((i for i in x if i))`",
        "f: `for i in x if i` → `for i in x`",
        "f: `for i in file: total += x.item()` → `pass`",
        "f: `total += x.item()` → `total -= x.item()`",
        "f: `total += x.item()` → `pass`",
        "f: `x.item()` → `x`",
        "f: `return max(x, y, 0) if x else -total` → `return None`",
        "f: `max(x, y, 0) if x else -total` → `-total if x else max(x, y, 0)`",
        "f: `max(x, y, 0)` → `max(x, 0, y)`",
        "f: `max(x, y, 0)` → `min(x, y, 0)`",
        "f: `max(x, y, 0)` → `max(x, y, 1)`",
        "f: `max(x, y, 0)` → `max(x, y, -1)`",
        "f: `-total` → `total`",
    ]


def test_a_name_belongs_to_one_mutant():
    assert names("x = 1 + 1\ny = 1 + 1")[-1] == "module: `1 + 1` → `1 + 0` (2)"
    assert all(len(set(names)) == len(names) for names in ([m.name for m in mutants(path)] for path in TESTS))


def test_lines_are_those_of_the_statement_and_at_import_all_that_follow_from_it():
    lines = {mutant.name: mutant.lines for mutant in mutants("scratch.py", SOURCE.lstrip("\n"))}
    assert lines["f: `x < y` → `x <= y`"] == range(11, 12)
    assert lines["f: `1` → `2`"] == range(9, 18)
    assert lines["module: `3` → `4`"] == range(1, 18)
    assert lines["f: `open('a', mode='b')` → `open('a')`"] == range(13, 14)


def test_a_mutant_has_its_change_alone():
    source = "def f(x):\n    return x + 1\n\n\ndef g(x):\n    return x + 2\n"
    found = {}
    for mutant in mutants("scratch.py", source):
        space = {}
        exec(mutant.code(), space)
        found[mutant.name] = space["f"](10), space["g"](10)
    assert found["f: `x + 1` → `x - 1`"] == (9, 12)
    assert found["g: `x + 2` → `x - 2`"] == (11, 8)
    assert found["g: `return x + 2` → `return None`"] == (11, None)


LOADED = """
import contextlib
import functools

LIMIT = 3


def plain(x, y=1):
    return x + y


@functools.wraps(plain)
def limit():
    return LIMIT


@contextlib.contextmanager
def context():
    yield 1 + 1


class Base:
    def __init__(self):
        self.x = 10


class Kind(Base):
    size = 5

    def __init__(self):
        super().__init__()
        self.y = self.x + 4

    @property
    def double(self):
        return self.x * 2

    @staticmethod
    def static():
        return 1 + 2
"""


@pytest.fixture
def loaded(monkeypatch):
    module = types.ModuleType("lib.scratch")
    exec(LOADED, vars(module))
    monkeypatch.setitem(sys.modules, "lib.scratch", module)
    return module


@pytest.mark.parametrize(
    ("name", "call", "before", "after"),
    [
        ("plain: `x + y` → `x - y`", "plain(3)", 4, 2),
        ("plain: `1` → `2`", "plain(3)", 4, 5),
        ("module: `3` → `4`", "limit()", 3, 4),
        ("context: `1 + 1` → `1 - 1`", "context().__enter__()", 2, 0),
        ("Kind: `5` → `6`", "thing.size", 5, 6),
        ("Kind.__init__: `self.x + 4` → `self.x - 4`", "Kind().y", 14, 6),
        ("Kind.double: `self.x * 2` → `self.x / 2`", "thing.double", 20, 5),
        ("Kind.static: `1 + 2` → `1 - 2`", "thing.static()", 3, -1),
    ],
)
def test_what_others_already_hold_gets_the_mistake(loaded, name, call, before, after):
    held = {**vars(loaded), "thing": loaded.Kind()}  # as another module's `from lib.scratch import …` holds it
    assert eval(call, held) == before
    transplant(next(m for m in mutants("lib/scratch.py", LOADED) if m.name == name))
    assert eval(call, held) == after


def test_a_method_that_loses_its_super_is_replaced(loaded):
    name = "Kind.__init__: `super().__init__()` → `pass`"
    transplant(next(m for m in mutants("lib/scratch.py", LOADED) if m.name == name))
    with pytest.raises(AttributeError, match="'Kind' object has no attribute 'x'"):
        loaded.Kind()


def test_what_a_mutant_does_not_define_is_gone(loaded):
    transplant(next(m for m in mutants("lib/scratch.py", LOADED) if m.name == "module: `LIMIT = 3` → `pass`"))
    with pytest.raises(NameError, match="name 'LIMIT' is not defined"):
        loaded.limit()


def test_every_module_has_its_tests():
    for path, tests in TESTS.items():
        assert (ROOT / path).is_file()
        assert tests and all((ROOT / test).is_file() for test in tests)


def test_listed_survivors_are_mutants_and_have_a_reason():
    for path, listed in tomllib.loads(SURVIVORS.read_text(encoding="utf8")).items():
        there = {mutant.name for mutant in mutants(path)}
        assert [name for name in listed if name not in there] == [], path
        assert all(len(reason) > 20 for reason in listed.values())


def test_report_tells_new_survivors_and_those_that_are_none_any_more(monkeypatch, tmp_path, capsys):
    path = "lib/reference/softmax.py"
    first, second, third, *_ = mutants(path)
    listed = tmp_path / "survivors.toml"
    listed.write_text(f'["{path}"]\n"{second.name}" = "A reason."\n"{third.name}" = "Another."\n', encoding="utf8")
    monkeypatch.setattr(mutate, "SURVIVORS", listed)
    runner = Runner([path], "", 1)
    runner._report(path, 50, [first, second], 3.2)
    assert runner.complaints == [
        f"{path}:{first.lines[0]} {first.name}: survived",
        f"{path} {third.name}: listed as equivalent, but killed or gone",
    ]
    assert capsys.readouterr().out.split() == [path, "50", "48", "1", "1", "3"]


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "scripts.mutate", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_a_run_kills_what_the_tests_notice():
    ran = run("lib/reference/positions.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1].split()[:5] == ["lib/reference/positions.py", "1", "1", "0", "0"]


def test_a_run_fails_where_a_mutant_survives():
    ran = subprocess.run([sys.executable, "-c", BLIND], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "return np.array(slope_of_each_head(num_heads))` → `return None`: survived" in ran.stdout


BLIND = """
# A test that runs the line and looks at nothing.
import sys, tempfile, pathlib
from scripts import mutate
blind = pathlib.Path(tempfile.mkdtemp()) / "test_blind.py"
blind.write_text("from lib.reference import alibi_slopes\\n\\ndef test_calls():\\n    alibi_slopes(2)\\n")
mutate.TESTS["lib/reference/positions.py"] = [str(blind)]
sys.argv = ["mutate", "lib/reference/positions.py"]
mutate.main()
"""


def test_usage():
    assert run("--help").returncode == 0
    unknown = run("lib/figures.py")
    assert unknown.returncode == 2
    assert "no tests are named for lib/figures.py" in unknown.stderr
    listed = run("--list", "lib/reference/positions.py").stdout
    assert listed == (
        "lib/reference/positions.py:45 alibi_slopes: "
        "`return np.array(slope_of_each_head(num_heads))` → `return None`\n"
    )  # fmt: skip
