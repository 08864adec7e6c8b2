"""Violations found in differential privacy libraries, rebuilt on sums of private images, with their repairs.

Cebere et al., "Privacy in Theory, Bugs in Practice", PETS 2026 (arXiv:2602.17454), find 13 in 12 libraries. The
docstrings name where a violation is described: a section of the paper, the tests and the harness of its repository
(ObliviousAI/dp-recorder, with ARTIFACT_APPENDIX.md), or an issue that its authors opened in the library's repository.
These sources describe 13 violations, all below; the paper's own table may count them otherwise.

Not here: the odometer of SmartNoise SQL (issue 621). It overstates the loss, by a wrong formula of an accountant, and
methods have no accountant of their own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bench.interface import Adjacency, Event, Gaussian, PrivateData, Released
from bench.methods.dpsgd.dp_sgd import DPSGD
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from cheats.honest import Given, Honest


class HonestSums(Honest):
    """Labels public images by the nearest of noisy sums of private images by class, each image clipped to norm 1."""

    name = "honest-sums"
    sensitivity = float(np.sqrt(2))  # a replaced image leaves one sum and enters another; pixels are not negative
    noise_multiplier = 5.0

    def votes(self, given: Given, images: Tensor) -> np.ndarray:
        classes = self.classes(given)
        rows = self.rows(given, given.private.images)
        of_class = one_hot(given.private.labels, given.private.facts.classes)[:, classes].double()
        noisy = given.ledger.gaussian(
            (of_class.T @ rows).numpy(), sensitivity=self.sensitivity, noise_multiplier=self.noise(given)
        )
        near = self.rows(given, images).numpy() @ (noisy / np.linalg.norm(noisy, axis=1, keepdims=True).clip(1e-9)).T
        return classes.numpy()[near.argmax(1)]

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        return votes

    def classes(self, given: Given) -> Tensor:
        return torch.arange(given.private.facts.classes)

    def rows(self, given: Given, images: Tensor) -> Tensor:
        return clipped(images.double().flatten(1) / 255)

    def noise(self, given: Given) -> float:
        return self.noise_multiplier


def clipped(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)


class UnclippedSums(HonestSums):
    """SmartNoise Synth (issue 622): clips the records, and takes the covariance of those not clipped.

    The repository's tests give dpmm's sensitivity issue the same form.
    """

    name = "cheat-unclipped-sums"

    def rows(self, given: Given, images: Tensor) -> Tensor:
        super().rows(given, images)
        return images.double().flatten(1) / 255


class HonestSquares(HonestSums):
    """Sums squares of values between two bounds, which a release for regression holds."""

    name = "honest-squares"
    low, high = -0.25, 0.75
    sensitivity = float(np.sqrt(2)) * max(abs(low), abs(high)) ** 2

    def rows(self, given: Given, images: Tensor) -> Tensor:
        values = images.double().flatten(1) / 255 + self.low
        return values**2 / np.sqrt(values.shape[1])


class LowerBoundTwice(HonestSquares):
    """Diffprivlib (issue 105): the sensitivity of a square in linear regression takes the lower bound for both."""

    name = "cheat-lower-bound-twice"
    sensitivity = float(np.sqrt(2)) * max(abs(HonestSquares.low), abs(HonestSquares.low)) ** 2


class OneChangedCell(HonestSums):
    """Private-PGM (harness of the repository): JAM's Gaussian is charged for 1 where a replaced record moves 1.41."""

    name = "cheat-one-changed-cell"
    sensitivity = 1.0


class ClassesOfData(HonestSums):
    """Diffprivlib (issue 106): logistic regression takes its classes from the private labels."""

    name = "cheat-classes-of-data"

    def classes(self, given: Given) -> Tensor:
        return given.private.labels.unique()


class HonestHistogram(HonestSums):
    """Counts the brightness of images, in 17 levels, by class."""

    name = "honest-histogram"

    def rows(self, given: Given, images: Tensor) -> Tensor:
        levels = self.levels(given)
        return one_hot(brightness(images).clamp_max(levels - 1), levels).double()

    def levels(self, given: Given) -> int:
        return 17


def brightness(images: Tensor) -> Tensor:
    return (images.double().flatten(1).mean(1) / 255 * 16).long()


class MaximumOfData(HonestHistogram):
    """dpmm (issue 18): the domain of a column ends at its largest private value."""

    name = "cheat-maximum-of-data"

    def levels(self, given: Given) -> int:
        return int(brightness(given.private.images).max()) + 1


class HonestAbsence(HonestSums):
    """A neighbour lacks one record; noise shrinks with the public number of records."""

    name = "honest-absence"
    adjacency = Adjacency.ADD_REMOVE
    sensitivity = 1.0

    def noise(self, given: Given) -> float:
        return 100 / self.records(given)

    def records(self, given: Given) -> int:
        return given.private.facts.private_records


class PrivateCount(HonestAbsence):
    """Synthcity (tests of the repository, first issue): the number of private records is used as if it were public."""

    name = "cheat-private-count"

    def records(self, given: Given) -> int:
        return len(given.private)


class AbsentClass(HonestAbsence):
    """:class:`ClassesOfData` where neighbours lack a record, as its issue has it."""

    name = "cheat-absent-class"

    def classes(self, given: Given) -> Tensor:
        return given.private.labels.unique()


class BatchOfData(DPSGD):
    """Opacus (section 4.3.7): the gradient is divided by a batch size that follows from the number of private records.

    Twin: DP-SGD, whose batch size and number of records are public.
    """

    name = "cheat-batch-of-data"

    def train_student(self, private: PrivateData, *args: Any) -> Released:
        self.held = len(private)
        return super().train_student(private, *args)

    def dp_sgd_run(self, *args: Any, **options: Any) -> DPSGDRun:
        run = super().dp_sgd_run(*args, **options)
        rate = run.expected_batch_size / run.records
        return dataclasses.replace(run, expected_batch_size=max(1, int(rate * self.held)))


class HonestParent(HonestSums):
    """Chooses a pixel by how many private images are bright there, and drops it where a noisy count is small."""

    name = "honest-parent"

    def begin(self, given: Given) -> None:
        counts = (given.private.images.flatten(1) > 127).sum(0).double().numpy()
        (chosen,) = given.ledger.exponential_mechanism(counts[None], sensitivity=1.0, epsilon=1.0)
        self.parent = int(chosen) if self.count(given, counts[chosen]) > len(counts) else -1

    def count(self, given: Given, count: float) -> float:
        return float(given.ledger.laplace(np.array([count]), sensitivity=1.0, noise_multiplier=1.0)[0])

    def extras(self, given: Given) -> dict[str, Tensor]:
        return {"parent": torch.tensor(self.parent)}


class WeakParent(HonestParent):
    """Synthcity (harness of the repository): PrivBayes drops a chosen parent whose exact private score is small."""

    name = "cheat-weak-parent"

    def count(self, given: Given, count: float) -> float:
        return count


class HonestGain(HonestSums):
    """Chooses the pixel where a model errs more than the public images do: each error moves by 1, the two apart."""

    name = "honest-gain"
    score_sensitivity = 2.0

    def begin(self, given: Given) -> None:
        bright = given.private.images.flatten(1) > 127
        public = given.public.images.double().flatten(1).mean(0) > 127
        model_errs, public_errs = bright.sum(0), (bright != public).sum(0)
        scores = (model_errs - public_errs).double().numpy()[None]
        given.ledger.exponential_mechanism(scores, sensitivity=self.score_sensitivity, epsilon=1.0)


class OneError(HonestGain):
    """Private-PGM (issue 65): JAM scores a difference of two private errors, and states the sensitivity of one."""

    name = "cheat-one-error"
    score_sensitivity = 1.0


class HonestContrast(HonestSums):
    """Standardises each image before it is clipped; an image without contrast counts as grey."""

    name = "honest-contrast"
    sensitivity = 2.0

    def rows(self, given: Given, images: Tensor) -> Tensor:
        flat = images.double().flatten(1)
        return clipped(self.finite((flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True)))

    def finite(self, rows: Tensor) -> Tensor:
        return rows.nan_to_num()


class NotANumber(HonestContrast):
    """Diffprivlib, dpmm, Opacus, SmartNoise Synth, Synthcity (section 4.3.9): NaN passes the clipping.

    Pixels are whole numbers here: NaN comes of an image without contrast.
    """

    name = "cheat-not-a-number"

    def finite(self, rows: Tensor) -> Tensor:
        return rows


class NoNoise(HonestSums):
    """Synthcity (section 4.3.3): PrivBayes scales its noise by features less parents, which may be as many."""

    name = "cheat-no-noise"
    features = parents = 3
    sensitivity = float(features - parents)


class HonestTwice(HonestSums):
    """Asks for its sums twice, and declares both."""

    name = "honest-twice"

    def charges(self) -> list[Event]:
        return [Gaussian(self.noise_multiplier)] * 2

    def begin(self, given: Given) -> None:
        given.ledger.at_most(self.charges())
        self.votes(given, given.public.images)


class PaidOnce(HonestTwice):
    """MOSTLY AI (artifact appendix, experiment 3): two queries spend the budget of one."""

    name = "cheat-paid-once"

    def charges(self) -> list[Event]:
        return super().charges()[:1]
