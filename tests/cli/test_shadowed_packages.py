"""Files in the user's folder that have the names of this program's packages get one clear line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import ROOT

API = "import bench; bench.load_results()"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("methods/__init__.py", ["-m", "bench", "ls"]),
        ("reports.py", ["-m", "bench", "leaderboard"]),
        ("attacks.py", ["-m", "bench", "ls", "attacks"]),
        ("reports.py", ["-c", API]),
    ],
)
def test_a_file_that_hides_a_package_is_named(file: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    *before, said = done.stderr.splitlines()
    assert f"{tmp_path / file} hides the package" in said
    assert "Rename it" in said
    assert done.stdout == ""
    assert words[0] == "-c" or (done.returncode, before) == (2, [])


def test_a_folder_without_code_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "methods").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "bench", "ls"], capture_output=True, text=True, cwd=tmp_path, env=environment, check=True
    )
    assert "pate-gnmax" in done.stdout
