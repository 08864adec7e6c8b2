"""Maximum-norm attacks by torchattacks, checked: images are projected back into the ball and [0, 1]. Imports torch.

Non-finite values are replaced by the clean ones, so that numerical failures do not count as successes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torchattacks
from torch import Tensor, nn

from bench.core.seeds import seeded
from bench.core.torchvision_compat import allow_cpu_torchvision
from bench.interface import BenchError, UnknownNameError, setting
from bench.models.feature_net import Evaluated

Perturb = Callable[[Tensor, Tensor], Tensor]  # images (n, channels, height, width) in [0, 1], labels (n,) -> images


class Logits(Evaluated):
    """A copy of a student with float32 logits, fixed in evaluation mode, without gradients of weights.

    Inputs are in [0, 1]. It is a copy because torchattacks changes its model's mode and FAB leaves gradients in it.
    """

    def __init__(self, student: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.student = copy.deepcopy(student).to(device=device, dtype=torch.float32).requires_grad_(False)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Return logits in float32, as a copy."""
        logits: Tensor = self.student(images)
        return logits.float().clone()  # Copy even if float() does not: Square writes into its input.


def perturbed(
    attack: str, model: Logits, images: Tensor, labels: Tensor, size: float, classes: int, seed: int,
    config: RobustnessConfig,
) -> Tensor:  # fmt: skip
    """Return `images` after `attack`, each value changed by at most `size`; deterministic given `seed`.

    `attack` is fgsm, pgd, apgd-ce, apgd-t, fab-t, fab or square. `images` and `labels` are on the device of `model`.
    """
    # The attacks draw from torch's global generators, and some seed them.
    with (
        seeded(torch.Generator().manual_seed(seed), images.device),
        torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, deterministic=True),
    ):
        found = _make(attack, model, size, classes, seed, config)(images, labels).detach()
    found = torch.where(found.isfinite(), found, images)
    return found.clamp(images - size, images + size).clamp(0.0, 1.0)


def _make(attack: str, model: Logits, size: float, classes: int, seed: int, config: RobustnessConfig) -> Perturb:
    allow_cpu_torchvision()

    # torchattacks counts the true class and targets all others: 99 for 100 classes; the published code targets 9.
    targets = {"n_classes": min(config.target_classes, classes - 1) + 1}
    apgd, fab = ({"eps": size, "steps": steps, "seed": seed} for steps in (config.apgd_steps, config.fab_steps))
    made: dict[str, Callable[[], Perturb]] = {
        "fgsm": lambda: torchattacks.FGSM(model, eps=size),
        "pgd": lambda: torchattacks.PGD(model, size, config.pgd_reach * size / config.pgd_steps, config.pgd_steps),
        "apgd-ce": lambda: torchattacks.APGD(model, **apgd),
        "apgd-t": lambda: torchattacks.APGDT(model, **apgd, **targets),
        "fab-t": lambda: torchattacks.FAB(model, **fab, multi_targeted=True, **targets),
        "fab": lambda: torchattacks.FAB(model, **fab),
        "square": lambda: torchattacks.Square(model, eps=size, n_queries=config.square_queries, seed=seed),
    }
    return made[attack]()


SIMPLE = ("fgsm", "pgd", "square")
WORST = "autoattack"
PARTS = ("apgd-ce", "apgd-t", "fab-t", "fab")
"""Parts of autoattack besides the simple ones; with few classes, ``fab`` replaces both targeted ones."""


@dataclass(frozen=True)
class RobustnessConfig:
    """Settings of the robustness sweep."""

    perturbations: tuple[float, ...] | None = setting(None, "ours: by the kind of images, see default_perturbations")
    attacks: tuple[str, ...] = setting((*SIMPLE, WORST), "ours: side by side, so that masked gradients show")
    records: int = setting(10_000, "Croce and Hein 2020, section 6: the test sets of MNIST and CIFAR-10", ge=1)
    pgd_steps: int = setting(50, "Wong et al. 2020 (fast is better than free), section 5: PGD-50-10", ge=1)
    pgd_restarts: int = setting(10, "Wong et al. 2020, section 5: PGD-50-10", ge=1)
    pgd_reach: float = setting(2.5, "Madry et al. 2018, section 5: the steps add up to 2.5 times the size", gt=0)
    apgd_steps: int = setting(100, "Croce and Hein 2020's published code, version standard", ge=1)
    fab_steps: int = setting(100, "Croce and Hein 2020's published code, version standard", ge=1)
    target_classes: int = setting(9, "Croce and Hein 2020's published code, version standard", ge=1)
    square_queries: int = setting(5000, "Croce and Hein 2020's published code, version standard", ge=1)
    batch_size: int = setting(500, "ours: memory alone", ge=1)

    def __post_init__(self) -> None:
        for name in self.attacks:
            if name not in (*SIMPLE, WORST):
                raise UnknownNameError("attack of the robustness sweep", name, (*SIMPLE, WORST))
        if not self.attacks:
            raise BenchError(f"attacks must name at least one of {', '.join((*SIMPLE, WORST))}.")
        sizes = self.perturbations
        if sizes is not None and not (
            sizes and all(0 < size <= 1 for size in sizes) and list(sizes) == sorted(set(sizes))
        ):
            raise BenchError(f"perturbations must rise strictly and lie in (0, 1], not {sizes}; 0 is always reported.")
