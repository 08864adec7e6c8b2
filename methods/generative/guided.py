"""Generators guided, through the ledger, by discriminators on disjoint parts of the private records.

PATE-GAN, G-PATE, DataLens and GS-WGAN differ in their queries. One record changes one discriminator, arbitrarily; none
is released. The generator's labels are drawn evenly.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from bench.interface import Context, Facts, Ledger, PrivateData, PublicData, setting
from bench.methods.generative.critics import CriticConfig, Critics, Loss, critics_of
from bench.methods.generative.family import Generative, GenerativeConfig, Source, balanced
from bench.methods.generative.gan_parts import Forger, ForgerConfig

Guide = Callable[["Tensor", "Tensor"], "Tensor"]
"""Maps images (n, channels, height, width) in [0, 1] and labels (n,) to each pixel's direction, in the same shape."""
OURS = "ours: a small net, so that thousands train on one core; the paper's are convolutional"
NET = "ours: the net of methods/generative/dp_merf.py"


@dataclass(frozen=True)
class GuidedConfig(GenerativeConfig, CriticConfig, ForgerConfig):
    """Settings of the discriminators and of the generator."""

    teachers: int = setting(2000, "as the subclass says", ge=1)
    batch: int = setting(64, "as the subclass says", ge=1)
    critic_units: int = setting(16, OURS, ge=1)
    critic_batch: int = setting(32, "ours: at most what a part holds", ge=1)
    critic_lr: float = setting(1e-3, "G-PATE's code AI-secure/G-PATE, of Adam with betas 0.5 and 0.999", gt=0)
    critic_steps: int = setting(2, "DataLens's code AI-secure/DataLens: before each further step", ge=1)
    warm_steps: int = setting(10, "DataLens's code AI-secure/DataLens: before the first step of the generator", ge=1)
    generator_lr: float = setting(1e-3, "G-PATE's code AI-secure/G-PATE, of Adam with betas 0.5 and 0.999", gt=0)
    latent: int = setting(50, "G-PATE's code AI-secure/G-PATE: epsilon 1; 100 at epsilon 10", ge=1, le=4096)
    generator_units: int = setting(200, NET, ge=1)
    generator_maps: int = setting(16, NET, ge=1)


class Guided(Generative):
    """A generator that follows noisy answers of discriminators on disjoint parts."""

    loss: ClassVar[Loss] = "binary"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        given = super().presets(facts)
        quick = {"latent": 10, "generator_lr": 2e-3}
        # Few latent inputs and enough steps, so that images depend on their labels.
        tiny = {
            "teachers": min(10, max(2, facts.private_records // 4)), "critic_units": 2, "critic_batch": 8,
            "warm_steps": 1, "critic_steps": 1, "generator_units": 64, "generator_maps": 8, "latent": 2,
            "generator_lr": 5e-3,
        }  # fmt: skip
        return {"quick": {**given["quick"], **quick}, "tiny": {**given["tiny"], **tiny}}

    def generator_steps(self) -> int:
        """Return the number of the generator's steps, each guided once."""
        return int(self.config.steps)

    @abc.abstractmethod
    def guide(self, critics: Sequence[Critics], ledger: Ledger, context: Context) -> Guide:
        """Return the function that queries `critics` through `ledger`."""

    def fit_generator(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Source:
        """Train discriminators and generator in turn, one group of `critics` per turn."""
        facts, steps = private.facts, self.generator_steps()
        forger = Forger(self.config, facts, context)
        critics = critics_of(self.config, private, context, getattr(self.config, "groups", 1))
        with context.progress.stage("discriminators", len(critics)) as stage:
            for group in critics:
                group.learn(forger, self.config.warm_steps, self.loss)
                stage.advance()
        guide = self.guide(critics, ledger, context)
        with context.progress.stage("generator", steps) as stage:
            for step in range(steps):
                if step:
                    critics[step % len(critics)].learn(forger, self.config.critic_steps, self.loss)
                images, labels = forger.images(self.config.batch)
                forger.follow(images, -guide(images.detach(), labels))
                stage.advance()
        return balanced(forger.net, facts.classes, context.device)
