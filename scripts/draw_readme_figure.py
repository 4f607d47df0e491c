"""Draw the picture of the README from `lib`, as any figure of the book: book/_static/cats_chase_mice.png."""

import argparse
import io

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from lib import figures, reference
from lib.sentences import cats_chase_mice
from scripts.repository import ROOT

PICTURE = ROOT / "book" / "_static" / "cats_chase_mice.png"


def draw():
    """Return the PNG: who looks at whom in the book's three-token sentence, with and without the future."""
    sentence = cats_chase_mice()
    query, key, value = sentence.X @ sentence.W_q, sentence.X @ sentence.W_k, sentence.X @ sentence.W_v
    weights = [
        reference.attention(query, key, value, causal=causal, return_weights=True)[1]  # (L, S)
        for causal in (False, True)
    ]
    masks = [[[True] * 3] * 3, [[True, False, False], [True, True, False], [True, True, True]]]
    labels = sentence.tokens
    figures.heatmaps(weights, labels, labels, ["each word sees all", "each word sees the past"], mask=masks)
    file = io.BytesIO()
    plt.savefig(file, format="png", dpi=100, metadata={"Software": None})
    plt.close("all")
    return file.getvalue()


def main():
    """Write the picture."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    PICTURE.write_bytes(draw())
    print(f"{PICTURE.relative_to(ROOT)} is drawn.")


if __name__ == "__main__":
    main()
