"""Shared by methods of unit label: images are public, each label is released with noise, and nets learn from both.

Unit label, adjacency replace: two sets are adjacent if one label differs. Images are not protected, so no finite
epsilon follows for a record: a released student may reveal its image.

Anything computed from noisy labels and images costs nothing more. The loss ``likelihood`` uses the public noise
distribution: with a net's class probabilities p, a label's release o has likelihood ``sum_c p_c P(o | c)``, whose
negative logarithm is minimised. For randomised response over all classes this is the forward correction of Patrini et
al. 2017 (arXiv:1609.03683). Its gradient equals that of ALIBI's cross-entropy to the posterior with prior p.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from bench.interface import (
    Budget,
    Context,
    Facts,
    FitSettings,
    Ledger,
    Method,
    PrivacyUnit,
    PrivateData,
    PublicData,
    PublicKind,
    Released,
    fit,
    make_student,
    setting,
)
from bench.methods.shared.settings_checks import student_depends
from bench.privacy.mechanisms.responses import keep_probability, known_labels

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Release = tuple[Floats, Ints | None, dict[str, Tensor]]
"""The likelihood (n, classes) of each label's release, the noisy labels (n,) if there are any, and all released."""


@dataclass(frozen=True)
class NoisyLabelConfig:
    """Settings of training on noisy labels; the defaults are Ghazi et al. 2021's for MNIST and Fashion-MNIST."""

    epsilon: float = setting(1.0, "Ghazi et al. 2021, table of MNIST results: 1 to 4; calibrated to the budget", gt=0)
    student: str = setting("dgd_cnn", "ours: the paper's small Inception net is not in the benchmark")
    epochs: float = setting(40.0, "Ghazi et al. 2021, supplement: MNIST and its relatives; per stage", gt=0)
    batch_size: int = setting(265, "Ghazi et al. 2021, supplement (as printed)", ge=1)
    lr: float = setting(0.02, "Ghazi et al. 2021, supplement, there rising, then falling linearly; here a cosine", gt=0)
    momentum: float = setting(0.9, "Ghazi et al. 2021, supplement", ge=0, lt=1)
    weight_decay: float = setting(1e-4, "Ghazi et al. 2021, published code for CIFAR-10: l2_regu", ge=0)
    mixup: float = setting(
        8.0, "Ghazi et al. 2021, published code for CIFAR-10 at epsilon 2: alpha; 0: none; not with likelihood", ge=0
    )
    loss: Literal["cross-entropy", "likelihood"] = setting("cross-entropy", "Ghazi et al. 2021, section 4")
    shift: int = setting(0, "ours: largest random translation, in pixels; the images are public", later=True, ge=0)


class LabelMethod(Method):
    """A method that spends the budget as the pure epsilon of each label."""

    unit = PrivacyUnit.LABEL
    public_data: ClassVar[str] = "the images of the private records"
    public_data_kinds: ClassVar[tuple[PublicKind, ...]] = (PublicKind.PRIVATE_IMAGES,)

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`.

        Tried on 50,000 of the training records at epsilon 1, with the other 10,000 for accuracy. Fashion-MNIST: after 4
        epochs on all noisy labels, cross-entropy with mixup reached 71.5%, the likelihood 76.9%; two stages of 6 and 8
        epochs gave 84.0%; two of 16 epochs gave 84.2% with images shifted by up to 1 pixel, 82.1% by up to 2. MNIST:
        two stages of 8 epochs gave 93.8%, two of 10 with shifts of 1 pixel 96.0%.
        """
        large = facts.private_records > 10_000
        quick = {
            "student": "small_cnn", "epochs": 12.0 if large else 30.0, "batch_size": 128, "lr": 0.05, "mixup": 0.0,
            "shift": int(min(facts.shape[1:]) >= 16),
        }  # fmt: skip
        return {"quick": quick, "tiny": {**quick, "epochs": 2.0}}

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the budget as the pure epsilon of each label."""
        return dataclasses.replace(self.config, epsilon=budget.epsilon)


class OneRelease(LabelMethod):
    """A method that releases all labels at once, and trains a net on what it released."""

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        student, options = make_student(self.config.student, private.facts, context.streams.torch("student/start"))
        likelihood, labels, extras = self.release(private, ledger, context)
        learn(student, private.images, likelihood, self.config, context, "student", labels=labels)
        return Released(student, self.config.student, options, extras=extras)

    @abc.abstractmethod
    def release(self, private: PrivateData, ledger: Ledger, context: Context) -> Release:
        """Release the labels through `ledger`."""


def true_labels(private: PrivateData) -> Ints:
    """Return the private labels, int64 (n,), as from :func:`bench.privacy.mechanisms.responses.known_labels`."""
    return known_labels(private.labels.numpy(), private.facts.classes)


def learn(
    net: nn.Module, images: Tensor, likelihood: Floats, config: NoisyLabelConfig, context: Context,
    name: str, *, labels: Ints | None = None,
) -> nn.Module:  # fmt: skip
    """Train `net` on `images` (n, ...) by the `likelihood` (n, classes) of each label's release.

    With the config's loss `cross-entropy` it is trained on the noisy `labels` (n,), if given.
    """
    plain = labels is not None and config.loss == "cross-entropy"
    if plain:
        targets = functional.one_hot(torch.from_numpy(labels), likelihood.shape[1]).float()
    else:
        targets = torch.from_numpy(likelihood).clamp_min(1e-30).log().float()
    settings = FitSettings(
        epochs=config.epochs, batch_size=config.batch_size, lr=config.lr, momentum=config.momentum, nesterov=True,
        weight_decay=config.weight_decay, mixup=config.mixup if plain else 0.0, shift=config.shift,
    )  # fmt: skip
    depends = {**student_depends(config, context), "stage": name}
    steps = settings.total_steps(len(images))
    with context.stage("student", depends, steps, name) as (checkpoint, stage):
        return fit(
            net, images, targets, settings, context.streams.torch(f"{name}/order"), device=context.device, stage=stage,
            checkpoint=checkpoint, loss_of=None if plain else negative_log_likelihood,
        )  # fmt: skip


def negative_log_likelihood(logits: Tensor, log_law: Tensor) -> Tensor:
    """Return the mean of ``-ln sum_c p_c P(o | c)`` for `logits` and ``ln P(o | c)``, both (n, classes)."""
    return -(logits.log_softmax(1) + log_law).logsumexp(1).mean()


def response_law(answers: Ints, epsilon: float, classes: int) -> Floats:
    """Return the probability of each randomised response in `answers` (n,) given each label, (n, classes)."""
    kept = keep_probability(epsilon, classes)
    return np.where(np.arange(classes) == answers[:, None], kept, (1 - kept) / (classes - 1))
