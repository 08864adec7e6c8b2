"""Functions of logits that membership attacks share: log odds, log probabilities, means over references in or out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench.interface import BenchError, Signals


def log_odds(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return log p - log(1 - p), (..., n), of `labels` (n,) from `logits` (..., n, classes); p itself rounds to 1."""
    own = _own(logits, labels)
    others = logits.astype(np.float64)
    np.put_along_axis(others, _index(logits, labels), -np.inf, axis=-1)
    odds: NDArray[np.float64] = own - special.logsumexp(others, axis=-1)
    return odds


def log_probability(
    logits: NDArray[np.float64], labels: NDArray[np.int64], temperature: float = 1.0
) -> NDArray[np.float64]:
    """Return the log-probability of each label (n,) from `logits` (n, classes), divided by `temperature` first."""
    scaled = logits.astype(np.float64) / temperature
    log_p: NDArray[np.float64] = _own(scaled, labels) - special.logsumexp(scaled, axis=-1)
    return log_p


def _index(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.broadcast_to(labels[:, None], (*logits.shape[:-1], 1))


def _own(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.take_along_axis(logits.astype(np.float64), _index(logits, labels), axis=-1)[..., 0]


def need_references(name: str, signals: Signals, least: int) -> None:
    """Raise :class:`BenchError` if `signals` holds fewer than `least` reference models for the attack `name`."""
    if len(signals.references) < least:
        raise BenchError(
            f"{name} needs at least {least} references (students of the same pipeline, trained with some of the "
            f"candidates), but has {len(signals.references)}. Train more, or use the attack 'loss', which needs none."
        )


def counts(inside: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each candidate how many references were trained with it, and without: both (n,)."""
    return inside.sum(axis=0), (~inside).sum(axis=0)
