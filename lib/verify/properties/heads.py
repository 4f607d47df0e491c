"""Leading axes: batch entries and heads are computed apart, and grouped heads share keys and values in order."""

from collections.abc import Iterator

import numpy as np

from lib.verify.probe import Probe, draw, equal_scores
from lib.verify.properties.base import Property, leads, require_same
from lib.verify.subject import Subject

#: Where what is expected comes from.
ALONE = "what the function itself gives for each batch entry and head alone"

# --- batch and heads


def probes_batch(subject: Subject) -> Iterator[Probe]:
    """Ask with batches and heads, with as many entries as heads and with more or fewer; with one entry far larger."""
    for lead in leads(subject, (2,), (3,), (2, 1), (1, 2), (2, 2), (2, 3), (3, 2)):
        yield equal_scores(np.arange(np.prod(lead) * 2.0).reshape(*lead, 2, 1))
        yield draw(300, 3, 4, 4, 2, lead=lead)
        yield draw(301, 2, 3, 4, 5, lead=lead)
        if subject.has("causal"):
            yield draw(302, 4, 4, 4, 2, lead=lead, causal=True)
    for lead in leads(subject, (17,), (17, 1), (1, 17)):  # more than a kernel's block of heads
        yield draw(305, 2, 3, 2, 1, lead=lead)
    for lead in leads(subject, (2,), (2, 1), (1, 2)):
        query = np.ones((*lead, 1, 1))
        query[(0,) * len(lead)] = 1e4
        key = np.broadcast_to([[1.0], [2.0]], (*lead, 2, 1)).copy()
        yield Probe(query, key, np.broadcast_to(np.eye(2), (*lead, 2, 2)).copy())
    if max(subject.form.axes) >= 4:
        yield draw(303, 3, 4, 4, 2, lead=(2, 2, 3)).change(corner="inputs with 5 axes")
        few = draw(304, 3, 4, 4, 2, lead=(2, 3))
        for b, h in [(1, 3), (2, 1)]:
            corner = f"key and value with {'one batch entry' if b == 1 else 'one head'} for all"
            yield few.change(key=few.key[:b, :h], value=few.value[:b, :h], corner=corner)


def check_batch(subject: Subject, probe: Probe) -> None:
    """Hand over each entry alone."""
    given = subject.output(probe)
    expected = np.zeros_like(given)
    key, value = (np.broadcast_to(x, (*probe.lead, *x.shape[-2:])) for x in (probe.key, probe.value))
    for index in np.ndindex(*probe.lead):
        part = probe.change(query=probe.query[index], key=key[index], value=value[index], corner=None)
        expected[index] = subject.output(subject.fit(part)).reshape(probe.L, probe.Ev)
    tolerance = 2 * subject.expected(probe).tolerance
    require_same(probe, given, expected, tolerance, "a batch entry or head differs from what it gives alone", ALONE)


def applies_batch(subject: Subject) -> str | None:
    """The function must take leading axes."""
    return "the function takes inputs with 2 axes only" if max(subject.form.axes) < 3 else None


BATCH = Property(
    "batch and heads",
    "Every batch entry and every head gives what it gives alone.",
    probes_batch,
    check_batch,
    applies=applies_batch,
)

# --- grouped heads


def probes_grouped(subject: Subject) -> Iterator[Probe]:
    """Ask with values that name their head, then with keys that matter too."""
    batches = list(leads(subject, (1, 1), (2, 1))) or list(leads(subject, (1,)))
    for H, G in [(4, 2), (2, 1), (6, 2), (6, 3), (3, 3)]:
        for lead in batches:
            lead = (*lead[:-1], H)
            value = np.arange(1.0, G + 1)[:, None, None] * np.ones((*lead[:-1], G, 2, 1))
            probe = Probe(np.zeros((*lead, 1, 1)), np.zeros((*lead[:-1], G, 2, 1)), value, {"enable_gqa": True})
            yield probe
            yield draw(310, 3, 4, 4, 2, lead=lead, groups=G, enable_gqa=True)
            yield draw(311, 2, 5, 4, 2, lead=lead, groups=G, enable_gqa=True)


def check_grouped(subject: Subject, probe: Probe) -> None:
    """Hand over each query head alone with the key/value head that serves it."""
    given = subject.output(probe)
    expected = np.zeros_like(given)
    each = probe.lead[-1] // probe.key.shape[-3]
    for index in np.ndindex(*probe.lead):
        group = (*index[:-1], index[-1] // each)
        part = probe.change(query=probe.query[index], key=probe.key[group], value=probe.value[group], enable_gqa=None)
        expected[index] = subject.output(subject.fit(part)).reshape(probe.L, probe.Ev)
    tolerance = 2 * subject.expected(probe).tolerance
    detail = f"query heads 0 to {each - 1} share key/value head 0, the next {each} share head 1, and so on"
    basis = "what the function itself gives for each query head alone with its key/value head"
    require_same(probe, given, expected, tolerance, detail, basis)


def applies_grouped(subject: Subject) -> str | None:
    """There must be a head axis, and a way to have fewer key/value heads."""
    if max(subject.form.axes) < 3:
        return "the function takes inputs with 2 axes only"
    if subject.has("enable_gqa") or subject.form.grouped_without_asking:
        return None
    return subject.not_tested.get("enable_gqa", "no argument named enable_gqa")


GROUPED = Property(
    "grouped heads",
    "With G key/value heads for H query heads, each serves H/G query heads in a row.",
    probes_grouped,
    check_grouped,
    applies=applies_grouped,
)
