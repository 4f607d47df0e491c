"""Lab 3: tests of attention, judged by the broken attentions that they catch."""

import numpy as np

from lib.labs.trials import Bug, Evidence, Slip, Trial


def all_of(e: Evidence, holds) -> bool:
    """Say whether something holds of every call of attention."""
    return bool(e.asked) and all(holds(call) for call in e.asked)


def equal_scores(call) -> bool:
    """Say whether each query finds all keys alike."""
    return bool(np.allclose(call.scores, call.scores[..., :1]))


def other_sizes(e: Evidence) -> bool:
    """Say whether some values have another size than the keys."""
    return any(value.shape[-1] != call.key.shape[-1] for value, call in zip(e.values, e.asked, strict=True))


# The equation

EQUATION = Trial(
    "test_equation",
    (
        Bug("output_transposed", "Whose shape is it? Give L, S, E and Ev four different sizes."),
        Bug("not_normalised", "What does a row of weights sum to?"),
        Bug("query_ignored", "Would your test notice if the query took no part?"),
        Bug("softmax_over_queries", "Along which axis must the weights sum to one, and along which not?"),
        Bug("unscaled", "What happens between the product and the softmax?"),
        Bug("scale_without_root", "How much is it, for head size 4? And for 9?"),
        Bug("scale_by_value_size", "Two sizes of your arrays may be equal by chance. Which two?"),
        Bug("query_and_key_swapped", "Some bugs need a special case: as many queries as keys, for one."),
    ),
    (
        Slip(
            "equal_scores",
            "in all your calls the scores of a query are equal, and then every scale gives the same weights.",
            "Which keys would be told apart? Hand over numbers that differ.",
            lambda e: e.lives("unscaled") and all_of(e, equal_scores),
        ),
        Slip(
            "head_size_one",
            "in all your calls E is 1, and √1 is 1.",
            "For which head size do E and √E differ?",
            lambda e: e.lives("scale_without_root") and all_of(e, lambda c: c.query.shape[-1] == 1),
        ),
        Slip(
            "sums_only",
            "your test is content with weights that are all equal: it looks at sums, and not at shares.",
            "Which key should get most? How much, exactly?",
            lambda e: e.lives("query_ignored"),
        ),
        Slip(
            "one_query",
            "in all your calls there is one query: what goes wrong between queries does not show.",
            "Which bugs need two rows to be seen?",
            lambda e: (
                e.lives("softmax_over_queries", "output_transposed", "query_and_key_swapped")
                and all_of(e, lambda c: c.query.shape[-2] == 1)
            ),
        ),
        Slip(
            "values_as_wide_as_keys",
            "in all your calls the values have the size of the keys, Ev = E.",
            "Which of the two sizes belongs into the scale? Make them differ.",
            lambda e: e.lives("scale_by_value_size") and not other_sizes(e),
        ),
        Slip(
            "never_square",
            "you never ask with as many queries as keys: a swap that only works there goes unseen.",
            "Which mistakes give an error for other shapes, and none for this one?",
            lambda e: e.lives("query_and_key_swapped") and all_of(e, lambda c: not c.square),
        ),
    ),
)

# The mask


def hides(mask: np.ndarray) -> bool:
    """Say whether a mask hides anything."""
    return not mask.all()


def one_row(mask: np.ndarray) -> bool:
    """Say whether all queries have the same row of a mask."""
    return mask.ndim < 2 or bool((mask == mask[..., :1, :]).all())


def squares(e: Evidence) -> list[np.ndarray]:
    """Give the masks of as many queries as keys."""
    return [m for m in e.masks if m.ndim >= 2 and m.shape[-1] == m.shape[-2] > 1]


MASKS = Trial(
    "test_masks",
    (
        Bug("mask_ignored", "Does a hidden key get a weight?"),
        Bug("mask_inverted", "Which keys should share the whole?"),
        Bug("mask_multiplies_scores", "Is the weight of a hidden key exactly 0, or only smaller?"),
        Bug("mask_after_softmax", "What do the weights of the allowed keys sum to?"),
        Bug("mask_first_row_for_all", "Has each query a row of its own in your mask?"),
        Bug("mask_transposed", "Rows of the mask are queries. With which shape could one take them for columns?"),
        Bug("mask_spares_itself", "May a query be kept from seeing its own position? Not by causal, but by a mask."),
        Bug("fill_minus_1e4", "How low can the score of an allowed key be?"),
    ),
    (
        Slip(
            "no_mask",
            "your test never hands over a mask.",
            "attention(query, key, value, mask=...) takes booleans (L, S): True means, may attend.",
            lambda e: not e.masks,
        ),
        Slip(
            "nothing_hidden",
            "your masks hide nothing: every entry is True.",
            "Which entry would make a difference?",
            lambda e: e.masks and not any(hides(m) for m in e.masks),
        ),
        Slip(
            "hidden_not_looked_at",
            "your test hides keys, and does not look at what they get.",
            "Which weight must be 0? Or: which value must not reach the output?",
            lambda e: e.lives("mask_ignored", "mask_inverted"),
        ),
        Slip(
            "sums_not_asked",
            "your test looks at the hidden keys only; what the allowed ones get is right for no bug in sight.",
            "If a key is hidden, who gets its share?",
            lambda e: e.lives("mask_after_softmax"),
        ),
        Slip(
            "one_row_for_all",
            "in all your masks the queries have the same row.",
            "A padding mask is like that; a mask in general is not.",
            lambda e: e.lives("mask_first_row_for_all") and all(one_row(m) for m in e.masks),
        ),
        Slip(
            "never_square",
            "you never hand over a square mask: a swap of its axes that only works there goes unseen.",
            "With as many queries as keys, is your mask the same if it is turned over?",
            lambda e: e.lives("mask_transposed") and not squares(e),
        ),
        Slip(
            "symmetric_masks",
            "your square masks are symmetric: turned over, they are the same.",
            "Hide a pair, and not its mirror image.",
            lambda e: e.lives("mask_transposed") and all((m == m.swapaxes(-1, -2)).all() for m in squares(e)),
        ),
        Slip(
            "itself_always_seen",
            "in your square masks each query sees its own position.",
            "Is that a rule of attention, or a habit of causal masks?",
            lambda e: (
                e.lives("mask_spares_itself") and all(np.diagonal(m, axis1=-2, axis2=-1).all() for m in squares(e))
            ),
        ),
        Slip(
            "small_scores",
            "your scores are small: a hidden key that gets a large negative score, and not −∞, goes unseen.",
            "Which scores must an allowed key have, to lose against −10000?",
            lambda e: e.lives("fill_minus_1e4") and all_of(e, lambda c: np.abs(c.scores).max(initial=0) < 1e4),
        ),
    ),
)

# Causal

CAUSAL = Trial(
    "test_causal",
    (
        Bug("causal_ignored", "Change the last input. Which outputs may move?"),
        Bug("causal_reversed", "Which keys may the first query see, and which the last?"),
        Bug("causal_one_too_far", "May query 0 see key 1? The very next position is the future, too."),
        Bug("causal_strict", "May a query see its own position?"),
        Bug("causal_after_softmax", "What does a row sum to, if the future is hidden?"),
        Bug("causal_dropped_with_mask", "What if causal and a mask are both asked for?"),
        Bug("causal_dropped_when_long", "How long is the longest sentence that you ask with?"),
    ),
    (
        Slip(
            "no_causal",
            "your test never asks for causal=True.",
            "Which option hides the future?",
            lambda e: not any(c.causal for c in e.asked),
        ),
        Slip(
            "one_position",
            "your causal calls have one position only: it has neither past nor future.",
            "How many positions does a leak need?",
            lambda e: all(c.query.shape[-2] < 2 for c in e.asked if c.causal),
        ),
        Slip(
            "future_not_looked_at",
            "your test asks for causal=True and passes for an attention in which the future is plain to see.",
            "Which weights must be 0? Or: which outputs must not move, when a later input changes?",
            lambda e: e.lives("causal_ignored"),
        ),
        Slip(
            "next_not_looked_at",
            "your test looks at the far future, and not at the very next position.",
            "Which is the first key that query 0 must not see?",
            lambda e: e.lives("causal_one_too_far"),
        ),
        Slip(
            "present_not_looked_at",
            "your test looks at the future, and not at what a query must see: itself.",
            "What must the first output be, exactly?",
            lambda e: e.lives("causal_strict"),
        ),
        Slip(
            "sums_not_asked",
            "your test looks at the hidden keys only, and not at what the others get.",
            "If the future is hidden, who gets its share?",
            lambda e: e.lives("causal_after_softmax"),
        ),
        Slip(
            "never_with_a_mask",
            "you never ask for causal and for a mask in one call.",
            "Options that work alone may forget each other.",
            lambda e: e.lives("causal_dropped_with_mask") and not any(c.causal and c.mask is not None for c in e.asked),
        ),
        Slip(
            "short_sentences",
            "your sentences are short: a fast path for long ones goes unseen.",
            "Which lengths change the way a program goes? Powers of two are good suspects.",
            lambda e: e.lives("causal_dropped_when_long") and all(c.query.shape[-2] <= 64 for c in e.asked if c.causal),
        ),
    ),
)

# The corners


def no_keys(mask: np.ndarray) -> bool:
    """Say whether a mask leaves some query nothing."""
    return not mask.any(axis=-1).all()


def same_entries(call) -> bool:
    """Say whether all entries of a batch are equal."""
    return call.key.ndim < 3 or bool((call.key == call.key[:1]).all())


CORNERS = Trial(
    "test_corners",
    (
        Bug("no_maximum_subtracted", "Which score is too much for exp?"),
        Bug("query_scaled_in_place", "Is what you handed over still the same after the call?"),
        Bug("returns_float64", "What goes in as float32 should come out as what?"),
        Bug("empty_rows_nan", "What does a query get that may see nothing at all?"),
        Bug("empty_row_clears_all", "One query sees nothing. What do the others get?"),
        Bug("keys_of_first_entry", "Ask with a batch. Does each entry get what it gets alone?"),
        Bug("softmax_implicit_axis", "Ask with heads. Is the last axis still the one that sums to one?"),
    ),
    (
        Slip(
            "small_scores",
            "all your scores are small: exp never overflows.",
            "From which number on is np.exp infinite?",
            lambda e: e.lives("no_maximum_subtracted") and all_of(e, lambda c: np.abs(c.scores).max(initial=0) < 700),
        ),
        Slip(
            "inputs_not_compared",
            "your test does not look at its own arrays after the call.",
            "Keep a copy. What should be equal to it afterwards?",
            lambda e: e.lives("query_scaled_in_place"),
        ),
        Slip(
            "float64_only",
            "all your arrays are float64.",
            "Models run in other dtypes. How do you ask an array for its dtype?",
            lambda e: e.lives("returns_float64") and all_of(e, lambda c: c.query.dtype == np.float64),
        ),
        Slip(
            "dtype_not_looked_at",
            "you ask with float32, and do not look at the dtype that comes back.",
            "np.allclose does not look at dtypes.",
            lambda e: e.lives("returns_float64"),
        ),
        Slip(
            "no_empty_row",
            "your test has no query that may see nothing.",
            "Which row of a mask leaves a query without keys?",
            lambda e: e.lives("empty_rows_nan", "empty_row_clears_all") and not any(no_keys(m) for m in e.masks),
        ),
        Slip(
            "nan_passes",
            "your test asks a query that may see nothing, and NaN passes it: every comparison with NaN is False.",
            "What must come out, exactly? Ask for that, and not for the opposite of something else.",
            lambda e: e.lives("empty_rows_nan"),
        ),
        Slip(
            "others_not_looked_at",
            "your test looks at the query without keys, and not at the others beside it.",
            "What must they get?",
            lambda e: e.lives("empty_row_clears_all"),
        ),
        Slip(
            "no_batch",
            "all your arrays have two axes.",
            "Leading axes are a batch, and heads: (B, H, L, E).",
            lambda e: all_of(e, lambda c: c.query.ndim == 2),
        ),
        Slip(
            "same_entries",
            "the entries of your batches are all equal: it does not show whose keys are looked at.",
            "Hand over entries that differ.",
            lambda e: e.lives("keys_of_first_entry") and all_of(e, same_entries),
        ),
        Slip(
            "entries_not_compared",
            "you ask with leading axes, and would not notice if one entry were given what another one asked for.",
            "What does each entry get if it is asked alone?",
            lambda e: e.lives("keys_of_first_entry", "softmax_implicit_axis"),
        ),
    ),
)

EXERCISES = (EQUATION, MASKS, CAUSAL, CORNERS)
