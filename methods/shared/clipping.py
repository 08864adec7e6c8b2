"""Rows clipped in float64, for sums whose sensitivity is exact, and symmetric matrices as vectors of equal norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bench.core import margins

ROWS = 4_096  # records per batch
EXACT = "exact-gaussian"


def clipped_rows(
    features: Tensor, max_norm: float, transform: Callable[[Tensor], Tensor] | None = None
) -> Iterator[Tensor]:
    """Yield `features` (n, d) in float64, `transform` applied, each row clipped to `max_norm` in L2, 4,096 at a time.

    Non-finite values, which cannot be clipped, become 0 before and after `transform`.
    """
    for rows in torch.split(features, ROWS):
        # Float64 keeps total rounding error far below one record's contribution.
        x = finite(rows)
        if transform is not None:
            x = finite(transform(x))
        yield x * (max_norm / (x.norm(dim=1) * margins.FLOAT64).clamp_min(max_norm))[:, None]


def finite(rows: Tensor) -> Tensor:
    """Return `rows` in float64, 0 for values that are not finite."""
    return torch.nan_to_num(rows.to(torch.float64), nan=0.0, posinf=0.0, neginf=0.0)


def triangle(matrix: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric `matrix` (d, d) as a vector with the matrix' Frobenius norm."""
    rows, columns, weights = upper(len(matrix))
    return matrix[rows, columns] * weights


def symmetric(vector: Tensor, width: int) -> Tensor:
    """Return the matrix (d, d) from which :func:`triangle` made `vector`; `width` is d."""
    rows, columns, weights = upper(width)
    matrix = vector.new_zeros(width, width)
    matrix[rows, columns] = matrix[columns, rows] = vector / weights
    return matrix


def upper(width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a (d, d) matrix's upper triangle: rows, columns, and weights, 1 on the diagonal and sqrt(2) above it."""
    rows, columns = torch.triu_indices(width, width)
    return rows, columns, (1 + (rows != columns).double()).sqrt()
