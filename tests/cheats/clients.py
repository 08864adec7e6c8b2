"""Sums over clients with several records, of which a changed record shows less than a changed client."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from bench.interface import Context, PrivacyUnit, PrivateData
from cheats.honest import Given, Honest

CLIENTS = 25


class HonestClients(Honest):
    """The sum of the clients' mean images as unit vectors; another client moves it by at most 2."""

    name = "honest-clients"
    unit = PrivacyUnit.CLIENT
    sensitivity = 2.0

    def clients(self, private: PrivateData, context: Context) -> list[NDArray[np.int64]]:
        return [np.arange(first, len(private), CLIENTS) for first in range(CLIENTS)]

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        images = given.private.images.double().flatten(1) / 255
        vectors = [self.vector(images[part]) for part in self.clients(given.private, given.context)]
        given.ledger.gaussian(torch.stack(vectors).sum(0).numpy(), sensitivity=self.sensitivity, noise_multiplier=5.0)
        return votes.argmax(1) * 0

    def vector(self, images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(images.mean(0), dim=0)


class RecordsAsClients(HonestClients):
    """Bounds each record's vector, and charges a client for one."""

    name = "cheat-records-as-clients"

    def vector(self, images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(images).sum(0)


class SharedRecords(HonestClients):
    """Each client also has the records of the next."""

    name = "cheat-shared-records"

    def clients(self, private: PrivateData, context: Context) -> list[NDArray[np.int64]]:
        parts = super().clients(private, context)
        return [
            np.concatenate([part, following]) for part, following in zip(parts, [*parts[1:], parts[0]], strict=True)
        ]


class BrightnessDecides(HonestClients):
    """A record belongs to the client of its rank in brightness, so another image moves many records."""

    name = "cheat-brightness-decides"

    def clients(self, private: PrivateData, context: Context) -> list[NDArray[np.int64]]:
        order = private.images.double().flatten(1).mean(1).argsort().numpy()
        return [order[first::CLIENTS] for first in range(CLIENTS)]


class NoClients(HonestClients):
    """Does not say which records a client has."""

    name = "cheat-no-clients"
    clients = Honest.clients  # type: ignore[assignment]

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        given.ledger.gaussian(np.zeros(3), sensitivity=1.0, noise_multiplier=5.0)
        return votes.argmax(1) * 0


class LabelCounts(HonestClients):
    """Counts labels, of which a client has many, and charges for one record's."""

    name = "cheat-label-counts"
    sensitivity = float(np.sqrt(2))

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        counts = given.private.labels.bincount(minlength=given.private.facts.classes)
        given.ledger.gaussian(counts.double().numpy(), sensitivity=self.sensitivity, noise_multiplier=5.0)
        return votes.argmax(1) * 0


class ClassesOfClients(HonestClients):
    """A unit vector for each class that a client has, charged for one."""

    name = "cheat-classes-of-clients"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        labels, images = given.private.labels, given.private.images.double().flatten(1) / 255
        total = torch.zeros(given.private.facts.classes, images.shape[1], dtype=torch.float64)
        for part in self.clients(given.private, given.context):
            for label in labels[part].unique().tolist():
                total[label] += self.vector(images[part][labels[part] == label])
        given.ledger.gaussian(total.flatten().numpy(), sensitivity=self.sensitivity, noise_multiplier=5.0)
        return votes.argmax(1) * 0


class HonestClassesOfClients(ClassesOfClients):
    """Charged for ten unit vectors before and ten after."""

    name = "honest-classes-of-clients"
    sensitivity = 2 * float(np.sqrt(10))
