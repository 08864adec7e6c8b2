"""Exact privacy losses of the ledger's calls between two adjacent inputs.

An auditor runs a method on two adjacent private sets in lockstep, gives both runs the same answer to each call, and
sums the losses to the transcript's. The noise is that of :class:`bench.privacy.mechanisms.noise.SeededNoise`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import identity
from numpy.typing import NDArray
from scipy import special

from bench.core.errors import BenchError, UnknownNameError
from bench.privacy.auditing import compared
from bench.privacy.auditing.compared import Comparison, Floats, GaussianVectors, LabelRows, Labels, LaplaceVectors
from bench.privacy.auditing.sampled_loss import SampledFunction, SampledSums, SampledUpdates, SampledVotes
from bench.privacy.auditing.vote_laws import log_flipped, log_winners
from bench.privacy.events import losses
from bench.privacy.events.conversions import gaussian_epsilon_at_least
from bench.privacy.mechanisms import mechanisms, responses
from bench.privacy.mechanisms.choice_ledger import choice_scale
from bench.privacy.mechanisms.ledger import PRIVATE
from bench.privacy.mechanisms.noise import Law, SeededNoise

Arguments = Mapping[str, Any]
_FINE = 5e-4
"""The grid interval of an exact epsilon relative to one row's spread: some 4e4 points times the root of the rows."""


class PublicDifference(BenchError):
    """A public value differs between two adjacent private sets."""


def compare(mechanism: str, first: Arguments, second: Arguments) -> Comparison:
    """Return the answer distributions of one call on two adjacent inputs, the first over the second.

    `mechanism` is the name of the ledger's method; `first` and `second` are its arguments by name, with defaults. Only
    private arguments may differ; for mechanisms on samples, in one record. Raises :class:`PublicDifference` if a public
    argument or a shape differs, :class:`BenchError` on other differences and on a name without a distribution here,
    e.g. ``dp_sgd``.
    """
    if mechanism not in _MECHANISMS:
        raise UnknownNameError("mechanism with an exact loss", mechanism, _MECHANISMS)
    private, build = PRIVATE[mechanism], _MECHANISMS[mechanism]
    for name in dict.fromkeys((*first, *second)):
        if name not in private and not np.array_equal(np.asarray(first.get(name)), np.asarray(second.get(name))):
            raise PublicDifference(
                f"{mechanism} got a different {name} on each of two adjacent private sets. This argument "
                "is public and must not depend on private data: give the method the same answers, and see "
                "`bench check`."
            )
        if name in private and not mechanism.startswith("sampled") and np.shape(first[name]) != np.shape(second[name]):
            raise PublicDifference(
                f"{mechanism} got {name} of shape {np.shape(first[name])} on one private set and "
                f"{np.shape(second[name])} on an adjacent one. Shapes are public and must be equal."
            )
    return build(first, second)


def exact_epsilon(call: Comparison, delta: float) -> float | None:
    """Return the epsilon at `delta` of P over P' for a `call`, or None if it has no exact distribution.

    Exact for Gaussian noise; else close to the truth and never above it. The other order of the inputs may give another
    epsilon.
    """
    if isinstance(call, GaussianVectors):
        return gaussian_epsilon_at_least(call.mu, delta)
    rows = len(call.where) if isinstance(call, LabelRows) else 1
    interval = _FINE * call.spread / math.sqrt(max(rows, 1)) or losses.INTERVAL
    try:
        one = call.exact(interval)
    except IndexError:  # dp-accounting has cut off all finite losses
        return None
    if one is None:
        return None
    found = identity(interval, pessimistic_estimate=False).compose(one)  # composing truncates the tails
    missed = losses.rounding(call.composed) + compared.MISSED
    return max(float(found.get_epsilon_for_delta(delta + missed)), 0.0)


def _votes(
    draw: Callable[[Floats, Arguments, SeededNoise], Labels],
    law: Callable[[Floats, Arguments], Floats],
    first: Arguments,
    second: Arguments,
    unanswered: bool = False,
) -> LabelRows:
    counts, other = (np.asarray(given["votes"], dtype=np.float64) for given in (first, second))
    classes = counts.shape[1]
    most = first["max_answers"] if unanswered and first["max_answers"] < len(counts) else None

    def laws(distinct: NDArray[Any]) -> tuple[Floats, Floats]:
        return law(distinct[:, :classes], first), law(distinct[:, classes:], first)

    outcomes = np.append(np.arange(classes), mechanisms.UNANSWERED) if unanswered else np.arange(classes)
    differs = (counts != other).any(axis=1)

    def plain(generator: np.random.Generator) -> Labels:
        return draw(counts, first, SeededNoise(generator))

    return compared.label_rows(plain, differs, np.hstack([counts, other]), laws, outcomes, most)


def _confident_draw(votes: Floats, given: Arguments, noise: SeededNoise) -> Labels:
    deviations = given["sigma1"], given["sigma2"]
    return mechanisms.confident_gnmax(votes, given["threshold"], *deviations, len(votes), noise)


def _confident_law(votes: Floats, given: Arguments) -> Floats:
    above = (votes.max(axis=1, keepdims=True) - given["threshold"]) / given["sigma1"]
    winners = log_winners(votes, given["sigma2"], "gaussian")
    return np.hstack([special.log_ndtr(above) + winners, special.log_ndtr(-above)])


def _choices(law: Law, first: Arguments, second: Arguments) -> LabelRows:
    scores, other = (mechanisms.finite(np.asarray(given["scores"], np.float64)) for given in (first, second))
    scale = choice_scale(first["sensitivity"], first["epsilon"], first["monotonic"])
    candidates = scores.shape[1]

    def log_law(values: Floats) -> Floats:
        with np.errstate(over="ignore"):
            lags = (values - values.max(axis=1, keepdims=True)) / scale
        return special.log_softmax(lags, axis=1) if law == "gumbel" else log_flipped(lags)

    def laws(distinct: NDArray[Any]) -> tuple[Floats, Floats]:
        return log_law(distinct[:, :candidates]), log_law(distinct[:, candidates:])

    def plain(generator: np.random.Generator) -> Labels:
        return mechanisms.noisy_choice(scores, scale, law, SeededNoise(generator))

    differs = (scores != other).any(axis=1)
    return compared.label_rows(plain, differs, np.hstack([scores, other]), laws, np.arange(candidates))


def _response_law(labels: Labels, epsilon: float, classes: int) -> Floats:
    log_keep = math.log(responses.keep_probability(epsilon, classes))
    found = np.full((len(labels), classes), log_keep - epsilon)
    found[np.arange(len(labels)), labels] = log_keep
    return found


def _top_k_law(labels: Labels, sets: Labels, given: Arguments) -> Floats:
    epsilon, classes, k = given["epsilon"], given["classes"], sets.shape[1]
    uniform = np.full((len(labels), classes), -np.inf)
    np.put_along_axis(uniform, sets, -math.log(k), axis=1)
    place = sets == labels[:, None]
    if given["outside"] == "printed":
        kept = _response_law(labels, epsilon, classes)
    else:
        kept = uniform.copy()
        log_keep = math.log(responses.keep_probability(epsilon, k))
        np.put_along_axis(kept, sets, np.where(place, log_keep, log_keep - epsilon), axis=1)
    return np.where(place.any(axis=1, keepdims=True), kept, uniform)


def _labels(first: Arguments, second: Arguments) -> LabelRows:
    labels, other = (np.asarray(given["labels"], dtype=np.int64) for given in (first, second))
    epsilon, classes = first["epsilon"], first["classes"]
    sets = np.asarray(first["candidates"], dtype=np.int64) if "candidates" in first else None

    def plain(generator: np.random.Generator) -> Labels:
        noise = SeededNoise(generator)
        if sets is None:
            return responses.randomized_response(labels, epsilon, classes, noise)
        printed = first["outside"] == "printed"
        respond = responses.printed_top_k if printed else responses.top_k_randomized_response
        return respond(labels, sets, epsilon, classes, noise)

    def laws(distinct: NDArray[Any]) -> tuple[Floats, Floats]:
        sides = distinct[:, 0], distinct[:, 1]
        if sets is None:
            one, two = (_response_law(side, epsilon, classes) for side in sides)
        else:
            one, two = (_top_k_law(side, distinct[:, 2:], first) for side in sides)
        return one, two

    inputs = np.column_stack([labels, other] + ([] if sets is None else [sets]))
    return compared.label_rows(plain, labels != other, inputs, laws, np.arange(classes))


def _prior_labels(first: Arguments, second: Arguments) -> LabelRows:
    rows, prior = np.asarray(first["rows"], dtype=np.int64), np.asarray(first["prior"], dtype=np.float64)
    labels, other = (np.asarray(given["labels"], dtype=np.int64)[rows] for given in (first, second))
    epsilon, classes = first["epsilon"], prior.shape[1]

    def plain(generator: np.random.Generator) -> Labels:
        return responses.prior_randomized_response(labels, prior, epsilon, SeededNoise(generator))

    def laws(distinct: NDArray[Any]) -> tuple[Floats, Floats]:
        found = np.empty((2, len(distinct), classes))
        for answer in range(classes):
            by_label = responses.prior_likelihood(np.full(len(distinct), answer), distinct[:, 2:], epsilon)
            for side in (0, 1):
                label = distinct[:, side].astype(np.int64)[:, None]
                found[side, :, answer] = np.take_along_axis(by_label, label, axis=1)[:, 0]
        with np.errstate(divide="ignore"):
            one, two = np.log(found)
        return one, two

    inputs = np.column_stack([labels, other, prior])
    return compared.label_rows(plain, labels != other, inputs, laws, np.arange(classes))


def _vectors(
    kind: type[GaussianVectors] | type[LaplaceVectors], first: Arguments, second: Arguments, part: Any = ...
) -> Comparison:
    values, other = (np.asarray(given["values"], dtype=np.float64)[part] for given in (first, second))
    return kind(values, other, float(first["noise_multiplier"] * first["sensitivity"]))


# Of the values that the ledger passes, the step releases the second.
_released_sum = partial(_vectors, GaussianVectors, part=1)
_MECHANISMS: dict[str, Callable[[Arguments, Arguments], Comparison]] = {
    "noisy_max": partial(
        _votes,
        lambda votes, given, noise: mechanisms.lnmax(votes, given["gamma"], noise),
        lambda votes, given: log_winners(votes, 1 / given["gamma"], "laplace"),
    ),
    "noisy_max_gaussian": partial(
        _votes,
        lambda votes, given, noise: mechanisms.gnmax(votes, given["sigma"], noise),
        lambda votes, given: log_winners(votes, given["sigma"], "gaussian"),
    ),
    "confident_noisy_max": partial(_votes, _confident_draw, _confident_law, unanswered=True),
    "gaussian": partial(_vectors, GaussianVectors),
    "laplace": partial(_vectors, LaplaceVectors),
    "tree_sum": _released_sum,
    "banded_sum": _released_sum,
    "exponential_mechanism": partial(_choices, "gumbel"),
    "permute_and_flip": partial(_choices, "exponential"),
    "randomized_response": _labels,
    "top_k_randomized_response": _labels,
    "prior_randomized_response": _prior_labels,
    "sampled_noisy_max": SampledVotes.of,
    "sampled_gaussian": SampledSums.of,
    "sampled_updates": SampledUpdates.of,
    "sampled_function": SampledFunction.of,
}
