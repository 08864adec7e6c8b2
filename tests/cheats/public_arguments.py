"""Private data where mechanisms take public arguments, and the same methods with public ones."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch

from bench.interface import Context, Ledger, PrivacyUnit, PrivateData, PublicData, Released
from cheats.honest import Given, Honest
from cheats.thresholds import HonestMeans


class NoiseScale(HonestMeans):
    """The private sums are the stated sensitivities of zeros: the scale of the noise tells them."""

    name = "cheat-noise-scale"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        for value in self.values(given).tolist():
            given.ledger.gaussian(np.zeros(100), sensitivity=1e-9 + value, noise_multiplier=50.0)
        return Honest.answer(self, given, votes)


class HonestPrior(Honest):
    """Randomised response to the labels of all private records, in view of a uniform prior; their images are public."""

    name = "honest-prior"
    unit = PrivacyUnit.LABEL

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        given = Given(self.config, private, public, ledger, context)
        labels = private.labels.numpy()
        told = ledger.prior_randomized_response(
            labels, self.prior(given, labels), rows=np.arange(len(labels)), epsilon=1.0
        )
        return Released(self.trained(given, private.images, torch.from_numpy(told)), "none", {})

    def prior(self, given: Given, labels: np.ndarray) -> np.ndarray:
        return np.full((len(labels), given.private.facts.classes), 1 / given.private.facts.classes)


class OneHotPrior(HonestPrior):
    """The prior is one at the true label."""

    name = "cheat-one-hot-prior"

    def prior(self, given: Given, labels: np.ndarray) -> np.ndarray:
        return np.eye(given.private.facts.classes)[labels]


class HonestQueries(Honest):
    """Randomised response to a private teacher's labels of public images, in view of a uniform prior."""

    name = "honest-queries"
    unit = PrivacyUnit.QUERY_LABEL
    adjacency: ClassVar[Any] = HonestPrior.adjacency

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        labels = votes.argmax(1)
        return given.ledger.prior_randomized_response(
            labels, self.prior(given, votes), rows=np.arange(len(labels)), epsilon=1.0
        )

    def prior(self, given: Given, votes: np.ndarray) -> np.ndarray:
        return np.full(votes.shape, 1 / votes.shape[1])


class SecondTeacher(HonestQueries):
    """The prior is that of other private teachers."""

    name = "cheat-second-teacher"

    def prior(self, given: Given, votes: np.ndarray) -> np.ndarray:
        return votes / votes.sum(1, keepdims=True)


class HonestSums(Honest):
    """Noisy sums by class of images that are centred and scaled to norm 1: one record moves them by at most 2."""

    name = "honest-sums"
    sensitivity: ClassVar[float] = 2.0

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        rows = given.private.images.flatten(1).double()
        rows = torch.nn.functional.normalize(rows - rows.mean(1, keepdim=True), dim=1)
        ones = torch.nn.functional.one_hot(given.private.labels, given.private.facts.classes).double()
        given.ledger.gaussian((ones.T @ rows).numpy(), sensitivity=self.sensitivity, noise_multiplier=50.0)
        return Honest.answer(self, given, votes)


class SumsOfOtherLabels(HonestSums):
    """States the sensitivity for a changed label, sqrt(2); an inverted image under the same label moves the sums by 2."""

    name = "cheat-sums-of-other-labels"
    sensitivity: ClassVar[float] = 2**0.5
