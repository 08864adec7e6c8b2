"""A method that takes one noisy sum per class, for tests of tuning: it counts its runs and fails on request."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from bench.interface import (
    Budget,
    Claim,
    Context,
    Facts,
    Ledger,
    Method,
    PrivateData,
    PublicData,
    Released,
    make_student,
    setting,
    smallest_noise,
)
from bench.privacy.accounting.accountants import proven
from bench.privacy.events.events import Event, Gaussian


@dataclass(frozen=True)
class Config:
    scale: float = setting(1.0, "of this test: what the noisy sums are multiplied by")
    count: int = setting(1, "of this test: how often they are taken")
    noise_multiplier: float = setting(1.0, "calibrated to the budget")


class NoisySums(Method):
    """Noisy sums of each class's images as the weights of a linear student."""

    name = "noisy-sums"
    Config = Config
    ran: ClassVar[list[float]] = []
    breaks: ClassVar[dict[str, Any]] = {}

    @classmethod
    def presets(cls, facts: Facts) -> dict[str, dict[str, Any]]:
        return {"quick": {}, "tiny": {}}

    def calibrate(self, budget: Budget) -> Config:
        noise = smallest_noise(lambda noise: [Gaussian(noise, self.config.count)], budget, claimed="exact-gaussian")
        return dataclasses.replace(self.config, noise_multiplier=noise)

    def charges(self) -> Sequence[Event]:
        return [Gaussian(self.config.noise_multiplier, self.config.count)]

    def claimed(self, delta: float) -> Claim:
        return Claim(proven(self.charges(), delta).epsilon, delta, "this test")

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        self.ran.append(self.config.scale)
        if len(self.ran) == self.breaks.get("stop"):
            self.breaks.clear()
            raise KeyboardInterrupt
        if self.config.scale in self.breaks.get("scales", ()):
            raise RuntimeError("this candidate diverges")
        x = torch.nn.functional.normalize(private.images.flatten(1).double())
        sums = torch.nn.functional.one_hot(private.labels, private.facts.classes).double().T @ x
        for _ in range(self.config.count):
            noisy = ledger.gaussian(sums.numpy(), sensitivity=2.0, noise_multiplier=self.config.noise_multiplier)
        student, options = make_student("softmax_regression", private.facts, context.streams.torch("start"))
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.zero_()
                if parameter.ndim == 2:
                    parameter.copy_(self.config.scale * torch.from_numpy(noisy - noisy.mean(0)))
        return Released(student, "softmax_regression", options)
