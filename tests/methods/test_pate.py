"""The PATE methods: what a budget buys, what is claimed and proven for it, what the student sees."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Basis, Budget, Facts, PrivacyUnit
from bench.interface.registry import METHODS
from bench.methods.pate import family
from bench.methods.pate.pate import PATE, PATEConfig
from bench.methods.pate.pate_confident import PATEConfident, PATEConfidentConfig
from bench.methods.pate.pate_gnmax import PATEGNMax, PATEGNMaxConfig
from bench.privacy.accounting.accountants import proven
from bench.privacy.accounting.claims import pate_2017
from bench.privacy.mechanisms.ledger import Ledger
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.ledgers import seeded_ledger
from helpers.settings import configured
from helpers.small_sets import SMALL, private_pair, public_set

MNIST = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28), public_benchmark=True)


def ledger(noise: int = 0) -> Ledger:
    return seeded_ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, np.random.default_rng(noise))


def context(cache: Cache | None = None, seed: int = 0, workers: int = 1) -> Context:
    return Context(torch.device("cpu"), Streams(seed), cache or Cache(None, {}), Progress(), workers)


@pytest.mark.parametrize(("epsilon", "queries"), [(2.04, 100), (5.0, 100), (8.03, 1000), (10.0, 1000)])
def test_paper_preset_takes_the_setting_that_the_paper_prints(epsilon: float, queries: int) -> None:
    config = PATE(PATEConfig(), MNIST).calibrate(Budget(epsilon, 1e-5))
    assert (config.queries, config.gamma) == (queries, 0.05)
    config = PATEConfident(PATEConfidentConfig(), MNIST).calibrate(Budget(1.97, 1e-5))
    assert (config.queries, config.max_answers) == (640, 286)


def test_a_changed_setting_does_not_take_what_the_paper_prints_for_its_own() -> None:
    with pytest.raises(BenchError, match="reachable"):
        PATE(PATEConfig(gamma=1.0), MNIST).calibrate(Budget(2.04, 1e-5))
    config = PATE(PATEConfig(teachers=100), MNIST).calibrate(Budget(5.0, 1e-5))
    assert PATE(config, MNIST).claimed(1e-5).epsilon <= 5.0
    noisy = PATEConfidentConfig(sigma1=60.0)
    assert PATEConfident(noisy, MNIST).calibrate(Budget(2.0, 1e-5)).queries < 640


def test_a_smaller_delta_than_the_printed_one_does_not_take_the_printed_setting() -> None:
    config = PATE(PATEConfig(), MNIST).calibrate(Budget(2.6, 1e-9))
    assert config.queries < 100
    assert PATE(config, MNIST).claimed(1e-9).epsilon <= 2.6


def test_a_budget_below_any_data_dependent_claim_is_refused() -> None:
    method = PATE(PATEConfig(teachers=100), MNIST)
    with pytest.raises(BenchError, match=r"claim is 1\.44 or more at delta 1e-05.*claim=closed-form"):
        method.calibrate(Budget(1.4, 1e-5))
    certain = np.zeros((method.calibrate(Budget(1.45, 1e-5)).queries, 10))
    certain[:, 0] = 100
    assert 1.439 < pate_2017(certain, 0.05, 1e-5).epsilon < 1.45
    assert method.calibrate(Budget(1.4, 1e-5, Basis.PROVEN)).queries > 1


def test_there_are_no_more_answers_than_queries() -> None:
    config = PATEConfidentConfig(max_answers=1000).at(4)
    assert (config.queries, config.max_answers) == (4, 4)


def test_closed_form_pays_for_the_largest_number_of_queries() -> None:
    config = PATE(PATEConfig(claim="closed-form"), MNIST).calibrate(Budget(10.0, 1e-5))
    assert PATE(config, MNIST).claimed(1e-5).epsilon <= 10
    more = dataclasses.replace(config, queries=config.queries + 1)
    assert PATE(more, MNIST).claimed(1e-5).epsilon > 10


@pytest.mark.parametrize("basis", list(Basis))
def test_fewer_queries_than_wanted_lower_gamma(basis: Basis) -> None:
    given = PATEConfig(claim="closed-form", least_queries=40)
    config = PATE(given, MNIST).calibrate(Budget(1.0, 1e-5, basis))
    assert config.queries == 40
    assert config.gamma < 0.05
    found = PATE(config, MNIST).claimed(1e-5).epsilon
    if basis is Basis.PROVEN:
        from bench.privacy.events.events import LNMax

        found = proven([LNMax(config.gamma, config.queries)], 1e-5).epsilon
    assert 0.98 < found <= 1.0 + 1e-9


@pytest.mark.parametrize("name", ["pate", "pate-gnmax", "pate-confident"])
@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_proven_basis_spends_the_budget_and_not_more(name: str, epsilon: float) -> None:
    method = METHODS.get(name)
    # With few public images the budget may not be spent; a large pool tells what it buys.
    facts = dataclasses.replace(MNIST, public_records=1_000_000)
    config, _ = build_config(method, Preset.QUICK, facts)
    config = method(config, facts).calibrate(Budget(epsilon, 1e-5, Basis.PROVEN))
    book = ledger()
    votes = np.zeros((config.queries, 10), dtype=np.int64)
    votes[:, 0] = config.teachers
    method(config, facts).answer(votes, book)
    assert 0.9 * epsilon < proven(book.events, 1e-5).epsilon <= epsilon * (1 + 1e-9)


def test_budget_below_one_query_is_refused_with_what_one_costs() -> None:
    for method, config in ((PATE, PATEConfig()), (PATEGNMax, PATEGNMaxConfig(sigma=0.5))):
        with pytest.raises(BenchError, match=r"\d"):
            method(config, MNIST).calibrate(Budget(0.01, 1e-5))


@pytest.mark.parametrize("name", ["pate", "pate-gnmax", "pate-confident"])
def test_impossible_data_is_refused(name: str) -> None:
    method = METHODS.get(name)
    config, _ = build_config(method, Preset.QUICK, MNIST)
    with pytest.raises(BenchError, match="more teachers than records"):
        method(config, dataclasses.replace(MNIST, private_records=100)).calibrate(Budget(1.0, 1e-5))
    with pytest.raises(BenchError, match="public"):
        method(config, dataclasses.replace(MNIST, public_records=0)).calibrate(Budget(1.0, 1e-5))


@pytest.mark.parametrize("field", ["teachers", "queries", "teacher_steps", "student_epochs", "teacher_lr"])
def test_settings_that_cannot_be_meant_are_refused(field: str) -> None:
    with pytest.raises(BenchError, match=field):
        configured("pate", {field: 0})


def tiny(**changes: Any) -> PATEConfig:
    config, _ = build_config(PATE, Preset.TINY, SMALL)
    return dataclasses.replace(config, **changes)


ORDER = np.random.default_rng(0).permutation(80)


def test_votes_are_counts_of_all_teachers_on_the_queries_alone() -> None:
    private, _ = private_pair()
    votes = PATE(tiny(queries=30), private.facts).votes(private, public_set(), ORDER, context())
    assert votes.shape == (30, 10)
    assert (votes.sum(1) == 10).all()
    assert (votes >= 0).all()
    more = PATE(tiny(queries=80), private.facts).votes(private, public_set(), ORDER, context())
    assert np.array_equal(more[:30], votes)


def test_blocks_of_queries_are_labelled_once_and_only_as_far_as_asked(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, _ = private_pair()
    monkeypatch.setattr(family, "BLOCK", 20)
    made = []
    for queries in (10, 35, 40):
        cache = Cache(tmp_path, {})
        PATE(tiny(queries=queries), private.facts).votes(private, public_set(), ORDER, context(cache))
        made.append([name.rsplit("-", 1)[0] for name in cache.made].count("teacher-labels"))
    assert made == [1, 1, 0]


@pytest.mark.slow
def test_one_record_moves_one_vote_at_most_per_query() -> None:
    private, _ = private_pair()
    config = tiny(teacher_steps=60)
    votes = PATE(config, private.facts).votes(private, public_set(), ORDER, context())
    images, labels = private.images.clone(), private.labels.clone()
    images[7], labels[7] = 255 - images[7], (labels[7] + 3) % 10
    changed = dataclasses.replace(private, images=images, labels=labels)
    other = PATE(config, changed.facts).votes(changed, public_set(), ORDER, context())
    moved = np.abs(votes - other).sum(1)
    assert moved.max() <= 2, "two counts change by one each: the sensitivity that every vote mechanism assumes"
    assert moved.sum() > 0, "the record must matter to its teacher, else this test shows nothing"


def test_cells_share_teachers_and_nothing_else(tmp_path: Any) -> None:
    private, _ = private_pair()
    first, second = Cache(tmp_path, {}), Cache(tmp_path, {})
    config = tiny(queries=30, student_epochs=1)
    PATE(config, private.facts).train_student(private, public_set(), ledger(), context(first))
    other, _ = build_config(PATEGNMax, Preset.TINY, SMALL)
    PATEGNMax(dataclasses.replace(other, queries=50, student_epochs=1), private.facts).train_student(
        private, public_set(), ledger(), context(second)
    )
    assert [name.rsplit("-", 1)[0] for name in first.made] == ["teachers", "teacher-labels"]
    assert second.made == []
    third = Cache(tmp_path, {})
    PATE(config, private.facts).train_student(private, public_set(), ledger(), context(third, seed=1))
    assert len(third.made) == 2, "another seed has teachers of its own"


def test_students_of_two_budgets_have_noise_of_their_own() -> None:
    private, _ = private_pair()
    released = [
        PATE(tiny(queries=60, gamma=0.01), private.facts).train_student(private, public_set(), ledger(noise), context())
        for noise in (1, 2)
    ]
    first, second = (r.extras["query_labels"] for r in released)
    assert torch.equal(*(r.extras["query_indices"] for r in released))
    assert not torch.equal(first, second)


@pytest.mark.few(2)
@pytest.mark.parametrize("training", ["improved-gan", "self-training", "supervised"])
def test_every_kind_of_student_training_learns_from_right_answers(
    training: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.training.loop import FitSettings
    from bench.training.self_training import SelfTrainingSettings

    short = FitSettings(steps=60, batch_size=30, lr=0.05)
    settings = SelfTrainingSettings(labelled=short, pool=short, committee=2, graph_below=2)
    monkeypatch.setattr("bench.methods.pate.family.self_training", lambda facts: settings)
    private, _ = private_pair()
    public = dataclasses.replace(public_set(), images=private.images[:80])
    config = tiny(student_training=training, student="small_cnn", student_epochs=30)
    asked = torch.arange(60)
    student, _, options = PATE(config, private.facts).student(public, asked, private.labels[:60], context())
    with torch.no_grad():
        right = float((student(public.images.float() / 255).argmax(1) == private.labels[:80]).float().mean())
    assert right > 0.8
    assert options["num_classes"] == 10


def test_no_answer_at_all_is_an_error_that_says_so() -> None:
    private, _ = private_pair()
    config, _ = build_config(PATEConfident, Preset.TINY, SMALL)
    with pytest.raises(BenchError, match="answered none"):
        PATEConfident(dataclasses.replace(config, threshold=1e9), private.facts).train_student(
            private, public_set(), ledger(), context()
        )


def test_expected_gaps_in_the_parts_are_said_from_public_numbers_alone() -> None:
    notes: list[list[str]] = []
    for private in private_pair():
        said: list[str] = []
        given = context()
        given.note = said.append
        PATE(tiny(queries=5), private.facts).train_student(private, public_set(), ledger(), given)
        notes.append(said)
    assert notes[0] == notes[1]
    assert "lack a class" in notes[0][0]
