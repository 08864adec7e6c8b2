"""The sensitivity test: one record moves a mechanism's input by at most the charged sensitivity.

The ledger cannot verify the sensitivity that a method states, such as a norm bound or one vote per teacher. Here the
method runs with a ledger in data-independent mode, with equal seeds, on a private set and on neighbours with one other
record. The ledger answers from public randomness alone, so any difference in mechanism inputs comes from that record.
A difference above the bound proves it wrong; without one it may still be wrong, since other neighbours may differ more.
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

Norm = Literal["votes", "l1", "l2", "labels", "records"]
TOLERANCE = 1.0001  # Factor for rounding in float32 nets.


@dataclass(frozen=True, slots=True)
class Given:
    """The input `values` of one mechanism call, and the largest change of one unit to them."""

    mechanism: str
    values: NDArray[Any]
    norm: Norm
    bound: float

    def moved(self, other: Given) -> float:
        """Return the distance to `other` in the norm: per-query maximum for votes, a count for labels and records."""
        difference = np.abs(np.asarray(self.values, dtype=np.float64) - np.asarray(other.values, dtype=np.float64))
        if self.norm == "votes":
            return float(difference.sum(axis=1).max(initial=0.0) / 2)
        if self.norm == "labels":
            return float((difference > 0).sum())
        if self.norm == "records":
            return float((difference > 0).any(axis=(0, *range(2, difference.ndim))).sum())
        return float(difference.sum()) if self.norm == "l1" else float(np.sqrt((difference**2).sum()))


class ProbeLedger(Ledger):
    """A ledger that keeps its inputs; for checks on synthetic data only."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.given: list[Given] = []


def _keeping(name: str, norm: Norm) -> Callable[..., Any]:
    """Return the ledger's method `name`, keeping its input first."""
    mechanism = getattr(Ledger, name)

    @functools.wraps(mechanism)
    def method(ledger: ProbeLedger, values: NDArray[Any], *args: Any, **options: Any) -> Any:
        # Under the unit query label one record may change the label of every query.
        if norm != "labels" or ledger.unit is not PrivacyUnit.QUERY_LABEL:
            kept = np.vstack([values, args[0]]) if name == "sampled_noisy_max" else np.array(values)
            ledger.given.append(Given(name, kept, norm, options.get("sensitivity", 1.0)))
        return mechanism(ledger, values, *args, **options)

    return method


_NORMS: dict[str, Norm] = {
    "noisy_max": "votes", "noisy_max_gaussian": "votes", "confident_noisy_max": "votes", "gaussian": "l2",
    "laplace": "l1", "randomized_response": "labels", "top_k_randomized_response": "labels",
    "sampled_noisy_max": "records", "sampled_gaussian": "records",
}  # fmt: skip
for _name, _norm in _NORMS.items():
    setattr(ProbeLedger, _name, _keeping(_name, _norm))


def neighbours(data: PrivateData, unit: PrivacyUnit, count: int = 2, seed: int = 0) -> list[PrivateData]:
    """Return sets that differ from `data` in one record each, by much: a bright pattern with another label.

    For the unit label only the label differs. No class loses its last record.
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
    """Return a description of the first call whose values differ by more than its charge; empty if none does."""
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
                "records": f"what the mechanism takes of {moved:.0f} records",
                "l1": f"the values by {moved:.3g} (L1)",
                "l2": f"the values by {moved:.3g} (L2)",
            }[first.norm]
            return (
                f"one record moves {what} in its call {number + 1} of {first.mechanism}, which is charged for "
                f"{bound:.3g}"
            )
    return ""
