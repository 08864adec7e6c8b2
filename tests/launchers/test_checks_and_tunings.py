"""Checks and tunings by launcher: each in a process of its own, resumed, and no more kept than without a launcher."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.cli.check_runs import Checks
from bench.evaluation.check.noninterference import Check, CheckVerdict
from bench.experiments.calibration_cache import program_digest
from bench.interface.registry import METHODS
from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.plugins import NAME, WORSE, source

LOCAL = ["--launcher", "local", "--jobs", "2"]
SCALED = (
    ('noise: float = setting(1.0, "calibrated to the budget")',
     'noise: float = setting(1.0, "calibrated to the budget")\n    scale: float = setting(1.0, "ours")'),
    ("weight - weight.mean(0)", "self.config.scale * (weight - weight.mean(0))"),
)  # fmt: skip


def test_a_check_is_kept_for_the_same_code_and_options(tmp_path: Path) -> None:
    method = METHODS.get("nonprivate")
    passed = Check("nonprivate", CheckVerdict.BYPASS, "declared")
    kept = Checks(tmp_path, ["--seconds", "1"])
    assert kept.find(method) is None
    kept.keep(method, passed)
    assert Checks(tmp_path, ["--seconds", "1"]).find(method) == passed
    assert Checks(tmp_path, ["--seconds", "2"]).find(method) is None
    kept.keep(method, Check("nonprivate", CheckVerdict.FAILED, "no memory"))
    assert kept.find(method) is None  # made again


def test_a_plugin_that_cannot_be_imported_is_named_whatever_makes_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS.broken, "mine", "ImportError: no module")
    said = "not checked, plug-in failed to import: mine: ImportError: no module"
    words = ["check", "nonprivate", "-o", tmp_path, "--seconds", "0", "--brief"]
    assert said in bench(*words).stderr
    assert said in bench(*words, *LOCAL).stderr  # the check is kept, so nothing is launched


@pytest.mark.slow
@pytest.mark.usefixtures("registries_restored")
def test_checks_by_launcher_are_kept_and_made_again_after_an_edit(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "runs"
    file.write_text(source())
    words = ["check", str(file), "nonprivate", "-o", out, "--seconds", "0", *LOCAL, "--json"]
    first = bench(*words)
    assert first.returncode == 0, first.stderr
    verdicts = {check["method"]: check["verdict"] for check in json.loads(first.stdout)["checks"]}
    assert verdicts == {NAME: "passed", "nonprivate": "declared bypass"}
    logs = len(list(out.glob("launches/*/attempts/*.log")))
    assert logs == 2
    assert json.loads(bench(*words).stdout) == json.loads(first.stdout)
    assert len(list(out.glob("launches/*/attempts/*.log"))) == logs
    assert "2 checks" in bench("status", "-o", out).stdout
    method, kept = METHODS.get(str(file)), Checks(out, ["--seconds", "0.0"])
    assert kept.find(method) is not None
    file.write_text(source(WORSE))
    program_digest.cache_clear()  # as in another process
    assert kept.find(method) is None


@pytest.mark.slow
@pytest.mark.usefixtures("registries_restored")
def test_tunings_by_launcher_keep_nothing_that_helps_to_count_trials(tmp_path: Path) -> None:
    file, space, out = tmp_path / "mine.py", tmp_path / "space.yaml", tmp_path / "runs"
    assert bench("check", "nonprivate", "-o", out, "--seconds", "0", *LOCAL).returncode == 0
    (other,) = out.glob("launches/*")
    file.write_text(source(*SCALED))
    space.write_text("scale: [1.0, -1.0]\n")
    words = ["tune", "-m", str(file), "-d", "digits", "-p", "tiny", "-e", "5,20", "--space", space, "--trials-mean",
             "2", "-o", out, *LOCAL, "--json"]  # fmt: skip
    done = bench(*words)
    assert done.returncode == 0, done.stderr
    records = RunDir(out).read_records().found
    assert {record.key for record in records} == {record["key"] for record in json.loads(done.stdout)["records"]}
    assert len(records) == 2
    assert all(record.cell.tuning is not None and record.provenance.wall_seconds == 0.0 for record in records)
    assert list(out.glob("launches/*")) == [other]
    assert not [path for path in out.glob("tuned/*") if path.is_dir()]
    kept = [*out.glob("records/*"), *out.glob("released/*"), *out.glob("tuned/*")]
    assert len(kept) == 6
    assert {path.stat().st_mtime % 86_400 for path in kept} == {0.0}
    again = bench(*words)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == json.loads(done.stdout)
    assert list(out.glob("launches/*")) == [other]
