"""Roles of records in an attack's evaluation: no record has two roles that would inflate a result.

Members are the student's training records, non-members the test records. Half of the public part is the attacker's
auxiliary data, without labels; with labels, it also trains the counterfactual control. The other half trains the
evaluators. Without a public part, as for faces, another data set of the same shape (other people) replaces the
attacker's half; the evaluators train on test records and are tested on members.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from bench.core.errors import BenchError
from bench.core.types import PrivateData, PublicData
from bench.data.index_hash import ranks
from bench.data.splits import Materialised
from bench.evaluation.attack.evaluators import check_disjoint, digest_each, digests
from bench.experiments.data_source import DataSource

Labelled = tuple[torch.Tensor, torch.Tensor]  # images (n, channels, height, width), labels int64 (n,)

OTHER_PEOPLE = {"att-faces-a": "att-faces-b", "att-faces-b": "att-faces-a"}
"""Default auxiliary data set for data sets of people."""


@dataclass(frozen=True, slots=True)
class AttackData:
    """The records of one evaluation: images uint8 (n, channels, height, width) with labels (n,)."""

    material: Materialised
    auxiliary: PublicData | None
    disjoint: Labelled | None  # training records of the counterfactual control
    evaluators: Labelled
    held_out: Labelled  # test records of the evaluators
    rehearsal: Materialised | None = None  # data set of other people, on which an adaptive attacker trains students
    tiny: bool = False  # whether :func:`fewer` reduced it

    @property
    def members(self) -> Labelled:
        """The student's training records."""
        return self.material.private.images, self.material.private.labels

    @property
    def nonmembers(self) -> Labelled:
        """Records of the same distribution that no student saw."""
        return self.material.test_images, self.material.test_labels


def attack_data(name: str, source: DataSource, auxiliary: str | None = None) -> AttackData:
    """Return the evaluation's records for students of the data set `name`, with `auxiliary` as the attacker's data set.

    Raises :class:`BenchError` if its images have another shape, roles share an image, or evaluators have no records.
    """
    material = source.material(name)
    facts = material.private.facts
    known: PublicData | None = None
    disjoint: Labelled | None = None
    rehearsal: Materialised | None = None
    other = auxiliary or OTHER_PEOPLE.get(name)
    if len(material.public):
        new = ~_overlap(material.public.images, digests(material.private.images))  # some sets contain an image twice
        theirs = torch.zeros(len(new), dtype=torch.bool)
        theirs[torch.from_numpy(ranks(name, len(new), "attack")[: len(new) // 2].copy())] = True
        images, labels = material.public.images, material.public_labels
        disjoint = (images[theirs & new], labels[theirs & new])
        known = PublicData(disjoint[0], f"{len(disjoint[0])} {_origin(material.public.source)}")
        ours = ~theirs & new & ~_overlap(images, digests(disjoint[0]))
        evaluators, held_out = (images[ours], labels[ours]), (material.test_images, material.test_labels)
    else:
        evaluators = (material.test_images, material.test_labels)
        held_out = (material.private.images, material.private.labels)
    if other is not None:
        theirs_too = source.material(other)
        if theirs_too.private.facts.shape != facts.shape:
            raise BenchError(
                f"the auxiliary data {theirs_too.private.facts.dataset} has images of shape "
                f"{theirs_too.private.facts.shape}, {facts.dataset} of {facts.shape}. Use a set of the same shape with "
                "--auxiliary."
            )
        said = f"{len(theirs_too.private)} records of {theirs_too.private.facts.dataset}, without labels"
        known = PublicData(theirs_too.private.images, said)
        if theirs_too.private.facts.classes == facts.classes:
            rehearsal = theirs_too
            if disjoint is None:
                disjoint = (theirs_too.private.images, theirs_too.private.labels)
    if not len(evaluators[0]):
        raise BenchError(f"{name} leaves no record to train evaluators on: it has neither public nor test records.")
    held = digests(material.private.images)
    judged = digests(evaluators[0])
    check_disjoint("the evaluators' data", judged, "the private records", held)
    if known is not None:
        check_disjoint("the auxiliary data", digests(known.images), "the private records", held)
        check_disjoint("the auxiliary data", digests(known.images), "the evaluators' data", judged)
    return AttackData(material, known, disjoint, evaluators, held_out, rehearsal)


TINY_RECORDS = 20
"""Records per class and role in the tiny preset."""


def fewer(data: AttackData) -> AttackData:
    """Return `data` with at most :data:`TINY_RECORDS` records per class and role, for the tiny preset."""
    facts = data.material.private.facts
    most = TINY_RECORDS * facts.classes

    def order(count: int) -> torch.Tensor:
        return torch.from_numpy(ranks(facts.dataset, count, "tiny").astype(np.int64))

    def some(part: Labelled) -> Labelled:
        images, labels = part
        shuffled = order(len(labels))
        each = [shuffled[labels[shuffled] == label][:TINY_RECORDS] for label in range(facts.classes)]
        chosen = torch.cat(each).sort().values
        return images[chosen], labels[chosen]

    known = data.auxiliary
    if known is not None and len(known) > most:
        known = PublicData(known.images[order(len(known))[:most].sort().values], f"{most} of {known.source}")
    images, labels = some(data.members)
    tests, test_labels = some(data.nonmembers)
    material = replace(
        data.material, private=PrivateData(images, labels, facts), test_images=tests, test_labels=test_labels
    )
    disjoint = None if data.disjoint is None else some(data.disjoint)
    return AttackData(material, known, disjoint, some(data.evaluators), some(data.held_out), data.rehearsal, tiny=True)


def _origin(source: str) -> str:
    return source.split(" ", 1)[1] if source.split(" ", 1)[0].isdigit() else source


def _overlap(images: torch.Tensor, others: frozenset[bytes]) -> torch.Tensor:
    """Return bool (n,): whether `others` holds each image's digest."""
    return torch.tensor([digest in others for digest in digest_each(images)], dtype=torch.bool)
