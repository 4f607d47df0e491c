"""What can be read off the built HTML: links and pictures lead somewhere, nothing raw is left, pages are small."""

import re
from functools import cache
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from bs4 import BeautifulSoup

from scripts.repository import ROOT
from tests.site.conftest import HTML, built_pages

LARGEST = 1_000_000  # bytes of one page with its own pictures
RAW = {
    "a directive": r"(?:```|:::)\s*\{\w+",
    "a role": r"\{(?:cite|ref|doc|eq|numref|term|math)(?::\w+)?\}",
    "a target": r"(?m)^\([\w-]+\)=\s*$",
    "raw Markdown": r"(?m)^#{1,6} \w|\]\((?:https?:|[\w/]+\.(?:ipynb|md))|\*\*\w",
    "raw math": r"\$\$|\\begin\{",
}


@cache
def soup(path):
    """Return a page, parsed."""
    return BeautifulSoup(path.read_text(encoding="utf8"), "html.parser")


@cache
def places(path):
    """Return every place of a page that a link may name."""
    return {tag[key] for key in ("id", "name") for tag in soup(path).find_all(attrs={key: True})}


def article(path):
    """Return what the page says, without menus."""
    return soup(path).find("article", class_="bd-article")


def words(path):
    """Return the text of the page outside of code, of signatures, and of math, which MathJax draws later."""
    copy = BeautifulSoup(str(article(path)), "html.parser")
    for element in copy.select("pre, code, script, style, .math, .sig, .field-list strong"):
        element.decompose()
    return copy.get_text("\n")


def target(path, address):
    """Return (file, anchor) that an address on a page leads to."""
    name, anchor = unquote(urlsplit(address).path), unquote(urlsplit(address).fragment)
    return ((path.parent / name).resolve() if name else path), anchor


def is_elsewhere(address):
    """Whether an address is not a file of the book."""
    return bool(urlsplit(address).scheme)


@pytest.mark.parametrize("what", RAW)
def test_nothing_raw_is_left(page_path, what):
    found = re.search(RAW[what], words(page_path))
    assert not found, f"{what}: {found[0]!r}"


def test_links_lead_somewhere(page_path):
    for link in soup(page_path).find_all("a", href=True):
        if is_elsewhere(link["href"]) or link["href"] == "#":
            continue
        file, anchor = target(page_path, link["href"])
        assert file.exists(), link["href"]
        if anchor and file.suffix == ".html":
            assert anchor in places(file), link["href"]


def test_pictures_are_there_and_say_what_they_show(page_path):
    for image in article(page_path).find_all("img"):
        assert not is_elsewhere(image["src"]), image["src"]
        assert target(page_path, image["src"])[0].stat().st_size > 0
        alt = image.get("alt", "")
        assert len(alt) >= 40, f"{image['src']} has alt text {alt!r}"
        assert image["src"] not in alt


def test_loads_nothing_from_another_host(page_path):
    loaded = [
        tag.get("src") or tag.get("href") for tag in soup(page_path).select("script[src], link[href], img, iframe")
    ]
    canonical = [tag["href"] for tag in soup(page_path).select("link[rel=canonical]")]
    assert [address for address in loaded if address and is_elsewhere(address) and address not in canonical] == []
    inline = "\n".join(script.get_text() for script in soup(page_path).find_all("script") if not script.get("src"))
    assert not re.search(r"https?://", inline)


def test_is_small(page_path):
    own = {target(page_path, image["src"])[0] for image in soup(page_path).select("article img")}
    size = page_path.stat().st_size + sum(path.stat().st_size for path in own)
    assert size <= LARGEST, f"{size} bytes"


def test_every_page_of_the_contents_is_built():
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    chapters = [chapter for part in contents["parts"] for chapter in part["chapters"]]
    sections = [section for chapter in chapters for section in chapter.get("sections", [])]
    named = [contents["root"], *(page["file"] for page in chapters + sections)]
    built = {page.relative_to(HTML).with_suffix("").as_posix() for page in built_pages()}
    assert sorted(built) == sorted(named)


def test_the_address_to_open_leads_to_the_first_page():
    refresh = soup(HTML / "index.html").find("meta", attrs={"http-equiv": "Refresh"})
    assert (HTML / refresh["content"].partition("url=")[2]).exists()


def test_notebooks_have_a_button_for_colab():
    for path in (HTML / "book").glob("*.html"):
        if (ROOT / "book" / path.name).with_suffix(".ipynb").exists():
            assert soup(path).select("a.btn[href^='https://colab.research.google.com/github/']"), path.name
