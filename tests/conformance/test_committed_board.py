"""The committed board is what its records say, and README prints that board."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from bench.experiments.calibration_cache import Calibrations
from bench.publishing.validate import audited_above_proven, vet_attack, vet_audit, vet_record
from bench.results.record import Record
from bench.results.run_dir import RunDir
from helpers.paths import ROOT
from helpers.site import dead_links
from reports.pages import gather, write_pages
from reports.site.build import PLOTLY, PLOTLY_IS_HERE

NOT_COMMITTED = {Path(PLOTLY).name, Path(PLOTLY_IS_HERE).name, "run.json"}
"""What the command makes and the repository leaves out."""


def test_committed_pages_and_readme_are_regenerated_to_the_byte(tmp_path: Path) -> None:
    """`python -m bench leaderboard leaderboards --readme README.md` mends what this finds."""
    committed, folder = ROOT / "leaderboards", tmp_path / "leaderboards"
    shutil.copytree(committed, folder)
    for path in [*folder.glob("*.*"), folder / "site"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copy(ROOT / "README.md", tmp_path)
    found = gather([folder])
    assert found.warnings == []
    board, _ = write_pages(folder, found, readme=tmp_path / "README.md")
    assert board.refused == []
    assert (tmp_path / "README.md").read_bytes() == (ROOT / "README.md").read_bytes()
    assert _contents(folder) == _contents(committed)
    assert dead_links(committed / "site") == []


def _contents(folder: Path) -> dict[str, str]:
    ours = (path for path in folder.rglob("*") if path.is_file() and path.name not in NOT_COMMITTED)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in ours}


def every_record() -> list[Record]:
    """The board's records, and those that only `bench report` reads."""
    folders = (ROOT / "leaderboards", ROOT / "leaderboards" / "ablations")
    reads = [RunDir(folder).read_records(set_aside=False) for folder in folders]
    assert [line for read in reads for line in read.damaged] == []
    return [record for read in reads for record in read.found]


def test_nothing_of_the_board_has_run_from_changed_files() -> None:
    for record in every_record():
        assert record.provenance.git_commit
        assert record.provenance.git_dirty is False, record.key
    for row in (*RunDir(ROOT / "leaderboards").read_audits()[0], *RunDir(ROOT / "leaderboards").read_attacks()[0]):
        assert row.provenance.git_commit
        assert row.provenance.git_dirty is False, row.key


def test_every_committed_record_would_be_published_again() -> None:
    """One in forty is planned and accounted for again, which takes minutes for all."""
    calibrations = Calibrations()
    read = every_record()
    slow = ("dp-linear", "dp-sgd")  # a calibration of theirs takes seconds
    sample = {record.key for record in read[::40] if record.method not in slow}
    for record in read:
        found = vet_record(record, calibrations, replan=record.key in sample, account=record.key in sample)
        assert found.problems == [], record.key


@pytest.mark.slow
def test_every_committed_record_is_planned_again() -> None:
    calibrations = Calibrations()
    for record in every_record():
        found = vet_record(record, calibrations)
        assert found.problems == [], record.key
        assert found.cell == record.cell


def test_committed_audits_and_attacks_would_be_published_again() -> None:
    directory = RunDir(ROOT / "leaderboards")
    records = {record.key: record for record in directory.read_records(set_aside=False).found}
    audits, attacks = directory.read_audits()[0], directory.read_attacks()[0]
    for audit in audits:
        assert vet_audit(audit, records[audit.student]) == [], audit.key
        same = [other for other in audits if other.student == audit.student]
        assert audited_above_proven(records[audit.student], same) == ""
    for attack in attacks:
        assert vet_attack(attack, records[attack.student]) == [], attack.key
