"""Each rule of notebooks, on small notebooks made for it: what it lets pass, and what it says of the rest."""

import base64
import io
from decimal import Decimal

import pytest
from matplotlib.figure import Figure
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from scripts import figures_equal, new_page, notebook_rules, notebooks, prose_numbers, repository
from scripts.repository import ROOT

NAME = "book/page.ipynb"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="


def page(*cells, **metadata):
    """Return a page of these cells, after the two that every notebook has."""
    title, setup = repository.first_cells(NAME, "A page")
    opening = new_markdown_cell(f"{title}\n\n**After this page you can** test.\n\n*5 minutes.*")
    bootstrap = new_code_cell(setup, execution_count=1, metadata={"tags": ["remove-cell"]})
    notebook = notebooks.clean(new_notebook(cells=[opening, bootstrap, *cells]))
    notebook.metadata.update(metadata)
    return notebook_rules.Page(ROOT / NAME, notebook)


def code(source="x = 1", count=2, outputs=(), **metadata):
    """Return a code cell that was run."""
    return new_code_cell(source, execution_count=count, outputs=list(outputs), metadata=metadata)


def printed(text, name="stdout"):
    """Return the output of a print."""
    return new_output("stream", name=name, text=text)


def figure():
    """Return the output of a plot."""
    return new_output("display_data", {"image/png": PNG, "text/plain": "<Figure>"})


ALT = {"mystnb": {"image": {"alt": "One row of two weights, each of them one half of the whole."}}}
WRONG = [
    ("kernel_is_python3", page(kernelspec={"name": "conda-env"}), "the kernel is 'conda-env'"),
    ("metadata_is_clean", page(widgets={}), "notebook metadata holds widgets"),
    ("metadata_is_clean", page(language_info={"name": "python", "version": "3.11.7"}), "names a version of Python"),
    ("names_no_machine", page(code(outputs=[printed("/home/ada/book/x.py:3: hm")])), "'/home/ada'"),
    ("names_no_machine", page(code(outputs=[printed("<object at 0x7f0f676b5150>")])), "'0x7f0f676b5150'"),
    ("outputs_are_complete", page(code(count=None)), "its outputs are cleared"),
    ("outputs_are_complete", page(code(count=3)), "execution count 3 is out of order, wanted 2"),
    ("outputs_are_complete", page(code(source=" ")), "an empty code cell"),
    ("output_is_calm", page(code(outputs=[printed("hm", "stderr")])), "writes to stderr: 'hm'"),
    ("output_is_calm", page(code(outputs=[new_output("error", ename="ValueError")])), "stores an error (ValueError)"),
    (
        "output_is_calm",
        page(code(outputs=[new_output("display_data", {"image/svg+xml": ""})])),
        "of type image/svg+xml",
    ),
    ("everything_is_compared", page(code("# NBVAL_IGNORE_OUTPUT\nx")), "NBVAL_IGNORE_OUTPUT"),
    ("everything_is_compared", page(code("# NBVAL_SKIP because\nx")), "NBVAL_SKIP"),
    ("everything_is_compared", page(code(tags=["nbval-ignore-output"])), "nbval-ignore-output"),
    ("everything_is_compared", page(code(tags=["raises-exception"])), "raises-exception"),
    ("figures_have_alt_text", page(code(outputs=[figure()])), "a figure without alt text"),
    ("figures_have_alt_text", page(code(outputs=[figure(), figure()], **ALT)), "2 figures in one cell"),
    (
        "figures_have_alt_text",
        page(code(outputs=[figure()], mystnb={"image": {"alt": "../_build/jupyter_execute/book/page_3_0.png"}})),
        "says too little",
    ),
    ("numbers_are_computed", page(new_markdown_cell("It is 0.25.")), "the number 0.25 in the prose"),
    ("numbers_are_computed", page(new_markdown_cell("It is $w = 0.25$.")), "0.25"),
    ("numbers_are_computed", page(new_markdown_cell("It is `0.25`.")), "0.25"),
    ("numbers_are_computed", page(code("x = 1  # 0.25"), new_markdown_cell("It is 0.25.")), "0.25"),
    ("numbers_are_computed", page(code(mystnb={"image": {"alt": "the weight 0.25"}})), "0.25 in the alt text"),
    ("is_plain_markdown", page(new_markdown_cell("```{note}\nx\n```")), "a MyST directive"),
    ("is_plain_markdown", page(new_markdown_cell("See {cite}`vaswani2017`.")), "a MyST role"),
    ("is_plain_markdown", page(new_markdown_cell("(here)=\n## Here")), "a MyST target"),
    ("is_plain_markdown", page(new_markdown_cell("<iframe src='x'></iframe>")), "the HTML tag <iframe>"),
    ("is_plain_markdown", page(new_markdown_cell("<details>\n<summary>Q</summary>\n**A**\n</details>")), "</summary>"),
    ("headings_are_plain", page(new_markdown_cell("## Why $d_k$")), "math in the heading"),
    ("headings_are_plain", page(new_markdown_cell("#### Deep")), "skips a level"),
    ("headings_are_plain", page(new_markdown_cell("# Again")), "a second title"),
    ("has_the_bones", page(), "the section '## Check yourself' is missing"),
]


@pytest.mark.parametrize(("rule", "wrong", "message"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_rule_names_what_is_wrong(rule, wrong, message):
    found = list(getattr(notebook_rules, rule)(wrong))
    assert any(message in complaint for complaint in found), found


def test_every_rule_about_content_is_tried():
    elsewhere = {"is_valid", "is_small", "opens_with_badge", "sets_up_colab"}
    elsewhere |= {"has_the_exercises_of_a_lab"}  # in tests/labs/test_release.py, on a real lab
    assert {rule.__name__ for rule in notebook_rules.RULES} == {rule for rule, _, _ in WRONG} | elsewhere


def test_a_sound_page_passes(tmp_path):
    book = tmp_path / "book"
    book.mkdir()
    (tmp_path / "_config.yml").write_bytes((ROOT / "_config.yml").read_bytes())
    new = new_page.page("book/new.ipynb", "A new page")
    for count, cell in enumerate([cell for cell in new.cells if cell.cell_type == "code"], start=1):
        cell.execution_count = count
    path = book / "new.ipynb"
    path.write_text(notebooks.text_of(notebooks.clean(new)), encoding="utf8")
    assert notebook_rules.complaints(notebook_rules.read(path, tmp_path)) == []


@pytest.mark.parametrize(
    ("address", "changed", "rule"),
    [
        ("https://github.com/SOMEONE/else", 0, "opens_with_badge"),
        ("https://github.com/SOMEONE/else", 1, "sets_up_colab"),
    ],
)
def test_badge_and_bootstrap_belong_to_the_address(address, changed, rule):
    wrong = page()
    cell = wrong.notebook.cells[changed]
    old = repository.settings()[0].removeprefix("https://github.com/")
    cell.source = cell.source.replace(old, address.removeprefix("https://github.com/"))
    assert list(getattr(notebook_rules, rule)(wrong)) != []


# Numbers in prose

SHOWN = {Decimal(number) for number in ("0.5", "-1.25", "5", "0.0015")}


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("It is 0.5.", []),
        ("0.50 and 5.0", []),
        ("0.6", ["0.6"]),
        ("$-1.25$ and −1.25 and, without its sign, 1.25", []),
        ("a weight of -0.5", ["-0.5"]),
        ("1-0.5 is a difference, not −", []),
        ("numpy 2.0.2, Python 3.11 or 3.12, version 1.5, section 3.2", []),
        ("[a page](a/0.3.md)", []),
        ("1.5 × 10⁻³, $1.5\\times 10^{-3}$, 1.5e-3", []),
        ("BLEU 28.4 in [the paper](bibliography.md#vaswani2017). Then 0.2.", ["0.2"]),
        ("| 0.5 | 0.4 |", ["0.4"]),
        ("$\\frac{0.5}{0.9}$", ["0.9"]),
        ("<summary>0.7?</summary>", ["0.7"]),
    ],
)
def test_decimals_in_prose(text, missing):
    assert prose_numbers.unsupported(text, SHOWN) == missing


def test_alt_text_may_round_what_a_cell_prints():
    alt = {"mystnb": {"image": {"alt": "the weights are 0.21 and 0.58"}}}
    exact = code(outputs=[printed("[0.212 0.576 0.212]")], **alt)
    assert list(notebook_rules.numbers_are_computed(page(exact))) == []
    other = code(outputs=[printed("[0.212 0.571 0.212]")], **alt)
    assert "0.58 in the alt text" in next(notebook_rules.numbers_are_computed(page(other)))


def test_a_cited_number_needs_a_reason():
    cell = new_markdown_cell("It is 28.4.", metadata={"book": {"cited": {"28.4": "BLEU, table 2 of the paper"}}})
    assert list(notebook_rules.numbers_are_computed(page(cell))) == []
    cell.metadata["book"]["cited"]["28.4"] = ""
    assert "needs a reason" in next(notebook_rules.numbers_are_computed(page(cell)))


# Figures


def test_a_changed_digit_in_a_figure_is_seen_where_the_mean_does_not_see_it():
    def draw(text):
        figure = Figure(figsize=(7, 4))
        figure.text(0.5, 0.5, text, fontsize=12)
        file = io.BytesIO()
        figure.savefig(file, format="png")
        return base64.b64encode(file.getvalue()).decode()

    one, other = draw("0.58"), draw("0.53")
    whole, tile = figures_equal.difference(figures_equal.decode(one), figures_equal.decode(other))
    assert whole < figures_equal.WHOLE < figures_equal.TILE < tile
    assert figures_equal.disagreement(one, one) is None
    assert "worst tile" in figures_equal.disagreement(one, other)
