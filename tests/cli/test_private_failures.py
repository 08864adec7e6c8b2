"""A user's folder: its targets are proven, and a failure tells its owner the reason, its record what may be shown."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bench.models.pretrained
from bench.core.errors import BenchError
from bench.core.types import Basis
from bench.results.run_dir import RunDir
from helpers.commands import bench as command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for label in ("a", "b"):
        (tmp_path / "mine" / label).mkdir(parents=True)
        for number in range(30):
            pixels = generator.integers(0, 256, (12, 12), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "mine" / label / f"{number}.png")
    return tmp_path / "mine"


def reason_of(out: Path) -> str:
    (record,) = RunDir(out).read_records().found
    assert record.failure is not None
    return record.failure.reason


@pytest.mark.parametrize("launcher", ["inline", pytest.param("local", marks=pytest.mark.slow)])
def test_a_damaged_image_is_named_to_the_owner_alone(
    launcher: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = folder / "a" / "7.png"
    damaged.write_bytes(damaged.read_bytes()[:60])
    monkeypatch.chdir(tmp_path)
    done = command(
        "run", "-m", "pate", "-d", f"folder:{folder}", "-p", "tiny", "-e", "10", "-o", "runs/one",
        "--launcher", launcher, *(["--jobs", "1"] if launcher == "local" else []),
    )  # fmt: skip
    assert done.returncode == 1
    assert f"the image {damaged} is damaged" in done.stderr
    assert reason_of(Path("runs/one")) == "the data cannot be read; the log says why"
    for said in (done.stdout, done.stderr, command("status", "-o", "runs/one", "--json").stdout):
        assert said.count("runs/one/cache/folder_mine-pate") == 1
    (log,) = Path("runs/one/cache").glob("*.log")
    assert os.fspath(log) in done.stdout, "a path from the user's shell"
    assert f"the image {damaged} is damaged" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


def test_missing_weights_tell_nothing_of_private_records(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise BenchError("could not fetch weights of resnet26: the hub does not answer.")

    monkeypatch.setattr(bench.models.pretrained, "fetch_from_hub", unreachable)
    done = command(
        "run", "-m", "trpate", "-d", f"folder:{folder}@3x64x64", "-p", "tiny", "-e", "10", "-o", tmp_path / "runs",
        "--teacher", "resnet26", "--set", "weights=hub", "-q",
    )  # fmt: skip
    assert done.returncode == 1
    assert "could not fetch weights of resnet26" in reason_of(tmp_path / "runs")
    assert "private records" not in done.stdout


def test_targets_are_proven_unless_asked_otherwise_and_the_printed_command_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # narrow tables leave out the time
    name = f"folder:{folder}@1x8x8"
    for basis in ([], ["--basis", "claimed"]):
        done = command("run", "-m", "dpsd,dgd", "-d", name, "-p", "tiny", "-e", "5", "-o", tmp_path / "out", *basis)
        assert done.returncode == (not basis)
        assert "≤ 60 s" in done.stdout
    found = {(record.method, record.cell.basis): record for record in RunDir(tmp_path / "out").read_records().found}
    assert len(found) == 4
    refused = found["dgd", Basis.PROVEN].failure
    assert refused is not None
    assert refused.reason.endswith("Its repaired variant is dgd-sound. --basis claimed runs it at its paper's epsilon.")
    for basis in Basis:
        shown = command("show", found["dpsd", basis].key, "-o", tmp_path / "out").stdout
        assert f"--basis {basis.value}" in shown
        privacy = found["dpsd", basis].privacy
        assert privacy is not None
        assert (privacy.proven.epsilon <= 5.0) is (basis is Basis.PROVEN), "of neighbours that replace a record"


def test_the_shape_after_a_folder_is_known_from_the_record(folder: Path, tmp_path: Path) -> None:
    out, name = tmp_path / "out", f"folder:{folder}"
    run = ["-m", "dp-sgd", "-d", f"{name}@1x8x8", "-p", "tiny", "-e", "5", "--student", "softmax_regression"]
    assert command("run", *run, "-o", out).returncode == 0
    attack = ["attack", "-a", "robustness", "-p", "tiny", "-o", out]
    said = command(*attack).stderr
    assert "--data folder:PATH@1x8x8" in said
    other = command(*attack, "--data", f"{name}@1x12x12")
    assert f"was trained with --data folder:PATH@1x8x8, not {name}@1x12x12" in other.stderr
    assert command(*attack, "--data", name).returncode == 0
    (folder / "a" / "7.png").unlink()
    changed = command(*attack, "--data", name, "--reuse", "none")
    assert changed.returncode == 1
    assert "was made on another revision of folder:mine" in changed.stderr
