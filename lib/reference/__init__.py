"""NumPy: what the equation says, to be read and to be trusted. Never imports torch."""

from lib.reference.attention import attention
from lib.reference.softmax import softmax

__all__ = ["attention", "softmax"]
