"""The interfaces that everything else is written against: read this first.

A *method* (:class:`Method`) turns a private data set into a :class:`Released` student. It sees private records only
through :class:`PrivateData`, public ones through :class:`PublicData`, and lets anything of the private ones out only
through the :class:`bench.privacy.ledger.Ledger` that it is handed. What it needs besides (device, seeded generators,
cache, progress) is its :class:`Context`.

This module imports neither torch nor anything else that is slow: the command line reads it for ``--help``.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from bench.errors import BenchError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from bench.cache import Cache
    from bench.checkpoint import Checkpoint
    from bench.console import Progress
    from bench.precision import Precision
    from bench.privacy.event import Event
    from bench.privacy.ledger import Ledger
    from bench.seeds import Streams
    from bench.target import Target


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
    """What the epsilon that was asked for bounds."""

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
    """A kind of canary; see :mod:`bench.canaries`."""

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
    """The privacy that was asked for: at most `epsilon` at `delta`, on the basis that is named.

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
    height, width), are shown on a sheet beside the record, by ``synthetic_labels`` (n,) where these are there.
    """

    student: torch.nn.Module
    student_name: str
    student_options: dict[str, Any]
    generator: torch.nn.Module | None = None
    extras: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Context:
    """What a method needs besides data and ledger: a device, seeded generators, the cache, the progress display."""

    device: torch.device
    streams: Streams
    cache: Cache
    progress: Progress
    workers: int = 1
    """How many processes may train teachers side by side on a CPU; results do not depend on it."""
    note: Callable[[str], None] = lambda text: None
    """Say something about this run that is public; it is kept in the record and printed."""
    cell: str = ""
    """The key of the cell that is run. Part of what a checkpoint depends on that no other cell may go on with."""
    precision: Precision = "float32"
    """In which numbers teacher ensembles are trained and asked; part of their artefacts' names."""
    devices: tuple[str, ...] = ()
    """More than one: large teachers are trained on all of them, a share of every batch on each. Empty: on `device`."""

    def checkpoint(self, kind: str, depends: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint of a stage of this `kind`; a ``with`` block deletes it where it ends without an error.

        `depends` names everything that the stage depends on besides the data set, the seed and the device, by the rule
        of :meth:`bench.cache.Cache.get`.
        """
        from bench.checkpoint import Checkpoint

        return Checkpoint(
            self.cache,
            kind,
            {"depends": dict(depends), "seed": [self.streams.seed, self.streams.prefix], "device": self.device.type},
        )


class Method(abc.ABC):
    """A way to train a private student. One file in ``methods/``, one class, registered under one name.

    A subclass gives the class attributes below and the three methods. The frozen ``Config`` dataclass has the paper's
    values as its defaults, each with the place that states it; ``presets`` names what other presets change.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raised whenever the same config would give another student: part of every key."""
    Config: ClassVar[type]
    unit: ClassVar[PrivacyUnit] = PrivacyUnit.RECORD
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE
    citation: ClassVar[str] = ""
    public_data: ClassVar[str] = "none"
    """What public data it uses, in words."""
    public_data_kinds: ClassVar[tuple[PublicKind, ...]] = (PublicKind.NONE,)
    """The same as kinds, each once."""
    bypass: ClassVar[str] = ""
    """Why the proven epsilon is infinite, where private data goes round the mechanisms; empty where it does not."""
    repaired_by: ClassVar[str] = ""
    """The name of the variant that earns a finite proven epsilon, where `bypass` is set."""
    private: ClassVar[bool] = True
    """False for a baseline without any privacy: it is run once for all epsilons."""
    single_teacher: ClassVar[bool] = False
    """True where the privacy proof uses only that each answer of one teacher is bounded, so that it holds between any
    two teachers, and only the teacher tells the classes' names. See :mod:`bench.privacy.impossible`."""

    @classmethod
    @abc.abstractmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """Return what ``quick`` and ``tiny`` change in the config for such data, as field name to value.

        ``paper`` may be among them, for a paper with other settings for other data: all presets change those then.
        """

    @classmethod
    @abc.abstractmethod
    def calibrate(cls, config: Any, budget: Budget, facts: Facts) -> Any:
        """Return `config` with the noise or the number of queries that `budget` pays for; no data is touched.

        Raises :class:`BenchError` where the budget does not pay for a single query.
        """

    @classmethod
    @abc.abstractmethod
    def claimed(cls, config: Any, facts: Facts, delta: float) -> Claim:
        """Return what the paper's own formula says that `config` costs."""

    @classmethod
    def claimed_after(cls, config: Any, facts: Facts, delta: float, ledger: Ledger) -> Claim:
        """Return what the paper's formula says once the run is over: :meth:`claimed`, unless it looks at the data.

        Called for public benchmarks only: a figure that depends on the private data is private.
        """
        return cls.claimed(config, facts, delta)

    @classmethod
    def charges(cls, config: Any, facts: Facts) -> Sequence[Event] | None:
        """Return events that cost what a whole run with the calibrated `config` costs; None where only a run tells.

        A record whose ledger costs less is not published.
        """
        return None

    @classmethod
    def public_words(cls, config: Any, facts: Facts) -> str:
        """Return what public data `config` uses, in words for the row."""
        return cls.public_data

    @classmethod
    def public_kinds(cls, config: Any, facts: Facts) -> tuple[PublicKind, ...]:
        """Return what kinds of public data `config` uses: what :meth:`public_words` tells, for the filter."""
        return cls.public_data_kinds

    @classmethod
    def shares(cls, config: Any, facts: Facts, seed: int) -> tuple[str, ...]:
        """Name the expensive artefacts that this cell needs and others may need too; no data is touched.

        Two cells that give the same name need the same artefact: the first makes it, the others run after that one. A
        name that is left out, or too many, costs time and never a result.
        """
        return ()

    shardable: ClassVar[bool] = False
    """Whether :meth:`make_shard` splits the making of the last of the shared artefacts over several jobs."""

    def make_shard(
        self, config: Any, private: PrivateData, public: PublicData, context: Context, shard: int, shards: int
    ) -> None:
        """Make part number `shard` (from 0) of `shards` of an artefact; it goes to the cache and nowhere else.

        What :meth:`train_student` finds missing it makes itself. Called where `shardable` is set only.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def train_student(
        self, config: Any, private: PrivateData, public: PublicData, ledger: Ledger, context: Context
    ) -> Released:
        """Train a student on what the ledger lets through and return everything that is released."""


class Knowledge(StrEnum):
    """What an attacker has besides the released student."""

    NONE = "none"
    AUXILIARY = "auxiliary"
    """Unlabelled images of which none is private."""


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


class Attack(abc.ABC):
    """An attack on a released student. It returns reconstructions or scores, and computes no statistics.

    One file in ``attacks/``, one class, registered under one name: an :class:`InversionAttack` or a
    :class:`MembershipAttack`. The frozen ``Config`` dataclass has the paper's values as its defaults, each with the
    place that states it; ``presets`` names what other presets change, as for a method.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raised whenever the same config would give another result: part of every key."""
    Config: ClassVar[type]
    access: ClassVar[Access]
    knowledge: ClassVar[Knowledge] = Knowledge.NONE
    citation: ClassVar[str] = ""

    @classmethod
    @abc.abstractmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """Return what ``quick`` and ``tiny`` change in the config for such data, as field name to value."""


class InversionAttack(Attack):
    """An attack that makes images of what the student was trained on."""

    @abc.abstractmethod
    def run(
        self,
        config: Any,
        target: Target,
        auxiliary: PublicData | None,
        observed: torch.Tensor | None,
        context: Context,
    ) -> Reconstructions:
        """Attack `target` and return images of every class.

        `auxiliary` is what the attacker knows, None where `knowledge` is none. `observed` (m, classes) are confidences
        that the target gave to images which the attacker did not see; an attack that inverts single answers returns
        one image for each.
        """


class MembershipAttack(Attack):
    """An attack that tells records which the pipeline was trained on from others."""

    references: ClassVar[int] = 0
    """The fewest references that it needs."""

    @abc.abstractmethod
    def score(self, config: Any, signals: Signals) -> NDArray[np.float64]:
        """Return a score (n,) for each candidate, larger for likelier members.

        Raises :class:`BenchError` where there are too few references.
        """
