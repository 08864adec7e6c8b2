"""The core interface of methods: read this first.

A :class:`Method` trains a :class:`Released` student on :class:`PrivateData` and :class:`PublicData`. Information about
private records leaves only through its :class:`bench.privacy.mechanisms.ledger.Ledger`. Slow imports stay out, for
``--help``.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from bench.core.errors import BenchError, telling
from bench.core.types import (
    Adjacency,
    Budget,
    Claim,
    Facts,
    GivenTeacher,
    PrivacyUnit,
    PrivateData,
    PublicData,
    PublicKind,
    Released,
)
from bench.training.context import Context

if TYPE_CHECKING:
    from bench.privacy.events.base_event import Event
    from bench.privacy.mechanisms.ledger import Ledger


class Method(abc.ABC):
    """A way to train a private student: one class per file in ``methods/``, registered under one name.

    A subclass defines the class attributes and abstract methods below. The frozen ``Config`` dataclass has the paper's
    values as defaults, each with its source.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Increment whenever the same config gives another student: part of every key."""
    Config: ClassVar[type]
    unit: ClassVar[PrivacyUnit] = PrivacyUnit.RECORD
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE
    groups: ClassVar[tuple[str, ...]] = ()
    """Groups that ``--methods`` accepts for it, beside `all`, its unit's name and those of its base classes."""
    citation: ClassVar[str] = ""
    public_data: ClassVar[str] = "none"
    """The public data, in words."""
    public_data_kinds: ClassVar[tuple[PublicKind, ...]] = (PublicKind.NONE,)
    """Its kinds, without duplicates."""
    bypass: ClassVar[str] = ""
    """Reason for an infinite proven epsilon if the method uses private data outside any mechanism, else empty."""
    repaired_by: ClassVar[str] = ""
    """Name of the variant with a finite proven epsilon, if `bypass` is set."""
    private: ClassVar[bool] = True
    """False for a non-private baseline: one run serves all epsilons."""
    mixed_noise: ClassVar[bool] = False
    """True if its mechanisms have different noise by plan, of which its setting is one; others' ledgers must agree."""
    single_teacher: ClassVar[bool] = False
    """True if the proof only bounds each answer of one teacher, so that it holds between any two teachers, and only the
    teacher states the class names. See :mod:`bench.privacy.auditing.utility_bound`."""

    @classmethod
    @abc.abstractmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """Return the changes of ``quick`` and ``tiny`` from the paper's config, by field.

        Optional ``paper`` changes, for a paper with other settings for this data, apply to all presets.
        """

    @classmethod
    @abc.abstractmethod
    def calibrate(cls, config: Any, budget: Budget, facts: Facts) -> Any:
        """Return `config` with the noise or number of queries for `budget`, without reading any data.

        Raise :class:`BenchError` if the budget does not cover a single query.
        """

    @classmethod
    @abc.abstractmethod
    def claimed(cls, config: Any, facts: Facts, delta: float) -> Claim:
        """Return the cost of `config` by the paper's own formula."""

    @classmethod
    def claimed_after(cls, config: Any, facts: Facts, delta: float, ledger: Ledger) -> Claim:
        """Return the paper's cost after the run; differs from :meth:`claimed` only for data-dependent formulas.

        Called for public benchmarks only, because data-dependent figures are private.
        """
        return cls.claimed(config, facts, delta)

    @classmethod
    def charges(cls, config: Any, facts: Facts) -> Sequence[Event] | None:
        """Return events with the cost of `config`, None if only a run gives them; cheaper records are not published."""
        return None

    @classmethod
    def public_words(cls, config: Any, facts: Facts) -> str:
        """Return a description of the public data of `config`, for the row."""
        return cls.public_data

    @classmethod
    def public_kinds(cls, config: Any, facts: Facts) -> tuple[PublicKind, ...]:
        """Return the kinds of public data of `config`, for the board's filter."""
        return cls.public_data_kinds

    @classmethod
    def shares(cls, config: Any, facts: Facts, seed: int) -> tuple[str, ...]:
        """Return names of the expensive artefacts that this cell may share with others, without reading any data.

        The first cell with a name makes the artefact, the others run after it. A wrong list costs running time only.
        """
        return ()

    @classmethod
    def given_teacher(cls, config: Any) -> GivenTeacher | None:
        """Return the teacher that the user gives, None where methods train theirs; raise BenchError if ill-defined.

        With one, :meth:`train_student` gets no private record, and the facts count the teacher's own.
        """
        return None

    @classmethod
    def pin_teacher(cls, config: Any, facts: Facts) -> Any:
        """Return `config` with its given teacher checked and named by digest, without a path."""
        return config

    shardable: ClassVar[bool] = False
    """Whether :meth:`make_shard` can split the last of :meth:`shares` over several jobs."""

    def make_shard(
        self, config: Any, private: PrivateData, public: PublicData, context: Context, shard: int, shards: int
    ) -> None:
        """Make part `shard` (from 0) of `shards` in the cache only; :meth:`train_student` makes missing parts."""
        raise NotImplementedError

    @classmethod
    def worst_pairs(cls, config: Any, facts: Facts) -> Sequence[tuple[str, PrivateData, PrivateData]]:
        """Return adjacent private sets on which one unit shows most, for audits: what changes, in words, and both sets.

        Audits try some of their own. The sets' facts may have fewer records and smaller images than `facts`; `config`,
        calibrated for `facts`, must cost the same on them, with as many teachers as there are records at most.
        """
        return ()

    @abc.abstractmethod
    def train_student(
        self, config: Any, private: PrivateData, public: PublicData, ledger: Ledger, context: Context
    ) -> Released:
        """Train a student on the ledger's outputs and return all releases."""


def checked_claim(claim: object, who: str) -> Claim:
    """Return `claim`, which `who` returned; raise :class:`BenchError` if it is no claim or holds no epsilon."""
    remedy = "Return Claim(epsilon, delta, source) or claim_by(accountant, events, delta, source), of bench.interface."
    if not isinstance(claim, Claim):
        raise BenchError(f"{who} returns {type(claim).__name__}, not a Claim. {remedy}")
    number = isinstance(claim.epsilon, int | float) and claim.epsilon >= 0
    if not number or not isinstance(claim.source, str) or not isinstance(claim.note, str):
        raise BenchError(
            f"{who} returns {claim}: epsilon is a number from 0 to inf, source and note are texts. {remedy}"
        )
    return claim


def check_public(method: type[Method], config: Any, facts: Facts) -> None:
    """Raise :class:`BenchError` where what `method` says of its public data fits no record, not even a failed one."""
    words, kinds = method.public_words(config, facts), method.public_kinds(config, facts)
    if not isinstance(words, str):
        raise BenchError(f"{method.name}.public_words() returns {words!r}. Return a text.")
    if not isinstance(kinds, tuple | list) or not all(isinstance(kind, PublicKind) for kind in kinds):
        raise BenchError(f"{method.name}.public_kinds() returns {kinds!r}. Return a tuple of PublicKind.")


@telling()
def check_costs(method: type[Method], config: Any, facts: Facts, delta: float) -> None:
    """Raise :class:`BenchError` where what `method` says of its costs is no claim and no events."""
    from bench.privacy.events.base_event import Event

    checked_claim(method.claimed(config, facts, delta), f"{method.name}.claimed()")
    charges = method.charges(config, facts)
    if charges is not None and not (isinstance(charges, Sequence) and all(isinstance(e, Event) for e in charges)):
        raise BenchError(f"{method.name}.charges() returns {charges!r}. Return a list of events, or None.")
