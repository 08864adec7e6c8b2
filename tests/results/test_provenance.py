"""A record states its commit, and whether files of the program differed from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from helpers.paths import ROOT

CODE = "from bench.results.provenance import Clock; print(Clock().stop().git_dirty)"


def test_only_changes_of_the_program_count(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "bench", tmp_path / "bench", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "leaderboards").mkdir()
    for name in ("README.md", "leaderboards/leaderboard.csv"):
        (tmp_path / name).write_text("")
    author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", "a")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)

    def dirty() -> str:
        done = subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert dirty() == "False"
    for name, counts in (("leaderboards/leaderboard.csv", "False"), ("README.md", "True")):
        with (tmp_path / name).open("a") as file:
            file.write("\n")
        assert dirty() == counts
