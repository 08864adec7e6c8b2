"""Naive Bayes with conjugate priors, in closed form, for one data set or for all teachers of an ensemble at once.

Words: a categorical distribution per class with a Dirichlet prior (TrPATE, IEEE Access 2019, sections IV.B and V.B.2).
Features: a Gaussian per class and feature with a normal-inverse-gamma prior, which extends the paper's framework.
Classes are equally likely a priori; the paper states no class prior. Ties go to the lowest class. A group is a class,
or a teacher's class; the caller assigns records to groups. A posterior is a prior plus deterministic sums over its
group's records, so no group depends on another group's records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.data.text import FIRST_WORD, VOCABULARY, word_numbers

Floats = NDArray[np.float64]
Features = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]

CHUNK_BYTES = 1 << 26  # approximate bytes of one intermediate array


def _rows(width: int) -> int:
    return max(1, CHUNK_BYTES // (8 * max(1, width)))


def record_groups(labels: Ints, classes: int, parts: Sequence[Ints]) -> Ints:
    """Return the group, part * `classes` + label, of each record, int64 (n,); -1 outside the disjoint `parts`."""
    groups = np.full(len(labels), -1, dtype=np.int64)
    for number, part in enumerate(parts):
        groups[part] = number * classes + labels[part]
    return groups


def votes_of(scores: Floats) -> Ints:
    """Return the votes for each class, int64 (queries, classes), from scores (queries, teachers, classes)."""
    choice, classes = scores.argmax(axis=2), scores.shape[2]
    flat = np.arange(len(choice))[:, None] * classes + choice
    return np.bincount(flat.reshape(-1), minlength=len(choice) * classes).reshape(-1, classes)


def group_counts(images: NDArray[np.uint8], groups: Ints, count: int, vocabulary: int = VOCABULARY) -> Ints:
    """Return how often each known word occurs in each group (-1: none), int64 (`count`, `vocabulary`)."""
    counts = np.zeros((count, vocabulary), dtype=np.int64)
    flat = counts.reshape(-1)
    step = _rows(images.shape[3])
    for start in range(0, len(images), step):
        words = word_numbers(images[start : start + step]) - FIRST_WORD
        group = np.broadcast_to(groups[start : start + step, None], words.shape)
        known = (words >= 0) & (words < vocabulary) & (group >= 0)
        np.add.at(flat, group[known] * vocabulary + words[known], 1)
    return counts


def log_means(alpha: NDArray[np.floating | np.integer]) -> Floats:
    """Return the log mean, alpha_i over their sum, of Dirichlet parameters `alpha` (..., words) > 0 (section V.B.2)."""
    alpha = np.asarray(alpha, dtype=np.float64)
    means: Floats = np.log(alpha) - np.log(alpha.sum(axis=-1, keepdims=True))
    return means


def word_votes(images: NDArray[np.uint8], tables: Floats) -> Ints:
    """Return teachers' votes on sentences, int64 (n, classes), from log-means `tables` (teachers, classes, words)."""
    teachers, classes, words = tables.shape
    flat = np.ascontiguousarray(tables.reshape(teachers * classes, words).T)
    step, votes = _rows(words), []
    for start in range(0, len(images), step):
        part = images[start : start + step]
        counts = group_counts(part, np.arange(len(part)), len(part), words)
        votes.append(votes_of((counts @ flat).reshape(-1, teachers, classes)))
    return np.concatenate(votes)


@dataclass(frozen=True, slots=True)
class GaussianPrior:
    """A normal-inverse-gamma prior, (classes, features), worth `kappa` records for the mean, `nu` for the variance."""

    mean: Floats
    variance: Floats
    kappa: float
    nu: float


@dataclass(frozen=True, slots=True)
class Gaussians:
    """Gaussians with `mean` and `variance` (..., classes, features); `known` (..., classes) is False if undefined."""

    mean: Floats
    variance: Floats
    known: NDArray[np.bool_]


def flat_prior(classes: int, features: int) -> GaussianPrior:
    """Return a prior that carries no information."""
    return GaussianPrior(np.zeros((classes, features)), np.ones((classes, features)), 0.0, 0.0)


def source_prior(features: Features, labels: Ints, classes: int, kappa: float, nu: float) -> GaussianPrior:
    """Return the prior from a labelled source `features` (n, d): each class's moments, or all records'."""
    mean, squares, count = _moments(features, labels, classes)
    everything = pool_prior(features, classes, kappa, nu)
    there = count[:, None] > 0
    variance = np.where(there, squares / np.maximum(count, 1)[:, None], everything.variance)
    return GaussianPrior(np.where(there, mean, everything.mean), variance, kappa, nu)


def pool_prior(features: Features, classes: int, kappa: float, nu: float) -> GaussianPrior:
    """Return one prior for all classes: mean and variance of unlabelled public `features` (n, d)."""
    mean = features.mean(axis=0, dtype=np.float64)
    variance = features.var(axis=0, dtype=np.float64)
    return GaussianPrior(np.tile(mean, (classes, 1)), np.tile(variance, (classes, 1)), kappa, nu)


def gaussian_posterior(
    features: Features, groups: Ints, teachers: int, prior: GaussianPrior, floor: float
) -> Gaussians:
    """Return the Gaussians that each teacher predicts with: (teachers, classes, features).

    `features` is (n, d), `groups` (n,) as by :func:`record_groups`. The location is (kappa m + n mean) / (kappa + n),
    the squared scale (nu v + squared deviations + kappa n / (kappa + n) (mean - m)^2) / (nu + n) plus the public
    constant `floor`, so that a constant feature decides nothing (Murphy, "Conjugate Bayesian analysis of the Gaussian
    distribution", 2007, section 6). Under a flat prior a class without records is undefined.
    """
    classes, width = prior.mean.shape
    mean, squares, count = _moments(features, groups, teachers * classes)
    shape = (teachers, classes, width)
    mean, squares, number = mean.reshape(shape), squares.reshape(shape), count.reshape(teachers, classes, 1)
    kappa, nu = prior.kappa + number, prior.nu + number
    pull = np.divide(prior.kappa * number, kappa, out=np.zeros(number.shape), where=kappa > 0)
    location = np.divide(prior.kappa * prior.mean + number * mean, kappa, out=np.zeros(shape), where=kappa > 0)
    spread = prior.nu * prior.variance + squares + pull * (mean - prior.mean) ** 2
    scale = np.divide(spread, nu, out=np.zeros(shape), where=nu > 0) + floor
    return Gaussians(location, scale, ((kappa > 0) & (nu > 0))[:, :, 0])


def gaussian_scores(features: Features, fitted: Gaussians, centre: Floats) -> Floats:
    """Return log-likelihoods up to a constant, (n, teachers, classes); subtracting `centre` keeps squares small."""
    teachers, classes, width = fitted.mean.shape
    mean = (fitted.mean - centre).reshape(-1, width)
    precision = 1.0 / fitted.variance.reshape(-1, width)
    constant = (mean**2 * precision - np.log(precision)).sum(axis=1)
    centred = np.asarray(features, dtype=np.float64) - centre
    scores: Floats = -0.5 * (centred**2 @ precision.T - 2.0 * (centred @ (mean * precision).T) + constant)
    scores[:, ~fitted.known.reshape(-1)] = -np.inf
    return scores.reshape(-1, teachers, classes)


def gaussian_votes(features: Features, fitted: Gaussians) -> Ints:
    """Return the votes (queries, classes) of all fitted teachers on `features` (queries, d)."""
    teachers, classes, width = fitted.mean.shape
    centre = features.mean(axis=0, dtype=np.float64)
    votes = np.zeros((len(features), classes), dtype=np.int64)
    some = _rows(classes * width)
    step = _rows(max(width, some * classes))
    for first in range(0, teachers, some):
        last = slice(first, first + some)
        part = Gaussians(fitted.mean[last], fitted.variance[last], fitted.known[last])
        for start in range(0, len(features), step):
            rows = slice(start, start + step)
            votes[rows] += votes_of(gaussian_scores(features[rows], part, centre))
    return votes


def _moments(features: Features, groups: Ints, count: int) -> tuple[Floats, Floats, Ints]:
    """Return mean, summed squared deviations (`count`, d) and size of each group, in two passes for precision."""
    width = features.shape[1]
    order = np.argsort(groups, kind="stable")
    order = order[np.searchsorted(groups[order], 0) :]
    size = np.bincount(groups[order], minlength=count).astype(np.int64)
    filled = np.flatnonzero(size)
    starts = (np.cumsum(size) - size)[filled]
    mean, squares = np.zeros((count, width)), np.zeros((count, width))
    if len(order) == 0:
        return mean, squares, size
    step = _rows(len(order))
    for first in range(0, width, step):
        columns = slice(first, first + step)
        values = np.asarray(features[order, columns], dtype=np.float64)
        mean[filled, columns] = np.add.reduceat(values, starts, axis=0) / size[filled, None]
        values -= np.repeat(mean[filled, columns], size[filled], axis=0)
        squares[filled, columns] = np.add.reduceat(values**2, starts, axis=0)
    return mean, squares, size
