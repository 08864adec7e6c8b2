"""The sensitivity test: does one record move what a mechanism is given by no more than it is charged for?

A mechanism's noise is sized for a sensitivity that the method states: a vector of at most this norm, one vote of one
teacher. The ledger cannot see whether that is so. Here a method runs with a ledger in data-independent mode on a
private set and on neighbours of it, which differ in one record, with the same seeds; what it hands to each mechanism is
compared. Since a data-independent ledger answers from public randomness alone, everything that differs comes from that
record.

A difference above the bound is a proof that the bound is wrong. None is no proof that it is right: other neighbours may
differ more. The neighbours are chosen to differ much: a record becomes a bright pattern with another label.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bench.core.types import Adjacency, PrivacyUnit, PrivateData
from bench.privacy.ledger import Ledger

if TYPE_CHECKING:
    from numpy.typing import NDArray

Norm = Literal["votes", "l1", "l2", "labels"]
TOLERANCE = 1.0001
"""What rounding in float32 nets may add."""


@dataclass(frozen=True, slots=True)
class Given:
    """What one call handed to a mechanism: `values`, and the largest change that one unit may make to them."""

    mechanism: str
    values: NDArray[Any]
    norm: Norm
    bound: float

    def moved(self, other: Given) -> float:
        """Return how far `other` is, in the norm: the largest of any query for votes, a count for labels."""
        difference = np.abs(np.asarray(self.values, dtype=np.float64) - np.asarray(other.values, dtype=np.float64))
        if self.norm == "votes":
            return float(difference.sum(axis=1).max(initial=0.0) / 2)
        if self.norm == "labels":
            return float((difference > 0).sum())
        return float(difference.sum()) if self.norm == "l1" else float(np.sqrt((difference**2).sum()))


class ProbeLedger(Ledger):
    """A ledger that keeps what it is given; for checks on made-up data only."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.given: list[Given] = []

    def noisy_max(self, votes: NDArray[Any], *, teachers: int, gamma: float) -> NDArray[np.int64]:
        """See :meth:`Ledger.noisy_max`."""
        self.given.append(Given("noisy_max", np.array(votes), "votes", 1.0))
        return super().noisy_max(votes, teachers=teachers, gamma=gamma)

    def noisy_max_gaussian(self, votes: NDArray[Any], *, teachers: int, sigma: float) -> NDArray[np.int64]:
        """See :meth:`Ledger.noisy_max_gaussian`."""
        self.given.append(Given("noisy_max_gaussian", np.array(votes), "votes", 1.0))
        return super().noisy_max_gaussian(votes, teachers=teachers, sigma=sigma)

    def confident_noisy_max(self, votes: NDArray[Any], **options: Any) -> NDArray[np.int64]:
        """See :meth:`Ledger.confident_noisy_max`."""
        self.given.append(Given("confident_noisy_max", np.array(votes), "votes", 1.0))
        return super().confident_noisy_max(votes, **options)

    def gaussian(self, values: NDArray[Any], *, sensitivity: float, noise_multiplier: float) -> NDArray[np.float64]:
        """See :meth:`Ledger.gaussian`."""
        self.given.append(Given("gaussian", np.array(values), "l2", sensitivity))
        return super().gaussian(values, sensitivity=sensitivity, noise_multiplier=noise_multiplier)

    def laplace(self, values: NDArray[Any], *, sensitivity: float, noise_multiplier: float) -> NDArray[np.float64]:
        """See :meth:`Ledger.laplace`."""
        self.given.append(Given("laplace", np.array(values), "l1", sensitivity))
        return super().laplace(values, sensitivity=sensitivity, noise_multiplier=noise_multiplier)

    def randomized_response(self, labels: NDArray[Any], *, epsilon: float, classes: int) -> NDArray[np.int64]:
        """See :meth:`Ledger.randomized_response`."""
        if self.unit is not PrivacyUnit.QUERY_LABEL:  # there, one record may change the label of every query
            self.given.append(Given("randomized_response", np.array(labels), "labels", 1.0))
        return super().randomized_response(labels, epsilon=epsilon, classes=classes)

    def top_k_randomized_response(
        self, labels: NDArray[Any], candidates: NDArray[Any], **options: Any
    ) -> NDArray[np.int64]:
        """See :meth:`Ledger.top_k_randomized_response`."""
        if self.unit is not PrivacyUnit.QUERY_LABEL:
            self.given.append(Given("top_k_randomized_response", np.array(labels), "labels", 1.0))
        return super().top_k_randomized_response(labels, candidates, **options)


def neighbours(data: PrivateData, unit: PrivacyUnit, count: int = 2, seed: int = 0) -> list[PrivateData]:
    """Return sets that differ from `data` in one record each: a bright pattern, or only its label for the unit label.

    No class loses its last record.
    """
    import torch

    generator = np.random.default_rng(seed)
    labels = data.labels.numpy()
    common = np.flatnonzero(np.bincount(labels)[labels] > 1)
    found = []
    for position in generator.choice(common, count, replace=False):
        images, changed = data.images.clone(), data.labels.clone()
        if unit is not PrivacyUnit.LABEL:
            images[position] = torch.from_numpy(generator.integers(0, 2, data.facts.shape).astype(np.uint8) * 255)
        shift = 1 + int(generator.integers(data.facts.classes - 1))
        changed[position] = (changed[position] + shift) % data.facts.classes
        found.append(dataclasses.replace(data, images=images, labels=changed))
    return found


def violation(base: list[Given], other: list[Given], adjacency: Adjacency) -> str:
    """Return the first call whose values differ by more than it is charged for, in words; empty where none does."""
    if len(base) != len(other):
        return f"it called mechanisms {len(base)} times on a private set and {len(other)} times on a neighbour of it"
    for number, (first, second) in enumerate(zip(base, other, strict=True)):
        if first.values.shape != second.values.shape or first.mechanism != second.mechanism:
            return f"its call {number + 1} is another on a neighbouring private set"
        # Replacing a record is removing one and adding another: twice the norm, but still one teacher's vote.
        steps = 2 if adjacency is Adjacency.ADD_REMOVE and first.norm in ("l1", "l2") else 1
        bound = steps * max(first.bound, second.bound)
        moved = first.moved(second)
        if moved > bound * TOLERANCE:
            what = {
                "votes": f"{moved:.0f} votes of one query",
                "labels": f"{moved:.0f} labels",
                "l1": f"the values by {moved:.3g} (L1)",
                "l2": f"the values by {moved:.3g} (L2)",
            }[first.norm]
            return (
                f"one record moves {what} in its call {number + 1} of {first.mechanism}, which is charged for "
                f"{bound:.3g}"
            )
    return ""
