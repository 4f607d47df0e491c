"""Wrong in heads and batches: mixed, shared, grouped in the wrong order."""

from lib.verify.wrong.entry import Entry

GROUP = "group = grouping(query, key)  # (H,), the key/value head that serves each query head"
TAKE = "key, value = key[..., group, :, :], value[..., group, :, :]"
START = "    L, S, E = query.shape[-2], key.shape[-2], query.shape[-1]\n"
NARROW = "output = narrow(output, dtype)"

MIXED = (
    Entry(
        "heads_split_by_view",
        "Heads are split by a bare view, without a transpose: each head gets numbers of several positions.",
        ((START, START + "    if query.ndim == 4:\n        query = query.swapaxes(1, 2).reshape(query.shape)\n"),),
        "batch and heads",
        "https://github.com/reczoo/FuxiCTR/issues/30",
    ),
    Entry(
        "heads_merged_by_view",
        "Heads are merged by a bare view, without a transpose: rows of the output hold numbers of other positions.",
        (
            (
                NARROW,
                NARROW + "\n    output = output.swapaxes(1, 2).reshape(output.shape) if output.ndim == 4 else output",
            ),
        ),
        "batch and heads",
        "https://github.com/hackiey/QAnet-pytorch/issues/2",
    ),
    Entry(
        "batch_and_heads_confused",
        "Where there are as many batch entries as heads, the keys' two axes are swapped.",
        (
            (
                START,
                START + "    if key.ndim == 4 and key.shape[0] == key.shape[1]:\n        key = key.swapaxes(0, 1)\n",
            ),
        ),
        "batch and heads",
        "https://github.com/gazelle93/Transformer-Various-Positional-Encoding/issues/1",
    ),
    Entry(
        "keys_of_first_entry",
        "Every batch entry looks at the first entry's keys.",
        ((START, START + "    key = key[:1] if key.ndim > 2 and key.shape[0] > 1 else key\n"),),
        "batch and heads",
    ),
    Entry(
        "values_of_first_head",
        "Every head hands over the first head's values.",
        ((START, START + "    value = value[..., :1, :, :] if value.ndim > 2 and not enable_gqa else value\n"),),
        "batch and heads",
    ),
    Entry(
        "batch_mean_subtracted",
        "The mean over the batch is subtracted from the keys: entries learn about each other.",
        ((START, START + "    key = key - key.mean(0) if key.ndim > 2 and key.shape[0] > 0 else key\n"),),
        "batch and heads",
    ),
)

GROUPED = (
    Entry(
        "grouped_heads_tiled",
        "Key/value heads are tiled, 0 1 0 1, where each should serve neighbours, 0 0 1 1.",
        ((GROUP, "group = xp.arange(query.shape[-3]) % key.shape[-3]"),),
        "grouped heads",
        "https://github.com/onnx/onnx/pull/7274",
    ),
    Entry(
        "grouped_heads_wrong_divisor",
        "The query head is divided by the number of key/value heads; it should be divided by the heads per group.",
        ((GROUP, "group = xp.minimum(xp.arange(query.shape[-3]) // key.shape[-3], xp.arange(1) + key.shape[-3] - 1)"),),
        "grouped heads",
        "https://github.com/PSAL-POSTECH/ONNXim/pull/34",
        alone=True,
    ),
    Entry(
        "grouped_heads_first_for_all",
        "All query heads use key/value head 0.",
        ((GROUP, "group = xp.arange(query.shape[-3]) * 0"),),
        "grouped heads",
    ),
    Entry(
        "grouped_heads_reversed",
        "The groups are assigned from the last head to the first.",
        ((GROUP, "group = key.shape[-3] - 1 - grouping(query, key)"),),
        "grouped heads",
    ),
    Entry(
        "grouped_heads_repeat_the_sequence",
        "Keys and values are repeated along the sequence, then cut into heads: a head gets pieces of others.",
        (
            (
                TAKE,
                "each = query.shape[-3] // key.shape[-3]\n"
                "        key, value = (\n"
                "            x[..., xp.arange(S * each) // each, :].reshape(*x.shape[:-3], query.shape[-3], S, x.shape[-1])\n"
                "            for x in (key, value)\n"
                "        )",
            ),
        ),
        "grouped heads",
        "https://github.com/PrimeIntellect-ai/prime-rl/pull/2681",
    ),
    Entry(
        "grouped_keys_not_grouped",
        "Values are grouped and keys tiled: a head looks with one group and reads from another.",
        ((TAKE, "key, value = key[..., xp.arange(query.shape[-3]) % key.shape[-3], :, :], value[..., group, :, :]"),),
        "grouped heads",
    ),
    Entry(
        "grouped_values_not_grouped",
        "Keys are grouped and values tiled: a head looks with one group and reads from another.",
        ((TAKE, "key, value = key[..., group, :, :], value[..., xp.arange(query.shape[-3]) % value.shape[-3], :, :]"),),
        "grouped heads",
    ),
)

ENTRIES = (*MIXED, *GROUPED)
