"""Compare figures as a reader sees them: by their pixels.

Two figures are equal when they have the same size, when the root mean square (RMS) of their difference is at most 0.02
of full scale, and when it is at most 0.10 in every tile of 16 by 16 pixels. The second bar is there because a changed
digit is a handful of pixels, which disappear in the mean over a whole figure.
"""

import base64
import io

import numpy as np
from PIL import Image

WHOLE = 0.02
TILE = 0.10
SIDE = 16


def decode(png):
    """Return a base64 PNG as an array of shape (height, width, 4), from 0 to 1."""
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGBA")
    return np.asarray(image, dtype=np.float64) / 255


def difference(stored, fresh):
    """Return the RMS over the whole figure and the RMS of its worst tile; sizes must agree."""
    squares = ((stored - fresh) ** 2).mean(axis=-1)  # (height, width)
    whole = float(np.sqrt(squares.mean()))
    rows, columns = (-(-size // SIDE) for size in squares.shape)
    padded = np.zeros((rows * SIDE, columns * SIDE))
    padded[: squares.shape[0], : squares.shape[1]] = squares
    tiles = padded.reshape(rows, SIDE, columns, SIDE).mean(axis=(1, 3))  # (rows, columns)
    return whole, float(np.sqrt(tiles.max()))


def disagreement(stored, fresh):
    """Say in one line how two base64 PNGs differ, or return None when they are equal to a reader."""
    one, other = decode(stored), decode(fresh)
    if one.shape != other.shape:
        (height, width), (new_height, new_width) = one.shape[:2], other.shape[:2]
        return f"the figure's size was {width} x {height} pixels and is now {new_width} x {new_height}"
    whole, tile = difference(one, other)
    if whole > WHOLE or tile > TILE:
        return (
            f"the figure's pixels differ: RMS {whole:.4f} over the whole (at most {WHOLE}), "
            f"{tile:.4f} in the worst tile of {SIDE} x {SIDE} (at most {TILE})"
        )
    return None
