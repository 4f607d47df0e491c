"""Numbers at the ends of the range, half precision, float64, and the soft cap."""

from collections.abc import Iterator

import numpy as np

from lib.verify.form import fine_difference, overflowing
from lib.verify.oracle import EPSILON
from lib.verify.probe import Probe, draw, equal_scores, some_mask
from lib.verify.properties.base import (
    Property,
    agrees_with_equation,
    differs,
    explicit_scale,
    require_same,
)
from lib.verify.subject import DoesNotHold, Problem, Subject

# --- extreme scores


def probes_extreme(subject: Subject) -> Iterator[Probe]:
    """Ask one query with scores that are huge, equal, or tiny; a head size of 1 makes every score readable."""
    largest = 3e4 if subject.form.dtype == "float16" else 1e30
    rows: list[list[float]] = [[0, 100], [0, 200, 100], [1e4, 1e4], [-1e4, -1e4], [1e4, 2e4, 3e4], [0, -1e4]]
    rows += [[0, largest], [-largest, 0], [-largest, -largest / 2], [largest, largest]]
    rows += [[1e-30, 0], [1e-38, -1e-38], [0, 0, 0], [1e-4, -1e-4], [88, 89], [-104, -103], [512, 513]]
    for row in rows:
        key = np.array(row, dtype=float)[:, None]
        yield Probe(np.ones((1, 1)), key, np.eye(len(row)))
    if largest == 1e30:
        yield Probe(np.full((1, 1), 1e15), np.array([[1e15], [0.0]]), np.eye(2))
        yield Probe(np.full((1, 1), 1e-15), np.array([[1e-20], [0.0]]), np.eye(2))
    if subject.has("bias"):
        for row in ([1e4, 1e4], [-1e4, -1e4], [0, 1e4]):
            yield equal_scores(np.eye(2), bias=np.array([row], dtype=float))


EXTREME = Property(
    "extreme scores",
    "Scores that are huge, tiny or all equal give weights without NaN; adding a constant to a row changes nothing.",
    probes_extreme,
    agrees_with_equation,
)

# --- half precision


def probes_half(subject: Subject) -> Iterator[Probe]:
    """Ask in float16 and bfloat16: ordinary numbers, masks, many keys, products beyond the range."""
    for dtype in ("float16", "bfloat16"):
        if dtype not in subject.dtypes:
            continue
        first = equal_scores([1, 3]).change(dtype=dtype, corner=f"{dtype} inputs")
        yield first
        if subject.run(subject.fit(first)).error is not None:
            continue
        for probe in _half_cases(subject):
            yield probe.change(dtype=dtype, corner=f"{probe.corner} in {dtype}" if probe.corner else None)


def _half_cases(subject: Subject) -> Iterator[Probe]:
    for S in (1000, 3000):
        yield equal_scores(np.arange(S) % 2, E=2)
    for seed, (L, S, E, Ev) in enumerate([(3, 5, 4, 2), (4, 6, 16, 8), (5, 33, 64, 4)]):
        yield draw(400 + seed, L, S, E, Ev)
    if subject.has("mask"):
        yield equal_scores([1, 3], mask=np.array([[True, False]]))
        yield draw(403, 3, 5, 4, 2, mask=some_mask(1, 3, 5))
        far = Probe(np.ones((1, 1)), np.array([[-30.0], [0.0]]), np.array([[1.0], [3.0]]))
        yield far.change(mask=np.array([[True, False]]))
    if subject.has("causal"):
        yield draw(404, 5, 5, 4, 2, causal=True)
    if subject.has("mask", "causal"):
        mask = np.array([[True] * 5] + [[False, True, True, True, True]] * 4)
        yield draw(405, 5, 5, 4, 2, causal=True, mask=mask).change(corner="causal, mask together")
    if subject.conventions.half_scores == "finite":
        yield overflowing()
        yield overflowing().change(key=np.stack([np.full(64, 40.0), np.zeros(64)]))


def check_half(subject: Subject, probe: Probe) -> None:
    """Compare with the function's own result in float32 for the same numbers."""
    given = subject.output(probe)
    wide = subject.form.dtype
    if wide in ("float16", "bfloat16"):  # the function takes nothing wider
        expected, basis = subject.expected(probe).output, ""
    else:
        expected = subject.output(probe.change(dtype=wide, corner=None))
        basis = f"what the function itself gives for the same numbers in {wide}"
    allowance = 2 * EPSILON[probe.dtype] * np.abs(probe.value).max()  # the output's own rounding
    require_same(probe, given, expected, 2 * subject.expected(probe).tolerance + allowance, basis=basis)


def applies_half(subject: Subject) -> str | None:
    """A half-precision dtype must be meant."""
    return None if {"float16", "bfloat16"} & set(subject.dtypes) else "no half-precision dtype among those declared"


HALF = Property(
    "half precision",
    "In float16 and bfloat16 the output is the float32 one, rounded: no overflow before scaling, no sums in half.",
    probes_half,
    check_half,
    applies=applies_half,
)

# --- float64


def probes_float64(subject: Subject) -> Iterator[Probe]:
    """Ask with differences that float32 cannot hold: in two scores, in two values, in two biases."""
    value = Probe(np.zeros((1, 1)), np.zeros((1, 1)), np.array([[1.0, 1.0 + 2.0**-40]]), dtype="float64")
    yield value.change(corner="float64 inputs")
    if subject.conventions.softmax_dtype == "float32":
        return
    yield fine_difference(None).change(corner="float64 inputs")
    yield fine_difference(None).change(query=np.array([[2.0]]), corner="float64 inputs")
    few = fine_difference(None)  # and beside many keys of next to no weight
    key, value = np.full((300, 1), -40.0), np.zeros((300, 2))
    key[:2], value[:2] = few.key, few.value
    yield few.change(key=key, value=value, corner="float64 inputs")
    for seed, E in enumerate((3, 7)):  # 1/√E is no float32 number
        drawn = draw(410 + seed, 2, 5, E, 2)
        yield drawn.change(value=np.abs(drawn.value) + 1, dtype="float64", corner="float64 inputs")
    if subject.has("scale"):
        yield fine_difference(1.0).change(corner="float64 inputs")
    if subject.has("bias"):
        bias = np.array([[0.0, 2.0**-30]])
        yield equal_scores(np.eye(2), bias=bias).change(dtype="float64", corner="float64 inputs")


def check_float64(subject: Subject, probe: Probe) -> None:
    """Compare the first two entries' ratio, where a common factor, such as a sum that is a little off, cancels."""
    given, answer = subject.output(probe), subject.expected(probe).output
    with np.errstate(all="ignore"):
        ratio, expected = (x[..., 1] / x[..., 0] - 1 for x in (given, answer))
    if not differs(ratio, expected, 1e-12 if probe.E > 1 else 1e-14).any():
        return
    if not _right_in_float32(subject, probe):  # then it is another property's
        return
    if differs(ratio, expected, 1e-5).any():
        raise DoesNotHold(Problem(probe, answer, given, "the output is wrong in float64, and right in float32"))
    raise DoesNotHold(Problem(probe, answer, given, "float64 inputs give an output with float32's digits"))


def _right_in_float32(subject: Subject, probe: Probe) -> bool:
    """Compare with the equation where differences are large, with the same options."""
    if "float32" not in subject.dtypes:
        return True
    coarse = draw(411, probe.L, probe.S, probe.E, probe.Ev, **probe.options)
    outcome, answer = subject.run(coarse), subject.expected(coarse)
    if outcome.error is not None or outcome.output.shape != answer.output.shape:
        return True
    return not differs(outcome.output, answer.output, answer.tolerance).any()


def applies_float64(subject: Subject) -> str | None:
    """The dtype must be meant."""
    return None if "float64" in subject.dtypes else "float64 is not among the dtypes declared"


FLOAT64 = Property(
    "float64",
    "float64 stays float64 all the way: a difference that float32 cannot hold shows in the output.",
    probes_float64,
    check_float64,
    applies=applies_float64,
)

# --- softcap


def probes_softcap(subject: Subject) -> Iterator[Probe]:
    """Ask with scores above and below the cap, alone and together with what comes after it."""
    scale = explicit_scale(subject, 1.0)
    for row, cap in [([0, 1], 1.0), ([0, 3], 2.0), ([0, 100], 2.0), ([0, 1], 50.0), ([-3, 3], 0.5)]:
        yield Probe(np.ones((1, 1)), np.array(row, dtype=float)[:, None], np.eye(2), {"softcap": cap, **scale})
    for seed, cap in enumerate([1.0, 2.0, 30.0, 0.25]):
        yield draw(420 + seed, 3, 5, 4, 2, softcap=cap, **explicit_scale(subject))
    if subject.has("mask"):
        probe = equal_scores([1, 2], softcap=2.0, mask=np.array([[True, False]]), **scale)
        yield probe.change(corner="mask, softcap together")
        mask = np.tri(3, 5, 1, dtype=bool)
        yield draw(430, 3, 5, 4, 2, softcap=1.0, mask=mask, **scale).change(corner="mask, softcap together")
    if subject.has("bias"):
        probe = equal_scores(np.eye(2), softcap=1.0, bias=np.array([[0.0, 3.0]]), **scale)
        yield probe.change(corner="bias, softcap together")


SOFTCAP = Property(
    "softcap",
    "The cap bounds the scaled scores, softcap · tanh(score / softcap), before mask and bias.",
    probes_softcap,
    agrees_with_equation,
    needs=("softcap",),
)
