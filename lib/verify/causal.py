"""Does a whole language model see the future? Asked of its outputs, by changing tokens and by gradients.

    output t may depend on tokens 0 … t:     d output[t] / d input[u] = 0   for every u > t

A change of token u tells what each output sees of it; a gradient of output t tells what it sees of each input. Each is
asked in training and in evaluation mode, of whole passes, and of passes with a cache: at once, in chunks, step by step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from lib.verify.causal_model import SEED, WHOLE, Model, Raised
from lib.verify.causal_patterns import SUSPECTS, name_chunk_leak, name_leak, one_number, picture, same_for_all
from lib.verify.example import Example
from lib.verify.report import Colored, Failure, Plain, Report, _wrapped
from lib.verify.subject import UsageError

DRAWN = 12  # up to this length, a leak is drawn
ALL = 32  # up to this length, every position is asked
CACHED = 64  # passes with a cache are asked about so many positions
NOISE = 64  # units of rounding that two equal sums may differ by, in passes of the same shape
OTHER_SHAPE = 1024  # the same, where shapes differ and sums are taken in another order
STATEMENTS = {
    "perturbation": "an output stays the same when a later token changes",
    "gradient": "the gradient of an output with respect to a later input is 0",
    "rows": "an output stays the same when another row of the batch changes",
    "padding": "earlier outputs stay the same when a sequence is cut off or padded at its end",
    "agreement": "passes with the cache give the logits of the whole pass",
    "repeatable": "the same tokens and seeds give the same logits",
    "finite": "the logits are not NaN",
}


@dataclass(frozen=True)
class Leak(Failure):
    """A property of a model that does not hold.

    Attributes
    ----------
    property : str
        What was asked, of which pass, in which mode: ``"perturbation, whole pass, evaluation"``.
    mode : str
        "evaluation", "training", or "as it is" for a model without modes.
    way : str
        "whole pass", "prefill", "prefill and steps", "chunks" or "single steps".
    pairs : list of (t, u, float)
        Output t saw token u, by so much, the strongest first.
    drawing : list of str
        Who sees whom, where the sequence is short.
    """

    mode: str = ""
    way: str = WHOLE
    pairs: list[tuple[int, int, float]] = field(default_factory=list)
    drawing: list[str] = field(default_factory=list)

    def lines(self, style: Any) -> list[str]:
        """Write the failure down."""
        lines = super().lines(style)
        head = 1 + len(_wrapped(self.message))
        drawn = ["", *(style.code("    " + line) for line in self.drawing)] if self.drawing else []
        return [*lines[:head], *drawn, *lines[head:]]

    def to_dict(self) -> dict[str, Any]:
        """Give plain Python objects, such that JSON can hold them."""
        pairs = [[t, u, x if np.isfinite(x) else str(x)] for t, u, x in self.pairs]
        return super().to_dict() | {"mode": self.mode, "way": self.way, "pairs": pairs}


@dataclass(frozen=True)
class CausalReport(Report):
    """What :func:`lib.verify.check_causal` found.

    Attributes
    ----------
    seen : dict of (L, L) arrays
        For each question: how much output t changes with input u, NaN where it was not asked.
    exact : dict of bool
        For each question that holds: whether to the last bit, or within float noise.
    """

    seen: dict[str, np.ndarray] = field(default_factory=dict)
    exact: dict[str, bool] = field(default_factory=dict)

    def text(self, color: bool = False) -> str:
        """Write the report for people, with what holds put together."""
        style = Colored() if color else Plain()
        rest = Report.text(replace(self, holds=_together(self.holds)), color).split("\n", 1)
        return "\n".join([self._headline(style), *rest[1:]])

    def _headline(self, style: Plain) -> str:
        asked = len(self.failures) + len(self.holds)
        if self.ok:
            return style.good(f"{self.function} does not see the future: all {asked} questions asked hold.")
        sees = any(failure.pairs for failure in self.failures)
        what = "sees the future" if sees else "is wrong"
        return style.bad(f"{self.function} {what}: {len(self.failures)} of {asked} questions fail.")

    def _chosen(self) -> tuple[list, list]:
        groups: dict[str, list[Failure]] = {}
        for failure in self.failures:
            groups.setdefault(failure.suspect or failure.property, []).append(failure)
        shown = [(group[0], group[1:]) for group in groups.values()]
        return shown[:5], [f for first, others in shown[5:] for f in (first, *others)]


class Way(NamedTuple):
    """How tokens are fed: at once without a cache (sizes None), or in chunks with one."""

    name: str
    sizes: tuple[int, ...] | None


class Scene(NamedTuple):
    """One way in one mode, with what the unchanged tokens give."""

    mode: str
    way: Way
    tokens: np.ndarray
    base: np.ndarray  # (B, L, V)
    tol: float

    def title(self, question: str) -> str:
        """Name a question in this scene."""
        return f"{question}, {self.way.name}, {self.mode}"


def check_causal(
    model: Callable,
    tokens: Any,
    *,
    cache: Callable | bool | None = None,
    vocabulary: int | None = None,
    pad: int | None = None,
    module: Any = None,
) -> CausalReport:
    """Find out whether a language model sees the future, and which position saw which.

    Parameters
    ----------
    model : callable or torch.nn.Module
        Tokens (B, L) to logits (B, L, V), where those at position i guess token i + 1 and may depend on tokens 0 … i.
        It may give back an array, a tuple or list that starts with it, ``.logits`` or a dict with "logits".
    tokens : torch.Tensor or numpy.ndarray (B, L), integers, L ≥ 2
        An ordinary input, best with L ≤ 12 and more positions than the model has layers. For a model that takes
        vectors, (B, L, D) and floating. With one row, a second is made.
    cache : callable
        ``cache(batch)`` starts a sequence and gives back ``feed(tokens)``: called with the next (B, n) tokens, it
        gives their logits (B, n, V). The interfaces of :class:`lib.fast.LanguageModel` (``new_cache`` and ``caches=``)
        and of Hugging Face's models (``past_key_values=`` or ``cache=``, with ``use_cache=``) are found. False: do not
        test it.
    vocabulary : int ≥ 2
        Tokens are put in from 0 to vocabulary − 1. One more than the largest in ``tokens`` unless given.
    pad : int
        The token that stands at the end of short sequences; 0 unless given.
    module : torch.nn.Module
        What stands behind a function, so that its modes and embedding can be reached.

    Returns
    -------
    CausalReport
        ``report.ok``, ``report.failures``; ``print(report)`` is for people. What could not be asked stands in
        ``report.not_tested`` and is not passed. Modes, buffers and random states are as they were before.

    Raises
    ------
    UsageError
        A TypeError and ValueError: if the tokens are no integers of shape (B, L), or the model gives no logits of
        shape (B, L, V) for them.

    Examples
    --------
    A model that adds the mean over the whole sequence:

    >>> def model(tokens):
    ...     x = np.eye(4)[tokens]  # (B, L, V)
    ...     return x + x.mean(1, keepdims=True)
    >>> report = check_causal(model, np.array([[0, 1, 2, 3]]))
    >>> report.ok, report.suspect, report.failures[0].pairs[0]
    (False, 'sequence_statistics', (0, 1, 0.25))
    """
    subject = Model(model, tokens, cache, module)
    check = _Check(subject, _vocabulary(subject, vocabulary), pad)
    if subject.module is None:
        check.not_tested["training and evaluation mode"] = "the model is no torch.nn.Module (pass module=)"
        modes = [("as it is", None)]
    else:
        modes = [("evaluation", False), ("training", True)]
    errors = []
    for name, training in modes:
        with subject.mode(training):
            try:
                base = check.prepare()
            except Raised as error:
                check.not_tested[f"{name} mode"] = str(error)
                errors.append(error)
                continue
            check.ask(name, base)
    if len(errors) == len(modes):
        shape = tuple(subject.tokens.shape)
        raise UsageError(f"the model raised at tokens of shape {shape}: {errors[0]}") from errors[0]
    return check.report()


class _Check:
    """The questions, and what was found so far."""

    def __init__(self, model: Model, vocabulary: int, pad: int | None) -> None:
        self.model, self.vocabulary = model, vocabulary
        self.pad = 0 if pad is None else pad
        self.tokens = model.tokens
        self.failures: list[Leak] = []
        self.holds: list[str] = []
        self.not_tested: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.notes: list[str] = []
        self.seen: dict[str, np.ndarray] = {}
        self.exact: dict[str, bool] = {}
        self.noise: dict[str, float] = {}
        self.tols: dict[str, float] = {}
        self.averages: set[str] = set()  # questions whose leak is the same at every position, or of a mean
        self.examined: set[str] = set()

    # What is asked ---------------------------------------------------------------------------------------------------

    def prepare(self) -> np.ndarray:
        """Run the tokens as they are. With one row, add a second, if the model takes it."""
        if len(self.tokens) == 1:
            more = np.concatenate([self.tokens, self.changed(self.tokens, 0, slice(None), 0)])
            try:
                base = self.model.run(more)
            except (Raised, UsageError):
                self.not_tested["rows of the batch"] = "tokens has one row, and the model does not take two"
            else:
                self.tokens = more
                return base
        return self.model.run(self.tokens)

    def ask(self, mode: str, base: np.ndarray) -> None:
        """Ask everything in one mode."""
        whole = self.scene(mode, Way(WHOLE, None), self.tokens, base)
        if whole is None:
            return
        self.perturb(whole, tries=2)
        self.differentiate(whole)
        drawn = self.model.run(self.tokens, seed=SEED + 1)
        random = _difference(drawn, base).max() > whole.tol
        self.end(whole, random)
        if self.model.start is None:
            self.not_tested["passes with a cache"] = "no cache interface was found (pass cache=)"
            return
        tokens = self.tokens[:, :CACHED]
        for way in _ways(tokens.shape[1]):
            try:
                found = self.model.run(tokens, way.sizes)
            except (Raised, UsageError) as error:
                self.refused[f"{way.name}, {mode}"] = str(error)
                continue
            scene = self.scene(mode, way, tokens, found)
            if scene is not None:
                self.perturb(scene, tries=1)
                self.agree(scene, whole, random)

    def scene(self, mode: str, way: Way, tokens: np.ndarray, base: np.ndarray) -> Scene | None:
        """Look whether passes can be compared at all: the logits are numbers, and come again."""
        scale = _size(base)
        scene = Scene(mode, way, tokens, base, NOISE * self.model.eps * scale)
        if np.isnan(base).any():
            b, t = np.argwhere(np.isnan(base))[0][:2]
            self.fail(scene, "finite", f"the logits of row {b} at position {t} hold NaN, so nothing else can be told")
            return None
        again = _difference(self.model.run(tokens, way.sizes), base).max()
        if again <= scene.tol:
            return scene
        text = f"two passes over the same tokens, with the same seeds, differ by {again:.2g}: "
        text += "the model keeps something between calls, or draws from a generator of its own"
        if mode == "training":
            self.not_tested[f"{way.name}, training"] = text
        else:
            self.fail(scene, "repeatable", text)
        return None

    def perturb(self, scene: Scene, tries: int) -> None:
        """Change a token in one row, and see which outputs of that row change, and which of other rows."""
        tokens, (B, L) = scene.tokens, scene.tokens.shape[:2]
        strength, across, same = np.full((L, L), np.nan), np.zeros((L, L, 4)), []
        asked = _picks(L, ALL if scene.way.sizes is None else 12)
        for i, u in enumerate(asked):
            row = i % B
            for again in range(tries):
                found = self.run(scene, self.changed(tokens, row, u, again))
                by = _difference(found, scene.base).max(-1)  # (B, L)
                strength[:, u] = np.fmax(strength[:, u], by[row])
                across[:, u] = _strongest(across[:, u], np.delete(by, row, 0), row)
            same.append(same_for_all(found[row], scene.base[row], u))
        title = scene.title("perturbation")
        self.seen[title], self.tols[title] = strength, scene.tol
        if all(same):
            self.averages.add(title)
        joint = {}
        if scene.way.sizes is None:  # several later tokens together may show what one alone does not
            for i, k in enumerate(asked[1:]):
                change = _difference(self.run(scene, self.changed(tokens, i % B, slice(k, None), i)), scene.base)
                joint[k] = change[i % B, :k].max(-1)
        self.judge(scene, "perturbation", strength, scene.tol, joint)
        self.judge_rows(scene, across)

    def differentiate(self, scene: Scene) -> None:
        """Take the gradient of outputs with respect to what the embedding gives."""
        title, (_, L) = scene.title("gradient"), scene.tokens.shape[:2]
        asked = _picks(L, ALL)
        try:
            found = self.model.gradients(scene.tokens, asked)
        except Raised as error:
            found = str(error)
        if isinstance(found, str):
            self.not_tested[title] = found
            return
        by, rows = found
        if not np.isfinite(by).all():
            self.not_tested[title] = "the gradient holds NaN or infinity"
            return
        strength = np.full((L, L), np.nan)
        for i, t in enumerate(asked):
            strength[t] = by[i, rows[i]]
        self.seen[title] = strength
        self.judge(scene, "gradient", strength, NOISE * self.model.eps * by.max(), {})

    def end(self, scene: Scene, random: bool) -> None:
        """Cut sequences off, and pad them, and compare what stands before."""
        title, (_, L) = scene.title("padding"), scene.tokens.shape[:2]
        tol, worst, cut = OTHER_SHAPE * self.model.eps * _size(scene.base), 0.0, not random
        for k in sorted({1, L // 2, L - 1}):
            padded = scene.tokens.copy()
            padded[:, k:] = self.pad
            trials = [("padded", padded, scene.tol)]
            trials += [("cut off", scene.tokens[:, :k], tol)] if cut else []
            for what, changed, limit in trials:
                try:
                    by = _difference(self.model.run(changed)[:, :k], scene.base[:, :k]).max((0, 2))
                except (Raised, UsageError) as error:
                    cut = cut and what == "padded"
                    self.notes.append(f"{title}: the model takes no sequence of {changed.shape[1]} tokens ({error})")
                    continue
                worst = max(worst, by.max())
                if by.max() > limit:
                    t = int(by.argmax())
                    text = f"position {t} gives other logits, by {by[t]:.2g}, when the sequence is {what} from {k} on"
                    leaks = [f for f in self.failures if f.way == WHOLE and f.mode == scene.mode and f.pairs]
                    self.fail(scene, "padding", text, leaks[0].suspect if leaks else "length_matters")
                    return
        self.hold(title, worst)
        if random:
            self.notes.append(f"{title}: padded only; with dropout, passes of other lengths draw other numbers")

    def agree(self, scene: Scene, whole: Scene, random: bool) -> None:
        """Compare a pass with the cache with the whole pass: numbers, and who reaches whom."""
        title, L = scene.title("agreement"), scene.tokens.shape[1]
        if random:
            self.not_tested[title] = "with dropout, passes of other shapes draw other numbers"
            return
        by = _difference(scene.base, whole.base[:, :L]).max((0, 2))  # (L,)
        tol = OTHER_SHAPE * self.model.eps * _size(whole.base)
        if by.max() <= tol:
            self.hold(title, by.max())
            return
        t = int((by > tol).argmax())
        with_cache = self.seen[scene.title("perturbation")]
        without = self.seen[whole.title("perturbation")][:L, :L]
        asked = ~np.isnan(with_cache) & ~np.isnan(without) & np.tri(L, dtype=bool)
        fewer = asked & (without > whole.tol) & ~(with_cache > scene.tol)
        more = asked & (with_cache > scene.tol) & ~(without > whole.tol)
        text = f"position {t} is the first that gives other logits than the whole pass, by {by[t]:.2g}"
        suspect = "cache_positions"
        for found, name, words in (
            (more, "cache_sees_more", "saw position {u} only with"),
            (fewer, "cache_sees_fewer", "saw position {u} only without"),
        ):
            if found.any():
                suspect, (first, u) = name, np.argwhere(found)[0]
                text += f"; position {first} " + words.format(u=u) + " the cache"
        leaking = [f for f in self.failures if f.mode == scene.mode and f.pairs and f.way in (WHOLE, scene.way.name)]
        if leaking:
            text += f"; the {leaking[-1].way} sees the future"
            suspect = leaking[-1].suspect
        drawn = self.draw(with_cache, scene.tol, scene.way) if fewer.any() or more.any() else []
        self.fail(scene, "agreement", text, suspect, drawing=drawn)

    # What is found ---------------------------------------------------------------------------------------------------

    def judge(
        self, scene: Scene, question: str, strength: np.ndarray, tol: float, joint: dict[int, np.ndarray]
    ) -> None:
        """Fail if an output sees a later input; say exactly how well it holds if not."""
        later = ~np.tri(len(strength), dtype=bool) & ~np.isnan(strength)
        pairs = [(int(t), int(u), float(strength[t, u])) for t, u in np.argwhere(later & (strength > tol))]
        noise = float(strength[later].max(initial=0.0))
        pairs = sorted(pairs, key=lambda pair: (pair[1] - pair[0] != 1, pair[0], pair[1]))
        together = ""
        if not pairs:
            pairs = [(int(by.argmax()), k, float(by.max())) for k, by in joint.items() if by.max() > tol]
            noise = max([noise, *(float(by.max()) for by in joint.values())])
            together = " and later ones, changed together"
        if not pairs:
            self.hold(scene.title(question), noise)
            return
        t, u, by = pairs[0]
        unit = "gradient" if question == "gradient" else "change"
        text = f"position {t} saw position {u}{together} ({unit} {by:.2g})"
        if len(pairs) > 1:
            text += f"; {len(pairs)} such pairs, the strongest position {{}} that saw {{}} ({unit} {{:.2g}})".format(
                *max(pairs, key=lambda pair: pair[2])
            )
        example = self.example(scene, pairs) if question == "perturbation" else None
        suspect = None if together else self.name(scene, question, strength, tol)
        drawing = self.draw(strength, tol, scene.way)
        self.fail(scene, question, text, suspect, pairs, example, drawing)

    def name(self, scene: Scene, question: str, strength: np.ndarray, tol: float) -> str | None:
        """Name the mistake in one scene; what needs both modes is settled at the end."""
        seen, sizes = np.nan_to_num(strength, nan=0.0) > tol, scene.way.sizes
        whole = [f for f in self.failures if f.way == WHOLE and f.mode == scene.mode and f.pairs]
        if sizes is not None:
            return whole[0].suspect if whole else name_chunk_leak(seen, sizes)
        found = name_leak(seen, ~np.isnan(strength))
        if found != "no_mask":
            return found
        title = scene.title("perturbation")
        if title not in self.examined and self.through_statistics(scene):
            self.averages.add(title)
        self.examined.add(title)
        return "sequence_statistics" if title in self.averages else found

    def through_statistics(self, scene: Scene) -> bool:
        """Say whether the future comes in through a number or a mean of the sequence, and not token by token."""
        tokens, half = scene.tokens, scene.tokens.shape[1] // 2
        later = list(range(half, tokens.shape[1]))[:8]
        if len(later) < 3:
            return False
        base = scene.base[:1]

        def change(other: np.ndarray, t: slice) -> np.ndarray:
            return (self.run(scene, other)[:1] - base)[0, t].ravel()

        effects = [change(self.changed(tokens, 0, u, 0), slice(half)) for u in later]
        if not np.isfinite(effects).all():
            return False
        if one_number(np.array(effects)):
            return True
        size = np.median(np.abs(effects).max(-1))
        (u, v), (p, q) = _unlike(tokens[0], later), _unlike(tokens[0], list(range(half)))
        if u is None or p is None:
            return False
        order_ahead = np.abs(change(_swapped(tokens, u, v), slice(half))).max()
        order_behind = np.abs(change(_swapped(tokens, p, q), slice(q + 1, None))).max()
        return order_ahead <= max(1e-4 * size, 4 * scene.tol) and order_behind > 0.01 * size

    def judge_rows(self, scene: Scene, across: np.ndarray) -> None:
        """Fail if a row of the batch sees another; ``across`` holds for t, u: strength, row, other row, position."""
        title = scene.title("rows")
        if len(scene.tokens) < 2:
            self.not_tested[title] = "the batch has one row"
            return
        worst = across[..., 0].max()
        if worst <= scene.tol:
            self.hold(title, worst)
            return
        seen = across[..., 0] > scene.tol
        t, u = (int(i) for i in np.argwhere(seen)[0])
        by, row, other, _ = across[t, u]
        text = f"position {t} of row {int(other)} saw position {u} of row {int(row)} (change {by:.2g})"
        own = np.nan_to_num(self.seen[scene.title("perturbation")]) > scene.tol
        off = ~np.eye(len(seen), dtype=bool)
        swapped = not (seen & off).any() and not (own & off).any()
        self.fail(scene, "rows", text, "batch_and_time_swapped" if swapped else "rows_mixed")

    def example(self, scene: Scene, pairs: list[tuple[int, int, float]]) -> Example | None:
        """Find the shortest sequence that shows it, and write it down as code."""
        if scene.way.sizes is not None or self.model.features:
            return None
        L = scene.tokens.shape[1]
        for length in range(2, L + 1):
            for row in [slice(b, b + 1) for b in range(len(scene.tokens))] + [slice(None)]:
                before = scene.tokens[row, :length]
                after = self.changed(before, slice(None), length - 1, 0)
                try:
                    by = _difference(self.model.run(after), self.model.run(before))[:, : length - 1].max((0, 2))
                except (Raised, UsageError):
                    continue
                if by.max() > scene.tol:
                    return self.write(scene, before, after, int(by.argmax()), float(by.max()))
        return None

    def write(self, scene: Scene, before: np.ndarray, after: np.ndarray, t: int, by: float) -> Example:
        """Write a leak down as code."""
        make = "torch.tensor" if self.model.is_torch else "np.array"
        seed = "torch.manual_seed(0); " if scene.mode == "training" else ""
        detach = ".detach()" if self.model.is_torch else ""
        lines = ["import torch" if self.model.is_torch else "import numpy as np", ""]
        lines += {"evaluation": ["model.eval()"], "training": ["model.train()"]}.get(scene.mode, [])
        for name, x in (("before", before), ("after", after)):
            lines += [f"{name} = {make}({x.tolist()})", f"{seed}{name} = model({name}){self.model.access}{detach}"]
        shown = f"abs(after[:, {t}] - before[:, {t}]).max()"
        lines += [f"print({shown})  # wanted: 0, given: {by:.2g}"]
        sizes = {"B": len(before), "L": before.shape[1]}
        return Example("\n".join(lines), 0.0, by, shown, sizes)

    def draw(self, strength: np.ndarray, tol: float, way: Way) -> list[str]:
        return picture(strength, tol, way.sizes) if len(strength) <= DRAWN else []

    def hold(self, title: str, noise: float) -> None:
        self.holds.append(title)
        self.exact[title], self.noise[title] = bool(noise == 0), float(noise)

    def fail(self, scene: Scene, question: str, text: str, suspect: str | None = None, pairs: Any = (),
             example: Example | None = None, drawing: Any = ()) -> None:  # fmt: skip
        failure = Leak(
            scene.title(question), text, example, suspect, STATEMENTS[question], explanation=SUSPECTS.get(suspect),
            mode=scene.mode, way=scene.way.name, pairs=list(pairs), drawing=list(drawing),
        )  # fmt: skip
        self.failures.append(failure)

    def report(self) -> CausalReport:
        """Put together what was found in both modes."""
        self._note_exactness()
        self._note_past()
        if self.tokens.shape[1] > CACHED and self.model.start is not None:
            self.notes.append(f"passes with a cache: the first {CACHED} positions")
        if self.tokens.shape[1] > ALL:
            self.notes.append(f"{ALL} of {self.tokens.shape[1]} positions were asked; below {ALL + 1} all of them are")
        failures = [_with_modes(f, self.failures, self.model.module is not None) for f in self.failures]
        about = {"B": len(self.tokens), "L": self.tokens.shape[1], "dtype": self.model.dtype}
        about |= {} if self.model.features else {"vocabulary": self.vocabulary}
        return CausalReport(
            self.model.name, self.model.framework, failures, self.holds, self.not_tested, self.refused,
            list(dict.fromkeys(self.notes)), about, self.seen, self.exact,
        )  # fmt: skip

    def _note_exactness(self) -> None:
        exact = [title for title in self.holds if self.exact[title]]
        close = [title for title in self.holds if not self.exact[title]]
        if exact:
            self.notes.append(f"to the last bit: {'; '.join(_together(exact))}")
        if close:
            most = max(self.noise[title] for title in close)
            self.notes.append(f"within float noise, up to {most:.1g}: {'; '.join(_together(close))}")

    def _note_past(self) -> None:
        """Say where a model holds because it sees nothing at all."""
        for title, strength in self.seen.items():
            if not title.startswith("perturbation"):
                continue
            seen = np.nan_to_num(strength) > self.tols[title]
            if not seen.any():
                self.notes.append(f"{title}: the outputs change with no token at all, so this holds trivially")
            elif not (seen & np.tri(len(seen), k=-1, dtype=bool)).any():
                self.notes.append(f"{title}: no output changes with a token before its own: the past does not reach it")

    # How it is asked -------------------------------------------------------------------------------------------------

    def run(self, scene: Scene, tokens: np.ndarray) -> np.ndarray:
        """Run other tokens in the same way; whatever is raised names the token that did it."""
        try:
            return self.model.run(tokens, scene.way.sizes)
        except Raised as error:
            raise UsageError(
                f"the model takes the tokens as given and raised when one was replaced by another below vocabulary = "
                f"{self.vocabulary}: {error}"
            ) from error

    def changed(self, tokens: np.ndarray, row: Any, u: Any, seed: int) -> np.ndarray:
        """Replace tokens by others, each different from what stood there."""
        rng = np.random.default_rng([SEED, seed])
        changed = tokens.copy()
        old = changed[row, u]
        if self.model.features:
            changed[row, u] = old + rng.uniform(0.5, 1.5, np.shape(old)) * rng.choice([-1, 1], np.shape(old))
        else:
            changed[row, u] = (old + rng.integers(1, self.vocabulary, np.shape(old))) % self.vocabulary
        return changed


def _with_modes(failure: Leak, failures: list[Leak], module: bool) -> Leak:
    """Settle the suspects that need more than one question: rows too, or one mode only."""
    leaking = {f.mode for f in failures if f.way == WHOLE and f.pairs}
    mixed = {f.mode for f in failures if f.property.startswith("rows, whole")}
    suspect = failure.suspect
    one_mode = module and leaking == {failure.mode}
    only_there = leaking == mixed == {"training"}
    of_both = only_there or suspect == "sequence_statistics" or _of_rows(failure, failures)
    if failure.mode in leaking & mixed and of_both:
        suspect = "batch_statistics"
    elif one_mode and suspect in ("no_mask", "mask_inverted") and failure.pairs:
        suspect = "mask_only_in_training" if failure.mode == "evaluation" else "mask_only_in_evaluation"
    return failure if suspect == failure.suspect else replace(failure, suspect=suspect, explanation=SUSPECTS[suspect])


def _of_rows(failure: Leak, failures: list[Leak]) -> bool:
    """Say whether a failure tells of mixed rows, in a mode in which a statistic runs over the sequence too."""
    same = [f for f in failures if f.mode == failure.mode and f.suspect == "sequence_statistics"]
    return bool(same) and failure.suspect == "rows_mixed"


def _together(titles: list[str]) -> list[str]:
    """Put titles together: "perturbation (prefill and chunks in evaluation and training)"."""
    modes: dict[str, dict[str, list[str]]] = {}
    for title in titles:
        question, way, mode = title.split(", ")
        modes.setdefault(question, {}).setdefault(way, []).append(mode)
    lines = []
    for question, ways in modes.items():
        groups: dict[str, list[str]] = {}
        for way, found in ways.items():
            groups.setdefault(" and ".join(found), []).append(way)
        parts = [f"{', '.join(names)}: {found}" for found, names in groups.items()]
        lines.append(f"{question} ({'; '.join(parts)})")
    return lines


def _vocabulary(model: Model, given: Any) -> int:
    """Say how many tokens there are to choose from."""
    if model.features:
        return 0
    low, high = int(model.tokens.min()), int(model.tokens.max())
    if low < 0:
        raise UsageError(f"tokens must be 0 or more, got {low}")
    if given is None:
        if high == 0:
            raise UsageError(
                "tokens must hold more than token 0, so that one can be replaced by another: or pass vocabulary="
            )
        return high + 1
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 2:
        raise UsageError(f"vocabulary must be an integer of 2 or more, got {given!r}")
    if high >= given:
        raise UsageError(f"tokens must lie below vocabulary = {given}, got {high}")
    return int(given)


def _unlike(tokens: np.ndarray, places: list[int]) -> tuple[int, int] | tuple[None, None]:
    """Find two places that hold different tokens."""
    pairs = ((p, q) for p in places for q in places if p < q and not np.array_equal(tokens[p], tokens[q]))
    return next(pairs, (None, None))


def _swapped(tokens: np.ndarray, p: int, q: int) -> np.ndarray:
    other = tokens.copy()
    other[0, [p, q]] = tokens[0, [q, p]]
    return other


def _ways(L: int) -> list[Way]:
    """Feed L tokens with a cache, in four ways."""
    half = max(L // 2, 1)
    sizes, left = [], L
    while left:
        sizes.append(min(left, 3 if len(sizes) % 2 == 0 else 2))
        left -= sizes[-1]
    return [
        Way("prefill", (L,)),
        Way("prefill and steps", (half,) + (1,) * (L - half)),
        Way("chunks", tuple(sizes)),
        Way("single steps", (1,) * L),
    ]


def _picks(L: int, most: int) -> list[int]:
    """Choose positions: all of them, or both ends and some between."""
    if most >= L:
        return list(range(L))
    ends = [0, 1, 2, 3, L - 3, L - 2, L - 1]
    return sorted({*ends, *np.linspace(4, L - 4, max(most - len(ends), 1)).astype(int).tolist()})


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Give |a − b|: 0 where both are the same infinity, infinity where one is NaN."""
    if a.shape != b.shape:
        raise UsageError(f"the model's logits must have one V for all tokens, got shapes {b.shape} and {a.shape}")
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf))


def _size(logits: np.ndarray) -> float:
    """Give the size of ordinary logits: −inf or −1e9 for words never wanted must not hide a leak."""
    columns = np.where(np.isfinite(logits), np.abs(logits), 0.0).max((0, 1))  # (V,)
    columns = columns[columns > 0]
    return float(np.median(columns)) if columns.size else 1.0


def _strongest(before: np.ndarray, by: np.ndarray, row: int) -> np.ndarray:
    """Keep for each position the strongest change seen in another row: (strength, row, other row, position)."""
    if not len(by):
        return before
    others = by.argmax(0)  # (L,) among the rows without ``row``
    now = np.stack([by.max(0), np.full(len(others), row), others + (others >= row), np.arange(len(others))], -1)
    return np.where((now[:, 0] > before[:, 0])[:, None], now, before)
