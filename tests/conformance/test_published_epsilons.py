"""Epsilons computed elsewhere, or by hand, for published settings but PATE's: library and command line."""

from __future__ import annotations

import math

import pytest

from bench.core.types import Basis, Budget, Facts, TargetAdjacency
from bench.methods.dpsgd.dp_sgd import DPSGD as DPSGDMethod
from bench.methods.linear.dp_linear import DPLinear
from bench.privacy.accounting import claims
from bench.privacy.accounting.accountants import proven
from bench.privacy.accounting.calibrate import largest_count, smallest_noise
from bench.privacy.events import conversions
from bench.privacy.events.events import DPSGD, Bypass, Gaussian, LNMax, RandomizedResponse
from helpers.epsilons import answer, digits, epsilons

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
    assert conversions.optimal_composition(2 * gamma, queries, 1e-5) == digits(optimal, 4)
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
        budget = Budget(epsilon, 1e-5, Basis.PROVEN)
        assert smallest_noise(lambda s: claims.dpsd_events(256, 200, s), budget) == digits(sigma, 2)
        assert largest_count(lambda n: [Gaussian(50.0, n)], budget) == answers


# --------------------------------------------------------------------------------------- DP-SGD and randomised response

RATE = 256 / 60000


@pytest.mark.parametrize(("steps", "rdp", "pld"), [(14_062, 2.596556, 2.381686), (14_040, 2.594363, 2.379644)])
def test_dp_sgd(steps: int, rdp: float, pld: float) -> None:
    found = epsilons("dp-sgd", "--batch", 256, "--records", 60000, "--sigma", 1.1, "--steps", steps)
    assert found["rdp"] == (digits(rdp), pytest.approx(8.1))
    assert found["pld"][0] == digits(pld)
    assert claims.dp_sgd_improved(RATE, 1.1, steps, 1e-5).epsilon == digits(rdp)


@pytest.mark.parametrize(
    ("records", "batch", "sigma", "epochs"),
    [(60_000, 512, 1.23, 40), (60_000, 2048, 2.15, 40), (50_000, 1024, 1.54, 30)],
)
def test_dp_sgd_claims_what_tramer_and_boneh_print(records: int, batch: int, sigma: float, epochs: int) -> None:
    """Epsilon 3 in each row of their appendix C, with whole batches and the conversion of that time; now it is 2.6."""
    steps = epochs * (records // batch)
    assert claims.dp_sgd(batch / records, sigma, steps, 1e-5).epsilon == pytest.approx(3.0, abs=0.02)
    assert claims.dp_sgd_improved(batch / records, sigma, steps, 1e-5).epsilon == pytest.approx(2.58, abs=0.02)


def test_dp_sgd_at_the_rounded_steps_of_the_method() -> None:
    assert claims.dp_sgd(512 / 60_000, 1.23, 4688, 1e-5).epsilon == pytest.approx(2.995, abs=5e-4)


def test_dp_sgds_paper_setting_is_calibrated_to_the_papers_noise() -> None:
    facts = Facts("mnist", 60_000, 0, 10_000, 10, (1, 28, 28), public_benchmark=True)
    found = DPSGDMethod(DPSGDMethod.Config(), facts).calibrate(Budget(3.0, 1e-5))
    assert found.noise_multiplier == pytest.approx(1.23, abs=0.005)
    assert DPSGDMethod(found, facts).claimed(1e-5).epsilon == pytest.approx(3.0, abs=1e-3)
    # De et al. convert Renyi divergences as it is done today, and so do the heads after them.
    head = DPLinear.Config(noise_multiplier=1.23, epochs=40.0, batch_size=512)
    assert DPLinear(head, facts).claimed(1e-5).epsilon == pytest.approx(2.58, abs=0.005)


@pytest.mark.parametrize(
    ("epsilon", "rdp", "pld"),
    [(1.0, 2.178421, 2.025146), pytest.param(10.0, 0.632985, 0.612975, marks=pytest.mark.slow)],
)
def test_dp_sgd_calibration(epsilon: float, rdp: float, pld: float) -> None:
    # The figures were found by bisection to 1e-6, so their last digit may be one too large.
    budget = Budget(epsilon, 1e-5, Basis.PROVEN, TargetAdjacency.OWN)
    for name, sigma in (("rdp", rdp), ("pld", pld)):
        found = smallest_noise(lambda s: [DPSGD(RATE, s, 14_062)], budget, sound=name, tolerance=1e-6)
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
    assert conversions.optimal_composition(0.1, 1000, delta) == digits(epsilon)
