"""Fed-ADI: Adaptive DeepInversion of the ensemble of the clients' models, and a student that imitates it.

Yin et al., "Dreaming to Distill: Data-free Knowledge Transfer via DeepInversion", CVPR 2020 (arXiv:1912.08795), with
the ensemble of Zhang et al., "DENSE", NeurIPS 2022 (arXiv:2112.12371), as the teacher. Images start from noise and move
towards random classes of the ensemble, towards the clients' statistics of batch normalisation, towards small variation
between neighbouring pixels, and towards disagreement of student and ensemble.

Private: each client's records. Public: nothing. Released: the student and some images. There is no threat model: the
images invert models without noise, whose statistics are those of the clients' records, and the proven epsilon is
infinite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from bench.interface import register_method, setting
from bench.methods.federated.family import ServerConfig
from bench.methods.federated.server_distillation import BatchStatistics, DistillingServer, Server, Synthesiser

CODE = "the authors' code NVlabs/DeepInversion: cifar10/"
JITTER = 2  # pixels; cifar10/deepinversion_cifar10.py
SOFT = 3.0  # temperature of that file's comparison of student and ensemble


@dataclass(frozen=True)
class FedADIConfig(ServerConfig):
    """Settings of the inversion; the student's are DENSE's."""

    iterations: int = setting(2000, f"{CODE}deepinversion_cifar10.py: iters_mi, for each batch", ge=1)
    image_lr: float = setting(0.05, f"{CODE}README.md: di_lr, parameters from the paper; Adam", gt=0)
    statistics: float = setting(10.0, f"{CODE}README.md: r_feature_weight", gt=0)
    variation: float = setting(2.5e-5, f"{CODE}deepinversion_cifar10.py: di_var_scale", gt=0)
    competition: float = setting(
        0.01, f"{CODE}deepinversion_cifar10.py: default of get_images; the script passes 0", gt=0
    )


@register_method("fed-adi")
class FedADI(DistillingServer):
    """Images found by gradient descent on the ensemble, a batch in each epoch."""

    config: FedADIConfig
    citation = "Yin et al. 2020 on an ensemble of clients, as in Zhang et al. 2022"

    quick_server: ClassVar[dict[str, Any]] = {"epochs": 8, "student_steps": 60, "iterations": 60, "batch": 128}
    tiny_server: ClassVar[dict[str, Any]] = {"student_steps": 2, "iterations": 3}

    def synthesiser(self, server: Server) -> Synthesiser:
        statistics = BatchStatistics(server.ensemble)

        def make() -> Tensor:
            classes = server.classes(self.config.batch)
            noise = torch.randn(self.config.batch, *server.facts.shape, generator=server.random)
            # Pixels are in [0, 1]; the nets map them to [-1, 1], the range of the authors' images and noise.
            images = (noise.to(server.device) / 2 + 0.5).clamp(0, 1).requires_grad_()
            optimizer = torch.optim.Adam([images], self.config.image_lr / 2)
            for _ in range(self.config.iterations):
                down, across = torch.randint(-JITTER, JITTER + 1, (2,), generator=server.random).tolist()
                moved = images.roll((down, across), (2, 3))
                logits = server.ensemble(moved)
                loss = functional.cross_entropy(logits, classes) + self.config.statistics * statistics.take()
                loss = loss + self.config.variation * total_variation(2 * moved)
                loss = loss + self.config.competition * agreement(server.student(moved), logits)
                (images.grad,) = torch.autograd.grad(loss, images)
                optimizer.step()
                with torch.no_grad():
                    images.clamp_(0, 1)
            return images.detach()

        return Synthesiser(make)


def total_variation(images: Tensor) -> Tensor:
    """Return the norms of the differences between neighbours of `images` in four directions, summed."""
    down, across = images[..., 1:, :] - images[..., :-1, :], images[..., :, 1:] - images[..., :, :-1]
    diagonals = images[..., 1:, 1:] - images[..., :-1, :-1], images[..., 1:, :-1] - images[..., :-1, 1:]
    total: Tensor = sum((part.norm() for part in (across, *diagonals)), down.norm())
    return total


def agreement(student: Tensor, ensemble: Tensor) -> Tensor:
    """Return 1 minus the Jensen-Shannon divergence between the predictions of two sets of logits (n, classes)."""
    first, second = (student / SOFT).log_softmax(1), (ensemble / SOFT).log_softmax(1)
    middle = ((first.exp() + second.exp()) / 2).clamp_min(1e-8).log()
    parts = (functional.kl_div(middle, one, reduction="batchmean", log_target=True) for one in (first, second))
    return 1 - sum(parts, first.new_zeros(())) / 2
