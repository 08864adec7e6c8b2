"""What a kill between writing and renaming leaves in a run directory."""

from __future__ import annotations

from pathlib import Path

from bench.results.run_dir import RunDir
from helpers.records import record


def test_what_a_killed_attempt_left_of_a_record_is_deleted(tmp_path: Path) -> None:
    run_dir, first, second = RunDir(tmp_path).create(), record(key="a-1"), record(key="a-10")
    parts = [run_dir.records_path / f".{one.key}.json.0123456789ab.tmp" for one in (first, second)]
    for part in parts:
        part.write_bytes(b"{")
    run_dir.write_record(first)
    assert [part.exists() for part in parts] == [False, True]
