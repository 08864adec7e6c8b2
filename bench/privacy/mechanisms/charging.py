"""The charging part of the ledger: its events, and the calls to mechanisms."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any, NoReturn, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.core.torch_modes import refuse_modes
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.accounting.accountants import Accounted, proven
from bench.privacy.events.base_event import EVENTS, Event
from bench.privacy.events.events import Bypass
from bench.privacy.events.label_events import LabelResponse, PriorRandomizedResponse
from bench.privacy.mechanisms.executors import Call, Executor, Noisy
from bench.privacy.mechanisms.noise import DiscardedNoise, Noise, ZeroNoise

PUBLIC_IMAGES = "images are public in the analysis: nothing bounds what a release shows of a record's image"
ALL_LABELS = "the noise is sized for one query label, and a training record may change all of them"
PRIVATE: dict[str, tuple[str, ...]] = {}
"""The private arguments of each mechanism of the ledger; all others are public."""

A = TypeVar("A")
D = TypeVar("D")
F = TypeVar("F", bound=Callable[..., Any])


def mechanism(*private: str) -> Callable[[F], F]:
    """Turn a method of :class:`Charging` into a mechanism whose arguments are public unless named in `private`.

    The method charges, then returns what :meth:`Charging._ask` returns.
    """

    def decorate(method: F) -> F:
        signature = inspect.signature(method)
        if not private or set(private) - set(signature.parameters):
            raise TypeError(f"{method.__name__} needs private arguments among {list(signature.parameters)}")
        PRIVATE[method.__name__] = private

        @functools.wraps(method)
        def called(self: Charging, *args: Any, **options: Any) -> Any:
            if self._answering:  # called by a function inside another mechanism: both are one call
                return method(self, *args, **options)
            refuse_modes()
            try:
                bound = signature.bind(self, *args, **options)
            except TypeError as error:
                _, *own = (one.replace(annotation=one.empty) for one in signature.parameters.values())
                usage = inspect.Signature(own)  # as a call writes it, without types
                raise BenchError(f"ledger.{method.__name__}: {error}. Its arguments are {usage}.") from None
            bound.apply_defaults()
            _, *given = ((name, plain(value)) for name, value in bound.arguments.items())
            hidden = {name: value for name, value in given if name in private}
            shown = {name: value for name, value in given if name not in private}
            call = Call(method.__name__, self.unit, hidden, shown)
            self._call, self._charged_before = self._executor.begin(call), (len(self._events), len(self._spent))
            return method(self, **self._call.arguments)

        return cast("F", called)

    return decorate


def plain(value: Any) -> Any:
    """Return `value` as a plain number, text or array: other objects could show accountant and noise different values.

    Raises :class:`BenchError` on a subclass of torch's tensors and on arrays of objects. Other objects are returned as
    they are.
    """
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise BenchError(f"a mechanism takes plain tensors, not {type(value).__name__}.")
        return value
    if isinstance(value, Enum) or value is None:
        return value
    for kinds, kind in ((bool | np.bool_, bool), (int | np.integer, int), (float | np.floating, float), (str, str)):
        if isinstance(value, kinds):
            return kind(value)
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value] if isinstance(value, list) else tuple(map(plain, value))
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        raise BenchError("a mechanism takes arrays of numbers, not of objects. Give float64 or int64.")
    if isinstance(value, np.ndarray):  # a subclass, such as a memory map, becomes a plain array on the same memory
        return value if type(value) is np.ndarray else np.ndarray.view(value, np.ndarray)
    if hasattr(type(value), "__array__"):
        return plain(np.array(value))
    return float(value) if hasattr(type(value), "__float__") else value


def with_plain_fields(kind: type[D], value: D) -> D:
    """Return a new `kind` with the fields of `value`, each :func:`plain`; other attributes of `value` are lost."""
    names = [field.name for field in dataclasses.fields(kind) if field.init]  # type: ignore[arg-type]
    return kind(**{name: plain(getattr(value, name)) for name in names})


class Charging:
    """Charges for mechanisms, for one privacy unit and adjacency, and lets an executor answer them.

    Its public attributes are read-only: a method can neither change the noise nor remove an event.
    """

    def __init__(self, unit: PrivacyUnit, adjacency: Adjacency, executor: Executor) -> None:
        self._unit, self._adjacency, self._executor = unit, adjacency, executor
        self._events: list[Event] = []
        self._again = self._answering = False
        self._left: dict[Event, int] | None = None  # how often each event of the declared maximum may still run
        self._spent: list[Event] = []  # events spent from the declared maximum
        self._sampled_answers = 0
        self._call: Call | None = None
        self._charged_before = 0, 0  # numbers of events and of spent ones before the call

    @classmethod
    def from_events(cls, unit: PrivacyUnit, adjacency: Adjacency, events: Iterable[Event]) -> Self:
        """Return a ledger charged with a record's `events`; its answers have no noise."""
        ledger = cls(unit, adjacency, Noisy(ZeroNoise(exact=False)))
        ledger._events.extend(events)
        return ledger

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse copies: a copy's answers would have the noise of the ledger's next ones."""
        raise BenchError("a ledger cannot be copied or pickled: all answers must come from the one that charges.")

    @property
    def unit(self) -> PrivacyUnit:
        """The privacy unit."""
        return self._unit

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency."""
        return self._adjacency

    @property
    def events(self) -> tuple[Event, ...]:
        """Copies of all events so far, in order."""
        return tuple(map(copy.deepcopy, self._events))

    @property
    def bypasses(self) -> list[str]:
        """The reasons why private data was used outside any mechanism."""
        return [event.reason for event in self._events if isinstance(event, Bypass)]

    def bypass(self, reason: str) -> None:
        """Declare a use of private data outside any mechanism, which makes the proven epsilon infinite."""
        self._record(Bypass(reason))

    def at_most(self, events: Iterable[Event]) -> None:
        """Charge now for `events`, the maximum of later calls: each call spends its own from them, or is refused.

        For a method whose number of calls depends on answers, as with early stopping: summing what ran would itself
        depend on answers and not be a bound. A call's event must be one of `events` up to its count (queries, counts,
        steps; answers of query labels). Raises :class:`BenchError` on a second maximum, on events that protect too
        little, and on answers with a prior, whose cost depends on their rows.
        """
        declared = list(events)
        if self._left is not None:
            raise BenchError("a ledger has only one maximum: declare all that the method may spend in one call.")
        for event in declared:
            # Compare identities: a subclass, or its metaclass, could compare equal to anything.
            if not any(type(event) is kind for kind in EVENTS.values()):
                raise BenchError(
                    f"{type(event).__name__} is not an event of bench: a maximum may hold only what mechanisms charge."
                )
            self._check_protects(event)
            if isinstance(event, PriorRandomizedResponse):
                raise BenchError(f"what {event.kind} costs depends on its rows: leave it out of the maximum.")
        declared = [with_plain_fields(type(event), event) for event in declared]  # the caller keeps its own
        self._left = {}
        for event in declared:
            single, times = _runs_of(event)
            self._left[single] = self._left.get(single, 0) + times
        for event in declared:
            self._record(event)

    def record_level(self, delta: float) -> Accounted | None:
        """Return the epsilon for a training record, None unless the unit is a label.

        Responses to query labels all compose. What bounds the effect of a single query label, or of a record's own
        label, gives no finite epsilon for the record.
        """
        if self.unit is PrivacyUnit.LABEL:
            return proven([Bypass(PUBLIC_IMAGES)], delta)
        if self.unit is not PrivacyUnit.QUERY_LABEL:
            return None
        return proven([_for_record(event) for event in self._events], delta)

    @contextlib.contextmanager
    def charging_again(self) -> Iterator[None]:
        """Charge again for a stopped run's answers, which the caller has, and draw their noise without using it.

        Each call records its event, advances the noise as the stopped run did, and returns a value that depends only on
        public arguments. Raises :class:`BenchError` for votes, which the data-dependent accountants need, and for
        DP-SGD.
        """
        before, self._again = self._again, True
        try:
            yield
        finally:
            self._again = before

    def _record(self, event: Event, *, joined: bool = False) -> None:
        """Add `event`, or replace the last one, which it `joined`, and notify the executor."""
        self._events[len(self._events) - joined :] = [event]
        self._executor.charged(event, joined=joined)

    def _charge(self, event: Event) -> None:
        """Record `event` before any draw, so that no failure hides its cost; refuse an event with too weak protection.

        With a declared maximum, spend from it instead, and refuse to exceed it.
        """
        self._check_protects(event)
        if self._left is None:
            self._record(event)
            return
        single, times = _runs_of(event)
        left = self._left.get(single, 0)
        if times > left:
            raise BenchError(
                f"{event.describe()}: this exceeds the declared maximum, of which {left} such runs are left. "
                "Declare in at_most everything that later calls may spend, with the same settings."
            )
        self._left[single] = left - times
        self._spent.append(event)

    def _check_protects(self, event: Event) -> None:
        covering = {
            PrivacyUnit.LABEL: (PrivacyUnit.LABEL, PrivacyUnit.RECORD, PrivacyUnit.CLIENT),
            PrivacyUnit.RECORD: (PrivacyUnit.RECORD, PrivacyUnit.CLIENT),
        }.get(self.unit, (self.unit,))
        if self.adjacency is Adjacency.ADD_REMOVE:  # an absent record changes its client's value
            covering = (self.unit,)
        if event.unit not in covering or event.adjacency is not self.adjacency:
            raise BenchError(
                f"{event.kind} protects one {event.unit.value} under {event.adjacency.value}, but the method states "
                f"{self.unit.value} under {self.adjacency.value}. State what its mechanisms protect."
            )

    def _ask(self, release: Callable[[Noise], A]) -> A:
        """Return the executor's answer to the call in progress; ``release(noise)`` is the mechanism."""
        drawn = (lambda noise: release(DiscardedNoise(noise))) if self._again else release
        if self._answering:
            return self._executor.draw(drawn)
        call, self._call = self._call, None
        if call is None:
            raise AssertionError("only mechanisms of the ledger may request an answer")
        self._answering = True
        try:
            events, spent = self._charged_before
            charged = *self._events[events:], *self._spent[spent:]
            return self._executor.answer(dataclasses.replace(call, charged=charged), drawn)
        finally:
            self._answering = False

    def _or_zeros(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.zeros_like(values) if self._again else values

    def _refuse_again(self) -> None:
        if self._again:
            raise BenchError(
                "charging_again does not support votes, DP-SGD, samples or sums over steps: run these again."
            )


def _for_record(event: Event) -> Event:
    """Return `event`, which bounds the effect of one query label, as it bounds that of one training record."""
    if isinstance(event, LabelResponse):
        return event.for_record()
    return event if isinstance(event, Bypass) else Bypass(ALL_LABELS)


def _runs_of(event: Event) -> tuple[Event, int]:
    """Return `event` for one run, and its number of runs; each query label's answer is a run, as units differ."""
    labels = isinstance(event, LabelResponse) and event.unit is PrivacyUnit.QUERY_LABEL
    field = "answers" if labels else event.counted
    if not field:
        return event, 1
    return dataclasses.replace(event, **{field: 1}), getattr(event, field)  # type: ignore[arg-type]
