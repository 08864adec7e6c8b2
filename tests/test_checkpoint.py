"""A stage that is stopped and goes on ends as one that was not, to the byte."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bench import checkpoint as module
from bench.cache import Cache
from bench.checkpoint import Checkpoint, Loop, MismatchError, flatten, restore
from bench.gans import GanSettings, train_gan
from bench.models.classifiers import build
from bench.models.generators import DenseGenerator
from bench.self_training import SelfTrainingSettings, train_self_trained
from bench.semi_supervised import ImprovedGANSettings, train_improved_gan
from bench.training import Batches, FitSettings, fit, seeded

CLASSES = 3


class Stopped(Exception):
    """Stands for a kill."""


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


@pytest.fixture(autouse=True)
def at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.0)


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


@pytest.mark.parametrize("make", [dropout_net, net])
@pytest.mark.parametrize("name", FITS)
def test_fit_goes_on_to_the_byte(name: str, make: Callable[[], nn.Module], tmp_path: Path) -> None:
    images, labels = blobs(30)

    def train(stage: Stage, saved: Checkpoint | None) -> nn.Module:
        return fit(make(), images, labels, FITS[name], seed(1), stage=stage, checkpoint=saved)

    check_resumes(train, tmp_path)


def test_improved_gan_goes_on_to_the_byte(tmp_path: Path) -> None:
    (images, labels), (pool, _) = blobs(12), blobs(50, start=1)
    settings = ImprovedGANSettings(epochs=6, batch_size=20, start_images=20, shift=1)

    def train(stage: Stage, saved: Checkpoint | None) -> nn.Module:
        student = net("salimans_mlp", widths=(16, 8))
        with seeded(seed(0)):
            generator = DenseGenerator(1, 8, 8, units=16)
        order = seed(1)
        train_improved_gan(student, generator, images, labels, pool, settings, order, stage=stage, checkpoint=saved)
        return nn.ModuleList([student, generator])

    check_resumes(train, tmp_path)


@pytest.mark.parametrize("graph_below", [0, 20])
def test_self_training_goes_on_within_each_phase(graph_below: int, tmp_path: Path) -> None:
    (images, labels), (pool, _) = blobs(12), blobs(30, start=1)
    short = FitSettings(steps=5, batch_size=6, shift=1)
    settings = SelfTrainingSettings(short, short, committee=2, rounds=2, views=2, graph_below=graph_below)

    def train(stage: Stage, saved: Checkpoint | None) -> nn.Module:
        start = seed(2)

        def make() -> nn.Module:
            with seeded(start):
                return build("small_cnn", CLASSES, 1, 8, width=4)

        return train_self_trained(make, images, labels, pool, CLASSES, settings, seed(1), stage=stage, checkpoint=saved)

    check_resumes(train, tmp_path, stops=6)


@pytest.mark.parametrize("kind", ["acgan", "wgan", "infogan"])
def test_gans_go_on_to_the_byte(kind: Any, tmp_path: Path) -> None:
    images, labels = blobs(13)
    settings = GanSettings(steps=6, batch_size=4, width=4, noise_size=4, critic_steps=2)

    def train(stage: Stage, saved: Checkpoint | None) -> nn.Module:
        return train_gan(kind, images, labels, CLASSES, settings, seed(1), stage=stage, checkpoint=saved)

    check_resumes(train, tmp_path, stops=2)
