"""ALIBI: Laplace noise on one-hot labels, and soft labels by Bayes' rule with the net as prior.

Malek, Mironov, Prasad, Shilov, Tramer, "Antipodes of Label Differential Privacy: PATE and ALIBI", NeurIPS 2021
(arXiv:2106.03408). Each label's one-hot code o gets Laplace noise of scale b on every entry, once. At every step a soft
label is the posterior, proportional to ``p_c exp(-|o - e_c|_1 / b)`` with the net's probabilities p; the loss is the
cross-entropy to it. With p held fixed in the posterior, its gradient equals the negative log-likelihood's, which is
computed instead (:mod:`bench.methods.label.family`). The authors also offer Gaussian noise, which is not implemented
here: the posterior in their code divides by the standard deviation, Bayes' rule by its square (``_map_normal`` in
``lib/alibi.py``).

Threat model: the attacker holds the student and the noisy codes, all images and all labels but one. Private: labels.
Public: the images of the private records. Released: the student and the noisy codes. Unit label, adjacency replace: a
label moves two entries of its own code by 1, so 2 in L1; ``b = 2 / epsilon``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from bench.interface import Claim, Context, Ledger, PrivateData, register_method, setting
from bench.methods.label.family import Floats, NoisyLabelConfig, OneRelease, Release, true_labels
from bench.privacy.accounting.claims import alibi
from bench.privacy.events.events import Laplace

SENSITIVITY = 2.0  # L1, of a one-hot code
CODE = "Malek et al. 2021, authors' code: train_cifar_alibi.py"


@dataclass(frozen=True)
class ALIBIConfig(NoisyLabelConfig):
    """Settings of ALIBI; the paper's data sets are CIFAR-10 and CIFAR-100."""

    student: str = setting("small_cnn", "ours: the paper's wide residual nets are for CIFAR")
    epochs: float = setting(200.0, CODE)
    batch_size: int = setting(128, CODE, ge=1)
    lr: float = setting(0.1, CODE + ", there after 30 epochs of warm-up, and in steps; here a cosine", gt=0)
    momentum: float = setting(0.9, CODE, ge=0, lt=1)
    weight_decay: float = setting(1e-4, CODE, ge=0)
    mixup: float = setting(0.0, CODE)
    loss: Literal["likelihood"] = setting("likelihood", "Malek et al. 2021, section on ALIBI: posterior as soft label")


@register_method("alibi")
class ALIBI(OneRelease):
    """Laplace noise on one-hot labels."""

    config: ALIBIConfig
    citation = "Malek et al. 2021"

    def claimed(self, delta: float) -> Claim:
        return alibi(SENSITIVITY / self.config.epsilon, delta)

    def charges(self) -> list[Laplace]:
        return [Laplace(1 / self.config.epsilon, unit=self.unit, adjacency=self.adjacency)]

    def release(self, private: PrivateData, ledger: Ledger, context: Context) -> Release:
        """Release all codes with noise, for a net to learn from their posteriors."""
        codes = np.eye(private.facts.classes)[true_labels(private)]
        noisy = ledger.laplace(codes, sensitivity=SENSITIVITY, noise_multiplier=1 / self.config.epsilon, entries=2)
        law = laplace_law(noisy, SENSITIVITY / self.config.epsilon)
        return law, None, {"noisy_codes": torch.from_numpy(noisy)}


def laplace_law(noisy: Floats, scale: float) -> Floats:
    """Return the density of noisy codes (n, classes) by label, (n, classes), relative to its largest in each row."""
    # |o - e_c|_1 differs between labels c only by |o_c - 1| - |o_c|.
    exponent = (np.abs(noisy) - np.abs(noisy - 1)) / scale
    law: Floats = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return law
