"""Calls of every mechanism of the ledger on two adjacent inputs."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch

from bench.privacy.mechanisms.ledger import Ledger

Case = tuple[str, dict[str, Any], dict[str, Any]]  # a mechanism and its arguments on two adjacent inputs
REMOVED = 1  # the record that is absent or another


def bound(name: str, *given: Any, **options: Any) -> dict[str, Any]:
    """Return the arguments of a ledger's method by name, with defaults."""
    found = inspect.signature(getattr(Ledger, name)).bind(None, *given, **options)
    found.apply_defaults()
    return {key: value for key, value in found.arguments.items() if key != "self"}


def votes(*rows: list[int]) -> np.ndarray:
    return np.asarray(rows, dtype=np.float64)


TIED, MOVED = votes([4, 4, 0], [2, 5, 1]), votes([5, 3, 0], [3, 5, 0])
LAPLACE = {"teachers": 8, "gamma": 0.4}
SIGMA = {"teachers": 8, "sigma": 2.0}
CONFIDENT = {"teachers": 8, "threshold": 5.0, "sigma1": 1.5, "sigma2": 2.0, "max_answers": 2}
THREE = np.vstack([TIED, TIED[:1]]), np.vstack([MOVED, TIED[:1]])
RESPONSE = {"epsilon": 1.0, "classes": 3}
CHOICE = {"sensitivity": 1.0, "epsilon": 1.0}
SCORES = votes([0, 1, 3], [2, 2, 2]), votes([1, 0, 2], [2, 3, 1])
SETS = np.array([[0, 1], [2, 0], [2, 1]])
PRIOR = np.array([[0.1, 0.4, 0.5], [0.4, 0.3, 0.3]])
LABELS = np.array([0, 2, 1]), np.array([0, 1, 1])
NEAREST = {"classes": 3, "neighbours": 2, "sampling_rate": 0.6, "sigma": 1.0}
DISTANCES = np.array([[1.0, 0.5, 2.0, 3.0], [2.0, 1.0, 1.0, 4.0]])
KINDS = np.array([0, 1, 0, 2])
SAMPLED = {"max_norm": 1.0, "sampling_rate": 0.3, "noise_multiplier": 0.8}
VALUES = np.random.default_rng(0).normal(size=(2, 4, 3))
OTHER = VALUES.copy()
OTHER[:, REMOVED] = -VALUES[:, REMOVED]
SIDEWAYS = VALUES.copy()
SIDEWAYS[:, REMOVED] = VALUES[:, REMOVED][:, ::-1]


def pair(mechanism: str, first: tuple[Any, ...], second: tuple[Any, ...], **options: Any) -> Case:
    return mechanism, bound(mechanism, *first, **options), bound(mechanism, *second, **options)


ENDED = {**CONFIDENT, "max_answers": 1}
NEIGHBOURS = DISTANCES, KINDS
FEWER = np.delete(DISTANCES, REMOVED, 1), np.delete(KINDS, REMOVED)
OTHER_KIND = DISTANCES, np.array([0, 2, 0, 2])
ABSENT = np.delete(VALUES, REMOVED, 1)
SENT = {"clients": 4, "entries": 3, **SAMPLED}
RECORDS = tuple(torch.from_numpy(values[0]) for values in (VALUES, OTHER))
OF_SAMPLE = {"entries": 3, **SAMPLED, "noise_multiplier": 0.4}


def largest(images: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """Return a function that is no sum over its records: the largest entries, of opposite sign where a label is odd."""
    return np.max([np.zeros(3), *images.numpy()], axis=0) * (-1) ** int(labels.sum())


NOISE = {"sensitivity": 2.0, "noise_multiplier": 1.5}
DISCRETE: dict[str, Case] = {
    "noisy_max": pair("noisy_max", (TIED,), (MOVED,), **LAPLACE),
    "gnmax": pair("noisy_max_gaussian", (TIED,), (MOVED,), **SIGMA),
    "confident": pair("confident_noisy_max", (TIED,), (MOVED,), **CONFIDENT),
    "confident, ended": pair("confident_noisy_max", THREE[:1], THREE[1:], **ENDED),
    "exponential": pair("exponential_mechanism", SCORES[:1], SCORES[1:], **CHOICE),
    "monotonic": pair("exponential_mechanism", SCORES[:1], SCORES[1:], **CHOICE, monotonic=True),
    "permute": pair("permute_and_flip", SCORES[:1], SCORES[1:], **CHOICE),
    "response": pair("randomized_response", LABELS[:1], LABELS[1:], **RESPONSE),
    "prior": pair(
        "prior_randomized_response", (LABELS[0], PRIOR), (LABELS[1], PRIOR), rows=np.array([1, 2]), epsilon=1.0
    ),
    "top k": pair("top_k_randomized_response", (LABELS[0], SETS), (LABELS[1], SETS), **RESPONSE),
    "nearest, removed": pair("sampled_noisy_max", NEIGHBOURS, FEWER, **NEAREST),
    "nearest, added": pair("sampled_noisy_max", FEWER, NEIGHBOURS, **NEAREST),
    "nearest, replaced": pair("sampled_noisy_max", NEIGHBOURS, OTHER_KIND, **NEAREST),
}
CONTINUOUS: dict[str, Case] = {
    "gaussian": pair("gaussian", ([[1.0, 2.0], [0.0, 0.0]],), ([[0.0, 2.0], [0.5, 0.0]],), **NOISE),
    "laplace": pair("laplace", ([1.0, 0.0, 3.0],), ([0.0, 0.6, 3.0],), sensitivity=2.0, noise_multiplier=0.7),
    "sum, removed": pair("sampled_gaussian", (VALUES,), (ABSENT,), **SAMPLED),
    "sum, added": pair("sampled_gaussian", (ABSENT,), (VALUES,), **SAMPLED),
    "sum, opposite": pair("sampled_gaussian", (VALUES,), (OTHER,), **SAMPLED),
    "updates": pair("sampled_updates", (VALUES[0].__getitem__,), (OTHER[0].__getitem__,), **SENT),
    "function, replaced": pair(
        "sampled_function",
        (largest, RECORDS[0], torch.zeros(4)),
        (largest, RECORDS[0], torch.tensor([0, 1, 0, 0])),
        **OF_SAMPLE,
    ),
    "function, removed": pair(
        "sampled_function",
        (largest, RECORDS[0], torch.arange(4)),
        (largest, RECORDS[0][[0, 2, 3]], torch.tensor([0, 2, 3])),
        **OF_SAMPLE,
    ),
    "sum, sideways": pair("sampled_gaussian", (VALUES,), (SIDEWAYS,), **SAMPLED),
}
CASES = DISCRETE | CONTINUOUS
# Given the sample of the other records, which a histogram of answers does not show.
FIXED = [name for name in DISCRETE if not name.startswith("nearest")]
