"""A plug-in that calls `sys.exit(0)` ends neither the program nor the other cells, and the status is not 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.results.run_dir import RunDir
from helpers.commands import bench

PLUGIN = """
import sys
from bench.interface import register_method
from bench.methods.nonprivate import NonPrivate

IMPORT

@register_method("leaves")
class Leaves(NonPrivate):
    @classmethod
    def NAME(cls, *given):
        sys.exit(0)
"""


def run(tmp_path: Path, place: str) -> tuple[int, str]:
    plugin = tmp_path / "leaves.py"
    leaves = "sys.exit(0)" if place == "import" else ""
    plugin.write_text(PLUGIN.replace("NAME", place if place != "import" else "other").replace("IMPORT", leaves))
    cells = ["-m", f"{plugin},nonprivate", "-d", "digits", "-p", "tiny", "-o", tmp_path / "runs"]
    done = bench("run", *cells)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("place", ["calibrate", "train_student"])
def test_its_cell_fails_and_the_others_run(place: str, tmp_path: Path) -> None:
    status, said = run(tmp_path, place)
    assert status == 1
    assert "calls sys.exit(0), which would end the whole program" in said
    records = {record.method: record for record in RunDir(tmp_path / "runs").read_records().found}
    assert records["nonprivate"].failure is None
    failure = records["leaves"].failure
    assert failure is not None
    assert "leaves calls sys.exit(0)" in failure.reason


@pytest.mark.parametrize(("place", "who"), [("import", "leaves.py"), ("presets", "a plug-in")])
def test_a_run_that_cannot_be_planned_ends_with_an_error(place: str, who: str, tmp_path: Path) -> None:
    status, said = run(tmp_path, place)
    assert status == 2
    assert f"{who} calls sys.exit(0)" in said
