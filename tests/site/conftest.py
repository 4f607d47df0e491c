"""Where the built pages are, and a browser that can reach nothing but files."""

import shutil
from pathlib import Path

import pytest

from scripts.repository import ROOT

HTML = ROOT / "_build" / "html"
NOT_OURS = {"genindex.html", "py-modindex.html", "search.html", "index.html"}  # index.html leads on to the first page
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Without the background flags Chromium asks hosts of its own; in a container it cannot make its sandbox as root.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def built_pages():
    """Return every page that a reader can reach, code listings left out."""
    pages = [path for path in HTML.rglob("*.html") if not {"_static", "_modules"} & set(path.relative_to(HTML).parts)]
    return sorted(page for page in pages if page.name not in NOT_OURS)


def pytest_generate_tests(metafunc):
    """Give every test that asks for a page all pages, one after the other."""
    if "page_path" in metafunc.fixturenames:
        pages = built_pages()
        assert pages, f"there is no built book in {HTML}: run `make book` first"
        metafunc.parametrize("page_path", pages, ids=lambda path: path.relative_to(HTML).as_posix())


@pytest.fixture(scope="session")
def browser():
    """Start the Chromium that is installed."""
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert executable, f"no browser found: install one of {', '.join(BROWSERS)} (Debian: apt install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def screenshots():
    """Return the folder for pictures of the pages, for people to look at."""
    folder = Path(ROOT / "_build" / "screenshots")
    folder.mkdir(exist_ok=True)
    return folder
