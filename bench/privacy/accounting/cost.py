"""The cost of a mechanism or of a paper's method for given settings: what is claimed, and what is proven."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import ArrayLike

from bench.core.errors import BenchError, UnknownNameError
from bench.core.types import Adjacency, Claim
from bench.privacy.accounting import claims
from bench.privacy.accounting.accountants import Accounted, account, proven, replace_one
from bench.privacy.accounting.pate import check_votes
from bench.privacy.events import events
from bench.privacy.events.base_event import EVENTS, Event, positive, whole
from bench.privacy.events.conversions import check_delta, check_epsilon

Described = tuple[Claim, list[Event]]
"""A paper's claim and the events that its method would charge, a bypass included."""


@dataclass(frozen=True, slots=True)
class PrivacyCost:
    """The cost of a mechanism or method at `delta`."""

    mechanism: str
    """Mechanism and settings, in words."""
    delta: float
    claimed: float | None
    """Epsilon by the paper's own analysis; None for a mechanism by itself."""
    proven: float
    """The least epsilon of a sound, data-independent accountant, for neighbours by `adjacency`; may be infinite."""
    adjacency: Adjacency
    replace_one: float
    """The proven epsilon where one record is replaced."""
    claim: Claim | None = field(repr=False)
    """The claim with its source, and the reason where it does not hold."""
    accountants: tuple[Accounted, ...] = field(repr=False)
    """Every accountant that applies, with its notes."""


def epsilon(name: str, /, *, delta: float = 1e-5, **setting: Any) -> PrivacyCost:
    """Return the cost of the paper's method or the mechanism `name` with its `setting`; needs no data.

    Papers: ``pate`` (gamma, and queries or votes), ``pate-2018`` (votes, sigma2; with threshold and sigma1
    Confident-GNMax), ``trpate`` (gamma, queries), ``dgd`` (eps0, queries, eps1), ``dpsd`` (beta, classes, batch,
    iterations, sigma), ``dpsd-label`` (epsilon) and ``dp-sgd`` (sigma, steps or epochs, and sampling_rate or batch and
    records). `votes` is an array of counts (queries, classes). Mechanisms are those of a ledger, with their fields:
    ``bench.epsilon("gaussian", noise_multiplier=4.0, count=100)``. The second names of the command's options hold too:
    `sigma` is the noise multiplier of ``gaussian``, `batch_size` the batch of ``dp-sgd``.

    Raises :class:`BenchError` on an unknown name, a missing or unknown setting, or one out of range.

    Examples:
        >>> cost = bench.epsilon("dp-sgd", sigma=1.1, batch=256, records=60_000, steps=7_000)
        >>> cost.claimed, cost.proven
    """
    check_delta(delta)
    setting = _first_names(name, setting)
    if name in PAPERS:
        _check(name, PAPERS[name], {**setting, "delta": delta})
        claim, listed = PAPERS[name](**setting, delta=delta)
    elif name in MECHANISMS:
        _check(name, MECHANISMS[name], setting)
        claim, listed = None, [Event.from_dict({"kind": name, **setting})]
    else:
        raise UnknownNameError("paper or mechanism", name, {**PAPERS, **MECHANISMS})
    return PrivacyCost(
        mechanism=listed[0].describe(),
        delta=delta,
        claimed=None if claim is None else claim.epsilon,
        proven=proven(listed, delta).epsilon,
        adjacency=listed[0].adjacency,
        replace_one=replace_one(listed, delta).epsilon,
        claim=claim,
        accountants=tuple(account(listed, delta)),
    )


def _first_names(name: str, setting: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for given, value in setting.items():
        first = SECOND_NAMES.get(name, {}).get(given, given)
        if first in found:
            raise BenchError(f"{given} of {name} is given twice: {first} is another name of it.")
        found[first] = value
    return found


def _check(name: str, make: Callable[..., Any], setting: Mapping[str, Any]) -> None:
    known = inspect.signature(make).parameters
    for given in setting:
        if given not in known:
            raise UnknownNameError(f"setting of {name}", given, set(known) - {"delta"})
    if missing := [p.name for p in known.values() if p.default is p.empty and p.name not in setting]:
        raise BenchError(f"{name} also needs {' and '.join(missing)}.")


def sampling_rate_of(rate: float | None, batch: float | None, records: int | None) -> float:
    """Return `rate`, or `batch` over `records`; raise BenchError unless exactly one is given and in range."""
    if rate is not None and batch is None and records is None:
        return rate
    if rate is not None or batch is None or records is None:
        raise BenchError("give either the sampling rate, or both batch and records.")
    whole("the number of records", records)
    if not 0 < batch <= records:
        raise BenchError(f"batch must lie between 0 and records, not {batch:g} of {records}.")
    return batch / records


def steps_of(steps: int | None, epochs: float | None, rate: float) -> int:
    """Return `steps`, or those of `epochs` at a sampling `rate`; raise BenchError unless exactly one is given."""
    if (steps is None) == (epochs is None):
        raise BenchError("DP-SGD also needs steps, or epochs (passes over the records): give one of them.")
    if epochs is None:
        assert steps is not None
        return steps
    return max(1, round(positive("the number of epochs", epochs) / rate))


def _pate(gamma: float, delta: float, queries: int | None = None, votes: ArrayLike | None = None) -> Described:
    if votes is not None and queries is None:
        counts = check_votes(votes)
        return claims.pate_2017(counts, gamma, delta), [events.LNMax(gamma, len(counts))]
    if queries is not None and votes is None:
        return claims.pate_closed_form(gamma, queries, delta), [events.LNMax(gamma, queries)]
    raise BenchError("pate needs either queries or votes.")


def _pate_2018(
    votes: ArrayLike, sigma2: float, delta: float, threshold: float | None = None, sigma1: float | None = None
) -> Described:
    if (threshold is None) != (sigma1 is None):
        raise BenchError("Confident-GNMax takes both threshold and sigma1; GNMax takes neither.")
    counts = check_votes(votes)
    claim = claims.pate_2018(counts, sigma2, delta, threshold, sigma1)
    if threshold is None or sigma1 is None:
        return claim, [events.GNMax(sigma2, len(counts))]
    return claim, [events.ConfidentGNMax(threshold, sigma1, sigma2, len(counts), len(counts))]


def trpate(gamma: float, queries: int, delta: float) -> Described:
    """Return TrPATE's Theorem 1 and its label queries."""
    return claims.trpate(gamma, queries, delta), [events.LNMax(gamma, queries)]


def dgd(eps0: float, queries: int, delta: float, eps1: float = 0.0) -> Described:
    """Return DGD's closed form, its label queries and its bypass."""
    listed = [events.LNMax(positive("eps0", eps0) / 2, queries), events.Bypass(claims.DGD_BYPASS)]
    return claims.dgd(eps0, queries, delta, eps1), listed


def _dpsd(beta: float, classes: int, batch: int, iterations: int, sigma: float, delta: float) -> Described:
    listed = list[Event](claims.dpsd_events(batch, iterations, sigma))
    return claims.dpsd(beta, classes, batch, iterations, sigma, delta), listed


def _dpsd_label(epsilon: float, delta: float) -> Described:
    return claims.dpsd_label(check_epsilon(epsilon), delta), [events.Bypass(claims.DPSD_LABEL_GAP)]


def dp_sgd(
    sigma: float, delta: float, steps: int | None = None, epochs: float | None = None,
    sampling_rate: float | None = None, batch: float | None = None, records: int | None = None,
) -> Described:  # fmt: skip
    """Return the claim of DP-SGD by the moments accountant and its steps."""
    rate = sampling_rate_of(sampling_rate, batch, records)
    steps = steps_of(steps, epochs, rate)
    return claims.dp_sgd(rate, sigma, steps, delta), [events.DPSGD(rate, sigma, steps)]


PAPERS: Mapping[str, Callable[..., Described]] = {
    "pate": _pate,
    "pate-2018": _pate_2018,
    "trpate": trpate,
    "dgd": dgd,
    "dpsd": _dpsd,
    "dpsd-label": _dpsd_label,
    "dp-sgd": dp_sgd,
}
SECOND_NAMES: Mapping[str, Mapping[str, str]] = {
    "gaussian": {"sigma": "noise_multiplier"},
    "sampled-gaussian": {"sigma": "noise_multiplier"},
    "dp-sgd": {"noise_multiplier": "sigma", "batch_size": "batch"},
    "pate-2018": {"sigma": "sigma2"},
}
"""Other names of settings, by paper or mechanism: those of the options of ``bench epsilon``."""
MECHANISMS: Mapping[str, type[Event]] = {
    kind: event for kind, event in EVENTS.items() if kind not in PAPERS and kind != events.Bypass.kind
}
