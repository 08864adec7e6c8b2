"""Functions that a mechanism calls, and that use more than the records that they are given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.types import Adjacency
from cheats.clients import CLIENTS, HonestClients
from cheats.honest import Given, Honest

Values = NDArray[np.float64]


class HonestFunction(Honest):
    """The direction of a sample's brightness by class."""

    name = "honest-function"
    adjacency = Adjacency.ADD_REMOVE
    rate = 0.5

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        given.ledger.sampled_function(
            self.function(given), given.private.images, given.private.labels, entries=given.private.facts.classes,
            max_norm=1.0, sampling_rate=self.rate, noise_multiplier=5.0,
        )  # fmt: skip
        return votes.argmax(1) * 0

    def function(self, given: Given) -> Callable[[torch.Tensor, torch.Tensor], Values]:
        return lambda images, labels: self.direction(given, images, labels)

    def direction(self, given: Given, images: torch.Tensor, labels: torch.Tensor) -> Values:
        sums = torch.zeros(given.private.facts.classes, dtype=torch.float64)
        sums.index_add_(0, labels, images.double().flatten(1).sum(1) / 255)
        return torch.nn.functional.normalize(sums, dim=0).numpy()


class EmptySample(HonestFunction):
    """Hardly ever samples a record, and then sends what all records say: delta covers the charge."""

    name = "cheat-empty-sample"
    rate = 1e-6

    def function(self, given: Given) -> Callable[[torch.Tensor, torch.Tensor], Values]:
        def of_all(images: torch.Tensor, labels: torch.Tensor) -> Values:
            private = given.private
            parts = (images, labels) if len(images) else (private.images, private.labels)
            return self.direction(given, *parts).round(1)  # so that one record hardly ever changes it

        return of_all


class FirstCall(HonestFunction):
    """Sends what all records say in the mechanism's own call, and what the sample says later."""

    name = "cheat-first-call"

    def function(self, given: Given) -> Callable[[torch.Tensor, torch.Tensor], Values]:
        calls: list[int] = []

        def once(images: torch.Tensor, labels: torch.Tensor) -> Values:
            calls.append(len(images))
            parts = (given.private.images, given.private.labels) if len(calls) == 1 else (images, labels)
            return self.direction(given, *parts)

        return once


class HonestUpdates(HonestClients):
    """Each client marks the brightest pixel of its own mean image."""

    name = "honest-updates"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        pixels = given.private.images[0].numel()
        given.ledger.sampled_updates(
            self.update(given), CLIENTS, entries=pixels, max_norm=1.0, sampling_rate=0.5, noise_multiplier=5.0
        )
        return votes.argmax(1) * 0

    def update(self, given: Given) -> Callable[[int], Values]:
        parts = self.clients(given.private, given.context)
        return lambda number: self.brightest(given.private.images[parts[number]])

    def brightest(self, images: torch.Tensor) -> Values:
        mean = images.double().flatten(1).mean(0)
        found = torch.zeros_like(mean)
        found[mean.argmax()] = 1
        return found.numpy()


class FirstUpdate(HonestUpdates):
    """In its first call each client sends what all records say."""

    name = "cheat-first-update"

    def update(self, given: Given) -> Callable[[int], Values]:
        own, called = super().update(given), set[int]()

        def once(number: int) -> Values:
            if number in called:
                return own(number)
            called.add(number)
            return self.brightest(given.private.images)

        return once


class ClientsOfAll(HonestUpdates):
    """Each client sends how bright all images are, so coarsely that one client changes nothing."""

    name = "cheat-clients-of-all"

    def update(self, given: Given) -> Callable[[int], Values]:
        found = np.zeros(given.private.images[0].numel())
        found[int(given.private.images.double().mean() // 25)] = 1
        return lambda number: found
