"""Each mechanism against its stated epsilon: draws on adjacent inputs, with correct noise and with half of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.accounting.accountants import proven
from bench.privacy.events import events
from bench.privacy.events.conversions import exact_gaussian_epsilon
from bench.privacy.mechanisms import mechanisms, responses
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import Law, Noise, SecureNoise, SeededNoise, Silence
from helpers.audits import half_noise, lower_bound
from helpers.draws import DELTA, DRAWS, best
from helpers.ledgers import seeded_ledger

Bound = tuple[float, float]
"""The epsilon that an audit refutes, and the one that is stated."""


def sources(kind: Callable[[np.random.Generator], Noise]) -> tuple[Noise, Noise]:
    return kind(np.random.default_rng(1)), kind(np.random.default_rng(2))


def gaussian_cuts(mu: float, epsilon: float) -> tuple[float, float]:
    """Return two sets fixed beforehand, as thresholds on N(mu, 1) against N(0, 1). Above the first, the likelihood
    ratio exceeds e^epsilon, which makes it the best set for correct noise. The second is the mean of the first
    distribution, where too little noise shows most.
    """
    return epsilon / mu + mu / 2, mu


def lnmax_bound(noise: tuple[Noise, Noise], draws: int = DRAWS) -> Bound:
    gamma = 0.5
    # A changed vote moves the gap by 2. The loser's probability reveals most.
    near, far = np.tile([2.0, 0.0], (draws, 1)), np.tile([3.0, -1.0], (draws, 1))
    first, second = (mechanisms.lnmax(v, gamma, n) == 1 for v, n in zip((near, far), noise, strict=True))
    return lower_bound(first, second), events.LNMax(gamma, 1).pure_epsilon()


def gnmax_bound(noise: tuple[Noise, Noise], draws: int = DRAWS) -> Bound:
    sigma = 2.0
    mu = math.sqrt(2) / sigma
    stated = exact_gaussian_epsilon(mu, DELTA)
    sets = []
    for cut in gaussian_cuts(mu, stated):
        # The gap of the counts is N(gap, 2 sigma^2); the adjacent gap is larger by 2, and class 0 wins if it is > 0.
        gap = cut * math.sqrt(2) * sigma
        near, far = np.tile([0.0, gap], (draws, 1)), np.tile([1.0, gap - 1.0], (draws, 1))
        sets.append([mechanisms.gnmax(v, sigma, n) == 0 for v, n in zip((far, near), noise, strict=True)])
    return best(sets, DELTA), stated


def threshold_bound(noise: tuple[Noise, Noise], draws: int = DRAWS) -> Bound:
    sigma1 = 1.5
    stated = exact_gaussian_epsilon(1 / sigma1, DELTA)
    sets = []
    for cut in gaussian_cuts(1 / sigma1, stated):
        answered = []
        for top, source in zip((11.0, 10.0), noise, strict=True):
            votes = np.tile([top, 0.0], (draws, 1))
            labels = mechanisms.confident_gnmax(votes, 10.0 + cut * sigma1, sigma1, 0.001, draws, source)
            answered.append(labels != mechanisms.UNANSWERED)
        sets.append(answered)
    return best(sets, DELTA), stated


def confident_answer_bound(noise: tuple[Noise, Noise], draws: int = DRAWS) -> Bound:
    sigma2 = 2.0
    mu = math.sqrt(2) / sigma2
    stated = exact_gaussian_epsilon(mu, DELTA)
    sets = []
    for cut in gaussian_cuts(mu, stated):
        gap = cut * math.sqrt(2) * sigma2
        near, far = np.tile([0.0, gap], (draws, 1)), np.tile([1.0, gap - 1.0], (draws, 1))
        sets.append(
            [
                mechanisms.confident_gnmax(v, -1e9, 1.0, sigma2, draws, n) == 0
                for v, n in zip((far, near), noise, strict=True)
            ]
        )
    return best(sets, DELTA), stated


def laplace_bound(noise: tuple[Noise, Noise], draws: int = DRAWS) -> Bound:
    multiplier = 1.25
    one, zero = (
        mechanisms.laplace(np.full(draws, value), 3.0, multiplier, n)
        for value, n in zip((3.0, 0.0), noise, strict=True)
    )
    return lower_bound(one > 3.0, zero > 3.0), events.Laplace(multiplier).pure_epsilon()


def gaussian_bound(noise: tuple[Noise, Noise], draws: int = DRAWS) -> Bound:
    multiplier, sensitivity = 1.5, 3.0
    stated = exact_gaussian_epsilon(1 / multiplier, DELTA)
    cuts = [cut * multiplier * sensitivity for cut in gaussian_cuts(1 / multiplier, stated)]
    one, zero = (
        mechanisms.gaussian(np.full(draws, value), sensitivity, multiplier, n)
        for value, n in zip((sensitivity, 0.0), noise, strict=True)
    )
    return best([(one > cut, zero > cut) for cut in cuts], DELTA), stated


def response_bound(noise: tuple[Noise, Noise], draws: int = DRAWS) -> Bound:
    epsilon = 1.0
    first, second = (
        responses.randomized_response(np.full(draws, label), epsilon, 10, n) == 3
        for label, n in zip((3, 7), noise, strict=True)
    )
    return lower_bound(first, second), events.RandomizedResponse(epsilon, 10).pure_epsilon()


def top_k_bound(noise: tuple[Noise, Noise], draws: int = DRAWS) -> Bound:
    epsilon = 1.0
    candidates = np.tile([3, 5, 8], (draws, 1))
    first, second = (
        responses.top_k_randomized_response(np.full(draws, label), candidates, epsilon, 10, n) == 3
        for label, n in zip((3, 8), noise, strict=True)
    )
    return lower_bound(first, second), events.TopKRandomizedResponse(epsilon, 3, 10).pure_epsilon()


def prior_bound(noise: tuple[Noise, Noise], draws: int = DRAWS) -> Bound:
    epsilon = 1.0
    prior = np.tile([0.4, 0.1, 0.4, 0.1], (draws, 1))  # two likely classes, the worst case
    first, second = (
        responses.prior_randomized_response(np.full(draws, label), prior, epsilon, n) == 2
        for label, n in zip((2, 0), noise, strict=True)
    )
    return lower_bound(first, second), events.PriorRandomizedResponse(epsilon, 4).pure_epsilon()


def choice_bound(event: events.Event, law: Law, noise: tuple[Noise, Noise], draws: int) -> Bound:
    # The loser's probability, in scales of the noise: one unit moves the lead by epsilon.
    near, far = np.tile([1.0, 0.0], (draws, 1)), np.tile([2.0, 0.0], (draws, 1))
    first, second = (mechanisms.noisy_choice(v, 1.0, law, n) == 1 for v, n in zip((near, far), noise, strict=True))
    return lower_bound(first, second), event.pure_epsilon()


def exponential_bound(noise: tuple[Noise, Noise], draws: int = DRAWS) -> Bound:
    return choice_bound(events.Exponential(1.0), "gumbel", noise, draws)


def flip_bound(noise: tuple[Noise, Noise], draws: int = DRAWS) -> Bound:
    return choice_bound(events.PermuteAndFlip(1.0), "exponential", noise, draws)


BOUNDS = [
    lnmax_bound, gnmax_bound, threshold_bound, confident_answer_bound, laplace_bound, gaussian_bound, response_bound,
    top_k_bound, prior_bound, exponential_bound, flip_bound,
]  # fmt: skip


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda f: f.__name__)
def test_audit_of_a_million_draws_stays_below_what_is_stated(bound) -> None:
    found, stated = bound(sources(SeededNoise))
    assert found < stated
    assert found > 0.6 * stated, "the audit has no power: it would not see a fault"


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda f: f.__name__)
def test_audit_catches_half_the_noise(bound) -> None:
    found, stated = bound(sources(half_noise))
    assert found > stated


@pytest.mark.few(2)
@pytest.mark.parametrize("bound", BOUNDS, ids=lambda f: f.__name__)
def test_audit_of_secure_noise(bound) -> None:
    pytest.importorskip("opendp")
    noise = SecureNoise()
    # Each choice is drawn separately, so a few suffice.
    draws = 4_000 if bound in (exponential_bound, flip_bound) else 20_000
    found, stated = bound((noise, noise), draws=draws)
    assert 0.4 * stated < found < stated


@pytest.mark.slow
@pytest.mark.parametrize("bound", BOUNDS, ids=lambda f: f.__name__)
def test_audit_of_a_million_secure_draws(bound) -> None:
    pytest.importorskip("opendp")
    noise = SecureNoise()
    found, stated = bound((noise, noise))
    assert 0.6 * stated < found < stated


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 8.0, 30.0, 36.0, 37.0, 40.0, 100.0, 1e4])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_a_response_is_drawn_with_at_most_its_epsilon(epsilon: float, classes: int) -> None:
    """Near 1 a double has no room for the probability of another answer: from 37 on, none was ever given."""
    keep = Fraction(responses.drawn_probability(epsilon, classes))
    assert (keep * 2**53).denominator == 1, "drawn exactly"
    ratio = keep / ((1 - keep) / (classes - 1))
    assert math.log(ratio.numerator) - math.log(ratio.denominator) <= epsilon * (1 + 1e-15)
    if epsilon <= 30:
        assert float(keep) == pytest.approx(responses.keep_probability(epsilon, classes), abs=2e-15)


class FixedWords(Silence):
    """Uniform draws are the given ones, in turn."""

    def __init__(self, *words: int) -> None:
        super().__init__(np.random.default_rng(0))
        self.words = list(words)

    def uniform(self, shape: tuple[int, ...], count: int) -> np.ndarray:
        assert count == 2**53
        return np.array([self.words.pop(0) for _ in range(math.prod(shape))]).reshape(shape)


def test_a_tiny_sampling_rate_is_not_rounded_up() -> None:
    rate = 1e-20  # 2^-53 is 1.1e-16
    limit = int(rate * 2**106)
    for words, drawn in (((0, limit - 1), True), ((0, limit + 1), False), ((1,), False)):
        noise = FixedWords(*words)
        assert bool(mechanisms.poisson_sample((1,), rate, noise)[0]) is drawn
        assert not noise.words
    assert mechanisms.poisson_sample((2,), 0.5, FixedWords(2**52 - 1, 2**52)).tolist() == [True, False]


def test_top_k_response_to_a_label_outside_its_set_is_within_epsilon() -> None:
    epsilon, draws = 1.0, DRAWS
    candidates = np.tile([3, 5, 8], (draws, 1))
    source = SeededNoise(np.random.default_rng(0))
    inside = responses.top_k_randomized_response(np.full(draws, 3), candidates, epsilon, 10, source)
    outside = responses.top_k_randomized_response(np.full(draws, 0), candidates, epsilon, 10, source)
    assert set(np.unique(outside)) == {3, 5, 8}
    for answer in (3, 5, 8):
        assert lower_bound(inside == answer, outside == answer) < epsilon
        assert lower_bound(outside == answer, inside == answer) < epsilon


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0, 900.0])
def test_the_law_of_a_response_with_a_prior(epsilon: float) -> None:
    """All labels may give the same answers, the likeliest classes, with probabilities within a factor of e^epsilon."""
    generator = np.random.default_rng(0)
    prior = np.vstack([generator.dirichlet([0.3] * 5, 30), np.full((1, 5), 0.2), np.eye(5)[:1]])
    law = np.stack([responses.prior_likelihood(np.full(32, o), prior, epsilon) for o in range(5)], axis=1)
    assert law.sum(axis=1) == pytest.approx(1)
    possible = law > 0
    if epsilon < 700:  # above this, the probabilities of other answers round to 0
        assert (possible == possible[:, :, :1]).all()
        some = possible.any(axis=2)
        assert (law.max(axis=2)[some] <= law.min(axis=2)[some] * math.exp(epsilon) * (1 + 1e-12)).all()
    drawn = np.zeros((32, 5, 5))
    source = SeededNoise(generator)
    for label in range(5):
        answers = responses.prior_randomized_response(
            np.full(32 * 4000, label), np.repeat(prior, 4000, 0), epsilon, source
        )
        for row, given in enumerate(answers.reshape(32, 4000)):
            drawn[row, :, label] = np.bincount(given, minlength=5) / 4000
    assert drawn == pytest.approx(law, abs=0.05)


def test_sets_keep_the_most_labels_that_follow_the_prior() -> None:
    priors = np.array([[0.5, 0.2, 0.15, 0.15, 0.0], [0.4, 0.3, 0.1, 0.1, 0.1], [0.2] * 5, [0.9, 0.1, 0, 0, 0]])
    for epsilon in (0.5, 1.0, 3.0):
        _, sizes = responses.likely_sets(priors, epsilon)
        for prior, size in zip(priors, sizes, strict=True):
            kept = [np.sort(prior)[::-1][:k].sum() / (1 + (k - 1) * math.exp(-epsilon)) for k in range(1, 6)]
            assert size == np.argmax(kept) + 1
    assert responses.likely_sets(priors, 1.0)[1].tolist() == [2, 2, 5, 1]


def test_labels_of_other_records_cost_nothing_more() -> None:
    labels, flat = np.arange(10) % 4, np.full((5, 4), 0.25)

    def cost(*calls: tuple[np.ndarray, np.ndarray, float]) -> float:
        book = seeded_ledger(PrivacyUnit.LABEL, Adjacency.REPLACE, np.random.default_rng(0))
        for given, rows, epsilon in calls:
            book.prior_randomized_response(given, flat[: len(rows)], rows=rows, epsilon=epsilon)
        assert sum(event.as_dict()["answers"] for event in book.events) == sum(len(rows) for _, rows, _ in calls)
        return sum(event.pure_epsilon() for event in book.events)

    low, high = np.arange(5), np.arange(5, 10)
    assert cost((labels, low, 1.0), (labels, high, 1.0)) == 1
    assert cost((labels, low, 1.0), (labels, high[:2], 1.0), (labels, high[2:], 1.0)) == 1
    assert cost((labels, low, 1.0), (labels, np.arange(4, 8), 1.0)) == 2, "one label is answered twice"
    assert cost((labels, low, 1.0), (labels[::-1], high, 1.0)) == 2, "other positions may hold the same labels"
    assert cost((labels, low, 1.0), (labels, high, 0.5)) == 1.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": np.array([0, 0])}, "different positions"),
        ({"rows": np.array([0, 3])}, "0..2"),
        ({"prior": np.array([[0.5, 0.5, -0.1, 0.1]] * 2)}, "finite shares"),
        ({"prior": np.full((3, 4), 0.25)}, "finite shares"),
        ({"prior": np.full((2, 4), np.nan)}, "finite"),
    ],
)
def test_bad_priors_and_positions_are_refused(change: dict[str, np.ndarray], said: str) -> None:
    given = {"labels": np.array([0, 1, 3]), "prior": np.full((2, 4), 0.25), "rows": np.array([0, 2]), **change}
    book = seeded_ledger(PrivacyUnit.LABEL, Adjacency.REPLACE, np.random.default_rng(0))
    with pytest.raises(BenchError, match=said):
        book.prior_randomized_response(**given, epsilon=1.0)
    assert book.events == ()


def ledger(noise: Noise | None = None) -> Ledger:
    return Ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, Noisy(noise or SeededNoise(np.random.default_rng(0))))


@pytest.mark.parametrize(
    ("votes", "says"),
    [
        ([[3.0, 4.0]], "10"),
        ([[11.0, -1.0]], "negative"),
        ([[float("nan"), 10.0]], "finite"),
        ([5.0, 5.0], "queries, classes"),
    ],
)
def test_bad_votes_are_refused(votes: list[object], says: str) -> None:
    with pytest.raises(BenchError, match=says):
        ledger().noisy_max(np.asarray(votes), teachers=10, gamma=0.1)


def test_bad_parameters_are_refused() -> None:
    votes = np.array([[6.0, 4.0]])
    for gamma in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(BenchError):
            ledger().noisy_max(votes, teachers=10, gamma=gamma)


def test_confident_aggregator_stops_at_its_cap_and_is_charged_for_it() -> None:
    book = ledger()
    votes = np.tile([100.0, 0.0], (50, 1))
    labels = book.confident_noisy_max(votes, teachers=100, threshold=50, sigma1=1, sigma2=1, max_answers=7)
    assert (labels != mechanisms.UNANSWERED).sum() == 7
    (event,) = book.events
    assert (event.queries, event.max_answers) == (50, 7)
    assert (book.asked, book.answered) == (50, 7)


def test_secure_noise_is_exact_on_its_grid_and_no_dearer() -> None:
    pytest.importorskip("opendp")
    from bench.privacy.mechanisms.noise import GRANULARITY

    book = ledger(SecureNoise())
    drawn = book.gaussian(np.linspace(0, 1e4, 200), sensitivity=1, noise_multiplier=2)
    steps = drawn / SecureNoise().grid_step(2.0, 1.0, 200)
    assert np.abs(steps - np.round(steps)).max() < 1e-4
    assert np.abs(drawn - np.linspace(0, 1e4, 200)).max() < 20
    assert proven(book.events, 1e-5) == proven([events.Gaussian(2.0)], 1e-5)
    book.noisy_max(np.array([[6.0, 4.0]]), teachers=10, gamma=0.05)
    assert book.events[1].secure_granularity == GRANULARITY


def test_bypass_makes_the_proven_epsilon_infinite() -> None:
    book = ledger()
    book.noisy_max(np.array([[6.0, 4.0]]), teachers=10, gamma=0.05)
    assert math.isfinite(proven(book.events, 1e-5).epsilon)
    book.bypass("the generator saw everything")
    figure = proven(book.events, 1e-5)
    assert math.isinf(figure.epsilon)
    assert "the generator saw everything" in figure.note


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, math.nan, math.inf])
def test_a_sensitivity_that_adds_no_noise_is_refused(sensitivity: float) -> None:
    for release in (ledger().gaussian, ledger().laplace):
        with pytest.raises(BenchError, match="sensitivity"):
            release(np.array([3.14]), sensitivity=sensitivity, noise_multiplier=1.0)


def test_an_event_that_protects_less_than_the_row_states_is_refused() -> None:
    labels = np.array([0, 1])
    with pytest.raises(BenchError, match="protects one label"):
        ledger().randomized_response(labels, epsilon=1, classes=2)
    book = seeded_ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, np.random.default_rng(0))
    with pytest.raises(BenchError, match="replace"):
        book.noisy_max(np.array([[6.0, 4.0]]), teachers=10, gamma=0.1)
    weaker = seeded_ledger(PrivacyUnit.LABEL, Adjacency.REPLACE, np.random.default_rng(0))
    weaker.randomized_response(labels, epsilon=1, classes=2)
    weaker.noisy_max(np.array([[6.0, 4.0]]), teachers=10, gamma=0.1)
    assert len(weaker.events) == 2


def test_data_dependent_figures_leave_nothing_out() -> None:
    book = ledger()
    book.noisy_max(np.array([[6.0, 4.0]]), teachers=10, gamma=0.05)
    assert book.data_dependent(1e-5)
    book.gaussian(np.zeros(2), sensitivity=1, noise_multiplier=0.1)
    assert book.data_dependent(1e-5) == []
