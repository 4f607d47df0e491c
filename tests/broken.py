"""A textbook attention with a switch for each classic mistake, to see that the rules notice every one of them.

``Broken()`` without a fault keeps the whole contract. It is no oracle: nothing is compared with it.
"""

import numpy as np

FAULTS = {
    "softmax_over_queries": "the weights of each key sum to one, not those of each query",
    "softmax_over_heads": "the softmax runs over the head axis",
    "mask_inverted": "True hides",
    "mask_ignored": "the mask is not used at all",
    "mask_as_number": "True and False are added to the scores as 1 and 0",
    "mask_fill_small": "hidden scores become -20, not -inf",
    "mask_fill_huge": "hidden scores become -1e9: an empty row averages all values",
    "mask_after_softmax": "weights are masked but not shared out again",
    "mask_skips_first_head": "the mask misses the first head",
    "mask_or_causal": "mask and causal are joined by or",
    "mask_drops_causal": "with a mask, causal is forgotten",
    "mask_batch_as_heads": "a mask of one plane per batch entry is read as one per head",
    "bias_before_softcap": "the cap squashes the bias too",
    "bias_times": "the bias multiplies",
    "bias_ignored": "the bias is forgotten",
    "bias_twice": "the bias is added twice",
    "causal_ignored": "every query sees the future",
    "causal_strict": "a query does not see its own position",
    "causal_top_left": "the offset is forgotten",
    "causal_bottom_right": "the offset is S - L whatever was given",
    "causal_flipped": "a query sees itself and the future",
    "offset_first_only": "all batch entries use the first one's offset",
    "window_counts_self": "left=1 sees the query itself only",
    "window_left_only": "the right side is unbounded",
    "window_swapped": "left and right are swapped",
    "window_ignored": "the window is forgotten",
    "window_zero_is_none": "0 on a side counts as unbounded",
    "no_scale": "the products are not scaled",
    "scale_value_size": "1/sqrt(Ev)",
    "scale_all_heads": "1/sqrt(H * E)",
    "scale_divides": "a given scale divides",
    "scale_squared": "a given scale is multiplied by 1/sqrt(E) too",
    "scale_zero_is_none": "scale=0 counts as not given",
    "softcap_ignored": "the cap is forgotten",
    "softcap_clips": "the cap is a hard limit",
    "softcap_after_mask": "hidden scores come back as -softcap",
    "no_maximum": "exp of the bare scores",
    "one_maximum": "one maximum for all rows",
    "epsilon": "1e-6 in the denominator",
    "half_scores": "scores in the input's precision, scaled after the product",
    "half_softmax": "the softmax in the input's precision",
    "single_softmax": "the softmax always in float32",
    "wide_output": "the output keeps the precision it was computed in",
    "empty_row_mean": "an empty row gives the mean of the values",
    "empty_row_nan": "an empty row gives NaN",
    "hidden_nan_leaks": "0 * NaN reaches the output",
    "hidden_key_leaks": "NaN in a hidden key reaches the output",
    "heads_tiled": "query head h reads key/value head h % G",
    "heads_first": "all query heads read key/value head 0",
    "writes_value": "hidden values are zeroed in the caller's array",
    "writes_bias": "the mask is written into the caller's bias",
    "size_one_axis": "a single query is squeezed away",
    "ignores_query": "the weights do not depend on the query",
    "value_is_key": "the keys are averaged, where sizes allow",
    "batch_mixed": "every batch entry reads the first entry's keys",
    "accepts_number_masks": "a mask of numbers is cast to boolean",
    "guesses_alignment": "causal with L != S and no offset is bottom-right without a word",
    "accepts_integers": "integers are cast to floats",
    "accepts_mixed": "dtypes are promoted without a word",
}  # fmt: skip


class Broken:
    """Attention with one fault."""

    exact = True
    torch = False
    options = frozenset({"mask", "bias", "causal", "window", "offset", "scale", "softcap", "enable_gqa"})

    def __init__(self, fault=None):
        assert fault is None or fault in FAULTS, fault
        self.fault = fault

    def __repr__(self):
        return self.fault or "right"

    def __call__(self, query, key, value, **options):
        with np.errstate(all="ignore"):
            return self.attend(query, key, value, **options)

    def refuse(self, query, key, value, mask, bias, causal, window, offset):
        arrays = [x for x in (query, key, value, bias) if x is not None]
        if self.fault != "accepts_integers" and any(x.dtype.kind != "f" for x in arrays):
            raise TypeError(f"query, key, value, bias must be floating, got {[str(x.dtype) for x in arrays]}")
        if self.fault != "accepts_mixed" and len({x.dtype for x in arrays}) > 1:
            raise TypeError(f"query, key, value, bias must share one dtype, got {[str(x.dtype) for x in arrays]}")
        if self.fault != "accepts_number_masks" and mask is not None and mask.dtype != bool:
            raise TypeError(f"mask must be boolean, got {mask.dtype}; an additive mask goes to bias=")
        unaligned = (
            (causal or window not in (None, (None, None))) and offset is None and query.shape[-2] != key.shape[-2]
        )
        if self.fault != "guesses_alignment" and unaligned:
            raise ValueError("causal or window needs offset=: top-left or bottom-right?")

    def attend(
        self, query, key, value, mask=None, bias=None, causal=False, window=None, offset=None, scale=None,
        softcap=None, enable_gqa=False,
    ):  # fmt: skip
        fault, given = self.fault, query.dtype
        self.refuse(query, key, value, mask, bias, causal, window, offset)
        (L, E), (S, Ev) = query.shape[-2:], value.shape[-2:]
        if fault == "writes_value" and mask is not None and mask.shape[-2:] == (L, S):
            value[..., ~mask.any(tuple(range(mask.ndim - 1))), :] = 0
        if enable_gqa:
            repeats = query.shape[-3] // max(key.shape[-3], 1)
            key, value = (self.grouped(x, repeats) for x in (key, value))
        if fault == "batch_mixed" and key.ndim > 2:
            key = np.broadcast_to(key[:1], key.shape)
        batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
        allowed = self.allowed(batch, L, S, mask, bias, causal, window, offset)

        compute = given if fault in ("half_scores", "half_softmax") else np.result_type(given, np.float64)
        q, k = (x.astype(given if fault == "half_scores" else compute) for x in (query, key))
        if fault == "ignores_query":
            q = np.zeros_like(q)
        scores = (q @ k.swapaxes(-1, -2)).astype(compute) * self.scale(scale, query, E, Ev)
        if bias is not None and fault == "bias_before_softcap":
            scores = scores + bias
        if softcap is not None and fault != "softcap_ignored":
            cap = compute.type(softcap)
            if fault == "softcap_after_mask":
                scores = np.where(allowed, scores, -np.inf)
            scores = np.clip(scores, -cap, cap) if fault == "softcap_clips" else cap * np.tanh(scores / cap)
            if fault == "softcap_after_mask":
                allowed = np.ones_like(allowed)
        if bias is not None and fault not in ("bias_ignored", "bias_before_softcap"):
            scores = scores * bias if fault == "bias_times" else scores + bias * (2 if fault == "bias_twice" else 1)
        if fault == "mask_as_number" and mask is not None:
            scores = scores + mask
        fill = {"mask_fill_small": -20.0, "mask_fill_huge": -1e9}.get(fault, -np.inf)
        hidden = scores * 0 + -np.inf if fault == "hidden_key_leaks" else fill
        scores = np.where(allowed, scores, hidden)
        if fault == "mask_after_softmax":
            scores = np.where(allowed, scores, q @ k.swapaxes(-1, -2))
        if fault == "single_softmax":
            scores = scores.astype(np.float32)
        weights = self.softmax(scores)
        if fault == "mask_after_softmax":
            weights = weights * allowed
        if fault == "empty_row_mean":
            weights = np.where(allowed.any(-1, keepdims=True), weights, 1 / max(S, 1))
        if fault == "empty_row_nan":
            weights = np.where(allowed.any(-1, keepdims=True), weights, np.nan)
        if fault == "value_is_key" and key.shape == value.shape:
            value = key
        if fault == "writes_bias" and mask is not None and bias is not None and bias.shape == mask.shape:
            bias[~mask] = -np.inf
        output = self.weighted(weights.astype(compute), value.astype(compute), allowed)
        output = np.broadcast_to(output, (*batch, L, Ev)).astype(np.float64 if fault == "wide_output" else given)
        return output.squeeze(-2) if fault == "size_one_axis" and L == 1 else output

    def grouped(self, x, repeats):
        if self.fault == "heads_tiled":
            return np.concatenate([x] * repeats, axis=-3) if repeats else x[..., :0, :, :]
        if self.fault == "heads_first":
            return np.repeat(x[..., :1, :, :], repeats * x.shape[-3], axis=-3)
        return np.repeat(x, repeats, axis=-3)

    def scale(self, scale, query, E, Ev):
        default = 1 / max(E, 1) ** 0.5
        if scale is None or (self.fault == "scale_zero_is_none" and not scale):
            heads = query.shape[-3] if query.ndim > 2 else 1
            sizes = {"no_scale": 1, "scale_value_size": max(Ev, 1), "scale_all_heads": max(heads * E, 1)}
            return 1 / sizes.get(self.fault, max(E, 1)) ** 0.5
        if self.fault == "scale_divides":
            return 1 / scale if scale else 1
        return scale * default if self.fault == "scale_squared" else scale

    def allowed(self, batch, L, S, mask, bias, causal, window, offset):
        fault = self.fault
        first = np.asarray(0 if offset is None else offset)
        if fault == "offset_first_only":
            first = first.reshape(-1)[:1].reshape(()) if first.size == 1 else first.reshape(-1)[0]
        first = first.reshape(*first.shape, *[1] * (len(batch) - first.ndim + 2)) if first.ndim else first
        i, j = first + np.arange(L)[:, None], np.arange(S)
        if fault == "causal_top_left":
            i = np.arange(L)[:, None]
        if fault == "causal_bottom_right":
            i = np.arange(L)[:, None] + S - L
        moves = {"causal_strict": j < i, "causal_flipped": j >= i}.get(fault, j <= i)
        visible = np.ones((*batch, L, S), bool)
        if causal and fault != "causal_ignored" and not (fault == "mask_drops_causal" and mask is not None):
            visible = visible & moves
        if window is not None and fault != "window_ignored":
            left, right = window[::-1] if fault == "window_swapped" else window
            if fault == "window_zero_is_none":
                left, right = left or None, right or None
            if left is not None:
                visible = visible & (j >= i - max(left - (fault == "window_counts_self"), 0))
            if right is not None and fault != "window_left_only":
                visible = visible & (j <= i + right)
        if bias is not None:
            visible = visible & ~np.isneginf(bias)
        if mask is not None and fault not in ("mask_ignored", "mask_as_number"):
            seen = ~mask.astype(bool) if fault == "mask_inverted" else mask.astype(bool)
            if fault == "mask_batch_as_heads" and seen.ndim == 4 and seen.shape[1] == 1:
                seen = np.resize(seen[:, 0], (1, batch[1], L, S))
            seen = np.broadcast_to(seen, visible.shape)
            if fault == "mask_skips_first_head" and len(batch) > 1:
                seen = seen.copy()
                seen[:, 0] = True
            visible = visible | seen if fault == "mask_or_causal" and causal else visible & seen
        return visible

    def softmax(self, scores):
        axis = {"softmax_over_queries": -2, "softmax_over_heads": -3 if scores.ndim > 2 else -2}.get(self.fault, -1)
        over = None if self.fault == "one_maximum" else axis
        top = 0 if self.fault == "no_maximum" else scores.max(axis=over, keepdims=True, initial=-np.inf)
        exponentials = np.exp(scores - np.where(np.isneginf(top), 0, top))
        total = exponentials.sum(axis, keepdims=True) + (1e-6 if self.fault == "epsilon" else 0)
        return exponentials / np.where(total == 0, 1, total)

    def weighted(self, weights, value, allowed):
        if self.fault == "hidden_nan_leaks":
            return weights @ value
        terms = weights[..., None] * value[..., None, :, :]  # (..., L, S, Ev)
        seen = allowed | (weights != 0)
        return np.where(seen[..., None], terms, 0).sum(-2)
