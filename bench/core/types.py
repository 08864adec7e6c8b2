"""Enums and frozen value types shared by all layers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from bench.core.disclosure import Disclosure
from bench.core.errors import BenchError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

ROBUSTNESS = "robustness"
"""The goal of attacks that do not measure privacy."""
NO_PRIVACY = (
    "Robustness is accuracy on inputs that an adversary changes. It does not measure privacy: these attacks look for "
    "wrong answers, not for training records."
)


class PrivacyUnit(StrEnum):
    """The unit that a guarantee protects."""

    RECORD = "record"  # one image with its label
    LABEL = "label"  # the label of one record; its image is public
    QUERY_LABEL = "query-label"
    """A teacher's label for one synthetic or public query; implies no guarantee for training records."""
    CLIENT = "client"  # all records of one client of a federation


class Adjacency(StrEnum):
    """The neighbouring relation between data sets."""

    ADD_REMOVE = "add-remove"
    """One data set has one more unit; if the number of units is public (*zero-out*), one unit contributes nothing."""
    REPLACE = "replace"
    """One unit has another value; the number of units is public. Costs up to twice the mean shift of add-remove."""


OWN_DATA = "folder:"
"""What the names of a user's own data begin with."""


class Basis(StrEnum):
    """The epsilon that the target bounds."""

    CLAIMED = "claimed"  # the cost by the method's paper
    PROVEN = "proven"  # the data-independent cost of the mechanisms by a sound accountant


class TargetAdjacency(StrEnum):
    """The neighbours for which a target on the basis proven bounds epsilon."""

    REPLACE_ONE = "replace-one"  # the same for every method, so that rows are comparable
    OWN = "own"  # those of the method's own analysis


class Sampling(StrEnum):
    """How DP-SGD draws its batches; see :mod:`bench.privacy.dpsgd.sampling`."""

    POISSON = "poisson"  # each record enters each batch independently
    RANDOM_ALLOCATION = "random-allocation"  # each record is in one batch of each epoch, drawn independently
    FIXED = "fixed"  # each batch is a random set of records of a fixed size
    SHUFFLED = "shuffled"  # each epoch is a random order of the records, cut into batches


class Law(StrEnum):
    """The distribution of a secret number of trials."""

    LOGARITHMIC = "logarithmic"
    GEOMETRIC = "geometric"

    @property
    def shape(self) -> float:
        """The shape of the truncated negative binomial; see :mod:`bench.privacy.events.tuning`."""
        return 0.0 if self is Law.LOGARITHMIC else 1.0


class Score(StrEnum):
    """The score by which the best of several trials is chosen."""

    PUBLIC = "public"  # accuracy on the public records, whose labels only tuning reads
    NOISY = "noisy"  # right answers on the private records, with Gaussian noise that every trial is charged for


class PublicKind(StrEnum):
    """A kind of public data, for the board's filter; a separate text describes it."""

    NONE = "none"  # no public data; excludes all other kinds
    TRANSFERRED = "transferred"  # features of a frozen backbone, or public images used for transfer
    LABELLED = "labelled"  # labelled records of a related set
    UNLABELLED = "unlabelled"  # unlabelled records from the distribution of the private data
    PRIVATE_IMAGES = "private-images"  # the images of the private records, assumed public
    OTHER = "other"
    NOT_STATED = "not-stated"  # the paper does not say; excludes all other kinds


class Access(StrEnum):
    """The part of a released student that an attack may use."""

    LABELS = "labels"
    CONFIDENCES = "confidences"
    WEIGHTS = "weights"
    GENERATOR = "generator"
    SYNTHETIC = "synthetic"


class Family(StrEnum):
    """A kind of canary; see :mod:`bench.evaluation.audit.canaries`."""

    NATURAL = "natural"
    MISLABELLED = "mislabelled"
    DUPLICATED = "duplicated"
    OUTLIER = "outlier"


class AuditKind(StrEnum):
    """Audit design."""

    PAIR = "pair"  # many runs on each of two adjacent data sets chosen by the auditor
    ONE_RUN = "one-run"  # many canaries in one run (Steinke et al. 2023)
    MANY_RUN = "many-run"  # one canary in many runs, errors bounded by Clopper-Pearson
    CANDIDATES = "candidates"  # which of n candidates is the one record that the attacker does not know


class Instrument(StrEnum):
    """The quantity that a pair audit measures."""

    RELEASE = "release"  # black box: how well the published release distinguishes the two data sets
    TRANSCRIPT = "transcript"  # the privacy loss of the ledger's answers; white box
    FULL_SIZE = "transcript at full size"  # the privacy loss of one pair of runs on the row's own data


@dataclass(frozen=True, slots=True)
class Budget:
    """The privacy target; raises :class:`BenchError` unless epsilon is positive and finite and delta in (0, 1)."""

    epsilon: float
    delta: float
    basis: Basis = Basis.CLAIMED
    adjacency: TargetAdjacency = TargetAdjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise BenchError(f"epsilon must be a positive finite number, not {self.epsilon}. Try --eps 1,10.")
        if not 0 < self.delta < 1:
            raise BenchError(f"delta must lie strictly between 0 and 1, not {self.delta}. Try --delta 1e-5.")


@dataclass(frozen=True, slots=True)
class Facts:
    """Public facts of a data set, known before any record is read; `shape` is (channels, height, width)."""

    dataset: str
    private_records: int
    public_records: int
    test_records: int
    classes: int
    shape: tuple[int, int, int]
    public_benchmark: bool = False
    """True for a freely available set; :attr:`disclosure` states the consequences."""

    @property
    def characters(self) -> bool:
        """Whether the images are known to show characters, which a mirror changes into others."""
        return self.dataset.partition("-")[0] in ("digits", "mnist", "svhn")

    @property
    def disclosure(self) -> Disclosure:
        """Which figures of a run on this data may be shown, and to whom."""
        return Disclosure(self.public_benchmark)


@dataclass(frozen=True, slots=True)
class GivenTeacher:
    """A trained teacher supplied by the user; its training records are private and not available.

    `net` is its timm name, `weights` ``package`` or ``file:NAME``, `size` its input side in pixels (None: as timm
    states; 0: that of the data's images), `records` the number of its training records.
    """

    net: str
    weights: str
    sha256: str
    size: int | None
    records: int

    @property
    def public(self) -> bool:
        """Whether anyone may read the weights."""
        return self.weights == "package"

    def facts(self, facts: Facts) -> Facts:
        """Return `facts` with the teacher's training records as private; a private teacher is no public benchmark."""
        return replace(facts, private_records=self.records, public_benchmark=facts.public_benchmark and self.public)


@dataclass(frozen=True, slots=True)
class PrivateData:
    """Private records: `images` uint8 (n, channels, height, width), `labels` int64 (n,)."""

    images: torch.Tensor
    labels: torch.Tensor
    facts: Facts

    def __len__(self) -> int:
        return int(self.images.shape[0])


@dataclass(frozen=True, slots=True)
class LabelledSource:
    """Labelled public records of a related set, for transfer only; teachers never label them.

    `images` is uint8 (n, channels, height, width), of any size; `labels` is int64 (n,), of the private data's classes.
    """

    images: torch.Tensor
    labels: torch.Tensor
    name: str
    overlap: str  # possible overlap with the private records, which the guarantee does not cover

    def __len__(self) -> int:
        return int(self.images.shape[0])


@dataclass(frozen=True, slots=True)
class PublicData:
    """Unlabelled public images: uint8 (n, channels, height, width)."""

    images: torch.Tensor
    source: str  # description of the images' origin, for the row
    labelled: LabelledSource | None = None

    def __len__(self) -> int:
        return int(self.images.shape[0])


@dataclass(frozen=True, slots=True)
class Claim:
    """The epsilon that a paper claims at `delta`; `source` is the theorem or table."""

    epsilon: float
    delta: float
    source: str
    note: str = ""


@dataclass(slots=True)
class Released:
    """The complete output of a private training; everything else is deleted.

    ``timm.create_model(student_name, **student_options)`` and the weights rebuild `student`. `extras` holds other
    released tensors. The record's image grid shows ``synthetic_images`` (n, channels, height, width), uint8 or float in
    [0, 1], by ``synthetic_labels`` (n,) if present.
    """

    student: torch.nn.Module
    student_name: str
    student_options: dict[str, Any]
    generator: torch.nn.Module | None = None
    extras: dict[str, torch.Tensor] = field(default_factory=dict)


class Knowledge(StrEnum):
    """An attacker's knowledge besides the released student."""

    NONE = "none"
    AUXILIARY = "auxiliary"  # unlabelled images, none of them private


@dataclass(frozen=True, slots=True)
class Reconstructions:
    """Output of an inversion attack: `images` float32 (n, channels, height, width) in [0, 1].

    `labels` int64 (n,) are the target classes; images of one class are independent attempts. `reached` (n,) is False
    for a failed attempt. `observed`, like `images`, holds the reconstructions of the observed answers, in their order.
    """

    images: torch.Tensor
    labels: torch.Tensor
    reached: torch.Tensor | None = None
    observed: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Signals:
    """Input of a membership attack on n candidates: float64 logits of the target and of k references.

    References are trained with some of the candidates. The first query is the record itself, the others vary it.
    """

    labels: NDArray[np.int64]  # (n,) of the candidates
    target: NDArray[np.float64]  # (queries, n, classes)
    references: NDArray[np.float64]  # (k, queries, n, classes)
    inside: NDArray[np.bool_]  # (k, n) whether the candidate is in the reference's training set
    population_labels: NDArray[np.int64]  # (p,) of records outside the training sets of the target and all references
    population_target: NDArray[np.float64]  # (p, classes)
    population_references: NDArray[np.float64]  # (k, p, classes)
