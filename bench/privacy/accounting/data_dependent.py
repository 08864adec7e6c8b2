"""The accountants that use the votes. Their figures are private: each row states whether it may be published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.privacy.accounting import pate
from bench.privacy.accounting.accountants import Accounted
from bench.privacy.accounting.smooth_sensitivity import Sanitised
from bench.privacy.events.conversions import check_delta, classic_epsilon, improved_epsilon
from bench.privacy.events.events import ConfidentGNMax, Event, GNMax, LNMax

Floats = NDArray[np.float64]


def _private(name: str, found: tuple[float, float], note: str = "", sound: bool = True) -> Accounted:
    return Accounted(
        name, found[0], sound=sound, data_dependent=True, releasable=False, order=float(found[1]), note=note
    )


def lnmax_rows(votes: Floats, gamma: float, delta: float, largest_moment: int | None = None) -> list[Accounted]:
    """Return the data-dependent figures of LNMax on `votes` (queries, classes), for the actual noise and as printed."""
    moment = pate.LARGEST_MOMENT if largest_moment is None else largest_moment
    published = pate.PUBLISHED_LARGEST_MOMENT if largest_moment is None else largest_moment
    actual = pate.lnmax_epsilon(votes, gamma, delta, moment)
    printed = pate.lnmax_epsilon_published(votes, gamma, delta, published)
    twice = f"the factor 2 counted twice, so the cost of gamma {2 * gamma:g}, half the noise: no bound for this one"
    return [
        _private("pate-2017-moments-data-dependent", actual, f"moments up to {moment}"),
        _private("pate-2017-as-published", printed, f"moments up to {published}; {twice}", sound=False),
    ]


def gnmax_rows(votes: Floats, sigma: float, delta: float) -> list[Accounted]:
    """Return the data-dependent figures of GNMax on `votes` (queries, classes), by both conversions."""
    return _converted(pate.gnmax_rdp(votes, sigma).sum(axis=0), delta, "")


def confident_rows(votes: Floats, threshold: float, sigma1: float, sigma2: float, delta: float) -> list[Accounted]:
    """Return Confident-GNMax's figures on `votes` (queries, classes), for the expected number of answers."""
    rdp = pate.confident_rdp(votes, threshold, sigma1, sigma2, pate.ORDERS, None)
    expected = float(np.exp(pate.log_answered(votes, threshold, sigma1)).sum())
    independent = pate.ORDERS * (len(votes) / (2 * sigma1**2) + expected / sigma2**2)  # for any votes
    average = f"an average over runs, at {expected:.4f} expected answers: a single run may cost more"
    found, note = classic_epsilon(pate.ORDERS, independent, delta), "no vote looked at but for the number of answers"
    row = _private("pate-2018-rdp-expected-answers", found, f"{note}; {average}", sound=False)
    return [*_converted(rdp, delta, average, sound=False), row]


def _converted(rdp: Floats, delta: float, note: str, sound: bool = True) -> list[Accounted]:
    classic, improved = classic_epsilon(pate.ORDERS, rdp, delta), improved_epsilon(pate.ORDERS, rdp, delta)
    more = f"; {note}" if note else ""
    return [
        _private("pate-2018-rdp-data-dependent", classic, f"classic conversion{more}", sound),
        _private("pate-2018-rdp-data-dependent-improved", improved, f"improved conversion{more}", sound),
    ]


def release_rows(
    releases: Sequence[tuple[Event, Floats, NDArray[np.bool_]]], delta: float, *, exact: bool = False
) -> list[Accounted]:
    """Return the data-dependent figures of all batches: (event, votes (queries, classes), answered (queries,)).

    They are not sound for `exact` noise: on its grid, counts tie that continuous noise would tell apart. Raises
    :class:`BenchError` on a delta outside (0, 1), or an event other than LNMax, GNMax or Confident-GNMax.
    """
    check_delta(delta)
    if not releases:
        return []
    moments = np.arange(1.0, pate.LARGEST_MOMENT + 1)
    laplace = np.zeros_like(moments)
    # A log moment l is l times the Renyi divergence of order l + 1, so the two kinds add up at integer orders.
    gaussian, gaussian_whole = np.zeros_like(pate.ORDERS), np.zeros_like(moments)
    kinds: set[str] = set()
    confident = False
    for event, votes, answered in releases:
        kinds.add(event.kind)
        if isinstance(event, LNMax):
            exact |= event.secure_granularity is not None
            laplace += pate.lnmax_moments(pate.lnmax_log_q(votes, event.gamma), event.gamma, moments).sum(axis=0)
        elif isinstance(event, (GNMax, ConfidentGNMax)):
            exact |= event.exact
            # Which queries are answered is random: this run's cost bounds nothing in advance.
            confident |= isinstance(event, ConfidentGNMax)
            gaussian += _release_rdp(event, votes, answered, pate.ORDERS)
            gaussian_whole += _release_rdp(event, votes, answered, moments + 1)
        else:
            raise BenchError(f"no accountant uses the votes of {event.kind}.")
    note = "the analysis is of continuous noise, and noise on a grid was drawn" if exact else "of this run"
    if confident:
        note += ", after the fact"
    if "lnmax" not in kinds:
        return _converted(gaussian, delta, note, sound=not (exact or confident))
    epsilons = (laplace + moments * gaussian_whole - np.log(delta)) / moments
    best = int(np.argmin(epsilons))
    name = "pate-2017-moments-data-dependent" if kinds == {"lnmax"} else "pate-moments-data-dependent"
    return [_private(name, (float(epsilons[best]), float(moments[best])), note, sound=not (exact or confident))]


def _release_rdp(event: GNMax | ConfidentGNMax, votes: Floats, answered: NDArray[np.bool_], orders: Floats) -> Floats:
    if isinstance(event, GNMax):
        total: Floats = pate.gnmax_rdp(votes, event.sigma, orders).sum(axis=0)
        return total
    return pate.confident_rdp(votes, event.threshold, event.sigma1, event.sigma2, orders, answered)


def sanitised_rows(sanitised: Sanitised, rng: np.random.Generator, expected: bool = False) -> list[Accounted]:
    """Return the mean of a sanitised release, which is private, and one draw, which may be published.

    A draw is not a bound: half are below the mean. For Confident-GNMax's `expected` run, nor is the mean.
    """
    how = (
        f"smooth sensitivity {sanitised.smooth_sensitivity:.5f}, beta {sanitised.beta:.4f}, "
        f"sigma_ss {sanitised.sigma_ss:.3f}"
    )
    mean = f"+- {sanitised.deviation:.3f}; {how}; includes the cost of its release"
    drawn = "one noisy draw, an estimate; publish one only, each costs again"
    if expected:
        drawn += "; of expected answers, whose dependence on the votes its noise does not cover"
    release = _private("pate-2018-sanitised-release", (sanitised.release(rng), sanitised.order), drawn, sound=False)
    return [
        _private("pate-2018-sanitised-mean", (sanitised.mean, sanitised.order), mean, sound=not expected),
        # The noise covers a fixed set of answers; the expected set also depends on the votes.
        replace(release, releasable=not expected),
    ]
