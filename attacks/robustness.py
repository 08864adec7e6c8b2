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

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bench.attacks.shared.linf import PARTS, SIMPLE, WORST, Logits, RobustnessConfig, perturbed
from bench.interface import BenchError, Context, Facts, RobustnessAttack, as_float, predict, register_attack

DLR_CLASSES = 4  # minimum for the targeted difference of logits ratio, which divides by logits of rank 1, 3 and 4


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
        seeds = torch.randint(
            0, 2**31, (len(everything), len(sizes), config.pgd_restarts), generator=generator, device=generator.device
        ).tolist()
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
