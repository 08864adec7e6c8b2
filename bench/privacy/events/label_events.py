"""Events that hide a label: randomised response, re-exported by :mod:`bench.privacy.events.events`."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from numpy.typing import ArrayLike

from bench.core.errors import BenchError
from bench.core.types import PrivacyUnit
from bench.privacy.events import losses
from bench.privacy.events.base_event import Event, Floats, positive, whole


class LabelResponse(Event):
    """Randomised response for `answers` labels of different records, `count` times each; only `count` composes."""

    __slots__ = ()
    epsilon: float
    classes: int
    count: int
    answers: int

    def __post_init__(self) -> None:
        positive("epsilon of randomised response", self.epsilon)
        whole("the number of classes", self.classes, 2)
        whole("how often a label is answered", self.count)
        whole("the number of labels answered", self.answers)

    @property
    @abc.abstractmethod
    def outcomes(self) -> int:
        """The number of possible answers."""

    @property
    def keep_probability(self) -> float:
        """The probability of answering the true label if it is a possible answer."""
        return 1 / (1 + (self.outcomes - 1) * math.exp(-self.epsilon))

    def for_record(self) -> Event:
        """Return the event for one training record of the teacher, which can change every label, so answers compose."""
        return replace(self, count=self.count * self.answers, answers=1, unit=PrivacyUnit.RECORD)  # type: ignore[call-arg]

    def pure_step(self) -> tuple[float, int]:
        return self.epsilon, self.count

    def rdp(self, orders: ArrayLike) -> Floats:
        """Return the Renyi divergence between two labels."""
        return self.count * losses.randomized_response_rdp(self.epsilon, self.outcomes, orders)

    def pld(self, interval: float = losses.INTERVAL) -> Any | None:
        """Return the PLD between two labels."""
        return losses.randomized_response_pld(self.epsilon, self.outcomes, self.count, interval)


@dataclass(frozen=True, slots=True)
class RandomizedResponse(LabelResponse):
    """A label kept with probability ``e^epsilon / (e^epsilon + classes - 1)``, else another class, uniformly.

    Sensitivity: any label. Unit: label; adjacency: replace.
    """

    epsilon: float
    classes: int
    count: int = 1
    answers: int = field(default=1, kw_only=True)
    unit: PrivacyUnit = field(default=PrivacyUnit.LABEL, kw_only=True)
    kind: ClassVar[str] = "randomized-response"
    counted: ClassVar[str] = "count"

    @property
    def outcomes(self) -> int:
        """The number of classes."""
        return self.classes

    def describe(self) -> str:
        return f"randomised response over {self.classes} classes, epsilon {self.epsilon:g}, {self.count} times"


@dataclass(frozen=True, slots=True)
class TopKRandomizedResponse(LabelResponse):
    """Randomised response over a set of `k` classes; a label outside the set gives a uniform one from the set.

    The set must be chosen without the private label, for instance from a student's prediction. Sensitivity: any label.
    Unit: label; adjacency: replace. Two labels inside the set are the worst case, so the cost is that of k classes.
    """

    epsilon: float
    k: int
    classes: int
    count: int = 1
    answers: int = field(default=1, kw_only=True)
    unit: PrivacyUnit = field(default=PrivacyUnit.LABEL, kw_only=True)
    kind: ClassVar[str] = "top-k-randomized-response"
    counted: ClassVar[str] = "count"

    def __post_init__(self) -> None:
        LabelResponse.__post_init__(self)  # not super(): slots make another class
        whole("k", self.k, 2)
        if self.k > self.classes:
            raise BenchError(f"k is at most the number of classes, {self.classes}, not {self.k}.")

    @property
    def outcomes(self) -> int:
        """The size of the set."""
        return self.k

    def describe(self) -> str:
        likely = f"the top {self.k} of {self.classes} classes"
        return f"randomised response over {likely}, epsilon {self.epsilon:g}, {self.count} times"


@dataclass(frozen=True, slots=True)
class PriorRandomizedResponse(RandomizedResponse):
    """Randomised response over each label's most probable classes; their number depends on a prior.

    The prior must be known without the private label. Sensitivity: any label. Unit: label; adjacency: replace. The cost
    is that of sets of two, the maximum for this pure epsilon.
    """

    kind: ClassVar[str] = "prior-randomized-response"

    @property
    def outcomes(self) -> int:
        """The smallest informative set."""
        return 2

    def describe(self) -> str:
        likely = f"the likeliest of {self.classes} classes"
        return f"randomised response over {likely}, epsilon {self.epsilon:g}, {self.count} times"
