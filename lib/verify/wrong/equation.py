"""Wrong in the equation: the axis, the scale, the softmax, what comes back."""

from lib.verify.wrong.entry import Entry

TOP = "top = xp.amax(scores, axis=-1, keepdims=True) if S else scores.sum(axis=-1, keepdims=True)"
TOTAL = "total = exponentials.sum(axis=-1, keepdims=True)"
DEFAULT = "scale = 1 / math.sqrt(max(E, 1))"
SCORES = "scores = (query * scale) @ key.swapaxes(-1, -2)"
RETURN = "return (output, narrow(as_weights(weights, output), dtype)) if return_weights else output"


def over(axis: str) -> tuple[tuple[str, str], ...]:
    """Take the softmax over another axis."""
    return (
        (TOP, f"top = xp.amax(scores, axis={axis}, keepdims=True) if S else scores.sum(axis=-1, keepdims=True)"),
        (TOTAL, f"total = exponentials.sum(axis={axis}, keepdims=True)"),
    )


AXIS = (
    Entry(
        "softmax_over_queries",
        "The softmax runs over the queries' axis: each key's weights sum to one, not each query's.",
        over("-2"),
        "axis",
        "https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/146",
    ),
    Entry(
        "softmax_over_all_pairs",
        "The softmax runs over queries and keys at once: one whole is shared out among all pairs.",
        over("(-2, -1)"),
        "axis",
        "https://github.com/PetrochukM/PyTorch-NLP/issues/2",
    ),
    Entry(
        "softmax_implicit_axis",
        "The softmax's axis is left to an old default: the last axis of matrices, but the first of 3-D and the second of 4-D arrays.",
        over("(0 if scores.ndim == 3 else 1)"),
        "batch and heads",
        "https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/52",
    ),
    Entry(
        "softmax_axis_hard_coded",
        "The softmax's axis is the number 2: right for inputs with three axes, the queries' axis for inputs with four.",
        over("min(2, scores.ndim - 1)"),
        "batch and heads",
        "https://github.com/fastnlp/fastNLP/issues/254",
    ),
    Entry(
        "one_maximum_per_head",
        "One maximum is subtracted for all queries: a query whose scores are far below it is left with nothing.",
        ((TOP, TOP.replace("axis=-1, keepdims=True) if S", "axis=(-2, -1), keepdims=True) if S and L")),),
        "axis",
        alone=True,
    ),
    Entry(
        "one_maximum_per_batch",
        "One maximum is subtracted for all entries of a batch: an entry with low scores is left with nothing.",
        (
            (
                TOP,
                TOP.replace(
                    "axis=-1, keepdims=True) if S",
                    "axis=(0, -1) if scores.ndim > 2 else -1, keepdims=True) if S and scores.shape[0]",
                ),
            ),
        ),
        "batch and heads",
        alone=True,
    ),
)

SCALE = (
    Entry(
        "unscaled",
        "The scores are not scaled: without 1/√E they grow with the head size, and the softmax saturates.",
        ((DEFAULT, "scale = 1.0"),),
        "equation",
        "https://github.com/mlc-ai/mlc-llm/pull/3426",
        alone=True,
    ),
    Entry(
        "scale_without_root",
        "The scores are divided by E, not by √E.",
        ((DEFAULT, "scale = 1 / max(E, 1)"),),
        "equation",
        alone=True,
    ),
    Entry(
        "scale_upside_down",
        "The scores are multiplied by √E: the division was turned round.",
        ((DEFAULT, "scale = math.sqrt(E)"),),
        "equation",
        "https://github.com/esceptico/perceiver-io/issues/9",
        alone=True,
    ),
    Entry(
        "scale_by_value_size",
        "The scores are divided by √Ev, the size of the values, which hides where both sizes are equal.",
        ((DEFAULT, "scale = 1 / math.sqrt(max(value.shape[-1], 1))"),),
        "equation",
        "https://github.com/cneuralnetwork/solving-ml-papers/issues/1",
    ),
    Entry(
        "scale_by_embedding_size",
        "The scores are divided by the root of the whole embedding, H · E, not of one head's size E.",
        ((DEFAULT, "scale = 1 / math.sqrt(max(E * (query.shape[-3] if query.ndim > 2 else 1), 1))"),),
        "batch and heads",
        "https://github.com/lucidrains/vit-pytorch/issues/65",
    ),
    Entry(
        "scale_by_number_of_keys",
        "The scores are divided by √S, the number of keys.",
        ((DEFAULT, "scale = 1 / math.sqrt(max(S, 1))"),),
        "equation",
    ),
    Entry(
        "scale_by_number_of_queries",
        "The scores are divided by √L, the number of queries: the wrong entry of the query's shape.",
        ((DEFAULT, "scale = 1 / math.sqrt(max(L, 1))"),),
        "axis",
    ),
    Entry(
        "scores_negated",
        "The scores have the wrong sign: the key that fits least gets the most weight.",
        ((SCORES, "scores = -(query * scale) @ key.swapaxes(-1, -2)"),),
        "equation",
    ),
    Entry(
        "scale_lost_when_long",
        "From 65 keys on the scores are not scaled: another path is taken, and it has forgotten the scale.",
        ((DEFAULT, "scale = 1.0 if S > 64 else 1 / math.sqrt(max(E, 1))"),),
        "lengths",
        alone=True,
        others=(("64", "32"), ("64", "128"), ("64", "256"), ("64", "512")),
    ),
    Entry(
        "scaled_twice",
        "The default scale is applied to the query and to the key: the scores are divided by E.",
        ((SCORES, "scores = (query * scale) @ (key * scale).swapaxes(-1, -2)"),),
        "scale",
    ),
    Entry(
        "scale_ignored",
        "A given scale is not used: the default is.",
        (("    if scale is None:\n        " + DEFAULT, "    " + DEFAULT),),
        "scale",
    ),
    Entry(
        "scale_zero_means_default",
        "A scale of 0 is taken for none: `scale or default` where `is None` was meant.",
        (("    if scale is None:\n        " + DEFAULT, "    scale = scale or 1 / math.sqrt(max(E, 1))"),),
        "scale",
        alone=True,
    ),
    Entry(
        "scale_divides",
        "A given scale divides the scores; it should multiply them.",
        (
            (
                "    if scale is None:\n        " + DEFAULT,
                "    scale = 1 / math.sqrt(max(E, 1)) if scale is None else 1 / scale if scale else 0.0",
            ),
        ),
        "scale",
    ),
    Entry(
        "scale_on_top_of_default",
        "A given scale is multiplied with the default, which it should replace.",
        (
            (
                "    if scale is None:\n        " + DEFAULT,
                "    scale = (1.0 if scale is None else scale) / math.sqrt(max(E, 1))",
            ),
        ),
        "scale",
    ),
)

SOFTMAX = (
    Entry(
        "query_ignored",
        "The query takes no part: all weights are equal, and the output is the plain mean of the values.",
        ((SCORES, "scores = (query * 0.0) @ key.swapaxes(-1, -2)"),),
        "equation",
    ),
    Entry(
        "key_reshaped_for_transpose",
        "The key is reshaped to (E, S) where a transpose was meant: numbers of different keys are mixed.",
        ((SCORES, "scores = (query * scale) @ key.reshape(*key.shape[:-2], E, S)"),),
        "equation",
        "https://github.com/rish-16/tokenlearner-pytorch/issues/1",
    ),
    Entry(
        "query_and_key_swapped",
        "Where there are as many queries as keys, query and key are swapped: the scores are transposed.",
        ((SCORES, SCORES + "\n    scores = scores.swapaxes(-1, -2) if L == S else scores"),),
        "equation",
    ),
    Entry(
        "key_and_value_swapped",
        "Key and value are swapped where their sizes allow it: the query is compared with the values.",
        ((SCORES, "key, value = (value, key) if value.shape == key.shape else (key, value)\n    " + SCORES),),
        "equation",
    ),
    Entry(
        "weights_turned_when_square",
        "Where there are as many queries as keys the weights are transposed before they meet the values.",
        (("output = kept @ value  # (..., L, Ev)", "output = (kept.swapaxes(-1, -2) if L == S else kept) @ value"),),
        "axis",
    ),
    Entry(
        "softmax_missing",
        "There is no softmax: the scores themselves weigh the values.",
        (("weights = exponentials / xp.where(total == 0, 1.0, total)", "weights = xp.where(allowed, scores, 0.0)"),),
        "sum to one",
    ),
    Entry(
        "not_normalised",
        "The exponentials are not divided by their sum.",
        (("weights = exponentials / xp.where(total == 0, 1.0, total)", "weights = exponentials"),),
        "sum to one",
    ),
    Entry(
        "softmax_twice",
        "The softmax is applied twice: the weights are pulled towards equal shares.",
        (
            (
                "    kept = drop",
                "    again = xp.where(allowed, xp.exp(weights), 0.0)\n    share = again.sum(axis=-1, keepdims=True)\n    weights = again / xp.where(share == 0, 1.0, share)\n    kept = drop",
            ),
        ),
        "equation",
    ),
    Entry(
        "sigmoid_for_softmax",
        "Each score goes through a sigmoid alone: the weights of a row do not share out a whole.",
        (("weights = exponentials / xp.where(total == 0, 1.0, total)", "weights = 1 / (1 + xp.exp(-scores))"),),
        "sum to one",
    ),
    Entry(
        "all_to_the_best",
        "The key with the largest score takes all: an argmax stands where the softmax should.",
        ((TOTAL, "exponentials = xp.where(scores == top, exponentials, 0.0)\n    " + TOTAL),),
        "equation",
    ),
    Entry(
        "softmax_plus_one",
        "One is added to the sum of the exponentials, so that the weights of a row sum to less than one.",
        ((TOTAL, "total = exponentials.sum(axis=-1, keepdims=True) + xp.exp(-top)"),),
        "sum to one",
    ),
    Entry(
        "epsilon_in_denominator",
        "A small number is added to the sum of the exponentials: the weights of a row do not quite sum to one.",
        ((TOTAL, TOTAL + " + 1e-8"),),
        "sum to one",
        alone=True,
        others=tuple(("1e-8", f"1e-{n}") for n in (3, 4, 5, 6, 7, 9, 10)),
    ),
    Entry(
        "query_normalised",
        "The query is brought to unit length first: how sure it is can no longer show.",
        (
            (
                SCORES,
                "size = xp.sqrt((query * query).sum(axis=-1, keepdims=True))\n    scores = (query / xp.where(size == 0, 1.0, size) * scale) @ key.swapaxes(-1, -2)",
            ),
        ),
        "equation",
    ),
)

RESULT = (
    Entry(
        "forgets_to_return",
        "The function computes everything and gives back nothing: the `return` is missing.",
        ((RETURN, "result = (output, weights) if return_weights else output  # and no return"),),
        "runs",
        alone=True,
    ),
    Entry(
        "returns_a_list",
        "The function gives back nested lists: an array was wanted.",
        ((RETURN, "return output.tolist()"),),
        "runs",
    ),
    Entry(
        "returns_float64",
        "The output is float64 whatever came in: memory doubles, and the next layer meets another dtype.",
        (("output = narrow(output, dtype)", "output = cast(output, 'float64')"),),
        "shape and dtype",
        alone=True,
    ),
    Entry(
        "returns_float32",
        "The output is float32 whatever came in: half precision is widened and float64 is cut.",
        (("output = narrow(output, dtype)", "output = cast(output, 'float32')"),),
        "shape and dtype",
    ),
    Entry(
        "output_transposed",
        "The output is transposed: values' size first, queries last.",
        (("output = narrow(output, dtype)", "output = narrow(output, dtype).swapaxes(-1, -2)"),),
        "shape and dtype",
    ),
    Entry(
        "output_squeezed",
        "Axes of size 1 are squeezed away: a single query or head changes the output's shape.",
        (("output = narrow(output, dtype)", "output = narrow(output, dtype).squeeze()"),),
        "sizes 0 and 1",
    ),
    Entry(
        "scaled_by_length",
        "The output is divided by the number of keys once more: a mean of what is already an average.",
        (("output = narrow(output, dtype)", "output = narrow(output / max(S, 1), dtype)"),),
        "sum to one",
    ),
    Entry(
        "no_keys_give_nan",
        "Without any key the output is NaN; it should be 0.",
        (("output = narrow(output, dtype)", "output = narrow(output if S else output + math.nan, dtype)"),),
        "sizes 0 and 1",
        "https://github.com/Dao-AILab/flash-attention/pull/2568",
        alone=True,
    ),
)

ENTRIES = (*AXIS, *SCALE, *SOFTMAX, *RESULT)
