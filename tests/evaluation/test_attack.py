"""``bench attack`` and ``bench audit`` as users meet them: tables, pictures, resumption, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from bench.core.config import Preset
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.types import Released
from bench.evaluation.attack.attack import attack_key, attack_student, planned_key
from bench.evaluation.attack.data_roles import attack_data, fewer
from bench.evaluation.attack.workplace import AttackOptions, Workplace
from bench.experiments.data_source import DataSource
from bench.experiments.release import load_student, save_released
from bench.interface.registry import ATTACKS
from bench.models.build import build
from bench.results.attack_record import AttackRecord, Role, parse_row
from bench.results.record import Status
from bench.results.run_dir import RunDir
from helpers.commands import bench


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("attacked") / "runs"
    done = bench("run", "-m", "nonprivate,dp-sgd", "-d", "digits", "-e", "10", "-p", "tiny", "-o", str(out),
                 "--student", "small_cnn", "--workers", "1",
                 "--noise-salt", "6" * 64)  # fmt: skip  # a weak student: other noise can hardly be far weaker
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def attacked(trained: Path) -> tuple[Path, str]:
    names = "mi-face,inversion-network,label-gap,robustness"
    done = bench("attack", "-o", str(trained), "-a", names, "-p", "tiny", "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    return trained, done.stdout


def test_a_family_without_members_or_without_others_is_left_out(trained: Path, tmp_path: Path) -> None:
    """With seed 9 the copied records are members of both shadow runs or of neither; the other families have a ROC."""
    out = tmp_path / "runs"
    shutil.copytree(trained, out)
    key = next((out / "records").glob("digits-dp-sgd-*")).stem
    done = bench("attack", key, "-o", str(out), "-a", "loss", "-p", "tiny", "--seed", "9", "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    (attack,) = RunDir(out).read_attacks()[0]
    metrics = attack.targets[Role.STUDENT.value].metrics
    assert {"natural auc", "outlier auc", "mislabelled auc"} <= metrics.keys()
    assert "duplicated auc" not in metrics
    assert any("no ROC curve for duplicated" in note for note in attack.notes)


def test_attacks_print_their_tables_and_leave_records_and_pictures(attacked: tuple[Path, str]) -> None:
    out, printed = attacked
    for word in ("model inversion", "membership", "robustness", "counterfactual", "pictures in"):
        assert word in printed, printed
    records, damaged = RunDir(out).read_attacks()
    assert damaged == []
    assert len(records) == 2 * 4
    assert {record.goal for record in records} == {"inversion", "membership", "robustness"}
    for record in records:
        for picture in record.pictures:
            assert (out / picture).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert parse_row(record.to_json(), AttackRecord) == record
        bounds = {"auc", "advantage", "tpr@0.01", "tpr@0.001"} if record.goal == "membership" else set()
        assert {*record.bounds} == bounds
        assert all((bound == 1) == ("nonprivate" in record.key) for bound in record.bounds.values())
    assert (out / "attacks" / "compare-digits-mi-face.png").exists()


def test_every_inversion_stands_beside_its_controls(attacked: tuple[Path, str]) -> None:
    records = [r for r in RunDir(attacked[0]).read_attacks()[0] if r.goal == "inversion"]
    for record in records:
        assert set(record.targets) == {role.value for role in Role}
        student = record.targets["student"].metrics
        for name in ("committee top-1", "committee top-1 above counterfactual", "ssim member - non-member", "[IS]"):
            assert name in student, (record.key, sorted(student))
        top = student["committee top-1"]
        assert top.low is not None
        assert top.high is not None
        assert 0 <= top.low <= top.value <= top.high <= 1
        assert len(record.evaluators) == 3
        assert min(record.evaluators.values()) > 0.5
        assert record.targets["student"].queries
        if record.attack == "inversion-network":
            assert "answers: ssim gap" in student
            assert "digits" in record.auxiliary


def test_what_is_done_is_not_done_again(attacked: tuple[Path, str]) -> None:
    out = attacked[0]
    before = {path: path.stat().st_mtime_ns for path in (out / "attacks").glob("*.json")}
    done = bench("attack", "-o", str(out), "-a", "mi-face,label-gap", "-p", "tiny", "--workers", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["attacks"]) == 4
    assert {path: path.stat().st_mtime_ns for path in (out / "attacks").glob("*.json")} == before


def test_the_tiny_preset_is_said_to_be_reduced_and_has_keys_of_its_own(attacked: tuple[Path, str]) -> None:
    found = {record.attack: record for record in RunDir(attacked[0]).read_attacks()[0]}
    assert "records of a class in each role: all -> 20" in found["mi-face"].reduced
    assert "training steps of the evaluators: all -> a tenth" in found["mi-face"].reduced
    (student,) = (r for r in RunDir(attacked[0]).read_records().found if r.key == found["mi-face"].student)
    keys = {attack_key(student, ATTACKS.get("mi-face"), None, AttackOptions(preset)) for preset in Preset}
    assert len(keys) == 3


def test_fewer_records_of_each_role_for_the_tiny_preset() -> None:
    data = attack_data("digits", DataSource(Progress()))
    small = fewer(data)
    for part in (small.members, small.nonmembers, small.evaluators, small.disjoint, small.held_out):
        assert part is not None
        assert len(part[0]) == len(part[1]) <= 200
        assert set(part[1].tolist()) == set(range(10))
    assert small.tiny
    assert len(small.members[0]) == 200 < len(data.members[0])
    assert small.auxiliary is not None
    assert len(small.auxiliary) <= 200


def test_a_student_that_is_not_the_recorded_one_is_refused(attacked: tuple[Path, str], tmp_path: Path) -> None:
    copy = tmp_path / "runs"
    shutil.copytree(attacked[0], copy)
    records = {record.method: record for record in RunDir(copy).read_records().found}
    mine, other = records["nonprivate"].student, records["dp-sgd"].student
    assert mine is not None
    assert other is not None
    shutil.copy(copy / other.file, copy / mine.file)
    done = bench("attack", records["nonprivate"].key, "-o", str(copy), "-a", "mi-face", "-p", "tiny", "--reuse", "none")
    assert done.returncode == 1
    assert "SHA-256 differs" in done.stdout
    (copy / mine.file).write_bytes(b"nothing")
    done = bench("attack", records["nonprivate"].key, "-o", str(copy), "-a", "mi-face", "-p", "tiny", "--reuse", "none")
    assert done.returncode == 1
    assert "SHA-256 differs" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("classes", "size", "said"), [(7, 8, "has 7 classes, digits has 10"), (10, 28, "does not take images of shape")]
)
def test_a_student_of_other_classes_or_sizes_is_refused(
    tmp_path: Path, trained: Path, classes: int, size: int, said: str
) -> None:
    """Its file is the one that the record names, so nothing but the net itself tells."""
    options = {"num_classes": classes, "in_chans": 1, "img_size": size}
    digest = save_released(Released(build("small_cnn", **options), "small_cnn", options), tmp_path / "x.safetensors")
    record = next(r for r in RunDir(trained).read_records().found if r.method == "nonprivate")
    assert record.student is not None
    student = record.student.model_copy(update={"file": "x.safetensors", "sha256": digest})
    source = DataSource(Progress())
    place = Workplace(RunDir(tmp_path), source, Progress(), AttackOptions())
    with pytest.raises(BenchError, match=said):
        load_student(record.model_copy(update={"student": student}), source.describe("digits").facts, place.run_dir)


def test_an_attack_that_cannot_begin_leaves_its_record(tmp_path: Path, trained: Path) -> None:
    record = next(r for r in RunDir(trained).read_records().found if r.method == "nonprivate")
    run_dir = RunDir(tmp_path / "runs").create()
    plain = Workplace(run_dir, DataSource(Progress()), Progress(), AttackOptions())
    cell = record.cell.model_copy(update={"method_version": 99})
    stale = attack_student(record.model_copy(update={"cell": cell}), "mi-face", plain)
    place = dataclasses.replace(plain, options=AttackOptions(overrides=("images_per_class=many",)))
    odd = attack_student(record, "gmi", place)
    for failed, reason in ((stale, "version 99"), (odd, "images_per_class")):
        assert failed.status is Status.FAILED
        assert failed.failure is not None
        assert reason in failed.failure.reason
        assert failed.config == {}
    assert {found.key for found in run_dir.read_attacks()[0]} == {stale.key, odd.key}
    assert odd.key == planned_key(record, "gmi", place)


def test_auxiliary_data_that_holds_private_records_is_refused(attacked: tuple[Path, str]) -> None:
    out = attacked[0]
    done = bench("attack", "-o", str(out), "-a", "inversion-network", "-p", "tiny", "--auxiliary", "digits")
    assert done.returncode == 1
    assert "the auxiliary data and the private records have" in done.stdout
    assert "in common" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("attack", "-a", "mi-fase"), "Did you mean 'mi-face'"),
        (("attack", "-a", "mi-face", "--set", "restart=3"), "restart"),
        (("attack", "nothing-like-it"), "unknown record"),
        (("attack", "-m", "pate"), "unknown method among the students"),
        (("attack", "-m", "client"), "none of client has a student in"),
        (("audit", "--confidence", "2"), "confidence"),
        (("audit", "--kind", "one-run", "--guesses", "7"), "even"),
        (("audit", "--kind", "many-run", "--runs", "2"), "8 runs or more"),
    ],
)
def test_mistakes_are_told_in_one_line(trained: Path, words: tuple[str, ...], said: str) -> None:
    done = bench(*words, "-o", str(trained), "-q")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_place_without_students_is_told(tmp_path: Path) -> None:
    done = bench("attack", "-o", str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert "no such run directory" in done.stderr
    assert not (tmp_path / "nowhere").exists()


def test_audits_fill_the_column_and_are_kept(trained: Path) -> None:
    words = (
        "audit", "-o", str(trained), "--kind", "one-run", "--canaries", "80", "--guesses", "40", "--draws", "20000",
        "--workers", "1",
    )  # fmt: skip
    done = bench(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("audits at 95% confidence", "by curve", "could show at most", "without noise", "right guesses"):
        assert word in done.stdout
    audits, _ = RunDir(trained).read_audits()
    assert {audit.method for audit in audits} == {"nonprivate", "dp-sgd"}
    assert all(audit.epsilon is not None for audit in audits)
    private = next(audit for audit in audits if audit.method == "dp-sgd")
    assert private.power, "a method with noise is run without it too"
    assert private.allowed is not None
    again = bench(*words, "-q")
    assert again.returncode == 0
    assert RunDir(trained).read_audits()[0] == audits
    board = bench("leaderboard", str(trained), "--into", str(trained / "board"), "--json")
    rows = json.loads(board.stdout)["records"]
    assert all(row["privacy"]["audited"]["confidence"] == 0.95 for row in rows)
    shown = bench("show", audits[0].student[:14], "-o", str(trained))
    assert "guesses right" in shown.stdout
