"""Wrong in positions: causal, its alignment, decoding, windows."""

from lib.verify.wrong.entry import Entry
from lib.verify.wrong.masking import FILL, MASK

CAUSAL = "    if causal:\n"
SEES = "allowed = allowed & (j <= i)"
OFFSET = "i = i + facing(offset, scores) if offset is not None else i"
LEFT = "allowed = allowed & (j >= i - left) if left is not None else allowed"
RIGHT = "allowed = allowed & (j <= i + right) if right is not None else allowed"
PAIR = "left, right = window"

CAUSALS = (
    Entry(
        "causal_ignored",
        "causal=True does nothing: every query sees the future.",
        ((CAUSAL, "    if causal and False:\n"),),
        "causal",
        "https://github.com/pytorch/pytorch/issues/99282",
    ),
    Entry(
        "causal_strict",
        "A query does not see its own position: < where ≤ was meant. The first one sees nothing.",
        ((SEES, "allowed = allowed & (j < i)"),),
        "causal",
    ),
    Entry(
        "causal_one_too_far",
        "A query sees the next position: the diagonal is one too far to the right.",
        ((SEES, "allowed = allowed & (j <= i + 1)"),),
        "causal",
    ),
    Entry(
        "causal_reversed",
        "A query sees its own position and the future, not the past: upper triangle for lower.",
        ((SEES, "allowed = allowed & (j >= i)"),),
        "causal",
    ),
    Entry(
        "causal_fill_minus_1e9",
        "The future's scores become −1e9: a query whose own scores are lower sees the future.",
        (
            (CAUSAL, "    future = (j > i) if causal else (j < 0)\n    if False:\n"),
            (
                FILL,
                FILL
                + "\n    fill = xp.where((allowed & ~future).any(-1)[..., None], -1e9, -math.inf)\n    scores = cast(xp.where(future & allowed, fill, scores), query.dtype)",
            ),
        ),
        "causal",
        alone=True,
    ),
    Entry(
        "causal_after_softmax",
        "The future's weights are set to 0 after the softmax: the rest no longer sums to one, and the sum has seen the future.",
        (
            (CAUSAL, "    past = (j <= i) if causal else (j >= 0)\n    if False:\n"),
            ("    kept = drop", "    weights = weights * past\n    kept = drop"),
        ),
        "causal",
    ),
    Entry(
        "causal_only_with_mask",
        "causal=True is honoured only where a mask is given too.",
        ((CAUSAL, "    if causal and mask is not None:\n"),),
        "causal",
        "https://github.com/facebookresearch/xformers/issues/103",
    ),
    Entry(
        "causal_dropped_with_mask",
        "causal=True is dropped where a mask is given too: the query sees the future.",
        ((CAUSAL, "    if causal and mask is None:\n"),),
        "together",
        "https://github.com/pytorch/pytorch/issues/96941",
    ),
    Entry(
        "causal_dropped_with_weights",
        "causal=True is dropped when the weights are asked for, on the slow path.",
        ((CAUSAL, "    if causal and not return_weights:\n"),),
        "weights",
        "https://github.com/keras-team/keras/issues/23038",
    ),
    Entry(
        "causal_dropped_with_four_axes",
        "causal=True is honoured for inputs without heads only.",
        ((CAUSAL, "    if causal and query.ndim < 4:\n"),),
        "causal",
    ),
    Entry(
        "bias_dropped_with_causal",
        "The bias is dropped where causal is asked for: one attention mask replaces the other.",
        (("    if bias is not None:\n", "    if bias is not None and not causal:\n"),),
        "together",
        alone=True,
    ),
    Entry(
        "mask_dropped_with_causal",
        "The mask is dropped where causal is asked for: the causal mask replaces it.",
        (("    if mask is not None:\n", "    if mask is not None and not causal:\n"),),
        "together",
        "https://github.com/pytorch/pytorch/issues/131254",
    ),
    Entry(
        "causal_while_training_only",
        "causal is tied to training mode: in evaluation every query sees the future.",
        ((CAUSAL, "    if causal and training:\n"),),
        "causal",
        "https://github.com/pytorch/tutorials/blob/main/intermediate_source/scaled_dot_product_attention_tutorial.py",
        frameworks=("torch",),
        module=True,
    ),
)

ALIGNMENT = (
    Entry(
        "offset_ignored",
        "The offset is not used: the first query is put at the first key (top-left), as if nothing were cached.",
        ((OFFSET, "pass"),),
        "alignment",
        "https://github.com/pytorch/pytorch/issues/103082",
    ),
    Entry(
        "aligned_bottom_right",
        "Without an offset the last query is put at the last key (bottom-right), where top-left is the convention.",
        ((OFFSET, "i = i + (facing(offset, scores) if offset is not None else S - L)"),),
        "alignment",
        "https://github.com/Dao-AILab/flash-attention/issues/282",
        alone=True,
        conventions={"alignment": "top-left"},
    ),
    Entry(
        "aligned_bottom_right_always",
        "The last query is put at the last key (bottom-right), whatever the offset says.",
        ((OFFSET, "i = i + (S - L)"),),
        "alignment",
        conventions={"alignment": "bottom-right"},
    ),
    Entry(
        "offset_one_too_far",
        "The offset is counted one too far: each query sees one key of the future.",
        ((OFFSET, "i = i + facing(offset + 1, scores) if offset is not None else i"),),
        "alignment",
    ),
    Entry(
        "offset_counted_twice",
        "The offset is added twice, so that positions jump ahead after the first chunk.",
        ((OFFSET, "i = i + facing(2 * offset, scores) if offset is not None else i"),),
        "alignment",
        "https://github.com/skyzh/tiny-llm/pull/46",
    ),
    Entry(
        "offset_of_first_entry",
        "Every batch entry gets the first entry's offset, though they have cached different numbers of keys.",
        (
            (
                OFFSET,
                "i = i + (offset.reshape(-1)[0] if hasattr(offset, 'shape') else offset) if offset is not None else i",
            ),
        ),
        "alignment",
        "https://github.com/karpathy/nanochat/pull/485",
        alone=True,
    ),
    Entry(
        "single_query_sees_first_key",
        "A single query gets a causal mask of size 1 × 1: it sees the first cached key only.",
        ((SEES, "allowed = allowed & (j <= (i if L > 1 else 0))"),),
        "cache",
        "https://github.com/rasbt/LLMs-from-scratch/pull/697",
        alone=True,
    ),
    Entry(
        "single_query_sees_all",
        "A single query is not masked at all: it sees the unused slots of a preallocated cache.",
        ((SEES, "allowed = allowed & (j <= i) if L > 1 else allowed"),),
        "cache",
        alone=True,
    ),
)

WINDOWS = (
    Entry(
        "window_counts_itself",
        "The query itself is counted among the keys to the left: the window is one too short.",
        ((LEFT, "allowed = allowed & (j >= i - max(left - 1, 0)) if left is not None else allowed"),),
        "window",
        "https://github.com/huggingface/transformers/issues/39408",
    ),
    Entry(
        "window_strict",
        "The window's left edge is left out: > where ≥ was meant, so that a window of 0 hides even the query's own key.",
        ((LEFT, "allowed = allowed & (j > i - left) if left is not None else allowed"),),
        "window",
    ),
    Entry(
        "window_right_strict",
        "The window's right edge is left out: < where ≤ was meant.",
        ((RIGHT, "allowed = allowed & (j < i + right) if right else allowed & (j <= i) if right == 0 else allowed"),),
        "window",
        "https://github.com/huggingface/transformers/pull/47162",
    ),
    Entry(
        "window_left_for_both",
        "The window's left side is used on both sides: its right side is not looked at.",
        ((PAIR, "left, right = window[0], window[0]"),),
        "window",
    ),
    Entry(
        "causal_dropped_with_window",
        "causal=True is dropped where a window is given: one replaces the other.",
        ((CAUSAL, "    if causal and window is None:\n"),),
        "window",
    ),
    Entry(
        "window_one_too_wide",
        "The window reaches one key too far to the left.",
        ((LEFT, "allowed = allowed & (j >= i - left - 1) if left is not None else allowed"),),
        "window",
        "https://github.com/ml-explore/mlx/pull/3552",
    ),
    Entry(
        "window_right_side_open",
        "The window has no right side: a query sees all keys after it.",
        ((RIGHT, "pass"),),
        "window",
    ),
    Entry(
        "window_left_side_open",
        "The window has no left side: a query sees all keys before it.",
        ((LEFT, "pass"),),
        "window",
    ),
    Entry(
        "window_sides_swapped",
        "The window's left and right are swapped.",
        ((PAIR, "right, left = window"),),
        "window",
    ),
    Entry(
        "window_halved",
        "The window is taken for a width and half of it goes to each side.",
        ((PAIR, "left, right = (None if side is None else side // 2 for side in window)"),),
        "window",
        "https://github.com/huggingface/transformers/pull/40700",
    ),
    Entry(
        "window_none_is_zero",
        "An open side (None) is taken for 0: `left or 0`.",
        ((PAIR, "left, right = window[0] or 0, window[1] or 0"),),
        "window",
        alone=True,
    ),
    Entry(
        "window_lost_in_decoding",
        "The window is dropped where an offset is given, so that decoding sees all cached keys.",
        (("    if window is not None:\n", "    if window is not None and offset is None:\n"),),
        "window",
        "https://github.com/karpathy/nanochat/pull/456",
    ),
    Entry(
        "window_dropped_with_mask",
        "The window is dropped where a mask is given too.",
        (("    if window is not None:\n", "    if window is not None and mask is None:\n"),),
        "together",
        alone=True,
    ),
)

ENTRIES = (*CAUSALS, *ALIGNMENT, *WINDOWS)

__all__ = ["ENTRIES", "MASK"]
