"""DPDFD: its bounds, its noise, and the cost of a teacher's answers."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Basis, Budget, Facts, PrivacyUnit
from bench.evaluation.check.noninterference import check_method
from bench.methods.distillation.dpdfd import DPDFD, DPDFDConfig, answered, bounded
from bench.privacy.accounting.accountants import proven
from bench.privacy.accounting.claims import dpsd
from bench.privacy.auditing.bounds import many_run_epsilon
from bench.privacy.mechanisms.ledger import Ledger
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.ledgers import seeded_ledger
from helpers.settings import configured
from helpers.small_sets import SMALL, private_pair, public_set

MNIST = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28), public_benchmark=True)


def book(noise: int = 0) -> Ledger:
    return seeded_ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, np.random.default_rng(noise))


def teachers(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A student and two teachers, on either side of it: the gradients are opposite."""
    student = torch.full((rows, 10), 0.1)
    step = torch.tensor([0.05, -0.05] * 5)
    return student, student + step, student - step


@pytest.mark.parametrize("changes", [{}, {"bounding": "clamp"}, {"bounding": "clamp", "k": 4}])
def test_bound_of_one_image_is_reached_and_not_exceeded(changes: dict[str, Any]) -> None:
    config = DPDFDConfig(stability=1e-9, **changes)
    student, one, other = teachers(4)
    apart = (bounded(student - one, config) - bounded(student - other, config)).norm(dim=1)
    found = float(apart.max()) / config.sensitivity(MNIST)
    assert found == pytest.approx(1 if config.k is None else math.sqrt(10 / 4), abs=1e-6)
    wild = torch.randn(300, 10, generator=torch.Generator().manual_seed(0)) * torch.logspace(-9, 9, 300)[:, None]
    wild[0, 0] = math.nan
    assert float(bounded(wild, config).norm(dim=1).max()) <= config.sensitivity(MNIST) / 2 * math.sqrt(
        10 / (config.k or 10)
    )


@pytest.mark.parametrize("reading", ["batch-mean", "per-example"])
def test_every_image_gets_noise_of_its_own(reading: Any) -> None:
    config = DPDFDConfig(sigma=50.0, gradients=reading)
    noisy = answered(torch.zeros(2000, 10), config, MNIST, book())
    assert float(noisy.std()) == pytest.approx(50 / 2000, rel=0.03)
    assert float((noisy[0] - noisy[1]).abs().min()) > 0


def test_mean_does_not_say_which_image_has_which_class() -> None:
    gradients = torch.eye(10, dtype=torch.float64)
    noisy = answered(gradients, DPDFDConfig(sigma=1e-6), MNIST, book())
    torch.testing.assert_close(noisy, torch.full((10, 10), 0.1), rtol=0, atol=1e-5)
    apart = answered(gradients, DPDFDConfig(sigma=1e-6, gradients="per-example"), MNIST, book())
    torch.testing.assert_close(apart, gradients.float(), rtol=0, atol=1e-5)


def test_claim_is_refuted_by_two_teachers_that_one_record_tells_apart() -> None:
    """Calibrated to a claimed epsilon of 1, one batch of answers shows which of two teachers gave them."""
    config = DPDFD(DPDFDConfig(iterations=50, batch=64), MNIST).calibrate(Budget(1.0, 1e-5))
    student, *both = teachers(config.batch)

    def score(teacher: torch.Tensor, noise: int) -> float:
        noisy = answered(bounded(student - teacher, config), config, MNIST, book(noise))
        return float((noisy * (student - both[0])).sum())

    first, second = (sum(score(teacher, i + 2 * n) > 0 for n in range(100)) for i, teacher in enumerate(both))
    seen = many_run_epsilon(second, 100, 100 - first, 100, 1e-5).epsilon
    assert seen > 3 * DPDFD(config, MNIST).claimed(1e-5).epsilon
    assert seen < proven(config.events(MNIST), 1e-5).epsilon


@pytest.mark.parametrize("reading", ["batch-mean", "per-example"])
@pytest.mark.parametrize("bounding", ["normalise", "clamp"])
def test_run_spends_what_is_proven_for_its_setting(reading: str, bounding: str) -> None:
    config, _ = build_config(DPDFD, Preset.TINY, SMALL)
    config = dataclasses.replace(config, gradients=reading, bounding=bounding)
    config = DPDFD(config, SMALL).calibrate(Budget(3.0, 1e-5, Basis.PROVEN))
    ledger = book()
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    DPDFD(config, private_pair()[0].facts).train_student(private_pair()[0], public_set(), ledger, context)
    assert 0.999 * 3 < proven(ledger.events, 1e-5).epsilon <= 3 * (1 + 1e-9)
    assert proven(DPDFD(config, SMALL).charges(), 1e-5).epsilon == pytest.approx(proven(ledger.events, 1e-5).epsilon)


def test_claims_are_those_of_both_readings_and_the_proof_is_of_neither() -> None:
    at_once = DPDFDConfig()
    assert DPDFD(at_once, MNIST).claimed(1e-5).epsilon == pytest.approx(0.5457, rel=1e-3)
    theorem = dataclasses.replace(at_once, claim="theorem")
    assert DPDFD(theorem, MNIST).claimed(1e-5).epsilon == dpsd(1e-4, 10, 256, 200, 100.0, 1e-5).epsilon
    assert proven(at_once.events(MNIST), 1e-5).epsilon == pytest.approx(6.76e5, rel=1e-3)
    for config in (at_once, theorem):
        for epsilon in (1.0, 10.0):
            found = DPDFD(config, MNIST).calibrate(Budget(epsilon, 1e-5))
            assert 0.999 * epsilon < DPDFD(found, MNIST).claimed(1e-5).epsilon <= epsilon


def test_generator_learns_from_the_student_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.methods.distillation import alternation

    seen: list[list[str]] = []
    check = alternation.check_finite

    def watched(terms: dict[str, Any], *rest: Any) -> None:
        seen.append(list(terms))
        check(terms, *rest)

    monkeypatch.setattr(alternation, "check_finite", watched)
    config, _ = build_config(DPDFD, Preset.TINY, SMALL)
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    DPDFD(config, private_pair()[0].facts).train_student(private_pair()[0], public_set(), book(), context)
    assert ["one_hot", "entropy", "activation"] in seen
    assert not any("Eq. 7" in names and len(names) > 1 for names in seen)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [("gradients=batch-mean",), ("bounding=clamp", "k=3"), ("amount=20",)])
def test_every_option_keeps_private_data_behind_the_ledger(changes: tuple[str, ...]) -> None:
    assert check_method(DPDFD, overrides=changes).ok


@pytest.mark.parametrize("field", ["sigma", "bound", "stability", "step"])
def test_settings_that_cannot_be_meant_are_refused(field: str) -> None:
    with pytest.raises(BenchError, match=field):
        configured("dpdfd", {field: 0.0})
