"""The robustness sweep: the closed form for linear students, the order of rows, and refused inputs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.attacks.robustness import Logits, Robustness, RobustnessConfig, attacks_run, default_perturbations, perturbed
from bench.core.config import Preset, build_config, parse_overrides, values_of
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams, seeded
from bench.core.types import Facts
from bench.evaluation.attack.figures import robustness_figure
from bench.evaluation.attack.robustness_rows import RobustnessRow, masked, median_perturbations, rows_of
from bench.models.build import build
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.loop import FitSettings, accuracy, fit

SIZES = (0.02, 0.05, 0.1)


def facts(classes: int = 5, shape: tuple[int, int, int] = (1, 8, 8)) -> Facts:
    return Facts("blobs", 100, 0, 100, classes, shape)


def seed(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def config(**changes: Any) -> RobustnessConfig:
    small: dict[str, Any] = {
        "perturbations": SIZES, "pgd_steps": 10, "pgd_restarts": 2, "apgd_steps": 10, "fab_steps": 8,
        "target_classes": 3, "square_queries": 100,
    }  # fmt: skip
    return RobustnessConfig(**{**small, **changes})


def images(count: int = 60, shape: tuple[int, int, int] = (1, 8, 8)) -> Tensor:
    return torch.rand(count, *shape, generator=seed(1))


class Linear(nn.Module):
    """Logits that are linear in the image."""

    def __init__(self, classes: int, values: int = 64) -> None:
        super().__init__()
        self.layer = nn.Linear(values, classes)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(classes, values, generator=seed(2)))
            self.layer.bias.zero_()

    def forward(self, batch: Tensor) -> Tensor:
        found: Tensor = self.layer(batch.flatten(1))
        return found


def labels_of(student: nn.Module, batch: Tensor, wrong: int = 3) -> Tensor:
    """Labels that the student gets right, except for the first few."""
    found = student(batch).argmax(1).detach()
    found[:wrong] = (found[:wrong] + 1) % int(found.max() + 1)
    return found


def exact(student: Linear, batch: Tensor, labels: Tensor, size: float) -> float:
    """The robust accuracy: for each other class the best change takes every value to one end of its interval."""
    flat, weight = batch.flatten(1), student.layer.weight.detach()
    up, down = (flat + size).clamp(max=1) - flat, (flat - size).clamp(min=0) - flat
    logits = student(batch).detach()
    held = torch.ones(len(batch), dtype=torch.bool)
    for other in range(len(weight)):
        slope = weight[other] - weight[labels]
        gain = torch.maximum(slope * up, slope * down).sum(1)
        margin = logits.gather(1, labels[:, None])[:, 0] - logits[:, other]
        held &= (other == labels) | (gain < margin)
    return float(held.double().mean())


def run(
    student: nn.Module, batch: Tensor, labels: Tensor, about: Facts, progress: Progress | None = None,
    notes: list[str] | None = None, **changes: Any,
) -> tuple[RobustnessRow, ...]:  # fmt: skip
    note = [].append if notes is None else notes.append
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), progress or Progress(), note=note)
    return rows_of(Robustness(config(**changes), about).withstood(student, batch, labels, context))


def by_attack(rows: tuple[RobustnessRow, ...]) -> dict[str, list[float]]:
    names = dict.fromkeys(row.attack for row in rows)
    return {name: [row.accuracy for row in rows if row.attack == name] for name in names}


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Tensor, Tensor]:
    """A small net that recognises which quarter of an image is bright, with test images."""
    labels = torch.randint(0, 4, (300,), generator=seed(3))
    batch = torch.rand(300, 1, 8, 8, generator=seed(4)) * 0.6
    for label, (row, column) in enumerate([(0, 0), (0, 4), (4, 0), (4, 4)]):
        batch[labels == label, :, row : row + 4, column : column + 4] += 0.15
    with seeded(seed(5)):
        student = build("small_cnn", 4, 1, 8, width=4)
    fit(student, batch[:240], labels[:240], FitSettings(epochs=15, batch_size=16), seed(6))
    return student, batch[240:], labels[240:]


@pytest.mark.parametrize("classes", [2, 5])
def test_linear_student_has_its_closed_form(classes: int) -> None:
    student, batch = Linear(classes), images()
    labels = labels_of(student, batch)
    found = by_attack(run(student, batch, labels, facts(classes)))
    truth = [exact(student, batch, labels, size) for size in (0.0, *SIZES)]
    assert truth[0] == 1 - 3 / 60
    assert truth[-1] < truth[0] - 0.2  # otherwise the test would be vacuous
    for name, values in found.items():
        assert values[0] == truth[0]
        # No attack can do better than the best one.
        assert all(value >= best for value, best in zip(values, truth, strict=True)), name
    assert found["autoattack"] == pytest.approx(truth, abs=1.5 / 60)
    assert found["pgd"] == pytest.approx(truth, abs=2.5 / 60)
    if classes == 2:  # one step along the sign is the best change
        assert found["fgsm"] == pytest.approx(truth, abs=1.5 / 60)


def test_size_zero_is_the_plain_accuracy_and_rows_are_in_order(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    student, batch, labels = trained
    rows = run(student, batch, labels, facts(4))
    found = by_attack(rows)
    assert set(found) == {"fgsm", "pgd", "square", "apgd-ce", "apgd-t", "fab-t", "autoattack"}
    for values in found.values():
        assert values[0] == accuracy(student, batch, labels)
        assert values == sorted(values, reverse=True)
        assert all(worst <= value for worst, value in zip(found["autoattack"], values, strict=True))
    assert found["autoattack"][-1] < found["autoattack"][0]
    assert all(row.low <= row.accuracy <= row.high and row.n == len(batch) for row in rows)
    assert not masked(rows)


def test_same_seed_same_rows_whatever_the_global_generator_and_the_other_attacks(
    trained: tuple[nn.Module, Tensor, Tensor],
) -> None:
    student, batch, labels = trained
    changes: dict[str, Any] = {"perturbations": (0.05, 0.1), "square_queries": 20}
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = run(student, batch, labels, facts(4), **changes)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert run(student, batch, labels, facts(4), **changes) == first
    alone = run(student, batch, labels, facts(4), attacks=("square", "pgd"), **changes)
    assert alone == tuple(row for row in first if row.attack in ("pgd", "square"))
    # The same images as bytes.
    levels = (batch * 255).round()
    as_bytes = run(student, levels.byte(), labels, facts(4), attacks=("fgsm",), **changes)
    assert as_bytes == run(student, levels / 255, labels, facts(4), attacks=("fgsm",), **changes)


def test_seed_matters_to_random_attacks(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    student, batch, labels = trained
    model = Logits(student, torch.device("cpu"))
    for name in ("pgd", "apgd-ce", "apgd-t", "square"):
        one, same, other = (perturbed(name, model, batch, labels, 0.05, 4, number, config()) for number in (1, 1, 2))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)


@pytest.mark.parametrize("name", ["fgsm", "pgd", "apgd-ce", "apgd-t", "fab-t", "fab", "square"])
def test_changed_images_stay_in_the_ball_and_in_range(name: str, trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    student, batch, labels = trained
    found = perturbed(name, Logits(student, torch.device("cpu")), batch, labels, 0.1, 4, 0, config())
    assert float((found - batch).abs().max()) <= 0.1 + 1e-6
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    assert not torch.equal(found, batch)


def test_more_images_than_records_are_drawn() -> None:
    student, batch = Linear(2), images()
    rows = run(student, batch, labels_of(student, batch), facts(2), attacks=("fgsm",), records=20)
    assert {row.n for row in rows} == {20}


@pytest.mark.parametrize("classes", [2, 3])
def test_few_classes_leave_the_targeted_parts_out_and_say_so(classes: int) -> None:
    said: list[str] = []
    notes: list[str] = []

    class Listening(Progress):
        def say(self, text: str) -> None:
            said.append(text)

    student, batch = Linear(classes), images(20)
    rows = run(student, batch, labels_of(student, batch), facts(classes), Listening(), notes)
    assert attacks_run(config(), classes) == ("fgsm", "pgd", "square", "apgd-ce", "fab")
    assert {row.attack for row in rows} == {*attacks_run(config(), classes), "autoattack"}
    assert len(said) == 1
    assert "too few" in said[0]
    assert notes == ["autoattack without targeted parts: fewer than 4 classes"]


def test_student_is_left_as_it_was() -> None:
    with seeded(seed(7)):
        student = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 36, 4)
        )
        student.train()
        student(images())  # statistics that are not the starting ones
    before = {name: value.clone() for name, value in student.state_dict().items()}
    labels = torch.randint(0, 4, (30,), generator=seed(8))
    rows = run(student, images(30), labels, facts(4), perturbations=(0.05,), square_queries=20)
    assert all(torch.equal(value, before[name]) for name, value in student.state_dict().items())
    assert all(module.training for module in student.modules())
    assert all(p.requires_grad and p.grad is None for p in student.parameters())
    # In evaluation mode, dropout and batch statistics have no effect.
    assert rows[0].accuracy == accuracy(student, images(30), labels)
    model = Logits(student, torch.device("cpu"))
    assert not any(module.training for module in model.train().modules())


class Rounded(Linear):
    """Looks at the image in eight grey values: its gradient is zero everywhere."""

    def forward(self, batch: Tensor) -> Tensor:
        return super().forward((batch * 7).round() / 7)


def test_masked_gradients_are_found() -> None:
    student, batch = Rounded(5), images()
    labels = labels_of(student, batch, wrong=0)
    rows = run(student, batch, labels, facts(5), attacks=("fgsm", "pgd", "square"))
    found = by_attack(rows)
    assert found["fgsm"] == [1.0] * 4
    assert found["square"][-1] < found["pgd"][-1] - 0.2
    assert masked(rows)


def test_masked_needs_more_than_noise() -> None:
    row = RobustnessRow("square", 0.1, 0.5, 100, 0.4, 0.6, beats_pgd=0.004)
    assert masked([row])
    assert not masked([row, replace(row, perturbation=0.2, beats_pgd=0.5), replace(row, perturbation=0.3)])
    assert not masked([replace(row, beats_pgd=None)])


def test_median_is_the_first_size_that_fools_half() -> None:
    def curve(name: str, *values: float) -> list[RobustnessRow]:
        return [RobustnessRow(name, size, value, 10, 0, 1) for size, value in zip((0, 0.1, 0.2), values, strict=True)]

    rows = [*curve("a", 1.0, 0.6, 0.5), *curve("b", 1.0, 0.9, 0.8), *curve("c", 0.4, 0.2, 0.0)]
    assert median_perturbations(reversed(rows)) == {"a": 0.2, "b": math.inf, "c": 0}


def test_bad_students_get_clear_errors(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    student, batch, labels = trained
    cases: list[tuple[nn.Module, Tensor, Tensor, Facts, str]] = [
        (student, batch.expand(-1, 3, -1, -1), labels, facts(4, (3, 8, 8)), "cannot take images"),
        (student, images(60, (1, 12, 12)), labels, facts(4, (1, 12, 12)), "cannot take images"),
        (student, batch, labels, facts(10), "4 classes; blobs has 10"),
        (nn.Sequential(student, nn.Softmax(1)), batch, labels, facts(4), "logits"),
        (nn.Conv2d(1, 4, 1), batch, labels, facts(4), "output of shape"),
    ]
    for model, given, truth, about, words in cases:
        with pytest.raises(BenchError, match=words):
            run(model, given, truth, about)
    broken = Linear(4)
    nn.init.constant_(broken.layer.weight, math.nan)
    with pytest.raises(BenchError, match="not finite"):
        run(broken, batch, labels, facts(4))


@pytest.mark.parametrize(
    "changes",
    [
        {"perturbations": ()}, {"perturbations": (0.0, 0.1)}, {"perturbations": (0.2, 0.1)},
        {"perturbations": (math.nan,)}, {"attacks": ()}, {"attacks": ("deepfool",)},
    ],
)  # fmt: skip
def test_bad_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BenchError):
        config(**changes)


@pytest.mark.parametrize("changed", ["pgd_steps=0", "records=0", "pgd_reach=0", "pgd_reach=inf"])
def test_settings_out_of_bounds_are_refused(changed: str) -> None:
    with pytest.raises(BenchError, match=f"robustness.{changed.partition('=')[0]} must be"):
        build_config(Robustness, Preset.PAPER, facts(10), values_of(parse_overrides(Robustness, [changed])))


def test_presets_and_sizes_by_the_kind_of_images() -> None:
    mnist, cifar = facts(10, (1, 28, 28)), facts(10, (3, 32, 32))
    assert default_perturbations(mnist) == (0.05, 0.1, 0.2, 0.3)
    assert [size * 255 for size in default_perturbations(cifar)] == pytest.approx([0.5, 1, 2, 4, 8])
    assert default_perturbations(facts(2, (1, 224, 224))) == default_perturbations(cifar)
    for preset in Preset:
        for about in (mnist, cifar):
            made, reduced = build_config(Robustness, preset, about)
            assert isinstance(made, RobustnessConfig)
            assert bool(reduced) == (preset is not Preset.PAPER)


def test_figure_is_the_same_every_time(tmp_path: Path, trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    student, batch, labels = trained
    rows = run(student, batch, labels, facts(4), attacks=("fgsm", "pgd"))
    for name in ("a.png", "b.png"):
        robustness_figure(tmp_path / name, rows, "blobs")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(BenchError, match="no points"):
        robustness_figure(tmp_path / "c.png", [])
