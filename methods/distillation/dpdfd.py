"""DPDFD: a teacher answers a generator's images with bounded, noisy gradients, and a student learns from them.

Liu, Wang, Li, Zeng, Ge, "Model Conversion via Differentially Private Data-Free Distillation", IJCAI 2023
(arXiv:2304.12528). Implemented from the abstract and the part of the code that adds the noise (llbbcc/DPDFD, utils.py),
without the rest of the paper. Choices that these leave open follow :mod:`bench.methods.distillation.dpsd`, by four of
the same authors.

Threat model: the attacker holds student and generator and may know all records but one. Private: images and labels,
and the teacher trained on them. Public: the number of records. Released: the student, the generator and some of its
images, all functions of the noisy gradients alone. Unit record, adjacency replace. The teacher may be a given one:
:mod:`bench.methods.shared.given_teacher`.

Answer: the gradient of KL(teacher || student) in the student's outputs, normalised per image to an L2 norm of C (as the
abstract says) or with every entry clamped to +-C (``bounding=clamp``: the code's ``abadi``; its ``auto`` divides by the
largest signed entry of the batch), averaged over the batch, with noise of standard deviation sigma C / b on every entry
of every image's copy of the mean. The mean does not say which image has which class, so a student learns nothing from
it; ``gradients=per-example`` skips the averaging, as the code does for several teachers.

Proven: the Gaussian mechanism. One record can change the teacher, hence the gradients of all b images of a batch, each
by up to 2 C (2 C sqrt(k) clamped), and so their mean: an iteration is b answers of noise multiplier sigma / (2 b), with
or without the mean, and C cancels. Private records are not sampled, so there is no amplification. At the code's sigma
100 and b 256, 200 iterations cost 6.8e5.

Claimed, in one of two readings, as the code has no accountant. ``batch`` is inferred from the noise, which is DP-SGD's
(sigma times the bound of one summand): T releases of noise multiplier sigma, as if a record changed only one image's
gradient. ``theorem`` is DPSD's Theorem 1 with C for beta. Neither holds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from bench.interface import (
    Basis,
    Budget,
    Claim,
    Context,
    Facts,
    Gaussian,
    Ledger,
    PrivateData,
    claim_by,
    register_method,
    setting,
    smallest_noise,
)
from bench.methods.distillation.alternation_config import AlternationConfig
from bench.methods.distillation.annotation import bounded as normalised
from bench.methods.distillation.annotation import keep_top
from bench.methods.distillation.dpsd_family import Alternation, Annotate, quick_settings, tiny_settings, train_teacher
from bench.privacy.accounting.claims import dpsd, dpsd_smallest_sigma

CODE = "llbbcc/DPDFD, utils.py: "
AS_DPSD = "not in abstract or code; as in methods/distillation/dpsd.py"


@dataclass(frozen=True)
class DPDFDConfig(AlternationConfig):
    """Settings of the answers. Settings of the loop that neither abstract nor code states are DPSD's."""

    student: str = setting("small_cnn", "ours: DPSD, section IV-A, uses DataLens's net for both methods")
    iterations: int = setting(200, AS_DPSD)
    batch: int = setting(256, CODE + "batch_size")
    k: int | None = setting(None, "ours: number of entries kept of a gradient; none: all, as in the code", ge=1)
    amount: int | None = setting(None, "ours: queries before answers are reused; none: every batch, as in the code")
    student_lr: float = setting(0.1, AS_DPSD)
    generator_lr: float = setting(0.01, AS_DPSD)
    optimizer: Literal["adam", "sgd"] = setting("adam", AS_DPSD)
    train_latents: bool = setting(True, AS_DPSD)
    one_hot_loss: bool = setting(True, AS_DPSD)
    entropy_loss: bool = setting(True, AS_DPSD)
    activation_loss: bool = setting(True, AS_DPSD)
    generator_loss: Literal["dafl", "printed"] = setting("dafl", AS_DPSD)
    sigma: float = setting(100.0, CODE + "sigma; calibrated to the budget", gt=0)
    bound: float = setting(1e-4, CODE + "c", gt=0)
    stability: float = setting(1e-3, CODE + "e", gt=0)
    bounding: Literal["normalise", "clamp"] = setting("normalise", "abstract: normalising; clamp: the code's abadi")
    gradients: Literal["batch-mean", "per-example"] = setting("batch-mean", CODE + "one teacher; per-example: several")
    step: float = setting(1.0, "ours: lr_gamma in the code, which has no default", gt=0)
    claim: Literal["batch", "theorem"] = setting("batch", "ours: the claim can be read in two ways; see above")

    labels_reach_generator: ClassVar[bool] = False  # abstract, because the student alone is the discriminator

    def top_k(self, facts: Facts) -> int:
        """Return how many entries of a gradient are kept, all by default."""
        return facts.classes if self.k is None else super().top_k(facts)

    def sensitivity(self, facts: Facts) -> float:
        """Return the largest L2 distance between two teachers' bounded gradients for one image, in units of C."""
        return 2.0 if self.bounding == "normalise" else 2 * math.sqrt(self.top_k(facts))

    def events(self, facts: Facts) -> list[Gaussian]:
        """Return the answers of all iterations."""
        return [Gaussian(self.sigma / (self.sensitivity(facts) * self.batch), self.batch * self.asked)]


@register_method("dpdfd")
class DPDFD(Alternation):
    """Data-free distillation from one teacher by bounded, noisy gradients."""

    config: DPDFDConfig
    citation = "Liu et al., IJCAI 2023 (arXiv:2304.12528)"
    repaired_by = "dpsd-sound"
    single_teacher = True

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`. MNIST is not learnt from gradients averaged over a batch."""
        ours = {"gradients": "per-example"}
        return {"quick": {**quick_settings(facts), **ours}, "tiny": {**tiny_settings(facts), **ours}}

    def calibrate(self, budget: Budget) -> DPDFDConfig:
        """Return `config` with the least sigma that `budget` pays for, by the config's claim or as proven."""
        config, claimed = self.config, budget.basis is Basis.CLAIMED
        config.top_k(self.facts)
        if claimed and config.claim == "theorem":
            given = config.bound, self.facts.classes, config.batch, config.asked
            return dataclasses.replace(config, sigma=dpsd_smallest_sigma(*given, budget.epsilon, budget.delta))

        def events(sigma: float) -> list[Gaussian]:
            if claimed:
                return [Gaussian(sigma, config.asked)]
            return dataclasses.replace(config, sigma=sigma).events(self.facts)

        return dataclasses.replace(config, sigma=smallest_noise(events, budget, claimed="rdp"))

    def claimed(self, delta: float) -> Claim:
        """Return the cost in the config's reading of the claim."""
        config = self.config
        if config.claim == "theorem":
            claim = dpsd(config.bound, self.facts.classes, config.batch, config.asked, config.sigma, delta)
            return dataclasses.replace(claim, source="inferred: DPSD, Theorem 1, with C for beta")
        return claim_by(
            "rdp", [Gaussian(config.sigma, config.asked)], delta,
            "inferred from the code llbbcc/DPDFD: noise of sigma times one image's bound, for each of T batches",
            "does not hold: a record changes the teacher and so the gradients of all images",
        )  # fmt: skip

    def charges(self) -> list[Gaussian]:
        return self.config.events(self.facts)

    def annotator(self, private: PrivateData, ledger: Ledger, context: Context) -> Annotate:
        """Return a function that moves the student's probabilities a step along the noisy gradients."""
        teacher = train_teacher(self.config, private, context)
        k = self.config.top_k(private.facts)

        def annotate(images: Tensor, student: Tensor) -> Tensor:
            # The gradient of the divergence in the student's logits.
            gradients = keep_top(student - teacher(images).softmax(1), k)
            noisy = answered(bounded(gradients, self.config).cpu(), self.config, private.facts, ledger)
            return student - self.config.step * self.config.bound * noisy.to(student.device)

        return annotate

    def charge(self, ledger: Ledger) -> None:
        answered(torch.zeros(self.config.batch, self.facts.classes), self.config, self.facts, ledger)


def bounded(gradients: Tensor, config: DPDFDConfig) -> Tensor:
    """Return `gradients` (n, classes) in units of C, normalised or clamped, zero if not finite."""
    if config.bounding == "normalise":
        return normalised(gradients, "normalise", config.bound, config.stability)
    return (gradients.double().nan_to_num(0.0, 0.0, 0.0) / config.bound).clamp(-1, 1)


def answered(gradients: torch.Tensor, config: DPDFDConfig, facts: Facts, ledger: Ledger) -> torch.Tensor:
    """Add noise to bounded `gradients` (n, classes), in units of C: to each image's, or to copies of their mean."""
    given = gradients.double()
    if config.gradients == "batch-mean":
        given = given.mean(0, keepdim=True).expand_as(given)
    # One record moves every row by up to the sensitivity of one gradient; averaging rows does not increase it.
    sensitivity = config.sensitivity(facts) * math.sqrt(len(given))
    multiplier = config.sigma / len(given) / sensitivity
    noisy = ledger.gaussian(given.numpy(), sensitivity=sensitivity, noise_multiplier=multiplier)
    return torch.from_numpy(noisy).float()
