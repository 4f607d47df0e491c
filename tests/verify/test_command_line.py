"""The command line: what it understands, what it prints where, how it exits, and what it survives."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lib.verify import PROPERTIES, UsageError, command_line, target, watch
from lib.verify.report import Report

ROOT = Path(__file__).parents[2]

MODULE = """
import ctypes
import sys
import numpy as np

print("printed while it is imported")

def right(query, key, value, mask=None):
    size = query.dtype.type(max(query.shape[-1], 1) ** 0.5)
    scores = (query.astype(np.float64) / size) @ key.astype(np.float64).swapaxes(-1, -2)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    return (weights / np.where(total == 0, 1, total) @ value).astype(query.dtype)

def unscaled(query, key, value):
    return right(query * query.dtype.type(query.shape[-1] ** 0.5), key, value)

def prints(query, key, value):
    print("scores:", query.shape)
    return right(query, key, value)

def hangs_on_long(query, key, value, mask=None):
    while key.shape[-2] >= 7:
        print("still here")
    return right(query, key, value, mask)

def crashes(query, key, value):
    ctypes.string_at(0)

def leaves(query, key, value):
    sys.exit(0)

def closes(query, key, value):
    sys.stdout.close()
    return right(query, key, value)

def too_few(query, key):
    return query

number = 3

class Layer:
    def attend(self, query, key, value):
        return right(query, key, value)

class Sized:
    def __init__(self, size):
        self.size = size

    def attend(self, query, key, value):
        return right(query, key, value)
"""

TORCH = """
import torch

def my_attention(query, key, value, attn_mask=None):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("user")
    (found / "user_module.py").write_text(MODULE, encoding="utf8")
    (found / "broken_module.py").write_text("import math\n\nsize = math.sqrt(undefined)\n", encoding="utf8")
    (found / "misspelt_module.py").write_text("def attention(query, key, value:\n    pass\n", encoding="utf8")
    (found / "needy_module.py").write_text("import a_package_that_is_not_there\n", encoding="utf8")
    (found / "mymodule.py").write_text(TORCH, encoding="utf8")
    package = found / "package"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf8")
    (package / "inner.py").write_text("from .other import attention\n", encoding="utf8")
    (package / "other.py").write_text("def attention(query, key, value):\n    pass\n", encoding="utf8")
    (found / "01-attention.py").write_text("def attention(query, key, value):\n    pass\n", encoding="utf8")
    return found


def start(folder, *arguments, **env):
    """Run the command line as a user does."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "lib.verify", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        encoding="utf8",
        timeout=120,
    )


class TestWhatItUnderstands:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "what to check is missing: module:function"),
            (["mymodule"], "must be module:function, such as mymodule:my_attention; got 'mymodule'"),
            (["my.module.attention"], "such as my.module:attention; got"),
            (["layers.py"], "such as layers.py:my_attention"),
            (["layers.py:"], "such as layers.py:my_attention"),
            (["notes.ipynb:attention"], "a notebook cannot be imported"),
            (["m:f", "--framework", "pytorch"], "must be numpy or torch, got 'pytorch'; did you mean 'torch'?"),
            (["m:f", "--name", "maks=attn_mask"], "there is no option 'maks'; did you mean 'mask'?"),
            (["m:f", "--name", "attn_mask=mask"], "this tool's name comes first: --name mask=attn_mask"),
            (["m:f", "--name", "mask"], "--name must be followed by something like mask=attn_mask, got 'mask'"),
            (["m:f", "--name", "mask=attn mask"], "'attn mask' cannot be the name of an argument"),
            (["m:f", "--convention", "mask_tru=block"], "no convention 'mask_tru'; did you mean 'mask_true'?"),
            (["m:f", "--convention", "mask_true=blok"], "attend or block, got 'blok'; did you mean 'block'?"),
            (["m:f", "--convention", "dtypes=int8"], "must name floating dtypes such as float32, got 'int8'"),
            (["m:f", "--property", "maskd zero"], "no property 'maskd zero'; did you mean 'masked zero'?"),
            (["m:f", "--timeout", "0"], "--timeout must be a number of seconds above 0, got '0'"),
            (["m:f", "--timeout", "soon"], "--timeout must be a number of seconds above 0, got 'soon'"),
            (["m:f", "--jsn"], "unrecognized arguments: --jsn"),
            (["--catalogue", "mask_invertd"], "no known bug 'mask_invertd'; did you mean 'mask_inverted'?"),
        ],
    )
    def test_wrong_usage_exits_2_and_says_what_is_meant(self, arguments, message, capsys):
        assert command_line.main(arguments) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert message in printed.err
        assert "--help" in printed.err

    def test_wrong_usage_in_json(self, capsys):
        assert command_line.main(["m:f", "--timeout", "0", "--json"]) == 2
        found = json.loads(capsys.readouterr().out)
        assert found == {
            "schema": 1,
            "target": "m:f",
            "error": "--timeout must be a number of seconds above 0, got '0'",
        }

    def test_repeated_options_are_collected(self):
        given = ["m:f", "--name", "mask=m", "--name", "bias=m", "--convention", "layout=BLHE", "--property", "mask"]
        options = command_line.parser().parse_args(given)
        assert command_line.names(options.name) == {"mask": "m", "bias": "m"}
        assert command_line.conventions(options.convention) == {"layout": "BLHE"}
        assert command_line.properties(options.property) == ["mask"]

    def test_help_has_examples_and_exit_statuses(self, capsys):
        with pytest.raises(SystemExit) as left:
            command_line.main(["--help"])
        assert left.value.code == 0
        text = capsys.readouterr().out
        assert "python -m lib.verify mymodule:my_attention --framework torch --name mask=attn_mask" in text
        for status in ("0  every property", "1  a property fails", "2  wrong usage"):
            assert status in text

    def test_the_examples_of_the_help_are_understood(self):
        examples = re.findall(r"python -m lib.verify (.*)", command_line.EPILOG.replace("\\\n", ""))
        assert len(examples) >= 5
        for example in examples:
            options = command_line.parser().parse_args(shlex.split(example))
            command_line.names(options.name)
            command_line.conventions(options.convention)
            command_line.properties(options.property)


class TestLists:
    def test_list_has_each_property_with_its_sentence(self, capsys):
        assert command_line.main(["--list"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert all(f"{p.name}: {' '.join(p.statement.split())}" in text for p in PROPERTIES)
        assert "mask_true: what True means" in text
        assert "(attend, block)" in text

    def test_list_in_json(self, capsys):
        assert command_line.main(["--list", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert list(found["properties"]) == [*(p.name for p in PROPERTIES), "silent"]
        assert found["conventions"]["mask_true"]["choices"] == ["attend", "block"]

    def test_catalogue(self, capsys):
        assert command_line.main(["--catalogue"]) == 0
        assert "mask_inverted:" in capsys.readouterr().out
        assert command_line.main(["--catalogue", "causal_strict"]) == 0
        assert "+        allowed = allowed & (j < i)" in capsys.readouterr().out
        assert command_line.main(["--catalogue", "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["catalogue"]) >= 60


class TestTarget:
    @pytest.fixture(autouse=True)
    def _here(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", list(sys.path))
        before = set(sys.modules)
        yield
        for name in set(sys.modules) - before:
            if "module" in name or "package" in name or "_checked" in name:
                del sys.modules[name]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("no_such_module:f", "there is no module 'no_such_module', looked for from"),
            ("user_modul:right", "did you mean 'user_module'?"),
            ("package/inner:attention", "did you mean 'package.inner'?"),
            ("package.iner:attention", "there is no module 'package.iner'"),
            ("user_modul.py:right", "there is no file 'user_modul.py'"),
            ("broken_module:f", "NameError: name 'undefined' is not defined (broken_module.py, line 3: size = math"),
            (
                "misspelt_module:attention",
                "SyntaxError: '(' was never closed (misspelt_module.py, line 1: def attention",
            ),
            ("needy_module:f", "importing needy_module failed: ModuleNotFoundError: No module named 'a_package_that"),
            ("user_module:rigth", "user_module has no 'rigth'; did you mean 'right'?"),
            ("user_module:zzz", "user_module has no 'zzz'; it has closes, crashes,"),
            ("user_module:Layer.atend", "user_module:Layer has no 'atend'; did you mean 'attend'?"),
            ("user_module:number", "must be a function of query, key and value, got int"),
            ("user_module:Sized.attend", "needs an instance, and Sized() raises TypeError"),
        ],
    )
    def test_what_is_wrong_is_said(self, text, message):
        with pytest.raises(UsageError) as raised:
            target.load(text)
        assert message in str(raised.value)

    @pytest.mark.parametrize(
        ("text", "name", "imported"),
        [
            ("user_module:right", "right", "user_module:right"),
            ("user_module.py:right", "right", "user_module:right"),
            ("./package/inner.py:attention", "attention", "package.inner:attention"),
            ("01-attention.py:attention", "attention", None),
            ("user_module:Layer.attend", "attend", None),
        ],
    )
    def test_what_can_be_found_is(self, text, name, imported):
        found = target.load(text)
        assert (found.fn.__name__, found.imported) == (name, imported)

    def test_an_instance_is_made_and_said(self):
        assert target.load("user_module:Layer.attend").notes == ["Layer() was made without arguments"]

    @pytest.mark.parametrize(
        ("text", "framework"),
        [
            ("user_module:right", "numpy"),
            ("mymodule:my_attention", "torch"),
            ("torch.nn.functional:scaled_dot_product_attention", "torch"),
            ("lib.reference:attention", "numpy"),
            ("lib.fast:attention", "torch"),
        ],
    )
    def test_the_framework_is_guessed_where_it_is_plain(self, text, framework):
        assert target.load(text).framework == framework

    def test_both_frameworks_imported_is_not_plain(self):
        Path("both_module.py").write_text(
            "import numpy\nimport torch\ndef bare(query, key, value): pass\n"
            "def annotated(query: torch.Tensor, key: 'torch.Tensor', value: torch.Tensor): pass\n",
            encoding="utf8",
        )
        assert target.load("both_module:bare").framework == "numpy"
        assert target.load("both_module:annotated").framework == "torch"


class TestRuns:
    def test_a_right_function_holds_everything_in_json(self, folder):
        ran = start(folder, "user_module:right", "--json")
        found = json.loads(ran.stdout)  # what the import prints is not in it
        assert (ran.returncode, found["failures"], found["ok"]) == (0, [], True)
        assert "printed while it is imported" in ran.stderr
        assert list(found) == [
            "schema", "target", "function", "framework", "ok", "suspect", "failures", "holds", "not_tested", "refused",
            "notes", "conventions", "printed_lines",
        ]  # fmt: skip
        documented = re.findall(r'^      "(\w+)":', command_line.__doc__, flags=re.MULTILINE)
        assert list(found) == documented
        assert {*found["holds"], *found["not_tested"]} == {p.name for p in PROPERTIES}

    def test_a_failure_has_all_the_documented_fields(self, folder):
        ran = start(folder, "user_module.py:unscaled", "--property", "equation", "--property", "axis", "--json")
        found = json.loads(ran.stdout)
        assert (ran.returncode, found["ok"], found["suspect"], found["holds"]) == (1, False, "unscaled", ["axis"])
        (failure,) = found["failures"]
        assert list(failure) == ["property", "statement", "message", "example", "suspect", "hint"]
        assert set(failure["example"]) == {"code", "shown", "sizes", "expected", "given"}
        assert "from user_module import unscaled" in failure["example"]["code"]
        assert failure["suspect"]["name"] == "unscaled"

    def test_what_calls_print_is_a_finding_where_it_is_asked(self, folder):
        ran = start(folder, "user_module:prints", "--property", "silent", "--json")
        found = json.loads(ran.stdout)
        assert ran.returncode == 1
        assert [f["property"] for f in found["failures"]] == ["silent"]
        assert "the function prints: 'scores: (2, 4)'" in found["failures"][0]["message"]
        assert found["printed_lines"] >= 1
        assert "scores: (2, 4)" in ran.stderr

    def test_and_a_note_where_it_is_not(self, folder):
        ran = start(folder, "user_module:prints", "--property", "axis", PYTHONIOENCODING="ascii")
        assert ran.returncode == 0
        assert ran.stdout.startswith("prints holds the one property that was tested.")
        assert "\033" not in ran.stdout + ran.stderr  # no colours in a pipe
        assert "the function prints: 'scores: (2, 4)'" in ran.stdout

    def test_a_hang_with_endless_prints_is_cut_off_and_the_rest_is_asked(self, folder):
        asked = ["axis", "lengths", "sizes 0 and 1"]  # the last one is asked by a second child
        ran = start(
            folder, "user_module:hangs_on_long", *(f"--property={p}" for p in asked), "--timeout", "3", "--json"
        )
        found = json.loads(ran.stdout)
        assert ran.returncode == 1
        failures = {f["property"]: f["message"] for f in found["failures"]}
        given_up = "the function did not come back within 3 s (--timeout sets how long it may); the last call had L = "
        assert failures["lengths"].startswith(given_up)
        assert found["holds"] == ["axis", "sizes 0 and 1"]
        assert "more output of the function is not shown" in ran.stderr
        assert ran.stderr.count("still here") <= watch.SHOWN

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("crashes", "the function crashed Python: SIGSEGV"),
            ("leaves", "the function ended Python: SystemExit(0)"),
        ],
    )
    def test_the_end_of_the_process_is_a_failure(self, folder, name, message):
        ran = start(folder, f"user_module:{name}", "--json")
        (failure,) = json.loads(ran.stdout)["failures"]
        assert ran.returncode == 1
        assert failure["property"] == "runs"
        assert message in failure["message"]

    def test_closing_standard_output_changes_nothing(self, folder):
        ran = start(folder, "user_module:closes", "--property", "equation")
        assert ran.returncode == 0
        assert "Holds: equation." in ran.stdout

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["broken_module:f"], "lib.verify: importing broken_module failed: NameError"),
            (["user_module:too_few"], "fn must take query, key and value; too_few takes (query, key)"),
            (
                ["user_module:right", "--name", "mask=maks"],
                "right takes (query, key, value, mask); did you mean 'mask'?",
            ),
        ],
    )
    def test_wrong_usage_seen_in_the_child_exits_2(self, folder, arguments, message):
        ran = start(folder, *arguments)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert message in ran.stderr

    def test_the_readme_example_runs(self, folder):
        readme = (ROOT / "README.md").read_text(encoding="utf8")
        (command,) = re.findall(r"^python -m lib.verify (.*)$", readme, flags=re.MULTILINE)
        ran = start(folder, *shlex.split(command), "--property", "mask", "--property", "equation")
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "Holds: equation, mask." in ran.stdout


class TestMerging:
    """What several children told becomes one report."""

    REQUEST = {"target": "m:f", "framework": "torch", "properties": None}  # noqa: RUF012

    def child(self, stage, why, failures=(), outcomes=None, report=None):
        return watch.Child(
            watch.Ended(stage, why), [watch.Failure(f, "wrong") for f in failures], outcomes or {}, report
        )

    def test_three_hangs_give_up_and_nothing_counts_as_passed(self):
        children = [
            self.child("equation", "hung", ["shape and dtype"]),
            self.child("axis", "hung", [], {"scale": "not tested: no argument named scale"}),
            self.child("mask", "hung"),
        ]
        wanted = [p.name for p in PROPERTIES]
        found = watch._merged(children, self.REQUEST, wanted)
        assert [f.property for f in found.failures] == ["shape and dtype", "equation", "axis", "mask"]
        assert (found.holds, found.function, found.framework) == ([], "f", "torch")
        assert found.not_tested["scale"] == "no argument named scale"
        assert "given up after 3" in found.not_tested["bias"]
        assert {*found.not_tested, *(f.property for f in found.failures)} == set(wanted)

    def test_explanations_that_hang_leave_the_failures(self):
        child = self.child("explain", "hung", ["axis"], {"equation": "holds"})
        found = watch._merged([child], self.REQUEST, ["equation", "axis"])
        assert ([f.property for f in found.failures], found.holds) == (["axis"], ["equation"])
        assert "no examples" in found.notes[0]

    def test_a_failing_report_is_used_though_it_is_falsy(self):
        report = Report("f", "torch", [watch.Failure("axis", "wrong", suspect="softmax_over_queries")])
        found = watch._merged([self.child("explain", None, ["axis"], {}, report)], self.REQUEST, ["axis"])
        assert found.failures[0].suspect == "softmax_over_queries"


def test_colours_only_at_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert command_line._colours(off=False)
    assert not command_line._colours(off=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not command_line._colours(off=False)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert not command_line._colours(off=False)
