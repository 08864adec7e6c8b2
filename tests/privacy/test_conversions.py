"""Exact Gaussian epsilons where doubles do not resolve them."""

from __future__ import annotations

import pytest

from bench.privacy.events import conversions


@pytest.mark.parametrize(
    ("mu", "delta", "known"),  # with 80 digits
    [
        (1.7e-13, 1e-300, 6.144864756201262e-12),
        (1.7e-12, 1e-15, 4.889177031180183e-12),
        (1.7e-11, 1e-300, 6.166452563953302e-10),
        (1.7e-9, 1e-60, 2.540030187928865e-08),
        (1.7e-17, 1e-18, 2.0e-17),
        (1e12, 1e-5, 5.0000000000426e23),
    ],
)
def test_gaussian_noise_beyond_what_doubles_resolve_is_bounded_on_both_sides(
    mu: float, delta: float, known: float
) -> None:
    assert conversions.gaussian_epsilon_at_least(mu, delta) <= known
    assert known <= conversions.exact_gaussian_epsilon(mu, delta) * (1 + 1e-12) < 7 * known


def test_gaussian_bounds_meet_where_doubles_resolve_them() -> None:
    for mu in (conversions.SMALL, 1e-3, 1.0, conversions.LARGE):
        exact = conversions.exact_gaussian_epsilon(mu, 1e-5)
        assert exact == conversions.gaussian_epsilon_at_least(mu, 1e-5)
        assert exact == pytest.approx(conversions.exact_gaussian_epsilon(mu * (1 - 1e-6), 1e-5), rel=1e-3)


@pytest.mark.parametrize("epsilon", [1e-20, 1e-17, 1e-12, 1e-9, 1e-3, 1.0])
def test_optimal_composition_of_one_mechanism_is_its_epsilon(epsilon: float) -> None:
    """At a delta far below it; 1e-20 came out as 0, and 1e-12 too small by 2e-5."""
    assert conversions.optimal_composition(epsilon, 1, 1e-300) == pytest.approx(epsilon, rel=1e-15)
    assert conversions.optimal_composition(epsilon, 100, 1e-300) <= 100 * epsilon
    assert conversions.optimal_composition(epsilon, 100, 1e-300) >= epsilon
