"""DGD: discriminative-generative distillation, as printed.

Ge, Liu, Wang, Li, Zeng, "Learning Privacy-Preserving Student Networks via Discriminative-Generative Distillation", IEEE
TIP 2023.

Threat model: the attacker holds the released student, and may hold the generator. Private: images and labels; each
record trains one teacher, chosen by a hash of its index, and the baseline classifier. Public: nothing. Released: the
student, the noisy labels, some generated images. Unit record: one record changes one teacher and so one vote per query;
Lap(2 / eps0) noise on every count makes a query eps0-DP. A given teacher (:mod:`bench.methods.shared.given_teacher`)
serves as both the baseline and the ensemble.

Claimed: the paper's composition of the label queries; its eps1 for perturbed codes protects synthetic images, not
records. Proven: infinite, because a baseline trained without noise on all private records drives the generator, whose
images train the student. :mod:`bench.methods.distillation.tangent_normal` defines the directions that the paper does
not specify; ``reading=printed`` takes the signs of Eq. 2 and 6 as printed, against the text.

Ablations: ``vae=False``; ``images=private`` (Fig. 4 RAW, Fig. 7), ``acgan``, ``wgan``, ``infogan`` (Fig. 4: GANs
trained on private images, without epsilon); ``synthetic`` (Fig. 6), ``teachers``, ``noise_scale`` (Fig. 8), ``queries``
with ``count=given`` (Fig. 3).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.seeds import seeded
from bench.interface import (
    BenchError,
    Budget,
    Claim,
    Context,
    Facts,
    FitSettings,
    GivenTeacher,
    Ledger,
    PrivateData,
    fit,
    register_method,
    setting,
)
from bench.methods.distillation.dgd_family import DGDConfig, DGDFamily, quick_dgd, tiny_dgd
from bench.methods.shared.given_teacher import given_net, given_teacher
from bench.methods.shared.random_images import random_images
from bench.methods.shared.start_config import RANDOM
from bench.methods.shared.starts_public import public_start
from bench.models.generators import DataFreeGenerator
from bench.privacy.accounting.claims import DGD_BYPASS, DGD_EPS1, dgd, dgd_largest_count
from bench.storage.checkpoint import Checkpoint
from bench.training.data_free import GeneratorSettings, generate, train_generator
from bench.training.gan import GanSettings, train_gan

PRINTED = ((1.0, 27), (10.0, 1300))  # Table I's epsilons, section IV-A's queries, at noise scale 40
TABLE_I = ("mnist", "fmnist")
OTHER_IMAGES = {
    "private": "the student's queries and its unlabelled images are private records themselves",
    "acgan": "the images come from an ACGAN that was trained on private images without noise",
    "wgan": "the images come from a WGAN that was trained on private images without noise",
    "infogan": "the images come from an InfoGAN that was trained on private images without noise",
}


@dataclass(frozen=True)
class DGDPrintedConfig(DGDConfig):
    """Settings of the data-free generator and of the Laplacian aggregation."""

    noise_scale: float = setting(40.0, "DGD, section IV: 2 / eps0", gt=0)
    count: Literal["printed", "formula", "given"] = setting(
        "printed", "DGD, section IV-A: on MNIST and FMNIST 27 queries for epsilon 1 and 1300 for 10, otherwise as for "
        "formula; formula: as many as section III-E allows",
    )  # fmt: skip
    least_queries: int = setting(1, "DGD keeps its noise; a larger number raises it if the budget covers fewer", ge=1)
    images: Literal["data-free", "private", "acgan", "wgan", "infogan"] = setting("data-free", "DGD, section III-B")
    baseline_steps: int = setting(3000, "DGD, section IV: as for the teachers, which have the same net", ge=1)
    generator_steps: int = setting(
        24_000, "DGD, section IV: 200 rounds; of 120 batches, as in DAFL's published code", ge=1
    )
    generator_batch: int = setting(128, "DGD, section IV", ge=1)
    generator_lr: float = setting(0.2, "DGD, section IV; divided by ten every 80 rounds", gt=0)
    generator_decay: int = setting(9600, "DGD, section IV: 80 rounds of 120 batches", ge=0)
    random_share: float = setting(
        0.0, "ours: share of synthetic images made by random processes; methods/shared/random_images.py", ge=0, lt=1
    )
    generator_noise: int = setting(100, "DAFL's published code, MNIST", ge=1, le=4096)
    generator_units: int = setting(128, "DAFL's published code", ge=1)
    alpha: float = setting(5.0, "DGD, section III-B", ge=0)
    beta: float = setting(0.1, "DGD, section III-B", ge=0)
    reading: Literal["dafl", "printed"] = setting(
        "dafl", "DGD, Eq. 2 and 6 as the text describes them; printed: with the formulas' signs"
    )

    @property
    def eps1(self) -> float:
        """The paper's epsilon for the perturbed codes, 0 without them."""
        return DGD_EPS1 if self.vae and self.regularise else 0.0


@register_method("dgd")
class DGD(DGDFamily):
    """A data-free generator's images, labelled by the noisy plurality of teachers, and regularised along a VAE."""

    config: DGDPrintedConfig
    bypass: ClassVar[str] = DGD_BYPASS
    repaired_by: ClassVar[str] = "dgd-sound"

    def given_teacher(self) -> GivenTeacher | None:
        """Return the given teacher; raise :class:`BenchError` if the `images` setting needs private records."""
        given = given_teacher(self.config)
        if given is not None and self.config.images != "data-free":
            raise BenchError(
                f"images={self.config.images} needs the private records, which a given teacher does not provide."
            )
        return given

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        return {"quick": cls.shortened(quick_dgd(facts), facts), "tiny": cls.shortened(tiny_dgd(facts), facts)}

    @classmethod
    def shortened(cls, shared: dict[str, Any], facts: Facts) -> dict[str, Any]:
        """Return the settings `shared` with a shorter training of baseline and generator."""
        tiny = shared["vae_steps"] < 10
        return {
            **shared,
            "count": "formula",
            "least_queries": 4 * facts.classes,
            "baseline_steps": 5 if tiny else min(1800, facts.private_records),
            "generator_steps": 3 if tiny else 200,
            "generator_batch": 20 if tiny else 128,
            "generator_lr": 3e-3,
            "generator_decay": 0,
            # Teachers label random images more accurately than generated ones: see docs/reproduction.md.
            "random_share": 0.75,
            # Two in five answers are wrong, and longer training would fit them too.
            "student_steps": min(500, shared["student_steps"]),
            "regularise": 0.01,
            "generator_units": 8 if tiny else 32,
        }

    def calibrate(self, budget: Budget) -> DGDPrintedConfig:
        """Return `config` with the number of label queries that `budget` pays for.

        ``count=printed``: the paper's for what it prints, otherwise section III-E's, as for ``formula``, with more
        noise if below ``least_queries``.
        """
        self.check_facts()
        if self.config.count == "given":
            return dataclasses.replace(self.config, queries=self.payable(self.config.queries))
        as_printed = self.config.noise_scale == self.Config().noise_scale and self.facts.dataset in TABLE_I
        queries = dict(PRINTED).get(budget.epsilon, 0)
        if self.config.count == "printed" and as_printed and queries:
            return dataclasses.replace(self.config, queries=self.payable(queries))
        wanted = self.payable(self.config.least_queries)
        scale = self.config.noise_scale
        try:
            queries = dgd_largest_count(2 / scale, budget.epsilon, budget.delta, self.config.eps1)
        except BenchError:
            if wanted == 1:
                raise
            queries = 0
        if queries < wanted:
            queries, scale = wanted, _smallest_scale(wanted, budget, self.config.eps1)
        return dataclasses.replace(self.config, queries=self.payable(queries), noise_scale=scale)

    def claimed(self, delta: float) -> Claim:
        """Return the formula of section III-E, which does not give the epsilons printed for 27 and 1300 queries."""
        claim = dgd(2 / self.config.noise_scale, self.config.queries, delta, self.config.eps1)
        said = {queries: epsilon for epsilon, queries in PRINTED}.get(self.config.queries)
        if said is None or self.config.noise_scale != self.Config().noise_scale:
            return claim
        return dataclasses.replace(claim, note=f"the paper prints {said:g} for it; {claim.note}")

    def images_depend(self) -> dict[str, Any]:
        """See `DGDFamily.images_depend`: images are shared across epsilons and both aggregations."""
        names = [field.name for field in dataclasses.fields(DGDPrintedConfig) if field.name.startswith("generator_")]
        names += ["images", "synthetic", "random_share", "random_kind", "baseline_steps", "alpha", "beta", "reading"]
        names += ["teacher", "teacher_recipe", "teacher_lr", "teacher_batch"]
        given = {} if not self.config.teacher_weights else {
            "given": [self.config.teacher_weights_sha256, self.config.teacher_size]
        }  # fmt: skip
        if self.config.teacher_init != RANDOM:
            start = self.config.teacher_init_sha256 or self.config.teacher_init
            given["start"] = [start, self.config.teacher_frozen, self.config.teacher_pixels]
        return {name: getattr(self.config, name) for name in names} | given

    def images(self, private: PrivateData, ledger: Ledger, context: Context) -> torch.Tensor:
        """See `DGDFamily.images`; uses private data outside any mechanism."""
        ledger.bypass(OTHER_IMAGES.get(self.config.images, self.bypass))
        order, textures_order = context.streams.torch("images"), context.streams.torch("textures")
        if self.config.images == "private":
            return private.images[torch.randperm(len(private), generator=order)[: self.config.synthetic]]
        depends = {**self.images_depend(), "seed": context.streams.seed, "device": context.device.type}
        depends |= public_start.start_depends(self.config, private.facts, context)

        def make() -> dict[str, NDArray[Any]]:
            # Keep both open until the images are stored: neither net is cached.
            with context.checkpoint("baseline", depends) as first, context.checkpoint("generator", depends) as second:
                if self.config.images == "data-free":
                    return {"images": self.data_free(private, context, order, first, second).numpy()}
                return {"images": gan_images(self.config, private, context, order, second).numpy()}

        made = torch.from_numpy(context.cache.get("synthetic-images", depends, make)["images"])
        if not self.config.random_share:
            return made

        count = round(self.config.random_share * len(made))
        textures = random_images(count, private.facts.shape, textures_order, self.config.random_kind)
        # Positions are public; shuffled so that queries and released images mix both kinds.
        kept = torch.randperm(len(made), generator=context.streams.torch("images/mix"))
        return torch.cat([made[: len(made) - len(textures)], textures])[kept]

    def data_free(
        self, private: PrivateData, context: Context, order: torch.Generator, of_baseline: Checkpoint,
        of_generator: Checkpoint,
    ) -> torch.Tensor:  # fmt: skip
        """Return images of a generator trained by Eq. 2 against a baseline trained on all private records.

        A given teacher is the baseline: it was trained on all records.
        """
        facts = private.facts
        settings = self.config.teacher_settings(len(private), facts)
        settings = dataclasses.replace(settings, steps=self.config.baseline_steps)
        baseline = given_net(self.config, facts, context) or self.baseline(private, settings, context, of_baseline)
        with seeded(context.streams.torch("generator/start")):
            net = DataFreeGenerator(
                *facts.shape, noise_size=self.config.generator_noise, units=self.config.generator_units
            )
        driving = GeneratorSettings(
            steps=self.config.generator_steps, batch_size=self.config.generator_batch, lr=self.config.generator_lr,
            decay_steps=self.config.generator_decay, alpha=self.config.alpha, beta=self.config.beta,
            shift=settings.shift, reading=self.config.reading,
        )  # fmt: skip
        with context.progress.stage("generator", driving.steps) as stage:
            train_generator(net, baseline, driving, order, device=context.device, stage=stage, checkpoint=of_generator)
        return generate(net, self.config.synthetic, order, context.device)

    def baseline(
        self, private: PrivateData, settings: FitSettings, context: Context, checkpoint: Checkpoint
    ) -> torch.nn.Module:
        """Return a net of the teachers' architecture, trained on all private records."""
        if self.config.teacher_recipe == "augmented":  # larger batches, because it has more records than a teacher
            settings = dataclasses.replace(settings, batch_size=min(100, len(private)))
        first = context.streams.torch("baseline/start")
        start, baseline, trained = public_start.fresh_teacher(self.config, private.facts, context, first)
        inputs = private.images
        if start is not None:
            inputs, settings = start.inputs(inputs, context), start.settings(settings)
        with context.progress.stage("baseline", self.config.baseline_steps) as stage:
            fit(
                trained, inputs, private.labels, settings, context.streams.torch("baseline/order"),
                device=context.device, stage=stage, checkpoint=checkpoint,
            )  # fmt: skip
        return baseline

    def answer(self, votes: NDArray[np.int64], ledger: Ledger) -> NDArray[np.generic]:
        """See :meth:`bench.methods.distillation.dgd_family.DGDFamily.answer`: Eq. 3."""
        return ledger.noisy_max(votes, teachers=self.config.teachers, gamma=1 / self.config.noise_scale)


def gan_images(
    config: DGDPrintedConfig, private: PrivateData, context: Context, order: torch.Generator, checkpoint: Checkpoint
) -> torch.Tensor:
    """Return images of a GAN trained on private images, for the comparison of Fig. 4."""
    assert config.images in ("acgan", "wgan", "infogan")
    settings = GanSettings(steps=config.generator_steps)
    with context.progress.stage(config.images, settings.steps) as stage:
        net = train_gan(
            config.images, private.images, private.labels, private.facts.classes, settings, order,
            device=context.device, stage=stage, checkpoint=checkpoint,
        )  # fmt: skip
    return generate(net, config.synthetic, order, context.device)


def _smallest_scale(queries: int, budget: Budget, eps1: float) -> float:
    left = budget.epsilon - eps1
    if left <= 0:
        raise BenchError(f"a claimed epsilon {budget.epsilon:g} is not reachable: the VAE alone costs {eps1:g}.")
    # The positive root of T e^2 + e sqrt(2 T L) = eps, in its numerically stable form.
    spread = math.sqrt(2 * queries * -math.log(budget.delta))
    eps0 = 2 * left / (spread + math.sqrt(spread**2 + 4 * queries * left))
    return 2 / eps0 * (1 + 1e-12)
