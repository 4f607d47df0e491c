"""The command line: ``python -m lib.verify module:function``.

What ``--json`` prints, on standard output and nothing else there::

    {
      "schema": 1,
      "target": "module:function",
      "function": its name,
      "framework": "numpy" | "torch",
      "ok": bool,
      "suspect": name of the known bug that most failures match | null,
      "failures": [{
        "property": name, "statement": what it asks, "message": what is wrong,
        "example": {"code": str, "shown": expression, "sizes": {...}, "expected": value, "given": value} | null,
        "suspect": {"name": str, "exact": bool, "wrong": str, "report": str | null} | null,
        "hint": the convention under which this is no failure | null
      }],
      "holds": [property, ...],
      "not_tested": {property: reason},
      "refused": {unusual call: error},
      "notes": [str, ...],
      "conventions": {convention: value, "declared": [convention, ...]},
      "printed_lines": what the function itself printed in its calls, counted
    }

On wrong usage ``{"schema": 1, "target": …, "error": message}``. NaN and infinity are strings: JSON has none.
"""

import argparse
import contextlib
import difflib
import json
import os
import sys
import textwrap
from typing import Any, NoReturn

from lib.verify import watch
from lib.verify.conventions import CHOICES, MEANING, Conventions
from lib.verify.probe import OPTIONS
from lib.verify.properties import PROPERTIES
from lib.verify.subject import UsageError
from lib.verify.target import did_you_mean, split
from lib.verify.wrong import catalogue

HOLDS, FAILS, USAGE, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 130
SCHEMA = 1
TIMEOUT = 30.0
WIDTH = 110

DESCRIPTION = (
    "Check anyone's attention function: which property fails, on which smallest input, and which known bug is it?"
)

EPILOG = """\
examples:
  python -m lib.verify mymodule:my_attention
  python -m lib.verify mymodule:my_attention --framework torch --name mask=attn_mask
  python -m lib.verify torch.nn.functional:scaled_dot_product_attention \\
      --name mask=attn_mask --name causal=is_causal --convention alignment=top-left
  python -m lib.verify path/to/file.py:Layer.attend --convention mask_true=block --convention layout=BLHE
  python -m lib.verify mymodule:my_attention --property mask --property causal --json
  python -m lib.verify --catalogue mask_inverted

exit status:
  0  every property that was tested holds
  1  a property fails: a wrong output, an error, a hang, a crash, an argument written to
  2  wrong usage: there is nothing that could be checked
  3  the check itself failed, which is a bug of this tool

--json prints one object: schema, target, function, framework, ok, suspect, failures (property, statement, message,
example, suspect, hint), holds, not_tested, refused, notes, conventions, printed_lines; on wrong usage schema, target,
error. `pydoc lib.verify.command_line` has the details.

The function runs in a process of its own. What it prints goes to standard error. A check is not a sandbox: what the
function does to files, it does.
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are caught, so that --json can have them too."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving."""
        raise UsageError(message)


def parser() -> Parser:
    """Describe the arguments."""
    found = Parser(
        prog="python -m lib.verify",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = found.add_argument
    add("target", nargs="?", metavar="module:function", help="a dotted module or a .py file, and a name in it")
    add("--framework", metavar="F", help="numpy or torch; where it is plain it is seen, otherwise numpy")
    add("--name", action="append", default=[], metavar="OURS=YOURS",
        help="what the function calls one of the options; mask=None leaves it untested")  # fmt: skip
    add("--convention", action="append", default=[], metavar="WHAT=CHOICE",
        help="what the function does by choice, such as mask_true=block; --list has them")  # fmt: skip
    add("--property", action="append", default=[], metavar="P", help="check only this; may be repeated")
    add("--timeout", default=str(TIMEOUT), metavar="S",
        help=f"seconds that one property may take before the function is stopped (default {TIMEOUT:g})")  # fmt: skip
    add("--list", action="store_true", help="list properties, options and conventions, and check nothing")
    add("--catalogue", nargs="?", const="", metavar="BUG", help="list the known bugs, or show one, and check nothing")
    add("--json", action="store_true", help="print for machines")
    add("--no-colour", "--no-color", action="store_true", help="no colours; nor in pipes, nor where NO_COLOR is set")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; give the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # a terminal without × and ≠ gets something
    target = None
    try:
        options = parser().parse_args(arguments)
        target = options.target
        return _run(options)
    except UsageError as error:
        return _wrong_usage(str(error), target, "--json" in arguments)
    except watch.InternalError as error:
        print(f"{error}\nlib.verify itself failed; please report this, with the function.", file=sys.stderr)
        return INTERNAL
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILS


def _run(options: argparse.Namespace) -> int:
    if options.list:
        return _print(_listing(options.json))
    if options.catalogue is not None:
        return _print(_known_bugs(options.catalogue, options.json))
    if options.target is None:
        raise UsageError("what to check is missing: module:function, such as mymodule:my_attention")
    split(options.target)
    request = {
        "target": options.target,
        "framework": _framework(options.framework),
        "names": names(options.name),
        "conventions": conventions(options.convention),
        "properties": properties(options.property) or None,
    }
    report, prints = watch.check(request, seconds(options.timeout), _progress())
    _progress_ends()
    if options.json:
        plain = {"schema": SCHEMA, "target": options.target, **report.to_dict(), "printed_lines": prints.lines}
        _print(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _print(report.text(color=_colours(options.no_colour)))
    return HOLDS if report.ok else FAILS


def _framework(given: str | None) -> str | None:
    if given in (None, "numpy", "torch"):
        return given
    raise UsageError(f"--framework must be numpy or torch, got {given!r}{did_you_mean(given, ['numpy', 'torch'])}")


def names(pairs: list[str]) -> dict[str, str | None]:
    """Read ``--name``.

    Examples
    --------
    >>> names(["mask=attn_mask", "scale=None"])
    {'mask': 'attn_mask', 'scale': None}
    """
    known = (*OPTIONS, "query", "key", "value")
    found: dict[str, str | None] = {}
    for pair in pairs:
        ours, theirs = _pair("--name", pair, "mask=attn_mask")
        if ours not in known:
            turn = f"; this tool's name comes first: --name {theirs}={ours}" if theirs in known else ""
            hint = turn or did_you_mean(ours, known)
            raise UsageError(f"--name {pair}: there is no option {ours!r}{hint}\nThe options are {', '.join(known)}.")
        if theirs != "None" and not theirs.isidentifier():
            raise UsageError(f"--name {pair}: {theirs!r} cannot be the name of an argument")
        found[ours] = None if theirs == "None" else theirs
    return found


def conventions(pairs: list[str]) -> dict[str, str]:
    """Read ``--convention``.

    Examples
    --------
    >>> conventions(["mask_true=block"])
    {'mask_true': 'block'}
    """
    found = {}
    for pair in pairs:
        name, value = _pair("--convention", pair, "mask_true=block")
        key = name.replace("-", "_")
        if key not in MEANING:
            raise UsageError(
                f"--convention {pair}: there is no convention {name!r}{did_you_mean(name, MEANING)}\n"
                f"The conventions are {', '.join(MEANING)}."
            )
        try:
            Conventions.of({key: value})
        except ValueError as error:
            raise UsageError(f"--convention {pair}: {error}{did_you_mean(value, CHOICES.get(key, ()))}") from None
        found[key] = value
    return found


def properties(given: list[str]) -> list[str]:
    """Read ``--property``.

    Examples
    --------
    >>> properties(["mask", "masked-zero"])
    ['mask', 'masked zero']
    """
    known = {_plain(name): name for name in [p.name for p in PROPERTIES] + [watch.SILENT]}
    for name in given:
        if _plain(name) not in known:
            close = difflib.get_close_matches(_plain(name), known, n=1)
            meant = f"; did you mean {known[close[0]]!r}?" if close else ""
            raise UsageError(f"there is no property {name!r}{meant}\nThe properties are {', '.join(known.values())}.")
    return [known[_plain(name)] for name in given]


def _plain(name: str) -> str:
    return name.lower().replace("-", " ").replace("_", " ").strip()


def seconds(text: str) -> float:
    """Read ``--timeout``.

    Examples
    --------
    >>> seconds("2.5")
    2.5
    """
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise UsageError(f"--timeout must be a number of seconds above 0, got {text!r}")
    return found


def _pair(option: str, text: str, example: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not (left.strip() and equals and right.strip()):
        raise UsageError(f"{option} must be followed by something like {example}, got {text!r}")
    return left.strip(), right.strip()


def _listing(as_json: bool) -> str:
    """List what can be asked and declared."""
    asked = {p.name: p.statement for p in PROPERTIES} | {watch.SILENT: watch.SILENT_STATEMENT}
    if as_json:
        choices = {n: {"choices": list(CHOICES.get(n, ())), "meaning": m} for n, m in MEANING.items()}
        plain = {"schema": SCHEMA, "properties": asked, "options": list(OPTIONS), "conventions": choices}
        return json.dumps(plain, indent=2, ensure_ascii=False)
    lines = [f"{len(asked)} properties (--property NAME):"]
    lines += [line for name, text in asked.items() for line in _item(name, text)]
    lines += ["", "Options that are tested where the function has them (--name OPTION=ITS_NAME):"]
    lines += _item(", ".join(OPTIONS), "")
    lines += ["", "Conventions (--convention NAME=CHOICE), the default first:"]
    for name, meaning in MEANING.items():
        choices = f" ({', '.join(CHOICES[name])})" if name in CHOICES else ""
        lines += _item(name, meaning + choices)
    return "\n".join(lines)


def _known_bugs(name: str, as_json: bool) -> str:
    """List the catalogue, or show one entry."""
    if name and name not in catalogue:
        raise UsageError(f"there is no known bug {name!r}{did_you_mean(name, catalogue.names)}")
    entries = [catalogue[name]] if name else list(catalogue)
    if as_json:
        plain = [
            {"name": e.name, "wrong": e.wrong, "killed_by": e.killed_by, "report": e.report, "diff": e.diff()}
            for e in entries
        ]
        return json.dumps({"schema": SCHEMA, "catalogue": plain}, indent=2, ensure_ascii=False)
    if name:
        (e,) = entries
        reported = [f"Reported: {e.report}"] if e.report else []
        shown = [*_item(e.name, e.wrong), f"Shown by the property: {e.killed_by}", *reported, "", e.diff()]
        return "\n".join(line.removeprefix("  ") if i == 0 else line for i, line in enumerate(shown))
    lines = [f"{len(entries)} known bugs (--catalogue NAME shows one):"]
    lines += [line for e in entries for line in _item(e.name, f"{e.wrong} [{e.killed_by}]")]
    return "\n".join(lines)


def _item(name: str, text: str) -> list[str]:
    line = f"{name}: {text}" if text else name
    return textwrap.wrap(line, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _colours(off: bool) -> bool:
    """Whether to use colours: at a terminal, unless somebody objects (https://no-color.org)."""
    return sys.stdout.isatty() and not off and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _progress() -> Any:
    """Say at a terminal what is being asked, on one line that is written over."""
    if not sys.stderr.isatty():
        return lambda stage: None
    return lambda stage: print(f"\r\033[Kchecking: {stage} …", end="", file=sys.stderr, flush=True)


def _progress_ends() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _wrong_usage(message: str, target: str | None, as_json: bool) -> int:
    _progress_ends()
    if as_json:
        _print(json.dumps({"schema": SCHEMA, "target": target, "error": message}, indent=2, ensure_ascii=False))
    print(f"lib.verify: {message}\nTry python -m lib.verify --help.", file=sys.stderr)
    return USAGE


def _print(text: str) -> int:
    print(text, flush=True)
    return HOLDS
