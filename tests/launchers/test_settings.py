"""Settings of the Slurm launcher, and which cells go into which job: all that needs no Slurm."""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.config import Grid
from bench.core.errors import BenchError, UnknownNameError
from bench.core.types import Facts
from bench.experiments.plan import Cell, Dataset, expand
from bench.launchers import slurm, worker
from bench.launchers import slurm_cli as slurm_site
from bench.launchers.manifest import Launch, Options, begin, launches, load
from bench.launchers.schedule import Pack, Unit, packs_of, shared_names, units_of, waves_of
from bench.launchers.settings import Cluster, Resources, directives, minutes, read_cluster, resources_of
from bench.launchers.slurm import in_hand
from bench.launchers.slurm_cli import Partition, check, partitions
from bench.launchers.worker import work_through
from bench.results.run_dir import RunDir
from bench.storage import locks
from bench.storage.interrupts import Stopped, stopping_signals
from bench.training.processes import worker_pool
from helpers.paths import GRID_METHOD
from helpers.records import record

METHOD = str(GRID_METHOD)
FACTS = Facts("digits", 1000, 400, 397, 10, (1, 8, 8))


def describe(name: str) -> Dataset:
    return Dataset(name, FACTS, "sha256:0")


def cells(epsilons: int = 2, seeds: int = 2) -> list[Cell]:
    asked = tuple(float(1 + i) for i in range(epsilons))
    return expand(Grid(methods=(METHOD,), datasets=("digits",), epsilons=asked, seeds=tuple(range(seeds))), describe)


@functools.cache
def any_cell() -> Cell:
    return cells(1, 1)[0]


# Settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90), (" 90 ", 90), ("30:00", 30), ("1:30", 2), ("0:30", 1), ("2:00:00", 120), ("0:00:01", 1),
        ("1-0", 1440), ("1-12", 2160), ("1-0:30", 1470), ("2-01:00:01", 2941), ("0", 1),
    ],
)  # fmt: skip
def test_minutes(text: str, expected: int) -> None:
    assert minutes(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "1:2:3:4", "-5", "1.5", "1-", "2 h"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="a time is"):
        minutes(text)


@settings(deadline=None)
@given(st.integers(0, 20), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_minutes_are_never_too_few(days: int, hours: int, mins: int, seconds: int) -> None:
    whole = ((days * 24 + hours) * 60 + mins) * 60 + seconds
    assert minutes(f"{days}-{hours:02}:{mins:02}:{seconds:02}") == max(1, -(-whole // 60))


def cluster_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return path


def test_flags_override_the_file(tmp_path: Path) -> None:
    path = cluster_file(
        tmp_path,
        "launcher: slurm\npartition: gpu\ngpus: 1\ntime: 2:00:00\nparallel: 4\nretries: 2\n"
        "extra: {qos: low, exclusive: true}\nsetup: [module load cuda]\n",
    )
    chosen = read_cluster(path, {"partition": "main", "gpus": 0, "time": None, "extra": {"qos": "high"}})
    assert (chosen.launcher, chosen.partition, chosen.gpus, chosen.time) == ("slurm", "main", 0, 120)
    assert chosen.extra == {"qos": "high", "exclusive": True}
    assert (chosen.parallel, chosen.retries, chosen.setup) == (4, 2, ["module load cuda"])
    assert read_cluster(path, {"time": "1-0"}).time == 1440
    for text, expected in (("90", 90), ("30:00", 30), ("'45'", 45), ("1-12:00:00", 2160)):
        assert read_cluster(cluster_file(tmp_path, f"time: {text}\n"), {}).time == expected
    assert read_cluster(None, {}) == Cluster()
    assert read_cluster(cluster_file(tmp_path, ""), {}) == Cluster()


def test_resources_of_one_method(tmp_path: Path) -> None:
    path = cluster_file(tmp_path, "gpus: 1\ntime: 60\nmethods:\n  trpate:\n    gpus: 0\n    time: 4:00:00\n")
    chosen = read_cluster(path, {})
    assert chosen.of("pate") == Resources(gpus=1, time=60)
    assert chosen.of("trpate") == Resources(gpus=0, time=240)
    (cell, *_) = cells(1, 1)
    assert resources_of(chosen, cell) == ""
    assert resources_of(Cluster(methods={"grid-test": {}}), cell) == "grid-test"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("partitoin: main", ["partitoin", "'partition'"]),
        ("gpus: many", ["gpus", "'many'"]),
        ("gpus: -1", ["gpus", "-1"]),
        ("time: soon", ["time", "soon"]),
        ("memory: 0", ["memory"]),
        ("launcher: sge", ["launcher", "'sge'"]),
        ("methods: {pate: {gpu: 1}}", ["gpu"]),
        ("methods: [pate]", ["methods"]),
        ("extra: [a]", ["extra"]),
        ("extra: {job_name: mine}", ["extra", "job-name is set by this program"]),
        ("- a", ["NAME: VALUE"]),
        ("a: [", ["no YAML"]),
    ],
)
def test_a_file_with_a_mistake(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(BenchError) as caught:
        read_cluster(cluster_file(tmp_path, text + "\n"), {})
    assert len(str(caught.value).splitlines()) == 1
    for word in words:
        assert word in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="cannot be read: No such file"):
        read_cluster(tmp_path / "none.yaml", {})


def test_directives() -> None:
    assert directives(["qos=low", "--constraint=a&b=c", "exclusive"]) == {
        "qos": "low", "constraint": "a&b=c", "exclusive": True,
    }  # fmt: skip
    for wrong in ("", "KEY=1", "a b", "=x"):
        with pytest.raises(BenchError, match="--slurm"):
            directives([wrong])


# What a cluster has

SINFO = """\
main*|(null)|2|4000|infinite|up
main*|(null)|64+|257000+|infinite|up
gpu|gpu:a100:4(S:0-1)|32|512000|2-00:00:00|up
gpu|gpu:v100:2,gpu:t4:1|16|128000|2-00:00:00|up
short|gpu:2|2|4000|1:00|up
old|(null)|128|999000|infinite|down
"""


@pytest.fixture
def sinfo(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def answer(text: str) -> None:
        monkeypatch.setattr(slurm_site, "command", lambda *words: text)

    answer(SINFO)
    return answer


def test_partitions(sinfo: Callable[[str], None]) -> None:
    assert partitions() == [
        Partition("main", True, 0, 64, 257000 / 1024, None),
        Partition("gpu", False, 4, 32, 500.0, 2880),
        Partition("short", False, 2, 2, 4000 / 1024, 1),
    ]


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        (Resources(partition="gup"), ["'gup'", "'gpu'", "sinfo"]),
        (Resources(partition="main,gup"), ["'gup'"]),
        (Resources(partition="old"), ["'old'"]),
        (Resources(gpus=1), ["--gpus 1", "0 GPUs", "partition main"]),
        (Resources(partition="gpu", gpus=5), ["--gpus 5", "4 GPUs"]),
        (Resources(partition="gpu", cpus=33), ["--cpus 33", "32 cores"]),
        (Resources(partition="gpu", memory=501), ["--memory 501", "500 GB"]),
        (Resources(partition="gpu", time=2881), ["--time 2881", "2880 minutes"]),
        (Resources(partition="short,gpu", time=2881), ["--time 2881", "partition short, gpu"]),
    ],
)
def test_what_could_never_start(sinfo: Callable[[str], None], resources: Resources, words: list[str]) -> None:
    with pytest.raises(BenchError) as caught:
        check([Resources(), resources])
    for word in words:
        assert word in str(caught.value)


def test_what_can_start(sinfo: Callable[[str], None]) -> None:
    check([
        Resources(), Resources(cpus=64, memory=250, time=100_000), Resources(partition="gpu", gpus=4, time=2880),
        Resources(partition="short,main", time=5000),
    ])  # fmt: skip
    sinfo("")
    with pytest.raises(BenchError, match="no partition that is up"):
        check([Resources()])


def test_variables_that_would_change_the_answers_of_slurm_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CONF", "SLURM_JOB_ID", "SQUEUE_PARTITION", "SBATCH_PARTITION", "SUBMITIT_EXECUTOR", "OTHER"):
        monkeypatch.setenv(name, "1")
    shown = set(slurm_site.command("env").split())
    assert {"SLURM_CONF=1", "OTHER=1"} <= shown
    assert not shown & {"SLURM_JOB_ID=1", "SQUEUE_PARTITION=1", "SBATCH_PARTITION=1", "SUBMITIT_EXECUTOR=1"}
    before = dict(os.environ)
    with slurm._outside_any_job():
        assert "SBATCH_PARTITION" not in os.environ
        assert "SLURM_CONF" in os.environ
    assert dict(os.environ) == before


def test_the_account_of_the_shell_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "ours")
    assert slurm._parameters(Cluster(), Resources(), "id", [])["account"] == "ours"
    assert slurm._parameters(Cluster(), Resources(account="mine"), "id", [])["account"] == "mine"


def test_dependencies_of_the_user_are_kept() -> None:
    resources = Resources(extra={"dependency": "singleton"})
    assert slurm._parameters(Cluster(), resources, "id", ["1_0", "1_1"])["additional_parameters"] == {
        "dependency": "singleton,afterany:1_0:1_1"
    }
    assert slurm._parameters(Cluster(), resources, "id", [])["additional_parameters"] == {"dependency": "singleton"}


def test_no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BenchError, match=r"no Slurm on this machine .* --launcher local"):
        partitions()


def test_slurm_that_refuses() -> None:
    with pytest.raises(BenchError, match=r"Slurm refused `ls /nowhere/at/all`: .*No such file"):
        slurm_site.command("ls", "/nowhere/at/all")


# Units, packs and waves


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 2, 3]), st.randoms(use_true_random=False))
def test_units_wait_for_what_makes_what_they_share(epsilons: int, seeds: int, shards: int, order: object) -> None:
    todo = cells(epsilons, seeds)
    order.shuffle(todo)  # type: ignore[attr-defined]
    units = units_of(todo, shards=shards)
    assert sorted(unit.key for unit in units if unit.shard is None) == sorted(cell.key for cell in todo)
    place = {unit.key: number for number, unit in enumerate(units)}
    assert len(place) == len(units)
    for unit in units:
        assert all(place[key] < place[unit.key] for key in unit.after)
    for seed in range(seeds):
        mine = [unit for unit in units if unit.cell.seed == seed]
        parts = [unit for unit in mine if unit.shard is not None]
        (maker,) = {unit.key for unit in mine if unit.shard is None} - {
            unit.key for unit in mine if unit.shard is None and set(unit.after) - {part.key for part in parts}
        }
        assert len(parts) == (shards if shards > 1 else 0)
        for unit in mine:
            if unit.shard is None and unit.key != maker:
                assert unit.after == (maker,)
    # What a cell that is done shared is there already.
    done, rest = todo[:1], todo[1:]
    for unit in units_of(rest, done):
        if shared_names(unit.cell) == shared_names(done[0]):
            assert unit.after == ()


@st.composite
def dags(draw: st.DrawFn) -> tuple[list[Unit], dict[str, float | None]]:
    cell = any_cell()
    units: list[Unit] = []
    for number in range(draw(st.integers(1, 25))):
        before = [unit.key for unit in units]
        after = draw(st.lists(st.sampled_from(before), max_size=3, unique=True)) if before else []
        shard = (0, 2) if draw(st.integers(0, 9)) == 0 else None
        units.append(Unit(f"u{number}", f"unit {number}", cell, tuple(sorted(after)), shard=shard))
    lengths = {unit.key: draw(st.one_of(st.none(), st.floats(0, 100))) for unit in units}
    return units, lengths


@settings(deadline=None)
@given(dags(), st.floats(0, 120), st.integers(1, 3))
def test_packs_and_waves(made: tuple[list[Unit], dict[str, float | None]], target: float, kinds: int) -> None:
    units, lengths = made
    kind = {unit.key: str(number % kinds) for number, unit in enumerate(units)}
    packs = packs_of(units, lambda unit: lengths[unit.key], lambda unit: kind[unit.key], target)
    assert sorted(unit.key for pack in packs for unit in pack.units) == sorted(unit.key for unit in units)
    waited = {key for unit in units for key in unit.after}
    for pack in packs:
        assert {unit.after for unit in pack.units} == {pack.after}
        assert {kind[unit.key] for unit in pack.units} == {pack.resources}
        if len(pack.units) > 1:
            known = [lengths[unit.key] for unit in pack.units]
            assert None not in known
            assert sum(length for length in known if length is not None) <= target
            assert not any(unit.key in waited or unit.shard for unit in pack.units)
    if target == 0:
        assert all(len(pack.units) == 1 for pack in packs)
    waves = waves_of(packs)
    assert sorted(id(pack) for wave in waves for pack in wave) == sorted(id(pack) for pack in packs)
    over: set[str] = set()
    for wave in waves:
        assert wave
        assert all(set(pack.after) <= over for pack in wave)
        over |= {unit.key for pack in wave for unit in pack.units}


def test_small_cells_are_packed_to_the_target() -> None:
    units = units_of(cells(10, 1))
    packs = packs_of(units, lambda unit: 20.0, lambda unit: "", 60.0)
    assert [len(pack.units) for pack in packs] == [1, 3, 3, 3]
    assert [len(pack.units) for pack in packs_of(units, lambda unit: None, lambda unit: "", 60.0)] == [1] * 10


def test_arrays_are_no_longer_than_slurm_allows() -> None:
    (cell, *_) = cells(1, 1)
    wave = [Pack((Unit(str(i), "", cell),), ("a",) if i % 2 else (), "") for i in range(2500)]
    arrays = slurm._arrays(wave, capped=False)
    assert [len(packs) for _, _, packs in arrays] == [1000, 250, 1000, 250]
    assert {after for _, after, _ in arrays} == {(), ("a",)}
    assert [len(packs) for _, _, packs in slurm._arrays(wave, capped=True)] == [1000, 1000, 500]


# Launches


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "runs").create()


def launched(run_dir: RunDir, units: list[Unit], kind: str = "slurm") -> Launch:
    return begin(run_dir, kind, units, Options(device="cpu", workers=2, retries=5), [METHOD])


def test_a_launch_is_read_as_it_was_written(run_dir: RunDir) -> None:
    first = units_of(cells(50, 4), shards=2, before=lambda cell: (7, cell.seed) if cell.seed else None)
    assert sum(unit.shard is None for unit in first) == 200
    launch = launched(run_dir, first)
    again = load(launch.folder)
    assert again == launch
    assert again.units(describe) == first
    assert again.here
    assert not again.cancelled
    some = {unit.key for unit in first[5:17]}
    assert {unit.key for unit in again.units(describe, some.__contains__)} == some
    assert launch.folder.stat().st_mode & 0o077 == 0
    assert list(launches(run_dir)) == [launch]
    assert {entry.key for entry in launch.records} == {unit.key for unit in first if unit.shard is None}


def test_a_launch_of_another_program_or_data_set_is_refused(run_dir: RunDir) -> None:
    launch = launched(run_dir, units_of(cells()))
    with pytest.raises(BenchError, match=r"another revision of digits\. Give the `run` command again"):
        launch.units(lambda name: Dataset(name, FACTS, "sha256:1"))
    first = launch.entries[0]
    other = first.model_copy(update={"cell": first.cell.model_copy(update={"key": "other"})})
    with pytest.raises(BenchError, match=r"other does not follow from its own settings\. Give the `run` command again"):
        launch.model_copy(update={"entries": (other,)}).units(describe)
    path = launch.folder / "launch.json"
    written = json.loads(path.read_text())
    for text in (json.dumps({**written, "version": 0}), "{}", "", "[]"):
        path.write_text(text)
        with pytest.raises(BenchError, match="Give the `run` command again"):
            load(launch.folder)
        assert list(launches(run_dir)) == []


@pytest.mark.parametrize("where", [(), ("options",), ("entries", 1), ("entries", 1, "cell")])
def test_a_launch_with_other_fields_is_refused(run_dir: RunDir, where: tuple[str | int, ...]) -> None:
    """Values are read by name: a field that is new, gone or renamed never shifts the others."""
    launch = launched(run_dir, units_of(cells()))
    path = launch.folder / "launch.json"
    text = path.read_text()
    for name in sorted(functools.reduce(lambda part, step: part[step], where, json.loads(text))):
        written = json.loads(text)
        part = functools.reduce(lambda part, step: part[step], where, written)
        part["renamed"] = part.pop(name)
        path.write_text(json.dumps(written))
        with pytest.raises(BenchError, match=f"another version of this program .*({name}|renamed): .*Give the `run`"):
            load(launch.folder)
        assert list(launches(run_dir)) == []


def test_cells_in_the_jobs_of_others(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    queued: set[str] = set()
    monkeypatch.setattr(slurm, "queue", lambda name: {"1": ("PENDING", "")} if name in queued else {})
    units = units_of(cells())
    names = iter(["20260101-000000-a", "20260101-000001-b", "20260101-000002-c"])
    monkeypatch.setattr("bench.launchers.manifest.time.strftime", lambda form: next(names) if "-%H" in form else "then")
    old, mine, young = (launched(run_dir, units) for _ in range(3))
    others = slurm._others(mine, run_dir)
    assert {other.id for other in others} == {old.id, young.id}
    keys = [unit.key for unit in units]
    # All three live. Each waits for older ones only, so that no two wait for each other.
    assert in_hand(mine, run_dir, others) == {old.id: set(keys)}
    queued.add(young.id)
    assert in_hand(mine, run_dir, others) == {old.id: set(keys), young.id: set(keys)}
    monkeypatch.setattr("bench.launchers.manifest.alive", lambda pid, begun: False)
    assert in_hand(mine, run_dir, others) == {young.id: set(keys)}
    run_dir.write_record(record(key=keys[0]))
    assert in_hand(mine, run_dir, others) == {young.id: set(keys[1:])}
    queued.clear()
    assert in_hand(mine, run_dir, others) == {}


# Jobs


def test_a_job_waits_until_it_is_known_that_an_owner_elsewhere_is_dead(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(worker, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(worker, "_run", lambda launch, unit, *rest: run_dir.write_record(record(key=unit.key)))
    units = units_of(cells(1, 2))
    launch = launched(run_dir, units)

    def go() -> list[str]:
        run: list[str] = []
        work_through(
            launch, units, run_dir, None, slurm.Progress(), device="cpu", wait=False,  # type: ignore[arg-type]
            done=lambda unit, record: run.append(unit.key),
        )  # fmt: skip
        return run

    dead = {"machine": "other/1", "pid": 1, "start": "1", "beat": 3, "attempts": {}, "seconds": 1.0, "about": {}}
    (run_dir.claims_path / units[0].key).write_text(json.dumps(dead))
    with locks.holding(run_dir.claims_path / units[1].key):  # one that lives: left to it
        assert go() == [units[0].key]
    assert go() == [unit.key for unit in units]


def test_a_signal_that_is_repeated_interrupts_once() -> None:
    with stopping_signals(once=True):
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_workers_that_die_by_a_signal_are_no_error_of_the_cell() -> None:
    # Slurm signals all processes of a job, in no order: the workers' end may be known here before the signal is.
    def work() -> None:
        with stopping_signals(once=True), worker_pool(2) as pool:
            assert pool is not None
            os.kill(pool.submit(os.getpid).result(), signal.SIGTERM)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
            pool.submit(time.sleep, 60).result()

    with pytest.raises(Stopped):
        work()


def test_what_is_unknown_among_methods(run_dir: RunDir) -> None:
    launch = launched(run_dir, units_of(cells()))
    with pytest.raises(UnknownNameError, match="grid-test"):
        slurm.start(launch, [], Cluster(methods={"grid-tset": {}}), run_dir, slurm.Progress())
