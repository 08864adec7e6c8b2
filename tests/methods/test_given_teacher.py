"""Transcription of a teacher that a user gives: the same students, other private records, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bench.core.config import Grid, Preset, build_config
from bench.core.errors import BenchError, UnknownNameError
from bench.core.lazy_libraries import timm
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Budget, Facts, GivenTeacher, PrivateData, Released
from bench.evaluation.audit.audit import refuse_given
from bench.evaluation.check.noninterference import check_method
from bench.experiments.data_source import DataSource
from bench.experiments.plan import Cell, Dataset, cell_of, expand
from bench.experiments.release import load_student
from bench.experiments.run import run_cell
from bench.interface.registry import METHODS
from bench.launchers.bundle import pack
from bench.methods.distillation.dpsd_family import train_teacher
from bench.methods.shared.teachers import train_ensemble
from bench.models.given_teacher import load_given, pin
from bench.models.rebuild import make_student
from bench.publishing.reproduce import public_dataset
from bench.publishing.validate import vet_record
from bench.results.run_dir import RunDir
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.loop import predict
from helpers.ledgers import seeded_ledger
from helpers.small_sets import SMALL, private_pair, public_set

DIGITS = Facts("digits", 1_000, 400, 397, 10, (1, 8, 8), public_benchmark=True)


@pytest.fixture(autouse=True)
def _own_data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))


def context() -> Context:
    return Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())


def student_of(name: str, private: PrivateData, weights: Path | None = None, **changes: Any) -> Released:
    method = METHODS.get(name)
    config = dataclasses.replace(build_config(method, Preset.TINY, SMALL)[0], **changes)
    if weights is not None:
        config = dataclasses.replace(config, teacher_weights=f"file:{weights}", teacher_records=len(private))
        config = method(config, SMALL).pin_teacher()
        private = PrivateData(private.images[:0], private.labels[:0], private.facts)
    config = method(config, SMALL).calibrate(Budget(10.0, 1e-5))
    ledger = seeded_ledger(method.unit, Adjacency.REPLACE, np.random.default_rng(0))
    return method(config, private.facts).train_student(private, public_set(), ledger, context())


@pytest.mark.parametrize("name", ["dpsd", "dpsd-label", "dpsd-t"])
def test_given_the_teacher_that_would_be_trained_the_student_is_the_same(name: str, tmp_path: Path) -> None:
    private = private_pair()[0]
    config, _ = build_config(METHODS.get(name), Preset.TINY, SMALL)
    save_file(train_teacher(config, private, context()).state_dict(), tmp_path / "t.safetensors")
    trained, given = student_of(name, private), student_of(name, private, tmp_path / "t.safetensors")
    for key, tensor in trained.student.state_dict().items():
        assert torch.equal(tensor, given.student.state_dict()[key])


def test_an_ensemble_of_the_given_teacher_is_an_ensemble_of_one(tmp_path: Path) -> None:
    private = private_pair()[0]
    config = dataclasses.replace(build_config(METHODS.get("dpsd-sound"), Preset.TINY, SMALL)[0], teachers=1)
    teachers = train_ensemble(config, private, context())
    save_file(teachers.teacher(0).state_dict(), tmp_path / "t.safetensors")
    trained = student_of("dpsd-sound", private, teachers=1)
    given = student_of("dpsd-sound", private, tmp_path / "t.safetensors")
    for key, tensor in trained.student.state_dict().items():
        assert torch.equal(tensor, given.student.state_dict()[key])


@pytest.mark.parametrize("name", ["dgd", "dgd-plus", "dgd-sound"])
def test_dgd_trains_nothing_on_the_records_of_a_given_teacher(name: str, tmp_path: Path) -> None:
    private = private_pair()[0]
    save_file(make_student("small_cnn", SMALL, torch.Generator())[0].state_dict(), tmp_path / "t.safetensors")
    answers = student_of(name, private, tmp_path / "t.safetensors", teacher="small_cnn").extras["query_answers"]
    assert len(answers)


def plan(*settings: str, method: str = "dpsd", facts: Facts = DIGITS) -> Cell:
    grid = Grid((method,), (facts.dataset,), (10.0,), preset=Preset.TINY, overrides=settings)
    return expand(grid, lambda name: Dataset(name, facts, "sha256:0"))[0]


def teacher_file(path: Path, classes: int = 10, net: str = "small_cnn", seed: int = 0) -> Path:
    facts = dataclasses.replace(DIGITS, classes=classes)
    save_file(make_student(net, facts, torch.Generator().manual_seed(seed))[0].state_dict(), path)
    return path


def test_a_cell_names_the_teacher_by_digest_and_counts_its_records(tmp_path: Path) -> None:
    one, other = teacher_file(tmp_path / "one.safetensors"), teacher_file(tmp_path / "two.safetensors", seed=1)
    cell = plan(f"teacher_weights=file:{one}", "teacher_records=2000000")
    assert cell.config.teacher_weights == "file:one.safetensors"
    assert len(cell.config.teacher_weights_sha256) == 64
    assert str(tmp_path) not in repr(cell)
    assert (cell.facts.private_records, cell.facts.public_benchmark, cell.delta) == (2_000_000, False, 1e-7)
    assert plan(f"teacher_weights=file:{other}", "teacher_records=2000000").key != cell.key
    # The command of the record finds the file again by its digest, until it changes.
    again = plan(*(f"{name}={value}" for name, value in (cell.spec.overrides or {}).items()))
    assert again.key == cell.key
    given = METHODS.get("dpsd")(again.config, again.facts).given_teacher()
    assert given is not None
    load_given(given, again.facts)
    teacher_file(one, seed=2)
    with pytest.raises(BenchError, match="were moved or changed"):
        load_given(given, again.facts)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["teacher_weights=file:{}", "teacher_records=none"], "needs teacher_records"),
        (["teacher_weights=file:{}", "teacher_records=0"], "1 or more, not 0"),
        (["teacher_records=10"], "set teacher_weights too"),
        (["teacher_weights=hub", "teacher_records=10"], "write package or file:PATH"),
        (["teacher_weights=file:{}x.safetensors", "teacher_records=10"], "there is no file"),
        (["teacher_weights=file:{}.pth", "teacher_records=10"], "not a safetensors file"),
        (["teacher_weights=file:{}", "teacher_records=10", "teacher_weights_sha256=ab"], "not ab"),
        (["teacher_weights=file:{}", "teacher_records=10", "teacher=wrn"], "model named 'wrn'|unknown model"),
        (["teacher_weights=file:{}", "teacher_records=10", "teacher=resnet10t", "teacher_size=0"], "does not fit"),
        (["teacher_weights=file:{}", "teacher_records=10", "teacher_size=64"], "omit teacher_size"),
        (["teacher_weights=package", "teacher_records=10"], "teacher with a package of weights"),
        (["teacher_weights=package", "teacher_records=10", "teacher=tf_efficientnet_lite0"], "1000 classes"),
    ],
)
def test_bad_settings_are_refused(settings: list[str], said: str, tmp_path: Path) -> None:
    path = teacher_file(tmp_path / "t.safetensors")
    with pytest.raises((BenchError, UnknownNameError), match=said):
        plan(*(text.format(path) for text in settings))


def test_other_files_and_methods_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="knows 7 classes, digits has 10"):
        plan(f"teacher_weights=file:{teacher_file(tmp_path / 'seven.safetensors', 7)}", "teacher_records=10")
    (tmp_path / "text.safetensors").write_text("nothing")
    with pytest.raises(BenchError, match="not a safetensors file, or is damaged"):
        plan(f"teacher_weights=file:{tmp_path / 'text.safetensors'}", "teacher_records=10")
    given = [f"teacher_weights=file:{teacher_file(tmp_path / 't.safetensors')}", "teacher_records=10"]
    with pytest.raises(BenchError, match="trains a teacher at each client"):
        plan(*given, method="fed-dpsd")
    with pytest.raises(BenchError, match="images=private needs the private records"):
        plan(*given, "images=private", method="dgd")
    with pytest.raises(BenchError, match="there is no second one for a replay"):
        check_method(METHODS.get("dpsd"), overrides=given)


def test_a_run_keeps_a_private_teacher_private(tmp_path: Path) -> None:
    path = teacher_file(tmp_path / "t.safetensors")
    source, run_dir = DataSource(Progress()), RunDir(tmp_path / "runs").create()
    overrides = (f"teacher_weights=file:{path}", "teacher_records=1000")
    (cell,) = expand(Grid(("dpsd",), ("digits",), (10.0,), preset=Preset.TINY, overrides=overrides), source.describe)
    record = run_cell(cell, run_dir, source, Progress())
    assert record.failure is None
    assert str(tmp_path) not in record.to_json()
    assert (record.private_records, record.public_benchmark, record.noise_salt) == (1000, False, None)
    assert not any("agree" in note for note in record.notes)
    (problem,) = [text for text in vet_record(record).problems if "teacher" in text]
    assert "a user's own file" in problem
    forged = record.model_copy(update={"public_benchmark": True})
    assert any("a user's own file" in text for text in vet_record(forged).problems)
    with pytest.raises(BenchError, match="cannot be retrained"):
        refuse_given(cell_of(record, source.describe("digits")))


def test_test_records_alone_need_a_given_teacher() -> None:
    photos = public_dataset("imagenet-photos")
    assert photos is not None
    with pytest.raises(BenchError, match="has only test records, none to train dpsd on"):
        plan(facts=photos.facts)
    settings = ("teacher=tf_efficientnet_lite0", "teacher_weights=package", "teacher_records=1281167")
    cell = plan(*settings, facts=photos.facts)
    assert not cell.refused
    assert (cell.facts.private_records, cell.facts.public_benchmark) == (1_281_167, True)


def test_the_teacher_sees_images_of_its_own_size(tmp_path: Path) -> None:
    facts = Facts("photos", 10, 0, 0, 10, (3, 16, 16))
    save_file(timm.create_model("resnet10t", num_classes=10).state_dict(), tmp_path / "t.safetensors")
    net = load_given(pin(GivenTeacher("resnet10t", f"file:{tmp_path / 't.safetensors'}", "", 32, 10), facts), facts)
    seen: list[torch.Tensor] = []
    net.net.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    net(torch.ones(100, 3, 16, 16))
    assert [tuple(part.shape) for part in seen] == [(64, 3, 32, 32), (36, 3, 32, 32)]
    white = (1 - torch.tensor(net.net.default_cfg["mean"])) / torch.tensor(net.net.default_cfg["std"])
    assert torch.allclose(seen[0], white.view(3, 1, 1).expand(64, 3, 32, 32), atol=1e-5)


def test_a_public_teacher_is_compared_with_its_student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No package tells ten classes: a file's teacher is declared public once the cell is planned."""
    source, run_dir = DataSource(Progress()), RunDir(tmp_path / "runs").create()
    overrides = (f"teacher_weights=file:{teacher_file(tmp_path / 't.safetensors')}", "teacher_records=1000")
    (cell,) = expand(Grid(("dpsd",), ("digits",), (10.0,), preset=Preset.TINY, overrides=overrides), source.describe)
    given = METHODS.get("dpsd")(cell.config, cell.facts).given_teacher()
    assert given is not None
    teacher = load_given(given, cell.facts)
    monkeypatch.setattr(GivenTeacher, "public", True)
    monkeypatch.setattr("bench.models.given_teacher.load_given", lambda *_: teacher)
    record = run_cell(cell, run_dir, source, Progress())
    assert record.failure is None, record.failure
    material = source.material("digits")
    student = load_student(record, cell.facts, run_dir).student
    taught, learnt = (predict(net, material.test_images).argmax(1) for net in (teacher, student))
    (said,) = [note for note in record.notes if "agree" in note]
    same, right = int((taught == learnt).sum()), int((taught == material.test_labels).sum())
    assert 0 < same != right
    assert said.startswith(f"student and teacher agree on {same} of 397 test images (")
    assert said.endswith(f"the teacher is right on {right}")


def test_a_bundle_takes_no_teacher_of_ones_own(tmp_path: Path) -> None:
    given = (f"teacher_weights=file:{teacher_file(tmp_path / 't.safetensors')}", "teacher_records=10")
    grid = Grid(("dpsd",), ("digits",), (10.0,), preset=Preset.TINY, overrides=given)
    with pytest.raises(BenchError, match="from your own file"):
        pack(grid, tmp_path / "grid.zip", Progress())
    assert not (tmp_path / "grid.zip").exists()
