"""Choice and setup of the torch device."""

from __future__ import annotations

from bench.core.errors import BenchError


def prepare_device(device: str, threads: int) -> str:
    """Set up torch for `device` (auto: cuda if available), with `threads` CPU threads per operation, and return it.

    The command line's default is one thread: for the small nets here, two contend on a busy machine and are far slower.
    Raises :class:`BenchError` for a missing device.
    """
    import torch

    from bench.training.heap import tune_malloc

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        said = str(error).splitlines()[0]
        why = "torch knows no such device" if "Expected one of" in said else said.rstrip(".")
        raise BenchError(f"--device {device}: {why}. Use auto, cpu, cuda or cuda:N.") from error
    torch.set_num_threads(threads)
    tune_malloc()
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    return device
