"""What the command line understands, prints and returns; the measuring itself is played."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lib.bench import command_line, report
from lib.bench.arithmetic import Bar, Spread
from lib.bench.cases import Case, Contestant
from lib.bench.command_line import FAILED, INTERRUPTED, MET, MISSED, USAGE, main
from lib.bench.measuring import ROOT, Effort, MeasurementError, Result

MACHINE = {"processor": "P", "cores": 2, "numpy": "2", "torch": "2", "load": [0.5, 0.4, 0.3]}


@pytest.fixture
def value(monkeypatch):
    """Let every measurement give the number in here, and keep what was measured."""
    given = {"value": 1.0, "measured": [], "effort": None}

    def measure(case, effort, say):
        say("pair 1 of 3")
        given["measured"].append(case)
        given["effort"] = effort
        number = given["value"]
        theirs = [1.0] if case.theirs else []
        return Result(case, number, Spread(number, number - 0.1, number + 0.1), [number], [number], theirs)

    monkeypatch.setattr(command_line, "measure", measure)
    monkeypatch.setattr(report, "machine", lambda: MACHINE)
    return given


def test_all_bars_met(value, capsys):
    assert main(["--group", "fast", "--n", "1024", "--threads", "1"]) == MET
    out, err = capsys.readouterr()
    assert "4 of 4 bars met." in out
    assert "1.00 × sdpa (0.90 to 1.10)" in out
    assert "≤ 1.03" in out and "MISSED" not in out
    assert err.count("\n") == 4  # one line for each case where nobody looks on
    assert "[1/4] fast: N = 1024, not causal, forward" in err


def test_a_missed_bar(value, capsys):
    value["value"] = 1.04
    assert main(["--group", "fast", "--n", "1024", "--threads", "1"]) == MISSED
    out = capsys.readouterr().out
    assert "0 of 4 bars met." in out
    assert "MISSED  fast: N = 1024, causal, forward, 1 thread(s): 1.04 × sdpa (0.94 to 1.14)" in out


def test_no_bar_is_no_miss(value, capsys):
    value["value"] = 99.0
    assert main(["--group", "products", "--n", "64"]) == MET
    assert "No bar belongs to these sizes." in capsys.readouterr().out


def test_json_is_alone_on_standard_output(value, capsys):
    value["value"] = 2.0
    assert main(["--group", "streaming", "--group", "decode", "--json", "--pairs", "7"]) == MISSED
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err
    assert {k: found[k] for k in ("schema", "machine", "device", "pairs", "clock", "ok")} == {
        "schema": 1, "machine": MACHINE, "device": "cpu", "pairs": 7, "clock": "wall", "ok": False,
    }  # fmt: skip
    assert len(found["results"]) == len(value["measured"])
    assert found["results"][0] == {
        "group": "streaming", "case": "N = 1024, not causal", "measure": "time", "threads": 1,
        "ours": {"name": "streaming", "options": {"N": 1024, "causal": False}, "measured": [2.0]},
        "theirs": {"name": "sdpa", "options": {"N": 1024, "causal": False}, "measured": [1.0]},
        "sizes": [], "value": 2.0, "least": 1.9, "most": 2.1, "pairs": [2.0],
        "bar": {"kind": "at most", "limit": 1.10, "within": 0.0}, "met": False,
    }  # fmt: skip
    growth = next(one for one in found["results"] if one["measure"] == "time growth")
    assert (growth["theirs"], growth["met"], growth["sizes"]) == (None, True, [1024, 2048, 4096])
    assert {one["group"] for one in found["results"]} == {"streaming", "decode"}


@pytest.fixture
def stored(value, capsys, tmp_path):
    """Store played results of two groups, one bar of which was missed."""
    value["value"] = 2.0
    main(["--group", "streaming", "--group", "decode", "--json"])
    file = tmp_path / "results.json"
    file.write_text(capsys.readouterr().out, encoding="utf8")
    value["measured"].clear()
    return file


def test_stored_results_are_shown_as_they_were_measured(value, stored, capsys):
    assert main(["--group", "streaming", "--group", "decode"]) == MISSED
    first = capsys.readouterr().out
    value["measured"].clear()
    assert main(["--show", str(stored)]) == MISSED
    out, err = capsys.readouterr()
    assert out == first and "p = 2.00" in out and "MISSED" in out
    assert not err and not value["measured"]


def test_what_was_stored_is_read_again_in_full(stored):
    found = report.read(stored)
    again = report.plain(found.results, found.machine, Effort(found.pairs, clock=found.clock), found.device)
    assert again == json.loads(stored.read_text(encoding="utf8"))


def test_one_group_of_what_was_stored(stored, capsys, tmp_path):
    picture = tmp_path / "x.png"
    assert main(["--show", str(stored), "--group", "streaming", "--plot", str(picture)]) == MISSED
    out = capsys.readouterr().out
    assert "streaming: " in out and "decode: " not in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["--show", str(stored), "--group", "window"]) == USAGE
    assert "--group must be one of streaming, decode, got 'window'" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--n", "8"], ["--quick"], ["--pairs", "3"], ["--list"], ["--device", "cuda"]])
def test_showing_measures_nothing(stored, capsys, option):
    assert main(["--show", str(stored), *option]) == USAGE
    assert f"--show measures nothing: {option[0]} cannot be given with it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("", "prints (schema 1), got no JSON"),
        ("[1]", "prints (schema 1), got a list"),
        ('{"schema": 7}', "prints (schema 1), got schema 7"),
        ('{"schema": 1, "error": "it died"}', "the measuring ended with an error: it died"),
        ('{"schema": 1, "results": [{"group": "fast"}]}', "a field is missing or of another kind: KeyError('bar')"),
    ],
)
def test_what_cannot_be_shown(capsys, tmp_path, text, said):
    file = tmp_path / "other.json"
    if text is not None:
        file.write_text(text, encoding="utf8")
    assert main(["--show", str(file)]) == USAGE
    err = capsys.readouterr().err
    assert err.startswith("lib.bench: --show: ") and str(file) in err and said in err


def test_every_group_unless_some_are_named(value, capsys):
    main(["--quick"])
    assert {case.group for case in value["measured"]} == set(command_line.ON_CPU)
    assert {case.threads for case in value["measured"]} == {1}
    assert (value["effort"].pairs, value["effort"].turn) == (3, 0.1)


def test_the_cpu_clock_is_for_one_thread(value, capsys):
    assert main(["--clock", "cpu", "--group", "fast"]) == MET
    assert {case.threads for case in value["measured"]} == {1}
    assert value["effort"].clock == "cpu"
    assert main(["--clock", "cpu", "--threads", "2"]) == USAGE
    assert "use it with --threads 1" in capsys.readouterr().err


def test_a_list_measures_nothing(value, capsys):
    assert main(["--list", "--group", "window"]) == MET
    (line,) = capsys.readouterr().out.splitlines()
    assert " ".join(line.split()) == "window N = 8192, window = (256, 0), 1 thread(s) ≥ 8.00"
    assert not value["measured"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--group", "stream"], "--group must be one of streaming, products, fast, slow-paths, window, decode, triton, "
                                "got 'stream'; did you mean 'streaming'?"),
        (["--group", "triton"], "--group triton cannot be measured on cpu: there is streaming, products, fast, "),
        (["--group", "streaming", "--device", "cuda"], "--group streaming cannot be measured on cuda"),
        (["--device", "gpu"], "--device must be one of cpu, cuda, got 'gpu'"),
        (["--pairs", "2"], "--pairs must be an integer of 3 or more, got '2'"),
        (["--pairs", "many"], "--pairs must be an integer of 3 or more, got 'many'"),
        (["--n", "0"], "--n must be an integer of 1 or more, got '0'"),
        (["--threads", "-1"], "--threads must be an integer of 1 or more, got '-1'"),
        (["--timeout", "0"], "--timeout must be a number of seconds above 0, got '0'"),
        (["--timeout", "soon"], "--timeout must be a number of seconds above 0, got 'soon'"),
        (["--clock", "sun"], "--clock must be one of wall, cpu, got 'sun'"),
        (["--plot", "x.txt"], "--plot must end with .png, .svg or .pdf, got 'x.txt'"),
        (["--plot", "nowhere/x.png"], "--plot nowhere/x.png: there is no folder nowhere"),
        (["--plot", "x.png", "--group", "window"], "--plot draws ratios against N: it needs two sizes or more"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("as_json", [False, True])
def test_wrong_usage(value, capsys, arguments, text, as_json):
    assert main([*arguments, *["--json"] * as_json]) == USAGE
    out, err = capsys.readouterr()
    assert err.startswith(f"lib.bench: {text}")
    assert err.endswith("\nTry python -m lib.bench --help.\n")
    assert not value["measured"]
    if as_json:
        assert json.loads(out)["error"].startswith(text)
    else:
        assert out == ""


def test_cuda_where_there_is_none(value, capsys, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--device", "cuda"]) == USAGE
    assert "finds no CUDA device here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [(MeasurementError("fast: N = 1: it broke"), FAILED, "fast: N = 1: it broke"),
     (KeyboardInterrupt(), INTERRUPTED, "stopped")],
)  # fmt: skip
def test_a_failure_ends_with_its_own_status(monkeypatch, capsys, error, status, text):
    def measure(*_):
        raise error

    monkeypatch.setattr(command_line, "measure", measure)
    assert main(["--group", "window", "--json"]) == status
    out, err = capsys.readouterr()
    assert json.loads(out) == {"schema": 1, "error": text}
    assert f"lib.bench: {text}" in err


def test_help_has_groups_examples_and_statuses(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    for text in (*command_line.GROUPS, "examples:", "exit status:", "--device", "--plot", "--quick"):
        assert text in out


def test_the_command_from_anywhere(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "lib.bench", "--list"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "N = 4096, causal" in ran.stdout


def test_measuring_for_real_from_end_to_end(capsys):
    status = main(["--group", "decode", "--n", "32", "--quick", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert status in (MET, MISSED)
    assert [one["measure"] for one in found["results"]] == ["time", "allocations", "time"]
    assert all(one["value"] > 0 for one in found["results"])
    assert len(found["results"][0]["pairs"]) == 3


# --- Lines and pictures ---


def result(measure, value, ours, theirs=(), bar=None, title="N = 8, causal", sizes=(), threads=1):
    spread = Spread(value, value - 0.5, value + 0.5)
    other = Contestant("sdpa", {"N": 8}) if theirs else None
    case = Case("streaming", title, measure, Contestant("streaming", {"N": 8}), other, bar, threads, sizes)
    return Result(case, value, spread, [value], list(ours), list(theirs))


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (result("time", 1.5, [0.003, 0.001, 0.002], [0.004], Bar("at most", 1.1)),
         ["N = 8, causal, 1 thread ", "1.50 × sdpa (1.00 to 2.00)", "≤ 1.10", "MISSED", "2.0 ms : 4.0 ms"]),
        (result("speed", 3.5, [0.1], [0.35], Bar("at least", 2.5), threads=2),
         ["2 threads", "3.50 × faster than sdpa (3.00 to 4.00)", "≥ 2.50", "met"]),
        (result("memory", 2048.0, [2048.0], bar=Bar("at most", 16 * 2**20)), ["2.0 KiB", "≤ 16.0 MiB", "met"]),
        (result("memory growth", 0.02, [1024.0, 1030.0], bar=Bar("about", 0.0, 0.1)),
         ["p = 0.02", "= 0.00 ± 0.1", "met", "1.0 KiB, 1.0 KiB"]),
        (result("time growth", 2.5, [1.0, 4.0], bar=Bar("about", 2.0, 0.1)), ["p = 2.50", "MISSED", "1.00 s, 4.00 s"]),
        (result("allocations", 1.0, [512.0, 512.0, 512.0]), ["1.00", "512 B to 512 B"]),
    ],
)  # fmt: skip
def test_lines(given, parts):
    line, at = report.line(given), 0
    for part in parts:
        assert part in line[at:], f"{part!r} is missing or out of order in {line!r}"
        at = line.index(part, at)


def at_size(N, value, title="causal", group="streaming", measure="time", threads=1):
    ours, theirs = Contestant("streaming", {"N": N}), Contestant("sdpa", {"N": N})
    case = Case(group, f"N = {N}, {title}", measure, ours, theirs, None, threads)
    return Result(case, value, Spread(value, value, value), [value], [value], [1.0])


def test_ratios_by_size():
    results = [at_size(8, 1.0), at_size(4, 2.0), at_size(8, 3.0, "not causal"), at_size(4, 4.0, "not causal"),
               at_size(4, 9.0, "alone")]  # fmt: skip
    assert report.ratios_by_size(results) == ([4, 8], {"causal, 1 thread": [2, 1], "not causal, 1 thread": [4, 3]})
    many = [at_size(N, float(i), f"kind {i}") for i in range(9) for N in (4, 8)]
    assert list(report.ratios_by_size(many)[1]) == [f"kind {i}, 1 thread" for i in range(3, 9)]


def test_plots_one_picture_for_each_group(tmp_path):
    results = [at_size(4, 1.2), at_size(8, 1.1), at_size(4, 1.0, group="fast"), at_size(8, 1.0, group="fast"),
               at_size(4, 9.0, group="decode")]  # fmt: skip
    files = report.plot(results, str(tmp_path / "x.png"))
    assert [Path(file).name for file in files] == ["x-streaming.png", "x-fast.png"]
    assert all(Path(file).read_bytes().startswith(b"\x89PNG") for file in files)
    assert report.plot(results[:2], str(tmp_path / "y.svg")) == [str(tmp_path / "y.svg")]


def test_matplotlib_stays_closed_unless_a_picture_is_wanted():
    code = "import sys, lib.bench.command_line; print('matplotlib' in sys.modules, 'torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]


def test_the_machine_is_named():
    found = report.machine()
    assert found["processor"] and found["cores"] >= 1
    assert found["numpy"].count(".") == 2
    json.dumps(found)
