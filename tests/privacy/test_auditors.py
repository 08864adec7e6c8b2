"""Audits of the auditors: on correct mechanisms of known epsilon they rarely report `violated`.

Each audit returns a lower bound at 95% confidence, false if it exceeds the mechanism's epsilon at the same delta. Run
as a program, the module prints the table of docs/attacks.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from itertools import repeat

import numpy as np
import pytest
from scipy import optimize, special, stats

from bench.core.errors import BenchError
from bench.evaluation.audit import mechanism_audit
from bench.evaluation.audit.guesses import many_run_errors
from bench.evaluation.audit.mechanism_audit import audit_mechanism
from bench.evaluation.audit.release_score import Channels
from bench.privacy.accounting.accountants import proven
from bench.privacy.auditing.bounds import clopper_pearson, many_run_epsilon
from bench.privacy.auditing.compared import Comparison, GaussianVectors, LaplaceVectors
from bench.privacy.auditing.curve_bounds import many_run_by_curve, one_run_by_curve
from bench.privacy.auditing.gaussian_run import gaussian_run_epsilon
from bench.privacy.auditing.loss_bound import best_tilt, refuted_by_losses
from bench.privacy.auditing.one_run import one_run_epsilon
from bench.privacy.auditing.sampled_loss import sampled_shift, shift_log_moment
from bench.privacy.auditing.transcript_loss import exact_epsilon
from bench.privacy.auditing.utility_bound import probability_bound, remark
from bench.privacy.events.base_event import Event
from bench.privacy.events.conversions import exact_gaussian_epsilon
from bench.privacy.events.events import Gaussian, GNMax, Laplace, RandomizedResponse, SampledGaussian
from bench.privacy.events.sampled_losses import sampled_gaussian_pld
from bench.privacy.mechanisms.noise import SeededNoise
from helpers.pair_audits import audited as audited_pairs

DELTA, CANARIES, GUESSES, AUDITS = 1e-5, 1_000, 100, 1_000
NOMINAL, MOST = 0.05, 0.07
NONE = 1e-9  # replaces epsilon 0 for events that need a positive number

Audit = Callable[[float, np.random.Generator], Iterator[float]]
"""Yields the bounds of independent audits of a mechanism of this epsilon."""


@functools.cache
def gaussian_mu(epsilon: float, delta: float = DELTA) -> float:
    if not epsilon:
        return 0.0
    return float(optimize.brentq(lambda mu: exact_gaussian_epsilon(mu, delta) - epsilon, 1e-6, 20, xtol=1e-13))


def one_run(epsilon: float, generator: np.random.Generator) -> Iterator[float]:
    """Randomised response to every coin, which reveals the coin with probability delta."""
    bound = functools.cache(lambda correct: one_run_epsilon(CANARIES, CANARIES, correct, DELTA))
    while True:
        yield bound(int(generator.binomial(CANARIES, DELTA + (1 - DELTA) * special.expit(epsilon))))


def one_run_curve(epsilon: float, generator: np.random.Generator) -> Iterator[float]:
    mu, half = gaussian_mu(epsilon), GUESSES // 2

    @functools.cache
    def bound(correct: int) -> float:
        found = one_run_by_curve([Gaussian(1.0)], CANARIES, GUESSES, correct, DELTA)
        assert found is not None
        return found.epsilon

    while True:
        coins = generator.random(CANARIES) < 0.5
        ordered = coins[(mu * coins + generator.normal(size=CANARIES)).argsort()]
        yield bound(int((~ordered[:half]).sum() + ordered[-half:].sum()))


def gaussian_run(group: int, epsilon: float, generator: np.random.Generator) -> Iterator[float]:
    mu = gaussian_mu(epsilon)
    while True:
        coins = 2 * generator.integers(0, 2, CANARIES) - 1
        products = mu * group / 2 * coins + generator.normal(size=CANARIES)
        yield gaussian_run_epsilon(products, coins, DELTA, group=group)


def many_runs(by_curve: bool, epsilon: float, generator: np.random.Generator) -> Iterator[float]:
    """Half of the runs set the threshold, for Laplace noise or, with the curve, for Gaussian noise."""
    mu = gaussian_mu(epsilon)
    while True:
        if by_curve:
            arms = np.array([[mu], [0.0]]) + generator.normal(size=(2, 1000))
            found = many_run_by_curve([Gaussian(1.0)], *many_run_errors(*arms, 0.5, DELTA), DELTA)
            assert found is not None
            yield found.epsilon
        else:
            arms = np.array([[epsilon], [0.0]]) + generator.laplace(size=(2, 1000))
            yield many_run_epsilon(*many_run_errors(*arms, 0.5, 0.0), 0.0).epsilon


def drawn(of: Comparison, tilt: float, generator: np.random.Generator, runs: int = 50) -> Iterator[float]:
    while True:
        ran = [of.draw(generator, tilt) for _ in range(runs)]
        yield refuted_by_losses([run.loss for run in ran], [run.log_weight for run in ran], DELTA)


def gaussian_losses(epsilon: float, generator: np.random.Generator) -> Iterator[float]:
    mu = gaussian_mu(epsilon)
    tilt = best_tilt(lambda tilt: tilt * (tilt + 1) * mu**2 / 2, DELTA)
    return drawn(GaussianVectors(np.array([mu]), np.zeros(1), 1.0), tilt, generator)


def laplace_losses(epsilon: float, generator: np.random.Generator) -> Iterator[float]:
    # At delta the epsilon of Laplace noise of scale 1 at distance d is d + 2 ln(1 - delta) (arXiv:1808.10410).
    away = epsilon - 2 * math.log1p(-DELTA) if epsilon else 0.0
    return drawn(LaplaceVectors(np.array([away]), np.zeros(1), 1.0), 10.0, generator)


RATE, STEPS = 0.2, 4
DISTANCES = {0.0: 0.0, 1.0: 0.467908, 4.0: 1.059205, 8.0: 1.549262}
"""Of a sampled record's contribution in deviations of the noise, by epsilon."""


def sampled_losses(epsilon: float, generator: np.random.Generator) -> Iterator[float]:
    """Steps of DP-SGD on Poisson samples; a record is present or absent."""
    distance = DISTANCES[epsilon]
    if distance:
        pld = sampled_gaussian_pld(1 / distance, RATE, 1e-3).self_compose(STEPS)
        assert pld._pmf_remove.get_epsilon_for_delta(DELTA) == pytest.approx(epsilon, rel=1e-3)
    tilt = best_tilt(lambda tilt: shift_log_moment(RATE, [distance] * STEPS, tilt, True), DELTA) if distance else 0.0
    while True:
        steps = [sampled_shift(RATE, distance, generator, tilt, True)[1:] for _ in range(20 * STEPS)]
        yield refuted_by_losses(*np.array(steps).reshape(20, STEPS, 2).sum(axis=1).T, DELTA)


def mechanism(event_of: Callable[[float], Event], delta: float, epsilon: float, generator: np.random.Generator):
    event = event_of(epsilon)
    kept = functools.cache(lambda events, at: proven(list(events), at))
    while True:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mechanism_audit, "proven", lambda events, at: kept(tuple(events), at))
            found = audit_mechanism(event, SeededNoise(generator), 2_000, delta, power=False)
        assert found.exact == pytest.approx(epsilon, rel=1e-3, abs=1e-6)
        # Relative to the epsilon proven for the event, as in the verdict.
        yield found.epsilon * epsilon / found.exact if epsilon else found.epsilon


def releases(epsilon: float, generator: np.random.Generator) -> Iterator[float]:
    """The release instrument of pair audits, including the choice of pair, score and threshold, and the early look. A
    run returns Gaussian noise, shifted for one of the sets, and a channel of pure chance.
    """
    mu = gaussian_mu(epsilon)

    def give(pair: str, side: int, seed: int, *, silent: bool) -> Channels:
        drawn = generator.normal(size=6).astype(np.float32)
        drawn[0] += mu * side
        return {"logits": drawn[:3], "weights": drawn[3:]}

    while True:
        (bound,) = audited_pairs(give, target=epsilon / 2, power=False, releases=100)[0].bounds
        yield bound.epsilon


def gnmax(epsilon: float) -> GNMax:
    return GNMax(math.sqrt(2) / gaussian_mu(epsilon, 0.01) if epsilon else 1e6, 1)


SAMPLED = {0.0: 1e6, 1.0: 1.242180, 4.0: 0.553595, 8.0: 0.363575}
"""Noise multipliers at rate 1/2 by epsilon at delta 0.01; the audit states what they cost."""
AUDITORS: dict[str, Audit] = {
    "one run, randomised response": one_run,
    "one run by curve, Gaussian": one_run_curve,
    "one Gaussian release, record present or absent": functools.partial(gaussian_run, 2),
    "one Gaussian release, record replaced": functools.partial(gaussian_run, 1),
    "many runs, Laplace": functools.partial(many_runs, False),
    "many runs by curve, Gaussian": functools.partial(many_runs, True),
    "release of pairs, Gaussian": releases,
    "transcript, Gaussian": gaussian_losses,
    "transcript, Laplace": laplace_losses,
    "transcript, DP-SGD": sampled_losses,
    "mechanism, randomised response": functools.partial(mechanism, lambda e: RandomizedResponse(e or NONE, 10), 0.0),
    "mechanism, Laplace": functools.partial(mechanism, lambda e: Laplace(1 / (e or NONE)), 0.0),
    "mechanism, noisy votes": functools.partial(mechanism, gnmax, 0.01),
    "mechanism, Gaussian": functools.partial(
        mechanism, lambda e: Gaussian(1 / gaussian_mu(e) if e else 1e6), DELTA
    ),
    "mechanism, sampled Gaussian": functools.partial(mechanism, lambda e: SampledGaussian(0.5, SAMPLED[e]), 0.01),
}  # fmt: skip
LEAST = {1.0: 0.57, 2.0: 0.75, 4.0: 0.85, 8.0: 0.9}
"""The least median of the audited over the true epsilon, of one Gaussian release."""


def enough(name: str) -> int:
    """Return how many audits distinguish an error rate of 7% from this auditor's; an exact auditor has 5%."""
    return 10 * AUDITS if name.startswith("one Gaussian release") else AUDITS


def audited(name: str, epsilon: float, audits: int) -> tuple[int, float]:
    """Return the number of false bounds of `audits`, and their median."""
    generator = np.random.default_rng([*name.encode(), int(epsilon)])
    found = np.array([bound for bound, _ in zip(AUDITORS[name](epsilon, generator), repeat(0, audits), strict=False)])
    return int((found > max(epsilon, 1e-6) * (1 + 1e-6)).sum()), float(np.median(found))


@pytest.mark.few(4)
@pytest.mark.parametrize("name", [name for name in AUDITORS if name != "mechanism, sampled Gaussian"])
def test_a_few_audits_of_correct_mechanisms_are_not_false_more_often_than_chance_explains(name: str) -> None:
    audits = 20 if name == "release of pairs, Gaussian" else 40
    for epsilon in (0.0, 1.0, 4.0):
        false, _ = audited(name, epsilon, audits)
        assert stats.binom.sf(false - 1, audits, NOMINAL) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("name", AUDITORS)
def test_audits_of_correct_mechanisms_are_false_in_at_most_7_of_100(name: str, epsilon: float) -> None:
    """By the upper 95% limit of Clopper and Pearson."""
    false, _ = audited(name, epsilon, enough(name))
    assert clopper_pearson(false, enough(name), 0.9)[1] <= MOST


@pytest.mark.parametrize("epsilon", LEAST)
@pytest.mark.parametrize("group", ["present or absent", "replaced"])
def test_one_gaussian_release_shows_most_of_its_epsilon(group: str, epsilon: float) -> None:
    _, median = audited(f"one Gaussian release, record {group}", epsilon, 200)
    assert median >= LEAST[epsilon] * epsilon


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_exact_epsilons_of_transcripts_are_not_above_the_truth(epsilon: float) -> None:
    gaussian = exact_epsilon(GaussianVectors(np.array([gaussian_mu(epsilon)]), np.zeros(1), 1.0), DELTA)
    away = epsilon - 2 * math.log1p(-DELTA)
    laplace = exact_epsilon(LaplaceVectors(np.array([away]), np.zeros(1), 1.0), DELTA)
    for found in (gaussian, laplace):
        assert found is not None
        assert 0.99 * epsilon < found <= epsilon * (1 + 1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0, 8.0])
def test_the_best_of_a_hundred_honest_runs_is_hardly_ever_called_impossible(epsilon: float) -> None:
    """Randomised response over all permutations of the classes gains most from epsilon."""
    generator, names = np.random.default_rng(int(epsilon)), float(math.factorial(10))
    lucky = generator.binomial(100, math.exp(epsilon) / (math.exp(epsilon) + names - 1), 10 * AUDITS) > 0
    marked = bool(remark([probability_bound(epsilon, DELTA, 1.0, [0.1] * 10).probability]))
    assert clopper_pearson(int((lucky & marked).sum()), len(lucky), 0.9)[1] <= MOST


def test_a_false_claim_is_refuted_by_one_gaussian_release() -> None:
    generator = np.random.default_rng(0)
    for claimed in (1.0, 4.0):
        bounds = gaussian_run(2, 2 * claimed, generator)
        assert all(next(bounds) > claimed for _ in range(20))


def test_one_gaussian_release_without_noise_and_without_signal() -> None:
    coins = np.array([1, -1, -1, 1])
    assert gaussian_run_epsilon(coins, coins, DELTA) == math.inf
    assert gaussian_run_epsilon(-coins, coins, DELTA) == 0
    assert gaussian_run_epsilon(np.zeros(4), coins, DELTA) == 0


@pytest.mark.parametrize(
    ("products", "coins", "group", "says"),
    [
        ([1.0, 2.0], [1, -1, 1], 1, "must both be"),
        ([1.0], [1], 1, "at least 2"),
        ([1.0, 2.0], [1, 0], 1, "1 or -1"),
        ([1.0, math.nan], [1, -1], 1, "finite"),
        ([1.0, 2.0], [1, -1], 0, "at least one"),
    ],
)
def test_invalid_input_is_refused(products: list[float], coins: list[int], group: int, says: str) -> None:
    with pytest.raises(BenchError, match=says):
        gaussian_run_epsilon(products, coins, DELTA, group=group)


if __name__ == "__main__":
    columns = [0.0, 1.0, 4.0, 8.0]
    for auditor in AUDITORS:
        rows = [audited(auditor, epsilon, enough(auditor)) for epsilon in columns]
        cells = [f"{100 * false / enough(auditor):.1f}" for false, _ in rows]
        cells += [f"{median / epsilon:.2f}" for (_, median), epsilon in zip(rows, columns, strict=True) if epsilon]
        print(f"| {auditor} | {' | '.join(cells)} |", flush=True)
