"""The committed board is what its records say, and README prints that board."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_tools import dead_links

from bench.calibrations import Calibrations
from bench.cli_board import read_folders
from bench.store import RunDir
from bench.vetting import audited_above_proven, vet_attack, vet_audit, vet_record
from reports.attacks import attacks_page
from reports.leaderboard import build_board, to_csv, to_markdown
from reports.reported import read_reported
from reports.site import LIST, PLOTLY, PLOTLY_IS_HERE, Source, build_site
from reports.trpate import trpate_page

ROOT = Path(__file__).parent.parent


def test_committed_board_is_regenerated_to_the_byte() -> None:
    read = RunDir(ROOT / "leaderboards").read_records(set_aside=False)
    assert read.damaged == []
    assert read.found
    audits, damaged = RunDir(ROOT / "leaderboards").read_audits()
    assert damaged == []
    board = build_board(read.found, audits)
    assert (ROOT / "leaderboards" / "leaderboard.md").read_text() == to_markdown(board)
    assert (ROOT / "leaderboards" / "leaderboard.csv").read_text() == to_csv(board)


def test_committed_attacks_are_regenerated_to_the_byte() -> None:
    directory = RunDir(ROOT / "leaderboards")
    attacks, damaged = directory.read_attacks()
    assert damaged == []
    assert attacks
    page = attacks_page(directory.read_records(set_aside=False).found, attacks)
    assert (ROOT / "leaderboards" / "attacks.md").read_text() == page


def test_committed_tables_of_trpate_are_regenerated_to_the_byte() -> None:
    page = trpate_page(RunDir(ROOT / "leaderboards").read_records(set_aside=False).found)
    assert (ROOT / "leaderboards" / "trpate.md").read_text() == page


def test_committed_site_is_regenerated_to_the_byte() -> None:
    folder = ROOT / "leaderboards"
    if not (folder / "site" / LIST).is_file():
        pytest.skip("no site is committed")
    records, audits, attacks, homes = read_folders([folder])
    source = Source(build_board(records, audits), records, audits, attacks, read_reported(), homes)
    built = {name: data for name, data in build_site(source, folder) if name not in (PLOTLY, PLOTLY_IS_HERE)}
    names = {str(path.relative_to(folder / "site")) for path in (folder / "site").rglob("*") if path.is_file()}
    assert names - {LIST, PLOTLY, PLOTLY_IS_HERE} == set(built)
    assert [name for name, data in built.items() if (folder / "site" / name).read_bytes() != data] == []
    assert dead_links(folder / "site") == []


SHOWN = ("mnist", "fmnist", "att-faces-a")
"""The data sets whose tables README prints whole; the others have pages of their own."""


def test_readme_prints_the_committed_board() -> None:
    board = (ROOT / "leaderboards" / "leaderboard.md").read_text()
    tables = {part.split(",")[0]: part.splitlines() for part in board.split("\n## ")[1:]}
    readme = (ROOT / "README.md").read_text()
    for name in SHOWN:
        rows = [line for line in tables[name] if line.startswith("| ")]
        assert rows
        assert all(row in readme for row in rows), name
    every = {line for part in tables.values() for line in part}
    printed = readme.split("## The board")[1].split("\n## ")[0].splitlines()
    assert [line for line in printed if line.startswith("| ") and line not in every] == []


def test_nothing_of_the_board_has_run_from_changed_files() -> None:
    for record in RunDir(ROOT / "leaderboards").read_records(set_aside=False).found:
        assert record.provenance.git_commit
        assert record.provenance.git_dirty is False, record.key
    for row in (*RunDir(ROOT / "leaderboards").read_audits()[0], *RunDir(ROOT / "leaderboards").read_attacks()[0]):
        assert row.provenance.git_commit
        assert row.provenance.git_dirty is False, row.key


def test_every_committed_record_would_be_published_again() -> None:
    """One in forty is planned and accounted for again, which takes minutes for all."""
    calibrations = Calibrations()
    read = RunDir(ROOT / "leaderboards").read_records(set_aside=False).found
    slow = ("dp-linear", "dp-sgd")  # a calibration of theirs takes seconds
    sample = {record.key for record in read[::40] if record.method not in slow}
    for record in read:
        found = vet_record(record, calibrations, replan=record.key in sample, account=record.key in sample)
        assert found.problems == [], record.key


@pytest.mark.slow
def test_every_committed_record_is_planned_again() -> None:
    calibrations = Calibrations()
    for record in RunDir(ROOT / "leaderboards").read_records(set_aside=False).found:
        found = vet_record(record, calibrations)
        assert found.problems == [], record.key
        assert found.command


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
