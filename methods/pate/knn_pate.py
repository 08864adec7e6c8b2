"""Private kNN: each query samples the private records, and its nearest neighbours in the sample vote.

Zhu, Yu, Chandraker, Wang, "Private-kNN: Practical Differential Privacy for Computer Vision", CVPR 2020. Distances are
between features of a frozen public backbone (the authors use HOG for MNIST), the student is a head on them, and there
is no noisy screening. The authors' code accounts for Poisson samples but draws a fixed number with replacement; the
ledger draws Poisson samples.

Threat model: the attacker holds the student and the noisy labels, and may know all records but one. Private: images and
labels. Public: the number of records, the backbone and its training data, unlabelled images. Released: the student's
head, the choice of queries, and their noisy labels. Unit record, adjacency add-remove: a sampled record adds its vote
and displaces at most one other, so the counts move by at most sqrt(2) in L2. Records in the public source have no
guarantee.

Claimed: the data-independent Renyi DP of the sampled Gaussian mechanism. Proven: its privacy loss distribution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bench.interface import (
    Adjacency,
    BenchError,
    Budget,
    Context,
    Facts,
    Ledger,
    PrivateData,
    PublicData,
    Released,
    SampledGNMax,
    register_method,
    setting,
    smallest_noise,
)
from bench.methods.pate.heads import HeadStudent
from bench.methods.shared.calibration import ClaimedBy
from bench.methods.shared.transfer import TransferConfig, with_digest
from bench.training.features import features_of

CODE = "jeremy43/Private_kNN @aefddd6, digit_pytorch, MNIST"
QUERIES = 100  # per ledger call, to bound the memory for distances


@dataclass(frozen=True)
class KNNPATEConfig(TransferConfig):
    """Settings of private kNN on a frozen backbone."""

    neighbours: int = setting(300, f"{CODE}: nb_teachers", ge=1)
    sampling_rate: float = setting(
        0.05, f"{CODE}: prob, for both data sets; a later version has 0.15 for MNIST", gt=0, le=1
    )
    sigma: float = setting(25.0, f"{CODE}: gau_scale; calibrated to the budget", gt=0)
    queries: int = setting(1000, f"{CODE}: stdnt_share; at most all public images", ge=1)
    hidden: int = setting(256, "ours: the head of TrPATE's students", ge=1)
    epochs: int = setting(50, "ours: as trpate", ge=1)
    batch_size: int = setting(32, "ours: as trpate", ge=1)
    lr: float = setting(0.1, "ours: as trpate", gt=0)


@register_method("knn-pate")
class KNNPATE(ClaimedBy, HeadStudent):
    """Label public images by the noisy plurality of their neighbours, and train a head on the answers."""

    config: KNNPATEConfig
    adjacency = Adjacency.ADD_REMOVE
    citation = "Zhu et al. 2020"
    claimed_by = "rdp"
    claimed_in = "Zhu et al., CVPR 2020: Renyi DP of the sampled Gaussian mechanism"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        # Half of a class's expected records in a sample, at most the paper's number.
        near = min(300, max(1, int(facts.private_records * 0.05 / facts.classes / 2)))
        given = super().presets(facts)
        tiny = {**given["tiny"], "neighbours": near, "hidden": 16, "epochs": 2}
        return {**given, "quick": {**given["quick"], "neighbours": near}, "tiny": tiny}

    def calibrate(self, budget: Budget) -> KNNPATEConfig:
        """Return `config` with the least noise at which its queries cost at most `budget`."""
        if self.facts.public_records == 0:
            raise BenchError(
                f"{self.name} labels unlabelled public images, and the split of {self.facts.dataset} has none. "
                "Choose a data set with public images."
            )
        named, queries = with_digest(self.config, self.facts), min(self.config.queries, self.facts.public_records)
        sigma = smallest_noise(
            lambda sigma: self.changed(queries=queries, sigma=sigma).charges(), budget, claimed=self.claimed_by
        )
        return dataclasses.replace(named, queries=queries, sigma=sigma)

    def charges(self) -> list[SampledGNMax]:
        config = self.config
        return [SampledGNMax(config.sampling_rate, config.sigma, config.queries, adjacency=self.adjacency)]

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Label random public images by their neighbours, and train the head on the labels."""
        config, backbone = self.config, self.backbone(public, context)
        records = features_of(private.images, backbone, context, "private").double()
        asked = torch.from_numpy(context.streams.numpy("queries").permutation(len(public))[: config.queries])
        queries = features_of(public.images, backbone, context, "public")[asked].double()
        answers = []
        with context.progress.stage("answers", len(asked)) as stage:
            for some in torch.split(queries, QUERIES):
                # Not by matrix product: it may round one record's distance differently depending on the others.
                distances = torch.cdist(some, records, compute_mode="donot_use_mm_for_euclid_dist")
                found = ledger.sampled_noisy_max(
                    distances.numpy(), private.labels.numpy(), classes=private.facts.classes, sigma=config.sigma,
                    neighbours=config.neighbours, sampling_rate=config.sampling_rate,
                )  # fmt: skip
                answers.append(found)
                stage.advance(len(some))
        labels = torch.from_numpy(np.concatenate(answers))
        student, name, options = self.student(public, asked, labels, context)
        return Released(student, name, options, extras={"query_indices": asked, "query_labels": labels})
