"""The control that is matched to a student's accuracy is a state of the control without privacy, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.core.progress import Progress, Stage
from bench.core.seeds import Streams
from bench.core.types import Facts, PrivateData, PublicData, Released
from bench.data.splits import Materialised
from bench.evaluation.attack import reference_models as controls
from bench.evaluation.attack.reference_models import make_control, recipe
from bench.models.build import build
from bench.results.attack_record import Role
from bench.storage import checkpoint
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.loop import accuracy, fit

OPTIONS = {"num_classes": 3, "in_chans": 1, "img_size": 8}


def blobs(count: int, start: int) -> tuple[Tensor, Tensor]:
    """Three classes of 8x8 images: a quarter each that is a little brighter, under noise."""
    labels = torch.arange(count) % 3
    images = torch.randint(0, 200, (count, 1, 8, 8), generator=torch.Generator().manual_seed(start))
    for label, (row, column) in enumerate([(0, 0), (0, 4), (4, 0)]):
        images[labels == label, :, row : row + 4, column : column + 4] += 50
    return images.to(torch.uint8), labels


PRIVATE, TEST = blobs(240, 0), blobs(300, 1)
FACTS = Facts("blobs", 240, 10, 300, 3, (1, 8, 8))
PUBLIC = PublicData(PRIVATE[0][:10], "blobs")
MATERIAL = Materialised(PrivateData(*PRIVATE, FACTS), PUBLIC, PRIVATE[1][:10], *TEST)
STUDENT = Released(build("small_cnn", **OPTIONS), "small_cnn", OPTIONS)


class Stopped(Exception):
    """Stands for a kill."""


class Steps(Progress):
    """Counts the steps of the training, and kills it at one of them."""

    def __init__(self, kill: int | None = None) -> None:
        self.steps, self._kill = 0, kill

    @contextmanager
    def stage(self, name: str, total: int, seconds: float = math.inf) -> Iterator[Stage]:
        yield self

    def advance(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps == self._kill:
            raise Stopped


def made(role: Role, wanted: float = 0.0, *, cache: Cache | None = None, progress: Progress | None = None) -> Released:
    context = Context(torch.device("cpu"), Streams(0), cache or Cache(None, {}), progress or Progress())
    found = make_control(role, STUDENT, wanted, MATERIAL, None, "quick", 0, context)
    assert found is not None
    return found


def weights(released: Released) -> list[bytes]:
    return [value.numpy().tobytes() for value in released.student.state_dict().values()]


def right(released: Released) -> float:
    return accuracy(released.student, *TEST)


@pytest.mark.slow
def test_the_matched_control_is_the_one_without_privacy_stopped() -> None:
    settings, states, accuracies = recipe(FACTS, "quick"), [], []
    streams = Streams(0, "control/non-private/")
    net = controls.fresh(STUDENT, streams)

    def watch(step: int) -> bool:
        states.append([value.numpy().tobytes() for value in net.state_dict().values()])
        accuracies.append(accuracy(net, *TEST))
        return False

    fit(net, *PRIVATE, settings, streams.torch("order"), stop=watch)
    best = max(accuracies)
    assert best > 0.9 > accuracies[0]
    for wanted in (0.0, (accuracies[0] + best) / 2, best):
        first = next(step for step, reached in enumerate(accuracies) if reached >= wanted)
        progress = Steps()
        control = made(Role.MATCHED, wanted, progress=progress)
        assert weights(control) == states[first]
        assert progress.steps == first
        assert right(control) >= wanted
    # What is never reached is the whole training: one optimiser, one schedule, one order.
    assert weights(made(Role.MATCHED, 1.01)) == weights(made(Role.NON_PRIVATE))


def test_the_matched_control_goes_on_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    wanted, whole = right(made(Role.NON_PRIVATE)), Steps()
    expected = made(Role.MATCHED, wanted, progress=whole)
    assert whole.steps > 3
    with pytest.raises(Stopped):
        made(Role.MATCHED, wanted, cache=Cache(tmp_path, {}), progress=Steps(whole.steps - 1))
    said: list[str] = []
    again = made(Role.MATCHED, wanted, cache=Cache(tmp_path, {}, said.append))
    assert weights(again) == weights(expected)
    assert any("resumes where" in line for line in said)


def test_a_control_of_another_version_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, new in ((controls.CONTROL_VERSION, True), (controls.CONTROL_VERSION, False), (-1, True)):
        monkeypatch.setattr(controls, "CONTROL_VERSION", version)
        cache = Cache(tmp_path, {})
        made(Role.PRIOR, cache=cache)
        assert bool(cache.made) == new
