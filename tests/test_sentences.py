"""The book's sentences give the numbers that its pages show, and new arrays at each call."""

from fractions import Fraction

import numpy as np

from lib import reference, sentences


def test_three_tokens_have_scores_to_follow_by_hand():
    tokens, X, W_q, W_k, W_v = sentences.cats_chase_mice()
    assert tokens == ("cats", "chase", "mice")
    assert [a.shape for a in (X, W_q, W_k, W_v)] == [(3, 4), (4, 4), (4, 4), (4, 2)]
    assert {a.dtype for a in (X, W_q, W_k, W_v)} == {np.dtype(float)}
    query, key, value = X @ W_q, X @ W_k, X @ W_v
    np.testing.assert_array_equal(query @ key.T, [[0, 2, 0], [4, 0, 2], [0, 2, 0]])
    np.testing.assert_array_equal(value, [[2, 0], [0, 2], [1, 0]])
    # √E = 2, so the action's scores are 2, 0, 1, and its weights e², 1, e over their sum.
    shares = [np.e**2, 1, np.e]
    _, weights = reference.attention(query, key, value, return_weights=True)
    np.testing.assert_allclose(weights[1], np.array(shares) / sum(shares), rtol=0, atol=1e-15)
    np.testing.assert_array_equal(weights[0], weights[2])


def test_three_tokens_are_new_at_each_call():
    sentences.cats_chase_mice().X[:] = 7
    assert sentences.cats_chase_mice().X.max() == 1


def test_the_cards_example_is_exact():
    query, key, value = np.zeros((1, 1)), np.zeros((2, 1)), np.array([[2.0], [8.0]])
    assert Fraction(reference.attention(query, key, value).item()) == Fraction(1, 2) * 2 + Fraction(1, 2) * 8 == 5
    assert reference.attention(query, key, value, mask=np.array([[True, False]])).item() == 2


def test_everyday_sentences_are_forty_different_ones():
    given = sentences.everyday()
    assert len(given) == len(set(given)) == 40
    assert all(s[0].isupper() and s.endswith(".") and s == s.strip() and s.isascii() for s in given)
    given.clear()
    assert len(sentences.everyday()) == 40


def test_a_pair_differs_in_its_last_word_and_names_two_of_its_nouns():
    given = sentences.pronoun_pairs()
    assert len(given) == len({pair.noun for pair in given}) == 14
    for noun, other, first, second in given:
        one, two = (sentence.rstrip(".").lower().split() for sentence in (first, second))
        assert one[:-1] == two[:-1]
        assert one[-1] != two[-1]
        assert one.index(noun) < one.index(other) < one.index("it")
        assert first.endswith(".")
        assert ".." not in first
    given.clear()
    assert len(sentences.pronoun_pairs()) == 14
