"""The salt of a cell's noise: unreachable for the method, kept for a killed run, deleted after the record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import AuditKind, PrivateData, PublicData, Released
from bench.evaluation.audit.audit import audit_student
from bench.evaluation.audit.options import AuditOptions
from bench.experiments.noise_salt import check_salt, salt_of, sweep_salts
from bench.experiments.run import record_failure, run_cell
from bench.interface.registry import METHODS
from bench.models.rebuild import make_student
from bench.privacy.mechanisms.ledger import Ledger
from bench.publishing.reproduce import command_of
from bench.results.record import Record, Status
from bench.results.run_dir import RunDir
from bench.storage.interrupts import Stopped
from bench.training.context import Context
from helpers.commands import bench
from helpers.data import image_folder
from helpers.one_teacher import OneTeacher, one_cell

seen: list[Any] = []
"""What the methods below saw."""


class Asks(OneTeacher):
    """Releases a few noisy numbers; `then` is what happens after the first."""

    then: Callable[[], None] = staticmethod(lambda: None)

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        told = ledger.gaussian(np.zeros(4), sensitivity=1.0, noise_multiplier=1.0)
        seen.append((told, context, ledger))
        type(self).then()
        student, options = make_student("softmax_regression", private.facts, context.streams.torch("start"))
        return Released(student, "softmax_regression", options, extras={"told": torch.from_numpy(told)})


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    seen.clear()
    yield
    Asks.then = staticmethod(lambda: None)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return image_folder(tmp_path / "mine")


def stop() -> None:
    raise Stopped(15)


def fail() -> None:
    raise BenchError("it does not work.")


def salts(run_dir: RunDir) -> list[Path]:
    return sorted(run_dir.noise_path.glob("*"))


def ran(out: Path, dataset: str = "digits", noise_salt: str = "random") -> Record:
    with one_cell(out, dataset=dataset, method=Asks) as (cell, run_dir, source):
        record = run_cell(cell, run_dir, source, Progress(), noise_salt=noise_salt)
    assert record.student is not None, record.failure
    return record


def test_each_run_draws_its_own_noise_which_its_record_repeats(tmp_path: Path) -> None:
    first, second = ran(tmp_path / "a"), ran(tmp_path / "b")
    assert first.noise_salt is not None
    assert first.noise_salt != second.noise_salt
    assert not np.array_equal(seen[0][0], seen[1][0])
    again = ran(tmp_path / "c", noise_salt=first.noise_salt)
    assert again.noise_salt == first.noise_salt
    assert again.student == first.student
    assert (command_of(first)[0] or "").endswith(f"--noise-salt {first.noise_salt}")


def test_a_record_with_other_noise_does_not_count_as_repeated(tmp_path: Path) -> None:
    words = ["run", "-m", "scatter-linear", "-d", "digits", "-e", 10, "-p", "tiny", "-o", tmp_path, "--noise-salt"]
    assert bench(*words, "a" * 64).returncode == 0
    assert "1 of 1 cell is done already" in bench(*words, "a" * 64).stderr
    for other in ("b" * 64, "none"):
        done = bench(*words, other)
        assert done.returncode == 2
        assert f"with other noise, so --noise-salt {other} would not be used" in " ".join(done.stderr.split())
    assert bench(*words, "random").returncode == 0


def test_without_a_salt_seed_and_key_make_the_noise(tmp_path: Path) -> None:
    first, second = ran(tmp_path / "a", noise_salt="none"), ran(tmp_path / "b", noise_salt="none")
    assert first.noise_salt is None
    assert first.student == second.student
    np.testing.assert_array_equal(seen[0][0], Streams(0).numpy(f"noise/{first.key}").normal(0.0, 1.0, 4))
    assert (command_of(first)[0] or "").endswith("--noise-salt none")


def test_a_method_cannot_draw_the_noise_of_its_ledger(tmp_path: Path) -> None:
    record = ran(tmp_path)
    told, context, ledger = seen[0]
    assert record.noise_salt is not None
    # All that the method has, under every name of the stream that the program knows.
    tokens = [record.key, context.cell, f"{record.key}/{context.cell}", ""]
    for name in [f"noise/{token}" for token in tokens] + ["noise", "noiseless", *tokens]:
        assert not np.allclose(context.streams.numpy(name).normal(0.0, 1.0, 4), told)
    members = inspect.getmembers(ledger)
    assert record.noise_salt not in repr(context) + repr(members)
    readable = {name for name, value in members if not name.startswith("_") and not callable(value)}
    assert readable == {"unit", "adjacency", "asked", "answered", "events", "bypasses"}
    for name in readable:
        with pytest.raises(AttributeError):
            setattr(ledger, name, getattr(ledger, name))
    assert not {"noise", "noise_position"} & set(dir(ledger))
    held = ledger.events
    held += (held[0],)  # a copy
    assert len(ledger.events) == 1


def test_a_vote_cannot_be_changed_after_its_answer() -> None:
    from bench.core.types import Adjacency, PrivacyUnit
    from helpers.ledgers import seeded_ledger

    ledger = seeded_ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, np.random.default_rng(0))
    votes = np.array([[3.0, 1.0], [2.0, 2.0]])
    ledger.noisy_max(votes, teachers=4, gamma=0.1)
    votes[:] = [4.0, 0.0]
    (release,) = ledger.private_votes()
    np.testing.assert_array_equal(release.votes, [[3.0, 1.0], [2.0, 2.0]])
    with pytest.raises(ValueError, match="read-only"):
        release.votes[0, 0] = 4.0
    with pytest.raises(ValueError, match="read-only"):
        release.answered[0] = False


def test_a_killed_run_goes_on_with_its_salt(tmp_path: Path) -> None:
    Asks.then = staticmethod(stop)
    with one_cell(tmp_path, method=Asks) as (cell, run_dir, source):
        with pytest.raises(Stopped):
            run_cell(cell, run_dir, source, Progress())
        (path,) = salts(run_dir)
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert run_dir.cache_path not in path.parents
        sweep_salts(run_dir)
        Asks.then = staticmethod(lambda: None)
        record = run_cell(cell, run_dir, source, Progress())
    assert record.noise_salt is not None
    np.testing.assert_array_equal(seen[0][0], seen[1][0])
    assert seen[0][1].cell == seen[1][1].cell, "it finds its checkpoints"
    assert salts(run_dir) == []


@pytest.mark.parametrize("dataset", ["digits", "folder"])
def test_a_run_killed_after_its_record_leaves_a_salt_that_the_next_command_deletes(
    dataset: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RunDir.write_record

    def write_and_die(run_dir: RunDir, record: Record) -> None:
        write(run_dir, record)
        raise Stopped(9)

    with one_cell(tmp_path, dataset=folder if dataset == "folder" else dataset, method=Asks) as (cell, run_dir, source):
        with monkeypatch.context() as patch:
            patch.setattr(RunDir, "write_record", write_and_die)
            with pytest.raises(Stopped):
                run_cell(cell, run_dir, source, Progress())
        assert len(salts(run_dir)) == 1
        (run_dir.cache_path / f"{cell.key}.noise").write_text("of an earlier version")
        sweep_salts(run_dir)
        assert salts(run_dir) == []
        assert not list(run_dir.cache_path.glob("*.noise"))
        # Run again and killed, it keeps the salt of the new run beside the old record.
        Asks.then = staticmethod(stop)
        with pytest.raises(Stopped):
            run_cell(cell, run_dir, source, Progress())
        sweep_salts(run_dir)
        assert len(salts(run_dir)) == 1
    assert not np.array_equal(seen[0][0], seen[1][0])


@pytest.mark.parametrize("command", ["ls", "status"])
def test_a_salt_beside_its_finished_record_is_swept_by_commands_that_look(command: str, tmp_path: Path) -> None:
    with one_cell(tmp_path, method=Asks) as (cell, run_dir, source):
        salt_of(cell, run_dir)
        kept = (run_dir.noise_path / cell.key).read_bytes()
        assert bench(command, "-o", run_dir.path).returncode == 0
        assert len(salts(run_dir)) == 1, "its cell resumes with it"
        run_cell(cell, run_dir, source, Progress())
        (run_dir.noise_path / cell.key).write_bytes(kept)
        assert bench(command, "-o", run_dir.path).returncode == 0
        assert salts(run_dir) == []


def test_nothing_is_swept_through_a_link(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs").create()
    (tmp_path / "home").mkdir()
    precious = [tmp_path / "home" / name for name in ("thesis", "a.noise")]
    for path in precious:
        path.write_text("mine")
    run_dir.cache_path.rmdir()
    for link in (run_dir.cache_path, run_dir.noise_path):
        link.symlink_to(tmp_path / "home")
    sweep_salts(run_dir)
    assert all(path.exists() for path in precious)


def test_a_salt_left_behind_is_not_used_again(tmp_path: Path) -> None:
    with one_cell(tmp_path, method=Asks) as (cell, run_dir, source):
        left = salt_of(cell, run_dir)
        kept = (run_dir.noise_path / cell.key).read_bytes()
        first = run_cell(cell, run_dir, source, Progress())
        assert first.noise_salt == left
        (run_dir.noise_path / cell.key).write_bytes(kept)
        assert run_cell(cell, run_dir, source, Progress()).noise_salt not in (None, left)


def test_the_salt_of_a_failed_cell_is_deleted_and_that_of_a_lost_one_is_kept(tmp_path: Path) -> None:
    Asks.then = staticmethod(fail)
    with one_cell(tmp_path, method=Asks) as (cell, run_dir, source):
        record = run_cell(cell, run_dir, source, Progress())
        assert record.status is Status.FAILED
        assert record.noise_salt is not None, "so that the failure can be repeated"
        assert salts(run_dir) == []
        Asks.then = staticmethod(stop)
        with pytest.raises(Stopped):
            run_cell(cell, run_dir, source, Progress())
        record_failure(cell, run_dir, BenchError("its process died"))
        sweep_salts(run_dir)
        assert len(salts(run_dir)) == 1


def test_noise_on_data_of_ones_own_is_neither_given_nor_recorded(folder: str, tmp_path: Path) -> None:
    record = ran(tmp_path / "runs", folder)
    assert record.noise_salt is None
    assert "--noise-salt" not in (command_of(record)[0] or "")
    with one_cell(tmp_path / "given", dataset=folder, method=Asks) as (cell, run_dir, source):
        for given in ("none", "5" * 64):
            with pytest.raises(BenchError, match="not a public benchmark"):
                check_salt(given, cell)
            assert run_cell(cell, run_dir, source, Progress(), noise_salt=given).status is Status.FAILED
    assert len(seen) == 1


@pytest.mark.parametrize("given", ["", "5" * 63, "g" * 64, "5" * 64 + "\n", "Random"])
def test_a_salt_that_no_record_has_is_refused(given: str, tmp_path: Path) -> None:
    with one_cell(tmp_path, method=Asks) as (cell, _, _), pytest.raises(BenchError, match="64 hex digits"):
        check_salt(given, cell)


def test_audits_have_salts_of_their_own_and_leave_none(folder: str, tmp_path: Path) -> None:
    Asks.then = staticmethod(lambda: None)
    with one_cell(tmp_path / "runs", dataset=folder, method=Asks) as (cell, run_dir, source):
        record = run_cell(cell, run_dir, source, Progress())
        options = AuditOptions(canaries=4, guesses=2, draws=0, runs=2, kind=AuditKind.ONE_RUN)
        audit = audit_student(record, options, run_dir, source, Progress(), dataset=folder)
    assert audit.failure is None, audit.failure
    assert len({tuple(told) for told, _, _ in seen}) == len(seen) - 1, "only the two runs without noise are alike"
    tokens = {context.cell for _, context, _ in seen}
    assert len(tokens) == len(seen) == 5
    assert all(len(token) == 64 and int(token, 16) for token in tokens)
    assert not any(cell.key in token for token in tokens)
    assert salts(run_dir) == []
    assert not list(run_dir.path.glob("**/*.noise"))


def test_a_baseline_without_privacy_has_no_salt(tmp_path: Path) -> None:
    class Open(Asks):
        private = False

    with one_cell(tmp_path, method=Open) as (cell, run_dir, source):
        assert METHODS.get(cell.method) is Open
        record = run_cell(cell, run_dir, source, Progress())
    assert record.noise_salt is None
    assert "--noise-salt" not in (command_of(record)[0] or "")
