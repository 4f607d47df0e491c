"""The validation is itself tested: faults planted in copies of a real chapter are caught, each for the right reason.

The copy holds what validates a notebook (nbval with the root conftest.py, and the rules) and one notebook per fault, so
that a single run of pytest judges them all. The fault in `lib` has a copy of its own.
"""

import base64
import io
import os
import re
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from nbformat.v4 import new_output
from PIL import Image

from scripts import figures_equal, notebooks, set_repository
from scripts.repository import ROOT

CHAPTER = "worked_example"  # short, with text and figures, and all of `lib`'s spine under it
COPIED = ("lib", "scripts", "conftest.py", "pyproject.toml", "_config.yml", "tests/book/test_notebooks.py")


# Planting: each function changes a notebook and returns what the validation must say about it


def code(notebook):
    """Return the code cells after the bootstrap cell."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"][1:]


def with_text(notebook):
    """Return the first cell that prints a number, and the output with it."""
    for cell in code(notebook):
        for output in cell.outputs:
            if output.get("name") == "stdout" and re.search(r"\d", output.text):
                return cell, output
    raise AssertionError(f"{CHAPTER} prints no number")


def with_figure(notebook):
    """Return the first cell with a figure, and the output with it."""
    for cell in code(notebook):
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                return cell, output
    raise AssertionError(f"{CHAPTER} has no figure")


def encode(pixels):
    """Return an array from 0 to 1 as a base64 PNG."""
    file = io.BytesIO()
    Image.fromarray((pixels * 255).round().astype(np.uint8)).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()


def changed_digit(notebook):
    _, output = with_text(notebook)
    output.text = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), output.text, count=1)
    return "nbval", "Cell outputs differ"


def moved_pixels(notebook):
    _, output = with_figure(notebook)
    before = output.data["image/png"]
    pixels = figures_equal.decode(before)
    half = pixels.shape[0] // 2
    rows, columns = np.nonzero(pixels[..., :3].mean(-1) < 0.9)  # something is drawn there
    row, column = min(rows[0], pixels.shape[0] - 20), min(columns[0], pixels.shape[1] - 20)
    block, place = np.s_[row : row + 20, column : column + 20], np.s_[half : half + 20, :20]
    pixels[block], pixels[place] = pixels[place].copy(), pixels[block].copy()
    output.data["image/png"] = encode(pixels)
    assert figures_equal.disagreement(before, output.data["image/png"])
    return "nbval", "the figure's pixels differ"


def dropped_figure(notebook):
    _, output = with_figure(notebook)
    del output.data["image/png"]
    return "nbval", "the number of figures was 0 and is now 1"


def cleared_outputs(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return "outputs_are_complete", "its outputs are cleared"


def extra_print(notebook):
    cell, _ = with_text(notebook)
    cell.source += '\nprint("one line more")'
    return "nbval", "one line more"


def warning_on_stderr(notebook):
    cell, _ = with_text(notebook)
    cell.source += '\nimport sys\n\nprint("careful", file=sys.stderr)'
    cell.outputs.append(new_output("stream", name="stderr", text="careful\n"))
    return "output_is_calm", "writes to stderr: 'careful'"


def count_out_of_order(notebook):
    one, other = code(notebook)[:2]
    one.execution_count, other.execution_count = other.execution_count, one.execution_count
    return "outputs_are_complete", "is out of order"


def wrong_badge(notebook):
    title = notebook.cells[0]
    title.source = title.source.replace("/blob/main/", "/blob/another-branch/")
    return "opens_with_badge", "another-branch"


def figure_without_alt_text(notebook):
    cell, _ = with_figure(notebook)
    del cell.metadata["mystnb"]
    return "figures_have_alt_text", "a figure without alt text"


def number_from_nowhere(notebook):
    notebook.cells[-1].source += "\n\nThe weight is 0.8271."
    return "numbers_are_computed", "the number 0.8271 in the prose appears in no cell"


FAULTS = [
    changed_digit,
    moved_pixels,
    dropped_figure,
    cleared_outputs,
    extra_print,
    warning_on_stderr,
    count_out_of_order,
    wrong_badge,
    figure_without_alt_text,
    number_from_nowhere,
]


WRONG_AXIS = """

_right = softmax


def softmax(scores, axis=-1):  # the planted bug: the queries' axis, where there is one
    return _right(scores, -2 if scores.ndim > 1 else axis)
"""


# Running the validation on a copy


def copy_of_the_book(folder):
    """Copy what validates a notebook, without any notebook."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target, ignore=ignore) if source.is_dir() else shutil.copy(source, target)
    (folder / "book").mkdir()
    return folder


def add(folder, name, plant=lambda notebook: None):
    """Write the chapter under another name, with a fault planted; return what the validation must say."""
    path = folder / "book" / f"{name}.ipynb"
    shutil.copy(ROOT / "book" / f"{CHAPTER}.ipynb", path)
    set_repository.set_first_cells(path, root=folder)  # a badge names its own page
    notebook = notebooks.read(path)
    expected = plant(notebook)
    path.write_text(notebooks.text_of(notebook), encoding="utf8")
    return expected


def validate(folder, executed):
    """Run nbval on the notebooks named and the rules on all.

    Return {notebook: {check: message}} of what failed, and how many checks ran on each notebook.
    """
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    nbval = ["--nbval", "--nbval-current-env", "--nbval-kernel-startup-timeout", "180", "--color", "no"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    paths = [*(f"book/{name}.ipynb" for name in executed), "tests/book/test_notebooks.py", f"--junitxml={report}"]
    run = subprocess.run([*command, *nbval, *paths], cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    failures, ran = {}, {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("name")
        if name.startswith("Cell "):
            check, page = "nbval", re.search(r"(\w+)\.ipynb|book\.(\w+)", case.get("classname") + str(case.get("file")))
            page = page[1] or page[2]
        elif match := re.fullmatch(r"test_keeps_the_rule\[(\w+)-book/(\w+)\.ipynb\]", name):
            check, page = match.groups()
        else:
            continue
        ran[page] = ran.get(page, 0) + 1
        for failure in [*case.findall("failure"), *case.findall("error")]:
            failures.setdefault(page, {}).setdefault(check, "")
            failures[page][check] += (failure.get("message") or "") + (failure.text or "")
    return failures, ran


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Judge the chapter as it is and once with each fault, all in one run."""
    folder = copy_of_the_book(tmp_path_factory.mktemp("faults"))
    add(folder, "as_it_is")
    expected = {plant.__name__: add(folder, plant.__name__, plant) for plant in FAULTS}
    executed = ["as_it_is", *(fault for fault, (check, _) in expected.items() if check == "nbval")]
    return *validate(folder, executed), expected


def test_the_chapter_as_it_is_passes(judged):
    failures, ran, _ = judged
    assert ran["as_it_is"] > 20
    assert "as_it_is" not in failures, failures["as_it_is"]


@pytest.mark.parametrize("fault", [plant.__name__ for plant in FAULTS])
def test_a_planted_fault_is_caught(judged, fault):
    failures, _, expected = judged
    check, message = expected[fault]
    assert check in failures.get(fault, {}), f"{check} did not fail; what failed: {failures.get(fault)}"
    assert message in failures[fault][check]


def test_a_bug_planted_in_lib_is_caught(tmp_path):
    folder = copy_of_the_book(tmp_path)
    add(folder, "as_it_is")
    with open(folder / "lib" / "reference" / "softmax.py", "a", encoding="utf8") as file:
        file.write(WRONG_AXIS)
    ask = [sys.executable, "-c", "import lib; print(lib.__path__[0])"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    imported = subprocess.run(ask, cwd=folder / "book", env=environment, capture_output=True, text=True, check=True)
    assert imported.stdout.strip() == str(folder / "lib"), (
        "the kernel would import another lib than the one with the bug"
    )
    failures, _ = validate(folder, ["as_it_is"])
    assert "Cell outputs differ" in failures["as_it_is"]["nbval"]
    assert set(failures["as_it_is"]) == {"nbval"}, (
        "the stored notebook itself is sound: only running it can show the bug"
    )


def test_every_fault_of_the_list_is_planted():
    assert len(FAULTS) + 1 == 11
