"""DP-FC with a public covariance: whitened features, one noisy table of class sums, least squares.

Mehta, Krichene, Thakurta, Kurakin, Cutkosky, "Differentially Private Image Classification from Features",
arXiv:2211.13403, precondition by the features' covariance, estimated on private records. Here it is estimated on
unlabelled public images of the same distribution, so least squares needs only one private quantity.

Rows are centred by the public mean and whitened, ``z = L^-1 (x - mean)`` with ``L L' = covariance + r I``, then clipped
to norm C. With one-hot targets and the public covariance in place of the private one, the ridge regression weights on z
are the class sums of z divided by the number of records. For a given C, noise on these sums harms predictions least
when whitening makes all directions equally long.

Threat model: the attacker holds the noisy sums and may know all records but one. Private: images and labels of the
private records. Public: their number, which divides the sums; the backbone and its weights; unlabelled images, which
give mean, covariance and the unit of C. Released: the student, a linear head on the named backbone, and with it the
noisy sums. Unit record, adjacency add-remove: one record moves the sums by at most C in L2 (2 C if it is replaced; see
``methods/linear/class_sums.py``); one Gaussian release. Records in the public source have no guarantee.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bench.interface import (
    BenchError,
    Budget,
    Context,
    Ledger,
    PrivateData,
    PublicData,
    PublicKind,
    Released,
    register_method,
    setting,
)
from bench.methods.linear.class_sums import CHOSEN, ClassSums, ClassSumsConfig, class_sums, set_head
from bench.methods.linear.family import begin, finish, scale
from bench.methods.shared.clipping import clipped_rows, finite
from bench.methods.shared.transfer import UNLABELLED
from bench.training.features import features_of


@dataclass(frozen=True)
class DPFCConfig(ClassSumsConfig):
    """Settings of the whitening, public constants.

    Of ridges from 0.01 to 3 and norms from 0.5 to 1.3 at proven 1 and 10, a ridge of 0.1 did best on Fashion-MNIST's
    public records, whose labels no method uses; norms from 0.85 to 1.3 differed by a tenth of a point. On ResNet-50's
    2,048 features of CIFAR-10's public records 0.1, 0.3, 1, 3 and 10 gave 84.3, 87.0, 88.0, 87.6 and 85.9% at a proven
    1 (noise 3.73), and at 10 (noise 0.5) 88.0 and 88.8% for 0.1 and 0.3: more noise needs a larger ridge.
    """

    ridge: float = setting(0.1, f"r over the mean eigenvalue of the public covariance; {CHOSEN}", gt=0)
    max_norm: float = setting(1.0, f"C over the root mean square norm of whitened public rows; {CHOSEN}", gt=0)
    ridge_of_noise: float = setting(
        0.0, "ours: least r over the noise multiplier; on ResNet-50's features 0.3 pays, see above", later=True, ge=0
    )


@register_method("dp-fc")
class DPFC(ClassSums):
    """A head whose weights are class sums of features whitened by public images, released once with Gaussian noise."""

    config: DPFCConfig
    citation = "after Mehta et al. 2022"
    public_data = f"{ClassSums.public_data}; {UNLABELLED}"
    public_data_kinds: ClassVar[tuple[PublicKind, ...]] = (PublicKind.TRANSFERRED, PublicKind.UNLABELLED)

    def calibrate(self, budget: Budget) -> Any:
        """See `ClassSums.calibrate`; raise BenchError without two public images."""
        if self.facts.public_records < 2:
            raise BenchError(
                f"{self.name} whitens features by unlabelled public images, and the split of {self.facts.dataset} has "
                f"{self.facts.public_records}. Choose a data set with two or more, or dp-least-squares, which "
                "takes none."
            )
        return super().calibrate(budget)

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Release the noisy sums of whitened features and turn them into weights for plain ones."""
        features, student, options = begin(self.config, private, public, context)
        pool = features_of(public.images, student.backbone, context, "public").div_(scale(student.backbone))
        ridge = max(self.config.ridge, self.config.ridge_of_noise * self.config.noise_multiplier)
        mean, factor, norm = whitening(pool, ridge)
        most = self.config.max_norm * norm
        rows = clipped_rows(features, most, lambda x: whitened(x, mean, factor))
        sums = class_sums(rows, private.labels, private.facts.classes)
        noisy = ledger.gaussian(sums.numpy(), sensitivity=most, noise_multiplier=self.config.noise_multiplier)
        # Divide by the public count in `facts`; the actual count is private under add/remove.
        on_whitened = torch.from_numpy(noisy) / private.facts.private_records
        weights = torch.linalg.solve_triangular(factor.T, on_whitened.T, upper=True).T
        set_head(student, weights, -weights @ mean)
        return Released(finish(student), "frozen_transfer", options)


def whitening(pool: Tensor, ridge: float) -> tuple[Tensor, Tensor, float]:
    """Return mean (d,), Cholesky factor (d, d) and the root mean square norm of whitened rows of `pool` (m, d).

    `ridge` times the covariance's mean eigenvalue is added to its diagonal. Raise BenchError if all rows are equal.
    """
    x = finite(pool)
    mean = x.mean(0)
    x = x - mean
    covariance = x.T @ x / len(x)
    level = float(covariance.trace()) / len(covariance)
    if level < 1e-12:
        raise BenchError(
            "all public images have the same features, so they cannot be used for whitening. Use other or more images."
        )
    factor = torch.linalg.cholesky(covariance + ridge * level * torch.eye(len(covariance), dtype=x.dtype))
    return mean, factor, float(whitened(x + mean, mean, factor).square().sum(1).mean().sqrt())


def whitened(rows: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    """Return ``L^-1 (x - mean)`` for each row x of `rows` (n, d) and the `factor` L."""
    result: Tensor = torch.linalg.solve_triangular(factor, (rows - mean).T, upper=False).T
    return result
