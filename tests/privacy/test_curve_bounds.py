"""Bounds by a proven trade-off curve: published values, properties, simulated audits, and events without a curve."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special, stats

from bench.core.errors import BenchError
from bench.core.types import Adjacency
from bench.privacy.auditing import bounds, curve_bounds, one_run
from bench.privacy.auditing.curve_bounds import CurveBound, curve_family, many_run_by_curve, one_run_by_curve
from bench.privacy.events.conversions import exact_gaussian_epsilon
from bench.privacy.events.events import (
    DPSGD,
    EVENTS,
    AllocatedSteps,
    BandedSums,
    Bypass,
    ConfidentGNMax,
    Event,
    Exponential,
    FixedBatches,
    Gaussian,
    GNMax,
    Laplace,
    LNMax,
    PermuteAndFlip,
    PrintedTopK,
    RandomizedResponse,
    RepeatAndSelect,
    SampledGaussian,
    SampledGNMax,
    ShuffledEpochs,
    TopKRandomizedResponse,
    TreeSums,
)
from bench.privacy.events.label_events import PriorRandomizedResponse

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

GAUSSIAN = [Gaussian(1.0)]
ONE_RUN = [
    (1000, 100, 100, 5.5490, 1.22553),
    (1000, 100, 96, 3.5688, 0.83745),
    (1000, 100, 90, 2.4564, 0.60250),
    (1000, 100, 75, 1.0059, 0.26949),
    (1000, 100, 64, 0.2712, 0.08110),
    (1000, 500, 500, 9.9194, 1.98734),
    (1000, 1000, 600, 0.5835, 0.16385),
    (1000, 1000, 900, 3.7793, 0.88040),
    (1000, 1000, 1000, 12.3346, 2.36807),
    (500, 50, 50, 4.4425, 1.01286),
    (5000, 500, 500, 7.9807, 1.66271),
    (5000, 500, 350, 0.9453, 0.25467),
    (5000, 1500, 1429, 4.3830, 1.00116),
    (5000, 5000, 3000, 0.6183, 0.17278),
]
MANY_RUNS = [
    (100, 0, 0, 3.59),
    (500, 0, 0, 4.88),
    (500, 25, 250, 1.34),
    (1000, 0, 0, 5.36),
    (1000, 0, 500, 2.60),
    (5000, 250, 2500, 1.55),
]


def bound(events: Sequence[Event], *counts: int, **options: float) -> CurveBound:
    """Return the bound of one run (three counts) or of many (four) at delta 1e-5."""
    audit: Callable[..., CurveBound | None] = one_run_by_curve if len(counts) == 3 else many_run_by_curve
    found = audit(events, *counts, 1e-5, **options)
    assert found is not None
    return found


@pytest.mark.parametrize(("canaries", "guesses", "correct", "epsilon", "mu"), ONE_RUN)
def test_one_run_of_gaussian_noise(canaries: int, guesses: int, correct: int, epsilon: float, mu: float) -> None:
    found = bound(GAUSSIAN, canaries, guesses, correct)
    assert found.family == "gaussian"
    assert found.epsilon == pytest.approx(epsilon, abs=6e-5)
    assert found.scale == pytest.approx(mu, abs=6e-6)
    assert bound(GAUSSIAN, canaries, guesses, correct, group=2).scale == pytest.approx(mu / 2, abs=6e-6)


@pytest.mark.parametrize(("runs", "fp", "fn", "mu"), MANY_RUNS)
def test_many_runs_of_gaussian_noise(runs: int, fp: int, fn: int, mu: float) -> None:
    found, rates = bound(GAUSSIAN, fp, runs, fn, runs), bounds.many_run_epsilon(fp, runs, fn, runs, 1e-5)
    assert found.scale == pytest.approx(mu, abs=5e-3)
    assert found.scale == pytest.approx(special.ndtri(1 - rates.fpr_upper) - special.ndtri(rates.fnr_upper), abs=1e-5)
    assert found.epsilon == exact_gaussian_epsilon(found.scale, 1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("shift", "any_curve", "gaussian"),
    [(0, 0, 0), (1, 1.13346, 2.164749), (2, 2.311945, 4.7218075), (4, 4.395568, 9.133752)],
)
def test_scores_at_the_quantiles_of_normals(shift: float, any_curve: float, gaussian: float) -> None:
    # As in the tests of google-deepmind/jax_privacy: guess inclusion above a threshold, at each corner of the ROC's
    # convex hull, corrected for the number of corners.
    count = 10_000
    out = stats.norm.ppf((np.arange(count) + 0.5) / count)
    cuts = np.append(np.union1d(out, out + shift), np.inf)
    corners: list[tuple[int, int]] = []  # (included, omitted) canaries below the cut
    for x, y in zip(np.searchsorted(out + shift, cuts), np.searchsorted(out, cuts), strict=True):
        while len(corners) > 1:
            (x1, y1), (x2, y2) = corners[-2:]
            if (y2 - y1) * (x - x2) > (y - y2) * (x2 - x1):
                break
            corners.pop()
        corners.append((int(x), int(y)))
    confidence = 1 - 0.05 / len(corners)
    counts = [(2 * count, 2 * count - x - y, count - x) for x, y in corners if x + y < 2 * count]
    counts = counts[-80:]  # The best cuts are among the highest; trying all takes ten times as long.
    found = [one_run.one_run_epsilon(*guessed, 1e-6, confidence) for guessed in counts]
    assert max(found) == pytest.approx(any_curve, rel=1e-5)
    by_curve = [one_run_by_curve(GAUSSIAN, *guessed, 1e-6, confidence) for guessed in counts]
    assert max([curve.epsilon for curve in by_curve if curve] or [0]) == pytest.approx(gaussian, rel=1e-5)


@pytest.mark.few(3)
@pytest.mark.parametrize("counts", [*(row[:3] for row in ONE_RUN), (25, 500, 250, 500)])
def test_a_loss_distribution_gives_what_the_formula_gives(
    counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    formula = bound(GAUSSIAN, *counts).epsilon
    monkeypatch.setattr(curve_bounds, "curve_family", lambda events: "pld")
    found = bound(GAUSSIAN, *counts)
    assert found.family == "pld"
    assert formula - 1e-2 < found.epsilon < formula + 1e-4


def test_the_curve_of_one_laplace_release_is_that_of_its_pure_epsilon_where_a_test_is_extreme() -> None:
    found = bound([Laplace(1.0)], 25, 500, 250, 500)
    assert found.scale == pytest.approx(bounds.many_run_epsilon(25, 500, 250, 500, 0.0).epsilon, rel=2e-3)
    assert found.epsilon == pytest.approx(found.scale, rel=1e-3)


ADDED = [
    GNMax(40.0, 100),
    ConfidentGNMax(100.0, 150.0, 40.0, 200, 50),
    Gaussian(3.0, 4),
    TreeSums(4.0, 20),
    BandedSums(4.0, 20, 2, 5),
    DPSGD(0.1, 3.0, 8),
    SampledGaussian(0.1, 3.0, 8),
    SampledGNMax(0.1, 4.0, 8),
    Laplace(4.0, 3),
    Laplace(4.0, 3, grid_steps=16),
    LNMax(0.1, 10),
    FixedBatches(0.1, 6.0, 8),
    ShuffledEpochs(3.0, 2, adjacency=Adjacency.REPLACE),
]
HALVED = [
    GNMax(20.0, 100),
    ConfidentGNMax(100.0, 75.0, 20.0, 200, 50),
    Gaussian(1.5, 4),
    TreeSums(2.0, 20),
    BandedSums(2.0, 20, 2, 5),
    DPSGD(0.1, 1.5, 8),
    SampledGaussian(0.1, 1.5, 8),
    SampledGNMax(0.1, 2.0, 8),
    Laplace(2.0, 3),
    Laplace(2.0, 3, grid_steps=16),
    LNMax(0.2, 10),
    FixedBatches(0.1, 3.0, 8),
    ShuffledEpochs(1.5, 2, adjacency=Adjacency.REPLACE),
]


def test_losses_that_are_known_from_above_only_give_no_lower_bound() -> None:
    assert one_run_by_curve([AllocatedSteps(3.0, 8)], 1000, 100, 65, 1e-5) is None


@pytest.mark.few(2)
@pytest.mark.parametrize(("event", "halved"), zip(ADDED, HALVED, strict=True), ids=lambda event: event.kind)
def test_the_noise_that_a_ledger_states_does_not_matter(event: Event, halved: Event) -> None:
    whole, half = [event], [halved]
    if event.gaussian_mu() is not None:  # with other noise, so that it is scaled rather than replaced by one mu
        whole, half = [event, Laplace(4.0)], [halved, Laplace(2.0)]
    first, second = bound(whole, 1000, 100, 65), bound(half, 1000, 100, 65)
    assert first.family == second.family == "pld"
    assert first.epsilon > 0.2
    assert second.epsilon == pytest.approx(first.epsilon, rel=5e-3)
    assert second.scale == pytest.approx(first.scale / 2, rel=5e-3)


def test_which_curve_is_proven() -> None:
    response = RandomizedResponse(1.0, 10)
    top = TopKRandomizedResponse(1.0, 3, 10)
    printed = PrintedTopK("as printed", epsilon=1.0, k=3, classes=10, answers=5)
    tuned = RepeatAndSelect(((Gaussian(3.0),),), 10.0)
    discrete = Gaussian(1.0, exact=True), GNMax(40.0, 1, exact=True)
    prior = PriorRandomizedResponse(1.0, 10)
    choices = Exponential(1.0), PermuteAndFlip(1.0)
    for event in (response, top, printed, prior, tuned, Bypass("raw images"), *choices, *discrete):
        assert curve_family([event]) is None
        assert curve_family([Gaussian(1.0), event]) is None
        assert one_run_by_curve([event], 1000, 100, 100, 1e-5) is None
        assert many_run_by_curve([event], 0, 500, 0, 500, 1e-5) is None
    assert curve_family([]) is None
    assert curve_family([DPSGD(1.0, 2.0, 5), SampledGaussian(1.0, 2.0)]) == "gaussian"
    assert curve_family([Gaussian(1.0), GNMax(40.0, 100)]) == "gaussian"
    assert curve_family([LNMax(0.1, 10), GNMax(40.0, 100)]) == "pld"
    # Decide for each new kind of event.
    others = response, top, printed, prior, tuned, Bypass("why"), *choices, AllocatedSteps(3.0, 8)
    decided = {type(event) for event in (*ADDED, *others)}
    assert {event for event in EVENTS.values() if event.__module__.startswith("bench.")} <= decided


def test_a_gaussian_bound_is_false_for_randomised_response() -> None:
    # The reason for using no curve: correct randomised response of epsilon 1 over ten classes, 100,000 runs per side.
    runs, kept = 100_000, math.e / (math.e + 9)
    errors = (round(runs * (1 - kept) / 9), runs, round(runs * (1 - kept)), runs)
    assert bounds.many_run_epsilon(*errors, 0.0).epsilon < 1
    assert bound(GAUSSIAN, *errors).epsilon > 2.3
    assert many_run_by_curve([RandomizedResponse(1.0, 10)], *errors, 1e-5) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.data(), st.floats(0.95, 0.999), st.integers(1, 3))
def test_one_run_properties(guesses: int, data: st.DataObject, confidence: float, group: int) -> None:
    correct = data.draw(st.integers(0, guesses))
    canaries = data.draw(st.integers(guesses, 1000))
    found = bound(GAUSSIAN, canaries, guesses, correct, confidence=confidence, group=group).epsilon
    assert 0 <= found < math.inf
    # If hardly anything is refuted, theorem 5.2 of Steinke et al. is slightly better.
    assert found >= one_run.one_run_epsilon(canaries, guesses, correct, 1e-5, confidence, group) - 0.02
    stricter = (1 + confidence) / 2
    assert bound(GAUSSIAN, canaries, guesses, correct, confidence=stricter, group=group).epsilon <= found + 1e-5
    if correct:
        fewer = bound(GAUSSIAN, canaries, guesses, correct - 1, confidence=confidence, group=group)
        assert fewer.epsilon <= found + 1e-5


def gaussian(mu: float, generator: np.random.Generator, coins: Bools) -> Floats:
    """Return scores with Gaussian noise."""
    return mu * coins + generator.standard_normal(coins.shape)


def laplace(epsilon: float, generator: np.random.Generator, coins: Bools) -> Floats:
    """Return scores with Laplace noise."""
    return epsilon * coins + generator.laplace(size=coins.shape)


def sampled(mu: float, generator: np.random.Generator, coins: Bools) -> Floats:
    """Return scores with Gaussian noise, each canary sampled with rate a half."""
    return gaussian(mu, generator, coins & (generator.random(coins.shape) < 0.5))


@pytest.mark.parametrize(
    ("release", "events", "truth", "guesses", "least"),
    [
        (gaussian, GAUSSIAN, 0.0, 100, 0.01),
        (gaussian, GAUSSIAN, 1.0, 100, 0.0),
        (gaussian, GAUSSIAN, 2.0, 300, 0.0),
        (laplace, [Laplace(1.0)], 1.0, 100, 0.01),
        pytest.param(laplace, [Laplace(1.0)], 1.0, 500, 0.01, marks=pytest.mark.slow),
        pytest.param(sampled, [SampledGaussian(0.5, 1.0)], 1.0, 100, 0.0, marks=pytest.mark.slow),
    ],
)
def test_an_audit_of_one_run_is_right_in_95_of_100(
    release: Callable[[float, np.random.Generator, Bools], Floats],
    events: list[Event],
    truth: float,
    guesses: int,
    least: float,
) -> None:
    generator, canaries, audits = np.random.default_rng(11), 1000, 2000
    coins = generator.random((audits, canaries)) < 0.5
    order = release(truth, generator, coins).argsort(axis=1)
    ordered = np.take_along_axis(coins, order, axis=1)
    correct = (~ordered[:, : guesses // 2]).sum(1) + ordered[:, canaries - guesses // 2 :].sum(1)
    # More correct guesses never lower the bound, so it is false from some number of correct guesses on.
    false_from = bisect.bisect(range(guesses), False, key=lambda v: bound(events, canaries, guesses, v).scale > truth)
    assert least <= (correct >= false_from).mean() <= 0.05


@pytest.mark.parametrize(
    ("events", "truth", "rate", "audits"),
    [
        (GAUSSIAN, 1.0, float(special.ndtr(-0.5)), 400),
        (GAUSSIAN, 0.0, 0.5, 400),
        pytest.param([Laplace(1.0)], 1.0, math.exp(-0.5) / 2, 100, marks=pytest.mark.slow),
        ([Laplace(1.0)], 0.0, 0.5, 400),
    ],
)
def test_many_runs_are_right_in_95_of_100_and_near(events: list[Event], truth: float, rate: float, audits: int) -> None:
    # The threshold is halfway between the two means; `rate` is that of both errors.
    generator, runs = np.random.default_rng(5), 200
    errors = generator.binomial(runs, rate, (audits, 2))
    found = np.array([bound(events, int(a), runs, int(b), runs).scale for a, b in errors])
    assert (found > truth).mean() <= 0.05
    assert np.median(found) >= 0.5 * truth


@pytest.mark.parametrize(
    "call",
    [
        lambda: one_run_by_curve(GAUSSIAN, 10, 11, 5, 1e-5),
        lambda: one_run_by_curve(GAUSSIAN, 10, 5, 6, 1e-5),
        lambda: one_run_by_curve(GAUSSIAN, 10, 5, 5, 0.0),
        lambda: one_run_by_curve(GAUSSIAN, 10, 5, 5, 1e-5, 1.0),
        lambda: one_run_by_curve(GAUSSIAN, 10, 5, 5, 1e-5, group=0),
        lambda: many_run_by_curve(GAUSSIAN, 5, 4, 0, 4, 1e-5),
        lambda: many_run_by_curve(GAUSSIAN, 0, 4, 0, 4, 0.0),
        lambda: curve_family([Gaussian(1.0), Gaussian(1.0, adjacency=Adjacency.ADD_REMOVE)]),
    ],
)
def test_invalid_input_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(BenchError):
        call()
