"""Intervals over clusters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest, t

from bench.core.errors import BenchError
from bench.metrics.bootstrap import clustered, difference


def test_a_hundred_images_of_a_class_are_one_trial() -> None:
    rng = np.random.default_rng(0)
    luck = np.repeat(rng.random(10), 100)
    values = rng.random(1_000) < luck
    by_class = clustered(values, np.repeat(np.arange(10), 100))
    as_if_alone = clustered(values, np.arange(1_000))
    assert by_class.value == pytest.approx(values.mean())
    assert by_class.n == 10
    assert by_class.high - by_class.low > 3 * (as_if_alone.high - as_if_alone.low)
    assert 0 <= by_class.low < by_class.value < by_class.high <= 1


def test_classes_count_alike_however_many_images_they_have() -> None:
    assert clustered([1, 0, 0, 0], ["a", "b", "b", "b"]).value == 0.5


def test_the_interval_covers_at_its_level() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        found = clustered(rng.exponential(size=20), np.arange(20), bounds=(0, math.inf))
        hits += found.low <= 1 <= found.high
    assert 0.86 <= hits / 200 <= 0.99


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("name", "least"), [("normal", 0.93), ("shares", 0.91), ("small shares", 0.90), ("exponential", 0.86)]
)
@pytest.mark.parametrize("clusters", [6, 10, 19])
def test_intervals_over_few_clusters_cover(name: str, least: float, clusters: int) -> None:
    """BCa intervals over 6 clusters cover 84 to 90% of such means."""
    rng = np.random.default_rng(0)
    hits, trials = 0, 600
    for _ in range(trials):
        if name == "normal":
            values, mean, bounds = rng.normal(size=clusters), 0.0, (-math.inf, math.inf)
        elif name == "exponential":
            values, mean, bounds = rng.exponential(size=clusters), 1.0, (0.0, math.inf)
        else:  # of 10 images each, whose classes differ
            other = 2 if name == "shares" else 6
            values, mean, bounds = rng.binomial(10, rng.beta(2, other, clusters)) / 10, 2 / (2 + other), (0.0, 1.0)
        found = clustered(values, np.arange(clusters), bounds=bounds)
        hits += found.low <= mean <= found.high
    assert least <= hits / trials <= 0.98


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_all_the_same_gives_clopper_and_pearson(value: float) -> None:
    found = clustered(np.full(1_000, value), np.repeat(np.arange(10), 100))
    exact = binomtest(int(10 * value), 10).proportion_ci(0.95, "exact")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))
    assert found.n == 10


def test_two_clusters_have_students_interval_not_their_own_range() -> None:
    found = clustered([0.4, 0.6], [0, 1], bounds=(-math.inf, math.inf))
    half = t.ppf(0.975, 1) * 0.1
    assert (found.low, found.high) == pytest.approx((0.5 - half, 0.5 + half))
    within = clustered([0.4, 0.6], [0, 1])
    assert (within.low, within.high) == (0, 1)
    agreed = clustered([1, 1], [0, 1])
    assert agreed.low == pytest.approx(0.025**0.5)


def test_one_cluster_says_nothing() -> None:
    found = clustered([1, 1, 1], [0, 0, 0])
    assert found.low == pytest.approx(0.025)
    unbounded = clustered([3.0, 5.0], [0, 0])
    assert (unbounded.value, unbounded.low, unbounded.high) == (4, -math.inf, math.inf)


def test_equal_values_give_equal_intervals() -> None:
    values = np.random.default_rng(2).random(30)
    assert clustered(values, np.arange(30)) == clustered(values, np.arange(30))


def test_a_difference_is_paired_by_class() -> None:
    rng = np.random.default_rng(3)
    level = rng.random(12) * 10
    a, b = level + 0.5 + 0.01 * rng.standard_normal(12), level
    paired = difference(a, b, np.arange(12))
    assert paired.value == pytest.approx(0.5, abs=0.02)
    assert paired.high - paired.low < 0.05
    assert difference(b, a, np.arange(12)).value == pytest.approx(-paired.value)


def test_a_difference_takes_other_numbers_of_images() -> None:
    found = difference([1, 1, 0, 0], [1, 0], [0, 0, 1, 1], clusters_b=[0, 1])
    assert found.value == 0
    assert -1 < found.low < 0 < found.high < 1
    with pytest.raises(BenchError, match="same clusters"):
        difference([1, 0], [1, 0], [0, 1], clusters_b=[0, 2])


def test_unusable_values_are_refused() -> None:
    with pytest.raises(BenchError, match="not finite"):
        clustered([1, math.nan], [0, 1])
    with pytest.raises(BenchError, match="as many clusters"):
        clustered([1, 2], [0])
