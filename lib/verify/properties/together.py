"""Options together: every way to restrict and to weigh must compose, and none may switch another off."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from lib.verify.probe import Probe, draw, equal_scores
from lib.verify.properties.base import Property, agrees_with_equation
from lib.verify.subject import Subject

COMBINED = ("mask", "causal", "window", "offset", "bias", "softcap", "scale", "enable_gqa", "return_weights")


def probes_together(subject: Subject) -> Iterator[Probe]:
    """Ask with mask and causal, with every pair of options, then with many at once, drawn."""
    if subject.has("mask", "causal"):
        yield equal_scores([1, 2, 4], L=3, causal=True, mask=np.array([[True, True, False]] * 3)).change(
            corner="causal, mask together"
        )
    had = [option for option in COMBINED if subject.has(option)]
    sets = combinations([option for option in had if option not in ("scale", "offset")], 2)
    rng = np.random.default_rng(0)
    for chosen in sets:
        for _ in range(2):
            yield _drawn(subject, rng, set(chosen))
    for _ in range(40):
        chosen = {option for option in had if rng.random() < 0.5}
        if len(chosen - {"scale", "offset"}) >= 2:
            yield _drawn(subject, rng, chosen)
    rng = np.random.default_rng(1)
    for option in had if subject.has("scale") else ():
        if option not in ("scale", "offset", "softcap"):
            for scale in (0.25, 2.0):
                yield _drawn(subject, rng, {option}).change(scale=scale)
    yield from _beside_neutral(subject, rng, had)


def _beside_neutral(subject: Subject, rng: np.random.Generator, had: list[str]) -> Iterator[Probe]:
    """Ask with an option that changes nothing beside each other one: a shortcut for the one may lose the other."""
    for neutral in had:
        for option in had:
            if neutral not in ("mask", "bias") or option in (neutral, "offset"):
                continue
            probe = _drawn(subject, rng, {option})
            shape = (*probe.lead, probe.L, probe.S)
            value = {"mask": np.ones(shape, bool), "bias": np.zeros(shape)}
            probe = probe.change(**{neutral: value[neutral]})
            names = sorted(name for name in probe.options if name not in ("scale", "offset"))
            yield probe.change(corner=", ".join(names) + " together" if len(names) > 1 else None)


def _drawn(subject: Subject, rng: np.random.Generator, chosen: set[str]) -> Probe:
    """Draw shapes and values for a set of options; every query sees at least one key."""
    lead_axes = int(rng.choice(subject.form.axes)) - 2
    if "enable_gqa" in chosen and lead_axes == 0:
        lead_axes = max(subject.form.axes) - 2
    lead = tuple(int(n) for n in rng.integers(1, 4, lead_axes))
    groups = None
    if "enable_gqa" in chosen and lead:
        groups = int(rng.integers(1, 3))
        lead = (*lead[:-1], 4 if groups == 2 else int(rng.integers(1, 4)))
    else:
        chosen = chosen - {"enable_gqa"}
    L, S = (int(n) for n in rng.integers(2, 8, 2))
    placed = chosen & {"causal", "window"}
    if placed:
        S = max(S, L) if "offset" in chosen else L
    seed, E, Ev = (int(n) for n in rng.integers(1, (1 << 30, 6, 4)))
    probe = draw(seed, L, S, E, Ev, lead=lead, groups=groups)
    options: dict = {}
    if "offset" in chosen and placed:
        options["offset"] = max(S - L, 0)
    if "causal" in chosen:
        options["causal"] = True
    if "window" in chosen:
        options["window"] = (int(rng.integers(0, 3)), int(rng.integers(0, 3)))
    if "mask" in chosen:
        mask = rng.random((*lead, L, S)) < 0.7
        own = np.minimum(np.arange(L) + options.get("offset", 0), S - 1)
        mask[..., np.arange(L), own] = True
        options["mask"] = mask
    if "bias" in chosen:
        options["bias"] = rng.integers(-16, 17, (*lead, L, S)) / 8
    if "softcap" in chosen:
        options["softcap"] = float(rng.choice([0.5, 1.0, 4.0]))
    if subject.has("scale"):
        options["scale"] = float(rng.choice([0.25, 0.5, 1.0]))
    for flag in ("enable_gqa", "return_weights"):
        if flag in chosen:
            options[flag] = True
    names = sorted(name for name in options if name not in ("scale", "offset"))
    corner = ", ".join(names) + " together" if len(names) > 1 else None
    return probe.change(**options, corner=corner)


def applies_together(subject: Subject) -> str | None:
    """There must be two options."""
    had = [option for option in COMBINED if subject.has(option)]
    return None if len(had) >= 2 else "there are no two options to combine"


TOGETHER = Property(
    "together",
    "Options compose: mask, causal, window and bias all hold at once, and none switches another off.",
    probes_together,
    agrees_with_equation,
    applies=applies_together,
)
