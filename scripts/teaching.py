"""Write the tables of the page for teachers, book/labs/teaching.md, from the labs and their checkers.

What stands between `<!-- name -->` and `<!-- end of name -->` is written here, so that no minute, no point and no word
of a checker on that page differs from the labs. The rest of the page is written by people.
"""

import re
import sys

from lib import labs
from lib.labs import judging, trials
from scripts import notebooks, release_labs
from scripts.repository import ROOT

PAGE = "book/labs/teaching.md"
EXERCISE = re.compile(
    r"^## Exercise (\d+): ([^\n]+)\n+\*Difficulty (\d) of 5 · (\d+) minutes · Chapter: .*?^labs\.check\(\"(\w+)\"",
    re.DOTALL | re.MULTILINE,
)
#: What the checkers say about any function, by what was done.
ANY_FUNCTION = {
    "gives nothing back, or prints its result": judging.RETURN,
    "writes into its arguments": judging.WRITES,
    "gives the same answer whatever it is given": judging.HARD_CODED,
    "has another shape": judging.SHAPE,
    "stops with an error": judging.READ,
    **{f"stops with {kind}": hint for kind, hint in judging.RAISES.items()},
}
FALSE_ALARMS = {
    "compares every digit": trials.EXACT,
    "is content with a broken attention, and not with a right one": trials.EXPECTS,
    "expects what attention does not give": trials.EXPECTATION,
    "asks what attention does not take": trials.REFUSED,
}


def all_labs(root=ROOT):
    """Return each lab as (title, file name, exercises), in the order of their titles."""
    found = []
    for source in release_labs.sources(root):
        text = "\n\n".join(cell.source for cell in notebooks.read(source).cells)
        title = re.match(r"# (.+)", text)[1].removesuffix(release_labs.SOLVED)
        found.append((title, source.name, EXERCISE.findall(text)))
    return sorted(found)


def timing(root=ROOT):
    """Return the table of exercises, with difficulty, minutes and points."""
    lines = ["| lab | exercise | difficulty | minutes | points |", "|---|---|---|---|---|"]
    for title, file, exercises in all_labs(root):
        minutes = points = 0
        for number, heading, difficulty, time, name in exercises:
            worth = labs.EXERCISES[name].points
            lines.append(f"| | {number}. {heading} | {difficulty} of 5 | {time} | {worth} |")
            minutes, points = minutes + int(time), points + worth
        place = len(lines) - len(exercises)
        lines.insert(place, f"| [{title}]({file}) | | | {minutes} | {points} |")
    return "\n".join(lines)


def mistakes(root=ROOT):
    """Return what the checkers say, exercise by exercise, folded."""
    parts = []
    for title, _, exercises in all_labs(root):
        parts.append(f"### {title}")
        for number, heading, _, _, name in exercises:
            exercise = labs.EXERCISES[name]
            known = exercise.slips if isinstance(exercise, labs.Trial) else exercise.mistakes
            parts.append(folded(f"Exercise {number}: {heading} (<code>{name}</code>)", [words(m) for m in known]))
    return "\n\n".join(parts)


def words(mistake):
    """Return a mistake and its hint, as the check says them."""
    said = f"{mistake.words[0].upper()}{mistake.words[1:]}"
    return f"{as_it_stands(said)} *{as_it_stands(mistake.hint)}*"


def as_it_stands(text):
    """Keep Markdown from reading signs of Python as its own."""
    return re.sub(r"([*<~])", r"\\\1", text)


def everywhere(root=ROOT):
    """Return what the checkers say about any function, and about any test."""
    functions = [f"The function {what}. *{as_it_stands(hint)}*" for what, hint in ANY_FUNCTION.items()]
    alarms = [f"The test {what}. *{as_it_stands(hint)}*" for what, hint in FALSE_ALARMS.items()]
    tests = [words(slip) for slip in (*trials.EVERYWHERE, *trials.AT_LAST)]
    return "\n\n".join((folded("Any function", functions), folded("Any test (lab 3)", [*alarms, *tests])))


def folded(summary, items):
    """Fold a list, each item once."""
    lines = "\n".join(f"- {item}" for item in dict.fromkeys(items))
    return f"<details>\n<summary>{summary}</summary>\n\n{lines}\n\n</details>"


TABLES = {"timing": timing, "everywhere": everywhere, "mistakes": mistakes}


def written(text, root=ROOT):
    """Return a page's text with its tables written anew."""
    for name, table in TABLES.items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        if text.count(start) != 1 or text.count(end) != 1:
            raise ValueError(f"{PAGE}: wanted one '{start}' and one '{end}'")
        before, _, rest = text.partition(start)
        text = f"{before}{start}\n\n{table(root)}\n\n{end}{rest.partition(end)[2]}"
    return text


def main():
    """Write the tables."""
    path = ROOT / PAGE
    text = path.read_text(encoding="utf8")
    new = written(text)
    path.write_text(new, encoding="utf8")
    print(f"{PAGE}: {'nothing changed' if new == text else 'written'}")


if __name__ == "__main__":
    sys.exit(main())
