"""The sensitivity test: does one record move a mechanism's input by no more than the mechanism is charged for?

A mechanism's noise is sized for a sensitivity that the method states: a vector of at most this norm, one vote of one
teacher. The ledger cannot see whether that is so. Here a method runs with a ledger in data-independent mode on a
private set and on neighbours of it, which differ in one record, with the same seeds; the inputs of each mechanism are
compared. Since a data-independent ledger answers from public randomness alone, everything that differs comes from that
record.

A difference above the bound is a proof that the bound is wrong. None is no proof that it is right: other neighbours may
differ more. The neighbours are chosen to differ much: a record becomes a bright pattern with another label.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
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


def _keeping(name: str, norm: Norm) -> Callable[..., Any]:
    """Return the ledger's method `name` such that it first keeps what it is given."""
    mechanism = getattr(Ledger, name)

    @functools.wraps(mechanism)
    def method(ledger: ProbeLedger, values: NDArray[Any], *args: Any, **options: Any) -> Any:
        # Under the unit query label one record may change the label of every query.
        if norm != "labels" or ledger.unit is not PrivacyUnit.QUERY_LABEL:
            ledger.given.append(Given(name, np.array(values), norm, options.get("sensitivity", 1.0)))
        return mechanism(ledger, values, *args, **options)

    return method


_NORMS: dict[str, Norm] = {
    "noisy_max": "votes", "noisy_max_gaussian": "votes", "confident_noisy_max": "votes", "gaussian": "l2",
    "laplace": "l1", "randomized_response": "labels", "top_k_randomized_response": "labels",
}  # fmt: skip
for _name, _norm in _NORMS.items():
    setattr(ProbeLedger, _name, _keeping(_name, _norm))


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
