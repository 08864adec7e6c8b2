"""DPSD and its variants: what annotation lets out, what it costs, and what stops a run."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.cli.record_pages import record_page
from bench.core.config import Grid, Preset, build_config
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Basis, Budget, Facts, PrivacyUnit, Released
from bench.evaluation.check.noninterference import check_method
from bench.experiments.data_source import DataSource
from bench.experiments.plan import expand
from bench.experiments.run import run_cell
from bench.interface.method import Method
from bench.interface.registry import METHODS
from bench.methods.distillation.annotation import (
    released_gradients,
)
from bench.methods.distillation.dpsd import DPSD, DPSDConfig
from bench.methods.distillation.dpsd_family import train_teacher
from bench.methods.distillation.dpsd_label import DPSDLabel
from bench.methods.distillation.dpsd_sound import DPSDSound, DPSDSoundConfig
from bench.methods.federated.fed_dpsd import FedDPSD
from bench.methods.shared.random_images import random_images
from bench.privacy.accounting.accountants import proven
from bench.privacy.mechanisms.ledger import Ledger
from bench.reports.leaderboard import build_board
from bench.results.record import Record
from bench.results.run_dir import RunDir
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.divergence import NotFiniteError
from helpers.ledgers import seeded_ledger
from helpers.settings import configured
from helpers.small_sets import SMALL, private_pair, public_set

MNIST = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28), public_benchmark=True)
FAMILY = ["dpsd", "dpsd-label", "dpsd-t", "fed-dpsd"]


def book(unit: PrivacyUnit = PrivacyUnit.RECORD, noise: int = 0) -> Ledger:
    return seeded_ledger(unit, Adjacency.REPLACE, np.random.default_rng(noise))


def context(cache: Cache | None = None, seed: int = 0) -> Context:
    return Context(torch.device("cpu"), Streams(seed), cache or Cache(None, {}), Progress())


def tiny(method: type[Method], epsilon: float = 10.0, **changes: Any) -> Any:
    config, _ = build_config(method, Preset.TINY, SMALL)
    return method(dataclasses.replace(config, **changes), SMALL).calibrate(Budget(epsilon, 1e-5))


def record_of(name: str, epsilon: float, out: Path, **options: Any) -> Record:
    source = DataSource(Progress())
    (cell,) = expand(Grid((name,), ("digits",), (epsilon,), preset=Preset.TINY, **options), source.describe)
    return run_cell(cell, RunDir(out), source, Progress())


def trained(config: Any, ledger: Ledger | None = None, cache: Cache | None = None, name: str = "dpsd") -> Released:
    private = private_pair()[0]
    return METHODS.get(name)(config, private.facts).train_student(
        private, public_set(), ledger or book(), context(cache)
    )


@pytest.mark.parametrize("answers", [1, 5])
def test_noise_on_each_coordinate_is_sigma_beta(answers: int) -> None:
    given = torch.zeros(4000, 10)
    noisy = released_gradients(given, book(), beta=0.02, sigma=3, sensitivity=2, answers=answers, reading="per-example")
    assert float(noisy.std()) == pytest.approx(3.0 * 0.02 / answers, rel=0.02)
    assert float(noisy.std(0).min()) > 0.95 * 3.0 * 0.02 / answers, "every class gets noise, not the top k alone"


def test_batch_mean_is_one_gradient_with_the_mean_of_the_noise() -> None:
    given = torch.ones(256, 10)
    first = [
        released_gradients(given, book(noise=i), beta=1.0, sigma=3.0, sensitivity=2.0, answers=1, reading="batch-mean")
        for i in range(300)
    ]
    assert all(torch.equal(noisy[0], noisy[255]) for noisy in first)
    means = torch.stack([noisy[0] for noisy in first])
    assert float(means.mean()) == pytest.approx(1.0, abs=0.02)
    assert float(means.std()) == pytest.approx(3.0 / 16, rel=0.05)


@pytest.mark.parametrize(("reading", "cost"), [("per-example", 28.84), ("batch-mean", 28.84), ("batch-norm", 1.06)])
def test_printed_setting_costs_what_is_proven_for_it_whatever_beta(reading: Any, cost: float) -> None:
    for beta in (1e-3, 5e-3):
        ledger = book()
        for _ in range(200):
            released_gradients(
                torch.zeros(256, 10), ledger, beta=beta, sigma=100.0, sensitivity=2.0, answers=1, reading=reading
            )
        assert proven(ledger.events, 1e-5).epsilon == pytest.approx(cost, abs=0.005)


def test_printed_setting_claims_far_less_than_the_budgets_it_is_printed_for() -> None:
    for epsilon, beta, claimed in ((1.0, 1e-3, 0.0456), (10.0, 5e-3, 0.261)):
        config = DPSD(DPSDConfig(calibrate="printed"), MNIST).calibrate(Budget(epsilon, 1e-5))
        assert (config.sigma, config.beta, config.k) == (100.0, beta, 3)
        assert DPSD(config, MNIST).claimed(1e-5).epsilon == pytest.approx(claimed, rel=0.01)
    with pytest.raises(BenchError, match=r"25\.72"):
        DPSD(DPSDConfig(calibrate="printed"), MNIST).calibrate(Budget(10.0, 1e-5, Basis.PROVEN))


def test_at_equal_claim_a_smaller_beta_means_less_noise() -> None:
    sigmas = [DPSD(DPSDConfig(beta=b), MNIST).calibrate(Budget(10.0, 1e-5)).sigma for b in (5e-3, 1e-4)]
    assert sigmas[0] == pytest.approx(50 * sigmas[1], rel=1e-6)


@pytest.mark.parametrize("method", [DPSD, FedDPSD, DPSDSound])
@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_proven_basis_spends_the_budget_and_not_more(method: type[Method], epsilon: float) -> None:
    config, _ = build_config(method, Preset.TINY, SMALL)
    config = method(config, SMALL).calibrate(Budget(epsilon, 1e-5, Basis.PROVEN))
    ledger = book(method.unit)
    method(config, private_pair()[0].facts).train_student(private_pair()[0], public_set(), ledger, context())
    assert 0.999 * epsilon < proven(ledger.events, 1e-5).epsilon <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("k", [1, 11])
@pytest.mark.parametrize("name", FAMILY)
def test_k_outside_its_range_is_refused_before_anything_is_trained(name: str, k: int) -> None:
    config, _ = build_config(METHODS.get(name), Preset.TINY, SMALL)
    with pytest.raises(BenchError, match=rf"k must lie in 2\.\.10.*not {k}"):
        METHODS.get(name)(dataclasses.replace(config, k=k), SMALL).calibrate(Budget(1.0, 1e-5))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("beta", 0.0), ("beta", -1e-3), ("sigma", 0.0), ("sigma", math.nan), ("latent_size", 0), ("latent_size", 5000),
        ("iterations", 0), ("student_lr", 0.0), ("stability", 0.0), ("amount", 0), ("pool_steps", -1),
        ("random_share", 1.0),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant_are_refused(field: str, value: float) -> None:
    with pytest.raises(BenchError, match=field):
        configured("dpsd", {field: value})


def test_settings_of_the_variants_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(BenchError, match="clients"):
        configured("fed-dpsd", {"clients": 0})
    with pytest.raises(BenchError, match="epsilon"):
        configured("dpsd-label", {"epsilon": 0.0})
    with pytest.raises(BenchError, match="latent_size"):
        configured("dpsd-sound", {"latent_size": 0})
    with pytest.raises(BenchError, match="more teachers than records"):
        DPSDSound(DPSDSoundConfig(), SMALL).calibrate(Budget(1.0, 1e-5))


def test_paper_k_follows_the_number_of_classes() -> None:
    found = [DPSDConfig().top_k(dataclasses.replace(MNIST, classes=c)) for c in (2, 3, 8, 10, 100, 1000)]
    assert found == [2, 3, 3, 3, 50, 300]


def test_student_and_generator_come_out_with_images() -> None:
    released = trained(tiny(DPSD))
    images = released.extras["synthetic_images"]
    assert (images.dtype, images.shape[1:]) == (torch.uint8, (1, 28, 28))
    assert 0 < len(images) <= 100
    assert released.generator is not None


def test_dpsd_t_releases_no_generator_and_is_refused_on_the_proven_basis() -> None:
    method = METHODS.get("dpsd-t")
    ledger = book()
    released = trained(tiny(method), ledger, name="dpsd-t")
    assert released.generator is None
    assert released.extras == {}
    assert math.isinf(proven(ledger.events, 1e-5).epsilon)
    assert method.repaired_by == "dpsd-sound"


def test_epsilons_share_the_teacher(tmp_path: Path) -> None:
    first, second = Cache(tmp_path, {}), Cache(tmp_path, {})
    trained(tiny(DPSD), cache=first)
    trained(tiny(DPSD, 1.0), cache=second)
    assert len(first.made) == 1
    assert second.made == []


@pytest.mark.parametrize("net", ["small_cnn", "scatter_linear"])
def test_teacher_answers_alike_whether_it_was_just_trained_or_found(net: str, tmp_path: Path) -> None:
    facts = Facts("digits", 256, 8, 8, 10, (1, 28, 28))
    config = tiny(DPSD, teacher=net, teacher_epochs=1)
    private = private_pair(facts)[0]
    first, second = (train_teacher(config, private, context(Cache(tmp_path, {}))) for _ in range(2))
    images = random_images(256, facts.shape, torch.Generator().manual_seed(0))
    assert torch.equal(first(images), second(images))


def test_a_student_of_several_layers_on_a_fixed_map_learns() -> None:
    """All-zero hidden layers would have no gradient; only the last layer starts at zero."""
    config = tiny(DPSD, student="scatter_cnn_mnist", train_latents=False, iterations=4)
    weights = dict(trained(config).student.named_parameters())
    assert all(bool(weight.any()) for weight in weights.values())


def test_the_sound_form_trains_a_student_on_a_fixed_map_and_holds_back_all_but_one() -> None:
    config = tiny(DPSDSound, student="scatter_linear", held_back=0.999, student_steps=5)
    assert trained(config, name="dpsd-sound").student.training is False


def test_amount_bounds_what_is_asked_and_paid_for() -> None:
    config = tiny(DPSD, iterations=6, amount=20)
    ledger = book()
    trained(config, ledger)
    assert config.asked == len(ledger.events) == 2
    assert DPSD(config, SMALL).claimed(1e-5).epsilon == pytest.approx(10.0)


def test_student_learns_what_the_annotations_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def bright(images: torch.Tensor) -> torch.Tensor:
        return (images.mean((1, 2, 3)) > 0.15).long()

    def annotator(*_: Any) -> Any:
        return lambda images, student: torch.nn.functional.one_hot(bright(images), 10).float()

    monkeypatch.setattr(DPSD, "annotator", annotator)
    config = tiny(DPSD, iterations=60, batch=64, student_lr=0.005)
    released = trained(config)
    images = random_images(400, (1, 28, 28), torch.Generator().manual_seed(9)).float() / 255
    right = float((released.student(images).argmax(1) == bright(images)).float().mean())
    assert right > 0.85, right


def test_loss_that_is_no_number_stops_the_run() -> None:
    cache = Cache(None, {})
    config = tiny(DPSD, iterations=50, student_lr=1e30, annotation_lr=1e30, optimizer="sgd")
    with pytest.raises(NotFiniteError, match=r"diverged at iteration \d+: its term '.+' .* learning rate\.$"):
        trained(config, cache=cache)
    assert not any(name.startswith("last-good") for name in cache.made), "a failed run leaves no nets of its own"


def test_diverging_cell_is_a_failed_record(tmp_path: Path) -> None:
    overrides = ("iterations=50", "student_lr=1e30", "annotation_lr=1e30", "optimizer=sgd")
    record = record_of("dpsd", 10.0, tmp_path, overrides=overrides)
    assert record.failure is not None
    assert "diverged at iteration" in record.failure.reason


def test_no_gradient_to_the_latent_inputs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.models.generators import DataFreeGenerator

    forward = DataFreeGenerator.forward
    monkeypatch.setattr(DataFreeGenerator, "forward", lambda self, noise: forward(self, noise.detach()))
    with pytest.raises(BenchError, match="no gradient reaches the latent inputs"):
        trained(tiny(DPSD))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "path",
    ["eq3=batch-mean", "eq3=batch-norm", "bounding=clip", "distillation=plain", "amount=20", "pool_steps=3",
     "generator_loss=printed", "train_latents=false", "entropy_loss=false", "optimizer=sgd"],
)  # fmt: skip
def test_every_option_of_dpsd_keeps_private_data_behind_the_ledger(path: str) -> None:
    assert check_method(DPSD, overrides=(path,)).ok


@pytest.mark.slow
def test_other_paths_keep_private_data_behind_the_ledger() -> None:
    assert check_method(DPSDSound, overrides=("answer=gradient", "held_back=0.2")).ok
    assert check_method(DPSDLabel, overrides=("amount=20",)).ok


def test_labels_of_different_queries_do_not_compose_but_do_for_a_record() -> None:
    config = tiny(DPSDLabel, 2.0)
    ledger = book(PrivacyUnit.QUERY_LABEL)
    trained(config, ledger, name="dpsd-label")
    (event,) = ledger.events
    assert event.as_dict()["answers"] == config.iterations * config.batch
    assert proven(ledger.events, 1e-5).epsilon == pytest.approx(2.0, rel=1e-4)
    follows = ledger.record_level(1e-5)
    assert follows is not None
    assert 2.0 * 5 < follows.epsilon <= 2.0 * config.iterations * config.batch
    assert book().record_level(1e-5) is None


def test_record_of_a_query_label_row_says_what_follows_for_a_record(tmp_path: Path) -> None:
    record = record_of("dpsd-label", 1.0, tmp_path)
    assert record.privacy is not None
    assert record.privacy.record_level is not None
    assert record.privacy.record_level.epsilon > record.privacy.proven.epsilon
    (row,) = build_board([record]).rows
    assert any(remark.startswith("record level: epsilon") for remark in row.remarks)
    assert any(line[0] == "a training record" for table in record_page(record) for line in table.rows)


def test_eq5_as_printed_has_no_epsilon() -> None:
    config = tiny(DPSDLabel, 1.0, outside="printed")
    ledger = book(PrivacyUnit.QUERY_LABEL)
    trained(config, ledger, name="dpsd-label")
    figure = proven(ledger.events, 1e-5)
    assert math.isinf(figure.epsilon)
    assert "outside the set" in figure.note
    with pytest.raises(BenchError, match="outside=set"):
        DPSDLabel(config, SMALL).calibrate(Budget(1.0, 1e-5, Basis.PROVEN))


def test_eq5_as_printed_tells_that_a_label_was_inside() -> None:
    labels, sets = np.full(20_000, 1), np.tile([0, 1, 2], (20_000, 1))
    ledger = book(PrivacyUnit.QUERY_LABEL)
    inside = ledger.top_k_randomized_response(labels, sets, epsilon=1.0, classes=10, outside="printed")
    outside = ledger.top_k_randomized_response(labels * 5, sets, epsilon=1.0, classes=10, outside="printed")
    assert (inside > 2).mean() == pytest.approx(7 / (math.e + 9), abs=0.01)
    assert (outside > 2).sum() == 0
    kept = ledger.top_k_randomized_response(labels, sets, epsilon=1.0, classes=10)
    assert (kept > 2).sum() == 0


@pytest.mark.parametrize("answer", ["votes", "gradient"])
def test_one_teacher_moves_an_answer_by_no_more_than_the_stated_sensitivity(answer: Any) -> None:
    class Stub:
        def __init__(self, logits: torch.Tensor) -> None:
            self.values = logits

        def __len__(self) -> int:
            return len(self.values)

        def logits(self, images: torch.Tensor, stage: Any = None) -> torch.Tensor:
            return self.values

    generator = torch.Generator().manual_seed(0)
    first = torch.randn(4, 50, 10, generator=generator) * 4
    second = first.clone()
    second[2] = torch.randn(50, 10, generator=generator) * 4
    config = tiny(DPSDSound, answer=answer)
    method = DPSDSound(config, SMALL)
    believed = torch.randn(50, 10, generator=generator).softmax(1)
    labels = [
        method.ask(Stub(logits), torch.zeros(50, 1, 28, 28), believed, book(), context())  # type: ignore[arg-type]
        for logits in (first, second)
    ]
    # The same noise in both: it falls out of the difference.
    moved = (labels[0] - labels[1]).norm(dim=1) * 4
    assert float(moved.max()) <= config.sensitivity(SMALL) + 1e-5
    assert float(moved.max()) > 0.5


@pytest.mark.parametrize("name", FAMILY[:1] + FAMILY[2:])
def test_the_sensitivity_is_what_the_ledger_charges(name: str) -> None:
    method = METHODS.get(name)
    config = tiny(method, distillation="plain", iterations=2)
    (event,) = method(config, SMALL).charges()
    assert event.noise_multiplier == pytest.approx(config.sigma / math.sqrt(2))
    ledger = book(method.unit)
    method(config, SMALL).charge(ledger)
    assert ledger.events[0].zcdp() == pytest.approx(event.zcdp() / 2)
