"""Losses of data-free generators: DAFL (Chen et al., ICCV 2019, arXiv:1904.01186), DGD (Eq. 2), DPSD (Eq. 8)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.core.progress import SILENT, Stage
from bench.core.transforms import shifted
from bench.models.build import features_and_logits
from bench.models.generators import DataFreeGenerator, Generator
from bench.storage.checkpoint import Checkpoint, Loop, Part
from bench.training.divergence import check_finite, descend

Reading = Literal["dafl", "printed"]
"""Reading of the two terms that the papers print differently from DAFL's code; see :func:`generator_terms`."""


def generator_terms(
    features: Tensor, logits: Tensor, *, norm: Literal[1, 2] = 1, reading: Reading = "dafl"
) -> dict[str, Tensor]:
    """Return the scalar losses ``one_hot``, ``entropy`` and ``activation`` of a batch.

    `features` (n, features) is the classifier's last hidden layer, with `norm` 1 in DGD and DAFL, 2 in DPSD; `logits`
    is (n, classes). ``dafl`` is what both papers describe: the negated entropy of the mean prediction balances classes,
    and the negated activation makes activations grow. ``printed`` follows their formulas: the mean over images of sum
    p log p pulls each prediction towards uniform, and activations shrink. Both divide the norm that the papers print by
    the number of features (norm 1, as DAFL's code does) or by its root (norm 2), so that weights fit nets of any width.
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
    """Settings of a data-free generator: Adam at `lr`, divided by 10 after every `decay_steps` (0: never).

    `alpha`, `beta` weigh entropy and activation (DGD, Eq. 2). The classifier sees images moved up to `shift` pixels.
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
    stage: Stage = SILENT,
    checkpoint: Checkpoint | None = None,
) -> DataFreeGenerator:
    """Train `net` in place against the fixed `classifier` (DGD, Eq. 2); raise :class:`NotFiniteError` on divergence."""
    net.to(device).train()
    classifier.to(device).eval().requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), settings.lr)
    held: dict[str, Part] = {"generator": net, "optimizer": optimizer, "order": generator}
    # A classifier that differs in a single bit gives a different generator.
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
        descend(optimizer, loss)
        stage.advance()
        loop.done(step + 1, settings.steps)
    return net.eval()


@torch.no_grad()
def generate(
    net: Generator, count: int, generator: torch.Generator, device: torch.device | str = "cpu", at_once: int = 500
) -> Tensor:
    """Return `count` images of `net` from fresh noise, uint8 (count, channels, height, width)."""
    sizes = [min(at_once, count - done) for done in range(0, count, at_once)]
    batches = [net(net.noise(size, generator, device)) for size in sizes]
    return torch.cat([(batch * 255.0).round().to(torch.uint8).cpu() for batch in batches])
