"""Lab 1: the softmax, the scores, attention, and the first mask."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lib import reference
from lib.labs.form import Call, Exercise, Mistake, Property
from lib.labs.parts import call, known, qkv, untouched
from lib.verify.probe import numbers

# The softmax


def some_scores(rng: np.random.Generator) -> list[Call]:
    """Ask with scores of everyday size; L and S differ, so that the axes can be told apart."""
    return [
        call(scores=[[0.0, 0.0]]),
        call(scores=[[0.0, 1.0]]),
        call(scores=[[0.0, 1.0], [0.0, 0.0]]),
        call(scores=[[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]),
        *(call(scores=numbers(rng, L, S)) for L, S in ((2, 3), (3, 2), (3, 3), (4, 5), (1, 6))),
        call(scores=numbers(rng, 2, 4).astype(np.float32)),
    ]


def large_scores(rng: np.random.Generator) -> list[Call]:
    """Ask with scores at which exp overflows, in one row or in all."""
    return [
        call(scores=[[1000.0, 1000.0]]),
        call(scores=[[-1000.0, -1000.0]]),
        call(scores=[[1000.0, 1000.0], [0.0, 0.0]]),
        call(scores=numbers(rng, 3, 4) + np.array([[2000.0], [0.0], [-2000.0]])),
    ]


def row_sums(x: np.ndarray) -> np.ndarray:
    """Sum each row and keep the axis."""
    return x.sum(axis=-1, keepdims=True)


def plain_softmax(scores: np.ndarray) -> np.ndarray:
    """Run along the rows; a row of −∞ gives NaN, as the usual three lines do."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / row_sums(exponentials)


SOFTMAX = Exercise(
    "softmax",
    lambda scores: reference.softmax(scores),
    (
        Property(
            "shares of each row",
            "Each row of the result is exp(score), divided by the sum of exp(score) along that row.",
            some_scores,
            "Work the example out on paper: which numbers are added up, and which number is divided by that sum?",
            2,
        ),
        Property(
            "scores of any size",
            "Scores of 1000 or -1000 give weights like any others: no NaN, no division by zero.",
            large_scores,
            "What is np.exp(1000)? Adding the same number to all scores of a row leaves its weights as they are.",
        ),
        untouched(some_scores, "scores"),
    ),
    (
        Mistake(
            "wrong_axis",
            "your sum runs down the columns (axis 0): each column sums to one, and the rows do not.",
            "In an array of shape (L, S), which axis counts the keys that one query chooses from?",
            lambda scores: np.exp(scores) / np.exp(scores).sum(axis=0, keepdims=True),
        ),
        Mistake(
            "wrong_axis",
            "your maximum and your sum run down the columns (axis 0): each column sums to one, and the rows do not.",
            "In an array of shape (L, S), which axis counts the keys that one query chooses from?",
            lambda scores: reference.softmax(scores, axis=0),
        ),
        Mistake(
            "over_everything",
            "your sum runs over the whole array: all rows together share out a single whole.",
            "sum() without an axis adds up everything. Along which axis should each query have a whole of its own?",
            lambda scores: np.exp(scores) / np.exp(scores).sum(),
        ),
        Mistake(
            "over_everything",
            "your sum runs over the whole array: all rows together share out a single whole.",
            "sum() without an axis adds up everything. Along which axis should each query have a whole of its own?",
            lambda scores: np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum(),
        ),
        Mistake(
            "no_maximum",
            "your function takes exp of the scores as they are: exp(1000) is infinite, exp(-1000) is 0.",
            "Which number could you subtract from every score of a row, so that the largest exponential is 1?",
            lambda scores: np.exp(scores) / row_sums(np.exp(scores)),
        ),
        Mistake(
            "one_maximum_for_all",
            "your function subtracts one maximum from all rows: a row far below it is left with exp(-1000) = 0.",
            "Whose largest score matters for a row?",
            lambda scores: np.exp(scores - scores.max()) / row_sums(np.exp(scores - scores.max())),
        ),
        Mistake(
            "fixed_number",
            "your function subtracts a fixed number: scores far below it all become exp(...) = 0, and 0 / 0 is NaN.",
            "One number for a whole row, yes. Which one fits a row of zeros and a row of thousands?",
            lambda scores: np.exp(scores - 1000) / row_sums(np.exp(scores - 1000)),
        ),
        Mistake(
            "maximum_of_columns",
            "your function subtracts the maximum of each column: within one row, every score loses another number.",
            "A row's weights stay the same only if all its scores lose the same number.",
            lambda scores: np.exp(scores - scores.max(axis=0)) / row_sums(np.exp(scores - scores.max(axis=0))),
        ),
        Mistake(
            "keepdims_forgotten",
            "the sums of the rows, of shape (L,), are laid along the columns when you divide by them.",
            "Which shape must the sums have, so that (L, S) divided by it uses one sum per row?",
            lambda scores: np.exp(scores) / np.exp(scores).sum(axis=-1),
        ),
        Mistake(
            "keepdims_forgotten",
            "the maxima of the rows, of shape (L,), are laid along the columns when you subtract them.",
            "Which shape must the maxima have, so that (L, S) minus it uses one maximum per row?",
            lambda scores: reference.softmax(scores - scores.max(axis=-1)),
        ),
        Mistake(
            "not_normalised",
            "your function gives the exponentials and does not divide them by their sum.",
            "What should a row of weights sum to? What do yours sum to?",
            lambda scores: np.exp(scores - scores.max(axis=-1, keepdims=True)),
        ),
        Mistake(
            "not_normalised",
            "your function gives the exponentials and does not divide them by their sum.",
            "What should a row of weights sum to? What do yours sum to?",
            lambda scores: np.exp(scores),
        ),
        Mistake(
            "no_exponential",
            "your function divides the scores themselves by their sum: there is no exp.",
            "Scores may be negative, or sum to 0. What makes a positive number of any score?",
            lambda scores: scores / row_sums(scores),
        ),
        Mistake(
            "only_the_largest",
            "your function gives everything to the largest score of a row and nothing to the others.",
            "The softmax is softer than a maximum: by how much should a score of 1 beat a score of 0?",
            lambda scores: (scores == scores.max(axis=-1, keepdims=True)) * 1.0,
        ),
        Mistake(
            "softmax_twice",
            "your weights go through the softmax a second time, which pulls them together.",
            "Follow one row by hand: how often is exp taken?",
            lambda scores: reference.softmax(reference.softmax(scores)),
        ),
        Mistake(
            "logarithm",
            "your function gives the logarithms of the weights.",
            "Can a weight be negative?",
            lambda scores: scores - scores.max() - np.log(row_sums(np.exp(scores - scores.max()))),
        ),
        Mistake(
            "sigmoid",
            "each score goes through a sigmoid alone, and the weights of a row share out nothing.",
            "When one score of a row grows, what must become of the other weights?",
            lambda scores: 1 / (1 + np.exp(-scores)),
        ),
        Mistake(
            "transposed",
            "your weights are transposed: one column for each query.",
            "The result has the shape of the scores, (L, S).",
            lambda scores: reference.softmax(scores).T,
        ),
    ),
    ("weights (L, S)",),
    {"scores": "LS"},
)

# The scores


def one_number(rng: np.random.Generator) -> list[Call]:
    """Ask with queries and keys of size 1, where the scale is 1: only the products count."""
    pairs = [
        call(query=[[1.0]], key=[[0.0], [1.0]]),
        call(query=[[0.0], [1.0], [2.0]], key=[[1.0], [3.0]]),
        call(query=[[1.0], [2.0]], key=[[1.0], [3.0]]),
    ]
    return [*pairs, *(call(query=numbers(rng, L, 1), key=numbers(rng, S, 1)) for L, S in ((3, 4), (5, 2)))]


def several_numbers(rng: np.random.Generator) -> list[Call]:
    """Ask with queries and keys of several sizes."""
    fixed = [call(query=[[1.0, 1.0, 1.0, 1.0]], key=[[1.0, 1.0, 1.0, 1.0]])]
    fixed += [call(query=[[1.0, 0.0, 0.0, 0.0]], key=[[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])]
    sizes = ((2, 3, 4), (3, 2, 9), (3, 3, 3), (2, 5, 2), (4, 4, 6), (3, 2, 4))
    return fixed + [call(query=numbers(rng, L, E), key=numbers(rng, S, E)) for L, S, E in sizes]


def right_scores(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Compare each query with each key, and scale; (L, S)."""
    return query @ key.T / np.sqrt(query.shape[-1])


def queries_twice(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Count the queries in both loops; too few keys give an error."""
    return np.array([[q @ key[j] for j in range(len(query))] for q in query]) / np.sqrt(query.shape[-1])


SCORES = Exercise(
    "scaled_scores",
    right_scores,
    (
        Property(
            "each query with each key",
            "Row i, column j of the scores is the dot product of query i and key j.",
            one_number,
            "Work out one score of the example by hand. Does your result hold that number, in the row of its query and "
            "the column of its key?",
            2,
        ),
        Property(
            "the scale",
            "The dot products are divided by the square root of E, which is how many numbers a query or a key holds.",
            several_numbers,
            "Compute the example by hand: what is the dot product, what is E, and what comes out?",
        ),
        untouched(several_numbers, "query and key"),
    ),
    (
        Mistake(
            "unscaled",
            "your scores are the dot products as they are: nothing divides them.",
            "Which step stands between the product and the softmax in the equation?",
            lambda query, key: query @ key.T,
        ),
        Mistake(
            "root_missing",
            "your scores are divided by E where the square root of E is wanted (or by the root, twice).",
            "For E = 4 the divisor is 2. What is yours?",
            lambda query, key: query @ key.T / query.shape[-1],
        ),
        Mistake(
            "scale_upside_down",
            "your scores are multiplied by the square root of E: they grow where they should shrink.",
            "Should the scores of long queries be made larger or smaller?",
            lambda query, key: query @ key.T * np.sqrt(query.shape[-1]),
        ),
        Mistake(
            "root_of_keys",
            "your scores are divided by the root of the number of keys, S.",
            "Which axis is summed over in the dot product? Its size sets the scale.",
            lambda query, key: query @ key.T / np.sqrt(key.shape[0]),
        ),
        Mistake(
            "root_of_queries",
            "your scores are divided by the root of the number of queries, L.",
            "Which axis is summed over in the dot product? Its size sets the scale.",
            lambda query, key: query @ key.T / np.sqrt(query.shape[0]),
        ),
        Mistake(
            "scale_of_four",
            "your scores are divided by 2, whatever E is.",
            "Where does your function look up how many numbers a query holds?",
            lambda query, key: query @ key.T / 2,
        ),
        Mistake(
            "not_transposed",
            "the rows of query meet the columns of key: query @ key, where each row should meet each row.",
            "Shapes (L, E) and (S, E): which axis of key must stand where, so that E meets E?",
            lambda query, key: query @ key / np.sqrt(query.shape[-1]),
        ),
        Mistake(
            "query_turned",
            "query is transposed where key should be: query.T @ key.",
            "(L, E) times which shape gives (L, S)?",
            lambda query, key: query.T @ key / np.sqrt(query.shape[-1]),
        ),
        Mistake(
            "norm_for_size",
            "your scores are divided by the norm of each query, its length as a vector.",
            "E is no norm: it counts. How many numbers does one query hold, whatever they are?",
            lambda query, key: query @ key.T / np.linalg.norm(query, axis=-1, keepdims=True),
        ),
        Mistake(
            "norm_for_size",
            "your scores are divided by the norms of query and key: they are cosines.",
            "E is no norm: it counts. How many numbers does one query hold, whatever they are?",
            lambda query, key: (
                query @ key.T / np.linalg.norm(query, axis=-1, keepdims=True) / np.linalg.norm(key, axis=-1)
            ),
        ),
        Mistake(
            "root_of_the_shape",
            "your scores are divided by the roots of the whole shape, which is a pair: one for each of two columns.",
            "query.shape is (L, E). Which of the two numbers is wanted?",
            lambda query, key: query @ key.T / np.sqrt(query.shape),
        ),
        Mistake(
            "a_column_for_each_query",
            "your result has a column for each query, where it needs one for each key.",
            "Two loops: what does each of them count?",
            queries_twice,
        ),
        Mistake(
            "transposed",
            "your scores are transposed: a row for each key, a column for each query.",
            "Rows ask, columns answer: the shape is (L, S).",
            lambda query, key: key @ query.T / np.sqrt(query.shape[-1]),
        ),
        Mistake(
            "reshaped",
            "your key is reshaped to (E, S) where a transpose was meant: numbers of different keys are mixed.",
            "Print key.reshape(E, S) for a key of two rows, next to key itself. Is a column of it one key?",
            lambda query, key: query @ key.reshape(key.shape[1], key.shape[0]) / np.sqrt(query.shape[-1]),
        ),
        Mistake(
            "elementwise",
            "query and key are multiplied number by number: nothing is added up.",
            "A dot product gives one number for two rows. Which operator does this for all pairs?",
            lambda query, key: query * key / np.sqrt(query.shape[-1]),
        ),
        Mistake(
            "already_softmax",
            "your function applies the softmax as well: it gives weights.",
            "This step ends with scores, which may be negative and sum to anything.",
            lambda query, key: reference.softmax(right_scores(query, key)),
        ),
        Mistake(
            "distances",
            "your scores are distances between queries and keys, not dot products.",
            "Which of the two is larger where query and key point the same way?",
            lambda query, key: np.linalg.norm(query[:, None] - key[None], axis=-1),
        ),
    ),
    ("scores (L, S)",),
    {"query": "LE", "key": "SE"},
)

# Attention

AXIS = "Along which axis of the weights should the sum be 1? Print both sums."
SCALE = "Check your scores against the exercise before: what divides the dot products?"
FROM_CATALOGUE = (
    known(
        "softmax_over_queries",
        "your softmax runs down the columns: each key's weights sum to one, not each query's.",
        AXIS,
    ),
    known("softmax_over_all_pairs", "your softmax runs over the whole array: all queries share one whole.", AXIS),
    known("unscaled", "your scores are not divided by the square root of E.", SCALE),
    known("scale_without_root", "your scores are divided by E where the square root of E is wanted.", SCALE),
    known("scale_upside_down", "your scores are multiplied by the square root of E.", SCALE),
    known("scale_by_value_size", "your scores are divided by the root of the values' size, Ev.", SCALE),
    known("scale_by_number_of_keys", "your scores are divided by the root of the number of keys, S.", SCALE),
    known(
        "key_reshaped_for_transpose",
        "your key is reshaped where a transpose was meant: numbers of different keys are mixed.",
        "Print key.T and key.reshape(E, S) of a key with two rows.",
    ),
    known("query_and_key_swapped", "your scores are transposed: the keys ask, and the queries answer.", "Rows ask."),
    known(
        "softmax_missing",
        "there is no softmax: the scores themselves weigh the values.",
        "What should each row of weights sum to?",
    ),
    known(
        "not_normalised", "your exponentials are not divided by their sum.", "What should each row of weights sum to?"
    ),
    known(
        "softmax_twice",
        "your weights go through the softmax twice.",
        "Does one function of yours apply a softmax already?",
    ),
    known(
        "all_to_the_best",
        "the key with the largest score takes everything.",
        "The output is an average of all values. Where do the small weights go?",
    ),
    known(
        "no_maximum_subtracted",
        "exp is taken of the scores as they are, and overflows.",
        "Your softmax of the first exercise knows what to do. Is it used here?",
    ),
    known(
        "scaled_by_length",
        "your output is divided by the number of keys once more.",
        "The weights of a row sum to one. Does their average need another division?",
    ),
    known(
        "weights_are_scores",
        "what you give back as weights are the scores before the softmax.",
        "Which of your variables sums to one along each row?",
    ),
    known(
        "weights_transposed",
        "the weights you give back are transposed.",
        "Rows ask: the weights have the shape (L, S).",
    ),
    known(
        "output_transposed", "your output is transposed.", "One row for each query: the output has the shape (L, Ev)."
    ),
)


def by(weigh: Callable) -> Callable:
    """Make an attention that gets its weights from scaled scores, and mask if there is one, in a way of its own."""

    def does(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray | None = None) -> tuple:
        scores = right_scores(query, key)
        weights = weigh(scores if mask is None else np.where(mask, scores, -np.inf))
        return weights @ value, weights

    return does


def as_written(name: str, weigh: Callable) -> Mistake:
    """Take words and hint of a mistake of the catalogue, done in the way that a short answer does it: with NaN."""
    known_one = next(mistake for mistake in FROM_CATALOGUE if mistake.name == name)
    return replace(known_one, does=by(weigh))


def softmax_of_columns(scores: np.ndarray) -> np.ndarray:
    """Run down the columns; a column of −∞ gives NaN."""
    exponentials = np.exp(scores - scores.max(axis=0))
    return exponentials / exponentials.sum(axis=0)


AS_WRITTEN = (
    as_written("softmax_over_queries", softmax_of_columns),
    as_written("softmax_over_queries", lambda scores: np.exp(scores) / np.exp(scores).sum(axis=0)),
    as_written("softmax_over_all_pairs", lambda scores: np.exp(scores) / np.exp(scores).sum()),
    as_written("not_normalised", lambda scores: np.exp(scores)),
    as_written("no_maximum_subtracted", lambda scores: np.exp(scores) / row_sums(np.exp(scores))),
)


def right_attention(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give output (L, Ev) and weights (L, S)."""
    return reference.attention(query, key, value, return_weights=True)


def swapped(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray | None = None) -> tuple:
    """Give weights and output, in the wrong order."""
    mask = None if mask is None else mask[None]
    return reference.attention(query, key, value, mask=mask, return_weights=True)[::-1]


def keys_for_values(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> tuple:
    """Average the keys."""
    return reference.attention(query, key, key, return_weights=True)


def queries_for_keys(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> tuple:
    """Compare the keys with themselves."""
    return reference.attention(key, key, value, return_weights=True)


def transposed_average(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> tuple:
    """Multiply the transposed weights with the values."""
    weights = right_attention(query, key, value)[1]
    return weights.T @ value, weights


def number_by_number(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> tuple:
    """Multiply weights and values and add nothing up."""
    weights = right_attention(query, key, value)[1]
    return weights * value, weights


def values_turned(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> tuple:
    """Multiply the weights with the transposed values."""
    weights = right_attention(query, key, value)[1]
    return weights @ value.T, weights


def some_attention(rng: np.random.Generator) -> list[Call]:
    """Ask with the card's example and with drawn numbers; L, S, E and Ev differ."""
    card = call(query=[[0.0]], key=[[0.0], [0.0]], value=[[2.0], [8.0]])
    three = call(query=[[0.0], [0.0], [0.0]], key=[[0.0], [0.0]], value=[[2.0], [8.0]])
    sizes = ((1, 2, 4, 1), (2, 3, 4, 2), (3, 2, 4, 5), (3, 3, 3, 3), (2, 2, 9, 2), (4, 5, 2, 3), (1, 3, 16, 2))
    return [card, three, *(qkv(rng, *size) for size in sizes)]


def large_attention(rng: np.random.Generator) -> list[Call]:
    """Ask with scores at which exp overflows."""
    loud = call(query=[[100.0]], key=[[100.0], [100.0]], value=[[2.0], [8.0]])
    low = call(query=[[100.0]], key=[[-100.0], [-100.0]], value=[[2.0], [8.0]])
    return [loud, low, qkv(rng, 3, 4, 4, 2).change(query=1000 * numbers(rng, 3, 4))]


ATTENTION = Exercise(
    "attention",
    right_attention,
    (
        Property(
            "weights and output",
            "The weights are the softmax of the scaled scores, and each output row is the average of the values by "
            "one row of weights.",
            some_attention,
            "Print scores, weights and output for this example, with their shapes. Which is the first that you "
            "would not have expected?",
            3,
        ),
        Property(
            "scores of any size",
            "Scores of 10000 or -10000 give weights like any others: no NaN.",
            large_attention,
            "Where is exp taken in your function, and of which numbers?",
        ),
        untouched(some_attention),
    ),
    (
        *FROM_CATALOGUE,
        *AS_WRITTEN,
        Mistake(
            "swapped",
            "your function gives back the weights first and the output second.",
            "In which order does the docstring name them?",
            swapped,
        ),
        Mistake(
            "keys_for_values",
            "your weights average the keys; the values take no part.",
            "Which of the three arrays holds what a position hands over?",
            keys_for_values,
        ),
        Mistake(
            "queries_for_keys",
            "the keys are compared with themselves; the queries take no part.",
            "Who asks?",
            queries_for_keys,
        ),
        Mistake(
            "transposed_average",
            "your weights are transposed when they meet the values.",
            "(L, S) times (S, Ev): is there anything to turn?",
            transposed_average,
        ),
        Mistake(
            "number_by_number",
            "weights and values are multiplied number by number: nothing is added up.",
            "An output row adds up the values, each times its weight. Which operator multiplies and adds?",
            number_by_number,
        ),
        Mistake(
            "values_turned",
            "your values are transposed when they meet the weights.",
            "(L, S) times (S, Ev): is there anything to turn?",
            values_turned,
        ),
        Mistake(
            "plain_mean",
            "your output is the plain average of the values, whatever the scores are.",
            "Which number of yours says how much of each value is taken?",
            lambda query, key, value: right_attention(0 * query, key, value),
        ),
    ),
    ("output (L, Ev)", "weights (L, S)"),
    {"query": "LE", "key": "SE", "value": "SV"},
)

# The first mask


def right_masked(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray) -> tuple:
    """Give output (L, Ev) and weights (L, S), with some keys hidden from every query."""
    return reference.attention(query, key, value, mask=mask[None], return_weights=True)


def hidden_keys(rng: np.random.Generator) -> list[Call]:
    """Ask with keys hidden and with all keys allowed."""
    card = call(query=[[0.0]], key=[[0.0], [0.0]], value=[[2.0], [8.0]], mask=[True, False])
    first = card.change(mask=np.array([False, True]))
    sizes = ((1, 3, 4, 1), (2, 3, 4, 2), (3, 4, 4, 2), (3, 3, 3, 3), (2, 5, 9, 3))
    masks = ((1, 0, 1), (0, 1, 1), (1, 1, 0, 0), (1, 1, 0), (0, 1, 0, 1, 0))
    drawn = [qkv(rng, *size, mask=np.array(mask, bool)) for size, mask in zip(sizes, masks, strict=True)]
    return [card, first, *drawn, qkv(rng, 2, 3, 4, 2, mask=np.ones(3, bool))]


def loud_hidden_keys(rng: np.random.Generator) -> list[Call]:
    """Ask with hidden keys that would win if they took part, with allowed scores far below any fill, and far above."""
    loud = call(query=[[1.0]], key=[[0.0], [30.0]], value=[[2.0], [8.0]], mask=[True, False])
    low = call(query=[[1e5]], key=[[-1e5], [0.0]], value=[[2.0], [8.0]], mask=[True, False])
    high = call(query=[[100.0]], key=[[100.0], [0.0]], value=[[2.0], [8.0]], mask=[True, False])
    return [loud, low.change(key=np.array([[-1.0], [0.0]])), low, high]


def masking(change: Callable, softmax: Callable = reference.softmax) -> Callable:
    """Make an attention that masks its scaled scores in a way of its own: ``change(scores, mask)``."""

    def does(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray) -> tuple:
        weights = softmax(change(right_scores(query, key), mask))
        return weights @ value, weights

    return does


def after_softmax(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray) -> tuple:
    """Set the weights of hidden keys to 0, after the softmax."""
    weights = reference.softmax(right_scores(query, key)) * mask
    return weights @ value, weights


def shared_out_anew(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray) -> tuple:
    """Set the weights of hidden keys to 0 after the softmax, and divide by what is left."""
    weights = reference.softmax(right_scores(query, key)) * mask
    weights = weights / row_sums(weights)
    return weights @ value, weights


def laid_on_rows(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Hide the rows of the scores; an error where there are not as many rows as keys."""
    hidden = scores.copy()
    hidden[~mask] = -np.inf
    return hidden


def filling(name: str, words: str, number: float) -> Mistake:
    """Make the mistake of a fill that some scores undercut."""
    return Mistake(
        name,
        f"your hidden scores become {words}, which is low, but not below every score.",
        "What if an allowed score is lower still? Which number is below all of them?",
        masking(lambda scores, mask: np.where(mask, scores, number)),
    )


BEFORE = "What should the weights of the keys that are left sum to? Where would the mask have to act for that?"
TIMES_ZERO = "the mask is multiplied by infinity, and 0 times infinity is NaN: the allowed scores are spoilt."
ZERO = "Which score has the exponential 0?"
MASKED = Exercise(
    "masked_attention",
    right_masked,
    (
        Property(
            "hidden keys",
            "A hidden key has weight 0, and the others share out the whole: as if the hidden key were not there.",
            hidden_keys,
            "Take the hidden key out of key and value by hand. Which output should remain?",
            3,
        ),
        Property(
            "loud hidden keys",
            "However large or low the scores are, those of hidden keys or of others, the others share out the whole.",
            loud_hidden_keys,
            "Which number is below every score, and gives exp = 0 exactly?",
        ),
        untouched(hidden_keys),
    ),
    (
        Mistake(
            "mask_inverted",
            "your mask works the other way round: True hides where it should allow.",
            "True means: may attend. Which entries should be changed?",
            masking(lambda scores, mask: np.where(mask, -np.inf, scores)),
        ),
        Mistake(
            "mask_ignored",
            "your mask changes nothing: the hidden keys keep their weights.",
            "Is the result of the masking kept? np.where gives a new array; the old one stays as it was.",
            masking(lambda scores, mask: scores),
        ),
        Mistake(
            "mask_after_softmax",
            "your mask acts after the softmax: hidden weights are 0, and the rest no longer sums to one.",
            BEFORE,
            after_softmax,
        ),
        Mistake(
            "mask_multiplies_scores",
            "your hidden scores become 0, or nearly 0, and exp(0) is 1: a hidden key keeps a weight.",
            ZERO,
            masking(lambda scores, mask: scores * mask),
        ),
        Mistake(
            "mask_added_as_number",
            "your mask is added as a number: True counts 1, False 0, and nothing is hidden.",
            "A mask chooses. Which function chooses between two arrays?",
            masking(lambda scores, mask: scores + mask),
        ),
        filling("fill_minus_20", "a small negative number", -20.0),
        filling("fill_minus_1e4", "a number such as -1000 or -10000", -1e4),
        filling("fill_minus_1e9", "a number such as -1e9", -1e9),
        Mistake(
            "shared_out_anew",
            "your weights are shared out anew after the softmax, but a loud hidden key has left only 0 to share.",
            "With the mask before the softmax, the hidden score takes no part in it. Where is yours?",
            shared_out_anew,
        ),
        Mistake(
            "fill_infinity",
            "your hidden scores become +∞, and ∞ minus ∞ is NaN.",
            "Which of the two infinities has the exponential 0?",
            masking(lambda scores, mask: np.where(mask, scores, np.inf), plain_softmax),
        ),
        Mistake(
            "infinity_times_zero",
            TIMES_ZERO,
            "Choose, and do not multiply: which function takes one number where the mask is True, another elsewhere?",
            masking(lambda scores, mask: scores + (1 - mask) * -np.inf, plain_softmax),
        ),
        Mistake(
            "mask_on_the_rows",
            "your mask is laid on the rows of the scores, the queries. It speaks of keys.",
            "scores[rows, columns]: which of the two are the keys?",
            masking(laid_on_rows, plain_softmax),
        ),
        Mistake(
            "key_and_value_set_to_zero",
            "hidden keys and values are set to 0: the scores become 0, and exp(0) is 1, so they keep a weight.",
            ZERO,
            lambda query, key, value, mask: right_attention(query, key * mask[:, None], value * mask[:, None]),
        ),
        Mistake(
            "keys_taken_out",
            "your function takes the hidden keys out: the output is right, but the weights lack columns.",
            "The weights have one column for each key, hidden ones too. Which number stands there?",
            lambda query, key, value, mask: right_attention(query, key[mask], value[mask]),
        ),
        Mistake(
            "values_set_to_zero",
            "the values of hidden keys are set to 0, and their weights stay: the average still counts them.",
            BEFORE,
            lambda query, key, value, mask: right_attention(query, key, value * mask[:, None]),
        ),
        Mistake(
            "swapped",
            "your function gives back the weights first and the output second.",
            "In which order does the docstring name them?",
            swapped,
        ),
        *FROM_CATALOGUE,
        *AS_WRITTEN,
    ),
    ("output (L, Ev)", "weights (L, S)"),
    {"query": "LE", "key": "SE", "value": "SV", "mask": "S"},
    proper=lambda query, key, value, mask: bool(mask.any()),
)

EXERCISES = (SOFTMAX, SCORES, ATTENTION, MASKED)
