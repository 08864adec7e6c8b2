"""The command of a record: what `run` writes, what planning finds for older records, and what it never holds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.calibrations import Calibrations
from bench.cli import app
from bench.commands import command_for, grid_of, needed_overrides
from bench.config import Grid, NoiseKind, PrecisionKind, Preset
from bench.data.datasets import all_datasets
from bench.errors import BenchError
from bench.interface import Basis, Facts
from bench.plan import Cell, Dataset, expand
from bench.record import Record, parse_record
from bench.registry import METHODS
from bench.reproduce import command_of, public_dataset, verify
from bench.store import RunDir

RECORDS = Path(__file__).parent.parent / "leaderboards" / "records"
FACTS = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28), public_benchmark=True)
PATE = "mnist-pate-eps10-quick-s0-68885667e3d8"


def committed(key: str, **changes: Any) -> Record:
    record = parse_record((RECORDS / f"{key}.json").read_text())
    provenance = record.provenance.model_copy(update={"command": changes.pop("command", None)})
    return record.model_copy(update={**changes, "provenance": provenance})


def cell_for(*overrides: str, method: str = "pate", dataset: str = "mnist", facts: Facts = FACTS, **grid: Any) -> Cell:
    given = {"methods": (method,), "datasets": (dataset,), "epsilons": (10.0,), "overrides": overrides, **grid}
    return expand(Grid(**given), lambda name: Dataset(name, facts, "sha256:0"))[0]


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (cell_for(), "--methods pate --datasets mnist --eps 10 --seeds 0"),
        (cell_for(method="nonprivate", basis=Basis.PROVEN), "--methods nonprivate --datasets mnist --seeds 0"),
        (
            cell_for("student=small_cnn", "teachers=100", basis=Basis.PROVEN, preset=Preset.PAPER, seeds=(3,)),
            "--methods pate --datasets mnist --eps 10 --seeds 3 --basis proven --preset paper --student small_cnn "
            "--set teachers=100",
        ),
        (
            cell_for(epsilons=(0.1 + 0.2,), delta=1e-6, noise=NoiseKind.SECURE, precision=PrecisionKind.BF16),
            "--methods pate --datasets mnist --eps 0.30000000000000004 --seeds 0 --delta 1e-06 --noise secure "
            "--precision bf16",
        ),
        (
            cell_for("pate.gamma=0.07", "dgd.queries=5", "teachers=100", "teachers=50", "backbone=resnet18",
                     methods=("pate", "dgd", "trpate")),
            "--methods pate --datasets mnist --eps 10 --seeds 0 --set gamma=0.07 --set teachers=50",
        ),
        (
            cell_for("teacher=small_cnn", method="trpate", preset=Preset.TINY),
            "--methods trpate --datasets mnist --eps 10 --seeds 0 --preset tiny",
        ),
    ],
)  # fmt: skip
def test_the_command_is_the_shortest_that_plans_the_cell(cell: Cell, words: str) -> None:
    command, missing = command_for(cell)
    assert command == f"python -m bench run {words}"
    assert missing == ""
    again = expand(grid_of(command), lambda name: Dataset(name, FACTS, "sha256:0"))
    assert [other.key for other in again] == [cell.key]


def test_overrides_that_change_nothing_are_left_out() -> None:
    method = METHODS.get("pate")
    teachers = method.presets(FACTS)["quick"]["teachers"]
    assert needed_overrides(method, Preset.QUICK, FACTS, (f"teachers={teachers}", "pate.gamma=0.2")) == ("gamma=0.2",)


def test_no_path_of_the_machine_is_in_a_command() -> None:
    folder = dataclasses.replace(FACTS, dataset="folder:mine", public_benchmark=False)
    own = cell_for(dataset="folder:/home/alice/mine@1x28x28", facts=folder)
    command, missing = command_for(own)
    assert command == "python -m bench run --methods pate --datasets folder:PATH@1x28x28 --eps 10 --seeds 0"
    assert "PATH is the folder of the images" in missing

    plain = cell_for(method="trpate", preset=Preset.TINY)
    weights = dataclasses.replace(plain.config, weights="file:w.pth", weights_sha256="ab" * 32)
    command, missing = command_for(
        dataclasses.replace(plain, config=weights, overrides=("weights=file:/home/a/w.pth",))
    )
    assert command.endswith(f"--set weights=file:w.pth --set weights_sha256={'ab' * 32}")
    assert missing == ""

    for value, shown in (("source:folder:/home/alice/x/", "source:folder:PATH/x"), (r"C:\data\x", "'weights=PATH/x'")):
        command, missing = command_for(dataclasses.replace(plain, overrides=(f"weights={value}",)))
        assert shown.strip("'") in command
        assert "alice" not in command
        assert "PATH" in missing


def test_a_method_in_a_file_is_named_without_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "once.py"
    file.write_text(
        "from bench.registry import register_method\nfrom methods.pate import PATE\n\n\n"
        "@register_method('reproduced-once')\nclass Once(PATE):\n    pass\n"
    )
    try:
        cell = cell_for(method=str(file))
        command, missing = command_for(cell)
        assert command == "python -m bench run --methods PATH/once.py --datasets mnist --eps 10 --seeds 0"
        assert "folder of the method's file" in missing
    finally:
        METHODS._members.pop("reproduced-once", None)


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf .",
        "python -m bench run --methods pate; rm -rf .",
        "python -m bench run --methods pate --out /etc",
        "python -m bench run --datasets mnist",
        "python -m bench run --methods pate --eps ten",
        "python -m bench run --methods 'pate",
        "python -m bench run --methods pate --preset none",
    ],
)
def test_what_is_no_command_of_a_cell_is_refused(command: str) -> None:
    with pytest.raises(BenchError, match=r"no command of one cell|a command begins"):
        grid_of(command)


def test_a_foreign_command_is_compared_and_never_executed(tmp_path: Path) -> None:
    record = committed(PATE)
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    start = "python -m bench run --datasets mnist --eps 10 --seeds 0"
    assert verify(f"{start} --methods {trap}", record) == "its method is not pate."
    assert not (tmp_path / "sprung").exists()
    assert verify(f"{start} --methods pate --datasets folder:/", record) == "its data set is not mnist."
    assert verify(f"{start} --methods pate", record) == ""
    assert "it plans mnist-pate-eps1-" in verify(f"{start} --methods pate --eps 1", record)
    assert verify(f"{start} --methods pate --eps 1,10", record) == "it plans 2 cells."
    assert verify(f"{start} --methods pate", record.model_copy(update={"seed": 5})).startswith("its seed is another")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (PATE, "--methods pate --datasets mnist --eps 10 --seeds 0"),
        ("mnist-nonprivate-epsinf-quick-s1-86d811d9979d", "--methods nonprivate --datasets mnist --seeds 1"),
        (
            "cifar10-trpate-eps25.18-paper-s2-670f2660006e",
            "--methods trpate --datasets cifar10 --eps 25.18 --seeds 2 --preset paper",
        ),
        (
            "cifar10-pate-eps5.8-quick-s1-6ac8dfbd8d47",
            "--methods pate --datasets cifar10 --eps 5.8 --seeds 1 --set teachers=200 --set gamma=0.05 "
            "--set least_queries=1",
        ),
    ],
)
def test_planning_finds_the_command_of_an_older_record(key: str, words: str) -> None:
    record = committed(key)
    found = command_of(record)
    assert found.command is not None
    assert found.command.startswith(f"python -m bench run {words}")
    assert verify(found.command, record) == ""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method_version": 0}, "version 0 of pate made it, here is version 1: only the program of commit"),
        ({"method": "patty"}, "unknown method 'patty'"),
        ({"dataset_revision": "sha256:1"}, "it was made on revision sha256:1"),
        ({"dataset": "folder:mine"}, "no preset"),
        ({"seed": 7}, "no preset with any --set and a calibration gives its settings"),
        ({"preset": "slow"}, "'slow' is not a valid Preset"),
        ({"config": {}}, "the settings of pate have changed"),
    ],
)
def test_a_record_that_nothing_makes_again_says_why(changes: dict[str, Any], says: str) -> None:
    found = command_of(committed(PATE, **changes))
    assert found.command is None
    assert says in found.reason


def test_facts_of_a_data_set_are_known_without_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_DATA", str(tmp_path))
    assert public_dataset("mnist").facts == FACTS
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BenchError, match="only its files tell"):
        public_dataset(next(name for name, spec in all_datasets().items() if spec.revision is None))


def test_run_writes_the_command_and_show_prints_it(tmp_path: Path) -> None:
    words = ["-m", "nonprivate", "-d", "digits", "-p", "tiny", "-s", "4", "--set", "epochs=1"]
    out = ["-o", str(tmp_path / "runs")]
    runner = CliRunner()
    done = runner.invoke(app, ["run", *words, *out, "--workers", "1", "-q"])
    assert done.exit_code == 0, done.output
    (record,) = RunDir(tmp_path / "runs").read_records().found
    command = record.provenance.command
    assert command is not None
    assert command.startswith("python -m bench run --methods nonprivate --datasets digits --seeds 4 --preset tiny")
    assert verify(command, record) == ""
    planned = runner.invoke(app, ["plan", *command.split()[4:], *out, "--json"])
    assert [cell["key"] for cell in json.loads(planned.stdout)["cells"]] == [record.key]
    shown = runner.invoke(app, ["show", record.key, *out], terminal_width=300)
    assert "made again by" in shown.output


@pytest.mark.slow
def test_every_committed_record_has_a_command() -> None:
    calibrations = Calibrations()
    for path in sorted(RECORDS.glob("*.json")):
        found = command_of(committed(path.stem), calibrations)
        assert found.command is not None, (path.name, found.reason)
