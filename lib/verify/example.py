"""A failing call as a piece of code: paste it, run it, see it fail."""

import ast
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.verify import layouts
from lib.verify.probe import Probe
from lib.verify.properties.training import loss_weights
from lib.verify.subject import Problem, Subject, name_of


@dataclass(frozen=True)
class Example:
    """The smallest call that shows a failure.

    Attributes
    ----------
    code : str
        Python that makes the call and prints what comes out.
    expected, given : array or str
        What should come out, and what does.
    shown : str
        The expression that the two are values of, such as ``output`` or ``query.grad``.
    sizes : dict
        L, S, E, Ev and the leading axes.
    """

    code: str
    expected: Any
    given: Any
    shown: str
    sizes: dict[str, Any]

    def __str__(self) -> str:
        return self.code

    def to_dict(self) -> dict[str, Any]:
        """Give plain Python objects, such that JSON can hold them."""
        plain = {"code": self.code, "shown": self.shown, "sizes": self.sizes}
        return plain | {"expected": _plain(self.expected), "given": _plain(self.given)}


def write(subject: Subject, problem: Problem, imported: str | None = None) -> Example:
    """Write a problem down as code.

    Parameters
    ----------
    subject : Subject
    problem : Problem
    imported : str or None
        ``module:function``, where that is known.
    """
    probe = problem.call
    lines, call_name = _imports(subject, probe, imported)
    lines += ["", *_arrays(subject, probe, problem.show)]
    call = f"{call_name}({_call_arguments(subject, probe)})"
    body, shown = _calls(subject, probe, problem, call)
    expected, given = _in_function_order(subject, problem)
    shown, expected, given = _where_it_differs(shown, expected, given)
    lines += body
    lines += _comment(shown, expected, None if problem.missing else given, problem.basis)
    sizes = {"L": probe.L, "S": probe.S, "E": probe.E, "Ev": probe.Ev, "leading axes": list(probe.lead)}
    return Example("\n".join(map(_wrapped, lines)), expected, given, shown, sizes)


#: How long a line of code may be.
WIDTH = 100


def _wrapped(line: str) -> str:
    """Break a long line of code between numbers."""
    if len(line) <= WIDTH or line.startswith("#"):
        return line
    broken = "\n    ".join(textwrap.wrap(line, WIDTH - 4, break_long_words=False, break_on_hyphens=False))
    try:
        ast.parse(broken)
    except SyntaxError:
        return line
    return broken


def _imports(subject: Subject, probe: Probe, imported: str | None) -> tuple[list[str], str]:
    """Import the framework and the function, where one can tell from where."""
    framework = "import numpy as np" if subject.framework.name == "numpy" else "import torch"
    if imported is None:
        imported = _home(subject.fn)
    if imported is None:
        return [framework, f"# {subject.name}: the function under test"], subject.name
    module, name = imported.split(":")
    head = name.split(".")[0]
    return [framework, f"from {module} import {head}"], name


def _home(fn: Any) -> str | None:
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    home = sys.modules.get(module or "")
    if home is None or module in ("__main__", "builtins") or not name or "." in name:
        return None
    return f"{module}:{name}" if getattr(home, name, None) is fn else None


def _arrays(subject: Subject, probe: Probe, show: str) -> list[str]:
    """Write the arrays, in the function's own polarity and order of axes."""
    lines = []
    framework = subject.framework.name
    for name, x in probe.arrays.items():
        if name == "mask" and subject.conventions.mask_true == "block":
            x = ~x
        if name in ("query", "key", "value"):
            x = subject.swap_heads(x)
        dtype = "bool" if name == "mask" else probe.dtype
        text = array_text(x, dtype, framework)
        if show.endswith(".grad") and name != "mask":
            text = f"{text}.requires_grad_()"
        lines.append(f"{name} = {text}")
        if name in probe.layouts:
            lines.append(f"{name} = {layouts.expression(probe.layouts[name], name, framework)}")
    return lines


def _call_arguments(subject: Subject, probe: Probe) -> str:
    """Write the arguments under the function's own names."""
    if any(n in subject.names for n in ("query", "key", "value")):
        parts = [f"{subject.names.get(n, n)}={n}" for n in ("query", "key", "value")]
    else:
        parts = ["query", "key", "value"]
    one_argument = subject.names.get("mask") == subject.names.get("bias")
    for name, value in probe.options.items():
        if name == "enable_gqa" and not subject.has("enable_gqa"):
            continue
        if name == "mask" and "bias" in probe.options and one_argument:
            continue
        theirs = subject.names.get(name, name)
        if name == "bias" and "mask" in probe.options and one_argument:
            where = (
                "np.where(mask, bias, -np.inf)"
                if subject.framework.name == "numpy"
                else "torch.where(mask, bias, -torch.inf)"
            )
            parts.append(f"{theirs}={where}")
        elif name in ("mask", "bias"):
            parts.append(f"{theirs}={name}")
        elif isinstance(value, np.ndarray):
            parts.append(
                f"{theirs}={'np.array' if subject.framework.name == 'numpy' else 'torch.tensor'}({value.tolist()})"
            )
        else:
            parts.append(f"{theirs}={value!r}")
    return ", ".join(parts)


def _calls(subject: Subject, probe: Probe, problem: Problem, call: str) -> tuple[list[str], str]:
    """Write the call or calls, and name the expression to look at."""
    show = problem.show
    if show == "weights":
        return [f"output, weights = {call}"], "weights"
    if show == "dtype":
        return [f"output = {call}"], "output.dtype"
    if show == "second call, output of the first":
        other = call.replace("query", "-query", 1).replace("value", "value + 1", 1)
        return [f"output = {call}", f"{other}  # another call"], "output"
    if show == "second call, same arrays":
        turned = (
            ["mask[...] = mask[..., ::-1].copy()"]
            if subject.framework.name == "numpy"
            else ["mask[...] = mask.flip(-1)"]
        )
        turned = turned if "mask" in probe.options else []
        other = [*turned, "key *= -1", "value += 1", f"{call}  # a call with other numbers in the same arrays"]
        return [*other, *turned, "key *= -1", "value -= 1", f"output = {call}"], "output"
    if show.startswith("second call"):
        other = call.replace("query", "-query", 1).replace("value", "value + 1", 1)
        unmasked, other_unmasked = (
            text.replace(f", {subject.names.get('mask', 'mask')}=mask", "") for text in (call, other)
        )
        if show == "second call":
            other = other_unmasked
        else:
            call = unmasked
        return [f"first = {call}", f"{other}  # another call in between", f"second = {call}"], "second"
    if show.endswith(".grad"):
        shape = subject.swap_heads(loss_weights(probe.output_shape))
        loss = array_text(shape, probe.dtype, "torch")
        product = f"output.mT * {loss}.mT.contiguous()" if show.startswith("strided") else f"output * {loss}"
        return [f"output = {call}", f"({product}).sum().backward()"], show.removeprefix("strided ")
    if show.endswith("after the call"):
        return [call], show.split()[0]
    seeded = "dropout_p" in probe.options and probe.options["dropout_p"]
    seed = ["np.random.seed(0)" if subject.framework.name == "numpy" else "torch.manual_seed(0)"] if seeded else []
    returns_pair = probe.options.get("return_weights") or subject.gives_tuple
    return [*seed, f"output{', weights' if returns_pair else ''} = {call}"], "output"


def _in_function_order(subject: Subject, problem: Problem) -> tuple[Any, Any]:
    """Turn expected and given into the function's order of axes."""
    turned = []
    for x in (problem.expected, problem.given):
        swap = isinstance(x, np.ndarray) and problem.show.removeprefix("strided ") in (
            "output",
            "query.grad",
            "key.grad",
            "value.grad",
            "second call",
            "second call without mask",
            "second call, output of the first",
            "second call, same arrays",
        )
        x = x != 0 if problem.show == "mask after the call" else x  # booleans, as they are printed
        turned.append(subject.swap_heads(x) if swap else x)
    return turned[0], turned[1]


#: Above how many numbers only a row that differs is shown, and above how many the middle is left out.
MANY, FEW = 16, 40


def _where_it_differs(shown: str, expected: Any, given: Any) -> tuple[str, Any, Any]:
    """Show one row of a long result, one that differs: the middle would be left out otherwise."""
    arrays = isinstance(expected, np.ndarray) and isinstance(given, np.ndarray)
    if not arrays or expected.shape != given.shape or expected.size <= MANY or expected.ndim < 2:
        return shown, expected, given
    off = np.nan_to_num(np.abs(given - expected), nan=np.inf).max(-1)
    row = np.unravel_index(off.argmax(), off.shape)
    return f"{shown}[{', '.join(map(str, row))}]", expected[row], given[row]


def _comment(shown: str, expected: Any, given: Any, basis: str) -> list[str]:
    """Write what should be printed and what is."""
    digits = _digits(expected, given)
    first, second = number_text(expected, digits), number_text(given, digits)
    lines = [f"print({shown})", *([f"# wanted: {basis}"] if basis else [])]
    for label, text in (("expected", first), ("given   ", second)):
        rows = text.split("\n")
        lines += [f"# {label}  {rows[0]}"] + [f"#           {row}" for row in rows[1:]]
    return lines


def _digits(expected: Any, given: Any) -> int:
    """Choose as many digits as the difference needs to show."""
    if given is None or isinstance(expected, str) or isinstance(given, str) or np.shape(expected) != np.shape(given):
        return 4
    for digits in (4, 8, 17):
        if number_text(expected, digits) != number_text(given, digits):
            return digits
    return 17


def number_text(x: Any, digits: int = 4) -> str:
    """Write an array for reading."""
    if x is None:
        return "None"
    if not isinstance(x, np.ndarray):
        return str(x)
    if x.size == 0:
        return f"an empty array of shape {x.shape}"
    x = x + 0.0 if x.dtype.kind == "f" else x  # no −0
    return np.array2string(x, precision=digits, threshold=FEW, edgeitems=2, max_line_width=100, floatmode="maxprec")


def array_text(x: np.ndarray, dtype: str, framework: str) -> str:
    """Write an array as an expression, shortly where its numbers follow a rule.

    Examples
    --------
    >>> array_text(np.zeros((2, 3)), "float32", "numpy")
    'np.zeros((2, 3), dtype=np.float32)'
    >>> array_text(np.array([[1.0], [2.0]]), "float64", "torch")
    'torch.tensor([[1.0], [2.0]], dtype=torch.float64)'
    >>> array_text(np.arange(47.0)[:, None] % 5, "float32", "numpy")
    'np.tile(np.array([0.0, 1.0, 2.0, 3.0, 4.0], dtype=np.float32), 10)[:47].reshape(47, 1)'
    """
    np_ = "np" if framework == "numpy" else "torch"
    kind = f"dtype={np_}.{dtype}" if dtype != "bool" or framework == "torch" else "dtype=bool"
    made = "array" if framework == "numpy" else "tensor"
    if x.size == 0:
        return f"{np_}.zeros({x.shape}, {kind})"
    if x.size > 2 and (x == x.flat[0]).all():
        if x.flat[0] in (0, 1) and dtype != "bool":
            return f"{np_}.{'ones' if x.flat[0] else 'zeros'}({x.shape}, {kind})"
        return f"{np_}.full({x.shape}, {_number(x.flat[0], np_)}, {kind})"
    if x.size > 12:
        shape = ", ".join(map(str, x.shape))
        if np.array_equal(x.ravel(), np.arange(x.size)):
            return f"{np_}.arange({x.size}, {kind}).reshape({shape})"
        if x.shape[-1] == 1 and not x.ravel()[:-1].any():
            last = "" if x.flat[-1] == 1 else f" * {_number(x.flat[-1], np_)}"
            position = "np.arange" if framework == "numpy" else "torch.arange"
            cast = f".astype(np.{dtype})" if framework == "numpy" else f".to(torch.{dtype})"
            return f"({position}({x.size}) == {x.size - 1}){cast}.reshape({shape}){last}"
        if x.ndim == 2 and np.array_equal(x, np.eye(*x.shape)):
            return f"{np_}.eye({x.shape[0]}, {x.shape[1]}, {kind})"
        if x.ndim >= 2 and x.shape[-1] > 1 and np.array_equal(x, np.broadcast_to(x[..., :1], x.shape), equal_nan=True):
            repeat = "repeat" if framework == "numpy" else "repeat_interleave"
            return f"{array_text(x[..., :1], dtype, framework)}.{repeat}({x.shape[-1]}, -1)"
        period = _period(x.ravel())
        if period:
            cycle = f"{np_}.{made}({_nested(x.ravel()[:period], np_)}{'' if dtype == 'bool' else ', ' + kind})"
            times = -(-x.size // period)
            repeated = f"np.tile({cycle}, {times})" if framework == "numpy" else f"{cycle}.repeat({times})"
            return f"{repeated}[:{x.size}].reshape({shape})"
    return f"{np_}.{made}({_nested(x, np_)}{'' if dtype == 'bool' else ', ' + kind})"


def _period(flat: np.ndarray) -> int | None:
    """Give after how many numbers a long array repeats itself, where that is soon."""
    for period in range(1, min(9, flat.size // 3)):
        if np.array_equal(flat[period:], flat[:-period], equal_nan=flat.dtype.kind == "f"):
            return period
    return None


def _nested(x: np.ndarray, np_: str) -> str:
    if x.ndim == 0:
        return _number(x.item(), np_)
    if x.ndim == 1 and x.size > 4 and (x == x[0]).all():
        return f"[{_number(x[0], np_)}] * {x.size}"
    return "[" + ", ".join(_nested(row, np_) for row in x) + "]"


def _number(x: Any, np_: str) -> str:
    if isinstance(x, bool | np.bool_):
        return str(bool(x))
    x = float(x)
    if np.isnan(x):
        return f"{np_}.nan"
    if np.isinf(x):
        return f"{'-' if x < 0 else ''}{np_}.inf"
    return repr(x + 0.0)


def _plain(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return [_plain(row) for row in x] if x.ndim else _plain(x.item())
    if isinstance(x, float) and not np.isfinite(x):
        return str(x)  # JSON has no NaN
    return x.item() if isinstance(x, np.generic) else x


__all__ = ["Example", "array_text", "name_of", "number_text", "write"]
