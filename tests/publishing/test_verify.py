"""Publishing runs cells again, checks their methods and requires audits: cheating plug-ins and honest ones."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bench.core.errors import UnknownNameError
from bench.core.progress import Progress
from bench.core.types import AuditKind
from bench.publishing.outcomes import Outcomes
from bench.publishing.publish import Fate, Publication, examine
from bench.publishing.verify import compared, demand_audits, stated_here, verify
from bench.results.provenance import Clock
from bench.results.record import Record, Student, Utility
from bench.results.run_dir import RunDir
from helpers.commands import Done, bench, registries_restored
from helpers.pairs import full_size, pair_audit, transcript
from helpers.paths import ROOT
from helpers.plugins import LEAK, NAME, STOPPING, UNSTEADY, install, source
from helpers.publishing import PATE, Values, all_of, all_pass_the_check, put, values_of, with_rows
from helpers.records import asked, collapsed, provenance
from helpers.records import record as made

pytestmark = pytest.mark.usefixtures("registries_restored")


def use(folder: Path, text: str, patch: pytest.MonkeyPatch) -> None:
    """Install a plug-in with source `text` in `folder`, for this process and its children."""
    install(folder, text)
    patch.syspath_prepend(folder)
    patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))
    for name in [name for name in sys.modules if name.partition(".")[0] == "noisy_means"]:
        patch.delitem(sys.modules, name)
    importlib.import_module("noisy_means.method")


def run_cells(out: Path, *words: object, minutes: float = 0.1) -> Path:
    """Run cells of the plug-in and audit one; every record states that it ran from committed files."""
    done = bench("run", "-m", NAME, "-d", "digits", "-e", 10, "-p", "tiny", "-o", out, "--workers", 1, "-q", *words)
    assert done.returncode == 0, done.stderr
    key = min(RunDir(out).recorded())
    if minutes:
        done = bench("audit", key, "-o", out, "--minutes", minutes, "--draws", 0, "-q", "--workers", 1)
        assert done.returncode == 0, done.stdout
    for path in (*(out / "records").glob("*.json"), *(out / "audits").glob("*.json")):
        values = json.loads(path.read_text())
        values["provenance"] |= {"git_commit": "0" * 40, "git_dirty": False}
        path.write_text(json.dumps(values))
    return out


@pytest.fixture(scope="module")
def honest_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with registries_restored(), pytest.MonkeyPatch.context() as patch:
        use(tmp_path_factory.mktemp("installed"), source(), patch)
        yield run_cells(tmp_path_factory.mktemp("honest") / "runs", "-s", "0,1")


@pytest.fixture
def honest(honest_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use(tmp_path / "installed", source(), monkeypatch)
    monkeypatch.setattr("bench.evaluation.check.noninterference.SECONDS", 0.2)
    return shutil.copytree(honest_run, tmp_path / "runs")


def published(run: Path, into: Path, *words: str) -> Done:
    return bench("publish", run, "--into", into, *words)


@pytest.mark.slow
def test_an_honest_plugin_is_checked_run_again_and_added(honest: Path, into: Path) -> None:
    done = published(honest, into, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    items = {(item["kind"], item["fate"]): item for item in json.loads(done.stdout)["items"]}
    assert items["check", "passed"]["file"] == NAME
    assert items["rerun", "passed"]["why"].startswith("the same student and record again")
    assert items["audit", "added"]
    assert not (into / "publishing").exists()
    assert "plug-in noisy-means-plugin 1.0" in (into / "leaderboard.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("declared", [True, False])
def test_an_early_stop_is_published_if_its_maximum_is_declared(
    declared: bool, into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = STOPPING if declared else (*STOPPING, ("        ledger.at_most(self.charges())\n", ""))
    use(tmp_path / "installed", source(*edits), monkeypatch)
    monkeypatch.setattr("bench.evaluation.check.noninterference.SECONDS", 0.2)
    done = published(run_cells(tmp_path / "runs", "-s", "0,1"), into)
    assert (done.returncode == 0) == declared, done.stdout + done.stderr
    assert ("its settings cost epsilon" in " ".join(done.stdout.replace("│", " ").split())) != declared


@pytest.mark.slow
def test_an_accuracy_raised_by_hand_is_found(honest: Path, into: Path) -> None:
    """The record is self-consistent, so only a second run reveals the true accuracy."""
    for path in (honest / "records").glob("*.json"):
        values = json.loads(path.read_text())
        values["utility"] |= {"accuracy": 0.99, "answers": None}
        path.write_text(json.dumps(values))
    before = all_of(into)
    assert examine([honest], into).refused == []
    with all_pass_the_check():
        done = published(honest, into)
    assert done.returncode == 1
    assert "gives another utility" in " ".join(done.stdout.replace("│", " ").split())
    assert all_of(into) == before


@pytest.mark.slow
def test_a_plugin_that_differs_from_run_to_run_is_found(
    into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(tmp_path / "installed", source(UNSTEADY), monkeypatch)
    run = run_cells(tmp_path / "runs")
    before = all_of(into)
    found = examine([run], into)
    with all_pass_the_check():  # it might find it too
        verify(found, Outcomes(tmp_path), Progress())
    (refused,) = found.refused
    assert re.search("gives another (utility, )?student", refused.why)
    assert "make the method deterministic" in refused.why
    assert all_of(into) == before


def test_a_plugin_that_leaks_is_refused_before_anything_runs_again(
    into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(tmp_path / "installed", source(LEAK), monkeypatch)
    found = examine([run_cells(tmp_path / "runs", minutes=0)], into)
    assert found.refused == []
    verify(found, Outcomes(tmp_path), Progress())
    (refused,) = found.refused
    assert "rerun" not in {item.kind for item in found.items}
    assert (refused.kind, refused.name) == ("check", NAME)
    assert refused.why.startswith("rejected: ")


def test_a_plugin_that_fails_in_the_check_is_refused(honest: Path, into: Path) -> None:
    found = examine([honest], into)
    with mock.patch("bench.evaluation.check.noninterference.check_method", side_effect=ZeroDivisionError("by nothing")):
        verify(found, Outcomes(into), Progress(), skip_rerun=True)
    assert [item.why for item in found.refused] == ["it cannot be checked: ZeroDivisionError: by nothing"]


def test_settings_that_the_check_does_not_have_are_said(into: Path, run: Path) -> None:
    put(run, values_of("cifar10-pate-eps5.8-quick-s1-6ac8dfbd8d47"))
    found = examine([run], into)
    with all_pass_the_check():
        verify(found, Outcomes(into), Progress(), skip_rerun=True)
    (check,) = [item for item in found.items if item.kind == "check"]
    assert check.fate is Fate.PASSED
    assert check.why == (
        "passed: not run. With its tiny and quick settings, not with gamma=0.05, least_queries=1, teachers=200"
    )


@pytest.mark.slow
def test_without_a_second_run_that_is_said(honest: Path, into: Path) -> None:
    done = published(honest, into, "--no-rerun")
    assert done.returncode == 0, done.stderr
    assert "whether a cell of theirs gives the same student again (--no-rerun)" in done.stdout
    assert published(honest, into, "--no-rerun", "--rerun", "x").returncode == 2


def test_a_row_without_an_audit_is_refused_with_the_command(run: Path, into: Path) -> None:
    put(run, values_of("mnist-nonprivate-epsinf-quick-s1-86d811d9979d"))
    quickest = PATE.replace("s0-68885667e3d8", "s1-29ab235ae57a")
    put(run, values_of(quickest))
    found = examine([run], into)
    demand_audits(found)
    (refused,) = found.refused  # checked once for the row
    assert refused.why == f"no seed of its row is audited. Audit one: python -m bench audit {quickest} -o {run}"
    with_rows(
        run, lambda values: values.update(notes=[])
    )  # one seed's audit counts for the row, but ran no pair at its full size
    found = examine([run], into)
    demand_audits(found)
    (refused,) = found.refused
    assert refused.why.startswith("no audit of its row runs a pair at the row's own size: python -m bench audit")
    with_rows(run)
    found = examine([run], into)
    demand_audits(found)
    assert found.refused == []
    assert "its audit has no pair at full size: it takes 700 seconds" in [item.why for item in found.items]


@pytest.mark.parametrize("exact", [True, False])
def test_more_minutes_are_advised_only_where_they_could_help(exact: bool) -> None:
    audit = pair_audit(transcript(0.0, exact=exact), full_size(0.1), student="mine")
    mine = made(key="mine")
    found = Publication(added={"mine": (mine, Path())}, board={"mine": mine}, audits={"mine": {audit.key: audit}})
    demand_audits(found)
    (item,) = found.items
    assert item.fate is Fate.FLAGGED
    assert item.why.startswith("its audits are inconclusive")
    assert ("try more --minutes" in item.why) is not exact


def test_an_audit_by_candidates_is_none_either() -> None:
    audit, mine = pair_audit(student="mine", kind=AuditKind.CANDIDATES), made(key="mine")
    found = Publication(added={"mine": (mine, Path())}, board={"mine": mine}, audits={"mine": {audit.key: audit}})
    demand_audits(found)
    (item,) = found.refused
    assert "no seed of its row is audited" in item.why


def test_a_failed_audit_is_none(run: Path, into: Path) -> None:
    def fail(values: Values) -> None:
        if "channels" in values:
            failure = {"kind": "error", "reason": "out of memory"}
            values.update(status="failed", failure=failure, channels=[], epsilon=None)

    with_rows(run, fail)
    found = examine([run], into)
    demand_audits(found)
    (refused,) = found.refused
    assert "no seed of its row is audited" in refused.why


def cell_of(key: str, method: str, seconds: float, artefacts: dict[str, tuple[int, int]] | None = None) -> Record:
    known = provenance(wall_seconds=seconds, artefacts=artefacts or {})
    return asked(made(key=key, method=method, provenance=known), overrides={})


def run_again(folder: Path, *records: Record, rerun: tuple[str, ...] = ()) -> list[str]:
    """Return the keys of the cells that `publish` into `folder` runs again; its program ends at once."""
    found = Publication(added={record.key: (record, Path()) for record in records})
    with all_pass_the_check(), mock.patch.object(sys, "executable", "false"):
        verify(found, Outcomes(folder), Progress(), rerun=rerun)
    assert {item.why for item in found.refused} == {"its cell cannot be run again: it ended with status 1"}
    return [item.name for item in found.items if item.kind == "rerun"]


def test_the_quickest_cell_of_each_method_runs_again(tmp_path: Path) -> None:
    three = cell_of("a1", "pate", 5.0), cell_of("a2", "pate", 3.0), cell_of("b1", "dpsd", 9.0)
    assert run_again(tmp_path, *three) == ["a2", "b1"]
    assert run_again(tmp_path, *three, rerun=("a1",)) == ["a1", "b1"]
    with pytest.raises(UnknownNameError, match="record to add"):
        run_again(tmp_path, *three, rerun=("c",))
    folder = asked(three[1], overrides={"weights": "file:PATH/w.pth"})  # only the data's owner can run it again
    assert run_again(tmp_path, three[0], folder) == ["a1"]


def test_a_cell_that_found_the_work_of_another_takes_as_long_as_both(tmp_path: Path) -> None:
    maker = cell_of("maker", "pate", 100.0, {"teachers": (1, 0)})
    finder = cell_of("finder", "pate", 2.0, {"teachers": (0, 1)})
    assert run_again(tmp_path, finder, maker) == ["maker"]
    known = cell_of("alone", "pate", 50.0)
    assert run_again(tmp_path, finder, known) == ["alone"], "nobody says how long the finder's teachers take"


def student(sha256: str) -> Student:
    return Student(name="x", options={}, parameters=1, file="f", sha256=sha256)


@pytest.mark.parametrize(
    ("accuracy", "changes", "fate", "says"),
    [
        (0.90, {}, Fate.REFUSED, "with the same packages gives another student: accuracy 90.00%"),
        (0.90, {"python": "3.13.0"}, Fate.FLAGGED, "a different student, because it ran with different python"),
        (0.912, {"packages": {"torch": "3.0"}}, Fate.FLAGGED, "within 2.00 points"),
        (0.90, {"processor": "Ours, AVX2"}, Fate.FLAGGED, "because it ran with different processor"),
        (0.93, {"platform": "Darwin arm64"}, Fate.REFUSED, "more than 2.00 points apart"),
    ],
)
def test_another_student_passes_on_another_machine_alone(
    accuracy: float, changes: dict[str, Any], fate: Fate, says: str
) -> None:
    """Two other seeds are a point apart; the record's own accuracy must not widen the tolerance."""
    config = {"config": {"queries": 100}, "epsilon": 10.0}
    row = [made(seed=seed, accuracy=a, key=f"s{seed}", **config) for seed, a in ((1, 0.90), (2, 0.91))]
    mine = made(accuracy=0.90, key="s0", student=student("a" * 64), **config)
    utility = Utility(accuracy=accuracy, test_records=1_000)
    again = mine.model_copy(
        update={"student": student("b" * 64), "utility": utility, "provenance": provenance(**changes)}
    )
    found, why = compared(mine, again, [*row, mine], 1.0)
    assert (found, says in why) == (fate, True), why
    assert compared(mine, mine, [*row, mine], 1.0)[0] is Fate.PASSED


def test_a_second_run_elsewhere_may_have_another_key(tmp_path: Path) -> None:
    """The key depends on a calibrated number, which may round differently there."""
    mine = asked(made(key="mine", student=student("a" * 64)), overrides={})
    there = made(key="there", student=student("b" * 64), provenance=provenance(python="3.13.0"))

    def run(words: Sequence[str], *_: object) -> str:
        RunDir(Path(words[-1])).create().write_record(there)
        return ""

    found = Publication(added={"mine": (mine, Path())})
    with all_pass_the_check(), mock.patch("bench.publishing.verify.run_command", run):
        verify(found, Outcomes(tmp_path), Progress())
    (again,) = [item for item in found.items if item.kind == "rerun"]
    assert (again.fate, again.why.startswith("a different student, because it ran with different python")) == (
        Fate.FLAGGED,
        True,
    )


def test_a_second_run_collapses_as_the_first() -> None:
    mine, good = collapsed(), made(student=student("a" * 64))
    assert compared(mine, mine, [mine], 1.0)[0] is Fate.PASSED
    assert compared(mine, good, [mine], 1.0)[0] is Fate.REFUSED
    assert compared(good, mine, [good], 1.0)[0] is Fate.REFUSED


def test_a_second_run_that_costs_more_is_refused_on_any_machine() -> None:
    mine = made(student=student("a" * 64), proven=4.0)
    again = made(student=student("b" * 64), proven=5.0, provenance=provenance(python="3.13.0"))
    fate, why = compared(mine, again, [mine], 1.0)
    assert fate is Fate.REFUSED
    assert "the second run costs epsilon 5" in why


SLEEPER = f"asleep{os.getpid()}"
"""Name of a sleeping process of these tests: at most 15 characters, and another one in another session."""


def is_asleep(comm: Path) -> bool:
    """Return whether the name in `comm` is that of the sleeping process."""
    try:
        return comm.read_text().strip() == SLEEPER
    except OSError:  # it has ended meanwhile
        return False


@pytest.mark.slow
def test_ctrl_c_ends_the_second_run_and_leaves_the_board(into: Path, tmp_path: Path) -> None:
    """Unless TRAINS is set, the plug-in names its process and sleeps: the second run may write no file here."""
    waits = (
        "told = ledger",
        "if 'TRAINS' not in os.environ:\n"
        f"            __import__('ctypes').CDLL(None).prctl(15, {SLEEPER.encode()!r})\n"
        "            __import__('time').sleep(300)\n"
        "        told = ledger",
    )
    with pytest.MonkeyPatch.context() as patch:
        use(tmp_path / "installed", source(("import torch\n", "import os\n\nimport torch\n"), waits), patch)
        patch.setenv("TRAINS", "1")
        run = run_cells(tmp_path / "runs")
        patch.delenv("TRAINS")
        before = all_of(into)
        code = (
            "import sys; sys.argv[0] = 'bench'; sys.path.append('tests')\n"
            "from bench.cli.main import main\nfrom helpers.publishing import all_pass_the_check\n"
            "with all_pass_the_check(): main()"
        )
        words = [sys.executable, "-c", code, "publish", str(run), "--into", str(into)]
        process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE)
    while not (asleep := [name.parent for name in Path("/proc").glob("[0-9]*/comm") if is_asleep(name)]):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"stopped" in errors
    assert all_of(into) == before
    assert len(list((into / "publishing").iterdir())) == 1  # the check, which the next command need not repeat
    assert not [name for name in asleep if is_asleep(name / "comm")]


def test_only_a_run_on_this_processor_must_train_the_same_student() -> None:
    here = Clock().stop()
    mine = made(student=student("a" * 64), provenance=here)
    found = stated_here(mine)
    assert found is not None
    assert found.sha256 == "a" * 64
    for other in (None, "another processor"):  # older records do not say
        assert stated_here(mine.model_copy(update={"provenance": here.model_copy(update={"processor": other})})) is None
