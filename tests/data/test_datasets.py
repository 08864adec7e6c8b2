from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.core.errors import BenchError, UnknownNameError
from bench.data import datasets
from bench.data.spec import ArrayRecords
from bench.storage import array_store as store
from bench.storage.array_store import Blocks, DamagedError, StorageError
from helpers.data import noise, quiet, tiny
from helpers.paths import ROOT

# --- the registry -----------------------------------------------------------------------------------------------------


def test_every_name_that_was_promised_is_registered() -> None:
    promised = "mnist fmnist cifar10 cifar100 svhn stl10 celeba-g celeba-h covidx chest-xray att-faces imagenet digits"
    assert set(promised.split()) <= set(datasets.DATASETS)
    assert sum(name.startswith("medmnist-") for name in datasets.DATASETS) == 12
    for spec in datasets.DATASETS.values():
        assert spec.source
        assert spec.licence
        assert spec.citation


def test_pinned_sets_have_a_revision() -> None:
    assert {name: spec.revision for name, spec in datasets.DATASETS.items() if spec.revision} == {
        "mnist": "sha256:6f7e1a545fe6a5f6",
        "mnist-01": "sha256:6f7e1a545fe6a5f6",
        "fmnist": "sha256:dca7b52e83eb1008",
        "cifar10": "sha256:75daea93b5fc00a3",
        "chest-xray": "sha256:05de3d3f8ea7a6a8",
        "att-faces": "sha256:93bfd6bc997a4efa",
        "att-faces-a": "sha256:93bfd6bc997a4efa",
        "att-faces-b": "sha256:93bfd6bc997a4efa",
        "imagenet-photos": "sha256:a3869a94d3682b95",
        "movie-review": "sha256:379850a3b3ae4557",
        "digits": "sha256:085fba4dd790b7dd",
    }
    for half in ("att-faces-a", "att-faces-b"):
        assert datasets.DATASETS[half].store == "att-faces"


def test_unknown_name_lists_the_nearest_first() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'mnist'"):
        datasets.load("mnits")


def test_register_refuses_a_taken_or_unsafe_name() -> None:
    with pytest.raises(BenchError, match="already registered"):
        datasets.register_dataset(datasets.DATASETS["mnist"])
    with pytest.raises(BenchError, match="not a valid name"):
        datasets.register_dataset(replace(datasets.DATASETS["mnist"], name="../x"))


def test_plugins_are_read_and_a_broken_one_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        def __init__(self, name: str, value: Any) -> None:
            self.name, self.value = name, value

        def load(self) -> Any:
            if isinstance(self.value, Exception):
                raise self.value
            return self.value

    spec = tiny(None, name="from-plugin")
    points = [Point("bad", ImportError("no such module")), Point("good", lambda: [spec])]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    datasets.read_plugins.cache_clear()
    monkeypatch.setattr(datasets, "DATASETS", dict(datasets.DATASETS))
    monkeypatch.setattr(datasets, "PLUGIN_ERRORS", {})
    assert datasets.get_dataset("from-plugin") is spec
    assert "no such module" in datasets.PLUGIN_ERRORS["bad"]
    with pytest.raises(UnknownNameError, match="plug-in bad failed"):
        datasets.get_dataset("nosuch")


# --- digits: the set that needs no network ----------------------------------------------------------------------------


def test_digits_load_and_are_the_pinned_arrays(tmp_path: Path) -> None:
    loaded = datasets.load("digits", root=tmp_path)
    assert loaded.revision == datasets.DATASETS["digits"].revision
    assert (len(loaded.train), len(loaded.test)) == (1400, 397)
    images = loaded.train.images(np.array([5, 0, 5]))
    assert images.shape == (3, 1, 8, 8)
    assert images.dtype == np.uint8
    assert images.max() <= 255
    assert np.array_equal(images[0], images[2])
    assert loaded.train.labels.dtype == np.int64
    assert images.flags.writeable
    # Another load reads the stored arrays and needs not fetch.
    assert datasets.load("digits", root=tmp_path, fetch=False).revision == loaded.revision


def test_records_take_slices_and_refuse_what_is_outside() -> None:
    records = ArrayRecords(noise(5, 1, 2, 2), np.arange(5), None)
    assert records.images(slice(1, 4)).shape == (3, 1, 2, 2)
    assert records.images([]).shape == (0, 1, 2, 2)
    with pytest.raises(IndexError):
        records.images([5])
    with pytest.raises(IndexError):
        records.images([-1])


def test_missing_without_fetch_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="bench data get mnist"):
        datasets.load("mnist", root=tmp_path, fetch=False)


def test_data_root_honours_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BENCH_DATA", str(tmp_path))
    assert store.data_root() == tmp_path
    monkeypatch.delenv("BENCH_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.data_root() == tmp_path / "private-student-bench" / "data"


# --- the store: damage, full disk, locks ------------------------------------------------------------------------------


def test_a_cut_file_is_named_set_aside_and_fetched_anew(tmp_path: Path) -> None:
    datasets.load("digits", root=tmp_path)
    victim = tmp_path / "digits" / "train_images.npy"
    victim.write_bytes(victim.read_bytes()[:1000])
    with pytest.raises(BenchError, match=r"train_images\.npy is damaged"):
        datasets.load("digits", root=tmp_path, fetch=False)
    said: list[str] = []
    loaded = datasets.load("digits", root=tmp_path, progress=lambda what, done, total: said.append(what))
    assert loaded.revision == datasets.DATASETS["digits"].revision
    assert (tmp_path / "digits.train_images.npy.damaged").stat().st_size == 1000
    assert any("Set aside" in line for line in said)


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 99, "arrays": {}}', b'{"format": 1, "arrays": {"a": 1}}'])
def test_a_damaged_manifest_is_noticed(tmp_path: Path, content: bytes) -> None:
    datasets.load("digits", root=tmp_path)
    (tmp_path / "digits" / "manifest.json").write_bytes(content)
    with pytest.raises(BenchError, match=r"manifest\.json is damaged"):
        datasets.load("digits", root=tmp_path, fetch=False)
    assert len(datasets.load("digits", root=tmp_path).train) == 1400


def test_a_missing_array_and_a_wrong_header_are_noticed(tmp_path: Path) -> None:
    store.write_store(tmp_path, "x", {"a": Blocks.of(noise(4, 3)), "b": Blocks.of(np.arange(6))}, "test")
    path = tmp_path / "x" / "a.npy"
    good = path.read_bytes()
    path.write_bytes(b"X" * len(good))
    with pytest.raises(DamagedError, match="header"):
        store.read_store(tmp_path, "x")
    path.unlink()
    with pytest.raises(DamagedError, match="missing"):
        store.read_store(tmp_path, "x")


def test_verify_reads_every_byte(tmp_path: Path) -> None:
    store.write_store(tmp_path, "x", {"a": Blocks.of(noise(4, 3))}, "test")
    store.verify_store(tmp_path, "x", quiet)
    path = tmp_path / "x" / "a.npy"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert store.read_store(tmp_path, "x") is not None  # same size and header: only verify sees it
    with pytest.raises(DamagedError, match="SHA-256"):
        store.verify_store(tmp_path, "x", quiet)


def test_arrays_that_are_not_the_pinned_ones_are_refused_and_the_old_stay(tmp_path: Path) -> None:
    store.write_store(tmp_path, "x", {"a": Blocks.of(noise(4, 3))}, "test")
    with pytest.raises(BenchError, match="not the pinned"):
        store.write_store(tmp_path, "x", {"a": Blocks.of(noise(5, 3))}, "test", {"a": "0" * 64})
    found = store.read_store(tmp_path, "x")
    assert found is not None
    assert found[0]["a"].shape == (4, 3)
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_full_disk_leaves_no_torn_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write_store(tmp_path, "digits-old", {"a": Blocks.of(noise(4, 3))}, "test")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(StorageError, match="disk is full"):
        datasets.load("digits", root=tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"digits-old", ".digits.lock"}
    with pytest.raises(StorageError):
        store.write_store(tmp_path, "digits-old", {"a": Blocks.of(noise(4, 4))}, "test")
    found = store.read_store(tmp_path, "digits-old")
    assert found is not None
    assert found[0]["a"].shape == (4, 3)


def test_root_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot write"):
        datasets.load("digits", root=tmp_path / "file")


def _hold(root: str, started: Any, seconds: float) -> None:
    with store.locked(Path(root), "x", quiet):
        started.set()
        time.sleep(seconds)


def test_lock_waits_for_the_other_process_and_survives_its_death(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for seconds, kill in ((0.6, False), (60, True)):
        started = context.Event()
        other = context.Process(target=_hold, args=(str(tmp_path), started, seconds))
        other.start()
        assert started.wait(10)
        waited: list[str] = []
        if kill:
            other.kill()

        def tell(what: str, done: int, total: int | None, waited: list[str] = waited) -> None:
            waited.append(what)

        with store.locked(tmp_path, "x", tell):
            pass
        if not kill:
            assert waited
            assert "another process" in waited[0]
        other.join(10)


def test_what_a_killed_fetch_left_is_cleared_away(tmp_path: Path) -> None:
    staging = tmp_path / ".digits.staging"
    staging.mkdir()
    (staging / "train_images.npy").write_bytes(b"half")
    assert len(datasets.load("digits", root=tmp_path).train) == 1400
    assert not staging.exists()


def test_streams_must_give_what_they_announce(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rows arrived"):
        store.write_store(tmp_path, "x", {"a": Blocks((3, 2), "uint8", [noise(2, 2)])}, "test")
    with pytest.raises(ValueError, match="a piece"):
        store.write_store(tmp_path, "x", {"a": Blocks((2, 3), "uint8", [noise(2, 2)])}, "test")
    assert not (tmp_path / "x").exists()


# --- command line and imports -----------------------------------------------------------------------------------------


def cli(*arguments: str, root: Path) -> Any:
    from typer.testing import CliRunner

    from bench.cli.data import app

    return CliRunner().invoke(app, list(arguments), env={"BENCH_DATA": str(root)})


def test_cli_lists_gets_verifies_and_names_the_path(tmp_path: Path) -> None:
    listed = json.loads(cli("list", "--json", root=tmp_path).stdout)
    row = next(row for row in listed["datasets"] if row["name"] == "digits")
    assert row["here"] is False
    assert row["revision"] == datasets.DATASETS["digits"].revision
    got = cli("get", "digits", root=tmp_path)
    assert got.exit_code == 0
    assert "1,400 + 397 records" in got.stdout
    assert "here" in cli("list", root=tmp_path).stdout
    assert cli("path", "digits", root=tmp_path).stdout.strip() == str(tmp_path / "digits")
    assert cli("verify", "digits", root=tmp_path).exit_code == 0
    victim = tmp_path / "digits" / "test_labels.npy"
    raw = bytearray(victim.read_bytes())
    raw[-8] ^= 1
    victim.write_bytes(raw)
    failed = cli("verify", "digits", root=tmp_path)
    assert isinstance(failed.exception, DamagedError | BenchError)
    assert "test_labels.npy" in str(failed.exception)
    assert (tmp_path / "digits.test_labels.npy.damaged").exists()


def test_cli_get_goes_on_after_a_failure_and_ends_with_one(tmp_path: Path) -> None:
    got = cli("get", "imagenet", "digits", "--json", root=tmp_path)
    assert got.exit_code == 1
    answer = json.loads(got.stdout)
    assert answer["failed"] == ["imagenet"]
    assert answer["datasets"][0]["name"] == "digits"
    assert isinstance(cli("get", "digist", root=tmp_path).exception, UnknownNameError)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    root = ROOT
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False, timeout=120
    )


def test_importing_data_modules_imports_no_torch() -> None:
    code = (
        "import sys, bench, bench.cli.data, bench.data.datasets, bench.data.splits; "
        "bad = {'torch', 'torchvision', 'sklearn', 'PIL', 'scipy'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_torchvision_imports_beside_this_torch() -> None:
    code = """
import sys
from bench.core.torchvision_compat import allow_cpu_torchvision
allow_cpu_torchvision(); allow_cpu_torchvision()
finders = [f for f in sys.meta_path if type(f).__module__ == "bench.core.torchvision_compat"]
assert len(finders) == 1 and "torch" not in sys.modules
import torchvision
assert not [f for f in sys.meta_path if type(f).__module__ == "bench.core.torchvision_compat"]
import torch
from torchvision.transforms import v2
assert v2.Resize(4)(torch.zeros(3, 8, 8)).shape == (3, 4, 4)
torch.ops.torchvision.nms
allow_cpu_torchvision()
assert not [f for f in sys.meta_path if type(f).__module__ == "bench.core.torchvision_compat"]
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


# --- with a network ---------------------------------------------------------------------------------------------------


@pytest.mark.network
@pytest.mark.parametrize("name", ["mnist", "fmnist", "cifar10", "chest-xray", "att-faces", "imagenet-photos"])
def test_real_data_are_fetched_and_are_the_pinned_arrays(tmp_path: Path, name: str) -> None:
    loaded = datasets.load(name, root=tmp_path)
    assert loaded.revision == loaded.spec.revision
    assert (len(loaded.train), len(loaded.test)) == (loaded.spec.train_records, loaded.spec.test_records)
    store.verify_store(tmp_path, name, quiet)
