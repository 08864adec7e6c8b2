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
from bench.core.types import Basis, Budget, Facts, LabelledSource, PrivateData, PublicData, Released
from bench.data.text import VOCABULARY
from bench.evaluation.check.noninterference import check_method
from bench.experiments.release import load_released, save_released
from bench.interface.method import Method
from bench.interface.registry import METHODS
from bench.methods.pate import naive_bayes as nb
from bench.methods.pate.trpate_bayes import PATEBayes, PATEBayesConfig, TrPATEBayes, TrPATEBayesConfig
from bench.methods.shared.transfer import source_part
from bench.privacy.accounting.claims import pate_closed_form
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SeededNoise
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.loop import accuracy
from helpers.sentences import counted, sentences
from helpers.settings import FACTS, configured

WORDS = Facts("made up", 400, 100, 200, 2, (2, 1, 12), public_benchmark=True)
MR = Facts("movie-review", 6_400, 1_000, 1_130, 2, (2, 1, 64), public_benchmark=True)


def told(images: np.ndarray[Any, Any]) -> torch.Tensor:
    """A rule that words decide: more of the first half of the vocabulary than of the second."""
    counts = counted(images)
    return torch.from_numpy((counts[:, :15].sum(1) > counts[:, 15:].sum(1)).astype(np.int64))


def world(source: int = 300) -> tuple[PrivateData, PublicData, torch.Tensor, torch.Tensor]:
    private, public, test = sentences(400, 1), sentences(100, 2), sentences(200, 3)
    known = sentences(source, 4, length=30)
    labelled = LabelledSource(torch.from_numpy(known), told(known), "made up", "nothing") if source else None
    return (
        PrivateData(torch.from_numpy(private), told(private), WORDS),
        PublicData(torch.from_numpy(public), "made up", labelled),
        torch.from_numpy(test),
        told(test),
    )


def context(seed: int = 0) -> Context:
    return Context(torch.device("cpu"), Streams(seed), Cache(None, {}), Progress())


def ledger(method: type[Method]) -> Ledger:
    return Ledger(method.unit, method.adjacency, Noisy(SeededNoise(np.random.default_rng(0))))


def train(method: type[Method], **changes: Any) -> tuple[Released, float]:
    private, public, images, labels = world()
    config = method.Config(**{"teachers": 40, "queries": 100, "gamma": 0.5, **changes})
    released = method(config, private.facts).train_student(private, public, ledger(method), context())
    return released, accuracy(released.student, images, labels)


def test_a_source_helps_small_teachers(tmp_path: Any) -> None:
    (flat, low), (informed, high) = train(PATEBayes), train(TrPATEBayes)
    assert high > 0.85
    assert high > low
    assert flat.student_name == informed.student_name == "naive_bayes_words"
    save_released(informed, tmp_path / "x.safetensors")
    again = load_released(tmp_path / "x.safetensors")
    _, _, images, labels = world()
    assert accuracy(again.student, images, labels) == high


def test_the_student_is_the_prior_and_the_answers() -> None:
    released, _ = train(TrPATEBayes, source_fraction=0.5, source_weight=0.25)
    _, public, _, _ = world()
    source = public.labelled
    assert source is not None
    kept = source_part(source.labels.numpy(), 0.5, "made up")
    prior = 1 + 0.25 * nb.group_counts(source.images.numpy()[kept], source.labels.numpy()[kept], 2)
    asked, labels = released.extras["query_indices"], released.extras["query_labels"]
    counts = nb.group_counts(public.images[asked].numpy(), labels.numpy(), 2)
    table = released.student.get_classifier().weight  # type: ignore[operator]
    assert table.shape == (2, VOCABULARY)
    assert torch.equal(table, torch.from_numpy(nb.log_means(prior + counts)).float())


def test_words_without_a_source_are_refused_before_anything_is_charged() -> None:
    private, public, _, _ = world(source=0)
    book = ledger(TrPATEBayes)
    with pytest.raises(BenchError, match=r"made up has none\. Use pate-bayes"):
        TrPATEBayes(TrPATEBayesConfig(teachers=4, queries=5), private.facts).train_student(
            private, public, book, context()
        )
    assert not book.events


def test_source_of_other_images_is_refused() -> None:
    facts = Facts("made up", 40, 10, 10, 2, (1, 4, 4))
    images = torch.zeros(40, 1, 4, 4, dtype=torch.uint8)
    source = LabelledSource(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4) % 2, "other", "nothing")
    private = PrivateData(images, torch.arange(40) % 2, facts)
    public = PublicData(images[:10], "x", source)
    with pytest.raises(BenchError, match=r"shape \(1, 8, 8\)"):
        TrPATEBayes(TrPATEBayesConfig(teachers=4), facts).votes(private, public, np.arange(10), context())


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["pate-bayes", "trpate-bayes"])
@pytest.mark.parametrize("shape", [(2, 1, 40), (1, 6, 6)])
def test_nothing_goes_round_the_ledger(name: str, shape: tuple[int, int, int]) -> None:
    facts = Facts("check", 240, 80, 40, 3, shape)
    check = check_method(METHODS.get(name), facts=facts, labelled=True)
    assert check.ok, check.reason


def test_pixels_work_with_and_without_a_source() -> None:
    random = np.random.default_rng(0)
    facts = Facts("made up", 300, 60, 60, 3, (1, 5, 5), public_benchmark=True)

    def some(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = random.integers(0, 3, count)
        centres = np.random.default_rng(1).uniform(60, 200, (3, 1, 5, 5))
        images = np.clip(centres[labels] + random.normal(0, 40, (count, 1, 5, 5)), 0, 255)
        return torch.from_numpy(images.astype(np.uint8)), torch.from_numpy(labels)

    private, (public, _), source, test = PrivateData(*some(300), facts), some(60), some(60), some(60)
    for method in (PATEBayes, TrPATEBayes):
        for labelled in (None, LabelledSource(*source, "made up", "nothing")):
            config = method.Config(teachers=20, queries=60, gamma=1.0)
            known = PublicData(public, "made up", labelled)
            released = method(config, private.facts).train_student(private, known, ledger(method), context())
            assert released.student_name == "naive_bayes_pixels"
            assert accuracy(released.student, *test) > 0.8


def test_settings_are_the_papers() -> None:
    config = TrPATEBayesConfig()
    assert (config.teachers, config.gamma, config.alpha, config.source_fraction) == (80, 0.05, 1.0, 1.0)
    # Table 5, gamma 0.05, delta 1e-5.
    for queries, epsilon in ((1000, 25.2), (500, 15.7), (200, 8.8), (100, 5.8)):
        claim = TrPATEBayes(dataclasses.replace(config, queries=queries), MR).claimed(1e-5)
        assert claim == pate_closed_form(0.05, queries, 1e-5)
        assert claim.epsilon == pytest.approx(epsilon, abs=0.05)
        fitted = TrPATEBayes(config, MR).calibrate(Budget(claim.epsilon, 1e-5, Basis.CLAIMED))
        assert (fitted.queries, fitted.gamma) == (queries, 0.05)


def test_presets() -> None:
    paper = build_config(TrPATEBayes, Preset.PAPER, MR)
    assert paper == (TrPATEBayesConfig(), [])
    assert build_config(TrPATEBayes, Preset.QUICK, MR)[0].teachers == 80
    small = Facts("digits", 1_000, 400, 397, 10, (1, 8, 8))
    assert build_config(PATEBayes, Preset.QUICK, small)[0].teachers == 40


def test_a_row_says_what_the_source_shares() -> None:
    words = TrPATEBayes(TrPATEBayesConfig(source_fraction=0.5), MR).public_words()
    assert "0.5 of imdb" in words
    assert "62 of Movie Review" in words
    paper = dataclasses.replace(MR, dataset="movie-review-sst")
    assert "protects nobody" in TrPATEBayes(TrPATEBayesConfig(), paper).public_words()
    assert "source" not in TrPATEBayes(TrPATEBayesConfig(), dataclasses.replace(MR, dataset="mnist")).public_words()
    assert "source" not in PATEBayes(PATEBayesConfig(), MR).public_words()


@pytest.mark.parametrize(
    ("field", "value"),
    [("teachers", 0), ("gamma", 0.0), ("alpha", -1.0), ("source_fraction", 0.0), ("source_weight", float("nan"))],
)
def test_settings_that_cannot_be_meant(field: str, value: float) -> None:
    with pytest.raises(BenchError, match=field):
        configured("trpate-bayes", {field: value})


@pytest.mark.parametrize("name", ["pate-bayes", "trpate-bayes"])
def test_tables_of_other_teachers_votes_are_not_theirs(name: str) -> None:
    """They gave 100 queries at 2.04, whose closed form is 5.80: nothing checks the claim on the votes afterwards."""
    counts = []
    for claim in ("data-dependent", "closed-form"):
        method = METHODS.get(name)(configured(name, {"claim": claim}), FACTS)
        counts.append(method.calibrate(Budget(2.04, 1e-5, Basis.CLAIMED)).queries)
    assert counts[0] == counts[1] < 100
