"""Check an attention function: ask every property, shrink what fails, name the bug."""

import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from lib.verify.diagnosis import Failed, diagnose
from lib.verify.example import write
from lib.verify.form import find_out
from lib.verify.guess import guess
from lib.verify.probe import Probe
from lib.verify.properties import PROPERTIES, RUNS, RUNS_STATEMENT, Property
from lib.verify.report import Failure, Report
from lib.verify.shrink import SECONDS, shrink, shrink_call
from lib.verify.subject import Subject, UsageError, listeners

#: The stage after the last property, in which failures are shrunk and bugs named.
EXPLAIN = "explain"

Progress = Callable[[str, Failure | str | None], None]

#: How much computing all failures together may take to be made small.
ALL_SECONDS = 6.0


def check_attention(
    fn: Callable,
    framework: str = "numpy",
    names: Mapping[str, str | None] | None = None,
    conventions: Mapping[str, Any] | None = None,
    *,
    properties: Iterable[str] | None = None,
    device: str = "cpu",
    timeout: float | None = None,
    progress: Progress | None = None,
    imported: str | None = None,
) -> Report:
    """Find out whether an attention function can be trusted, and if not, which known bug it has.

    Parameters
    ----------
    fn : callable
        ``fn(query, key, value, **options)``: (..., L, E), (..., S, E), (..., S, Ev) to (..., L, Ev), or to a tuple that
        starts with it. A torch module is checked in evaluation mode.
    framework : "numpy" or "torch"
        What ``fn`` takes and gives back.
    names : dict
        The contract's options (``mask``, ``bias``, ``causal``, ``window``, ``offset``, ``scale``, ``softcap``,
        ``enable_gqa``, ``return_weights``, ``dropout_p``) and what ``fn`` calls them, where that differs:
        ``{"mask": "attn_mask"}``. Two may share one argument. None leaves an option untested.
    conventions : dict
        What differs by choice: ``mask_true`` (attend, block), ``alignment`` (top-left, bottom-right), ``layout`` (BHLE,
        BLHE), ``empty_rows`` (zero, nan, mean), and others listed in :data:`lib.verify.CONVENTIONS`.
    properties : iterable of str
        Ask only these.
    device : str
        Where torch's tensors are made.
    timeout : float
        Seconds after which a property is given up, as a failure. Needs the main thread of a Unix process, and works
        for Python code; the command line cuts off everything.
    progress : callable
        ``progress(property, None)`` when a property is asked, then what came of it: ``"holds"``, ``"not tested: …"``
        or a Failure, still without its example and suspect. Last, ``progress("explain", None)``.
    imported : str
        ``module:function``, for the import line of examples, where it cannot be told from ``fn``.

    Returns
    -------
    Report
        ``report.ok``, ``report.failures``; ``print(report)`` is for people, ``report.to_json()`` for machines.

    Raises
    ------
    UsageError
        A TypeError and ValueError: if ``fn`` is no function of query, key and value, or a name, a convention or a
        property does not exist.

    Examples
    --------
    >>> import numpy as np
    >>> def attention(query, key, value):
    ...     scores = query @ key.swapaxes(-1, -2)  # and no scale
    ...     weights = np.exp(scores - scores.max(-1, keepdims=True))
    ...     return weights / weights.sum(-1, keepdims=True) @ value
    >>> report = check_attention(attention, properties=["equation", "axis"])
    >>> report.ok, report.holds, report.failures[0].suspect
    (False, ['axis'], 'unscaled')
    """
    subject = Subject(fn, framework, names, conventions, device)
    tell = progress or (lambda name, outcome: None)
    with _evaluation_mode(subject), subject.framework.randomness(), _listening() as latest:
        return _check(subject, _chosen(properties), timeout, tell, imported, latest)


def _check(
    subject: Subject,
    properties: list[Property],
    timeout: float | None,
    tell: Progress,
    imported: str | None,
    latest: list[Probe],
) -> Report:
    tell(RUNS, None)
    try:
        with time_limit(timeout):
            problem = find_out(subject)
    except TimeUp:
        return _report(subject, [_hangs(RUNS, RUNS_STATEMENT, timeout, latest)], [], {})
    if problem is not None:
        tell(RUNS, Failure(RUNS, problem.detail, statement=RUNS_STATEMENT))
        tell(EXPLAIN, None)
        failed = Failed(None, problem.call, problem)
        failures = _explain(subject, [failed], imported)
        return _report(subject, failures, [], {})

    holds, not_tested, failed, hanging = [], {}, [], []
    for prop in properties:
        tell(prop.name, None)
        reason = prop.untestable(subject)
        if reason is None:
            try:
                with time_limit(timeout):
                    found = prop.judge(subject)
            except TimeUp:
                hanging.append(_hangs(prop.name, prop.statement, timeout, latest))
                tell(prop.name, hanging[-1])
                continue
            if isinstance(found, tuple):
                failed.append(Failed(prop, *found))
                tell(prop.name, Failure(prop.name, failed[-1].problem.detail, statement=prop.statement))
                continue
            if found is None:
                holds.append(prop.name)
                tell(prop.name, "holds")
                continue
            reason = found
        not_tested[prop.name] = reason
        tell(prop.name, f"not tested: {reason}")
    tell(EXPLAIN, None)
    failures = [*_explain(subject, failed, imported, holds), *hanging]
    return _report(subject, failures, holds, not_tested)


def _explain(
    subject: Subject, failed: list[Failed], imported: str | None, holds: Collection[str] = ()
) -> list[Failure]:
    """Shrink what failed, name the bug, and write examples."""
    seconds = min(SECONDS, ALL_SECONDS / max(len(failed), 1))
    smaller = [
        Failed(None, *shrink_call(subject, f.problem, seconds))
        if f.prop is None
        else Failed(f.prop, *shrink(subject, f.prop, f.probe, f.problem, seconds))
        for f in failed
    ]
    suspects = diagnose(subject, smaller, holds)
    hints = guess(subject, failed)
    failures = []
    for (prop, _, problem), suspect in zip(smaller, suspects, strict=True):
        name, statement = (RUNS, RUNS_STATEMENT) if prop is None else (prop.name, prop.statement)
        example = write(subject, problem, imported)
        hint, detail = hints.get(name), problem.detail
        if prop is None and hint:
            detail = detail.split("; pass conventions")[0]  # this hint is the better one
        failures.append(Failure.of(name, statement, detail, example, suspect, hint))
    return failures


def _report(subject: Subject, failures: list[Failure], holds: list[str], not_tested: dict[str, str]) -> Report:
    warned = [f"it warns: {kind}: {text}" for kind, text in subject.warned.items()]
    if subject.leaks:
        through = "none of the libraries tried stops all of them; conventions={'masked_nan': 'blocked'} judges it"
        warned.append(f"{', '.join(subject.leaks)}: reaches the output ({through})")
    conventions = subject.conventions.shown() | {"declared": sorted(subject.conventions.declared)}
    return Report(
        subject.name,
        subject.framework.name,
        failures,
        holds,
        not_tested,
        dict(subject.refused),
        [*subject.notes.values(), *warned],
        conventions,
    )


def _chosen(names: Iterable[str] | None) -> list[Property]:
    if names is None:
        return list(PROPERTIES)
    names = [names] if isinstance(names, str) else list(names)
    known = {prop.name: prop for prop in PROPERTIES}
    for name in names:
        if name not in known:
            raise UsageError(f"properties must be among {', '.join(known)}; got {name!r}")
    return [known[name] for name in names]


@contextlib.contextmanager
def _evaluation_mode(subject: Subject) -> Iterator[None]:
    """Check a module in evaluation mode, and leave it as it was."""
    if subject.module is None:
        yield
        return
    modes = {m: m.training for m in subject.module.modules()}
    subject.module.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextlib.contextmanager
def _listening() -> Iterator[list[Probe]]:
    """Keep the latest call."""
    latest: list[Probe] = []

    def keep(probe: Probe) -> None:
        latest[:] = [probe]

    listeners.append(keep)
    try:
        yield latest
    finally:
        listeners.remove(keep)


class TimeUp(BaseException):
    """A property took too long. No Exception, so that the code under test does not catch it."""


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Interrupt what runs inside after some seconds, where the platform can."""
    can = seconds is not None and hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not can:
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _hangs(name: str, statement: str, timeout: float | None, latest: list[Probe]) -> Failure:
    call = f"; the last call had {latest[0].summary}" if latest else ""
    return Failure(name, f"the function did not come back within {timeout:g} s{call}", statement=statement)


class Case:
    """One property of one function, for a test of its own."""

    def __init__(self, fn: Callable, name: str, options: dict[str, Any]) -> None:
        self.fn, self.name, self.options = fn, name, options

    def __repr__(self) -> str:
        return f"<Case {self.name}>"

    def check(self) -> None:
        """Raise AssertionError with the whole story unless the property holds."""
        report = check_attention(self.fn, **self.options, properties=[self.name])
        assert report.ok, "\n" + report.text()


def cases(
    fn: Callable,
    framework: str = "numpy",
    names: Mapping[str, str | None] | None = None,
    conventions: Mapping[str, Any] | None = None,
    **options: Any,
) -> list:
    """Give one test case for each property, for ``pytest.mark.parametrize``.

    Parameters
    ----------
    fn, framework, names, conventions
        As in :func:`check_attention`.

    Returns
    -------
    list
        With pytest installed, parameters with the properties' names as ids; a property that cannot be tested is
        marked as skipped, with the reason. Without pytest, the cases alone.

    Examples
    --------
    In a test file of your own::

        from lib import verify
        from mymodule import my_attention

        @pytest.mark.parametrize("case", verify.cases(my_attention))
        def test_attention(case):
            case.check()

    >>> from lib import reference
    >>> found = cases(reference.attention)
    >>> found[1].id, found[1].values[0].check()
    ('equation', None)
    """
    given = {"framework": framework, "names": names, "conventions": conventions, **options}
    subject = Subject(fn, framework, names, conventions, options.get("device", "cpu"))
    with _evaluation_mode(subject), subject.framework.randomness():
        broken = find_out(subject)
        reasons = {p.name: None if broken else p.untestable(subject) for p in PROPERTIES}
    found = [(Case(fn, p.name, given), reasons[p.name]) for p in PROPERTIES]
    try:
        import pytest
    except ImportError:
        return [case for case, reason in found if reason is None]
    return [
        pytest.param(case, id=case.name, marks=[pytest.mark.skip(reason=f"not tested: {reason}")] if reason else [])
        for case, reason in found
    ]
