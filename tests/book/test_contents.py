"""The table of contents names every page once, and every page it names exists."""

import yaml

from scripts.repository import ROOT


def files(entry):
    """Yield every file that an entry of _toc.yml names."""
    if "file" in entry or "root" in entry:
        yield entry.get("file") or entry["root"]
    for kind in ("parts", "chapters", "sections"):
        for inner in entry.get(kind, []):
            yield from files(inner)


CONTENTS = list(files(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))))
PAGES = {
    path.relative_to(ROOT).with_suffix("").as_posix()
    for path in (ROOT / "book").rglob("*")
    if path.suffix in {".md", ".ipynb"} and not {".ipynb_checkpoints", "_static"} & set(path.parts)
}


def test_names_no_page_twice():
    assert len(CONTENTS) == len(set(CONTENTS))


def test_names_only_pages_that_exist():
    assert [page for page in CONTENTS if page not in PAGES | {"CHANGELOG"}] == []


def test_names_every_page():
    assert sorted(PAGES - set(CONTENTS)) == []
