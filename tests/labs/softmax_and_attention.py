"""Answers to lab 1 as students give them: right ones in several styles, wrong ones with the mistake they make.

A wrong answer's name says the mistake after two underscores: ``softmax__wrong_axis`` must be diagnosed as
``wrong_axis``. A third part tells two answers with one mistake apart.
"""

import math

import numpy as np
import torch

# softmax


def softmax__in_one_line(scores):
    return (
        np.exp(scores - scores.max(-1, keepdims=True)) / np.exp(scores - scores.max(-1, keepdims=True)).sum(-1)[:, None]
    )


def softmax__in_loops(scores):
    rows = []
    for row in scores:
        top = max(row)
        e = [math.exp(s - top) for s in row]
        rows.append([x / sum(e) for x in e])
    return np.array(rows)


def softmax__in_torch(scores):
    return torch.softmax(torch.as_tensor(scores), dim=-1)


def softmax__of_tensors(scores):
    return scores.softmax(dim=-1)


def softmax__in_float32(scores):
    scores = scores.astype(np.float32)
    e = np.exp(scores - np.max(scores, axis=1, keepdims=True))
    return e / np.sum(e, axis=1, keepdims=True)


def softmax__with_prints(scores, verbose=True):
    print("scores", scores.shape)
    e = np.exp((scores.T - scores.max(1)).T)
    print(e)
    return np.einsum("ls,l->ls", e, 1 / e.sum(axis=1))


def softmax__by_logarithms(scores):
    return np.exp(scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True))


def wrong_softmax__wrong_axis(scores):
    e = np.exp(scores)
    return e / np.sum(e, axis=0)


def wrong_softmax__wrong_axis__stable(scores):
    e = np.exp(scores - scores.max(axis=0))
    return e / e.sum(axis=0)


def wrong_softmax__wrong_axis__in_torch(scores):
    return torch.softmax(torch.tensor(scores), dim=0)


def wrong_softmax__over_everything(scores):
    e = np.exp(scores)
    return e / e.sum()


def wrong_softmax__no_maximum(scores):
    e = np.exp(scores)
    return e / e.sum(axis=1, keepdims=True)


def wrong_softmax__one_maximum_for_all(scores):
    e = np.exp(scores - np.max(scores))
    return e / e.sum(axis=1, keepdims=True)


def wrong_softmax__maximum_of_columns(scores):
    e = np.exp(scores - scores.max(axis=0, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def wrong_softmax__keepdims_forgotten(scores):
    e = np.exp(scores)
    return e / e.sum(axis=1)


def wrong_softmax__keepdims_forgotten__at_the_maximum(scores):
    e = np.exp(scores - scores.max(axis=1))
    return e / e.sum(axis=1, keepdims=True)


def wrong_softmax__not_normalised(scores):
    return np.exp(scores - scores.max(axis=1, keepdims=True))


def wrong_softmax__no_exponential(scores):
    return scores / scores.sum(axis=1, keepdims=True)


def wrong_softmax__only_the_largest(scores):
    out = np.zeros_like(scores)
    for i in range(len(scores)):
        out[i, scores[i] == scores[i].max()] = 1
    return out


def wrong_softmax__transposed(scores):
    e = np.exp(scores.T - scores.max(axis=1))
    return e / e.sum(axis=0)


def wrong_softmax__forgets_to_return(scores):
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = e / e.sum(axis=1, keepdims=True)  # noqa: F841


def wrong_softmax__prints(scores):
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    print(e / e.sum(axis=1, keepdims=True))


def wrong_softmax__kind(scores):
    return softmax__in_loops(scores).tolist()


def wrong_softmax__hard_coded(scores):
    return np.array([[0.5, 0.5]])


def wrong_softmax__writes(scores):
    scores -= scores.max(axis=1, keepdims=True)
    e = np.exp(scores)
    return e / e.sum(axis=1, keepdims=True)


def wrong_softmax__raises(scores):
    return np.exp(scores) / np.exp(scores).sum(axis=2)


def wrong_softmax__signature(scores, axis):
    return np.exp(scores) / np.exp(scores).sum(axis=axis, keepdims=True)


def wrong_softmax__hangs(scores):
    while len(scores):
        top = scores.max()
    return top


def wrong_softmax__fixed_number(scores):
    e = np.exp(scores - 1000)
    return e / np.sum(e, axis=1, keepdims=True)


def wrong_softmax__kind__row_by_row(scores):
    rows = []
    for row in scores:
        e = [math.exp(x - max(row)) for x in row]
        rows.append([x / sum(e) for x in e])
    return rows


# scaled_scores


def scaled_scores__in_loops(query, key):
    out = np.zeros((len(query), len(key)))
    for i in range(len(query)):
        for j in range(len(key)):
            out[i, j] = sum(a * b for a, b in zip(query[i], key[j], strict=True)) / math.sqrt(len(key[j]))
    return out


def scaled_scores__by_einsum(query, key):
    return np.einsum("le,se->ls", query, key) * key.shape[1] ** -0.5


def scaled_scores__in_torch(query, key):
    query, key = torch.from_numpy(query), torch.from_numpy(key)
    return (query / query.shape[-1] ** 0.5) @ key.transpose(0, 1)


def scaled_scores__broadcast(q, k):
    print(q.shape, k.shape)
    return (q[:, None, :] * k[None, :, :]).sum(axis=-1) / np.sqrt(k.shape[-1])


def scaled_scores__in_float32(query, key):
    return np.dot(query.astype(np.float32), key.T.astype(np.float32)) / np.float32(np.sqrt(key.shape[-1]))


def wrong_scaled_scores__unscaled(query, key):
    return query @ key.T


def wrong_scaled_scores__root_missing(query, key):
    return np.einsum("le,se->ls", query, key) / key.shape[-1]


def wrong_scaled_scores__root_missing__by_scaling_both(query, key):
    root = np.sqrt(query.shape[1])
    return (query / root) @ (key / root).T


def wrong_scaled_scores__scale_upside_down(query, key):
    return query @ key.T * query.shape[1] ** 0.5


def wrong_scaled_scores__root_of_keys(query, key):
    return query @ key.T / np.sqrt(len(key))


def wrong_scaled_scores__root_of_queries(query, key):
    return query @ key.T / np.sqrt(len(query))


def wrong_scaled_scores__not_transposed(query, key):
    return query @ key / np.sqrt(query.shape[1])


def wrong_scaled_scores__not_transposed__by_dot(query, key):
    return np.dot(query, key) / np.sqrt(query.shape[1])


def wrong_scaled_scores__transposed(query, key):
    return key @ query.T / np.sqrt(query.shape[1])


def wrong_scaled_scores__reshaped(query, key):
    return query @ key.reshape(key.shape[::-1]) / np.sqrt(query.shape[1])


def wrong_scaled_scores__elementwise(query, key):
    return query * key / np.sqrt(query.shape[1])


def wrong_scaled_scores__already_softmax(query, key):
    return softmax__in_loops(query @ key.T / np.sqrt(query.shape[1]))


def wrong_scaled_scores__scale_of_four(query, key):
    return query @ key.T / 2


def wrong_scaled_scores__forgets_to_return(query, key):
    scores = query @ key.T  # noqa: F841


def wrong_scaled_scores__hard_coded(query, key):
    return np.array([[0.0, 1.0]])


def wrong_scaled_scores__writes(query, key):
    query /= np.sqrt(query.shape[1])
    return query @ key.T


def wrong_scaled_scores__raises__another_value_error(query, key):
    return (query @ key.T).reshape(7, 11)


def wrong_scaled_scores__raises__type(query, key):
    return query @ key.T / np.sqrt(query.shape)[0].tolist()[0]


def wrong_scaled_scores__raises__name(query, key):
    return query @ keys.T


def wrong_scaled_scores__raises(query, key):
    return query @ key.T / np.sqrt(query.shape[2])


def wrong_scaled_scores__query_turned(query, key):
    return query.T @ key / np.sqrt(query.shape[1])


def wrong_scaled_scores__norm_for_size(query, key):
    scores = np.zeros((len(query), len(key)))
    for i, q in enumerate(query):
        for j, k in enumerate(key):
            scores[i, j] = sum(q * k) / sum(q**2) ** 0.5
    return scores


def wrong_scaled_scores__norm_for_size__cosine(query, key):
    q = query / np.linalg.norm(query, axis=1)[:, None]
    k = key / np.linalg.norm(key, axis=1)[:, None]
    return q @ k.T


def wrong_scaled_scores__root_of_the_shape(query, key):
    return query @ key.T / np.sqrt(query.shape)


def wrong_scaled_scores__a_column_for_each_query(query, key):
    L, E = query.shape
    s = np.zeros((L, L))
    for i in range(L):
        for j in range(L):
            s[i, j] = np.dot(query[i], key[j]) / E**0.5
    return s


# attention


def attention__in_one_line(query, key, value):
    weights = softmax__in_one_line(query @ key.T / np.sqrt(query.shape[-1]))
    return weights @ value, weights


def attention__in_loops(query, key, value):
    weights = softmax__in_loops(scaled_scores__in_loops(query, key))
    output = np.zeros((query.shape[0], value.shape[1]))
    for i in range(len(query)):
        for j in range(len(key)):
            output[i] += weights[i, j] * value[j]
    return output, weights


def attention__by_einsum(query, key, value):
    weights = softmax__in_one_line(scaled_scores__by_einsum(query, key))
    return [np.einsum("ls,sv->lv", weights, value), weights]


def attention__in_torch(query, key, value):
    q, k, v = (torch.tensor(x) for x in (query, key, value))
    weights = torch.softmax(q @ k.T / q.shape[-1] ** 0.5, -1)
    return weights @ v, weights


def attention__in_float32_with_prints(query, key, value):
    query, key, value = (x.astype(np.float32) for x in (query, key, value))
    print("weights:")
    weights = softmax__in_one_line(query @ key.T / np.sqrt(np.float32(query.shape[-1])))
    print(weights)
    return weights @ value, weights


def wrong_attention__softmax_over_queries(query, key, value):
    weights = wrong_softmax__wrong_axis__stable(scaled_scores__by_einsum(query, key))
    return weights @ value, weights


def wrong_attention__softmax_over_queries__unstable(query, key, value):
    weights = wrong_softmax__wrong_axis(scaled_scores__by_einsum(query, key))
    return weights @ value, weights


def wrong_attention__softmax_over_all_pairs(query, key, value):
    e = np.exp(scaled_scores__by_einsum(query, key))
    weights = e / e.sum()
    return weights @ value, weights


def wrong_attention__unscaled(query, key, value):
    weights = softmax__in_one_line(query @ key.T)
    return weights @ value, weights


def wrong_attention__scale_without_root(query, key, value):
    weights = softmax__in_one_line(query @ key.T / query.shape[-1])
    return weights @ value, weights


def wrong_attention__scale_by_value_size(query, key, value):
    weights = softmax__in_one_line(query @ key.T / np.sqrt(value.shape[-1]))
    return weights @ value, weights


def wrong_attention__softmax_missing(query, key, value):
    weights = scaled_scores__by_einsum(query, key)
    return weights @ value, weights


def wrong_attention__not_normalised(query, key, value):
    weights = np.exp(scaled_scores__by_einsum(query, key))
    return weights @ value, weights


def wrong_attention__softmax_twice(query, key, value):
    weights = softmax__in_one_line(softmax__in_one_line(scaled_scores__by_einsum(query, key)))
    return weights @ value, weights


def wrong_attention__no_maximum_subtracted(query, key, value):
    e = np.exp(scaled_scores__by_einsum(query, key))
    weights = e / e.sum(1, keepdims=True)
    return weights @ value, weights


def wrong_attention__weights_are_scores(query, key, value):
    scores = scaled_scores__by_einsum(query, key)
    return softmax__in_one_line(scores) @ value, scores


def wrong_attention__swapped(query, key, value):
    weights = softmax__in_one_line(scaled_scores__by_einsum(query, key))
    return weights, weights @ value


def wrong_attention__count(query, key, value):
    return softmax__in_one_line(scaled_scores__by_einsum(query, key)) @ value


def wrong_attention__keys_for_values(query, key, value):
    weights = softmax__in_one_line(scaled_scores__by_einsum(query, key))
    return weights @ key, weights


def wrong_attention__transposed_average(query, key, value):
    weights = softmax__in_one_line(scaled_scores__by_einsum(query, key))
    return weights.T @ value, weights


def wrong_attention__forgets_to_return(query, key, value):
    weights = softmax__in_one_line(scaled_scores__by_einsum(query, key))
    output = weights @ value  # noqa: F841


def wrong_attention__hard_coded(query, key, value):
    return np.array([[5.0]]), np.array([[0.5, 0.5]])


def wrong_attention__writes(query, key, value):
    query /= query.shape[-1] ** 0.5
    weights = softmax__in_one_line(query @ key.T)
    return weights @ value, weights


def wrong_attention__number_by_number(query, key, value):
    weights = softmax__in_one_line(scaled_scores__by_einsum(query, key))
    return weights * value, weights


def wrong_attention__values_turned(query, key, value):
    weights = softmax__in_one_line(scaled_scores__by_einsum(query, key))
    return weights @ value.T, weights


# masked_attention


def masked_attention__by_where(query, key, value, mask):
    scores = scaled_scores__by_einsum(query, key)
    weights = softmax__in_one_line(np.where(mask, scores, float("-inf")))
    return weights @ value, weights


def masked_attention__by_assignment(query, key, value, mask):
    scores = query @ key.T / np.sqrt(query.shape[-1])
    scores[:, ~mask] = -np.inf
    print(scores)
    weights = softmax__in_one_line(scores)
    return weights @ value, weights


def masked_attention__by_taking_keys_out(query, key, value, mask):
    weights = np.zeros((len(query), len(key)))
    weights[:, mask] = softmax__in_one_line(scaled_scores__by_einsum(query, key[mask]))
    return weights @ value, weights


def masked_attention__in_torch(query, key, value, mask):
    q, k, v, m = (torch.from_numpy(x) for x in (query, key, value, mask))
    weights = (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~m, -torch.inf).softmax(-1)
    return weights @ v, weights


def masked_attention__by_a_bias(query, key, value, mask):
    bias = np.zeros(len(mask))
    bias[mask == 0] = -np.inf
    weights = softmax__in_loops(scaled_scores__in_loops(query, key) + bias)
    return weights @ value, weights


def hiding(change):
    """Make an answer that changes its scaled scores by the mask in a way of its own."""

    def answer(query, key, value, mask):
        weights = softmax__in_one_line(change(scaled_scores__by_einsum(query, key), mask))
        return weights @ value, weights

    return answer


wrong_masked_attention__mask_inverted = hiding(lambda scores, mask: np.where(mask, -np.inf, scores))
wrong_masked_attention__mask_ignored = hiding(lambda scores, mask: scores)
wrong_masked_attention__mask_multiplies_scores = hiding(lambda scores, mask: mask * scores)
wrong_masked_attention__mask_added_as_number = hiding(lambda scores, mask: scores + mask)
wrong_masked_attention__fill_minus_1e9 = hiding(lambda scores, mask: np.where(mask, scores, -1e9))
wrong_masked_attention__fill_minus_1e4 = hiding(lambda scores, mask: np.where(mask, scores, -10_000))
wrong_masked_attention__fill_minus_1e9__added = hiding(lambda scores, mask: scores + (1 - mask) * -1e9)


wrong_masked_attention__fill_minus_1e4__closer = hiding(lambda scores, mask: np.where(mask, scores, -1000))
wrong_masked_attention__fill_infinity = hiding(lambda scores, mask: np.where(mask, scores, np.inf))
wrong_masked_attention__infinity_times_zero = hiding(lambda scores, mask: scores + (1 - mask) * -np.inf)
wrong_masked_attention__infinity_times_zero__inverted_mask = hiding(lambda scores, mask: scores - np.inf * ~mask)


def wrong_masked_attention__mask_on_the_rows(query, key, value, mask):
    scores = scaled_scores__by_einsum(query, key)
    scores[mask == False] = -np.inf  # noqa: E712
    weights = softmax__in_one_line(scores)
    return weights @ value, weights


def wrong_masked_attention__shared_out_anew(query, key, value, mask):
    weights = softmax__in_one_line(scaled_scores__by_einsum(query, key))
    weights[:, ~mask] = 0
    weights /= weights.sum(axis=1, keepdims=True)
    return weights @ value, weights


def wrong_masked_attention__no_maximum_subtracted(query, key, value, mask):
    e = np.exp(np.where(mask, scaled_scores__by_einsum(query, key), -np.inf))
    weights = e / e.sum(axis=1, keepdims=True)
    return weights @ value, weights


def wrong_masked_attention__key_and_value_set_to_zero(query, key, value, mask):
    key, value = key.copy(), value.copy()
    key[~mask] = 0
    value[~mask] = 0
    weights = softmax__in_one_line(scaled_scores__by_einsum(query, key))
    return weights @ value, weights


def wrong_masked_attention__mask_ignored__result_dropped(query, key, value, mask):
    scores = scaled_scores__by_einsum(query, key)
    np.where(mask, scores, -np.inf)
    weights = softmax__in_one_line(scores)
    return weights @ value, weights


def wrong_masked_attention__mask_after_softmax(query, key, value, mask):
    weights = softmax__in_one_line(scaled_scores__by_einsum(query, key)) * mask
    return weights @ value, weights


def wrong_masked_attention__values_set_to_zero(query, key, value, mask):
    weights = softmax__in_one_line(scaled_scores__by_einsum(query, key))
    return weights @ np.where(mask[:, None], value, 0), weights


def wrong_masked_attention__keys_taken_out(query, key, value, mask):
    weights = softmax__in_one_line(scaled_scores__by_einsum(query, key[mask]))
    return weights @ value[mask], weights


def wrong_masked_attention__unscaled(query, key, value, mask):
    weights = softmax__in_one_line(np.where(mask, query @ key.T, -np.inf))
    return weights @ value, weights


def wrong_masked_attention__softmax_over_queries(query, key, value, mask):
    weights = wrong_softmax__wrong_axis__stable(np.where(mask, scaled_scores__by_einsum(query, key), -np.inf))
    return weights @ value, weights


def wrong_masked_attention__forgets_to_return(query, key, value, mask):
    masked_attention__by_where(query, key, value, mask)


def wrong_masked_attention__hard_coded(query, key, value, mask):
    return np.array([[2.0]]), np.array([[1.0, 0.0]])


def wrong_masked_attention__count(query, key, value, mask):
    return masked_attention__by_where(query, key, value, mask)[0]


def wrong_masked_attention__writes(query, key, value, mask):
    np.logical_not(mask, out=mask)
    weights = softmax__in_one_line(np.where(mask, -np.inf, scaled_scores__by_einsum(query, key)))
    return weights @ value, weights
