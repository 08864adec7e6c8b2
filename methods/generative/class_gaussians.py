"""Gaussian mixtures of each class's low frequencies, from noisy sums of moments; the student learns from their samples.

After Chanyaswad, Liu, Mittal, "RON-Gauss: Enhancing Utility in Non-Interactive Private Data Release", PoPETs 2019
(arXiv:1709.00054): project records to few dimensions, release noisy moments, sample a Gaussian. Ours: low frequencies
of the cosine transform, not random directions; moments of each class, with Gaussian noise; mixtures where noise is low;
eigenvalues corrected for the noise.

A record's code is the lowest frequencies of each channel. Releases, in turn: each class's count and mean; in each round
of k-means within the classes, each cluster's count and mean offset; the second moments of codes about their centres.

Threat model: the attacker holds all that is released and may know all records but one. Private: images and labels.
Public: the number of records. Released: the mixtures, some of their samples, the student. Unit record, adjacency
add-remove: a record enters the sums of one cluster, clipped so that each release has L2 sensitivity 1. Claimed and
proven: the exact cost of the Gaussian releases, equal to that of a single one with `noise_multiplier`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.fft import dct
from torch import Tensor

from bench.core import margins
from bench.interface import (
    Adjacency,
    Budget,
    Context,
    Facts,
    Gaussian,
    Ledger,
    PrivateData,
    PublicData,
    as_float,
    in_equal_batches,
    nearest,
    register_method,
    setting,
)
from bench.methods.generative.family import Generative, GenerativeConfig, Source
from bench.methods.shared.calibration import NO_CLAIM, ClaimedBy, with_least_noise
from bench.methods.shared.clipping import EXACT, symmetric, upper

CHOSEN = "ours: chosen on 10,000 of MNIST's training records"
CHUNK = 2000  # records or images at a time
COUNTED = 0.1  # the count's share of a record's squared contribution
MEANS, CLUSTERS = 0.1, 0.2  # shares of the privacy budget (inverse variance); the second moments get the rest
FEW = 3.0  # a cluster whose count is below this many standard deviations of its noise has no weight


@dataclass(frozen=True)
class ClassGaussiansConfig(GenerativeConfig):
    """Settings of the mixtures; norms are root mean squares over pixels, which lie in [0, 1]."""

    frequencies: int = setting(105, CHOSEN + "; per channel, at most its number of pixels", ge=1)
    components: int = setting(0, CHOSEN + ": Gaussians per class; 0 means 16 at noise_multiplier below 1, else 1", ge=0)
    rounds: int = setting(6, CHOSEN + ": of k-means, if there are components to find", ge=1)
    mean_norm: float = setting(0.32, CHOSEN + ": codes are clipped to it for the means", gt=0)
    norm: float = setting(0.25, CHOSEN + ": codes about their centre are clipped to it", gt=0)
    stretch: float = setting(1.2, CHOSEN + ": factor on deviations, which clipping shortens", gt=0)
    noise_multiplier: float = setting(1.0, "of all releases together; calibrated to the budget", gt=0)


@register_method("class-gaussians")
class ClassGaussians(ClaimedBy, Generative):
    """Noisy class moments, and images drawn from Gaussians with these moments."""

    config: ClassGaussiansConfig
    citation = "after Chanyaswad et al. 2019"
    adjacency = Adjacency.ADD_REMOVE
    claimed_by, claimed_in = EXACT, NO_CLAIM

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        given = super().presets(facts)
        return {**given, "tiny": {**given["tiny"], "frequencies": 21}}

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the least noise whose exact cost fits `budget`, and the number of components."""
        config = with_least_noise(self, budget, EXACT, EXACT, tolerance=1e-6)
        return dataclasses.replace(config, components=config.components or (16 if config.noise_multiplier < 1 else 1))

    def charges(self) -> list[Gaussian]:
        """Return the release of means, one for each round of k-means if there are clusters, and that of moments."""
        means, clusters, moments = self.noises()
        rounds = [(clusters, self.config.rounds)] if self.config.components > 1 else []
        each = [(means, 1), *rounds, (moments, 1)]
        return [Gaussian(noise, count, adjacency=self.adjacency) for noise, count in each]

    def noises(self) -> tuple[float, float, float]:
        """Return the noise multipliers of the means, of a round of k-means, and of the second moments."""
        noise, rounds = self.config.noise_multiplier, self.config.rounds
        moments = 1 - MEANS - (CLUSTERS if self.config.components > 1 else 0)
        return noise / math.sqrt(MEANS), noise / math.sqrt(CLUSTERS / rounds), noise / math.sqrt(moments)

    def fit_generator(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Source:
        """Release the moments and return the sampler of the mixtures."""
        config, facts = self.config, private.facts
        k, basis = max(1, config.components), low_frequencies(facts.shape, config.frequencies)
        mean_noise, round_noise, moment_noise = self.noises()
        mean_norm, norm = (value * math.sqrt(math.prod(facts.shape)) for value in (config.mean_norm, config.norm))

        def released(value: Tensor, noise: float) -> Tensor:
            return torch.from_numpy(ledger.gaussian(value.numpy(), sensitivity=1.0, noise_multiplier=noise))

        with context.progress.stage("moments", 2 + config.rounds * (k > 1)) as stage:
            codes = torch.cat(
                [*in_equal_batches(lambda some: as_float(some).flatten(1).double() @ basis.T, private.images, CHUNK)]
            )
            centres = torch.zeros(facts.classes, len(basis), dtype=torch.float64)
            sums = released(sums_about(codes, private.labels, centres, mean_norm), mean_noise)
            centres, counts = moved(centres, sums, mean_norm, mean_noise)
            stage.advance()
            own = private.labels
            if k > 1:
                centres = spread_out(centres, facts.shape, k, context.streams.torch("centres"))
                for _ in range(config.rounds):
                    own = nearest_centre(private.images, private.labels, centres, basis, k)
                    sums = released(sums_about(codes, own, centres, norm), round_noise)
                    centres, counts = moved(centres, sums, norm, round_noise)
                    stage.advance()
                own = nearest_centre(private.images, private.labels, centres, basis, k)
            moments = released(moments_about(codes, own, centres, norm), moment_noise)
            stage.advance()
        floor = FEW * (round_noise if k > 1 else mean_noise) / math.sqrt(COUNTED)
        sizes = zip(moments, counts.clamp_min(floor).tolist(), strict=True)
        roots = torch.stack(
            [config.stretch * norm * root_of(symmetric(row, len(basis)) / n, moment_noise / n) for row, n in sizes]
        )
        # A class whose clusters are all lost in noise draws from all of them with equal probability.
        weights = torch.where(counts > floor, counts, 1e-9).view(facts.classes, k)

        def draw(count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
            labels = torch.arange(count) % facts.classes
            chosen = labels * k + torch.multinomial(weights[labels], 1, generator=draws).flatten()
            images = torch.empty(count, *facts.shape)
            for cluster in range(len(centres)):
                at = (chosen == cluster).nonzero().flatten()
                normal = torch.randn(len(at), len(basis), dtype=torch.float64, generator=draws)
                images[at] = ((centres[cluster] + normal @ roots[cluster].T) @ basis).view(-1, *facts.shape).float()
            return images.clamp(0, 1), labels

        return Source(draw)


def low_frequencies(shape: tuple[int, ...], count: int) -> Tensor:
    """Return each channel's `count` lowest frequencies as orthonormal images: float64 (channels * count, pixels)."""
    channels, height, width = shape
    rows, columns = (torch.from_numpy(dct(np.eye(size), axis=0, norm="ortho")) for size in (height, width))
    lowest = sorted((i + j, i, j) for i in range(height) for j in range(width))[:count]
    plane = torch.stack([torch.outer(rows[i], columns[j]).flatten() for _, i, j in lowest])
    return torch.kron(torch.eye(channels, dtype=torch.float64), plane)


def about(codes: Tensor, own: Tensor, centres: Tensor, norm: float) -> Tensor:
    """Return codes (n, q) less their centre `own` (n,), clipped to `norm` and divided by it."""
    apart = (codes - centres[own]) / norm
    scaled: Tensor = apart / (margins.FLOAT64 * apart.norm(dim=1, keepdim=True)).clamp_min(1)
    return scaled


def sums_about(codes: Tensor, own: Tensor, centres: Tensor, norm: float) -> Tensor:
    """Return the weighted count and sum of codes about each of `centres` (m, q): float64 (m, 1 + q), sensitivity 1."""
    shares = math.sqrt(COUNTED) / margins.FLOAT64, math.sqrt(1 - COUNTED)
    total = torch.zeros(len(centres), 1 + codes.shape[1], dtype=torch.float64)
    for some, at in zip(torch.split(codes, CHUNK), torch.split(own, CHUNK), strict=True):
        rows = about(some, at, centres, norm)
        ones = torch.full((len(at), 1), shares[0], dtype=torch.float64)
        total.index_add_(0, at, torch.cat([ones, shares[1] * rows], 1))
    return total


def moved(centres: Tensor, sums: Tensor, norm: float, noise: float) -> tuple[Tensor, Tensor]:
    """Return `centres` moved to the means estimated from noisy :func:`sums_about`, and the counts (m,)."""
    counts = sums[:, 0] / math.sqrt(COUNTED)
    least = FEW * noise / math.sqrt(COUNTED)
    return centres + norm * sums[:, 1:] / (math.sqrt(1 - COUNTED) * counts.clamp_min(least)[:, None]), counts


def spread_out(means: Tensor, shape: tuple[int, ...], k: int, draws: torch.Generator) -> Tensor:
    """Return `k` public centres (classes * k, q) at random about each of `means`, spread more at low frequencies."""
    channels, height, width = shape
    orders = sorted(i + j for i in range(height) for j in range(width))[: means.shape[1] // channels]
    scale = math.sqrt(height * width) / 14 / (1 + torch.tensor(orders * channels, dtype=torch.float64))
    offsets = torch.randn(len(means), k, means.shape[1], generator=draws, dtype=torch.float64) * scale
    return (means[:, None] + offsets).flatten(0, 1)


def nearest_centre(images: Tensor, labels: Tensor, centres: Tensor, basis: Tensor, k: int) -> Tensor:
    """Return the index, int64 (n,), of the nearest of the `k` centres of each image's class, compared as images."""
    own = torch.zeros_like(labels)
    points = (centres @ basis).clamp(0, 1)
    for label in range(len(centres) // k):
        at = (labels == label).nonzero().flatten()
        own[at] = label * k + nearest(images[at].flatten(1), points[label * k : (label + 1) * k])
    return own


def moments_about(codes: Tensor, own: Tensor, centres: Tensor, norm: float) -> Tensor:
    """Return each centre's sum of ``r r'`` over its clipped codes r, of norm at most 1: float64 (m, q (q + 1) / 2).

    Rows are upper triangles with off-diagonal entries multiplied by sqrt(2), so that one record contributes norm |r|^2
    <= 1.
    """
    q = codes.shape[1]
    rows, columns, weights = upper(q)
    total = torch.zeros(len(centres), len(rows), dtype=torch.float64)
    for centre in range(len(centres)):
        at = (own == centre).nonzero().flatten()
        near = about(codes[at], own[at], centres, norm)
        total[centre] = (near.T @ near)[rows, columns]
    return total * weights / margins.FLOAT64


def root_of(moments: Tensor, noise: float) -> Tensor:
    """Return R (q, q) so that R R' estimates `moments` (q, q) without their noise.

    The noise has standard deviation `noise` on the diagonal and noise / sqrt(2) off it. By itself it has eigenvalues of
    up to about ``edge = noise * sqrt(2 q)``. An eigenvalue l of the true moments appears at l + edge^2 / (4 l) if that
    is above the edge (Benaych-Georges and Nadakuditi, Advances in Mathematics 2011); the others are lost in the noise
    and become 0.
    """
    values, directions = torch.linalg.eigh(moments)
    edge = noise * math.sqrt(2 * len(moments))
    kept = torch.where(values > edge, (values + (values.square() - edge**2).clamp_min(0).sqrt()) / 2, 0.0)
    root: Tensor = directions * kept.sqrt()
    return root
