"""DENSE: a generator taught by the ensemble of the clients' models, and a student that imitates the ensemble.

Zhang et al., "DENSE: Data-Free One-Shot Federated Learning", NeurIPS 2022 (arXiv:2112.12371), by the authors' code
(``helpers/synthesizers.py``). In each epoch a new generator and its input noise are trained to make a batch that the
ensemble assigns to random classes, that matches the clients' batch normalisation statistics, and on which the student
still errs. The best batch joins all earlier ones, from which the student learns. The code's random crops and flips of
generated images are left out.

Private: each client's records. Public: nothing. Released: the student and some images. There is no threat model: both
are functions of the clients' models, which have no noise, and the proven epsilon is infinite. `fed-dpsd` adds noise to
the clients' answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from bench.core.seeds import seeded
from bench.interface import register_method, setting
from bench.methods.federated.family import CODE, ServerConfig
from bench.methods.federated.server_distillation import (
    BatchStatistics,
    DistillingServer,
    Server,
    Synthesiser,
    softened_divergence,
)
from bench.models.generators import DataFreeGenerator


@dataclass(frozen=True)
class DENSEConfig(ServerConfig):
    """Settings of the generator."""

    generator_steps: int = setting(30, f"{CODE}README.md: g_steps, in each epoch", ge=1)
    generator_lr: float = setting(0.001, f"{CODE}README.md: lr_g; Adam with betas 0.5 and 0.999", gt=0)
    latent_size: int = setting(256, f"{CODE}loop_df_fl.py: nz", ge=1, le=4096)
    generator_width: int = setting(64, f"{CODE}loop_df_fl.py: ngf", ge=1)
    statistics: float = setting(1.0, f"{CODE}README.md: bn, there of a sum over the clients, here of their mean", gt=0)
    divergence: float = setting(1.0, f"{CODE}README.md: adv", gt=0)


@register_method("dense")
class DENSE(DistillingServer):
    """A new generator in each epoch, trained on the ensemble against the student."""

    config: DENSEConfig
    citation = "Zhang et al. 2022"

    quick_server: ClassVar[dict[str, Any]] = {
        "epochs": 20, "student_steps": 40, "batch": 64, "generator_width": 32, "generator_lr": 0.01,
    }  # fmt: skip
    tiny_server: ClassVar[dict[str, Any]] = {"student_steps": 2, "generator_steps": 3, "generator_width": 8}

    def synthesiser(self, server: Server) -> Synthesiser:
        statistics = BatchStatistics(server.ensemble)

        def make() -> Tensor:
            with seeded(server.random):
                net = DataFreeGenerator(*server.facts.shape, self.config.latent_size, self.config.generator_width)
            net.to(server.device).train()
            latents = net.noise(self.config.batch, server.random, server.device).requires_grad_()
            classes = server.classes(self.config.batch)
            trained = [*net.parameters(), latents]
            optimizer = torch.optim.Adam(trained, self.config.generator_lr, betas=(0.5, 0.999))
            best, least = torch.empty(0), torch.inf
            for _ in range(self.config.generator_steps):
                images = net(latents)
                logits, student = server.ensemble(images), server.student(images)
                errs = student.argmax(1) != logits.argmax(1)
                loss = functional.cross_entropy(logits, classes) + self.config.statistics * statistics.take()
                loss = loss - self.config.divergence * (softened_divergence(student, logits) * errs).mean()
                if not len(best) or float(loss.detach()) < least:
                    best, least = images.detach(), float(loss.detach())
                for value, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
                    value.grad = gradient
                optimizer.step()
            return best

        return Synthesiser(make)
