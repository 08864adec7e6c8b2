"""The ratios that are promised. Slow: `pytest -m slow tests/performance -s`; on an accelerator `pytest -m gpu`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from ensembles import Row, Setting, rows_of, table

from bench.ensemble import TeacherTask, train_teachers
from bench.precision import Precision
from bench.seeds import Streams
from bench.training import FitSettings


def close(one: Row, other: Row) -> bool:
    """Whether two means of accuracies differ by no more than four standard errors and half a percent."""
    spread = math.hypot(
        one.deviation / math.sqrt(len(one.accuracies)), other.deviation / math.sqrt(len(other.accuracies))
    )
    return abs(one.mean - other.mean) <= 4 * spread + 0.005


@pytest.mark.slow
def test_on_a_cpu_this_projects_loop_is_not_slower_than_a_plain_one() -> None:
    setting = Setting(data="synthetic", teachers=4, in_loop=4, steps=150)
    rows = rows_of(setting, ["plain loop", "this project's loop"])
    print(table(rows))
    assert rows[1].milliseconds < 1.1 * rows[0].milliseconds
    assert close(*rows)


@pytest.mark.gpu
@pytest.mark.timeout(1800)
def test_on_a_gpu_250_teachers_are_twenty_times_faster_than_a_plain_loop() -> None:
    setting = Setting(
        net="pate_mnist", recipe="published", data="synthetic", teachers=250, in_loop=5, steps=600, batch=128, lr=0.05,
        device="cuda",
    )  # fmt: skip
    rows = rows_of(setting, ["plain loop", "one program", "one program, tf32", "one program, bf16, compiled"])
    print(table(rows))
    # Equal accuracy comes first: a variant that loses some does not count.
    equal = [row for row in rows[1:] if close(rows[0], row)]
    assert max(rows[0].milliseconds / row.milliseconds for row in equal) >= 20


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_on_a_gpu_teachers_stay_apart_to_the_byte(precision: Precision) -> None:
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(96, 1, 28, 28, generator=generator), torch.arange(96) % 10
    parts = np.array_split(np.arange(96), 8)
    task = TeacherTask("pate_mnist", 10, FitSettings(steps=20, batch_size=6), device="cuda", precision=precision)
    wanted = train_teachers(task, images, labels, parts, Streams(0)).states
    for value in (0.5, torch.nan):
        images[parts[3]] = value
        found = train_teachers(task, images, labels, parts, Streams(0)).states
        moved = {n for name in wanted for n in range(8) if wanted[name][n].tobytes() != found[name][n].tobytes()}
        assert moved == {3}
