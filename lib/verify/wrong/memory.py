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
        "mask_turned_in_place",
        "The caller's mask is turned round in place: the next layer gets it with True and False swapped.",
        ((MASK, "mask ^= True\n        allowed = allowed & ~mask"),),
        "inputs untouched",
        "https://github.com/Shujun-He/RibonanzaNet/issues/7",
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
        "key_strides_ignored",
        "The keys are read as if they were contiguous.",
        ((START, "    key = as_stored(key)\n" + START),),
        "layouts",
        "https://github.com/NVIDIA/TransformerEngine/issues/1195",
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
        others=(("32", "16"), ("32", "64"), ("32", "128"), ("32", "8")),
    ),
    Entry(
        "last_queries_lost",
        "Queries are taken in tiles of 16, and an incomplete last tile is left at 0.",
        ((WEIGHTED, WEIGHTED + "\n    output = xp.where((i - i[:1] < L - L % 16) | (L < 16), output, 0.0)"),),
        "lengths",
        "https://github.com/jax-ml/jax/issues/27224",
        others=(("16", "32"), ("16", "64"), ("16", "128"), ("16", "8")),
    ),
    Entry(
        "causal_restarts_in_tiles",
        "Causal counts the queries anew in each tile of 64: later queries see the first keys only.",
        (("allowed = allowed & (j <= i)", "allowed = allowed & (j <= (i if offset is not None else i % 64))"),),
        "lengths",
        alone=True,
        others=(("64", "16"), ("64", "32"), ("64", "128"), ("64", "256")),
    ),
    Entry(
        "causal_by_whole_tiles",
        "Causal skips tiles of 32 keys that lie in the future, and does not mask within a tile that is not the first.",
        (
            (
                "allowed = allowed & (j <= i)",
                "allowed = allowed & ((j <= i) | ((j // 32 <= i // 32) & (i >= 32) & (offset is None)))",
            ),
        ),
        "lengths",
        others=(("32", "16"), ("32", "64"), ("32", "128")),
    ),
    Entry(
        "only_the_best_kept_when_long",
        "Only the 32 keys with the largest scores are looked at.",
        (
            (
                "    top = xp.where(top ==",
                "    larger = (scores[..., None, :] > scores[..., :, None]).sum(-1)\n    scores = xp.where(larger < 32, scores, -math.inf)\n    top = xp.where(top ==",
            ),
        ),
        "lengths",
        others=(("32", "16"), ("32", "64"), ("32", "128")),
    ),
    Entry(
        "tile_padding_counted",
        "The last tile of 32 keys is padded with zeros, and the padding gets weights.",
        ((TOTAL, TOTAL + " + (-S % 32 if S > 32 else 0) * xp.exp(-top)"),),
        "lengths",
        "https://github.com/flashinfer-ai/flashinfer/pull/5090",
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
        "https://github.com/ROCm/rocm-libraries/pull/6498",
        others=(("32", "16"), ("32", "64"), ("32", "128")),
    ),
    Entry(
        "tiles_output_not_rescaled",
        "Tiles of 32 keys: the sum of weights is brought to each new maximum, the sum of values is not.",
        (
            (
                WEIGHTS,
                "tops = [xp.amax(scores[..., : n + 32], axis=-1, keepdims=True) for n in range(0, S, 32)]\n"
                "    late = [xp.exp(top - xp.where(t == -math.inf, top, t)) for t in tops]\n"
                "    parts = [exponentials[..., 32 * n : 32 * n + 32] * r for n, r in enumerate(late)] or [exponentials]\n"
                "    weights = xp.concatenate(parts, axis=-1) / xp.where(total == 0, 1.0, total)",
            ),
        ),
        "lengths",
        others=(("32", "16"), ("32", "64"), ("32", "128")),
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
        "query_gradient_unscaled",
        "In the backward pass the query's gradient is not multiplied by the scale.",
        (
            (
                SCORES,
                "query = query / scale - (query / scale).detach() + query.detach() if scale else query\n    " + SCORES,
            ),
        ),
        "gradients",
        frameworks=("torch",),
        alone=True,
    ),
    Entry(
        "key_gradient_unscaled",
        "In the backward pass the key's gradient is not multiplied by the scale.",
        (
            (
                SCORES,
                "key = key / scale - (key / scale).detach() + key.detach() if scale else key\n    " + SCORES,
            ),
        ),
        "gradients",
        frameworks=("torch",),
        alone=True,
    ),
    Entry(
        "softmax_gradient_without_sum",
        "The softmax's gradient leaves out the row's sum: each weight is taken for an exponential of its own.",
        (
            ("exponentials = xp.exp(scores - top)", "exponentials = xp.exp(scores - top.detach())"),
            (WEIGHTS, WEIGHTS.replace("1.0, total)", "1.0, total.detach())")),
        ),
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
    Entry(
        "empty_rows_cleared_at_the_end",
        "An empty row's NaN is replaced by 0 in the output: the output is right, and the gradient of the values is NaN.",
        (
            (WEIGHTS, "weights = xp.softmax(scores, -1)"),
            ("    top = xp.where(top == -math.inf, 0.0, top)  # a row without keys\n", ""),
            (WEIGHTED, "output = xp.nan_to_num(kept @ value)"),
            (BLOCK, ""),
        ),
        "gradients of empty rows",
        "https://github.com/pytorch/pytorch/pull/196170",
        frameworks=("torch",),
        alone=True,
    ),
)

ENTRIES = (*WRITTEN, *LAYOUT, *LENGTHS, *STATE, *DROPOUTS, *RETURNED, *GRADIENTS)

__all__ = ["BLOCK", "ENTRIES"]
