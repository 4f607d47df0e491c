"""The catalogue of known wrong implementations, each made from one correct body by a small named change."""

from lib.verify.wrong import equation, heads, masking, memory, numbers, positions
from lib.verify.wrong.entry import Catalogue, Entry

#: Every known wrong implementation.
catalogue = Catalogue(
    (
        *equation.ENTRIES,
        *masking.ENTRIES,
        *positions.ENTRIES,
        *heads.ENTRIES,
        *numbers.ENTRIES,
        *memory.ENTRIES,
    )
)

__all__ = ["Catalogue", "Entry", "catalogue"]
