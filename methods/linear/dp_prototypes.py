"""Private prototypes: one noisy mean direction per class, and the class whose direction is nearest.

Wahdany, Jagielski, Dziedzic, Boenisch, "Beyond the Mean: Differentially Private Prototypes for Private Transfer
Learning", arXiv:2406.08039, the variant with means. Features have norm 1 (``methods/linear/family.py``), so no clipping
norm has to be chosen; a class's direction is its sum's, so its record count is not needed.

Threat model: the attacker holds the released directions and may know all records but one. Private: images and labels.
Public: the backbone and its weights. Released: the student, a linear head on the named backbone whose rows are the
noisy sums, scaled to norm 1. Unit record, adjacency add-remove: rows are clipped to norm 1, and one record moves the
table of sums by at most 1 in L2 (2 if it is replaced; see ``methods/linear/class_sums.py``); one Gaussian release.
Records in the public source have no guarantee.
"""

from __future__ import annotations

import torch

from bench.interface import Context, Ledger, PrivateData, PublicData, Released, register_method
from bench.methods.linear.class_sums import ClassSums, ClassSumsConfig, class_sums, set_head
from bench.methods.linear.family import begin, finish
from bench.methods.shared.clipping import clipped_rows


@register_method("dp-prototypes")
class DPPrototypes(ClassSums):
    """A head whose rows are the classes' feature sums, released once with Gaussian noise."""

    config: ClassSumsConfig
    citation = "after Wahdany et al. 2024"

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Release the noisy sums and point each class's weights in their direction."""
        features, student, options = begin(self.config, private, public, context)
        sums = class_sums(clipped_rows(features, 1.0), private.labels, private.facts.classes)
        noisy = ledger.gaussian(sums.numpy(), sensitivity=1.0, noise_multiplier=self.config.noise_multiplier)
        set_head(student, torch.nn.functional.normalize(torch.from_numpy(noisy), dim=1))
        return Released(finish(student), "frozen_transfer", options)
