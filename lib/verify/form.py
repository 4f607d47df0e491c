"""Find out by trying what a function takes, before any property is judged.

Which numbers of axes, which sizes, which dtype for ordinary calls, where it aligns causal, whether it groups heads
without being asked. What a function refuses with an error is reported; it is no failure, as long as ordinary
calls work.
"""

import dataclasses

import numpy as np

from lib.verify.probe import Probe, draw, equal_scores
from lib.verify.subject import Problem, Subject

SIZES = {"L": 2, "S": 3, "E": 4, "Ev": 2}
LEADS = {2: (), 3: (2,), 4: (2, 2)}


def find_out(subject: Subject) -> Problem | None:
    """Fill in ``subject.form``; give a problem if the function does not even take ordinary inputs."""
    problem = _basic_form(subject)
    if problem:
        return problem
    _options_behind_keywords(subject)
    _mask_axes(subject)
    _alignment(subject)
    _precision(subject)
    _grouped_heads(subject)
    return None


def _basic_form(subject: Subject) -> Problem | None:
    """Find axes, dtype and sizes."""
    equal = subject.conventions.lengths == "equal"
    trials = [SIZES, {**SIZES, "Ev": 4}, {**SIZES, "L": 3}, {**SIZES, "L": 3, "Ev": 4}]
    trials = [t for t in trials if not equal or t["L"] == t["S"]]
    first: tuple[Probe, str] | None = None
    order = [d for d in ("float32", "float64", "bfloat16", "float16") if d in subject.dtypes]
    axes = (4,) if subject.conventions.layout == "BLHE" else (2, 3, 4)
    for dtype in order:
        taken = {}
        for n in axes:
            for trial in trials:
                probe = draw(1, **trial, lead=LEADS[n]).change(dtype=dtype)
                outcome = subject.run(probe)
                if outcome.error is None:
                    taken[n] = trial
                    break
                first = first or (probe, outcome.error)
                if n not in subject.refused:
                    subject.refused[_axes_text(n)] = outcome.error
        if taken:
            for n in taken:
                subject.refused.pop(_axes_text(n), None)
            subject.form.axes, subject.form.dtype = tuple(taken), dtype
            smallest = taken[min(taken)]
            subject.form.any_lengths = smallest["L"] != smallest["S"]
            subject.form.any_value_size = smallest["Ev"] != smallest["E"]
            return _too_narrow(subject, smallest)
    probe, error = first
    return Problem(probe, subject.expected(probe).output, error, _with_hint(subject, error))


def _axes_text(n: int) -> str:
    return f"inputs with {n} axes"


def _too_narrow(subject: Subject, taken: dict) -> Problem | None:
    """Report sizes that are refused; unequal lengths must be possible unless the convention says otherwise."""
    if taken["Ev"] != taken["E"] and taken["L"] != taken["S"]:
        return None
    lead = LEADS[min(subject.form.axes)]
    probe = draw(1, **{**SIZES, "Ev": taken["Ev"]}, lead=lead).change(dtype=subject.form.dtype)
    if taken["Ev"] == taken["E"]:
        wide = draw(1, **{**SIZES, "L": taken["L"]}, lead=lead).change(dtype=subject.form.dtype)
        subject.refused["a value size different from the head size"] = subject.run(wide).error or ""
    if taken["L"] == taken["S"] and subject.conventions.lengths == "any":
        error = subject.run(probe).error
        hint = "pass conventions={'lengths': 'equal'} (--convention lengths=equal) if that is meant"
        return Problem(probe, subject.expected(probe).output, error, f"with L = 2 and S = 3: {error}; {hint}")
    return None


def _with_hint(subject: Subject, error: str) -> str:
    other = {"numpy": "torch", "torch": "numpy"}[subject.framework.name]
    words = {"torch": ("Tensor", "torch", "'numpy.ndarray' object has no attribute"), "numpy": ("numpy", "ndarray")}
    if any(word in error for word in words[other]):
        return f'{error}. It looks like a {other} function: pass framework="{other}" (--framework {other})'
    return error


def _options_behind_keywords(subject: Subject) -> None:
    """Where a function takes any keyword, an option that changes the result is one that it has."""
    if not subject.open_ended:
        return
    n = min(subject.form.axes)
    base = draw(2, 3, 3, 4, 4, lead=LEADS[n]).change(dtype=subject.form.dtype)
    mask, bias = np.tri(3, dtype=bool), np.tri(3)
    trials = {"mask": mask, "bias": bias, "causal": True, "window": (1, 1), "scale": 2.0, "softcap": 0.5}
    plain = subject.run(base)
    for option, value in trials.items():
        if option in subject.not_tested:
            _take_if_heard(subject, option, plain, subject.run(base.change(**{option: value})))
    if subject.has("causal") and "offset" in subject.not_tested:
        plain, shifted = (subject.run(base.change(causal=True, offset=o)) for o in (None, 1))
        _take_if_heard(subject, "offset", plain, shifted)
    if "return_weights" in subject.not_tested:
        outcome = subject.run(base.change(return_weights=True))
        if outcome.error is None and outcome.weights is not None and subject.run(base).weights is None:
            _take(subject, "return_weights")
    if "enable_gqa" in subject.not_tested and max(subject.form.axes) >= 3:
        grouped = _grouped(subject)
        plain, asked = subject.run(grouped), subject.run(grouped.change(enable_gqa=True))
        if plain.error is not None and asked.error is None:
            _take(subject, "enable_gqa")
    if "dropout_p" in subject.not_tested:
        _take_if_heard(subject, "dropout_p", subject.run(base), subject.run(base.change(dropout_p=0.9)))


def _take_if_heard(subject: Subject, option: str, plain: object, changed: object) -> None:
    if plain.error is None and changed.error is None and not np.array_equal(plain.output, changed.output):
        _take(subject, option)
    elif changed.error is None:
        subject.not_tested[option] = f"**keywords accepts {option}, and it changes nothing"


def _take(subject: Subject, option: str) -> None:
    subject.names = {**subject.names, option: option}
    subject.not_tested = {k: v for k, v in subject.not_tested.items() if k != option}
    subject.note(f"keyword {option}", f"{option} is taken through **keywords, and tested since it changes the result")


def _mask_axes(subject: Subject) -> None:
    """See whether a mask of shape (L, S) will do, or the leading axes must be there."""
    if not subject.has("mask"):
        return
    probe = subject.fit(draw(3, 2, 3, mask=np.ones((2, 3), bool)).change(dtype=subject.form.dtype))
    if subject.run(probe).error is not None:
        subject.form.mask_lifted = True
        if subject.run(subject.fit(probe)).error is not None:
            subject.form.mask_lifted = False


def _alignment(subject: Subject) -> None:
    """See where causal puts the first query when there are fewer queries than keys, where it is not declared."""
    if not subject.has("causal") or not subject.form.any_lengths or subject.conventions.alignment:
        return
    probe = subject.fit(equal_scores(np.eye(4), L=2, E=4, causal=True).change(dtype=subject.form.dtype))
    outcome = subject.run(probe)
    if outcome.error is not None:
        subject.refused["causal with L ≠ S and no offset"] = outcome.error
        return
    for alignment in ("top-left", "bottom-right"):
        answer = subject.under(alignment=alignment).expected(probe)
        if outcome.output.shape == answer.output.shape and np.allclose(outcome.output, answer.output, atol=1e-2):
            subject.form.alignment = alignment
            subject.note("alignment", f"causal with L ≠ S and no offset is aligned {alignment} (seen, not declared)")


def overflowing() -> Probe:
    """Make products beyond float16's range: q·k = 64 · 40 · 40 = 102400, scores equal, values 1 and 3."""
    return Probe(np.full((1, 64), 40.0), np.full((2, 64), 40.0), np.array([[1.0], [3.0]]), dtype="float16")


def fine_difference(scale: float | None = 1.0) -> Probe:
    """Make two scores that float32 cannot tell apart: 1 and 1 + 2⁻³⁰; the values show the two weights."""
    key = np.array([[1.0], [1.0 + 2.0**-30]])
    options = {} if scale is None else {"scale": scale}
    return Probe(np.ones((1, 1)), key, np.eye(2), options, dtype="float64")


def _precision(subject: Subject) -> None:
    """Recognise eager attention as Hugging Face writes it: products in the inputs' dtype, softmax in float32.

    It shows in two places at once: half-precision products overflow before scaling, and float64 weights have float32
    digits. Models are trained that way, so it is a convention; either of the two alone is not.
    """
    declared = {"softmax_dtype", "half_scores"} & subject.conventions.declared
    if declared or not {"float16", "float64"} <= set(subject.dtypes):
        return
    probes = subject.fit(overflowing()), subject.fit(fine_difference(None))
    half, double = (subject.run(probe) for probe in probes)
    if half.error or double.error:
        return
    if (half.output.shape, double.output.shape) != tuple(probe.output_shape for probe in probes):
        return
    with np.errstate(all="ignore"):
        told_apart = double.output[..., 0, 0] != double.output[..., 0, 1]
        coarse = np.abs(double.output[..., 0, :2] - 0.5).max() < 1e-3 and not told_apart.any()
    if np.isnan(half.output[..., 0]).all() and coarse:
        subject.conventions = dataclasses.replace(
            subject.conventions, softmax_dtype="float32", half_scores="may-overflow"
        )
        subject.note(
            "precision",
            "products stay in the inputs' dtype and the softmax runs in float32 (seen, not declared), as in Hugging "
            "Face's eager attention: float16 inputs near 40 give NaN, and float64 inputs get float32 weights",
        )


def _grouped(subject: Subject) -> Probe:
    axes = max(subject.form.axes)
    lead = (4,) if axes == 3 else (1, 4)
    return draw(5, 2, 3, 4, 4, lead=lead, groups=2).change(dtype=subject.form.dtype)


def _grouped_heads(subject: Subject) -> None:
    """See whether a function takes fewer key/value heads than query heads without being asked."""
    if subject.has("enable_gqa") or max(subject.form.axes) < 3 or not subject.form.any_lengths:
        return
    outcome = subject.run(_grouped(subject))
    wanted = (*_grouped(subject).lead, 2, 4)
    if outcome.error is None and outcome.output.shape == wanted:
        subject.form.grouped_without_asking = True
