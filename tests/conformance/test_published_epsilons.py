"""Figures that were computed elsewhere, or by hand, for known votes and settings: library and command line."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bench.cli.epsilon import app
from bench.privacy import accountants, claims, conversions, pate
from bench.privacy import smooth_sensitivity as pate_smooth
from bench.privacy.accountants import account, accountant, proven
from bench.privacy.calibrate import largest_count, smallest_noise
from bench.privacy.events import DPSGD, Bypass, Event, Gaussian, GNMax, LNMax, RandomizedResponse
from helpers.paths import SHARED

VOTES = SHARED / "votes"
MNIST = VOTES / "mnist_250_teachers.npy"
SVHN = VOTES / "svhn_250_teachers.npy"
INDICES = VOTES / "mnist_250_teachers_100_indices_used_by_student.npy"
needs_votes = pytest.mark.skipif(
    not (MNIST.is_file() and SVHN.is_file() and INDICES.is_file()),
    reason="the PATE authors' vote counts are not beside the checkout (../shared/votes); they state no licence",
)


def digits(expected: float, places: int = 6) -> Any:
    """Return what matches `expected` to as many decimal places as it is printed with."""
    return pytest.approx(expected, abs=0.501 * 10**-places, rel=0)


def votes_of(name: str) -> np.ndarray:
    mnist = np.load(MNIST, allow_pickle=False)
    chosen = {
        "mnist-100": lambda: mnist[np.load(INDICES, allow_pickle=False)],
        "mnist-640": lambda: mnist[:640],
        "mnist-1000": lambda: mnist[:1000],
        "svhn-1000": lambda: np.load(SVHN, allow_pickle=False)[:1000],
        "svhn-8500": lambda: np.load(SVHN, allow_pickle=False)[:8500],
    }
    return pate.check_votes(chosen[name]())


def epsilons(*arguments: object) -> dict[str, tuple[float, float | None]]:
    """Run ``bench epsilon`` with ``--json`` and return epsilon and order by accountant."""
    content = answer(*arguments)
    return {row["name"]: (float(row["epsilon"]), row["order"]) for row in content["accountants"]}


def answer(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*(str(a) for a in arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    content: dict[str, Any] = json.loads(result.stdout)
    for row in content["accountants"]:
        assert set(row) >= {"name", "epsilon", "sound", "data_dependent", "releasable", "order"}
    return content


def only(events: list[Event], name: str, delta: float = 1e-5) -> float:
    return {row.name: row.epsilon for row in account(events, delta)}[name]


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
    name: str,
    delta: float,
    published: float,
    at: int,
    held: float,
    held_at: int,
    plain: float,
    plain_double: float,
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
    name: str,
    delta: float,
    published: float,
    at: int,
    held: float,
    held_at: int,
    plain: float,
    plain_double: float,
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
    assert pate.confident_epsilon(votes, threshold, sigma1, 40, delta) == (digits(dependent), at)
    plain = pate.confident_independent_rdp(len(votes), expected, sigma1, 40)
    assert conversions.classic_epsilon(pate.ORDERS, plain, delta) == (digits(independent), independent_at)
    found = pate_smooth.sanitise(votes, 40, delta, at, beta, sigma_ss, threshold, sigma1)
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
    assert rows["pate-2018-rdp-expected-answers"]["epsilon"] == digits(independent)
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
            pate.confident_epsilon(
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
    assert pate.gnmax_epsilon(votes, 40, delta)[0] == digits(dependent)
    assert only([GNMax(40.0, len(votes))], "pate-2018-rdp-data-independent", delta) == digits(independent)
    found = epsilons("gnmax", *SELECTIONS[name], "--sigma", 40, "--delta", delta)
    assert found["pate-2018-rdp-data-dependent"][0] == digits(dependent)
    assert found["pate-2018-rdp-data-independent"][0] == digits(independent)


@needs_votes
def test_speed_on_real_votes() -> None:
    """The divergence on votes in under a second, smooth sensitivity in under ten; three times that on a busy core."""
    votes = votes_of("svhn-8500")
    start = time.perf_counter()
    pate.gnmax_rdp(votes, 40, np.linspace(2, 52, 100))
    assert time.perf_counter() - start < 3
    votes = votes_of("mnist-640")
    start = time.perf_counter()
    pate_smooth.smooth_sensitivity(votes, 40, 14, 0.0329, 200, 150)
    assert time.perf_counter() - start < 30


# ------------------------------------------------------------------------------------------------- TrPATE, DGD and DPSD

TRPATE = [
    (0.05, 100, 5.798526, 4.3068, 2.8934),
    (0.05, 200, 8.786140, 6.5103, 4.3167),
    (0.05, 500, 15.729830, 11.4089, 7.4213),
    (0.05, 1000, 25.174271, 17.7871, 11.3478),
    (0.1, 100, 13.597052, 9.7483, 6.3816),
    (0.1, 1000, 70.348543, 45.8730, 27.6859),
]


@pytest.mark.parametrize(("gamma", "queries", "theorem", "optimal", "pld"), TRPATE)
def test_trpate(gamma: float, queries: int, theorem: float, optimal: float, pld: float) -> None:
    assert claims.trpate(gamma, queries, 1e-5).epsilon == digits(theorem)
    assert accountants.optimal_composition(2 * gamma, queries, 1e-5) == digits(optimal, 4)
    found = epsilons("claimed", "trpate", "--gamma", gamma, "--queries", queries)
    assert found["claimed-trpate"][0] == digits(theorem)
    assert found["optimal-composition"][0] == digits(optimal, 4)
    assert found["pld"][0] == digits(pld, 4)
    best = proven([LNMax(gamma, queries)], 1e-5)
    assert (best.name, best.epsilon) == ("pld", digits(pld, 4))
    assert epsilons("lnmax", "--gamma", gamma, "--queries", queries)["pld"][0] == digits(pld, 4)


DGD = [
    (27, 1.314194, 1.280857, 0.926990, 0.644059),
    (400, 5.798526, 5.302585, 4.359703, 2.923794),
    (1000, 10.087136, 8.837642, 7.492847, 4.954729),
    (1300, 11.900666, 10.337642, 8.786492, 5.779715),
]


@pytest.mark.parametrize(("queries", "closed", "moments", "optimal", "pld"), DGD)
def test_dgd(queries: int, closed: float, moments: float, optimal: float, pld: float) -> None:
    assert claims.dgd(0.05, queries, 1e-5).epsilon == digits(closed)
    found = epsilons("claimed", "dgd", "--eps0", 0.05, "--queries", queries)
    assert found["claimed-dgd"][0] == digits(closed)
    assert found["pate-2017-moments-data-independent"][0] == digits(moments)
    assert found["optimal-composition"][0] == digits(optimal)
    assert found["pld"][0] == digits(pld)


def test_dgd_has_no_guarantee_from_end_to_end() -> None:
    content = answer("proven", "dgd", "--eps0", 0.05, "--queries", 400)
    first, *rest = content["accountants"]
    assert (first["epsilon"], first["sound"]) == ("inf", True)
    assert not any(row["sound"] for row in rest)
    assert proven([LNMax(0.025, 400), Bypass("a reason")], 1e-5).epsilon == math.inf


@pytest.mark.parametrize(
    ("beta", "classes", "epsilon", "q"),
    [(1e-3, 10, 0.045635, "243.43"), (5e-3, 10, 0.261442, "55.14"), (1e-4, 1000, 0.045635, "243.43")],
)
def test_dpsd_theorem_1(beta: float, classes: int, epsilon: float, q: str) -> None:
    claim = claims.dpsd(beta, classes, 256, 200, 100, 1e-5)
    assert claim.epsilon == digits(epsilon)
    assert f"q {q};" in claim.note
    options = ["--beta", beta, "--classes", classes, "--batch", 256, "--iterations", 200, "--sigma", 100]
    content = answer("claimed", "dpsd", *options)
    assert content["accountants"][0]["epsilon"] == digits(epsilon)
    assert content["accountants"][0]["sound"] is False
    assert epsilons("proven", "dpsd", *options)["exact-gaussian"][0] == digits(28.838725)


@pytest.mark.parametrize(
    ("sigma", "mu", "classic", "improved", "exact"),
    [
        (100, 4.525483, 31.955649, 30.598832, 28.838725),
        (200, 2.262742, 13.417825, 12.481335, 11.651232),
        (1000, 0.452548, 2.273965, 1.939473, 1.783431),
    ],
)
def test_dpsd_equation_3(sigma: float, mu: float, classic: float, improved: float, exact: float) -> None:
    found = epsilons("proven", "dpsd", "--batch", 256, "--iterations", 200, "--sigma", sigma)
    assert found["rdp-classic"][0] == digits(classic)
    assert found["rdp"][0] == digits(improved)
    assert found["exact-gaussian"][0] == digits(exact)
    assert claims.dpsd_events(256, 200, sigma)[0].gaussian_mu() == digits(mu)
    assert conversions.exact_gaussian_epsilon(2 * math.sqrt(51200) / sigma, 1e-5) == digits(exact)


def test_what_dpsd_would_need() -> None:
    for epsilon, sigma, answers in ((1.0, 1688.29, 179), (10.0, 226.22, 10_004)):
        assert smallest_noise(lambda s: claims.dpsd_events(256, 200, s), epsilon, 1e-5) == digits(sigma, 2)
        assert largest_count(lambda n: [Gaussian(50.0, n)], epsilon, 1e-5) == answers


# --------------------------------------------------------------------------------------- DP-SGD and randomised response

RATE = 256 / 60000


@pytest.mark.parametrize(("steps", "rdp", "pld"), [(14_062, 2.596556, 2.381686), (14_040, 2.594363, 2.379644)])
def test_dp_sgd(steps: int, rdp: float, pld: float) -> None:
    found = epsilons("dp-sgd", "--batch", 256, "--records", 60000, "--sigma", 1.1, "--steps", steps)
    assert found["rdp"] == (digits(rdp), pytest.approx(8.1))
    assert found["pld"][0] == digits(pld)
    assert claims.dp_sgd(RATE, 1.1, steps, 1e-5).epsilon == digits(rdp)


@pytest.mark.parametrize(("epsilon", "rdp", "pld"), [(1.0, 2.178421, 2.025146), (10.0, 0.632985, 0.612975)])
def test_dp_sgd_calibration(epsilon: float, rdp: float, pld: float) -> None:
    # The figures were found by bisection to 1e-6, so their last digit may be one too large.
    for name, sigma in (("rdp", rdp), ("pld", pld)):
        found = smallest_noise(lambda s: [DPSGD(RATE, s, 14_062)], epsilon, 1e-5, accountant(name), tolerance=1e-6)
        assert found == pytest.approx(sigma, abs=1.5e-6)


def test_dp_sgd_calibration_from_the_shell() -> None:
    facts = answer("dp-sgd", "--sampling-rate", RATE, "--steps", 14_062, "--target-epsilon", 1)["facts"]
    assert facts["sigma_by_rdp"] == pytest.approx(2.178421, abs=1.5e-6)
    assert facts["sigma"] == pytest.approx(2.025146, abs=1.5e-6)


@pytest.mark.parametrize(("epsilon", "keep"), [(0.1, 0.10936687), (1, 0.23196932), (3, 0.69056786), (8, 0.99698992)])
def test_randomised_response(epsilon: float, keep: float) -> None:
    assert RandomizedResponse(epsilon, 10).keep_probability == digits(keep, 8)
    facts = answer("randomized-response", "--epsilon", epsilon, "--classes", 10)["facts"]
    assert facts["keep_probability"] == digits(keep, 8)
    if epsilon == 1:
        assert facts["probability_of_each_other"] == digits(0.08533674, 8)


@pytest.mark.parametrize(("delta", "epsilon"), [(1e-5, 17.787128), (1e-6, 19.344671)])
def test_composed_randomised_response(delta: float, epsilon: float) -> None:
    found = epsilons("randomized-response", "--epsilon", 0.1, "--classes", 10, "--count", 1000, "--delta", delta)
    assert found["optimal-composition"][0] == digits(epsilon)
    assert accountants.optimal_composition(0.1, 1000, delta) == digits(epsilon)
