"""Exact probabilities of the answers of noisy votes, by quadrature over the winner's noisy count."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench.core.errors import BenchError

Floats = NDArray[np.float64]
VoteNoise = Literal["gaussian", "laplace"]

_LARGEST = 2**24
"""The most integrand values over nodes and classes."""
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def log_winners(votes: Floats, scale: float, noise: VoteNoise) -> Floats:
    """Return the log probability (rows, classes) that each class wins, for `votes` (rows, classes) with noise added.

    `scale` is the Gaussian's deviation or Laplace's scale. The relative error of each probability, including rare ones,
    is below 1e-10 up to leads of some hundred scales. Raises :class:`BenchError` if the noise is too small relative to
    the leads.
    """
    found = np.empty(votes.shape)
    for row, values in enumerate(votes):
        order = np.argsort(-values, kind="stable")
        # Permuting classes permutes probabilities.
        found[row, order] = _log_winners(tuple((values[order] / scale).tolist()), noise)
    return found


@lru_cache(maxsize=2**14)
def _log_winners(descending: tuple[float, ...], noise: VoteNoise) -> Floats:
    centres = np.asarray(descending)
    if (centres[0] - centres[-1] + 100) * len(centres) * 32 > _LARGEST:
        raise BenchError(
            "no exact loss is computed for noise so small relative to a lead of "
            f"{centres[0] - centres[-1]:.3g} of its scales. Use more noise or fewer teachers."
        )
    nodes, log_weights = (_uniform if noise == "gaussian" else _panels)(centres)
    away = nodes[:, None] - centres
    if noise == "gaussian":
        log_density, log_below = -(away**2) / 2 - math.log(2 * math.pi) / 2, special.log_ndtr(away)
    else:
        log_density = -np.abs(away) - math.log(2)
        log_below = np.where(away < 0, log_density, np.log1p(-np.exp(-np.abs(away)) / 2))
    others = log_below.sum(axis=1, keepdims=True) - log_below
    found: Floats = special.logsumexp(log_density + others + log_weights[:, None], axis=0)
    found.flags.writeable = False
    return found


def _uniform(centres: Floats) -> tuple[Floats, Floats]:
    # The trapezoidal rule's error for an analytic integrand falls as exp(-2 (pi width / step)^2); C equal counts leave
    # a width of at least 1 / sqrt(C). The integrands are log-concave, at least as much as their density.
    step = min(0.25, 0.8 / math.sqrt(len(centres)))
    nodes = np.arange(centres[-1] - 9, centres[0] + 10 + math.sqrt(2 * math.log(len(centres))), step)
    return nodes, np.full(nodes.shape, math.log(step))


def _panels(centres: Floats) -> tuple[Floats, Floats]:
    # The integrand is smooth between kinks at the counts, where Gauss-Legendre panels end. Below all C counts the
    # integrand falls as exp(C x), above them as exp(-x).
    ends = np.unique(np.concatenate([centres, np.arange(centres[-1] - 40 / len(centres), centres[0] + 40)]))
    half = np.diff(ends)[:, None] / 2
    nodes = (ends[:-1, None] + half) + half * _POINTS
    return nodes.ravel(), np.log(half * _WEIGHTS).ravel()


def log_flipped(lags: Floats) -> Floats:
    """Return the log probability (rows, candidates) that each has the largest score after exponential noise.

    `lags` is (rows, candidates): each score minus the row's largest, over the noise's mean; at most 0. With u uniform,
    the winner exceeds the largest score by ``-log u``; the integrand is a polynomial in u, so its Gauss-Legendre sum is
    exact. Raises :class:`BenchError` on more than 1,024 candidates.
    """
    candidates = lags.shape[1]
    if candidates > 1024:
        raise BenchError(f"permute-and-flip has an exact loss for at most 1,024 candidates, not {candidates}.")
    points, weights = np.polynomial.legendre.leggauss(candidates // 2 + 1)
    found = np.empty(lags.shape)
    for row, lag in enumerate(lags):
        below = np.log1p(-np.exp(lag) * (points[:, None] + 1) / 2)  # the log probability of staying below
        others = below.sum(axis=1, keepdims=True) - below
        found[row] = lag + special.logsumexp(others, b=weights[:, None] / 2, axis=0)
    return found
