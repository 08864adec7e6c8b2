"""PATE with heads on a frozen backbone (TrPATE, IV.A): a mixin that keeps a PATE class's aggregator and claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from bench.data.text import is_text
from bench.interface import Budget, Context, Facts, PrivateData, PublicData, PublicKind, partition, setting
from bench.methods.pate.family import Ints, PATEFamily, Student
from bench.methods.pate.head_training import VERSION, HeadTraining
from bench.methods.shared.settings_checks import HeadSettings
from bench.methods.shared.teachers import tiny_teachers
from bench.methods.shared.transfer import PAPER, OnBackbone, TransferConfig, transfer_options, with_digest
from bench.models.frozen_backbone import DenseHead, FrozenTransfer
from bench.storage.cache import digest_of
from bench.training.ensemble import count_votes
from bench.training.features import features_of


@dataclass(frozen=True)
class HeadTeachersConfig(TransferConfig):
    """Settings of teachers and student, which are trained alike. Defaults are TrPATE's for CIFAR-10."""

    teachers: int = setting(
        200, f"{PAPER}, section V.A: 200 teachers of 200 CIFAR-10 records; 80 for Movie Review", ge=1
    )
    queries: int = setting(1000, f"{PAPER}, tables 2 to 5: 100 to 1000; calibrated to the budget", ge=1)
    hidden: int = setting(256, f"{PAPER}, section V.A.1: two layers, 256 hidden units", ge=1)
    epochs: int = setting(50, f"{PAPER}, section V.A.1, stated for the baseline", ge=1)
    batch_size: int = setting(32, f"{PAPER}, section V.A.1, stated for the baseline", ge=1)
    lr: float = setting(0.1, "ours: the paper names no optimiser; plain SGD whose rate falls to zero", gt=0)


class HeadStudent(OnBackbone):
    """The student is a head on the features of a frozen backbone."""

    public_data = "knowledge of a public source, and unlabelled images of the target's distribution"
    public_data_kinds: ClassVar[tuple[PublicKind, ...]] = (PublicKind.TRANSFERRED, PublicKind.UNLABELLED)

    def heads(self) -> HeadSettings:
        """Return the settings with which all heads are trained."""
        return HeadSettings(self.config.hidden, self.config.epochs, self.config.batch_size, self.config.lr)

    def student(self, public: PublicData, asked: torch.Tensor, labels: torch.Tensor, context: Context) -> Student:
        """Return a head trained on `labels` (k,) of pool positions `asked` (k,), its timm name and options."""
        backbone = self.backbone(public, context)
        features = features_of(public.images, backbone, context, "public")[asked]
        everything = [np.arange(len(asked), dtype=np.int64)]
        with context.progress.stage("student", 1) as stage:
            training = HeadTraining(
                features, labels, everything, self.facts.classes, self.heads(), context.streams.torch("student"),
                context.device,
            )  # fmt: skip
            (heads,) = training.heads(stage=stage)
        head = DenseHead(backbone.num_features, self.config.hidden, self.facts.classes)
        heads.write(0, head)
        options = transfer_options(backbone, self.facts, "dense", self.config.hidden)
        return FrozenTransfer(backbone, head, self.facts.classes), "frozen_transfer", options


class HeadTeachers(HeadStudent, PATEFamily):
    """Teachers are heads on the features of a frozen backbone, trained together; the student is such a head as well."""

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        given, text = OnBackbone.presets(facts), is_text(facts.shape)
        paper = {**given["paper"], **({"teachers": 80, "hidden": 250} if text else {})}
        # Heads learn from few records, and noise does not grow with the number of teachers: quick gives each about 60
        # records, not the paper's 200. Chosen on Fashion-MNIST's public records.
        most, part = (80, 25) if text else (1000, 60 if facts.private_records >= 6_000 else 25)
        few = min(most, max(2, facts.private_records // part))
        quick = {"teachers": few} if text else {**given["quick"], "teachers": few}
        tiny = {**given["tiny"], "teachers": tiny_teachers(facts), "hidden": 16, "epochs": 2}
        if text:
            tiny["backbone"] = paper["backbone"]
        return {"paper": paper, "quick": cls.scaled(quick, facts), "tiny": cls.scaled(tiny, facts)}

    def calibrate(self, budget: Budget) -> Any:
        self.check_facts()
        return with_digest(super().calibrate(budget), self.facts)  # type: ignore[safe-super]  # next in the MRO

    shardable = False  # all heads train together, in seconds

    def shares(self, seed: int) -> tuple[str, ...]:
        (features,) = super().shares(seed)
        heads = digest_of([features, self.config.teachers, *astuple(self.heads())])
        return (features, f"heads on {self.facts.dataset}, seed {seed}, {heads}")

    def check_models(self, context: Context) -> None:
        """Do nothing: planning has checked the backbone."""

    def votes(self, private: PrivateData, public: PublicData, order: Ints, context: Context) -> Ints:
        """Return the votes (queries, classes) of the teachers' heads on the first queries in `order`."""
        facts = private.facts
        backbone = self.backbone(public, context)
        settings = self.heads()
        part_name = f"{facts.dataset}/teachers/{context.streams.seed}"
        depends = {
            "backbone": backbone.spec.identity(), "heads": [repr(settings), VERSION], "teachers": self.config.teachers,
            "partition": part_name, "public": len(public), "seed": context.streams.seed,
            "device": context.device.type,
        }  # fmt: skip

        def make() -> dict[str, NDArray[Any]]:
            features = features_of(private.images, backbone, context, "private")
            asked = features_of(public.images, backbone, context, "public")
            with context.progress.stage("heads", self.config.teachers) as stage:
                training = HeadTraining(
                    features, private.labels, partition(len(private), self.config.teachers, part_name), facts.classes,
                    settings, context.streams.child("teachers").torch("heads"), context.device,
                )  # fmt: skip
                labels = training.labels_of(asked, context.workers, stage)
            return {"labels": labels.astype(np.int16)}

        labels = context.cache.get("head-labels", depends, make)["labels"].astype(np.int64)
        return count_votes(labels[:, order[: self.config.queries]], facts.classes)
