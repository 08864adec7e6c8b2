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

import copy
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.attacks.shared.inversion import class_tries, images_digest
from bench.core.progress import Stage
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
    as_float,
    register_attack,
    setting,
)
from bench.storage.checkpoint import Checkpoint, Loop, Part
from bench.training.divergence import check_finite, descend

SHIFT = 50.0  # added to log confidences; the published code adds more to answers that would still be negative


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
        standing = torch.cat([_class_codes(config, answers, label, context) for label in range(target.classes)])
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


def _class_codes(config: InversionNetworkConfig, answers: Tensor, label: int, context: Context) -> Tensor:
    """Return the codes (images_per_class, classes) that represent the class `label`."""
    tries, generator = config.images_per_class - 1, context.streams.torch(f"inversion-network/class-{label}")
    mine = answers[answers.argmax(1) == label]
    if len(mine):
        surest = mine[mine[:, label].argsort(descending=True, stable=True)][: max(1, len(mine) // 2)]
        first, others = encode(mine, config.truncation).mean(0, keepdim=True), _drawn(surest, tries, generator)
    else:
        certain = functional.one_hot(torch.tensor([label]), answers.shape[1]).float()
        drawn = torch.cat([answers.mean(0, keepdim=True), _drawn(answers, tries, generator)])
        mixed = 0.9 * certain + 0.1 * drawn
        first, others = encode(mixed[:1], config.truncation), mixed[1:]
    return torch.cat([first, encode(others, config.truncation)])


def _drawn(answers: Tensor, count: int, generator: torch.Generator) -> Tensor:
    rounds = [torch.randperm(len(answers), generator=generator) for _ in range(-(-count // len(answers)))]
    return answers[torch.cat(rounds)[:count]] if rounds else answers[:0]


class Decoder(nn.Module):
    """(n, classes) -> maps of about 4x4 -> transposed convolutions, each doubling the sides -> images in [0, 1].

    At 64x64 and `width` 128 these are the published layers: 1024, 512, 256, 128 maps, each with batch normalisation and
    tanh. Other sizes have more or fewer layers; the last is cropped.
    """

    def __init__(self, classes: int, shape: tuple[int, int, int], width: int) -> None:
        super().__init__()
        channels, self.high, self.wide = shape
        doublings = max(1, math.ceil(math.log2(max(min(shape[1:]), 8) / 4)))
        low = (math.ceil(self.high / 2**doublings), math.ceil(self.wide / 2**doublings))
        maps = width * 2 ** (doublings - 1)
        layers: list[nn.Module] = [
            nn.Unflatten(1, (classes, 1, 1)), nn.ConvTranspose2d(classes, maps, low), nn.BatchNorm2d(maps), nn.Tanh(),
        ]  # fmt: skip
        for _ in range(doublings - 1):
            layers += [nn.ConvTranspose2d(maps, maps // 2, 4, 2, 1), nn.BatchNorm2d(maps // 2), nn.Tanh()]
            maps //= 2
        self.net = nn.Sequential(*layers, nn.ConvTranspose2d(maps, channels, 4, 2, 1), nn.Sigmoid())

    def forward(self, codes: Tensor) -> Tensor:
        images: Tensor = self.net(codes)
        return images[:, :, : self.high, : self.wide]


def encode(confidences: Tensor, truncation: int = 0) -> Tensor:
    """Return the decoder's input for answers (n, classes): truncated, in logarithms, shifted, scaled to [0, 1].

    `truncation` is the number of largest confidences to keep (0: all); others, and those below e^-50, become 0.
    """
    if 0 < truncation < confidences.shape[1]:
        kept = confidences.topk(truncation, dim=1)
        confidences = torch.zeros_like(confidences).scatter(1, kept.indices, kept.values)
    return (confidences.clamp_min(1e-30).log() + SHIFT).clamp_min(0.0) / SHIFT


@torch.no_grad()
def decode(decoder: nn.Module, codes: Tensor, device: torch.device) -> Tensor:
    """Return the images (n, channels, height, width) of `codes` (n, classes), clamped to [0, 1], on the CPU."""
    parts = [decoder(part.to(device)).float().cpu() for part in torch.split(codes, 500)]
    return torch.cat(parts).clamp(0, 1)


def train_decoder(
    decoder: Decoder, codes: Tensor, images: Tensor, generator: torch.Generator, *, epochs: float, batch_size: int,
    rate: float, validation: float, device: torch.device, stage: Stage, checkpoint: Checkpoint | None = None,
) -> Decoder:  # fmt: skip
    """Train `decoder` in place and return it in evaluation mode, in the state that did best on held-out images.

    `codes` (n, classes) are the inputs, `images` (uint8 or float in [0, 1], four or more) the targets. The share
    `validation` is held out; after every epoch on the others it decides whether to keep the state. `stage` advances
    :func:`decoder_steps` times. With a `checkpoint`, stopped training resumes at the start of an epoch.
    """
    order = torch.randperm(len(images), generator=generator)
    held = _held_out(len(images), validation)
    tests, trains = order[:held], order[held:]
    decoder.to(device).train()
    optimizer = torch.optim.Adam(decoder.parameters(), rate, (0.5, 0.999), amsgrad=True)
    best, lowest = copy.deepcopy(decoder), torch.tensor(math.inf, dtype=torch.float64)
    parts: dict[str, Part] = {
        "decoder": decoder, "best": best, "lowest": lowest, "optimizer": optimizer, "order": generator
    }  # fmt: skip
    loop = Loop(checkpoint, parts, [codes, images], device)
    total = decoder_steps(len(images), epochs, batch_size, validation)
    with seeded(generator, device):
        done = loop.start(stage)
        while done < total:
            shuffled = trains[torch.randperm(len(trains), generator=generator)]
            # Skip a last batch of one image, which has no batch statistics.
            for index in [part for part in torch.split(shuffled, batch_size) if len(part) > 1]:
                if done == total:
                    break
                made = decoder(codes[index].to(device))
                loss = functional.mse_loss(made, as_float(images[index].to(device)))
                check_finite({"squared error": loss}, done, "the inversion network")
                descend(optimizer, loss)
                done += 1
                stage.advance()
            error = float(functional.mse_loss(decode(decoder.eval(), codes[tests], device), as_float(images[tests])))
            decoder.train()
            if error < float(lowest):
                best.load_state_dict(decoder.state_dict())
                lowest.fill_(error)
            loop.done(done, total)
    decoder.load_state_dict(best.state_dict())
    return decoder.eval()


def decoder_steps(records: int, epochs: float, batch_size: int, validation: float) -> int:
    """Return the number of steps of :func:`train_decoder`."""
    trains = records - _held_out(records, validation)
    batches = trains // batch_size + (trains % batch_size > 1)
    return max(1, round(epochs * batches))


def _held_out(records: int, validation: float) -> int:
    return min(max(1, round(records * validation)), records - 2)
