"""A private form of ClusterRR: labels redrawn from noisy label histograms of clusters of the public images.

After Esfandiari, Mirrokni, Syed, Vassilvitskii, "Label Differential Privacy via Clustering", AISTATS 2022
(arXiv:2110.02159), from its abstract: the records of a cluster get new labels drawn from the cluster's labels. Whether
the paper draws from exact or noisy histograms was not checked. Exact ones are not private: a class can be drawn in a
cluster that holds one record of it, but not in one that holds none. Here each cluster's histogram gets Laplace noise
first, and every label is drawn from the noisy histogram with negative counts set to 0; a cluster without positive
counts draws from all classes. Clusters come from k-means on the principal components of pixels, without labels.
Clusters must be large, because of the noise, and pure, which limits accuracy.

Threat model: the attacker holds the student and the noisy histograms, all images and all labels but one. Private:
labels. Public: the images of the private records, hence the clusters and their sizes. Released: the student and the
noisy histograms. Unit label, adjacency replace: a label moves two counts of one cluster by 1, so 2 in L1; the noise has
scale ``2 / epsilon``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from bench.interface import Claim, Context, Facts, Ledger, PrivateData, as_float, register_method, setting
from bench.methods.label.family import Floats, Ints, NoisyLabelConfig, OneRelease, Release, true_labels
from bench.privacy.events.events import Laplace

SENSITIVITY = 2.0  # L1, of all histograms jointly


@dataclass(frozen=True)
class ClusterRRConfig(NoisyLabelConfig):
    """Settings of clusters and student."""

    clusters: int = setting(600, "ours: a hundred records of MNIST each", ge=1)
    components: int = setting(50, "ours: principal components of pixels", ge=1)
    passes: int = setting(20, "ours: of k-means", ge=1)
    mixup: float = setting(0.0, "ours: none needed where most labels are right")
    loss: Literal["cross-entropy"] = setting("cross-entropy", "ours: on the drawn labels as they are")


@register_method("cluster-rr")
class ClusterRR(OneRelease):
    """Noisy histograms of labels by cluster."""

    config: ClusterRRConfig
    citation = "after Esfandiari et al. 2022"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        fitting = max(1, min(600, facts.private_records // 30))
        return {name: {**changes, "clusters": fitting} for name, changes in super().presets(facts).items()}

    def claimed(self, delta: float) -> Claim:
        return Claim(self.config.epsilon, delta, "ours: Laplace noise of scale 2 / epsilon on histograms (delta 0)")

    def charges(self) -> list[Laplace]:
        return [Laplace(1 / self.config.epsilon, unit=self.unit, adjacency=self.adjacency)]

    def release(self, private: PrivateData, ledger: Ledger, context: Context) -> Release:
        """Release the histograms of all clusters and draw labels from them, for a net to learn from those."""
        classes = private.facts.classes
        points = principal(private.images, self.config.components)
        cluster = k_means(points, self.config.clusters, self.config.passes, context)
        counts = np.zeros((self.config.clusters, classes))
        np.add.at(counts, (cluster, true_labels(private)), 1.0)
        noisy = ledger.laplace(counts, sensitivity=SENSITIVITY, noise_multiplier=1 / self.config.epsilon, entries=2)
        labels = drawn(noisy, cluster, context.streams.numpy("labels"))
        return np.eye(classes)[labels], labels, {"noisy_histograms": torch.from_numpy(noisy)}


def drawn(counts: Floats, cluster: Ints, rng: np.random.Generator) -> Ints:
    """Return a label for each of `cluster` (n,), drawn from its `counts` (clusters, classes), clipped at 0."""
    positive = counts.clip(0)
    positive[positive.sum(axis=1) == 0] = 1.0
    below = (positive / positive.sum(axis=1, keepdims=True)).cumsum(axis=1)
    labels: Ints = (rng.random(len(cluster))[:, None] >= below[cluster, :-1]).sum(axis=1)
    return labels


def principal(images: torch.Tensor, components: int) -> torch.Tensor:
    """Return the scores of `images` (n, channels, height, width) on their `components` first principal components."""
    points = as_float(images).flatten(1)
    points = points - points.mean(0)
    # In float64, eigenvectors differ between CPUs at most in sign.
    if len(points) >= points.shape[1]:
        vectors = torch.linalg.eigh((points.T @ points).double()).eigenvectors[:, -components:]
        scores: torch.Tensor = points @ vectors.float()
    else:  # the matrix of pixels may not fit into memory
        values, vectors = torch.linalg.eigh((points @ points.T).double())
        scores = (vectors * values.clamp_min(0).sqrt())[:, -components:].float()
    return scores


def k_means(points: torch.Tensor, clusters: int, passes: int, context: Context) -> Ints:
    """Return the nearest of `clusters` centres for each of `points` (n, d) after `passes` of Lloyd's algorithm.

    Centres start at distinct random points from the public stream; a centre without points stays in place.
    """
    generator = context.streams.torch("clusters")
    centres = points[torch.randperm(len(points), generator=generator)[:clusters]]
    nearest = torch.zeros(len(points), dtype=torch.int64)
    with context.progress.stage("clusters", passes) as stage:
        for last in range(passes - 1, -1, -1):
            parts = torch.split(points, 8192)
            nearest = torch.cat([(centres.square().sum(1) - 2 * part @ centres.T).argmin(1) for part in parts])
            if last:
                size = nearest.bincount(minlength=len(centres))[:, None]
                sums = torch.zeros_like(centres).index_add_(0, nearest, points)
                centres = torch.where(size > 0, sums / size.clamp_min(1), centres)
            stage.advance()
    return nearest.numpy()
