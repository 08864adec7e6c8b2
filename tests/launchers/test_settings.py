"""Settings of the Slurm launcher, and which cells go into which job: all that needs no Slurm."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.errors import BenchError
from bench.launchers import slurm, slurm_cli
from bench.launchers.schedule import Order, Unit, packs_of, shared_names, units_of, waves_of
from bench.launchers.settings import Cluster, JobResources, More, directives, minutes, read_cluster, resources_of
from bench.launchers.slurm_cli import Nodes, Partition, at_once, check, limits, partitions
from bench.storage.interrupts import Stopped, stopping_signals
from bench.training.processes import worker_pool
from helpers.cells import any_cell, cells


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
    assert chosen.of("pate") == JobResources(gpus=1, time=60)
    assert chosen.of("trpate") == JobResources(gpus=0, time=240)
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
        ("launcher: sge", ["launcher", "submitit:NAME", "'sge'"]),
        ('python: "a\\nb"', ["python", "without control characters"]),
        ('srun_args: ["a\\x1b"]', ["srun_args", "shell lines"]),
        ("methods: {pate: {gpu: 1}}", ["gpu"]),
        ("methods: [pate]", ["methods"]),
        ("extra: [a]", ["extra"]),
        ("extra: {job_name: mine}", ["extra", "job-name is set by this program"]),
        ('account: "a\\ntouch here"', ["account", "without line breaks"]),
        ('partition: "a\\rb"', ["partition", "without line breaks"]),
        ('qos: "a\\x00"', ["qos", "without line breaks"]),
        ('extra: {constraint: "a\\ntouch here"}', ["extra", "without control characters"]),
        ('extra: {"qos\\ntouch here": true}', ["extra", "long names"]),
        ('extra: {"qos low": true}', ["extra", "long names"]),
        ('methods: {pate: {account: "a\\ntouch here"}}', ["account", "without line breaks"]),
        ('setup: ["a\\x1b"]', ["setup", "shell lines"]),
        ("scratch: '$(touch here)'", ["scratch", "a path, with variables as $NAME"]),
        ("{time: 60, max_time: 30}", ["max_time must be at least time (60), not 30."]),
        ("{memory: 8, max_memory: 4}", ["max_memory must be at least memory (8), not 4."]),
        ("- a", ["NAME: VALUE"]),
        ("a: [", ["cannot be read as YAML"]),
        ("time: 2024-13-45", ["time", "2024-13-45"]),
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


def test_a_directive_with_a_line_break_is_refused() -> None:
    with pytest.raises(BenchError, match="without control characters"):
        read_cluster(None, {"extra": directives(["qos=low\ntouch here"])})
    shell = "module load a\n\tmodule load b"  # commands may be several
    assert read_cluster(None, {"setup": [shell]}).setup == [shell]


# What a cluster has

SINFO = """\
main*|(null)|2|4000|infinite|up|3
main*|(null)|64+|257000+|infinite|up|1
gpu|gpu:a100:4(S:0-1)|32|512000|2-00:00:00|up|2
gpu|gpu:v100:2,gpu:t4:1|16|128000|2-00:00:00|up|1
short|gpu:2|2|4000|1:00|up|1
bare|(null)|1|1|infinite|up|1
old|(null)|128|999000|infinite|down|9
"""
CONFIG = "MaxArraySize            = {size}\nMaxJobCount             = {jobs}\n"


@pytest.fixture
def sinfo(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def answer(text: str, config: str = "", queue: str = "") -> None:
        said = {"sinfo": text, "scontrol": config, "squeue": queue}
        monkeypatch.setattr(slurm_cli, "command", lambda *words: said[words[0]])

    answer(SINFO)
    return answer


def test_partitions(sinfo: Callable[..., None]) -> None:
    assert partitions() == [
        Partition("main", True, None, (Nodes(3, 0, 2, 4000 / 1024), Nodes(1, 0, 64, 257000 / 1024))),
        Partition("gpu", False, 2880, (Nodes(2, 4, 32, 500.0), Nodes(1, 3, 16, 125.0))),
        Partition("short", False, 1, (Nodes(1, 2, 2, 4000 / 1024),)),
        Partition("bare", False, None, (Nodes(1, 0, 1, 1 / 1024),)),
    ]


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        (JobResources(partition="gup"), ["'gup'", "'gpu'", "sinfo"]),
        (JobResources(partition="main,gup"), ["'gup'"]),
        (JobResources(partition="old"), ["'old'"]),
        (JobResources(gpus=1), ["--gpus 1", "0 GPUs", "partition main"]),
        (JobResources(partition="gpu", gpus=5), ["--gpus 5", "4 GPUs"]),
        (JobResources(partition="gpu", cpus=33), ["--cpus 33", "32 cores"]),
        (JobResources(partition="gpu", memory=501), ["--memory 501", "500 GB"]),
        (JobResources(partition="gpu", time=2881), ["--time 2881", "2880 minutes"]),
        (JobResources(partition="short,gpu", time=2881), ["--time 2881", "partition short, gpu"]),
        (JobResources(partition="short", time=2), ["--time 2 is more than the 1 minute of partition short"]),
        (JobResources(partition="bare", cpus=2), ["--cpus 2 is more than the 1 core of a node"]),
        (JobResources(partition="bare", memory=1), ["--memory 1 is more than the 1 MB of a node"]),
        (JobResources(partition="gpu", max_memory=501), ["--max-memory 501", "500 GB"]),
        (JobResources(partition="gpu", max_time=2881), ["--max-time 2881", "2880 minutes"]),
        (JobResources(partition="bare", extra={"nodes": 2}), ["--slurm nodes=2 is more than the 1 node of partition"]),
        (JobResources(extra={"nodes": "5-6"}), ["--slurm nodes=5 is more than the 4 nodes of partition main"]),
    ],
)
def test_what_could_never_start(sinfo: Callable[..., None], resources: JobResources, words: list[str]) -> None:
    with pytest.raises(BenchError) as caught:
        check([JobResources(), resources], Path("runs"))
    for word in words:
        assert word in str(caught.value)


def test_what_can_start(sinfo: Callable[..., None]) -> None:
    check([
        JobResources(), JobResources(cpus=64, memory=250, time=100_000),
        JobResources(partition="gpu", gpus=4, time=2880),
        JobResources(partition="short,main", time=5000), JobResources(extra={"nodes": "4"}),
    ], Path("runs"))  # fmt: skip
    sinfo("")
    with pytest.raises(BenchError, match="no partition that is up"):
        check([JobResources()], Path("runs"))


def test_how_many_jobs_an_empty_cluster_runs_at_once(sinfo: Callable[..., None]) -> None:
    assert at_once([JobResources()]) == 3 * 2 + 64
    assert at_once([JobResources(cpus=2)]) == 3 + 32
    assert at_once([JobResources(cpus=2, memory=100)]) == 2
    assert at_once([JobResources(partition="gpu", gpus=2)]) == 2 * 2 + 1
    assert at_once([JobResources(), JobResources(partition="short")]) == 2
    assert at_once([]) == 1


@pytest.mark.parametrize(("size", "most"), [(1001, 1000), (10, 10), (1, 1)])
def test_arrays_are_as_long_as_slurm_takes_them(sinfo: Callable[..., None], size: int, most: int) -> None:
    sinfo(SINFO, CONFIG.format(size=size, jobs=10_000))
    assert limits().array == most


def test_a_slurm_without_arrays(sinfo: Callable[..., None]) -> None:
    sinfo(SINFO, CONFIG.format(size=0, jobs=10_000))
    with pytest.raises(BenchError, match="takes no job arrays"):
        limits()


@pytest.mark.parametrize(("folder", "account"), [("runs\ntouch here", ""), ("runs", "ours\ntouch here")])
def test_no_name_of_outside_becomes_a_command(
    sinfo: Callable[..., None], monkeypatch: pytest.MonkeyPatch, folder: str, account: str
) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", account)
    with pytest.raises(BenchError, match="has a control character"):
        check([JobResources()], Path(folder))


def test_variables_that_would_change_the_answers_of_slurm_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CONF", "SLURM_JOB_ID", "SQUEUE_PARTITION", "SBATCH_PARTITION", "SUBMITIT_EXECUTOR", "OTHER"):
        monkeypatch.setenv(name, "1")
    shown = set(slurm_cli.command("env").split())
    assert {"SLURM_CONF=1", "OTHER=1"} <= shown
    assert not shown & {"SLURM_JOB_ID=1", "SQUEUE_PARTITION=1", "SBATCH_PARTITION=1", "SUBMITIT_EXECUTOR=1"}
    before = dict(os.environ)
    with slurm.outside_any_job():
        assert "SBATCH_PARTITION" not in os.environ
        assert "SLURM_CONF" in os.environ
    assert dict(os.environ) == before


def test_the_account_of_the_shell_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "ours")
    assert slurm.job_parameters(Cluster(), JobResources(), "id", [])["account"] == "ours"
    assert slurm.job_parameters(Cluster(), JobResources(account="mine"), "id", [])["account"] == "mine"


def test_dependencies_of_the_user_are_kept() -> None:
    resources = JobResources(extra={"dependency": "singleton"})
    assert slurm.job_parameters(Cluster(), resources, "id", ["1_0", "1_1"])["additional_parameters"] == {
        "dependency": "singleton,afterany:1_0:1_1"
    }
    assert slurm.job_parameters(Cluster(), resources, "id", [])["additional_parameters"] == {"dependency": "singleton"}


def test_no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BenchError, match=r"no Slurm on this machine .* --launcher local"):
        partitions()


def test_slurm_that_refuses() -> None:
    with pytest.raises(BenchError, match=r"Slurm refused `ls /nowhere/at/all`: .*No such file"):
        slurm_cli.command("ls", "/nowhere/at/all")


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
    # Artefacts shared by a finished cell already exist.
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
    wave = [Order((str(i),), ("a",) if i % 2 else ()) for i in range(2500)]
    arrays = slurm.arrays(wave, capped=False)
    assert [len(orders) for orders in arrays] == [1000, 250, 1000, 250]
    assert all(len({order.after for order in orders}) == 1 for orders in arrays)
    assert [len(orders) for orders in slurm.arrays(wave, capped=True)] == [1000, 1000, 500]
    assert [len(orders) for orders in slurm.arrays(wave[:7], capped=True, largest=3)] == [3, 3, 1]
    needy = [replace(order, more=More(time=480 if order.keys == ("3",) else None)) for order in wave[:7]]
    assert [len(orders) for orders in slurm.arrays(needy, capped=True)] == [6, 1]  # more time for one alone


# Launches


# Jobs


def test_a_signal_that_is_repeated_interrupts_once() -> None:
    with stopping_signals(once=True):
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.slow
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
