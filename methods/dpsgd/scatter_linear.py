"""DP-SGD of a linear classifier of scattering coefficients: features that nobody trained.

Tramer and Boneh, "Differentially Private Learning Needs Better Features (or Much More Data)", ICLR 2021, section 3.
They normalise coefficients in groups within each image, or by noisy statistics of the private records, which they
charge for; both are built here (see :mod:`bench.methods.dpsgd.scatter`).

Threat model: the attacker holds the released weights and may know all records but one. Private: images and labels.
Public: the number of records, the scattering transform. Released: the student, which transforms images itself. Unit
record, adjacency add-remove, as zero-out (see :mod:`bench.methods.dpsgd.dp_sgd`): Poisson batches, each gradient
clipped to `max_grad_norm` in L2, Gaussian noise of `noise_multiplier` times that on the sum, calibrated to the budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bench.interface import register_method, setting
from bench.methods.dpsgd.scatter import RUNS, ScatterConfig, ScatterDPSGD


@dataclass(frozen=True)
class ScatterLinearConfig(ScatterConfig):
    """Settings for MNIST; those of other data sets are in `by_dataset`."""

    student: str = setting("scatter_linear", "Tramer and Boneh 2021, section 3")
    epochs: float = setting(50.0, "ours: near the paper's number of steps at epsilon 3, a whole number of epochs")
    batch_size: int = setting(4_096, RUNS + "MNIST, linear")
    lr: float = setting(8.0, RUNS + "MNIST, linear")
    noise_multiplier: float = setting(3.04, RUNS + "MNIST, linear; calibrated to the budget")


@register_method("scatter-linear")
class ScatterLinear(ScatterDPSGD):
    """Poisson batches, per-example clipping, Gaussian noise on one layer over scattering coefficients."""

    config: ScatterLinearConfig
    # Of CIFAR-10's public records, at rates 4 and 2: 57.3% and 60.4% right at a proven 1, 65.8% and 66.1% at 3.
    in_colour: ClassVar[dict[str, Any]] = {"lr": 2.0, "scale_lr": False}
    by_dataset: ClassVar[dict[str, dict[str, Any]]] = {
        "fmnist": {"batch_size": 8_192, "lr": 16.0, "noise_multiplier": 4.05},
        "cifar10": {
            "batch_size": 8_192, "lr": 4.0, "epochs": 60.0, "noise_multiplier": 5.67, "statistics_noise": 8.0,
        },
    }  # fmt: skip
