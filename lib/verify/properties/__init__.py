"""What attention must do, one property a question, the simplest questions first."""

from lib.verify.properties.base import Property
from lib.verify.properties.basics import AXIS, EQUATION, SCALE, SHAPE, SUM, WEIGHTS
from lib.verify.properties.heads import BATCH, GROUPED
from lib.verify.properties.masking import BIAS, BROADCASTING, EMPTY, HIDDEN, MASK, MASKED_NAN
from lib.verify.properties.memory import LAYOUTS, LENGTHS_PROPERTY, REPEATABLE, SIZES, UNTOUCHED
from lib.verify.properties.positions import ALIGNMENT, CACHE, CAUSAL, WINDOW
from lib.verify.properties.precision import EXTREME, FLOAT64, HALF, SOFTCAP
from lib.verify.properties.together import TOGETHER
from lib.verify.properties.training import DROPOUT, EMPTY_GRADIENTS, GRADIENTS

#: Reported where the function does not take ordinary inputs, so that nothing else can be asked.
RUNS = "runs"
RUNS_STATEMENT = "Ordinary inputs are taken, and one array comes back."

PROPERTIES: tuple[Property, ...] = (
    SHAPE, EQUATION, AXIS, SUM, SCALE, MASK, HIDDEN, BROADCASTING, BIAS, CAUSAL, ALIGNMENT, CACHE, WINDOW, EMPTY,
    MASKED_NAN, BATCH, GROUPED, SOFTCAP, WEIGHTS, TOGETHER, EXTREME, HALF, FLOAT64, UNTOUCHED, REPEATABLE, LAYOUTS,
    LENGTHS_PROPERTY, SIZES, GRADIENTS, EMPTY_GRADIENTS, DROPOUT,
)  # fmt: skip

__all__ = ["PROPERTIES", "RUNS", "RUNS_STATEMENT", "Property"]
