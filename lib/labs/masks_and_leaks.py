"""Lab 2: masks as yes or no for each pair, the query that sees nothing, and a test for leaks."""

from collections.abc import Callable

import numpy as np

from lib import reference
from lib.labs import blocks
from lib.labs.form import Call, Exercise, Mistake, Property
from lib.labs.parts import call, qkv, untouched
from lib.labs.softmax_and_attention import TIMES_ZERO, plain_softmax, right_scores, row_sums
from lib.verify.probe import numbers, some_mask

# The masked softmax


def hide(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Put −∞ where the mask says no."""
    return np.where(mask, scores, -np.inf)


def hidden_pairs(rng: np.random.Generator) -> list[Call]:
    """Ask with masks that hide other keys from each query, and leave each query one."""
    fixed = [
        call(scores=[[0.0, 0.0]], mask=[[True, False]]),
        call(scores=[[0.0, 0.0], [0.0, 0.0]], mask=[[True, False], [True, True]]),
        call(scores=[[0.0, 1.0]], mask=[[True, True]]),
    ]
    sizes = enumerate(((2, 3), (3, 3), (3, 2), (4, 4), (2, 5)))
    seeds = [int(seed) for seed in rng.integers(1000, size=5)]
    return [*fixed, *(call(scores=numbers(rng, L, S), mask=some_mask(seeds[n], L, S)) for n, (L, S) in sizes)]


def loud_pairs(rng: np.random.Generator) -> list[Call]:
    """Ask with hidden scores far above, and with allowed scores far below any fill."""
    loud = call(scores=[[0.0, 1000.0]], mask=[[True, False]])
    low = call(scores=[[-1e5, 0.0]], mask=[[True, False]])
    both = call(scores=[[-1e10, 0.0], [-1e10, -1e10]], mask=[[True, False], [True, True]])
    return [loud, low, low.change(scores=np.array([[-1e10, 0.0]])), both]


def too_late(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Hide after the softmax, and share out anew."""
    weights = plain_softmax(scores) * mask
    return weights / row_sums(weights)


def fill(name: str, words: str, number: float) -> Mistake:
    """Make the mistake of a fill that some scores undercut."""
    return Mistake(
        name,
        f"your hidden scores become {words}, which is low, but not below every score.",
        "What if an allowed score is lower still? Which number is below all of them?",
        lambda scores, mask: plain_softmax(np.where(mask, scores, number)),
    )


SQUARE = "Row i of the mask is about query i, column j about key j, as in the scores."
MASKED_SOFTMAX = Exercise(
    "masked_softmax",
    lambda scores, mask: reference.softmax(hide(scores, mask)),
    (
        Property(
            "hidden pairs",
            "Where the mask is False the weight is 0, and the allowed keys of that query share out the whole.",
            hidden_pairs,
            "Take one row. Cross out its hidden keys on paper: what are the weights of those that are left?",
            2,
        ),
        Property(
            "loud hidden keys",
            "However large a hidden score is, and however low the allowed ones are, the allowed keys share the whole.",
            loud_pairs,
            "Which number is below every score, and gives exp = 0 exactly?",
        ),
        untouched(hidden_pairs, "scores and mask"),
    ),
    (
        Mistake(
            "mask_inverted",
            "your mask works the other way round: True hides where it should allow.",
            "True means: may attend. Which entries should be changed?",
            lambda scores, mask: plain_softmax(np.where(mask, -np.inf, scores)),
        ),
        Mistake(
            "mask_ignored",
            "your mask changes nothing: the hidden keys keep their weights.",
            "Is the result of the masking kept? np.where gives a new array; the old one stays as it was.",
            lambda scores, mask: plain_softmax(scores),
        ),
        Mistake(
            "mask_after_softmax",
            "your mask acts after the softmax: hidden weights are 0, and the rest no longer sums to one.",
            "What do your rows sum to? Where would the mask have to act for 1?",
            lambda scores, mask: plain_softmax(scores) * mask,
        ),
        Mistake(
            "shared_out_anew",
            "your weights are shared out anew after the softmax, but a loud hidden key has left only 0 to share.",
            "With the mask before the softmax, the hidden score takes no part in the maximum either.",
            too_late,
        ),
        Mistake(
            "mask_multiplies_scores",
            "your hidden scores become 0, and exp(0) is 1: a hidden key keeps a weight.",
            "Which score has the exponential 0?",
            lambda scores, mask: plain_softmax(scores * mask),
        ),
        Mistake(
            "mask_added_as_number",
            "your mask is added as a number: True counts 1, False 0, and nothing is hidden.",
            "A mask chooses. Which function chooses between two arrays?",
            lambda scores, mask: plain_softmax(scores + mask),
        ),
        fill("fill_minus_1e4", "a number such as -1000 or -10000", -1e4),
        fill("fill_minus_1e9", "a number such as -1e9", -1e9),
        Mistake(
            "fill_infinity",
            "your hidden scores become +∞, and ∞ minus ∞ is NaN.",
            "Which of the two infinities has the exponential 0?",
            lambda scores, mask: plain_softmax(np.where(mask, scores, np.inf)),
        ),
        Mistake(
            "infinity_times_zero",
            TIMES_ZERO,
            "Choose, and do not multiply: which function takes one number where the mask is True, another elsewhere?",
            lambda scores, mask: plain_softmax(scores + (1 - mask) * -np.inf),
        ),
        Mistake(
            "first_row_for_all",
            "every query gets the first query's row of the mask.",
            SQUARE,
            lambda scores, mask: plain_softmax(hide(scores, mask[:1])),
        ),
        Mistake(
            "hidden_for_all",
            "a key that is hidden from one query is hidden from all.",
            SQUARE,
            lambda scores, mask: plain_softmax(hide(scores, mask.all(axis=0))),
        ),
        Mistake(
            "mask_transposed",
            "your mask is transposed: its rows are taken for columns.",
            SQUARE,
            lambda scores, mask: plain_softmax(hide(scores, mask.T)),
        ),
        Mistake(
            "wrong_axis",
            "your softmax runs down the columns: each column sums to one.",
            "Who shares out a whole: each query, or each key?",
            lambda scores, mask: plain_softmax(hide(scores, mask).T).T,
        ),
        Mistake(
            "not_normalised",
            "your exponentials are not divided by their sum.",
            "What should a row of weights sum to?",
            lambda scores, mask: np.exp(hide(scores, mask)),
        ),
        Mistake(
            "no_maximum",
            "exp is taken of the scores as they are: exp(-100000) is 0 for every key of a row.",
            "What did your softmax of lab 1 subtract first?",
            lambda scores, mask: np.exp(hide(scores, mask)) / row_sums(np.exp(hide(scores, mask))),
        ),
    ),
    ("weights (L, S)",),
    {"scores": "LS", "mask": "LS"},
    proper=lambda scores, mask: bool(mask.any(axis=-1).all()),
)

# Masks from positions


def numbered(mask: Callable) -> Mistake:
    """Make the mistake of a mask of numbers."""
    return Mistake(
        "numbers",
        "the mask holds numbers, 1 and 0, where True and False are wanted.",
        "~mask and np.where ask for booleans. What is the dtype of a comparison such as j <= i?",
        lambda *arguments: mask(*arguments) * 1.0,
    )


def as_bias(mask: Callable) -> Mistake:
    """Make the mistake of a mask to be added."""
    return Mistake(
        "bias",
        "this is a bias, to be added: 0 where allowed, −∞ where not. A mask says True and False.",
        "Which comparison of positions is True exactly where a query may attend?",
        lambda *arguments: np.where(mask(*arguments), 0.0, -np.inf),
    )


def turned(mask: Callable) -> Mistake:
    """Make the mistake of the other polarity."""
    return Mistake(
        "inverted",
        "True and False are swapped: True stands where a query must not look.",
        "True means: may attend. May a query attend to its own position?",
        lambda *arguments: ~mask(*arguments),
    )


def positions(L: int) -> tuple[np.ndarray, np.ndarray]:
    """Give the queries' positions as a column and the keys' as a row."""
    return np.arange(L)[:, None], np.arange(L)[None, :]


def causal(L: int) -> np.ndarray:
    """See oneself and what came before."""
    i, j = positions(L)
    return j <= i


def lengths_up_to(rng: np.random.Generator) -> list[Call]:
    """Ask for some numbers of positions."""
    return [call(L=L) for L in (1, 2, 3, 4, int(rng.integers(5, 12)))]


def before(L: int, diagonal: int) -> np.ndarray:
    """Give a lower triangle up to a diagonal."""
    return np.tril(np.ones((L, L), bool), diagonal)


CAUSAL = Exercise(
    "causal_mask",
    causal,
    (
        Property(
            "itself and before",
            "Query i may attend to key j exactly where j is i or smaller.",
            lengths_up_to,
            "Draw the mask for L = 3: which of its nine entries are True?",
            2,
        ),
    ),
    (
        Mistake(
            "strict",
            "a query does not see its own position, and the first one sees nothing.",
            "Smaller, or smaller or equal?",
            lambda L: before(L, -1),
        ),
        Mistake(
            "one_too_far",
            "a query sees the next position, too: the diagonal is one too far.",
            "May query 0 see key 1?",
            lambda L: before(L, 1),
        ),
        Mistake(
            "reversed",
            "a query sees the future and not the past: the triangle is the upper one.",
            "Rows are queries: which entries of row 0 may be True?",
            lambda L: before(L, 0).T,
        ),
        Mistake(
            "everything",
            "every query sees every key.",
            "May query 0 see key 1?",
            lambda L: np.ones((L, L), bool),
        ),
        Mistake(
            "itself_only",
            "a query sees its own position and nothing else.",
            "What about the positions before?",
            lambda L: np.eye(L, dtype=bool),
        ),
        turned(causal),
        numbered(causal),
        as_bias(causal),
        Mistake(
            "one_row",
            "this is one row; every query needs a row of its own.",
            "A column of L positions compared with a row of L positions gives (L, L).",
            lambda L: np.arange(L) <= L - 1,
        ),
    ),
    ("mask (L, L)",),
)


def padding(lengths: np.ndarray, S: int) -> np.ndarray:
    """Allow the first keys of each sentence."""
    return np.arange(S)[None, :] < lengths[:, None]


def some_lengths(rng: np.random.Generator) -> list[Call]:
    """Ask with sentences of different lengths, full ones among them."""
    fixed = [call(lengths=[1], S=2), call(lengths=[2], S=2), call(lengths=[2, 1], S=3), call(lengths=[1, 3, 2], S=3)]
    return [*fixed, *(call(lengths=rng.integers(1, S + 1, size=B), S=S) for B, S in ((4, 5), (2, 6), (3, 4)))]


PADDING = Exercise(
    "padding_mask",
    padding,
    (
        Property(
            "real keys only",
            "Row b is True for the first lengths[b] positions and False for the padding behind them.",
            some_lengths,
            "A sentence of length 1: which positions hold words? Which number has the first padded one?",
            2,
        ),
        untouched(some_lengths, "lengths"),
    ),
    (
        Mistake(
            "one_too_many",
            "one padded position is allowed in each row: positions count from 0.",
            "A sentence of length 2 has its words at positions 0 and 1. May position 2 be seen?",
            lambda lengths, S: np.arange(S)[None, :] <= lengths[:, None],
        ),
        Mistake(
            "one_too_few",
            "the last word of each sentence is hidden, too.",
            "A sentence of length 2 has its words at positions 0 and 1.",
            lambda lengths, S: np.arange(S)[None, :] < lengths[:, None] - 1,
        ),
        Mistake(
            "padding_in_front",
            "the padding stands in front: the last positions are allowed.",
            "Where do the words of a short sentence stand in this lab: at the start, or at the end?",
            lambda lengths, S: np.arange(S)[None, :] >= S - lengths[:, None],
        ),
        Mistake(
            "first_length_for_all",
            "every sentence gets the length of the first one.",
            "Each row of the mask is another sentence. Where does your function look up its length?",
            lambda lengths, S: np.tile(np.arange(S) < lengths[0], (len(lengths), 1)),
        ),
        Mistake(
            "last_word_only",
            "only the last word of each sentence is allowed.",
            "Equal, or smaller?",
            lambda lengths, S: np.arange(S)[None, :] == lengths[:, None] - 1,
        ),
        Mistake(
            "transposed",
            "the mask is transposed: a row for each position, a column for each sentence.",
            "Which axis comes first in (B, S)?",
            lambda lengths, S: padding(lengths, S).T,
        ),
        Mistake(
            "side_by_side",
            "positions and lengths are compared side by side, entry by entry: no row belongs to a sentence.",
            "A row of positions compared with a column of lengths gives (B, S). What makes lengths a column?",
            lambda lengths, S: np.arange(S) < lengths,
        ),
        turned(padding),
        numbered(padding),
        as_bias(padding),
    ),
    ("mask (B, S)",),
    {"lengths": "B"},
)


def window(L: int, left: int) -> np.ndarray:
    """See oneself and ``left`` positions before."""
    i, j = positions(L)
    return (j <= i) & (j >= i - left)


def some_windows(rng: np.random.Generator) -> list[Call]:
    """Ask for windows of no, of one and of more keys, and for one wider than the sentence."""
    drawn = (int(rng.integers(6, 12)), int(rng.integers(2, 5)))
    return [call(L=L, left=left) for L, left in ((2, 0), (2, 1), (3, 1), (4, 2), (5, 1), (3, 9), drawn)]


def sliced(L: int, left: int) -> np.ndarray:
    """Slice each row from i - left on, which may be negative."""
    mask = np.zeros((L, L), bool)
    for i in range(L):
        mask[i, i - left : i + 1] = True
    return mask


WINDOW = Exercise(
    "window_mask",
    window,
    (
        Property(
            "a window behind",
            "Query i may attend to itself and to the `left` keys before it: to nothing earlier and nothing later.",
            some_windows,
            "Two conditions: how early may j be, and how late? Write down the row of the last query for this example.",
            2,
        ),
    ),
    (
        Mistake(
            "counts_itself",
            "the query itself is counted among the `left` keys: the window is one too short.",
            "With left = 0, what does a query see: nothing, or itself?",
            lambda L, left: causal(L) & (positions(L)[1] > positions(L)[0] - left),
        ),
        Mistake(
            "one_too_wide",
            "the window reaches one key too far back.",
            "With left = 0, what does a query see?",
            lambda L, left: window(L, left + 1),
        ),
        Mistake(
            "both_sides",
            "the window reaches to the right as well: the future is in it.",
            "A distance has no sign. How late may a key be?",
            lambda L, left: window(L, left) | window(L, left).T,
        ),
        Mistake(
            "right_side_open",
            "the window has no right side: a query sees all keys after it.",
            "You ask how early a key may be. And how late?",
            lambda L, left: positions(L)[1] >= positions(L)[0] - left,
        ),
        Mistake(
            "left_side_open",
            "the window has no left side: a query sees all keys before it.",
            "You ask how late a key may be. And how early?",
            lambda L, left: causal(L),
        ),
        Mistake(
            "reversed",
            "the window looks forward where it should look back.",
            "Rows are queries. Which keys may the first query see?",
            lambda L, left: window(L, left).T,
        ),
        Mistake(
            "itself_left_out",
            "a query does not see its own position.",
            "With left = 0, what does a query see: nothing, or itself?",
            lambda L, left: window(L, left) & ~np.eye(L, dtype=bool),
        ),
        Mistake(
            "one_of_the_two",
            "the two conditions are joined by or: one of them is enough, and nearly everything is allowed.",
            "Must a key be late enough and early enough, or is one of the two enough?",
            lambda L, left: causal(L) | (positions(L)[1] >= positions(L)[0] - left),
        ),
        Mistake(
            "counted_from_the_end",
            "where i - left is below 0, a slice counts from the end of the row: the first queries see nothing.",
            "Which is the first key that query 0 may see? What keeps a number from falling below 0?",
            sliced,
        ),
        turned(window),
        numbered(window),
        as_bias(window),
    ),
    ("mask (L, L)",),
)

# The query that sees nothing


def right_safe(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray) -> tuple:
    """Give output (L, Ev) and weights (L, S); a query without keys gives 0."""
    return reference.attention(query, key, value, mask=mask, return_weights=True)


def full_rows(rng: np.random.Generator) -> list[Call]:
    """Ask with masks that leave each query a key."""
    card = call(query=[[0.0]], key=[[0.0], [0.0]], value=[[2.0], [8.0]], mask=[[True, False]])
    two = card.change(query=np.zeros((2, 1)), mask=np.array([[True, False], [True, True]]))
    sizes = enumerate(((2, 3, 4, 2), (3, 3, 3, 3), (3, 4, 9, 2), (2, 2, 4, 1)))
    drawn = [qkv(rng, *size, mask=some_mask(int(rng.integers(1000)), *size[:2])) for _, size in sizes]
    return [card, two, *drawn]


def empty_rows(rng: np.random.Generator) -> list[Call]:
    """Ask with one query that sees nothing, among others and alone."""
    alone = call(query=[[0.0]], key=[[0.0], [0.0]], value=[[2.0], [8.0]], mask=[[False, False]])
    second = alone.change(query=np.zeros((2, 1)), mask=np.array([[True, True], [False, False]]))
    drawn = []
    for size in ((3, 3, 4, 2), (4, 2, 4, 3)):
        mask = some_mask(int(rng.integers(1000)), *size[:2])
        mask[1] = False
        drawn.append(qkv(rng, *size, mask=mask))
    return [alone, second, *drawn]


def safely(weigh: Callable) -> Callable:
    """Make an attention that gets its weights from scaled scores and mask in a way of its own."""

    def does(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray) -> tuple:
        weights = weigh(right_scores(query, key), mask)
        return weights @ value, weights

    return does


def unless_empty(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Drop the mask of a query that would see nothing."""
    return plain_softmax(np.where(mask.any(axis=-1, keepdims=True), hide(scores, mask), scores))


def output_only(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray) -> tuple:
    """Repair the output and leave NaN among the weights."""
    weights = plain_softmax(hide(right_scores(query, key), mask))
    return np.nan_to_num(weights @ value), weights


def cleared(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Clear all weights where one query sees nothing."""
    return plain_softmax(hide(scores, mask)) if mask.any(axis=-1).all() else np.zeros(scores.shape)


def only_if_all_are_empty(nothing: Callable) -> Callable:
    """Make an attention that looks only whether the whole mask is empty, and gives ``nothing(scores, value)`` there."""

    def does(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray) -> tuple:
        scores = right_scores(query, key)
        if not mask.any():
            return nothing(scores, value)
        weights = plain_softmax(hide(scores, mask))
        return weights @ value, weights

    return does


def wrong_rows_cleared(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Clear the rows that have keys."""
    weights = plain_softmax(hide(scores, mask))
    weights[mask.any(axis=-1)] = 0
    return weights


ONE_OR_EACH = "mask.any() is one answer for the whole mask. Which axis gives each query its own?"
WHOLE_MASK = "your function looks whether the whole mask is empty: one row without keys, among others, still gives NaN."
SAFE = Exercise(
    "safe_attention",
    right_safe,
    (
        Property(
            "rows with keys",
            "Where a query may see a key, attention is what it was: hidden weights are 0, and the others sum to one.",
            full_rows,
            "Print scores, weights and output for this example, with their shapes.",
            2,
        ),
        Property(
            "rows without keys",
            "A query that may attend to nothing gets weights 0 and output 0, and the other queries notice nothing.",
            empty_rows,
            "Follow the row without keys: what is its maximum, and what is its sum?",
            2,
        ),
        untouched(lambda rng: [*full_rows(rng), *empty_rows(rng)]),
    ),
    (
        Mistake(
            "empty_rows_nan",
            "the row without keys gives NaN: its maximum is −∞, and −∞ minus −∞ is no number.",
            "Which two steps of the softmax go wrong in that row? What could stand in for maximum and sum?",
            safely(lambda scores, mask: plain_softmax(hide(scores, mask))),
        ),
        Mistake(
            "empty_rows_mean",
            "a large negative number stands where −∞ should: in a row without keys all are equal, and all get a share.",
            "How can a row know that it has no key? The mask says so before any score does.",
            safely(lambda scores, mask: plain_softmax(np.where(mask, scores, -1e9))),
        ),
        Mistake(
            "empty_rows_see_all",
            "a query that may see nothing sees everything: its mask is dropped.",
            "What should its weights be?",
            safely(unless_empty),
        ),
        Mistake(
            "weights_stay_nan",
            "your output is repaired, but the weights still hold NaN.",
            "At which step does the first NaN appear? Mend it there.",
            output_only,
        ),
        Mistake(
            "whole_mask_only",
            WHOLE_MASK,
            ONE_OR_EACH,
            only_if_all_are_empty(lambda scores, value: (np.zeros((len(scores), value.shape[-1])), 0 * scores)),
        ),
        Mistake(
            "whole_mask_only",
            WHOLE_MASK,
            ONE_OR_EACH,
            only_if_all_are_empty(lambda scores, value: (0, 0)),
        ),
        Mistake(
            "wrong_rows_cleared",
            "the rows that have keys are set to 0, and those without keep their NaN.",
            "mask.any(axis=-1) is True for a query with a key. Which queries should get 0?",
            safely(wrong_rows_cleared),
        ),
        Mistake(
            "empty_row_clears_all",
            "one query without keys clears the weights of all the others.",
            "any() or all() over the whole mask is one answer. Each query needs its own.",
            safely(cleared),
        ),
        Mistake(
            "mask_inverted",
            "your mask works the other way round: True hides where it should allow.",
            "True means: may attend.",
            safely(lambda scores, mask: reference.softmax(hide(scores, ~mask))),
        ),
        Mistake(
            "mask_inverted",
            "your mask works the other way round: True hides where it should allow.",
            "True means: may attend.",
            safely(lambda scores, mask: plain_softmax(hide(scores, ~mask))),
        ),
        Mistake(
            "mask_ignored",
            "your mask changes nothing: the hidden keys keep their weights.",
            "Is the result of the masking kept?",
            safely(lambda scores, mask: plain_softmax(scores)),
        ),
        Mistake(
            "mask_after_softmax",
            "your mask acts after the softmax: the rest of a row no longer sums to one.",
            "What do your rows sum to? Where would the mask have to act for 1?",
            safely(lambda scores, mask: plain_softmax(scores) * mask),
        ),
        Mistake(
            "unscaled",
            "your scores are not divided by the square root of E.",
            "What divides the dot products in the equation?",
            lambda query, key, value, mask: right_safe(query * np.sqrt(query.shape[-1]), key, value, mask),
        ),
        Mistake(
            "unscaled",
            "your scores are not divided by the square root of E.",
            "What divides the dot products in the equation?",
            lambda query, key, value, mask: safely(lambda scores, m: plain_softmax(hide(scores, m)))(
                query * np.sqrt(query.shape[-1]), key, value, mask
            ),
        ),
        Mistake(
            "wrong_axis",
            "your softmax runs down the columns: each column sums to one.",
            "Who shares out a whole: each query, or each key?",
            safely(lambda scores, mask: reference.softmax(hide(scores, mask), axis=0)),
        ),
        Mistake(
            "swapped",
            "your function gives back the weights first and the output second.",
            "In which order does the docstring name them?",
            lambda query, key, value, mask: right_safe(query, key, value, mask)[::-1],
        ),
    ),
    ("output (L, Ev)", "weights (L, S)"),
    {"query": "LE", "key": "SE", "value": "SV", "mask": "LS"},
)

# The leak test


def right_leaks(block: Callable, x: np.ndarray) -> bool:
    """Change the future of each position in turn, and look whether what came before it moves."""
    before = block(x.copy())
    for place in range(1, len(x)):
        changed = x.copy()
        changed[place:] += 1
        if np.abs(block(changed)[:place] - before[:place]).max() > 1e-9:
            return True
    return False


def asked_of(block: Callable, x: np.ndarray) -> Call:
    """Ask whether a block leaks."""
    name = block.__name__
    return Call({"block": block, "x": x}, {"block": name}, f"from lib.labs.blocks import {name}")


def positive(rng: np.random.Generator, L: int, E: int) -> np.ndarray:
    """Draw numbers other than 0, so that every way of changing them does change them."""
    return numbers(rng, L, E) / 2 + 1.5


def asked_of_all(*tested: Callable) -> Callable:
    """Ask about several blocks."""
    return lambda rng: [asked_of(block, positive(rng, L, 2)) for L in (3, 5) for block in tested]


def changes(change: Callable, look: Callable, places: Callable) -> Callable:
    """Make a leak test: what to change, where to look, and for which positions."""

    def does(block: Callable, x: np.ndarray) -> bool:
        before = block(x.copy())
        for place in places(len(x)):
            changed = x.copy()
            change(changed, place)
            if not np.allclose(look(block(changed), place), look(before, place), equal_nan=False):
                return True
        return False

    return does


def shift(x: np.ndarray, place: int) -> None:
    """Change a position and all that follow."""
    x[place:] += 1


def poison(x: np.ndarray, place: int) -> None:
    """Put NaN at a position and all that follow."""
    x[place:] = np.nan


def earlier(output: np.ndarray, place: int) -> np.ndarray:
    """Look at what came before."""
    return output[:place]


def every_place(L: int) -> range:
    """Try each position but the first."""
    return range(1, L)


def change_the_past(x: np.ndarray, place: int) -> None:
    """Change all that came before."""
    x[:place] += 1


def coarsely(block: Callable, x: np.ndarray) -> bool:
    """Look for large differences only."""
    before = block(x.copy())
    for place in every_place(len(x)):
        changed = x.copy()
        changed[place:] += 1
        if np.abs(block(changed)[:place] - before[:place]).max() > 1e-2:
            return True
    return False


LEAKS = Exercise(
    "leaks",
    right_leaks,
    (
        Property(
            "plain cases",
            "A block leaks if an output depends on a later input. Whoever attends to the past and to itself does not.",
            asked_of_all(
                blocks.each_alone,
                blocks.causal,
                blocks.sees_everything,
                blocks.running_mean,
                blocks.sees_the_future_only,
                blocks.near,
                blocks.mean_of_all,
            ),
            "Change one input by hand. Which outputs may move, and which may not?",
            2,
        ),
        Property(
            "small gaps",
            "A leak from one position into another is a leak, wherever it is, through a weight or through a sum.",
            asked_of_all(
                blocks.first_sees_the_second,
                blocks.last_but_one_sees_the_last,
                blocks.sees_the_next,
                blocks.masks_after_the_softmax,
                blocks.softmax_over_queries,
            ),
            "Which positions does your test change, and which outputs does it look at? Is each pair covered?",
            2,
        ),
        Property(
            "faint leaks",
            "A leak of a ten-thousandth is a leak.",
            asked_of_all(blocks.faintly, blocks.causal),
            "Which difference does your test forgive? Rounding is about 1e-16.",
        ),
        untouched(asked_of_all(blocks.causal), "x"),
    ),
    (
        Mistake(
            "own_output_counts",
            "your test says True of every block: it also looks at the output of the very position that it changes.",
            "If x[3] changes, which outputs may change with it?",
            changes(shift, lambda output, place: output, every_place),
        ),
        Mistake(
            "own_output_counts",
            "your test says True of every block: it also looks at the output of the very position that it changes.",
            "If x[3] changes, which outputs may change with it?",
            changes(shift, lambda output, place: output[: place + 1], every_place),
        ),
        Mistake(
            "past_changed",
            "your test changes the past and looks at the future: that must move in any good block.",
            "Which way must nothing flow?",
            changes(change_the_past, lambda output, place: output[place:], every_place),
        ),
        Mistake(
            "swapped",
            "True and False are swapped: you say True where nothing leaks.",
            "The name of the function is a question. What does True answer?",
            lambda block, x: not right_leaks(block, x),
        ),
        Mistake(
            "last_input_only",
            "your test changes the last input only: a leak between earlier positions is missed.",
            "The first position may see the second, and nothing else. Which input would have to change?",
            changes(shift, earlier, lambda L: [L - 1]),
        ),
        Mistake(
            "first_output_only",
            "your test looks at the first output only: a leak into later positions is missed.",
            "The last position but one may see the last. Which output would move?",
            changes(shift, lambda output, place: output[:1], lambda L: [1]),
        ),
        Mistake(
            "middle_only",
            "your test splits the sequence in one place: a leak on one side of it is missed.",
            "How many places are there to split L positions into past and future?",
            changes(shift, earlier, lambda L: [L // 2]),
        ),
        Mistake(
            "poison",
            "your test puts NaN into the future, and 0 · NaN is NaN: a weight of 0 does not stop it. A false alarm.",
            "Change the future by an ordinary number.",
            changes(poison, earlier, every_place),
        ),
        Mistake(
            "too_coarse",
            "your test forgives differences that are much larger than rounding.",
            "How large is rounding, and how large is the smallest difference that you report?",
            coarsely,
        ),
        Mistake(
            "always_false",
            "your test says False of every block: nothing is ever found.",
            "Are the two inputs that you compare really two (b = a gives one array a second name)? And is your change "
            "large enough for the comparison to see?",
            lambda block, x: False,
        ),
    ),
    ("True or False",),
    {"x": "LE"},
    kept=("x",),
    proper=lambda block, x: len(x) > 1,
)

EXERCISES = (MASKED_SOFTMAX, CAUSAL, PADDING, WINDOW, SAFE, LEAKS)
