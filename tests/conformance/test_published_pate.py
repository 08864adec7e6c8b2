"""Epsilons of PATE 2017 and PATE 2018 for the published votes: library and command line."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.privacy.accounting import claims, pate
from bench.privacy.accounting import smooth_sensitivity as pate_smooth
from bench.privacy.events.events import ConfidentGNMax, GNMax, LNMax
from helpers.epsilons import (
    INDICES,
    MNIST,
    SVHN,
    VOTES,
    answer,
    confident_epsilon,
    digits,
    epsilons,
    gnmax_epsilon,
    needs_votes,
    only,
    votes_of,
)

# ------------------------------------------------------------------------------------------------------------ PATE 2017

LNMAX = [
    # set, delta, published and its moment, proven and its moment, data-independent at gamma .05 and .1
    ("mnist-100", 1e-5, 2.048561, 8, 1.437085, 26, 5.302585, 11.756463),
    ("mnist-1000", 1e-5, 8.257444, 4, 7.399251, 5, 20.756463, 51.512925),
    ("svhn-1000", 1e-6, 8.191690, 5, 6.432913, 6, 21.907755, 53.815511),
]
SELECTIONS: dict[str, list[object]] = {
    "mnist-100": ["--votes", MNIST, "--indices", INDICES],
    "mnist-640": ["--votes", MNIST, "--first", 640],
    "mnist-1000": ["--votes", MNIST, "--first", 1000],
    "svhn-1000": ["--votes", SVHN, "--first", 1000],
    "svhn-8500": ["--votes", SVHN, "--first", 8500],
}


@needs_votes
@pytest.mark.parametrize(("name", "delta", "published", "at", "held", "held_at", "plain", "plain_double"), LNMAX)
def test_lnmax_on_votes(
    name: str, delta: float, published: float, at: int, held: float, held_at: int, plain: float, plain_double: float
) -> None:
    votes = votes_of(name)
    assert pate.lnmax_epsilon_published(votes, 0.05, delta) == (digits(published), at)
    assert pate.lnmax_epsilon(votes, 0.05, delta) == (digits(held), held_at)
    assert pate.pure_moments_epsilon(0.1, len(votes), delta)[0] == digits(plain)
    assert pate.pure_moments_epsilon(0.2, len(votes), delta)[0] == digits(plain_double)
    assert claims.pate_2017(votes, 0.05, delta).epsilon == digits(published)
    if name == "mnist-100":
        assert pate.lnmax_epsilon(votes, 0.05, delta, 8) == (digits(1.958683), 8)


@needs_votes
@pytest.mark.parametrize(("name", "delta", "published", "at", "held", "held_at", "plain", "plain_double"), LNMAX)
def test_lnmax_on_votes_from_the_shell(
    name: str, delta: float, published: float, at: int, held: float, held_at: int, plain: float, plain_double: float
) -> None:
    found = epsilons("lnmax", *SELECTIONS[name], "--gamma", 0.05, "--delta", delta)
    assert found["pate-2017-as-published"] == (digits(published), at)
    assert found["pate-2017-moments-data-dependent"] == (digits(held), held_at)
    assert found["pate-2017-moments-data-independent"][0] == digits(plain)
    doubled = epsilons("lnmax", *SELECTIONS[name], "--gamma", 0.1, "--delta", delta, "--largest-moment", 8)
    assert doubled["pate-2017-moments-data-dependent"] == (digits(published), at)
    assert doubled["pate-2017-moments-data-independent"][0] == digits(plain_double)


@pytest.mark.parametrize(
    ("queries", "delta", "closed"), [(100, 1e-5, 5.798526), (1000, 1e-5, 25.174271), (1000, 1e-6, 26.622581)]
)
def test_closed_form(queries: int, delta: float, closed: float) -> None:
    assert claims.pate_closed_form(0.05, queries, delta).epsilon == digits(closed)
    assert only([LNMax(0.05, queries)], "pate-2017-closed-form", delta) == digits(closed)


ROW_0 = np.array([[4.0, 7, 6, 8, 4, 2, 0, 214, 4, 1]])
UNANIMOUS = np.array([[250.0, 0, 0, 0, 0, 0, 0, 0, 0, 0]])


def test_unit_values() -> None:
    log_q = pate.lnmax_log_q(ROW_0, 0.05)
    assert math.exp(log_q[0]) == pytest.approx(7.7971393620e-4, rel=1e-10)
    assert math.exp(pate.lnmax_log_q(ROW_0, 0.1)[0]) == pytest.approx(4.0404833955e-8, rel=1e-10)
    expected = [1.6399974e-4, 7.1130976e-4, 1.6105419e-3, 4.3855712e-3]
    assert pate.lnmax_moments(log_q, 0.05, [1, 4, 8, 16])[0] == pytest.approx(expected, rel=1e-7)
    assert pate.gnmax_log_q(ROW_0, 40)[0] == digits(-6.9718768712, 10)
    rdp = pate.gnmax_rdp(ROW_0, 40, [2, 8, 14, 32])[0]
    assert rdp == pytest.approx([0.000264717320, 0.000336471618, 0.000462955959, 0.001892776575], abs=5.1e-13)
    assert math.exp(pate.log_answered(ROW_0, 200, 150)[0]) == digits(0.5371806243, 10)
    assert pate.threshold_rdp(ROW_0, 200, 150, [14])[0, 0] == digits(0.000311111111, 12)
    assert math.exp(pate.lnmax_log_q(UNANIMOUS, 0.05)[0]) == pytest.approx(1.2158206e-4, rel=1e-7)
    assert pate.gnmax_log_q(UNANIMOUS, 40)[0] == digits(-10.0192282943, 10)
    assert pate.gnmax_rdp(UNANIMOUS, 40, [14])[0, 0] == pytest.approx(3.1201579e-5, rel=1e-7)


@needs_votes
def test_released_labels_follow_the_votes() -> None:
    labels = np.load(VOTES / "mnist_250_student_labels_lap_20.npy", allow_pickle=False)
    agree = (np.load(MNIST, allow_pickle=False).argmax(axis=1) == labels).mean()
    assert agree == pytest.approx(0.9690, abs=5e-5)


# ------------------------------------------------------------------------------------------------------------ PATE 2018

CONFIDENT = [
    # The paper's table rounds beta to four places, and smooth sensitivity feels it: .92 / 28 and .8 / 15 are meant.
    ("mnist-640", 200, 150, 1e-5, 282.7210, 1.998817, 14, 3.157421, 9, 2.516, 0.385, 0.06175, 0.92 / 28, 6.233),
    ("svhn-8500", 300, 200, 1e-6, 2969.0914, 4.915203, 7.5, 12.392967, 3.5, 5.450, 0.350, 0.07165, 0.8 / 15, 4.884),
]


@needs_votes
@pytest.mark.parametrize(
    ("name", "threshold", "sigma1", "delta", "answers", "dependent", "at", "independent", "independent_at", "mean",
     "deviation", "sensitivity", "beta", "sigma_ss"),
    CONFIDENT,
)  # fmt: skip
def test_confident_gnmax(
    name: str,
    threshold: float,
    sigma1: float,
    delta: float,
    answers: float,
    dependent: float,
    at: float,
    independent: float,
    independent_at: float,
    mean: float,
    deviation: float,
    sensitivity: float,
    beta: float,
    sigma_ss: float,
) -> None:
    votes = votes_of(name)
    expected = float(np.exp(pate.log_answered(votes, threshold, sigma1)).sum())
    assert expected == digits(answers, 4)
    assert confident_epsilon(votes, threshold, sigma1, 40, delta) == (digits(dependent), at)
    found = pate_smooth.sanitise(
        votes, ConfidentGNMax(threshold, sigma1, 40, len(votes), len(votes)), delta, at, beta, sigma_ss
    )
    assert found.smooth_sensitivity == digits(sensitivity, 5)
    assert found.mean == digits(mean, 3)
    assert found.deviation == digits(deviation, 3)
    assert claims.pate_2018(votes, 40, delta, threshold, sigma1).epsilon == digits(dependent)

    shell = ["confident-gnmax", *SELECTIONS[name], "--threshold", threshold, "--sigma1", sigma1, "--sigma2", 40]
    content = answer(*shell, "--delta", delta, "--sanitise", "--order", at, "--beta", beta, "--sigma-ss", sigma_ss)
    assert content["facts"]["expected_answered"] == digits(answers, 4)
    rows = {row["name"]: row for row in content["accountants"]}
    assert (rows["pate-2018-rdp-data-dependent"]["epsilon"], rows["pate-2018-rdp-data-dependent"]["order"]) == (
        digits(dependent),
        at,
    )
    plain = rows["pate-2018-rdp-expected-answers"]
    assert (plain["epsilon"], plain["order"]) == (digits(independent), independent_at)
    assert rows["pate-2018-sanitised-mean"]["epsilon"] == digits(mean, 3)
    assert f"+- {deviation:.3f}" in rows["pate-2018-sanitised-mean"]["note"]
    assert rows["pate-2018-sanitised-mean"]["releasable"] is False
    # The figure is of the expected run; how many answers one expects depends on the votes, and its noise covers the
    # cost of each answer only.
    assert rows["pate-2018-sanitised-release"]["releasable"] is False


@needs_votes
@pytest.mark.parametrize(
    ("name", "threshold", "sigma1", "delta", "stop", "mean", "deviation"),
    [("mnist-640", 200, 150, 1e-5, 286, 1.966, 0.043), ("svhn-8500", 300, 200, 1e-6, 3098, 4.995, 0.077)],
)
def test_realised_confident_runs(
    name: str, threshold: float, sigma1: float, delta: float, stop: int, mean: float, deviation: float
) -> None:
    """A run that stops at a number of answers costs what simulated runs cost: within their spread."""
    source = np.load(MNIST if name.startswith("mnist") else SVHN, allow_pickle=False)
    votes = pate.check_votes(source)
    rng = np.random.default_rng(0)
    found = []
    for _ in range(8):
        order = rng.permutation(len(votes))
        answered = votes[order].max(axis=1) + rng.normal(0, sigma1, len(votes)) >= threshold
        asked = int(np.searchsorted(np.cumsum(answered), stop)) + 1
        found.append(
            confident_epsilon(
                votes[order[:asked]], threshold, sigma1, 40, delta, np.arange(3, 20, 0.5), answered[:asked]
            )[0]
        )
    assert np.mean(found) == pytest.approx(mean, abs=3 * deviation)


@needs_votes
@pytest.mark.parametrize(
    ("name", "delta", "dependent", "independent"),
    [
        ("mnist-100", 1e-5, 1.097719, 1.759059),
        ("mnist-1000", 1e-5, 4.132400, 5.995928),
        ("svhn-1000", 1e-6, 2.920647, 6.507613),
    ],
)
def test_gnmax(name: str, delta: float, dependent: float, independent: float) -> None:
    votes = votes_of(name)
    assert gnmax_epsilon(votes, 40, delta)[0] == digits(dependent)
    assert only([GNMax(40.0, len(votes))], "pate-2018-rdp-data-independent", delta) == digits(independent)
    found = epsilons("gnmax", *SELECTIONS[name], "--sigma", 40, "--delta", delta)
    assert found["pate-2018-rdp-data-dependent"][0] == digits(dependent)
    assert found["pate-2018-rdp-data-independent"][0] == digits(independent)
