"""Each room of lib imports what it may, and importing one never loads what it does not need."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "lib").rglob("*.py"))
KNOWN = {"numpy", "torch", "matplotlib", "jaxtyping"}  # what pyproject.toml installs
EXTRA = {
    "lib/fast/triton_kernels.py": {"triton"},  # on Linux only; elsewhere they can be read
    "lib/pretrained.py": {"safetensors", "tokenizers", "huggingface_hub"},  # of the real model
    "lib/verify/check.py": {"pytest"},  # verify.cases gives pytest its parameters
}


def imported(source):
    """Return every module that a source imports anywhere, as full names."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which room is meant"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def inside(name, package):
    return name == package or name.startswith(package + ".")


def forbidden(path):
    """Return the modules that a file of lib may not import."""
    nobody = [] if path == "lib/figures.py" else ["matplotlib"]
    if path.startswith("lib/reference/"):
        return [*nobody, "torch", "lib.fast", "lib.verify", "lib.figures"]
    if path.startswith("lib/fast/"):
        return [*nobody, "lib.verify", "lib.figures"]
    if path.startswith(("lib/verify/", "lib/labs/", "lib/bench/")) or path in ("lib/figures.py", "lib/pretrained.py"):
        return nobody
    return [*nobody, "torch", "lib.fast", "lib.reference", "lib.verify"]  # shared by both frameworks


@pytest.mark.parametrize("path", FILES)
def test_imports_only_what_its_room_may(path):
    names = imported((ROOT / path).read_text(encoding="utf8"))
    assert [name for name in names if any(inside(name, package) for package in forbidden(path))] == []


@pytest.mark.parametrize("path", FILES)
def test_imports_only_declared_packages(path):
    tops = {name.split(".")[0] for name in imported((ROOT / path).read_text(encoding="utf8"))}
    assert tops - set(sys.stdlib_module_names) - {"lib"} <= KNOWN | EXTRA.get(path, set())


def test_the_check_sees_imports_wherever_they_stand():
    source = "def f():\n    import torch.nn as nn\n    from lib import verify\n    from matplotlib.pyplot import show"
    assert imported(source) == {"torch.nn", "lib.verify", "matplotlib.pyplot.show"}
    assert inside("torch.nn", "torch")
    assert not inside("torchvision", "torch")


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("lib", ["numpy", "torch", "matplotlib"]),
        ("lib.reference", ["torch", "matplotlib"]),
        ("lib.masks", ["torch", "matplotlib"]),
        ("lib.arguments", ["torch", "matplotlib"]),
        ("lib.sentences", ["torch", "matplotlib"]),
        ("lib.fast", ["lib.verify", "matplotlib", "lib.figures"]),
        ("lib.figures", ["torch"]),
        ("lib.pretrained", ["torch", "matplotlib", "safetensors", "tokenizers", "transformers"]),
    ],
)
def test_importing_one_room_leaves_the_others_closed(module, absent):
    code = f"import sys, {module}; print([name for name in {absent} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_rooms_open_by_name():
    code = "from lib import reference, masks; reference.attention, reference.softmax, masks.causal"
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, check=True)
