"""Why a released arg max is charged as the whole noisy histogram."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, optimize, stats

from bench.privacy.accounting.accountants import pld
from bench.privacy.auditing.vote_laws import log_winners
from bench.privacy.events import losses
from bench.privacy.events.conversions import exact_gaussian_epsilon, gaussian_delta
from bench.privacy.events.events import LNMax

GAMMA, DELTA = 0.05, 1e-5
NOWHERE = -60.0


def label(first: float, second: float, third: float) -> NDArray[np.float64]:
    """Return each count's probability to be the largest of three; two have Laplace noise of scale 1, the third none."""

    def wins(x: float, y: float) -> float:
        points = sorted({third, 60.0, *(p for p in (x, y) if p > third)})
        density = stats.laplace(x).pdf
        rank = stats.laplace(y).cdf
        return math.fsum(
            integrate.quad(lambda t: density(t) * rank(t), low, high, epsabs=1e-13)[0]
            for low, high in itertools.pairwise(points)
        )

    found = wins(first, second), wins(second, first)
    return np.array([*found, max(1 - sum(found), 0.0)])


def divergence(third: float) -> float:
    """Return the divergence of one label if a vote moves between two tied classes and the third has count `third`."""
    before, after = label(GAMMA / 2, -GAMMA / 2, third), label(-GAMMA / 2, GAMMA / 2, third)
    possible = before > 1e-12
    return float((before[possible] * np.log(before[possible] / after[possible])).sum())


def test_a_tie_of_two_costs_a_third_less_and_is_not_the_worst() -> None:
    one, other = label(GAMMA, 0.0, NOWHERE)[:2], label(0.0, GAMMA, NOWHERE)[:2]
    labels = losses.finite_pld(list(np.log(one / one.sum())), list(np.log(one / other)), 1000, 1e-4)
    histograms = pld([LNMax(GAMMA, 1000)], DELTA)
    assert histograms is not None
    assert labels.get_epsilon_for_delta(DELTA) == pytest.approx(7.49, abs=0.01)
    assert histograms.epsilon == pytest.approx(11.35, abs=0.01)
    assert divergence(0.0) > 1.3 * divergence(NOWHERE)


@pytest.mark.parametrize(
    ("sigma", "label_costs", "histogram", "three"), [(40, 0.163, 0.110, 0.200), (100, 0.031, 0.040, 0.073)]
)
def test_a_label_of_few_teachers_has_a_pure_epsilon_that_helps_hardly_any_queries(
    sigma: float, label_costs: float, histogram: float, three: float
) -> None:
    """Of 250 teachers and two classes: every gap that a moved vote can change, by the real law of winners."""
    for_first = np.arange(250.0)
    before, after = (
        log_winners(np.stack([votes, 250 - votes], 1), sigma, "gaussian") for votes in (for_first, for_first + 1)
    )
    pure = float(np.abs(before - after).max())
    assert pure == pytest.approx(label_costs, abs=5e-4)
    once, thrice = (exact_gaussian_epsilon(math.sqrt(2 * queries) / sigma, DELTA) for queries in (1, 3))
    assert (once, thrice) == pytest.approx((histogram, three), abs=5e-4)
    assert (pure < once) is (sigma == 100)
    assert 3 * pure > thrice


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5, 1.0])
def test_gaussian_labels_have_the_histograms_profile(epsilon: float) -> None:
    sigma = 2.0

    def delta(margin: float) -> float:
        """Return the label's delta if one class leads by `margin` and a moved vote reduces the lead by 2."""
        before, after = (stats.norm.cdf(lead / (math.sqrt(2) * sigma)) for lead in (margin, margin - 2))
        return float(before - math.exp(epsilon) * after)

    worst = -optimize.minimize_scalar(lambda margin: -delta(margin), bounds=(-40, 40), method="bounded").fun
    assert worst == pytest.approx(gaussian_delta(math.sqrt(2) / sigma, epsilon), rel=1e-4)
