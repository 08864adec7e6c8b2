"""One program of teachers on a GPU: `pytest -m gpu -n 0 tests/gpu`, the first stage of `tests/gpu/run.py`."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.core.precision import Precision
from bench.core.seeds import Streams
from bench.training import stacked_convolution
from bench.training.ensemble import train_teachers
from bench.training.loop import FitSettings
from bench.training.teacher import Arrays, TeacherTask

pytestmark = pytest.mark.gpu


def ensemble_of(net: str, precision: Precision, images: Tensor) -> Arrays:
    task = TeacherTask(net, 10, FitSettings(steps=20, batch_size=6), device="cuda", precision=precision)
    return train_teachers(task, images, torch.arange(96) % 10, np.array_split(np.arange(96), 8), Streams(0)).states


@pytest.mark.parametrize("large", [0.0, stacked_convolution.LARGE])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_on_a_gpu_teachers_stay_apart(precision: Precision, large: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked_convolution, "LARGE", large)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    images = torch.rand(96, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    other, broken = images.clone(), images.clone()
    other[36:48] = 0.5
    broken[36:48] = torch.nan
    # No pooling with overlaps: its gradient is added up in no fixed order, so that no two runs are equal to the byte.
    wanted = ensemble_of("small_cnn", precision, images)
    for changed in (other, broken):
        found = ensemble_of("small_cnn", precision, changed)
        assert {n for name in wanted for n in range(8) if wanted[name][n].tobytes() != found[name][n].tobytes()} == {3}
    found = ensemble_of("pate_mnist", precision, broken)
    finite = [n for n in range(8) if all(np.isfinite(array[n]).all() for array in found.values())]
    assert finite == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize("large", [0.0, stacked_convolution.LARGE])
def test_on_a_gpu_one_program_trains_the_teachers_of_the_loop(large: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked_convolution, "LARGE", large)
    images = torch.rand(96, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    task = TeacherTask("pate_mnist", 10, FitSettings(steps=5, batch_size=6, shift=2, ema=0.9), device="cuda")
    parts, labels = np.array_split(np.arange(96), 8), torch.arange(96) % 10
    one, loop = (
        train_teachers(dataclasses.replace(task, batched=batched), images, labels, parts, Streams(0)).states
        for batched in (True, False)
    )
    assert max(float(np.abs(one[name] - loop[name]).max()) for name in one) < 1e-4
