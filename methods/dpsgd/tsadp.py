"""DP-SGD with tempered sigmoid activations.

Papernot et al., "Tempered Sigmoid Activations for Deep Learning with Differential Privacy", AAAI 2021
(arXiv:2007.14191); settings of Tramer and Boneh 2021, whose net is the paper's with tanh.

Threat model: the attacker holds the released weights and may know all records but one. Private: images and labels.
Public: the number of records and the activation ``scale * sigmoid(inverse_temperature * x) - offset``. Released: the
student. Unit record, adjacency add-remove, as zero-out (see :mod:`bench.methods.dpsgd.dp_sgd`): Poisson batches, each
gradient clipped to `max_grad_norm` in L2, Gaussian noise of `noise_multiplier` times that on the sum, calibrated to the
budget.

The activation does not change the cost. The paper tunes its three numbers on the data set that it reports, and charges
nothing for that; the default is the one of its code, which is tanh, so that no record chose it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.interface import BenchError, Budget, register_method, setting
from bench.methods.dpsgd.dp_sgd import DPSGD, DPSGDConfig
from bench.methods.shared.settings_checks import positive

SNIPPET = "Papernot et al. 2021, the paper's code of the activation, its default"
NETS = ("tempered_cnn_mnist", "tempered_cnn_cifar")


@dataclass(frozen=True)
class TSADPConfig(DPSGDConfig):
    """Settings of DP-SGD, and of the activation."""

    student: str = setting("tempered_cnn_mnist", "Papernot et al. 2021: the net for MNIST and Fashion-MNIST")
    scale: float = setting(2.0, SNIPPET)
    inverse_temperature: float = setting(2.0, SNIPPET)
    offset: float = setting(1.0, SNIPPET)


@register_method("tsadp")
class TSADP(DPSGD):
    """DP-SGD of a net with tempered sigmoids."""

    config: TSADPConfig
    version = 1
    citation = "Papernot et al. 2021; Tramer and Boneh 2021"

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the least noise that keeps the claim or the PLD (proven) within `budget`."""
        positive(self.config, "scale", "inverse_temperature")
        if self.config.student not in NETS:
            raise BenchError(
                f"{self.name} needs a student with tempered sigmoids, and {self.config.student} has none. Accepted as "
                f"student: {', '.join(NETS)}."
            )
        return super().calibrate(budget)

    def student_options(self) -> dict[str, Any]:
        """See :meth:`bench.methods.dpsgd.dp_sgd.DPSGD.student_options`."""
        return {name: getattr(self.config, name) for name in ("scale", "inverse_temperature", "offset")}
