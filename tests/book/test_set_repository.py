"""`make set-repository URL=...` changes the address everywhere, and nothing else."""

import shutil
import sys

import pytest

from scripts import notebook_rules, notebooks, repository, set_repository
from scripts.repository import ROOT

NEW = "https://github.com/ada-l/attention.notes"
NOTEBOOK = "book/equation.ipynb"


@pytest.fixture
def copy(tmp_path):
    """Return a copy of everything that names the address."""
    for name in ("_config.yml", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", NOTEBOOK):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_address_changes_everywhere(copy):
    old = set_repository.set_address(NEW, copy)
    assert set_repository.set_first_cells(copy / NOTEBOOK, old, copy)
    assert repository.settings(copy)[0] == NEW
    for path in copy.rglob("*.*"):
        if path.is_file():
            assert old.removeprefix("https://github.com/") not in path.read_text(encoding="utf8"), path.name
    assert f"git+{NEW}@main" in (copy / "README.md").read_text(encoding="utf8")
    assert notebook_rules.complaints(notebook_rules.read(copy / NOTEBOOK, copy)) == []


def test_nothing_else_changes(copy):
    before = notebooks.read(copy / NOTEBOOK)
    old = set_repository.set_address(NEW, copy)
    set_repository.set_first_cells(copy / NOTEBOOK, old, copy)
    set_repository.set_first_cells(copy / NOTEBOOK, set_repository.set_address(old, copy), copy)
    assert notebooks.read(copy / NOTEBOOK) == before
    for name in ("_config.yml", "README.md"):
        assert (copy / name).read_bytes() == (ROOT / name).read_bytes()


def test_the_first_cells_are_right_already():
    assert not set_repository.set_first_cells(ROOT / NOTEBOOK)


@pytest.mark.parametrize("url", ["github.com/a/b", "https://example.org/a/b", "https://github.com/a"])
def test_another_kind_of_address_is_refused(url, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["set_repository", url])
    with pytest.raises(SystemExit, match=r"url: wanted an address like https://github.com/OWNER/NAME, got '"):
        set_repository.main()
