"""Mask and bias: who may see whom, and what a hidden key may not do."""

from collections.abc import Iterator

import numpy as np

from lib.verify.oracle import EPSILON
from lib.verify.probe import Probe, draw, equal_scores, some_mask
from lib.verify.properties.base import (
    Property,
    agrees_with_equation,
    alone,
    as_if_alone,
    differs,
    leads,
    require_same,
    same,
)
from lib.verify.subject import DoesNotHold, Problem, Refusal, Subject

# --- mask


def probes_mask(subject: Subject) -> Iterator[Probe]:
    """Ask with one hidden key, then with masks that are neither symmetric nor the same for all queries."""
    for mask in ([[True, False]], [[False, True]], [[True, True]]):
        yield equal_scores([1, 2], mask=np.array(mask))
    yield equal_scores([1, 2], L=2, mask=np.array([[True, False], [True, True]]))
    yield equal_scores([1, 2], L=2, mask=np.array([[True, True], [False, True]]))
    for seed, (L, S) in enumerate([(2, 2), (3, 3), (3, 5), (4, 4), (5, 3), (7, 9)]):
        yield draw(100 + seed, L, S, 4, 2, mask=some_mask(seed, L, S))
    for lead in leads(subject, (2,), (2, 3)):
        yield draw(110, 3, 5, 4, 2, lead=lead, mask=some_mask(7, 3, 5))
        full = np.broadcast_to(some_mask(8, 3, 5), (*lead, 3, 5)).copy()
        yield draw(111, 3, 5, 4, 2, lead=lead, mask=full)


MASK = Property(
    "mask",
    "True = may attend; a query gives what it gives when its masked keys are not there at all.",
    probes_mask,
    as_if_alone,
    needs=("mask",),
)

# --- hidden keys


def probes_hidden(subject: Subject) -> Iterator[Probe]:
    """Ask with a hidden key whose score or value is far larger than all others, or with very low scores beside it."""
    first = np.array([[True, False]])
    largest = 1e4 if subject.form.dtype == "float16" else 1e30
    zeros = np.zeros((2, 1))
    yield Probe(np.ones((1, 1)), zeros, np.array([[1.0], [largest]]), {"mask": first})
    scores = [1e2, 1e4] if subject.form.dtype == "float16" else [1e2, 3e4, 3e6, 3e10, 3e15]
    for size in scores:
        for key in ([[0.0], [size]], [[-size], [0.0]]):
            yield Probe(np.ones((1, 1)), np.array(key), np.array([[1.0], [2.0]]), {"mask": first})
    for seed, (L, S) in enumerate([(2, 3), (4, 6)]):
        probe = draw(120 + seed, L, S, 4, 2)
        mask = np.ones((L, S), bool)
        mask[:, -1] = False
        key, value = probe.key.copy(), probe.value.copy()
        key[-1], value[-1] = 1e4, 1e4
        yield probe.change(key=key, value=value, mask=mask)


def check_hidden(subject: Subject, probe: Probe) -> None:
    """Take the masked keys away: nothing may change."""
    as_if_alone(subject, probe, "a masked key has a weight, or its value reaches the output")


HIDDEN = Property(
    "masked zero",
    "A masked key has weight zero: however large its score or its value, nothing of it reaches the output.",
    probes_hidden,
    check_hidden,
    needs=("mask",),
)

# --- mask broadcasting


def probes_broadcasting(subject: Subject) -> Iterator[Probe]:
    """Ask with every shape that broadcasts to (..., L, S), with as many entries as heads and with fewer."""
    yield from _batch_of_two(subject)
    for L, S in [(2, 3), (3, 5)]:
        yield _shaped(draw(130, L, S, 4, 2), (1, S), "shape (1, S)")
        for (A,) in leads(subject, (2,), (3,)):
            for shape in [(A, L, S), (A, 1, S), (1, L, S), (1, 1, S)]:
                yield _shaped(draw(131, L, S, 4, 2, lead=(A,)), shape, f"{len(shape)} axes for inputs with 3 axes")
        for B, H in leads(subject, (2, 2), (2, 3), (3, 2)):
            shapes = [(B, H, L, S), (B, 1, L, S), (B, 1, 1, S), (1, H, L, S), (1, 1, L, S), (B, H, 1, S), (H, L, S)]
            for shape in shapes:
                yield _shaped(draw(132, L, S, 4, 2, lead=(B, H)), shape, f"shape {_letters(shape, B, H, L, S)}")


def _batch_of_two(subject: Subject) -> Iterator[Probe]:
    """Ask with two entries that may see one key each: a mask tiled in the wrong order mixes them up."""
    for lead in leads(subject, (2, 2), (2, 3), (2,)):
        value = np.array([[[1.0], [2.0]], [[11.0], [12.0]]])  # (2, S, 1)
        mask = np.array([[[True, False]], [[False, True]]])  # (2, L, S)
        if len(lead) == 2:
            value, mask = np.repeat(value[:, None], lead[1], 1), mask[:, None]
        yield equal_scores(value, mask=mask).change(corner="a mask with a batch axis, the same for all heads")


def _shaped(probe: Probe, shape: tuple[int, ...], what: str) -> Probe:
    return probe.change(mask=some_mask(sum(shape), *shape), corner=f"a mask of {what}")


def _letters(shape: tuple[int, ...], B: int, H: int, L: int, S: int) -> str:
    letters = ["B", "H", "L", "S"][4 - len(shape) :]
    return "(" + ", ".join("1" if n == 1 else letter for n, letter in zip(shape, letters, strict=True)) + ")"


def check_broadcasting(subject: Subject, probe: Probe) -> None:
    """Compare with the same mask written out in full."""
    full = np.broadcast_to(probe.options["mask"], (*probe.lead, probe.L, probe.S)).copy()
    given = subject.output(probe)
    expected = _entry_by_entry(subject, probe, full)
    basis = "what the function itself gives for each batch entry and head alone, with its part of the mask"
    require_same(probe, given, expected, 2 * subject.expected(probe).tolerance, basis=basis)


def _entry_by_entry(subject: Subject, probe: Probe, full: np.ndarray) -> np.ndarray:
    """Give each batch entry and head alone, with its own part of the mask."""
    output = np.zeros((*probe.lead, probe.L, probe.Ev))
    for index in np.ndindex(*probe.lead):
        part = probe.change(
            query=probe.query[index], key=probe.key[index], value=probe.value[index], mask=full[index], corner=None
        )
        output[index] = subject.output(subject.fit(part)).reshape(probe.L, -1)[:, : probe.Ev]
    return output


BROADCASTING = Property(
    "mask broadcasting",
    "A mask broadcasts to (..., L, S): each batch entry and head gets its own part, with as many entries as heads too.",
    probes_broadcasting,
    check_broadcasting,
    needs=("mask",),
)

# --- bias


def probes_bias(subject: Subject) -> Iterator[Probe]:
    """Ask with equal scores, where the weights are the softmax of the bias alone; then with other scores too."""
    for row in ([0, 1], [0, 0], [1, 0], [0, -np.inf], [0, 50]):
        yield equal_scores([1, 0], E=4, bias=np.array([row], dtype=float))
    yield equal_scores(np.eye(3), L=2, E=4, bias=np.array([[0.0, 1, 2], [2, 0, 1]]))
    rng = np.random.default_rng(0)
    for lead in leads(subject, (), (2,), (2, 3)):
        L, S = 3, 5
        shapes = [(L, S), (1, S), (*lead, L, S), (*(1 for _ in lead), L, S), (*lead[:1], *(1 for _ in lead[1:]), 1, S)]
        for shape in dict.fromkeys(shapes):
            bias = rng.integers(-16, 17, shape) / 8
            full = shape == (*lead, L, S)
            corner = None if full else f"a bias of {len(shape)} axes for inputs with {len(lead) + 2}, some of size 1"
            yield draw(140, L, S, 4, 2, lead=lead, bias=bias).change(query=np.zeros((*lead, L, 4)), corner=corner)
            more = {"scale": 0.5} if subject.has("scale") else {}
            yield draw(141, L, S, 4, 2, lead=lead, bias=bias, **more).change(corner=corner)
    bias = np.arange(16.0).reshape(4, 4) / 8  # as many queries as keys, and not symmetric
    yield draw(142, 4, 4, 4, 2, bias=bias).change(query=np.zeros((4, 4)))


def check_bias(subject: Subject, probe: Probe) -> None:
    """Compare with the equation, unless the scores are wrong without a bias too: that is told elsewhere."""
    if probe.query.any() and "scale" not in probe.options:
        plain = probe.change(bias=None, corner=None)
        answer = subject.expected(plain)
        if differs(subject.output(plain), answer.output, answer.tolerance).any():
            return
    agrees_with_equation(subject, probe)


BIAS = Property(
    "bias",
    "The bias is added to the scaled scores before the softmax; −∞ blocks.",
    probes_bias,
    check_bias,
    needs=("bias",),
)

# --- empty rows


def probes_empty(subject: Subject) -> Iterator[Probe]:
    """Ask with a query that may see nothing: by the mask, by causal and mask together, by alignment."""
    for probe in _empty_rows(subject):
        yield probe.change(corner="a query that may attend to nothing")
    if subject.has("mask", "causal"):
        mask = np.array([[False, True, True]] * 3)
        probe = equal_scores([1, 2, 4], L=3, causal=True, mask=mask)
        yield probe.change(corner="causal, mask together")
    if subject.has("causal", "offset"):
        yield equal_scores([1, 2], L=2, causal=True, offset=-1).change(corner="a negative offset")
    elif subject.has("causal") and (subject.conventions.alignment or subject.form.alignment) == "bottom-right":
        yield equal_scores([1, 2], L=3, causal=True)


def _empty_rows(subject: Subject) -> Iterator[Probe]:
    """Hide every key from a query, by the mask or by a bias of −∞."""
    if subject.has("mask"):
        yield equal_scores([1, 2], mask=np.array([[False, False]]))
        yield equal_scores([1, 2], L=2, mask=np.array([[False, False], [True, True]]))
        yield draw(150, 3, 4, 4, 2, mask=np.array([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]], bool))
        for lead in leads(subject, (2,), (2, 2)):
            mask = np.ones((*lead, 2, 3), bool)
            mask[(0,) * len(lead)] = False
            yield draw(151, 2, 3, 4, 2, lead=lead, mask=mask)
    if subject.has("bias"):
        yield _hidden_by_bias()


def _hidden_by_bias() -> Probe:
    return equal_scores([1, 2], L=2, bias=np.array([[-np.inf, -np.inf], [0.0, 0.0]]))


def check_empty(subject: Subject, probe: Probe) -> None:
    """Compare the empty rows with the convention, and the others with what they give alone."""
    answer = subject.expected(probe)
    given = subject.output(probe)
    expected = given.copy()
    empty = np.broadcast_to(answer.empty[..., None], given.shape)
    expected[empty] = np.broadcast_to(answer.output, given.shape)[empty]
    rounding = 8 * EPSILON[probe.dtype] * np.abs(probe.value).max() if subject.conventions.empty_rows == "mean" else 0
    if differs(given, expected, answer.tolerance + rounding).any():
        value = {"zero": "0", "nan": "NaN", "mean": "the mean of all values"}[subject.conventions.empty_rows]
        raise DoesNotHold(Problem(probe, answer.output, given, f"a query that may attend to nothing must give {value}"))
    if probe.lead and np.prod(probe.lead) > 1:
        return
    for i in range(probe.L):
        keys = np.flatnonzero(answer.allowed.reshape(-1, probe.L, probe.S)[0, i])
        if keys.size:
            expected[..., i, :] = alone(subject, probe, i, keys)
    require_same(probe, given, expected, 2 * answer.tolerance, "an empty row changes another query's output")


def applies_empty(subject: Subject) -> str | None:
    """There must be a way to hide every key; what a bias alone does to such a query is judged where it is declared."""
    if subject.has("mask") or subject.has("causal"):
        return None
    if subject.has("bias"):
        if "empty_rows" in subject.conventions.declared:
            return None
        outcome = subject.run(subject.fit(_hidden_by_bias()))
        if outcome.error is None and np.isnan(outcome.output).any():
            subject.note("empty rows", "a bias of −∞ for every key gives NaN (conventions={'empty_rows': …} judges it)")
        return "a bias of −∞ could hide every key: conventions={'empty_rows': …} has that judged"
    return "there is no argument that could hide every key"


EMPTY = Property(
    "empty rows",
    "A query that may attend to nothing gives what the convention says (0, unless declared) and disturbs no other.",
    probes_empty,
    check_empty,
    applies=applies_empty,
)

# --- NaN and infinity behind the mask

SPOILT = {
    "NaN in a masked key": ("key", np.nan),
    "infinity in a masked key": ("key", np.inf),
    "NaN in a masked value": ("value", np.nan),
    "infinity in a masked value": ("value", np.inf),
}


def probes_masked_nan(subject: Subject) -> Iterator[Probe]:
    """Ask with NaN or infinity at a key that no query may see."""
    for array, bad in SPOILT.values():
        probe = Probe(np.ones((1, 1)), np.zeros((2, 1)), np.array([[1.0], [2.0]]), {"mask": np.array([[True, False]])})
        spoilt = getattr(probe, array).copy()
        spoilt[-1] = bad
        yield probe.change(**{array: spoilt})


def check_masked_nan(subject: Subject, probe: Probe) -> None:
    """Judge a leak where the convention asks for it; note it otherwise."""
    answer = subject.expected(probe)
    outcome = subject.run(probe)
    if outcome.error is not None:
        raise Refusal("NaN behind a mask", outcome.error)
    leaks = not same(outcome.output, answer.output, answer.tolerance)
    if not leaks:
        return
    what = next(
        text
        for text, (array, bad) in SPOILT.items()
        if np.array_equal(getattr(probe, array)[..., -1:, :].flat[0], bad, equal_nan=True)
    )
    if subject.conventions.masked_nan == "blocked":
        raise DoesNotHold(Problem(probe, answer.output, outcome.output, f"{what} reaches the output"))
    if what not in subject.leaks:
        subject.leaks.append(what)


MASKED_NAN = Property(
    "masked NaN",
    "NaN and infinity at a masked key stay there (judged with the convention masked_nan=blocked, else reported).",
    probes_masked_nan,
    check_masked_nan,
    needs=("mask",),
)
