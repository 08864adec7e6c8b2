"""One net on several devices: same weights as on one device up to rounding, and no process outlives a failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Facts, PrivateData
from bench.methods.distillation import dpsd_family
from bench.methods.distillation.dpsd import DPSDConfig
from bench.models.build import build
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.data_parallel import fit_on_devices
from bench.training.early_stopping import Settle
from bench.training.ensemble import train_teachers
from bench.training.loop import FitSettings, Share, fit
from bench.training.teacher import TeacherTask
from helpers.paths import ROOT

TWO = ("cpu", "cpu")
LINUX = Path("/proc/self/task").exists()


def records() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (61, 1, 8, 8), dtype=torch.uint8, generator=generator), torch.arange(61) % 3


def net() -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return build("small_cnn", 3, 1, 8, width=4)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def children(of: int) -> list[int]:
    """Return the child processes of `of` that are not zombies."""
    text = Path(f"/proc/{of}/task/{of}/children").read_text()
    return [int(pid) for pid in text.split() if alive(int(pid)) and b"spawn_main" in command(int(pid))]


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def training(temporary: Path) -> bool:
    """Whether the processes with files in `temporary` have met, which they do before they train."""
    return any(temporary.glob("bench-devices-*/meeting"))


@pytest.mark.slow
def test_two_processes_train_the_net_of_one() -> None:
    images, labels = records()
    # 61 records in batches of 15: odd batches, and a last one of a single record.
    settings = FitSettings(epochs=3, batch_size=15, shift=1, dense_decay=0.01, ema=0.9, label_smoothing=0.1)
    orders = [torch.Generator().manual_seed(5) for _ in range(2)]
    one = fit(net(), images, labels, settings, orders[0])
    two = fit_on_devices(net(), images, labels, settings, orders[1], TWO)
    assert not torch.equal(weights(one), weights(net()))
    assert torch.allclose(weights(one), weights(two), atol=1e-6)
    assert torch.equal(orders[0].get_state(), orders[1].get_state())
    assert not two.training


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="counts processes in /proc")
def test_a_killed_process_ends_the_others_with_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = records()
    before = set(children(os.getpid()))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def kill() -> None:
        wait_for(lambda: training(tmp_path))
        os.kill((set(children(os.getpid())) - before).pop(), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(BenchError, match=r"process [01] \(cpu\) was ended by signal 9"):
        fit_on_devices(net(), images, labels, FitSettings(steps=10**7), torch.Generator(), TWO)
    killer.join()
    assert set(children(os.getpid())) <= before


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="counts processes in /proc")
def test_processes_die_with_the_one_that_started_them(tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(
        "import torch\n"
        "from bench.training.data_parallel import fit_on_devices\n"
        "from bench.models.build import build\n"
        "from bench.training.loop import FitSettings\n"
        "if __name__ == '__main__':\n"
        "    images, labels = torch.zeros(9, 1, 8, 8, dtype=torch.uint8), torch.arange(9) % 3\n"
        "    net, order = build('small_cnn', 3, 1, 8, width=4), torch.Generator()\n"
        "    fit_on_devices(net, images, labels, FitSettings(steps=10**7), order, ('cpu', 'cpu'))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, str(program)], env=environment)
    try:
        wait_for(lambda: training(tmp_path))
        started = children(parent.pid)
        assert len(started) == 2
    finally:
        parent.kill()
        parent.communicate()
    wait_for(lambda: not any(alive(pid) for pid in started), 10.0)


@pytest.mark.slow
def test_what_cannot_be_meant_is_one_error() -> None:
    images, labels = records()

    def train(settings: FitSettings, *devices: str, labels: Tensor = labels) -> None:
        fit_on_devices(net(), images, labels, settings, torch.Generator(), devices)

    with pytest.raises(BenchError, match="one kind"):
        train(FitSettings(steps=1), "cpu", "cuda:0")
    with pytest.raises(BenchError, match="distinct devices"):
        train(FitSettings(steps=1), "cuda:0", "cuda:0")
    with pytest.raises(BenchError, match="early stopping"):
        train(FitSettings(steps=1, settle=Settle()), *TWO)
    with pytest.raises(BenchError, match=r"^training needs as many labels as images"):
        train(FitSettings(steps=1), *TWO, labels=labels[:3])


def test_shares_cover_a_batch_once_and_weigh_its_mean() -> None:
    rows = torch.arange(5.0)
    parts = [Share(rank, 3) for rank in range(3)]
    assert torch.cat([part.mine(rows) for part in parts]).tolist() == rows.tolist()
    assert float(sum(part.weighed(part.mine(rows).mean()) for part in parts)) == pytest.approx(float(rows.mean()))
    lonely = [Share(rank, 3) for rank in range(3)]
    assert [len(part.mine(rows[:1])) for part in lonely] == [1, 1, 1]
    assert [float(part.weighed(torch.tensor(2.0))) for part in lonely] == [2.0, 0.0, 0.0]


def test_large_teachers_take_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = records()
    asked: list[tuple[str, ...]] = []

    def on_devices(model: nn.Module, *args: object, **options: object) -> nn.Module:
        asked.append(args[4])  # type: ignore[arg-type]
        return model

    for module in ("bench.training.teacher", "bench.methods.distillation.dpsd_family"):
        monkeypatch.setattr(f"{module}.fit_on_devices", on_devices)
    parts = [np.arange(30), np.arange(30, 61)]
    task = TeacherTask("small_cnn", 3, FitSettings(steps=1), devices=TWO)
    train_teachers(task, images, labels, parts, Streams(0))
    assert asked == [TWO, TWO]
    cache = Cache(None, {})
    private = PrivateData(images, labels, Facts("digits", 61, 0, 10, 3, (1, 8, 8), public_benchmark=True))
    for devices in ((), ("cpu",), TWO):
        context = Context(torch.device("cpu"), Streams(0), cache, Progress(), devices=devices)
        dpsd_family.train_teacher(DPSDConfig(teacher="small_cnn", teacher_epochs=1.0), private, context)
    assert asked == [TWO, TWO, TWO]
    assert len(cache.made) == 2
