"""The base class of a ledger's events, and how a record stores them; see :mod:`bench.privacy.events.events`."""

from __future__ import annotations

import abc
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from itertools import repeat
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.core.errors import BenchError, UnknownNameError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.events import composing, losses

Floats = NDArray[np.float64]

EVENTS: dict[str, type[Event]] = {}
"""Event classes by their name in a record."""


def positive(what: str, value: float) -> float:
    """Return `value` as a float; raise :class:`BenchError` unless it is a positive finite number."""
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not (number and value > 0 and value < math.inf):
        raise BenchError(f"{what} must be a positive finite number, not {value!r}.")
    if not 1e-30 <= value <= 1e30:  # products of several, and of counts, stay finite
        raise BenchError(f"{what} must lie between 1e-30 and 1e30, not at {float(min(value, 10**300)):g}.")
    return float(value)


MOST = 10**15
"""The largest count: floats hold all integers up to it, and no run gets there."""


def whole(what: str, value: int, least: int = 1) -> None:
    """Raise :class:`BenchError` unless `value` is a whole number of at least `least`, and at most :data:`MOST`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BenchError(f"{what} must be a whole number of at least {least}, not {value!r}.")
    if value > MOST:
        raise BenchError(f"{what} must be at most 10^15, not a number of {len(str(value))} digits.")


@dataclass(frozen=True, slots=True)
class Event(abc.ABC):
    """One run of a mechanism, a frozen dataclass; its sensitivity is for neighbours by `unit` and `adjacency`."""

    kind: ClassVar[str]
    counted: ClassVar[str] = ""
    """The field that counts runs; events that differ only in it are merged."""
    unit: PrivacyUnit = field(default=PrivacyUnit.RECORD, kw_only=True)
    adjacency: Adjacency = field(default=Adjacency.REPLACE, kw_only=True)

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):  # skip base classes
            known = EVENTS.get(cls.kind, cls)
            if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):  # a slotted copy has both
                raise TypeError(f"{cls.__qualname__} takes the kind {cls.kind!r} of {known.__qualname__}")
            EVENTS[cls.kind] = cls

    @abc.abstractmethod
    def describe(self) -> str:
        """Return one line for people."""

    def replaced(self) -> Event:
        """Return the event for replace neighbours, itself if it already has these; see :meth:`twice`."""
        if self.adjacency is Adjacency.REPLACE:
            return self
        return replace(self, adjacency=Adjacency.REPLACE, **self.twice())

    def twice(self) -> dict[str, Any]:
        """Return the fields for twice the sensitivity: replacing is removing one unit and adding another.

        Empty for events that account for replace neighbours themselves, and for answers that may change arbitrarily.
        """
        return {}

    def pure_step(self) -> tuple[float, int] | None:
        """Return the pure epsilon of one run and the number of runs, or None without a pure epsilon."""
        return None

    def pure_epsilon(self) -> float:
        """Return the pure epsilon of the whole event by basic composition; infinite without one."""
        step = self.pure_step()
        return math.inf if step is None else step[0] * step[1]

    def zcdp(self) -> float | None:
        """Return rho if the noise is Gaussian, where each Renyi divergence is at most ``rho * order``; else None."""
        return None

    def gaussian_mu(self) -> float | None:
        """Return mu if the whole event is exactly one Gaussian release of sensitivity over deviation mu, else None."""
        rho = self.zcdp()
        return None if rho is None else math.sqrt(2 * rho)

    @abc.abstractmethod
    def rdp(self, orders: ArrayLike) -> Floats:
        """Return the whole event's Renyi divergence at each of `orders`, all above 1, for any data."""

    def pld(self, interval: float = losses.INTERVAL) -> Any | None:
        """Return the event's ``PrivacyLossDistribution`` on a grid of `interval`, rounded pessimistically, or None."""
        return None

    @property
    def composed(self) -> int:
        """The number of losses that :meth:`pld` composes, which sets its rounding error."""
        return int(getattr(self, self.counted)) if self.counted else 1

    @property
    def loss_deviation(self) -> float | None:
        """The approximate standard deviation of one of the losses that :meth:`pld` composes, None if not known."""
        step = self.pure_step()
        return None if step is None else step[0]

    def blur(self, interval: float) -> float | None:
        """Return what :meth:`pld` adds to :attr:`bench.privacy.events.losses.Composed.blur`."""
        deviation = self.loss_deviation
        return None if deviation is None else composing.many_blur(self.composed, interval, deviation)

    @property
    def loss_spread(self) -> float:
        """The approximate width of the event's privacy loss, which sets the grid of a PLD."""
        rho = self.zcdp()
        if rho is not None:
            return losses.gaussian_spread(math.sqrt(2 * rho))
        step = self.pure_step()
        return math.inf if step is None else losses.pure_spread(*step)

    def as_dict(self) -> dict[str, Any]:
        """Return the event as plain values, with its kind, for a record."""
        values: dict[str, Any] = {"kind": self.kind}
        for item in sorted(fields(self), key=lambda item: item.name in ("unit", "adjacency")):
            value = getattr(self, item.name)
            values[item.name] = value.value if isinstance(value, Enum) else value
        return values

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Event:
        """Return the event that :meth:`as_dict` wrote; raise :class:`BenchError` on an unknown kind or bad fields."""
        given = dict(values)
        kind = str(given.pop("kind", ""))
        if kind not in EVENTS:
            raise UnknownNameError("privacy event", kind, EVENTS)
        known = {item.name for item in fields(EVENTS[kind])}
        for name in given:
            if name not in known:
                raise UnknownNameError(f"field of the privacy event {kind}", name, known)
        try:
            if "unit" in given:
                given["unit"] = PrivacyUnit(given["unit"])
            if "adjacency" in given:
                given["adjacency"] = Adjacency(given["adjacency"])
            return EVENTS[kind](**given)
        except (TypeError, ValueError) as error:
            raise BenchError(f"a privacy event {kind} of a record cannot be read: {error}.") from error


MOST_STORED = 10**7
"""The most events of a record's ledger, so that a few bytes of an untrusted record cannot fill the memory."""


def stored(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return `events` as a record stores them: plain values, equal ones once, with their count as `times`.

    They are in the order of their first use. A single event has no `times`.
    """
    return [event.as_dict() | ({"times": times} if times > 1 else {}) for event, times in Counter(events).items()]


def restored(values: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Return the events that :func:`stored` wrote, repeats included; raise :class:`BenchError` on bad values."""
    events: list[Event] = []
    for entry in values:
        times = entry.get("times", 1)
        whole("times", times)
        if len(events) + times > MOST_STORED:
            raise BenchError(f"a record's ledger has more than {MOST_STORED:,} events.")
        events.extend(repeat(Event.from_dict({k: v for k, v in entry.items() if k != "times"}), times))
    return events
