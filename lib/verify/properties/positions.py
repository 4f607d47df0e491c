"""Positions: causal, its alignment, decoding with cached keys, windows."""

import itertools
from collections.abc import Iterator

import numpy as np

from lib.verify.probe import Probe, draw, equal_scores
from lib.verify.properties.base import Property, as_if_alone, differs, explicit_scale, leads, require_same
from lib.verify.subject import DoesNotHold, Problem, Subject

# --- causal


def probes_causal(subject: Subject) -> Iterator[Probe]:
    """Ask with as many queries as keys; with a future far larger than the past; with scores that are very low."""
    yield equal_scores([1, 2], L=2, causal=True)
    yield equal_scores([1], causal=True)
    for seed, n in enumerate([2, 3, 4, 5, 7]):
        yield draw(200 + seed, n, n, 4, 2, causal=True)
    for lead in leads(subject, (2,), (2, 3)):
        yield draw(210, 4, 4, 4, 2, lead=lead, causal=True)
    if subject.form.dtype == "float16":
        return
    for size in (1e4, 1e30):
        yield equal_scores([1, 2, size], L=3, causal=True)
    for size in (3e4, 3e6, 3e10):
        low = Probe(np.ones((2, 1)), np.full((2, 1), -size), np.array([[1.0], [2.0]]), {"causal": True})
        yield low
        yield low.change(query=np.array([[1.0], [0.0]]), key=np.array([[0.0], [size]]))


CAUSAL = Property(
    "causal",
    "With causal a query sees its own position and those before it; whatever stands later changes nothing.",
    probes_causal,
    as_if_alone,
    needs=("causal",),
)

# --- alignment


def probes_alignment(subject: Subject) -> Iterator[Probe]:
    """Ask with more keys than queries and the reverse, by offset where there is one, else by convention."""
    if subject.has("offset"):
        for L, S, offset in [(2, 5, 3), (2, 4, 0), (2, 5, 1), (3, 3, 2), (3, 2, 0), (2, 3, 7), (4, 6, 2), (2, 40, 37)]:
            yield equal_scores(np.eye(S), L=L, E=4, causal=True, offset=offset)
            yield draw(220, L, S, 4, 2, causal=True, offset=offset)
        for lead in leads(subject, (2,), (2, 3)):
            probe = draw(221, 2, 5, 4, 2, lead=lead, causal=True, offset=np.array([1, 3]))
            yield probe.change(corner="an offset for each batch entry")
    if subject.conventions.alignment or (subject.form.alignment and not subject.has("offset")):
        for seed, (L, S) in enumerate([(2, 5), (2, 3), (3, 2), (3, 7), (4, 2)]):
            yield equal_scores(np.eye(S), L=L, E=4, causal=True)
            yield draw(230 + seed, L, S, 4, 2, causal=True)


def check_alignment(subject: Subject, probe: Probe) -> None:
    """Compare with what each query gives alone; with offsets per entry, each entry with its own offset."""
    offset = probe.options.get("offset")
    if not isinstance(offset, np.ndarray):
        as_if_alone(subject, probe)
        return
    given = subject.output(probe)
    expected = given.copy()
    for b in range(len(offset)):
        part = probe.change(query=probe.query[b : b + 1], key=probe.key[b : b + 1], value=probe.value[b : b + 1])
        expected[b] = subject.output(part.change(offset=int(offset[b]), corner=None))[0]
    tolerance = 2 * subject.expected(probe).tolerance
    basis = "what the function itself gives for each batch entry alone, with its own offset"
    require_same(probe, given, expected, tolerance, "an entry does not get its own offset", basis)


def applies_alignment(subject: Subject) -> str | None:
    """There must be a way to have more keys than queries."""
    if not subject.form.any_lengths:
        return "the function takes as many queries as keys only"
    if subject.has("offset") or subject.conventions.alignment or subject.form.alignment:
        return None
    return subject.refused.get("causal with L ≠ S and no offset", "causal with L ≠ S fits neither alignment") and None


ALIGNMENT = Property(
    "alignment",
    "With L ≠ S, causal counts positions from the offset, or from the corner that the convention names.",
    probes_alignment,
    check_alignment,
    needs=("causal",),
    applies=applies_alignment,
)

# --- cache

#: Where what is expected comes from.
WHOLE = "the rows of the function's own whole pass"


def probes_cache(subject: Subject) -> Iterator[Probe]:
    """Ask with the queries of a whole pass; the check hands them over in pieces."""
    for T in (2, 3, 7):
        yield draw(240, T, T, 4, 2, causal=True)
    for lead in leads(subject, (2,), (2, 2)):
        yield draw(241, 5, 5, 4, 2, lead=lead, causal=True)
    if subject.has("window", "offset"):
        yield draw(242, 5, 5, 4, 2, causal=True, window=(1, 0))


def check_cache(subject: Subject, probe: Probe) -> None:
    """Prefill, chunks and single steps must give the rows of the whole pass."""
    whole = subject.output(probe)
    tolerance = 2 * subject.expected(probe).tolerance
    T = probe.L
    if subject.has("offset"):
        _unused_slots(subject, probe, whole, tolerance)
    cuts = [list(range(T + 1)), [0, T // 2, T], [0, *range(3, T, 3), T]]  # single steps; two parts; chunks of three
    for cut in cuts:
        for start, end in itertools.pairwise(cut):
            if start == end:
                continue
            part = probe.change(
                query=probe.query[..., start:end, :],
                key=probe.key[..., :end, :],
                value=probe.value[..., :end, :],
                offset=start if subject.has("offset") else None,
            )
            given, expected = subject.output(part), whole[..., start:end, :]
            if differs(given, expected, tolerance[..., start:end, :]).any():
                what = f"query {start}" if end == start + 1 else f"queries {start} to {end - 1}"
                detail = f"{what}, handed over with the {end} keys so far, should give what the whole pass gives there"
                raise DoesNotHold(Problem(part, expected, given, detail, basis=WHOLE))


def _unused_slots(subject: Subject, probe: Probe, whole: np.ndarray, tolerance: np.ndarray) -> None:
    """Single steps on a preallocated cache: all slots are handed over, those after the query are not to be seen."""
    for t in range(probe.L):
        step = probe.change(query=probe.query[..., t : t + 1, :], offset=t)
        given, expected = subject.output(step), whole[..., t : t + 1, :]
        detail = f"the query at position {t} sees cached keys that come after it"
        require_same(step, given, expected, tolerance[..., t : t + 1, :], detail, WHOLE)


def applies_cache(subject: Subject) -> str | None:
    """Decoding needs an offset or bottom-right alignment."""
    if not subject.form.any_lengths:
        return "the function takes as many queries as keys only"
    alignment = subject.conventions.alignment or subject.form.alignment
    if subject.has("offset") or alignment == "bottom-right":
        return None
    return f"causal is aligned {alignment or 'nowhere'} and there is no offset, so keys cannot be cached"


CACHE = Property(
    "cache",
    "Queries handed over in chunks or one by one, with all keys so far, give the rows of the whole causal pass.",
    probes_cache,
    check_cache,
    needs=("causal",),
    applies=applies_cache,
)

# --- window


def probes_window(subject: Subject) -> Iterator[Probe]:
    """Ask with windows open and closed on either side, smaller and larger than the sequence."""
    windows = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (1, 2), (None, 0), (0, None), (1, None), (None, None), (9, 9)]
    for n in (3, 5):
        for window in windows:
            yield equal_scores(np.arange(1.0, n + 1), L=n, E=4, window=window)
    for seed, window in enumerate(windows):
        yield draw(250 + seed, 6, 6, 4, 2, window=window)
    if subject.has("causal"):
        yield draw(270, 6, 6, 4, 2, window=(2, 2), causal=True)
        yield draw(271, 6, 6, 4, 2, window=(2, 0), causal=True, **explicit_scale(subject))
    if subject.has("offset") and subject.form.any_lengths:
        for window in ((1, 0), (1, 1), (2, None)):
            yield draw(272, 2, 6, 4, 2, window=window, offset=3)


WINDOW = Property(
    "window",
    "With window=(left, right) a query sees itself, so many keys before it and so many after it.",
    probes_window,
    as_if_alone,
    needs=("window",),
)
