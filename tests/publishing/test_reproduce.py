"""The command of a record: what `run` writes, what planning finds for older records, and what it never contains."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.cli.main import app
from bench.core.config import Grid, NoiseKind, PrecisionKind, Preset, needed_overrides, parse_overrides
from bench.core.types import Basis, Budget, Facts, TargetAdjacency
from bench.data.datasets import all_datasets
from bench.experiments.plan import Cell, Dataset, expand
from bench.interface.registry import METHODS
from bench.publishing.reproduce import command_of, planned_again, public_dataset
from bench.results.cell_spec import CellSpec
from bench.results.command import command_for, public_overrides
from bench.results.record import Record, parse_record
from bench.results.run_dir import RunDir
from helpers.paths import BOARD
from helpers.records import asked
from helpers.report_commands import grid_of

RECORDS = BOARD / "records"
FACTS = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28), public_benchmark=True)
PATE = "mnist-pate-eps10-quick-s0-68885667e3d8"


def committed(key: str, **changes: Any) -> Record:
    record = parse_record((RECORDS / f"{key}.json").read_text())
    cell = {name: changes.pop(name) for name in list(changes) if name in CellSpec.model_fields}
    return asked(record.model_copy(update=changes), **cell)


def command(cell: Cell) -> tuple[str, str]:
    return command_for(cell.spec, cell.facts.private_records, METHODS.get(cell.method).adjacency)


def cell_for(*overrides: str, method: str = "pate", dataset: str = "mnist", facts: Facts = FACTS, **grid: Any) -> Cell:
    given = {"methods": (method,), "datasets": (dataset,), "epsilons": (10.0,), "overrides": overrides, **grid}
    return expand(Grid(**given), lambda name: Dataset(name, facts, "sha256:0"))[0]


def planning(*overrides: str, **grid: Any) -> Callable[[], Cell]:
    return functools.partial(cell_for, *overrides, **grid)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (planning(), "--methods pate --datasets mnist --eps 10 --seeds 0"),
        (
            planning("batch_size=60000", method="dp-sgd", basis=Basis.PROVEN, adjacency=TargetAdjacency.OWN),
            "--methods dp-sgd --datasets mnist --eps 10 --seeds 0 --basis proven --adjacency own "
            "--set batch_size=60000",
        ),
        (
            planning("batch_size=60000", method="dp-sgd", basis=Basis.PROVEN),
            "--methods dp-sgd --datasets mnist --eps 10 --seeds 0 --basis proven --set batch_size=60000",
        ),
        (planning(method="nonprivate", basis=Basis.PROVEN), "--methods nonprivate --datasets mnist --seeds 0"),
        (
            planning("student=small_cnn", "teachers=100", basis=Basis.PROVEN, preset=Preset.PAPER, seeds=(3,)),
            "--methods pate --datasets mnist --eps 10 --seeds 3 --basis proven --preset paper --student small_cnn "
            "--set teachers=100",
        ),
        (
            planning(epsilons=(0.1 + 0.2,), delta=1e-6, noise=NoiseKind.SECURE, precision=PrecisionKind.BF16),
            "--methods pate --datasets mnist --eps 0.30000000000000004 --seeds 0 --delta 1e-06 --noise secure "
            "--precision bf16",
        ),
        (
            planning("pate.gamma=0.07", "dgd.latent=5", "teachers=100", "pate.teachers=50", "backbone=resnet18",
                     methods=("pate", "dgd", "trpate")),
            "--methods pate --datasets mnist --eps 10 --seeds 0 --set gamma=0.07 --set teachers=50",
        ),
        (
            planning("teacher=small_cnn", method="trpate", preset=Preset.TINY),
            "--methods trpate --datasets mnist --eps 10 --seeds 0 --preset tiny",
        ),
    ],
)  # fmt: skip
def test_the_command_is_the_shortest_that_plans_the_cell(plan: Callable[[], Cell], words: str) -> None:
    cell = plan()
    assert command(cell) == (f"python -m bench run {words}", "")
    for grid in (grid_of(command(cell)[0]), cell.spec.grid()):
        again = expand(grid, lambda name: Dataset(name, FACTS, "sha256:0"))
        assert [other.key for other in again] == [cell.key]
        assert again[0].spec == cell.spec


def test_overrides_that_change_nothing_are_left_out() -> None:
    method = METHODS.get("pate")
    teachers = method.presets(FACTS)["quick"]["teachers"]
    given = parse_overrides(method, (f"teachers={teachers}", "pate.gamma=0.2"))
    assert needed_overrides(method, Preset.QUICK, FACTS, given) == {"gamma": ("gamma", "0.2", 0.2)}


def test_no_path_of_the_machine_is_in_a_command() -> None:
    folder = dataclasses.replace(FACTS, dataset="folder:mine", public_benchmark=False)
    own = cell_for(dataset="folder:/home/alice/mine@1x28x28", facts=folder)
    text, missing = command(own)
    assert (
        text == "python -m bench run --methods pate --datasets folder:PATH@1x28x28 --eps 10 --seeds 0 --basis claimed"
    )
    assert "PATH is the path of the data" in missing
    assert "alice" not in own.spec.model_dump_json()

    plain = cell_for(method="trpate", preset=Preset.TINY)
    weights = dataclasses.replace(plain.config, weights="file:w.pth", weights_sha256="ab" * 32)
    shown = public_overrides({"weights": "file:/home/a/w.pth"}, weights)
    assert shown == {"weights": "file:w.pth", "weights_sha256": "ab" * 32}

    for value, shown_value in (("source:folder:/home/alice/x/", "source:folder:PATH/x"), (r"C:\data\x", "PATH/x")):
        shown = public_overrides({"weights": value}, plain.config)
        assert shown == {"weights": shown_value}
        text, missing = command_for(plain.spec.model_copy(update={"overrides": shown}), 60_000)
        assert text.endswith(f"--set weights={shown_value}")
        assert missing == "PATH is the folder of what --set weights names"


def test_a_method_in_a_file_is_named_without_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "once.py"
    file.write_text(
        "from bench.interface.registry import register_method\nfrom bench.methods.pate.pate import PATE\n\n\n"
        "@register_method('reproduced-once')\nclass Once(PATE):\n    pass\n"
    )
    try:
        cell = cell_for(method=str(file))
        assert str(tmp_path) not in cell.spec.model_dump_json()
        text, missing = command(cell)
        assert text == "python -m bench run --methods PATH/once.py --datasets mnist --eps 10 --seeds 0"
        assert "folder of the method's file" in missing
    finally:
        METHODS.members.pop("reproduced-once", None)


def test_names_of_a_foreign_record_are_compared_and_never_executed(tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    found = planned_again(committed(PATE, method=str(trap), method_file=str(trap)))
    assert "unknown method" in found.reason
    assert not (tmp_path / "sprung").exists()


def test_every_part_of_what_was_asked_for_is_held_against_the_key() -> None:
    plain = committed("mnist-nonprivate-epsinf-quick-s1-86d811d9979d")
    assert planned_again(plain).cell is not None
    assert planned_again(asked(plain, epsilon=3.0)).reason == "its epsilon differs from what its key says."
    assert planned_again(asked(plain, basis=Basis.PROVEN)).reason == "its basis differs from what its key says."
    assert planned_again(asked(plain, precision="bf16")).reason == "its precision differs from what its key says."
    assert "epsilon must be a positive finite number" in planned_again(asked(plain, epsilon=-1.0)).reason
    wrong = plain.model_copy(update={"config": {**plain.config, "epochs": 1.0}})
    assert planned_again(wrong).reason == "its config differs from what its key says."


@pytest.mark.parametrize(("factor", "alike"), [(1 - 1e-9, True), (1 + 1e-9, True), (1 + 1e-6, False)])
def test_a_calibrated_number_may_be_rounded_otherwise_where_a_record_was_made(
    factor: float, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, method = committed("mnist-trpate-eps1-quick-s0-e62510f065c2"), METHODS.get("trpate")
    calibrate = method.calibrate

    def elsewhere(self: Any, budget: Budget) -> Any:
        found = calibrate(self, budget)
        return dataclasses.replace(found, gamma=found.gamma * factor)

    monkeypatch.setattr(method, "calibrate", elsewhere)
    found = planned_again(record)
    if alike:
        assert found.cell is not None
        assert (found.cell.key, found.cell.config.gamma) == (record.key, record.config["gamma"])
    else:
        assert found.reason.startswith("its settings plan mnist-trpate-eps1-quick-s0-")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method_version": 0}, "version 0 of pate made it, but this is version 1: only the program of commit"),
        ({"method": "patty"}, "unknown method 'patty'"),
        ({"dataset_revision": "sha256:1"}, "it was made on revision sha256:1"),
        ({"dataset": "folder:mine"}, "its settings plan folder_mine-pate-eps10-quick-s0-"),
        ({"seed": 7}, "its settings plan mnist-pate-eps10-quick-s7-"),
        ({"overrides": {"teachers": "40"}}, "its settings plan mnist-pate-eps10-quick-s0-"),
        ({"overrides": {"teacherz": "3"}}, "teacherz"),
        ({"config": {}}, "the settings of pate have changed"),
    ],
)
def test_a_record_that_nothing_makes_again_says_why(changes: dict[str, Any], says: str) -> None:
    found = planned_again(committed(PATE, **changes))
    assert found.cell is None
    assert says in found.reason


def test_a_record_that_does_not_tell_its_settings_is_planned_without_any() -> None:
    text, missing = command_of(committed(PATE, overrides=None))
    plain = "python -m bench run --methods pate --datasets mnist --eps 10 --seeds 0"
    assert (text, missing) == (f"{plain} --noise-salt none", "")
    assert command_of(committed(PATE, noise_salt="5" * 64)) == (f"{plain} --noise-salt {'5' * 64}", "")
    assert command_of(committed(PATE, noise=NoiseKind.SECURE)) == (f"{plain} --noise secure", "")
    text, why = command_of(committed("cifar10-pate-eps5.8-quick-s1-6ac8dfbd8d47", overrides=None))
    assert text is None
    assert "does not say what --set gave" in why


def test_facts_of_a_data_set_are_known_without_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_DATA", str(tmp_path))
    known = public_dataset("mnist")
    assert known is not None
    assert known.facts == FACTS
    assert list(tmp_path.iterdir()) == []
    assert public_dataset(next(name for name, spec in all_datasets().items() if spec.revision is None)) is None


def test_run_writes_the_command_and_show_prints_it(tmp_path: Path) -> None:
    words = ["-m", "nonprivate", "-d", "digits", "-p", "tiny", "-s", "4", "--set", "epochs=1"]
    out = ["-o", str(tmp_path / "runs")]
    runner = CliRunner()
    done = runner.invoke(app, ["run", *words, *out, "--workers", "1", "-q"])
    assert done.exit_code == 0, done.output
    (record,) = RunDir(tmp_path / "runs").read_records().found
    text, missing = command_of(record)
    assert text == "python -m bench run --methods nonprivate --datasets digits --seeds 4 --preset tiny --set epochs=1"
    assert missing == ""
    assert planned_again(record).cell is not None
    planned = runner.invoke(app, ["run", "--dry-run", *text.split()[4:], *out, "--json"])
    assert [cell["key"] for cell in json.loads(planned.stdout)["cells"]] == [record.key]
    shown = runner.invoke(app, ["show", record.key, *out], terminal_width=300)
    assert "reproduce with" in shown.output
