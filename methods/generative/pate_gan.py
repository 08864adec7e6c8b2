"""PATE-GAN: discriminators on disjoint parts vote on generated images, and a student of the votes guides the generator.

Jordon, Yoon, van der Schaar, "PATE-GAN: Generating Synthetic Data with Differential Privacy Guarantees", ICLR 2019. The
paper's data are tables; nets, classes and settings for images are ours. If discriminators recognise every generated
image, the student sees only one class, and the generator learns nothing.

Threat model: the attacker holds all that is released, the votes' noisy answers too, and may know all records but one.
Private: images and labels; each record trains one of `teachers` discriminators. Public: the number of records.
Released: the generator, some of its images, the student. Unit record, adjacency replace: one record changes one
discriminator, and so one vote of each query. The student of PATE-GAN, a discriminator too, learns from generated images
and noisy answers alone, so the generator's steps are post-processing.

Two kinds of noise on votes. ``votes=laplace``, the paper's, for the claimed basis: the claim is the moments accountant
on the votes, itself private; queries are planned by its data-independent part. ``votes=gaussian``, for the proven
basis: a count gets Gaussian noise of standard deviation `noise_scale`, and a query costs rho = 1 / (2 noise_scale^2).
Proven, for either: the data-independent composition.

The claim cannot be published, and public implementations fall short of it. The authors' (vanderschaarlab/
mlforhealthlabpub, alg/pategan) trains every teacher on the same part because of a stale index, draws Laplace noise of
scale lambda and accounts for one of scale 1 / lambda, and scales columns by private extremes; Ganev, Annamalai, De
Cristofaro 2024 (arXiv:2406.13985) audit six codes, all of which leak more than they state: 17 violations and 5 other
bugs, by the study's current version. Here each teacher has its own part.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bench.core.seeds import seeded
from bench.interface import (
    Basis,
    BenchError,
    Budget,
    Claim,
    Context,
    Event,
    Facts,
    GNMax,
    Ledger,
    LNMax,
    claim_by,
    largest_count,
    register_method,
    setting,
)
from bench.methods.generative.guided import Critics, Guide, Guided, GuidedConfig
from bench.methods.shared.calibration import least_noise
from bench.methods.shared.settings_checks import check_parts
from bench.models.discriminators import ConvDiscriminator
from bench.privacy.accounting.pate import lnmax_epsilon
from bench.training.divergence import descend

CODE = "the authors' code, mlforhealthlabpub, alg/pategan: "


@dataclass(frozen=True)
class PATEGANConfig(GuidedConfig):
    """Settings for images."""

    teachers: int = setting(1000, "ours: at the noise of 100, a twentieth of them can change an answer")
    batch: int = setting(64, CODE + "batch_size")
    votes: Literal["laplace", "gaussian"] | None = setting(None, "laplace in the paper; none: by the basis, see above")
    noise_scale: float = setting(100.0, "ours: scale of Laplace noise, deviation of Gaussian noise on a count", gt=0)
    queries: int = setting(40_000, "calibrated to the budget", ge=1)
    least_queries: int = setting(1, "ours: calibration raises the noise if the budget covers fewer", ge=1)
    student_critic_steps: int = setting(1, CODE + "n_s, on each batch of answers", ge=1)
    student_critic_lr: float = setting(1e-3, "ours; 1e-4 of RMSProp in " + CODE, gt=0)

    def events(self, queries: int) -> list[Event]:
        """Return the noisy votes of `queries` queries."""
        if self.votes == "gaussian":
            # Noise s on the one count that matters equals noise sqrt(2) s on both counts.
            return [GNMax(math.sqrt(2) * self.noise_scale, queries)]
        return [LNMax(1 / self.noise_scale, queries)]


@register_method("pate-gan")
class PATEGAN(Guided):
    """Noisy votes on generated images, a discriminator that learns from them, a generator that fools it."""

    config: PATEGANConfig
    citation = "Jordon et al. 2019"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        given = super().presets(facts)
        teachers = min(600, max(2, facts.private_records // 25))
        quick = {"teachers": teachers, "noise_scale": max(1.0, teachers / 8), "critic_steps": 1, "least_queries": 6400}
        tiny = {"batch": 16, "noise_scale": 5.0, "queries": 16, "least_queries": 400}
        return {"quick": {**given["quick"], **quick}, "tiny": {**given["tiny"], **tiny}}

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the most queries that `budget` pays for, or more noise for `least_queries`."""
        config = self.config
        check_parts(self)
        if config.votes is None:
            config = dataclasses.replace(config, votes="laplace" if budget.basis is Basis.CLAIMED else "gaussian")
        accountant = "rdp-classic" if config.votes == "gaussian" else "pate-2017-moments-data-independent"
        noise = config.noise_scale
        try:
            queries = largest_count(config.events, budget, claimed=accountant)
        except BenchError:
            queries = 0
        if queries < config.least_queries:
            queries = config.least_queries
            noise = least_noise(
                lambda scale: dataclasses.replace(config, noise_scale=scale).events(queries), budget, accountant,
                "proven", tolerance=1e-4,
            )  # fmt: skip
        return dataclasses.replace(config, queries=queries, noise_scale=noise)

    def generator_steps(self) -> int:
        return -(-int(self.config.queries) // int(self.config.batch))

    def claimed(self, delta: float) -> Claim:
        """Return the paper's accountant without votes, or Gaussian noise's with the same conversion."""
        accountant = "rdp-classic" if self.config.votes == "gaussian" else "pate-2017-moments-data-independent"
        source = "Jordon et al., ICLR 2019, algorithm 1: moments accountant, as far as it needs no votes"
        return claim_by(accountant, self.charges(), delta, source, "sound, and loose")

    def claimed_after(self, delta: float, ledger: Ledger) -> Claim:
        if self.config.votes == "gaussian":
            return self.claimed(delta)
        votes = np.concatenate([release.votes for release in ledger.private_votes()])
        epsilon, moment = lnmax_epsilon(votes, 1 / self.config.noise_scale, delta)
        source = "Jordon et al., ICLR 2019, algorithm 1: moments accountant on the votes"
        return Claim(epsilon, delta, source, f"moment {moment}; depends on the votes and is itself private")

    def charges(self) -> Sequence[Event]:
        return self.config.events(self.config.queries)

    def guide(self, critics: Sequence[Critics], ledger: Ledger, context: Context) -> Guide:
        """Return the gradient of a student that learns from noisy votes on each batch of images."""
        with seeded(context.streams.torch("student-discriminator/start")):
            student = ConvDiscriminator(*self.facts.shape, self.facts.classes, self.config.critic_units)
        student.to(context.device)
        optimizer = torch.optim.Adam(student.parameters(), self.config.student_critic_lr, betas=(0.5, 0.999))
        left = self.config.queries

        def guide(images: Tensor, labels: Tensor) -> Tensor:
            nonlocal left
            # The last batch may query fewer images than it has.
            asked, left = min(left, len(images)), max(0, left - len(images))
            real = critics[0].votes(images[:asked], labels[:asked]).sum(0).cpu().numpy()
            votes = np.stack([self.config.teachers - real, real], 1)
            if self.config.votes == "gaussian":
                sigma = math.sqrt(2) * self.config.noise_scale
                said = ledger.noisy_max_gaussian(votes, teachers=self.config.teachers, sigma=sigma)
            else:
                said = ledger.noisy_max(votes, teachers=self.config.teachers, gamma=1 / self.config.noise_scale)
            wanted = torch.from_numpy(said).to(images)
            for _ in range(self.config.student_critic_steps):
                score = student(images[:asked]).gather(1, labels[:asked, None])[:, 0]
                descend(optimizer, functional.binary_cross_entropy_with_logits(score, wanted))
            seen = images.clone().requires_grad_()
            fooled = -functional.softplus(-student(seen).gather(1, labels[:, None])).mean()
            return torch.autograd.grad(fooled, seen)[0]

        return guide
