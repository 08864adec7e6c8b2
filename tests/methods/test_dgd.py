"""DGD and its variants: what the formula pays for, where images come from, triples, and what stops a run."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Budget, Facts, PrivacyUnit
from bench.evaluation.check.noninterference import CheckVerdict, check_method
from bench.interface.method import Method
from bench.methods.distillation.dgd import DGD, DGDPrintedConfig
from bench.methods.distillation.dgd_plus import DGDPlus
from bench.methods.distillation.dgd_sound import DGDSound, DGDSoundConfig
from bench.methods.distillation.tangent_normal import (
    StudentSettings,
    directions,
    make_triples,
    train_tangent_normal,
    train_vae,
)
from bench.models.autoencoders import VAE
from bench.models.build import build
from bench.models.generators import DataFreeGenerator
from bench.privacy.accounting.accountants import proven
from bench.privacy.mechanisms.ledger import Ledger
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.data_free import GeneratorSettings, generate, generator_terms, train_generator
from bench.training.divergence import NotFiniteError, check_finite
from bench.training.loop import FitSettings, fit
from helpers.ledgers import seeded_ledger
from helpers.settings import configured
from helpers.small_sets import SMALL, private_pair, public_set

MNIST = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28), public_benchmark=True)


def book() -> Ledger:
    return seeded_ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, np.random.default_rng(0))


def context(cache: Cache | None = None, seed: int = 0) -> Context:
    return Context(torch.device("cpu"), Streams(seed), cache or Cache(None, {}), Progress())


def tiny(method: type[Method], epsilon: float = 10.0, **changes: Any) -> Any:
    config, _ = build_config(method, Preset.TINY, SMALL)
    return method(dataclasses.replace(config, **changes), SMALL).calibrate(Budget(epsilon, 1e-5))


def trained_vae() -> tuple[VAE, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.zeros(200, 1, 8, 8, dtype=torch.uint8)
    for number in range(200):
        images[number, :, number % 7 : number % 7 + 2] = 255
    torch.manual_seed(0)
    vae = VAE(1, 8, 8, latent=6, units=8)
    return train_vae(vae, images, 60, 32, 3e-3, generator), images


@pytest.mark.parametrize(("epsilon", "queries", "formula"), [(1.0, 27, 1.314194), (10.0, 1300, 11.900666)])
def test_paper_preset_asks_what_is_printed_and_claims_what_the_formula_says(
    epsilon: float, queries: int, formula: float
) -> None:
    config = DGD(DGDPrintedConfig(), MNIST).calibrate(Budget(epsilon, 1e-5))
    assert (config.queries, config.noise_scale) == (queries, 40.0)
    claim = DGD(config, MNIST).claimed(1e-5)
    assert claim.epsilon == pytest.approx(formula + 0.01, abs=1e-6)
    assert f"the paper prints {epsilon:g}" in claim.note
    assert DGD(dataclasses.replace(config, vae=False), MNIST).claimed(1e-5).epsilon == pytest.approx(formula, abs=1e-6)


def test_paper_preset_follows_the_formula_where_no_number_is_printed() -> None:
    cifar = Facts("cifar10", 50_000, 0, 10_000, 10, (3, 32, 32))
    for facts, epsilon in ((MNIST, 3.0), (MNIST, 9.9), (cifar, 3.0), (cifar, 10.0)):
        paper, formula = (
            DGD(dataclasses.replace(DGDPrintedConfig(), count=count), facts).calibrate(Budget(epsilon, 1e-5))
            for count in ("printed", "formula")
        )
        assert (paper.queries, paper.noise_scale) == (formula.queries, 40.0)
    assert DGD(DGDPrintedConfig(vae=False), cifar).calibrate(Budget(3.0, 1e-5)).queries == 125


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 10.0])
def test_by_the_formula_the_claim_uses_the_budget_and_no_more(epsilon: float) -> None:
    config = dataclasses.replace(DGDPrintedConfig(), count="formula", least_queries=40)
    config = DGD(config, MNIST).calibrate(Budget(epsilon, 1e-5))
    claimed = DGD(config, MNIST).claimed(1e-5).epsilon
    assert claimed <= epsilon
    assert claimed == pytest.approx(epsilon, rel=0.02)
    assert config.queries >= 40
    assert (config.noise_scale > 40) == (epsilon <= 1)


def test_a_linear_student_on_a_fixed_map_is_regularised_by_its_predictions() -> None:
    config = tiny(DGD, student="scatter_linear", regularise=1.0, vae=True)
    released = DGD(config, SMALL).train_student(private_pair()[0], public_set(), book(), context())
    assert released.student.training is False


def test_a_given_number_of_queries_is_kept_and_cut_to_the_images() -> None:
    given = dataclasses.replace(DGDPrintedConfig(), count="given", queries=750)
    assert DGD(given, MNIST).calibrate(Budget(1.0, 1e-5)).queries == 750
    few = dataclasses.replace(given, synthetic=100)
    assert DGD(few, MNIST).calibrate(Budget(1.0, 1e-5)).queries == 100


def test_plus_is_calibrated_by_renyi_accounting_of_gaussian_noise() -> None:
    config = DGDPlus(DGDPlus.Config(), MNIST).calibrate(Budget(10.0, 1e-5))
    assert config.queries > 1300, "GNMax pays for more queries than the closed form of LNMax"
    assert 9.9 < DGDPlus(config, MNIST).claimed(1e-5).epsilon <= 10.0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"latent": 0}, "latent must be at least 1 and at most 1024"),
        ({"generator_noise": 5000}, "generator_noise must be at least 1 and at most 4096"),
        ({"noise_scale": 0.0}, "noise_scale must be positive"),
        ({"noise_scale": math.nan}, "noise_scale must be positive"),
        ({"queries": 0}, "queries must be at least 1"),
        ({"random_share": 1.0}, "random_share must be at least 0 and below 1"),
        ({"radius": -1.0}, "radius must be positive"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BenchError, match=says):
        configured("dgd", changes)


def test_more_teachers_than_records_are_refused_with_what_to_do() -> None:
    with pytest.raises(BenchError, match=r"--set dgd\.teachers=N with N at most 240"):
        DGD(dataclasses.replace(DGDPrintedConfig(), teachers=241), SMALL).calibrate(Budget(10.0, 1e-5))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "images",
    ["data-free", "private", "acgan", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("wgan", "infogan"))],
)
def test_every_source_of_images_is_a_declared_bypass_and_private_ones_are_not_released(images: str) -> None:
    private, _ = private_pair()
    ledger = book()
    released = DGD(tiny(DGD, images=images, random_share=0.0), private.facts).train_student(
        private, public_set(), ledger, context()
    )
    assert len(ledger.bypasses) == 1
    assert (images == "data-free") == ("baseline" in ledger.bypasses[0] or "classifier" in ledger.bypasses[0])
    assert math.isinf(proven(ledger.events, 1e-5).epsilon)
    assert ("synthetic_images" in released.extras) == (images != "private")
    if images != "private":
        assert released.extras["synthetic_images"].shape == (100, 1, 28, 28)


def test_the_share_of_random_images_is_kept_and_mixed() -> None:
    private, _ = private_pair()
    half = tiny(DGD, random_share=0.5)
    made = DGD(half, private.facts).images(private, book(), context())
    other = DGD(half, private.facts).images(private_pair()[1], book(), context())
    same = (made == other).flatten(1).all(1)
    assert len(made) == half.synthetic
    assert int(same.sum()) == half.synthetic // 2, "the random half knows no record; the generated half does"
    assert 0 < int(same[: half.synthetic // 2].sum()) < half.synthetic // 2


def test_epsilons_and_aggregations_share_images_triples_and_teachers(tmp_path: Path) -> None:
    private, _ = private_pair()
    first, second, third = (Cache(tmp_path, {}) for _ in range(3))
    DGD(tiny(DGD, 10.0), private.facts).train_student(private, public_set(), book(), context(first))
    DGD(tiny(DGD, 1.0), private.facts).train_student(private, public_set(), book(), context(second))
    DGDPlus(tiny(DGDPlus), private.facts).train_student(private, public_set(), book(), context(third))
    assert {name.rsplit("-", 1)[0] for name in first.made} == {"synthetic-images", "triples", "teachers"}
    assert second.made == third.made == []


def test_sound_is_charged_for_what_one_record_moves() -> None:
    config = tiny(DGDSound, 3.0)
    assert DGDSound(config, SMALL).claimed(1e-5).epsilon == pytest.approx(3.0, rel=1e-4)
    ledger = book()
    votes = np.zeros((config.queries, 10), dtype=np.int64)
    votes[:, 0] = config.teachers
    soft = DGDSound(config, SMALL).answer(votes, ledger)
    assert np.allclose(soft.sum(1), 1.0, atol=1e-5)
    assert proven(ledger.events, 1e-5).epsilon == pytest.approx(3.0, rel=1e-3)
    # One vote of every query moved: the distance that the noise is for.
    moved = votes.copy()
    moved[:, 0] -= 1
    moved[:, 1] += 1
    (event,) = ledger.events
    assert event.noise_multiplier * np.linalg.norm(moved - votes) == pytest.approx(config.sigma)  # type: ignore[attr-defined]


def test_noise_on_every_count_has_the_stated_deviation() -> None:
    config = dataclasses.replace(DGDSoundConfig(), queries=4000, sigma=7.0)
    votes = np.zeros((4000, 10), dtype=np.int64)
    soft = DGDSound(config, SMALL).answer(votes, book())
    logs = np.log(soft.astype(np.float64))
    spread = (logs - logs.mean(1, keepdims=True)).std() / math.sqrt(0.9)
    assert spread == pytest.approx(1.0, abs=0.02), "in units of sigma, and no less"


@pytest.mark.slow
def test_the_whole_of_sound_passes_with_its_generative_stream_too() -> None:
    assert check_method(DGDSound, overrides=["regularise=1.0"]).verdict is CheckVerdict.PASSED


def test_directions_are_orthogonal_have_the_radius_and_differ_in_what_they_move() -> None:
    vae, images = trained_vae()
    codes = vae.encode(images.float() / 255)[0].detach()
    tangent, normal = directions(vae, codes, 0.5, torch.Generator().manual_seed(1))
    assert torch.allclose(tangent.norm(dim=1), torch.full((200,), 0.5), atol=1e-5)
    assert torch.allclose(normal.norm(dim=1), torch.full((200,), 0.5), atol=1e-5)
    assert (tangent * normal).sum(1).abs().max() < 1e-4
    plain = vae.decode(codes)
    moved = [(vae.decode(codes + step) - plain).flatten(1).norm(dim=1).mean() for step in (tangent, normal)]
    assert moved[0] > 1.2 * moved[1], "the tangent is where the decoder moves the image most"


def test_triples_are_bytes_of_the_images_shape() -> None:
    vae, images = trained_vae()
    order = torch.Generator().manual_seed(0)
    triples = make_triples(vae, images, 1.0, order)
    for part in (triples.plain, triples.tangent, triples.normal):
        assert part.shape == images.shape
        assert part.dtype is torch.uint8
    assert not torch.equal(triples.plain, triples.tangent)
    apart = (triples.plain.float() - images.float()).abs().mean()
    assert apart < (images.float().flip(0) - images.float()).abs().mean(), "reconstructions resemble their image"


def test_printed_perturbation_is_laplace_noise_of_the_printed_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    vae, images = trained_vae()
    decode, codes = vae.decode, []
    monkeypatch.setattr(vae, "decode", lambda code: codes.append(code) or decode(code))
    drowned = make_triples(vae, images, "printed", torch.Generator().manual_seed(0))
    assert len(torch.unique(drowned.tangent.flatten(1), dim=0)) > 1
    plain, *moved = (torch.cat(codes[place::3]) for place in range(3))
    for noise in ((one - plain) / (2 * vae.latent / 0.01) for one in moved):
        # Laplace noise of scale 1 has mean magnitude 1, and a mean square of 2; Gaussian noise would have pi / 2.
        assert noise.abs().mean() == pytest.approx(1, abs=0.05)
        assert noise.square().mean() == pytest.approx(2, abs=0.25)


def test_printed_signs_are_the_opposite_of_the_text() -> None:
    features, logits = torch.rand(50, 8), torch.randn(50, 4) * 3
    said, printed = generator_terms(features, logits), generator_terms(features, logits, reading="printed")
    assert torch.equal(said["one_hot"], printed["one_hot"])
    assert printed["activation"] == -said["activation"] > 0
    decided = torch.eye(4)[torch.arange(50) % 4] * 50
    assert generator_terms(features, decided)["entropy"] < -1.3, "balanced classes are what the text wants"
    assert generator_terms(features, decided, reading="printed")["entropy"] > -1e-3, "and what the formula wants least"
    assert generator_terms(features, logits, norm=2)["activation"] != said["activation"]


@pytest.mark.slow
def test_a_generator_learns_to_make_all_classes_of_a_classifier() -> None:
    _, images = trained_vae()
    torch.manual_seed(0)
    classifier = build("small_cnn", 7, 1, (8, 8), width=8)
    order = torch.Generator().manual_seed(0)
    fit(classifier, images, torch.arange(200) % 7, FitSettings(steps=100, batch_size=50, lr=0.05), order)
    net = DataFreeGenerator(1, 8, 8, 16, 8)
    train_generator(net, classifier, GeneratorSettings(steps=1, batch_size=32, lr=1e-9), order)
    before = classifier(generate(net, 200, order).float() / 255).softmax(1).mean(0)
    train_generator(net, classifier, GeneratorSettings(steps=80, batch_size=32, lr=5e-3), order)
    after = classifier(generate(net, 200, order).float() / 255).softmax(1).mean(0)
    assert -(after * after.log()).sum() > 1.5 > -(before * before.log()).sum(), "of the 1.95 nats of seven classes"


def test_a_loss_that_is_no_number_stops_with_iteration_and_term() -> None:
    check_finite({"one_hot": torch.tensor(1.0)}, 6, "the generator")
    with pytest.raises(NotFiniteError, match=r"the generator diverged at iteration 7: its term 'one_hot' is nan"):
        check_finite({"one_hot": torch.tensor(math.nan)}, 7, "the generator")


def test_a_diverging_generator_stops_the_run(tmp_path: Path) -> None:
    private, _ = private_pair()
    cache = Cache(tmp_path, {})
    config = tiny(DGD, generator_lr=1e30, generator_steps=5, random_share=0.0)
    with pytest.raises(
        NotFiniteError, match=r"the generator diverged at iteration [1-4]: its term .* learning rate\.$"
    ):
        DGD(config, private.facts).train_student(private, public_set(), book(), context(cache))
    assert cache.made == []
    assert list(tmp_path.glob("*.safetensors")) == []


@pytest.mark.slow
def test_the_printed_reading_reaches_the_student_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[StudentSettings] = []

    def spy(student: Any, images: Any, labels: Any, triples: Any, settings: StudentSettings, *_: Any, **__: Any) -> Any:
        seen.append(settings)
        return student.eval()

    monkeypatch.setattr("bench.methods.distillation.dgd_family.train_tangent_normal", spy)
    private, _ = private_pair()
    for reading in ("dafl", "printed"):
        config = tiny(DGD, reading=reading, regularise=1.0)
        DGD(config, private.facts).train_student(private, public_set(), book(), context())
    assert [settings.reading for settings in seen] == ["dafl", "printed"]


@pytest.mark.few(2)
@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.slow)])
def test_the_student_learns_from_soft_and_hard_labels_with_and_without_triples(optimizer: Any) -> None:
    vae, images = trained_vae()
    labels = torch.arange(200) % 7
    order = torch.Generator().manual_seed(0)
    triples = make_triples(vae, images, 0.3, order)
    for given, three in ((labels, None), (torch.eye(7)[labels], triples)):
        torch.manual_seed(0)
        student = build("small_cnn", 7, 1, (8, 8), width=8)
        rate = 3e-3 if optimizer == "adam" else 0.05
        settings = StudentSettings(steps=150, batch_size=50, lr=rate, optimizer=optimizer)
        train_tangent_normal(student, images, given, three, settings, order)
        assert (student(images.float() / 255).argmax(1) == labels).float().mean() > 0.9


@pytest.mark.slow
def test_smoothness_along_the_triples_is_what_the_terms_lower() -> None:
    vae, images = trained_vae()
    labels = torch.arange(200) % 7
    triples = make_triples(vae, images, 1.0, torch.Generator().manual_seed(0))

    def roughness(weight: float) -> float:
        torch.manual_seed(0)
        student: Any = build("small_cnn", 7, 1, (8, 8), width=8)
        settings = StudentSettings(steps=100, batch_size=50, lr=3e-3, regularise=weight)
        train_tangent_normal(student, images, labels, triples, settings, torch.Generator().manual_seed(1))
        features = [student.forward_features(part.float() / 255).detach() for part in (triples.plain, triples.tangent)]
        return float((features[0] - features[1]).square().mean() / features[0].square().mean())

    assert roughness(30.0) < 0.8 * roughness(0.0)
