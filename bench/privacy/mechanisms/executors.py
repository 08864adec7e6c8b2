"""Executors answer a ledger's mechanisms, with noise or otherwise, after the ledger has charged for them."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from bench.core.errors import BenchError
from bench.core.types import PrivacyUnit
from bench.privacy.dpsgd.dp_sgd import train
from bench.privacy.events.base_event import Event
from bench.privacy.events.batch_events import Training
from bench.privacy.mechanisms.noise import Noise

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a mechanism: all arguments by name, including defaults, and the events to charge."""

    name: str
    unit: PrivacyUnit  # the ledger's unit
    private: dict[str, Any]
    public: dict[str, Any]
    """Arguments that may depend on private data only through earlier answers."""
    charged: tuple[Event, ...] = ()

    @property
    def arguments(self) -> dict[str, Any]:
        """Private and public arguments."""
        return {**self.private, **self.public}


class Executor(abc.ABC):
    """Answers the calls of one ledger; `noise` is the source for what it computes itself."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise

    @property
    def exact(self) -> bool:
        """Whether the noise is exact; see :class:`bench.privacy.mechanisms.noise.Noise`."""
        return self._noise.exact

    def grid_step(self, std: float, sensitivity: float, moved: float) -> float:
        """Return :meth:`bench.privacy.mechanisms.noise.Noise.grid_step`; nothing is drawn."""
        return self._noise.grid_step(std, sensitivity, moved)

    def begin(self, call: Call) -> Call:
        """Return the call to charge for and to answer, by default `call` itself; runs before anything is charged."""
        return call

    def charged(self, event: Event, *, joined: bool) -> None:  # noqa: B027 (not every executor keeps charges)
        """Note that the ledger charges `event`, which replaces the last one if it has `joined` that."""

    @abc.abstractmethod
    def answer(self, call: Call, release: Callable[[Noise], A]) -> A:
        """Return the answer to `call`; ``release(noise)`` runs the mechanism itself."""

    def draw(self, release: Callable[[Noise], A]) -> A:
        """Return ``release(noise)``, including for releases outside any call."""
        return release(self._noise)

    def train(self, *given: Any, **options: Any) -> Training:
        """Run :func:`bench.privacy.dpsgd.dp_sgd.train` with these arguments, for a release of DP-SGD."""
        return train(*given, **options)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse copies, which would draw the same noise."""
        raise BenchError("what answers a ledger's calls cannot be copied or pickled.")


class Noisy(Executor):
    """Draws each answer with its noise: the executor of every real run."""

    def answer(self, call: Call, release: Callable[[Noise], A]) -> A:
        return self.draw(release)
