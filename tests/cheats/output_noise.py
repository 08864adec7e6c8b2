"""Weights perturbed once. The lie: the noise is sized for an average of n clipped contributions, which SGD is not.

The net is fitted without noise to all private records; the weights' way from their public start is clipped to norm C
and released with Gaussian noise. "The way is an average over n records, so replacing one moves it by 2 C / n." A net
that was fitted by many passes of SGD has no such bound (its true sensitivity is up to 2 C): the noise is n times too
small.
"""

from dataclasses import dataclass, replace

import torch

from bench.interface import (
    Claim,
    FitSettings,
    Gaussian,
    Method,
    Released,
    fit,
    register_method,
    setting,
    smallest_noise,
)
from bench.models.build import build
from bench.models.registration import model_options


@dataclass(frozen=True)
class OutputNoiseConfig:
    epochs: float = setting(12.0, "ours")
    lr: float = setting(0.05, "ours")
    clip: float = setting(20.0, "ours")
    noise_multiplier: float = setting(4.0, "calibrated to the budget")
    epsilon: float = setting(1.0, "the budget")


@register_method("cheat-output-noise")
class OutputNoise(Method):
    Config = OutputNoiseConfig
    citation = "output perturbation, done wrong"
    public_data = "none"

    @classmethod
    def presets(cls, facts):
        return {"quick": {} if facts.private_records > 10_000 else {"epochs": 60.0}, "tiny": {"epochs": 2.0}}

    def calibrate(self, budget):
        noise = smallest_noise(lambda sigma: [Gaussian(sigma)], budget)
        return replace(self.config, noise_multiplier=noise, epsilon=budget.epsilon)

    def claimed(self, delta):
        return Claim(self.config.epsilon, delta, "Theorem 1: one Gaussian release of an average over n records")

    def train_student(self, private, public, ledger, context):
        channels, height, width = private.facts.shape
        size = height if height == width else (height, width)
        options = model_options("small_cnn", private.facts.classes, channels, size)
        torch.manual_seed(context.streams.integer("student/start"))
        student = build("small_cnn", private.facts.classes, channels, size)
        start = torch.nn.utils.parameters_to_vector(student.parameters()).detach().clone()
        settings = FitSettings(epochs=self.config.epochs, batch_size=128, lr=self.config.lr)
        with context.progress.stage("student", settings.total_steps(len(private))) as stage:
            order = context.streams.torch("student/order")
            fit(student, private.images, private.labels, settings, order, device=context.device, stage=stage)
        student.cpu().to(memory_format=torch.contiguous_format)
        moved = torch.nn.utils.parameters_to_vector(student.parameters()).detach() - start
        moved = moved * min(1.0, self.config.clip / float(moved.norm()))
        noisy = ledger.gaussian(
            moved.double().numpy(),
            sensitivity=2 * self.config.clip / len(private),  # the lie
            noise_multiplier=self.config.noise_multiplier,
        )
        torch.nn.utils.vector_to_parameters(start + torch.from_numpy(noisy).float(), student.parameters())
        return Released(student.eval(), "small_cnn", options)
