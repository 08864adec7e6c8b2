"""The proven epsilon of a record from its JSON alone, by dp-accounting and closed forms.

It imports nothing of this project, so a mistake in its events, accountants or conversions is not repeated here.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as distribution
from scipy import optimize, special

Event = dict[str, Any]
OUTSIDE = ("bypass", "top-k-randomized-response-as-printed")  # private data that no mechanism hides
RESPONSES = ("randomized-response", "top-k-randomized-response", "prior-randomized-response")
SAMPLED = ("dp-sgd", "sampled-gaussian", "sampled-gnmax")
GRID = 400_000  # points of a privacy loss distribution, about


def proven(record: dict[str, Any]) -> float:
    """Return the least epsilon of a record's ledger at its delta."""
    return _cached(json.dumps(events_of(record)), record["cell"]["delta"])


def proven_for_record(record: dict[str, Any]) -> float:
    """Return the same for one training record, which can change all labels that a teacher answers."""
    events = [{**e, "count": e["count"] * e["answers"]} if e["kind"] in RESPONSES else e for e in events_of(record)]
    return _cached(json.dumps(events), record["cell"]["delta"])


def events_of(record: dict[str, Any]) -> list[Event]:
    """Return the ledger's events, in full: a record states equal ones once, with how many there are."""
    kept: list[Event] = record["privacy"]["events"]
    return [{k: v for k, v in event.items() if k != "times"} for event in kept for _ in range(event.get("times", 1))]


@cache
def _cached(events: str, delta: float) -> float:
    return epsilon(json.loads(events), delta)


def epsilon(events: list[Event], delta: float) -> float:
    """Return the epsilon of composed `events` at `delta`; ValueError for kinds that it cannot compose."""
    if any(event["kind"] in OUTSIDE for event in events):
        return math.inf
    for event in events:
        if event.get("exact") or event.get("secure_granularity") or event.get("grid_steps"):
            raise ValueError(f"no discrete noise here: {event}")
    squares = [_mu_squared(event) for event in events]
    if None not in squares:
        return gaussian(math.sqrt(sum(filter(None, squares))), delta)
    if all(event["kind"] == "sampled-gaussian" and event["adjacency"] == "replace" for event in events):
        # A replaced record moves the sum by two norms at most, from one side of its absence to the other.
        kinds = Counter((e["sampling_rate"], e["noise_multiplier"]) for e in events for _ in range(e["count"]))
        return replaced_gaussians(kinds, delta)
    if all(event["kind"] in (*SAMPLED, "gaussian") for event in events):
        return sampled_gaussians(Counter(map(_sampled, events)), delta)
    if all(event == {**events[0], "queries": event.get("queries")} and event["kind"] == "lnmax" for event in events):
        events = [{**events[0], "queries": sum(event["queries"] for event in events)}]
    if len(events) > 1:
        raise ValueError(f"no composition of {sorted({event['kind'] for event in events})} here")
    (event,) = events
    if event["kind"] == "lnmax":  # a moved vote changes two counts by 1 each, both with Laplace noise
        return laplace(event["gamma"], 2 * event["queries"], delta)
    if event["kind"] == "laplace":
        return laplace(1 / event["noise_multiplier"], event["count"], delta)
    if event["kind"] in RESPONSES:
        # Sets of two are the worst that a prior can choose.
        outcomes = 2 if event["kind"].startswith("prior") else event.get("k", event["classes"])
        return responses(event["epsilon"], outcomes, event["count"], delta)
    if event["kind"] == "repeat-and-select":
        return selected(event, delta)
    raise ValueError(f"an event of unknown kind: {event}")


def _mu_squared(event: Event) -> float | None:
    """Return the squared ratio of sensitivity to deviation of all releases of a Gaussian event; None for others."""
    match event["kind"]:
        case "gaussian":
            return float(event["count"] / event["noise_multiplier"] ** 2)
        case "gnmax":  # a moved vote changes two counts by 1 each: L2 sensitivity sqrt 2
            return float(2 * event["queries"] / event["sigma"] ** 2)
        case "confident-gnmax":  # and the largest count, which every query is selected by, by 1
            return float(event["queries"] / event["sigma1"] ** 2 + 2 * event["max_answers"] / event["sigma2"] ** 2)
    return None


def gaussian(mu: float, delta: float) -> float:
    """Return the exact epsilon of a Gaussian release (Balle and Wang 2018, theorem 8)."""

    def excess(e: float) -> float:
        kept = special.log_ndtr(mu / 2 - e / mu)
        return float(np.exp(kept) - np.exp(e + special.log_ndtr(-mu / 2 - e / mu)))

    return _root(excess, delta, mu**2 / 2 + 10 * mu)


def laplace(step: float, count: int, delta: float) -> float:
    """Return the epsilon of `count` Laplace releases of pure epsilon `step`, rounded up on a fine grid."""
    width = min(2 * step * count, count * step**2 + 20 * step * math.sqrt(count))
    one = distribution.from_laplace_mechanism(1 / step, value_discretization_interval=min(step / 10, width / GRID))
    return float(one.self_compose(count).get_epsilon_for_delta(delta))


def _sampled(event: Event) -> tuple[float, float, int]:
    """Return rate, noise over sensitivity, and number of Gaussian releases on Poisson samples."""
    if event["adjacency"] != "add-remove":
        raise ValueError(f"no replaced record here: {event}")
    if event["kind"] == "gaussian":  # of all records
        return 1.0, event["noise_multiplier"], event["count"]
    if event["kind"] == "sampled-gnmax":  # a sample a query; a record adds its vote and displaces another's
        return event["sampling_rate"], event["sigma"] / math.sqrt(2), event["queries"]
    return event["sampling_rate"], event["noise_multiplier"], event.get("steps", 0) or event["count"]


def sampled_gaussians(releases: Mapping[tuple[float, float, int], int], delta: float) -> float:
    """Return the epsilon of `releases`, each so many times, for a record added or removed, by dp-accounting's own."""
    # Rounds up by some 1e-4 in all: the wider the noise, the smaller are the losses against the grid.
    wide = min(noise for _, noise, _ in releases) >= 5
    accountant = PLDAccountant(value_discretization_interval=3e-5 if wide else 3e-4)
    for (rate, noise, steps), times in releases.items():
        one = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
        accountant.compose(SelfComposedDpEvent(one, steps * times))
    return float(accountant.get_epsilon(delta))


def replaced_gaussians(releases: Mapping[tuple[float, float], int], delta: float) -> float:
    """Return the epsilon of `releases`, each so many times, for a record replaced.

    Worst case: (1 - q) N(0, s^2) + q N(1, s^2) against its mirror image. Each loss is split between two points
    of a grid so that its mean stays; the masses are composed by FFT.
    """
    parts, mean, variance = [], 0.0, 0.0
    for (rate, noise), times in releases.items():
        edges = np.linspace(-12 * noise - 1, 12 * noise + 1, GRID + 1)
        mass = np.diff((1 - rate) * special.ndtr(edges / noise) + rate * special.ndtr((edges - 1) / noise))
        middle = (edges[1:] + edges[:-1]) / 2
        up, down = (np.log1p(rate * np.expm1((side * middle - 0.5) / noise**2)) for side in (1, -1))
        loss = up - down
        parts.append((loss, mass, times))
        average = float(mass @ loss)
        mean, variance = mean + times * average, variance + times * float(mass @ (loss - average) ** 2)
    size = 2**18
    width = 2 * (abs(mean) + 15 * math.sqrt(variance) + max(float(np.abs(loss).max()) for loss, _, _ in parts))
    spectrum = np.ones(size // 2 + 1, dtype=complex)
    for loss, mass, times in parts:
        place = loss / width * size
        low = np.floor(place).astype(int)
        share = place - low
        grid = np.bincount(low % size, mass * (1 - share), size) + np.bincount((low + 1) % size, mass * share, size)
        spectrum *= np.fft.rfft(grid) ** times
    composed = np.fft.irfft(spectrum, size).clip(0)
    losses = np.fft.fftfreq(size) * width

    def excess(e: float) -> float:
        above = losses > e
        return float((composed[above] * -np.expm1(e - losses[above])).sum())

    return _root(excess, delta, width / 2)


def selected(event: Event, delta: float) -> float:
    """Return the epsilon of the best of a random number of DP-SGD trainings, on a grid.

    Koskela et al. 2024, with the larger of their two terms in place of the sum, which is a weighted mean of them.
    """
    (run,), mean = event["runs"], event["mean"]
    (one,) = run
    law = {1.0: lambda g: 1 / g, 0.0: lambda g: (1 - 1 / g) / math.log(g)}[event["shape"]]
    gamma = float(optimize.brentq(lambda g: law(g) - mean, 1e-9, 1 - 1e-9))
    accountant = PLDAccountant(value_discretization_interval=3e-4)
    noisy = PoissonSampledDpEvent(one["sampling_rate"], GaussianDpEvent(one["noise_multiplier"]))
    accountant.compose(SelfComposedDpEvent(noisy, one["steps"]))
    at = np.linspace(0, accountant.get_epsilon(delta), 400)
    factor = min(max(math.exp(e), 1 + (1 / gamma - 1) * accountant.get_delta(e)) for e in at)
    return float(accountant.get_epsilon(delta / mean)) + (event["shape"] + 1) * math.log(factor)


def responses(step: float, outcomes: int, count: int, delta: float) -> float:
    """Return the exact epsilon of `count` randomised responses: the losses sum to a multiple of `step`."""
    total = math.exp(step) + outcomes - 1
    masses = np.zeros(2 * count + 1)  # of the sum of losses, from -count to count, in turns
    masses[[0, 1, -1]] = (outcomes - 2) / total, math.exp(step) / total, 1 / total
    composed = np.fft.fftshift(np.fft.ifft(np.fft.fft(masses) ** count).real.clip(0))
    losses = step * np.arange(-count, count + 1)

    def excess(e: float) -> float:
        above = losses > e
        return float((composed[above] * -np.expm1(e - losses[above])).sum())

    return _root(excess, delta, step * count)


def _root(excess: Callable[[float], float], delta: float, largest: float) -> float:
    """Return the least epsilon of at most `largest` at which the falling curve `excess` is at most `delta`."""
    if excess(0.0) <= delta:
        return 0.0
    found: float = optimize.brentq(lambda e: excess(e) - delta, 0.0, largest, xtol=1e-9)
    return found
