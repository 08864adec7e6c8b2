"""Train students from few labels in seconds: the quick preset's substitute for the improved GAN.

A committee fits the released labels; its predictions on shifted copies of each public image, averaged and sharpened
(MixMatch, Berthelot et al. 2019), are the student's soft labels (self-training, Lee 2013). With few labels, a neighbour
graph replaces the committee (Poisson learning, Calder et al. 2020). Only public images and released labels are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.core.errors import BenchError
from bench.core.progress import SILENT, Stage
from bench.core.seeds import seeded
from bench.core.transforms import as_float, shifted
from bench.storage.checkpoint import Checkpoint
from bench.training.loop import FitSettings, fit, predict


@dataclass(frozen=True, slots=True)
class SelfTrainingSettings:
    """Self-training settings, chosen on MNIST for two CPU cores, not from a paper."""

    labelled: FitSettings = field(
        default_factory=lambda: FitSettings(steps=400, batch_size=60, lr=0.05, shift=2, label_smoothing=0.1)
    )
    """Training of each committee member on the labelled images."""
    pool: FitSettings = field(default_factory=lambda: FitSettings(steps=800, batch_size=100, lr=0.05, shift=2))
    """Training of the student on the soft labels."""
    committee: int = 5
    views: int = 3  # Shifted copies over which predictions are averaged.
    temperature: float = 0.5  # Raises soft labels to the power 1 / temperature and normalises; below 1 sharpens.
    graph_below: int = 20  # With fewer labels per class, the pool's first labels come from the graph; 0: never.
    neighbours: int = 10
    graph_steps: int = 150

    def total_steps(self, labelled: int, pool: int, classes: int) -> int:
        """Return the number of optimiser steps for these numbers of images."""
        graph = labelled < self.graph_below * classes
        first = 0 if graph else self.committee * self.labelled.total_steps(labelled)
        return first + self.pool.total_steps(pool)


def train_self_trained(
    make: Callable[[], nn.Module],
    images: Tensor,
    labels: Tensor,
    pool: Tensor,
    classes: int,
    settings: SelfTrainingSettings,
    generator: torch.Generator,
    *,
    device: torch.device | str = "cpu",
    stage: Stage = SILENT,
    checkpoint: Checkpoint | None = None,
) -> nn.Module:
    """Return a student trained on `images` (m, channels, height, width) with `labels`, int64 (m,), and on the `pool`.

    `make` builds a net, whose weights are drawn here. Images are uint8 or float in [0, 1]; the pool (n, ...) may hold
    the labelled ones. `stage` advances at every step. Raises :class:`BenchError` without a labelled image or a pool.
    """
    if len(images) == 0 or len(images) != len(labels) or len(pool) == 0:
        raise BenchError("self-training needs at least one labelled and one unlabelled image.")

    def fresh() -> nn.Module:
        with seeded(generator, device):
            return make()

    reached = 0 if checkpoint is None else checkpoint.phase([images, labels, pool, generator.get_state()])

    def begin(phase: int) -> None:
        if checkpoint is not None:
            checkpoint.begin(phase, {"beliefs": beliefs, "generator": generator})

    if len(labels) < settings.graph_below * classes:
        everything = torch.cat([as_float(images), as_float(pool)])
        scores = poisson_labels(everything, labels, classes, settings.neighbours, settings.graph_steps)[len(images) :]
        # The scores' scale is arbitrary: standardise them for the softmax.
        beliefs = (3.0 * scores / scores.std().clamp_min(1e-12)).softmax(1)
    else:
        beliefs = torch.zeros(len(pool), classes)
        for number in range(settings.committee):
            member = fresh()  # also in a finished phase, to advance the random stream of `make`
            if number < reached:
                stage.advance(settings.labelled.total_steps(len(images)))
                continue
            begin(number)
            fit(member, images, labels, settings.labelled, generator, device=device, stage=stage, checkpoint=checkpoint)
            beliefs += averaged_predictions(member, pool, settings, generator, device)
    student = fresh()
    begin(settings.committee)
    soft = sharpened(beliefs, settings.temperature)
    fit(student, pool, soft, settings.pool, generator, device=device, stage=stage, checkpoint=checkpoint)
    return student


def averaged_predictions(
    model: nn.Module, images: Tensor, settings: SelfTrainingSettings, generator: torch.Generator,
    device: torch.device | str = "cpu",
) -> Tensor:  # fmt: skip
    """Return the probabilities (n, classes) of `images` by `model`, averaged over shifted copies."""
    total = torch.zeros(())
    for view in range(settings.views):
        seen = as_float(images)
        if view and settings.pool.shift:
            seen = shifted(seen, settings.pool.shift, generator)
        total = total + predict(model, seen, device=device).softmax(1)
    return total / settings.views


def sharpened(beliefs: Tensor, temperature: float) -> Tensor:
    """Return non-negative `beliefs` (n, classes) raised to ``1 / temperature`` and normalised to probabilities."""
    return functional.normalize((beliefs / beliefs.sum(1, keepdim=True)) ** (1.0 / temperature), p=1.0, dim=1)


def poisson_labels(images: Tensor, labels: Tensor, classes: int, neighbours: int = 10, steps: int = 150) -> Tensor:
    """Return scores (n, classes) for all `images`, the first m with `labels` (m,).

    Poisson learning (Calder, Cook, Thorpe and Slepcev, ICML 2020): labels are sources and sinks of a heat flow on the
    graph of nearest neighbours by pixels, which works with few labels, unlike label propagation. Edge weights (section
    4) are ``exp(-4 d^2 / d_k^2)``, with `d_k` the distance to the last neighbour; the larger direction counts.
    """
    points = images.flatten(1)
    count = len(points)
    neighbours = min(neighbours, count - 1)
    norms = points.square().sum(1)
    index, squares = [], []
    for start in range(0, count, 1000):
        block = norms[start : start + 1000, None] + norms[None] - 2.0 * points[start : start + 1000] @ points.T
        block[torch.arange(len(block)), torch.arange(start, start + len(block))] = torch.inf
        nearest = block.topk(neighbours, largest=False)
        index.append(nearest.indices)
        squares.append(nearest.values.clamp_min(0.0))
    columns, distances = torch.cat(index), torch.cat(squares)
    weights = torch.exp(-4.0 * distances / distances[:, -1:].clamp_min(1e-12)).double()
    rows = torch.arange(count)[:, None].expand_as(columns)
    forward = rows.flatten() * count + columns.flatten()
    backward = columns.flatten() * count + rows.flatten()
    edges, place = torch.unique(torch.cat([forward, backward]), return_inverse=True)
    strength = torch.zeros(len(edges), dtype=torch.float64)
    strength.scatter_reduce_(0, place, weights.flatten().repeat(2), "amax", include_self=False)
    degree = torch.zeros(count, dtype=torch.float64).index_add_(0, edges // count, strength)
    walk = torch.sparse_coo_tensor(
        torch.stack([edges // count, edges % count]), strength / degree[edges // count], (count, count),
        is_coalesced=True, check_invariants=False,
    )  # fmt: skip
    known = functional.one_hot(labels, classes).double()
    source = torch.zeros(count, classes, dtype=torch.float64)
    source[: len(labels)] = (known - known.mean(0)) / degree[: len(labels), None]
    scores = torch.zeros_like(source)
    for _ in range(steps):
        scores = torch.sparse.mm(walk, scores) + source
    return scores.float()
