"""Answers to lab 3 as students give them: EXERCISE__style is right, wrong_EXERCISE__MISTAKE is not."""

import numpy as np
import torch

from lib import reference

# What several answers share: an oracle, some numbers


def by_hand(query, key, value, mask=None):
    """Compute attention in a student's own four lines."""
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    scores = scores if mask is None else np.where(mask, scores, -np.inf)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return weights @ value, weights


def some(L, S, E, Ev, seed=0):
    """Draw query, key and value."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in ((L, E), (S, E), (S, Ev))]


CARD = np.zeros((1, 1)), np.zeros((2, 1)), np.array([[2.0], [8.0]])
MASK = np.array([[True, True, False], [False, False, True], [True, False, True]])

# The equation: right


def test_equation__oracle(attention):
    for sizes in ((2, 3, 4, 5), (3, 3, 9, 2)):
        query, key, value = some(*sizes)
        output = attention(query, key, value)
        assert output.shape == (sizes[0], sizes[3])
        assert np.allclose(output, by_hand(query, key, value)[0])


def test_equation__loops(attention):
    query, key, value = some(3, 3, 4, 2)
    output = attention(query, key, value)
    for i in range(3):
        shares = [np.exp(sum(query[i, e] * key[j, e] for e in range(4)) / 2) for j in range(3)]
        for column in range(2):
            wanted = sum(shares[j] * value[j, column] for j in range(3)) / sum(shares)
            assert abs(output[i, column] - wanted) < 1e-9, f"query {i}"


def test_equation__numpy_testing(attention):
    print("asking")
    for sizes in ((2, 2, 4, 3), (1, 5, 3, 2)):
        query, key, value = some(*sizes)
        output, weights = attention(query, key, value, return_weights=True)
        wanted = by_hand(query, key, value)
        np.testing.assert_allclose(output, wanted[0], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(weights, wanted[1], rtol=1e-6, atol=1e-9)


def test_equation__torch(attention):
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for sizes in ((3, 3, 4, 6), (2, 5, 8, 3)):
        arrays = some(*sizes)
        wanted = sdpa(*(torch.from_numpy(x)[None] for x in arrays))[0]
        if not torch.allclose(torch.from_numpy(attention(*arrays)), wanted):
            raise AssertionError("not what torch gives")


def test_equation__numbers_on_paper(attention):
    query, key = np.array([[2.0, 0, 0, 0], [0, 0, 0, 0]]), np.array([[0.0, 0, 0, 0], [np.log(3), 0, 0, 0]])
    value = np.array([[2.0, 0, 1], [8.0, 4, 1]])
    output = attention(query, key, value)
    assert output.shape == (2, 3)
    assert np.allclose(output, [[6.5, 3, 1], [5, 2, 1]])  # weights 1/4 and 3/4, then halves


# The equation: wrong


def wrong_test_equation__numbers_not_looked_at__shape(attention):
    assert attention(*some(2, 3, 4, 5)).shape == (2, 5)


def wrong_test_equation__numbers_not_looked_at__tuple(attention):
    output = attention(*some(2, 3, 4, 5))
    condition = np.allclose(output, 5), "an assert with a tuple is always true"
    assert condition


def wrong_test_equation__equal_scores__card(attention):
    assert np.allclose(attention(*CARD), 5)


def wrong_test_equation__sums_only__rows(attention):
    for sizes in ((2, 3, 4, 5), (3, 3, 4, 4)):
        _, weights = attention(*some(*sizes), return_weights=True)
        assert np.allclose(weights.sum(axis=-1), 1)


def wrong_test_equation__head_size_one(attention):
    query, key, value = np.array([[1.0], [3.0]]), np.array([[0.0], [2.0]]), np.array([[2.0, 1.0], [8.0, 3.0]])
    assert np.allclose(attention(query, key, value), by_hand(query, key, value)[0])


def wrong_test_equation__values_as_wide_as_keys(attention):
    for sizes in ((2, 3, 4, 4), (3, 3, 4, 4)):
        arrays = some(*sizes)
        assert np.allclose(attention(*arrays), by_hand(*arrays)[0])


def wrong_test_equation__never_square(attention):
    arrays = some(2, 3, 4, 5)
    assert np.allclose(attention(*arrays), by_hand(*arrays)[0])


def wrong_test_equation__one_query(attention):
    arrays = some(1, 3, 4, 5)
    assert np.allclose(attention(*arrays), by_hand(*arrays)[0])


def wrong_test_equation__too_exact__everywhere(attention):
    arrays = some(2, 3, 4, 5)
    assert (attention(*arrays) == by_hand(*arrays)[0]).all()


def wrong_test_equation__too_exact__array_equal(attention):
    arrays = some(5, 7, 4, 5)
    assert np.array_equal(attention(*arrays), reference.attention(*arrays))


def wrong_test_equation__expects_a_bug__unscaled(attention):
    query, key, value = some(2, 3, 4, 5)
    assert np.allclose(attention(query, key, value), by_hand(query * 2, key, value)[0])


def wrong_test_equation__expects_a_bug__axis(attention):
    _, weights = attention(*some(3, 3, 4, 5), return_weights=True)
    assert np.allclose(weights.sum(axis=0), 1)


def wrong_test_equation__wrong_expectation(attention):
    assert np.allclose(attention(*CARD), 2.5)


def wrong_test_equation__raises__shapes(attention):
    query, key, value = some(2, 3, 4, 5)
    assert np.allclose(attention(query, key, value), query @ key @ value)


def wrong_test_equation__refused__integers(attention):
    assert np.allclose(attention(np.array([[0]]), np.array([[0], [0]]), np.array([[2], [8]])), 5)


def wrong_test_equation__gives_back_a_verdict(attention):
    return np.allclose(attention(*CARD), 5)


def wrong_test_equation__prints_a_verdict(attention):
    print("passed" if np.allclose(attention(*CARD), 5) else "failed")


def wrong_test_equation__never_calls(attention):
    assert np.allclose(by_hand(*CARD)[0], 5)


def wrong_test_equation__hangs(attention):
    output = attention(*CARD)
    while output.any():
        output = output + 1


def wrong_test_equation__too_loose(attention):
    for sizes in ((2, 3, 4, 5), (3, 3, 9, 2)):
        query, key, value = some(*sizes)
        assert np.allclose(attention(query, key, value), by_hand(query, key, value)[0], atol=0.5)


# The mask: right


def test_masks__only_the_allowed(attention):
    for size in (1.0, -1e6):
        query, key, value = some(3, 3, 4, 2)
        query = np.abs(query) * size
        key = np.abs(key)
        output = attention(query, key, value, mask=MASK)
        for i, row in enumerate(MASK):
            assert np.allclose(output[i : i + 1], attention(query[i : i + 1], key[row], value[row]))


def test_masks__oracle(attention):
    for size in (1.0, 1000.0):
        query, key, value = some(3, 3, 4, 2)
        output = attention(query * size, key, value * 1.0, mask=MASK)
        np.testing.assert_allclose(output, by_hand(query * size, key, value, MASK)[0], atol=1e-9)
    low = np.array([[-1e5]]), np.array([[1.0], [0.0]]), np.array([[2.0], [8.0]])
    assert np.allclose(attention(*low, mask=np.array([[True, False]])), 2)


def test_masks__weights(attention):
    query, key, value = some(3, 3, 4, 2)
    low = np.array([[-3e4], [0], [0]]), np.array([[1.0], [0], [0]]), np.eye(3)
    for arrays, mask in (((query, key, value), MASK), (low, MASK), (low, MASK[[1, 0, 2]]), (low, np.eye(3) > 0)):
        output, weights = attention(*arrays, mask=mask, return_weights=True)
        assert (weights[~mask] == 0).all()
        assert np.allclose(weights.sum(axis=-1), 1)
        assert np.allclose(weights @ arrays[2], output)


def test_masks__another_value_behind_the_mask(attention):
    query, key, value = some(3, 3, 4, 2)
    query[0] = -2e4 * np.sign(key[0] - key[1])
    for mask in (
        MASK,
        ~np.eye(3, dtype=bool),
        np.array([[False, True, False]] * 3),
        np.array([[True, False, False]] * 3),
    ):
        before, (_, weights) = (
            attention(query, key, value, mask=mask),
            attention(query, key, value, mask=mask, return_weights=True),
        )
        assert np.allclose(weights.sum(axis=-1), 1)
        for i in range(3):
            loud = value.copy()
            loud[~mask[i]] += 1000.0
            assert np.allclose(attention(query, key, loud, mask=mask)[i], before[i], atol=1e-12)
            assert not np.allclose(attention(query, key, loud + 1.0, mask=mask)[i], before[i])


# The mask: wrong


def wrong_test_masks__no_mask(attention):
    assert np.allclose(attention(*CARD), 5)


def wrong_test_masks__nothing_hidden(attention):
    assert np.allclose(attention(*CARD, mask=np.array([[True, True]])), 5)


def wrong_test_masks__hidden_not_looked_at(attention):
    _, weights = attention(*some(3, 3, 4, 2), mask=MASK, return_weights=True)
    assert np.allclose(weights.sum(axis=-1), 1)


def wrong_test_masks__sums_not_asked(attention):
    _, weights = attention(*some(3, 3, 4, 2), mask=MASK, return_weights=True)
    assert (weights[~MASK] == 0).all()


def wrong_test_masks__one_row_for_all__card(attention):
    assert np.allclose(attention(*CARD, mask=np.array([[True, False]])), 2)


def wrong_test_masks__one_row_for_all__padding(attention):
    mask = np.tile([True, True, False], (3, 1))
    arrays = some(3, 3, 4, 2)
    assert np.allclose(attention(*arrays, mask=mask), by_hand(*arrays, mask)[0])


def wrong_test_masks__never_square(attention):
    query, key, value = some(2, 3, 4, 2)
    assert np.allclose(attention(query, key, value, mask=MASK[:2]), by_hand(query, key, value, MASK[:2])[0])


def wrong_test_masks__symmetric_masks(attention):
    mask = np.array([[False, True, True], [True, False, False], [True, False, True]])
    arrays = some(3, 3, 4, 2)
    assert np.allclose(attention(*arrays, mask=mask), by_hand(*arrays, mask)[0])


def wrong_test_masks__itself_always_seen(attention):
    mask = np.array([[True, False, True], [True, True, False], [False, True, True]])
    arrays = some(3, 3, 4, 2)
    assert np.allclose(attention(*arrays, mask=mask), by_hand(*arrays, mask)[0])


def wrong_test_masks__small_scores(attention):
    arrays = some(3, 3, 4, 2)
    assert np.allclose(attention(*arrays, mask=MASK), by_hand(*arrays, MASK)[0])


def wrong_test_masks__expects_a_bug__inverted(attention):
    assert np.allclose(attention(*CARD, mask=np.array([[True, False]])), 8)


def wrong_test_masks__refused__numbers(attention):
    assert np.allclose(attention(*CARD, mask=np.array([[1, 0]])), 2)


def wrong_test_masks__refused__by_position(attention):
    assert np.allclose(attention(*CARD, np.array([[True, False]])), 2)


def wrong_test_masks__too_exact(attention):
    _, weights = attention(*some(7, 7, 4, 2), mask=np.tri(7) > 0, return_weights=True)
    assert (weights.sum(axis=-1) == 1).all()


# Causal: right


def test_causal__prefixes(attention):
    for L in (4, 70):
        query, key, value = some(L, L, 4, 2)
        for options in ({}, {"mask": np.ones((L, L), bool)}):
            output = attention(query, key, value, causal=True, **options)
            for i in range(L):
                assert np.allclose(output[i], attention(query[i : i + 1], key[: i + 1], value[: i + 1])[0])


def test_causal__as_a_mask(attention):
    for L in (3, 100):
        arrays = some(L, L, 4, 2)
        triangle = np.tril(np.ones((L, L), bool))
        assert np.allclose(attention(*arrays, causal=True), by_hand(*arrays, triangle)[0])
        other = (np.arange(L) != 1) | np.eye(L, dtype=bool)
        assert np.allclose(attention(*arrays, causal=True, mask=other), by_hand(*arrays, triangle & other)[0])


def test_causal__weights(attention):
    for L, mask in ((5, None), (128, None), (5, np.ones((5, 5), bool))):
        options = {} if mask is None else {"mask": mask}
        _, weights = attention(*some(L, L, 4, 2), causal=True, return_weights=True, **options)
        assert not np.triu(weights, 1).any()
        assert (np.diagonal(weights) > 0).all()
        np.testing.assert_allclose(weights.sum(-1), 1)


def test_causal__another_future(attention):
    for L, options in ((6, {}), (65, {}), (6, {"mask": np.ones((6, 6), bool)})):
        query, key, value = some(L, L, 4, 2)
        before = attention(query, key, value, causal=True, **options)
        assert np.allclose(before[0], value[0])
        for place in (1, 2, L - 1):
            other = [x.copy() for x in (query, key, value)]
            for x in other:
                x[place:] += 1.0
            after = attention(*other, causal=True, **options)
            assert np.allclose(after[:place], before[:place])
            assert not np.allclose(after[place], before[place])


# Causal: wrong


def wrong_test_causal__no_causal(attention):
    assert np.allclose(attention(*CARD), 5)


def wrong_test_causal__one_position(attention):
    assert np.allclose(attention(*some(1, 1, 4, 2), causal=True), some(1, 1, 4, 2)[2])


def wrong_test_causal__future_not_looked_at(attention):
    _, weights = attention(*some(4, 4, 4, 2), causal=True, return_weights=True)
    assert np.allclose(weights.sum(axis=-1), 1)


def wrong_test_causal__next_not_looked_at(attention):
    _, weights = attention(*some(4, 4, 4, 2), causal=True, return_weights=True)
    assert weights[0, -1] == 0


def wrong_test_causal__present_not_looked_at(attention):
    _, weights = attention(*some(4, 4, 4, 2), causal=True, return_weights=True)
    assert (weights[np.triu_indices(4, 1)] == 0).all()


def wrong_test_causal__sums_not_asked(attention):
    _, weights = attention(*some(4, 4, 4, 2), causal=True, return_weights=True)
    assert not np.triu(weights, 1).any()
    assert (np.diagonal(weights) > 0).all()


def wrong_test_causal__never_with_a_mask(attention):
    arrays = some(70, 70, 4, 2)
    assert np.allclose(attention(*arrays, causal=True), by_hand(*arrays, np.tri(70) > 0)[0])


def wrong_test_causal__short_sentences(attention):
    arrays = some(5, 5, 4, 2)
    for options in ({}, {"mask": np.ones((5, 5), bool)}):
        assert np.allclose(attention(*arrays, causal=True, **options), by_hand(*arrays, np.tri(5) > 0)[0])


def wrong_test_causal__refused__lengths(attention):
    assert np.allclose(attention(*some(2, 3, 4, 2), causal=True)[0], some(2, 3, 4, 2)[2][0])


def wrong_test_causal__expects_a_bug__reversed(attention):
    _, weights = attention(*some(4, 4, 4, 2), causal=True, return_weights=True)
    assert (weights[np.tril_indices(4, -1)] == 0).all()


def wrong_test_causal__raises__name(attention):
    output = attention(*some(4, 4, 4, 2), causal=True)
    assert np.allclose(unknown, output)


# The corners: right


def with_heads(seed=0):
    """Draw a batch of two with three heads."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, 3, 4, 5)) for _ in range(3)]


NOTHING = np.array([[True] * 4, [False] * 4, [True] * 4, [True] * 4])


def test_corners__one_by_one(attention):
    query, key, value = with_heads()
    copies = [x.copy() for x in (query, key, value)]
    output = attention(query, key, value)
    assert all((a == b).all() for a, b in zip(copies, (query, key, value), strict=True))
    for place in np.ndindex(2, 3):
        assert np.allclose(output[place], attention(query[place], key[place], value[place]))
    assert np.isfinite(attention(1000 * query, 10 * key, value)).all()
    assert attention(*(x.astype(np.float32) for x in (query, key, value))).dtype == np.float32
    masked = attention(query, key, value, mask=NOTHING)
    assert (masked[:, :, 1] == 0).all()
    assert np.allclose(masked[:, :, [0, 2, 3]], output[:, :, [0, 2, 3]])


def test_corners__oracle(attention):
    query, key, value = with_heads()
    for size in (1.0, 5000.0):
        asked = query * size
        output = attention(asked, key, value)
        assert np.array_equal(asked, query * size)
        np.testing.assert_allclose(output, by_hand(query * size, key, value)[0], atol=1e-8)
    wanted = by_hand(query, key, value)[0]
    wanted[..., 1, :] = 0
    np.testing.assert_allclose(attention(query, key, value, mask=NOTHING), wanted)
    half = [x.astype("float32") for x in (query, key, value)]
    assert attention(*half).dtype == half[0].dtype


def test_corners__weights(attention):
    query, key, value = with_heads()
    output, weights = attention(query, key, value, return_weights=True)
    assert np.allclose(weights.sum(axis=-1), 1)
    assert np.allclose(weights, by_hand(query, key, value)[1])
    assert np.allclose(output, np.einsum("bhls,bhsv->bhlv", weights, value))
    _, weights = attention(query, key, value, mask=NOTHING, return_weights=True)
    assert np.allclose(weights.sum(axis=-1), [1, 0, 1, 1])
    query, key, value = (x.astype(np.float32) for x in with_heads(1))
    query *= 1e6
    before = query.copy()
    output = attention(query, key, value)
    assert output.dtype == np.float32 and not np.isnan(output).any()
    assert (before == query).all()


def test_corners__loops_and_torch(attention):
    arrays = with_heads()
    tensors = [torch.from_numpy(x.copy()) for x in arrays]
    wanted = torch.nn.functional.scaled_dot_product_attention(*tensors).numpy()
    given = attention(*arrays)
    for mine, theirs in zip(tensors, arrays, strict=True):
        assert np.array_equal(mine.numpy(), theirs), "an input was written to"
    for b in range(2):
        for h in range(3):
            for i in range(4):
                assert np.allclose(given[b, h, i], wanted[b, h, i])
    big = attention(np.full((1, 1), 1e3), np.full((2, 1), 1e3), np.array([[2.0], [8.0]]))
    assert np.allclose(big, 5)
    for dtype in (np.float32, np.float64):
        assert attention(*(x.astype(dtype) for x in arrays)).dtype == dtype
    masked = attention(*arrays, mask=NOTHING)
    assert np.count_nonzero(masked[..., 1, :]) == 0 and np.allclose(masked[..., 0, :], wanted[..., 0, :])


# The corners: wrong


def corners_but(attention, *left_out):
    """Do everything but a part."""
    query, key, value = with_heads()
    if "untouched" not in left_out:
        before = query.copy()
        attention(query, key, value)
        assert (query == before).all()
    if "heads" not in left_out:
        assert np.allclose(attention(query.copy(), key, value), by_hand(query, key, value)[0])
    if "large" not in left_out:
        assert np.isfinite(attention(query * 1e4, key, value)).all()
    if "dtype" not in left_out:
        assert attention(*(x.astype(np.float32) for x in (query, key, value))).dtype == np.float32
    if "empty" not in left_out:
        wanted = by_hand(query, key, value)[0]
        wanted[..., 1, :] = 0
        assert np.allclose(attention(query.copy(), key, value, mask=NOTHING), wanted)


def wrong_test_corners__small_scores(attention):
    corners_but(attention, "large")


def wrong_test_corners__inputs_not_compared(attention):
    corners_but(attention, "untouched")


def wrong_test_corners__float64_only(attention):
    corners_but(attention, "dtype")


def wrong_test_corners__dtype_not_looked_at(attention):
    corners_but(attention, "dtype")
    arrays = [x.astype(np.float32) for x in with_heads()]
    assert np.allclose(attention(*arrays), by_hand(*arrays)[0], atol=1e-4)


def wrong_test_corners__no_empty_row(attention):
    corners_but(attention, "empty")


def wrong_test_corners__nan_passes(attention):
    corners_but(attention, "empty")
    masked = attention(*with_heads(), mask=NOTHING)
    assert not (np.abs(masked[..., 1, :]) > 0).any()
    assert masked[..., 0, :].any()


def wrong_test_corners__others_not_looked_at(attention):
    corners_but(attention, "empty")
    assert (attention(*with_heads(), mask=NOTHING)[..., 1, :] == 0).all()


def wrong_test_corners__no_batch(attention):
    query, key, value = some(4, 4, 4, 2)
    before = query.copy()
    attention(query, key, value)
    assert (query == before).all()
    assert np.isfinite(attention(query * 1e4, key, value)).all()
    assert attention(*(x.astype(np.float32) for x in (query, key, value))).dtype == np.float32
    masked = attention(query, key, value, mask=NOTHING)
    assert (masked[1] == 0).all()
    assert np.allclose(masked[0], by_hand(query, key, value)[0][0])


def wrong_test_corners__same_entries(attention):
    arrays = [np.stack([x] * 2) for x in some(4, 4, 4, 2)]
    wanted = by_hand(*arrays)[0]
    before = arrays[0].copy()
    assert np.allclose(attention(*arrays), wanted)
    assert (arrays[0] == before).all()
    assert np.isfinite(attention(arrays[0] * 1e4, *arrays[1:])).all()
    assert attention(*(x.astype(np.float32) for x in arrays)).dtype == np.float32
    wanted[..., 1, :] = 0
    assert np.allclose(attention(*arrays, mask=NOTHING), wanted)


def wrong_test_corners__entries_not_compared(attention):
    corners_but(attention, "heads", "empty")
    masked = attention(*with_heads(), mask=NOTHING)
    assert (masked[..., 1, :] == 0).all() and masked[..., 0, :].all()


def wrong_test_corners__raises__index(attention):
    assert attention(*with_heads())[5].any()
