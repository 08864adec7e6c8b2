"""The committed board follows from its records, and README shows that board."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench.experiments.calibration_cache import Calibrations
from bench.publishing.reproduce import missing_plugin
from bench.publishing.validate import audited_above_proven, vet_attack, vet_audit, vet_record
from bench.reports.pages import gather, write_pages
from bench.reports.site.meaning import Measured, successes
from bench.results.record import Record
from bench.results.run_dir import RunDir
from helpers.paths import ROOT
from helpers.site import dead_links


def committed(into: Path) -> Path:
    """Copy the inputs of the pages, without the pages, and return the board's folder."""
    folder = into / "leaderboards"
    shutil.copytree(ROOT / "leaderboards", folder, ignore=shutil.ignore_patterns("*.md", "*.csv", "site"))
    shutil.copytree(ROOT / "leaderboards" / "reported", folder / "reported", dirs_exist_ok=True)
    shutil.copy(ROOT / "README.md", into)
    return folder


def test_committed_pages_and_readme_are_regenerated_to_the_byte(tmp_path: Path) -> None:
    """If this fails, run `python -m bench leaderboard leaderboards --readme README.md`."""
    folder = committed(tmp_path)
    source = gather([folder])
    assert source.warnings == []
    assert source.board.refused == []
    for rows in source.board.tables().values():
        for row in rows:
            assert len(set(row.remarks)) == len(row.remarks), f"{row.keys[0]} repeats a remark"
    write_pages(folder, source, readme=tmp_path / "README.md")
    assert dead_links(folder / "site") == []
    for path in (tmp_path / "README.md", *folder.glob("*.*")):
        assert path.read_bytes() == (ROOT / path.relative_to(tmp_path)).read_bytes(), path.name
    assert {path.name for path in folder.glob("*.*")} == {path.name for path in (ROOT / "leaderboards").glob("*.*")}


@pytest.mark.slow
def test_a_second_build_gives_the_same_bytes(tmp_path: Path) -> None:
    """Including the site, which is not committed, and with another hash seed."""
    words = [sys.executable, "-m", "bench", "leaderboard", "leaderboards", "--readme", "README.md"]
    for name, seed in (("first", "1"), ("second", "2")):
        committed(tmp_path / name)
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        subprocess.run(words, cwd=tmp_path / name, env=environment, check=True, capture_output=True)
    assert _contents(tmp_path / "first") == _contents(tmp_path / "second")


def test_no_attack_on_one_record_exceeds_what_the_proven_curve_allows() -> None:
    found = successes(gather([ROOT / "leaderboards"]))
    counts = Counter(one.kind for one in found)
    assert counts[Measured.ADVANTAGE] >= 46
    assert counts[Measured.NAMED] >= 130
    assert counts[Measured.MEMBER] >= 18
    assert [one for one in found if one.exceeds] == []


def test_nothing_committed_links_into_the_site() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "leaderboards").glob("*.md")]
    assert [page.name for page in pages if re.search(r"\]\([^)]*\bsite/", page.read_text(encoding="utf-8"))] == []


def _contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@functools.cache
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
    """One record in eighty is planned and accounted for again; all would take minutes."""
    calibrations = Calibrations()
    read = every_record()
    slow = ("dp-linear", "dp-sgd", "gm-dp")  # a calibration of theirs takes seconds
    sample = {record.key for record in read[::80] if record.method not in slow}
    for record in read:
        seen = record.key in sample
        found = vet_record(record, calibrations, published=True, replan=seen, account=seen)
        assert found.problems == [], record.key


@pytest.mark.slow
def test_every_committed_record_is_planned_again() -> None:
    calibrations, problems = Calibrations(), {}
    for record in every_record():
        found = vet_record(record, calibrations, published=True)
        if found.problems or not (found.cell == record.cell or missing_plugin(record)):
            problems[record.key] = found.problems
    assert problems == {}


def test_the_plugins_of_committed_records_are_installed() -> None:
    """Without them their records are not planned and accounted for again."""
    missing = Counter(filter(None, map(missing_plugin, every_record())))
    if missing:
        pytest.skip("; ".join(f"{count} records: {why}" for why, count in missing.items()))


@pytest.mark.parametrize("one_in", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_committed_audits_and_attacks_would_be_published_again(one_in: int) -> None:
    """The bounds of one audit in six are computed again; all would take half a minute."""
    directory = RunDir(ROOT / "leaderboards")
    records = {record.key: record for record in directory.read_records(set_aside=False).found}
    audits, attacks = directory.read_audits()[0], directory.read_attacks()[0]
    for place, audit in enumerate(audits):
        if place % one_in == 0:
            assert vet_audit(audit, records[audit.student]) == [], audit.key
        same = [other for other in audits if other.student == audit.student]
        assert audited_above_proven(records[audit.student], same) == ""
    for attack in attacks:
        assert vet_attack(attack, records[attack.student]) == [], attack.key
