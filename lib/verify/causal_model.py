"""A language model under test, wrapped: every way of running it is a function of tokens, and leaves no trace.

Tokens go in as a NumPy array, logits come out as one, whatever the model is made of. Each pass starts from the same
seeds and the same buffers, so that two passes differ by their tokens only.
"""

import contextlib
import functools
import inspect
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lib.verify.subject import UsageError, describe_error, name_of

SEED = 20170612
WHOLE = "whole pass"
PAST = ("cache", "past_key_values")  # what Hugging Face's models call it: newer versions, and older ones
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


class Raised(Exception):
    """The model, or its cache, raised."""


class Model:
    """The model, the tokens' framework, and how to run it.

    Parameters
    ----------
    model : callable
        Tokens to logits.
    tokens : array or tensor (B, L), integers; or (B, L, D), floating
    cache : callable, None or False
        ``cache(batch)`` starts a sequence and gives back ``feed(tokens)``, which goes on with it. None: look for one.
    module : torch.nn.Module
        What stands behind the model, if it is no module itself.
    """

    def __init__(self, model: Any, tokens: Any, cache: Any, module: Any) -> None:
        if not callable(model):
            raise UsageError(f"model must be callable: tokens (B, L) to logits (B, L, V); got {type(model).__name__}")
        if inspect.isclass(model):
            raise UsageError(f"model must be an instance; {model.__name__} is a class: pass {model.__name__}(…)")
        self.fn, self.name = model, name_of(model)
        self.module = _module_behind(model, module)
        self.torch = sys.modules.get("torch")
        self.is_torch = self.torch is not None and isinstance(tokens, self.torch.Tensor)
        self.tokens = self._checked(tokens)
        self.features = self.tokens.ndim == 3  # the model takes vectors, not tokens
        self.like = tokens
        self.start = self._find_cache(cache)
        self.access = ""  # how code gets from what the model gives back to the logits
        self.dtype = "float32"  # of the logits, known after the first call

    @property
    def framework(self) -> str:
        """Name the framework of the tokens."""
        return "torch" if self.is_torch else "numpy"

    @property
    def eps(self) -> float:
        """Give the distance between 1 and the next number of the logits' dtype."""
        return EPS.get(self.dtype, EPS["float32"])

    def run(self, tokens: np.ndarray, sizes: tuple[int, ...] | None = None, seed: int = SEED) -> np.ndarray:
        """Give the logits (B, L, V) in float64: of one whole pass, or fed through the cache in chunks of such sizes."""
        with self._fresh(seed), self._no_grad():
            if sizes is None:
                return self._read(self.call(self.fn, self.make(tokens)), tokens.shape)
            feed = self.call(self.start, len(tokens))
            if not callable(feed):
                raise UsageError(f"cache(batch) must give back a function of tokens, got {type(feed).__name__}")
            ends = np.cumsum(sizes)
            parts = [tokens[:, end - size : end] for size, end in zip(sizes, ends, strict=True)]
            return np.concatenate([self._read(self.call(feed, self.make(part)), part.shape) for part in parts], 1)

    def make(self, tokens: np.ndarray) -> Any:
        """Make an array of the caller's framework, dtype and device that nobody else holds."""
        if not self.is_torch:
            return np.array(tokens, dtype=self.like.dtype)
        return self.torch.tensor(tokens, dtype=self.like.dtype, device=self.like.device)

    def call(self, fn: Callable, *args: Any) -> Any:
        """Call something of the model's; whatever it raises becomes Raised."""
        try:
            return fn(*args)
        except UsageError:
            raise
        except Exception as error:
            raise Raised(describe_error(error)) from error

    def gradients(self, tokens: np.ndarray, positions: list[int]) -> tuple[np.ndarray, list[int]] | str:
        """Give d output[r, t] / d input[·, u], its largest entry, as (positions, B, L), and the row r for each t.

        A string says why there is none. The input is what the token embeddings give, or the features.
        """
        if not self.is_torch:
            return "the model is NumPy's"
        if self.module is None and not self.features:
            return "the model is no torch.nn.Module, and its embedding cannot be found (pass module=)"
        with self._fresh(SEED), self.torch.enable_grad():
            made = self.make(tokens)
            inputs = [made.requires_grad_(True)] if self.features else []
            with self._watched(made, inputs):
                logits = logits_of(self.call(self.fn, made))
            if not inputs:
                return "no embedding module was called with the tokens"
            if not logits.requires_grad:
                return "no gradient reaches the logits: the model detaches them or runs under no_grad"
            return self._differentiate(logits, inputs, positions)

    def _differentiate(self, logits: Any, inputs: list, positions: list[int]) -> tuple[np.ndarray, list[int]]:
        B = logits.shape[0]
        rows = [i % B for i in range(len(positions))]
        # Random weights: the plain sum of probabilities is 1, and its gradient 0.
        weights = np.random.default_rng(SEED).standard_normal(logits.shape[2])
        weights = self.torch.tensor(weights, dtype=logits.dtype, device=logits.device)
        found = []
        for row, t in zip(rows, positions, strict=True):
            loss = (logits[row, t] * weights).sum()
            try:
                grads = self.torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
            except RuntimeError as error:
                raise Raised(describe_error(error)) from error
            total = np.zeros(inputs[0].shape[:2])
            for grad in grads:
                if grad is not None:
                    total = np.maximum(total, grad.detach().abs().amax(-1).double().cpu().numpy())
            found.append(total)
        return np.stack(found), rows

    @contextlib.contextmanager
    def _watched(self, tokens: Any, inputs: list) -> Iterator[None]:
        """Replace what each embedding of the tokens gives by a leaf of the same numbers, and collect these."""
        if self.features:
            yield
            return
        torch = self.torch

        def hook(module: Any, args: tuple, kwargs: dict, output: Any) -> Any:
            given = next((x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)), None)
            if given is None or given.shape != tokens.shape or not bool((given == tokens).all()):
                return None
            if not isinstance(output, torch.Tensor) or not output.is_floating_point():
                return None
            if output.shape[:2] != tokens.shape:
                return None
            inputs.append(output.detach().requires_grad_(True))
            return inputs[-1].clone()  # a model may write to it

        kinds = [m for m in self.module.modules() if isinstance(m, torch.nn.Embedding)]
        # Without torch's own, take what looks like one: a module without parts that turns tokens into vectors.
        kinds = kinds or [m for m in self.module.modules() if m is not self.module and not any(m.children())]
        handles = [m.register_forward_hook(hook, with_kwargs=True) for m in kinds]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextlib.contextmanager
    def mode(self, training: bool | None) -> Iterator[None]:
        """Set a module's mode, and put back the modes of all its parts."""
        if training is None:
            yield
            return
        modes = [(m, m.training) for m in self.module.modules()]
        try:
            self.module.train(training)
            yield
        finally:
            for module, before in modes:
                module.training = before

    @contextlib.contextmanager
    def _fresh(self, seed: int) -> Iterator[None]:
        """Seed every global generator; put back their states and the module's buffers (running means, say)."""
        states = random.getstate(), np.random.get_state()  # noqa: NPY002 - what the model may draw from
        torch = self.torch
        cuda = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
        torch_state = torch.get_rng_state() if torch else None
        cuda_states = torch.cuda.get_rng_state_all() if cuda else None
        buffers = [(b, b.detach().clone()) for b in self.module.buffers()] if self.module is not None else []
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        if torch:
            torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
            if torch:
                torch.set_rng_state(torch_state)
                with torch.no_grad():
                    for buffer, before in buffers:
                        buffer.copy_(before)
            if cuda:
                torch.cuda.set_rng_state_all(cuda_states)

    def _no_grad(self) -> Any:
        return self.torch.no_grad() if self.torch else contextlib.nullcontext()

    def _read(self, given: Any, shape: tuple[int, ...]) -> np.ndarray:
        """Turn what the model gave back into (B, L, V) of float64."""
        logits, (B, L) = logits_of(given), shape[:2]
        self.access = _access(given)
        self.dtype = str(logits.dtype).removeprefix("torch.")
        if self.torch is not None and isinstance(logits, self.torch.Tensor):
            logits = logits.detach().double().cpu().numpy()
        logits, got = np.array(logits, dtype=np.float64), tuple(logits.shape)
        if logits.ndim == 3 and got[:2] == (B, L):
            return logits
        hint = ""
        if logits.ndim == 3 and got[:2] == (L, B):
            hint = ": batch and length are swapped, pass lambda tokens: model(tokens.T) with its output turned back"
        elif logits.ndim == 3 and got[0] == B and got[1] == L - 1:
            hint = ": one position is missing; logits at position i must guess token i + 1, for every i"
        elif logits.ndim == 2 or (logits.ndim == 3 and got[:2] == (B, 1)):
            hint = ": some models give only the last position unless targets are passed too"
        raise UsageError(f"the model's logits must have shape (B, L, V) = ({B}, {L}, V), got {got}{hint}")

    def _checked(self, tokens: Any) -> np.ndarray:
        """Raise unless the tokens are (B, L) integers, or features (B, L, D)."""
        if not self.is_torch and not isinstance(tokens, np.ndarray):
            raise UsageError(f"tokens must be a torch.Tensor or a numpy.ndarray, got {type(tokens).__name__}")
        if self.module is not None and not self.is_torch:
            raise UsageError("tokens must be a torch.Tensor for a torch module, got a numpy.ndarray")
        shape, dtype = tuple(tokens.shape), str(tokens.dtype).removeprefix("torch.")
        floating = "float" in dtype
        if floating and len(shape) != 3:
            raise UsageError(
                f"tokens must hold integers, got {dtype}; a model of vectors takes (B, L, D), here the shape is {shape}"
            )
        if not floating and "int" not in dtype:
            raise UsageError(f"tokens must hold integers, got {dtype}")
        if not floating and len(shape) != 2:
            raise UsageError(f"tokens must have shape (B, L), got {shape}")
        if shape[0] < 1 or shape[1] < 2:
            raise UsageError(f"tokens must have at least 1 row and 2 positions, (B, L) = {shape[:2]}")
        if not self.is_torch:
            return np.array(tokens)
        tokens = tokens.detach().cpu()
        return (tokens.double() if floating else tokens.long()).numpy().copy()

    def _find_cache(self, cache: Any) -> Callable | None:
        """Find how to start a sequence that is fed piece by piece."""
        if cache is False:
            return None
        if cache is not None:
            if not callable(cache):
                raise UsageError(
                    "cache must be a function: cache(batch) starts a sequence and gives back feed(tokens) -> logits; "
                    f"got {type(cache).__name__}"
                )
            return cache
        takes = _parameters(self.fn)
        if "caches" in takes and callable(getattr(self.fn, "new_cache", None)):
            return self._start_ours
        name = next((name for name in PAST if name in takes), None)
        return functools.partial(self._start_past, name) if name and takes & {"use_cache", "kwargs"} else None

    def _start_ours(self, batch: int) -> Callable:
        caches = self.fn.new_cache(batch)
        return lambda tokens: self.fn(tokens, caches=caches)

    def _start_past(self, name: str, batch: int) -> Callable:
        """Start a sequence as Hugging Face's models keep it."""
        past = None

        def feed(tokens: Any) -> Any:
            nonlocal past
            given = self.fn(tokens, use_cache=True, **{name: past})
            past = getattr(given, name)
            return given

        return feed


def logits_of(given: Any) -> Any:
    """Find the logits in what a model gave back: an array, ``.logits``, ["logits"], or the first of a tuple or list."""
    wanted = "logits of shape (B, L, V) were wanted"
    if given is None:
        raise UsageError(f"the model gave back nothing (None), {wanted}: is a `return` missing?")
    if isinstance(given, dict) and "logits" in given:
        given = given["logits"]
    elif hasattr(given, "logits"):
        given = given.logits
    elif isinstance(given, tuple | list) and given:
        given = given[0]
    if not hasattr(given, "shape") or not hasattr(given, "dtype"):
        raise UsageError(f"the model gave back a {type(given).__name__}, {wanted}")
    if "float" not in str(given.dtype):
        raise UsageError(f"the model's logits must be floating, got {str(given.dtype).removeprefix('torch.')}")
    return given


def _access(given: Any) -> str:
    """Write down how :func:`logits_of` finds them."""
    if isinstance(given, dict) and "logits" in given:
        return '["logits"]'
    return ".logits" if hasattr(given, "logits") else "[0]" if isinstance(given, tuple | list) else ""


def _module_behind(model: Any, module: Any) -> Any:
    """Find the torch module: the model itself, the owner of a method, or what was given."""
    torch = sys.modules.get("torch")
    kind = torch.nn.Module if torch else ()
    if module is not None:
        if not isinstance(module, kind):
            raise UsageError(f"module must be a torch.nn.Module, got {type(module).__name__}")
        return module
    return next((m for m in (model, getattr(model, "__self__", None)) if isinstance(m, kind)), None)


def _parameters(fn: Any) -> set[str]:
    try:
        return set(inspect.signature(getattr(fn, "forward", fn)).parameters)
    except (TypeError, ValueError):
        return set()
