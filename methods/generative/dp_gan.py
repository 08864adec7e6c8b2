"""DP-GAN: a GAN whose discriminator is trained by DP-SGD.

By the recipe of Bie, Kamath, Zhang, "Private GANs, Revisited", TMLR 2023 (arXiv:2302.02936): many discriminator steps
per generator step, both class-conditional. The generator and the discriminator's gradients on generated images are
post-processing: only real images' gradients get noise, then those of generated images, clipped to the same norm, are
added.

The first DP-GAN is Xie, Lin, Wang, Wang, Zhou, "Differentially Private Generative Adversarial Network",
arXiv:1802.06739 (2018): the critic of a Wasserstein GAN whose weights are clamped, with the moments accountant.
``loss=wasserstein`` and ``clamp=0.01`` reproduce its objective. Its claim rests on a bound on the critic's gradient
that follows from clamped weights. The authors' code (illidanlab/dpgan) adds noise of standard deviation sigma / batch
to a batch's mean gradient, without that bound as a factor; it clamps weights to 0.02 and clips no gradient. As a test
here shows, a clamped critic's gradients exceed norm 1, so that noise protects less than a bound of 1 would claim. Here
every gradient is clipped too, and the charge holds with any clamp.

Threat model: the attacker holds all that is released, may hold the discriminator's weights at every step, and may know
all records but one. Private: images and labels. Public: the number of records. Released: the generator, some of its
images, the student. Unit record, adjacency add-remove, as zero-out (see :mod:`bench.methods.dpsgd.dp_sgd`): Poisson
batches, the gradient of each real image clipped to `max_grad_norm` in L2, noise of `noise_multiplier` times that on the
sum. The discriminator's steps cost as much as DP-SGD's, however many generator steps come between them.

Claimed: Renyi accounting of the discriminator's steps. Proven: their PLD.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.core.seeds import seeded
from bench.interface import Claim, Context, Facts, Ledger, PrivateData, PublicData, register_method, setting
from bench.methods.dpsgd.dp_sgd import DPSGD
from bench.methods.generative.family import Generative, GenerativeConfig, Source, balanced
from bench.methods.generative.gan_parts import AdamAgainst, Forger, ForgerConfig
from bench.methods.shared.calibration import PoissonBatches
from bench.models.discriminators import ConvDiscriminator, DenseDiscriminator
from bench.privacy.accounting.accountants import claim_by
from bench.privacy.dpsgd.example_gradients import ExampleGradients
from bench.privacy.dpsgd.gradient_forms import norms, weighted_sum
from bench.training.divergence import check_finite

CODE = "Bie et al. 2023, the authors' code alexbie98/dpgan-revisit: "
OURS = "ours: the net of methods/generative/dp_merf.py"


@dataclass(frozen=True)
class DPGANConfig(PoissonBatches, GenerativeConfig, ForgerConfig):
    """Settings for MNIST at epsilon 10."""

    discriminator_steps: int = setting(450_000, CODE + "MNIST, epsilon 10; 325,000 at epsilon 1", ge=1)
    batch_size: int = setting(128, CODE + "MNIST; as many generated images", ge=1)
    generated: int | None = setting(
        None, "ours: generated images per step; none: batch_size, as in Bie et al. 2023", ge=2
    )
    steps_per_generator_step: int = setting(
        50, CODE + "MNIST, epsilon 10; 200 at epsilon 1; 100 for Fashion-MNIST", ge=1
    )
    max_grad_norm: float = setting(1.0, CODE + "MNIST", gt=0)
    noise_multiplier: float = setting(1.0, CODE + "MNIST, epsilon 10; calibrated to the budget", gt=0)
    loss: Literal["binary", "wasserstein"] = setting("binary", "Bie et al. 2023; Xie et al. 2018: wasserstein")
    clamp: float | None = setting(
        None, "none in Bie et al. 2023; Xie et al. 2018: the critic's weights within +-0.01", gt=0
    )
    discriminator_lr: float = setting(2e-4, CODE + "MNIST, of Adam", gt=0)
    generator_lr: float = setting(2e-4, CODE + "MNIST, of Adam", gt=0)
    adam_beta1: float = setting(0.5, CODE + "MNIST, of both", ge=0, lt=1)
    discriminator_maps: int = setting(128, CODE + "MNIST: 128, 256 and 512 maps", ge=1)
    discriminator_units: int | None = setting(None, "ours: of two hidden layers in place of convolutions", gt=0)
    mismatch: float = setting(
        0.0, "none in Bie et al. 2023; ours: weight of a real image's losses with wrong labels", ge=0
    )
    generator_average: float = setting(0.0, "none in Bie et al. 2023; ours: decay of the generator's mean", ge=0, lt=1)
    latent: int = setting(128, CODE + "MNIST", ge=1, le=4096)
    generator_units: int = setting(200, OURS, ge=1)
    generator_maps: int = setting(16, OURS, ge=1)

    def steps(self, records: int) -> int:
        """Return the number of discriminator steps."""
        return self.discriminator_steps


@register_method("dp-gan")
class DPGAN(Generative, DPSGD):
    """DP-SGD on the discriminator, with the generator's steps between its own."""

    config: DPGANConfig
    version = 1
    citation = "Bie et al. 2023; Xie et al. 2018"
    claimed_by = "rdp"  # Renyi accounting, as in the authors' library

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`.

        Quick, with 10,000 of MNIST's training records held out, at a claimed 10, one seed: 92.5% in under two core
        minutes; 91.3% with batches of 512 and a mismatch of 0.5; 88.9% and 86.4% with a mismatch of 0.2 and 0 and 128
        units; 60% in eight minutes with convolutions and 256 images of either kind a step.
        """
        given = super().presets(facts)
        paper = {"steps_per_generator_step": 100} if facts.dataset == "fmnist" else {}
        batch = min(768, max(8, facts.private_records // 8))
        quick = {
            "discriminator_steps": 1500, "batch_size": batch, "generated": min(128, batch),
            "steps_per_generator_step": 2, "discriminator_units": 256, "mismatch": 1.0, "discriminator_lr": 1e-3,
            "generator_lr": 1e-3, "generator_average": 0.98, "latent": 16,
        }  # fmt: skip
        tiny = {
            "discriminator_steps": 20, "batch_size": 8, "generated": 8, "discriminator_units": 16,
            "steps_per_generator_step": 1, "generator_lr": 1e-2, "generator_average": 0.5,
        }  # fmt: skip
        return {"paper": paper, "quick": {**given["quick"], **quick}, "tiny": {**given["tiny"], **quick, **tiny}}

    def claimed(self, delta: float) -> Claim:
        if self.config.clamp is None:
            source, note = "Bie et al., TMLR 2023 (arXiv:2302.02936): Renyi accounting of the discriminator's steps", ""
        else:
            source = "Xie et al. 2018 (arXiv:1802.06739), section 3: moments accountant of the critic's steps"
            note = "holds here, where gradients are clipped; clamped weights alone do not bound them as the claim needs"
        return claim_by(self.claimed_by, self.charges(), delta, source, note)

    def fit_generator(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Source:
        """Train the discriminator through the ledger and the generator between its steps."""
        facts = private.facts
        forger = Forger(self.config, facts, context)
        with seeded(context.streams.torch("discriminator/start")):
            critic = discriminator(self.config, facts).to(context.device)
        game = Game(critic, forger, self.config)
        self.fit(
            critic, private.images, private.labels, ledger, context, what="discriminator", loss=game.private_loss,
            optimizer=lambda weights: AdamAgainst(
                weights, self.config.discriminator_lr, self.config.adam_beta1, forger, game.before_step, game.after_step
            ),
        )  # fmt: skip
        return balanced(forger.mean, facts.classes, context.device)


def discriminator(config: DPGANConfig, facts: Facts) -> nn.Module:
    """Return a new discriminator of the kind in `config`."""
    if config.discriminator_units is None:
        return ConvDiscriminator(*facts.shape, facts.classes, config.discriminator_maps)
    return DenseDiscriminator(*facts.shape, facts.classes, config.discriminator_units)


class Game:
    """The work around each DP-SGD step of the discriminator `critic`; it uses only noisy weights."""

    def __init__(self, critic: nn.Module, forger: Forger, config: DPGANConfig) -> None:
        self.critic, self._forger, self._config = critic, forger, config
        # Copies without DP-SGD's hooks: one for per-example gradients, with hooks of its own, and one without hooks.
        self._copy, self._plain = copy.deepcopy(critic), copy.deepcopy(critic)
        self._gradients = ExampleGradients(self._copy)

    def real_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of real images with `labels`, or the generator's loss on generated ones."""
        own = scores.gather(1, labels[:, None])
        return -own.mean() if self._config.loss == "wasserstein" else functional.softplus(-own).mean()

    def private_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of real images in the form that DP-SGD needs: a mean of separate per-image losses."""
        loss = self.real_loss(scores, labels)
        if self._config.mismatch:
            others = 1 - functional.one_hot(labels, scores.shape[1])
            loss = loss + self._config.mismatch * (functional.softplus(scores) * others).sum(1).mean()
        return loss

    def before_step(self) -> None:
        """Add the clipped gradients of generated images, weighted like a batch of real ones."""
        self._copy.load_state_dict(self.critic.state_dict())
        with torch.no_grad():
            images, labels = self._forger.images(self._config.generated or max(2, self._config.batch_size))
        self._gradients.backward(self.real_loss(-self._copy(images), labels), len(images))
        samples = [parameter.grad_sample for parameter in self._copy.parameters()]  # type: ignore[attr-defined]
        length = torch.stack([norms(sample) for sample in samples], 1).norm(dim=1)
        factors = (self._config.max_grad_norm / (length + 1e-6)).clamp(max=1.0) / len(images)
        for parameter, sample in zip(self.critic.parameters(), samples, strict=True):
            assert parameter.grad is not None
            parameter.grad += weighted_sum(sample, factors)

    def after_step(self) -> None:
        """Clamp the weights if set; every few steps, take one with the generator."""
        config = self._config
        if config.clamp is not None:
            with torch.no_grad():
                for parameter in self.critic.parameters():
                    parameter.clamp_(-config.clamp, config.clamp)
        self._forger.turns += 1
        if self._forger.turns % config.steps_per_generator_step:
            return
        self._plain.load_state_dict(self.critic.state_dict())
        images, labels = self._forger.images(config.generated or max(2, config.batch_size))
        seen = images.detach().requires_grad_()
        loss = self.real_loss(self._plain(seen), labels)
        check_finite({"loss": loss}, self._forger.turns, "the generator")
        self._forger.follow(images, torch.autograd.grad(loss, seen)[0])
