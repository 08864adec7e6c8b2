"""Events that choose the candidate with the largest score, re-exported by :mod:`bench.privacy.events.events`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import ArrayLike

from bench.privacy.events import losses
from bench.privacy.events.base_event import Event, Floats, positive, whole


@dataclass(frozen=True, slots=True)
class Choice(Event):
    """`count` choices of pure `epsilon` each; one unit may change them all."""

    epsilon: float
    count: int = 1
    counted: ClassVar[str] = "count"

    def __post_init__(self) -> None:
        positive("epsilon of a choice", self.epsilon)
        whole("the number of choices", self.count)

    def twice(self) -> dict[str, Any]:
        return {"epsilon": 2 * self.epsilon}

    def pure_step(self) -> tuple[float, int]:
        return self.epsilon, self.count


@dataclass(frozen=True, slots=True)
class Exponential(Choice):
    """The exponential mechanism: a candidate with odds ``e^(epsilon score / d)``, i.e. Gumbel noise on scores.

    One unit moves the difference of any two scores by at most d: twice a score's sensitivity, or once if all scores
    move the same way (monotonic). Losses then lie within a range of epsilon (Durfee and Rogers 2019, arXiv:1905.04273),
    which costs about a quarter of the Renyi divergence of general mechanisms with this pure epsilon. The bounds are the
    worst case of that range: see :func:`bench.privacy.events.losses.bounded_range_rdp`.
    """

    kind: ClassVar[str] = "exponential"

    def describe(self) -> str:
        return f"exponential mechanism, epsilon {self.epsilon:g}, {self.count} choices"

    def rdp(self, orders: ArrayLike) -> Floats:
        """Return the largest Renyi divergence of losses within a range of epsilon."""
        return self.count * losses.bounded_range_rdp(self.epsilon, orders)

    def pld(self, interval: float = losses.INTERVAL) -> Any | None:
        """Return the PLD that dominates all losses within a range of epsilon."""
        return losses.bounded_range_pld(self.epsilon, self.count, interval)


@dataclass(frozen=True, slots=True)
class PermuteAndFlip(Choice):
    """Report-noisy-max with exponential noise of mean ``d / epsilon``, the same as permute-and-flip.

    McKenna and Sheldon 2020 (arXiv:2010.12603); Ding et al. 2021 (arXiv:2105.07260) show that both are the same. d is
    as in :class:`Exponential`. At equal epsilon it never errs more than the exponential mechanism, but its losses span
    the full range of a pure epsilon mechanism, so several choices cost more.
    """

    kind: ClassVar[str] = "permute-and-flip"

    def describe(self) -> str:
        return f"permute-and-flip, epsilon {self.epsilon:g}, {self.count} choices"

    def rdp(self, orders: ArrayLike) -> Floats:
        """Return the Renyi divergence of randomised response over two answers, the worst of this pure epsilon."""
        return self.count * losses.randomized_response_rdp(self.epsilon, 2, orders)

    def pld(self, interval: float = losses.INTERVAL) -> Any | None:
        """Return the PLD of randomised response over two answers, the worst of this pure epsilon."""
        return losses.pure_pld(self.epsilon, self.count, interval)
