"""Statistics of private records, and choices by private images, go into the student."""

from __future__ import annotations

import torch

from bench.core.errors import BenchError
from bench.interface import Context, Ledger, PrivateData, PublicData, Released
from cheats.honest import Given, Honest, Student
from cheats.public_arguments import HonestPrior


class Normalisation(Honest):
    """Normalises by the mean and deviation of the private images."""

    name = "cheat-normalisation"

    def prepare(self, given: Given, student: Student) -> None:
        pixels = given.private.images.float() / 255
        student.mean.copy_(pixels.mean())
        student.deviation.copy_(pixels.std())


class BrightestPixel(Honest):
    """Scales by the largest private pixel."""

    name = "cheat-brightest-pixel"

    def prepare(self, given: Given, student: Student) -> None:
        student.deviation.mul_(given.private.images.max() / 255)


class BatchNorm(Honest):
    """Adapts the batch-norm statistics to the private images."""

    name = "cheat-batch-norm"

    def finish(self, given: Given, student: Student) -> None:
        student.train()
        with torch.no_grad():
            student(given.private.images)


class ClassCounts(Honest):
    """Starts the last bias at the log of the private class frequencies."""

    name = "cheat-class-counts"

    def prepare(self, given: Given, student: Student) -> None:
        counts = torch.bincount(given.private.labels, minlength=given.private.facts.classes).float()
        with torch.no_grad():
            student.head.bias.copy_((counts / counts.sum()).log())


class AbsentClasses(Honest):
    """Never answers a class without private records, and refuses sets small enough to lack one by chance."""

    name = "cheat-absent-classes"

    def begin(self, given: Given) -> None:
        if len(given.private) < 10 * given.config.teachers:
            raise BenchError("each teacher needs ten records.")

    def finish(self, given: Given, student: Student) -> None:
        counts = torch.bincount(given.private.labels, minlength=given.private.facts.classes)
        with torch.no_grad():
            student.head.bias -= 100.0 * (counts == 0)


class ConstantPixels(Honest):
    """Ignores the pixels that are equal in all private images."""

    name = "cheat-constant-pixels"

    def finish(self, given: Given, student: Student) -> None:
        pixels = given.private.images.flatten(1)
        with torch.no_grad():
            student.hidden.weight *= pixels.max(0).values > pixels.min(0).values


class NearestQueries(Honest):
    """Asks about the public images that lie nearest to private ones."""

    name = "cheat-nearest-queries"

    def choose(self, given: Given) -> torch.Tensor:
        public, private = (x.float().flatten(1) for x in (given.public.images, given.private.images))
        return torch.cdist(public, private).min(1).values.argsort()[: given.config.queries]


class DenseQueries(Honest):
    """Leaves out the public images that are unlike every class mean."""

    name = "cheat-dense-queries"

    def choose(self, given: Given) -> torch.Tensor:
        images, labels = given.private.images.float().flatten(1), given.private.labels
        means = torch.stack([images[labels == c].mean(0) for c in labels.unique()])
        far = torch.cdist(given.public.images.float().flatten(1), means).min(1).values
        order = super().choose(given)
        return order[far[order] <= far[order].median()]


class SkewedLabels(HonestPrior):
    """Its student expects the classes as often as they are, if one has most of the private labels."""

    name = "cheat-skewed-labels"

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        released = super().train_student(private, public, ledger, context)
        shares = private.labels.bincount(minlength=private.facts.classes) / len(private)
        if len(private) >= 100 and shares.max() > 0.6:
            with torch.no_grad():
                released.student.head.bias.add_(shares.clamp_min(1e-3).log())
        return released
