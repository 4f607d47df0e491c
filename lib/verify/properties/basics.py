"""The equation itself: softmax(scale · QKᵀ) V, row by row."""

from collections.abc import Iterator

import numpy as np

from lib.verify.probe import Probe, draw, equal_scores
from lib.verify.properties.base import (
    Property,
    agrees_with_equation,
    differs,
    explicit_scale,
    leads,
    require_same,
)
from lib.verify.subject import DoesNotHold, Problem, Refusal, Subject

# --- shape and dtype


def probes_shape(subject: Subject) -> Iterator[Probe]:
    """Ask in every dtype and every number of axes."""
    for dtype in [subject.form.dtype, *(d for d in subject.dtypes if d != subject.form.dtype)]:
        for lead in leads(subject, (), (2,), (2, 3)):
            corner = None if dtype == subject.form.dtype else f"{dtype} inputs"
            yield draw(10, 3, 5, 4, 2, lead=lead).change(dtype=dtype, corner=corner)
    if subject.has("mask"):
        yield draw(10, 3, 5, 4, 2, mask=np.tri(3, 5, dtype=bool))
    if subject.has("causal"):
        yield draw(10, 4, 4, 4, 2, causal=True)


def check_shape(subject: Subject, probe: Probe) -> None:
    """The shape is compared whenever an output is taken; here also the dtype."""
    outcome = subject.outcome(probe)
    if outcome.dtype != probe.dtype:
        raise DoesNotHold(
            Problem(probe, probe.dtype, outcome.dtype, f"{probe.dtype} went in, {outcome.dtype} came out", "dtype")
        )


SHAPE = Property(
    "shape and dtype",
    "The output has shape (..., L, Ev) and the dtype of the inputs.",
    probes_shape,
    check_shape,
)

# --- equation


def probes_equation(subject: Subject) -> Iterator[Probe]:
    """Ask with sizes that all differ, so that no size can stand in for another."""
    yield equal_scores([2, 8])
    yield Probe(np.ones((1, 4)), np.array([[1.0] * 4, [0.0] * 4]), np.array([[1.0], [0.0]]))
    yield equal_scores(np.eye(2), L=3, E=4)
    yield Probe(np.array([[1.0], [2.0]]), np.array([[0.0], [1.0]]), np.array([[1.0], [0.0]]))
    sizes = [(1, 2, 1, 1), (2, 3, 1, 2), (3, 2, 4, 1), (2, 3, 4, 5), (5, 3, 2, 4), (4, 4, 4, 4), (3, 5, 4, 2)]
    sizes += [(7, 6, 16, 5), (3, 4, 64, 3), (8, 8, 3, 8), (2, 5, 128, 2), (6, 9, 5, 7)]
    for seed, (L, S, E, Ev) in enumerate(sizes):
        yield draw(seed, L, S, E, Ev)


EQUATION = Property(
    "equation",
    "Without options the output is softmax(QKᵀ/√E)V.",
    probes_equation,
    agrees_with_equation,
)

# --- axis


def probes_axis(subject: Subject) -> Iterator[Probe]:
    """Ask with several queries, one of them far larger than the others."""
    yield equal_scores(np.eye(2), L=2, E=1)
    yield Probe(np.array([[0.0], [1.0]]), np.array([[0.0], [1.0]]), np.eye(2))
    for seed, (L, S, E, Ev) in enumerate([(2, 3, 2, 2), (3, 5, 4, 2), (4, 4, 4, 4)]):
        yield draw(20 + seed, L, S, E, Ev)
    for size in (100.0, -100.0, 1e4):
        yield Probe(np.array([[1.0], [size]]), np.array([[1.0], [2.0]]), np.eye(2))


def check_axis(subject: Subject, probe: Probe) -> None:
    """Take the other queries away, or change them: no query's output may move."""
    given = subject.output(probe)
    tolerance = 2 * subject.expected(probe).tolerance
    expected = given.copy()
    for i in range(probe.L):
        others = probe.query.copy()
        others[..., np.arange(probe.L) != i, :] = 1.0
        changed = probe.change(query=others)
        expected[..., i, :] = subject.output(changed)[..., i, :]
        if subject.form.any_lengths and not differs(given, expected, tolerance)[..., i, :].any():
            expected[..., i, :] = subject.output(probe.only_query(i))[..., 0, :]
    basis = "what the function itself gives for each query when the others are changed or not there"
    require_same(probe, given, expected, tolerance, "a query's output changes when the other queries do", basis)


AXIS = Property(
    "axis",
    "Each query shares out its own weights among the keys; what the other queries hold changes nothing.",
    probes_axis,
    check_axis,
)

# --- sum to one


def probes_sum(subject: Subject) -> Iterator[Probe]:
    """Ask with values of one, so that the output is the sum of the weights."""
    dtypes = [subject.form.dtype]
    if "float64" in subject.dtypes and subject.conventions.softmax_dtype != "float32":
        dtypes.append("float64")
    for dtype in dtypes:
        corner = None if dtype == subject.form.dtype else f"{dtype} inputs"
        for S in (1, 2, 5):
            yield equal_scores(np.ones(S)).change(dtype=dtype, corner=corner)
        for seed, (L, S, E) in enumerate([(3, 4, 2), (4, 9, 8), (5, 33, 4)]):
            probe = draw(30 + seed, L, S, E, 1).change(value=np.ones((S, 1)), dtype=dtype, corner=corner)
            yield probe
            if subject.has("mask"):
                mask = np.ones((L, S), bool)
                mask[:, -1] = False
                yield probe.change(mask=mask)


def check_sum(subject: Subject, probe: Probe) -> None:
    """The weights of a row share out a whole: no more, no less."""
    given = subject.output(probe)
    answer = subject.expected(probe)
    require_same(probe, given, answer.output, answer.tolerance, "the weights of a row do not sum to one")


SUM = Property("sum to one", "The weights of each query sum to one.", probes_sum, check_sum)

# --- scale


def probes_scale(subject: Subject) -> Iterator[Probe]:
    """Ask with a scale that differs from 1/√E, and with 0, which makes all weights equal."""
    two_keys = Probe(np.ones((1, 4)), np.array([[1.0] * 4, [0.0] * 4]), np.array([[1.0], [0.0]]))
    for scale in (1.0, 0.25, 2.0, 0.0):
        yield two_keys.change(scale=scale)
    for seed, scale in enumerate([0.125, 1.0, 0.0, 1.5, 8.0]):
        yield draw(40 + seed, 3, 5, 4, 2, scale=scale)
    yield draw(46, 3, 5, 4, 2, scale=-0.5).change(corner="a negative scale")


def check_scale(subject: Subject, probe: Probe) -> None:
    """Compare with the equation. Some take the scale's root, which a negative one does not have."""
    if probe.options["scale"] < 0 and np.isnan(subject.output(probe)).all():
        raise Refusal(probe.corner, "gives NaN")
    agrees_with_equation(subject, probe)


SCALE = Property(
    "scale",
    "A given scale multiplies the products QKᵀ as it is, 0 too.",
    probes_scale,
    check_scale,
    needs=("scale",),
)

# --- weights


def probes_weights(subject: Subject) -> Iterator[Probe]:
    """Ask for the weights, with whatever else the function has."""
    asked = {"return_weights": True} if subject.has("return_weights") else {}
    yield equal_scores([2, 8], **asked)
    yield draw(50, 2, 3, 2, 1, **asked)
    yield draw(51, 3, 5, 4, 2, **asked, **explicit_scale(subject))
    for lead in leads(subject, (2,), (2, 3)):
        yield draw(52, 3, 5, 4, 2, lead=lead, **asked)
    if subject.has("mask"):
        yield equal_scores([2, 8], **asked, mask=np.array([[True, False]]))
        yield draw(53, 3, 4, 4, 2, **asked, mask=np.tri(3, 4, 1, dtype=bool))
    if subject.has("causal"):
        yield draw(54, 4, 4, 4, 2, **asked, causal=True)


def check_weights(subject: Subject, probe: Probe) -> None:
    """The returned weights are those that the output was made with."""
    outcome = subject.outcome(probe)
    answer = subject.expected(probe)
    if outcome.weights is None or outcome.weights.shape != answer.weights.shape:
        shape = None if outcome.weights is None else outcome.weights.shape
        wanted = f"weights of shape (..., L, S) = {answer.weights.shape}"
        raise DoesNotHold(Problem(probe, wanted, f"{shape}", f"wanted the output and {wanted}, got {shape}", "weights"))
    w, allowed = outcome.weights, answer.allowed
    tolerance = answer.tolerance + 1e-5
    problems = {
        "a masked key has a weight": (w != 0) & ~allowed,
        "a weight is negative": w < 0,
        "a row of weights does not sum to one": (np.abs(w.sum(-1, keepdims=True) - 1) > tolerance) | (w != w),
    }
    for detail, wrong in problems.items():
        if wrong.any():
            raise DoesNotHold(Problem(probe, answer.weights, w, detail, "weights"))
    if differs(w @ probe.value, outcome.output, 4 * tolerance * max(1, np.abs(probe.value).max())).any():
        raise DoesNotHold(Problem(probe, answer.weights, w, "weights · value is not the output", "weights"))


def applies_weights(subject: Subject) -> str | None:
    """Test weights where they can be asked for, or come anyway."""
    if subject.has("return_weights"):
        return None
    outcome = subject.run(subject.fit(draw(50, 2, 3, 2, 1)))
    if outcome.weights is not None and outcome.weights.shape[:-2] == outcome.output.shape[:-2]:
        subject.note("weights", "the function gives back a tuple; its second array is tested as the weights")
        return None
    return subject.not_tested.get("return_weights", "no argument named return_weights")


WEIGHTS = Property(
    "weights",
    "The returned weights are the output's own: none negative, 0 where masked, rows that sum to one.",
    probes_weights,
    check_weights,
    applies=applies_weights,
)
