"""What the benchmark computes from its measurements. Nothing here measures."""

import math

import pytest

from lib.bench.arithmetic import Bar, Spread, calls_per_turn, exponent, in_bytes, in_seconds, ratios


def test_a_ratio_is_our_fastest_call_over_theirs_turn_by_turn():
    assert ratios([[4.0, 3.0], [5.0, 9.0, 6.0]], [[2.0, 8.0], [20.0, 10.0]]) == [1.5, 0.5]


def test_ratios_of_other_numbers_of_turns_are_an_error():
    with pytest.raises(ValueError, match="equally many turns, got 1 and 2"):
        ratios([[1.0]], [[1.0], [1.0]])
    with pytest.raises(ValueError, match="at least one call, got an empty one"):
        ratios([[1.0], []], [[1.0], [1.0]])


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [([5.0], (5, 5, 5)), ([4.0, 1.0, 2.0], (2, 1, 4)), ([4.0, 1.0, 2.0, 3.0], (2.5, 1, 4))],
)
def test_spread(numbers, wanted):
    assert Spread.of(numbers) == wanted


def test_no_numbers_have_no_median():
    with pytest.raises(ValueError, match="at least one measurement"):
        Spread.of([])


@pytest.mark.parametrize(
    ("bar", "met", "missed"),
    [
        (Bar("at most", 1.10), [0.2, 1.10], [1.1001, math.nan, math.inf]),
        (Bar("at least", 2.5), [2.5, 9.0], [2.4999, math.nan]),
        (Bar("about", 2.0, 0.1), [1.9, 2.0, 2.1], [1.8999, 2.1001, math.nan]),
        (Bar("about", 0.0, 0.1), [-0.1, 0.0, 0.1], [0.11, -0.11]),
    ],
)
def test_bars(bar, met, missed):
    assert all(bar.met(number) for number in met)
    assert not any(bar.met(number) for number in missed)


def test_an_unknown_kind_of_bar_is_an_error():
    with pytest.raises(ValueError, match="got 'below'"):
        Bar("below", 1.0).met(0.5)


def test_bars_say_what_they_want():
    assert [str(bar) for bar in (Bar("at most", 1.1), Bar("at least", 2.5), Bar("about", 2.0, 0.1))] == [
        "≤ 1.10",
        "≥ 2.50",
        "= 2.00 ± 0.1",
    ]


@pytest.mark.parametrize("power", [0.0, 1.0, 1.7, 2.0, 3.0])
def test_exponent_of_exact_powers(power):
    sizes = [1024, 2048, 4096, 16384]
    assert exponent(sizes, [3e-7 * size**power for size in sizes]) == pytest.approx(power, abs=1e-12)


def test_exponent_is_a_least_squares_fit():
    # logarithms 0, 1, 2 and 0, 1, 5 (to base 2): the slope of the line through them is 5/2
    assert exponent([1, 2, 4], [1.0, 2.0, 32.0]) == pytest.approx(2.5)


def test_scratch_of_nothing_does_not_grow():
    assert exponent([1, 2, 4], [0, 0, 0]) == 0
    assert exponent([1, 2], [0, 4]) == pytest.approx(2)


@pytest.mark.parametrize(("sizes", "numbers"), [([1], [1.0]), ([2, 2], [1.0, 1.0]), ([1, 2], [1.0]), ([], [])])
def test_exponent_wants_different_sizes_and_a_number_for_each(sizes, numbers):
    with pytest.raises(ValueError, match="two or more different sizes"):
        exponent(sizes, numbers)


def test_exponent_wants_positive_sizes():
    with pytest.raises(ValueError, match="positive"):
        exponent([0, 1], [1.0, 1.0])
    with pytest.raises(ValueError, match="not negative"):
        exponent([1, 2], [1.0, -1.0])


@pytest.mark.parametrize(
    ("seconds", "wanted"), [(0.1, 4), (0.11, 4), (0.4, 2), (9.0, 2), (0.0, 1000), (0.4 / 7, 7), (0.3, 2)]
)
def test_calls_per_turn(seconds, wanted):
    assert calls_per_turn(seconds, 0.4) == wanted


def test_units():
    assert [in_bytes(n) for n in (0, 1023, 1024, 2**20, 1.5 * 2**30, 2**45)] == [
        "0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.5 GiB", "32768.0 GiB",
    ]  # fmt: skip
    assert [in_seconds(n) for n in (12.0, 1.0, 0.25, 0.001, 0.0000005)] == [
        "12.00 s", "1.00 s", "250.0 ms", "1.0 ms", "0.5 µs",
    ]  # fmt: skip
