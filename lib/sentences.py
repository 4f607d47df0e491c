"""The sentences that the book carries from page to page."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class ThreeTokens(NamedTuple):
    """A three-token sentence with projections small enough to follow by hand."""

    tokens: tuple[str, str, str]
    X: Float[np.ndarray, "3 4"]  # one row per token: is it an animal, an action, a hunter, hunted?
    W_q: Float[np.ndarray, "4 4"]  # what a token asks for
    W_k: Float[np.ndarray, "4 4"]  # what a token offers to be found by
    W_v: Float[np.ndarray, "4 2"]  # what a token hands over


def cats_chase_mice() -> ThreeTokens:
    """Give the sentence "cats chase mice" with its features and three projections.

    The features are (animal, action, hunter, hunted). Animals ask for the action. The action asks for the hunter, and
    half as loudly for the hunted. Each token is found by its own features.

    Returns
    -------
    ThreeTokens
        ``tokens`` and the float64 arrays ``X`` (3, 4), ``W_q`` (4, 4), ``W_k`` (4, 4), ``W_v`` (4, 2). New arrays at
        each call.

    Examples
    --------
    >>> tokens, X, W_q, W_k, W_v = cats_chase_mice()
    >>> (X @ W_q) @ (X @ W_k).T
    array([[0., 2., 0.],
           [4., 0., 2.],
           [0., 2., 0.]])
    """
    X = np.array([[1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 1]], dtype=float)
    W_q = np.array([[0, 2, 0, 0], [0, 0, 4, 2], [0, 0, 0, 0], [0, 0, 0, 0]], dtype=float)
    W_k = np.eye(4)
    W_v = np.array([[1, 0], [0, 2], [1, 0], [0, 0]], dtype=float)
    return ThreeTokens(("cats", "chase", "mice"), X, W_q, W_k, W_v)


def everyday() -> list[str]:
    """Give forty plain sentences, written for this book, to measure a model's heads on.

    Among them are pronouns that look back at a noun, and subjects with another noun between them and their verb.

    Returns
    -------
    list of str

    Examples
    --------
    >>> len(everyday()), everyday()[1]
    (40, 'The keys to the cabinet are on the table.')
    """
    return _EVERYDAY.strip().split("\n")


class PronounPair(NamedTuple):
    """Two sentences that differ in one word, which decides what *it* means."""

    noun: str  # what *it* means in the first sentence; the subject
    other: str  # what *it* means in the second
    first: str
    second: str


def pronoun_pairs() -> list[PronounPair]:
    """Give fourteen pairs of sentences in which one word decides which of two nouns *it* means.

    Such pairs are called Winograd schemas; that of the trophy is theirs, that of the animal is Uszkoreit's, and the
    others were written for this book before any model was run on them.

    Returns
    -------
    list of PronounPair

    References
    ----------
    Levesque, Davis and Morgenstern (2012), "The Winograd Schema Challenge". Uszkoreit (2017), "Transformer: A Novel
    Neural Network Architecture for Language Understanding".

    Examples
    --------
    >>> pair = pronoun_pairs()[0]
    >>> pair.noun, pair.first
    ('trophy', 'The trophy did not fit in the suitcase because it was too big.')
    >>> pair.other, pair.second
    ('suitcase', 'The trophy did not fit in the suitcase because it was too small.')
    """
    pairs = []
    for line in _PAIRS.strip().split("\n"):
        noun, other, frame, words = line.split(" | ")
        pairs.append(PronounPair(noun, other, *(frame.replace("...", word) for word in words.split(", "))))
    return pairs


_PAIRS = """
trophy | suitcase | The trophy did not fit in the suitcase because it was too .... | big, small
animal | street | The animal didn't cross the street because it was too .... | tired, wide
table | door | The table did not fit through the door because it was too .... | wide, narrow
knife | rope | The knife did not cut the rope because it was too .... | blunt, thick
ladder | roof | The ladder did not reach the roof because it was too .... | short, high
horse | fence | The horse did not jump the fence because it was too .... | tired, high
fish | worm | The fish ate the worm because it was .... | hungry, tasty
dog | river | The dog did not swim across the river because it was too .... | weak, deep
truck | bus | The truck passed the bus because it was too .... | fast, slow
coat | bag | The coat did not fit in the bag because it was too .... | thick, full
key | lock | The key did not fit the lock because it was too .... | big, small
cat | mouse | The cat did not catch the mouse because it was too .... | slow, fast
boat | bridge | The boat did not pass under the bridge because it was too .... | tall, low
ball | window | The ball broke the window because it was .... | heavy, thin
"""

_EVERYDAY = """
The animal didn't cross the street because it was too tired.
The keys to the cabinet are on the table.
My sister bought a red bicycle and rode it to the lake.
The trophy did not fit in the suitcase because it was too big.
The trophy did not fit in the suitcase because it was too small.
When the rain stopped, the children ran back to the garden.
A good teacher asks more questions than she answers.
The doctor who treated the soldiers was very young.
Birds sing early in the morning, and the cat listens to them.
He put the letter on the desk and forgot about it.
The bread is old, but the soup is fresh and warm.
Our train left the station ten minutes late again.
The boxes in the corner of the room were empty.
She opened the window because the room was hot.
The river behind the houses has flooded its banks twice this year.
Two boys carried the heavy table up the stairs.
The programmer fixed the bug and then she wrote a test for it.
Nobody in the village knew where the old road ended.
The apples on the tree near the gate are ripe.
The wind blew the door shut and broke the glass in it.
I read the book that you gave me last winter.
The dogs chased the ball until they were tired.
The captain told the crew that the storm would reach them at noon.
The flowers that my mother planted need water every day.
A small boat crossed the wide bay under a pale moon.
The museum closes at six, so we should leave now.
The students thanked the teacher because he had helped them.
The mouse ate the cheese before the cat saw it.
These shoes are too small for my brother.
The old man walked slowly to the market with his grandson.
The bridge was closed because it was not safe.
They painted the kitchen yellow and the hall white.
The price of the tickets has risen since March.
The girl with the drum plays louder than her friends.
Snow fell all night and covered the roofs of the town.
The farmer sold the cow and bought a horse with the money.
The lights in the office were still on when we passed.
The committee has not answered the questions of the press.
The sun had set, and the stars came out one by one.
The car hit the fence, but it was not damaged.
"""
