"""The baselines without privacy on a part of the records: which part, and how long they train on it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.config import as_dict
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Budget, PrivacyUnit, PrivateData
from bench.interface.registry import METHODS
from bench.methods.shared.settings_checks import some_records
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.ledgers import seeded_ledger
from helpers.small_sets import private_pair, public_set

CONFIGS: dict[str, dict[str, Any]] = {
    "nonprivate": {"student": "small_cnn", "epochs": 3.0, "batch_size": 16},
    "nonprivate-transfer": {
        "backbone": "small_cnn", "weights": "random", "image_size": 0, "epochs": 3.0, "batch_size": 16,
    },
}  # fmt: skip


def context() -> Context:
    return Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())


def weights(name: str, private: PrivateData, records: int | None) -> torch.Tensor:
    method = METHODS.get(name)
    book = seeded_ledger(PrivacyUnit.RECORD, method.adjacency, np.random.default_rng(0))
    config = method.Config(**CONFIGS[name], records=records)
    released = method(config, private.facts).train_student(private, public_set(), book, context())
    return torch.cat([part.flatten() for part in released.student.parameters()])


@pytest.mark.parametrize("name", list(CONFIGS))
def test_only_the_drawn_records_are_learnt_from(name: str) -> None:
    private = private_pair()[0]
    kept = some_records(20, private, context())
    assert isinstance(kept, torch.Tensor)
    assert len(kept.unique()) == 20
    labels = (private.labels + 1) % private.facts.classes
    labels[kept] = private.labels[kept]
    elsewhere = dataclasses.replace(private, labels=labels)
    whole, part = weights(name, private, None), weights(name, private, 20)
    assert torch.equal(part, weights(name, elsewhere, 20))
    assert not torch.equal(part, whole)
    assert not torch.equal(whole, weights(name, elsewhere, None))


@pytest.mark.parametrize("name", list(CONFIGS))
def test_a_part_that_is_not_there_is_refused(name: str) -> None:
    method, facts = METHODS.get(name), private_pair()[0].facts
    for records in (0, facts.private_records + 1):
        with pytest.raises(BenchError, match=f"the {facts.private_records} private records of {facts.dataset}"):
            method(method.Config(**CONFIGS[name], records=records), facts).calibrate(Budget(1.0, 1e-5))


@pytest.mark.parametrize("name", list(CONFIGS))
def test_earlier_records_keep_their_keys(name: str) -> None:
    config = METHODS.get(name).Config()
    assert "records" not in as_dict(config)
    assert as_dict(dataclasses.replace(config, records=5))["records"] == 5
