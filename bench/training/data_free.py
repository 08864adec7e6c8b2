"""What data-free generators are driven by: the terms of DAFL, as DGD (Eq. 2) and DPSD (Eq. 8) take them over.

A classifier stands in for the discriminator: images count as good where it is sure of each one, finds all classes
equally often, and its last hidden layer is strongly active (Chen et al., ICCV 2019, arXiv:1904.01186).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.models.build import features_and_logits
from bench.training.checkpoint import Checkpoint, Loop, Part
from bench.training.divergence import check_finite
from bench.training.transforms import shifted

if TYPE_CHECKING:
    from bench.core.progress import Stage
    from bench.models.generators import DataFreeGenerator
    from bench.training.gan import GanGenerator

Reading = Literal["dafl", "printed"]
"""How the two terms are read that the papers print otherwise than DAFL computes them; see :func:`generator_terms`."""


def generator_terms(
    features: Tensor, logits: Tensor, *, norm: Literal[1, 2] = 1, reading: Reading = "dafl"
) -> dict[str, Tensor]:
    """Return the terms ``one_hot``, ``entropy`` and ``activation`` of a batch, each a scalar to be minimised.

    Args:
        features: Last hidden layer (n, features) of the classifier on the generated images.
        logits: Its logits (n, classes).
        norm: Norm of the features: 1 in DGD and DAFL, 2 in DPSD.
        reading: ``dafl`` takes the entropy of the batch's mean prediction, negated, so that classes are balanced, and
            the activations negated, so that they grow: what both papers say in words. ``printed`` is their formulas to
            the letter: the sum over p log p of each image, which pulls every prediction towards uniform, and the
            activations with a plus sign, which makes them small.

    """
    one_hot = functional.cross_entropy(logits, logits.argmax(1))
    strength = features.abs().mean() if norm == 1 else features.norm(dim=1).mean() / math.sqrt(features.shape[1])
    if reading == "printed":
        logs = logits.log_softmax(1)
        return {"one_hot": one_hot, "entropy": (logs.exp() * logs).sum(1).mean(), "activation": strength}
    mean = logits.softmax(1).mean(0)
    return {"one_hot": one_hot, "entropy": (mean * mean.clamp_min(1e-12).log()).sum(), "activation": -strength}


@dataclass(frozen=True, slots=True)
class GeneratorSettings:
    """How a data-free generator is trained: Adam at `lr`, a tenth of it after every `decay_steps` (0: never).

    `alpha` and `beta` weigh the entropy and the activation beside the one-hot term (DGD, Eq. 2). `shift` moves the
    images by up to that many pixels before the classifier sees them, so that it is sure of shapes, not of pixels.
    """

    steps: int
    batch_size: int = 128
    lr: float = 0.2
    decay_steps: int = 0
    alpha: float = 5.0
    beta: float = 0.1
    shift: int = 0
    reading: Reading = "dafl"


def train_generator(
    net: DataFreeGenerator,
    classifier: nn.Module,
    settings: GeneratorSettings,
    generator: torch.Generator,
    *,
    device: torch.device | str = "cpu",
    stage: Stage | None = None,
    checkpoint: Checkpoint | None = None,
) -> DataFreeGenerator:
    """Train `net` in place against the fixed `classifier` (Eq. 2 of DGD) and return it, in evaluation mode.

    `stage` is advanced at every step; `checkpoint` is as for :func:`bench.training.loop.fit`.
    Raises :class:`NotFiniteError` where a term is no number any more.
    """
    net.to(device).train()
    classifier.to(device).eval().requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), settings.lr)
    held: dict[str, Part] = {"generator": net, "optimizer": optimizer, "order": generator}
    # The classifier drives all: another one, be it by a bit, makes another generator.
    loop = Loop(checkpoint, held, classifier.state_dict().values(), device)
    for step in range(loop.start(stage), settings.steps):
        if settings.decay_steps and step and step % settings.decay_steps == 0:
            for group in optimizer.param_groups:
                group["lr"] /= 10
        images = net(net.noise(settings.batch_size, generator, device))
        if settings.shift:
            images = shifted(images, settings.shift, generator)
        terms = generator_terms(*features_and_logits(classifier, images), norm=1, reading=settings.reading)
        check_finite(terms, step, "the generator")
        loss = terms["one_hot"] + settings.alpha * terms["entropy"] + settings.beta * terms["activation"]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if stage is not None:
            stage.advance()
        loop.done(step + 1, settings.steps)
    return net.eval()


@torch.no_grad()
def generate(
    net: DataFreeGenerator | GanGenerator, count: int, generator: torch.Generator, device: torch.device | str = "cpu",
    at_once: int = 500,
) -> Tensor:  # fmt: skip
    """Return `count` images of `net` from fresh noise, `at_once` at a time: uint8 (count, channels, height, width)."""
    sizes = [min(at_once, count - done) for done in range(0, count, at_once)]
    batches = [net(net.noise(size, generator, device)) for size in sizes]
    return torch.cat([(batch * 255.0).round().to(torch.uint8).cpu() for batch in batches])
