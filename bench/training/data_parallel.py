"""Train one net on several devices of one machine; each device gets a share of every batch.

For a net too large or slow for one device; :mod:`bench.training.vectorised` is faster for many small nets. One process
per device trains a copy. All draw the same batches and shifts and sum their gradients, weighted by share size, which
gives the whole batch's gradient up to rounding, so copies stay equal. Unlike on one device, random layers draw other
numbers and batch normalisation sees only its device's share; its running statistics are averaged at the end.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

from bench.core.errors import BenchError
from bench.core.precision import Precision, arithmetic, check_precision
from bench.training.loop import FitSettings, Share, fit
from bench.training.processes import start_worker

PATIENCE = timedelta(minutes=10)  # Timeout of an exchange between the processes.
GENERATOR = "generator"
STATE = "state/"


def fit_on_devices(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: FitSettings,
    generator: torch.Generator,
    devices: Sequence[str],
    precision: Precision = "float32",
) -> nn.Module:
    """Train `model` in place on all `devices` together and return it, in evaluation mode, on the first.

    Without random layers and batch normalisation, weights equal those of :func:`bench.training.loop.fit` up to
    rounding; they may diverge. Raises BenchError for several kinds of devices, a repeated GPU, early stopping or a
    failed process.
    """
    kinds = {torch.device(device).type for device in devices}
    if len(kinds) != 1 or (kinds != {"cpu"} and len(set(devices)) != len(devices)):
        raise BenchError(f"training on several devices needs distinct devices of one kind, not {', '.join(devices)}.")
    if settings.settle is not None:
        raise BenchError(
            "training on several devices does not support early stopping, because the copies might not stop together."
        )
    check_precision(precision, devices[0])
    payload = io.BytesIO()
    # Pass tensors by value: sharing them would need /dev/shm, which is small in containers.
    torch.save((model.cpu(), images.cpu(), labels.cpu(), settings, generator.get_state()), payload)
    with tempfile.TemporaryDirectory(prefix="bench-devices-") as folder:
        _run(list(devices), Path(folder), payload.getvalue(), precision)
        found = load_file(Path(folder) / "trained.safetensors")
    generator.set_state(found.pop(GENERATOR))
    model.load_state_dict({name.removeprefix(STATE): value for name, value in found.items()})
    return model.to(devices[0]).eval()


def _run(devices: list[str], folder: Path, payload: bytes, precision: Precision) -> None:
    start: Any = start_processes
    running = start(_train_share, (devices, folder, payload, precision), len(devices), join=False)
    try:
        while not running.join():
            pass
    except (ProcessRaisedException, ProcessExitedException) as error:
        raise BenchError(_why(running.processes, devices, folder)) from error
    finally:
        for process in running.processes:
            if process.is_alive():
                process.kill()
            process.join()


def _why(processes: Sequence[Any], devices: list[str], folder: Path) -> str:
    """Return why training ended; a kill takes precedence over an error, the first error over those it caused."""
    for number, process in enumerate(processes):
        code = process.exitcode
        if code is not None and code < 0 and code != -signal.SIGTERM:
            who = f"process {number} ({devices[number]})"
            return f"training on {len(devices)} devices: {who} was ended by signal {-code}."
    errors = sorted(folder.glob("*.error"), key=lambda path: path.stat().st_mtime_ns)
    return errors[0].read_text() if errors else f"training on {len(devices)} devices: a process ended silently."


def _train_share(rank: int, devices: list[str], folder: Path, payload: bytes, precision: Precision) -> None:
    start_worker()
    device = torch.device(devices[rank])
    # Safe to unpickle: the bytes come from the parent process.
    model, images, labels, settings, stream = torch.load(io.BytesIO(payload), weights_only=False)
    generator = torch.Generator().set_state(stream)
    share = Share(rank, len(devices))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif sys.platform.startswith("linux"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", init_method=f"file://{folder}/meeting", timeout=PATIENCE,
            rank=rank, world_size=len(devices),
        )  # fmt: skip
        with arithmetic(precision, device):
            fit(
                model, images, labels, settings, generator, device=device, bf16=precision == "bf16",
                must_converge=False, share=share,
            )  # fmt: skip
        share.average_statistics(model)
        if rank == 0:
            state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
            held = {STATE + name: value.clone(memory_format=torch.contiguous_format) for name, value in state.items()}
            save_file({**held, GENERATOR: generator.get_state()}, folder / "trained.safetensors")
        distributed.barrier()
    except BaseException as error:
        text = str(error) if isinstance(error, BenchError) else f"{type(error).__name__}: {error}"
        (folder / f"{rank}.error").write_text(text)
        raise
    distributed.destroy_process_group()
