"""DP-FedAvg: FedAvg whose server adds noise to the sum of the sampled clients' clipped updates.

McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models", ICLR 2018
(arXiv:1710.06963), Algorithm 1 with flat clipping, the fixed-denominator estimator and weight 1 for every client. In
each round each client is in the sample with probability `sampled` over `clients`, trains the model on its records, and
sends the change of the weights, clipped to `max_norm` in L2. The noisy sum divided by the public expected number of
sampled clients moves the model.

Threat model: the attacker holds the student and the weights of every round, and may know the records of all clients but
one; the server that samples and adds the noise is trusted. Private: each client's records and their number, and who is
in a sample. Public: the number of clients. Released: the student. Unit client, adjacency add-remove, as zero-out: one
client sends nothing, the number of clients stays. Removing a client moves a sum by up to `max_norm`, replacing it by up
to twice that; the leaderboard shows both costs.

Hiding one of a few clients is expensive: with DPSD's 5, the noise that hides one drowns the other 4. So this method has
1,000 clients; the other federated methods have 5. Claimed: the moments accountant, as in the paper. In the simulation a
record whose label changes may move to another client, which costs as much as a group of two clients.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.interface import (
    Adjacency,
    BenchError,
    Budget,
    Context,
    Facts,
    FitSettings,
    Ledger,
    PrivacyUnit,
    PrivateData,
    PublicData,
    Released,
    SampledGaussian,
    fit,
    make_student,
    register_method,
    setting,
)
from bench.methods.federated.family import Parts, check_clients, client_parts
from bench.methods.shared.calibration import ClaimedBy, with_least_noise

OURS = "ours: the paper's are for next-word prediction with 763,430 users"


@dataclass(frozen=True)
class DPFedAvgConfig:
    """Settings of DP-FedAvg."""

    clients: int = setting(1000, OURS, ge=1)
    concentration: float = setting(0.5, "DPSD, section IV-E: the federation of its Table V", gt=0)
    student: str = setting("tanh_cnn_mnist", "ours: a small net, as there is noise on each weight")
    rounds: int = setting(200, OURS, ge=1)
    sampled: float = setting(100.0, f"{OURS}; expected number of clients in a round", gt=0)
    max_norm: float = setting(0.3, f"{OURS}; L2 norm to which a client's update is clipped", gt=0)
    noise_multiplier: float = setting(1.0, "McMahan et al. 2018, section 4: z; calibrated to the budget", gt=0)
    local_epochs: float = setting(1.0, OURS, gt=0)
    local_batch: int = setting(16, OURS, ge=1)
    local_lr: float = setting(0.1, OURS, gt=0)

    @property
    def rate(self) -> float:
        """The probability that a client is in a round's sample."""
        return self.sampled / self.clients


@register_method("dp-fedavg")
class DPFedAvg(ClaimedBy):
    """Poisson samples of clients, clipped updates, Gaussian noise; through the ledger."""

    config: DPFedAvgConfig
    unit = PrivacyUnit.CLIENT
    adjacency = Adjacency.ADD_REMOVE
    groups = ("federated",)
    citation = "McMahan et al. 2018"
    claimed_by = "moments"
    claimed_in = "McMahan et al., ICLR 2018 (arXiv:1710.06963), section 2: moments accountant, a user added or removed"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        clients = min(1000, max(10, facts.private_records // 50))
        quick = {"clients": clients, "sampled": clients / 10, "rounds": 60}
        tiny = {"clients": 10, "sampled": 5.0, "rounds": 3}
        return {"quick": quick, "tiny": tiny}

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the least noise within `budget`; raise BenchError for more clients than records."""
        check_clients(self.config.clients, self.facts.private_records)
        if not self.config.sampled <= self.config.clients:
            raise BenchError(
                f"sampled, the expected number of clients in a round, is at most the {self.config.clients} "
                f"clients, not {self.config.sampled:g}. Change it with --set {self.name}.sampled=N."
            )
        return with_least_noise(self, budget, self.claimed_by, tolerance=1e-4)

    def charges(self) -> list[SampledGaussian]:
        noise = self.config.noise_multiplier
        return [SampledGaussian(self.config.rate, noise, self.config.rounds, unit=self.unit, adjacency=self.adjacency)]

    def clients(self, private: PrivateData, context: Context) -> Parts:
        """Return the positions of each client's records; one or none each if records do not outnumber clients."""
        records, clients = len(private), self.config.clients
        if records > clients:
            return client_parts(clients, self.config.concentration, private, context)
        # As in audits: number clients from the last record, so that removing the first moves no other.
        return [np.full(int(number < records), records - 1 - number) for number in range(clients)]

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Move the student by noisy sums of updates; the ledger draws the samples and queries their clients."""
        student, options = make_student(self.config.student, private.facts, context.streams.torch("student/start"))
        if any(isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) for layer in student.modules()):
            raise BenchError(
                "the student has batch normalisation, whose running statistics would be released without noise. Choose "
                "a net without (tanh_cnn_mnist, small_cnn, or one with GroupNorm or LayerNorm)."
            )
        parts = self.clients(private, context)
        settings = FitSettings(
            epochs=self.config.local_epochs, batch_size=self.config.local_batch, lr=self.config.local_lr, momentum=0.0,
            schedule="constant",
        )  # fmt: skip
        student.to(context.device)
        local, weights = copy.deepcopy(student), flat(student)

        def update(client: int) -> NDArray[np.float64]:
            rows, order = torch.from_numpy(parts[client]), streams.torch(f"client {client}")
            if not len(rows):
                return np.zeros(len(weights))
            local.load_state_dict(student.state_dict())
            # A diverged client sends nothing, since an error would let it decide whether a student is released.
            fit(
                local, private.images[rows], private.labels[rows], settings, order, device=context.device,
                must_converge=False,
            )  # fmt: skip
            return (flat(local) - weights).cpu().double().numpy()

        with context.progress.stage("rounds", self.config.rounds) as stage:
            for number in range(self.config.rounds):
                streams = context.streams.child(f"round {number}")
                total = ledger.sampled_updates(
                    update, self.config.clients, entries=len(weights), max_norm=self.config.max_norm,
                    sampling_rate=self.config.rate, noise_multiplier=self.config.noise_multiplier,
                )  # fmt: skip
                weights = weights + torch.from_numpy(total / self.config.sampled).to(weights)
                with torch.no_grad():
                    pieces = torch.split(weights, [parameter.numel() for parameter in student.parameters()])
                    for parameter, piece in zip(student.parameters(), pieces, strict=True):
                        parameter.copy_(piece.view_as(parameter))
                stage.advance()
        return Released(student.eval(), self.config.student, options)


def flat(net: nn.Module) -> Tensor:
    """Return all parameters of `net` in one copy, (entries,)."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])
