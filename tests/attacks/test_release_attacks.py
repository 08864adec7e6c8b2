"""Attacks on released images and generators: copies are caught, and releases without private records are at chance."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.attacks.nearest_record import NearestRecord, NearestRecordConfig
from bench.attacks.reconstruction_membership import ReconstructionConfig, ReconstructionMembership, inverted
from bench.attacks.shared.nearest import nearest
from bench.core.config import Grid, Preset, build_config, parse_overrides, values_of
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.rows import Estimated
from bench.core.seeds import Streams
from bench.core.types import Facts, Released
from bench.evaluation.attack.attack import applies, attack_student
from bench.evaluation.attack.evaluators import digests
from bench.evaluation.attack.release_attack import copy_metrics, draw, no_power, others, releases_of
from bench.evaluation.attack.workplace import AttackOptions, Workplace
from bench.experiments.data_source import DataSource
from bench.experiments.plan import expand
from bench.experiments.release import load_student, save_released
from bench.experiments.run import run_cell
from bench.interface import ReleasedImages
from bench.metrics.roc import membership_metrics
from bench.models.generators import ConditionalGenerator, DataFreeGenerator, DenseGenerator, generator_of
from bench.reports.attacks import tables
from bench.results.attack_record import AttackRecord, Role
from bench.results.record import Record, Status
from bench.results.run_dir import RunDir
from bench.storage.cache import Cache
from bench.training.context import Context

SHAPE = (1, 8, 8)
FACTS = Facts("shapes", 10, 0, 0, 2, SHAPE)


def context(seed: int = 0) -> Context:
    return Context(torch.device("cpu"), Streams(seed), Cache(None, {}), Progress())


def noise(count: int, seed: int) -> torch.Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


def auc(release: ReleasedImages, **changes: Any) -> tuple[float, float, float]:
    """Return the AUC with its interval for 200 records in the release's reach and 200 others."""
    config = dataclasses.replace(ReconstructionConfig(), **changes)
    scores = ReconstructionMembership(config, FACTS).score(
        release, torch.cat([noise(200, 1), noise(200, 2)]), noise(100, 3), context()
    )
    found = membership_metrics(scores, np.arange(400) < 200)["auc"]
    assert found.low is not None
    assert found.high is not None
    return found.value, found.low, found.high


def test_nearest_image_is_that_of_a_direct_search_and_a_copy_is_at_zero() -> None:
    images, others = noise(50, 1), noise(4100, 2)
    others[3000] = images[7]
    distance, place = nearest(images, others)
    direct = (images.flatten(1)[:, None] - others.flatten(1)[None]).norm(dim=2)
    torch.testing.assert_close(distance, direct.amin(1))
    assert torch.equal(place, direct.argmin(1))
    assert (float(distance[7]), int(place[7])) == (0.0, 3000)
    assert nearest((images * 255).round().to(torch.uint8), images)[0].max() < 0.05


@pytest.mark.parametrize("calibrate", [True, False])
def test_release_that_copies_is_caught_and_one_of_other_records_is_at_chance(calibrate: bool) -> None:
    blurred = (0.9 * noise(200, 1) + 0.05).clamp(0, 1)
    assert auc(ReleasedImages(blurred), calibrate=calibrate)[1] > 0.95
    _, low, high = auc(ReleasedImages(noise(200, 9)), calibrate=calibrate)
    assert low < 0.5 < high


def test_generator_that_memorises_is_inverted_although_it_drew_nothing_near() -> None:
    """Its images are mixtures of private records; the latent input that gives one record is never drawn."""

    class Mixture(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return (inputs.softmax(1) @ noise(20, 1).flatten(1)).view(-1, *SHAPE)

    inputs = torch.randn(60, 20, generator=torch.Generator().manual_seed(0))
    release = ReleasedImages(Mixture()(inputs), Mixture(), inputs, 20)
    config = ReconstructionConfig(steps=200, rate=0.2)
    seen = nearest(noise(20, 1), release.images)[0]
    found = inverted(config, release, noise(20, 1), context())
    strangers = inverted(config, release, noise(20, 2), context())
    assert float((found / seen).max()) < 0.2
    assert float(found.max()) < 0.3 * float(strangers.min())
    assert auc(release, steps=200, rate=0.2)[0] > auc(release, steps=0)[0]


def test_class_of_an_input_stays_when_it_is_optimised() -> None:
    net = ConditionalGenerator(*SHAPE, classes=3, noise_size=2, units=8, maps=2).eval()
    release = draw(net, noise(5, 0), 30, context())
    assert release.inputs is not None
    assert (release.free, len(release.images), len(release.inputs)) == (2, 35, 30)
    torch.testing.assert_close(net(release.inputs), release.images[5:])
    assert torch.equal(release.inputs[:, 2:].argmax(1), torch.arange(30) % 3)
    before = release.inputs.clone()
    inverted(ReconstructionConfig(steps=3), release, noise(4, 1), context())
    assert torch.equal(before, release.inputs)


@pytest.mark.parametrize(
    "net",
    [DataFreeGenerator(*SHAPE, noise_size=7, units=6), ConditionalGenerator(*SHAPE, 4, 3, units=9, maps=5)],
    ids=["data-free", "conditional"],
)
def test_known_generator_is_rebuilt_from_its_weights(net: Any) -> None:
    again = generator_of(net.state_dict(), SHAPE, 4)
    assert again is not None
    inputs = torch.randn(3, 7)
    torch.testing.assert_close(again(inputs), net.eval()(inputs))


def test_unknown_generator_is_attacked_by_its_images_alone() -> None:
    weights = DenseGenerator(*SHAPE).state_dict()
    assert generator_of(weights, SHAPE, 4) is None
    assert generator_of({"project.weight": torch.zeros(3)}, SHAPE, 4) is None


def test_copies_are_told_from_images_that_lie_anywhere() -> None:
    private, other = noise(300, 1), noise(100, 2)
    for images, copies in ((private[:40], 1.0), (noise(40, 5), 0.0)):
        config = NearestRecordConfig()
        one = NearestRecord(config, FACTS)
        near = [-one.score(ReleasedImages(images), part, other, context()) for part in (private, other)]
        found = copy_metrics(near[0][None], near[1], 300, 100, config.ratio)
        assert found["copies"].value == found["copies above chance"].value == copies
        assert found["by chance"].value == 0.75
        low, high = found["nearest is private"].low, found["nearest is private"].high
        assert low is not None
        assert high is not None
        assert (low > 0.75) if copies else (low < 0.75 < high)


def test_a_large_private_pool_alone_makes_no_copies() -> None:
    """20,000 private records and 333 others, all uniform in a square, and images that are uniform, too."""
    generator = np.random.default_rng(0)
    private, other, images = (generator.random((count, 2)) for count in (20_000, 333, 300))

    def found(images: np.ndarray) -> dict[str, Estimated]:
        to = [np.linalg.norm(images[:, None] - pool[None], axis=2).min(1) for pool in [other, *blocks]]
        return copy_metrics(np.stack(to[1:]), to[0], 20_000, 333, 0.2)

    blocks = np.split(private, range(333, 20_000, 333))
    honest = found(images)
    assert honest["copies"].value > 0.5
    assert honest["copies above chance"].low is not None
    assert honest["copies above chance"].low < 0
    # If records are far apart, as in high dimensions, copies are found for any size of the pool.
    private, other = (generator.random((count, 20)) for count in (5_000, 333))
    blocks = np.split(private, range(333, 5_000, 333))
    copied = found(private[::50])
    assert copied["copies above chance"].value == 1
    assert found(generator.random((100, 20)))["copies above chance"].value == 0


@pytest.mark.parametrize("changed", ["ratio=0", "ratio=2", "draws=-1"])
def test_settings_of_the_nearest_record_are_checked(changed: str) -> None:
    overrides = values_of(parse_overrides(NearestRecord, [changed]))
    with pytest.raises(BenchError, match=f"nearest-record.{changed.partition('=')[0]} must be"):
        build_config(NearestRecord, Preset.PAPER, FACTS, overrides)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, source = tmp_path_factory.mktemp("released") / "runs", DataSource(Progress())
    grid = Grid(("nonprivate", "dp-merf"), ("digits",), (10.0,), preset=Preset.TINY)
    for cell in expand(grid, source.describe):
        assert run_cell(cell, RunDir(out), source, Progress()).failure is None
    return out


def attacked(out: Path, record: Record, name: str, *overrides: str) -> AttackRecord:
    place = Workplace(RunDir(out), DataSource(Progress()), Progress(), AttackOptions(overrides=overrides))
    return attack_student(record, name, place)


def one(out: Path, method: str) -> Record:
    return next(record for record in RunDir(out).read_records().found if record.method == method)


@pytest.mark.slow
def test_release_that_holds_private_records_is_caught_end_to_end(trained: Path) -> None:
    """The same student, once with its own images and once with private records instead."""
    record, run_dir = one(trained, "dp-merf"), RunDir(trained)
    place = Workplace(run_dir, DataSource(Progress()), Progress(), AttackOptions())
    material = place.source.material("digits")
    assert record.student is not None
    found = load_student(record, material.private.facts, run_dir)
    stolen = Released(
        found.student, found.student_name, found.student_options, extras={"synthetic_images": material.private.images}
    )
    student = record.student.model_copy(update={"file": "students/stolen.safetensors"})
    student = student.model_copy(update={"sha256": save_released(stolen, trained / student.file)})
    thief = record.model_copy(update={"student": student})

    copied = attacked(trained, thief, "nearest-record")
    assert copied.status is Status.DONE, copied.failure
    assert copied.targets[Role.STUDENT.value].metrics["copies"].value == 1
    honest = attacked(trained, record, "nearest-record", "draws=20")
    assert honest.targets[Role.STUDENT.value].metrics["copies"].value < 0.1
    assert not honest.no_power
    kids = {role: scores.metrics["kid"].value for role, scores in honest.targets.items()}
    stolen_kid = copied.targets[Role.STUDENT.value].metrics["kid"].value
    assert abs(stolen_kid) < 0.02
    assert min(kids["student"], kids["prior"]) > 3 * max(abs(kids["non-private"]), abs(kids["counterfactual"]))

    inside = attacked(trained, thief, "reconstruction-membership")
    assert inside.status is Status.DONE, inside.failure
    assert inside.targets[Role.STUDENT.value].metrics["records auc"].value > 0.98
    apart = attacked(trained, record, "reconstruction-membership", "draws=200", "steps=5", "records=300")
    assert set(apart.targets) == {"student", "non-private", "counterfactual", "prior"}
    for role in (Role.COUNTERFACTUAL, Role.PRIOR):
        metric = apart.targets[role.value].metrics["records auc"]
        assert metric.low is not None
        assert metric.high is not None
        assert metric.low < 0.52
        assert metric.high > 0.48
    assert apart.targets["non-private"].metrics["records auc"].value > 0.52

    found = {
        title: [dict(zip(columns, row, strict=True)) for row in rows]
        for title, columns, rows in tables([record], [honest, apart])
    }
    (traced,), (copies,) = found.values()
    assert (traced["attack"], copies["attack"]) == (apart.attack, honest.attack)
    assert "KID" not in traced
    assert copies["KID"] == f"{kids['student']:.3f}"
    assert "verdict" not in copies, "a column in which no attack has anything"


def test_an_attack_has_power_where_private_records_stand_out_from_other_ones() -> None:
    def auc(value: float) -> Estimated:
        return Estimated(value=value, low=value - 0.025, high=value + 0.025, n=100, confidence=0.95)

    assert no_power(auc(0.63), auc(0.51)) == ""
    assert "0.551" in no_power(auc(0.551), auc(0.55)), "both are above one half: the two sets differ"


def test_others_are_images_that_no_student_of_the_method_saw() -> None:
    source = DataSource(Progress())
    cells = expand(Grid(("dp-merf", "pate"), ("digits",), (10.0,), preset=Preset.TINY), source.describe)
    material = source.material("digits")
    test, public = material.test_images, material.public.images
    held = digests(material.private.images)
    for cell in cells:
        found = others(cell, material)
        seen = digests(found)
        assert not seen & held
        assert seen <= digests(test) | digests(public)
        assert bool(seen & (digests(public) - digests(test))) == (cell.method == "dp-merf")
    twice = dataclasses.replace(material, test_images=torch.cat([test, material.private.images[:3]]))
    assert len(others(cells[0], twice)) == len(others(cells[0], material))


def test_students_without_images_are_refused(trained: Path) -> None:
    refused = attacked(trained, one(trained, "nonprivate"), "nearest-record")
    assert refused.failure is not None
    assert "nonprivate released none" in refused.failure.reason
    assert not applies(one(trained, "nonprivate"), "nearest-record")
    assert applies(one(trained, "nonprivate"), "mi-face")
    assert applies(one(trained, "dp-merf"), "nearest-record")


def test_generator_that_is_not_known_is_said(trained: Path) -> None:
    notes: list[str] = []
    record = one(trained, "dp-merf")
    material = DataSource(Progress()).material("digits")
    found = load_student(record, material.private.facts, RunDir(trained))
    extras = {key: value for key, value in found.extras.items() if not key.startswith("generator/")}
    other = {f"generator/{key}": value for key, value in DenseGenerator(*SHAPE).state_dict().items()}
    given = Released(found.student, found.student_name, found.student_options, extras={**extras, **other})
    told = dataclasses.replace(context(), note=notes.append)
    (release,) = releases_of(given, "dp-merf", NearestRecordConfig(), material, told).values()
    assert release.generator is None
    assert "not known here" in notes[0]
