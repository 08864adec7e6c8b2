"""Accuracy of a student under small changes of its images: a side metric, not part of the privacy score.

It is printed because noisy training can make a net look robust. Accuracies are upper bounds on the robust accuracy,
from the attacks run, in the maximum norm on images in [0, 1]. An image counts at a size if its clean prediction is
right and no attack up to this size changes it: size 0 gives the clean accuracy, and no curve rises.

``autoattack`` is the worst case per image over all attacks run: the standard version's four (APGD on cross-entropy,
targeted APGD on the difference of logits ratio, targeted FAB, Square), FGSM and PGD. Its parts are set up separately:
torchattacks' ``AutoAttack`` takes 10 steps, not the published 100, and a seed from the clock. FGSM: Goodfellow et al.
2015. PGD: Madry et al. 2018. AutoAttack: Croce and Hein 2020. Square: Andriushchenko et al. 2020.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torchattacks
from torch import Tensor, nn

from bench.core.seeds import seeded
from bench.core.torchvision_compat import allow_cpu_torchvision
from bench.interface import (
    BenchError,
    Context,
    Facts,
    RobustnessAttack,
    UnknownNameError,
    as_float,
    predict,
    register_attack,
    setting,
)
from bench.models.feature_net import Evaluated

Perturb = Callable[[Tensor, Tensor], Tensor]  # images (n, channels, height, width) in [0, 1], labels (n,) -> images
SIMPLE = ("fgsm", "pgd", "square")
WORST = "autoattack"
PARTS = ("apgd-ce", "apgd-t", "fab-t", "fab")
"""Parts of autoattack besides the simple ones; with few classes, ``fab`` replaces both targeted ones."""
DLR_CLASSES = 4  # minimum for the targeted difference of logits ratio, which divides by logits of rank 1, 3 and 4


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


def default_perturbations(facts: Facts) -> tuple[float, ...]:
    """Return the sizes of a sweep: large for small grey images (strokes on a plain background), or steps of 8/255."""
    channels, height, width = facts.shape
    if channels == 1 and max(height, width) <= 32:
        return (0.05, 0.1, 0.2, 0.3)
    return tuple(value / 255.0 for value in (0.5, 1.0, 2.0, 4.0, 8.0))


def attacks_run(config: RobustnessConfig, classes: int) -> tuple[str, ...]:
    """Return the attacks to run, in row order, without ``autoattack`` itself.

    Below four classes there is no targeted loss: targeted APGD is left out, FAB runs untargeted on all other classes.
    """
    if WORST not in config.attacks:
        return tuple(name for name in SIMPLE if name in config.attacks)
    return (*SIMPLE, "apgd-ce", "apgd-t", "fab-t") if classes >= DLR_CLASSES else (*SIMPLE, "apgd-ce", "fab")


@register_attack("robustness")
class Robustness(RobustnessAttack[RobustnessConfig]):
    """A sweep over sizes of change in the maximum norm, attack by attack."""

    citation = "Madry et al. 2018; Croce and Hein 2020"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Attack.presets`; the quick one takes under a minute on one core."""
        sizes = default_perturbations(facts)
        return {
            "quick": {
                "perturbations": sizes, "records": 200, "pgd_steps": 20, "pgd_restarts": 2, "apgd_steps": 20,
                "fab_steps": 10, "target_classes": 3, "square_queries": 500,
            },
            "tiny": {
                "perturbations": sizes[1::2], "records": 50, "pgd_steps": 5, "pgd_restarts": 1, "apgd_steps": 5,
                "fab_steps": 3, "target_classes": 2, "square_queries": 50,
            },
        }  # fmt: skip

    def withstood(
        self, student: nn.Module, images: Tensor, labels: Tensor, context: Context
    ) -> dict[str, dict[float, Tensor]]:
        """Attack a copy of `student`, which gives logits, at every size, on `records` random images.

        Raises :class:`BenchError` unless the student fits the facts.
        """
        config, facts, device = self.config, self.facts, context.device
        generator = context.streams.torch("sweep", device)
        images, labels = as_float(images.cpu()), labels.cpu()
        sizes = config.perturbations if config.perturbations is not None else default_perturbations(facts)
        if len(images) > config.records:
            drawn = torch.randperm(len(images), generator=generator, device=generator.device)[: config.records].cpu()
            images, labels = images[drawn], labels[drawn]
        everything = (*SIMPLE, *PARTS)  # One seed per possible attack and size: omitting one changes no other row.
        shape = (len(everything), len(sizes), config.pgd_restarts)
        seeds = torch.randint(0, 2**31, shape, generator=generator, device=generator.device).tolist()
        model = Logits(student, device)
        clean = _clean(model, images, labels, facts, device)
        names = attacks_run(config, facts.classes)
        if WORST in config.attacks and facts.classes < DLR_CLASSES:
            context.note(f"autoattack without targeted parts: fewer than {DLR_CLASSES} classes")
            context.progress.say(
                f"robustness: {facts.classes} classes are too few for targeted APGD, which needs {DLR_CLASSES}: "
                "autoattack runs without it, and with FAB untargeted."
            )

        held: dict[str, list[Tensor]] = {name: [clean] for name in names}
        with context.progress.stage("robustness", len(names) * len(sizes)) as stage:
            for name in names:
                for place, size in enumerate(sizes):
                    right = held[name][-1].clone()
                    for seed in seeds[everything.index(name)][place][: config.pgd_restarts if name == "pgd" else 1]:
                        if not bool(right.any()):
                            break  # fooled on every image
                        for number in torch.split(right.nonzero().flatten(), config.batch_size):
                            batch, truth = images[number].to(device), labels[number].to(device)
                            found = perturbed(name, model, batch, truth, size, facts.classes, seed, config)
                            right[number] = _right(model, found, labels[number], device)
                    held[name].append(right)
                    stage.advance()
        if WORST in config.attacks:
            held[WORST] = [torch.stack(masks).all(0) for masks in zip(*held.values(), strict=True)]
        again = _right(model, images, labels, device)
        assert all(torch.equal(masks[0], again) for masks in held.values()), "size 0 must be the plain accuracy"
        return {name: dict(zip((0.0, *sizes), masks, strict=True)) for name, masks in held.items()}


def _clean(model: Logits, images: Tensor, labels: Tensor, facts: Facts, device: torch.device) -> Tensor:
    """Return which clean images the student classifies correctly, or raise."""
    try:
        with torch.no_grad():
            logits = model(images[:2].to(device))
    except (RuntimeError, ValueError, AssertionError) as error:
        # timm's transformers check sizes with assertions.
        raise BenchError(
            f"the student cannot take images of {facts.dataset}, (channels, height, width) = {tuple(facts.shape)}: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}."
        ) from error
    if logits.ndim != 2 or logits.shape[1] != facts.classes:
        given = f"{logits.shape[1]} classes" if logits.ndim == 2 else f"an output of shape {tuple(logits.shape)}"
        raise BenchError(f"the student gives {given}; {facts.dataset} has {facts.classes} classes.")
    logits = predict(model, images, device=device)
    if not bool(logits.isfinite().all()):
        raise BenchError("the student's logits are not finite, so it cannot be attacked. Train it again.")
    if bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-4).all()):
        # A second softmax, in the attacks' losses, would make gradients vanish.
        raise BenchError("the student returns confidences, but the attacks need logits. Remove its softmax.")
    return logits.argmax(1) == labels


def _right(model: Logits, images: Tensor, labels: Tensor, device: torch.device) -> Tensor:
    return predict(model, images, device=device).argmax(1) == labels


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

    `attack` is fgsm, pgd, apgd-ce, apgd-t, fab-t, fab or square, by torchattacks. `images` and `labels` are on the
    device of `model`. The result is projected back into the ball and [0, 1]; non-finite values are replaced by the
    clean ones, so that numerical failures do not count as successes.
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
