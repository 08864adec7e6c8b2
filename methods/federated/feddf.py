"""FedDF: the average of the clients' models learns from their ensemble on unlabelled images.

Lin, Kong, Stich, Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020
(arXiv:2006.07242), Algorithm 1 with AVGLOGITS: in each round the server averages the models as FedAvg does, and trains
the average towards the mean of their logits on public images. The paper's early stopping on labelled validation records
is left out.

Private: each client's records. Public: unlabelled images. Released: the student. There is no threat model: the student
starts at the average of models without noise, and the proven epsilon is infinite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bench.interface import (
    BenchError,
    Budget,
    Context,
    Facts,
    FitSettings,
    PublicData,
    PublicKind,
    fit,
    predict,
    register_method,
    setting,
)
from bench.methods.federated.family import State, net_of
from bench.methods.federated.fedavg import FedAvg, FedAvgConfig

CODE = (
    "the authors' code epfml/federated-learning-public-code: "
    "codes/FedDF-code/pcode/aggregation/noise_knowledge_transfer.py"
)


@dataclass(frozen=True)
class FedDFConfig(FedAvgConfig):
    """Settings of FedDF's server."""

    student_steps: int = setting(10_000, CODE, ge=1)
    student_batch: int = setting(128, CODE, ge=1)
    student_lr: float = setting(0.001, f"{CODE}; Adam, to zero along a cosine", gt=0)


@register_method("feddf")
class FedDF(FedAvg):
    """Average, then distil the ensemble on public images."""

    config: FedDFConfig
    citation = "Lin et al. 2020"
    public_data = "unlabelled images of the target's distribution"
    public_data_kinds = (PublicKind.UNLABELLED,)
    repaired_by = ""

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        given = super().presets(facts)
        return {"quick": {**given["quick"], "student_steps": 1000}, "tiny": {**given["tiny"], "student_steps": 3}}

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` unchanged; raise BenchError for more clients than records, or without public images."""
        if self.facts.public_records < 1:
            raise BenchError(
                f"{self.name} distils on public images, and the split of {self.facts.dataset} has none. Use dense."
            )
        return super().calibrate(budget)

    def fuse(self, net: nn.Module, states: Sequence[State], public: PublicData, context: Context, done: int) -> None:
        """Distil the softmax of the clients' mean logits into `net` on public images, in place."""
        ensemble = [net_of(self.config, self.facts, state, context) for state in states]
        logits = torch.stack([predict(one, public.images, device=context.device) for one in ensemble]).mean(0)
        steps, batch, lr = self.config.student_steps, self.config.student_batch, self.config.student_lr
        settings = FitSettings(steps=steps, batch_size=batch, optimizer="adam", lr=lr)
        order, labels = context.streams.torch(f"server {done}"), logits.softmax(1)
        with context.progress.stage("distillation", steps) as stage:
            fit(net, public.images, labels, settings, order, device=context.device, stage=stage)
