"""The library: `bench.load_results` and `bench.run` return the numbers of records and commands."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from scipy.stats import binomtest

import bench
import bench.interface
from bench.api import COLUMNS
from bench.core.errors import BenchError
from bench.core.rows import Estimated
from bench.results.attack_record import Scores
from bench.results.audited import with_audits
from bench.results.run_dir import RunDir
from helpers import commands
from helpers.commands import registries_restored
from helpers.pairs import pair_audit, release, transcript
from helpers.paths import BOARD, GRID_METHOD, ROOT
from helpers.records import failed, record
from helpers.site import attack, audit

if TYPE_CHECKING:
    import pandas

GRID = str(GRID_METHOD)


@pytest.fixture(autouse=True)
def plugins_of_this_test_alone() -> Iterator[None]:
    with registries_restored():
        yield


def folder(path: Path, *rows: Any) -> RunDir:
    home = RunDir(path).create()
    for row in rows:
        home.write_record(row)
    return home


@pytest.fixture(scope="module")
def published() -> pandas.DataFrame:
    return bench.load_results()


def test_two_lines_give_every_published_record(published: pandas.DataFrame) -> None:
    home = RunDir(BOARD)
    records = with_audits(home.read_records(set_aside=False).found, home.read_audits()[0])
    frame = published.set_index("key")
    assert set(frame.index) == {record.key for record in records}
    assert published["key"].is_unique
    for one in records:
        if one.collapsed:
            assert math.isnan(frame.loc[one.key]["proven"])
            continue
        assert one.privacy is not None
        row, audited = frame.loc[one.key], one.privacy.audited
        assert (row["claimed"], row["proven"]) == (one.privacy.claimed.epsilon, one.privacy.proven.epsilon)
        assert math.isnan(row["audited"]) == (audited is None or audited.silent)
        if audited is not None and not audited.silent:
            assert row["audited"] == audited.epsilon
            assert row["audit_power"] >= audited.epsilon
    assert frame["audited"].notna().sum() >= 10
    done = frame[frame["accuracy"].notna()]
    assert (done["accuracy_low"] <= done["accuracy"]).all()
    assert (done["accuracy"] < done["accuracy_high"]).all()
    assert frame["membership"].between(0, 1).sum() >= 5


def test_columns_are_the_described_ones(published: pandas.DataFrame) -> None:
    assert list(published) == list(COLUMNS)
    for name in ("epsilon", "claimed", "proven", "replace_one", "audited", "audit_power", "accuracy", "wall_seconds"):
        assert published[name].dtype == float


def test_a_row_joins_its_audits_and_attacks(tmp_path: Path) -> None:
    seen, unseen, plain = record(accuracy=0.9), record(seed=1), record(seed=2)
    home = folder(tmp_path, seen, unseen, plain, failed("no teachers", key="broken", seed=3))
    home.write_row(audit(seen.key))
    home.write_row(pair_audit(release(0.0, power=0.4), student=unseen.key))
    strong = Scores(metrics={"committee top-1 above counterfactual": Estimated(value=0.5, n=10)})
    home.write_row(attack(seen.key))
    home.write_row(attack(seen.key, key="b", attack="gmi", targets={"student": strong}))
    home.write_row(attack(seen.key, key="c", attack="brep-mi", targets={"student": strong}, no_power="blind"))
    (filled,) = with_audits([seen], [audit(seen.key)])
    assert filled.privacy is not None
    assert filled.privacy.audited is not None
    bound = filled.privacy.audited.epsilon
    frame = bench.load_results(tmp_path)
    assert frame["seed"].tolist() == [0, 1, 2, 3]
    assert frame["audited"].tolist() == pytest.approx([bound, math.nan, math.nan, math.nan], nan_ok=True)
    assert frame["audit_power"].tolist() == pytest.approx([bound, 0.4, math.nan, math.nan], nan_ok=True)
    assert frame["inconclusive"].tolist() == [True, True, None, None]
    assert frame["inversion"][0] == 50
    assert frame["inversion_attack"].tolist() == ["gmi", "", "", ""]
    test = binomtest(900, 1000).proportion_ci(method="wilson")
    assert frame["accuracy_low"][0] == pytest.approx(100 * test.low)
    assert frame["accuracy_high"][0] == pytest.approx(100 * test.high)
    assert frame["failure"].tolist() == ["", "", "", "no teachers"]
    assert math.isnan(frame["accuracy"][3])
    assert frame["row"].nunique() == 1


def test_a_row_has_the_boards_mark_of_its_claim(tmp_path: Path) -> None:
    folder(tmp_path, record(), record(method="dgd", seed=1, bypasses=("it saw everything",)), failed(key="b", seed=2))
    frame = bench.load_results(tmp_path)
    assert frame["claim"].tolist() == ["holds", "does not hold", ""]
    assert "it saw everything" in frame["claim_reason"][1]


def test_a_transcript_has_no_largest_bound(tmp_path: Path) -> None:
    records = [record(seed=seed) for seed in range(3)]
    home = folder(tmp_path, *records)
    home.write_row(pair_audit(release(0.2, power=0.4), transcript(7.0), student=records[0].key))
    home.write_row(pair_audit(transcript(0.7), student=records[1].key))
    home.write_row(pair_audit(transcript(0.0), student=records[2].key))
    frame = bench.load_results(tmp_path)
    assert frame["audited"].tolist() == pytest.approx([7.0, 0.7, math.nan], nan_ok=True)
    assert frame["audit_power"].tolist() == [math.inf, math.inf, 0.0]


def test_several_folders_are_one_frame(tmp_path: Path) -> None:
    folder(tmp_path / "a", record(accuracy=0.5), record(seed=1))
    folder(tmp_path / "b", record(accuracy=0.5), record(seed=2, accuracy=0.6))
    frame = bench.load_results([tmp_path / "a", str(tmp_path / "b")])
    assert frame["accuracy"].tolist() == [50, 95, 60]
    assert bench.load_results(str(tmp_path / "a"))["accuracy"].tolist() == [50, 95]


def test_settings_are_columns_on_request(tmp_path: Path) -> None:
    folder(tmp_path, record(config={"teachers": 250}), record(seed=1, method="dp-sgd", config={"epochs": 3.0}))
    frame = bench.load_results(tmp_path, settings=True)
    assert frame["config.teachers"].tolist() == pytest.approx([250, math.nan], nan_ok=True)
    assert frame["config.epochs"].tolist() == pytest.approx([math.nan, 3], nan_ok=True)
    assert not any(name.startswith("config.") for name in bench.load_results(tmp_path))


def test_an_unreadable_record_is_a_warning_and_none_an_error(tmp_path: Path) -> None:
    home = folder(tmp_path / "runs", record())
    (home.records_path / "torn.json").write_text("{")
    with pytest.warns(UserWarning, match=r"torn\.json is damaged"):
        assert len(bench.load_results(home.path)) == 1
    assert (home.records_path / "torn.json").exists()
    RunDir(tmp_path / "empty").create()
    for path, says in (("empty", "no records in"), ("nowhere", "no such run directory")):
        with pytest.raises(BenchError, match=says):
            bench.load_results(tmp_path / path)
    with pytest.raises(BenchError, match="an empty list"):
        bench.load_results([])


def test_published_records_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "leaderboards", record())
    monkeypatch.chdir(tmp_path)
    assert len(bench.load_results()) == 1
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    from bench.results.published import published

    assert published() == BOARD


def test_run_does_what_the_command_does(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    asked: dict[str, Any] = {"datasets": "digits", "preset": "tiny", "noise_salt": "none", "launcher": "inline"}
    frame = bench.run(GRID, eps=[1, 2], seeds=range(2), out=out, quiet=True, **asked)
    assert frame[["epsilon", "seed"]].values.tolist() == [[1, 0], [2, 0], [1, 1], [2, 1]]
    other = tmp_path / "other"
    words = ("run", "-m", GRID, "-d", "digits", "-p", "tiny", "--noise-salt", "none", "-e", "1,2", "-s", "0,1", "-q")
    assert commands.bench(*words, "-o", other).returncode == 0
    fields = ["key", "claimed", "proven", "accuracy", "status"]
    assert bench.load_results(other)[fields].equals(frame[fields])
    assert bench.load_results(out)[fields].equals(frame[fields])
    before = {path: path.stat().st_mtime_ns for path in (out / "records").iterdir()}
    again = bench.run(GRID, eps="1,2", seeds="0", out=str(out), quiet=True, **asked)
    assert again["key"].tolist() == frame["key"].tolist()[:2]
    assert {path: path.stat().st_mtime_ns for path in (out / "records").iterdir()} == before


def test_a_script_needs_no_guard_and_keeps_its_torch_settings(tmp_path: Path) -> None:
    """Cells run in separate processes that do not import the script."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, bench, torch\n"
        "os.makedirs('elsewhere'), os.chdir('elsewhere'), os.environ.update(BENCH_DATA='data')\n"
        "print('started')\n"
        f"frame = bench.run({GRID!r}, datasets='digits', eps=1, preset='tiny', out='runs', set={{'making': 0.1}},\n"
        "                  workers=2)\n"
        "print(frame['status'].tolist(), torch.are_deterministic_algorithms_enabled())\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:-1] == ["started", "['done'] False"], done.stderr
    (path,) = (tmp_path / "elsewhere" / "runs" / "records").glob("*.json")
    assert json.loads(path.read_text())["config"]["making"] == 0.1
    assert (tmp_path / "elsewhere" / "data" / "digits").is_dir()
    assert not (tmp_path / "data").exists(), "cells run where the script is by then"


def test_a_failed_cell_is_a_row_with_its_reason(tmp_path: Path) -> None:
    frame = bench.run(
        GRID, datasets="digits", eps=2, preset="tiny", out=tmp_path / "runs", set={"fails": True}, launcher="inline",
        quiet=True,
    )  # fmt: skip
    assert frame["status"].tolist() == ["failed"]
    assert frame["failure"][0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"methods": "pat"}, "Did you mean 'pate'"),
        ({"methods": []}, "no methods given"),
        ({"datasets": "digit"}, "digits"),
        ({"eps": 0}, "positive finite"),
        ({"eps": "one"}, "--eps takes comma-separated numbers"),
        ({"seeds": 0.5}, "seeds takes whole numbers"),
        ({"preset": "quik"}, "Did you mean 'quick'"),
        ({"basis": "proved"}, "Did you mean 'proven'"),
        ({"launcher": "slurm"}, "python -m bench run"),
        ({"jobs": -1}, "jobs"),
        ({"set": {"teacherz": 1}}, "teachers"),
        ({"noise_salt": "abc"}, "64 hex digits"),
        ({"out": "/proc/nowhere"}, "could not be written"),
    ],
)
def test_mistakes_are_bench_errors(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    given = {"methods": "pate", "datasets": "digits", "out": tmp_path / "runs", "quiet": True, **changes}
    with pytest.raises(BenchError, match=says):
        bench.run(**given)
    assert not (tmp_path / "runs").exists()


def test_importing_the_library_imports_nothing_slow() -> None:
    slow = {"torch", "torchvision", "timm", "numpy", "scipy", "pandas", "sklearn", "pydantic", "opacus", "matplotlib"}
    code = (
        f"import sys, bench; print(*({slow} & set(sys.modules)));"
        "bench.epsilon('gaussian', noise_multiplier=4.0); bench.load_results('leaderboards/ablations');"
        "print(*({'torch', 'timm', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "\n\n"
    assert set(bench.__all__) <= {*dir(bench), "PrivacyCost", "epsilon", "load_results", "run"}
    with pytest.raises(AttributeError, match="load_result"):
        bench.load_result  # noqa: B018


@pytest.mark.parametrize("module", [bench, bench.interface])
def test_dir_lists_the_api(module: ModuleType) -> None:
    assert set(dir(module)) == set(module.__all__)
    assert all(getattr(module, name) is not None for name in dir(module))


@pytest.mark.parametrize("runs", [5, [5], ["runs", None]])
def test_what_is_no_folder_is_refused(runs: Any) -> None:
    with pytest.raises(BenchError, match="runs takes a folder, or a list of folders"):
        bench.load_results(runs)


@pytest.mark.parametrize("out", ["", 5])
def test_a_run_into_no_folder_is_refused(out: Any) -> None:
    with pytest.raises(BenchError, match="out takes a folder"):
        bench.run(methods="pate", datasets="digits", out=out)


def test_methods_are_listed_by_what_they_declare() -> None:
    row = bench.list_methods().set_index("method").loc["alibi"]
    assert (row["unit"], row["adjacency"], row["proven"]) == ("label", "replace", "finite")
    assert row["citation"].startswith("Malek")


def test_a_plot_shows_infinite_epsilons_and_many_methods() -> None:
    frame = bench.load_results().query("dataset == 'mnist' and unit == 'record'")
    figure = bench.plot(frame[frame["method"].isin(["dgd", "dp-sgd", "nonprivate"])])
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [
        "dgd, epsilon ∞", "dp-sgd", "nonprivate, epsilon ∞",
    ]  # fmt: skip
    everything = bench.plot(frame)
    assert everything.axes[0].get_legend() is None
    assert len(everything.legends[0].get_texts()) >= frame["method"].nunique()
