"""Fed-DAFL: DAFL's generator against the ensemble of the clients' models, and a student that imitates the ensemble.

Chen et al., "Data-Free Learning of Student Networks", ICCV 2019 (arXiv:1904.01186), with the ensemble of Zhang et al.,
"DENSE", NeurIPS 2022 (arXiv:2112.12371), as the teacher. The generator is driven by the ensemble's certainty, the
activations of its last hidden layers, and the entropy of its mean prediction; the student sees every batch once.

Private: each client's records. Public: nothing. Released: the student and some images. There is no threat model: both
are functions of the clients' models, which have no noise, and the proven epsilon is infinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from bench.core.seeds import seeded
from bench.interface import register_method, setting
from bench.methods.federated.family import ServerConfig
from bench.methods.federated.server_distillation import DistillingServer, Server, Synthesiser
from bench.models.generators import DataFreeGenerator
from bench.training.data_free import generator_terms
from bench.training.divergence import check_finite, descend

CODE = "DAFL's code, huawei-noah/Efficient-Computing: "


@dataclass(frozen=True)
class FedDAFLConfig(ServerConfig):
    """Settings for MNIST."""

    epochs: int = setting(24_000, f"{CODE}MNIST: 200 times 120 iterations, a batch in each")
    batch: int = setting(512, f"{CODE}MNIST")
    student_lr: float = setting(0.002, f"{CODE}MNIST")
    student_optimizer: Literal["sgd", "adam"] = setting("adam", f"{CODE}MNIST")
    temperature: float = setting(1.0, f"{CODE}no temperature")
    generator_lr: float = setting(0.2, f"{CODE}MNIST; Adam", gt=0)
    latent_size: int = setting(100, f"{CODE}MNIST", ge=1, le=4096)
    generator_width: int = setting(128, f"{CODE}the generator's maps", ge=1)
    entropy_weight: float = setting(5.0, f"{CODE}MNIST: ie; times ln 10, as its logarithm has base 10", gt=0)
    activation_weight: float = setting(0.1, f"{CODE}MNIST: a", gt=0)


@register_method("fed-dafl")
class FedDAFL(DistillingServer):
    """A generator trained by DAFL's three terms on the ensemble."""

    config: FedDAFLConfig
    citation = "Chen et al. 2019 on an ensemble of clients, as in Zhang et al. 2022"

    quick_server: ClassVar[dict[str, Any]] = {"epochs": 600, "batch": 64, "generator_width": 32, "generator_lr": 0.01}
    tiny_server: ClassVar[dict[str, Any]] = {"generator_width": 8}

    def synthesiser(self, server: Server) -> Synthesiser:
        with seeded(server.random):
            net = DataFreeGenerator(*server.facts.shape, self.config.latent_size, self.config.generator_width)
        net.to(server.device).train()
        optimizer = torch.optim.Adam(net.parameters(), self.config.generator_lr)
        weights = {
            "one_hot": 1.0,
            "entropy": self.config.entropy_weight / math.log(10),
            "activation": self.config.activation_weight,
        }

        def make() -> torch.Tensor:
            images: torch.Tensor = net(net.noise(self.config.batch, server.random, server.device))
            terms = generator_terms(*server.ensemble.features_and_logits(images))
            check_finite(terms, -1, "the generator")
            descend(optimizer, torch.stack([weights[name] * term for name, term in terms.items()]).sum())
            return images.detach()

        return Synthesiser(make, {"generator": net, "generator_step": optimizer}, keeps=False)
