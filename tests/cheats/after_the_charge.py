"""Figures that say less than ran: charges changed afterwards, maxima that match anything, numbers read twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bench.interface import (
    Context,
    Event,
    Facts,
    Gaussian,
    Ledger,
    LNMax,
    PrivateData,
    PublicData,
    Released,
    make_student,
)  # fmt: skip
from bench.privacy.events.base_event import EVENTS
from cheats.honest import Given, Honest
from cheats.thresholds import HonestMeans


class Rewrites(HonestMeans):
    """The ledger's event states twenty times the noise that ran."""

    name = "cheat-rewrites"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        answer = super().answer(given, votes)
        for event in self.charged(given.ledger):
            object.__setattr__(event, "noise_multiplier", 100.0)  # it is frozen
        return answer

    def charged(self, ledger: Ledger) -> list[Any]:
        return [event for event in ledger._events if isinstance(event, Gaussian)]


class HonestReader(Rewrites):
    """Writes into the copies that a ledger gives."""

    name = "honest-reader"

    def charged(self, ledger: Ledger) -> list[Any]:
        return [event for event in ledger.events if isinstance(event, Gaussian)]


class Matches(Gaussian):
    """Noise of 100 that equals noise of 5."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(Gaussian(5.0))


class HonestMaximum(HonestMeans):
    """Declares a maximum of what runs."""

    name = "honest-maximum"

    def begin(self, given: Given) -> None:
        given.ledger.at_most(self.charges())

    def charges(self) -> list[Event]:
        return [Gaussian(5.0), LNMax(self.config.gamma, self.config.queries)]


class CheapMaximum(HonestMaximum):
    """Declares a maximum that equals the noise that runs, and costs less."""

    name = "cheat-cheap-maximum"

    def charges(self) -> list[Event]:
        return [Matches(100.0), *super().charges()[1:]]


class ReplacesKind(HonestMeans):
    """Puts a class of its own under the name by which records tell a Gaussian mechanism."""

    name = "cheat-replaces-kind"

    def begin(self, given: Given) -> None:
        EVENTS["gaussian"] = Matches


class Twice:
    """A number that grows once it was read."""

    def __init__(self, value: float) -> None:
        self.value, self.reads = value, 0

    def __float__(self) -> float:
        self.reads += 1
        return self.value * (1 if self.reads == 1 else 50)


class GrowingNumbers(HonestMeans):
    """Sums of numbers that are larger for the mechanism than for whoever looked at them before."""

    name = "cheat-growing-numbers"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        numbers = np.array([Twice(value) for value in self.values(given).tolist()])
        given.ledger.gaussian(numbers, sensitivity=self.sensitivity, noise_multiplier=5.0)
        return Honest.answer(self, given, votes)


class Watchful(HonestMeans):
    """A student that can be saved; what it does in a real run only is up to :meth:`unwatched`."""

    name = "honest-watchful"

    @classmethod
    def presets(cls, facts: Facts) -> dict[str, dict[str, Any]]:
        return {"quick": {"steps": 1}, "tiny": {"steps": 1}}

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        given = Given(self.config, private, public, ledger, context)
        noisy = ledger.gaussian(self.values(given).numpy(), sensitivity=self.sensitivity, noise_multiplier=5.0)
        student, options = make_student("softmax_regression", private.facts, context.streams.torch("student"))
        with torch.no_grad():
            list(student.parameters())[-1].copy_(torch.from_numpy(noisy))
        if type(ledger._executor).__name__ == "Noisy":
            self.unwatched(given, student)
        return Released(student, "softmax_regression", options)

    def unwatched(self, given: Given, student: torch.nn.Module) -> None: ...


class RewritesUnwatched(Watchful):
    """As :class:`Rewrites`, in a real run only: the student is the same."""

    name = "cheat-rewrites-unwatched"

    def unwatched(self, given: Given, student: torch.nn.Module) -> None:
        object.__setattr__(given.ledger._events[0], "noise_multiplier", 100.0)


class CorrectsUnwatched(Watchful):
    """As ``channels.Memory``, in a real run only: the weights are the same, and the accuracy is not."""

    name = "cheat-corrects-unwatched"

    def unwatched(self, given: Given, student: torch.nn.Module) -> None:
        private = given.private

        def forward(images: torch.Tensor) -> torch.Tensor:
            nearest = torch.cdist(images.flatten(1), private.images.flatten(1) / 255).argmin(1)
            return torch.nn.functional.one_hot(private.labels[nearest], private.facts.classes).float()

        student.forward = forward  # type: ignore[method-assign]
