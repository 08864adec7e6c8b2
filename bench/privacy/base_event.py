"""The base class of all events of a ledger, and how a record stores them; see :mod:`bench.privacy.events`."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.core.errors import BenchError, UnknownNameError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy import losses

Floats = NDArray[np.float64]

EVENTS: dict[str, type[Event]] = {}
"""Every kind of event by its name in a record."""


def positive(what: str, value: float) -> float:
    """Return `value` as a float; raise :class:`BenchError` where it is not a positive finite number."""
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and value > 0):
        raise BenchError(f"{what} must be a positive finite number, not {value!r}.")
    return float(value)


def whole(what: str, value: int, least: int = 1) -> None:
    """Raise :class:`BenchError` where `value` is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BenchError(f"{what} must be a whole number of at least {least}, not {value!r}.")


class Event(abc.ABC):
    """One run of a mechanism. Subclasses are frozen dataclasses.

    `unit` and `adjacency` say for which neighbours the sensitivity in the subclass's docstring holds.
    """

    __slots__ = ()
    kind: ClassVar[str]
    counted: ClassVar[str] = ""
    """The field that counts runs; events that differ in nothing else are one event with the sum."""
    unit: PrivacyUnit
    adjacency: Adjacency

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):  # not the bases that several kinds share
            EVENTS[cls.kind] = cls

    @abc.abstractmethod
    def describe(self) -> str:
        """Return one line for people."""

    def pure_step(self) -> tuple[float, int] | None:
        """Return the pure epsilon of one run and the number of runs, or None where no run has one."""
        return None

    def pure_epsilon(self) -> float:
        """Return the pure epsilon of the whole event by basic composition; infinite where there is none."""
        step = self.pure_step()
        return math.inf if step is None else step[0] * step[1]

    def zcdp(self) -> float | None:
        """Return the rho for which every Renyi divergence is at most ``rho * order``, where the noise is Gaussian."""
        return None

    def gaussian_mu(self) -> float | None:
        """Return mu where the whole event is exactly one Gaussian release of sensitivity over deviation mu."""
        return None

    @abc.abstractmethod
    def rdp(self, orders: ArrayLike) -> Floats:
        """Return the Renyi divergence of the whole event at each of `orders`, all above 1, whatever the data."""

    def pld(self, interval: float = losses.INTERVAL) -> Any | None:
        """Return the event's ``PrivacyLossDistribution`` on a grid of `interval`, rounded pessimistically.

        None where the event has none.
        """
        return None

    @property
    def loss_spread(self) -> float:
        """How wide, about, the event's privacy loss is spread: it sets the grid of a PLD."""
        rho = self.zcdp()
        if rho is not None:
            return losses.gaussian_spread(math.sqrt(2 * rho))
        step = self.pure_step()
        return math.inf if step is None else losses.pure_spread(*step)

    def as_dict(self) -> dict[str, Any]:
        """Return the event as plain values, with its kind: what a record keeps."""
        values: dict[str, Any] = {"kind": self.kind}
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            values[item.name] = value.value if isinstance(value, Enum) else value
        return values

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Event:
        """Return the event that :meth:`as_dict` wrote.

        Raises:
            BenchError: Where the kind or a field is unknown, a field is missing, or a value is out of its range.

        """
        given = dict(values)
        kind = str(given.pop("kind", ""))
        if kind not in EVENTS:
            raise UnknownNameError("privacy event", kind, EVENTS)
        known = {item.name for item in fields(EVENTS[kind])}  # type: ignore[arg-type]
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
