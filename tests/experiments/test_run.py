"""Execution of one cell: its seeding and its failures."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, PrivacyUnit, PrivateData, PublicData, PublicKind, Released
from bench.evaluation.audit.canaries import CanaryPlan, draw_canaries
from bench.evaluation.audit.canary_runs import train_shadow_run, train_shadow_student
from bench.evaluation.check.noninterference import check_method
from bench.experiments import run
from bench.experiments.calibration_cache import artefact_program
from bench.experiments.release import load_released
from bench.experiments.run import make_shard, run_cell
from bench.models.rebuild import make_student
from bench.privacy.mechanisms.ledger import Ledger
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.loop import predict
from helpers.one_teacher import OneTeacher, one_cell
from helpers.site import attack

drawn: list[float] = []
"""What shards drew, in their order."""


class FromGlobals(OneTeacher):
    """Its student depends only on NumPy's and Python's global generators, not on private data."""

    shardable = True

    def make_shard(self, private: PrivateData, public: PublicData, context: Context, shard: int, shards: int) -> None:
        drawn.append(np.random.standard_normal() + random.random())

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        ledger.noisy_max(np.tile([3.0] + [0.0] * (private.facts.classes - 1), (2, 1)), teachers=3, gamma=0.1)
        student, options = make_student("softmax_regression", private.facts, context.streams.torch("start"))
        for parameter in student.parameters():
            parameter.data.copy_(torch.from_numpy(np.random.standard_normal(parameter.shape)) + random.random())
        return Released(student, "softmax_regression", options)


def disturb(number: int) -> None:
    np.random.seed(number)
    random.seed(number)


def test_what_a_method_draws_from_global_generators_is_repeated(tmp_path: Path) -> None:
    students = []
    for number in range(2):
        with one_cell(tmp_path / str(number), method=FromGlobals) as (cell, run_dir, source):
            disturb(number)
            record = run_cell(cell, run_dir, source, Progress())
            assert record.student is not None, record.failure
            students.append(record.student.sha256)
            disturb(number)
            make_shard(cell, (0, 1), run_dir, source, Progress())
    assert students[0] == students[1]
    assert len(drawn) == 2
    assert drawn[0] == drawn[1]
    assert check_method(FromGlobals).ok, "the check repeats it too"


def test_what_a_shadow_run_draws_from_global_generators_is_repeated(tmp_path: Path) -> None:
    released = []
    with one_cell(tmp_path, method=FromGlobals) as (cell, _, source):
        material = source.material(cell.dataset)
        canaries = draw_canaries(material.private, CanaryPlan(outlier=4), PrivacyUnit.RECORD, Adjacency.REPLACE)
        for number in range(2):
            context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
            disturb(number)
            released.append(train_shadow_run(cell, canaries, 0, material, context).released.student.state_dict())
    assert all(torch.equal(tensor, released[1][name]) for name, tensor in released[0].items())


class NoisyTeacher(OneTeacher):
    """Caches a teacher drawn from its streams; its student is the teacher plus the ledger's noise."""

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        student, options = make_student("softmax_regression", private.facts, context.streams.torch("start"))
        weight = next(student.parameters()).data

        def teacher() -> dict[str, np.ndarray]:
            return {"weight": context.streams.numpy("teacher").standard_normal(weight.shape)}

        noise = ledger.gaussian(np.zeros(weight.shape), sensitivity=1.0, noise_multiplier=0.01)
        made = context.cache.get("teacher", {"seed": context.streams.seed}, teacher)["weight"]
        weight.copy_(torch.from_numpy(made + noise))
        return Released(student, "softmax_regression", options)


def test_shadow_students_share_no_teacher(tmp_path: Path) -> None:
    with one_cell(tmp_path, method=NoisyTeacher) as (cell, _, source):
        context = Context(torch.device("cpu"), Streams(0), Cache(tmp_path / "cache", {}), Progress())
        material = source.material(cell.dataset)
        weights = [
            next(train_shadow_student(cell, material, index, seed, context)[0].student.parameters()).detach()
            for index, seed in ((0, 0), (1, 0), (0, 1), (0, 0))
        ]
    apart = [float((weights[0] - other).abs().mean()) for other in weights[1:]]
    assert min(apart[:2]) > 0.5, "another teacher, not the same one with other noise"
    assert apart[2] == 0


def test_attacks_on_replaced_weights_are_deleted(tmp_path: Path) -> None:
    with one_cell(tmp_path, method=NoisyTeacher) as (cell, run_dir, source):
        first = run_cell(cell, run_dir, source, Progress())
        for student in (cell.key, "another"):
            run_dir.write_row(attack(student))
        assert first.noise_salt is not None
        run_cell(cell, run_dir, source, Progress(), noise_salt=first.noise_salt)
        assert {row.student for row in run_dir.read_attacks()[0]} == {cell.key, "another"}
        run_cell(cell, run_dir, source, Progress())
        assert {row.student for row in run_dir.read_attacks()[0]} == {"another"}


def test_another_version_of_the_program_makes_its_own_artefacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_cell(tmp_path, method=NoisyTeacher) as (cell, run_dir, source):
        found = []
        for program in (artefact_program(), artefact_program(), "another"):
            monkeypatch.setattr(run, "artefact_program", lambda program=program: program)
            found.append(run_cell(cell, run_dir, source, Progress()).provenance.artefacts["teacher"])
    assert found == [(1, 0), (0, 1), (1, 0)]


class Reader(OneTeacher):
    """Reads a file that is not there."""

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "weights.bin")


def test_a_file_that_cannot_be_read_is_recorded_as_that_with_its_traceback(tmp_path: Path) -> None:
    with one_cell(tmp_path, method=Reader) as (cell, run_dir, source):
        failure = run_cell(cell, run_dir, source, Progress()).failure
    assert failure is not None
    assert failure.kind == "FileNotFoundError"
    assert "weights.bin" in failure.reason
    assert "written" not in failure.reason
    assert failure.log is not None
    assert "in train_student" in (tmp_path / failure.log).read_text()


class Diverged(OneTeacher):
    """Its student has weights that are not numbers."""

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        released = super().train_student(private, public, ledger, context)
        for parameter in released.student.parameters():
            parameter.data.fill_(float("nan"))
        return released


def test_a_student_that_diverged_is_no_result(tmp_path: Path) -> None:
    with one_cell(tmp_path, method=Diverged) as (cell, run_dir, source):
        failure = run_cell(cell, run_dir, source, Progress()).failure
    assert failure is not None
    assert "its training diverged" in failure.reason


class Maker(OneTeacher):
    """Makes an artefact."""

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        context.cache.get("part", {}, lambda: {"part": np.zeros(1)})
        return super().train_student(private, public, ledger, context)


def test_a_cache_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    with one_cell(tmp_path, method=Maker) as (cell, run_dir, source):
        (run_dir.cache_path / "locks").write_text("no folder")
        failure = run_cell(cell, run_dir, source, Progress()).failure
    assert failure is not None
    assert failure.kind == "error"
    assert "locks could not be written" in failure.reason


class FromPool(OneTeacher):
    public_data_kinds = (PublicKind.UNLABELLED,)
    public_data = "images of the pool"


@pytest.mark.parametrize(
    ("method", "from_test", "measured"), [(OneTeacher, True, True), (OneTeacher, False, False), (FromPool, True, False)]
)
def test_who_uses_no_part_of_the_test_set_is_measured_on_all_of_it(
    method: type[OneTeacher], from_test: bool, measured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_cell(tmp_path, method=method) as (cell, run_dir, source):
        material = dataclasses.replace(source.material(cell.dataset), public_from_test=from_test)
        monkeypatch.setattr(source, "material", lambda _: material)
        utility = run_cell(cell, run_dir, source, Progress()).utility
    assert utility is not None
    if not measured:
        assert (utility.official_accuracy, utility.official_records) == (None, None)
        return
    student = load_released(next((tmp_path / "released").glob("*.safetensors"))).student
    images, labels = (
        torch.cat([material.test_images, material.public.images]),
        torch.cat([material.test_labels, material.public_labels]),
    )
    right = (predict(student, images).argmax(1) == labels).double().mean()
    assert utility.official_records == len(labels) == 797
    assert utility.official_accuracy == pytest.approx(float(right), abs=1e-6)
