"""PSG: a few images of each class, learned so that a net's gradient on them points where DP-SGD's does.

Chen, Kerkouche, Fritz, "Private Set Generation with Discriminative Information", NeurIPS 2022 (arXiv:2211.04446), by
the authors' code DingfanChen/Private-Set. Starting from random weights, the images are updated so that the net's
gradient on them points where noisy gradients on a few private batches do; then the net trains on the images for some
epochs. This alternates, from many random starts. Images, nets and students depend only on the noisy gradients.

Threat model: the attacker holds all that is released, may hold every noisy gradient, and may know all records but one.
Private: images and labels. Public: the number of records; all classes have equally many images. Released: the images,
as bytes, and the student. Unit record, adjacency add-remove, as zero-out (see :mod:`bench.methods.dpsgd.dp_sgd`):
Poisson batches, the gradient of each record clipped to `max_grad_norm` in L2, noise of `noise_multiplier` times that on
the sum. Gradients are taken at weights that depend on earlier answers, as in DP-SGD.

Claimed: Renyi accounting of `runs` starts. Off by one: the loop of ``main.py`` runs another, measuring accuracies at
its beginning and saving the images at its end. It is run here too. Proven: the PLD of all steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.core.seeds import seeded
from bench.interface import (
    Claim,
    Context,
    Event,
    Facts,
    FitSettings,
    Ledger,
    PrivateData,
    PublicData,
    register_method,
    setting,
)
from bench.methods.dpsgd.dp_sgd import DPSGD
from bench.methods.generative.distilled import ImageConfig, LearnedImages, Standstill
from bench.methods.generative.family import Generative, GenerativeConfig, Source
from bench.methods.shared.calibration import PoissonBatches
from bench.models.build import build
from bench.privacy.accounting.accountants import claim_by

CODE = "the authors' code DingfanChen/Private-Set, "
MAIN = CODE + "main.py: "


@dataclass(frozen=True)
class PSGConfig(PoissonBatches, GenerativeConfig, ImageConfig):
    """Settings for 10 images per class."""

    per_class: int = setting(10, "Chen et al. 2022, table 1: 10; 1 and 20 in others", ge=1)
    runs: int = setting(1000, MAIN + "iteration; one more is taken", ge=1)
    outer_steps: int = setting(10, CODE + "utils/misc.py, get_loops: 10 images of a class; 1 for 1, 20 for 20", ge=1)
    inner_epochs: int = setting(50, CODE + "utils/misc.py, get_loops: 10 images of a class; 1 for 1, 25 for 20", ge=1)
    batches: int = setting(10, MAIN + "batch_loop, private batches at the same weights", ge=1)
    batch_size: int = setting(256, MAIN + "batch_real", ge=1)
    max_grad_norm: float = setting(0.1, MAIN + "max_norm", gt=0)
    noise_multiplier: float = setting(0.966, "MNIST, epsilon 10, by compute_sigma; calibrated to the budget", gt=0)
    image_lr: float = setting(0.1, MAIN + "lr_img, momentum 0.5", gt=0)
    image_average: float = setting(
        0.0, "none in Chen et al. 2022; ours: decay of the images' mean, which is released", ge=0, lt=1
    )
    net_lr: float = setting(0.01, MAIN + "lr_net, batches of 256", gt=0)
    net_width: int = setting(128, CODE + "utils/misc.py, get_default_convnet_setting", ge=1)
    student: str = setting("convnet", MAIN + "model")
    student_epochs: float = setting(300.0, MAIN + "epoch_eval_train")
    student_batch: int = setting(256, MAIN + "batch_train")
    student_lr: float = setting(0.01, MAIN + "lr_net, of evaluate_synset")

    def steps(self, records: int) -> int:
        """Return the number of private batches of all starts."""
        return (self.runs + 1) * self.run_steps


@register_method("psg")
class PSG(Generative, DPSGD):
    """Images by the noisy gradients of DP-SGD on nets that learn them."""

    config: PSGConfig
    version = 1
    citation = "Chen et al. 2022"
    claimed_by = "rdp"  # Renyi accounting, as in the authors' code

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`.

        Quick, with 10,000 of MNIST's training records held out, at a claimed 10, one seed: 73.0% in four core minutes;
        with the student of other generative methods 62% at rates of 0.3 and 0.5 and 49% at 1; 33% after a quarter of
        the steps; 27% to 31% with 10 images per class and 500 steps.
        """
        batch = min(256, max(8, facts.private_records // 8))
        quick = {
            "batch_size": min(128, batch), "per_class": 1, "runs": 399, "outer_steps": 1, "inner_epochs": 1,
            "net_width": 8, "image_lr": 0.3, "image_average": 0.99,
        }  # fmt: skip
        tiny: dict[str, Any] = {"runs": 1, "outer_steps": 2, "batches": 2, "inner_epochs": 2, "net_width": 8}
        tiny |= {"batch_size": min(32, batch), "per_class": 2, "student": "small_cnn", "student_epochs": 20.0}
        return {"quick": quick, "tiny": tiny}

    def student_settings(self) -> FitSettings:
        """Return the authors' evaluation settings: learning rate divided by ten at half time, no augmentation."""
        settings = super().student_settings()
        return dataclasses.replace(
            settings, shift=0, label_smoothing=0.0, weight_decay=5e-4, schedule="staircase",
            decay_steps=max(1, settings.total_steps(self.config.per_class * self.facts.classes) // 2),
        )  # fmt: skip

    def claimed(self, delta: float) -> Claim:
        source = "Chen et al., NeurIPS 2022 (arXiv:2211.04446): Renyi accounting of the gradients of private batches"
        note = "of one start less than the authors' code takes"
        return claim_by(self.claimed_by, self.claimed_charges(), delta, source, note)

    def claimed_charges(self) -> Sequence[Event]:
        """Return the steps of all starts but one."""
        (event,) = self.charges()
        return [dataclasses.replace(event, steps=self.config.runs * self.config.run_steps)]  # type: ignore[call-arg]

    def fit_generator(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Source:
        """Update the images between the steps of DP-SGD."""
        facts = private.facts
        draws = context.streams.torch("nets")
        with seeded(draws):
            net = build("convnet", facts.classes, facts.shape[0], facts.shape[1:], width=self.config.net_width)
        found = LearnedImages(net.to(context.device), facts, self.config, draws)
        self.fit(
            net, private.images, private.labels, ledger, context, what="images",
            optimizer=lambda weights: Standstill(weights, found),
        )  # fmt: skip
        images, labels = (found.mean + 1) / 2, found.labels

        def draw(count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
            return images[:count], labels[:count]

        return Source(draw)
