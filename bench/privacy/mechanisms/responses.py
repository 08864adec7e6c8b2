"""Randomised response over classes, plain, over likely classes, and as printed in DPSD; only the ledger calls it.

As in :mod:`bench.privacy.mechanisms.mechanisms`, no label makes a mechanism raise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.privacy.mechanisms.noise import Noise


def randomized_response(labels: NDArray[np.int64], epsilon: float, classes: int, noise: Noise) -> NDArray[np.int64]:
    """Keep each label with probability e^eps / (e^eps + classes - 1), else return a uniform other label.

    `labels` is (n,), those of :func:`known_labels`. Unit label, adjacency replace: epsilon-DP for each label.
    """
    return noise.keep_or_other(known_labels(labels, classes), classes, drawn_probability(epsilon, classes))


def top_k_randomized_response(
    labels: NDArray[np.int64], candidates: NDArray[np.int64], epsilon: float, classes: int, noise: Noise
) -> NDArray[np.int64]:
    """Randomised response over each row's candidates; a label outside gives a uniform one (Ghazi et al. 2021, RRTop-k).

    `labels` is (n,), `candidates` (n, k) distinct classes per row, chosen without the label. Unit label, adjacency
    replace: a label inside is kept with probability e^eps / (e^eps + k - 1), and every answer has probability at least
    1 / (e^eps + k - 1): epsilon-DP.
    """
    check_classes(candidates, classes)
    if candidates.ndim != 2 or len(candidates) != len(labels):
        raise BenchError(f"candidates must be (labels, k), not {candidates.shape} for {len(labels)} labels.")
    k = candidates.shape[1]
    if k > 1 and (np.diff(np.sort(candidates, axis=1), axis=1) == 0).any():
        raise BenchError("the candidates of a label must be distinct classes.")
    hits = candidates == known_labels(labels, classes)[:, None]
    inside = hits.any(axis=1)
    start = np.where(inside, hits.argmax(axis=1), 0).astype(np.int64)
    kept = noise.keep_or_other(start, k, drawn_probability(epsilon, k))
    position = np.where(inside, kept, noise.uniform(labels.shape, k))
    return np.take_along_axis(candidates, position[:, None], axis=1)[:, 0]


def prior_randomized_response(
    labels: NDArray[np.int64], prior: NDArray[np.float64], epsilon: float, noise: Noise
) -> NDArray[np.int64]:
    """RRTop-k over each label's most probable classes, with the best k (Ghazi et al. 2021, RRWithPrior).

    `labels` is (n,), `prior` (n, classes) the probabilities known without the label. Unit label, adjacency replace:
    epsilon-DP for each label, as the set's size depends only on the prior. A set of one class reveals nothing.
    """
    order, sizes = likely_sets(prior, epsilon)
    answers = np.zeros(len(labels), dtype=np.int64)
    for size in np.unique(sizes):
        rows = sizes == size
        sets = order[rows, :size]
        answers[rows] = top_k_randomized_response(labels[rows], sets, epsilon, prior.shape[1], noise)
    return answers


def likely_sets(prior: NDArray[np.float64], epsilon: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the classes of each row of `prior` (n, classes) by descending probability, and how many of them to use.

    That number, (n,), maximises the probability that RRTop-k answers with the label, if the label follows the prior.
    """
    order = np.argsort(-prior, axis=1, kind="stable")
    inside = np.take_along_axis(prior, order, axis=1).cumsum(axis=1)
    kept = [keep_probability(epsilon, size) for size in range(1, prior.shape[1] + 1)]
    return order, (inside * kept).argmax(axis=1) + 1


def prior_likelihood(answers: NDArray[np.int64], prior: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """Return the probability of each :func:`prior_randomized_response` in `answers` (n,) by label: (n, classes)."""
    order, sizes = likely_sets(prior, epsilon)
    places, classes = np.argsort(order, axis=1), np.arange(prior.shape[1])
    kept = 1 / (1 + (sizes[:, None] - 1) * math.exp(-epsilon))
    within = np.where(classes == answers[:, None], kept, kept * math.exp(-epsilon))
    possible = np.take_along_axis(places, answers[:, None], axis=1) < sizes[:, None]
    return np.where(possible, np.where(places < sizes[:, None], within, 1 / sizes[:, None]), 0.0)


def printed_top_k(
    labels: NDArray[np.int64], candidates: NDArray[np.int64], epsilon: float, classes: int, noise: Noise
) -> NDArray[np.int64]:
    """DPSD's Eq. (5) as printed: randomised response over all classes for a label in its row, else a uniform candidate.

    Shapes as in :func:`top_k_randomized_response`. Not private: only a label in the set gives an answer outside it.
    """
    check_classes(candidates, classes)
    inside = (candidates == known_labels(labels, classes)[:, None]).any(axis=1)
    kept = randomized_response(labels, epsilon, classes, noise)
    position = noise.uniform(labels.shape, candidates.shape[1])
    other: NDArray[np.int64] = np.take_along_axis(candidates, position[:, None], axis=1)[:, 0]
    return np.where(inside, kept, other)


def keep_probability(epsilon: float, classes: int) -> float:
    """Return the probability that randomised response over `classes` answers keeps the true one."""
    # Written with e^-eps so that a large epsilon does not overflow.
    return 1.0 / (1.0 + (classes - 1) * math.exp(-epsilon))


def drawn_probability(epsilon: float, classes: int) -> float:
    """Return :func:`keep_probability` rounded down to a multiple of 2^-53 below 1, so that draws can follow it exactly.

    Rounded to the nearest double, it would be 1 for an epsilon of 37, and the answer not private.
    """
    if classes < 2:
        return 1.0
    odds = (classes - 1) * math.exp(-epsilon)
    return 1 - max(1, math.ceil(odds / (1 + odds) * 2**53 * (1 + 1e-15))) / 2**53


def known_labels(labels: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """Return `labels` as int64; labels outside 0..classes-1 count as class 0."""
    known = (labels >= 0) & (labels < classes)
    return np.where(known, labels, 0).astype(np.int64)


def check_classes(candidates: NDArray[np.int64], classes: int) -> None:
    """Raise :class:`BenchError` unless all `candidates`, which are public, lie in 0..classes-1."""
    if candidates.size and (candidates.min() < 0 or candidates.max() >= classes):
        raise BenchError(f"candidates must lie in 0..{classes - 1}.")
