"""Wrong in numbers: overflow, precision, the soft cap."""

from lib.verify.wrong.entry import Entry
from lib.verify.wrong.equation import SCORES, TOP, TOTAL
from lib.verify.wrong.masking import BLOCK

WIDE = "query, key, value = wide(query), wide(key), wide(value)  # float32 at least"
CAP = "scores = softcap * xp.tanh(scores / softcap)"
CAP_STEP = "    if softcap is not None:\n        " + CAP + "\n"
EXP = "exponentials = xp.exp(scores - top)"
FILL = "    scores = xp.where(allowed, scores, -math.inf)\n"
WEIGHTED = "output = kept @ value  # (..., L, Ev)"

EXTREMES = (
    Entry(
        "no_maximum_subtracted",
        "The row's maximum is not subtracted before exp: scores beyond 88 overflow float32.",
        ((EXP, "exponentials = xp.exp(scores)"),),
        "extreme scores",
        frameworks=("numpy",),
        alone=True,
    ),
    Entry(
        "maximum_of_sizes",
        "The largest absolute value is subtracted in place of the maximum: a row of low scores is left with nothing.",
        ((TOP, TOP.replace("xp.amax(scores,", "xp.amax(xp.where(allowed, xp.abs(scores), 0.0),")),),
        "extreme scores",
    ),
    Entry(
        "scores_clipped",
        "Scores are clipped to ±50 against overflow: larger differences disappear.",
        ((SCORES, SCORES.replace("scores = ", "scores = xp.clip(") + ", -50.0, 50.0)"),),
        "extreme scores",
    ),
    Entry(
        "minimum_subtracted",
        "The row's minimum is subtracted before exp: large differences overflow.",
        (
            (
                TOP,
                "top = xp.amin(xp.where(allowed, scores, math.inf), axis=-1, keepdims=True) if S else scores.sum(axis=-1, keepdims=True)\n    top = xp.where(top == math.inf, 0.0, top)",
            ),
        ),
        "extreme scores",
    ),
)

PRECISION = (
    Entry(
        "half_products_overflow",
        "Products of half-precision inputs are kept in half precision before they are scaled: 64 · 40 · 40 is beyond 65504.",
        ((SCORES, "scores = wide(cast(query @ key.swapaxes(-1, -2), dtype)) * scale"),),
        "half precision",
        "https://github.com/pytorch/pytorch/issues/60939",
        alone=True,
    ),
    Entry(
        "half_sums",
        "Sums run in half precision: float16 counts to 2048 and no further.",
        ((TOTAL, "total = summed(exponentials, dtype)"),),
        "half precision",
        "https://github.com/microsoft/onnxruntime/pull/28198",
        alone=True,
    ),
    Entry(
        "half_fill_minus_8",
        "In half precision masked scores become −8, since −1e9 does not fit: small, but a weight all the same.",
        (
            (FILL, FILL + "    if dtype.itemsize == 2:\n        scores = xp.where(allowed, scores, -8.0)\n"),
            (BLOCK, ""),
        ),
        "half precision",
        alone=True,
    ),
    Entry(
        "float32_always",
        "Everything is computed in float32, float64 inputs too: eight digits are lost.",
        (
            (
                WIDE,
                "query, key, value = cast(query, 'float32'), cast(key, 'float32'), cast(value, 'float32')\n    bias = cast(bias, 'float32') if bias is not None else None",
            ),
        ),
        "float64",
        "https://github.com/huggingface/transformers/issues/48459",
    ),
    Entry(
        "values_in_float32",
        "The values are cut to float32, float64 inputs too.",
        ((WIDE, "query, key, value = wide(query), wide(key), cast(cast(value, 'float32'), wide(query).dtype)"),),
        "float64",
        alone=True,
    ),
)

SOFTCAPS = (
    Entry(
        "softcap_without_factor",
        "The capped scores are not multiplied by the cap again: tanh(score / softcap) lies between −1 and 1.",
        ((CAP, "scores = xp.tanh(scores / softcap)"),),
        "softcap",
    ),
    Entry(
        "softcap_without_division",
        "The scores are not divided by the cap: softcap · tanh(score).",
        ((CAP, "scores = softcap * xp.tanh(scores)"),),
        "softcap",
    ),
    Entry("softcap_ignored", "The cap does nothing.", ((CAP, "pass"),), "softcap"),
    Entry(
        "softcap_clips",
        "Scores are clipped at the cap, where they should bend smoothly.",
        ((CAP, "scores = xp.clip(scores, -softcap, softcap)"),),
        "softcap",
    ),
    Entry(
        "softcap_after_mask",
        "The cap comes after the mask: −∞ becomes −softcap, and masked keys get a weight.",
        ((CAP_STEP, ""), (FILL, FILL + CAP_STEP), (BLOCK, "")),
        "softcap",
    ),
    Entry(
        "softcap_after_bias",
        "The cap comes after the bias: the bias is bent as well.",
        (
            (CAP_STEP, ""),
            ("        scores = scores + wide(bias)\n", "        scores = scores + wide(bias)\n" + CAP_STEP),
        ),
        "softcap",
    ),
    Entry(
        "softcap_before_scale",
        "The cap comes before the scale.",
        ((SCORES, "scores = query @ key.swapaxes(-1, -2)"), (CAP_STEP, CAP_STEP + "    scores = scores * scale\n")),
        "softcap",
    ),
    Entry(
        "softcap_lost_on_fast_path",
        "The cap is dropped where nothing else is asked for: the fast path has none.",
        (
            (
                "    if softcap is not None:\n",
                "    if softcap is not None and (causal or mask is not None or bias is not None or window is not None or enable_gqa or return_weights):\n",
            ),
        ),
        "softcap",
        alone=True,
    ),
)

ENTRIES = (*EXTREMES, *PRECISION, *SOFTCAPS)
