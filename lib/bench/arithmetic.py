"""What is computed from measured numbers: ratios of pairs, medians, growth, verdicts. Nothing here measures."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """A median, and how far the single measurements lie around it."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Spread":
        """Sum up at least one number.

        Examples
        --------
        >>> Spread.of([3.0, 1.0, 2.0])
        Spread(median=2.0, least=1.0, most=3.0)
        """
        if not numbers:
            raise ValueError("numbers must hold at least one measurement, got none")
        return cls(statistics.median(numbers), min(numbers), max(numbers))


class Bar(NamedTuple):
    """What a number must not exceed, must reach, or must come close to."""

    kind: str  # "at most", "at least" or "about"
    limit: float
    within: float = 0.0  # for "about": how far off is near enough

    def met(self, number: float) -> bool:
        """Tell whether the number keeps to the bar; NaN never does.

        Examples
        --------
        >>> Bar("at most", 1.10).met(1.08), Bar("at least", 2.5).met(2.4), Bar("about", 2.0, 0.1).met(2.1)
        (True, False, True)
        """
        if self.kind == "at most":
            return number <= self.limit
        if self.kind == "at least":
            return number >= self.limit
        if self.kind == "about":
            return abs(number - self.limit) <= self.within * (1 + 1e-12)  # 2.1 − 2.0 is a hair more than 0.1
        raise ValueError(f"kind must be 'at most', 'at least' or 'about', got {self.kind!r}")

    def __str__(self) -> str:
        """Say it in a few signs, such as ≤ 1.10."""
        sign = {"at most": "≤", "at least": "≥", "about": "="}[self.kind]
        return f"{sign} {self.limit:.2f}" + (f" ± {self.within:g}" if self.kind == "about" else "")


def ratios(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> list[float]:
    """Compute our time over theirs for each pair of turns; a turn counts with its fastest call.

    What slows a call down, another program or a cold cache, never makes one faster: the fastest call of a turn is the
    one that was disturbed least. Over the pairs the median is taken, since a whole turn can be disturbed.

    Examples
    --------
    >>> ratios([[2.0, 3.0], [4.0]], [[1.0], [2.0, 8.0]])
    [2.0, 2.0]
    """
    if len(ours) != len(theirs):
        raise ValueError(f"ours and theirs must have equally many turns, got {len(ours)} and {len(theirs)}")
    if not all(map(len, [*ours, *theirs])):
        raise ValueError("every turn must hold at least one call, got an empty one")
    return [min(one) / min(other) for one, other in zip(ours, theirs, strict=True)]


def exponent(sizes: Sequence[float], numbers: Sequence[float]) -> float:
    """Fit ``number = c · size**p`` by least squares of the logarithms, and give p.

    Numbers below one count as one, so that a scratch of no bytes has a logarithm.

    Examples
    --------
    >>> round(exponent([1024, 2048, 4096], [3.0, 12.0, 48.0]), 12)
    2.0
    """
    if len(sizes) != len(numbers) or len(set(sizes)) < 2:
        raise ValueError(f"two or more different sizes and a number for each are wanted, got {sizes} and {numbers}")
    if min(sizes) <= 0 or min(numbers) < 0:
        raise ValueError(f"sizes must be positive and numbers not negative, got {sizes} and {numbers}")
    smallest = min(numbers)
    floor = 1.0 if smallest == 0 else smallest
    return statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(max(number, floor)) for number in numbers]
    ).slope


def calls_per_turn(seconds: float, turn: float, most: int = 1000) -> int:
    """Tell how many calls of so many seconds fill a turn: at least two, the first of which may be a cold one.

    Examples
    --------
    >>> calls_per_turn(0.1, 0.4), calls_per_turn(3.0, 0.4), calls_per_turn(1e-9, 0.4)
    (4, 2, 1000)
    """
    return min(most, max(2, math.ceil(turn / max(seconds, 1e-9) - 1e-9)))


def in_bytes(number: float) -> str:
    """Say a number of bytes as people do.

    Examples
    --------
    >>> in_bytes(900), in_bytes(1536), in_bytes(16 * 2**20)
    ('900 B', '1.5 KiB', '16.0 MiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


def in_seconds(number: float) -> str:
    """Say a time as people do.

    Examples
    --------
    >>> in_seconds(2.0), in_seconds(0.0123), in_seconds(0.0000042)
    ('2.00 s', '12.3 ms', '4.2 µs')
    """
    if number >= 1:
        return f"{number:.2f} s"
    return f"{number * 1e3:.1f} ms" if number >= 1e-3 else f"{number * 1e6:.1f} µs"
