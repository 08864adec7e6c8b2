"""FedAvg: the server averages the models that clients train on their records.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017 (arXiv:1602.05629), Algorithm 1, with all clients in every round, weighted by their numbers of
records. One round is the one-shot setting of DENSE's Table 1, which DPSD's Table V repeats.

Private: each client's records. Public: nothing. Released: the average. There is no threat model: the clients' models
and their average may reveal anything about the records, and the proven epsilon is infinite. `dp-fedavg` is the private
form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from bench.interface import (
    Context,
    Facts,
    Ledger,
    PrivateData,
    PublicData,
    Released,
    make_student,
    register_method,
    setting,
)
from bench.methods.federated.family import (
    CODE,
    Federated,
    FederatedConfig,
    State,
    average,
    client_parts,
    first_models,
    local_models,
    quick_clients,
)
from bench.methods.shared.settings_checks import student_depends
from bench.storage.checkpoint import Loop


@dataclass(frozen=True)
class FedAvgConfig(FederatedConfig):
    """Settings of FedAvg."""

    rounds: int = setting(1, f"{CODE}loop_df_fl.py: clients train once", ge=1)


@register_method("fedavg")
class FedAvg(Federated):
    """Average the clients' models; in each further round they start from the average."""

    config: FedAvgConfig
    citation = "McMahan et al. 2017"
    repaired_by = "dp-fedavg"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        quick = quick_clients(facts)
        return {"quick": quick, "tiny": {**quick, "clients": 3, "local_epochs": 1.0, "rounds": 2}}

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Train rounds of local models and fuse them, declared as a bypass."""
        ledger.bypass(self.bypass)
        parts = client_parts(self.config.clients, self.config.concentration, private, context)
        net, options = make_student(self.config.student, private.facts, context.streams.torch("federated/start"))
        depends = {"method": self.name, **student_depends(self.config, context)}
        with context.stage("rounds", depends, self.config.rounds) as (checkpoint, stage):
            loop = Loop(checkpoint, {"net": net}, device=context.device)
            for done in range(loop.start(stage), self.config.rounds):
                if done:
                    states = local_models(net, self.config, private, parts, context, done)
                else:
                    states = first_models(self.config, private, parts, context)
                net.load_state_dict(average(states, [len(part) for part in parts]))
                self.fuse(net, states, public, context, done)
                stage.advance()
                loop.done(done + 1, self.config.rounds)
        return Released(net.eval(), self.config.student, options)

    def fuse(self, net: nn.Module, states: Sequence[State], public: PublicData, context: Context, done: int) -> None:
        """Refine `net`, the average of the clients' models `states`, in place; FedAvg leaves it unchanged."""
