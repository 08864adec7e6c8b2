"""Tuning of a cell: the statements of its record, stored files, and that a stop changes nothing."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bench.cli.main import app
from bench.core.config import Grid, Preset
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.types import Basis, Law, PublicKind
from bench.core.yaml_files import read_yaml
from bench.experiments import calibration_cache, tuning
from bench.experiments.calibration_cache import Calibrations
from bench.experiments.data_source import DataSource
from bench.experiments.run import run_cell
from bench.experiments.tuning import Planned, plan_tuning, plan_tunings, run_tunings, tuning_of
from bench.interface import METHODS
from bench.privacy.accounting.accountants import proven
from bench.privacy.events.events import Event, Gaussian
from bench.publishing.publish import Publication
from bench.publishing.reproduce import command_of
from bench.publishing.validate import vet_record
from bench.publishing.verify import demand_audits
from bench.reports.leaderboard import build_board, cells_of
from bench.results.record import Record, Status
from bench.results.run_dir import RunDir
from helpers.noisy_sums import NoisySums

SPACE = {"scale": [0.0, 1.0, -1.0]}


@pytest.fixture(autouse=True)
def method(registries_restored: None) -> Iterator[None]:
    METHODS.register("noisy-sums", NoisySums)
    NoisySums.ran.clear()
    yield
    NoisySums.breaks.clear()


def grid(epsilon: float = 3.0, **more: Any) -> Grid:
    return Grid(("noisy-sums",), ("digits",), (epsilon,), preset=Preset.TINY, basis=Basis.PROVEN, **more)


def planned(space: Any = SPACE, *, asked: Grid | None = None, **options: Any) -> Planned:
    return plan_tuning(asked or grid(), tuning_of(space, **options), DataSource(Progress()), Calibrations())


def draws(monkeypatch: pytest.MonkeyPatch, trials: int, *scales: int) -> None:
    """Let a tuning draw `trials` trials, of the candidates at `scales` in turn."""
    turn = iter(scales * trials)
    monkeypatch.setattr(tuning, "draw_trials", lambda mean, shape: trials)
    monkeypatch.setattr(tuning.random, "SystemRandom", lambda: type("R", (), {"randrange": lambda _, n: next(turn)})())


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Return the records of all trials that run from now on."""
    seen: list[Record] = []

    def run(*arguments: Any, **options: Any) -> Record:
        seen.append(run_cell(*arguments, **options))
        return seen[-1]

    monkeypatch.setattr(tuning, "run_cell", run)
    return seen


def tuned(out: Path, progress: Progress | None = None, space: Any = SPACE, **options: Any) -> Record:
    (record,) = run_tunings([grid()], tuning_of(space, **options), out, progress or Progress())
    return record


class Told(Progress):
    """Everything passed to a display."""

    def __init__(self) -> None:
        self.lines: list[object] = []

    def stage(self, name: str, total: int, seconds: float = math.inf) -> Any:
        self.lines.append((name, total))
        return super().stage(name, total)

    def say(self, text: str) -> None:
        self.lines.append(text)

    def doing(self, rows: Sequence[tuple[str, int, int]]) -> None:
        self.lines.append(rows)


def test_a_record_states_what_tuning_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws(monkeypatch, 6, 0, 1, 2)
    record = tuned(tmp_path, trials_mean=4.0)
    assert record.status is Status.DONE, record.failure
    assert record.privacy is not None
    assert record.cell.tuning is not None
    total = record.privacy.proven
    assert 3.0 * (1 - 1e-3) <= total.epsilon <= 3.0
    assert total.name == "selection-profile"
    one = proven([Gaussian(record.config["noise_multiplier"])], record.delta).epsilon
    assert one == pytest.approx(record.cell.tuning.epsilon, rel=1e-4)
    assert one < total.epsilon
    by = {row.name: row.epsilon for row in record.privacy.accountants}
    assert set(by) == {"rdp", "selection-profile"}
    assert by["rdp"] > total.epsilon
    assert record.privacy.claimed.epsilon == total.epsilon
    assert "one trial" in record.privacy.claimed.note
    assert record.config["scale"] == 1.0  # the only candidate that learns
    assert record.score is not None
    assert record.score > 200
    assert record.public_kinds == [PublicKind.LABELLED]
    assert record.public_data == "labels of the 400 public records, to choose settings"
    (row,) = build_board([record]).rows
    assert "3 candidates, 4 trials in the mean (geometric), chosen by public labels" in cells_of(row)["remarks"]
    assert cells_of(row)["time"] == "–"
    assert row.claim == "holds"
    command, missing = command_of(record)
    assert command is not None
    assert "bench tune --methods noisy-sums" in command
    assert "--space CANDIDATES --trials-mean 4 --law geometric --score public" in command
    assert "--set" not in command
    assert "candidates" in missing


def test_nothing_that_is_kept_or_shown_depends_on_the_number_of_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, told = [], []
    for number, trials in enumerate((1, 7)):
        draws(monkeypatch, trials, 1, 1, 0, 2)
        progress, out = Told(), tmp_path / str(number)
        record = tuned(out, progress)
        values = json.loads(record.to_json())
        for drawn in ("noise_salt", "score", "utility", "student"):
            assert values.pop(drawn)
        files = {path.relative_to(out): path.stat().st_mtime for path in out.rglob("*")}
        dated = [name for name in files if name.parts[0] in ("records", "released", ".lock")]
        assert len(dated) == 5
        assert {files[name] % 86_400 for name in dated} == {0.0}
        kept.append((values, set(files)))
        told.append(progress.lines)
    assert len(NoisySums.ran) == 8
    assert kept[0] == kept[1]
    assert told[0] == told[1]
    provenance = kept[0][0]["provenance"]
    assert (provenance["wall_seconds"], provenance["peak_memory_mib"], provenance["artefacts"]) == (0.0, None, {})
    assert len(provenance["started"]) == len("2026-01-01")


def test_the_best_trial_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch)
    draws(monkeypatch, 8, 1, 1, 0, 2)
    record = tuned(tmp_path)
    scores = [one.score or 0.0 for one in seen]
    assert record.score == max(scores)
    best = seen[int(np.argmax(scores))]
    assert record.student == best.student
    assert record.noise_salt == best.noise_salt
    assert len({one.noise_salt for one in seen}) == 8
    assert [path.name for path in (tmp_path / "released").iterdir()] == [f"{record.key}.safetensors"]
    assert not (tmp_path / "tuning").exists()


@pytest.mark.parametrize("stopped", [1, 3, 6])
def test_a_stopped_tuning_goes_on_with_what_it_drew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: int
) -> None:
    draws(monkeypatch, 6, 1, 0, 2)
    NoisySums.breaks["stop"] = stopped
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path)
    assert not list((tmp_path / "records").iterdir())
    (home,) = (tmp_path / "tuning").iterdir()
    assert home.parent.stat().st_mode & 0o777 == 0o700
    salts = {path.name: json.loads(path.read_text())[0] for path in home.glob("*/noise/*")}
    assert len(salts) == 1  # of the trial that was stopped
    draws(monkeypatch, 99, 0)  # drawn again, these would be seen
    seen = watched(monkeypatch)
    record = tuned(tmp_path)
    assert NoisySums.ran == [1.0, 0.0, -1.0, 1.0, 0.0, -1.0][:stopped] + [1.0, 0.0, -1.0, 1.0, 0.0, -1.0][stopped - 1 :]
    assert [seen[0].noise_salt] == list(salts.values())
    assert record.config["scale"] == 1.0
    done = len(NoisySums.ran)
    assert tuned(tmp_path) == record
    assert len(NoisySums.ran) == done


def test_a_failure_is_the_worst_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws(monkeypatch, 4, 1, 2)
    NoisySums.breaks["scales"] = (1.0,)
    assert tuned(tmp_path / "one").config["scale"] == -1.0
    draws(monkeypatch, 4, 1)
    record = tuned(tmp_path / "all")
    assert record.failure is not None
    assert "diverges" in record.failure.reason
    assert [event["kind"] for event in record.failure.spent] == ["repeat-and-select"]
    assert not list((tmp_path / "all" / "logs").iterdir())
    assert not (tmp_path / "all" / "tuning").exists()


def test_a_noisy_score_is_paid_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws(monkeypatch, 3, 1, 0)
    record = tuned(tmp_path, score="noisy", score_noise=20.0, law=Law.LOGARITHMIC)
    assert record.privacy is not None
    ((event,),) = [record.privacy.events]
    assert [one["noise_multiplier"] for run in event["runs"] for one in run][-1] == 20.0
    assert {one["kind"] for run in event["runs"] for one in run} == {"gaussian"}
    assert record.public_kinds == [PublicKind.NONE]
    assert record.score != round(record.score or 0)
    assert record.privacy.proven.epsilon <= 3.0


def test_candidates_of_differing_cost() -> None:
    plan = planned({"scale": [0.0, 1.0], "count": [1, 4]})
    assert len(plan.cells) == 4
    assert len(plan.event.runs) == 2  # a scale costs nothing
    assert 3.0 * (1 - 1e-3) <= proven([plan.event], plan.cells[0].delta).epsilon <= 3.0
    more = [planned(trials_mean=mean).cells[0].spec.tuning for mean in (2.0, 20.0)]
    assert [one.epsilon > other.epsilon for one, other in [more] if one and other] == [True]


def test_published_records_are_accounted_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws(monkeypatch, 2, 1)
    record = tuned(tmp_path)

    def problems(**change: Any) -> str:
        found = vet_record(record.model_copy(update=change)).problems
        return " ".join(line for line in found if not line.startswith(("it did not run from", "it ran from")))

    assert problems() == ""
    assert record.privacy is not None
    assert record.cell.tuning is not None
    cheaper = record.privacy.model_copy(update={"proven": record.privacy.proven.model_copy(update={"epsilon": 1.0})})
    assert "its events cost epsilon" in problems(privacy=cheaper)
    untold = record.cell.model_copy(update={"tuning": None})
    assert "its key differs from the planned one" in problems(cell=untold)
    ((event,),) = [record.privacy.events]
    one = {**event, "mean": 1.0}
    figure = proven([Event.from_dict(one)], record.delta)
    told = record.privacy.proven.model_copy(update={"epsilon": figure.epsilon})
    forged = record.privacy.model_copy(update={"events": [one], "proven": told})
    assert "its settings cost epsilon" in problems(privacy=forged)


def test_a_tuned_row_is_published_beside_an_audited_one_with_fixed_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws(monkeypatch, 1, 1)
    record = tuned(tmp_path)
    fixed = record.model_copy(update={"key": "fixed", "cell": record.cell.model_copy(update={"tuning": None})})
    found = Publication(board={record.key: record}, added={record.key: (record, tmp_path)})
    demand_audits(found)
    assert ["it is tuned" in item.why for item in found.refused] == [True]
    audited = Publication(board={record.key: record, "fixed": fixed}, added=found.added, audits={"fixed": {"a": None}})  # type: ignore[dict-item]
    demand_audits(audited)
    assert audited.refused == []


def test_the_command_tunes(tmp_path: Path) -> None:
    (tmp_path / "space.json").write_text(json.dumps(SPACE))
    words = ["tune", "-m", "noisy-sums", "-d", "digits", "-p", "tiny", "-e", "3", "--trials-mean", "1.5", "--json"]
    words += ["--space", str(tmp_path / "space.json"), "-o", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    (record,) = json.loads(done.stdout)["records"]
    assert record["cell"]["tuning"]["trials_mean"] == 1.5
    assert record["cell"]["basis"] == "proven"
    assert done.stderr == ""
    again = CliRunner().invoke(app, words, catch_exceptions=False)
    assert json.loads(again.stdout)["records"] == [record]


def test_a_tuned_cell_does_not_run_alone(tmp_path: Path) -> None:
    cell = planned().cells[0]
    record = run_cell(cell, RunDir(tmp_path).create(), DataSource(Progress()), Progress())
    assert record.failure is not None
    assert "bench tune" in record.failure.reason


@pytest.mark.parametrize(
    ("space", "options", "said"),
    [
        ({"scale": [1.0]}, {}, "there is nothing to tune. Use `bench run"),
        ({"scale": 1.0}, {}, "a space is a list of values per setting"),
        ([{"scale": 1}, {"count": 1}], {}, "a list of candidates with the same settings"),
        ({}, {}, "a space is a list of values per setting"),
        ({"scale": [[1], [2]]}, {}, "a space is a list of values per setting"),
        ({"scale": list(range(200)), "count": list(range(200))}, {}, "more than 10,000 candidates"),
        ({"rate": [1, 2]}, {}, "unknown option of noisy-sums 'rate'"),
        ({"scale": [1, 1.0]}, {}, "two candidates give the same settings"),
        ({"noise_multiplier": [1, 2]}, {}, "calibration sets it"),
        (SPACE, {"trials_mean": 0.9}, "at least 1, not 0.9"),
        (SPACE, {"trials_mean": math.inf}, "finite and at least 1"),
        (SPACE, {"score": "private"}, "reads private records"),
        (SPACE, {"score": "test"}, "the board's accuracy is measured on"),
        (SPACE, {"score": "loss"}, "public or noisy, not 'loss'"),
        (SPACE, {"score": "noisy"}, "takes --score-noise"),
        (SPACE, {"score_noise": 10.0}, "takes --score-noise"),
        (SPACE, {"score": "noisy", "score_noise": -1.0}, "a positive number of records"),
    ],
)
def test_refusals(space: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(BenchError, match=said):
        planned(space, **options)


def test_methods_and_data_that_cannot_be_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(said: str, method: str = "noisy-sums") -> None:
        with pytest.raises(BenchError, match=said):
            planned(asked=dataclasses.replace(grid(), methods=(method,)))

    refused("is not private, so tuning costs nothing", "nonprivate")
    refused("no finite proven epsilon", "dgd")
    with monkeypatch.context() as patch:
        patch.setattr(NoisySums, "charges", lambda self: None)
        refused("does not state its cost before a run")
    describe = DataSource.describe

    def own(self: DataSource, name: str) -> Any:
        found = describe(self, name)
        return dataclasses.replace(found, facts=dataclasses.replace(found.facts, public_benchmark=False))

    monkeypatch.setattr(DataSource, "describe", own)
    refused("no public records with public labels. Use --score noisy")


def test_a_method_that_spends_more_than_it_states_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws(monkeypatch, 2, 1)
    stated = NoisySums.charges
    monkeypatch.setattr(NoisySums, "charges", lambda self: [dataclasses.replace(stated(self)[0], count=1)])
    record = tuned(tmp_path, space={"count": [2, 3]})
    assert record.failure is not None
    assert "cost a different amount from what it stated" in record.failure.reason


def test_files_of_candidates(tmp_path: Path) -> None:
    file = tmp_path / "space"
    file.write_text("scale: [1, 2]\ncount: [3]\n")
    first = tuning_of(read_yaml(file)).candidates
    file.write_text('[{"scale": 1, "count": 3}, {"scale": 2, "count": 3}]')
    assert tuning_of(read_yaml(file)).candidates == first == [{"scale": s, "count": "3"} for s in "12"]


def test_slow_calibrations_are_kept_for_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_cache, "SLOW", 0.0)
    run_dir = RunDir(tmp_path / "runs")
    plan_tunings([grid()], tuning_of(SPACE), run_dir, DataSource(Progress()), Progress())
    assert list((run_dir.cache_path / "calibrations").glob("*.json"))
