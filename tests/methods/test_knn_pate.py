"""Private kNN on a frozen backbone: its settings, its budget, its labels, what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Basis, Budget, Facts, PrivacyUnit
from bench.methods.pate import knn_pate
from bench.methods.pate.knn_pate import KNNPATE, KNNPATEConfig
from bench.privacy.accounting.accountants import proven, replace_one
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.ledgers import seeded_ledger
from helpers.small_sets import SMALL, private_pair

MNIST = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28), public_benchmark=True)


def test_the_authors_settings() -> None:
    config = KNNPATEConfig()
    assert (config.neighbours, config.sampling_rate, config.sigma, config.queries) == (300, 0.05, 25.0, 1000)
    quick, _ = build_config(KNNPATE, Preset.QUICK, MNIST)
    assert quick.neighbours == 150, "half of what a class has in a sample"


def test_the_noise_spends_the_budget_on_the_queries() -> None:
    config, _ = build_config(KNNPATE, Preset.TINY, MNIST)
    found = KNNPATE(config, MNIST).calibrate(Budget(1.0, 1e-5, Basis.PROVEN))
    assert found.queries == 1000
    assert replace_one(KNNPATE(found, MNIST).charges(), 1e-5).epsilon == pytest.approx(1.0, abs=0.01)
    claimed = KNNPATE(config, MNIST).calibrate(Budget(1.0, 1e-5, Basis.CLAIMED))
    assert KNNPATE(claimed, MNIST).claimed(1e-5).epsilon == pytest.approx(1.0, abs=0.01)
    assert proven(KNNPATE(claimed, MNIST).charges(), 1e-5).epsilon < 1.0
    assert KNNPATE(config, SMALL).calibrate(Budget(1.0, 1e-5)).queries == SMALL.public_records


def test_labels_are_those_of_the_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries near a class of private images, asked in several calls."""
    from bench.core.types import PublicData

    monkeypatch.setattr(knn_pate, "QUERIES", 7)
    private, _ = private_pair()
    config, _ = build_config(KNNPATE, Preset.TINY, SMALL)
    config = dataclasses.replace(config, sampling_rate=0.5, neighbours=5, sigma=0.01, queries=20)
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    book = seeded_ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, np.random.default_rng(0))
    public = PublicData(private.images[:40], "the private images themselves")
    released = KNNPATE(config, private.facts).train_student(private, public, book, context)
    truth = private.labels[released.extras["query_indices"]]
    assert (released.extras["query_labels"] == truth).float().mean() > 0.8
    assert proven(list(book.events), 1e-5).epsilon == pytest.approx(
        proven(KNNPATE(config, SMALL).charges(), 1e-5).epsilon, rel=1e-6
    )


def test_mistakes_are_refused() -> None:
    with pytest.raises(BenchError, match="sampling_rate must be positive"):
        build_config(KNNPATE, Preset.TINY, SMALL, {"sampling_rate": 0.0})
    config, _ = build_config(KNNPATE, Preset.TINY, SMALL)
    with pytest.raises(BenchError, match="has none"):
        KNNPATE(config, dataclasses.replace(SMALL, public_records=0)).calibrate(Budget(1.0, 1e-5))
