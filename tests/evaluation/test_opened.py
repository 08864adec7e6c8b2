"""What a check attributes to a method: its files, processes and connections, not bench's."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import pytest

from bench.core.fetch_progress import silent
from bench.data.datasets import get_dataset
from bench.data.spec import LOADED, LoadRequest
from bench.evaluation.check.opened import Watch, temporary_files_in, watched
from bench.storage.array_store import data_root
from bench.storage.files import write_atomic
from helpers.paths import ROOT

Act = Callable[[Path], object]
NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")


def seen(act: Act, folder: Path, own: Path | None = None) -> str:
    with watched(Watch(__name__, "digits", own)) as watch:
        act(folder)
        watch.threads_ended(0.1)
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


def shared(folder: Path) -> None:
    block = shared_memory.SharedMemory(create=True, size=8)
    block.close()
    block.unlink()


def callers(folder: Path) -> None:
    with pytest.raises(ValueError, match="looked up") as raised:
        raise ValueError("looked up")
    assert raised.tb.tb_frame.f_back


def waiting(folder: Path) -> None:
    threading.Thread(target=threading.Event().wait, args=(5.0,), daemon=True).start()


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (lambda folder: (folder / "mine").write_text(""), "writes the file mine"),
        (lambda folder: (folder / "1011").mkdir(), "lists or changes files outside"),
        (os.listdir, "lists or changes files outside"),
        (lambda folder: os.utime(folder / "there", (1, 1)), "lists or changes files outside"),
        (lambda folder: os.rename(folder / "there", folder / "1011"), "lists or changes files outside"),
        pytest.param(shared, "memory that other processes share", marks=NEEDS_PROC),
        (callers, "reads the frames of its callers"),
        (lambda folder: ctypes.CDLL(None), "reaches into its process by ctypes"),
        (waiting, "leaves a thread running"),
    ],
)  # fmt: skip
def test_what_other_runs_could_find_is_not_its_own(act: Act, what: str, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    (tmp_path / "own").mkdir()
    assert what in seen(act, tmp_path, tmp_path / "own")


def sized(folder: Path) -> None:
    (folder / "below").mkdir()
    (folder / "below" / "mine").write_text("1")
    os.utime(folder / "below" / "mine", (1, 1))
    assert os.listdir(folder / "below") == ["mine"]


def brief(folder: Path) -> None:
    thread = threading.Thread(target=print)
    thread.start()
    thread.join()


def cached(folder: Path) -> None:
    """As numba and matplotlib do."""
    below = Path(os.environ["NUMBA_CACHE_DIR"]) / "cached"
    below.mkdir()
    (below / "compiled").write_text("1")
    assert (below / "compiled").read_text() == "1"


@pytest.mark.parametrize(
    "act",
    [sized, cached, lambda folder: tempfile.TemporaryFile().close(), brief, lambda folder: np.arange(3).ctypes.data],
)
def test_its_own_folder_and_threads_that_end_are_not_counted(act: Act, tmp_path: Path) -> None:
    with temporary_files_in(tmp_path):
        assert seen(act, tmp_path, tmp_path) == ""


@pytest.mark.slow
def test_a_run_finds_weights_where_the_program_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_DATA", raising=False)
    before = data_root()
    with temporary_files_in(tmp_path):
        assert data_root() == before
    assert "BENCH_DATA" not in os.environ


def test_a_library_of_another_environment_is_no_code_of_the_method(tmp_path: Path) -> None:
    """A virtual environment that uses another one's packages, for instance by PYTHONPATH."""
    libraries, own = tmp_path / "libraries", tmp_path / "libraries of its own"
    (libraries / "elsewhere-1.dist-info").mkdir(parents=True)
    own.mkdir()
    for file in (libraries / "elsewhere.py", own / "ours.py"):
        file.write_text("import sys\ndef frame():\n    return sys._getframe()\n")
    code = (
        "import elsewhere, ours\n"
        "from bench.evaluation.check.opened import Watch, watched\n"
        "for module in (elsewhere, ours):\n"
        "    with watched(Watch('plugin', 'digits')) as watch:\n"
        "        module.frame()\n"
        "    print(repr(watch.found))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (libraries, own, ROOT)))}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["''", "'its code reads the frames of its callers'"]


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


@pytest.mark.parametrize(("name", "same"), [("mnist", True), ("mnist-01", True), ("fmnist", False), ("digits", False)])
def test_the_private_data_set_is_known_by_its_other_names(name: str, same: bool) -> None:
    with watched(Watch("plugin", "mnist")) as watch:
        sys.audit(LOADED, name)
    assert (f"its code loads {name}" in watch.found) is same
