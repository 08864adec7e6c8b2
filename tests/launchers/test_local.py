"""Grids in many processes: the same records whatever launches them, every cell once, whoever is killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.launchers.status import overview
from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.launches import METHOD, finish, lines, nothing_is_left_over, outcome, until

FOUR = ["--eps", "1,2", "--seeds", "0,1"]
EIGHT = ["--eps", "1,2,4,8", "--seeds", "0,1"]
SIXTY = ["--eps", "1,2,3,4,5,6", "--seeds", "0,1,2,3,4,5,6,7,8,9"]


def start(out: Path, *options: str, methods: str = METHOD) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "bench", "run", "--methods", methods, "--datasets", "digits", "--preset", "tiny",
        "--device", "cpu", "--noise-salt", "none", "--out", str(out), *options,
    ]  # fmt: skip
    environment = {**os.environ, "GRID_LOG": str(out.parent / "log"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True
    )


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("inline") / "runs"
    finish(start(out, *FOUR))
    assert len(outcome(out)) == 4
    done = lines(out)
    assert done["made 0 0"] == done["made 0 1"] == done["made 1 0"] == 1
    nothing_is_left_over(out)
    return out


@pytest.mark.slow
def test_local_processes_run_every_cell_again_once_and_make_the_same_records(inline: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    shutil.copytree(inline.parent, tmp_path, dirs_exist_ok=True)
    said = finish(start(out, *FOUR, "--reuse", "none", "--launcher", "local", "--jobs", "2"))
    assert outcome(out) == outcome(inline)
    assert "grid-test" in said
    done = lines(out)
    assert {count for name, count in done.items() if name.startswith("start")} == {2}
    assert {count for name, count in done.items() if name.startswith("made")} == {1}  # artefacts are what they were
    nothing_is_left_over(out)


@pytest.mark.slow
def test_two_launchers_at_once_share_the_cells(inline: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    first = start(out, *FOUR, "--launcher", "local", "--jobs", "2", "--set", "seconds=0.1")
    second = start(out, *FOUR, "--set", "seconds=0.1")
    finish(first)
    finish(second)
    assert outcome(out) == outcome(inline)
    done = lines(out)
    assert {name: count for name, count in done.items() if count > 1} == {}
    assert sum(name.startswith("made") for name in done) == 4  # two parts for each of two seeds
    assert sum(name.startswith("start") for name in done) == 4
    nothing_is_left_over(out)


@pytest.mark.slow
def test_shards_are_made_first_and_by_several(inline: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    finish(start(out, *FOUR, "--launcher", "local", "--jobs", "2", "--shards", "2"))
    assert outcome(out) == outcome(inline)
    log = [line.rpartition(" ")[0] for line in (out.parent / "log").read_text().splitlines()]
    for seed in (0, 1):
        begun = [n for n, line in enumerate(log) if line.startswith("start") and line.endswith(f"-{seed}")]
        for part in (0, 1):
            assert log.count(f"shard {seed} {part}") == log.count(f"made {seed} {part}") == 1
            assert log.index(f"made {seed} {part}") < min(begun)


@pytest.mark.slow
def test_neither_a_failed_cell_nor_one_that_kills_its_worker_cancels_another(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    options = ["--eps", "1,2,4", "--launcher", "local", "--jobs", "1", "--retries", "1"]
    said = finish(start(out, *options, "--set", "dies=true", "--set", "fails=true"), status=1)
    records = RunDir(out).read_records().found
    reasons = {record.cell.epsilon: record.failure.reason for record in records if record.failure is not None}
    assert "this cell cannot succeed" in reasons.pop(2.0)
    ((epsilon, reason),) = reasons.items()
    assert (epsilon, len(records)) == (1.0, 3)
    assert "died 2 times" in reason
    assert {record.failure.kind for record in records if record.failure is not None} >= {"lost"}
    assert lines(out)["start 10-0"] == 2
    assert lines(out)["end 2.5-0"] == 1
    assert "this cell cannot succeed" in said
    assert "another replaces it" in said
    assert len(overview(out).failures) == 2


@pytest.mark.slow
def test_two_launches_give_a_deadly_cell_up_and_run_the_rest(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    options = ["--eps", "1,2", "--launcher", "local", "--jobs", "1", "--set", "dies=true", "--retries", "0"]
    both = [start(out, *options) for _ in range(2)]
    for process in both:
        finish(process, status=1)
    records = {record.status: record for record in RunDir(out).read_records().found}
    assert set(records) == {"done", "failed"}
    assert 1 <= lines(out)["start 10-0"] <= 2  # each launch may lose a worker to it
    assert lines(out)["end 5-0"] == 1


def test_what_another_run_finishes_in_between_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The states of cells are read after the signatures of their records, which a launch compares."""
    from bench.launchers import grid

    order: list[str] = []
    signature, to_run = RunDir.signature, grid.to_run
    monkeypatch.setattr(RunDir, "signature", lambda self, key: (order.append("signature"), signature(self, key))[1])
    monkeypatch.setattr(grid, "to_run", lambda *given: (order.append("states"), to_run(*given))[1])
    done = bench("run", "-m", "nonprivate", "-d", "digits", "-p", "tiny", "-o", tmp_path / "runs", "-q")
    assert done.returncode == 0, done.stderr
    assert order.index("signature") < order.index("states")


def test_a_claim_that_a_killed_process_left_on_a_finished_cell_is_swept(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    words = ("run", "-m", "nonprivate", "-d", "digits", "-p", "tiny", "-o", out, "-q")
    assert bench(*words).returncode == 0
    (key,) = RunDir(out).recorded()
    dies = "import os, pathlib, sys\nfrom bench.results.run_dir import RunDir\n"
    dies += "RunDir(pathlib.Path(sys.argv[1])).claim(sys.argv[2])\nos._exit(0)"
    subprocess.run([sys.executable, "-c", dies, str(out), key], check=True)
    assert [*RunDir(out).claims()] == [key]
    assert bench(*words).returncode == 0
    assert not RunDir(out).claims()


@pytest.mark.slow
def test_ctrl_c_lets_workers_close(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    process = start(out, *EIGHT, "--launcher", "local", "--jobs", "2", "--set", "seconds=60")
    until(lambda: RunDir(out).claims_path.is_dir() and len(RunDir(out).running()) == 2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of its foreground group
    said = finish(process, status=128 + signal.SIGINT)
    assert "8 cells are left" in said
    nothing_is_left_over(out)


@pytest.mark.slow
def test_a_launch_that_was_cancelled_elsewhere_ends(tmp_path: Path) -> None:
    """A launcher on another machine gets no signal: a file tells it."""
    out = tmp_path / "runs"
    process = start(out, *EIGHT, "--launcher", "local", "--jobs", "1", "--set", "seconds=60")
    until(lambda: RunDir(out).claims_path.is_dir() and len(RunDir(out).running()) == 1)
    (folder,) = RunDir(out).launches_path.iterdir()
    (folder / "cancelled").touch()
    finish(process, status=128 + signal.SIGTERM)
    assert RunDir(out).running() == set()


@pytest.mark.slow
def test_status_and_cancel_from_another_terminal(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    process = start(out, *EIGHT, "--launcher", "local", "--jobs", "2", "--set", "seconds=30")
    until(lambda: RunDir(out).claims_path.is_dir() and len(overview(out).running) == 2)
    seen = overview(out)
    (launch,) = seen.launches
    assert (launch.kind, launch.state, launch.cells, launch.running, launch.left) == ("local", "at work", 8, 2, 8)
    assert len(seen.waiting) == 6
    assert all("grid-test on digits" in row.title and "process" in row.where for row in seen.running)
    done = bench("cancel", str(out))
    assert "ended the launcher" in done.stdout
    said = finish(process, status=128 + signal.SIGTERM)
    assert "8 cells are left" in said
    seen = overview(out)
    assert seen.running == []
    assert seen.launches[0].state == "stopped"
    assert "give the `run`, `attack` or `audit` command again" in seen.notes[-1]
    again = bench("cancel", str(out))
    assert again.stdout == "nothing runs here\n"


@pytest.mark.slow
def test_workers_do_not_outlive_their_launcher(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    process = start(out, *EIGHT, "--launcher", "local", "--jobs", "2", "--set", "seconds=60")
    until(lambda: RunDir(out).claims_path.is_dir() and len(RunDir(out).running()) == 2)
    process.kill()
    process.communicate()
    until(lambda: RunDir(out).running() == set(), 10)


def workers(out: Path) -> list[int]:
    """Return the processes of this machine that are workers on `out`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                forked = b"multiprocessing.forkserver" in (entry / "cmdline").read_bytes()
                output = os.readlink(entry / "fd" / "1")
            except OSError:
                continue
            if forked and output.startswith(str(out)):
                found.append(int(entry.name))
    return found


def kill_at_random(
    out: Path, options: list[str], kills: int, seed: int, cells: int, late: int
) -> dict[str, set[tuple[int, int]]]:
    """Kill workers, the launcher or both at random moments; return every record that was ever seen.

    At least `late` of the `kills` come while some but not all of the `cells` have a record: once the others are used
    up, the first record is waited for.
    """
    moments, struck, after = random.Random(seed), 0, 0
    seen: dict[str, set[tuple[int, int]]] = {}
    process = start(out, *options)
    due = time.monotonic() + moments.uniform(1, 6)
    try:
        while struck < kills or process.poll() is None:
            for path in out.glob("records/*.json"):
                signature = RunDir(out).signature(path.stem)
                assert signature is not None
                seen.setdefault(path.stem, set()).add(signature)
                json.loads(path.read_text())  # none is ever torn
            if process.poll() is not None:
                if struck >= kills:
                    break
                process = start(out, *options)
            if time.monotonic() >= due and struck < kills and (seen or struck < kills - late):
                crew = workers(out)
                what = moments.choice(["worker", "launcher", "both"])
                targets = [moments.choice(crew)] if crew and what != "launcher" else []
                targets += [process.pid] if what != "worker" else []
                for target in targets:
                    try:
                        os.kill(target, signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                struck += bool(targets)
                after += bool(targets) and 0 < len(seen) < cells
                if what != "worker":
                    process.communicate()
                    process = start(out, *options)
                due = time.monotonic() + moments.uniform(0.5, 4)
            time.sleep(0.02)
    finally:
        process.kill()
        process.communicate()
    assert struck == kills
    assert after >= late
    return seen


def survives(tmp_path: Path, kills: int, grid: list[str], cells: int, seed: int, late: int = 0) -> None:
    out = tmp_path / "runs"
    options = [*grid, "--launcher", "local", "--jobs", "2", "--retries", "1000", "--set", "seconds=0.5"]
    seen = kill_at_random(out, options, kills, seed, cells, late)
    finish(start(out, *options))
    assert len(outcome(out)) == cells
    assert all(json.loads(text)["status"] == "done" for text in outcome(out).values())
    assert all(len(signatures) == 1 for signatures in seen.values())  # no cell was run again once it had a record
    assert not [name for name in lines(out) if name.startswith("OVERLAP")]
    nothing_is_left_over(out)


@pytest.mark.slow
def test_killed_a_few_times(tmp_path: Path) -> None:
    survives(tmp_path, 3, EIGHT, 8, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_killed_a_hundred_times(tmp_path: Path) -> None:
    survives(tmp_path, 100, SIXTY, 60, seed=4, late=60)


def test_dry_run_shows_order_and_time_and_makes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    grid = ["-m", "pate,pate-gnmax", "-d", "digits", "-p", "tiny", "-e", "8,10", "-s", "0,1", "-o", str(out)]
    done = bench("run", *grid, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert not out.exists()
    cells = told["cells"]
    assert [cell["state"] for cell in cells] == ["to do"] * 8
    makers = [cell["title"] for cell in cells if not cell["after"]]
    assert len(makers) == 2  # one for each seed
    assert [cell["title"] for cell in cells[:2]] == makers
    assert all(cell["after"] == [makers[cell["title"].endswith("seed 1")]] for cell in cells[2:])
    assert told["slots"] == 1
    shown = bench("run", *grid, "--dry-run", "--launcher", "local", "--jobs", "3", "--shards", "2")
    assert "2 of 2" in shown.stdout
    assert "artefacts that others share" in shown.stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--jobs", "3"], "--launcher inline does not use --jobs"),
        (["--partition", "gpu"], "Use --launcher slurm"),
        (["--launcher", "slurm", "--jobs", "2"], "Use --parallel"),
        (["--detach"], "does not use --detach"),
        (["--launcher", "local", "--time", "30"], "does not use --time"),
        (["--launcher", "slurm", "--time", "soon"], "a time is a number of minutes"),
        (["--launcher", "local", "--gpus", "64"], "--gpus 64: this machine has"),
        (["--launcher", "local", "--shards", "0"], "--shards"),
        (["--cluster", "nowhere.yaml"], "nowhere.yaml cannot be read"),
    ],
)
def test_flags_that_cannot_be_meant_are_refused(tmp_path: Path, flags: list[str], said: str) -> None:
    done = bench("run", "-m", "nonprivate", "-d", "digits", "-p", "tiny", "-o", str(tmp_path / "runs"), *flags)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_shards_where_nothing_can_be_split(tmp_path: Path) -> None:
    done = bench("run", "-m", "nonprivate", "-d", "digits", "-p", "tiny", "-o", str(tmp_path / "runs"), "--shards", "3")
    assert done.returncode == 2
    assert "there is nothing left to split" in done.stderr
    assert "pate" in done.stderr


def test_status_and_cancel_of_nothing(tmp_path: Path) -> None:
    for command in ("status", "cancel"):
        done = bench(command, str(tmp_path / "nowhere"))
        assert done.returncode == 2
        assert "no such run directory" in done.stderr
    told = bench("status", str(RunDir(tmp_path / "runs").create().path), "--json")
    assert json.loads(told.stdout)["launches"] == []
