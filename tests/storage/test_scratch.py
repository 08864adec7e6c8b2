"""Copies of shared files on a node's own disk: made once, read instead, and only an optimisation."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from bench.storage import scratch
from bench.storage.array_store import Blocks, read_store, write_store
from bench.storage.cache import Cache
from bench.storage.scratch import VARIABLE, near


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "disk"
    made.mkdir()
    monkeypatch.setenv(VARIABLE, str(made))
    return made / f"private-student-bench-{os.getuid()}"


def test_an_artefact_is_copied_once_and_pushed_to_the_shared_folder(tmp_path: Path, disk: Path) -> None:
    shared = tmp_path / "cache"
    shared.mkdir()
    made = Cache(shared, {}).get("part", {"seed": 0}, lambda: {"a": np.arange(3)})
    assert len(list(shared.glob("part-*.safetensors"))) == 1
    assert not list(disk.glob("*.safetensors"))  # the reader copies it
    for _ in range(2):
        found = Cache(shared, {}).find("part", {"seed": 0})
        assert found is not None
        assert (found["a"] == made["a"]).all()
    (copy,) = disk.glob("*.safetensors")
    assert disk.stat().st_mode & 0o077 == 0
    copy.write_bytes(b"damaged")  # the shared file is read and stays
    assert Cache(shared, {}).find("part", {"seed": 0}) is not None
    assert not list(shared.glob("*.damaged"))
    Cache(shared, {}).put("part", {"seed": 0}, {"a": np.arange(4)})
    again = Cache(shared, {}).find("part", {"seed": 0})
    assert again is not None
    assert len(again["a"]) == 4


def test_mapped_data_are_read_from_the_copy(tmp_path: Path, disk: Path) -> None:
    blocks = Blocks((2, 3), "uint8", iter([np.ones((2, 3), np.uint8)]))
    write_store(tmp_path, "faces", {"images": blocks}, "test")
    found = read_store(tmp_path, "faces")
    assert found is not None
    images = found[0]["images"]
    assert Path(str(images.filename)).is_relative_to(disk)  # type: ignore[attr-defined]
    assert images.sum() == 6


def test_threads_that_ask_together_make_one_copy(tmp_path: Path, disk: Path) -> None:
    file = tmp_path / "a.npy"
    file.write_bytes(b"1" * 1000)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(near(file, "1"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert found[0].read_bytes() == file.read_bytes()
    assert {path.name for path in disk.iterdir()} == {found[0].name, "locks"}


def test_without_room_or_trust_files_are_read_where_they_are(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.npy"
    file.touch()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(scratch.shutil, "copyfile", full)
        assert near(file, "1") == file
    assert "a.npy is read where it is" in capsys.readouterr().err
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    assert near(file, "1") == file
    assert "no scratch here" in capsys.readouterr().err
    other = tmp_path / "open"
    (other / disk.name).mkdir(parents=True)
    (other / disk.name).chmod(0o777)
    monkeypatch.setenv(VARIABLE, str(other))
    assert near(file, "1") == file
    assert "can be entered by others" in capsys.readouterr().err
    monkeypatch.delenv(VARIABLE)
    assert near(file, "1") == file
