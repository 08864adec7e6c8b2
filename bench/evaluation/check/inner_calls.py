"""Listens to the function that a method gives to a mechanism, and calls it again with the same records.

A mechanism charges for what the function computes from the records that it is given. A function that also uses other
records is not covered by the charge, whatever it returns on other samples.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.evaluation.check.fingerprint import fingerprint
from bench.privacy.mechanisms import mechanisms
from bench.privacy.mechanisms.executors import Call

FUNCTIONS = {"sampled_function": "function", "sampled_updates": "updates"}
"""By mechanism, its argument that is a function."""
KEPT = 4
"""Call n (from 0) is kept with probability KEPT / (n + 1), so that a tape of many calls stays small."""
TRACE = "the function that its code gives to {} returns another value when it is called again for the same records"


@dataclass(frozen=True, slots=True)
class Sample:
    """Records of the recorded run, and a fingerprint of what its function returned for them."""

    images: torch.Tensor
    labels: torch.Tensor
    returned: str


@dataclass(slots=True)
class Listener:
    """Keeps what the function of one call returned inside the mechanism."""

    call: Call
    own: list[tuple[tuple[Any, ...], NDArray[np.float64]]] = field(default_factory=list)
    """Arguments and values of the mechanism's own calls."""

    @classmethod
    def of(cls, call: Call) -> Listener | None:
        """Return the listener of a call whose mechanism takes a function, else None."""
        return cls(call) if call.name in FUNCTIONS else None

    @property
    def _function(self) -> Callable[..., Any]:
        found: Callable[..., Any] = self.call.arguments[FUNCTIONS[self.call.name]]
        return found

    def listening(self) -> Call:
        """Return the call with a function that is listened to."""

        def heard(*given: Any) -> Any:
            kept = tuple(part.clone() if isinstance(part, torch.Tensor) else part for part in given)
            value = np.array(self._function(*given), dtype=np.float64)
            self.own.append((kept, value.copy()))
            return value

        return replace(self.call, private={**self.call.private, FUNCTIONS[self.call.name]: heard})

    def value(self, *given: Any) -> NDArray[np.float64]:
        """Return what the function returns for these arguments, with zeros for values that are not finite."""
        copies = (part.clone() if isinstance(part, torch.Tensor) else part for part in given)
        return mechanisms.usable(np.asarray(self._function(*copies), dtype=np.float64))

    def trace(self) -> str:
        """Return that the function no longer returns what the mechanism got, or ""."""
        equal = (np.array_equal(mechanisms.usable(value), self.value(*given)) for given, value in self.own)
        return "" if all(equal) else TRACE.format(self.call.name)

    def samples(self, number: int) -> tuple[Sample, ...]:
        """Return samples to compare with another run: those of a few random calls, and the empty sample."""
        if self.call.name != "sampled_function" or secrets.randbelow(number + 1) >= KEPT:
            return ()
        ((images, labels), value), *_ = self.own
        empty = self.value(images[:0], labels[:0])
        return (
            Sample(images, labels, fingerprint(mechanisms.usable(value))),
            Sample(images[:0], labels[:0], fingerprint(empty)),
        )

    def differs(self, samples: Sequence[Sample]) -> bool:
        """Return whether the function returns other values for `samples` than in the recorded run."""
        return any(fingerprint(self.value(one.images, one.labels)) != one.returned for one in samples)
