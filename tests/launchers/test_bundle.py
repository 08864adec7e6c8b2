"""Bundles: everything that a grid needs is in one file, all or nothing, and a run from it needs no network."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.core.config import Grid, Preset
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.launchers.bundle import Bundle, pack, unpack
from bench.results.run_dir import RunDir
from bench.storage.array_store import data_root
from helpers.commands import bench
from helpers.launches import METHOD
from helpers.paths import ROOT

GRID = Grid(("pate", METHOD), ("digits",), (10.0,), preset=Preset.TINY)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle]:
    target = tmp_path_factory.mktemp("bundle") / "grid.zip"
    return target, pack(GRID, target, Progress())


@pytest.fixture(autouse=True)
def root_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BENCH_DATA", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, os.environ.get(name, "1" if name.startswith("HF") else str(data_root())))


def rewritten(source: Path, target: Path, **changed: bytes) -> Path:
    """Copy a bundle, with other bytes in the files whose last name is given."""
    with zipfile.ZipFile(source) as read, zipfile.ZipFile(target, "w") as written:
        for name in read.namelist():
            written.writestr(name, changed.get(Path(name).stem, read.read(name)))
    return target


def test_a_bundle_is_the_grid_and_every_byte_that_it_needs(packed: tuple[Path, Bundle], tmp_path: Path) -> None:
    source, bundle = packed
    before = {path.name: path.read_bytes() for path in (data_root() / "digits").iterdir()}
    found = unpack(source, tmp_path, Progress())
    assert data_root() == tmp_path / "data"
    assert {path.name: path.read_bytes() for path in (data_root() / "digits").iterdir()} == before
    assert found.grid.methods == ("pate", str(tmp_path / "methods" / Path(METHOD).name))
    assert (found.grid.datasets, found.grid.epsilons, found.grid.preset) == (("digits",), (10.0,), Preset.TINY)
    assert len(found.cells) == 2
    assert bundle.files == found.files


def test_the_same_grid_gives_the_same_bytes(packed: tuple[Path, Bundle], tmp_path: Path) -> None:
    pack(GRID, tmp_path / "again.zip", Progress())
    assert (tmp_path / "again.zip").read_bytes() == packed[0].read_bytes()


def test_whole_files_stay_and_damaged_ones_are_unpacked_again(packed: tuple[Path, Bundle], tmp_path: Path) -> None:
    unpack(packed[0], tmp_path, Progress())
    whole, damaged = (tmp_path / "data" / "digits" / f"{name}_images.npy" for name in ("train", "test"))
    stamp, good = whole.stat().st_mtime_ns, damaged.read_bytes()
    damaged.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    unpack(packed[0], tmp_path, Progress())
    assert damaged.read_bytes() == good
    assert whole.stat().st_mtime_ns == stamp


def test_a_damaged_bundle_is_refused_with_the_name_of_the_file(packed: tuple[Path, Bundle], tmp_path: Path) -> None:
    bad = rewritten(packed[0], tmp_path / "bad.zip", test_labels=b"no labels")
    with pytest.raises(BenchError, match=r"data/digits/test_labels\.npy is not what was packed"):
        unpack(bad, tmp_path / "into", Progress())
    assert not (tmp_path / "into" / "data" / "digits" / "test_labels.npy").exists()
    data = bytearray(packed[0].read_bytes())
    data[len(data) // 2] ^= 1
    bad.write_bytes(data)
    with pytest.raises(BenchError, match=r"bad\.zip is damaged: data/digits/\w+\.npy cannot be read"):
        unpack(bad, tmp_path / "into", Progress())
    bad.write_bytes(data[: len(data) // 2])
    with pytest.raises(BenchError, match="is not a bundle, or is damaged"):
        unpack(bad, tmp_path / "into", Progress())


def forged(
    packed: tuple[Path, Bundle], target: Path, content: dict[str, bytes] | None = None, **changes: object
) -> Path:
    """Write a bundle of `content` with their true sizes and digests, and `changes` to its list."""
    content = content or {}
    listed = json.loads(packed[1].to_json())
    listed["grid"]["methods"] = ["pate"]
    listed["files"] = [
        {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in content.items()
    ]
    listed |= changes
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bundle.json", json.dumps(listed))
        for name, data in content.items():
            archive.writestr(name, data)
    return target


def refused(bad: Path, tmp_path: Path, says: str) -> None:
    """Check that the command refuses the bundle in words, at once, and leaves no file outside of the run directory."""
    before = {path for path in tmp_path.iterdir() if path.name != "runs"}
    done = bench("run", "--bundle", bad, "-o", tmp_path / "runs", "-q")
    assert (done.returncode, re.search(says, done.stderr) is not None) == (2, True), done.stderr
    assert {path for path in tmp_path.iterdir() if path.name != "runs"} == before
    assert not list((tmp_path / "runs").rglob("*.part"))


NAMES = ["../outside", "/outside", "data/../../outside", ".", "data/.", "data//a", "data", "data/a/", "x" * 300,
         "data/" + "x" * 300, "other/a", "data/\n", "data/..\\a"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_writes_nothing_outside_of_its_folders(name: str, packed: tuple[Path, Bundle], tmp_path: Path) -> None:
    refused(forged(packed, tmp_path / "bad.zip", {name: b""}), tmp_path, "lies outside its folders")


@pytest.mark.parametrize(
    "change",
    [
        {"methods": ["/etc/outside.py"]}, {"methods": ["../outside.py"]}, {"methods": ["methods/outside.py"]},
        {"methods": ["data/inside.py"]}, {"datasets": ["folder:/home"]}, {"overrides": ["weights=file:/etc/passwd"]},
    ],
    ids=str,
)  # fmt: skip
def test_what_a_bundle_uses_is_in_it(change: dict[str, object], packed: tuple[Path, Bundle], tmp_path: Path) -> None:
    grid = json.loads(packed[1].to_json())["grid"] | {"methods": ["pate"]} | change
    bad = forged(packed, tmp_path / "bad.zip", {"data/inside.py": b"raise SystemExit"}, grid=grid)
    refused(bad, tmp_path, "a file that is not in it. Do not use it")


@pytest.mark.parametrize("real", [9, 11, 50 << 20])
def test_a_file_of_another_size_than_announced_is_not_unpacked(
    real: int, packed: tuple[Path, Bundle], tmp_path: Path
) -> None:
    data = b"\0" * real
    file = {"name": "data/a", "size": 10, "sha256": hashlib.sha256(data).hexdigest()}
    refused(forged(packed, tmp_path / "bad.zip", {"data/a": data}, files=[file]), tmp_path, "is damaged: data/a")
    assert not (tmp_path / "runs" / "bundle" / "data" / "a").exists()


def test_a_bundle_of_more_than_the_disk_holds_is_refused_before_anything_is_unpacked(
    packed: tuple[Path, Bundle], tmp_path: Path
) -> None:
    file = {"name": "data/a", "size": 10**18, "sha256": ""}
    bad = forged(packed, tmp_path / "bad.zip", {"data/a": b""}, files=[file])
    refused(bad, tmp_path, r"holds 1000000000\.0 GB, and .* GB are free")


def test_a_huge_list_of_files_is_not_read(packed: tuple[Path, Bundle], tmp_path: Path) -> None:
    bad = tmp_path / "bad.zip"
    with zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bundle.json", b" " * (65 << 20))
    refused(bad, tmp_path, "68,157,440 bytes, at most 67,108,864 are expected")


def bytes_changed(path: Path, places: dict[str, int], value: int) -> None:
    """Change the two bytes at an offset behind each of the signatures of a zip file."""
    data = bytearray(path.read_bytes())
    for signature, offset in places.items():
        at = data.index(signature.encode())
        data[at + offset : at + offset + 2] = value.to_bytes(2, "little")
    path.write_bytes(data)


FLAGS, METHOD_OF = ({"PK\3\4": local, "PK\1\2": central} for local, central in ((6, 8), (8, 10)))
STRANGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "folder": (lambda path: (path.unlink(), path.mkdir()), "not a regular file"),
    "pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "not a regular file"),
    "device": (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "not a regular file"),
    "no zip": (lambda path: path.write_bytes(b"x" * 100), "not a bundle, or is damaged"),
    "encrypted": (lambda path: bytes_changed(path, FLAGS, 1), "is encrypted"),
    "lzma": (lambda path: bytes_changed(path, METHOD_OF, 14), "not packed as bundles are"),
    "unknown": (lambda path: bytes_changed(path, METHOD_OF, 77), "not packed as bundles are"),
    "version": (lambda path: bytes_changed(path, {"PK\1\2": 6}, 99), "not a bundle, or is damaged"),
    "deflate": (lambda path: bytes_changed(path, {"PK\3\4": 41}, 0xFFFF), "not a bundle that version"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", STRANGE)
def test_what_is_no_bundle_is_named_at_once(kind: str, packed: tuple[Path, Bundle], tmp_path: Path) -> None:
    bad = forged(packed, tmp_path / "bad.zip")
    change, says = STRANGE[kind]
    change(bad)
    refused(bad, tmp_path, says)


@pytest.mark.parametrize("link", ["bundle", "bundle/data", "bundle/data/digits", "bundle/data/digits/manifest.json"])
def test_a_bundle_is_not_unpacked_through_links(link: str, packed: tuple[Path, Bundle], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place = tmp_path / "runs" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere)
    refused(packed[0], tmp_path, "is a link, and bundles are not unpacked through links")
    assert not list(elsewhere.iterdir())


def test_a_full_disk_is_named_with_its_remedy_and_no_part_is_left(
    packed: tuple[Path, Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("bench.launchers.bundle.copied", full)
    for go in (lambda: pack(GRID, tmp_path / "grid.zip", Progress()), lambda: unpack(packed[0], tmp_path, Progress())):
        with pytest.raises(BenchError, match=r"the disk is full.* Free some space and give the same command again"):
            go()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_data_and_weights_of_a_users_own_are_not_packed(tmp_path: Path) -> None:
    from helpers.data import put_image

    for name in ("a", "b"):
        for number in range(30):
            put_image(tmp_path / "own" / name / f"{number}.png", number)
    with pytest.raises(BenchError, match="is not packed"):
        pack(Grid(("nonprivate",), (f"folder:{tmp_path / 'own'}",), preset=Preset.TINY), tmp_path / "b", Progress())
    assert not (tmp_path / "b").exists()


def test_two_files_of_methods_with_one_name_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other" / Path(METHOD).name
    other.parent.mkdir()
    other.write_text(Path(METHOD).read_text().replace('"grid-test"', '"grid-test-other"'))
    grid = dataclasses.replace(GRID, methods=(METHOD, str(other)))
    with pytest.raises(BenchError, match="have one name"):
        pack(grid, tmp_path / "b", Progress())


def test_the_options_of_a_grid_and_a_bundle_exclude_each_other(packed: tuple[Path, Bundle], tmp_path: Path) -> None:
    done = bench("run", "--bundle", packed[0], "--eps", "3", "--set", "teachers=5", "-o", tmp_path / "runs")
    assert done.returncode == 2
    assert "Leave out --eps, --set" in done.stderr
    done = bench("run", "-o", tmp_path / "runs")
    assert done.returncode == 2
    assert "give the methods to run" in done.stderr


def test_another_versions_bundle_is_refused(packed: tuple[Path, Bundle], tmp_path: Path) -> None:
    grid = dataclasses.replace(GRID, methods=("pate",))
    listed = packed[1].model_copy(update={"grid": grid, "cells": ("digits-pate-another",)})
    other = rewritten(packed[0], tmp_path / "other.zip", bundle=listed.to_json().encode())
    done = bench("run", "--bundle", other, "-o", tmp_path / "runs", "-q")
    assert done.returncode == 2
    assert "packed by another version" in done.stderr


@pytest.mark.slow
def test_a_run_from_a_bundle_gives_the_records_of_a_run_here(packed: tuple[Path, Bundle], tmp_path: Path) -> None:
    """In a network namespace without any route, where the system lets users make one."""
    alone = ["unshare", "-rn"] if shutil.which("unshare") else []
    if alone and subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
        alone = []
    words = ["run", "--bundle", str(packed[0]), "--out", str(tmp_path / "runs"), "--noise-salt", "none", "--json"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "empty"), "PYTHONPATH": str(ROOT)}
    del environment["BENCH_DATA"]
    command = [*alone, sys.executable, "-m", "bench", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    here = bench(
        "run", "-m", f"pate,{METHOD}", "-d", "digits", "-e", "10", "-p", "tiny", "-o", tmp_path / "here",
        "--noise-salt", "none", "-q",
    )  # fmt: skip
    assert here.returncode == 0, here.stderr
    found = {record["key"]: record["student"]["sha256"] for record in json.loads(done.stdout)["records"]}
    made = RunDir(tmp_path / "here").read_records().found
    assert found == {record.key: record.student.sha256 for record in made if record.student is not None}
    assert len(found) == 2
