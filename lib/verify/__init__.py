"""Point it at anyone's attention, and it names the bug.

``check_attention(fn)``
    Ask what attention must do, one property after the other: shapes, the equation, masks, causality, heads, precision,
    memory, gradients. A failure carries the smallest call that shows it and the known bug that does the same.
``check_causal(model, tokens)``
    Does a whole language model see the future?
``cases(fn)``
    The same properties for pytest, one test each.
``catalogue``
    The known wrong implementations: what is wrong, where it was reported, and the changed lines.

On the command line: ``python -m lib.verify module:function``.
"""

from lib.verify.causal import check_causal
from lib.verify.check import Case, cases, check_attention
from lib.verify.conventions import CHOICES, MEANING
from lib.verify.properties import PROPERTIES
from lib.verify.report import Failure, Report
from lib.verify.subject import UsageError
from lib.verify.wrong import catalogue

#: Each convention: its choices, the contract's first, and what it is about.
CONVENTIONS = {name: (CHOICES.get(name, ()), meaning) for name, meaning in MEANING.items()}

__all__ = [
    "CONVENTIONS",
    "PROPERTIES",
    "Case",
    "Failure",
    "Report",
    "UsageError",
    "cases",
    "catalogue",
    "check_attention",
    "check_causal",
]
