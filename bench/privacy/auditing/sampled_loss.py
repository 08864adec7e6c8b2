"""Privacy losses of mechanisms on Poisson samples, given the other records' sample, which both sides share.

This conditional loss is what the accountants bound. A release reveals less if other records contribute.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench.core.errors import BenchError
from bench.privacy.auditing.compared import Comparison, Drawn, Floats, Labels, label_rows
from bench.privacy.auditing.vote_laws import log_winners
from bench.privacy.mechanisms import mechanisms
from bench.privacy.mechanisms.noise import SeededNoise
from bench.privacy.mechanisms.sampled_ledger import on_rows

_STEP = 0.01  # width of the cells on which a tilted density is constant


def sampled_shift(
    rate: float, distance: float, generator: np.random.Generator, tilt: float, present: bool
) -> tuple[float, float, float]:
    """Return a draw along a sampled record's contribution, its privacy loss and its log weight.

    The draw is ``<a - S, g> / (s |g|)`` of the answer ``a = S + b g + s z``: S the sum of the other sampled records, b
    Bernoulli(`rate`), g the record's contribution, s the deviation of the normal noise, `distance` = |g| / s. With
    `present` the first input holds the record and the second does not; else the other way round. The distribution drawn
    from is nearly ``P (P / P')^tilt``, exactly P if `tilt` is 0; loss and weight are exact.
    """
    return _along(rate, (distance, 0.0) if present else (0.0, distance), generator, tilt)


def shift_log_moment(
    rate: float, distances: Sequence[float], tilt: float, present: bool, displaced: Sequence[float] = ()
) -> float:
    """Return ``ln E[exp(tilt * loss)]`` under P over all steps of :func:`sampled_shift`.

    For :func:`bench.privacy.auditing.loss_bound.best_tilt`: `distances` are from a pilot's steps, rounded to two
    digits, as are those of the record that is `displaced` in each, if any, in the same direction.
    """
    steps = Counter(
        (float(f"{own:.2g}"), float(f"{other:.2g}")) for own, other in zip_longest(distances, displaced, fillvalue=0.0)
    )
    pairs = [
        ((own - other, -other) if present else (-other, own - other), count) for (own, other), count in steps.items()
    ]
    return sum(count * _tilted(rate, pair, tilt)[-1] for pair, count in pairs)


def _along(
    rate: float, centres: tuple[float, float], generator: np.random.Generator, tilt: float
) -> tuple[float, float, float]:
    """Return :func:`sampled_shift` for contributions `centres` on the first and the second input."""
    if not tilt or centres[0] == centres[1]:  # draw from P
        drawn = generator.normal() + centres[0] * (generator.random() < rate)
        first, second = (float(_log_ratio(drawn, rate, centre)) for centre in centres)
        return drawn, first - second, 0.0
    rounded = float(f"{centres[0]:.3g}"), float(f"{centres[1]:.3g}")
    start, below, log_density, _ = _tilted(rate, rounded, tilt)
    cell = int(below.searchsorted(generator.random(), side="right"))
    drawn = start + _STEP * (cell + generator.random())
    first, second = (float(_log_ratio(drawn, rate, centre)) for centre in centres)
    log_p = first - drawn**2 / 2 - math.log(2 * math.pi) / 2
    return drawn, first - second, log_p - float(log_density[cell])


@lru_cache(maxsize=2**8)
def _tilted(rate: float, centres: tuple[float, float], tilt: float) -> tuple[float, Floats, Floats, float]:
    """Return a piecewise constant density: its start, distribution function and logarithm, and the log moment."""
    first, second = centres
    reached = (0.0, first, first + tilt * (first - second))
    start = min(reached) - 9
    middle = np.arange(start, max(reached) + 9, _STEP) + _STEP / 2
    ratio = _log_ratio(middle, rate, first)
    loss = ratio - _log_ratio(middle, rate, second)
    log_mass = ratio - middle**2 / 2 + tilt * loss + math.log(_STEP / math.sqrt(2 * math.pi))
    log_moment = float(special.logsumexp(log_mass))
    below = np.cumsum(np.exp(log_mass - log_moment))
    return start, below / below[-1], log_mass - log_moment - math.log(_STEP), log_moment


def _log_ratio(along: Any, rate: float, centre: float) -> Any:
    """Return the log of the density of ``(1 - rate) N(0, 1) + rate N(centre, 1)`` over that of N(0, 1)."""
    return np.logaddexp(special.log1p(-rate), math.log(rate) + along * centre - centre**2 / 2)


@dataclass(frozen=True)
class _Records:
    """All records' contributions on both inputs, (records, entries), and the one record that differs."""

    first: Floats
    second: Floats
    record: int
    in_first: bool
    in_second: bool

    @classmethod
    def of(cls, first: Floats, second: Floats) -> Self:
        """Return the records of two inputs; raise :class:`BenchError` unless they differ in one record."""
        if len(first) == len(second) > 0:
            others = np.flatnonzero(~_same(first, second))
            if len(others) <= 1:
                return cls(first, second, int(others[0]) if len(others) else 0, True, True)
        elif abs(len(first) - len(second)) == 1:
            more, fewer = (first, second) if len(first) > len(second) else (second, first)
            record = int(np.append(_same(more[:-1], fewer), False).argmin())
            if _same(np.delete(more, record, axis=0), fewer).all():
                return cls(more, more, record, more is first, more is second)
        raise BenchError(
            "the two inputs of a mechanism on samples must differ in one record, replaced, added or removed. Compare "
            "runs on adjacent private sets, in which a record determines only its own values."
        )


def _same(first: Floats, second: Floats) -> NDArray[np.bool_]:
    """Return which rows are bitwise equal, as rows of records in both inputs must be."""
    return np.asarray(((first == second) | (np.isnan(first) & np.isnan(second))).all(axis=1))


@dataclass(frozen=True)
class SampledVotes(Comparison):
    """Votes of the nearest records in a Poisson sample with normal noise."""

    records: _Records
    classes: int
    neighbours: int
    rate: float
    sigma: float

    @classmethod
    def of(cls, first: Mapping[str, Any], second: Mapping[str, Any]) -> Self:
        """Return the comparison of two calls of :meth:`bench.privacy.mechanisms.ledger.Ledger.sampled_noisy_max`."""
        records = (np.vstack([given["distances"], given["labels"]]).T.astype(np.float64) for given in (first, second))
        public = (first[name] for name in ("classes", "neighbours", "sampling_rate", "sigma"))
        return cls(_Records.of(*records), *public)

    def draw(self, generator: np.random.Generator, tilt: float) -> Drawn:
        noise, given = SeededNoise(generator), self.records
        sampled = mechanisms.poisson_sample(given.first.T[:-1].shape, self.rate, noise)

        def counts(records: Floats, present: bool) -> Floats:
            sampled[:, given.record] = present
            labels = records[:, -1].astype(np.int64)
            return mechanisms.nearest_votes(records.T[:-1], labels, sampled, self.classes, self.neighbours)

        without = counts(given.first, False)
        both = np.stack([without, counts(given.first, given.in_first), counts(given.second, given.in_second)], axis=1)

        def laws(distinct: Floats) -> tuple[Floats, Floats]:
            absent, first, second = (log_winners(distinct[:, side], self.sigma, "gaussian") for side in range(3))
            log_absent, log_rate = special.log1p(-self.rate) + absent, math.log(self.rate)
            return np.logaddexp(log_absent, log_rate + first), np.logaddexp(log_absent, log_rate + second)

        def plain(_: np.random.Generator) -> Labels:
            return mechanisms.gnmax(without, self.sigma, noise)

        differs = (both != without[:, None]).any(axis=(1, 2))
        return label_rows(plain, differs, both, laws, np.arange(self.classes)).draw(generator, tilt)


@dataclass(frozen=True)
class SampledSums(Comparison):
    """Sums over Poisson samples with normal noise: `others` (sums, records, entries) and one record's contributions."""

    others: Floats
    first: Floats
    second: Floats
    rate: float
    scale: float

    @classmethod
    def of(cls, first: Mapping[str, Any], second: Mapping[str, Any]) -> Self:
        """Return the comparison of two calls of :meth:`bench.privacy.mechanisms.ledger.Ledger.sampled_gaussian`."""
        norm = float(first["max_norm"])
        sums, _, entries = np.shape(first["values"])
        clipped = [mechanisms.clipped(np.asarray(given["values"], float), norm) for given in (first, second)]
        records = _Records.of(*(np.moveaxis(values, 1, 0).reshape(-1, sums * entries) for values in clipped))
        mine, other = (
            present * values[records.record].reshape(sums, entries)
            for values, present in ((records.first, records.in_first), (records.second, records.in_second))
        )
        others = np.delete(records.first, records.record, axis=0).reshape(-1, sums, entries)
        noise = norm * first["noise_multiplier"]
        return cls(np.moveaxis(others, 0, 1), mine, other, float(first["sampling_rate"]), noise)

    def draw(self, generator: np.random.Generator, tilt: float) -> Drawn:
        """See :meth:`Comparison.draw`; tilted only nearly."""
        sampled = mechanisms.poisson_sample(self.others.shape[:2], self.rate, SeededNoise(generator))
        sums = mechanisms.sampled_sum(self.others, sampled)
        found = [self._one(row, generator, tilt) for row in range(len(sums))]
        answer = sums + self.scale * np.reshape([noise for noise, _, _ in found], sums.shape)
        return Drawn(answer, sum(loss for _, loss, _ in found), sum(weight for _, _, weight in found))

    def _one(self, row: int, generator: np.random.Generator, tilt: float) -> tuple[Floats, float, float]:
        first, second = self.first[row] / self.scale, self.second[row] / self.scale
        noise = generator.normal(size=first.shape)
        longer = max(first, second, key=np.linalg.norm)
        length = float(np.linalg.norm(longer))
        if not length:
            return noise, 0.0, 0.0
        line = longer / length
        centres = float(first @ line), float(second @ line)
        if np.allclose(first, centres[0] * line) and np.allclose(second, centres[1] * line):
            along, loss, log_weight = _along(self.rate, centres, generator, tilt)
            return noise + (along - noise @ line) * line, loss, log_weight
        return _beside(self.rate, first, second, noise, generator, tilt)


@dataclass(frozen=True)
class SampledUpdates(SampledSums):
    """One sum of clients' updates over a Poisson sample with normal noise; both sides compute all clients' updates."""

    @classmethod
    def of(cls, first: Mapping[str, Any], second: Mapping[str, Any]) -> Self:
        """Return the comparison of two calls of :meth:`bench.privacy.mechanisms.ledger.Ledger.sampled_updates`."""
        return super().of(*({**given, "values": all_updates(given)} for given in (first, second)))

    def draw(self, generator: np.random.Generator, tilt: float) -> Drawn:
        drawn = super().draw(generator, tilt)
        return Drawn(drawn.answer[0], drawn.loss, drawn.log_weight)


def all_updates(given: Mapping[str, Any]) -> Floats:
    """Return all clients' updates (1, clients, entries), for the arguments of the ledger's ``sampled_updates``."""
    found = (mechanisms.checked(given["updates"](number), given["entries"]) for number in range(given["clients"]))
    return np.stack(list(found))[None]


@dataclass(frozen=True)
class SampledFunction(Comparison):
    """A clipped function of a Poisson sample with normal noise; both sides compute it with and without the record."""

    first: Mapping[str, Any]
    second: Mapping[str, Any]
    records: _Records

    @classmethod
    def of(cls, first: Mapping[str, Any], second: Mapping[str, Any]) -> Self:
        """Return the comparison of two calls of :meth:`bench.privacy.mechanisms.ledger.Ledger.sampled_function`."""
        both = (np.column_stack([given["images"].flatten(1).cpu(), given["labels"].cpu()]) for given in (first, second))
        return cls(first, second, _Records.of(*both))

    def draw(self, generator: np.random.Generator, tilt: float) -> Drawn:
        """See :meth:`Comparison.draw`; tilted only nearly."""
        given, sides = self.records, ((self.first, self.records.in_first), (self.second, self.records.in_second))
        rate, scale = (float(self.first[name]) for name in ("sampling_rate", "noise_multiplier"))
        sampled = mechanisms.poisson_sample((len(given.first),), rate, SeededNoise(generator))

        def value(side: Mapping[str, Any], holds: bool, present: bool) -> Floats:
            sampled[given.record] = present
            picked = sampled if holds else np.delete(sampled, given.record)
            return function_value(side, np.flatnonzero(picked))

        without, also = (value(side, holds, False) for side, holds in sides)
        if not np.allclose(without, also, rtol=1e-5, atol=1e-8):
            raise BenchError(
                "on adjacent private sets, a function of a sample gives two values for one sample, which lacks the "
                "record in which the sets differ. It may use only the sampled records."
            )
        one, two = ((value(side, holds, holds) - without)[None] for side, holds in sides)
        shift = SampledSums(np.zeros((1, 0, len(without))), one, two, rate, 2 * scale * float(self.first["max_norm"]))
        found = shift.draw(generator, tilt)
        return Drawn(without + found.answer[0], found.loss, found.log_weight)


def function_value(given: Mapping[str, Any], numbers: NDArray[np.int64]) -> Floats:
    """Return the value to which the ledger's ``sampled_function`` adds noise if it samples the records `numbers`."""
    function = on_rows(given["function"], given["images"], given["labels"])
    return mechanisms.clipped_function(function, numbers, given["entries"], given["max_norm"])


def function_values(given: Mapping[str, Any], parts: int = 16) -> Floats:
    """Return :func:`function_value` of disjoint parts of the records (1, parts, entries); one record is in one part."""
    split = np.array_split(np.arange(len(given["images"])), min(parts, len(given["images"])))
    return np.stack([function_value(given, numbers) for numbers in split])[None]


def _beside(
    rate: float, first: Floats, second: Floats, noise: Floats, generator: np.random.Generator, tilt: float
) -> tuple[Floats, float, float]:
    """Return :func:`_along` for contributions that are not on one line, with standard normal `noise`.

    Drawn from two normal parts, each tilted as if the loss were linear around its centre; loss and weight are exact.
    """
    log_parts = special.log1p(-rate), math.log(rate)

    def included(at: Floats, centre: Floats) -> float:
        return float(log_parts[1] + at @ centre - centre @ centre / 2)

    def ratio(at: Floats, centre: Floats) -> float:
        return float(np.logaddexp(log_parts[0], included(at, centre)))

    moved, raised = [], []
    for centre, log_part in zip((np.zeros_like(first), first), log_parts, strict=True):
        ratios = ratio(centre, first), ratio(centre, second)
        chances = (math.exp(included(centre, side) - r) for side, r in zip((first, second), ratios, strict=True))
        slope = tilt * np.subtract(*(chance * side for chance, side in zip(chances, (first, second), strict=True)))
        moved.append(centre + slope)
        raised.append(log_part + tilt * (ratios[0] - ratios[1]) + slope @ slope / 2)
    log_weights = np.asarray(raised) - np.logaddexp(*raised)
    drawn = noise + moved[int(generator.random() < math.exp(log_weights[1]))]
    log_p, log_other = ratio(drawn, first), ratio(drawn, second)
    log_q = np.logaddexp(*(w + drawn @ m - m @ m / 2 for w, m in zip(log_weights, moved, strict=True)))
    return drawn, log_p - log_other, float(log_p - log_q)
