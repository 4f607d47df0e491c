"""What lies around the numbers: memory layouts, lengths, sizes, inputs that stay as they were, calls that repeat."""

from collections.abc import Iterator

import numpy as np

from lib.verify import layouts
from lib.verify.probe import Probe, draw, equal_scores, some_mask
from lib.verify.properties.base import Property, differs, explicit_scale, leads, require_same
from lib.verify.subject import DoesNotHold, Problem, Subject

# --- inputs untouched


def probes_untouched(subject: Subject) -> Iterator[Probe]:
    """Ask with every option that hands over an array."""
    yield draw(500, 2, 3, 4, 2)
    for lead in leads(subject, (2,), (2, 2)):
        yield draw(501, 2, 3, 4, 2, lead=lead)
    if subject.has("mask"):
        yield draw(502, 2, 3, 4, 2, mask=some_mask(0, 2, 3))
        empty = draw(509, 2, 3, 4, 2, mask=np.array([[True, False, True], [False, False, False]]))
        yield empty.change(corner="a query that may attend to nothing")
        if subject.has("causal"):
            probe = draw(503, 3, 3, 4, 2, mask=some_mask(0, 3, 3), causal=True)
            yield probe.change(corner="causal, mask together")
    if subject.has("bias"):
        yield draw(504, 2, 3, 4, 2, bias=np.array([[0.0, 1, -1], [2, 0, -np.inf]]))
        if subject.has("softcap"):
            yield draw(505, 2, 3, 4, 2, bias=np.array([[0.0, 1, -1], [2, 0, 1]]), softcap=1.0)
    if subject.has("causal"):
        yield draw(506, 3, 3, 4, 2, causal=True)
    if subject.has("scale"):
        yield draw(507, 2, 3, 4, 2, scale=0.5)
    for dtype in subject.dtypes:
        yield draw(508, 2, 3, 4, 2).change(dtype=dtype, corner=f"{dtype} inputs")


def check_untouched(subject: Subject, probe: Probe) -> None:
    """Compare the arrays' bytes before and after."""
    outcome = subject.outcome(probe, watch=True)
    if outcome.written:
        name = outcome.written[0]
        after = subject.framework.read(outcome.inputs[name])
        before = subject.framework.read(subject.make(probe)[name])
        raise DoesNotHold(Problem(probe, before, after, f"the call writes to {name}", f"{name} after the call"))


UNTOUCHED = Property(
    "inputs untouched",
    "A call writes to none of its arguments.",
    probes_untouched,
    check_untouched,
)

# --- repeatable


def probes_repeatable(subject: Subject) -> Iterator[Probe]:
    """Ask with enough keys that another order of summing shows."""
    yield draw(510, 2, 3, 4, 2)
    yield draw(511, 5, 64, 8, 4)
    if subject.has("mask"):
        yield draw(512, 5, 64, 8, 4, mask=some_mask(1, 5, 64))
    if subject.has("causal"):
        yield draw(513, 64, 64, 8, 4, causal=True)


def check_repeatable(subject: Subject, probe: Probe) -> None:
    """Call again, with another call of the same shapes in between; in evaluation mode, where there are modes."""
    between = probe.change(query=-probe.query, value=probe.value + 1)
    if "mask" in probe.options:  # and what one call masks, the next one may see
        _ask_twice(subject, probe, probe.change(mask=None), between, WITHOUT_MASK)
        between = between.change(mask=None)
    _ask_twice(subject, probe, probe, between, "second call")
    _keep_output(subject, probe, between)
    _reuse_arrays(subject, probe)


WITHOUT_MASK = "second call without mask"
KEPT = "second call, output of the first"
REUSED = "second call, same arrays"


def _keep_output(subject: Subject, probe: Probe, between: Probe) -> None:
    """Look at an output again after another call: it must not be a buffer that the function fills anew."""
    first = subject.outcome(probe)
    subject.output(between)
    now = subject.swap_heads(subject.framework.read(first.raw))
    if differs(now, first.output, 0.0).any():
        detail = "the next call writes into the array that this call gave back"
        raise DoesNotHold(Problem(probe, first.output, now, detail, KEPT))


def _reuse_arrays(subject: Subject, probe: Probe) -> None:
    """Call with arrays that held other numbers in the call before, as whoever keeps a buffer does."""
    first = subject.output(probe)
    held = probe.change(key=-probe.key, value=probe.value + 1)
    if "mask" in probe.options:
        held = held.change(mask=probe.options["mask"][..., ::-1])
    arrays = subject.outcome(held).inputs
    again = subject.outcome(probe, arrays=arrays).output
    if differs(again, first, 0.0).any():
        detail = "arrays that were filled anew since the last call give another answer than new arrays"
        raise DoesNotHold(Problem(probe, first, again, detail, REUSED))


def _ask_twice(subject: Subject, probe: Probe, asked: Probe, between: Probe, show: str) -> None:
    first = subject.output(asked)
    subject.output(between)
    for _ in range(3):
        again = subject.output(asked)
        if differs(again, first, 0.0).any():
            detail = "the same call gives another answer the second time"
            raise DoesNotHold(Problem(probe, first, again, detail, show))


REPEATABLE = Property(
    "repeatable",
    "The same call gives the same answer, bit by bit, whatever was called in between.",
    probes_repeatable,
    check_repeatable,
)

# --- layouts

#: Where what is expected comes from.
CONTIGUOUS = "what the function itself gives for contiguous copies"


def probes_layouts(subject: Subject) -> Iterator[Probe]:
    """Ask with views: transposed, strided, reversed, broadcast, and part of a larger array."""
    options = {}
    if subject.has("mask"):
        options["mask"] = some_mask(3, 3, 5)
    if subject.has("bias"):
        options["bias"] = np.arange(15.0).reshape(3, 5) / 8
    for lead in ((), *leads(subject, (2,), (2, 3))):
        for seed, (L, S, E, Ev) in enumerate([(2, 3, 2, 1), (3, 5, 4, 2)]):
            probe = draw(520 + seed, L, S, E, Ev, lead=lead)
            for layout in layouts.available(subject.framework.name, lead):
                for names in (("query",), ("key",), ("value",), ("query", "key", "value")):
                    yield _laid_out(probe, names, layout)
        if subject.has("mask") and lead:
            full = np.broadcast_to(options["mask"], (*lead, 3, 5)).copy()
            full[0, ..., 2] = True
            probe = draw(522, 3, 5, 4, 2, lead=lead, mask=full)
            for layout in (*layouts.BROADCAST, "transposed"):
                yield _laid_out(probe, ("mask",), layout)
    for name, x in options.items():
        for layout in layouts.available(subject.framework.name, ()):
            yield _laid_out(draw(521, 3, 5, 4, 2, **{name: x}), (name,), layout)


def _laid_out(probe: Probe, names: tuple[str, ...], layout: str) -> Probe:
    corner = "a broadcast view, which cannot be written to" if layout in layouts.BROADCAST else None
    return probe.change(layouts=dict.fromkeys(names, layout), corner=corner)


def check_layouts(subject: Subject, probe: Probe) -> None:
    """Compare with contiguous arrays of the same values."""
    changes = {}
    for name, x in probe.arrays.items():
        turn = subject.swap_heads if name in ("query", "key", "value") else lambda x: x  # laid out in its own order
        changes[name] = turn(layouts.seen_through(turn(x), probe.layouts.get(name, "")))
    shown = probe.change(**changes)
    plain = shown.change(layouts={})
    if "mask" in changes and not changes["mask"].any(-1).all():
        return
    given, expected = subject.output(shown), subject.output(plain)
    what = ", ".join(f"{name} {layout}" for name, layout in probe.layouts.items())
    require_same(
        shown, given, expected, 2 * subject.expected(plain).tolerance, f"another result with {what}", CONTIGUOUS
    )


LAYOUTS = Property(
    "layouts",
    "Views (transposed, strided, reversed, broadcast) give what contiguous copies give.",
    probes_layouts,
    check_layouts,
)

# --- lengths

LENGTHS = (8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 1023, 1025, 2049, 4097)


def probes_lengths(subject: Subject) -> Iterator[Probe]:
    """Ask with numbers of keys, of queries, and with sizes around powers of two."""
    for n in LENGTHS:
        yield equal_scores((np.arange(n) == n - 1) * 1.0)  # only the last key has a value
        yield _rising(n, 2)
        if n <= 129:
            yield draw(530, n, 3, 2, 1, **explicit_scale(subject))
            yield draw(531, 2, 3, n, 1, **explicit_scale(subject))
            yield draw(532, 2, 3, 1, n, **explicit_scale(subject))
        if subject.has("mask"):
            mask = np.ones((1, n), bool)
            mask[0, -1] = False
            yield equal_scores(np.arange(n) == n - 1.0, mask=mask)
        if subject.has("causal") and n <= 129:
            yield equal_scores(np.arange(n) % 5, L=n, E=2, causal=True)
    yield _rising(65, 65)
    yield _rising(1025, 3)
    yield draw(533, 1025, 2, 2, 1, **explicit_scale(subject))
    yield draw(531, 2, 3, 257, 1, **explicit_scale(subject))
    yield from _as_when_short(subject)


def _as_when_short(subject: Subject) -> Iterator[Probe]:
    """Ask with every option, and with the default scale, where a long call may take another path than a short one.

    What is wrong for a few keys already is told by other properties, and not asked here again.
    """
    for options, sizes in _each_option(subject):
        grouped = "enable_gqa" in options
        lead, groups = ((4,), 2) if grouped and 3 in subject.form.axes else ((1, 4), 2) if grouped else ((), None)
        calls = [
            draw(534, L, S, 4, 2, lead=lead, groups=groups, **_cut(options, L, S))
            for L, S in ((5, 5) if sizes is SQUARE else (3, 5), *sizes)
        ]
        if not _wrong_when_short(subject, calls[0]):
            yield from calls[1:]


SQUARE = (33, 33), (67, 67), (130, 130), (260, 260)
OBLONG = (3, 17), (3, 33), (3, 65), (3, 130), (3, 300), (67, 67), (130, 3), (260, 3), (3, 1025)


def _each_option(subject: Subject) -> Iterator[tuple[dict, tuple]]:
    """Give no option at all, then each alone, with the sizes to ask it with; arrays as functions of L and S."""
    yield {}, OBLONG
    if subject.has("mask"):
        yield {"mask": lambda L, S: some_mask(9, L, S)}, OBLONG
    if subject.has("bias"):
        yield {"bias": lambda L, S: np.random.default_rng(9).integers(-16, 17, (L, S)) / 8}, OBLONG
    if subject.has("scale"):
        yield {"scale": 0.25}, OBLONG
    if subject.has("softcap"):
        yield {"softcap": 0.5}, OBLONG
    if subject.has("window"):
        for window in ((2, 1), (None, 1), (1, None)):
            yield {"window": window}, SQUARE
    if subject.has("causal"):
        yield {"causal": True}, SQUARE
    if subject.has("causal", "offset"):
        yield {"causal": True, "offset": lambda L, S: max(S - L, 0)}, OBLONG
    if subject.has("enable_gqa") and max(subject.form.axes) >= 3:
        yield {"enable_gqa": True}, OBLONG


def _cut(options: dict, L: int, S: int) -> dict:
    return {name: x(L, S) if callable(x) else x for name, x in options.items()}


def _wrong_when_short(subject: Subject, probe: Probe) -> bool:
    probe = subject.fit(probe)
    outcome, answer = subject.run(probe), subject.expected(probe)
    if outcome.error is not None or outcome.output.shape != answer.output.shape:
        return True
    return bool(differs(outcome.output, answer.output, answer.tolerance + 1e-6).any())


def _rising(S: int, L: int) -> Probe:
    """Make scores that rise from key to key, so that every later block holds a new maximum; values alternate."""
    rng = np.random.default_rng(S)
    key = np.sort(rng.integers(-16, 17, S) / 8)[:, None] * 4
    return Probe(np.array([1.0, -1.0, 0.5] * L)[:L, None], key, (rng.integers(0, 3, (S, 1)) * 1.0))


def check_lengths(subject: Subject, probe: Probe) -> None:
    """Compare with the equation; where scores are equal, only missing or extra keys and queries can matter."""
    answer = subject.expected(probe)
    tolerance = answer.tolerance + 1e-6
    given = subject.output(probe)
    expected = np.where(answer.empty[..., None], given, answer.output)  # which another property judges
    if differs(given, expected, tolerance).any():
        detail = f"wrong with L = {probe.L}, S = {probe.S}, E = {probe.E}, Ev = {probe.Ev}"
        raise DoesNotHold(Problem(probe, expected, given, detail))


LENGTHS_PROPERTY = Property(
    "lengths",
    "Any number of queries and keys is right, around powers of two and tiles too: no last key is lost.",
    probes_lengths,
    check_lengths,
)

# --- sizes 0 and 1


def probes_sizes(subject: Subject) -> Iterator[Probe]:
    """Ask with every axis at size 1, then at size 0."""
    for L, S, E, Ev in [(1, 1, 1, 1), (1, 1, 4, 2), (1, 3, 1, 2), (3, 1, 2, 1), (2, 3, 1, 1), (2, 1, 1, 2)]:
        for lead in leads(subject, (), (1,), (1, 1), (2, 1), (1, 2)):
            yield draw(540, L, S, E, Ev, lead=lead, **explicit_scale(subject))
    for lead in leads(subject, (), (2,), (2, 2)):
        yield draw(541, 2, 0, 4, 2, lead=lead).change(corner="no keys (S = 0)")
        yield draw(541, 0, 3, 4, 2, lead=lead).change(corner="no queries (L = 0)")
        yield draw(541, 0, 0, 4, 2, lead=lead).change(corner="no queries and no keys (L = S = 0)")
        yield draw(541, 2, 3, 4, 0, lead=lead).change(corner="a value size of 0 (Ev = 0)")
        yield draw(541, 2, 3, 0, 2, lead=lead).change(corner="a head size of 0 (E = 0)")
    for lead in leads(subject, (0,), (0, 2), (2, 0)):
        yield draw(542, 2, 3, 4, 2, lead=lead).change(corner="an empty batch, or no heads")


def check_sizes(subject: Subject, probe: Probe) -> None:
    """Compare with the equation; without keys the convention for empty rows holds, and 0 is always right."""
    answer = subject.expected(probe)
    given = subject.output(probe)
    if probe.S == 0 and subject.conventions.empty_rows != "zero":
        given = np.where(np.isnan(given), 0, given)
        require_same(probe, given, np.zeros_like(given), 0.0)
        return
    if probe.E == 0 and not probe.corner:
        return
    wrong = differs(given, answer.output, answer.tolerance)
    if wrong.any() and probe.E == 0:
        subject.note("E = 0", "a head size of 0 gives something else than equal weights (1/√0 is no number)")
    elif wrong.any():
        detail = f"wrong with leading axes {probe.lead}, L = {probe.L}, S = {probe.S}, E = {probe.E}, Ev = {probe.Ev}"
        raise DoesNotHold(Problem(probe, answer.output, given, detail))


SIZES = Property(
    "sizes 0 and 1",
    "Every axis may have size 1 or 0: one key gives its value, no keys give 0, no queries give an empty output.",
    probes_sizes,
    check_sizes,
)
