"""NumPy: what the equation says, to be read and to be trusted. Never imports torch."""

from lib.reference.attention import attention
from lib.reference.cache import KVCache
from lib.reference.gradients import Gradients, attention_backward, softmax_backward
from lib.reference.heads import merge_heads, multi_head_attention, split_heads
from lib.reference.merging import merge
from lib.reference.positions import alibi_bias, alibi_slopes, rotary, rotate_pairs, sinusoidal
from lib.reference.softmax import softmax
from lib.reference.streaming import streaming_attention

__all__ = [
    "Gradients",
    "KVCache",
    "alibi_bias",
    "alibi_slopes",
    "attention",
    "attention_backward",
    "merge",
    "merge_heads",
    "multi_head_attention",
    "rotary",
    "rotate_pairs",
    "sinusoidal",
    "softmax",
    "softmax_backward",
    "split_heads",
    "streaming_attention",
]
