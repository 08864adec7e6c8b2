"""The baseline without privacy on transferred features: one head, trained on all private records with their labels.

TrPATE (IEEE Access 2019), table 2: 92.34% on CIFAR-10, by the net that teachers and student have too. The backbone is
frozen and was trained on public data; the head is fully connected, with one hidden layer.

Private: images and labels. Public: the backbone and its weights. Released: the student, which is the head on the named
backbone. There is no threat model: everything about the records may be learnt from the head's weights. Its proven
epsilon is infinite by construction; it says what privacy costs the methods that see the same features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.interface import (
    Adjacency,
    Budget,
    Claim,
    Context,
    Facts,
    Method,
    PrivateData,
    PublicData,
    PublicKind,
    Released,
    register_method,
    setting,
)
from methods._transfer import (
    PAPER,
    TransferConfig,
    paper_transfer,
    quick_transfer,
    shared_features,
    tiny_transfer,
    with_digest,
    words_of,
)

if TYPE_CHECKING:
    from bench.interface import Ledger


@dataclass(frozen=True)
class NonPrivateTransferConfig(TransferConfig):
    """Settings of the baseline."""

    hidden: int = setting(256, f"{PAPER}, section V.A.1: one hidden layer of 256 units; 0 leaves it out")
    epochs: float = setting(50.0, f"{PAPER}, section V.A.1")
    batch_size: int = setting(32, f"{PAPER}, section V.A.1")
    lr: float = setting(0.01, "ours: the paper does not say; falls to zero along a cosine")
    momentum: float = setting(0.9, "ours: the paper does not say")
    records: int | None = setting(
        None, f"{PAPER}, figure 5: so many private records, in as many steps; none: all", later=True
    )  # fmt: skip


@register_method("nonprivate-transfer")
class NonPrivateTransfer(Method):
    """Train a head on all features; an upper bound for every private student on the same backbone."""

    Config = NonPrivateTransferConfig
    adjacency = Adjacency.REPLACE
    citation = "baseline of TrPATE (IEEE Access 2019), table 2"
    public_data = "a frozen backbone trained on public data"
    public_data_kinds = (PublicKind.TRANSFERRED,)
    bypass = "the head is trained on all private records without noise"
    private: ClassVar[bool] = False

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`."""
        return {
            "paper": paper_transfer(facts),
            "quick": {**quick_transfer(facts), "epochs": 5.0 if facts.private_records > 10_000 else 30.0},
            "tiny": {**tiny_transfer(facts), "epochs": 2.0},
        }

    @classmethod
    def calibrate(cls, config: NonPrivateTransferConfig, budget: Budget, facts: Facts) -> NonPrivateTransferConfig:
        """Return `config` with its weights named: there is no noise to calibrate."""
        from methods._students import check_records

        check_records(config.records, facts)
        named: NonPrivateTransferConfig = with_digest(config, facts)
        return named

    @classmethod
    def claimed(cls, config: NonPrivateTransferConfig, facts: Facts, delta: float) -> Claim:
        """Return infinity: nothing is claimed."""
        return Claim(math.inf, delta, "no privacy is claimed")

    @classmethod
    def shares(cls, config: Any, facts: Facts, seed: int) -> tuple[str, ...]:
        """Return the backbone's features, which every seed and epsilon shares."""
        return (shared_features(config, facts),)

    @classmethod
    def public_words(cls, config: NonPrivateTransferConfig, facts: Facts) -> str:
        """Return which public data the backbone has seen."""
        return words_of(config, facts)

    def train_student(
        self, config: NonPrivateTransferConfig, private: PrivateData, public: PublicData, ledger: Ledger,
        context: Context,
    ) -> Released:  # fmt: skip
        """Train the head on the features of all private records, or as many as the config says; it is a bypass."""
        from bench.interface import FitSettings, fit
        from bench.training.features import features_of
        from methods._students import some_records, student_depends
        from methods._transfer import backbone_of, make_transfer

        ledger.bypass(self.bypass)
        backbone = backbone_of(config, private.facts, public, context)
        features = features_of(private.images, backbone, context, "private")
        steps = FitSettings(epochs=config.epochs, batch_size=config.batch_size).total_steps(len(private))
        settings = FitSettings(steps=steps, batch_size=config.batch_size, lr=config.lr, momentum=config.momentum)
        chosen = some_records(config.records, private, context)
        student, options = make_transfer(backbone, private.facts, config.hidden, context.streams.torch("student/start"))
        order = context.streams.torch("student/order")
        with (
            context.checkpoint("student", student_depends(config, context)) as checkpoint,
            context.progress.stage("student", steps) as stage,
        ):
            fit(
                student.head, features[chosen], private.labels[chosen], settings, order, device=context.device,
                stage=stage, checkpoint=checkpoint,
            )  # fmt: skip
        return Released(student.eval(), "frozen_transfer", options)
