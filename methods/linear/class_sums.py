"""Shared by heads that use one noisy table of sums: clipped rows, their sums by class, and the accounting.

A record is a row of features, clipped to L2 norm C, and enters only the sum of its own class. Adding or removing it
moves the table of sums, (classes, d), in one row, by at most C: the L2 sensitivity is C. Replacing it moves the table
by at most 2 C: within one class by the distance between two rows, 2 C if they are opposite; across classes by sqrt(2)
C. A replace-one budget therefore uses 2 C.

One Gaussian release has an exact cost (Balle and Wang, ICML 2018), so claimed and proven epsilon agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.interface import Adjacency, Budget, Gaussian, setting
from bench.methods.linear.family import layer_of
from bench.methods.shared.calibration import ClaimedBy, with_least_noise
from bench.methods.shared.clipping import EXACT, ROWS
from bench.methods.shared.transfer import OnBackbone, TransferConfig, with_digest
from bench.models.frozen_backbone import FrozenTransfer

CHOSEN = "ours: chosen for all data sets on Fashion-MNIST's public records, which come from its test file"


@dataclass(frozen=True)
class ClassSumsConfig(TransferConfig):
    """Settings of a head that is computed from one noisy table of sums."""

    noise_multiplier: float = setting(1.0, "calibrated to the budget", gt=0)


class ClassSums(ClaimedBy, OnBackbone):
    """A head computed from one Gaussian release of sums over the private records; a subclass defines the sums."""

    adjacency = Adjacency.ADD_REMOVE
    claimed_by = EXACT
    claimed_in = "Balle and Wang, ICML 2018 (arXiv:1805.06530), theorem 8: the exact cost of Gaussian noise"

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with its weights named and the least noise whose exact cost fits `budget`."""
        return with_digest(with_least_noise(self, budget, EXACT, EXACT, tolerance=1e-6), self.facts)

    def charges(self) -> list[Gaussian]:
        return [Gaussian(self.config.noise_multiplier, adjacency=self.adjacency)]


def class_sums(rows: Iterator[Tensor], labels: Tensor, classes: int) -> Tensor:
    """Return the sum of the rows of each class, float64 (classes, d); `labels` is int64 (n,)."""
    # As in the ledger's mechanisms, a label outside the classes raises no error, which would reveal one record.
    known = labels.where((labels >= 0) & (labels < classes), 0)
    parts = zip(rows, torch.split(known, ROWS), strict=True)
    return torch.stack([torch.nn.functional.one_hot(own, classes).to(x).T @ x for x, own in parts]).sum(0)


def set_head(student: FrozenTransfer, weights: Tensor, bias: Tensor | None = None) -> None:
    """Give `student` a linear head on features of norm 1: `weights` (classes, d), `bias` (classes,), 0 for None."""
    layer = layer_of(student)
    with torch.no_grad():
        layer.weight.copy_(weights)
        if bias is not None:
            layer.bias.copy_(bias)
