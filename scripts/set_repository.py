"""Set the repository's address in the one place where it stands, and in all that is derived from it.

Writes _config.yml, the first two cells of every notebook (badge and bootstrap), and the links in Markdown pages.
Without an address it writes the first cells again, from the address that _config.yml has.
"""

import argparse
import re
import sys
from pathlib import Path

from scripts import notebooks, repository
from scripts.repository import ROOT


def set_address(address, root=ROOT):
    """Write the address into _config.yml and replace the old one in the other text files that name it."""
    old, _ = repository.settings(root)
    config = Path(root) / "_config.yml"
    config.write_text(config.read_text(encoding="utf8").replace(old, address), encoding="utf8")
    for path in [*Path(root).glob("*.md"), Path(root) / "pyproject.toml", *(Path(root) / "book").rglob("*.md")]:
        replace(path, old, address)
    return old


def replace(path, old, new):
    """Replace one address by another where it stands whole, with its Colab form."""
    before = path.read_text(encoding="utf8")
    after = before
    for prefix in ("https://github.com/", f"{repository.COLAB}/"):
        one, other = (prefix + address.removeprefix("https://github.com/") for address in (old, new))
        after = re.sub(re.escape(one) + r"(?![A-Za-z0-9_-])", other, after)
    if after != before:
        path.write_text(after, encoding="utf8")


def set_first_cells(path, old=None, root=ROOT):
    """Write badge and bootstrap cell of one notebook; say whether it changed."""
    notebook = notebooks.read(path)
    before = notebooks.text_of(notebook)
    relative = path.relative_to(root).as_posix()
    title, setup = notebook.cells[0], notebook.cells[1]
    title.source = repository.BADGE.sub(lambda _: repository.badge(relative, root), title.source)
    if "google.colab" in setup.source:
        setup.source = repository.bootstrap(root)
    if old is not None:
        new, _ = repository.settings(root)
        for cell in notebook.cells:
            cell.source = re.sub(re.escape(old) + r"(?![A-Za-z0-9_-])", new, cell.source)
    after = notebooks.text_of(notebook)
    if after != before:
        path.write_text(after, encoding="utf8")
    return after != before


def main():
    """Set the address, then everything derived from it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", nargs="?", help="for example https://github.com/OWNER/self-attention-book")
    arguments = parser.parse_args()
    old = None
    if arguments.url:
        address = arguments.url.rstrip("/").removesuffix(".git")
        if not repository.ADDRESS.fullmatch(address):
            sys.exit(f"url: wanted an address like https://github.com/OWNER/NAME, got {arguments.url!r}")
        old = set_address(address)
    changed = [path for path in notebooks.paths() if set_first_cells(path, old)]
    print(f"The address is {repository.settings()[0]}; {len(changed)} notebooks were changed.")


if __name__ == "__main__":
    main()
