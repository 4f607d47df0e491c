"""The function under test, wrapped: its own names and conventions outside, the contract's form inside."""

import contextlib
import copy
import difflib
import functools
import inspect
import re
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from lib.verify import frameworks, oracle
from lib.verify.conventions import Conventions
from lib.verify.probe import ARRAYS, OPTIONS, Probe


class UsageError(TypeError, ValueError):
    """What was asked for cannot be checked: no function, a wrong signature, an unknown name."""


class Refusal(Exception):
    """The function raised at an unusual call: it refuses, which is reported and is no failure."""

    def __init__(self, corner: str, error: str) -> None:
        super().__init__(f"{corner}: {error}")
        self.corner, self.error = corner, error


#: Told of each call before it is made: what stands there last is the call that never came back.
listeners: list[Callable[[Probe], None]] = []


class Problem(NamedTuple):
    """How a property does not hold."""

    call: Probe  # the call that shows it
    expected: Any  # what it should give: an array, or words
    given: Any  # what it gives
    detail: str  # one sentence
    show: str = "output"  # what expected and given are: output, weights, dtype, "query.grad", "query" after the call
    basis: str = ""  # where what is expected comes from, if not from the equation
    missing: bool = False  # a gradient that is None, which counts as 0


class DoesNotHold(Exception):
    """A property does not hold."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class Outcome(NamedTuple):
    """What one call did."""

    output: np.ndarray | None = None  # float64, in the contract's layout
    weights: np.ndarray | None = None
    dtype: str | None = None
    error: str | None = None  # what was raised, or what came instead of an array
    written: tuple[str, ...] = ()  # arguments that the function wrote to, where that was watched
    raw: Any = None  # the framework's own output
    inputs: dict[str, Any] | None = None  # the framework's own arrays, by the contract's names


class Subject:
    """The function under test.

    Parameters
    ----------
    fn : callable
        ``fn(query, key, value, **options)``, or a torch module with such a ``forward``.
    framework : "numpy" or "torch"
    names : dict
        The contract's option to the function's own name for it. None: leave it untested.
    conventions : dict
    device : str
        Where torch's tensors are made.

    Raises
    ------
    UsageError
        If ``fn`` is no function of query, key and value, or a name does not exist.
    """

    def __init__(
        self,
        fn: Callable,
        framework: str = "numpy",
        names: Mapping[str, str | None] | None = None,
        conventions: Mapping[str, Any] | None = None,
        device: str = "cpu",
    ) -> None:
        if not callable(fn):
            raise UsageError(f"fn must be a function of query, key and value, got {type(fn).__name__}")
        if inspect.isclass(fn):
            raise UsageError(f"fn must be a function or an instance; {fn.__name__} is a class: pass {fn.__name__}(…)")
        try:
            self.framework = frameworks.named(framework, device)
            self.conventions = Conventions.of(conventions or {})
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from None
        self.fn = fn
        self.module = _torch_module(fn)
        if self.module and framework != "torch":
            raise UsageError(f'{name_of(fn)} is a torch module: pass framework="torch" (--framework torch)')
        self.names, self.not_tested, self.open_ended = read_signature(fn, dict(names or {}))
        self.form = Form()  # filled in by lib.verify.form
        self.refused: dict[str, str] = {}
        self.notes: dict[str, str] = {}  # what is reported without judging, by topic
        self.leaks: list[str] = []  # what was seen to pass a mask, where that is not judged
        self.gives_tuple = False  # whether weights or more come back without being asked for
        self.warned: dict[str, str] = {}  # kinds of warnings the function gave, with the first text

    @property
    def name(self) -> str:
        """What to call the function."""
        return name_of(self.fn)

    @property
    def options(self) -> set[str]:
        """The contract's options that the function has."""
        return set(self.names) & set(OPTIONS)

    @property
    def dtypes(self) -> list[str]:
        """The dtypes to test."""
        return [d for d in self.framework.dtypes if not self.conventions.dtypes or d in self.conventions.dtypes]

    def has(self, *options: str) -> bool:
        """Say whether the function has all these options."""
        return self.options.issuperset(options)

    def run(
        self, probe: Probe, watch: bool = False, gradients: bool = False, arrays: dict[str, Any] | None = None
    ) -> Outcome:
        """Call the function and say what it did; only interruptions get through.

        Parameters
        ----------
        probe : Probe
        watch : bool
            Look whether the function writes to its arguments.
        gradients : bool
            Let torch record the call, with gradients wanted for every floating array.
        arrays : dict
            The framework's arrays of an earlier call, to be filled with this probe's numbers and used again.
        """
        inputs = self.make(probe)
        if arrays is not None:
            for name, x in inputs.items():
                arrays[name][...] = x
            inputs = {name: arrays[name] for name in inputs}
        before = {name: self.framework.snapshot(x) for name, x in inputs.items()} if watch else {}
        if gradients:
            for name, x in inputs.items():
                if name != "mask":
                    x.requires_grad_(True)
        arguments, options = self._arguments(inputs, probe)
        for listener in listeners:
            listener(probe)
        context = contextlib.nullcontext() if gradients else self.framework.quietly()
        try:
            with warnings.catch_warnings(record=True) as caught, context:
                warnings.simplefilter("always")
                given = self.fn(*arguments, **options)
        except Exception as error:
            return Outcome(error=describe_error(error), inputs=inputs)
        for warning in caught:
            self.warned.setdefault(warning.category.__name__, str(warning.message).split("\n")[0])
        written = tuple(name for name, old in before.items() if self.framework.snapshot(inputs[name]) != old)
        return self._read(given, probe, inputs)._replace(written=written, inputs=inputs)

    def output(self, probe: Probe) -> np.ndarray:
        """Give the output of a call, (..., L, Ev) in float64.

        Raises
        ------
        Refusal
            If the function raises at a call that is marked as a corner.
        DoesNotHold
            If it raises at an ordinary call, or gives back something of another kind or shape.
        """
        return self.outcome(probe).output

    def outcome(self, probe: Probe, **how: Any) -> Outcome:
        """Give all that a call did, as :meth:`output` does."""
        outcome = self.run(probe, **how)
        if outcome.error is not None:
            if probe.corner and outcome.inputs is not None and not outcome.error.startswith("gave back"):
                raise Refusal(probe.corner, outcome.error)
            raise DoesNotHold(Problem(probe, self.expected(probe).output, outcome.error, outcome.error))
        shape = probe.output_shape
        if outcome.output.shape != shape:
            problem = Problem(
                probe, self.expected(probe).output, outcome.output,
                f"the output has shape {outcome.output.shape}, wanted (..., L, Ev) = {shape}",
            )  # fmt: skip
            raise DoesNotHold(problem)
        return outcome

    def expected(self, probe: Probe) -> oracle.Answer:
        """Give what a call should give under the declared conventions."""
        alignment = self.conventions.alignment or self.form.alignment or "top-left"
        return oracle.answer(probe, alignment, self.conventions.empty_rows)

    def note(self, topic: str, text: str) -> None:
        """Keep something to report without judging it; the first text of a topic stays."""
        self.notes.setdefault(topic, text)

    def under(self, **conventions: Any) -> "Subject":
        """Give the same function, seen under other conventions."""
        declared = {k: v for k, v in self.conventions.shown().items() if k in self.conventions.declared}
        other = copy.copy(self)
        other.conventions = Conventions.of({**declared, **conventions})
        other.refused, other.notes, other.warned, other.leaks = {}, {}, {}, []
        return other

    def fit(self, probe: Probe) -> Probe:
        """Reshape a probe into what the function takes: leading axes, and equal sizes where it asks for them."""
        form, lead = self.form, len(probe.lead)
        if probe.dtype == "float32" != form.dtype:
            probe = probe.change(dtype=form.dtype)
        if not form.any_value_size and probe.Ev != probe.E:
            probe = _with_columns(probe, max(probe.E, probe.Ev))
        if not form.any_lengths and probe.L != probe.S:
            probe = _with_rows(probe, max(probe.L, probe.S))
        if lead + 2 not in form.axes:
            more = [axes for axes in form.axes if axes >= lead + 2]
            probe = probe.lift(more[0]) if more else probe
        if form.mask_lifted and "mask" in probe.options and probe.options["mask"].ndim < probe.query.ndim:
            full = (*probe.lead, probe.L, probe.S)
            probe = probe.change(mask=np.broadcast_to(probe.options["mask"], full).copy())
        return probe

    def make(self, probe: Probe) -> dict[str, Any]:
        """Make the framework's own arrays, in the function's polarity and axis order."""
        made = {}
        for name, x in probe.arrays.items():
            dtype = "bool" if name == "mask" else probe.dtype
            if name == "mask" and self.conventions.mask_true == "block":
                x = ~x
            if name in ("query", "key", "value"):
                x = self.swap_heads(x)
            made[name] = self.framework.make(x, dtype, probe.layouts.get(name))
        return made

    def _arguments(self, inputs: dict[str, Any], probe: Probe) -> tuple[list, dict[str, Any]]:
        """Arrange arrays and options as the function names them."""
        options = {name: value for name, value in probe.options.items() if name not in ("mask", "bias")}
        options |= {name: x for name, x in inputs.items() if name in ("mask", "bias")}
        if "mask" in options and "bias" in options and self.names.get("mask") == self.names.get("bias"):
            options["bias"] = self._fold(probe)
            del options["mask"]
        if isinstance(options.get("offset"), np.ndarray):
            options["offset"] = self.framework.make(options["offset"], "int64")
        if not self.has("enable_gqa"):
            options.pop("enable_gqa", None)  # for functions that group heads without being asked
        named = {self.names.get(name, name): value for name, value in options.items()}
        three = {name: inputs[name] for name in ("query", "key", "value")}
        if any(name in self.names for name in three):
            return [], {self.names.get(name, name): x for name, x in three.items()} | named
        return list(three.values()), named

    def _fold(self, probe: Probe) -> Any:
        """Put mask and bias into one additive array, for functions that have one argument for both."""
        folded = np.where(probe.options["mask"], probe.options["bias"], -np.inf)
        return self.framework.make(folded, probe.dtype)

    def _read(self, given: Any, probe: Probe, inputs: dict[str, Any]) -> Outcome:
        """Turn what came back into arrays of the contract's form."""
        wanted = f"one {self.framework.array} of shape (..., L, Ev) was wanted"
        rest: tuple = ()
        if isinstance(given, tuple) and given:
            given, *rest = given
            self.gives_tuple = self.gives_tuple or not probe.options.get("return_weights")
        if not self.framework.owns(given):
            kind = "nothing (None)" if given is None else f"a {type(given).__name__}"
            hint = ": is a `return` missing?" if given is None else ""
            return Outcome(error=f"gave back {kind}, {wanted}{hint}")
        if not self.framework.real(given):
            return Outcome(error=f"gave back numbers of dtype {self.framework.dtype(given)}, {wanted}")
        output = self.framework.read(given)
        scores = (probe.L, probe.S)
        weights = next((x for x in rest if self.framework.owns(x) and tuple(x.shape)[-2:] == scores), None)
        return Outcome(
            output=self.swap_heads(output),
            weights=None if weights is None else self.framework.read(weights),
            dtype=self.framework.dtype(given),
            raw=given,
        )

    def swap_heads(self, x: np.ndarray) -> np.ndarray:
        """Change between the contract's order of axes and the function's."""
        swap = self.conventions.layout == "BLHE" and x.ndim >= 4
        return x.swapaxes(-2, -3) if swap else x


def _with_columns(probe: Probe, size: int) -> Probe:
    """Give query, key and value one size: what is added is zero, and the default scale follows the new size."""
    arrays = {n: getattr(probe, n) for n in ("query", "key", "value")}
    padded = {n: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, size - x.shape[-1])]) for n, x in arrays.items()}
    return probe.change(**padded)


def _with_rows(probe: Probe, length: int) -> Probe:
    """Give as many queries as keys, by repeating some; none of either, where one has none."""
    length = 0 if 0 in (probe.L, probe.S) else length
    rows, columns = np.arange(length) % max(probe.L, 1), np.arange(length) % max(probe.S, 1)
    changes: dict[str, Any] = {
        name: x[..., rows if x.shape[-2] > 1 else slice(None), :][..., columns if x.shape[-1] > 1 else slice(None)]
        for name, x in probe.arrays.items()
        if name in ("mask", "bias")
    }
    return probe.change(
        query=probe.query[..., rows, :], key=probe.key[..., columns, :], value=probe.value[..., columns, :], **changes
    )


class Form:
    """What a function takes, found out by trying it."""

    def __init__(self) -> None:
        self.axes: tuple[int, ...] = (2, 3, 4)  # of query, key and value
        self.any_lengths = True  # L ≠ S
        self.any_value_size = True  # Ev ≠ E
        self.dtype = "float32"  # of ordinary calls
        self.alignment: str | None = None  # as seen, where it is not declared
        self.mask_lifted = False  # a mask needs all leading axes
        self.grouped_without_asking = False


def read_signature(fn: Callable, names: dict[str, str | None]) -> tuple[dict[str, str], dict[str, str], bool]:
    """Find which options a function has, under which name.

    Returns
    -------
    names : dict
        The contract's name to the function's.
    not_tested : dict
        Each missing option with the reason.
    open_ended : bool
        Whether the function takes any keyword.
    """
    known = (*OPTIONS, "query", "key", "value")
    for ours, theirs in names.items():
        if ours not in known:
            turn = f"; the contract's name comes first: {theirs}={ours}" if theirs in known else ""
            raise UsageError(f"names must be among {', '.join(known)}; got {ours!r}{turn}")
    parameters, open_ended = _parameters(fn)
    if parameters is not None:
        _takes_three_arrays(fn, parameters, names)
    found, missing = {}, {}
    for option in OPTIONS:
        theirs = names.get(option, option)
        if theirs is None:
            missing[option] = "left out by names"
        elif (parameters is None and option in names) or (parameters is not None and theirs in parameters):
            found[option] = theirs
        elif option in names and not open_ended:
            close = difflib.get_close_matches(theirs, parameters or (), n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"names says that {option} is called {theirs!r}, but {_shown(fn, parameters)}{meant}")
        elif option in names:
            found[option] = theirs
        else:
            missing[option] = _why_missing(option, parameters, open_ended)
    keyword_only = (
        parameters is not None
        and [p.kind for n, p in parameters.items() if n in ("query", "key", "value")]
        == [inspect.Parameter.KEYWORD_ONLY] * 3
    )
    for array in ("query", "key", "value"):
        if array in names or keyword_only:
            found[array] = names.get(array) or array
    return found, missing, open_ended


#: What other libraries call the contract's options.
ALIASES = {
    "mask": ("attn_mask", "attention_mask", "src_mask", "mask_"),
    "bias": ("attn_bias", "attn_mask", "attention_mask", "position_bias"),
    "causal": ("is_causal", "use_causal_mask", "causal_mask"),
    "window": ("window_size", "sliding_window", "local_window_size"),
    "offset": ("q_offset", "past_length", "start_pos"),
    "scale": ("scaling", "softmax_scale", "sm_scale", "scale_factor"),
    "softcap": ("logits_soft_cap", "logit_cap", "softcapping", "attn_logit_softcapping"),
    "enable_gqa": ("gqa",),
    "return_weights": (
        "need_weights",
        "return_attention",
        "return_attention_scores",
        "return_attn",
        "output_attentions",
    ),
    "dropout_p": ("dropout", "dropout_rate", "attn_dropout"),
}


def _why_missing(option: str, parameters: Mapping | None, open_ended: bool) -> str:
    if parameters is None:
        return f"the signature cannot be read; pass names={{{option!r}: …}} if it has one"
    close = next((alias for alias in ALIASES[option] if alias in parameters), None)
    if close:
        return (
            f"no argument named {option}; for {close}, pass names={{{option!r}: {close!r}}} (--name {option}={close})"
        )
    if open_ended:
        return f"no argument named {option}, only **keywords; pass names={{{option!r}: {option!r}}} to test it"
    return f"no argument named {option}"


def _parameters(fn: Callable) -> tuple[Mapping[str, inspect.Parameter] | None, bool]:
    """Read the parameters from the signature, or from the first line of a built-in's docstring."""
    target = fn.forward if _torch_module(fn) else fn
    scripted = _scripted_parameters(target)
    if scripted is not None:
        return scripted, False
    try:
        parameters = inspect.signature(target).parameters
    except (ValueError, TypeError):
        return _documented_parameters(fn), False
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    plain = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    if not plain and len(parameters) > len(plain):  # (*args, **kwargs): a wrapper that says nothing
        return {}, True
    return plain, open_ended


def _scripted_parameters(fn: Callable) -> Mapping[str, inspect.Parameter] | None:
    """Read the parameters of what ``torch.jit.script`` made."""
    arguments = getattr(getattr(fn, "schema", None), "arguments", None)
    if not isinstance(arguments, list) or not all(hasattr(a, "has_default_value") for a in arguments):
        return None
    kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    return {
        a.name: inspect.Parameter(a.name, kind, default=a.default_value if a.has_default_value() else empty)
        for a in arguments
        if a.name != "self"
    }


def _documented_parameters(fn: Callable) -> Mapping[str, inspect.Parameter] | None:
    found = re.match(r"\s*\w+\(([^()]*)\)", getattr(fn, "__doc__", None) or "")
    if not found:
        return None
    names = [part.split("=")[0].strip(" *\n") for part in found[1].split(",")]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return {n: inspect.Parameter(n, kind, default=None if i > 2 else inspect.Parameter.empty)
            for i, n in enumerate(names) if n.isidentifier()}  # fmt: skip


def _takes_three_arrays(fn: Callable, parameters: Mapping, names: dict[str, str | None]) -> None:
    """Raise unless the function can be called with query, key and value."""
    if not parameters and _takes_any_positional(fn):
        return  # (*args, **kwargs)
    arrays = [names.get(n) or n for n in ("query", "key", "value")]
    positional = [n for n, p in parameters.items() if p.kind is not p.KEYWORD_ONLY]
    by_name = all(n in parameters for n in arrays)
    required = [n for n, p in parameters.items() if p.default is p.empty]
    supplied = set(arrays) if by_name and any(n in names for n in ("query", "key", "value")) else set(positional[:3])
    if by_name and len(positional) < 3:
        supplied = set(arrays)
    if len(supplied) < 3 and not _takes_any_positional(fn):
        raise UsageError(f"fn must take query, key and value; {_shown(fn, parameters)}")
    also = [n for n in required if n not in supplied]
    if also and not _takes_any_positional(fn):
        raise UsageError(
            f"fn must be callable as fn(query, key, value); {_shown(fn, parameters)}, and {also[0]!r} has no default: "
            "fix it with functools.partial or a small wrapper"
        )


def _takes_any_positional(fn: Callable) -> bool:
    target = fn.forward if _torch_module(fn) else fn
    with contextlib.suppress(ValueError, TypeError):
        return any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(target).parameters.values())
    return False


def _shown(fn: Callable, parameters: Mapping | None) -> str:
    return f"{name_of(fn)} takes ({', '.join(parameters or ())})"


def name_of(fn: Any) -> str:
    """What to call a function, a partial or a module."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)


def describe_error(error: BaseException) -> str:
    """Say what was raised and where: the last line that is neither this package's nor a library's."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # an error whose own text raises
        lines = []
    text = f"{type(error).__name__}: {lines[0] if lines else '(no text)'}"
    frames = traceback.extract_tb(error.__traceback__)[1:]
    theirs = [f for f in frames if "site-packages" not in f.filename and "/lib/python" not in f.filename]
    if not theirs:
        return text
    frame = theirs[-1]
    file = frame.filename.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{text} ({file}, line {frame.lineno}: {frame.line})" if frame.line else text


def _torch_module(fn: Any) -> Any:
    """Give ``fn`` if it is a torch module, without importing torch."""
    return fn if any(c.__module__.startswith("torch.nn") and c.__name__ == "Module" for c in type(fn).__mro__) else None


assert set(ALIASES) == set(OPTIONS) and set(ARRAYS) <= {"query", "key", "value", *OPTIONS}
