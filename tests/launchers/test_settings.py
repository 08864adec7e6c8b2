"""Settings of the Slurm launcher, and which cells go into which job: all that needs no Slurm."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.errors import BenchError
from bench.launchers import slurm
from bench.launchers import slurm_cli as slurm_site
from bench.launchers.schedule import Pack, Unit, packs_of, shared_names, units_of, waves_of
from bench.launchers.settings import Cluster, Resources, directives, minutes, read_cluster, resources_of
from bench.launchers.slurm_cli import Partition, check, partitions
from bench.storage.interrupts import Stopped, stopping_signals
from bench.training.processes import worker_pool
from helpers.cells import any_cell, cells

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


# Jobs


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
