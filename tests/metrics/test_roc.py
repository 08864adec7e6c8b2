"""The rates of membership scores, against scikit-learn, by hand, and their intervals by simulation."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from bench.core.errors import BenchError
from bench.metrics import roc as r


def gaussian_scores(n: int, mu: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    truth = np.arange(2 * n) % 2 == 0
    return generator.normal(mu * truth), truth


def test_by_hand() -> None:
    scores = [5, 4, 4, 3, 2, 1]
    truth = [True, True, False, True, False, False]
    curve = r.roc(scores, truth)
    assert curve.thresholds.tolist() == [np.inf, 5, 4, 3, 2, 1]
    assert curve.tpr == pytest.approx(np.array([0, 1, 2, 3, 3, 3]) / 3)
    assert curve.fpr == pytest.approx(np.array([0, 0, 1, 1, 2, 3]) / 3)
    # The tie of a member and a non-member is one step: below 1/3 neither of them is guessed.
    assert r.tpr_at(0.33, scores, truth) == pytest.approx(1 / 3)
    assert r.tpr_at(1 / 3, scores, truth) == 1.0
    assert r.auc(scores, truth) == pytest.approx((3 + 2.5 + 2) / 9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=40), st.floats(0, 1))
def test_agrees_with_scikit_learn_ties_and_all(pairs: list[tuple[int, bool]], fpr: float) -> None:
    scores, truth = np.array([p[0] for p in pairs], float), np.array([p[1] for p in pairs])
    if truth.all() or not truth.any():
        with pytest.raises(BenchError, match="members and non-members"):
            r.roc(scores, truth)
        return
    assert r.auc(scores, truth) == pytest.approx(roc_auc_score(truth, scores))
    x, y, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert r.tpr_at(fpr, scores, truth) == pytest.approx(y[x <= fpr].max())
    found = r.membership_metrics(scores, truth, fprs=(0.5,), draws=5)
    assert found.auc.value == pytest.approx(r.auc(scores, truth))
    assert found.tpr[0].tpr.value == pytest.approx(r.tpr_at(0.5, scores, truth))
    # Only the order of scores matters.
    assert r.membership_metrics(np.exp(scores), truth, fprs=(0.5,), draws=5) == found


def test_equal_scores_are_chance_and_never_one() -> None:
    truth = np.arange(1000) % 2 == 0
    found = r.membership_metrics(np.zeros(1000), truth, fprs=(0.001, 0.01, 0.5), draws=50)
    assert found.auc == (0.5, 0.5, 0.5)
    assert [rate.tpr.value for rate in found.tpr] == [0.0, 0.0, 0.0]
    assert found.balanced_accuracy.value == 0.5
    assert r.tpr_at(0.999, np.zeros(1000), truth) == 0.0
    assert r.tpr_at(1.0, np.zeros(1000), truth) == 1.0


def test_infinite_scores_keep_their_rank() -> None:
    assert r.auc([np.inf, np.inf, 0, -np.inf], [True, True, False, False]) == 1.0
    assert r.tpr_at(0.0, [np.inf, np.inf, 0, -np.inf], [True, False, True, False]) == 0.0


def test_gaussian_scores_have_their_known_rates() -> None:
    scores, truth = gaussian_scores(50_000, 1.0)
    found = r.membership_metrics(scores, truth, draws=100)
    assert found.auc.value == pytest.approx(stats.norm.cdf(1 / np.sqrt(2)), abs=0.01)
    assert found.balanced_accuracy.value == pytest.approx(stats.norm.cdf(0.5), abs=0.01)
    at_one = stats.norm.sf(stats.norm.isf(0.01) - 1)
    assert found.tpr_at(0.01).tpr.low < at_one < found.tpr_at(0.01).tpr.high
    for (prior, ppv), share in zip(found.ppv, (0.01, 0.1), strict=True):
        assert prior == share
        assert ppv.value == pytest.approx(prior * at_one / (prior * at_one + (1 - prior) * 0.01), abs=0.05)
    assert found.resolution == 1 / 50_000


def test_unresolved_rates_are_flagged_and_not_written() -> None:
    scores, truth = gaussian_scores(500, 1.0)
    found = r.membership_metrics(scores, truth, draws=20)
    assert [rate.resolved for rate in found.tpr] == [False, True]
    assert [entry["tpr"] is None for entry in found.as_dict()["tpr"]] == [True, False]
    scores, truth = gaussian_scores(1000, 1.0)
    assert r.membership_metrics(scores, truth, draws=20).tpr_at(0.001).resolved
    with pytest.raises(BenchError, match=r"0\.5"):
        found.tpr_at(0.5)


def test_intervals_cover_and_groups_widen_them() -> None:
    covered = 0
    for seed in range(60):
        scores, truth = gaussian_scores(200, 0.5, seed)
        found = r.membership_metrics(scores, truth, draws=200, seed=seed).auc
        covered += found.low <= stats.norm.cdf(0.5 / np.sqrt(2)) <= found.high
    assert covered >= 51, "95% of 60, less three standard errors"
    generator = np.random.default_rng(1)
    groups = np.repeat(np.arange(12), 100)
    truth = np.tile([True, False], 600)
    # Each target leaks by another amount: records tell little of what the next target does.
    scores = generator.normal(truth * generator.uniform(0, 3, 12)[groups])
    alone = r.membership_metrics(scores, truth, draws=300).auc
    grouped = r.membership_metrics(scores, truth, groups, draws=300)
    assert grouped.groups == 12
    assert grouped.auc.value == alone.value
    assert grouped.auc.high - grouped.auc.low > 1.5 * (alone.high - alone.low)


def test_a_bootstrap_is_repeatable_and_fast() -> None:
    scores, truth = gaussian_scores(5000, 1.0)
    start = time.perf_counter()
    found = r.membership_metrics(scores, truth)
    assert time.perf_counter() - start < 30
    assert found == r.membership_metrics(scores, truth)
    assert found.auc != r.membership_metrics(scores, truth, seed=1).auc


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
def test_nonsense_is_refused(scores: list, truth: list, groups: list | None) -> None:
    with pytest.raises(BenchError):
        r.membership_metrics(scores, truth, groups)


def test_groups_that_never_hold_both_classes_in_a_draw_are_dropped() -> None:
    found = r.membership_metrics([2.0, 1.0, 3.0, 0.0], [True, False, True, False], [0, 0, 1, 1], draws=50)
    assert found.auc == (1.0, 1.0, 1.0)
    mixed = r.membership_metrics([2.0, 1.0], [True, False], [0, 1], fprs=(1.0,), draws=50)
    assert mixed.auc.value == 1.0
