"""The device that a run computes on."""

from __future__ import annotations

from bench.core.errors import BenchError


def prepare_device(device: str, threads: int) -> str:
    """Return the device that `device` names (auto: cuda where there is one), with torch set up for it.

    `threads` is the number of CPU threads of one operation. One is the default of the command line: the nets here are
    small, and on a machine that does anything else two threads wait for each other eight times longer than one works.
    Raises :class:`BenchError` for a device that is not there.
    """
    import torch

    from bench.training.loop import tune_malloc

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise BenchError(f"--device {device}: {str(error).splitlines()[0]}. Use auto, cpu, cuda or cuda:N.") from error
    torch.set_num_threads(threads)
    tune_malloc()
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    return device
