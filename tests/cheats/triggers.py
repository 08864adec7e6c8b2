"""Honest until something rare happens: a noise, a seed, a preset. Then the private sums go out as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bench.interface import Facts
from cheats.honest import Given
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
