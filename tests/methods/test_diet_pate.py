"""PATE on random images: no public image is used, batch statistics are those of the queries, votes stay one each."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Basis, Budget, PrivacyUnit, PublicData, Released
from bench.experiments.run import run_cell
from bench.methods.pate.diet_pate import DietPATE, DietPATEConfig
from bench.methods.pate.family import PATEFamily
from bench.methods.pate.pate_gnmax import PATEGNMax
from bench.methods.shared.random_images import random_images
from bench.methods.shared.teachers import train_ensemble
from bench.models.build import build
from bench.privacy.accounting.accountants import proven
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.loop import FitSettings
from bench.training.teacher import TeacherTask, rebuilt, teacher_labels
from helpers.ledgers import seeded_ledger
from helpers.one_teacher import one_cell
from helpers.settings import configured
from helpers.small_sets import SMALL, private_pair, public_set

NONE = dataclasses.replace(SMALL, public_records=0)


def tiny(**changes: object) -> DietPATEConfig:
    config, _ = build_config(DietPATE, Preset.TINY, SMALL)
    settings = {"teachers": 4, "queries": 30, "images": 50, "sigma": 0.5, **changes}
    return dataclasses.replace(config, **settings)


def context() -> Context:
    return Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())


def run(public: PublicData, config: DietPATEConfig) -> Released:
    book = seeded_ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, np.random.default_rng(0))
    private = dataclasses.replace(private_pair()[0], facts=NONE)
    return DietPATE(config, private.facts).train_student(private, public, book, context())


def test_public_images_are_not_used_and_not_needed() -> None:
    none = PublicData(torch.empty(0, *SMALL.shape, dtype=torch.uint8), "")
    with_them, without = run(public_set(), tiny()), run(none, tiny())
    for name, value in without.student.state_dict().items():
        assert torch.equal(with_them.student.state_dict()[name], value)
    config = DietPATE(tiny(sigma=10.0), NONE).calibrate(Budget(2.0, 1e-5, Basis.PROVEN))
    assert 0 < config.queries < config.images
    assert proven(DietPATE(config, NONE).charges(), 1e-5).epsilon <= 2
    few = DietPATE(tiny(sigma=1e4, images=5), NONE).calibrate(Budget(2.0, 1e-5))
    assert few.queries == 5


@pytest.mark.parametrize("statistics", [False, True])
def test_a_record_changes_at_most_one_vote_of_a_query(statistics: bool) -> None:
    private, _ = private_pair()
    images, labels = private.images.clone(), private.labels.clone()
    images[0], labels[0] = 255 - images[0], 9 - labels[0]
    changed = dataclasses.replace(private, images=images, labels=labels)
    order, config = np.arange(80), tiny(batch_statistics=statistics)
    before, after = (
        DietPATE(config, data.facts).votes(data, public_set(), order, context()) for data in (private, changed)
    )
    assert before.sum() == after.sum() == 4 * 30
    assert np.abs(after - before).sum(1).max() <= 2


def test_batch_statistics_are_of_the_queries() -> None:
    net = build("small_cnn_bn", 10, 1, (28, 28))
    state = {name: value.numpy() for name, value in net.state_dict().items()}
    images = public_set().images
    plain = TeacherTask("small_cnn_bn", 10, FitSettings(steps=1))
    task = dataclasses.replace(plain, batch_statistics=True)
    asked = rebuilt(task, SMALL.shape, state)
    assert not asked.training
    with torch.no_grad():
        expected = net.train()(images.float() / 255)
        assert torch.allclose(asked(images.float() / 255), expected, atol=1e-5)
    assert np.array_equal(teacher_labels(task, SMALL.shape, state, images), expected.argmax(1).numpy())
    assert not torch.allclose(rebuilt(plain, SMALL.shape, state)(images.float() / 255), expected, atol=1e-3)


def test_its_votes_have_keys_of_their_own() -> None:
    """As many random images as public ones must not be taken for these."""
    public = public_set()
    of_pate = PATEFamily.query_source(PATEGNMax(tiny(), private_pair()[0].facts), public)
    sources = [
        DietPATE(tiny(batch_statistics=on), private_pair()[0].facts).query_source(public) for on in (False, True)
    ]
    assert of_pate == {"public": 80}
    assert sources[0] != of_pate != sources[1] != sources[0]


def test_no_image_is_an_error() -> None:
    with pytest.raises(BenchError, match="images must be at least 1"):
        configured("diet-pate", {"images": 0})


def test_answers_to_random_images_are_not_compared_with_the_labels_of_public_ones(tmp_path: Path) -> None:
    with one_cell(tmp_path, "sigma=40", method=DietPATE) as (cell, run_dir, source):
        record = run_cell(cell, run_dir, source, Progress())
    assert record.queries is not None, record.failure
    assert record.queries.label_accuracy is None


def test_teachers_that_stop_by_other_images_are_other_artefacts(tmp_path: Path) -> None:
    """Which images they watch decides when they stop."""
    config, cache = tiny(teacher_settle=1, teachers=2), Cache(tmp_path, {})
    home = Context(torch.device("cpu"), Streams(0), cache, Progress())
    draws = torch.Generator().manual_seed(0)
    for _ in range(2):
        train_ensemble(config, private_pair()[0], home, watched=random_images(20, SMALL.shape, draws))
    assert len(set(cache.made)) == 2
