"""The README shows what `lib` draws today, and says of the project what is true."""

import base64
import re

from scripts import figures_equal
from scripts.draw_readme_figure import PICTURE, draw
from scripts.repository import ROOT, settings

README = (ROOT / "README.md").read_text(encoding="utf8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf8")


def test_its_picture_is_what_lib_draws():
    stored, fresh = (base64.b64encode(png).decode() for png in (PICTURE.read_bytes(), draw()))
    assert figures_equal.disagreement(stored, fresh) is None, "run: .venv/bin/python -m scripts.draw_readme_figure"


def test_its_picture_is_described():
    alt = re.search(rf"!\[([^\]]+)\]\({PICTURE.relative_to(ROOT).as_posix()}\)", README)
    assert alt and len(alt[1]) > 40


def test_its_commands_exist():
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\bmake ([a-z-]+)", (ROOT / page).read_text(encoding="utf8")):
            assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"{page} names `make {target}`"


def test_its_addresses_are_those_of_the_repository():
    address, _ = settings()
    assert set(re.findall(r"https://github\.com/[\w.-]+/[\w-]+", README)) == {address}
