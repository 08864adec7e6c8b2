"""A judge of faces that others trained on other people: dlib's embedding, and the person with the nearest mean.

The net saw none of our images, so any photographs may serve as its gallery: three of each person that no student saw.
:func:`verification` measures on real photographs how well it distinguishes the people of a data set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from bench.core.transforms import as_float
from bench.metrics.roc import roc
from bench.models.pretrained import find_weights, load_backbone
from bench.models.registration import register_all
from bench.models.weight_store import PublicWeights

NET = "face_resnet"


@dataclass(frozen=True, slots=True)
class FaceJudge:
    """Mean embeddings (classes, 128) of real photographs, and the net that made them."""

    net: nn.Module
    weights: PublicWeights
    people: Tensor
    device: torch.device

    def labels(self, images: Tensor) -> Tensor:
        """Return the nearest person (n,) to each of `images` (n, channels, height, width), uint8 or in [0, 1]."""
        return torch.cdist(embedded(self.net, self.weights, images, self.device), self.people).argmin(1)

    def accuracy(self, records: tuple[Tensor, Tensor]) -> float:
        """Return the share of `records` (images and labels) that it assigns to the right person."""
        images, labels = records
        return round(float((self.labels(images) == labels.cpu()).double().mean()), 4)


def face_judge(images: Tensor, labels: Tensor, classes: int, device: torch.device) -> FaceJudge:
    """Return the judge whose gallery is `images` with `labels`; raise :class:`BenchError` without the net's weights."""
    net, weights = _net(device)
    found = embedded(net, weights, images, device)
    people = torch.stack([found[labels == label].mean(0) for label in range(classes)])
    return FaceJudge(net, weights, people, device)


def _net(device: torch.device) -> tuple[nn.Module, PublicWeights]:
    register_all()
    weights = find_weights(NET)
    return load_backbone(weights).to(device), weights


@torch.no_grad()
def embedded(net: nn.Module, weights: PublicWeights, images: Tensor, device: torch.device) -> Tensor:
    """Return the embeddings (n, 128), on the CPU, of `images`: made square by repeating the border, and RGB."""
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (weights.mean, weights.std))
    found = []
    for part in torch.split(images, 50):
        shown = as_float(part.to(device))
        high, wide = shown.shape[2:]
        across, down = max(high - wide, 0), max(wide - high, 0)
        border = (across // 2, across - across // 2, down // 2, down - down // 2)
        shown = functional.pad(shown, border, mode="replicate")
        shown = functional.interpolate(shown, (weights.size, weights.size), mode="bilinear", antialias=True)
        found.append(net((shown.expand(-1, 3, -1, -1) - mean) / std).cpu())
    return torch.cat(found)


@dataclass(frozen=True, slots=True)
class Verification:
    """How well distances separate pairs of photographs of one person from pairs of two people: AUC and ROC points."""

    area: float
    points: tuple[tuple[float, float], ...]
    """(share of pairs of two people, share of pairs of one person) below a distance, by rising distance."""
    pairs: tuple[int, int]
    """Numbers of pairs of one person and of pairs of two people."""


RATES = (0.001, 0.01, 0.05, 0.1)


def verification(images: Tensor, labels: Tensor, device: torch.device) -> Verification:
    """Return the ROC of the embedding's distance on real photographs of known people."""
    found = embedded(*_net(device), images, device)
    first, second = torch.triu_indices(len(images), len(images), 1)
    same: NDArray[np.bool_] = (labels[first] == labels[second]).numpy()
    distances = (found[first] - found[second]).norm(dim=1).double().numpy()
    wrong, right = roc(-distances, same)
    points = tuple((rate, float(right[wrong <= rate].max())) for rate in RATES)
    return Verification(float(np.trapezoid(right, wrong)), points, (int(same.sum()), int((~same).sum())))
