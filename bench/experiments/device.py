"""Choice and setup of the torch device."""

from __future__ import annotations

from dataclasses import replace

import torch

from bench.core.errors import BenchError
from bench.core.options import ONE_CPU, Resources
from bench.core.processes import available_cores
from bench.training.heap import tune_malloc


def prepare_device(resources: Resources = ONE_CPU) -> Resources:
    """Set up torch for `resources`, and return them with the device ``auto`` and the number of workers resolved.

    The command line defaults to one thread: with the small nets here, two threads contend on a busy machine and are far
    slower. Raises :class:`BenchError` for a missing device.
    """
    device = resources.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        said = str(error).splitlines()[0]
        why = "torch knows no such device" if "Expected one of" in said else said.rstrip(".")
        raise BenchError(f"--device {device}: {why}. Use auto, cpu, cuda or cuda:N.") from error
    torch.set_num_threads(resources.threads)
    tune_malloc()
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    return replace(resources, device=device, workers=resources.workers or available_cores())
