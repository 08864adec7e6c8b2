"""The verdicts on printed epsilons, recomputed here."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy import optimize

from bench.privacy.accounting import accountants, claims
from bench.privacy.accounting.accountants import account
from bench.privacy.accounting.pate import pure_moments_epsilon
from bench.privacy.auditing.utility_bound import IMPLAUSIBLE, TRIES, honest_tries, probability_bound, rounded_up
from bench.privacy.events.conversions import classic_epsilon, exact_gaussian_epsilon
from bench.privacy.events.events import DPSGD, LNMax
from bench.reports.reported.numbers import Reported, Verdict
from helpers.paths import ROOT
from helpers.reported import ROWS, one


def test_what_no_epsilon_allows_is_computed() -> None:
    uniform = [0.1] * 10
    bounded = [r for r in ROWS if r.source.startswith("bench/privacy/auditing/utility_bound.py")]
    assert {r.system for r in bounded} == {"DPSD", "DPSD-T", "DPDFD"}
    assert {r.unit for r in bounded} == {"record"}
    for row in bounded:
        assert row.epsilon is not None
        assert row.delta == 1e-5
        # MNIST's classes are slightly uneven; the bound for even classes is within a tenth.
        bound = probability_bound(row.epsilon, 1e-5, row.value / 100, uniform).probability
        assert bound < IMPLAUSIBLE
        stated = re.search(r"probability at most ([0-9.e-]+); ([0-9,]+) honest tries would reach 5%", row.reason)
        assert stated
        assert float(stated[1]) == pytest.approx(bound, rel=0.1)
        tries = int(stated[2].replace(",", ""))
        assert tries == pytest.approx(honest_tries([bound]), rel=0.1)
        # A proof that nobody has read gives a condition, not a verdict.
        assert (row.verdict is Verdict.IMPOSSIBLE) == (tries > TRIES and row.system != "DPDFD")
        assert ("If its proof holds" in row.reason) == (row.system == "DPDFD")
        assert ("inferred here" in row.reason) == (row.table == "text")
    impossible = {(r.system, r.dataset, r.epsilon) for r in bounded if r.verdict is Verdict.IMPOSSIBLE}
    assert impossible == {("DPSD", "mnist", 1), ("DPSD", "fmnist", 1), ("DPSD", "cifar10", 2)}
    first = one("dpsd", "I", "DPDFD", "fmnist", 1)
    assert rounded_up(probability_bound(1, 1e-5, 0.8386, uniform).probability) in first.reason
    # With too few classes or an accuracy below a half nothing follows, so the verdict on the proof stands.
    for row in (
        one("dpsd", "I", "DPSD", "celeba-g", 1),
        one("dpsd", "fig 9", "DPSD", "mnist", 0.1),
        one("dpsd", "VI", "DPSD", "mnist", 10, "without IE"),
    ):
        assert row.verdict is Verdict.UNCLEAR


def test_figures_in_the_reasons_follow_from_the_accountants() -> None:
    dgd = one("dgd", "I", "DGD", "mnist", 1).reason
    eps0 = 1 / 20
    assert [f"{claims.dgd(eps0, q, 1e-5).epsilon:.2f}" for q in (1300, 27)] == ["11.90", "1.31"]
    assert "11.90 for the 1,300 queries" in dgd
    assert "1.31 for the 27" in dgd
    assert [f"{pure_moments_epsilon(eps0, q, 1e-5)[0]:.2f}" for q in (1300, 27)] == ["10.34", "1.28"]
    assert "gives 10.34 and 1.28" in dgd
    alone = one_of("dgd", "fig 8", "1000 queries, moments accountant").reason
    assert [f"{claims.dgd(eps0, q, 1e-5).epsilon:.2f}" for q in (400, 1000)] == ["5.80", "10.09"]
    assert "5.80 and 10.09" in alone
    assert f"{pure_moments_epsilon(eps0, 1000, 1e-5)[0]:.2f}" == "8.84"
    assert "8.84" in alone
    assert [claims.dgd_largest_count(eps0, epsilon, 1e-5) for epsilon in (10, 1)] == [986, 16]
    assert "986 and 16" in dgd
    assert claims.dgd_largest_count(eps0, 3, 1e-5) == 125
    assert "allows 125" in one("dgd", "II", "DGD", "cifar10", 3).reason
    assert proven(1 / 40, 1300, 1e-5) <= 5.78
    assert proven(1 / 40, 27, 1e-5) <= 0.65
    assert "5.78 and 0.65" in dgd

    dpsd = one("dpsd", "I", "DPSD", "celeba-g", 1).reason
    assert [f"{claims.dpsd(beta, 10, 256, 200, 100, 1e-5).epsilon:.3f}" for beta in (1e-3, 5e-3)] == ["0.046", "0.261"]
    assert "0.046 and 0.261" in dpsd
    assert min(a.epsilon for a in account(claims.dpsd_events(256, 200, 100), 1e-5)) == pytest.approx(28.84, abs=0.005)
    assert exact_gaussian_epsilon(1.84 * math.sqrt(256 * 200) / 100, 1e-5) == pytest.approx(25.72, abs=0.02)
    assert "28.84 whatever beta is (25.72 with" in " ".join(dpsd.split())
    assert exact_gaussian_epsilon(2 * math.sqrt(200) / 100, 1e-5) == pytest.approx(1.06, abs=0.005)
    assert "it costs 1.06" in dpsd
    for claim, accuracy in (
        (0.046, 0.9603),
        (0.046, 0.8397),
        (0.261, 0.9785),
        (0.261, 0.9008),
        (1.07, 0.9785),
        (1.07, 0.9008),
    ):
        assert honest_tries([probability_bound(claim, 1e-5, accuracy, [0.1] * 10).probability]) > 5 * TRIES

    pate = one("pate", "fig 4", "PATE", "mnist", 2.04, "100 queries").reason
    cost = [(100, 1e-5, "2.90"), (1000, 1e-5, "11.35"), (500, 1e-6, "8.21"), (1000, 1e-6, "12.45")]
    for queries, delta, text in cost:
        assert float(text) - 0.01 < proven(0.05, queries, delta) <= float(text)
        assert text in pate


def test_geps_step_fails_and_its_number_holds() -> None:
    """Computed as its code does: orders 2 to 32, twice the divergence of one release, the classic conversion."""
    rate, steps, delta = 1000 / 50_000, 10_000, 1e-5
    orders = np.arange(2, 32, 0.1)

    def printed(sigma: float) -> float:
        return classic_epsilon(orders, 2 * DPSGD(rate, sigma, steps).rdp(orders), delta)[0]

    gep = one("dgd", "II", "GEP", "cifar10", 5)
    assert gep.verdict is Verdict.HOLDS
    assert "to cost 5.00 and 8.00, by the classic conversion, costs 4.26 and 7.31 by PLD" in gep.reason
    assert "(5.18 and 8.65 by the classic conversion)" in gep.reason
    for claim, classic, pld in ((5.0, "5.18", 4.26), (8.0, "8.65", 7.31)):
        sigma = optimize.brentq(lambda noise, claim=claim: printed(noise) - claim, 1.5, 12.0, xtol=1e-6)
        together = DPSGD(rate, sigma / math.sqrt(2), steps)
        assert f"{classic_epsilon(orders, together.rdp(orders), delta)[0]:.2f}" == classic
        figure = accountants.pld([together], delta)
        assert figure is not None
        assert figure.epsilon == pytest.approx(pld, abs=0.005)
        assert figure.epsilon < claim


def test_spectral_dps_factor_and_gs_wgans_epsilon() -> None:
    assert round(math.sqrt(250)) == 16
    assert "16 times too small at batch 250" in next(r for r in ROWS if r.system == "Spectral-DP").code_reason
    # 32 rows with noise of 1.07 times one row's sensitivity share their sampled discriminator.
    noise = 1.07 / math.sqrt(32)
    assert noise == pytest.approx(0.189, abs=5e-4)
    one = from_gaussian_mechanism(noise, sampling_prob=1e-3, value_discretization_interval=0.1)
    assert one.self_compose(20_000).get_epsilon_for_delta(1e-5) == pytest.approx(330, abs=1)


def test_both_parts_of_a_verdict_are_told() -> None:
    for row in ROWS:
        assert (row.verdicts == "no privacy") == (row.verdict is Verdict.NONE)
        told = row.code_verdict not in (Verdict.NOT_FOUND, Verdict.NOT_READ)
        assert bool(row.code_reason and row.code_source) == told or row.verdict is Verdict.NONE
        assert not (row.holds and row.refuted)
    found = {(r.system, r.dataset): (r.verdict, r.code_verdict) for r in ROWS if r.measure == "accuracy"}
    # The same standard for a sound description with different code and for inferred claims.
    assert found["Spectral-DP", "mnist"] == (Verdict.SOUND, Verdict.UNSOUND)
    assert found["DPSH", "celeba-g"] == found["RGP", "cifar10"] == (Verdict.SOUND, Verdict.UNCLEAR)
    assert found["DPSH", "mnist"] == (Verdict.SOUND, Verdict.HOLDS)
    assert found["G-PATE", "celeba-g"] == found["G-PATE", "mnist"] == (Verdict.UNCLEAR, Verdict.UNCLEAR)
    assert found["DPDFD", "celeba-g"] == (Verdict.UNCLEAR, Verdict.UNCLEAR)
    assert found["DPSD(L)", "mnist"] == (Verdict.UNCLEAR, Verdict.NOT_FOUND)


def test_files_of_this_project_that_a_verdict_names_exist() -> None:
    sources = {source for r in ROWS for source in (r.source, r.code_source) if source}
    named = {path for source in sources for path in re.findall(r"(?<![\w/])(?:bench|methods|docs)/[\w/]+\.\w+", source)}
    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []


def test_zcdps_figure_is_the_rho_of_its_code() -> None:
    rho = 0.78125
    assert rho + 2 * math.sqrt(rho * math.log(1e5)) == pytest.approx(
        one("dgd", "II", "zCDP", "cifar10", 6.78).epsilon, abs=0.005
    )


def one_of(paper: str, table: str, column: str) -> Reported:
    return next(r for r in ROWS if (r.paper, r.table, r.column) == (paper, table, column))


def proven(gamma: float, queries: int, delta: float) -> float:
    return min(a.epsilon for a in account([LNMax(gamma, queries)], delta) if a.sound)


def test_a_public_source_that_holds_the_private_records_protects_nobody() -> None:
    verdicts = {(r.dataset, r.method): r.verdict for r in ROWS if r.system == "TrPATE" and r.measure == "accuracy"}
    assert verdicts == {
        ("cifar10", "trpate"): Verdict.SOUND,
        ("stl10", "trpate"): Verdict.UNCLEAR,
        ("movie-review", "trpate"): Verdict.UNSOUND,
        ("movie-review", "trpate-bayes"): Verdict.UNSOUND,
    }
    assert {r.method for r in ROWS if r.system == "PATE" and r.table == "5"} == {"pate-bayes"}
