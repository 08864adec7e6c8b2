"""Ridge regressions as teachers and student: what a record moves, what the noise does, what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Basis, Budget, PrivacyUnit, PrivateData, Released
from bench.evaluation.audit.pair_runs import Runs, transcript
from bench.evaluation.audit.pairs import worst_pairs
from bench.methods.pate.pate_ridge import PATERidge, PATERidgeConfig, most_likely, normalised, ridge
from bench.privacy.accounting.accountants import proven
from bench.privacy.mechanisms.ledger import Ledger
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.loop import accuracy
from helpers.ledgers import seeded_ledger
from helpers.settings import configured
from helpers.small_sets import SMALL, private_pair, public_set

FEW = PATERidgeConfig(teachers=8, queries=40)


def run(private: PrivateData, config: PATERidgeConfig = FEW, ledger: Ledger | None = None) -> Released:
    book = ledger or seeded_ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, np.random.default_rng(0))
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    return PATERidge(config, private.facts).train_student(private, public_set(), book, context)


def sums(private: PrivateData, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Return what the ledger gets."""
    given: list[np.ndarray] = []

    def spy(self: Ledger, values: np.ndarray, **options: Any) -> np.ndarray:
        given.append(values)
        assert options["sensitivity"] == 2
        return values

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "gaussian", spy)
        run(private)
    (only,) = given
    return only


def test_a_record_changes_the_answers_of_one_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    private, _ = private_pair()
    images, labels = private.images.clone(), private.labels.clone()
    images[0], labels[0] = 255 - images[0], 9 - labels[0]
    before = sums(private, monkeypatch)
    after = sums(dataclasses.replace(private, images=images, labels=labels), monkeypatch)
    assert 0 < np.linalg.norm(after - before) <= 2
    assert np.linalg.norm(before) <= FEW.teachers + 1e-9


@pytest.mark.parametrize("scores", [torch.zeros(3, 2), torch.full((3, 2), torch.nan), torch.full((3, 2), torch.inf)])
def test_an_answer_without_content_is_zero(scores: torch.Tensor) -> None:
    assert torch.equal(normalised(scores), torch.zeros(3, 2))
    assert normalised(torch.randn(30, 10)).norm() == pytest.approx(1)


def test_ridge_is_the_minimum_of_its_loss() -> None:
    features = torch.randn(12, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(12) % 3
    penalty = 0.05 * features.square().sum(1).mean()
    targets = torch.nn.functional.one_hot(labels, 3) - 1 / 3
    normal = features.T @ features + penalty * torch.eye(30)
    expected = torch.linalg.solve(normal, features.T @ targets.double())
    assert torch.allclose(ridge(features.float(), labels, 3, 0.05).double(), expected, atol=1e-5)


def test_the_penalty_follows_the_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 50, generator=generator, dtype=torch.float64)
    weights = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(200, 4, generator=generator, dtype=torch.float64)
    assert torch.allclose(most_likely(features, features @ weights), weights, atol=1e-2)
    assert most_likely(features, noise).norm() < 0.3 * torch.linalg.lstsq(features, noise).solution.norm()


def test_it_learns_from_random_images() -> None:
    private, _ = private_pair()
    config = PATERidge(dataclasses.replace(FEW, queries=400), SMALL).calibrate(Budget(1000.0, 1e-5))
    assert accuracy(run(private, config).student, private.images, private.labels) > 0.6


def test_its_budget_is_spent_whatever_the_number_of_queries() -> None:
    few, many = (PATERidge(PATERidgeConfig(teachers=8, queries=n), SMALL).calibrate(Budget(1, 1e-5)) for n in (10, 99))
    assert few.sigma == many.sigma
    assert proven(PATERidge(few, SMALL).charges(), 1e-5).epsilon == pytest.approx(1, abs=1e-4)


def test_mistakes_are_refused() -> None:
    private, _ = private_pair()
    with pytest.raises(BenchError, match="Accepted as student: scatter_linear"):
        run(private, dataclasses.replace(FEW, student="small_cnn"))
    with pytest.raises(BenchError, match="more teachers than records"):
        PATERidge(PATERidgeConfig(), SMALL).calibrate(Budget(1, 1e-5))
    with pytest.raises(BenchError, match="penalty"):
        configured("pate-ridge", {"penalty": 0})


def test_its_worst_pair_shows_most_of_what_it_charges() -> None:
    config = PATERidge(PATERidgeConfig(teachers=4, queries=200), SMALL).calibrate(Budget(1.0, 1e-5, Basis.PROVEN))
    pairs = worst_pairs(PATERidge, config, SMALL, 1e-5)
    found = [transcript(Runs(PATERidge, pair), False, 0.0, 1e-5).exact for pair in (pairs[0], pairs[-1])]
    assert found[0] is not None
    assert found[1] is not None
    assert max(found[0]) < 0.6
    assert 0.9 < max(found[1]) <= 1.0 + 1e-9
