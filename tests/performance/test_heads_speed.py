"""Teacher heads trained at once against one after another: `pytest -m performance -n 0 -s tests/performance`."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import nn

from bench.core.processes import available_cores
from bench.data.splits import partition
from bench.methods.pate.head_training import HeadTraining
from bench.methods.shared.settings_checks import HeadSettings
from bench.models.frozen_backbone import DenseHead
from bench.training.loop import FitSettings, fit
from helpers.heads import by_autograd

pytestmark = pytest.mark.performance


def test_200_heads_at_once_take_a_tenth_of_a_loop() -> None:
    """Time 200 heads with 200 records each on ResNet-50's 2,048 features, as in the paper, against a loop. Ten heads
    are timed in this project's training loop and in a plain torch loop, and the times are multiplied by twenty.
    """
    teachers, part, width, classes, fitting = 200, 200, 2048, 10, HeadSettings()
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, width, generator=generator) * 0.2
    labels = torch.randint(0, classes, (teachers * part,), generator=generator)
    features = nn.functional.layer_norm(
        centres[labels] + torch.randn(len(labels), width, generator=generator), (width,)
    )
    asked_labels = torch.randint(0, classes, (1_000,), generator=generator)
    asked = nn.functional.layer_norm(
        centres[asked_labels] + torch.randn(1_000, width, generator=generator), (width,)
    )  # fmt: skip
    parts = partition(len(labels), teachers, "benchmark")

    def accuracy(logits: torch.Tensor) -> float:
        return float((logits.argmax(-1) == asked_labels).float().mean())

    begun = time.perf_counter()
    seeded = torch.Generator().manual_seed(1)
    every = list(HeadTraining(features, labels, parts, classes, fitting, seeded).heads(available_cores()))
    together = time.perf_counter() - begun
    # The accuracy of the ten heads that the loops train.
    ten = [logits for heads in every for logits in heads.logits(asked)][:10]
    found = np.mean([accuracy(logits) for logits in ten])
    begun, single = time.perf_counter(), []
    for part_of in parts[:10]:
        single.append(by_autograd(features[part_of], labels[part_of], classes, fitting, 1))
    plain = (time.perf_counter() - begun) * teachers / 10
    begun, ours = time.perf_counter(), []
    for part_of in parts[:10]:
        settings_ = FitSettings(epochs=50, batch_size=32, lr=0.1, momentum=0.0)
        ours.append(
            fit(DenseHead(width, 256, classes), features[part_of], labels[part_of], settings_, torch.Generator())
        )
    loop = (time.perf_counter() - begun) * teachers / 10
    alone = np.mean([accuracy(head(asked)) for head in single])
    fitted = np.mean([accuracy(head(asked)) for head in ours])
    print(
        f"\n200 heads at once: {together:.1f} s, {100 * found:.2f}%; one by one by torch: {plain:.0f} s "
        f"({plain / together:.0f} times), {100 * alone:.2f}%; by bench.training.loop.fit: {loop:.0f} s "
        f"({loop / together:.0f} times), {100 * fitted:.2f}%"
    )
    assert abs(found - alone) < 1e-3
    assert abs(found - fitted) < 0.01
    assert min(plain, loop) > 10 * together
