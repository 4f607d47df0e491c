"""What differs between libraries by choice, so that a choice is not called a bug."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

CHOICES: dict[str, tuple[str, ...]] = {
    "mask_true": ("attend", "block"),
    "alignment": ("top-left", "bottom-right"),
    "layout": ("BHLE", "BLHE"),
    "empty_rows": ("zero", "nan", "mean"),
    "masked_nan": ("open", "blocked"),
    "softmax_dtype": ("at-least-float32", "float32"),
    "half_scores": ("finite", "may-overflow"),
    "gradients": ("yes", "none"),
    "lengths": ("any", "equal"),
}

MEANING = {
    "mask_true": "what True means in a boolean mask: this query may attend to this key, or must not",
    "alignment": "where causal puts the first query when L ≠ S and no offset is given",
    "layout": "the order of axes: (batch, heads, length, size) or (batch, length, heads, size)",
    "empty_rows": "what a query that may attend to nothing gives: 0, NaN, or the mean of all values",
    "masked_nan": "whether NaN and infinity behind a mask may reach the output; open: reported, not judged",
    "softmax_dtype": "float32: the softmax runs in float32 even where the inputs are float64",
    "half_scores": "may-overflow: products of half-precision inputs may leave the dtype's range before scaling",
    "gradients": "none: the function is for inference only",
    "lengths": "equal: as many queries as keys, always",
    "dtypes": "the dtypes the function is for, such as float32,float64; the others are not tested",
}


@dataclass(frozen=True)
class Conventions:
    """The declared conventions; what was not declared has the contract's value, and alignment has none.

    Examples
    --------
    >>> Conventions.of({"mask_true": "block"}).mask_true
    'block'
    """

    mask_true: str = "attend"
    alignment: str | None = None
    layout: str = "BHLE"
    empty_rows: str = "zero"
    masked_nan: str = "open"
    softmax_dtype: str = "at-least-float32"
    half_scores: str = "finite"
    gradients: str = "yes"
    lengths: str = "any"
    dtypes: tuple[str, ...] = ()
    declared: frozenset[str] = frozenset()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Conventions":
        """Check what was declared, forgiving about case, hyphens and underscores."""
        if not isinstance(given, Mapping):
            raise TypeError(f"conventions must be a dict such as {{'mask_true': 'block'}}, got {type(given).__name__}")
        found = {name: _dtypes(value) if name == "dtypes" else _choice(name, value) for name, value in given.items()}
        return cls(**found, declared=frozenset(found))

    def shown(self) -> dict[str, Any]:
        """List the conventions as a plain dict."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "declared"}


def _choice(name: str, value: Any) -> str:
    if name not in CHOICES:
        known = ", ".join([*CHOICES, "dtypes"])
        raise ValueError(f"conventions must be among {known}; got {name!r}")
    wanted = {choice.lower(): choice for choice in CHOICES[name]}
    found = wanted.get(str(value).lower().replace("_", "-"))
    if found is None:
        raise ValueError(f"the convention {name} must be {' or '.join(CHOICES[name])}, got {value!r}")
    return found


def _dtypes(value: Any) -> tuple[str, ...]:
    names = tuple(value.split(",")) if isinstance(value, str) else tuple(str(x).removeprefix("torch.") for x in value)
    for name in names:
        if name not in ("float16", "bfloat16", "float32", "float64"):
            raise ValueError(f"the convention dtypes must name floating dtypes such as float32, got {name!r}")
    return names
