"""Mechanisms as pure functions over batches; only the ledger calls them on private values.

No value of a record makes a mechanism raise: an error would reveal it without noise. Unusable values, such as
non-finite ones and invalid labels, get a documented meaning instead. Errors depend only on shapes and public settings.
Votes are not record values: each teacher casts one, so counts are integers that sum to the teachers on any data. Other
counts are a bug in the method's code, and are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bench.core import margins
from bench.core.errors import BenchError
from bench.privacy.mechanisms.noise import FURTHEST, GRANULARITY, Law, Noise
from bench.privacy.mechanisms.responses import known_labels

UNANSWERED = -1


def lnmax(votes: NDArray[np.float64], gamma: float, noise: Noise) -> NDArray[np.int64]:
    """Return the classes of the largest counts after Lap(1/gamma) noise on every count (PATE 2017, equation 1).

    `votes` is (queries, classes), the result int64 (queries,). Unit record, either adjacency: one record changes one
    vote, so two counts by 1 each. Each query is 2*gamma-DP.
    """
    winners: NDArray[np.int64] = np.argmax(votes + noise.laplace(votes.shape, 1.0 / gamma), axis=1)
    return winners


def gnmax(votes: NDArray[np.float64], sigma: float, noise: Noise) -> NDArray[np.int64]:
    """Return the classes of the largest counts after N(0, sigma^2) noise on every count (PATE 2018, GNMax).

    Shapes as in :func:`lnmax`. Unit record, either adjacency: a changed vote moves the counts by sqrt(2) in L2.
    """
    winners: NDArray[np.int64] = np.argmax(_plus_gaussian(votes, sigma, math.sqrt(2), 2, noise), axis=1)
    return winners


def confident_gnmax(
    votes: NDArray[np.float64], threshold: float, sigma1: float, sigma2: float, max_answers: int, noise: Noise
) -> NDArray[np.int64]:
    """Answer by GNMax the queries whose largest count, with N(0, sigma1^2) noise, reaches `threshold` (PATE 2018).

    Shapes as in :func:`lnmax`. Unit record, either adjacency: the largest count moves by at most 1, the counts by
    sqrt(2) in L2. Other queries, and all after `max_answers`, are :data:`UNANSWERED`.
    """
    largest = votes.max(axis=1)
    confident = _plus_gaussian(largest, sigma1, 1.0, 1, noise) >= threshold
    confident &= np.cumsum(confident) <= max_answers
    answers = np.full(len(votes), UNANSWERED, dtype=np.int64)
    if confident.any():
        answers[confident] = gnmax(votes[confident], sigma2, noise)
    return answers


def gaussian(
    values: NDArray[np.float64], sensitivity: float, noise_multiplier: float, noise: Noise
) -> NDArray[np.float64]:
    """Return `values` plus N(0, (noise_multiplier * sensitivity)^2) noise on every entry.

    `sensitivity` bounds the L2 distance between the values of two adjacent data sets. Non-finite entries count as 0, so
    to stay within the bound a method must bound each record before summing. An exact noise source rounds the values to
    a grid first, and draws more noise for that, by 6e-8 of it times the multiplier and the root of the entries.
    """
    std = noise_multiplier * sensitivity
    return _plus_gaussian(finite(values), std, sensitivity, values.size, noise)


def _plus_gaussian(
    values: NDArray[np.float64], std: float, sensitivity: float, moved: int, noise: Noise
) -> NDArray[np.float64]:
    step = noise.grid_step(std, sensitivity, moved)
    return plus_gaussian(in_steps(values, step), std, step, noise)


def in_steps(values: NDArray[np.float64], step: float, most: float = FURTHEST) -> NDArray[np.float64]:
    """Return `values` as whole numbers of steps, at most `most` and below 2^53; as they are if `step` is 0."""
    if not step:
        return values
    with np.errstate(over="ignore"):
        return np.clip(np.rint(values / step), -math.floor(most), math.floor(most))


def plus_gaussian(values: NDArray[np.float64], std: float, step: float, noise: Noise) -> NDArray[np.float64]:
    """Return `values`, in steps if `step` is not 0, plus noise of deviation `std`, which then is 2^24 steps."""
    given = np.clip(np.rint(values), -FURTHEST, FURTHEST) if step else finite(values)
    return noise.plus_gaussian(given, std, step)


def laplace(
    values: NDArray[np.float64], sensitivity: float, noise_multiplier: float, noise: Noise
) -> NDArray[np.float64]:
    """Return `values` plus Laplace noise of scale noise_multiplier * L1 sensitivity; see :func:`gaussian`.

    An exact noise source rounds the values to its grid first; see :func:`grid_sensitivity`.
    """
    given = finite(values)
    with np.errstate(over="ignore"):
        given = np.round(given * GRANULARITY) / GRANULARITY if noise.exact else given
    return given + noise.laplace(values.shape, noise_multiplier * sensitivity)


def noisy_choice(scores: NDArray[np.float64], scale: float, law: Law, noise: Noise) -> NDArray[np.int64]:
    """Return the index of each largest score after noise of this `law` and `scale` on every score: int64 (choices,).

    `scores` is (choices, candidates). If one unit moves the difference of any two scores of a row by at most d, each
    choice is ``d / scale``-DP. Gumbel noise gives the exponential mechanism, candidates with odds ``e^(score / scale)``
    (McSherry and Talwar 2007), exponential noise permute-and-flip (McKenna and Sheldon 2020). Non-finite scores count
    as 0.
    """
    return noise.largest(finite(scores), scale, law)


def finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `values` with 0 for non-finite entries."""
    return np.where(np.isfinite(values), values, 0.0)


def grid_sensitivity(sensitivity: float, entries: int) -> float:
    """Return the L1 sensitivity after rounding `entries` values to the grid of secure Laplace noise.

    Each entry moves by at most half a grid step on either side, so the difference by at most one step.
    """
    return sensitivity + entries / GRANULARITY


def sampled_gnmax(
    distances: NDArray[np.float64],
    labels: NDArray[np.int64],
    classes: int,
    neighbours: int,
    sampling_rate: float,
    sigma: float,
    noise: Noise,
) -> NDArray[np.int64]:
    """Return GNMax of the labels of each query's nearest records in a Poisson sample (Zhu et al. 2020, Private-kNN).

    `distances` is (queries, records), `labels` (records,) in 0..classes-1, the result int64 (queries,). Each query
    draws its own sample, whose `neighbours` nearest records vote; ties go to the earlier record. Non-finite distances
    count as the largest; labels are those of :func:`known_labels`.

    Unit record, either adjacency. A sampled record adds its vote and displaces at most one other, the farthest
    neighbour's: two counts move by 1, sqrt(2) in L2 (1 if there were fewer neighbours). A replacement displaces the
    same vote, so the two are no farther apart.
    """
    queries, records = distances.shape
    counts = np.zeros((queries, classes))
    rows = max(1, 2**22 // max(records, 1))
    for start in range(0, queries, rows):
        part = distances[start : start + rows]
        sampled = poisson_sample(part.shape, sampling_rate, noise)
        counts[start : start + rows] = nearest_votes(part, labels, sampled, classes, neighbours)
    return gnmax(counts, sigma, noise)


def nearest_votes(
    distances: NDArray[np.float64], labels: NDArray[np.int64], sampled: NDArray[np.bool_], classes: int, neighbours: int
) -> NDArray[np.float64]:
    """Return the labels' counts (queries, classes) of the nearest `sampled` records; see :func:`sampled_gnmax`."""
    # Keep sampled records nearer than unsampled ones, whose number would otherwise decide whether such a record votes.
    given = np.where(np.isfinite(distances), distances, np.finfo(np.float64).max)
    # A stable order: one more record leaves the others' relative order unchanged.
    nearest = np.argsort(np.where(sampled, given, np.inf), axis=1, kind="stable")[:, :neighbours]
    voting = np.take_along_axis(sampled, nearest, axis=1)
    cells = np.arange(len(distances))[:, None] * classes + known_labels(labels, classes)[nearest]
    votes = np.bincount(cells[voting], minlength=len(distances) * classes)
    return votes.reshape(len(distances), classes).astype(np.float64)


def sampled_gaussian(
    values: NDArray[np.float64], max_norm: float, sampling_rate: float, noise_multiplier: float, noise: Noise
) -> NDArray[np.float64]:
    """Return sums over Poisson samples of the records plus N(0, (noise_multiplier * max_norm)^2) noise on every entry.

    `values` is (sums, records, entries), the result (sums, entries). Unit record, either adjacency: each record's
    entries are :func:`clipped` to `max_norm` in L2, the most that one more sampled record adds; a replaced one moves
    the sum by up to twice that.
    """
    sampled = poisson_sample(values.shape[:2], sampling_rate, noise)
    std = noise_multiplier * max_norm
    step = noise.grid_step(std, max_norm, values.shape[2])
    given = clipped(values, max_norm)
    if not step:
        return plus_gaussian(sampled_sum(given, sampled), std, step, noise)
    # 64 bits hold every sum, where floats would round the sums of millions of records.
    total = np.einsum("sr,sre->se", sampled.astype(np.int64), in_steps(given, step).astype(np.int64))
    return plus_gaussian(total.astype(np.float64), std, step, noise)


def sampled_updates(
    updates: Callable[[int], NDArray[np.float64]],
    clients: int,
    entries: int,
    max_norm: float,
    sampling_rate: float,
    noise_multiplier: float,
    noise: Noise,
) -> NDArray[np.float64]:
    """Return :func:`sampled_gaussian` of one sum of ``updates(number)`` over sampled clients in 0..clients-1.

    Only sampled clients are called, each for (entries,), the shape of the result. Unit client, either adjacency; a
    non-finite update counts as zeros.
    """
    std = noise_multiplier * max_norm
    step = noise.grid_step(std, max_norm, entries)
    total = np.zeros(entries, dtype=np.int64 if step else np.float64)
    for number in np.flatnonzero(poisson_sample((clients,), sampling_rate, noise)):
        total += in_steps(clipped(checked(updates(int(number)), entries), max_norm), step).astype(total.dtype)
    return plus_gaussian(total.astype(np.float64), std, step, noise)


def sampled_function(
    function: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    records: int,
    entries: int,
    max_norm: float,
    sampling_rate: float,
    noise_multiplier: float,
    noise: Noise,
) -> NDArray[np.float64]:
    """Return `function` of a Poisson sample plus N(0, (2 noise_multiplier * max_norm)^2) noise on every entry.

    `function` maps the sampled records' numbers, in 0..records-1, to (entries,), the shape of the result, and may
    depend on them in any way, as a transport plan does: :func:`clipped_function` clips its whole value.

    Unit record, either adjacency: adding or replacing a sampled record moves the value within a ball of radius
    `max_norm`, by at most 2 `max_norm`. Given the others' sample, the record shifts the noise with probability
    `sampling_rate`; averaging over samples does not raise divergences, which are jointly convex.
    """
    sampled = np.flatnonzero(poisson_sample((records,), sampling_rate, noise))
    return gaussian(clipped_function(function, sampled, entries, max_norm), 2 * max_norm, noise_multiplier, noise)


def clipped_function(
    function: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    sampled: NDArray[np.int64],
    entries: int,
    max_norm: float,
) -> NDArray[np.float64]:
    """Return the value to which :func:`sampled_function` adds noise: (entries,), with L2 norm at most `max_norm`."""
    return clipped(checked(function(sampled), entries), max_norm)


def checked(given: NDArray[np.float64], entries: int) -> NDArray[np.float64]:
    """Return `given`, zeros if it is not finite; raise :class:`BenchError` unless it is (entries,)."""
    found = np.asarray(given, dtype=np.float64)
    if found.shape != (entries,):
        raise BenchError(
            f"the input of a mechanism must have the shape ({entries},), not {found.shape}, whatever the data."
        )
    return usable(found)


def usable(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `values` with zeros for non-finite vectors along the last axis."""
    return np.where(np.isfinite(values).all(axis=-1, keepdims=True), values, 0.0)


def clipped(values: NDArray[np.float64], max_norm: float) -> NDArray[np.float64]:
    """Return `values` scaled down where needed to an L2 norm of `max_norm` along the last axis.

    Vectors that are not finite, or whose norm is not, cannot be scaled and become zeros.
    """
    given = np.ascontiguousarray(usable(values))  # in another order, NumPy rounds a norm by how many others there are
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(given, axis=-1, keepdims=True) * margins.FLOAT64
    found: NDArray[np.float64] = given * np.minimum(1, max_norm / np.maximum(norms, np.finfo(np.float64).tiny))
    return found


def sampled_sum(values: NDArray[np.float64], sampled: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the sums (sums, entries) over the sampled records (sums, records) of `values` (sums, records, entries)."""
    total: NDArray[np.float64] = np.einsum("sr,sre->se", sampled.astype(np.float64), values)
    return total


def poisson_sample(shape: tuple[int, ...], sampling_rate: float, noise: Noise) -> NDArray[np.bool_]:
    """Return independent draws that are true with probability `sampling_rate`."""
    # Integers below 2^53 are exact as floats. A second word decides what lies between two of them.
    words, limit = noise.uniform(shape, 2**53), sampling_rate * 2**53
    drawn: NDArray[np.bool_] = words < math.floor(limit)
    if (tied := words == math.floor(limit)).any() and limit % 1:
        drawn[tied] = noise.uniform((int(tied.sum()),), 2**53) < (limit % 1) * 2**53
    return drawn
