"""Data-free reconstruction: a generator of images that the student is sure of. Chen et al., ICCV 2019 (DAFL).

Threat model: the attacker holds the student's weights and knows the images' size; there are no auxiliary images. With
the student as discriminator, the generator of DAFL (arXiv:1904.01186) learns images that make the student confident,
with all classes equally frequent, and excite its last hidden layer (:mod:`bench.training.data_free`). The most
confident images of each class are kept; a class never generated is a failure.

Differences from the paper: there the images train a smaller net in alternation; here they are the result. The random
shifts of the images are ours. The rate falls tenfold after 40% and 80% of the steps, as in DGD's code; DAFL's keeps it
on MNIST. The entropy is in nats; DAFL's code takes log10, so that its ``alpha`` weighs the balance 2.3 times less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bench.attacks.shared.inversion import class_tries
from bench.core.seeds import seeded
from bench.interface import (
    Access,
    Context,
    Facts,
    InversionAttack,
    PublicData,
    Reconstructions,
    Target,
    as_float,
    predict,
    register_attack,
    setting,
)
from bench.models.frozen_backbone import state_digest
from bench.models.generators import DataFreeGenerator
from bench.training.data_free import GeneratorSettings, generate, train_generator


@dataclass(frozen=True)
class DataFreeConfig:
    """Settings of the attack."""

    images_per_class: int = setting(10, "ours: the paper trains a net on them", ge=1)
    pool: int = setting(1000, "ours: images from which those of a class are chosen", ge=1)
    steps: int = setting(24_000, "DAFL's published code, MNIST: 200 rounds of 120 batches", ge=1)
    batch_size: int = setting(512, "DAFL's published code, MNIST", ge=1)
    rate: float = setting(0.2, "DAFL's published code, MNIST (lr_G)", gt=0)
    alpha: float = setting(
        5.0, "ICCV 2019, section 4.1: weight of the classes' balance, MNIST (published code: ie)", ge=0
    )
    beta: float = setting(0.1, "ICCV 2019, section 4.1: weight of the activations, MNIST (published code: a)", ge=0)
    noise_size: int = setting(100, "DAFL's published code, MNIST (latent_dim)", ge=1)
    units: int = setting(128, "DAFL's published code", ge=1)
    shift: int = setting(0, "ours: random shift, in pixels, of the images that the student sees", ge=0)


@register_attack("data-free")
class DataFree(InversionAttack[DataFreeConfig]):
    """A generator trained only against the student."""

    access = Access.WEIGHTS
    citation = "Chen et al., ICCV 2019"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        return {
            "quick": {"steps": 300, "batch_size": 64, "rate": 0.01, "units": 32, "shift": 3},
            "tiny": {"steps": 20, "batch_size": 32, "rate": 0.02, "units": 8, "pool": 100, "images_per_class": 2},
        }

    def run(
        self, target: Target, auxiliary: PublicData | None, observed: torch.Tensor | None, context: Context
    ) -> Reconstructions:
        """Train the generator and select its images."""
        config = self.config
        settings = GeneratorSettings(
            config.steps, config.batch_size, config.rate, decay_steps=round(0.4 * config.steps), alpha=config.alpha,
            beta=config.beta, shift=config.shift,
        )  # fmt: skip
        with seeded(context.streams.torch("data-free/start")):
            net = DataFreeGenerator(*target.shape, noise_size=config.noise_size, units=config.units)
        depends = {"settings": dataclasses.asdict(config), "version": 1, "target": state_digest(target.model)}
        with context.stage("data-free", depends, config.steps, "data-free generator") as (checkpoint, stage):
            train_generator(
                net, target.model, settings, context.streams.torch("data-free/training"), device=context.device,
                stage=stage, checkpoint=checkpoint,
            )  # fmt: skip
        pool = generate(net, config.pool, context.streams.torch("data-free/pool"), context.device)
        target.count(config.steps * config.batch_size + config.pool)
        sure, found = predict(target.model, pool, device=context.device).softmax(1).max(1)
        labels = class_tries(target.classes, config.images_per_class)
        images = torch.zeros((len(labels), *target.shape))
        reached = torch.zeros(len(labels), dtype=torch.bool)
        for label in range(target.classes):
            rows = (labels == label).nonzero().squeeze(1)
            mine = (found == label).nonzero().squeeze(1)
            mine = mine[sure[mine].argsort(descending=True, stable=True)][: len(rows)]
            images[rows[: len(mine)]] = as_float(pool[mine])
            reached[rows[: len(mine)]] = True
        return Reconstructions(images, labels, reached)
