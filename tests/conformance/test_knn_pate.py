"""A sampled kNN-PATE, from a file outside the project that imports bench.interface alone."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bench.core.types import Adjacency, Basis, Budget, Facts
from bench.evaluation.check.noninterference import CheckVerdict, check_method
from bench.interface.registry import METHODS
from bench.privacy.accounting.accountants import proven, replace_one
from bench.privacy.events.events import GNMax
from bench.reports.leaderboard import build_board
from helpers.commands import registries_restored
from helpers.paths import ROOT
from helpers.records import record

FILE = ROOT / "tests" / "fixtures" / "knn_pate.py"
FACTS = Facts("digits", 1_000, 400, 397, 10, (1, 8, 8))


@pytest.fixture(scope="module")
def method() -> Iterator[Any]:
    with registries_restored():
        yield METHODS.get(str(FILE))


def test_it_imports_the_interface_alone(method: Any) -> None:
    assert set(re.findall(r"^(?:from|import) (\w+(?:\.\w+)*)", FILE.read_text(), flags=re.MULTILINE)) == {
        "bench.interface", "dataclasses", "torch",
    }  # fmt: skip


@pytest.mark.slow
def test_it_passes_the_check(method: Any) -> None:
    check = check_method(method)
    assert check.verdict is CheckVerdict.PASSED, check.reason
    assert "no neighbour moves" in check.reason


def test_a_record_that_moves_others_is_found(method: Any) -> None:
    """Features centred on the private mean: every distance depends on every record."""

    class Centred(method):  # type: ignore[misc]
        def train_student(self, private: Any, public: Any, ledger: Any, context: Any) -> Any:
            class Shifted:
                def __getattr__(self, name: str) -> Any:
                    return getattr(ledger, name)

                def sampled_noisy_max(self, distances: Any, labels: Any, **options: Any) -> Any:
                    return ledger.sampled_noisy_max(
                        distances - distances.mean(axis=1, keepdims=True), labels, **options
                    )

            return super().train_student(private, public, Shifted(), context)

    check = check_method(Centred)
    assert check.verdict is CheckVerdict.REJECTED
    assert "records in its call 1 of sampled_noisy_max" in check.reason


@pytest.mark.parametrize("basis", list(Basis))
def test_its_budget_is_spent(method: Any, basis: Basis) -> None:
    def cost(queries: int) -> float:
        asked = dataclasses.replace(config, queries=queries)
        if basis is Basis.CLAIMED:
            return float(method(asked, FACTS).claimed(1e-5).epsilon)
        return replace_one(method(asked, FACTS).charges(), 1e-5).epsilon

    config = method(method.Config(), FACTS).calibrate(Budget(2.0, 1e-5, basis))
    assert config.queries < FACTS.public_records
    assert cost(config.queries) <= 2.0 < cost(config.queries + 1)


def test_a_claim_that_holds_by_sampling_is_not_flagged(method: Any) -> None:
    """The claim lies far below the cost without sampling, and the sampled event covers it."""
    config = method.Config(sampling_rate=0.05, queries=100)
    claim = method(config, FACTS).claimed(1e-5).epsilon
    cost = proven(method(config, FACTS).charges(), 1e-5).epsilon
    assert cost <= claim < 0.5 * proven([GNMax(config.sigma, config.queries)], 1e-5).epsilon
    privacy = record(claimed=claim, proven=cost).privacy
    assert privacy is not None
    events = [event.as_dict() for event in method(config, FACTS).charges()]
    privacy = privacy.model_copy(update={"adjacency": Adjacency.ADD_REMOVE, "events": events})
    (row,) = build_board([record(method="knn-pate", privacy=privacy)]).rows
    assert row.remarks == ("one seed: the interval covers test records only",)


def test_it_learns(method: Any) -> None:
    """Its labels, with the noise of epsilon 5 on a set that neighbours solve."""
    import torch

    from helpers.ledgers import seeded_ledger

    generator = np.random.default_rng(0)
    centres = generator.uniform(0, 10, (10, 8))
    truth, asked = np.arange(5_000) % 10, np.arange(100) % 10
    records, queries = (torch.from_numpy(centres[of] + generator.normal(0, 0.3, (len(of), 8))) for of in (truth, asked))
    book = seeded_ledger(method.unit, method.adjacency, generator)
    answers = book.sampled_noisy_max(
        torch.cdist(queries, records).numpy(), truth, classes=10, neighbours=25, sampling_rate=0.1, sigma=6.0
    )
    assert (answers == asked).mean() > 0.8
    assert proven(book.events, 1e-5).epsilon < 5
    assert math.isfinite(replace_one(book.events, 1e-5).epsilon)
