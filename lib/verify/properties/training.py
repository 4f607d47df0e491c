"""Training: gradients and dropout. Gradients are torch's; dropout is tested wherever ``dropout_p`` exists."""

from collections.abc import Callable, Iterator

import numpy as np

from lib.verify.probe import Probe, draw, equal_scores, some_mask
from lib.verify.properties.base import Property, differs, explicit_scale, leads
from lib.verify.subject import DoesNotHold, Problem, Refusal, Subject

# --- gradients


def probes_gradients(subject: Subject) -> Iterator[Probe]:
    """Ask with few numbers and every option, in float64 where the function takes it."""
    options: list[dict] = [{}]
    if subject.has("mask"):
        options.append({"mask": some_mask(1, 2, 3)})
    if subject.has("bias"):
        options.append({"bias": np.array([[0.0, 1, -1], [2, 0, 0.5]])})
    if subject.has("softcap"):
        options.append({"softcap": 1.0})
    if subject.has("scale"):
        options.append({"scale": 0.25})
    for chosen in options:
        yield draw(600, 2, 3, 2, 2, **chosen).change(dtype=gradient_dtype(subject))
    if subject.has("causal"):
        yield draw(601, 3, 3, 2, 2, causal=True).change(dtype=gradient_dtype(subject))
    if subject.has("window"):
        yield draw(602, 3, 3, 2, 2, window=(1, 0)).change(dtype=gradient_dtype(subject))
    for lead in leads(subject, (2,), (2, 2)):
        yield draw(603, 2, 3, 2, 1, lead=lead).change(dtype=gradient_dtype(subject))
        if subject.has("enable_gqa") and lead == (2, 2):
            yield draw(604, 2, 2, 2, 1, lead=lead, groups=1, enable_gqa=True).change(dtype=gradient_dtype(subject))
    one_hot = Probe(np.ones((1, 1)), np.array([[100.0], [0.0]]), np.array([[1.0], [2.0]]))
    yield one_hot.change(dtype=gradient_dtype(subject))
    if gradient_dtype(subject) == "float64":
        yield draw(605, 3, 130, 2, 1).change(dtype="float64")  # more keys, then more queries, than a tile has
        yield draw(606, 130, 3, 2, 1).change(dtype="float64")


def gradient_dtype(subject: Subject) -> str:
    """Take float64 if the function does, and its softmax keeps it."""
    if "float64" in subject.dtypes and subject.conventions.softmax_dtype != "float32":
        probe = subject.fit(draw(600, 2, 3, 2, 2).change(dtype="float64"))
        if subject.run(probe).error is None:
            return "float64"
    return subject.form.dtype


def loss_weights(shape: tuple[int, ...]) -> np.ndarray:
    """Give each entry of the output its own small whole number, so that no two gradients look alike."""
    return np.arange(1.0, np.prod(shape, dtype=int) + 1).reshape(shape)


def check_gradients(subject: Subject, probe: Probe) -> None:
    """Compare each gradient with the slope of the function itself, taken by finite differences."""
    outcome = subject.outcome(probe, gradients=True)
    gradients = backward(subject, probe, outcome)
    exact = probe.dtype == "float64"
    step, allowed = (1e-5, 1e-6) if exact else (2e-2, 2e-2)
    for name, gradient in gradients.items():
        if gradient.size > MANY and _fits_along(subject, probe, name, gradient, step, allowed):
            continue
        slope = _slopes(subject, probe, name, step)
        size = 1 + np.abs(slope).max(initial=0)
        if differs(gradient, slope, allowed * size).any():
            missing = outcome.inputs[name].grad is None
            what = "is missing" if missing else "is not the slope of the output"
            basis = "the slope of the function's own output, by moving each number a little"
            raise DoesNotHold(
                Problem(probe, slope, gradient, f"the gradient of {name} {what}", f"{name}.grad", basis, missing)
            )
    if set(probe.options) or probe.Ev == 1 or probe.L == 1:
        return
    strided = backward(subject, probe, subject.outcome(probe, gradients=True), strided=True)
    for name, gradient in gradients.items():
        if differs(strided[name], gradient, allowed * (1 + np.abs(gradient).max(initial=0))).any():
            detail = f"the gradient of {name} is another one where the output's own gradient is a transposed view"
            raise DoesNotHold(Problem(probe, gradient, strided[name], detail, f"strided {name}.grad"))


MANY = 50  # entries, beyond which slopes are first taken along a few directions only


def _fits_along(subject: Subject, probe: Probe, name: str, gradient: np.ndarray, step: float, allowed: float) -> bool:
    """Compare a gradient with the slope of the output along three directions."""
    rng = np.random.default_rng(0)
    for _ in range(3):
        direction = rng.choice([-1.0, 1.0], gradient.shape)
        ends = []
        for sign in (1, -1):
            output = subject.output(probe.change(**{name: probe.arrays[name] + sign * step * direction}))
            ends.append((output * loss_weights(output.shape)).sum())
        slope = (ends[0] - ends[1]) / (2 * step)
        if abs((gradient * direction).sum() - slope) > allowed * (1 + np.abs(gradient).sum()):
            return False
    return True


def backward(subject: Subject, probe: Probe, outcome: object, strided: bool = False) -> dict[str, np.ndarray]:
    """Run torch's backward pass from a weighted sum of the output; a gradient that is missing is 0.

    With ``strided`` the gradient that reaches the output is a transposed view.
    """
    weights = subject.framework.make(subject.swap_heads(loss_weights(outcome.output.shape)), probe.dtype)
    try:
        loss = outcome.raw.mT * weights.mT.contiguous() if strided else outcome.raw * weights
        loss.sum().backward()
    except (RuntimeError, NotImplementedError) as error:
        text = str(error).splitlines()[0]
        detail = f"there is no gradient: {text}; pass conventions={{'gradients': 'none'}} (--convention gradients=none) if the function is for inference only"  # noqa: E501
        raise DoesNotHold(Problem(probe, "a gradient", text, detail, "query.grad")) from None
    found = {}
    for name, x in outcome.inputs.items():
        if name != "mask":
            grad = np.zeros(tuple(x.shape)) if x.grad is None else subject.framework.read(x.grad)
            found[name] = subject.swap_heads(grad) if name != "bias" else grad
    return found


def _slopes(subject: Subject, probe: Probe, name: str, step: float) -> np.ndarray:
    """Move each entry a little both ways and see how the weighted sum of the output moves."""
    return _differences(subject.output, probe, name, step)


def _slopes_of_equation(subject: Subject, probe: Probe, name: str, step: float) -> np.ndarray:
    """Give the slopes that a right output has, a query that sees nothing included."""
    return _differences(lambda call: np.nan_to_num(subject.expected(call).output), probe, name, step)


def _differences(output_of: Callable[[Probe], np.ndarray], probe: Probe, name: str, step: float) -> np.ndarray:
    x = probe.arrays[name]
    slope = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            output = output_of(probe.change(**{name: moved}))
            ends.append((output * loss_weights(output.shape)).sum())
        slope[index] = (ends[0] - ends[1]) / (2 * step)
    return slope


def applies_gradients(subject: Subject) -> str | None:
    """Gradients are torch's."""
    if subject.framework.name != "torch":
        return "gradients are torch's"
    return "the convention says that there are none" if subject.conventions.gradients == "none" else None


GRADIENTS = Property(
    "gradients",
    "The gradients of query, key, value and bias are the slopes of the output.",
    probes_gradients,
    check_gradients,
    applies=applies_gradients,
)

# --- gradients beside an empty row


def probes_empty_gradients(subject: Subject) -> Iterator[Probe]:
    """Ask with one query that sees nothing and one that does."""
    how = {"dtype": gradient_dtype(subject), "corner": "a query that may attend to nothing"}
    mask = np.array([[False, False], [True, True]])
    yield equal_scores([1, 2], L=2, mask=mask).change(**how)
    yield draw(610, 2, 2, 2, 1, mask=mask).change(**how)
    mask = np.array([[True, True, False], [False, False, False], [False, True, True]])
    yield draw(611, 3, 3, 2, 2, mask=mask, **explicit_scale(subject)).change(**how)
    for lead in leads(subject, (2,), (2, 2)):
        full = np.broadcast_to(mask, (*lead, 3, 3)).copy()
        full[0] = True
        yield draw(612, 3, 3, 2, 2, lead=lead, mask=full).change(**how)


def check_empty_gradients(subject: Subject, probe: Probe) -> None:
    """No NaN and no infinity: one padded row would spoil the whole batch's step."""
    outcome = subject.outcome(probe, gradients=True)
    if not outcome.raw.requires_grad:
        return  # there is no gradient at all, which another property says
    for name, gradient in backward(subject, probe, outcome).items():
        if not np.isfinite(gradient).all():
            detail = f"a query that sees nothing makes the gradient of {name} NaN"
            expected = _slopes_of_equation(subject, probe, name, 1e-5)
            basis = "the slope of the right output; any finite numbers pass"
            raise DoesNotHold(Problem(probe, expected, gradient, detail, f"{name}.grad", basis))


def applies_empty_gradients(subject: Subject) -> str | None:
    """Where an empty row is NaN by convention, so is its gradient."""
    if subject.conventions.empty_rows == "nan":
        return "empty rows are NaN by convention, and so are their gradients"
    return applies_gradients(subject)


EMPTY_GRADIENTS = Property(
    "gradients of empty rows",
    "A query that sees nothing leaves all gradients finite.",
    probes_empty_gradients,
    check_empty_gradients,
    needs=("mask",),
    applies=applies_empty_gradients,
)

# --- dropout


def probes_dropout(subject: Subject) -> Iterator[Probe]:
    """Ask with no dropout, then with half of many equal weights dropped."""
    yield draw(620, 2, 3, 2, 1, dropout_p=0.0)
    yield equal_scores(np.ones(4000), L=2, dropout_p=0.5)
    yield equal_scores(np.ones(4000), L=2, dropout_p=0.2)
    for lead in leads(subject, (), (2,), (2, 2)):
        L, S = 128 // int(np.prod(lead, dtype=int)), 16
        query, value = np.ones((*lead, L, 1)), np.broadcast_to(np.eye(S), (*lead, S, S)).copy()  # output: the weights
        key = np.broadcast_to(np.arange(S)[:, None] / 1.0, (*lead, S, 1)).copy()
        for p in (0.5, 0.2):
            yield Probe(query, key, value, {"dropout_p": p})


def check_dropout(subject: Subject, probe: Probe) -> None:
    """No dropout changes nothing; with dropout, single weights go and the expected sum stays one."""
    p = probe.options["dropout_p"]
    plain = subject.output(probe.change(dropout_p=None))
    subject.framework.seed(0)
    given = subject.output(probe)
    if p == 0:
        if differs(given, plain, 1e-6).any():
            raise DoesNotHold(Problem(probe, plain, given, "dropout_p = 0 changes the output"))
        return
    if not differs(given, plain, 1e-6).any():
        subject.note("dropout", "dropout_p changes nothing here: dropout is off, as in evaluation")
        raise Refusal("dropout_p", "it changes nothing")
    if probe.Ev == 1:
        off = np.abs(given - plain).max()
        if off > 0.15:
            raise DoesNotHold(Problem(probe, plain, given, f"the weights' expected sum is off by {off:.2f}"))
        return
    detail = _wrongly_dropped(plain[..., : probe.S], given[..., : probe.S], p)
    subject.framework.seed(1)
    if detail is None and not ((subject.output(probe) == 0) != (given == 0)).any():
        detail = "the same weights are dropped at every call"
    if detail is not None:
        raise DoesNotHold(Problem(probe, plain, given, detail))


def _wrongly_dropped(plain: np.ndarray, given: np.ndarray, p: float) -> str | None:
    """Compare weights (..., L, S) without and with dropout, or give None."""
    dropped = given == 0
    if abs(dropped.mean() - p) > 0.1:
        return f"{dropped.mean():.2f} of the weights are dropped, wanted {p:g}"
    patterns = {row.tobytes() for row in dropped.reshape(-1, dropped.shape[-1])}
    queries = dropped.size // dropped.shape[-1]
    if len(patterns) < queries / 2:
        return f"weights are dropped in {len(patterns)} patterns for {queries} queries, heads and batch entries"
    if differs(given[~dropped] * (1 - p), plain[~dropped], 0.01 * plain[~dropped]).any():
        return "a weight that stays is not 1/(1 − p) of what it was"
    return None


DROPOUT = Property(
    "dropout",
    "dropout_p = 0 drops nothing; otherwise each weight is dropped alone and the others grow, so that the expected output stays.",  # noqa: E501
    probes_dropout,
    check_dropout,
    needs=("dropout_p",),
    shrinks=False,
)
