"""DP-SGD with another way of clipping (GM-DP, TopAgg) or another activation (TSADP).

Threat model: the attacker holds the released weights and may know all records but one. Private: images and labels.
Public: the number of records and, for TSADP, the activation. Released: the student. Unit record, adjacency add-remove,
as zero-out (see :mod:`bench.methods.dpsgd.dp_sgd`): Poisson batches, each record's gradient clipped to at most
`max_grad_norm` in L2, Gaussian noise of `noise_multiplier` times that on all entries of the sum, calibrated to the
budget. So the cost is DP-SGD's. Settings are those of DP-SGD, after Tramer and Boneh 2021, unless named.

``gm-dp``: McMahan et al., "A General Approach to Adding Differential Privacy to Iterative Training Procedures",
arXiv:1812.06210, separate clipping of vector groups: the gradient of each of m layers, weights and bias together, is
clipped to ``max_grad_norm / sqrt(m)``. With equal bounds the paper's noise equals DP-SGD's: its standard deviation is
``noise_multiplier * sqrt(m)`` times a layer's bound.

``topagg``: Wang et al., "DataLens: Scalable Privacy Preserving Training via Gradient Compression and Aggregation", CCS
2021 (arXiv:2103.11109), the compression of its teachers' gradients, which the abstract says was adapted to DP-SGD. The
settings of that form were not found, and the paper's stochastic signs are left out. The largest entries of each
gradient, a share `kept`, are kept and clipped. Which entries these are depends on the record, so all entries get noise:
noise only on entries that some record kept would reveal the support. Entries of the noisy sum below `threshold`
standard deviations of the noise are then set to zero, which is post-processing. Selection by itself does not reduce the
noise.

``tsadp``: Papernot et al., "Tempered Sigmoid Activations for Deep Learning with Differential Privacy", AAAI 2021
(arXiv:2007.14191): ``scale * sigmoid(inverse_temperature * x) - offset`` in place of tanh in the paper's net. The paper
tunes these three numbers on the data set that it reports, at no charge; the default is the code's, which is tanh, so no
record influenced it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from bench.core.progress import Stage
from bench.interface import BenchError, Budget, register_method, setting
from bench.methods.dpsgd.dp_sgd import DPSGD, DPSGDConfig, processed
from bench.privacy.dpsgd.clipping import Clipping, PerLayer, TopK
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from bench.storage.checkpoint import Checkpoint

SNIPPET = "Papernot et al. 2021, the paper's code of the activation, its default"
NETS = ("tempered_cnn_mnist", "tempered_cnn_cifar")


@register_method("gm-dp")
class GMDP(DPSGD):
    """Poisson batches, per-example clipping layer by layer, Gaussian noise; through the ledger."""

    version = 1
    citation = "McMahan et al. 2018"

    def clipping(self) -> Clipping:
        return PerLayer(self.config.max_grad_norm)


@dataclass(frozen=True)
class TopAggConfig(DPSGDConfig):
    """Settings of DP-SGD, and of the compression."""

    kept: float = setting(
        0.25, "ours: about the 200 of 784 entries of the authors' code AI-secure/DataLens, README.md", gt=0, le=1
    )
    threshold: float = setting(0.0, "ours: none; in deviations of the noise", ge=0)


@register_method("topagg")
class TopAgg(DPSGD):
    """Poisson batches, per-example selection and clipping, Gaussian noise, a threshold; through the ledger."""

    config: TopAggConfig
    version = 1
    citation = "Wang et al. 2021; Tramer and Boneh 2021"

    def clipping(self) -> Clipping:
        return TopK(self.config.max_grad_norm, self.config.kept)

    def dp_sgd_run(self, stage: Stage, checkpoint: Checkpoint | None = None) -> DPSGDRun:
        run = super().dp_sgd_run(stage, checkpoint)
        deviation = run.noise_multiplier * run.clipping.norm / run.expected_batch_size
        optimizer = processed(run.optimizer, lambda noisy: noisy * (noisy.abs() >= self.config.threshold * deviation))
        return dataclasses.replace(run, optimizer=optimizer)


@dataclass(frozen=True)
class TSADPConfig(DPSGDConfig):
    """Settings of DP-SGD, and of the activation."""

    student: str = setting("tempered_cnn_mnist", "Papernot et al. 2021: the net for MNIST and Fashion-MNIST")
    scale: float = setting(2.0, SNIPPET, gt=0)
    inverse_temperature: float = setting(2.0, SNIPPET, gt=0)
    offset: float = setting(1.0, SNIPPET, gt=0)


@register_method("tsadp")
class TSADP(DPSGD):
    """DP-SGD of a net with tempered sigmoids."""

    config: TSADPConfig
    version = 1
    citation = "Papernot et al. 2021; Tramer and Boneh 2021"

    def calibrate(self, budget: Budget) -> Any:
        if self.config.student not in NETS:
            raise BenchError(
                f"{self.name} needs a student with tempered sigmoids, and {self.config.student} has none. Accepted as "
                f"student: {', '.join(NETS)}."
            )
        return super().calibrate(budget)

    def student_options(self) -> dict[str, Any]:
        return {name: getattr(self.config, name) for name in ("scale", "inverse_temperature", "offset")}
