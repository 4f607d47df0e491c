"""Positions on arrays: against values computed another way, and against what rotary and ALiBi promise."""

import cmath
import re
import subprocess
import sys

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.reference import alibi_bias, alibi_slopes, attention, rotary, rotate_pairs, sinusoidal

QUICK = settings(derandomize=True, deadline=None, max_examples=40)
PAIRINGS = ("interleaved", "half")


def turned_as_complex_numbers(x, positions, pairing, base, rotary_dim):
    """Turn each pair as one complex number, with forty digits."""
    result = x.copy()
    half = rotary_dim // 2
    with mpmath.workdps(40):
        for *rest, position in np.ndindex(*x.shape[:-1]):
            row = x[(*rest, position)]
            for i in range(half):
                a, b = (2 * i, 2 * i + 1) if pairing == "interleaved" else (i, i + half)
                angle = mpmath.mpf(float(positions[position])) / mpmath.mpf(base) ** (mpmath.mpf(2 * i) / rotary_dim)
                number = mpmath.mpc(float(row[a]), float(row[b])) * mpmath.expj(angle)
                result[(*rest, position, a)], result[(*rest, position, b)] = float(number.real), float(number.imag)
    return result


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("E, rotary_dim", [(8, 8), (8, 4), (8, 2), (8, 0), (2, 2)])
@pytest.mark.parametrize("base", [10000.0, 500000, 3.5])
def test_rotary_multiplies_complex_numbers(pairing, E, rotary_dim, base):
    x = np.random.default_rng(0).normal(size=(2, 3, 5, E))
    positions = np.array([0, 1, 7, 100, 5000])
    wanted = turned_as_complex_numbers(x, positions, pairing, base, rotary_dim) if rotary_dim else x
    given = rotary(x, positions, pairing=pairing, base=base, rotary_dim=rotary_dim)
    np.testing.assert_allclose(given, wanted, atol=2e-12)
    np.testing.assert_array_equal(given[..., rotary_dim:], x[..., rotary_dim:])


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_products_depend_on_the_distance_only(pairing):  # R1
    a, b = np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[2.0, -1.0, 0.5, 1.0]])

    def turned(x, position):
        return rotary(x, [position], pairing=pairing)[0]

    assert turned(a, 3) @ turned(b, 1) == pytest.approx(turned(a, 10) @ turned(b, 8), abs=1e-12)
    assert turned(a, 3) @ turned(b, 1) != pytest.approx(turned(a, 10) @ turned(b, 1), abs=1e-2)
    assert np.linalg.norm(turned(a, 10)) == pytest.approx(np.linalg.norm(a), rel=1e-15)


def test_r1_by_hand():
    """⟨R3 a, R1 b⟩ for D = 4 is the real part of two complex products, turned by 2 and by 2/100."""
    a, b = np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[2.0, -1.0, 0.5, 1.0]])
    turns = cmath.exp(2j), cmath.exp(0.02j)
    wanted = {
        "interleaved": ((1 + 2j) * (2 + 1j) * turns[0] + (3 + 4j) * (0.5 - 1j) * turns[1]).real,
        "half": ((1 + 3j) * (2 - 0.5j) * turns[0] + (2 + 4j) * (-1 - 1j) * turns[1]).real,
    }
    for pairing in PAIRINGS:
        product = rotary(a, [3], pairing=pairing)[0] @ rotary(b, [1], pairing=pairing)[0]
        assert product == pytest.approx(wanted[pairing], abs=1e-14)


@QUICK
@given(st.sampled_from(PAIRINGS), st.integers(-1000, 1000), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_shift_of_all_positions_changes_no_score_and_no_norm(pairing, shift, pairs, seed):
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, 4, 2 * pairs)), rng.normal(size=(2, 5, 2 * pairs))
    q_pos, k_pos = rng.integers(-50, 50, 4), rng.integers(-50, 50, 5)

    def scores(move):
        options = {"pairing": pairing}
        return rotary(q, q_pos + move, **options) @ rotary(k, k_pos + move, **options).swapaxes(-1, -2)

    np.testing.assert_allclose(scores(shift), scores(0), atol=1e-11)
    norms = np.linalg.norm(rotary(q, q_pos + shift, pairing=pairing), axis=-1)
    np.testing.assert_allclose(norms, np.linalg.norm(q, axis=-1), rtol=1e-13)


@pytest.mark.parametrize("rotary_dim", [8, 6, 2])
def test_pairings_are_permutations_of_each_other(rotary_dim):
    x = np.random.default_rng(1).normal(size=(2, 3, 8))
    order = [*range(0, rotary_dim, 2), *range(1, rotary_dim, 2), *range(rotary_dim, 8)]  # pairs' first, then second
    options = {"positions": [3, 1, 4], "rotary_dim": rotary_dim}
    half = rotary(x[..., order], pairing="half", **options)
    np.testing.assert_allclose(half, rotary(x, pairing="interleaved", **options)[..., order], rtol=1e-14)
    if rotary_dim > 2:
        assert np.abs(rotary(x, pairing="half", **options) - rotary(x, pairing="interleaved", **options)).max() > 0.1


def test_the_papers_pairing_is_the_default():
    x = np.random.default_rng(2).normal(size=(3, 8))
    np.testing.assert_array_equal(rotary(x, [1, 2, 3]), rotary(x, [1, 2, 3], pairing="interleaved"))


@pytest.mark.parametrize("B", [2, 3])  # as many entries as heads, and not
def test_each_batch_entry_has_its_own_positions(B):
    x = np.random.default_rng(3).normal(size=(B, 2, 4, 6))
    positions = np.arange(B)[:, None] * 10 + np.arange(4)
    together = rotary(x, positions)
    for b in range(B):
        np.testing.assert_array_equal(together[b], rotary(x[b], positions[b]))
    np.testing.assert_array_equal(rotary(x, positions[:, None]), together)
    np.testing.assert_array_equal(rotary(x, positions[:1]), rotary(x, positions[0]))


def test_chunks_with_their_positions_equal_the_whole():
    x = np.random.default_rng(4).normal(size=(2, 7, 4))
    chunks = [rotary(x[:, a:b], np.arange(a, b)) for a, b in ((0, 3), (3, 6), (6, 7))]
    np.testing.assert_array_equal(np.concatenate(chunks, 1), rotary(x, np.arange(7)))


def test_position_zero_and_stretched_positions():
    x = np.random.default_rng(5).normal(size=(2, 4))
    np.testing.assert_array_equal(rotary(x, [0, 0]), x)
    np.testing.assert_allclose(rotary(rotary(x, [0.25, 0.5]), [0.75, 0.5]), rotary(x, [1, 1]), rtol=1e-13)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_half_precision_is_turned_in_single_precision(pairing):
    x = np.random.default_rng(6).normal(size=(2, 500, 8)).astype(np.float16)
    positions = np.arange(500) + 100_000  # float16 could not even hold them
    given = rotary(x, positions, pairing=pairing)
    assert given.dtype == np.float16
    exact = rotary(x.astype(np.float64), positions, pairing=pairing)
    error, step = np.abs(given - exact), np.spacing(np.abs(given)).astype(np.float64)
    assert (error <= step / 2 + 1e-6).all()  # rounded once, at the end


def test_far_positions_keep_their_angles_in_single_precision():
    x = np.ones((1, 2), np.float32)
    wanted = cmath.exp(1_000_003j) * (1 + 1j)
    np.testing.assert_allclose(rotary(x, [1_000_003])[0], [wanted.real, wanted.imag], atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rotary_keeps_dtype_and_input(dtype):
    x = np.random.default_rng(7).normal(size=(2, 3, 4)).astype(dtype)
    before = x.tobytes()
    assert rotary(x, [1, 2, 3], rotary_dim=2).dtype == dtype
    assert x.tobytes() == before


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (0, 3, 4), (3, 0)])
def test_rotary_of_nothing(shape):
    assert rotary(np.zeros(shape), np.arange(shape[-2])).shape == shape


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_rotary_of_views(pairing):
    x = np.random.default_rng(8).normal(size=(4, 3, 8))
    wanted = rotary(x, [1, 2, 3], pairing=pairing)
    for view in (np.asfortranarray(x), x[::-1].copy()[::-1], np.repeat(x, 2, -1)[..., ::2]):
        np.testing.assert_array_equal(rotary(view, [1, 2, 3], pairing=pairing), wanted)


def test_sinusoidal_equals_sines_with_forty_digits():
    positions = [0, 1, 2, 17, 4095]
    given = sinusoidal(positions, 6)
    with mpmath.workdps(40):
        for row, position in zip(given, positions, strict=True):
            for column in range(6):
                angle = position / mpmath.mpf(10000) ** (mpmath.mpf(2 * (column // 2)) / 6)
                wave = mpmath.sin(angle) if column % 2 == 0 else mpmath.cos(angle)
                assert row[column] == pytest.approx(float(wave), abs=1e-12)


def test_sinusoidal_of_a_shifted_position_is_a_rotation_of_the_vector():
    """The paper's reason for sines: P[pos + k] is a linear function of P[pos]."""
    P = sinusoidal(np.arange(20), 8)
    turned = rotary(P[..., [1, 0, 3, 2, 5, 4, 7, 6]], np.full(20, 3))[..., [1, 0, 3, 2, 5, 4, 7, 6]]
    np.testing.assert_allclose(turned[:17], P[3:], atol=1e-12)


def test_sinusoidal_shapes_and_dtypes():
    assert sinusoidal(np.zeros((2, 3), int), 4).shape == (2, 3, 4)
    assert sinusoidal([], 4).shape == (0, 4)
    assert sinusoidal([1], 0).shape == (1, 0)
    assert sinusoidal([1], 4).dtype == np.float64
    assert sinusoidal([1], 4, dtype=np.float16).dtype == np.float16
    np.testing.assert_array_equal(sinusoidal([5], 2, 7.0), [[np.sin(5), np.cos(5)]])


@pytest.mark.parametrize(
    "H, exponents",
    [
        (1, [8]),
        (2, [4, 8]),
        (3, [4, 8, 2]),  # two heads' slopes, then the first of four heads'
        (6, [2, 4, 6, 8, 1, 3]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (16, [0.5 * i for i in range(1, 17)]),
    ],
)
def test_alibi_slopes_are_those_of_the_paper_and_its_code(H, exponents):
    np.testing.assert_allclose(alibi_slopes(H), [2.0**-e for e in exponents], rtol=1e-15)


@pytest.mark.parametrize("H", range(1, 70))
def test_alibi_slopes_for_any_number_of_heads(H):
    slopes = alibi_slopes(H)
    assert slopes.shape == (H,)
    assert len(set(slopes)) == H
    assert ((slopes > 0) & (slopes < 1)).all()


def test_alibi_bias_counts_the_distance():
    bias = alibi_bias(4, [2, 3], [0, 1, 2, 3])
    for h, slope in enumerate([1 / 4, 1 / 16, 1 / 64, 1 / 256]):
        np.testing.assert_array_equal(bias[h], [[-2 * slope, -slope, 0, -slope], [-3 * slope, -2 * slope, -slope, 0]])
    assert not np.signbit(bias[bias == 0]).any()


def test_alibi_bias_for_each_batch_entry():
    q_pos = np.array([[3], [5]])
    bias = alibi_bias(3, q_pos, np.arange(6))
    assert bias.shape == (2, 3, 1, 6)
    for b in range(2):
        np.testing.assert_array_equal(bias[b], alibi_bias(3, q_pos[b], np.arange(6)))


def test_alibi_penalises_by_distance_in_attention():
    """Equal scores: the weights of one query are powers of the slope's exponential."""
    H, L = 2, 4
    q, v = np.zeros((H, L, 2)), np.random.default_rng(9).normal(size=(H, L, 1))
    _, weights = attention(q, q, v, bias=alibi_bias(H, np.arange(L), np.arange(L)), causal=True, return_weights=True)
    for h, slope in enumerate([1 / 16, 1 / 256]):
        shares = np.exp(-slope * np.array([3, 2, 1, 0]))
        np.testing.assert_allclose(weights[h, 3], shares / shares.sum(), rtol=1e-14)


def test_alibi_never_blocks_however_far():
    bias = alibi_bias(8, [10**6], [0, 10**6], dtype=np.float16)
    assert bias.dtype == np.float16
    assert np.isfinite(bias).all()


def test_rotate_pairs_takes_any_cosines():
    rng = np.random.default_rng(10)
    x, cos, sin = rng.normal(size=(2, 3, 6)), rng.normal(size=(3, 2)), rng.normal(size=(3, 2))
    half = rotate_pairs(x, cos, sin, pairing="half")
    np.testing.assert_allclose(half[..., 0], x[..., 0] * cos[:, 0] - x[..., 2] * sin[:, 0])
    np.testing.assert_allclose(half[..., 3], x[..., 1] * sin[:, 1] + x[..., 3] * cos[:, 1])
    interleaved = rotate_pairs(x, cos, sin, pairing="interleaved")
    np.testing.assert_allclose(interleaved[..., 2], x[..., 2] * cos[:, 1] - x[..., 3] * sin[:, 1])
    np.testing.assert_array_equal(interleaved[..., 4:], x[..., 4:])


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_rotate_pairs_of_half_precision_rounds_once(pairing):
    rng = np.random.default_rng(11)
    x, cos, sin = (rng.normal(size=shape).astype(np.float16) for shape in ((50, 8), (50, 4), (50, 4)))
    exact = rotate_pairs(*(array.astype(np.float64) for array in (x, cos, sin)), pairing=pairing)
    given = rotate_pairs(x, cos, sin, pairing=pairing)
    assert (np.abs(given - exact) <= np.spacing(np.abs(given)).astype(np.float64) / 2 + 1e-6).all()


def test_any_positive_base_will_do():
    np.testing.assert_allclose(sinusoidal([2], 4, base=0.25), [[np.sin(2), np.cos(2), np.sin(4), np.cos(4)]])
    x = np.array([[1.0, 0.0, 1.0, 0.0]])
    np.testing.assert_allclose(rotary(x, [2], base=1), [[np.cos(2), np.sin(2), np.cos(2), np.sin(2)]])


X = np.zeros((2, 3, 4))


@pytest.mark.parametrize(
    "kind, wrong, text",
    [
        (TypeError, lambda: rotary([1.0], [0]), "x must be an array or a tensor, got list"),
        (TypeError, lambda: rotary(X.astype(int), [0, 1, 2]), "x must be floating, got int64"),
        (ValueError, lambda: rotary(np.zeros(4), [0]), "x must have shape (..., L, E), got (4,)"),
        (
            ValueError,
            lambda: rotary(X, [0, 1]),
            "positions must have shape (3,) or one row for each batch entry (2, 3), got (2,)",
        ),
        (ValueError, lambda: rotary(X[0], [0, 1]), "positions must have shape (3,), got (2,)"),
        (ValueError, lambda: rotary(X[0], [[0, 1, 2]] * 2), "positions must have shape (3,), got (2, 3)"),
        (
            ValueError,
            lambda: rotary(X, np.zeros((3, 3), int)),
            "positions must have shape (3,) or one row for each batch",
        ),
        (
            ValueError,
            lambda: rotary(X, 3),
            "positions must have a position axis, such as [0, 1, 2]; got the single number 3",
        ),
        (TypeError, lambda: rotary(X, [True, False, True]), "positions must hold integers or real numbers, got bool"),
        (TypeError, lambda: rotary(X, ["a", "b", "c"]), "positions must hold integers or real numbers, got str"),
        (
            ValueError,
            lambda: rotary(X, [0, 1, 2], pairing="halves"),
            "pairing must be one of interleaved, half, got 'halves'",
        ),
        (
            ValueError,
            lambda: rotary(X, [0, 1, 2], rotary_dim=3),
            "rotary_dim must be even, since features are turned in pairs, got 3",
        ),
        (ValueError, lambda: rotary(X, [0, 1, 2], rotary_dim=6), "rotary_dim must be at most E = 4, got 6"),
        (
            ValueError,
            lambda: rotary(X[..., :3], [0, 1, 2]),
            "x's last axis must be even, since features are turned in pairs, got 3",
        ),
        (ValueError, lambda: rotary(X, [0, 1, 2], base=0), "base must be positive, got 0"),
        (TypeError, lambda: rotary(X, [0, 1, 2], base="10"), "base must be a real number, got '10' (str)"),
        (
            ValueError,
            lambda: rotate_pairs(X, np.zeros((3, 3)), np.zeros((3, 3)), pairing="half"),
            "cos and sin must have at most E/2 = 2 pairs, got 3",
        ),
        (
            ValueError,
            lambda: rotate_pairs(X, np.zeros((3, 2)), np.zeros((3, 1)), pairing="half"),
            "cos and sin must have one entry for each pair, got (3, 2), (3, 1)",
        ),
        (
            ValueError,
            lambda: rotate_pairs(X, np.zeros((4, 2)), np.zeros((3, 2)), pairing="half"),
            "cos must broadcast to (..., L, pairs) = (2, 3, 2), got (4, 2)",
        ),
        (
            TypeError,
            lambda: rotate_pairs(X, np.zeros((3, 2)), np.zeros((3, 2), int), pairing="half"),
            "sin must be floating, got int64",
        ),
        (
            ValueError,
            lambda: rotate_pairs(X, np.zeros((3, 2)), np.zeros((4, 2)), pairing="half"),
            "sin must broadcast to (..., L, pairs) = (2, 3, 2), got (4, 2)",
        ),
        (
            TypeError,
            lambda: rotate_pairs([1.0], np.zeros((3, 2)), np.zeros((3, 2)), pairing="half"),
            "x must be an array or a tensor, got list",
        ),
        (
            TypeError,
            lambda: rotate_pairs(X, np.zeros((3, 2), int), np.zeros((3, 2)), pairing="half"),
            "cos must be floating, got int64",
        ),
        (
            ValueError,
            lambda: rotate_pairs(X, np.zeros(2), np.zeros((3, 2)), pairing="half"),
            "cos must have shape (..., L, features), got (2,)",
        ),
        (ValueError, lambda: sinusoidal([0], 3), "dim must be even, since features are turned in pairs, got 3"),
        (ValueError, lambda: sinusoidal([0], -2), "dim must be 0 or more, got -2"),
        (ValueError, lambda: sinusoidal([0], 2, -1.0), "base must be positive, got -1.0"),
        (
            ValueError,
            lambda: sinusoidal(5, 2),
            "positions must have a position axis, such as [0, 1, 2]; got the single number 5",
        ),
        (TypeError, lambda: sinusoidal([0], 2, dtype=np.int32), "dtype must be floating, got int32"),
        (ValueError, lambda: alibi_slopes(0), "num_heads must be 1 or more, got 0"),
        (TypeError, lambda: alibi_slopes(2.5), "num_heads must be an integer, got 2.5 (float)"),
        (TypeError, lambda: alibi_bias(2, [0j], [0]), "q_pos must hold integers or real numbers, got complex128"),
        (
            ValueError,
            lambda: alibi_bias(2, 0, [0]),
            "q_pos must have a position axis, such as [0, 1, 2]; got the single number 0",
        ),
        (
            ValueError,
            lambda: alibi_bias(2, [0], 0),
            "k_pos must have a position axis, such as [0, 1, 2]; got the single number 0",
        ),
    ],
)
def test_errors_name_the_argument(kind, wrong, text):
    with pytest.raises(kind, match=re.escape(text)):
        wrong()


def test_nothing_here_loads_torch():
    code = (
        "import sys; from lib import reference as r; import numpy as np; r.rotary(np.ones((1, 2)), [1]);"
        "r.sinusoidal([0], 2); r.alibi_bias(2, [0], [0]); r.split_heads(np.ones((1, 2)), 2);"
        "c = r.KVCache(1, 1, 1, 1); c.append(np.ones((1, 1, 1, 1)), np.ones((1, 1, 1, 1)));"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
