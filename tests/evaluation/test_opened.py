"""What a check counts as the reach of a method: its files, processes and connections, not bench's."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.core.fetch_progress import silent
from bench.data.datasets import get_dataset
from bench.data.spec import LoadRequest
from bench.evaluation.check.opened import Watch, watched
from bench.storage.files import write_atomic

Act = Callable[[Path], object]


def seen(act: Act, folder: Path) -> str:
    with watched(Watch(__name__, "digits")) as watch:
        act(folder)
    return watch.found


def renamed_over_an_own_file(folder: Path) -> None:
    (folder / "mine").write_text("")
    os.replace(folder / "there", folder / "mine")
    (folder / "mine").read_text()


def moved_to_another_folder(folder: Path) -> None:
    before = Path.cwd()
    try:
        (folder / "below").mkdir()
        os.chdir(folder / "below")
        Path("there").write_text("")
        os.chdir(folder)
        Path("there").read_text()
    finally:
        os.chdir(before)


def connected(folder: Path) -> None:
    with socket.socket() as one, contextlib.suppress(OSError):  # refused
        one.connect(("127.0.0.1", 9))


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (lambda folder: (folder / "there").read_text(), "opens the file there"),
        (lambda folder: (folder / "there").open("r+").close(), "opens the file there"),
        (lambda folder: (folder / "there").open("a+").close(), "opens the file there"),
        (lambda folder: os.close(os.open(folder / "there", os.O_RDONLY)), "opens the file there"),
        (lambda folder: np.loadtxt(folder / "there"), "opens the file there"),
        (renamed_over_an_own_file, "opens the file mine"),
        (moved_to_another_folder, "opens the file there"),
        (lambda folder: subprocess.run(["true"], check=True), "starts another process"),
        (connected, "reaches outside its process"),
        (lambda folder: LoadRequest(get_dataset("digits"), folder, False, silent), "loads digits"),
    ],
)
def test_what_a_method_reaches_is_its_own(act: Act, what: str, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("1 2")
    assert what in seen(act, tmp_path)


def scratch(folder: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"1")
        file.flush()
        assert Path(file.name).read_bytes() == b"1"


def kept(folder: Path) -> None:
    (folder / "mine").write_text("1")
    (folder / "mine").rename(folder / "renamed")
    assert (folder / "renamed").read_text() == "1"


@pytest.mark.parametrize(
    "act",
    [
        scratch,
        kept,
        lambda folder: (folder / "log").open("a").close(),
        lambda folder: write_atomic(folder / "mine", b"1"),
        lambda folder: __import__("colorsys"),
        lambda folder: LoadRequest(get_dataset("mnist"), folder, False, silent),
    ],
)
def test_files_of_its_own_imports_and_what_bench_does_are_not_counted(act: Act, tmp_path: Path) -> None:
    assert seen(act, tmp_path) == ""
