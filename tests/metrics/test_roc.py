"""The rates of membership scores, against scikit-learn, by hand, and their intervals by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from bench.core.errors import BenchError
from bench.core.rows import Estimated
from bench.metrics.roc import membership_metrics, roc


def gaussian_scores(n: int, mu: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    truth = np.arange(2 * n) % 2 == 0
    return generator.normal(mu * truth), truth


def rate(found: dict[str, Estimated], fpr: float) -> float:
    return found[f"tpr@{fpr:g}"].value


def test_by_hand() -> None:
    scores = [5, 4, 4, 3, 2, 1]
    truth = [True, True, False, True, False, False]
    fpr, tpr = roc(scores, truth)
    assert tpr == pytest.approx(np.array([0, 1, 2, 3, 3, 3]) / 3)
    assert fpr == pytest.approx(np.array([0, 0, 1, 1, 2, 3]) / 3)
    found = membership_metrics(scores, truth, fprs=(0.34, 0.5, 0.625), draws=5)
    assert found["auc"].value == pytest.approx((3 + 2.5 + 2) / 9)
    # Above the first, second, third of three non-members the expected rates are 1/4, 1/2, 3/4; a tie is not above.
    assert found["tpr@0.34"].value == pytest.approx(1 / 3 + (0.34 * 4 - 1) * 2 / 3)
    assert [found["tpr@0.5"].value, found["tpr@0.625"].value] == pytest.approx([1, 1])
    assert "tpr@0.33" not in membership_metrics(scores, truth, fprs=(0.33,), draws=5), "less than one non-member"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=40), st.floats(0.01, 1))
def test_agrees_with_scikit_learn_ties_and_all(pairs: list[tuple[int, bool]], fpr: float) -> None:
    scores, truth = np.array([p[0] for p in pairs], float), np.array([p[1] for p in pairs])
    if truth.all() or not truth.any():
        with pytest.raises(BenchError, match="members and non-members"):
            roc(scores, truth)
        return
    found = membership_metrics(scores, truth, fprs=(fpr,), draws=5)
    assert found["auc"].value == pytest.approx(roc_auc_score(truth, scores))
    others = sorted(scores[~truth], reverse=True)
    assert (f"tpr@{fpr:g}" in found) == (fpr * len(others) >= 1 - 1e-9)
    if f"tpr@{fpr:g}" in found:
        above = [0.0, *((scores[truth] > other).mean() for other in others), 1.0]
        assert rate(found, fpr) == pytest.approx(np.interp(fpr * (len(others) + 1), range(len(above)), above))
    # Only the order of scores matters.
    assert membership_metrics(np.exp(scores), truth, fprs=(fpr,), draws=5) == found


def test_equal_scores_are_chance_and_never_one() -> None:
    truth = np.arange(1000) % 2 == 0
    found = membership_metrics(np.zeros(1000), truth, fprs=(0.01, 0.5, 0.99, 1.0), draws=50)
    assert (found["auc"].value, found["auc"].low, found["auc"].high) == (0.5, 0.5, 0.5)
    assert [rate(found, fpr) for fpr in (0.01, 0.5, 0.99, 1.0)] == [0.0, 0.0, 0.0, 1.0]


def test_infinite_scores_keep_their_rank() -> None:
    x, y = roc([np.inf, np.inf, 0, -np.inf], [True, False, True, False])
    assert (x.tolist(), y.tolist()) == ([0, 0.5, 0.5, 1], [0, 0.5, 1, 1])


def test_gaussian_scores_have_their_known_rates() -> None:
    scores, truth = gaussian_scores(50_000, 1.0)
    found = membership_metrics(scores, truth, draws=100)
    assert found["auc"].value == pytest.approx(stats.norm.cdf(1 / np.sqrt(2)), abs=0.01)
    assert found["tpr@0.01"].low < stats.norm.sf(stats.norm.isf(0.01) - 1) < found["tpr@0.01"].high


@pytest.mark.few(1)
@pytest.mark.parametrize("mu", [0.82, 2.0])
def test_rates_at_few_false_positives_are_not_above_the_true_ones(mu: float) -> None:
    true = stats.norm.sf(stats.norm.isf(0.01) - mu)
    found = [membership_metrics(*gaussian_scores(200, mu, seed), fprs=(0.01,), draws=1) for seed in range(800)]
    values = np.array([rate(one, 0.01) for one in found])
    error = values.std() / np.sqrt(len(values))
    assert 0.9 * true < values.mean() < true + 2 * error, "the highest rate of a curve would give .085 for .066"


@pytest.mark.parametrize(("n", "trials"), [(100, 120), (1200, 40)])
def test_intervals_of_rates_cover(n: int, trials: int) -> None:
    true = stats.norm.sf(stats.norm.isf(0.01) - 2)
    found = [
        membership_metrics(*gaussian_scores(n, 2.0, seed), fprs=(0.01,), draws=200)["tpr@0.01"]
        for seed in range(trials)
    ]
    above, below = (sum(one.low > true for one in found), sum(one.high < true for one in found))
    # At 2.5% per side; at n 100 the bootstrap alone would be above in a fifth of the trials.
    assert max(above, below) <= stats.binom.ppf(0.998, trials, 0.025)


def test_intervals_cover_targets_that_leak_differently() -> None:
    """Scores of 40 canaries on 24 targets, each of which moves members and non-members together."""
    truth_auc, covered, alone = stats.norm.cdf(0.5 / np.sqrt(2 + 2 * 0.5**2)), 0, 0
    for seed in range(50):
        generator = np.random.default_rng(seed)
        canary, target = (part.ravel() for part in np.indices((40, 24)))
        truth = generator.random(canary.shape) < 0.5
        scores = generator.normal(0.5 * truth + generator.normal(0, 0.5, 24)[target])
        both = membership_metrics(scores, truth, np.stack([canary, target]), fprs=(), draws=200)["auc"]
        one = membership_metrics(scores, truth, canary, fprs=(), draws=200)["auc"]
        assert both.n == 40
        assert (both.low <= one.low, both.high >= one.high) == (True, True)
        covered += both.low <= truth_auc <= both.high
        alone += one.low <= truth_auc <= one.high
    assert covered >= max(alone, 43)


def test_variances_of_canaries_and_targets_add() -> None:
    """An interval that contains that over canaries and that over targets covers 83%: it takes the larger variance."""
    truth_auc, missed, above, trials = stats.norm.cdf(1 / np.sqrt(2 + 1 + 1.5**2)), 0, 0, 120
    for seed in range(trials):
        generator = np.random.default_rng(seed)
        canary, target = (part.ravel() for part in np.indices((16, 64)))
        truth = generator.random(canary.shape) < 0.5
        leaks = 1 + generator.normal(0, 1, 16)[canary] + generator.normal(0, 1.5, 64)[target]
        found = membership_metrics(
            generator.normal(truth * leaks), truth, np.stack([canary, target]), fprs=(), draws=200
        )["auc"]
        above += found.low > truth_auc
        missed += not found.low <= truth_auc <= found.high
    assert missed <= 0.1 * trials
    assert above <= 0.07 * trials


def test_rates_of_less_than_one_non_member_are_left_out() -> None:
    assert [*membership_metrics(*gaussian_scores(500, 1.0), draws=20)] == ["auc", "tpr@0.01"]
    assert [*membership_metrics(*gaussian_scores(1000, 1.0), draws=20)] == ["auc", "tpr@0.001", "tpr@0.01"]


@pytest.mark.parametrize(("canaries", "shift"), [(1, 0.0), (2, 0.0), (3, 0.0), (10, 2.0), (50, 3.0)])
def test_few_or_well_separated_scores_do_not_show_more_than_is_true(canaries: int, shift: float) -> None:
    """The bootstrap alone gave limits above the truth in 8 to 39% of the draws: it does not vary where all differ."""
    truth, above, drawn = stats.norm.cdf(shift / np.sqrt(2)), 0, 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        members = generator.random((2, canaries)) < 0.5
        if not members.all() and members.any():
            scores = generator.normal(shift * members)
            groups = np.tile(np.arange(canaries), 2)
            found = membership_metrics(scores.ravel(), members.ravel(), groups, (), draws=100)["auc"]
            above, drawn = above + (found.low > truth), drawn + 1
    assert above <= 0.045 * drawn, "2.5%, and two standard errors"
    perfect = membership_metrics([1.0, 0.0], [True, False], fprs=(), draws=5)["auc"]
    assert perfect.value == 1.0
    assert perfect.low < 0.25


def test_intervals_cover_and_groups_widen_them() -> None:
    covered = 0
    for seed in range(60):
        scores, truth = gaussian_scores(200, 0.5, seed)
        found = membership_metrics(scores, truth, draws=200, seed=seed)["auc"]
        covered += found.low <= stats.norm.cdf(0.5 / np.sqrt(2)) <= found.high
    assert covered >= 51, "95% of 60, less three standard errors"
    generator = np.random.default_rng(1)
    groups = np.repeat(np.arange(12), 100)
    truth = np.tile([True, False], 600)
    # Each target leaks by another amount: its records say little about the next target.
    scores = generator.normal(truth * generator.uniform(0, 3, 12)[groups])
    alone = membership_metrics(scores, truth, draws=300)["auc"]
    grouped = membership_metrics(scores, truth, groups, draws=300)["auc"]
    assert grouped.n == 12
    assert grouped.value == alone.value
    assert grouped.high - grouped.low > 1.5 * (alone.high - alone.low)


def test_a_bootstrap_is_repeatable() -> None:
    scores, truth = gaussian_scores(500, 1.0)
    found = membership_metrics(scores, truth)
    assert found == membership_metrics(scores, truth)
    assert found["auc"] != membership_metrics(scores, truth, seed=1)["auc"]


@pytest.mark.parametrize(
    ("scores", "truth", "groups"),
    [
        ([1.0, 2.0], [True], None),
        ([1.0, np.nan], [True, False], None),
        ([1.0, 2.0], [True, True], None),
        ([1.0, 2.0], [3, 4], None),
        ([1.0, 2.0], [True, False], [1]),
    ],
)
def test_invalid_input_is_refused(scores: list, truth: list, groups: list | None) -> None:
    with pytest.raises(BenchError):
        membership_metrics(scores, truth, groups)


def test_groups_that_never_hold_both_classes_in_a_draw_are_dropped() -> None:
    found = membership_metrics([2.0, 1.0, 3.0, 0.0], [True, False, True, False], [0, 0, 1, 1], draws=50)
    assert found["auc"].value == found["auc"].high == 1.0
    mixed = membership_metrics([2.0, 1.0], [True, False], [0, 1], fprs=(1.0,), draws=50)
    assert mixed["auc"].value == 1.0
