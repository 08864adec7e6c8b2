"""One call of a mechanism on two adjacent inputs: draws of its answer, with each draw's exact privacy loss.

P is the answer's distribution on the first input, P' on the second; an answer's loss is ``ln P(answer) / P'(answer)``.
Answers may be drawn from the tilted distribution ``Q ~ P (P / P')^tilt``, which makes large losses common; weighting by
P / Q gives averages under P (importance sampling).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_laplace_mechanism, identity
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.privacy.events.composing import self_composed
from bench.privacy.mechanisms.mechanisms import UNANSWERED

MISSED = 1e-14
"""The probability that the losses of one :meth:`Comparison.exact` are below its grid's."""
Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Drawn:
    """An answer as the ledger returns it, its loss, and the log ratio of P to the distribution it was drawn from."""

    answer: NDArray[Any]
    loss: float
    log_weight: float


class Comparison(abc.ABC):
    """The distributions P and P' of one call's answer."""

    @abc.abstractmethod
    def draw(self, generator: np.random.Generator, tilt: float) -> Drawn:
        """Return an answer drawn from the distribution tilted by `tilt` >= 0; 0 draws from P."""

    def loss_of(self, answer: NDArray[Any]) -> float:
        """Return the loss of an `answer`; raise :class:`BenchError` if it is not known, as for samples."""
        raise BenchError("no exact likelihood is implemented for answers on a sample of the records.")

    def exact(self, interval: float) -> Any | None:
        """Return the ``PrivacyLossDistribution`` of P over P' on a grid of `interval`, or None.

        Its delta never exceeds the truth by more than :data:`MISSED` and :func:`bench.privacy.events.losses.rounding`.
        """
        return None

    @property
    def spread(self) -> float:
        """The approximate deviation of the finite losses of :meth:`exact`, which sets its grid."""
        return 0.0

    @property
    def composed(self) -> int:
        """The number of losses that :meth:`exact` composes, which sets its rounding error."""
        return 1


def optimistic_pld(log_masses: Floats, values: Floats, interval: float) -> Any:
    """Return the PLD of losses `values` of probability ``exp(log_masses)``, rounded down to multiples of `interval`."""
    mass, finite = np.exp(log_masses), np.isfinite(values)
    points, place = np.unique(np.floor(values[finite] / interval).astype(np.int64), return_inverse=True)
    masses = np.bincount(place, weights=mass[finite])
    found, infinite = dict(zip(points.tolist(), masses.tolist(), strict=True)), float(mass[values == np.inf].sum())
    create = PrivacyLossDistribution.create_from_rounded_probability
    return create(found, infinite, interval, pessimistic_estimate=False)


@dataclass(frozen=True)
class GaussianVectors(Comparison):
    """Vectors with normal noise of deviation `scale` on every entry."""

    first: Floats
    second: Floats
    scale: float

    @property
    def mu(self) -> float:
        """The distance between the inputs in deviations of the noise."""
        return float(np.linalg.norm(self.first - self.second)) / self.scale

    def draw(self, generator: np.random.Generator, tilt: float) -> Drawn:
        """See :meth:`Comparison.draw`; tilted, the mean moves on by `tilt` times the difference."""
        away = (self.first - self.second) / self.scale
        noise = generator.normal(size=away.shape)
        mu2 = float((away**2).sum())
        loss = float((away * noise).sum()) + (tilt + 0.5) * mu2
        answer = self.first + self.scale * (noise + tilt * away)
        return Drawn(answer, loss, -tilt * loss + tilt * (tilt + 1) * mu2 / 2)

    def loss_of(self, answer: NDArray[Any]) -> float:
        away = (self.first - self.second) / self.scale
        return float((away * ((answer - self.first) / self.scale + away / 2)).sum())


@dataclass(frozen=True)
class LaplaceVectors(Comparison):
    """Vectors with Laplace noise of `scale` on every entry."""

    first: Floats
    second: Floats
    scale: float

    def draw(self, generator: np.random.Generator, tilt: float) -> Drawn:
        """See :meth:`Comparison.draw`: entry by entry, three pieces of an exponential density."""
        away = (self.first - self.second) / self.scale
        d = np.abs(away)
        # In x, the noise over its scale in the direction of the difference, the loss is |x + d| - |x|: the tilted
        # density is an exponential below -d, of growth 2 tilt + 1 between -d and 0, and an exponential above 0.
        growth = 2 * tilt + 1
        log_between = tilt * d + np.log(-np.expm1(-growth * d) / growth, where=d > 0, out=np.full(d.shape, -np.inf))
        log_mass = np.stack([-(1 + tilt) * d, log_between, tilt * d])
        log_total = np.logaddexp.reduce(log_mass, axis=0)
        piece = (generator.random(d.shape) > np.exp(log_mass - log_total).cumsum(axis=0)[:2]).sum(axis=0)
        uniform, tail = 1 - generator.random(d.shape), generator.exponential(size=d.shape)
        between = np.log(uniform + (1 - uniform) * np.exp(-growth * d)) / growth
        x = np.choose(piece, [-d - tail, between, tail])
        loss = np.abs(x + d) - np.abs(x)
        answer = self.first + self.scale * np.where(away < 0, -x, x)
        return Drawn(answer, float(loss.sum()), float((log_total - math.log(2) - tilt * loss).sum()))

    def loss_of(self, answer: NDArray[Any]) -> float:
        return float((np.abs(answer - self.second) - np.abs(answer - self.first)).sum()) / self.scale

    def exact(self, interval: float) -> Any | None:
        found = identity(interval, pessimistic_estimate=False)
        distances, counts = np.unique(np.abs(self.first - self.second) / self.scale, return_counts=True)
        for distance, count in zip(distances, counts, strict=True):
            if distance:
                one = from_laplace_mechanism(
                    1 / distance, value_discretization_interval=interval, pessimistic_estimate=False
                )
                several = self_composed(one, int(count))
                if several is None:
                    return None
                found = found.compose(several)
        return found

    @property
    def spread(self) -> float:
        return float(np.linalg.norm(self.first - self.second)) / self.scale

    @property
    def composed(self) -> int:
        return self.first.size


@dataclass(frozen=True)
class LabelRows(Comparison):
    """Independent labels, one per row; the rows `where` have different distributions on the two inputs.

    `plain` draws all labels on the first input. Row ``where[i]`` has log probabilities ``first[law[i]]`` and
    ``second[law[i]]``, from (laws, outcomes), of the `outcomes`. After `most` answers the rest are unanswered.
    """

    plain: Callable[[np.random.Generator], Labels]
    where: Labels
    law: Labels
    first: Floats
    second: Floats
    outcomes: Labels
    most: int | None = None

    @property
    def _losses(self) -> Floats:
        # Answers that are impossible on the first input are never drawn.
        return np.subtract(self.first, self.second, where=self.first > -np.inf, out=np.zeros(self.first.shape))

    def draw(self, generator: np.random.Generator, tilt: float) -> Drawn:
        """See :meth:`Comparison.draw`; infinite losses are tilted as the largest finite one of all rows, plus 1."""
        answers, losses = self.plain(generator), self._losses
        # Infinite losses would get infinite weight.
        tilted = tilt * np.where(losses == np.inf, losses[losses < np.inf].max(initial=0.0) + 1, losses)
        log_mass = self.first + tilted
        log_total = np.logaddexp.reduce(log_mass, axis=1)
        below = np.exp(log_mass - log_total[:, None]).cumsum(axis=1)[self.law]
        outcome = (generator.random(len(self.where))[:, None] * below[:, -1:] >= below).sum(axis=1)
        answers[self.where] = self.outcomes[outcome]
        loss, log_weight = losses[self.law, outcome], log_total[self.law] - tilted[self.law, outcome]
        if self.most is not None:
            answered = answers != UNANSWERED
            asked = np.cumsum(answered) - answered < self.most
            answers[~asked] = UNANSWERED
            loss, log_weight = loss[asked[self.where]], log_weight[asked[self.where]]
        return Drawn(answers, float(loss.sum()), float(log_weight.sum()))

    def loss_of(self, answer: NDArray[Any]) -> float:
        """See :meth:`Comparison.loss_of`; 0 for a label that neither input gives."""
        seen = answer[self.where]
        matches = seen[:, None] == self.outcomes
        asked = matches.any(axis=1)  # the rest is unanswered: `most` was reached
        if self.most is not None:
            asked = (np.cumsum(answer != UNANSWERED) - (answer != UNANSWERED) < self.most)[self.where]
        outcome, law = matches.argmax(axis=1)[asked], self.law[asked]
        first, second = self.first[law, outcome], self.second[law, outcome]
        known = (first > -np.inf) | (second > -np.inf)
        return float((first[known] - second[known]).sum())

    def exact(self, interval: float) -> Any | None:
        """See :meth:`Comparison.exact`; None where `most` may end the answers."""
        if self.most is not None:
            return None
        counts, mass, losses = np.bincount(self.law), np.exp(self.first), self._losses
        # Rounding down independent rows loses its mean less Hoeffding's deviation at MISSED; add that back.
        finite = np.where(losses < np.inf, losses, 0.0)
        rest = finite - interval * np.floor(finite / interval)
        lost = counts @ (mass * rest).sum(axis=1) - interval * math.sqrt(counts.sum() * -math.log(MISSED) / 2)
        found = optimistic_pld(np.zeros(1), np.asarray([max(lost, 0.0)]), interval)
        for log_masses, values, count in zip(self.first, losses, counts, strict=True):
            several = self_composed(optimistic_pld(log_masses, values, interval), int(count))
            if several is None:
                return None
            found = found.compose(several)
        return found

    @property
    def spread(self) -> float:
        finite = np.where(np.isfinite(self._losses), self._losses, 0.0)
        mass = np.exp(self.first)
        variance = (mass * finite**2).sum(axis=1) - (mass * finite).sum(axis=1) ** 2
        return math.sqrt(max(float(np.bincount(self.law, minlength=len(mass)) @ variance), 0.0))

    @property
    def composed(self) -> int:
        return len(self.where)


def label_rows(
    plain: Callable[[np.random.Generator], Labels],
    differs: NDArray[np.bool_],
    inputs: NDArray[Any],
    laws: Callable[[NDArray[Any]], tuple[Floats, Floats]],
    outcomes: Labels,
    most: int | None = None,
) -> LabelRows:
    """Return the comparison of labels that differ in the rows `differs`; `laws` is called on distinct inputs."""
    where = np.flatnonzero(differs)
    distinct, law = np.unique(inputs[where], axis=0, return_inverse=True)
    return LabelRows(plain, where, law.reshape(-1), *laws(distinct), outcomes, most)
