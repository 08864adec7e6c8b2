"""FedDPSD: as DPSD, with a teacher at each of several clients and noise on the sum of their gradients.

Liu, Ge, Wang, Li, Liu, "Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation",
appendix D, Algorithm 2.

Threat model: the attacker holds student and generator and may know the records of all clients but one; the server that
adds the noise is trusted. Private: each client's records, and their distribution over clients. Public: the numbers of
records and of clients. Released: the student, the generator and some of its images. Unit client, adjacency replace.

The federation is simulated: each class has a Dirichlet distribution over the clients, from which each of its records
draws its client, so assignment never depends on other records. Noise of standard deviation sigma * beta is added to the
sum of the teachers' normalised gradients, which is then divided by the number of clients. A client changes only its own
gradients, so the cost is DPSD's, for a signal up to that many times larger.

Claimed: Theorem 1, because the paper prints no other for Algorithm 2. Proven: the Gaussian mechanism, for a client and
so for each of its records, which in a real federation stays with its client. In the simulation a record whose label
changes may move to another client, which costs as much as a group of two clients.

By section III-D the clients make their labels private, so that the server may be untrusted. Here, as in Algorithm 2,
clients send raw gradients and the server adds the noise; if each client added noise, the noise on the mean would be
larger by the square root of the number of clients.

Differences from Algorithm 2: gradients keep their k largest entries (Eq. 3); one batch of random vectors is trained, as
in Algorithm 1, to which III-D refers, instead of a new batch in each round; the label is the student's prediction minus
the mean gradient (Eq. 4), instead of that gradient alone (line 14).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from bench.interface import BenchError, Context, Facts, GivenTeacher, PrivacyUnit, PrivateData, register_method, setting
from bench.methods.distillation.dpsd import DPSD, DPSDConfig
from bench.methods.distillation.dpsd_family import train_teacher
from bench.methods.federated.family import Parts, client_parts
from bench.methods.shared.given_teacher import given_teacher
from bench.privacy.events.events import Gaussian
from bench.storage.cache import digest_of


@dataclass(frozen=True)
class FedDPSDConfig(DPSDConfig):
    """Settings of FedDPSD."""

    teacher_epochs: float = setting(10.0, "ours; appendix D refers to DENSE, which has 400", gt=0)
    teacher_lr: float = setting(0.05, "ours; appendix D refers to DENSE, which has 0.01", gt=0)
    clients: int = setting(5, "section IV-A: m", ge=1)
    concentration: float = setting(0.5, "section IV-E: Dirichlet distribution with parameter 0.5", gt=0)


@register_method("fed-dpsd")
class FedDPSD(DPSD):
    """Algorithm 2: several teachers, one noisy sum."""

    config: FedDPSDConfig
    version = 2
    unit = PrivacyUnit.CLIENT
    groups = ("federated",)
    single_teacher = False

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        base = DPSD.presets(facts)
        return {"quick": {**base["quick"], "iterations": 200}, "tiny": {**base["tiny"], "clients": 3}}

    def charges(self) -> list[Gaussian]:
        return [dataclasses.replace(event, unit=self.unit) for event in super().charges()]

    def given_teacher(self) -> GivenTeacher | None:
        """Refuse a given teacher: each client trains its own."""
        if given_teacher(self.config) is not None:
            raise BenchError("fed-dpsd trains a teacher at each client and takes no given one. Use dpsd.")
        return None

    def shares(self, seed: int) -> tuple[str, ...]:
        """Return the clients' teachers, shared across epsilons."""
        config = self.config
        meant = [config.teacher, config.teacher_epochs, config.teacher_lr, config.clients, config.concentration]
        return (f"clients of {self.facts.dataset}, seed {seed}, {digest_of(meant)}",)

    def clients(self, private: PrivateData, context: Context) -> Parts:
        return client_parts(self.config.clients, self.config.concentration, private, context)

    def teachers(self, private: PrivateData, context: Context) -> list[nn.Module]:
        """Return one teacher for each client. Private."""
        config, federation = self.config, f"{self.config.clients}, {self.config.concentration:g}"
        return [
            train_teacher(config, private, context, part, f"client {i} of {federation}")
            for i, part in enumerate(self.clients(private, context))
        ]
