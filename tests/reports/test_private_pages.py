"""Pages of records on a user's own data: only the owner can read them, like the records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.records import record


@pytest.mark.parametrize("public", [True, False])
def test_pages_are_as_readable_as_their_records(public: bool, tmp_path: Path) -> None:
    run, pages = RunDir(tmp_path / "runs").create(), tmp_path / "pages"
    before = os.umask(0o022)
    try:
        run.write_record(record())
        assert bench("leaderboard", run.path, "--into", pages).returncode == 0
        run.write_record(record(seed=1, public_benchmark=public))
        assert bench("leaderboard", run.path, "--into", pages).returncode == 0
    finally:
        os.umask(before)
    open_to_others = {path.name for path in (pages / "site", *pages.glob("*.*")) if path.stat().st_mode & 0o077}
    made = {"site", "leaderboard.md", "leaderboard.csv", "mnist.svg"}
    assert open_to_others == (made if public else set())
    shut = [path for path in (pages / "site").rglob("*.html") if not path.stat().st_mode & 0o077]
    assert bool(shut) is not public
