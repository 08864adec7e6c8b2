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
from typing import TYPE_CHECKING, Any, ClassVar

from bench.interface import BenchError, Budget, Facts, register_method, setting
from bench.methods.dpsgd.dp_sgd import DPSGD, DPSGDConfig, processed

if TYPE_CHECKING:
    from bench.privacy.dpsgd.dp_sgd import DPSGDRun


@dataclass(frozen=True)
class TopAggConfig(DPSGDConfig):
    """Settings of DP-SGD, and of the compression."""

    kept: float = setting(0.25, "ours: about the 200 of 784 entries of the authors' code AI-secure/DataLens, README.md")
    threshold: float = setting(0.0, "ours: none")


@register_method("topagg")
class TopAgg(DPSGD):
    """Poisson batches, per-example selection and clipping, Gaussian noise, a threshold; through the ledger."""

    Config: ClassVar[type] = TopAggConfig
    version = 1
    citation = "Wang et al. 2021; Tramer and Boneh 2021"

    @classmethod
    def calibrate(cls, config: Any, budget: Budget, facts: Facts) -> Any:
        """Return `config` with the least noise that keeps the claim or the PLD (proven) within `budget`."""
        if not 0 < config.kept <= 1:
            raise BenchError(f"kept must lie in (0, 1], not {config.kept}: the share of entries. Try 0.25.")
        if not config.threshold >= 0:
            raise BenchError(f"threshold must be at least 0, not {config.threshold}: deviations of the noise. Try 0.5.")
        return super().calibrate(config, budget, facts)

    def dp_sgd_run(self, *given: Any, **options: Any) -> DPSGDRun:
        """Return the run's settings for the ledger."""
        run = super().dp_sgd_run(*given, **options)
        deviation = run.noise_multiplier * run.max_grad_norm / run.expected_batch_size
        config = given[0]
        optimizer = processed(run.optimizer, lambda noisy: noisy * (noisy.abs() >= config.threshold * deviation))
        return dataclasses.replace(run, kept_entries=config.kept, optimizer=optimizer)
