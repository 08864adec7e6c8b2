"""DGD's generative stream: triples of reconstructed images, and a student that is smooth along them (Eq. 4 to 6).

The paper perturbs codes "along tangent and normal directions of the distribution manifold" after Yu et al., CVPR 2019
(arXiv:1808.06088), where the tangent space is the column space of the decoder's Jacobian J and directions are found by
power iteration; the paper does not specify its perturbations further. Here both perturbations are added to the code.
Tangent is one step of power iteration from a random start u, ``J'J u``, along which the decoder moves the image most;
normal is the part of u orthogonal to it, which leaves the manifold. Both have length `radius`, in units of the prior's
standard deviation. The printed Laplacian noise of scale 2 c / eps1 = 6400 destroys every image; ``radius="printed"``
adds it to the codes, which are not normalised first (section III-E says "normalized latent codes"). The student also
sees images of codes without noise, in Eq. 4 and 6 and here, which eps1 does not cover. All images have triples,
including the labelled ones, which III-A leaves out. All inputs are generated images and released labels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.core.progress import SILENT, Stage
from bench.core.seeds import seeded
from bench.interface import as_float, features_and_logits, shifted
from bench.models.autoencoders import VAE
from bench.privacy.accounting.claims import DGD_EPS1
from bench.storage.checkpoint import Checkpoint, Loop, Part
from bench.training.data_free import Reading
from bench.training.divergence import check_finite, descend


@dataclass(frozen=True, slots=True)
class Triples:
    """Reconstructions of codes: plain, moved along tangent, moved along normal: uint8 (n, channels, height, width)."""

    plain: Tensor
    tangent: Tensor
    normal: Tensor

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Triples:
        """Return the features of all images."""
        return Triples(function(self.plain), function(self.tangent), function(self.normal))


@dataclass(frozen=True, slots=True)
class StudentSettings:
    """How the student is trained: `lr` falls linearly to 0 over `steps` batches of `batch_size`.

    `optimizer` is ``adam`` (the paper's) or ``sgd`` with momentum 0.9, better for few steps. `regularise` weighs the
    terms of Eq. 6. `shift` moves labelled images by up to that many pixels.
    """

    steps: int
    batch_size: int = 128
    lr: float = 1e-3
    optimizer: Literal["adam", "sgd"] = "adam"
    regularise: float = 1.0
    shift: int = 0
    reading: Reading = "dafl"


def train_vae(
    vae: VAE, images: Tensor, steps: int, batch_size: int, lr: float, generator: torch.Generator,
    *, device: torch.device | str = "cpu", stage: Stage = SILENT,
    checkpoint: Checkpoint | None = None,
) -> VAE:  # fmt: skip
    """Train `vae` in place on `images` (uint8, or float in [0, 1]) by Adam; raise NotFiniteError if it diverges."""
    vae.to(device).train()
    optimizer = torch.optim.Adam(vae.parameters(), lr)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    loop = Loop(checkpoint, {"vae": vae, "optimizer": optimizer, "order": generator}, [images], device)
    falling.last_epoch = first = loop.start(stage)
    for step in range(first, steps):
        index = torch.randint(len(images), (min(batch_size, len(images)),), generator=generator)
        terms = vae.terms(as_float(images[index].to(device)), generator)
        check_finite(terms, step, "the autoencoder")
        descend(optimizer, torch.stack(list(terms.values())).sum())
        falling.step()
        stage.advance()
        loop.done(step + 1, steps)
    return vae.eval()


def directions(vae: VAE, codes: Tensor, radius: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a tangent and a normal perturbation of each of `codes` (n, latent), both of length `radius`."""
    start = torch.randn(codes.shape, generator=generator, device=generator.device).to(codes.device)
    # Each product takes one decoder pass; batch statistics are frozen, so images are independent.
    moved = torch.func.jvp(vae.decode, (codes,), (start,))[1]
    pull = torch.func.vjp(vae.decode, codes)[1]
    along = functional.normalize(pull(moved)[0], dim=1)
    across = functional.normalize(start - (start * along).sum(1, keepdim=True) * along, dim=1)
    return radius * along, radius * across


@torch.no_grad()
def make_triples(
    vae: VAE, images: Tensor, radius: float | Literal["printed"], generator: torch.Generator, *,
    device: torch.device | str = "cpu", stage: Stage = SILENT,
) -> Triples:  # fmt: skip
    """Return the triples of `images` (n, channels, height, width), Eq. 4."""
    vae.to(device).eval()
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for batch in torch.split(images, 250):
        mean, deviation = vae.encode(as_float(batch.to(device)))
        noise = torch.randn(mean.shape, generator=generator, device=generator.device).to(mean.device)
        codes = mean + deviation * noise
        if radius == "printed":
            scale = 2 * vae.latent / DGD_EPS1
            one, two = (scale * _laplace(codes, generator) for _ in range(2))
        else:
            one, two = directions(vae, codes, radius, generator)
        found.append(tuple(_bytes(vae.decode(code)) for code in (codes, codes + one, codes + two)))  # type: ignore[arg-type]
        stage.advance(len(batch))
    plain, tangent, normal = zip(*found, strict=True)
    return Triples(torch.cat(plain), torch.cat(tangent), torch.cat(normal))


def _laplace(like: Tensor, generator: torch.Generator) -> Tensor:
    uniform = torch.rand(like.shape, generator=generator, device=generator.device).to(like.device) - 0.5
    return -uniform.sign() * torch.log1p(-2 * uniform.abs().clamp_max(0.5 - 1e-7))


def _bytes(images: Tensor) -> Tensor:
    return (images * 255.0).round().to(torch.uint8).cpu()


def train_tangent_normal(
    student: nn.Module, images: Tensor, labels: Tensor, triples: Triples | None, settings: StudentSettings,
    generator: torch.Generator, *, device: torch.device | str = "cpu", stage: Stage = SILENT,
    checkpoint: Checkpoint | None = None,
) -> nn.Module:  # fmt: skip
    """Train `student` in place on labelled `images` (m, ...) and optionally on `triples`; return it.

    `labels` is int64 (m,) or float (m, classes). Terms are means over batch and features, so their weights do not
    depend on sizes. (Eq. 5 and 6 print sums over labelled and unlabelled images, and norms: with 1,300 of 60,000 images
    Eq. 6 would weigh more than here, by 45 and by the number of features.) Raises NotFiniteError if a term is not
    finite.
    """
    student.to(device).train()
    adam = settings.optimizer == "adam"
    make = torch.optim.Adam if adam else functools.partial(torch.optim.SGD, momentum=0.9)
    optimizer: torch.optim.Optimizer = make(student.parameters(), lr=settings.lr)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / settings.steps)
    smooth = [] if triples is None else [triples.plain, triples.tangent, triples.normal]
    held: dict[str, Part] = {"student": student, "optimizer": optimizer, "order": generator}
    loop = Loop(checkpoint, held, [images, labels, *smooth], device)
    with seeded(generator, device):
        falling.last_epoch = first = loop.start(stage)
        for step in range(first, settings.steps):
            index = torch.randint(len(images), (min(settings.batch_size, len(images)),), generator=generator)
            batch = as_float(images[index].to(device))
            if settings.shift:
                batch = shifted(batch, settings.shift, generator)
            terms = {"labels": functional.cross_entropy(student(batch), labels[index].to(device))}
            if triples is not None:
                terms |= _smooth(student, triples, settings, generator, device)
            check_finite(terms, step, "the student")
            descend(optimizer, torch.stack(list(terms.values())).sum())
            falling.step()
            stage.advance()
            loop.done(step + 1, settings.steps)
    return student.eval()


def _smooth(
    student: nn.Module, triples: Triples, settings: StudentSettings, generator: torch.Generator,
    device: torch.device | str,
) -> dict[str, Tensor]:  # fmt: skip
    count = len(triples.plain)
    index = torch.randint(count, (min(settings.batch_size, count),), generator=generator)
    three = torch.cat([as_float(part[index].to(device)) for part in (triples.plain, triples.tangent, triples.normal)])
    features, logits = features_and_logits(student, three)
    plain, tangent, normal = features.chunk(3)
    logs = logits[: len(index)].log_softmax(1)
    entropy = -(logs.exp() * logs).sum(1).mean()
    terms = {
        "normal": (plain - normal).square().mean(),
        "tangent": (plain - tangent).square().mean(),
        # The printed sign would make predictions uniform, but the text wants them confident.
        "entropy": -entropy if settings.reading == "printed" else entropy,
    }
    return {name: settings.regularise * term for name, term in terms.items()}
