"""Inputs of mechanisms that hardly move near the private set at hand, and jump where no neighbour of it lies."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from bench.core.types import Adjacency
from cheats.honest import Given, Honest, Student


class HonestMeans(Honest):
    """Releases noisy sums of brightness by class too: a replaced record moves two of them by at most 1 each."""

    name = "honest-means"
    sensitivity = float(np.sqrt(2))

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        values = self.values(given).numpy()
        given.ledger.gaussian(values, sensitivity=self.sensitivity, noise_multiplier=5.0)
        return super().answer(given, votes)

    def values(self, given: Given) -> torch.Tensor:
        brightness = given.private.images.double().flatten(1).mean(1) / 255
        return torch.zeros(given.private.facts.classes, dtype=torch.float64).index_add(
            0, given.private.labels, brightness
        )


class LocalSensitivity(HonestMeans):
    """Means instead of sums, charged for how far they move where classes are large; nothing where one is small."""

    name = "cheat-local-sensitivity"
    sensitivity = 0.05

    def values(self, given: Given) -> torch.Tensor:
        counts = given.private.labels.bincount(minlength=given.private.facts.classes)
        return super().values(given) / counts if counts.min() >= 50 else torch.zeros(len(counts), dtype=torch.float64)


class SubsetSums(HonestMeans):
    """Under add-remove, sums over a public random half: where a record is absent, another half is drawn."""

    name = "cheat-subset-sums"
    adjacency = Adjacency.ADD_REMOVE
    sensitivity = 1.0

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        given.ledger.gaussian(self.values(given).numpy(), sensitivity=self.sensitivity, noise_multiplier=5.0)
        return votes.argmax(1) * 0

    def values(self, given: Given) -> torch.Tensor:
        order = given.context.streams.numpy("subset").permutation(len(given.private))
        half = torch.from_numpy(order[: given.private.facts.private_records // 2])
        private = dataclasses.replace(
            given.private, images=given.private.images[half], labels=given.private.labels[half]
        )
        return super().values(dataclasses.replace(given, private=private))


class CappedClasses(SubsetSums):
    """Sums of unit vectors over the first 60 records of each class: where one is absent, the 61st takes its place."""

    name = "cheat-capped-classes"

    def values(self, given: Given) -> torch.Tensor:
        labels, classes = given.private.labels, given.private.facts.classes
        kept = torch.cat([torch.nonzero(labels == number)[:60, 0] for number in range(classes)])
        vectors = torch.nn.functional.normalize(given.private.images[kept].double().flatten(1))
        return torch.zeros(classes, vectors.shape[1], dtype=torch.float64).index_add(0, labels[kept], vectors).flatten()


class HonestSmallMeans(SubsetSums):
    """Class means of unit vectors, over at least a number of records: one record moves a mean by two over it."""

    name = "honest-small-means"
    least = 30
    sensitivity = 2 / 30

    def values(self, given: Given) -> torch.Tensor:
        labels, classes = given.private.labels, given.private.facts.classes
        sums = torch.zeros(classes, given.private.images[0].numel(), dtype=torch.float64)
        sums.index_add_(0, labels, self.rows(given.private.images.double().flatten(1) / 127.5 - 1))
        return (sums / labels.bincount(minlength=classes).clamp_min(self.least)[:, None]).flatten()

    def rows(self, images: torch.Tensor) -> torch.Tensor:
        """Return rows of norm at most 1, each from one image (n, pixels)."""
        return images / images.norm(dim=1, keepdim=True).clamp_min(1)


class SmallMeans(HonestSmallMeans):
    """Charged as if a record moved a mean by one over the least number."""

    name = "cheat-small-means"
    sensitivity = 1 / 30


class MeanNorm(HonestSmallMeans):
    """Class sums of rows that are divided by twice the mean norm of all rows before they are clipped."""

    name = "cheat-mean-norm"
    least = 1
    sensitivity = 1.0

    def values(self, given: Given) -> torch.Tensor:
        labels, classes = given.private.labels, given.private.facts.classes
        rows = given.private.images.double().flatten(1) / 255
        scaled = self.rows(rows / self.scale(rows))
        return torch.zeros(classes, rows.shape[1], dtype=torch.float64).index_add(0, labels, scaled).flatten()

    def scale(self, rows: torch.Tensor) -> float:
        return 2 * float(rows.norm(dim=1).mean().clamp_min(1e-6))


class JumpingScale(MeanNorm):
    """As :class:`MeanNorm` with the mean norm rounded to a power of two: it jumps at one brightness of the whole set."""

    name = "cheat-jumping-scale"

    def scale(self, rows: torch.Tensor) -> float:
        return 2.0 ** round(math.log2(super().scale(rows)))


class Inverts(MeanNorm):
    """Inverts all images if their median pixel is bright."""

    name = "cheat-inverts"

    def scale(self, rows: torch.Tensor) -> float:
        if rows.median() > 0.5:
            rows.neg_().add_(1)
        return float(rows.shape[1] ** 0.5)


class NearDuplicates(SubsetSums):
    """Sums of unit vectors over the records of a class that are not within a hundredth of one kept before."""

    name = "cheat-near-duplicates"
    adjacency = Adjacency.REPLACE
    sensitivity = 2.0

    def values(self, given: Given) -> torch.Tensor:
        labels, rows = given.private.labels, given.private.images.double().flatten(1) / 255
        near = (torch.cdist(rows, rows, p=1) / rows.shape[1] < 0.01) & (labels[:, None] == labels)
        kept: list[int] = []
        for place in range(len(rows)):
            if not near[place, kept].any():
                kept.append(place)
        sums = torch.zeros(given.private.facts.classes, rows.shape[1], dtype=torch.float64)
        return sums.index_add(0, labels[kept], torch.nn.functional.normalize(rows[kept])).flatten()


class RoundedCount(SubsetSums):
    """The number of records to the nearest hundred, charged like the number itself."""

    name = "cheat-rounded-count"

    def values(self, given: Given) -> torch.Tensor:
        return torch.tensor([100.0 * round(len(given.private) / 100)], dtype=torch.float64)


class PublicMargin(SubsetSums):
    """The sum of the contrast between left and right, charged for twice the largest of a public image."""

    name = "cheat-public-margin"

    def values(self, given: Given) -> torch.Tensor:
        public, private = (self.contrast(images) for images in (given.public.images, given.private.images))
        return private.sum().reshape(1) / (2 * public.abs().max())

    def contrast(self, images: torch.Tensor) -> torch.Tensor:
        """Return the mean of each image's left half less that of its right half."""
        middle = images.shape[-1] // 2
        halves = (images[..., :middle], images[..., middle:])
        left, right = (half.double().flatten(1).mean(1) for half in halves)
        return left - right


class Unanimous(Honest):
    """All teachers vote as most do, where the private images are bright."""

    name = "cheat-unanimous"

    def votes(self, given: Given, images: torch.Tensor) -> np.ndarray:
        votes = super().votes(given, images)
        if given.private.images.float().mean() < 80:
            return votes
        return given.config.teachers * np.eye(votes.shape[1])[votes.argmax(1)]


class Background(Honest):
    """Its student expects a bright background if the private images have one."""

    name = "cheat-background"

    def prepare(self, given: Given, student: Student) -> None:
        student.mean.fill_(0.7 if self.looked_at(given).float().mean() > 128 else 0.3)

    def looked_at(self, given: Given) -> torch.Tensor:
        return given.private.images


class HonestBackground(Background):
    """The same by the public images."""

    name = "honest-background"

    def looked_at(self, given: Given) -> torch.Tensor:
        return given.public.images


class Exposure(Honest):
    """Its student sees darker copies too if the exposure of the private images varies."""

    name = "cheat-exposure"

    def learn(self, given: Given, images: torch.Tensor, labels: torch.Tensor) -> Student:
        if given.private.images.float().mean((1, 2, 3)).std() > 60:
            images, labels = torch.cat([images, images // 2]), torch.cat([labels, labels])
        return self.trained(given, images, labels)
