"""Check the links between the pages of this repository: the file is there, and so is the place in it."""

import argparse
import re
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from scripts import prose
from scripts.repository import ROOT

LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)[^)]*\)|!\[[^\]]*\]\(([^)\s]+)[^)]*\)")


def slug(heading):
    """Return the anchor that a heading gets: GitHub's way, which the book's builder follows."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


@cache
def anchors(text):
    """Return the places of a page that a link may name: headings, and MyST targets."""
    text = prose.FENCE.sub("", text)
    headings = re.findall(r"^#{1,6}\s+(.+?)\s*$", text, re.MULTILINE)
    return {slug(heading) for heading in headings} | set(re.findall(r"^\(([\w-]+)\)=", text, re.MULTILINE))


def links(text):
    """Yield every address that a page links to or shows as a picture; what stands in code is no link."""
    text = re.sub(r"`[^`\n]*`", "", prose.FENCE.sub("", text))
    for match in LINK.finditer(text):
        yield match[1] or match[2]


def broken(pages):
    """Yield (path, address, what is wrong) for every link that leads nowhere."""
    for path, text in pages.items():
        for address in links(text):
            if re.match(r"https?://|mailto:", address):
                continue
            name, _, anchor = unquote(address).partition("#")
            target = (path.parent / name).resolve() if name else path
            if not target.exists():
                yield path, address, "there is no such file"
            elif anchor and anchor not in anchors(pages.get(target, "")):
                yield path, address, f"{target.name} has no heading for #{anchor}"


def main():
    """Check every page."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    pages = {Path(path): text for path, text in prose.texts()}
    found = [f"{path.relative_to(ROOT)}: link to {address}: {what}" for path, address, what in broken(pages)]
    print("\n".join(found) if found else f"The links of {len(pages)} pages lead somewhere.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
