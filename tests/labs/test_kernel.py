"""In a real kernel, as students run it: a hang is cut off, an error names the cell's own line, nothing raises."""

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

CELLS = {
    "imports": "import numpy as np\nfrom lib import labs\nlabs.running.SECONDS = 0.5",
    "hangs": 'def softmax(scores):\n    while True:\n        pass\n\nlabs.check("softmax", softmax)',
    "helper": "def centre(scores):\n    # a comment\n    return scores - scores.mean(axis=5)",
    "raises": 'def softmax(scores):\n    return np.exp(centre(scores))\n\nlabs.check("softmax", softmax)',
    "stub": 'def softmax(scores):\n    """Say."""\n    raise NotImplementedError()\n\nlabs.check("softmax", softmax)',
    "half": 'def softmax(scores):\n    print("hello")\n    e = np.exp(scores)\n    raise NotImplementedError()\n\n'
    'labs.check("softmax", softmax)',
    "warns": "def softmax(scores):\n    return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)\n\n"
    'labs.check("softmax", softmax)\nlabs.show(softmax, np.array([[1000.0, 0.0]]))',
    "asks": 'def softmax(scores):\n    return scores * float(input("scale? "))\n\nlabs.check("softmax", softmax)',
    "right": "def softmax(scores):\n    e = np.exp(scores - scores.max(-1, keepdims=True))\n"
    '    return e / e.sum(-1, keepdims=True)\n\nlabs.check("softmax", softmax)',
}


@pytest.fixture(scope="module")
def said():
    """Run the cells in one kernel; give what each printed."""
    notebook = new_notebook(cells=[new_code_cell(source, id=name) for name, source in CELLS.items()])
    NotebookClient(notebook, timeout=120, startup_timeout=180, kernel_name="python3", coalesce_streams=True).execute()
    for cell in notebook.cells:
        assert all(output.get("name") == "stdout" for output in cell.outputs), cell.outputs
    return {cell.id: "".join(output.text for output in cell.outputs) for cell in notebook.cells}


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("hangs", "It does not come back, and was cut off"),
        ("raises", "It stops in centre, line 3:\n    return scores - scores.mean(axis=5)\nAxisError"),
        ("stub", "softmax: not written yet. Fill the gap"),
        ("half", "There is code; now delete the line with `raise`."),
        ("warns", "3 of 4 points so far"),
        ("warns", "[[nan  0.]]"),
        ("asks", "It stops in softmax, line 2:\n    return scores * float(input"),
        ("right", "softmax: right. 4 of 4 points."),
    ],
)
def test_a_kernel_says(said, cell, text):
    assert text in said[cell]


def test_no_cell_shows_our_own_files(said):
    for text in said.values():
        assert "lib/labs" not in text and "Traceback" not in text
