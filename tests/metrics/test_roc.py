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
    # The tie of a member and a non-member is one step: below 1/3 neither of them is guessed.
    found = membership_metrics(scores, truth, fprs=(0.34, 1 / 3 + 1e-9), draws=5)
    assert found["auc"].value == pytest.approx((3 + 2.5 + 2) / 9)
    assert found["tpr@0.34"].value == 1.0
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
    x, y = roc(scores, truth)
    assert (f"tpr@{fpr:g}" in found) == (fpr * (~truth).sum() >= 1 - 1e-9)
    if f"tpr@{fpr:g}" in found:
        assert rate(found, fpr) == pytest.approx(y[x <= fpr * (1 + 1e-12)].max())
    # Only the order of scores matters.
    assert membership_metrics(np.exp(scores), truth, fprs=(fpr,), draws=5) == found


def test_equal_scores_are_chance_and_never_one() -> None:
    truth = np.arange(1000) % 2 == 0
    found = membership_metrics(np.zeros(1000), truth, fprs=(0.01, 0.5, 0.999, 1.0), draws=50)
    assert (found["auc"].value, found["auc"].low, found["auc"].high) == (0.5, 0.5, 0.5)
    assert [rate(found, fpr) for fpr in (0.01, 0.5, 0.999, 1.0)] == [0.0, 0.0, 0.0, 1.0]


def test_infinite_scores_keep_their_rank() -> None:
    x, y = roc([np.inf, np.inf, 0, -np.inf], [True, False, True, False])
    assert (x.tolist(), y.tolist()) == ([0, 0.5, 0.5, 1], [0, 0.5, 1, 1])


def test_gaussian_scores_have_their_known_rates() -> None:
    scores, truth = gaussian_scores(50_000, 1.0)
    found = membership_metrics(scores, truth, draws=100)
    assert found["auc"].value == pytest.approx(stats.norm.cdf(1 / np.sqrt(2)), abs=0.01)
    assert found["tpr@0.01"].low < stats.norm.sf(stats.norm.isf(0.01) - 1) < found["tpr@0.01"].high


def test_rates_of_less_than_one_non_member_are_left_out() -> None:
    assert [*membership_metrics(*gaussian_scores(500, 1.0), draws=20)] == ["auc", "tpr@0.01"]
    assert [*membership_metrics(*gaussian_scores(1000, 1.0), draws=20)] == ["auc", "tpr@0.001", "tpr@0.01"]


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
    assert (found["auc"].low, found["auc"].high) == (1.0, 1.0)
    mixed = membership_metrics([2.0, 1.0], [True, False], [0, 1], fprs=(1.0,), draws=50)
    assert mixed["auc"].value == 1.0
