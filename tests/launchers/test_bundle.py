"""Bundles: what a grid needs travels in one file, whole or not at all, and a run from it needs no network."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bench.core.config import Grid, Preset
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.data.array_store import data_root
from bench.launchers.bundle import Bundle, pack, unpack
from bench.results.run_dir import RunDir
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
    with pytest.raises(BenchError, match="is no bundle or is damaged"):
        unpack(bad, tmp_path / "into", Progress())


@pytest.mark.parametrize("name", ["../outside", "/outside", "data/../../outside"])
def test_a_bundle_writes_nothing_outside_of_its_folder(name: str, packed: tuple[Path, Bundle], tmp_path: Path) -> None:
    file = packed[1].files[0].model_copy(update={"name": name})
    listed = packed[1].model_copy(update={"files": (file,)}).to_json().encode()
    bad = rewritten(packed[0], tmp_path / "bad.zip", bundle=listed)
    with pytest.raises(BenchError, match="lies outside of it"):
        unpack(bad, tmp_path / "into", Progress())


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
