"""DP least squares: noisy second moments of the features and noisy class sums, once, and ridge regression on them.

Mehta, Krichene, Thakurta, Kurakin, Cutkosky, "Differentially Private Image Classification from Features",
arXiv:2211.13403, DP-LS: ``theta = (A + lambda I)^-1 b`` with ``A = sum x x'`` and ``b`` the sums of x by class. Here
all classes share one A. The method needs no public images of the target's distribution.

Each row x is clipped to norm C = 1 before both sums; features have norm 1 (``methods/linear/family.py``), so clipping
only affects rounding. A is released as its upper triangle with off-diagonal entries times sqrt(2): the L2 norm of that
vector is the Frobenius norm of A. One record adds x x', of Frobenius norm C^2, to A, and x, of norm C, to b. Adding or
removing it thus moves A by at most C^2 and b by at most C. Replacing it moves A by at most sqrt(2) C^2, since
``|x x' - y y'|^2 = |x|^4 + |y|^4 - 2 (x'y)^2``, and b by at most 2 C (``methods/linear/class_sums.py``).

Two Gaussian releases of multipliers ``s / sqrt(share)`` for A and ``s / sqrt(1 - share)`` for b cost as much as one of
s. We request that one release: A times ``sqrt(share) / C^2`` concatenated with b times ``sqrt(1 - share) / C``. One
record moves this vector by at most 1, or 2 if it is replaced.

The noise on A is a symmetric Gaussian matrix, whose eigenvalues lie within ``sqrt(2 d)`` times its standard deviation.
Negative eigenvalues of the noisy A are set to 0, and lambda is a multiple of that bound, so directions that may be
noise count little. Both use only released and public numbers.

Threat model: the attacker holds the noisy A and b and may know all records but one. Private: images and labels. Public:
the number of records, the backbone and its weights. Released: the student, a linear head on the named backbone. Unit
record, adjacency add-remove; one Gaussian release of both. Records in the public source have no guarantee.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.interface import Context, Ledger, PrivateData, PublicData, Released, register_method, setting
from bench.methods.linear.class_sums import CHOSEN, ClassSums, ClassSumsConfig, class_sums, set_head
from bench.methods.linear.family import begin, finish
from bench.methods.shared.clipping import clipped_rows, symmetric, triangle


@dataclass(frozen=True)
class DPLeastSquaresConfig(ClassSumsConfig):
    """How the budget is divided, and the ridge.

    Among shares 0.3, 0.5 and 0.7 and ridges from 0.1 to 2, at proven epsilon 1 and 10, these did best on
    Fashion-MNIST's public records, whose labels no method uses.
    """

    share: float = setting(0.7, f"share of the budget for A; b gets the rest; {CHOSEN}", gt=0, lt=1)
    ridge: float = setting(0.2, f"lambda over the bound on the noise's eigenvalues; {CHOSEN}", gt=0)


@register_method("dp-least-squares")
class DPLeastSquares(ClassSums):
    """Second moments and class sums of the features with Gaussian noise, once, and ridge regression on them."""

    config: DPLeastSquaresConfig
    citation = "after Mehta et al. 2022"

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Release noisy moments and sums and solve for the weights."""
        features, student, options = begin(self.config, private, public, context)
        classes, width = private.facts.classes, features.shape[1]
        asked = joined(features, private.labels, classes, self.config.share)
        answer = ledger.gaussian(asked.numpy(), sensitivity=1.0, noise_multiplier=self.config.noise_multiplier)
        moments, sums = parted(torch.from_numpy(answer), width, self.config.share)
        weights = solved(moments, sums, self.config.ridge * self.config.noise_multiplier / math.sqrt(self.config.share))
        set_head(student, weights)
        return Released(finish(student), "frozen_transfer", options)


def joined(features: Tensor, labels: Tensor, classes: int, share: float) -> Tensor:
    """Return A and b of `features` (n, d), weighted by `share`, as a vector that one record moves by at most 1."""
    moments = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64)
    for rows in clipped_rows(features, 1.0):
        moments.addmm_(rows.T, rows)
    sums = class_sums(clipped_rows(features, 1.0), labels, classes)
    return torch.cat([math.sqrt(share) * triangle(moments), math.sqrt(1 - share) * sums.flatten()])


def parted(vector: Tensor, width: int, share: float) -> tuple[Tensor, Tensor]:
    """Split a `vector` made by :func:`joined` into A (d, d) and b (classes, d); `width` is d."""
    end = width * (width + 1) // 2
    return symmetric(vector[:end], width) / math.sqrt(share), vector[end:].reshape(-1, width) / math.sqrt(1 - share)


def solved(moments: Tensor, sums: Tensor, ridge: float) -> Tensor:
    """Return the weights (classes, d) of ridge regression; `ridge` is lambda over ``sqrt(2 d)``."""
    values, vectors = torch.linalg.eigh(moments)
    kept = values.clamp_min(0.0) + ridge * math.sqrt(2 * len(values))
    weights: Tensor = sums @ (vectors / kept) @ vectors.T
    return weights
