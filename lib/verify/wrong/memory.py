"""Wrong around the numbers: written inputs, strides, tiles, state, dropout, weights, gradients."""

from lib.verify.wrong.entry import Entry
from lib.verify.wrong.equation import RETURN, SCORES, TOTAL
from lib.verify.wrong.heads import START
from lib.verify.wrong.masking import BLOCK, FILL, MASK
from lib.verify.wrong.numbers import WEIGHTED

KEPT = "kept = drop(weights, dropout_p) if dropout_p else weights"
WEIGHTS = "weights = exponentials / xp.where(total == 0, 1.0, total)"

WRITTEN = (
    Entry(
        "query_scaled_in_place",
        "The query is scaled in place: the caller's array is smaller after the call.",
        ((SCORES, "query *= scale\n    scores = query @ key.swapaxes(-1, -2)"),),
        "inputs untouched",
        frameworks=("numpy",),
        alone=True,
    ),
    Entry(
        "mask_written",
        "The causal triangle is written into the caller's mask.",
        (
            (
                MASK,
                "mask &= (j <= i) if causal and mask.shape[-2:] == (L, S) else True\n        allowed = allowed & mask",
            ),
        ),
        "inputs untouched",
    ),
    Entry(
        "bias_written",
        "The scores are added into the caller's bias.",
        (
            (
                "scores = scores + wide(bias)",
                "wide(bias).__iadd__(scores[(0,) * (scores.ndim - bias.ndim)] if bias.shape[-2:] == scores.shape[-2:] and scores.ndim == bias.ndim == 2 else 0.0)\n        scores = wide(bias) if scores.ndim == bias.ndim == 2 and bias.shape == scores.shape else scores + wide(bias)",
            ),
        ),
        "inputs untouched",
        "https://d2l.ai/chapter_attention-mechanisms-and-transformers/attention-scoring-functions.html",
        frameworks=("numpy",),
    ),
)

LAYOUT = (
    Entry(
        "strides_ignored",
        "Memory is read as if every array were contiguous: a transposed or strided view gives other numbers.",
        ((START, "    query, key, value = as_stored(query), as_stored(key), as_stored(value)\n" + START),),
        "layouts",
        "https://github.com/pytorch/pytorch/issues/112577",
        alone=True,
    ),
    Entry(
        "value_strides_ignored",
        "The values are read as if they were contiguous.",
        ((START, "    value = as_stored(value)\n" + START),),
        "layouts",
        "https://github.com/ROCm/pytorch/issues/3230",
        alone=True,
    ),
)

LENGTHS = (
    Entry(
        "last_key_lost_when_long",
        "From 64 keys on the last one is lost.",
        ((FILL, FILL + "\n    scores = xp.where((j < S - 1) | (S < 64), scores, -math.inf)"),),
        "lengths",
        alone=True,
    ),
    Entry(
        "last_tile_lost",
        "Keys are read in tiles of 32, and an incomplete last tile is left out.",
        ((FILL, FILL + "\n    scores = xp.where((j < S - S % 32) | (S < 32), scores, -math.inf)"),),
        "lengths",
        "https://github.com/pytorch/pytorch/pull/169222",
    ),
    Entry(
        "tile_padding_counted",
        "The last tile of 32 keys is padded with zeros, and the padding gets weights.",
        ((TOTAL, TOTAL + " + (-S % 32 if S > 32 else 0) * xp.exp(-top)"),),
        "lengths",
    ),
    Entry(
        "tiles_not_rescaled",
        "Tiles of 32 keys are summed without bringing earlier ones to the new maximum.",
        (
            (
                "exponentials = xp.exp(scores - top)",
                "tops = [xp.amax(scores[..., : n + 32], axis=-1, keepdims=True) for n in range(0, S, 32)]\n"
                "    tops = [xp.where(t == -math.inf, 0.0, t) for t in tops] or [top]\n"
                "    parts = [xp.exp(scores[..., 32 * n : 32 * n + 32] - t) for n, t in enumerate(tops)]\n"
                "    exponentials = xp.concatenate(parts, axis=-1)",
            ),
        ),
        "lengths",
    ),
    Entry(
        "queries_beyond_128_lost",
        "Queries from the 129th on are left at 0.",
        ((WEIGHTED, WEIGHTED + "\n    output = xp.where(i - i[:1] < 128, output, 0.0)"),),
        "lengths",
        alone=True,
    ),
    Entry(
        "causal_dropped_when_long",
        "causal=True is honoured up to 64 keys.",
        (("    if causal:\n", "    if causal and S <= 64:\n"),),
        "lengths",
        alone=True,
    ),
    Entry(
        "head_size_cut_at_64",
        "Only the first 64 numbers of query and key are compared.",
        ((SCORES, "scores = (query * scale)[..., :64] @ key[..., :64].swapaxes(-1, -2)"),),
        "lengths",
    ),
)

STATE = (
    Entry(
        "summed_in_another_order",
        "The keys are summed in an order drawn anew at each call: the last digits change from call to call.",
        ((WEIGHTED, "order = shuffled(value)\n    output = kept[..., order] @ value[..., order, :]"),),
        "repeatable",
        alone=True,
    ),
    Entry(
        "dropout_always_on",
        "Dropout is active without being asked for, in evaluation too.",
        ((KEPT, "kept = drop(weights, dropout_p or 0.1)"),),
        "repeatable",
        "https://github.com/pytorch/pytorch/issues/124464",
    ),
)

DROPOUTS = (
    Entry(
        "dropout_not_made_up",
        "The weights that stay are not scaled up: with dropout the output shrinks.",
        ((KEPT, "kept = drop(weights, dropout_p) * (1 - dropout_p) if dropout_p else weights"),),
        "dropout",
        alone=True,
    ),
    Entry(
        "dropout_keeps_what_it_should_drop",
        "dropout_p is taken for the probability to keep.",
        ((KEPT, "kept = drop(weights, 1 - dropout_p) if 0 < dropout_p < 1 else weights"),),
        "dropout",
        alone=True,
    ),
    Entry(
        "dropout_before_softmax",
        "Scores are dropped before the softmax: a score of 0 is a weight all the same.",
        (
            (SCORES, SCORES + "\n    scores = drop(scores, dropout_p) if dropout_p else scores"),
            (KEPT, "kept = weights"),
        ),
        "dropout",
        alone=True,
    ),
    Entry(
        "dropout_normalised_again",
        "The weights that stay are brought to a sum of one again, where each should grow by 1/(1 − p).",
        ((KEPT, KEPT + "\n    kept = kept / (kept.sum(-1)[..., None] + 1e-20) if dropout_p else kept"),),
        "dropout",
        alone=True,
    ),
    Entry(
        "dropout_same_for_all_queries",
        "Whole keys are dropped, the same ones for all queries.",
        ((KEPT, "kept = weights * drop(weights[..., :1, :] * 0.0 + 1.0, dropout_p) if dropout_p else weights"),),
        "dropout",
        alone=True,
    ),
)

RETURNED = (
    Entry(
        "weights_are_scores",
        "The returned weights are the scores before the softmax.",
        ((RETURN, RETURN.replace("as_weights(weights, output)", "as_weights(scores, output)")),),
        "weights",
        alone=True,
    ),
    Entry(
        "weights_before_mask",
        "The returned weights were taken before the mask.",
        (
            (
                FILL,
                "seen = xp.exp(scores - (xp.amax(scores, axis=-1, keepdims=True) if S else 0.0))\n    seen = seen / seen.sum(axis=-1, keepdims=True)\n    "
                + FILL,
            ),
            (RETURN, RETURN.replace("as_weights(weights, output)", "as_weights(seen, output)")),
        ),
        "weights",
        alone=True,
    ),
    Entry(
        "weights_averaged_over_heads",
        "The returned weights are averaged over the heads.",
        (
            (
                RETURN,
                RETURN.replace(
                    "narrow(as_weights(weights, output), dtype)",
                    "narrow(as_weights(weights, output).mean(-3) if output.ndim > 2 else weights, dtype)",
                ),
            ),
        ),
        "weights",
        alone=True,
    ),
    Entry(
        "weights_transposed",
        "The returned weights are transposed: rows are keys.",
        (
            (
                RETURN,
                RETURN.replace(
                    "narrow(as_weights(weights, output), dtype)",
                    "narrow(as_weights(weights, output), dtype).swapaxes(-1, -2)",
                ),
            ),
        ),
        "weights",
        alone=True,
    ),
)

GRADIENTS = (
    Entry(
        "weights_detached",
        "The weights are cut off from the gradient: query and key never learn.",
        ((KEPT, "weights = weights.detach()\n    " + KEPT),),
        "gradients",
        frameworks=("torch",),
        alone=True,
    ),
    Entry(
        "keys_detached",
        "The key is cut off from the gradient: the key projection never learns.",
        ((SCORES, "scores = (query * scale) @ key.detach().swapaxes(-1, -2)"),),
        "gradients",
        frameworks=("torch",),
        alone=True,
    ),
    Entry(
        "values_detached",
        "The values are cut off from the gradient.",
        ((WEIGHTED, "output = kept @ value.detach()  # (..., L, Ev)"),),
        "gradients",
        frameworks=("torch",),
        alone=True,
    ),
    Entry(
        "bias_detached",
        "The bias is cut off from the gradient: learnt positions never learn.",
        (("scores = scores + wide(bias)", "scores = scores + wide(bias).detach()"),),
        "gradients",
        frameworks=("torch",),
        alone=True,
    ),
    Entry(
        "no_gradient_at_all",
        "The output is cut off from the gradient altogether.",
        ((WEIGHTED, "output = (kept @ value).detach()  # (..., L, Ev)"),),
        "gradients",
        frameworks=("torch",),
        alone=True,
    ),
    Entry(
        "empty_rows_nan_gradient",
        "An empty row's NaN is replaced by 0 after the softmax: the output is right, and the gradients are NaN.",
        (
            (FILL, "scores = scores + xp.where(allowed, 0.0, -math.inf)"),
            (WEIGHTS, "weights = xp.nan_to_num(xp.softmax(scores, -1))"),
            ("    top = xp.where(top == -math.inf, 0.0, top)  # a row without keys\n", ""),
        ),
        "gradients of empty rows",
        "https://github.com/pytorch/pytorch/issues/41508",
        frameworks=("torch",),
        alone=True,
    ),
)

ENTRIES = (*WRITTEN, *LAYOUT, *LENGTHS, *STATE, *DROPOUTS, *RETURNED, *GRADIENTS)

__all__ = ["BLOCK", "ENTRIES"]
