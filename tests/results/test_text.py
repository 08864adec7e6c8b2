"""Epsilons as text: short, and never rounded to the wrong side."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.results.text import Toward, claimed_text, epsilon_digits, epsilon_text, percent_text

epsilons = st.floats(0, 1e300) | st.floats(0, 20) | st.integers(0, 10**7).map(lambda n: n / 100)


def number(epsilon: float, toward: Toward) -> float:
    """Return the number in a text; words follow an upper bound of zero."""
    return float(epsilon_text(epsilon, toward).removesuffix(" (within delta)"))


@example(0.28999999999999998)
@example(1.9999999999999998)
@example(2.9000000000000004)
@example(math.nextafter(1e5, 0))
@example(5e-324)
@given(epsilons)
def test_an_upper_bound_is_never_read_below_itself_and_a_lower_one_never_above(epsilon: float) -> None:
    assert number(epsilon, "up") >= epsilon
    assert number(epsilon, "down") <= epsilon


@given(epsilons)
def test_text_is_close_and_zero_only_for_zero(epsilon: float) -> None:
    near, up, down = (number(epsilon, toward) for toward in ("nearest", "up", "down"))
    assert down <= near <= up
    assert up - down <= max(0.0100001 if 0.01 <= epsilon < 1e5 else 0, 0.1000001 * epsilon, 5e-324)
    assert (near == 0) == (epsilon == 0)
    assert len(epsilon_text(epsilon)) <= 9


@given(st.lists(epsilons, min_size=2).map(sorted))
def test_text_keeps_the_order(ascending: list[float]) -> None:
    for toward in ("nearest", "up", "down"):
        assert all(number(a, toward) <= number(b, toward) for a, b in pairwise(ascending))


@given(epsilons)
def test_digits_for_programs_are_on_the_safe_side_too(epsilon: float) -> None:
    low, high = (float(epsilon_digits(epsilon, toward)) for toward in ("down", "up"))
    assert low <= epsilon <= high
    assert high - low <= max(1.0000001e-5 * epsilon, 5e-324)
    assert (epsilon_digits(None, "up"), epsilon_digits(math.inf, "up")) == ("", "inf")


@pytest.mark.parametrize(
    ("epsilon", "up", "down"),
    [
        (1.0, "1.00", "1.00"),
        (1.0049, "1.01", "1.00"),
        (0.004, "4.0e-3", "4.0e-3"),
        (0.29, "0.29", "0.29"),
        (17852421.2, "1.8e7", "1.7e7"),
        (9990000.0, "1.0e7", "9.9e6"),
        (99999.0, "99999.00", "99999.00"),
    ],
)
def test_bounds_are_rounded_to_their_safe_side(epsilon: float, up: str, down: str) -> None:
    assert (epsilon_text(epsilon, "up"), epsilon_text(epsilon, "down")) == (up, down)


@pytest.mark.parametrize(
    ("epsilon", "toward", "text"),
    [
        (None, "nearest", "–"),
        (math.inf, "up", "∞"),
        (0.0, "down", "0.00"),
        (0.0, "up", "0 (within delta)"),
        (1e-9, "nearest", "1.0e-9"),
        (1e-9, "down", "1.0e-9"),
        (0.00123, "up", "1.3e-3"),
        (0.00123, "down", "1.2e-3"),
        (0.00999, "up", "1.0e-2"),
        (0.01, "nearest", "0.01"),
        (3, "nearest", "3.00"),
        (123456.0, "down", "1.2e5"),
    ],
)
def test_small_large_and_special_epsilons(epsilon: float | None, toward: Toward, text: str) -> None:
    assert epsilon_text(epsilon, toward) == text


def test_shares_are_rounded_outwards() -> None:
    assert [percent_text(0.3891437, toward) for toward in ("down", "nearest", "up")] == ["38.91", "38.91", "38.92"]
    assert percent_text(0.29, "up") == percent_text(0.29, "down") == "29.00"


def test_a_claim_that_equals_the_proof_is_printed_like_it() -> None:
    one = 1.381948573735064
    assert claimed_text(one, one * (1 + 1e-12)) == epsilon_text(one, "up") == "1.39"
    assert claimed_text(one, 1.4) == claimed_text(one, None) == "1.38"
    assert claimed_text(math.inf, math.inf) == "∞"
