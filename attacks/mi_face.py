"""Model inversion by gradient: Fredrikson, Jha and Ristenpart, CCS 2015 (MI-Face), section 5.

Threat model: the attacker holds the student's weights and knows the classes' names and the images' size; there are no
auxiliary images (``subspace`` takes some, of other people). Gradient descent on an image in [0, 1] lowers the student's
loss for a class, under a prior. ``gradient=numeric`` estimates the gradient from confidences, along random directions;
``rounding`` rounds them (the countermeasure of section 5.3). Every answer counts as a query.

Differences from the paper: its loss 1 - p_y has no gradient if the student is sure of another class; here it is -log
p_y or the margin between logits, by Adam (``loss=confidence`` and ``optimizer=sgd`` with ``rate=0.1`` give the
paper's). Its black-box variant queries every pixel twice per step; here ``directions`` random directions are queried. A
Gaussian blur (``blur``) replaces its denoising and sharpening, used for an autoencoder only.

The quick preset is ours: with shifted and noisy views and a prior that favours few, bright, smooth strokes, a
convolutional student yields digits instead of unrecognisable textures. ``prior=relative`` weighs the prior in units of
the loss's mean gradient, to suit any student temperature; noisier and larger numeric gradients need less prior.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from bench.attacks.shared.inversion import ImageFilter, best_of, class_tries, margin_loss, total_variation
from bench.interface import (
    Access,
    BenchError,
    Context,
    Facts,
    InversionAttack,
    PublicData,
    Reconstructions,
    Target,
    register_attack,
    setting,
    shifted,
)


@dataclass(frozen=True)
class MIFaceConfig:
    """Settings of the attack."""

    images_per_class: int = setting(10, "ours: the paper makes one", ge=1)
    restarts: int = setting(1, "the paper starts once; of several starts, the one of least loss is kept", ge=1)
    steps: int = setting(5000, "CCS 2015, section 5.2 (alpha)", ge=1)
    patience: int = setting(
        100, "CCS 2015, section 5.2 (beta): steps without a lower cost before a stop; 0: never", ge=0
    )
    confidence: float = setting(0.99, "CCS 2015, section 5.2 (gamma): stop at this confidence; 1: never", ge=0, le=1)
    keep: Literal["best", "last"] = setting("best", "CCS 2015, algorithm 1: the image of the least cost")
    optimizer: Literal["adam", "sgd", "normalised"] = setting(
        "adam", "ours: the paper's is plain gradient descent (sgd); normalised: sgd with gradients of mean square 1"
    )
    rate: float = setting(0.05, "ours, for Adam; CCS 2015, section 5.2 (lambda): 0.1", gt=0)
    loss: Literal["confidence", "cross-entropy", "margin"] = setting("cross-entropy", "ours: the paper's is 1 - p_y")
    start: float = setting(0.0, "CCS 2015, algorithm 1: a black image", ge=0, le=1)
    start_noise: float = setting(0.1, "ours: tries of one class must differ; the paper starts at 0", ge=0)
    prior: Literal["absolute", "relative"] = setting("absolute", "ours; relative: in units of the loss's mean gradient")
    smoothness: float = setting(1e-4, "ours: weight of total variation", ge=0)
    darkness: float = setting(0.0, "ours: weight of the sum of the pixels", ge=0)
    blur: float = setting(0.0, "ours: deviation in pixels, in place of the paper's denoising", ge=0)
    views: int = setting(1, "ours: shifted and noisy views that the student sees at each step", ge=1)
    shift: int = setting(0, "ours: largest shift of a view, in pixels", ge=0)
    noise: float = setting(0.0, "ours: deviation of a view's Gaussian noise", ge=0)
    gradient: Literal["weights", "numeric"] = setting("weights", "CCS 2015, section 5.2 (white box)")
    directions: int = setting(50, "ours: random directions of a numeric gradient; two queries for each", ge=1)
    width: float = setting(0.05, "ours: length of a numeric gradient's steps", gt=0)
    rounding: float = setting(0.0, "CCS 2015, section 5.3: none", ge=0)
    batch_size: int = setting(100, "ours: images optimised together; other sizes draw other noise", ge=1)
    subspace: int = setting(
        0, "ours: eigenfaces of the attacker's own images that span the image; 0: any", later=True, ge=0
    )

    def __post_init__(self) -> None:
        if self.prior == "relative" and (self.keep == "best" or self.patience > 0):
            raise BenchError(
                "prior=relative requires keep=last and patience=0, because its unit changes at every step "
                "and the costs of two steps cannot be compared. Set these, or prior=absolute."
            )


@register_attack("mi-face")
class MIFace(InversionAttack[MIFaceConfig]):
    """Gradient descent on an image, for each class."""

    access = Access.WEIGHTS
    citation = "Fredrikson, Jha, Ristenpart, CCS 2015"
    tunable: ClassVar[Mapping[str, tuple[float, ...]]] = {
        "blur": (0.0, 1.0, 2.0, 3.0, 5.0, 8.0), "smoothness": (0.02, 0.05, 0.1, 0.3, 1.0), "subspace": (0, 20, 40, 80),
        "noise": (0.0, 0.1, 0.3),
    }  # fmt: skip

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        quick: dict[str, Any] = {
            "loss": "margin", "prior": "relative", "keep": "last", "patience": 0, "confidence": 1.0,
            "steps": 300, "blur": 1.0, "views": 2, "shift": 2, "noise": 0.4, "smoothness": 0.1, "darkness": 0.3,
        }  # fmt: skip
        if facts.shape[0] > 1 or max(facts.shape[1:]) > 32:
            # Photographs have shades, and any pixel may be bright. Plain gradient steps keep shades; Adam drives every
            # pixel to black or white.
            quick |= {"optimizer": "normalised", "rate": 0.003, "steps": 100, "start": 0.5, "start_noise": 0.05}
            quick |= {"darkness": 0.0, "smoothness": 0.05, "noise": 0.1}
        if max(facts.shape[1:]) > 32:
            # Large photographs are mostly aligned faces, and are slow.
            quick |= {"shift": 0, "views": 1, "images_per_class": 1}
        return {"quick": quick, "tiny": quick | {"images_per_class": 2, "steps": 30, "restarts": 2}}

    def run(
        self, target: Target, auxiliary: PublicData | None, observed: torch.Tensor | None, context: Context
    ) -> Reconstructions:
        """Descend from `restarts` starts for every image and keep the one with the student's lowest loss."""
        config = self.config
        labels = class_tries(target.classes, config.images_per_class)
        every = labels.repeat_interleave(config.restarts)
        generator = context.streams.torch("mi-face")
        chunks = torch.split(every, config.batch_size)
        images, losses = [], []
        known = None if auxiliary is None else auxiliary.images
        look = ImageFilter(config.blur, config.subspace, known, context.device)
        with context.progress.stage("descent", config.steps * len(chunks)) as stage:
            for chunk in chunks:
                made = _Descent(config, target, chunk.to(context.device), generator, look).run(stage.advance)
                images.append(made.cpu())
                losses.append(_clean_loss(config, target, made, chunk.to(context.device)).cpu())
        chosen = best_of(torch.cat(losses), len(labels))
        return Reconstructions(torch.cat(images)[chosen], labels)


class _Descent:
    def __init__(
        self, config: MIFaceConfig, target: Target, labels: Tensor, generator: torch.Generator, look: ImageFilter
    ) -> None:
        self._config, self._target, self._labels, self._random, self._look = config, target, labels, generator, look
        start = torch.rand((len(labels), *target.shape), generator=generator).to(labels.device)
        # The optimiser changes this tensor; the image is its filtered version.
        self._free = (config.start + config.start_noise * start).clamp_(0, 1).requires_grad_()
        kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.SGD
        self._optimizer: torch.optim.Optimizer = kind([self._free], lr=config.rate)

    def run(self, advance: Callable[[int], None]) -> Tensor:
        """Return the images (n, channels, height, width), on the labels' device; `advance` is called at each step."""
        config, count = self._config, len(self._labels)
        best = self._free.detach().clone()
        lowest = torch.full((count,), torch.inf, device=best.device)
        since = torch.zeros(count, device=best.device)
        active = torch.ones(count, dtype=torch.bool, device=best.device)
        step = 0
        for step in range(config.steps):  # noqa: B007 (read after the loop)
            cost, confidence = self._gradient()
            with torch.no_grad():
                lower = active & (cost < lowest)
                lowest = torch.where(lower, cost, lowest)
                best[lower] = self._free[lower]
                since = torch.where(lower, 0, since + 1)
                if config.patience:
                    active &= since < config.patience
                active &= (confidence < config.confidence) if config.confidence < 1 else True
                if not active.any():
                    break
                before = self._free.clone()
                self._optimizer.step()
                # Freeze finished images despite their momentum.
                self._free.copy_(torch.where(active[:, None, None, None], self._free, before).clamp_(0, 1))
            advance(1)
        advance(config.steps - step - 1)
        chosen = best if config.keep == "best" else self._free.detach()
        return self._look(chosen).clamp(0, 1)

    def _gradient(self) -> tuple[Tensor, Tensor]:
        """Set the gradient; return each image's cost and its class's confidence, both before the step (n,)."""
        config = self._config
        images = self._look(self._free)
        if config.gradient == "weights":
            logits = self._target.model(self._views(images))
            self._target.count(len(logits))
            losses = self._losses(logits)
            slope = torch.autograd.grad(losses.sum(), images, retain_graph=True)[0]
        else:
            losses, slope, logits = self._numeric()
        prior = config.smoothness * total_variation(images) + config.darkness * images.flatten(1).sum(1)
        scale = slope.abs().flatten(1).mean(1) if config.prior == "relative" else torch.ones_like(losses)
        with_prior = torch.autograd.grad((prior * scale).sum(), images, retain_graph=True)[0] + slope
        gradient = torch.autograd.grad(images, self._free, with_prior)[0]
        if config.optimizer == "normalised":
            gradient /= gradient.square().mean((1, 2, 3), keepdim=True).sqrt().clamp_min(1e-12)
        self._free.grad = gradient
        with torch.no_grad():
            confidence = self._mean_of_views(logits.softmax(1)).gather(1, self._labels[:, None]).squeeze(1)
            return losses + prior * scale, confidence

    def _views(self, images: Tensor) -> Tensor:
        config = self._config
        views = images.repeat(config.views, 1, 1, 1)
        if config.shift:
            views = shifted(views, config.shift, self._random)
        if config.noise:
            views = views + config.noise * torch.randn(views.shape, generator=self._random).to(views.device)
        return views

    def _losses(self, logits: Tensor) -> Tensor:
        return self._mean_of_views(loss_of(logits, self._labels.repeat(self._config.views), self._config.loss))

    def _mean_of_views(self, values: Tensor) -> Tensor:
        return values.view(self._config.views, len(self._labels), *values.shape[1:]).mean(0)

    def _numeric(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return losses, gradients from pairs of opposite steps (under the same view), and logits, from confidences."""
        config = self._config
        with torch.no_grad():
            images = self._look(self._free)
            slope = torch.zeros_like(images)
            for _ in range(config.directions):
                direction = torch.randn(images.shape, generator=self._random).to(images.device)
                direction = self._look.change(direction)
                state = self._random.get_state()
                ahead = self._losses(self._ask(images + config.width * direction))
                self._random.set_state(state)
                behind = self._losses(self._ask(images - config.width * direction))
                slope += ((ahead - behind) / (2 * config.width))[:, None, None, None] * direction
            logits = self._ask(images)
            return self._losses(logits), slope / config.directions, logits

    def _ask(self, images: Tensor) -> Tensor:
        return _log_confidences(self._target, self._views(images), self._config.rounding).to(images.device)


def loss_of(logits: Tensor, labels: Tensor, loss: str) -> Tensor:
    """Return the minimised loss (n,) of `logits` (n, classes): 1 - p_y, the margin, or -log p_y."""
    if loss == "confidence":
        return 1.0 - logits.softmax(1).gather(1, labels[:, None]).squeeze(1)
    if loss == "margin":
        return margin_loss(logits, labels)
    return functional.cross_entropy(logits, labels, reduction="none")


def _log_confidences(target: Target, images: Tensor, rounding: float) -> Tensor:
    """Return log confidences (n, classes); one that rounds to 0 counts as half the smallest nonzero one."""
    return target.confidences(images, rounding).clamp_min(rounding / 2 if rounding else 1e-38).log()


def _clean_loss(config: MIFaceConfig, target: Target, images: Tensor, labels: Tensor) -> Tensor:
    if config.gradient == "numeric":
        return loss_of(_log_confidences(target, images, config.rounding).to(labels.device), labels, config.loss)
    with torch.no_grad():
        target.count(len(images))
        return loss_of(target.model(images), labels, config.loss)
