"""DPSD, label-sensitive: the teacher's label of each generated image is released by randomised response.

Liu, Ge, Wang, Li, Liu, "Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation",
Algorithm 1 with Eq. (4), (5), (7) and (8).

Threat model: the attacker holds student and generator and wants the teacher's label of one synthetic image. Private:
the teacher's labels of synthetic queries (and the teacher and its records). Public: the number of records. Released:
the student, the generator and some of its images.

Annotation: randomised response over the student's k most probable classes; a label outside them is replaced by a
uniform class of the set, as printed in Algorithm 2. Eq. (5) as printed (``outside=printed``) draws from all classes if
the label is inside: an answer outside the set then reveals this, and the proven epsilon is infinite.

Claimed: Theorem 2, epsilon-LabelDP for the label of one synthetic query (unit query-label), also proven. It does not
protect a training record, which can change all answers; every row also states the composed cost of all answers for one
record.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bench.interface import (
    Basis,
    BenchError,
    Budget,
    Claim,
    Context,
    Event,
    Facts,
    Ledger,
    PrivacyUnit,
    PrivateData,
    register_method,
    setting,
)
from bench.methods.distillation.alternation_config import AlternationConfig
from bench.methods.distillation.dpsd_family import Alternation, Annotate, quick_settings, tiny_settings, train_teacher
from bench.privacy.accounting.claims import DPSD_LABEL_GAP, dpsd_label
from bench.privacy.events.events import PrintedTopK, TopKRandomizedResponse


@dataclass(frozen=True)
class DPSDLabelConfig(AlternationConfig):
    """Settings of DPSD with label-sensitive annotation."""

    epsilon: float = setting(
        1.0, "section IV-D, Table IV: epsilon of randomised response; calibrated to the budget", gt=0
    )
    outside: Literal["set", "printed"] = setting("set", "Eq. 5 over the k classes in both cases; printed: literally")
    label_loss: Literal["printed", "response"] = setting(
        "printed", "Eq. 7; response: ours, the likelihood of the answers, with all classes in the set", later=True
    )

    @property
    def uniform_share(self) -> float:
        """Randomised response over k classes: a label is drawn evenly with probability k / (e^epsilon + k - 1)."""
        if self.label_loss == "printed" or self.k is None:
            return 0.0
        return self.k / (math.expm1(self.epsilon) + self.k)


@register_method("dpsd-label")
class DPSDLabel(Alternation):
    """Algorithm 1 with randomised response over the student's top classes."""

    config: DPSDLabelConfig
    unit = PrivacyUnit.QUERY_LABEL
    repaired_by = "dpsd-sound"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`. The set has all classes; k 3 gives 24% on MNIST."""
        return {"quick": {**quick_settings(facts), "k": facts.classes}, "tiny": tiny_settings(facts)}

    def calibrate(self, budget: Budget) -> DPSDLabelConfig:
        """Return `config` with the budget as the epsilon of each query's label."""
        k = self.config.top_k(self.facts)
        if self.config.label_loss == "response" and k < self.facts.classes:
            raise BenchError(
                f"label_loss=response needs all {self.facts.classes} classes in the set, and k is {k}. Set k to "
                f"{self.facts.classes}."
            )
        if self.config.outside == "printed" and budget.basis is Basis.PROVEN:
            raise BenchError(f"outside=printed has no finite proven epsilon: {DPSD_LABEL_GAP}. Use outside=set.")
        return dataclasses.replace(self.config, k=k, epsilon=budget.epsilon)

    def claimed(self, delta: float) -> Claim:
        return dpsd_label(self.config.epsilon, delta)

    def charges(self) -> Sequence[Event]:
        given = self.config.epsilon, self.config.top_k(self.facts), self.facts.classes
        answers = self.config.batch * self.config.asked
        if self.config.outside == "printed":
            return [PrintedTopK(DPSD_LABEL_GAP, *given, answers=answers, unit=self.unit)]
        return [TopKRandomizedResponse(*given, answers=answers, unit=self.unit)]

    def annotator(self, private: PrivateData, ledger: Ledger, context: Context) -> Annotate:
        """Return the annotation of Eq. (5) by the single teacher."""
        teacher = train_teacher(self.config, private, context)
        k, classes = self.config.top_k(private.facts), private.facts.classes

        def annotate(images: Tensor, student: Tensor) -> Tensor:
            labels = teacher(images).argmax(1).cpu().numpy()
            sets = student.topk(k, dim=1).indices.cpu().numpy()
            answers = ledger.top_k_randomized_response(
                labels, sets, epsilon=self.config.epsilon, classes=classes, outside=self.config.outside
            )
            return functional.one_hot(torch.from_numpy(answers), classes).to(student)

        return annotate

    def charge(self, ledger: Ledger) -> None:
        labels = np.zeros(self.config.batch, dtype=np.int64)
        sets = np.tile(np.arange(self.config.top_k(self.facts)), (self.config.batch, 1))
        ledger.top_k_randomized_response(
            labels, sets, epsilon=self.config.epsilon, classes=self.facts.classes, outside=self.config.outside
        )
