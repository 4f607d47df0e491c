"""torch: what you would run, on CPU and GPU, with gradients. Never imports verify."""

from lib.fast.attention import attention, explain
from lib.fast.cache import KVCache
from lib.fast.heads import merge_heads, multi_head_attention, split_heads
from lib.fast.language_model import LanguageModel
from lib.fast.merging import attention_with_lse, merge
from lib.fast.module import MultiHeadAttention
from lib.fast.positions import alibi_bias, alibi_slopes, rotary, rotate_pairs, sinusoidal

__all__ = [
    "KVCache",
    "LanguageModel",
    "MultiHeadAttention",
    "alibi_bias",
    "alibi_slopes",
    "attention",
    "attention_with_lse",
    "explain",
    "merge",
    "merge_heads",
    "multi_head_attention",
    "rotary",
    "rotate_pairs",
    "sinusoidal",
    "split_heads",
]
