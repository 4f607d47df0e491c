"""Answers to lab 2 as students give them: right ones in several styles, wrong ones with the mistake they make.

Names as in :mod:`tests.labs.softmax_and_attention`.
"""

import math

import numpy as np
import torch

# masked_softmax


def stable(scores):
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def masked_softmax__by_where(scores, mask):
    return stable(np.where(mask, scores, -np.inf))


def masked_softmax__by_assignment(scores, mask):
    scores = scores.copy()
    scores[~mask] = -np.inf
    print(scores)
    return stable(scores)


def masked_softmax__in_loops(scores, mask):
    out = np.zeros(scores.shape)
    for i in range(scores.shape[0]):
        allowed = [j for j in range(scores.shape[1]) if mask[i, j]]
        top = max(scores[i, j] for j in allowed)
        total = sum(math.exp(scores[i, j] - top) for j in allowed)
        for j in allowed:
            out[i, j] = math.exp(scores[i, j] - top) / total
    return out


def masked_softmax__in_torch(scores, mask):
    return torch.tensor(scores).masked_fill(~torch.tensor(mask), float("-inf")).softmax(dim=1)


def masked_softmax__of_tensors(scores, mask):
    return scores.masked_fill(mask.logical_not(), -torch.inf).softmax(-1)


def masked_softmax__by_a_bias(scores, mask):
    bias = np.zeros(mask.shape, np.float32)
    bias[np.logical_not(mask)] = -math.inf
    return stable(scores.astype(np.float32) + bias)


def wrong_masked_softmax__mask_inverted(scores, mask):
    return stable(np.where(mask, -np.inf, scores))


def wrong_masked_softmax__mask_inverted__by_assignment(scores, mask):
    scores = scores.copy()
    scores[mask] = -np.inf
    return stable(scores)


def wrong_masked_softmax__mask_ignored(scores, mask):
    np.where(mask, scores, -np.inf)
    return stable(scores)


def wrong_masked_softmax__mask_after_softmax(scores, mask):
    weights = stable(scores)
    return np.where(mask, weights, 0)


def wrong_masked_softmax__shared_out_anew(scores, mask):
    weights = stable(scores) * mask
    return weights / weights.sum(axis=1, keepdims=True)


def wrong_masked_softmax__mask_multiplies_scores(scores, mask):
    return stable(scores * mask)


def wrong_masked_softmax__mask_added_as_number(scores, mask):
    return stable(scores + mask)


def wrong_masked_softmax__fill_minus_1e9(scores, mask):
    return stable(np.where(mask, scores, -1e9))


def wrong_masked_softmax__fill_minus_1e9__in_torch(scores, mask):
    return torch.tensor(scores).masked_fill(torch.tensor(mask) == 0, -1e9).softmax(-1)


def wrong_masked_softmax__fill_minus_1e4(scores, mask):
    return stable(scores - 10000.0 * ~mask)


def wrong_masked_softmax__first_row_for_all(scores, mask):
    return stable(np.where(mask[0], scores, -np.inf))


def wrong_masked_softmax__wrong_axis(scores, mask):
    scores = np.where(mask, scores, -np.inf)
    e = np.exp(scores - scores.max(axis=0))
    return e / e.sum(axis=0)


def wrong_masked_softmax__wrong_axis__unstable(scores, mask):
    e = np.exp(np.where(mask, scores, -np.inf))
    return e / e.sum(axis=0)


def wrong_masked_softmax__not_normalised(scores, mask):
    return np.exp(scores) * mask


def wrong_masked_softmax__no_maximum(scores, mask):
    e = np.exp(np.where(mask, scores, -np.inf))
    return e / e.sum(axis=1, keepdims=True)


def wrong_masked_softmax__forgets_to_return(scores, mask):
    weights = stable(np.where(mask, scores, -np.inf))  # noqa: F841


def wrong_masked_softmax__writes(scores, mask):
    scores[~mask] = -np.inf
    return stable(scores)


def wrong_masked_softmax__hard_coded(scores, mask):
    return np.array([[1.0, 0.0]])


def wrong_masked_softmax__raises(scores, mask):
    return stable(np.where(mask, scores, -np.infinity_of_mine))


def wrong_masked_softmax__infinity_times_zero(scores, mask):
    scores = scores - np.inf * ~mask
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def wrong_masked_softmax__fill_infinity(scores, mask):
    scores = np.where(mask, scores, np.inf)
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


# causal_mask


def causal_mask__by_comparison(L):
    return np.arange(L)[:, None] >= np.arange(L)


def causal_mask__by_tril(L):
    print("L is", L)
    return np.tril(np.ones((L, L), dtype=bool))


def causal_mask__in_loops(n):
    mask = np.zeros((n, n), dtype=bool)
    for i in range(n):
        for j in range(i + 1):
            mask[i, j] = True
    return mask


def causal_mask__in_torch(L):
    return torch.ones(L, L).tril().bool()


def causal_mask__by_triu(L):
    return ~np.triu(np.full((L, L), True), k=1)


def wrong_causal_mask__strict(L):
    i = np.arange(L)
    return i[:, None] > i


def wrong_causal_mask__one_too_far(L):
    return np.tril(np.ones((L, L), bool), k=1)


def wrong_causal_mask__reversed(L):
    return np.triu(np.ones((L, L), bool))


def wrong_causal_mask__inverted(L):
    return np.triu(np.ones((L, L), bool), k=1)


def wrong_causal_mask__numbers(L):
    return np.tril(np.ones((L, L)))


def wrong_causal_mask__numbers__whole(L):
    return np.tril(np.ones((L, L), dtype=int))


def wrong_causal_mask__bias(L):
    return np.triu(np.full((L, L), -np.inf), k=1)


def wrong_causal_mask__everything(L):
    return np.ones((L, L), dtype=bool)


def wrong_causal_mask__one_row(L):
    return np.array([j <= L for j in range(L)])


def wrong_causal_mask__forgets_to_return(L):
    mask = np.arange(L)[:, None] >= np.arange(L)  # noqa: F841


def wrong_causal_mask__prints(L):
    print(np.arange(L)[:, None] >= np.arange(L))


def wrong_causal_mask__kind(L):
    return [[j <= i for j in range(L)] for i in range(L)]


def wrong_causal_mask__hard_coded(L):
    return np.array([[True, False, False], [True, True, False], [True, True, True]])


def wrong_causal_mask__hangs(L):
    i = 0
    while i < L:
        mask = np.arange(L) <= i
    return mask


def wrong_causal_mask__dtype(L):
    return np.triu(np.ones((L, L)))


def wrong_causal_mask__dtype__filled_in_loops(L):
    mask = np.zeros((L, L))
    for i in range(L):
        for j in range(i):
            mask[i, j] = True
    return mask


# padding_mask


def padding_mask__by_comparison(lengths, S):
    return np.arange(S) < lengths[:, np.newaxis]


def padding_mask__in_loops(lengths, S):
    mask = np.zeros((len(lengths), S), dtype=bool)
    for b, length in enumerate(lengths):
        mask[b, :length] = True
        print(mask[b])
    return mask


def padding_mask__stacked(lengths, S):
    return np.stack([np.arange(S) < length for length in lengths])


def padding_mask__in_torch(lengths, S):
    return torch.arange(S)[None] < torch.from_numpy(lengths)[:, None]


def padding_mask__by_lists(lengths, total):
    return np.array([[True] * n + [False] * (total - n) for n in lengths])


def wrong_padding_mask__one_too_many(lengths, S):
    return np.arange(S) <= lengths[:, None]


def wrong_padding_mask__one_too_few(lengths, S):
    return np.arange(1, S + 1) < lengths[:, None]


def wrong_padding_mask__inverted(lengths, S):
    return np.arange(S) >= lengths[:, None]


def wrong_padding_mask__padding_in_front(lengths, S):
    mask = np.zeros((len(lengths), S), dtype=bool)
    for b, length in enumerate(lengths):
        mask[b, S - length :] = True
    return mask


def wrong_padding_mask__first_length_for_all(lengths, S):
    return np.array([np.arange(S) < lengths[0] for _ in lengths])


def wrong_padding_mask__transposed(lengths, S):
    return np.arange(S)[:, None] < lengths


def wrong_padding_mask__numbers(lengths, S):
    return (np.arange(S) < lengths[:, None]).astype(int)


def wrong_padding_mask__bias(lengths, S):
    return np.where(np.arange(S) < lengths[:, None], 0, -np.inf)


def wrong_padding_mask__raises(lengths, S):
    return np.arange(S, dtype=np.int64).reshape(7, 11) < lengths


def wrong_padding_mask__forgets_to_return(lengths, S):
    mask = np.arange(S) < lengths[:, None]  # noqa: F841


def wrong_padding_mask__hard_coded(lengths, S):
    return np.array([[True, False]])


def wrong_padding_mask__writes(lengths, S):
    mask = np.zeros((len(lengths), S), dtype=bool)
    for b in range(len(lengths)):
        while lengths[b] > 0:
            lengths[b] -= 1
            mask[b, lengths[b]] = True
    return mask


def wrong_padding_mask__side_by_side(lengths, S):
    return np.arange(S) < lengths


def wrong_padding_mask__kind(lengths, S):
    return [[True] * n + [False] * (S - n) for n in lengths]


# window_mask


def window_mask__by_comparison(L, left):
    i, j = np.arange(L)[:, None], np.arange(L)
    return (i - j >= 0) & (i - j <= left)


def window_mask__by_triangles(L, left):
    return np.tril(np.ones((L, L), bool)) & np.triu(np.ones((L, L), bool), -left)


def window_mask__in_loops(L, left):
    mask = np.zeros((L, L), dtype=np.bool_)
    for i in range(L):
        for j in range(max(0, i - left), i + 1):
            mask[i, j] = True
    print(mask.sum())
    return mask


def window_mask__in_torch(L, left):
    distance = torch.arange(L)[:, None] - torch.arange(L)[None]
    return (distance >= 0) & (distance <= left)


def window_mask__by_fromfunction(n, k):
    return np.fromfunction(lambda i, j: np.logical_and(j <= i, i <= j + k), (n, n))


def wrong_window_mask__counts_itself(L, left):
    i, j = np.arange(L)[:, None], np.arange(L)
    return (j <= i) & (i - j < left)


def wrong_window_mask__one_too_wide(L, left):
    i, j = np.arange(L)[:, None], np.arange(L)
    return (j <= i) & (j >= i - left - 1)


def wrong_window_mask__both_sides(L, left):
    i, j = np.arange(L)[:, None], np.arange(L)
    return abs(i - j) <= left


def wrong_window_mask__right_side_open(L, left):
    return np.triu(np.ones((L, L), bool), -left)


def wrong_window_mask__left_side_open(L, left):
    return np.tril(np.ones((L, L), bool))


def wrong_window_mask__one_of_the_two(L, left):
    i, j = np.arange(L)[:, None], np.arange(L)
    return (j <= i) | (j >= i - left)


def wrong_window_mask__itself_left_out(L, left):
    i, j = np.arange(L)[:, None], np.arange(L)
    return (j < i) & (j >= i - left)


def wrong_window_mask__reversed(L, left):
    i, j = np.arange(L)[:, None], np.arange(L)
    return (j >= i) & (j <= i + left)


def wrong_window_mask__numbers(L, left):
    return np.tril(np.ones((L, L))) - np.tril(np.ones((L, L)), -left - 1)


def wrong_window_mask__inverted(L, left):
    i, j = np.arange(L)[:, None], np.arange(L)
    return (j > i) | (j < i - left)


def wrong_window_mask__raises(L, left):
    i, j = np.arange(L)[:, None], np.arange(L)
    return j <= i and j >= i - left


def wrong_window_mask__forgets_to_return(L, left):
    window_mask__by_triangles(L, left)


def wrong_window_mask__hard_coded(L, left):
    return np.eye(2, dtype=bool)


def wrong_window_mask__counted_from_the_end(L, left):
    mask = np.full((L, L), False)
    for i in range(L):
        mask[i][i - left : i + 1] = True
    return mask


def wrong_window_mask__raises__and(L, left):
    i, j = np.arange(L)[:, None], np.arange(L)[None, :]
    return j <= i and j >= i - left


def wrong_window_mask__raises__chain(L, left):
    i, j = np.arange(L)[:, None], np.arange(L)[None, :]
    return i - left <= j <= i


def wrong_window_mask__raises__no_brackets(L, left):
    i, j = np.arange(L)[:, None], np.arange(L)[None, :]
    return j <= i & j >= i - left


# safe_attention


def scaled(query, key):
    return query @ key.T / np.sqrt(query.shape[-1])


def safe_attention__by_guards(query, key, value, mask):
    scores = np.where(mask, scaled(query, key), -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = e.sum(axis=-1, keepdims=True)
    weights = e / np.where(total == 0, 1, total)
    return weights @ value, weights


def safe_attention__in_loops(query, key, value, mask):
    weights = np.zeros(mask.shape)
    for i, row in enumerate(mask):
        if row.any():
            weights[i, row] = stable(scaled(query[i : i + 1], key[row]))[0]
        else:
            print("query", i, "sees nothing")
    return np.einsum("ls,sv->lv", weights, value), weights


def safe_attention__cleared_afterwards(query, key, value, mask):
    weights = stable(np.where(mask, scaled(query, key), -1e300))
    weights[~mask.any(axis=1)] = 0
    return weights @ value, weights


def safe_attention__by_nan_to_num(query, key, value, mask):
    weights = np.nan_to_num(stable(np.where(mask, scaled(query, key), -np.inf)))
    return weights @ value, weights


def safe_attention__in_torch(query, key, value, mask):
    q, k, v, m = (torch.tensor(x) for x in (query, key, value, mask))
    weights = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~m, -torch.inf).softmax(-1)
    weights = torch.where(m.any(-1, keepdim=True), weights, 0.0)
    return weights @ v, weights


def wrong_safe_attention__empty_rows_nan(query, key, value, mask):
    weights = stable(np.where(mask, scaled(query, key), -np.inf))
    return weights @ value, weights


def wrong_safe_attention__empty_rows_nan__in_torch(query, key, value, mask):
    q, k, v, m = (torch.tensor(x) for x in (query, key, value, mask))
    weights = (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~m, -torch.inf).softmax(-1)
    return weights @ v, weights


def wrong_safe_attention__empty_rows_mean(query, key, value, mask):
    weights = stable(np.where(mask, scaled(query, key), -1e9))
    return weights @ value, weights


def wrong_safe_attention__empty_rows_see_all(query, key, value, mask):
    mask = mask | ~mask.any(axis=1, keepdims=True)
    weights = stable(np.where(mask, scaled(query, key), -np.inf))
    return weights @ value, weights


def wrong_safe_attention__weights_stay_nan(query, key, value, mask):
    weights = stable(np.where(mask, scaled(query, key), -np.inf))
    output = weights @ value
    output[np.isnan(output)] = 0
    return output, weights


def wrong_safe_attention__empty_row_clears_all(query, key, value, mask):
    weights = stable(np.where(mask, scaled(query, key), -np.inf))
    if np.isnan(weights).any():
        weights = np.zeros_like(weights)
    return weights @ value, weights


def wrong_safe_attention__mask_inverted(query, key, value, mask):
    return safe_attention__by_guards(query, key, value, ~mask)


def wrong_safe_attention__mask_ignored(query, key, value, mask):
    weights = stable(scaled(query, key))
    return weights @ value, weights


def wrong_safe_attention__mask_after_softmax(query, key, value, mask):
    weights = np.where(mask, stable(scaled(query, key)), 0)
    return weights @ value, weights


def wrong_safe_attention__unscaled(query, key, value, mask):
    return safe_attention__by_guards(query * np.sqrt(query.shape[1]), key, value, mask)


def wrong_safe_attention__swapped(query, key, value, mask):
    output, weights = safe_attention__in_loops(query, key, value, mask)
    return weights, output


def wrong_safe_attention__count(query, key, value, mask):
    return safe_attention__by_guards(query, key, value, mask)[0]


def wrong_safe_attention__forgets_to_return(query, key, value, mask):
    safe_attention__by_guards(query, key, value, mask)


def wrong_safe_attention__writes(query, key, value, mask):
    empty = ~mask.any(axis=1)
    mask[empty] = True
    output, weights = safe_attention__by_guards(query, key, value, mask)
    output[empty], weights[empty] = 0, 0
    return output, weights


def wrong_safe_attention__whole_mask_only(query, key, value, mask):
    if not mask.any():
        return 0, 0
    return wrong_safe_attention__empty_rows_nan(query, key, value, mask)


def wrong_safe_attention__whole_mask_only__of_the_right_shape(query, key, value, mask):
    if np.sum(mask) == 0:
        return np.zeros((len(query), value.shape[1])), np.zeros(mask.shape)
    return wrong_safe_attention__empty_rows_nan(query, key, value, mask)


def wrong_safe_attention__wrong_rows_cleared(query, key, value, mask):
    _, weights = wrong_safe_attention__empty_rows_nan(query, key, value, mask)
    weights[mask.any(axis=-1)] = 0
    return weights @ value, weights


# leaks


def leaks__every_cut(block, x):
    before = block(x)
    for t in range(len(x) - 1):
        y = x.copy()
        y[t + 1 :] = -y[t + 1 :]
        if not np.allclose(before[: t + 1], block(y)[: t + 1]):
            return True
    return False


def leaks__one_input_at_a_time(block, x):
    before = block(x)
    found = False
    for j in range(len(x)):
        y = np.array(x)
        y[j] += 10
        moved = np.abs(block(y) - before).max(axis=1) > 1e-10
        found = found or moved[:j].any()
    return found


def leaks__by_random_futures(block, x):
    rng = np.random.default_rng(0)
    for j in range(1, len(x)):
        y = np.concatenate([x[:j], rng.normal(size=x[j:].shape)])
        if (np.abs(block(y)[:j] - block(x)[:j]) > 1e-12).any():
            print("leak from", j)
            return np.bool_(True)
    return np.bool_(False)


def leaks__by_cutting_off(block, x):
    whole = block(x)
    return any(not np.allclose(block(x[:n]), whole[:n]) for n in range(1, len(x)))


def leaks__by_slopes(block, x):
    for j in range(len(x)):
        for e in range(x.shape[1]):
            y = x.copy()
            y[j, e] += 1e-3
            slope = (block(y) - block(x)) / 1e-3
            if np.abs(slope[:j]).sum() > 1e-7:
                return True
    return False


def wrong_leaks__own_output_counts(block, x):
    y = x.copy()
    y[-1] += 1
    return not np.allclose(block(x), block(y))


def wrong_leaks__own_output_counts__each(block, x):
    for j in range(1, len(x)):
        y = x.copy()
        y[j] += 1
        if not np.allclose(block(x)[: j + 1], block(y)[: j + 1]):
            return True
    return False


def wrong_leaks__last_input_only(block, x):
    y = x.copy()
    y[-1] = 100.0
    return not np.allclose(block(x)[:-1], block(y)[:-1])


def wrong_leaks__first_output_only(block, x):
    y = x.copy()
    y[1:] *= 2
    return bool((np.abs(block(x)[0] - block(y)[0]) > 1e-9).any())


def wrong_leaks__past_changed(block, x):
    for j in range(1, len(x)):
        y = x.copy()
        y[:j] += 1
        if not np.allclose(block(x)[j:], block(y)[j:]):
            return True
    return False


def wrong_leaks__swapped(block, x):
    return not leaks__every_cut(block, x)


def wrong_leaks__poison(block, x):
    for j in range(1, len(x)):
        y = x.copy()
        y[j:] = np.nan
        if np.isnan(block(y)[:j]).any():
            return True
    return False


def wrong_leaks__too_coarse(block, x):
    for j in range(1, len(x)):
        y = x.copy()
        y[j:] += 1
        if not np.allclose(block(x)[:j], block(y)[:j], atol=1e-2):
            return True
    return False


def wrong_leaks__writes__to_one_array_with_two_names(block, x):
    y = x
    y[-1] = 0
    return not np.allclose(block(x)[:-1], block(y)[:-1])


def wrong_leaks__always_false__restored(block, x):
    y = x
    for j in range(1, len(x)):
        kept = y[j].copy()
        y[j] += 1
        moved = not np.allclose(block(x)[:j], block(y)[:j])
        y[j] = kept
        if moved:
            return True
    return False


def wrong_leaks__middle_only(block, x):
    half = len(x) // 2
    y = x.copy()
    y[half:] += 1
    return not np.allclose(block(x)[:half], block(y)[:half])


def wrong_leaks__writes(block, x):
    before = block(x)
    for j in range(len(x) - 1, 0, -1):
        x[j] += 1
        if not np.allclose(block(x)[:j], before[:j]):
            return True
    return False


def wrong_leaks__kind(block, x):
    return 1 if leaks__every_cut(block, x) else 0


def wrong_leaks__forgets_to_return(block, x):
    leaks__every_cut(block, x)


def wrong_leaks__raises(block, x):
    return block(x, x) != block(x)


def wrong_leaks__always_false__too_small_a_change(block, x):
    for i in range(len(x)):
        changed = x.copy()
        changed[i] += 1e-9
        if not np.allclose(block(changed)[:i], block(x)[:i]):
            return True
    return False
