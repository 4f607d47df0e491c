"""Would another convention explain the failures? Then say which, so that a choice is not taken for a bug."""

from lib.verify.diagnosis import Failed
from lib.verify.form import find_out
from lib.verify.properties import RUNS
from lib.verify.properties.basics import EQUATION
from lib.verify.properties.heads import BATCH
from lib.verify.subject import Subject

#: For each convention, what else could be meant and what one says about it.
ALTERNATIVES = (
    ("layout", "BLHE", "axes in the order (batch, length, heads, size)"),
    ("mask_true", "block", "True = block"),
    ("empty_rows", "nan", "NaN for a query that may attend to nothing"),
    ("empty_rows", "mean", "the mean of all values for a query that may attend to nothing"),
    ("alignment", "bottom-right", "causal aligned bottom-right"),
    ("alignment", "top-left", "causal aligned top-left"),
    ("half_scores", "may-overflow", "half-precision products that may overflow before they are scaled"),
)


def guess(subject: Subject, failed: list[Failed]) -> dict[str, str]:
    """Look for conventions under which failures vanish.

    Parameters
    ----------
    subject : Subject
    failed : list
        The failures under the conventions as they are.

    Returns
    -------
    dict
        For the name of each failing property that another convention would mend, what to say.
    """
    hints: dict[str, str] = {}
    found: dict[str, str] = {}
    if any(f.prop is None for f in failed):
        return _other_axes(subject)
    left = {f.prop.name: f.prop for f in failed if f.prop is not None}
    for name, value, words in ALTERNATIVES:
        if name in found or getattr(subject.conventions, name) == value or not _may_matter(subject, name, left):
            continue
        other = subject.under(**found, **{name: value})
        if name == "layout" and find_out(_anew(other)) is not None:
            continue
        mended = [p for p in left if _holds(other, left[p])]
        if not mended or (name in ("layout", "mask_true") and not _explains(name, mended, left)):
            continue
        found[name] = value
        for prop in mended:
            hints[prop] = _hint(words, found)
            del left[prop]
    return hints


def _other_axes(subject: Subject) -> dict[str, str]:
    """Look whether a function that takes no ordinary inputs takes heads after the length, and is right there."""
    if "layout" in subject.conventions.declared or "lengths" in subject.conventions.declared:
        return {}
    other = _anew(subject.under(layout="BLHE"))
    if find_out(other) is not None or not _holds(other, BATCH) or not _holds(other, EQUATION):
        return {}
    return {RUNS: _hint(ALTERNATIVES[0][2], {"layout": "BLHE"})}


def _hint(words: str, found: dict[str, str]) -> str:
    options = " ".join(f"--convention {k}={v}" for k, v in found.items())
    return f"it looks like {words}: pass conventions={found!r} ({options}) if that is meant"


def _may_matter(subject: Subject, name: str, left: dict) -> bool:
    """Try a convention only where what it is about fails."""
    about = {
        "layout": "batch and heads", "mask_true": "mask", "empty_rows": "empty rows", "alignment": "alignment",
        "half_scores": "half precision",
    }  # fmt: skip
    if name == "layout":
        return subject.conventions.layout == "BHLE" and 4 in subject.form.axes and about[name] in left
    return about[name] in left


def _explains(name: str, mended: list[str], left: dict) -> bool:
    """A layout or a polarity must mend the property that it is about."""
    return {"layout": "batch and heads", "mask_true": "mask"}[name] in mended


def _holds(subject: Subject, prop: object) -> bool:
    try:
        return prop.untestable(subject) is None and prop.judge(subject) is None
    except Exception:
        return False


def _anew(subject: Subject) -> Subject:
    """Forget what was found out, to find it out under another convention."""
    subject.form = type(subject.form)()
    return subject
