"""What a confined process can still read and write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.core.confinement import LONGEST, is_confinable, words_confined
from helpers.paths import ROOT

CODE = """
import os, subprocess, sys
def told(act, *parts):
    try:
        act(*parts)
    except PermissionError:
        return "refused"
    return "done"
def write(path):
    with open(path, "a"):
        pass
readable, writable, other = sys.argv[1:]
print(told(open, readable), told(write, readable), told(open, other), told(write, other))
print(told(write, writable + "/new"), told(os.truncate, readable, 0), told(os.mkdir, other + "-2"))
print(subprocess.run(["cat", other], capture_output=True).returncode != 0)
print(os.environ.get("BENCH_DATA"), os.environ.get("SECRET"), os.environ.get("TERM"))
import numpy, bench.methods
"""


@pytest.mark.skipif(not is_confinable(), reason="this kernel has no Landlock")
def test_a_process_and_its_children_keep_to_their_folders_and_variables(tmp_path: Path) -> None:
    readable, writable, other = tmp_path / "readable", tmp_path / "writable", tmp_path / "other"
    writable.mkdir()
    for file in (readable, other):
        file.write_text("1")
    words = [sys.executable, "-c", CODE, *map(str, (readable, writable, other))]
    given = {**os.environ, "BENCH_DATA": "here", "SECRET": "1", "TERM": "x" * (LONGEST + 1)}
    done = subprocess.run(
        words_confined([readable], [writable], words), env=given, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "done refused refused refused",
        "done refused refused",
        "True",
        "here None None",
    ]


def test_a_command_s_status_is_passed_on(tmp_path: Path) -> None:
    words = words_confined([], [tmp_path], [sys.executable, "-c", "raise SystemExit(3)"])
    assert subprocess.run(words, cwd=ROOT, check=False).returncode == 3
