"""Events of single mechanisms, for given noise or a target epsilon, and with votes if given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from bench.core.errors import BenchError
from bench.core.lazy import lazy_modules
from bench.core.lazy_libraries import numpy as np
from bench.core.types import Adjacency, Basis, Budget, Law, Sampling, TargetAdjacency
from bench.privacy.accounting import described as shared
from bench.privacy.accounting.described import Described, Option, give_one, sampling_rate_of, steps_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from bench.privacy.accounting import (
        accountants,
        calibrate,
        data_dependent,
        pate,
        selected_orders,
        smooth_sensitivity,
        worst_batches,
    )
    from bench.privacy.events import batch_events, events
else:
    globals().update(lazy_modules(__file__))

E = TypeVar("E", bound="events.Event")
Facts = dict[str, float | str]

Queries = Annotated[int | None, Option("Number of answered queries, where there is no --votes.")]
MostQueries = Annotated[float | None, Option("Instead: the largest number of queries at this target epsilon.")]
_MOMENT = "Largest moment that is searched: by default 64, and 8 for the figure as published."
Moment = Annotated[int | None, Option(_MOMENT)]
Secure = Annotated[int | None, Option("Exact discrete noise on this fraction of a vote (for instance 1024).")]
Sigma = Annotated[float, Option("Standard deviation of the Gaussian noise on every count.")]
Threshold = Annotated[float, Option("The count that the noisy top count must reach.")]
Sigma1 = Annotated[float, Option("Noise on the top count, paid on every query.")]
Sigma2 = Annotated[float, Option("Noise on every count of an answered query.")]
MaxAnswers = Annotated[int | None, Option("The run stops after N answers; by default all queries may be answered.")]
_PANEL = "Sanitised release"
_BETA = "Smoothing of the sensitivity, below 1 / (2 order); default by order."
_ORDER = "Renyi order of the sanitised release, chosen without the votes; default the data-independent best."
Sanitise = Annotated[bool, Option("Add the release sanitised by smooth sensitivity.", panel=_PANEL)]
Beta = Annotated[float | None, Option(_BETA, panel=_PANEL)]
SigmaSS = Annotated[float | None, Option("Noise of the sanitised release; default by order.", panel=_PANEL)]
Order = Annotated[float | None, Option(_ORDER, panel=_PANEL)]
L1Noise = Annotated[float, Option("Scale of the noise over the L1 sensitivity.")]
L2Noise = Annotated[float, Option("Standard deviation over the L2 sensitivity.", "sigma")]
Count = Annotated[int, Option("Number of releases.")]
StepNoise = Annotated[float, Option("Standard deviation over the L2 sensitivity of a step's values.", "sigma")]
SumSteps = Annotated[int, Option("Number of steps.")]
SumRuns = Annotated[int, Option("Number of runs over all steps.")]
Bands = Annotated[int, Option("Number of bands, at most the separation.")]
Separation = Annotated[int, Option("A unit takes part in at most one of any N consecutive steps.")]
Choices = Annotated[int, Option("Number of choices.")]
SampledQuery = Annotated[float, Option("Probability that a record is in the sample of a query.")]
SampledSum = Annotated[float, Option("Probability that a record is in the sample of a sum.")]
SampledQueries = Annotated[int, Option("Number of queries.")]
NormNoise = Annotated[float, Option("Standard deviation over a record's largest L2 norm.", "sigma")]
Pure = Annotated[float, Option("Pure epsilon of one answer.")]
SetSize = Annotated[int, Option("Size of the set, chosen without the private label.")]
Classes = Annotated[int, Option("Number of classes.")]
Answers = Annotated[int, Option("How often the same label is answered.")]
Target = Annotated[float | None, Option("Instead of --sigma: the least noise within this target epsilon.")]
Noise = Annotated[float | None, shared.Multiplier]
_OWN = "Neighbours of the target: replace-one, or DP-SGD's own add-remove."
Neighbours = Annotated[TargetAdjacency, Option(_OWN)]
TrialNoise = Annotated[float | None, Option("Noise of one trial over the sensitivity.", "noise_multiplier")]
TunedTarget = Annotated[
    float | None, Option("Instead of --sigma: the least noise within this epsilon, tuning included.")
]
Trials = Annotated[float, Option("Mean of the secret random number of trials.")]
LawOf = Annotated[Law, Option("The law of the number of trials.")]


def _on_queries(
    make: Callable[[int], E], queries: int | None, votes: ArrayLike | None, target: float | None, delta: float
) -> tuple[E, Any]:
    """Return `make`'s event for the number of queries, and their votes if given."""
    make(1)
    give_one(queries=queries, votes=votes, target_epsilon=target)
    if votes is not None:
        counts = pate.check_votes(votes)
        return make(len(counts)), counts
    if target is not None:
        queries = calibrate.largest_count(lambda number: [make(number)], Budget(target, delta, Basis.PROVEN))
    assert queries is not None
    return make(queries), None


def lnmax(
    gamma: shared.Gamma, queries: Queries = None, votes: shared.Votes = None, target_epsilon: MostQueries = None,
    largest_moment: Moment = None, secure: Secure = None, *, delta: float,
) -> Described:  # fmt: skip
    """Arg max of votes with Laplace noise (PATE 2017)."""
    event, counts = _on_queries(lambda n: events.LNMax(gamma, n, secure), queries, votes, target_epsilon, delta)
    limited = None if largest_moment is None else accountants.pate_moments([event], delta, largest_moment)
    rows = [] if limited is None else [limited]
    if counts is None:
        return Described([event], rows=rows)
    if secure is not None:
        left = "the data-dependent accountants, whose analysis is of continuous noise"
        return Described([event], rows=rows, facts={"left_out": left})
    return Described([event], rows=[*data_dependent.lnmax_rows(counts, gamma, delta, largest_moment), *rows])


def gnmax(
    sigma: Sigma, queries: Queries = None, votes: shared.Votes = None, target_epsilon: MostQueries = None,
    sanitise: Sanitise = False, beta: Beta = None, sigma_ss: SigmaSS = None, order: Order = None, *, delta: float,
) -> Described:  # fmt: skip
    """Arg max of votes with Gaussian noise (PATE 2018)."""
    event, counts = _on_queries(lambda n: events.GNMax(sigma, n), queries, votes, target_epsilon, delta)
    rows = [] if counts is None else data_dependent.gnmax_rows(counts, sigma, delta)
    return Described([event], rows=rows + (_sanitised(counts, event, delta, order, beta, sigma_ss) if sanitise else []))


def confident_gnmax(
    threshold: Threshold, sigma1: Sigma1, sigma2: Sigma2, queries: Queries = None, max_answers: MaxAnswers = None,
    votes: shared.Votes = None, sanitise: Sanitise = False, beta: Beta = None, sigma_ss: SigmaSS = None,
    order: Order = None, *, delta: float,
) -> Described:  # fmt: skip
    """GNMax, only on queries where enough teachers agree (PATE 2018)."""

    def make(n: int) -> events.ConfidentGNMax:
        return events.ConfidentGNMax(threshold, sigma1, sigma2, n, n)

    event, counts = _on_queries(make, queries, votes, None, delta)
    event = event if max_answers is None else replace(event, max_answers=max_answers)
    facts, rows = Facts(), _sanitised(counts, event, delta, order, beta, sigma_ss) if sanitise else []
    if counts is not None:
        facts["expected_answered"] = float(np.exp(pate.log_answered(counts, threshold, sigma1)).sum())
        rows = data_dependent.confident_rows(counts, threshold, sigma1, sigma2, delta) + rows
    return Described([event], rows=rows, facts=facts)


def _sanitised(
    counts: Any, event: events.GNMax | events.ConfidentGNMax, delta: float,
    order: float | None, beta: float | None, sigma_ss: float | None,
) -> list[accountants.Accounted]:  # fmt: skip
    if counts is None:
        raise BenchError("the sanitised figure depends on votes: give them by --votes.")
    best = accountants.pate_2018([event], delta)
    order = order if order is not None or best is None else best.order
    assert order is not None
    found = smooth_sensitivity.sanitise(counts, event, delta, order, beta, sigma_ss)
    return data_dependent.sanitised_rows(found, np.random.default_rng(), expected=not isinstance(event, events.GNMax))


def laplace(noise_multiplier: L1Noise, count: Count = 1) -> Described:
    """Laplace noise on values of bounded L1 sensitivity."""
    return Described([events.Laplace(noise_multiplier, count)])


def gaussian(noise_multiplier: L2Noise, count: Count = 1) -> Described:
    """Gaussian noise on values of bounded L2 sensitivity."""
    return Described([events.Gaussian(noise_multiplier, count)])


def tree_sums(noise_multiplier: StepNoise, steps: SumSteps, count: SumRuns = 1) -> Described:
    """Running sums over steps by a binary tree."""
    return Described([events.TreeSums(noise_multiplier, steps, count)])


def banded_sums(
    noise_multiplier: StepNoise, steps: SumSteps, bands: Bands, separation: Separation, count: SumRuns = 1
) -> Described:
    """Running sums over steps by a banded square root, for units that take part again after some steps."""
    event = events.BandedSums(noise_multiplier, steps, bands, separation, count)
    return Described([event], facts={"squared_sensitivity": event.squared_sensitivity})


def exponential(epsilon: Pure, count: Choices = 1) -> Described:
    """The exponential mechanism: chooses a candidate by its score."""
    return Described([events.Exponential(epsilon, count)])


def permute_and_flip(epsilon: Pure, count: Choices = 1) -> Described:
    """Report-noisy-max with exponential noise: chooses a candidate by its score."""
    return Described([events.PermuteAndFlip(epsilon, count)])


def sampled_gnmax(sigma: Sigma, sampling_rate: SampledQuery, queries: SampledQueries) -> Described:
    """Arg max of the votes of the nearest sampled records, with Gaussian noise (Private-kNN)."""
    return Described([events.SampledGNMax(sampling_rate, sigma, queries)])


def sampled_gaussian(noise_multiplier: NormNoise, sampling_rate: SampledSum, count: Count = 1) -> Described:
    """Gaussian noise on sums over Poisson samples."""
    return Described([events.SampledGaussian(sampling_rate, noise_multiplier, count)])


def _response(event: events.RandomizedResponse | events.TopKRandomizedResponse, name: str) -> Described:
    kept = event.keep_probability
    return Described([event], facts={name: kept, "probability_of_each_other": math.exp(-event.epsilon) * kept})


def randomized_response(epsilon: Pure, classes: Classes, count: Answers = 1) -> Described:
    """Randomised response over all classes: hides a label."""
    return _response(events.RandomizedResponse(epsilon, classes, count), "keep_probability")


def top_k(epsilon: Pure, k: SetSize, classes: Classes, count: Answers = 1) -> Described:
    """Randomised response over a set of k likely classes: hides a label."""
    return _response(events.TopKRandomizedResponse(epsilon, k, classes, count), "keep_probability_inside_the_set")


def dp_sgd(
    steps: shared.Steps = None, epochs: shared.Epochs = None, sampling_rate: shared.Rate = None,
    batch: shared.Batch = None, records: shared.Records = None, sigma: Noise = None, target_epsilon: Target = None,
    sampling: shared.Batches = Sampling.POISSON, adjacency: Neighbours = TargetAdjacency.OWN, *, delta: float,
) -> Described:  # fmt: skip
    """DP-SGD with Poisson or other batch sampling."""
    rate = sampling_rate_of(sampling_rate, batch, records)
    drawn, facts = Sampling(sampling), Facts()
    number = steps_of(steps, epochs, rate, drawn)
    give_one(sigma=sigma, target_epsilon=target_epsilon)

    def make(noise: float) -> list[batch_events.Training]:
        return [batch_events.training_event(drawn, rate, noise, number)]

    if target_epsilon is not None:
        budget = Budget(target_epsilon, delta, Basis.PROVEN, adjacency)
        facts["sigma_by_rdp"] = calibrate.smallest_noise(make, budget, sound="rdp")
        facts["sigma"] = sigma = calibrate.smallest_noise(make, budget)
    assert sigma is not None
    (event,) = make(sigma)
    if drawn is Sampling.POISSON:
        facts["batches"] = "Poisson samples; if the code shuffles, give --sampling shuffled"
    else:
        poisson = events.DPSGD(rate, sigma, number)
        facts["epsilon_if_batches_were_poisson"] = accountants.proven([poisson], delta).epsilon
    if (least := worst_batches.at_least(event, rate, number, delta)) is not None:
        facts["epsilon_at_least"] = least
    return Described([event], facts=facts)


def tuning(
    sigma: TrialNoise = None, target_epsilon: TunedTarget = None, trials_mean: Trials = 10.0,
    law: LawOf = Law.GEOMETRIC, steps: shared.Steps = None, epochs: shared.Epochs = None,
    sampling_rate: shared.Rate = None, batch: shared.Batch = None, records: shared.Records = None, *, delta: float,
) -> Described:  # fmt: skip
    """The best of a secret random number of trials, each with Gaussian noise or, given a sampling rate, DP-SGD."""
    sampled = (sampling_rate, batch, records) != (None, None, None)
    rate = sampling_rate_of(sampling_rate, batch, records) if sampled else 1.0
    number = 1 if (steps, epochs) == (None, None) else steps_of(steps, epochs, rate)
    adjacency = Adjacency.ADD_REMOVE if sampled else Adjacency.REPLACE
    give_one(sigma=sigma, target_epsilon=target_epsilon)
    facts = Facts()

    def trial(noise: float) -> events.Event:
        return events.DPSGD(rate, noise, number) if sampled else events.Gaussian(noise, number)

    def make(noise: float) -> list[events.Event]:
        return [events.RepeatAndSelect(((trial(noise),),), trials_mean, law.shape, adjacency=adjacency)]

    if target_epsilon is not None:
        budget = Budget(target_epsilon, delta, Basis.PROVEN, TargetAdjacency.OWN)
        facts["sigma"] = sigma = calibrate.smallest_noise(make, budget, tolerance=1e-4)
    assert sigma is not None
    one = trial(sigma)
    facts["epsilon_of_one_trial"] = accountants.proven([one], delta).epsilon
    if (mu := one.gaussian_mu()) is not None:
        facts["epsilon_if_larger_answers_win"], facts["epsilon_at_least"] = selected_orders.attained(
            mu, trials_mean, law.shape, delta
        )
    return Described(make(sigma), facts=facts)


MECHANISMS = shared.by_name(
    tuning, lnmax, gnmax, confident_gnmax, laplace, gaussian, tree_sums, banded_sums, exponential, permute_and_flip,
    sampled_gnmax, sampled_gaussian, randomized_response, top_k, dp_sgd,
)  # fmt: skip
