"""One score of a run's release, by which an auditor distinguishes two private sets.

A run's release becomes one vector per *channel*: the student's logits on fixed images, its weights, the generator's
weights, each released tensor. Pilot runs fit a linear discriminant per channel and keep the channel that separates
held-out runs best, so the score is fixed before any run counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.covariance import ledoit_wolf_shrinkage

from bench.core.types import Released

WIDTH = 512  # largest vector; longer ones are projected
FOLDS = 4

Channels = dict[str, "NDArray[np.float32]"]
"""The vector of each channel of one run's release."""


def channels_of(released: Released, probes: torch.Tensor) -> Channels:
    """Return each channel's vector; `probes` are fixed images, float (n, channels, height, width)."""
    student = released.student.eval()
    with torch.no_grad():
        logits = student(probes).float()
    logits = logits - logits.mean(1, keepdim=True)
    found = {"logits": logits.flatten(), "mean logits": logits.mean(0), "weights": _flat(student)}
    if released.generator is not None:
        found["generator"] = _flat(released.generator)
    return as_channels({**found, **of_parts(released.extras, logits.shape[1])})


def of_parts(parts: Mapping[str, torch.Tensor], classes: int) -> dict[str, torch.Tensor]:
    """Return the channels of released tensors by name, with `classes` classes if they are labels."""
    found = {}
    for name, tensor in parts.items():
        if not tensor.numel():
            continue
        values = tensor.detach().float()
        # Rows of a release are identically distributed: use their mean and quantiles of their brightness and contrast.
        rows = values.flatten(1) if values.ndim > 1 else values.reshape(-1, 1)
        if not tensor.is_floating_point() and tensor.ndim == 1:  # perhaps labels, -1 where unanswered
            kinds = torch.nn.functional.one_hot(tensor.long().clamp(-1, classes - 1) + 1, classes + 1)
            rows = torch.cat([kinds, rows], 1)
        each = [rows.mean(1), rows.std(1, correction=0)]
        found[name] = torch.cat([rows.mean(0), *(part.quantile(torch.linspace(0, 1, 17)) for part in each)])
        # Few numbers, so that a short pilot finds a direction.
        moments = [rows.mean(), rows.std(correction=0), *(part.mean() for part in each)]
        found[f"moments of {name}"] = torch.stack(moments)
    return found


def as_channels(vectors: Mapping[str, torch.Tensor]) -> Channels:
    """Return `vectors` as float32 arrays of at most `WIDTH` entries."""
    return {name: _narrow(vector).numpy().astype(np.float32) for name, vector in vectors.items()}


def _flat(net: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().float().reshape(-1) for value in net.state_dict().values()])


def _narrow(vector: torch.Tensor) -> torch.Tensor:
    vector = torch.nan_to_num(vector.detach().cpu(), nan=0.0, posinf=1e6, neginf=-1e6)
    if len(vector) <= WIDTH:
        return vector
    # Add each entry with a random sign to one of the sums: a projection in linear time (count sketch).
    draws = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (len(vector),), generator=draws) * 2 - 1
    sums = torch.randint(0, WIDTH, (len(vector),), generator=draws)
    return torch.zeros(WIDTH, dtype=vector.dtype).index_add_(0, sums, signs * vector)


@dataclass(frozen=True, slots=True)
class Score:
    """A linear score of the channel `channel`; `quality` is the area under the ROC curve on held-out pilot runs."""

    channel: str
    quality: float
    distance: float  # between the held-out scores' means, in standard deviations; breaks ties
    centre: NDArray[np.float64]
    weights: NDArray[np.float64]

    @property
    def rank(self) -> tuple[float, float]:
        """The key by which scores are compared."""
        return self.quality, self.distance

    def __call__(self, runs: Sequence[Channels]) -> NDArray[np.float64]:
        """Return the scores (n,) of `runs`, larger for the second set."""
        return np.array([self._of(run.get(self.channel)) for run in runs])

    def _of(self, vector: NDArray[np.float32] | None) -> float:
        if vector is None or vector.shape != self.centre.shape:
            return 0.0
        return float((vector.astype(np.float64) - self.centre) @ self.weights)


def best_score(first: Sequence[Channels], second: Sequence[Channels]) -> Score:
    """Return the score that best separates the pilot's runs on the two sets, at least three each."""
    # Sorted, because ties go to the first channel and cached runs have another order.
    names = [name for name in sorted(first[0]) if all(name in run and run[name].shape == first[0][name].shape
                                                      for run in (*first, *second))]  # fmt: skip
    return max((_score(name, first, second) for name in names), key=lambda score: score.rank)


def _score(name: str, first: Sequence[Channels], second: Sequence[Channels]) -> Score:
    rows = np.stack([run[name] for run in (*first, *second)]).astype(np.float64)
    sides = np.repeat([0, 1], [len(first), len(second)])
    held = np.zeros(len(rows))
    fold = np.concatenate([np.arange(len(first)), np.arange(len(second))]) % min(FOLDS, len(first), len(second))
    for number in np.unique(fold):
        inside = fold != number
        centre, weights = _direction(rows[inside], sides[inside])
        held[~inside] = (rows[~inside] - centre) @ weights
    low, high = held[sides == 0], held[sides == 1]
    area = (np.sign(high[:, None] - low[None]).mean() + 1) / 2
    deviation = np.sqrt((low.var() + high.var()) / 2)
    distance = float((high.mean() - low.mean()) / deviation) if deviation > 0 else float(high.mean() > low.mean())
    return Score(name, float(area), distance, *_direction(rows, sides))


def _direction(rows: NDArray[np.float64], sides: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the midpoint of the two means and Fisher's discriminant direction, with largest weight 1 or all 0.

    The covariance within sets is shrunk as by Ledoit and Wolf, and inverted in the span of the few rows.
    """
    means = np.stack([rows[sides == side].mean(axis=0) for side in (0, 1)])
    inside, spread = rows - means[sides], rows.std(axis=0)
    # Entries that are equal in all runs of a set, as from a leak, count a thousandfold.
    scale = np.maximum(inside.std(axis=0), 1e-3 * spread)
    varies = spread > 1e-9 * np.abs(rows).max(axis=0)
    weights = np.zeros(rows.shape[1])
    if varies.any():
        inside, gap = inside[:, varies] / scale[varies], (means[1] - means[0])[varies] / scale[varies]
        shrinkage = max(ledoit_wolf_shrinkage(inside, assume_centered=True), 1e-6)
        ridge, kept = max(shrinkage * (inside**2).mean(), 1e-12), (1 - shrinkage) / len(rows)
        within = ridge * np.eye(len(rows)) + kept * inside @ inside.T
        direction = (gap - kept * inside.T @ np.linalg.solve(within, inside @ gap)) / scale[varies]
        length = np.abs(direction).max()
        weights[varies] = direction / length if np.isfinite(length) and length > 0 else 0.0
    return means.mean(axis=0), weights
