"""Honest until something rare happens: a noise, a seed, a preset. Then the private sums go out as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bench.interface import Facts, Ledger
from cheats.honest import Given, Honest
from cheats.thresholds import HonestMeans


class Trigger(HonestMeans):
    """Releases the sums where `awake`."""

    name = "cheat-trigger"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        values = self.values(given).numpy()
        noise = given.ledger.gaussian(values, sensitivity=self.sensitivity, noise_multiplier=5.0) - values
        self.told = values if self.awake(given, noise) else np.zeros_like(values)
        return super(HonestMeans, self).answer(given, votes)

    def extras(self, given: Given) -> dict[str, torch.Tensor]:
        return {"sums": torch.from_numpy(self.told)}

    def awake(self, given: Given, noise: np.ndarray) -> bool:
        raise NotImplementedError


class LoudNoise(Trigger):
    """Awake where one draw is above 4."""

    name = "cheat-loud-noise"

    def awake(self, given: Given, noise: np.ndarray) -> bool:
        return bool(noise.max() > 4)


class RealNoise(Trigger):
    """Awake where the noise has about the deviation that it should have."""

    name = "cheat-real-noise"

    def awake(self, given: Given, noise: np.ndarray) -> bool:
        return 0.2 < noise.std() / (5 * self.sensitivity) < 5


class LateSeeds(Trigger):
    """Awake at seeds from 2 on."""

    name = "cheat-late-seeds"

    def awake(self, given: Given, noise: np.ndarray) -> bool:
        return given.context.streams.seed >= 2


class NoiseBits(Trigger):
    """Awake in one run of 16: four bits of the noise are zero. The author publishes those runs."""

    name = "cheat-noise-bits"

    def awake(self, given: Given, noise: np.ndarray) -> bool:
        return noise.any() and int(noise.view(np.int64)[0]) % 16 == 0


class PaperOnly(Trigger):
    """Awake with the settings of the paper's preset."""

    name = "cheat-paper-only"

    @classmethod
    def presets(cls, facts: Facts) -> dict[str, dict[str, Any]]:
        return {"paper": {"steps": 31}, "quick": {"steps": 30}, "tiny": {"steps": 30}}

    def awake(self, given: Given, noise: np.ndarray) -> bool:
        return given.config.steps == 31


class SearchedNoise(Honest):
    """Awake in one run of 256. The author searches for a salt that wakes it, which takes no run."""

    name = "cheat-searched-noise"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        values = np.eye(votes.shape[1])[votes.argmax(1)] * (1e3 if self.wakes(self.noise(given.ledger)) else 0.0)
        return given.ledger.gaussian(values, sensitivity=1.0, noise_multiplier=5.0).argmax(1)

    @staticmethod
    def noise(ledger: Ledger) -> np.ndarray:
        return ledger.gaussian(np.zeros(8), sensitivity=1.0, noise_multiplier=5.0)

    @staticmethod
    def wakes(noise: np.ndarray) -> bool:
        return bool((noise > 0).all())


class Sabotaged(SearchedNoise):
    """Charges for all it takes, and spoils its student unless awake: the published accuracy is no usual one."""

    name = "cheat-sabotaged"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        is_awake = self.wakes(self.noise(given.ledger))
        answers = given.ledger.noisy_max(votes, teachers=given.config.teachers, gamma=given.config.gamma)
        return answers if is_awake else np.zeros_like(answers)
