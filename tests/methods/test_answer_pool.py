"""Answers used more than once: at no further charge, for as long as answers held back gain by it."""

from __future__ import annotations

import dataclasses
import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.config import Preset, as_dict, build_config
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Budget, PrivacyUnit
from bench.interface.registry import METHODS
from bench.methods.distillation.alternation import soft_loss
from bench.methods.distillation.answer_pool import (
    HELD,
    PATIENCE,
    AnswerPool,
    BestStudent,
    as_drawn,
    running_mean,
    squared_error,
)
from bench.methods.distillation.dpsd import DPSD
from bench.methods.distillation.dpsd_label import DPSDLabel, DPSDLabelConfig
from bench.methods.distillation.dpsd_sound import DPSDSound
from bench.methods.shared.random_images import random_images
from bench.models.build import build
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.ledgers import seeded_ledger
from helpers.small_sets import SMALL, private_pair, public_set

SHAPE = (1, 28, 28)


def context() -> Context:
    return Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())


def bright(images: torch.Tensor) -> torch.Tensor:
    return (images.float().mean((1, 2, 3)) > images.float().mean()).long()


@pytest.mark.parametrize("name", ["dpsd", "dpsd-label", "dpsd-t", "fed-dpsd", "dpdfd"])
def test_further_steps_on_the_answers_cost_nothing_and_leave_the_generator(name: str) -> None:
    method = METHODS.get(name)
    found = []
    for steps in (0, 5):
        config = dataclasses.replace(build_config(method, Preset.TINY, SMALL)[0], pool_steps=steps)
        bound = method(method(config, SMALL).calibrate(Budget(10.0, 1e-5)), SMALL)
        ledger = seeded_ledger(method.unit, Adjacency.REPLACE, np.random.default_rng(0))
        released = bound.train_student(private_pair()[0], public_set(), ledger, context())
        found.append((bound.claimed(1e-5).epsilon, list(ledger.events), released))
    (claim, events, once), (same_claim, same_events, again) = found
    assert (claim, events) == (same_claim, same_events)
    if once.generator is not None and again.generator is not None:
        assert all(map(torch.equal, once.generator.state_dict().values(), again.generator.state_dict().values()))


def test_with_the_law_of_the_answers_the_loss_and_the_error_are_least_at_the_teachers_probabilities() -> None:
    logits = torch.tensor([[3.0, 0.0, -1.0, 0.5]])
    config = DPSDLabelConfig(epsilon=1.0, k=4, label_loss="response")
    uniform = config.uniform_share
    answers = as_drawn(logits.softmax(1), uniform)  # on average
    assert answers[0, 0] / answers[0, 2] < math.e, "epsilon bounds the ratio"
    assert soft_loss(logits, answers) != soft_loss(logits, answers, uniform)
    moves = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    assert all(soft_loss(logits + move, answers, uniform) > soft_loss(logits, answers, uniform) for move in moves)
    assert any(soft_loss(logits + move, answers) < soft_loss(logits, answers) for move in moves), "it is biased"
    assert squared_error(as_drawn(logits.softmax(1), uniform), answers) == 0
    assert DPSDLabelConfig(epsilon=1.0, k=4).uniform_share == 0


def test_the_law_of_the_answers_needs_all_classes_in_the_set() -> None:
    for k, works in ((10, True), (3, False)):
        with nullcontext() if works else pytest.raises(BenchError, match="Set k to 10"):
            DPSDLabel(DPSDLabelConfig(k=k, label_loss="response"), SMALL).calibrate(Budget(1.0, 1e-5))


@pytest.mark.slow
def test_student_gains_by_further_steps_on_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def annotator(*_: Any) -> Any:
        return lambda images, student: torch.nn.functional.one_hot((images.mean((1, 2, 3)) > 0.15).long(), 10).float()

    monkeypatch.setattr(DPSD, "annotator", annotator)
    images = random_images(400, SHAPE, torch.Generator().manual_seed(9)).float() / 255
    right = []
    for steps in (0, 200):
        made, _ = build_config(DPSD, Preset.TINY, SMALL)
        config = dataclasses.replace(made, iterations=8, batch=64, student_lr=0.002, pool_steps=steps)
        bound = DPSD(DPSD(config, SMALL).calibrate(Budget(10.0, 1e-5)), SMALL)
        ledger = seeded_ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, np.random.default_rng(0))
        student = bound.train_student(private_pair()[0], public_set(), ledger, context()).student
        with torch.no_grad():
            said = student(images).argmax(1)
        right.append(float((said == (images.mean((1, 2, 3)) > 0.15).long()).float().mean()))
    assert right[1] > right[0] + 0.05, right


@pytest.mark.parametrize(("method", "field"), [(DPSD, "pool_steps"), (DPSDSound, "held_back")])
def test_records_that_use_answers_once_keep_their_keys(method: Any, field: str) -> None:
    assert field not in as_dict(method.Config())
    assert as_dict(method.Config(**{field: 0.5 if field == "held_back" else 7}))[field]


def test_batches_held_back_are_never_learnt_from() -> None:
    pool, random = AnswerPool(), torch.Generator().manual_seed(0)
    for number in range(2 * HELD + 1):
        pool.batches.append((torch.full((2, *SHAPE), number / 100), torch.full((2, 10), float(number))))
    drawn = {int(pool.batch(random, 0)[1][0, 0]) for _ in range(1000)}
    assert drawn == set(range(2 * HELD + 1)) - {0, HELD, 2 * HELD}


def test_training_ends_after_a_run_of_looks_without_gain_with_the_best_weights() -> None:
    net, best = torch.nn.Linear(2, 2), BestStudent()
    losses = [3.0, 1.0, *[2.0] * PATIENCE]
    went_on = []
    for number, loss in enumerate(losses):
        torch.nn.init.constant_(net.weight, number)
        went_on.append(best.look(net, loss))
    assert went_on == [True] * (len(losses) - 1) + [False]
    again = BestStudent()
    again.load_state_dict(best.state_dict())
    again.restore(net)
    assert torch.equal(net.weight, torch.ones(2, 2))


def test_error_on_noisy_answers_ranks_students_as_clean_answers_would() -> None:
    """Noise of deviation 3 on one-hot labels adds 90 to the error; it hides no difference of 0.4 on 4,000 answers."""
    random = torch.Generator().manual_seed(0)
    clean = torch.nn.functional.one_hot(torch.randint(10, (4000,), generator=random), 10).float()
    noisy = clean + 3 * torch.randn(4000, 10, generator=random)
    students = {name: (2 * logits).softmax(1) for name, logits in (("good", clean), ("bad", clean.roll(400, 0)))}
    told = {name: squared_error(student, noisy) for name, student in students.items()}
    true = {name: squared_error(student, clean) for name, student in students.items()}
    assert told["bad"] - told["good"] == pytest.approx(true["bad"] - true["good"], abs=0.15)
    assert true["bad"] - true["good"] > 0.4


@pytest.mark.slow
def test_student_of_noisy_votes_stops_before_it_fits_the_noise() -> None:
    """Squared error to the true answers, on images that were not asked: less for the student that stopped in time."""
    images = random_images(600, SHAPE, torch.Generator().manual_seed(1))
    answers = torch.nn.functional.one_hot(bright(images), 10).float()
    noisy = answers + 1.5 * torch.randn(answers.shape, generator=torch.Generator().manual_seed(2))
    fresh = random_images(500, SHAPE, torch.Generator().manual_seed(3))
    errors = {}
    for share in (0.0, 0.25):
        config = DPSDSound.Config(student_steps=500, student_batch=64, held_back=share)
        torch.manual_seed(0)
        student = build("small_cnn", 10, 1, (28, 28))
        method = DPSDSound(config, dataclasses.replace(SMALL, shape=SHAPE, classes=10))
        method.learn(student, images, noisy, context(), 0)
        with torch.no_grad():
            found = student(fresh.float() / 255).softmax(1)
        errors[share] = float((found - torch.nn.functional.one_hot(bright(fresh), 10)).square().sum(1).mean())
    assert errors[0.25] < errors[0.0] - 0.05, errors


def test_answers_of_a_label_query_cost_the_same_however_often_they_are_used() -> None:
    method = METHODS.get("dpsd-label")
    config = dataclasses.replace(build_config(method, Preset.TINY, SMALL)[0], pool_steps=100)
    assert method.unit is PrivacyUnit.QUERY_LABEL
    charged = method(config, SMALL).charges()
    assert charged is not None
    (event,) = charged
    assert event.as_dict()["answers"] == config.iterations * config.batch


def test_running_mean_is_the_mean_and_then_forgets() -> None:
    mean = torch.zeros(1)
    for count in range(100):
        mean = running_mean(mean, torch.tensor([float(count)]), count)
    assert float(mean) == pytest.approx(49.5, rel=1e-5)
    for count in range(100, 3000):
        mean = running_mean(mean, torch.ones(1), count)
    assert float(mean) == pytest.approx(1.0, abs=1e-3)
