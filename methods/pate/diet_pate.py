"""PATE without public data: GNMax on images of random processes.

After DIET-PATE (openreview.net, cRe2jt60EC; code: mime00001/Noise_PATE), which queries programmatic images and takes
the teachers' batch statistics from the queries. Here nets are small and start from random weights, not from SimCLR on
programmatic images. The aggregator is GNMax without the authors' threshold, which charges a query whether it is
answered or not. Their student takes batch statistics from test batches too; here each answer depends on one image. It
trains on batches of 32 with shifts and label smoothing, theirs on 256 without either, at a rate that falls on plateaus.

Threat model: the attacker holds the student and all records but one. Private: images and labels; each record trains one
teacher, chosen by a hash of its index. Public: the number of records, the queries
(:mod:`bench.methods.shared.random_images`). Released: the student, the queries and their noisy labels. Unit record,
adjacency replace: one record changes one teacher and so one vote per query; batch statistics keep this bound, as they
come from queries.

Claimed: with ``claim=data-dependent``, as in the authors' accounting, PATE 2018's figure for the votes, itself private;
with ``claim=data-independent`` order / sigma^2 per query in Renyi DP. Proven: the exact figure of Gaussian noise.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from bench.interface import (
    Budget,
    Context,
    Facts,
    Ledger,
    PrivateData,
    PublicData,
    PublicKind,
    Released,
    register_method,
    setting,
)
from bench.methods.pate.pate_gnmax import PATEGNMax, PATEGNMaxConfig
from bench.methods.shared.random_images import KINDS, random_images

CODE = "mime00001/Noise_PATE @9736264"
RANDOM = "images of random processes"


@dataclass(frozen=True)
class DietPATEConfig(PATEGNMaxConfig):
    """Settings of PATE on random images."""

    teachers: int = setting(200, f"{CODE}, diet_pate.py: MNIST")
    teacher: str = setting("small_cnn_bn", "ours: the smallest net with batch statistics; the authors take ResNet18")
    teacher_recipe: Literal["published", "augmented"] = setting("augmented", "ours")
    teacher_steps: int = setting(240, "ours")
    teacher_batch: int = setting(60, "ours")
    teacher_lr: float = setting(0.1, "ours")
    student: str = setting("small_cnn_bn", "ours: as for the teachers")
    student_training: Literal["improved-gan", "self-training", "supervised"] = setting(
        "supervised", f"{CODE}, diet_pate.py: Adam; self-training is ours, for the quick preset"
    )
    student_epochs: int = setting(50, f"{CODE}, diet_pate.py: n_epochs")
    batch_statistics: bool = setting(True, f"{CODE}, diet_pate.py: BN_trick")
    sigma: float = setting(40.0, f"{CODE}, diet_pate.py: sigma_gnmax of MNIST", ge=0)
    images: int = setting(
        9000, "ours: random images; teachers label the queries among them, the student sees all", ge=1
    )
    random_kind: Literal["strokes", "objects"] = setting("strokes", KINDS, later=True)


@register_method("diet-pate")
class DietPATE(PATEGNMax):
    """Label random images by the noisy plurality of teachers, then train the student on them."""

    config: DietPATEConfig
    citation = "after DIET-PATE (Noise_PATE)"
    public_data = "none"
    public_data_kinds = (PublicKind.NONE,)

    @classmethod
    def scaled(cls, settings: dict[str, Any], facts: Facts) -> dict[str, Any]:
        return {**super().scaled(settings, facts), "teacher": "small_cnn_bn"}

    def calibrate(self, budget: Budget) -> Any:
        """See :meth:`bench.methods.pate.pate_gnmax.PATEGNMax.calibrate`; queries are limited by the random images."""
        return PATEGNMax.calibrate(type(self)(self.config, asked_about(self.config, self.facts)), budget)

    def query_source(self, public: PublicData) -> dict[str, Any]:
        drawn = {"images": f"{RANDOM}, {self.config.random_kind}", "statistics": self.config.batch_statistics}
        return {**super().query_source(public), **drawn}

    def make_shard(self, private: PrivateData, public: PublicData, context: Context, shard: int, shards: int) -> None:
        """See :meth:`bench.interface.Method.make_shard`; the public images are not used."""
        private, images = _with_random_images(self.config, private, context)
        PATEGNMax.make_shard(type(self)(self.config, private.facts), private, images, context, shard, shards)

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """See :meth:`bench.methods.pate.family.PATEFamily.train_student`; the public images are not used."""
        private, images = _with_random_images(self.config, private, context)
        return PATEGNMax.train_student(type(self)(self.config, private.facts), private, images, ledger, context)


def _with_random_images(
    config: DietPATEConfig, private: PrivateData, context: Context
) -> tuple[PrivateData, PublicData]:
    facts = asked_about(config, private.facts)
    images = random_images(config.images, facts.shape, context.streams.torch("images"), config.random_kind)
    return dataclasses.replace(private, facts=facts), PublicData(images, RANDOM)


def asked_about(config: DietPATEConfig, facts: Facts) -> Facts:
    """Return `facts` with the random images as the public ones."""
    return dataclasses.replace(facts, public_records=config.images)
