"""TrPATE: the paper's settings and figures, what its rows say, and what `bench check` makes of a leaky head."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bench.core.config import Preset, build_config, parse_overrides, values_of
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Basis, Budget, Facts, PrivateData, PublicData, Released
from bench.data.splits import partition
from bench.evaluation.audit.pairs import worst_pairs
from bench.evaluation.check.noninterference import CheckVerdict, check_method
from bench.interface.registry import METHODS
from bench.methods.pate.head_training import HeadTraining
from bench.methods.pate.trpate import TrPATE, TrPATEConfig
from bench.models.build import build
from bench.models.weight_packages import PACKAGES
from bench.privacy.accounting.accountants import proven
from bench.privacy.events.events import LNMax
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SecureNoise, SeededNoise
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.features import features_of
from helpers.settings import configured
from helpers.small_sets import SMALL, private_pair, public_set

CIFAR = Facts("cifar10", 40_000, 10_000, 10_000, 10, (3, 32, 32), public_benchmark=True)
FAMILY = ("trpate", "trpate-gnmax", "trpate-confident")


def context(seed: int = 0) -> Context:
    return Context(torch.device("cpu"), Streams(seed), Cache(None, {}), Progress())


@pytest.mark.parametrize(
    ("asked", "queries", "exact"),
    [(5.8, 100, 2.8934), (7.38, 150, None), (8.79, 200, 4.3167), (15.73, 500, 7.4213), (25.18, 1000, 11.3478)],
)
def test_queries_of_table_2(asked: float, queries: int, exact: float | None) -> None:
    """Theorem 1 gives the paper's column, and the noisy histograms prove less than half of it."""
    config, reduced = build_config(TrPATE, Preset.PAPER, CIFAR)
    assert reduced == []
    calibrated = TrPATE(config, CIFAR).calibrate(Budget(asked, 1e-5))
    assert calibrated.queries == queries
    claim = TrPATE(calibrated, CIFAR).claimed(1e-5)
    assert claim.epsilon == pytest.approx(asked, abs=0.006)
    assert "Theorem 1" in claim.source
    if exact is not None:
        assert proven([LNMax(calibrated.gamma, calibrated.queries)], 1e-5).epsilon == pytest.approx(exact, abs=1e-3)


def test_the_papers_settings() -> None:
    config = TrPATEConfig()
    assert (config.backbone, config.image_size, config.teachers, config.gamma) == ("resnet50_keras", 197, 200, 0.05)
    text = Facts("movie-review-sst", 8_000, 1_000, 1_662, 2, (2, 1, 64))
    of_text, _ = build_config(TrPATE, Preset.PAPER, text)
    assert (of_text.backbone, of_text.weights, of_text.teachers, of_text.hidden) == ("text_cnn", "source", 80, 250)


@pytest.mark.parametrize("name", FAMILY)
def test_the_source_and_its_overlap_are_in_the_row(name: str) -> None:
    method = METHODS.get(name)
    words = method(method.Config(weights="package"), CIFAR).public_words()
    assert "ImageNet through resnet50_keras" in words
    assert "all but deer" in words
    drawn = method(method.Config(weights="random"), CIFAR).public_words()
    assert "untrained" in drawn
    twin = method(method.Config(weights="package"), dataclasses.replace(CIFAR, dataset="stl10")).public_words()
    assert "private records may lie in the source" in twin


def test_teacher_names_the_backbone() -> None:
    assert values_of(parse_overrides(TrPATE, ["teacher=resnet18"])) == {"backbone": "resnet18"}
    assert values_of(parse_overrides(METHODS.get("pate"), ["teacher=resnet18"])) == {"teacher": "resnet18"}


def test_packages_are_pinned_in_the_config() -> None:
    calibrated = TrPATE(TrPATEConfig(), CIFAR).calibrate(Budget(10, 1e-5))
    assert (calibrated.weights, calibrated.weights_sha256) == ("package", PACKAGES["resnet50_keras"].sha256)


def test_a_file_is_known_by_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record names neither folder nor machine, and the file is found again by its digest alone."""
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))
    save_file(build("test_resnet", 0, 3, (32, 32)).state_dict(), tmp_path / "own.safetensors")
    config = TrPATEConfig(backbone="test_resnet", weights=f"file:{tmp_path / 'own.safetensors'}", image_size=32)
    calibrated = TrPATE(config, CIFAR).calibrate(Budget(10, 1e-5))
    assert calibrated.weights == "file:own.safetensors"
    assert len(calibrated.weights_sha256) == 64
    small = dataclasses.replace(CIFAR, private_records=60, public_records=20)
    images = torch.randint(0, 256, (80, 3, 32, 32), dtype=torch.uint8)
    private = PrivateData(images[:60], torch.arange(60) % 10, small)
    ledger = Ledger(TrPATE.unit, TrPATE.adjacency, Noisy(SeededNoise(np.random.default_rng(0))))
    few = dataclasses.replace(calibrated, teachers=3, queries=5, epochs=1, hidden=4)
    released = TrPATE(few, private.facts).train_student(private, PublicData(images[60:], "made up"), ledger, context())
    assert released.student_options["backbone"]["sha256"] == calibrated.weights_sha256
    assert all(name.startswith("head.") for name in released.student.state_dict())
    (tmp_path / "own.safetensors").unlink()
    with pytest.raises(BenchError, match="weights"):
        TrPATE(few, private.facts).train_student(private, PublicData(images[60:], "made up"), ledger, context())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backbone": "resnet5O_keras"}, "resnet50_keras"),
        ({"backbone": "resnet18", "weights": "package"}, "tf_efficientnet_lite0"),
        ({"weights_sha256": "0" * 64}, "SHA-256"),
        ({"weights": "file:/nowhere/at/all.pth"}, "nowhere"),
        ({"weights": "elsewhere"}, "file:PATH"),
        ({"backbone": "vit_tiny_patch16_224", "weights": "hub", "image_size": 3}, "3x3"),
        ({"teachers": 40_001}, "more teachers than records"),
        ({"source_fraction": 0.5}, "source_fraction"),
    ],
)
def test_mistakes_are_told_before_anything_runs(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BenchError, match=said):
        TrPATE(dataclasses.replace(TrPATEConfig(), **changes), CIFAR).calibrate(Budget(10, 1e-5))


@pytest.mark.parametrize("changes", [{"image_size": -1}, {"source_fraction": 0.0}, {"teachers": 0}, {"lr": 0.0}])
def test_settings_that_cannot_be_meant(changes: dict[str, Any]) -> None:
    with pytest.raises(BenchError):
        configured("trpate", changes)


def test_audits_build_their_pairs_without_the_source_of_the_row() -> None:
    given = TrPATEConfig(backbone="test_resnet", weights="source:mnist", source_fraction=0.5, image_size=32)
    config = TrPATE(given, CIFAR).calibrate(Budget(10, 1e-5))
    assert {pair.config["weights"] for pair in worst_pairs(TrPATE, config, CIFAR, 1e-5)} == {"random"}


def test_a_source_must_be_there() -> None:
    config = TrPATEConfig(weights="source", backbone="small_cnn", image_size=0, teachers=4, queries=4)
    first, _ = private_pair()
    ledger = Ledger(TrPATE.unit, TrPATE.adjacency, Noisy(SeededNoise(np.random.default_rng(0))))
    with pytest.raises(BenchError, match="labelled public source"):
        TrPATE(config, first.facts).train_student(first, public_set(), ledger, context())


@pytest.mark.slow
def test_knowledge_of_a_source_helps() -> None:
    """Heads of twenty records each are better on a net that saw labelled public images than on an untrained one."""
    from sklearn.datasets import load_digits

    known = load_digits()
    images = torch.from_numpy((known.images[:, None] * 15).astype(np.uint8))
    labels = torch.from_numpy(known.target.astype(np.int64))
    facts = Facts("digits", 400, 300, 300, 10, (1, 8, 8), public_benchmark=True)
    from bench.core.types import LabelledSource

    public = PublicData(images[400:700], "digits", LabelledSource(images[1000:], labels[1000:], "others", "none"))
    private = PrivateData(images[:400], labels[:400], facts)
    found = {}
    for weights in ("source", "random"):
        config = TrPATEConfig(
            backbone="small_cnn",
            weights=weights,
            image_size=0,
            teachers=20,
            queries=200,
            gamma=1.0,
            hidden=32,
            lr=0.05,
            source_epochs=60.0,
        )
        ledger = Ledger(TrPATE.unit, TrPATE.adjacency, Noisy(SeededNoise(np.random.default_rng(0))))
        released = TrPATE(config, private.facts).train_student(private, public, ledger, context())
        logits = released.student(images[700:1000].float() / 255)
        found[weights] = float((logits.argmax(1) == labels[700:1000]).float().mean())
    assert found["source"] > found["random"] + 0.02


class BatchNormedHeads(TrPATE):
    """Leaks: features are normalised by statistics of all private records, and the student gets them too."""

    name = "batch-normed-heads"

    def student(self, *given: Any) -> Any:
        student, name, options = super().student(*given)
        with torch.no_grad():
            student.head.first.bias.sub_(student.head.first.weight @ self.mean)
        return student, name, options

    def votes(self, private: PrivateData, public: PublicData, order: Any, context: Context) -> Any:
        backbone = self.backbone(public, context)
        self.mean = features_of(private.images, backbone, context, "private").mean(0)
        return super().votes(private, public, order, context)


class BatchNormedVotes(TrPATE):
    """Leaks less openly: only the teachers' features are batch-normalised, so one record moves many votes."""

    name = "batch-normed-votes"

    def votes(self, private: PrivateData, public: PublicData, order: Any, context: Context) -> Any:
        from bench.training.ensemble import count_votes

        backbone = self.backbone(public, context)
        features = features_of(private.images, backbone, context, "private")
        asked = features_of(public.images, backbone, context, "public")
        mean, deviation = features.mean(0), features.std(0) + 1e-3
        parts = partition(len(private), self.config.teachers, "leaky")
        training = HeadTraining(
            (features - mean) / deviation, private.labels, parts, private.facts.classes,
            dataclasses.replace(self.heads(), epochs=30), torch.Generator().manual_seed(0),
        )  # fmt: skip
        labels = training.labels_of((asked - mean) / deviation)
        return count_votes(labels[:, order[: self.config.queries]], private.facts.classes)


def test_a_head_that_batch_normalises_private_data_is_rejected() -> None:
    check = check_method(BatchNormedHeads)
    assert check.verdict is CheckVerdict.REJECTED
    assert "the two runs differ in" in check.reason


def test_teachers_that_batch_normalise_private_data_are_rejected() -> None:
    check = check_method(BatchNormedVotes, overrides=("teachers=80", "gamma=0.05", "least_queries=80"))
    assert check.verdict is CheckVerdict.REJECTED
    assert "votes of one query" in check.reason


@pytest.mark.parametrize("claim", ["data-dependent", "sanitised"])
@pytest.mark.parametrize("name", ["trpate-gnmax", "trpate-confident"])
def test_claims_of_the_newer_pate(name: str, claim: str) -> None:
    """The sanitised draw scatters around the data-dependent figure and says that it is one."""
    method = METHODS.get(name)
    facts = dataclasses.replace(SMALL, public_benchmark=True)
    wide = {"sigma": 20.0} if name == "trpate-gnmax" else {"sigma1": 60.0, "sigma2": 20.0}
    config, _ = build_config(method, Preset.TINY, facts, {"claim": claim, **wide})
    config = method(config, facts).calibrate(Budget(10, 1e-5, Basis.PROVEN))
    ledger = Ledger(method.unit, method.adjacency, Noisy(SeededNoise(np.random.default_rng(3))))
    released: Released = method(config, private_pair()[0].facts).train_student(
        private_pair()[0], public_set(), ledger, context()
    )
    assert released.extras["query_labels"].numel() > 0
    claimed = method(config, facts).claimed_after(1e-5, ledger)
    assert np.isfinite(claimed.epsilon)
    assert ("draw" in claimed.note) == (claim == "sanitised")


def test_a_sanitised_claim_that_cannot_be_made_is_refused_beforehand() -> None:
    method = METHODS.get("trpate-gnmax")
    known = dataclasses.replace(SMALL, public_benchmark=True)
    config, _ = build_config(method, Preset.TINY, known, {"claim": "sanitised", "sigma": 1.6})
    with pytest.raises(BenchError, match="smooth sensitivity"):
        method(config, known).calibrate(Budget(10, 1e-5))
    with pytest.raises(BenchError, match="public benchmarks"):
        method(dataclasses.replace(config, sigma=20.0), SMALL).calibrate(Budget(10, 1e-5))
    with pytest.raises(BenchError, match="exact sampler"):
        Ledger(method.unit, method.adjacency, Noisy(SecureNoise())).check_sanitised()


def test_another_data_set_as_source_and_parts_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source is read batch by batch; a tenth of it has a tenth of every class, and is another backbone."""
    from bench.methods.shared.transfer import source_records
    from bench.training.pretraining import LazyImages

    public = PublicData(torch.zeros(5, 3, 32, 32, dtype=torch.uint8), "made up")
    config = TrPATEConfig(backbone="small_cnn", weights="source:digits", image_size=16, source_epochs=1.0)
    tenth = dataclasses.replace(config, source_fraction=0.1)
    images, labels, classes, name, revision = source_records(tenth, CIFAR, public)
    assert isinstance(images, LazyImages)
    assert (classes, name, len(images)) == (10, "digits", len(labels))
    assert revision.startswith("sha256:")
    assert images[torch.tensor([3, 1])].shape == (2, 1, 8, 8)
    assert 10 <= np.bincount(labels).min() <= np.bincount(labels).max() <= 16
    from bench.methods.shared.transfer import backbone_of

    whole, part = (backbone_of(one, CIFAR, public, context()) for one in (config, tenth))
    assert whole.spec.sha256 != part.spec.sha256
    assert "0.1 of digits" in part.spec.source
    assert whole(torch.rand(2, 3, 32, 32)).shape == (2, 64)
    with pytest.raises(BenchError, match="itself"):
        backbone_of(dataclasses.replace(config, weights="source:cifar10"), CIFAR, public, context())


@pytest.mark.parametrize(
    ("dataset", "shape", "changes", "said"),
    [
        ("att-faces-a", (1, 112, 92), {"weights": "source:att-faces"}, "private data set itself"),
        ("mnist", (1, 28, 28), {"weights": "source:mnist-01"}, "private data set itself"),
        ("digits", (1, 8, 8), {"weights": "source:nosuch"}, "nosuch"),
        ("digits", (1, 8, 8), {"weights": "source"}, "labelled public source"),
        ("movie-review", (2, 1, 64), {"weights": "random"}, "sentences"),
        ("digits", (1, 8, 8), {"weights": "random", "backbone": "text_cnn"}, "images"),
    ],
)
def test_sources_and_nets_that_do_not_fit(
    dataset: str, shape: tuple[int, int, int], changes: dict[str, Any], said: str
) -> None:
    """Told at plan time; the private set is no public source under any of its names."""
    facts = Facts(dataset, 400, 200, 100, 2, shape, public_benchmark=True)
    config = TrPATEConfig(**{"backbone": "small_cnn", "image_size": 0, "teachers": 4, **changes})
    with pytest.raises(BenchError, match=said):
        TrPATE(config, facts).calibrate(Budget(10, 1e-5))


def test_rows_do_not_misstate_the_source() -> None:
    stl = dataclasses.replace(CIFAR, dataset="stl10")
    own = TrPATE(TrPATEConfig(backbone="resnet18.a1_in1k", weights="file:own.pth"), stl).public_words()
    assert "user's file" in own
    assert "ImageNet" not in own
    for name in ("resnet18", "resnet18.a1_in1k"):
        assert "private records may lie" in TrPATE(TrPATEConfig(backbone=name, weights="hub"), stl).public_words()
    large = TrPATE(TrPATEConfig(backbone="vit_base_patch16_224.augreg_in21k", weights="hub"), CIFAR).public_words()
    assert "holds ImageNet-1k, of which" in large


def test_a_path_with_its_digest_leaves_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))
    save_file(build("test_resnet", 0, 3, (32, 32)).state_dict(), tmp_path / "own.safetensors")
    path = f"file:{tmp_path / 'own.safetensors'}"
    config = TrPATEConfig(backbone="test_resnet", weights=path, image_size=32)
    digest = TrPATE(config, CIFAR).calibrate(Budget(10, 1e-5)).weights_sha256
    again = TrPATE(dataclasses.replace(config, weights_sha256=digest), CIFAR).calibrate(Budget(10, 1e-5))
    assert (again.weights, again.weights_sha256) == ("file:own.safetensors", digest)
    with pytest.raises(BenchError, match="SHA-256"):
        TrPATE(dataclasses.replace(config, weights_sha256="0" * 64), CIFAR).calibrate(Budget(10, 1e-5))
