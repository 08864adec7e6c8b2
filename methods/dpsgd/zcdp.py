"""DP-SGD with decaying noise.

Yu et al., "Differentially Private Model Publishing for Deep Learning", IEEE S&P 2019 (arXiv:1904.02200), step decay;
net and settings of DP-SGD, after Tramer and Boneh 2021. The paper charges by concentrated DP, for shuffled batches or
for random samples; a comment in the authors' code calls the bound for random samples a heuristic that was checked
numerically. Decay by validation accuracy is not implemented: it needs public validation data.

Threat model: the attacker holds the released weights and may know all records but one. Private: images and labels.
Public: the number of records and the schedule. Released: the student. Unit record, adjacency add-remove, as zero-out
(see :mod:`bench.methods.dpsgd.dp_sgd`): Poisson batches, each gradient clipped to `max_grad_norm` in L2, Gaussian noise
on the sum that begins at `noise_multiplier` times that, calibrated to the budget, and is multiplied by `decay` every
`decay_epochs`. The schedule is fixed beforehand; each step is charged with its own noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from bench.interface import Claim, Context, Facts, Ledger, PrivateData, PublicData, register_method, setting
from bench.methods.dpsgd.dp_sgd import DPSGD, DPSGDConfig, continued
from bench.privacy.accounting.claims import zcdp
from bench.privacy.events.events import DPSGD as Steps

CODE = "Yu et al. 2019, the authors' code git-disl/DP_modelpublishing, dp_mnist.py: step decay, in a comment"


@dataclass(frozen=True)
class ZCDPConfig(DPSGDConfig):
    """Settings of DP-SGD whose noise falls stage by stage; `noise_multiplier` is that of the first stage."""

    decay: float = setting(0.7008, CODE, gt=0, le=1)
    decay_epochs: float = setting(10.0, CODE, gt=0)

    def stages(self, records: int) -> list[tuple[float, int]]:
        """Return the noise multiplier and the number of batches of each stage, in order."""
        total = self.steps(records)
        count = math.ceil(self.epochs / self.decay_epochs)
        ends = [min(total, round((k + 1) * self.decay_epochs * records / self.batch_size)) for k in range(count)]
        ends[-1] = total
        steps = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        return [(self.noise_multiplier * self.decay**k, n) for k, n in enumerate(steps) if n]


@register_method("zcdp")
class ZCDP(DPSGD):
    """Poisson batches, per-example clipping, Gaussian noise that decays; through the ledger."""

    config: ZCDPConfig
    version = 1
    citation = "Yu et al. 2019"
    claimed_by = "zcdp"
    samplings = ("poisson",)
    mixed_noise = True

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`: as long as DP-SGD's, with as many stages as the paper's."""
        given, stages = super().presets(facts), cls.Config().epochs / cls.Config().decay_epochs
        return {name: {**changes, "decay_epochs": changes["epochs"] / stages} for name, changes in given.items()}

    def claimed(self, delta: float) -> Claim:
        return zcdp(self.charges(), delta)

    def charges(self) -> list[Steps]:
        """Return the steps of each stage."""
        records = self.facts.private_records
        return [Steps(self.config.sampling_rate(records), noise, n) for noise, n in self.config.stages(records)]

    def train_net(
        self, net: nn.Module, private: PrivateData, public: PublicData, ledger: Ledger, context: Context
    ) -> None:
        """Train `net` in place by DP-SGD, one stage after another."""
        records = private.facts.private_records
        with context.progress.stage("student", self.config.steps(records)) as stage:
            run = self.dp_sgd_run(stage)
            run = dataclasses.replace(run, optimizer=continued(run.optimizer))
            for noise, steps in self.config.stages(records):
                run = dataclasses.replace(run, noise_multiplier=noise, steps=steps)
                ledger.dp_sgd(net, private.images, private.labels, run)
