"""The core interface of methods: read this first.

A :class:`Method` trains a :class:`Released` student on :class:`PrivateData` and :class:`PublicData`. Information about
private records leaves only through its :class:`bench.privacy.mechanisms.ledger.Ledger`. Slow imports stay out, for
``--help``.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

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
from bench.interface.bound import Bound, C_co
from bench.models.used_weights import used
from bench.training.context import Context

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bench.privacy.events.base_event import Event
    from bench.privacy.mechanisms.ledger import Ledger


class Method(abc.ABC, Bound[C_co]):
    """A way to train a private student: one class per file in ``methods/``, registered under one name.

    ``class Mine(Method[MyConfig])`` names the frozen dataclass of its settings: the paper's values are the defaults,
    each with its source. An object is bound to one config and to the public facts of one data set, which every hook
    reads as ``self.config`` and ``self.facts``.
    """

    unit: ClassVar[PrivacyUnit] = PrivacyUnit.RECORD
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE
    groups: ClassVar[tuple[str, ...]] = ()
    """Groups by which ``--methods`` selects it, besides `all`, its unit's name and the groups of its base classes."""
    public_data: ClassVar[str] = "none"
    """A description of the public data."""
    public_data_kinds: ClassVar[tuple[PublicKind, ...]] = (PublicKind.NONE,)
    """Its kinds, without duplicates."""
    bypass: ClassVar[str] = ""
    """Reason for an infinite proven epsilon if the method uses private data outside any mechanism, else empty."""
    repaired_by: ClassVar[str] = ""
    """Name of the variant with a finite proven epsilon, if `bypass` is set."""
    private: ClassVar[bool] = True
    """False for a non-private baseline, whose one run serves all epsilons."""
    mixed_noise: ClassVar[bool] = False
    """True if its mechanisms differ in noise on purpose; otherwise the ledger must match the noise setting."""
    single_teacher: ClassVar[bool] = False
    """True if the proof only bounds each answer of one teacher, so that it holds between any two teachers, and the
    student learns the class names only from the teacher. See :mod:`bench.privacy.auditing.utility_bound`."""

    def changed(self, **settings: Any) -> Self:
        """Return the same method with other `settings`."""
        return type(self)(replace(self.config, **settings), self.facts)  # type: ignore[type-var]

    @classmethod
    @abc.abstractmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """Return the settings that ``quick`` and ``tiny`` change from the paper's config, by field.

        An optional entry ``paper`` (for a paper with other settings on this data) applies to all presets.
        """

    @abc.abstractmethod
    def calibrate(self, budget: Budget) -> C_co:
        """Return the config with the noise or number of queries for `budget`, without reading any data.

        Raise :class:`BenchError` if the budget does not cover a single query.
        """

    @abc.abstractmethod
    def claimed(self, delta: float) -> Claim:
        """Return the cost of the config at `delta` by the paper's own formula."""

    def claimed_after(self, delta: float, ledger: Ledger) -> Claim:
        """Return the paper's cost after the run, which differs from :meth:`claimed` only for data-dependent formulas.

        Called for public benchmarks only, because data-dependent figures are private.
        """
        return self.claimed(delta)

    def charges(self) -> Sequence[Event] | None:
        """Return the events of a whole run, or None to leave that to the run; cheaper records are not published.

        A run must not spend more or less than another with the same settings: see :meth:`Ledger.at_most`.
        """
        return None

    def public_words(self) -> str:
        """Return a description of the public data, for the row."""
        return self.public_data

    def public_kinds(self) -> tuple[PublicKind, ...]:
        """Return the kinds of public data, for the board's filter."""
        return self.public_data_kinds

    def shares(self, seed: int) -> tuple[str, ...]:
        """Return the names of expensive artefacts that cells with this `seed` share, without reading any data.

        The first cell with a name makes the artefact, and the others run after it. A wrong list only costs time.
        """
        return ()

    def given_teacher(self) -> GivenTeacher | None:
        """Return the user's teacher, or None if the method trains its own; raise BenchError if it is ill-defined.

        With one, :meth:`train_student` gets no private records, and the facts count the teacher's training records.
        """
        return None

    def pin_teacher(self) -> C_co:
        """Return the config with its given teacher checked and named by digest, without a path."""
        return self.config

    shardable: ClassVar[bool] = False
    """Whether :meth:`make_shard` can split the last of :meth:`shares` over several jobs."""

    def make_shard(self, private: PrivateData, public: PublicData, context: Context, shard: int, shards: int) -> None:
        """Make part `shard` (from 0) of `shards` in the cache only; :meth:`train_student` makes missing parts."""
        raise NotImplementedError

    def worst_pairs(self) -> Sequence[tuple[str, PrivateData, PrivateData]]:
        """Return adjacent private sets on which one unit is easiest to detect: a description, and both sets.

        Audits add their own. The sets' facts may have fewer records and smaller images than ``self.facts``; the config,
        calibrated for the latter, must cost the same on them, with at most as many teachers as records.
        """
        return ()

    def clients(self, private: PrivateData, context: Context) -> Sequence[NDArray[np.int64]]:
        """Return the positions of each client's records in `private`, for the unit client; private.

        No two clients share a record, and none is left out. The check replaces the images of one client.
        """
        raise NotImplementedError(f"{self.name} protects clients: define clients(private, context)")

    @abc.abstractmethod
    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Train a student on the ledger's outputs and return all releases."""

    def calibrate_checked(self, budget: Budget) -> C_co:
        """Return :meth:`calibrate` of `budget`; raise :class:`BenchError` if it is not a config of this method."""
        made = self.calibrate(budget)
        if not isinstance(made, self.Config):
            raise BenchError(
                f"{self.name}.calibrate() returns {type(made).__name__}, not {self.Config.__name__}. Return "
                "dataclasses.replace(self.config, ...)."
            )
        return made

    def train_checked(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Return :meth:`train_student` of the arguments.

        Raises :class:`BenchError` if that is not a `Released`, or for public data that the method does not declare.
        """
        if set(self.public_kinds()) <= {PublicKind.NONE}:
            public = _Undeclared(None, f"{self.name} declares no public data")  # type: ignore[arg-type]  # never read
        before = len(used)
        made: object = self.train_student(private, public, ledger, context)
        weights = dict.fromkeys(used[before:])
        if weights and not {PublicKind.TRANSFERRED, PublicKind.OTHER, PublicKind.NOT_STATED} & set(self.public_kinds()):
            raise BenchError(
                f"{self.name} uses pretrained weights ({', '.join(weights)}) and does not declare them. Add "
                "PublicKind.TRANSFERRED to public_data_kinds, and name their data in public_data."
            )
        if not isinstance(made, Released):
            raise BenchError(
                f"{self.name}.train_student() returns {type(made).__name__}, not Released. Return Released(student, "
                "NAME, OPTIONS): make_student returns the student and its options."
            )
        return made


class _Undeclared(PublicData):
    """Public data for a method that declares none: reading it is an error."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> object:
        if name in ("images", "labelled"):
            source = object.__getattribute__(self, "source")
            raise BenchError(f"{source}, but reads public.{name}. State it in public_data and public_data_kinds.")
        return object.__getattribute__(self, name)


def checked_claim(claim: object, who: str) -> Claim:
    """Return `claim`, the result of `who`; raise :class:`BenchError` if it is not a valid claim."""
    remedy = "Return Claim(epsilon, delta, source) or claim_by(accountant, events, delta, source), of bench.interface."
    if not isinstance(claim, Claim):
        raise BenchError(f"{who} returns {type(claim).__name__}, not a Claim. {remedy}")
    number = isinstance(claim.epsilon, int | float) and claim.epsilon >= 0
    if not number or not isinstance(claim.source, str) or not isinstance(claim.note, str):
        raise BenchError(
            f"{who} returns {claim}: epsilon is a number from 0 to inf, source and note are texts. {remedy}"
        )
    return claim


def check_public(method: Method[object]) -> None:
    """Raise :class:`BenchError` if the public data that `method` states cannot be recorded."""
    words, kinds = method.public_words(), method.public_kinds()
    if not isinstance(words, str):
        raise BenchError(f"{method.name}.public_words() returns {words!r}. Return a text.")
    if not isinstance(kinds, tuple | list) or not all(isinstance(kind, PublicKind) for kind in kinds):
        raise BenchError(f"{method.name}.public_kinds() returns {kinds!r}. Return a tuple of PublicKind.")


@telling()
def check_costs(method: Method[object], delta: float) -> None:
    """Raise :class:`BenchError` unless the costs that `method` states are a claim and events."""
    from bench.privacy.events.base_event import Event
    from bench.privacy.events.events import Bypass

    checked_claim(method.claimed(delta), f"{method.name}.claimed()")
    charges = method.charges()
    if charges is not None and not (isinstance(charges, Sequence) and all(isinstance(e, Event) for e in charges)):
        raise BenchError(f"{method.name}.charges() returns {charges!r}. Return a list of events, or None.")
    for event in charges or ():
        if event.adjacency is not method.adjacency and not isinstance(event, Bypass):
            raise BenchError(
                f"{method.name}.charges() returns {type(event).__name__} for neighbours by {event.adjacency.value}, and"
                f" the method's adjacency is {method.adjacency.value}. Pass adjacency=self.adjacency to its events."
            )
