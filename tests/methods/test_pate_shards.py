"""Shards of an ensemble vote: the counting job reads labels, not weights, and counts what one process would."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Basis, Budget
from bench.interface.registry import METHODS
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.ledgers import seeded_ledger
from helpers.small_sets import SMALL, private_pair, public_set


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "shards"), [("pate", 3), ("diet-pate", 1)])
def test_votes_of_shards_are_those_of_one_process(name: str, shards: int, tmp_path: Path) -> None:
    method = METHODS.get(name)
    config = method.Config(**{**method.presets(SMALL)["tiny"], "teachers": 23, "teacher_steps": 2})
    config = method(config, SMALL).calibrate(Budget(10.0, 1e-5, Basis.CLAIMED))
    private, public = private_pair()[0], public_set()

    def context(root: Path) -> Context:
        return Context(torch.device("cpu"), Streams(0), Cache(root, {}), Progress(), note=lambda text: None)

    for shard in range(shards):
        method(config, private.facts).make_shard(private, public, context(tmp_path / "shared"), shard, shards)
    for weights in (tmp_path / "shared").glob("teachers-*"):
        weights.unlink()  # the labels are enough
    students = []
    for root in (tmp_path / "shared", tmp_path / "alone"):
        where = context(root)
        ledger = seeded_ledger(method.unit, method.adjacency, where.streams.numpy("noise"))
        released = method(config, private.facts).train_student(private, public, ledger, where)
        students.append([*released.student.state_dict().values(), *released.extras.values()])
        read = where.cache.counts()
        assert ("teachers" in read) == (root.name == "alone"), read
    assert all(torch.equal(first, second) for first, second in zip(*students, strict=True))
