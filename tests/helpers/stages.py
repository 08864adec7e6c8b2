"""Stages that are stopped and resumed, on small nets and blobs."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.core.seeds import seeded
from bench.models.build import build
from bench.storage.cache import Cache
from bench.storage.checkpoint import Checkpoint
from bench.training.loop import FitSettings

CLASSES = 3


class Stopped(Exception):
    """Simulates a kill."""


class Stage:
    """A progress stage that counts, and stops the training at one step."""

    def __init__(self, stop: int | None = None) -> None:
        self.steps, self._stop = 0, stop

    def advance(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps == self._stop:
            raise Stopped


Train = Callable[[Stage, Checkpoint | None], nn.Module]
"""Runs a whole stage from its start, with its own generators, and returns what comes of it."""


def seed(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def blobs(count: int, start: int = 0) -> tuple[Tensor, Tensor]:
    generator = seed(start)
    labels = torch.arange(count) % CLASSES
    return torch.randint(0, 256, (count, 1, 8, 8), generator=generator).to(torch.uint8), labels


def net(name: str = "small_cnn", **options: Any) -> nn.Module:
    with seeded(seed(0)):
        return build(name, CLASSES, 1, 8, **options)


def dropout_net() -> nn.Module:
    with seeded(seed(0)):
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(),
            nn.Dropout(0.5), nn.Linear(144, CLASSES),
        )  # fmt: skip


def everything(made: nn.Module) -> list[bytes]:
    return [value.numpy().tobytes() for value in made.state_dict().values()]


def check_resumes(train: Train, root: Path, stops: int = 3, number: int = 0) -> None:
    """Stop `train` at random steps, one after the other, and compare with a run that was not stopped."""
    whole = Stage()
    expected = everything(train(whole, None))
    moments = sorted(random.Random(number).sample(range(2, whole.steps), stops))
    said: list[str] = []
    for moment in moments:
        before = torch.get_rng_state()
        with pytest.raises(Stopped), Checkpoint(Cache(root, {}, said.append), "stage", {}) as saved:
            train(Stage(moment), saved)
        torch.set_rng_state(before)
    assert len(list(root.glob("checkpoint-stage-*.safetensors"))) == 1
    stage = Stage()
    with Checkpoint(Cache(root, {}, said.append), "stage", {}) as saved:
        made = train(stage, saved)
    assert everything(made) == expected
    assert stage.steps == whole.steps
    assert len(said) == stops  # it went on each time but the first
    assert not list(root.iterdir())


FITS = {
    "momentum": FitSettings(steps=12, batch_size=8, lr=0.05),
    "nesterov": FitSettings(steps=12, batch_size=8, nesterov=True, weight_decay=0.01, schedule="linear"),
    "plain": FitSettings(steps=12, batch_size=8, momentum=0.0, schedule="staircase", decay_steps=3),
    "adam": FitSettings(steps=12, batch_size=8, optimizer="adam", lr=0.003),
    "ema": FitSettings(steps=12, batch_size=8, ema=0.99, dense_decay=0.01),
    "shift": FitSettings(epochs=3, batch_size=7, shift=2, label_smoothing=0.1),
    "sequential": FitSettings(steps=12, batch_size=8, order="sequential"),
}
