"""TopAgg in the form of DP-SGD: each record's gradient keeps its largest entries alone.

Wang et al., "DataLens: Scalable Privacy Preserving Training via Gradient Compression and Aggregation", CCS 2021
(arXiv:2103.11109): the compression of its teachers' gradients, which the abstract says was adapted to DP-SGD. The
settings of that form were not found, and the paper's stochastic signs are left out; net and settings are those of
DP-SGD, after Tramer and Boneh 2021.

Threat model: the attacker holds the released weights and may know all records but one. Private: images and labels.
Public: the number of records. Released: the student. Unit record, adjacency add-remove, as zero-out (see
:mod:`bench.methods.dpsgd.dp_sgd`): Poisson batches. Of each gradient the share `kept` of its entries stays, the largest
ones; what is left is clipped to `max_grad_norm` in L2. Which entries stay depends on the record: they are part of the
clipped vector, and Gaussian noise of `noise_multiplier` times the bound, calibrated to the budget, goes on all entries
of the sum, not on those that some record kept, which would show the support. So the cost is that of DP-SGD. Entries of
the noisy sum below `threshold` deviations of the noise are then set to zero, which is post-processing. The selection
alone takes nothing from the noise.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from bench.core.progress import Stage
from bench.interface import BenchError, Budget, register_method, setting
from bench.methods.dpsgd.dp_sgd import DPSGD, DPSGDConfig, processed
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from bench.storage.checkpoint import Checkpoint


@dataclass(frozen=True)
class TopAggConfig(DPSGDConfig):
    """Settings of DP-SGD, and of the compression."""

    kept: float = setting(0.25, "ours: about the 200 of 784 entries of the authors' code AI-secure/DataLens, README.md")
    threshold: float = setting(0.0, "ours: none")


@register_method("topagg")
class TopAgg(DPSGD):
    """Poisson batches, per-example selection and clipping, Gaussian noise, a threshold; through the ledger."""

    config: TopAggConfig
    version = 1
    citation = "Wang et al. 2021; Tramer and Boneh 2021"

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the least noise that keeps the claim or the PLD (proven) within `budget`."""
        if not 0 < self.config.kept <= 1:
            raise BenchError(f"kept must lie in (0, 1], not {self.config.kept}: the share of entries. Try 0.25.")
        if not self.config.threshold >= 0:
            raise BenchError(
                f"threshold must be at least 0, not {self.config.threshold}: deviations of the noise. Try 0.5."
            )
        return super().calibrate(budget)

    def dp_sgd_run(self, stage: Stage, checkpoint: Checkpoint | None = None) -> DPSGDRun:
        """Return the run's settings for the ledger."""
        run = super().dp_sgd_run(stage, checkpoint)
        deviation = run.noise_multiplier * run.max_grad_norm / run.expected_batch_size
        optimizer = processed(run.optimizer, lambda noisy: noisy * (noisy.abs() >= self.config.threshold * deviation))
        return dataclasses.replace(run, kept_entries=self.config.kept, optimizer=optimizer)
