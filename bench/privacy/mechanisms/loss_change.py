"""The noisy change of the loss between two nets on a Poisson sample of the records: DPSUR's test."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from bench.core.transforms import as_float
from bench.privacy.dpsgd.dp_sgd import known_labels
from bench.privacy.mechanisms.mechanisms import gaussian, poisson_sample
from bench.privacy.mechanisms.noise import Noise

RECORDS_A_PASS = 1024


def loss_change(
    before: torch.nn.Module, after: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, bound: float
) -> float:
    """Return the mean cross-entropy of `after` on the given records minus that of `before`, clipped to ±`bound`.

    0 without records, and `bound` if undefined. For any nets and records it changes by at most twice `bound`, so
    dividing by the actual number of records is allowed.
    """
    if not len(labels):
        return 0.0
    change = _mean_loss(after, images, labels) - _mean_loss(before, images, labels)
    return bound if math.isnan(change) else min(max(change, -bound), bound)


@torch.no_grad()
def _mean_loss(net: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    device, training, total = next(net.parameters()).device, net.training, 0.0
    net.eval()
    for some, theirs in zip(torch.split(images, RECORDS_A_PASS), torch.split(labels, RECORDS_A_PASS), strict=True):
        outputs = net(as_float(some.to(device)))
        total += float(cross_entropy(outputs, known_labels(theirs.to(device), outputs), reduction="sum"))
    net.train(training)
    return total / len(labels)


def sampled_loss_change(
    before: torch.nn.Module,
    after: torch.nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    bound: float,
    sampling_rate: float,
    noise_multiplier: float,
    noise: Noise,
) -> NDArray[np.float64]:
    """Return :func:`loss_change` on a Poisson sample, with noise of deviation ``2 * bound * noise_multiplier``: (1,).

    Sensitivity: adding, removing or replacing a record moves the change by at most ``2 * bound``. Unit record.
    """
    rows = torch.from_numpy(np.flatnonzero(poisson_sample((len(labels),), sampling_rate, noise)))
    change = np.array([loss_change(before, after, images[rows], labels[rows], bound)])
    return gaussian(change, 2 * bound, noise_multiplier, noise)
