"""Randomised response for every label, and a net that learns from the noisy labels.

Warner 1965, as the baseline of Ghazi, Golowich, Kumar, Manurangsi, Zhang, "Deep Learning with Label Differential
Privacy", NeurIPS 2021 (arXiv:2102.06062). Once, each label is kept with probability ``e^eps / (e^eps + K - 1)``, else
replaced by a uniform other class; the loss corrects for that distribution (Patrini et al. 2017, see
:mod:`bench.methods.label.family`).

Threat model: the attacker holds the student and the noisy labels, all images and all labels but one. Private: labels.
Public: the images of the private records. Released: the student and the noisy labels. Unit label, adjacency replace,
sensitivity any label: epsilon-DP for each label; labels of different records are different units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from bench.interface import Claim, Context, Ledger, PrivateData, register_method, setting
from bench.methods.label.family import NoisyLabelConfig, OneRelease, Release, response_law
from bench.privacy.accounting.claims import label_response
from bench.privacy.events.events import RandomizedResponse


@dataclass(frozen=True)
class RRConfig(NoisyLabelConfig):
    """Settings of randomised response."""

    loss: Literal["cross-entropy", "likelihood"] = setting("likelihood", "Patrini et al. 2017, section 4: forward")


@register_method("rr")
class RR(OneRelease):
    """Randomised response over all classes."""

    config: RRConfig
    citation = "Ghazi et al. 2021, after Warner 1965"

    def claimed(self, delta: float) -> Claim:
        return label_response(self.config.epsilon, delta)

    def charges(self) -> list[RandomizedResponse]:
        return [RandomizedResponse(self.config.epsilon, self.facts.classes, answers=self.facts.private_records)]

    def release(self, private: PrivateData, ledger: Ledger, context: Context) -> Release:
        """Release all labels by randomised response."""
        classes = private.facts.classes
        labels = ledger.randomized_response(private.labels.numpy(), epsilon=self.config.epsilon, classes=classes)
        law = response_law(labels, self.config.epsilon, classes)
        return law, labels, {"noisy_labels": torch.from_numpy(labels)}
