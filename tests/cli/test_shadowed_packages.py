"""Files in the user's folder with the names of this program's folders hide nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import ROOT


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("file", "what", "name"),
    [
        ("methods/__init__.py", "methods", "pate-gnmax"),
        ("methods/notes.txt", "methods", "pate-gnmax"),
        ("attacks.py", "attacks", "mi-face"),
        ("reports.py", "methods", "pate-gnmax"),
    ],
)
def test_a_file_of_the_user_hides_nothing(file: str, what: str, name: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise SystemExit('imported')")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "bench", "ls", what], capture_output=True, text=True, cwd=tmp_path, env=environment,
        check=True,
    )  # fmt: skip
    assert name in done.stdout


@pytest.mark.slow
def test_a_file_of_this_programs_name_hides_it_from_no_worker(tmp_path: Path) -> None:
    (tmp_path / "bench.py").write_text("raise SystemExit('imported')")
    script = tmp_path / "bin" / "private-student-bench"  # as pip writes it
    script.parent.mkdir()
    script.write_text("from bench.cli import main\nif __name__ == '__main__':\n    main()\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for words in (
        ["run", "-m", "pate,dp-fc", "-d", "digits", "-p", "tiny", "-e", "10", "--launcher", "local", "--jobs", "2"],
        ["run", "-m", "pate-gnmax", "-d", "digits", "-p", "tiny", "-e", "10", "--workers", "2"],
        ["check", "nonprivate", "--seconds", "0", "-p", "tiny"],
    ):
        done = subprocess.run(
            [sys.executable, str(script), *words, "-q"], capture_output=True, text=True, cwd=tmp_path, env=environment,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
