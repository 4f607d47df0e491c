"""The playground computes what `lib` computes, by mouse, by keyboard and by ear, and asks nothing of another host."""

import shutil

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

from lib import reference
from scripts.repository import ROOT
from tests.site.conftest import HTML

STATIC = ROOT / "book" / "_static"
PLAYGROUND = STATIC / "playground.html"
COLUMNS = ["key", "score", "masked", "exp", "weight", "value", "part"]


class Playground:
    """The playground open in a browser, driven by what a reader sees."""

    def __init__(self, browser, width=1280, scheme="light"):
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.complaints, self.requests = [], []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(PLAYGROUND.as_uri())

    def set_keys(self, keys):
        """Enter (score, value, masked) for every key, as a reader does."""
        while self.page.locator("fieldset.key").count() < len(keys):
            self.page.get_by_role("button", name="Add a key").click()
        while self.page.locator("fieldset.key").count() > len(keys):
            self.page.get_by_role("button", name="Remove the last key").click()
        for n, (score, value, masked) in enumerate(keys, start=1):
            self.page.get_by_label(f"Score of key {n}", exact=True).fill(str(score))
            self.page.get_by_label(f"Value of key {n}", exact=True).fill(str(value))
            self.page.get_by_label(f"Mask key {n}", exact=True).set_checked(masked)

    def column(self, name):
        """Return the texts of one column of the table."""
        return self.page.locator(f"#steps tr > :nth-child({COLUMNS.index(name) + 1})").all_inner_texts()

    def text(self, name):
        """Return the text of the element with this id."""
        return self.page.locator(f"#{name}").inner_text()


@pytest.fixture(params=[1280, 390])
def at_both_widths(request, browser):
    """Open the playground on a desktop and on a phone."""
    playground = Playground(browser, request.param)
    yield playground
    assert playground.complaints == []
    playground.page.close()


@pytest.fixture
def playground(browser):
    """Open the playground."""
    playground = Playground(browser)
    yield playground
    assert playground.complaints == []
    playground.page.close()


def by_lib(keys, divisor=1.0):
    """Return the weights and the output that lib computes: the scores are the query's products with the keys."""
    scores, values, masked = (np.array(column) for column in zip(*keys, strict=True))
    output, weights = reference.attention(
        np.ones((1, 1)),
        scores.astype(float)[:, None],
        values.astype(float)[:, None],
        mask=~masked.astype(bool)[None],
        scale=1 / divisor,
        return_weights=True,
    )
    return weights[0], output.item()


def number(text):
    """Read a number as the page writes it."""
    return -np.inf if text == "−∞" else float(text.replace("−", "-").replace("< ", "").replace("> ", ""))


KEYS = {
    "the card's example": [(0, 2, False), (0, 8, False)],
    "the second key masked": [(0, 2, False), (0, 8, True)],
    "unequal scores": [(2, 2, False), (0.5, 8, False), (-1, 5, False)],
    "one key": [(-3, 7, False)],
    "six keys, two masked": [
        *[(1, 2, False), (-2, -8, True), (0.3, 5, False)],
        *[(4, 1.5, True), (0, 0, False), (-5, 9, False)],
    ],
    "scores that overflow exp": [(1000, 2, False), (999, 8, False)],
    "far apart": [(1000, 2, False), (-1000, 8, False)],
    "the largest masked": [(1000, 2, True), (0, 8, False), (0, 4, False)],
    "nothing left": [(0, 2, True), (3, 8, True)],
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_it_shows_what_lib_computes(at_both_widths, keys):
    at_both_widths.set_keys(keys)
    weights, output = by_lib(keys)
    scores = np.array([score for score, _, _ in keys], float)
    masked = np.array([-np.inf if masked else score for score, _, masked in keys])
    values = np.array([value for _, value, _ in keys])
    shown = {name: [number(text) for text in at_both_widths.column(name)] for name in COLUMNS[1:]}
    assert shown["score"] == scores.tolist()
    assert shown["masked"] == masked.tolist()
    assert shown["value"] == values.tolist()
    np.testing.assert_allclose(shown["weight"], weights, atol=1e-4)
    np.testing.assert_allclose(shown["part"], weights * values, atol=1e-4)
    np.testing.assert_allclose(number(at_both_widths.text("output")), output, atol=1e-4)
    np.testing.assert_allclose(number(at_both_widths.text("weight-sum")), weights.sum(), atol=1e-4)
    exps = np.where(np.isfinite(masked), np.exp(masked - max(masked.max(), -1e9)), 0.0)
    np.testing.assert_allclose(shown["exp"], exps, atol=1e-4)
    np.testing.assert_allclose(number(at_both_widths.text("exp-sum")), exps.sum(), atol=1e-4)
    assert at_both_widths.column("key") == [f"{n} masked" if key[2] else f"{n}" for n, key in enumerate(keys, start=1)]
    # and the bars are as long as the weights are large
    bars = at_both_widths.page.locator(".bar").evaluate_all(
        "bars => bars.map(bar => bar.firstChild.getBoundingClientRect().width / bar.getBoundingClientRect().width)"
    )
    np.testing.assert_allclose(bars, weights, atol=0.02)


def test_its_functions_agree_with_lib_to_the_last_digits(playground):
    rng = np.random.default_rng(5)
    cases = []
    for _ in range(200):
        size = rng.integers(1, 7)
        scores = rng.normal(size=size) * 10 ** rng.uniform(-2, 3)
        keys = zip(
            scores.tolist(), (rng.normal(size=size) * 9).tolist(), (rng.random(size) < 0.3).tolist(), strict=True
        )
        cases.append((list(keys), float(rng.uniform(0.1, 10))))
    results = playground.page.evaluate(
        """cases => cases.map(([keys, divisor]) => {
            const result = attend(keys.map(([score, value, masked]) => ({score, value, masked})), {divisor});
            return [result.weights, result.output];
        })""",
        cases,
    )
    for (keys, divisor), (weights, output) in zip(cases, results, strict=True):
        expected_weights, expected_output = by_lib(keys, divisor)
        np.testing.assert_allclose(weights, expected_weights, rtol=1e-11, atol=1e-300)
        np.testing.assert_allclose(output, expected_output, rtol=1e-11, atol=1e-13)
        scores = np.array([-np.inf if masked else score / divisor for score, _, masked in keys])
        if np.isfinite(scores).any():
            np.testing.assert_allclose(weights, reference.softmax(scores), rtol=1e-11, atol=1e-300)


def test_a_softmax_of_nothing_is_zero(playground):
    assert playground.page.evaluate("softmax([-Infinity, -Infinity]).weights") == [0, 0]


class TestTheCardsExample:
    def test_equal_scores(self, playground):
        assert playground.column("weight") == ["0.5", "0.5"]
        assert playground.text("output") == "5"
        assert playground.text("summary") == "Weights: 0.5, 0.5. They sum to 1. Output: 0.5 × 2 + 0.5 × 8 = 5."
        assert playground.text("why") == "Equal scores get equal weights: the output is the plain average of 2 values."

    def test_the_second_key_masked(self, playground):
        playground.page.get_by_label("Mask key 2").check()
        assert playground.column("masked") == ["0", "−∞"]
        assert playground.column("weight") == ["1", "0"]
        assert playground.text("summary") == "Weights: 1, 0. They sum to 1. Output: 1 × 2 + 0 × 8 = 2."
        assert "One key is left" in playground.text("why")

    def test_the_mistake_of_masking_after_the_softmax(self, playground):
        playground.page.get_by_label("Mask key 2").check()
        playground.page.get_by_label("After it").check()
        assert playground.column("masked") == ["0", "0"]
        assert playground.column("weight") == ["0.5", "0 (was 0.5)"]
        assert playground.text("weight-sum") == "0.5"
        assert playground.text("output") == "1"
        assert "This is the mistake. The softmax had already given 0.5" in playground.text("why")
        assert "No mask yet" in playground.page.locator("thead").inner_text()

    def test_every_key_masked(self, playground):
        playground.page.get_by_role("button", name="Mask every key").click()
        assert playground.column("weight") == ["0", "0"]
        assert playground.text("output") == "0"
        assert "nothing is left to share out" in playground.text("why")


def test_starting_again_restores_everything(playground):
    playground.set_keys(KEYS["six keys, two masked"])
    playground.page.get_by_label("After it").check()
    playground.page.get_by_label("Divide the scores by").fill("3")
    playground.page.get_by_role("button", name="Start again").click()
    assert playground.text("summary") == "Weights: 0.5, 0.5. They sum to 1. Output: 0.5 × 2 + 0.5 × 8 = 5."
    assert playground.page.get_by_label("Before the softmax").is_checked()
    assert playground.page.get_by_label("Divide the scores by").input_value() == "1"


@pytest.mark.parametrize("name", ["Unequal scores", "Large scores", "Mask the second key"])
def test_examples_agree_with_lib(playground, name):
    playground.page.get_by_role("button", name=name).click()
    rows = [
        (number(score), number(value), "masked" in key)
        for score, value, key in zip(*map(playground.column, ("score", "value", "key")), strict=True)
    ]
    assert number(playground.text("output")) == pytest.approx(by_lib(rows)[1], abs=1e-4)


def test_dividing_the_scores(playground):
    keys = KEYS["unequal scores"]
    playground.set_keys(keys)
    playground.page.get_by_label("Divide the scores by").fill("1.41421356")
    weights, output = by_lib(keys, 1.41421356)
    np.testing.assert_allclose([number(text) for text in playground.column("weight")], weights, atol=1e-4)
    assert number(playground.text("output")) == pytest.approx(output, abs=1e-4)
    assert "Score ÷ 1.4142" in playground.page.locator("thead").inner_text()


@pytest.mark.parametrize("entered", ["", "2000", "-1001"])
def test_a_number_that_is_none_is_refused_and_the_last_one_counts(playground, entered):
    score = playground.page.get_by_label("Score of key 1", exact=True)
    score.fill("3")
    before = playground.text("summary")
    score.fill(entered)
    assert playground.text("summary") == before
    assert score.get_attribute("aria-invalid") == "true"
    assert playground.page.get_by_text(
        "Wanted: a number from −1000 to 1000. The last one still counts."
    ).first.is_visible()
    score.fill("0")
    assert score.get_attribute("aria-invalid") == "false"
    assert playground.page.locator(".problem:visible").count() == 0


@pytest.mark.parametrize("entered", ["", "0", "-1", "1000"])
def test_a_divisor_that_is_none_counts_as_one(playground, entered):
    playground.page.get_by_label("Divide the scores by").fill(entered)
    assert playground.text("output") == "5"
    assert playground.page.get_by_label("Divide the scores by").get_attribute("aria-invalid") == "true"


def test_slider_and_number_follow_each_other(playground):
    slider, score = (
        playground.page.get_by_label("Score of key 1, slider"),
        playground.page.get_by_label("Score of key 1", exact=True),
    )
    slider.fill("2.5")
    assert score.input_value() == "2.5"
    score.fill("-4")
    assert slider.input_value() == "-4"
    score.fill("700")
    assert slider.input_value() == "5"
    assert playground.column("score")[0] == "700"


def test_one_to_six_keys(playground):
    add, remove = (playground.page.get_by_role("button", name=name) for name in ("Add a key", "Remove the last key"))
    for _ in range(7):
        add.click(force=True)
    assert playground.page.locator("fieldset.key").count() == len(playground.column("key")) == 6
    assert add.get_attribute("aria-disabled") == "true"
    for _ in range(7):
        remove.click(force=True)
    assert playground.page.locator("fieldset.key").count() == len(playground.column("key")) == 1
    assert (add.get_attribute("aria-disabled"), remove.get_attribute("aria-disabled")) == ("false", "true")


def test_keyboard_alone(at_both_widths):
    page = at_both_widths.page

    def tab_to(label):
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("() => document.activeElement === document.body"):
                continue  # past the last element, before the first
            name = page.evaluate(
                "() => { const at = document.activeElement;"
                " return at.getAttribute('aria-label') || (at.labels && at.labels[0] || at).innerText.trim(); }"
            )
            outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid", f"the focus on {name!r} cannot be seen"
            if name == label:
                return
        raise AssertionError(f"Tab never reaches {label!r}")

    tab_to("Mask key 2")
    page.keyboard.press("Space")
    assert at_both_widths.text("output") == "2"
    page.keyboard.press("Space")
    tab_to("Add a key")
    page.keyboard.press("Enter")
    assert at_both_widths.text("summary").endswith("= 5.")
    assert len(at_both_widths.column("key")) == 3
    tab_to("Score of key 1, slider")
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    assert at_both_widths.column("score") == ["1", "0", "0"]
    tab_to("Score of key 1")
    page.keyboard.press("ArrowUp")
    assert at_both_widths.column("score")[0] == "1.1"
    tab_to("Before the softmax: the score becomes −∞")
    page.keyboard.press("ArrowDown")
    assert page.get_by_label("After it").is_checked()


def test_a_screen_reader_is_told_once_what_came_out(playground):
    status = playground.page.get_by_role("status")
    playground.page.wait_for_timeout(700)
    assert status.inner_text() == ""  # nothing is said before the reader has done something
    status.evaluate(
        """status => {
            window.told = [];
            new MutationObserver(() => told.push(status.textContent)).observe(status, {childList: true});
        }"""
    )
    playground.page.get_by_label("Score of key 1, slider").evaluate(
        """slider => [1, 2, 3].forEach(value => {
            slider.value = value;
            slider.dispatchEvent(new Event('input'));
        })"""
    )
    playground.page.wait_for_function("told.length > 0")
    told = playground.page.evaluate("told")
    assert len(told) == 1
    assert told[0].startswith(
        "Weights: 0.9526, 0.0474. They sum to 1. Output: 0.9526 × 2 + 0.0474 × 8 = 2.2846. A higher"
    )
    assert status.get_attribute("aria-live") == "polite"


def test_the_table_says_what_its_cells_are(playground):
    page = playground.page
    assert page.locator("caption").inner_text() == "From score to output, step by step"
    assert page.locator("thead th[scope=col]").count() == 7
    assert page.locator("tbody th[scope=row]").count() == 2
    assert page.locator("tfoot th[scope=row]").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("state", ["as it opens", "six keys", "guess"])
def test_accessibility_rules(browser, scheme, state):
    playground = Playground(browser, 390, scheme)
    if state == "six keys":
        playground.set_keys(KEYS["six keys, two masked"])
        playground.page.get_by_label("Score of key 1", exact=True).fill("")
        playground.page.get_by_label("After it").check()
    if state == "guess":
        playground.page.get_by_label("Let me guess").check()
    found = Axe().run(playground.page).response["violations"]
    assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found] == []
    playground.page.close()


def test_nothing_scrolls_sideways(at_both_widths):
    at_both_widths.set_keys(KEYS["six keys, two masked"])
    at_both_widths.page.get_by_label("After it").check()
    page = at_both_widths.page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(
        "(() => { const box = document.querySelector('.scroll'); return box.scrollWidth <= box.clientWidth; })()"
    )


def test_it_asks_for_nothing_but_its_own_files(playground):
    playground.set_keys(KEYS["six keys, two masked"])
    names = sorted(address.rpartition("/")[2] for address in playground.requests if not address.startswith("data:"))
    assert names == ["playground.css", "playground.html", "playground.js"]
    assert all(address.startswith(("file://", "data:")) for address in playground.requests)


class TestGuessing:
    def test_the_answer_is_hidden_until_a_guess(self, playground):
        page = playground.page
        page.get_by_label("Let me guess").check()
        assert playground.column("weight") == ["?", "?"]
        assert playground.text("output") == "?"
        page.get_by_role("button", name="Mask the second key").click()
        assert playground.column("masked") == ["0", "−∞"]
        assert playground.text("summary") == "Guess first: what will the output be?"
        page.get_by_label("What will the output be?").fill("5")
        page.get_by_role("button", name="Show me").click()
        assert playground.text("summary").startswith("You guessed 5; the output is 2. Weights: 1, 0.")
        assert page.evaluate("document.activeElement.id") == "summary"
        assert page.locator("#guess").is_hidden()

    def test_a_right_guess(self, playground):
        page = playground.page
        page.get_by_label("Let me guess").check()
        page.get_by_label("What will the output be?").fill("5")
        page.keyboard.press("Enter")
        assert playground.text("summary").startswith("You guessed 5: right.")

    def test_no_guess_shows_nothing(self, playground):
        playground.page.get_by_label("Let me guess").check()
        playground.page.get_by_role("button", name="Show me").click()
        assert playground.text("output") == "?"


@pytest.mark.parametrize(
    "number, text",
    [
        *[(0, "0"), (-0.0, "0"), (0.5, "0.5"), (1 / 3, "0.3333"), (-2.5, "−2.5"), (1000, "1000")],
        *[(1e-7, "< 0.0001"), (-1e-7, "> −0.0001")],
    ],
)
def test_numbers_are_written_for_people(playground, number, text):
    assert playground.page.evaluate("number => say(number)", number) == text


def test_without_scripts_it_says_what_it_would_show(browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(PLAYGROUND.as_uri())
    assert "the weights are 1 and 0, and the output is 2" in " ".join(page.locator("noscript").inner_text().split())
    context.close()


class TestInAPage:
    """embed_playground.js turns the plain link of a chapter into a frame."""

    @pytest.fixture
    def page(self, browser, tmp_path):
        shutil.copytree(STATIC, tmp_path / "_static")
        (tmp_path / "book").mkdir()
        (tmp_path / "book" / "page.html").write_text(
            "<!doctype html><html data-theme='dark'><title>page</title>"
            "<link rel='stylesheet' href='../_static/book.css'>"
            "<script src='../_static/embed_playground.js'></script><article><p id='before'>Before</p>"
            "<p id='link'><a href='../_static/playground.html'>Open the playground</a></p></article>",
            encoding="utf8",
        )
        page = browser.new_page(viewport={"width": 700, "height": 900})
        page.goto((tmp_path / "book" / "page.html").as_uri())
        page.wait_for_function("document.querySelector('iframe.playground').style.height !== ''")
        yield page
        page.close()

    def test_the_frame_stands_above_the_link_which_stays(self, page):
        order = page.evaluate(
            "[...document.querySelector('article').children].map(child => child.id || child.className)"
        )
        assert order == ["before", "playground", "link"]
        assert page.locator("#link a").is_visible()
        assert page.locator("iframe").get_attribute("title") == "Attention playground: one query, a few keys"

    def test_the_frame_is_as_high_as_the_playground(self, page):
        inside = page.frames[1]

        def fits():
            for _ in range(50):
                page.wait_for_timeout(100)
                needed = inside.evaluate("document.documentElement.getBoundingClientRect().height")
                given = page.locator("iframe").evaluate("frame => frame.clientHeight")
                if 0 <= given - needed < 2:
                    return needed
            raise AssertionError(f"the frame is {given} high, the playground {needed}")

        two_keys = fits()
        inside.get_by_role("button", name="Unequal scores").click()
        inside.locator("fieldset.key").nth(2).wait_for()
        three_keys = fits()
        page.set_viewport_size({"width": 390, "height": 900})
        inside.wait_for_function("innerWidth < 500")
        assert two_keys < three_keys < fits()

    def test_the_frame_follows_the_theme(self, page):
        inside = page.frames[1]
        for theme in ("light", "dark"):
            page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
            inside.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=theme)


def test_the_chapter_shows_it(browser):
    page = browser.new_page()
    page.goto((HTML / "book" / "worked_example.html").as_uri())
    link = page.locator("article a[href='../_static/playground.html']")
    assert link.count() == 1
    page.wait_for_function("parseFloat(document.querySelector('iframe.playground').style.height) > 500")
    page.close()
