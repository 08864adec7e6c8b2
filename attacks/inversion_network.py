"""Inversion by a second network: Yang, Zhang, Chang and Liang, CCS 2019 (arXiv:1902.08552).

Threat model: the attacker may query the student for confidences and holds unlabelled auxiliary images, none of them
private. A decoder learns by squared error to reconstruct auxiliary images from the student's answers, so it returns the
mean of all images with such an answer: a class, not a record. It then inverts observed answers
(:attr:`bench.core.types.Reconstructions.observed`, one image each) and answers that represent a class. ``truncation``
keeps only the largest confidences of every answer; ``rounding`` rounds the student's.

Images of a class: the first from the mean log answer to the auxiliary images that the student assigns to it, the others
from answers to single ones, drawn from the more confident half. A class without such images gets nearly certain
answers: 0.9 for the class, 0.1 split as in the answer to an auxiliary image. All tries share the decoder.

Differences from the paper: the published code selects the decoder on the target's training images, which no attacker
has; here it is selected on held-out auxiliary images. Images have the data set's size, which sets the number of layers
(64x64 gives the paper's); answers are scaled to [0, 1], and confidences below e^-50 count as that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.attacks.shared.decoder import Decoder, decode, decoder_steps, encode, train_decoder
from bench.attacks.shared.inversion import class_tries, images_digest
from bench.core.seeds import seeded
from bench.interface import (
    Access,
    Context,
    Facts,
    InversionAttack,
    Knowledge,
    PublicData,
    Reconstructions,
    Target,
    register_attack,
    setting,
)


@dataclass(frozen=True)
class InversionNetworkConfig:
    """Settings of the attack."""

    images_per_class: int = setting(10, "ours: the paper inverts single answers", ge=1)
    truncation: int = setting(0, "CCS 2019, section 4.2: number of confidences that the attacker sees; 0: all", ge=0)
    rounding: float = setting(0.0, "none, as in the paper", ge=0, lt=1)
    epochs: float = setting(100.0, "the published code, train_inversion.py", gt=0)
    batch_size: int = setting(128, "the published code, train_inversion.py; batch normalisation needs two", ge=2)
    rate: float = setting(2e-4, "the published code: Adam (0.5, 0.999), amsgrad", gt=0)
    width: int = setting(
        128, "the published code (ngf): maps of the layer before the last, doubled at each below", ge=1
    )
    validation: float = setting(0.1, "ours: share of the auxiliary images held out to select the decoder", gt=0, lt=1)


@register_attack("inversion-network")
class InversionNetwork(InversionAttack[InversionNetworkConfig]):
    """A decoder from answers to images."""

    access = Access.CONFIDENCES
    knowledge = Knowledge.AUXILIARY
    least_auxiliary = 4
    citation = "Yang et al., CCS 2019"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        return {
            "quick": {"epochs": 20.0, "width": 16, "rate": 2e-3},
            "tiny": {"epochs": 3.0, "width": 4, "rate": 5e-3, "images_per_class": 2},
        }

    def run(
        self, target: Target, auxiliary: PublicData | None, observed: torch.Tensor | None, context: Context
    ) -> Reconstructions:
        """Train the decoder on the auxiliary images; invert answers for every class, and the observed ones."""
        config = self.config
        images = self.own_images(auxiliary)
        answers = target.confidences(images, config.rounding)
        decoder = self._train(encode(answers, config.truncation), images, target, context)
        labels = class_tries(target.classes, config.images_per_class)
        standing = torch.cat(
            [
                _class_codes(config, answers, label, context.streams.torch(f"inversion-network/class-{label}"))
                for label in range(target.classes)
            ]
        )
        seen = None if observed is None else decode(decoder, encode(observed, config.truncation), context.device)
        return Reconstructions(decode(decoder, standing, context.device), labels, observed=seen)

    def _train(self, codes: Tensor, images: Tensor, target: Target, context: Context) -> Decoder:
        config = self.config
        with seeded(context.streams.torch("inversion-network/start")):
            decoder = Decoder(target.classes, target.shape, config.width)
        steps = decoder_steps(len(images), config.epochs, config.batch_size, config.validation)
        depends = {"settings": dataclasses.asdict(config), "version": 1, "codes": images_digest(codes)}
        with context.stage("inversion-network", depends, steps, "inversion network") as (checkpoint, stage):
            return train_decoder(
                decoder, codes, images, context.streams.torch("inversion-network/order"), epochs=config.epochs,
                batch_size=config.batch_size, rate=config.rate, validation=config.validation, device=context.device,
                stage=stage, checkpoint=checkpoint,
            )  # fmt: skip


def _class_codes(config: InversionNetworkConfig, answers: Tensor, label: int, generator: torch.Generator) -> Tensor:
    """Return the codes (images_per_class, classes) that represent the class `label`."""
    tries = config.images_per_class - 1
    mine = answers[answers.argmax(1) == label]
    if len(mine):
        surest = mine[mine[:, label].argsort(descending=True, stable=True)][: max(1, len(mine) // 2)]
        first, others = encode(mine, config.truncation).mean(0, keepdim=True), _drawn(surest, tries, generator)
    else:
        certain = torch.nn.functional.one_hot(torch.tensor([label]), answers.shape[1]).float()
        drawn = torch.cat([answers.mean(0, keepdim=True), _drawn(answers, tries, generator)])
        mixed = 0.9 * certain + 0.1 * drawn
        first, others = encode(mixed[:1], config.truncation), mixed[1:]
    return torch.cat([first, encode(others, config.truncation)])


def _drawn(answers: Tensor, count: int, generator: torch.Generator) -> Tensor:
    rounds = [torch.randperm(len(answers), generator=generator) for _ in range(-(-count // len(answers)))]
    return answers[torch.cat(rounds)[:count]] if rounds else answers[:0]
