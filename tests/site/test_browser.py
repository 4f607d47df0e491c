"""What only a browser can say: math is drawn, nothing is asked of another host, nothing scrolls sideways."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.site.conftest import HTML

WIDTHS = {"wide": 1280, "phone": 390}
# What axe finds and browsers have mended: the keyboard scrolls any region that scrolls.
MENDED = {"scrollable-region-focusable": {"enabled": False}}
# TeX, or a macro that is none, in the page's own text; code may say what it likes.
LEFT_OF_TEX = r"""() => {
  const text = document.querySelector('article').cloneNode(true);
  text.querySelectorAll('pre, code').forEach((code) => code.remove());
  return text.textContent.match(/\\\(|\\\[|\bundefined\b/g) ?? [];
}"""
# Elements of the page's own text that stick out to the right, unless something around them scrolls by itself.
STICKING_OUT = """() => [...document.querySelectorAll('article.bd-article *')].filter((element) => {
  if (element.getBoundingClientRect().right <= document.documentElement.clientWidth + 1) return false;
  for (let outer = element; outer; outer = outer.parentElement) {
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(outer).overflowX)) return false;
  }
  return element.getClientRects().length > 0;
}).slice(0, 5).map((element) => element.outerHTML.slice(0, 200))"""


class Visit:
    """One page open in the browser, and all that it complained about or asked for."""

    def __init__(self, browser, path, width):
        self.name, self.width, self.complaints, self.requests = path.stem, width, [], []
        self.page = browser.new_page(viewport={"width": width, "height": 900})
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self.complaints.append(said.text))
        self.page.on("requestfailed", lambda request: self.complaints.append(f"failed: {request.url}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.evaluate("async () => { await document.fonts.ready; await window.MathJax?.startup?.promise; }")

    def ask(self, question):
        """Evaluate JavaScript on the page."""
        return self.page.evaluate(question)


@pytest.fixture(params=WIDTHS)
def visit(request, browser, page_path, screenshots):
    """Open a page at one width, folded answers open so that all of it is looked at; keep a picture of it."""
    visit = Visit(browser, page_path, WIDTHS[request.param])
    visit.ask("() => document.querySelectorAll('details').forEach((answer) => { answer.open = true; })")
    yield visit
    name = page_path.relative_to(HTML).with_suffix("").as_posix().replace("/", "-")
    visit.page.screenshot(path=screenshots / f"{name}-{request.param}.png", full_page=True, timeout=120_000)
    visit.page.close()


def test_page_is_sound(visit):
    assert visit.complaints == []
    assert [address for address in visit.requests if not address.startswith("file://")] == []
    # math: every formula drawn, none in error, no TeX left
    assert visit.ask("() => document.querySelectorAll('mjx-merror, [data-mjx-error]').length") == 0
    formulas = visit.ask("() => document.querySelectorAll('.math').length")
    assert visit.ask("() => document.querySelectorAll('.math mjx-container').length") == formulas
    assert visit.ask(LEFT_OF_TEX) == []
    # pictures: all drawn
    assert visit.ask("() => [...document.images].filter((image) => image.complete && !image.naturalWidth).length") == 0
    # no sideways scroll
    overflow = visit.ask("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0, visit.ask(STICKING_OUT)
    assert visit.ask(STICKING_OUT) == []
    # read aloud: what axe finds grave. One width is enough: the words are the same. The API page is Sphinx's own.
    if visit.width == WIDTHS["wide"] and visit.name != "api":
        axe = Axe().run(visit.page, context="article.bd-article", options={"rules": MENDED})
        grave = [found for found in axe.response["violations"] if found["impact"] in ("serious", "critical")]
        assert [(found["id"], found["nodes"][0]["html"][:200]) for found in grave] == []
