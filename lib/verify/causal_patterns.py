"""What a leak looks like: from which positions saw which, to the mistake that does this."""

import numpy as np

#: Each known mistake: what it does wrong.
SUSPECTS = {
    "no_mask": "every position sees all later ones: the causal mask is missing, in at least one layer, or a number "
    "taken over the whole sequence comes in",
    "mask_inverted": "positions see what comes after them and not what comes before: True and False are swapped",
    "mask_only_in_training": "the causal mask is applied in training only: evaluation sees the future",
    "mask_only_in_evaluation": "the causal mask is missing in training only, so the model learns to copy what it "
    "should guess",
    "off_by_one": "a position sees the next one, the very token it must guess: the mask's diagonal is one too far, or "
    "the input is shifted the wrong way; through n layers one ahead becomes n ahead",
    "sequence_statistics": "what comes in from later positions is one and the same for all: a mean, a maximum or a "
    "norm runs over time",
    "batch_statistics": "a norm takes its statistics over all rows and positions, as batch norm does in training",
    "last_token": "every position sees the last one and nothing else ahead: a summary of the sequence is added to all",
    "prefix_unmasked": "the first positions see each other both ways, as in a prefix model",
    "block_unmasked": "positions of one block see each other both ways: the mask compares blocks, not positions",
    "prefill_unmasked": "the first chunk that fills the cache is computed without a causal mask",
    "chunk_unmasked": "a chunk after the first is computed without a causal mask: with a cache the mask is left out, "
    "which is right for single tokens only",
    "cache_unmasked": "with a cache, every chunk is computed without a causal mask",
    "cache_sees_fewer": "with the cache a token reaches fewer of those before it: the cache loses or overwrites some, "
    "or the causal mask is aligned to the first key instead of the last",
    "cache_sees_more": "with the cache a token reaches more than in the whole pass: a window or a mask is left out",
    "cache_positions": "with the cache the same tokens are reached and the numbers differ: positions start again at 0 "
    "with each chunk, or keys are turned twice",
    "batch_and_time_swapped": "tokens see the other rows at their own position and nothing of their own row: the batch "
    "stands where time should (batch_first)",
    "rows_mixed": "one row of the batch reaches another: a sum, a norm or a reshape runs over the batch",
    "length_matters": "earlier outputs change with the length alone: positions are counted from the end, or a number "
    "depends on L",
}


def name_leak(seen: np.ndarray, known: np.ndarray) -> str | None:
    """Name the mistake by who sees whom.

    Parameters
    ----------
    seen : (L, L), bool
        Whether output t changes with input u.
    known : (L, L), bool
        Where that was asked.
    """
    L = len(seen)
    t, u = np.indices((L, L))
    future = known & (u > t)
    leak = seen & future
    ahead = (u - t)[leak]
    if not len(ahead):
        return None
    if (leak == future).all():
        past = known & (u < t)
        return "no_mask" if (seen & past).any() or not past.any() else "mask_inverted"
    if (leak == future & (u - t <= ahead.max())).all():
        return "off_by_one"
    columns = u[leak]
    if set(columns) == {L - 1}:
        return "last_token"
    if (leak == future & (u <= columns.max())).all():
        return "prefix_unmasked"
    if any((leak == future & (t // size == u // size)).all() for size in range(2, L)):
        return "block_unmasked"
    return None


def name_chunk_leak(seen: np.ndarray, sizes: tuple[int, ...]) -> str | None:
    """Name the mistake where only passes with a cache leak: which chunks do?"""
    t, u = np.indices(seen.shape)
    leak = seen & (u > t)
    chunk = np.repeat(np.arange(len(sizes)), sizes)
    leaking = set(chunk[t[leak]])
    able = {i for i, size in enumerate(sizes) if size > 1}
    if leaking == {0} and len(able) > 1:
        return "prefill_unmasked"
    if leaking and 0 not in leaking:
        return "chunk_unmasked"
    return "cache_unmasked" if leaking == able else None


def same_for_all(after: np.ndarray, before: np.ndarray, u: int) -> bool:
    """Say whether all outputs (L, V) but u's own change by the same vector: then something averages over time."""
    with np.errstate(invalid="ignore"):  # the same infinity in both
        change = np.where(after == before, 0.0, after - before)
    others = np.delete(change, u, 0)
    middle = others.mean(0)
    size = np.abs(middle).max()
    return len(others) > 1 and size > 0 and bool(np.abs(others - middle).max() <= 0.02 * size)


def one_number(effects: np.ndarray) -> bool:
    """Say whether changes of several later tokens (K, M) all move the earlier outputs along one line.

    Then the future comes in through a single number, such as a norm.
    """
    if min(effects.shape) < 3:
        return False
    sizes = np.linalg.norm(effects, axis=-1, keepdims=True)
    values = np.linalg.svd(effects / np.where(sizes == 0, 1.0, sizes), compute_uv=False)
    return bool(values[0] > 0 and values[1] <= 0.1 * values[0])


def picture(strength: np.ndarray, tol: float, sizes: tuple[int, ...] | None = None) -> list[str]:
    """Draw who sees whom: ``#`` seen, ``!`` seen though it comes later, ``.`` not seen, ``?`` not asked."""
    L = len(strength)
    width = len(str(L - 1))
    lines = [" " * (8 + width) + "input " + " ".join(f"{u:>{width}}" for u in range(L))]
    for t in range(L):
        marks = [_mark(strength[t, u], tol, u > t) for u in range(L)]
        lines.append(f"output {t:>{width}}" + " " * 7 + " ".join(f"{m:>{width}}" for m in marks))
    if sizes:
        lines.append(f"fed in chunks of {', '.join(map(str, sizes))}")
    return [*lines, "# seen    ! seen, though it comes later    . not seen"]


def _mark(strength: float, tol: float, later: bool) -> str:
    if np.isnan(strength):
        return "?"
    return "." if strength <= tol else "!" if later else "#"
