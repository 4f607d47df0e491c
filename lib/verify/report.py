"""What was found, for people and for machines."""

import json
import textwrap
from dataclasses import dataclass, field
from typing import Any

from lib.verify.diagnosis import Suspect
from lib.verify.example import Example

WIDTH = 110
SHOWN = 3  # failures of unknown cause that are shown in full
#: Properties whose bugs are not what is wrong first, where something else fails too.
MINOR = ("half precision", "float64", "masked NaN")


@dataclass(frozen=True)
class Failure:
    """One property that does not hold.

    Attributes
    ----------
    property : str
        Its name.
    message : str
        What is wrong, in one sentence.
    example : Example or None
        The smallest call that shows it: ``print(example)`` gives code to paste and run.
    suspect : str or None
        The name of the known bug that does the same; ``verify.catalogue[suspect]`` tells more.
    statement : str
        What the property asks.
    hint : str or None
        The convention under which this would be no failure.
    exact : bool
        Whether the suspect does the same on every probe, and not only on most.
    explanation, report : str or None
        What the suspect does wrong, and where it was reported.
    """

    property: str
    message: str
    example: Example | None = None
    suspect: str | None = None
    statement: str = ""
    hint: str | None = None
    exact: bool = False
    explanation: str | None = None
    report: str | None = None

    @classmethod
    def of(
        cls,
        property: str,
        statement: str,
        message: str,
        example: Example | None,
        found: Suspect | None,
        hint: str | None,
    ) -> "Failure":
        """Put a failure together."""
        about = {}
        if found is not None:
            entry = found.entry
            about = {"suspect": entry.name, "exact": found.exact, "explanation": entry.wrong, "report": entry.report}
        return cls(property, message, example, statement=statement, hint=hint, **about)

    def __str__(self) -> str:
        return "\n".join(self.lines(Plain()))

    def lines(self, style: "Plain") -> list[str]:
        """Write the failure down."""
        lines = [style.bad(self.property) + ": " + self.statement]
        lines += _wrapped(_sentence(self.message))
        if self.example is not None:
            lines += ["", *(style.code("    " + line) for line in self.example.code.split("\n"))]
        if self.suspect:
            words = "This is the known bug" if self.exact else "This looks like the known bug"
            lines += ["", *_wrapped(f"{words} {style.name(self.suspect)}: {self.explanation}")]
            lines += [f"Reported: {self.report}"] if self.report else []
        if self.hint:
            lines += ["", *_wrapped(_sentence(self.hint))]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Give plain Python objects, such that JSON can hold them."""
        suspect = None
        if self.suspect:
            suspect = {"name": self.suspect, "exact": self.exact, "wrong": self.explanation, "report": self.report}
        return {
            "property": self.property,
            "statement": self.statement,
            "message": self.message,
            "example": self.example.to_dict() if self.example else None,
            "suspect": suspect,
            "hint": self.hint,
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Failure":
        """Make a failure of what :meth:`to_dict` gave; arrays stay lists."""
        example, suspect = plain["example"], plain["suspect"] or {}
        return cls(
            plain["property"],
            plain["message"],
            Example(**example) if example else None,
            suspect.get("name"),
            plain["statement"],
            plain["hint"],
            suspect.get("exact", False),
            suspect.get("wrong"),
            suspect.get("report"),
        )


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes
    ----------
    function : str
        The name of the function that was checked.
    framework : str
    ok : bool
        Whether no property failed.
    failures : list of Failure
    holds : list of str
        The properties that hold.
    not_tested : dict
        Each property that was not tested, with the reason. None of them is passed.
    refused : dict
        Unusual calls that raise, with the error: nothing wrong comes out, and nothing right.
    notes : list of str
        What was seen and not judged.
    conventions : dict
        Under which conventions it was judged; ``declared`` names those that were given.
    """

    function: str
    framework: str
    failures: list[Failure] = field(default_factory=list)
    holds: list[str] = field(default_factory=list)
    not_tested: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    conventions: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether no property failed."""
        return not self.failures

    def __bool__(self) -> bool:
        return self.ok

    @property
    def suspect(self) -> str | None:
        """The known bug that most failures match, or None; one of precision alone stands back where more is wrong."""
        named = [f.suspect for f in self.failures if f.suspect]
        if not named:
            return None
        exact = {f.suspect for f in self.failures if f.exact}
        major = {f.suspect for f in self.failures if f.property not in MINOR}  # None for one of unknown cause
        chosen = max(named, key=lambda name: (name in major, name in exact, named.count(name)))
        return chosen if chosen in major or not major else None

    def __str__(self) -> str:
        return self.text()

    def text(self, color: bool = False) -> str:
        """Write the report for people.

        Parameters
        ----------
        color : bool
            Whether to use a terminal's colours.
        """
        style = Colored() if color else Plain()
        lines = [self._headline(style), ""]
        shown, rest = self._chosen()
        for number, (failure, others) in enumerate(shown, 1):
            lines += _indented(failure.lines(style), f"{number}. ")
            if others:
                also = ", ".join(f.property for f in others)
                lines += [*_indented(_wrapped(f"The same bug also fails: {also}."), "   ")]
            lines.append("")
        if rest:
            lines += ["Other failures, perhaps for the same reason:"]
            lines += [*_indented([line for f in rest for line in _item(style.bad(f.property), f.message)], "  "), ""]
        lines += _section("Holds", ", ".join(self.holds))
        lines += _list("Not tested", _grouped(self.not_tested))
        lines += _list("Refused with an error, so nothing wrong came out", _grouped(self.refused))
        lines += _list("Noted, not judged", self.notes)
        return "\n".join(lines).rstrip()

    def _headline(self, style: "Plain") -> str:
        asked = len(self.failures) + len(self.holds)
        if asked == 0:
            return f"No property of {self.function} could be tested."
        if self.ok:
            tested = "the one property that was tested" if asked == 1 else f"all {asked} properties that were tested"
            return style.good(f"{self.function} holds {tested}.")
        tested = "the one property that was tested" if asked == 1 else f"{len(self.failures)} of {asked} properties"
        return style.bad(f"{self.function} fails {tested}.")

    def _chosen(self) -> tuple[list[tuple[Failure, list[Failure]]], list[Failure]]:
        """Choose what to show in full: one failure for each suspect, and the first few without one."""
        groups: dict[str, list[Failure]] = {}
        unknown = []
        for failure in self.failures:
            if failure.suspect:
                groups.setdefault(failure.suspect, []).append(failure)
            elif failure.property == "repeatable":  # the numbers of all others change from call to call
                unknown.insert(0, failure)
            else:
                unknown.append(failure)
        shown = []
        for name, group in groups.items():
            best = max(group, key=lambda f: f.property == _killer(name))
            shown.append((best, [f for f in group if f is not best]))
        room = max(SHOWN - len(shown), 1 if not shown else 0)
        shown += [(failure, []) for failure in unknown[:room]]
        return shown, unknown[room:]

    def to_dict(self) -> dict[str, Any]:
        """Give plain Python objects, such that JSON can hold them."""
        return {
            "function": self.function,
            "framework": self.framework,
            "ok": self.ok,
            "suspect": self.suspect,
            "failures": [failure.to_dict() for failure in self.failures],
            "holds": list(self.holds),
            "not_tested": dict(self.not_tested),
            "refused": dict(self.refused),
            "notes": list(self.notes),
            "conventions": {k: list(v) if isinstance(v, tuple) else v for k, v in self.conventions.items()},
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Write the report for machines."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Report":
        """Make a report of what :meth:`to_dict` or a JSON file gave.

        Examples
        --------
        >>> report = Report("attention", "numpy", [Failure("axis", "wrong axis", suspect="softmax_over_queries")])
        >>> Report.from_dict(json.loads(report.to_json())) == report
        True
        """
        kept = {name: plain[name] for name in ("holds", "not_tested", "refused", "notes", "conventions")}
        failures = [Failure.from_dict(failure) for failure in plain["failures"]]
        return cls(plain["function"], plain["framework"], failures, **kept)


class Plain:
    """Text without colours."""

    def bad(self, text: str) -> str:
        """Mark what fails."""
        return text

    def good(self, text: str) -> str:
        """Mark what holds."""
        return text

    def name(self, text: str) -> str:
        """Mark a name."""
        return text

    def code(self, text: str) -> str:
        """Mark code."""
        return text.rstrip()


class Colored(Plain):
    """Text for a terminal: nothing is said by colour alone."""

    def bad(self, text: str) -> str:
        """Mark what fails."""
        return f"\033[1;31m{text}\033[0m"

    def good(self, text: str) -> str:
        """Mark what holds."""
        return f"\033[1;32m{text}\033[0m"

    def name(self, text: str) -> str:
        """Mark a name."""
        return f"\033[1m{text}\033[0m"

    def code(self, text: str) -> str:
        """Mark code."""
        return f"\033[36m{text.rstrip()}\033[0m"


def _killer(name: str) -> str:
    from lib.verify.wrong import catalogue

    return catalogue[name].killed_by


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _indented(lines: list[str], first: str) -> list[str]:
    return [((first if i == 0 else " " * len(first)) + line).rstrip() for i, line in enumerate(lines)]


def _item(name: str, text: str) -> list[str]:
    return textwrap.wrap(
        f"{name}: {text}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _section(title: str, text: str) -> list[str]:
    if not text:
        return []
    return [*textwrap.wrap(f"{title}: {text}.", WIDTH, subsequent_indent="  ", break_on_hyphens=False), ""]


def _list(title: str, items: list[str]) -> list[str]:
    if not items:
        return []
    lines = [f"{title}:"]
    for item in items:
        lines += textwrap.wrap(
            "- " + item,
            WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return [*lines, ""]


def _grouped(reasons: dict[str, str]) -> list[str]:
    """Put what has one reason on one line."""
    groups: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        groups.setdefault(reason, []).append(name)
    return [f"{'; '.join(names)}: {_shortened(reason)}" for reason, names in groups.items()]


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "…"
