"""``module:function``, or ``path/to/file.py:function``: import it, and say clearly what is wrong with it."""

import difflib
import functools
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from lib.verify.subject import UsageError

#: torch's tensor in an annotation, alone or inside: Tensor, torch.Tensor, Float[Tensor, "L E"].
TENSOR = re.compile(r"(?<![.\w])(torch\.)?Tensor\b")


class Target(NamedTuple):
    """What was asked for."""

    fn: Callable
    imported: str | None  # module:function, for the import line of examples
    framework: str  # the best guess
    notes: list[str]  # what was done without being asked


def load(text: str) -> Target:
    """Import a function.

    Parameters
    ----------
    text : str
        ``module:function``, where the module may be the path of a Python file, and the function may be dotted.

    Raises
    ------
    UsageError
        If there is no such module or function, if the module raises when it is imported, or if a class would have to
        be instantiated with arguments.

    Examples
    --------
    >>> load("lib.reference:attention").fn.__name__
    'attention'
    >>> load("lib.reference:atention")
    Traceback (most recent call last):
        ...
    lib.verify.subject.UsageError: lib.reference has no 'atention'; did you mean 'attention'?
    """
    where, name = split(text)
    sys.path.insert(0, str(Path.cwd()))
    module, dotted = _from_file(Path(where)) if where.endswith(".py") else (_from_name(where), where)
    fn, made = _find(module, where, name)
    if not callable(fn):
        raise UsageError(f"{where}:{name} must be a function of query, key and value, got {type(fn).__name__}")
    notes = [f"{made}() was made without arguments"] if made else []
    framework, reason = guess_framework(fn, module)
    if reason:
        notes.append(f"taken for a {framework} function, because {reason}; --framework says otherwise")
    return Target(fn, f"{dotted}:{name}" if dotted and not made else None, framework, notes)


def split(text: str) -> tuple[str, str]:
    """Split at the last colon.

    Examples
    --------
    >>> split("attention.py:Layer.forward")
    ('attention.py', 'Layer.forward')
    """
    where, colon, name = text.rpartition(":")
    if where.endswith(".ipynb") or text.endswith(".ipynb"):
        raise UsageError(f"a notebook cannot be imported: move the function of {where or text} to a .py file")
    if not (where and name) or not all(part.isidentifier() for part in name.split(".")):
        if text.endswith(".py") or "." not in text.strip(".") or colon:
            likely = f"{where or text.strip(':')}:my_attention"
        else:
            likely = ":".join(text.rsplit(".", 1))
        raise UsageError(f"what to check must be module:function, such as {likely}; got {text!r}")
    return where, name


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Give the end of a message: what could be meant.

    Examples
    --------
    >>> did_you_mean("maks", ["mask", "bias"])
    "; did you mean 'mask'?"
    >>> did_you_mean("zzz", ["mask", "bias"])
    ''
    """
    lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    return f"; did you mean {lower[close[0]]!r}?" if close else ""


def _from_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(f"there is no module {error.name!r}, looked for from {Path.cwd()}{_file(name)}") from None
        raise _failed_import(name, error) from error
    except Exception as error:
        raise _failed_import(name, error) from error


def _file(name: str) -> str:
    """Say which file or which module of the current directory could be meant."""
    path = Path(*name.split("/"))
    if path.is_dir() or path.with_suffix(".py").exists():
        dotted = ".".join(path.with_suffix("").parts)
        return f"; did you mean {dotted!r}?" if dotted != name else ""
    here = [p.stem for p in Path.cwd().glob("*.py")]
    return did_you_mean(name, here)


def _from_file(path: Path) -> tuple[ModuleType, str | None]:
    """Import a file by its path: inside a package by its dotted name, so that its own imports work."""
    if not path.is_file():
        here = [str(p) for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise UsageError(f"there is no file {str(path)!r}, looked for from {Path.cwd()}{did_you_mean(str(path), here)}")
    path = path.resolve()
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").exists():
        parts.insert(0, root.name)
        root = root.parent
    sys.path.insert(0, str(root))
    dotted = ".".join(parts)
    if all(part.isidentifier() for part in parts) and parts[0] not in sys.modules:
        module = _from_name(dotted)
        if module.__file__ and Path(module.__file__).resolve() == path:
            return module, dotted
    spec = importlib.util.spec_from_file_location(f"_checked_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and pickle look
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failed_import(path.name, error) from error
    return module, None


def _failed_import(name: str, error: BaseException) -> UsageError:
    """Say what an import raised, and at which line of the user's."""
    text = f"{type(error).__name__}: {str(error).strip() or '(no text)'}".splitlines()[0]
    if isinstance(error, SyntaxError) and error.filename:
        text = f"{type(error).__name__}: {error.msg}"
        place = f"{Path(error.filename).name}, line {error.lineno}: {(error.text or '').strip()}"
        return UsageError(f"importing {name} failed: {text} ({place})")
    mine = str(Path(__file__).parent)
    skipped = ("<frozen", mine, importlib.__file__)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(skipped)]
    own = [f for f in frames if "site-packages" not in f.filename and "/lib/python" not in f.filename]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno}: {own[-1].line})" if own else ""
    return UsageError(f"importing {name} failed: {text}{place}")


def _find(module: ModuleType, where: str, name: str) -> tuple[Any, str | None]:
    """Follow the dots; make an instance of a class where the way leads through one and it needs no arguments."""
    found, path, made = module, where, None
    for step, part in enumerate(name.split(".")):
        parent, found = found, inspect.getattr_static(found, part, None)
        if found is None and not hasattr(parent, part):
            raise UsageError(f"{path} has no {part!r}{_instead(parent, part)}")
        needs_self = inspect.isclass(parent) and inspect.isfunction(found)
        if needs_self:
            parent, made = _instance(parent, f"{where}:{name}"), parent.__name__
        found = getattr(parent, part)
        path = f"{path}{'.' if step else ':'}{part}"
    if inspect.isclass(found):
        return _instance(found, f"{where}:{name}"), found.__name__
    return found, made


def _instance(cls: type, text: str) -> Any:
    try:
        return cls()
    except Exception as error:
        name = cls.__name__
        raise UsageError(
            f"{text} needs an instance, and {name}() raises {type(error).__name__}: {error}. Add a line such as "
            f"`checked = {name}(…)` to the module and give that name"
        ) from None


def _instead(parent: Any, part: str) -> str:
    """Offer a name that is close, or the functions that there are."""
    public = [n for n in dir(parent) if not n.startswith("_")]
    close = did_you_mean(part, public)
    if close:
        return close
    own = [n for n in public if inspect.isroutine(getattr(parent, n, None))]
    return f"; it has {', '.join(own[:8])}{', …' if len(own) > 8 else ''}" if own else ""


def guess_framework(fn: Callable, module: ModuleType) -> tuple[str, str | None]:
    """Say which framework a function is for, where that is plain; otherwise NumPy, without a reason."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if any(c.__module__.startswith("torch.nn") and c.__name__ == "Module" for c in type(fn).__mro__):
        return "torch", "it is a torch module"
    if (getattr(fn, "__module__", None) or module.__name__).split(".")[0] == "torch":
        return "torch", "it is torch's"
    annotated = list(_annotations(fn).values())[:3]
    if annotated and "torch" in sys.modules and all(TENSOR.search(text) for text in annotated):
        return "torch", "its arguments are annotated as tensors"
    if annotated:
        return "numpy", None
    home = vars(inspect.getmodule(fn) or module)
    used = {value.__name__.split(".")[0] for value in home.values() if isinstance(value, ModuleType)}
    if "torch" in used and "numpy" not in used:
        return "torch", "its module imports torch and not NumPy"
    return "numpy", None


def _annotations(fn: Callable) -> dict[str, str]:
    """Read annotations as text, whether they were postponed or not."""
    try:
        found = inspect.get_annotations(fn)
    except TypeError:
        return {}
    found.pop("return", None)
    return {n: a if isinstance(a, str) else _annotation_text(a) for n, a in found.items()}


def _annotation_text(annotation: Any) -> str:
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return f"{annotation.__module__}.{annotation.__qualname__}"
    return str(annotation)
