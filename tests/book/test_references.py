"""The bibliography for readers and the one for papers list the same works; pages cite only these, and all of them."""

import re

import pytest

from scripts import notebooks
from scripts.repository import ROOT

ENTRY = re.compile(r"^@\w+\{([\w-]+),\n(.*?)^\}", re.MULTILINE | re.DOTALL)
BIB = dict(ENTRY.findall((ROOT / "book/references.bib").read_text(encoding="utf8")))
PAGE = (ROOT / "book/bibliography.md").read_text(encoding="utf8")
SECTIONS = {
    heading.lower().replace(" ", "-"): text
    for heading, text in re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
# "Dao et al. (2022)", "Rabe and Staats (2021)", "Liu, Zaharia and Abbeel (2023)", "Dao (2023)"
CITATION = re.compile(r"([A-Z][a-z]+)(?: et al\.|(?:, [A-Z][a-z]+)* and [A-Z][a-z]+)? \((\d{4})\)")


def cited_on_pages():
    """Return every anchor of bibliography.md that a page links to, with a page that does."""
    texts = {path: "\n".join(cell.source for cell in notebooks.read(path).cells) for path in notebooks.paths()}
    texts |= {path: path.read_text(encoding="utf8") for path in (ROOT / "book").rglob("*.md")}
    link = re.compile(r"bibliography\.md#([\w-]+)")
    return {anchor: path.name for path, text in texts.items() for anchor in link.findall(text)}


def cited_in_docstrings():
    """Return every work that a module of lib cites, by its anchor, with a module that does."""
    texts = {path: path.read_text(encoding="utf8") for path in (ROOT / "lib").rglob("*.py")}
    return {f"{name.lower()}{year}": path.name for path, text in texts.items() for name, year in CITATION.findall(text)}


def test_both_lists_have_the_same_works():
    assert sorted(SECTIONS) == sorted(BIB)
    assert len(SECTIONS) >= 10


@pytest.mark.parametrize("name", sorted(BIB))
def test_both_lists_lead_to_the_same_place(name):
    address = re.search(r"url\s*=\s*\{(.*?)\}", BIB[name])[1]
    assert f"({address})" in SECTIONS[name]


@pytest.mark.parametrize("name", sorted(BIB))
def test_a_work_has_its_year_in_both_lists(name):
    for year in re.findall(r"year\s*=\s*\{(\d+)\}", BIB[name]):
        assert f"({year})" in SECTIONS[name]
        assert name.endswith(year)


@pytest.mark.parametrize("cited_in", [cited_on_pages, cited_in_docstrings])
def test_only_what_is_listed_is_cited(cited_in):
    cited = cited_in()
    assert len(cited) >= 10
    assert {anchor: place for anchor, place in cited.items() if anchor not in SECTIONS} == {}


def test_no_work_is_listed_that_nothing_cites():
    assert sorted(SECTIONS.keys() - cited_on_pages().keys() - cited_in_docstrings().keys()) == []
