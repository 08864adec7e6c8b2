"""Shared by DP-MERF and the repaired DP-Kernel: a noisy mean of random Fourier features, a generator fitted to it.

The mean embedding is that of ``phi(x) onehot(y)'`` over the records. phi(x), of norm 1, holds cosines and sines at
public random frequencies, which a subclass draws: together they approximate an image kernel times a label kernel.

One Gaussian mechanism releases the class sums of phi and the class counts. Adjacency replace: a replacement within the
class moves the sums by at most 2 in L2 and no count; one across classes moves two columns of the sums by 1 each and two
counts by 1 each, 2 in L2. So the sensitivity is 2, and the counts are free. All else is post-processing.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bench.core import margins
from bench.interface import (
    Budget,
    Context,
    Facts,
    Gaussian,
    Ledger,
    PrivateData,
    PublicData,
    as_float,
    in_equal_batches,
    setting,
)
from bench.methods.generative.family import Generative, GenerativeConfig, Source, source_of
from bench.methods.generative.gan_parts import ForgerConfig, new_generator
from bench.methods.shared.calibration import NO_CLAIM, ClaimedBy, with_least_noise
from bench.methods.shared.clipping import EXACT
from bench.methods.shared.settings_checks import student_depends
from bench.models.generators import ConditionalGenerator
from bench.storage.checkpoint import Loop
from bench.training.divergence import check_finite, descend

CODE = "DP-MERF's code ParkLabML/DP-MERF, code_balanced/gen_balanced.py: "
SENSITIVITY = 2.0  # L2, of class sums of features of norm 1 with class counts


@dataclass(frozen=True)
class EmbeddingConfig(GenerativeConfig, ForgerConfig):
    """Settings of a generator fitted to noisy mean embeddings."""

    features: int = setting(10_000, CODE + "d_rff; a cosine and a sine of half as many frequencies", ge=2)
    noise_multiplier: float = setting(5.0, CODE + "noise_factor, below epsilon 1; calibrated to the budget", gt=0)
    latent: int = setting(5, CODE + "d_code", ge=1, le=4096)
    generator_units: int = setting(200, CODE + "gen_spec", ge=1)
    generator_maps: int = setting(16, CODE + "n_channels; then half as many", ge=1)
    generator_epochs: float = setting(5.0, CODE + "epochs", gt=0)
    generator_batch: int = setting(500, CODE + "batch_size; batch normalisation needs two", ge=2)
    generator_lr: float = setting(0.01, CODE + "lr, of Adam", gt=0)
    lr_decay: float = setting(0.9, CODE + "lr_decay, after each epoch", gt=0)

    def epoch(self, records: int) -> int:
        """Return the number of generator steps of an epoch."""
        return max(1, records // self.generator_batch)


class MeanEmbedding(ClaimedBy, Generative):
    """One Gaussian release of the mean embedding, then a generator fitted to it; a subclass draws the frequencies."""

    claimed_by: ClassVar[str] = EXACT  # unless the paper uses another
    claimed_in: ClassVar[str] = NO_CLAIM

    @abc.abstractmethod
    def frequencies(self, draws: torch.Generator) -> Tensor:
        """Return the public random frequencies (config.features // 2, pixels)."""

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        given = super().presets(facts)
        batch = 200 if facts.private_records > 10_000 else 50
        quick = {"features": 4000, "generator_batch": batch, "generator_epochs": 600 * batch / facts.private_records}
        if (epochs := quick["generator_epochs"]) > 10:
            # Few records make many epochs: decay over all of them as over the paper's five.
            quick["lr_decay"] = 0.9 ** (5 / epochs)
        # At the paper's learning rate, 40 steps may saturate pixels.
        tiny = {"features": 400, "generator_batch": 50, "generator_lr": 0.001}
        tiny["generator_epochs"] = 40 / max(1, facts.private_records // 50)
        return {"quick": {**given["quick"], **quick}, "tiny": {**given["tiny"], **tiny}}

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the least noise whose claim or exact cost (proven) fits `budget`."""
        return with_least_noise(self, budget, self.claimed_by, EXACT, tolerance=1e-6)

    def charges(self) -> list[Gaussian]:
        return [Gaussian(self.config.noise_multiplier)]

    def fit_generator(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Source:
        """Release the embedding and fit a generator to it."""
        facts = private.facts
        frequencies = self.frequencies(context.streams.torch("frequencies"))
        with context.progress.stage("mean embedding", facts.private_records) as stage:
            sums = class_sums(private, frequencies, context.device, stage.advance)
        noise = self.config.noise_multiplier
        noisy = torch.from_numpy(ledger.gaussian(sums.numpy(), sensitivity=SENSITIVITY, noise_multiplier=noise))
        shares = noisy[-1].clamp_min(0) + 1e-9
        # Divide by the public count in `facts`; the actual count is private under add/remove.
        wanted = (noisy[:-1] / facts.private_records).float()
        net = new_generator(self.config, facts, context)
        fit_embedding(net, wanted, shares, frequencies, self.config, facts, context)
        return source_of(
            net, lambda n, draws: torch.multinomial(shares, n, replacement=True, generator=draws), context.device
        )


def embedded(images: Tensor, frequencies: Tensor) -> Tensor:
    """Return features (n, 2 frequencies), of norm at most 1, of float `images` (n, channels, height, width)."""
    phases = images.flatten(1) @ frequencies.T
    return torch.cat([phases.cos(), phases.sin()], 1) / (math.sqrt(len(frequencies)) * margins.FLOAT32)


def class_sums(
    private: PrivateData, frequencies: Tensor, device: torch.device, advance: Callable[[int], None] = lambda count: None
) -> Tensor:
    """Return each class's sum of features and, in the last row, its count: float64 (2 frequencies + 1, classes)."""
    classes, size = private.facts.classes, 2000
    sums = torch.zeros(2 * len(frequencies) + 1, classes, dtype=torch.float64)
    frequencies = frequencies.to(device)

    def mapped(images: Tensor) -> Tensor:
        features = embedded(as_float(images.to(device)), frequencies).cpu().double()  # float64 keeps rounding small
        return features.nan_to_num(0.0)  # a record whose phases overflow must not change the others' sum

    batches = in_equal_batches(mapped, private.images, size)
    for rows, labels in zip(batches, torch.split(private.labels, size), strict=True):
        own = torch.nn.functional.one_hot(labels, classes).double()
        sums[:-1] += rows.T @ own
        sums[-1] += own.sum(0)
        advance(len(rows))
    return sums


def fit_embedding(
    net: ConditionalGenerator, wanted: Tensor, shares: Tensor, frequencies: Tensor, config: EmbeddingConfig,
    facts: Facts, context: Context,
) -> None:  # fmt: skip
    """Fit the mean embedding of `net`'s images, with class `shares`, to `wanted`. Uses nothing private."""
    device = context.device
    draws = context.streams.torch("generator/draws")
    net.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]  # faster
    wanted, frequencies = wanted.to(device), frequencies.to(device)
    optimizer = torch.optim.Adam(net.parameters(), config.generator_lr)
    epoch = config.epoch(facts.private_records)
    steps = max(1, round(config.generator_epochs * epoch))
    with context.stage("generator", student_depends(config, context), steps) as (checkpoint, stage):
        loop = Loop(checkpoint, {"net": net, "optimizer": optimizer, "draws": draws}, [wanted], device)
        for step in range(loop.start(stage), steps):
            for group in optimizer.param_groups:
                group["lr"] = config.generator_lr * config.lr_decay ** (step // epoch)
            labels = torch.multinomial(shares, config.generator_batch, replacement=True, generator=draws)
            rows = embedded(net(net.codes(labels, draws, device)), frequencies)
            own = torch.nn.functional.one_hot(labels.to(device), facts.classes).float()
            loss = (wanted - rows.T @ own / len(labels)).square().sum()
            if step % 100 == 0:
                check_finite({"squared distance": loss}, step, "the generator")
            descend(optimizer, loss)
            stage.advance()
            loop.done(step + 1, steps)
