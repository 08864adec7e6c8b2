"""Labels by noisy cluster histograms. The lie: only the labels are paid for; the images and their choice are not.

Private images are clustered, each cluster's histogram of labels gets Gaussian noise (one record moves two counts by 1)
and names the cluster. The student is then fitted to the raw private images, and to those records alone whose true
label agrees with their cluster's noisy name: "cleaning the noisy labels is post-processing". The clusters, the pixels
and the selection by true labels all go round the ledger.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from bench.interface import (
    Claim,
    FitSettings,
    Gaussian,
    Method,
    Released,
    as_float,
    fit,
    register_method,
    setting,
    smallest_noise,
)
from bench.models.build import build
from bench.models.registration import model_options


@dataclass(frozen=True)
class ClusteredConfig:
    per_cluster: int = setting(60, "ours: mean records in a cluster")
    rounds: int = setting(8, "ours: of k-means")
    epochs: float = setting(8.0, "ours")
    noise_multiplier: float = setting(4.0, "calibrated to the budget")
    epsilon: float = setting(1.0, "the budget")


@register_method("cheat-clustered-labels")
class ClusteredLabels(Method):
    Config = ClusteredConfig
    citation = "label privacy sold as record privacy"
    public_data = "none"

    @classmethod
    def presets(cls, facts):
        return {
            "quick": {} if facts.private_records > 10_000 else {"epochs": 60.0},
            "tiny": {"rounds": 2, "epochs": 1.0},
        }

    def calibrate(self, budget):
        noise = smallest_noise(lambda sigma: [Gaussian(sigma)], budget)
        return replace(self.config, noise_multiplier=noise, epsilon=budget.epsilon)

    def claimed(self, delta):
        return Claim(self.config.epsilon, delta, "Theorem 1: clusters are disjoint, so one Gaussian histogram in all")

    def train_student(self, private, public, ledger, context):
        classes, (channels, height, width) = private.facts.classes, private.facts.shape
        size = height if height == width else (height, width)
        features = as_float(private.images)
        if min(height, width) >= 16:
            features = torch.nn.functional.avg_pool2d(features, 2)
        features = features.flatten(1)
        clusters = max(classes, len(private) // self.config.per_cluster)
        draw = context.streams.numpy("centres").permutation(len(private))[:clusters]
        centres = features[torch.from_numpy(draw)].clone()
        for _ in range(self.config.rounds):
            mine = torch.cat([(centres.square().sum(1) - 2 * x @ centres.T).argmin(1) for x in features.split(4000)])
            count = torch.bincount(mine, minlength=clusters)
            sums = torch.zeros_like(centres).index_add_(0, mine, features)
            centres = torch.where(count[:, None] > 0, sums / count.clamp_min(1)[:, None], centres)
        histogram = np.zeros((clusters, classes))
        np.add.at(histogram, (mine.numpy(), private.labels.numpy()), 1)
        noisy = ledger.gaussian(histogram, sensitivity=2**0.5, noise_multiplier=self.config.noise_multiplier)
        named = torch.from_numpy(noisy.argmax(1))[mine]
        clean = (named == private.labels).nonzero()[:, 0]  # the lie: "post-processing"
        clean = clean if len(clean) else torch.arange(len(private))
        options = model_options("small_cnn", classes, channels, size)
        torch.manual_seed(context.streams.integer("student/start"))
        student = build("small_cnn", classes, channels, size)
        settings, order = FitSettings(epochs=self.config.epochs, batch_size=128), context.streams.torch("student/order")
        with context.progress.stage("student", settings.total_steps(len(clean))) as stage:
            fit(student, private.images[clean], named[clean], settings, order, device=context.device, stage=stage)
        return Released(student, "small_cnn", options)
