"""Enums and frozen value types that every layer speaks in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from bench.core.errors import BenchError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray


class PrivacyUnit(StrEnum):
    """Whose presence or value a guarantee hides."""

    RECORD = "record"
    """One image together with its label."""
    LABEL = "label"
    """The label of one record; its image is public."""
    QUERY_LABEL = "query-label"
    """The label that a teacher gives to one synthetic or public query; says nothing of a training record."""
    CLIENT = "client"
    """All records of one client of a federation."""


class Adjacency(StrEnum):
    """Which two data sets count as neighbours."""

    ADD_REMOVE = "add-remove"
    """One unit is in one set and missing from the other."""
    REPLACE = "replace"
    """One unit has another value; the number of units is the same and public."""


class Basis(StrEnum):
    """What the target epsilon bounds."""

    CLAIMED = "claimed"
    """What the method's paper says the setting costs."""
    PROVEN = "proven"
    """What a sound accountant says the mechanisms cost, whatever the data."""


class PublicKind(StrEnum):
    """A kind of public data that a method uses. The board filters by it; what exactly it is, words say."""

    NONE = "none"
    """No public data at all; stands alone."""
    TRANSFERRED = "transferred"
    """Features of a frozen backbone, or public images from which such knowledge is taken."""
    LABELLED = "labelled"
    """Labelled records of a related set."""
    UNLABELLED = "unlabelled"
    """Unlabelled records of the private data's distribution."""
    PRIVATE_IMAGES = "private-images"
    """The images of the private records, taken for public ones."""
    OTHER = "other"
    """What is none of these."""
    NOT_STATED = "not-stated"
    """A paper does not say; stands alone."""


class Access(StrEnum):
    """What of a released student an attack may use."""

    LABELS = "labels"
    CONFIDENCES = "confidences"
    WEIGHTS = "weights"
    GENERATOR = "generator"
    SYNTHETIC = "synthetic"


class Family(StrEnum):
    """A kind of canary; see :mod:`bench.evaluation.canaries`."""

    NATURAL = "natural"
    MISLABELLED = "mislabelled"
    DUPLICATED = "duplicated"
    OUTLIER = "outlier"


class AuditKind(StrEnum):
    """How a pipeline is audited."""

    ONE_RUN = "one-run"
    """Many canaries in one run (Steinke et al. 2023)."""
    MANY_RUN = "many-run"
    """One canary in many runs, errors bounded by Clopper-Pearson."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The privacy target: at most `epsilon` at `delta`, on the basis that is named.

    Raises :class:`BenchError` where epsilon is not a positive finite number or delta not inside (0, 1).
    """

    epsilon: float
    delta: float
    basis: Basis = Basis.CLAIMED

    def __post_init__(self) -> None:
        if math.isnan(self.epsilon) or math.isinf(self.epsilon) or self.epsilon <= 0:
            raise BenchError(f"epsilon must be a positive finite number, not {self.epsilon}. Try --eps 1,10.")
        if math.isnan(self.delta) or not 0 < self.delta < 1:
            raise BenchError(f"delta must lie strictly between 0 and 1, not {self.delta}. Try --delta 1e-5.")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is public about a data set before a record of it is read. `shape` is (channels, height, width)."""

    dataset: str
    private_records: int
    public_records: int
    test_records: int
    classes: int
    shape: tuple[int, int, int]
    public_benchmark: bool = False
    """True for a set that everybody may read. Otherwise figures that depend on private data stay out of the record."""


@dataclass(frozen=True, slots=True)
class PrivateData:
    """Private records: `images` is uint8 (n, channels, height, width), `labels` int64 (n,).

    A method is handed those that it trains on; the others are kept for membership attacks.
    """

    images: torch.Tensor
    labels: torch.Tensor
    facts: Facts

    def __len__(self) -> int:
        return int(self.images.shape[0])


@dataclass(frozen=True, slots=True)
class LabelledSource:
    """Labelled public records of a related set, from which knowledge may be transferred; nobody asks teachers of them.

    `images` is uint8 (n, channels, height, width), of another height or width than the private ones where the data set
    says so; `labels` is int64 (n,), of the same classes.
    """

    images: torch.Tensor
    labels: torch.Tensor
    name: str
    overlap: str
    """What it may share with the private records, in words: a guarantee says nothing of a record that lies in here."""

    def __len__(self) -> int:
        return int(self.images.shape[0])


@dataclass(frozen=True, slots=True)
class PublicData:
    """The unlabelled public images that a method may see freely: uint8 (n, channels, height, width)."""

    images: torch.Tensor
    source: str
    """Where they come from, in words: the row prints it."""
    labelled: LabelledSource | None = None
    """A labelled public source besides, where the data set has one."""

    def __len__(self) -> int:
        return int(self.images.shape[0])


@dataclass(frozen=True, slots=True)
class Claim:
    """What a paper says a setting costs: `epsilon` at `delta`, and the place in the paper that says so."""

    epsilon: float
    delta: float
    source: str
    note: str = ""


@dataclass(slots=True)
class Released:
    """Everything that leaves a private training; what is not in here is deleted.

    `student` is rebuilt by ``timm.create_model(student_name, **student_options)`` and its weights. `extras` holds
    whatever else the method gives out, as tensors by name. ``synthetic_images``, uint8 or float in [0, 1] (n, channels,
    height, width), are shown on an image grid beside the record, by ``synthetic_labels`` (n,) where these are there.
    """

    student: torch.nn.Module
    student_name: str
    student_options: dict[str, Any]
    generator: torch.nn.Module | None = None
    extras: dict[str, torch.Tensor] = field(default_factory=dict)


class Knowledge(StrEnum):
    """What an attacker has besides the released student."""

    NONE = "none"
    AUXILIARY = "auxiliary"
    """Unlabelled images, none of them private."""


@dataclass(frozen=True, slots=True)
class Reconstructions:
    """What an inversion attack made: `images` float32 (n, channels, height, width) in [0, 1].

    `labels`, int64 (n,), are the classes that they are meant to show; several images of one class are independent
    tries. `reached` (n,) is False where the attack found nothing to show: such an image counts as a failure.
    `observed`, of the same kind as `images`, holds the reconstruction of each answer that the attacker had observed,
    in their order.
    """

    images: torch.Tensor
    labels: torch.Tensor
    reached: torch.Tensor | None = None
    observed: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Signals:
    """What a membership attack sees of n candidate records: logits, float64, of the target and of k references.

    References are students of the same pipeline, each trained with some of the candidates. A query is the record itself
    (always the first) or a variation of it.
    """

    labels: NDArray[np.int64]
    """(n,) the candidates' labels."""
    target: NDArray[np.float64]
    """(queries, n, classes)"""
    references: NDArray[np.float64]
    """(k, queries, n, classes)"""
    inside: NDArray[np.bool_]
    """(k, n) whether the reference was trained with the candidate."""
    population_labels: NDArray[np.int64]
    """(p,) labels of records that neither the target nor a reference saw."""
    population_target: NDArray[np.float64]
    """(p, classes)"""
    population_references: NDArray[np.float64]
    """(k, p, classes)"""
