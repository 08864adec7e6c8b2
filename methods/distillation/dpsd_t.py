"""DPSD-T: as DPSD, with the teacher as the generator's discriminator.

Liu, Ge, Wang, Li, Liu, "Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation",
section IV-F: generator training. There the teacher takes the student's place as discriminator; here the generator's
loss takes all its terms from the teacher, Eq. 7 included, which Algorithm 1, line 6, takes from the student.

Threat model, unit and annotation are those of :mod:`bench.methods.distillation.dpsd`. Private: images, labels and the
teacher. Public: the number of records. Released: the student, not the generator, for which the paper disclaims any
guarantee. The student has none either: it learns from that generator's images, which depend on the teacher without
noise (a bypass). Claimed: Theorem 1 for the annotations alone. Proven: infinite.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from bench.interface import Context, Ledger, PrivateData, register_method
from bench.methods.distillation.dpsd import DPSD
from bench.methods.distillation.dpsd_family import train_teacher


@register_method("dpsd-t")
class DPSDT(DPSD):
    """DPSD with a generator that the noiseless teacher drives."""

    bypass: ClassVar[str] = (
        "DPSD-T drives its generator by the teacher without noise, and the student learns from that generator's images"
    )
    repaired_by: ClassVar[str] = "dpsd-sound"
    releases_generator: ClassVar[bool] = False

    def discriminator(self, private: PrivateData, student: nn.Module, ledger: Ledger, context: Context) -> nn.Module:
        """Return the teacher, declared as a bypass."""
        ledger.bypass(self.bypass)
        return train_teacher(self.config, private, context)
