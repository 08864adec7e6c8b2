"""The interfaces that everything else is written against: read this first.

A *method* (:class:`Method`) turns a private data set into a :class:`Released` student. It sees private records only
through :class:`PrivateData`, public ones through :class:`PublicData`, and lets anything of the private ones out only
through the :class:`bench.privacy.ledger.Ledger` that it is handed. What it needs besides (device, seeded generators,
cache, progress) is its :class:`Context`.

This module imports neither torch nor anything else that is slow: the command line reads it for ``--help``.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from bench.core.types import (
    Adjacency,
    Budget,
    Claim,
    Facts,
    PrivacyUnit,
    PrivateData,
    PublicData,
    PublicKind,
    Released,
)
from bench.training.context import Context

if TYPE_CHECKING:
    from bench.privacy.base_event import Event
    from bench.privacy.ledger import Ledger


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
    """Why the proven epsilon is infinite, where private data is used outside any mechanism; empty where it is not."""
    repaired_by: ClassVar[str] = ""
    """The name of the variant that earns a finite proven epsilon, where `bypass` is set."""
    private: ClassVar[bool] = True
    """False for a baseline without any privacy: it is run once for all epsilons."""
    single_teacher: ClassVar[bool] = False
    """True where the privacy proof uses only that each answer of one teacher is bounded, so that it holds between any
    two teachers, and only the teacher tells the classes' names. See :mod:`bench.privacy.utility_bound`."""

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
        """Return events that cost as much as a run with the calibrated `config`; None where only a run gives them.

        A record whose ledger costs less is not published.
        """
        return None

    @classmethod
    def public_words(cls, config: Any, facts: Facts) -> str:
        """Return what public data `config` uses, in words for the row."""
        return cls.public_data

    @classmethod
    def public_kinds(cls, config: Any, facts: Facts) -> tuple[PublicKind, ...]:
        """Return what kinds of public data `config` uses: those of :meth:`public_words`, for the filter."""
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
