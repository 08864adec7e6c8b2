"""Many teachers as one program: the loop's weights up to rounding, and each teacher independent to the byte."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.core.errors import BenchError
from bench.core.precision import Precision, arithmetic, check_precision
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Facts, PrivateData
from bench.methods.pate.pate import PATEConfig
from bench.methods.shared.teachers import ensemble_depends, train_ensemble
from bench.models.build import build
from bench.storage.cache import Cache
from bench.training import vectorised as batched
from bench.training.context import Context
from bench.training.early_stopping import Settle, Settling
from bench.training.ensemble import train_teachers
from bench.training.loop import FitSettings, fit
from bench.training.teacher import Arrays, Labels, TeacherTask
from bench.training.vectorised import evenly, fitting, train_together, why_not

TEACHERS = 5
SETTINGS = {
    "nesterov": FitSettings(
        steps=30, batch_size=5, shift=1, label_smoothing=0.1, nesterov=True, weight_decay=1e-3, lr=0.02
    ),
    "published": FitSettings(
        steps=17, batch_size=5, order="sequential", ema=0.99, dense_decay=0.01, schedule="staircase", decay_steps=5,
        momentum=0.0, shift=2,
    ),
    "adam": FitSettings(epochs=3, batch_size=8, optimizer="adam", lr=0.01, schedule="linear"),
}  # fmt: skip
Data = tuple[Tensor, Tensor, Tensor, list[Labels]]


@pytest.fixture(scope="module")
def data() -> Data:
    """61 records for five teachers, so that one has an extra record, and public images."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(61) % 3
    images = torch.randint(0, 256, (161, 1, 8, 8), dtype=torch.uint8, generator=generator)
    for label in range(3):
        images[:61][labels == label, :, label * 2 : label * 2 + 2] //= 4
    return images[:61], labels, images[61:], np.array_split(np.random.default_rng(0).permutation(61), TEACHERS)


def task(settings: FitSettings, *, together: bool = True, precision: Precision = "float32") -> TeacherTask:
    return TeacherTask("small_cnn", 3, settings, {"width": 4}, batched=together, precision=precision)


def streams() -> list[Streams]:
    return [Streams(3).child(f"teacher-{number}") for number in range(TEACHERS)]


def allow(teachers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no more `teachers` than these fit the memory."""
    monkeypatch.setattr("bench.training.ensemble.fitting", lambda *_: teachers)


def furthest(one: Arrays, other: Arrays) -> float:
    assert list(one) == list(other)
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def same(one: Arrays, other: Arrays, number: int) -> bool:
    return all(one[name][number].tobytes() == other[name][number].tobytes() for name in one)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SETTINGS)
def test_one_program_trains_the_teachers_of_the_loop(data: Data, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels, queries, parts = data
    loop = train_teachers(task(SETTINGS[name], together=False), images, labels, parts, Streams(3))
    rounding = 1e-3 if name == "adam" else 1e-6  # Adam divides by gradients that may be tiny
    for chunk, at_once in ((10, None), (2, 2), (1, 99)):
        if at_once is not None:
            allow(at_once, monkeypatch)
        found = train_teachers(task(SETTINGS[name]), images, labels, parts, Streams(3), chunk=chunk)
        assert furthest(loop.states, found.states) < rounding
        assert torch.allclose(loop.logits(queries), found.logits(queries), atol=1e-4)
        assert np.mean(loop.labels(queries) == found.labels(queries)) > 0.99
    assert furthest(loop.states, train_teachers(task(SETTINGS[name]), images, labels, parts, Streams(4)).states) > 1e-2


@pytest.mark.parametrize("name", SETTINGS)
def test_the_records_of_one_teacher_move_no_byte_of_another(data: Data, name: str) -> None:
    images, labels, _, parts = data
    wanted = train_together(task(SETTINGS[name]), images, labels, parts, streams())
    for teacher in (0, 3):
        other_images, other_labels = images.clone(), labels.clone()
        other_images[parts[teacher]] = 255 - other_images[parts[teacher]]
        other_labels[parts[teacher]] = 0
        found = train_together(task(SETTINGS[name]), other_images, other_labels, parts, streams())
        assert [n for n in range(TEACHERS) if not same(wanted, found, n)] == [teacher]


def test_a_teacher_that_is_no_longer_finite_stays_alone(data: Data) -> None:
    images, labels, queries, parts = data
    floats = images.float() / 255
    wanted = train_together(task(SETTINGS["published"]), floats, labels, parts, streams())
    floats[parts[2][0]] = torch.nan
    found = train_teachers(task(SETTINGS["published"]), floats, labels, parts, Streams(3))
    assert [n for n in range(TEACHERS) if not same(wanted, found.states, n)] == [2]
    assert all(np.isnan(array[2]).all() for array in found.states.values())
    logits = found.logits(queries)
    assert [n for n in range(TEACHERS) if bool(logits[n].isfinite().all())] == [0, 1, 3, 4]


def test_only_missing_chunks_are_trained_and_many_at_once(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels, _, parts = data
    stored: dict[tuple[int, int], Arrays] = {}
    trained: list[list[int]] = []
    train = batched.train_together

    def watch(*args: object, **options: object) -> Arrays:
        trained.append([int(stream.prefix.split("-")[1].rstrip("/")) for stream in args[4]])  # type: ignore[attr-defined]
        return train(*args, **options)  # type: ignore[arg-type]

    def keep(first: int, last: int, make: Callable[[], Arrays]) -> Arrays:
        stored[first, last] = make()
        return stored[first, last]

    def ensemble(at_once: int) -> Arrays:
        allow(at_once, monkeypatch)
        return train_teachers(
            task(SETTINGS["published"]), images, labels, parts, Streams(3), chunk=1, keep=keep,
            find=lambda first, last: stored.get((first, last)),
        ).states  # fmt: skip

    monkeypatch.setattr("bench.training.ensemble.train_together", watch)
    whole = ensemble(99)
    assert trained == [[0, 1, 2, 3, 4]]
    assert sorted(stored) == [(n, n + 1) for n in range(TEACHERS)]
    del stored[1, 2], stored[3, 4], stored[4, 5]
    trained.clear()
    assert furthest(whole, ensemble(2)) < 3e-7
    assert trained in ([[1], [3, 4]], [[1, 3], [4]])
    trained.clear()
    assert furthest(whole, ensemble(2)) < 3e-7
    assert trained == []


def test_the_display_follows_a_program_of_many_teachers(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels, _, parts = data
    shown: list[int] = []

    class Shown:
        def advance(self, steps: int = 1) -> None:
            shown.append(steps)

    allow(3, monkeypatch)
    train_teachers(task(SETTINGS["published"]), images, labels, parts, Streams(3), stage=Shown())
    assert sum(shown) == TEACHERS
    assert shown.count(1) == TEACHERS  # one after the other, although three and two of them train together


def test_a_net_that_cannot_be_batched_is_trained_in_the_loop_and_said_so(data: Data) -> None:
    images, labels, queries, parts = data
    settings = FitSettings(steps=3, batch_size=5)
    said: list[str] = []
    noisy = TeacherTask("salimans_mlp", 3, settings, {"widths": (8,)}, batched=True)
    found = train_teachers(noisy, images, labels, parts, Streams(3), say=said.append)
    assert said == ["teachers are trained one after the other: the net draws random numbers while it is trained"]
    loop = train_teachers(dataclasses.replace(noisy, batched=False), images, labels, parts, Streams(3))
    assert furthest(loop.states, found.states) == 0
    assert np.array_equal(found.labels(queries), loop.labels(queries))
    state = torch.get_rng_state()
    assert "statistics" in why_not(TeacherTask("resnet18", 3, settings), (1, 32, 32))
    assert "random" in why_not(TeacherTask("resnet18", 3, settings, {"drop_rate": 0.5}), (1, 32, 32))
    assert why_not(TeacherTask("pate_mnist", 3, settings), (1, 28, 28)) == ""
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(BenchError, match="random numbers"):
        train_together(noisy, images, labels, parts, streams())
    assert not TeacherTask("small_cnn", 3, settings).together
    assert TeacherTask("small_cnn", 3, settings, device="cuda").together
    assert not TeacherTask("small_cnn", 3, settings, device="cuda", devices=("cuda:0", "cuda:1")).together


def test_what_does_not_fit_the_memory_is_trained_in_halves(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels, _, parts = data
    wanted = train_together(task(SETTINGS["adam"]), images, labels, parts, streams())
    sizes: list[int] = []
    train = batched.train_group

    def small(*args: object) -> Arrays:
        sizes.append(len(args[3]))  # type: ignore[arg-type]
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError("no memory")
        return train(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(batched, "train_group", small)
    assert furthest(wanted, train_together(task(SETTINGS["adam"]), images, labels, parts, streams())) < 1e-3
    assert sorted(sizes) == [1, 2, 2, 4]
    assert evenly(list(range(7)), 3) == [[0, 1], [2, 3, 4], [5, 6]]
    assert evenly([4, 5], 99) == [[4, 5]]


def test_more_memory_takes_more_teachers(monkeypatch: pytest.MonkeyPatch) -> None:
    net = TeacherTask("pate_mnist", 10, FitSettings(steps=1))
    fits = []
    for gigabytes in (0, 16, 160):
        monkeypatch.setattr(batched, "free_memory", lambda device, size=gigabytes: size << 30)
        fits.append(fitting(net, (1, 28, 28), 240))
    assert fits[0] == 1
    # A teacher keeps at least about 128 * (784 + 196 * 7) * 64 values, and fewer than ten times as many.
    assert 10 < fits[1] < 100
    assert fits[2] == pytest.approx(10 * fits[1], abs=10)
    assert fitting(net, (1, 28, 28), 24) > 3 * fits[2]


@pytest.mark.slow
def test_early_stopping_looks_at_public_images_and_each_net_alone(data: Data) -> None:
    images, labels, queries, parts = data
    rule = Settle(looks=2, every=5, share=0.2)  # so large that rounding changes no decision
    settings = FitSettings(steps=200, batch_size=5, ema=0.9, shift=1, settle=rule)
    loop = train_teachers(task(settings, together=False), images, labels, parts, Streams(3), watched=queries)
    found = train_teachers(task(settings), images, labels, parts, Streams(3), watched=queries)
    assert furthest(loop.states, found.states) < 1e-4
    whole = train_teachers(task(dataclasses.replace(settings, settle=None)), images, labels, parts, Streams(3))
    assert furthest(whole.states, found.states) > 1e-2
    changed = labels.clone()
    changed[parts[1]] = 1  # only one class, so it settles at once
    other = train_teachers(task(settings), images, changed, parts, Streams(3), watched=queries)
    assert [n for n in range(TEACHERS) if not same(other.states, found.states, n)] == [1]
    with pytest.raises(BenchError, match="public images to watch"):
        train_teachers(task(settings), images, labels, parts, Streams(3))


def test_a_net_has_settled_after_enough_calm_looks() -> None:
    follow = Settling(Settle(looks=2, every=3, share=0.25), nets=2)
    assert [step for step in range(9) if follow.due(step)] == [2, 5, 8]
    looks = [
        ([0, 0, 0, 0], [0, 0, 0, 0]),
        ([0, 0, 0, 1], [0, 0, 1, 1]),
        ([0, 0, 0, 1], [0, 0, 1, 1]),
        ([1, 1, 1, 0], [0, 0, 1, 1]),
    ]
    found = [follow.look(torch.tensor(labels)).tolist() for labels in looks]
    assert found == [[False, False], [False, False], [True, False], [False, True]]


def test_a_training_that_settles_takes_fewer_steps(data: Data) -> None:
    images, labels, queries, _ = data
    steps = 0

    class Count:
        def advance(self, more: int = 1) -> None:
            nonlocal steps
            steps += more

    settings = FitSettings(steps=500, batch_size=61, settle=Settle(looks=2, every=10, share=0.05))
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = build("small_cnn", 3, 1, 8, width=4)
    fit(model, images, labels, settings, torch.Generator().manual_seed(0), watched=queries, stage=Count())
    assert 30 <= steps < 200
    assert steps % 10 == 0


def test_names_of_artefacts_stay_what_they_were() -> None:
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    facts = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28), public_benchmark=True)
    private = PrivateData(torch.zeros(500, 1, 28, 28, dtype=torch.uint8), torch.zeros(500, dtype=torch.int64), facts)
    text = (
        "FitSettings(steps=3000, epochs=None, batch_size=128, optimizer='sgd', lr=0.05, momentum=0.0, nesterov=False, "
        "weight_decay=0.0, dense_decay=0.004, schedule='staircase', decay_steps=5, decay_factor=0.1, "
        "order='sequential', ema=0.9999, label_smoothing=0.0, shift=0)"
    )
    named = {
        "partition": "mnist/teachers/0", "teachers": 250, "net": "pate_mnist", "settings": text, "seed": 0,
        "device": "cpu",
    }  # fmt: skip
    assert ensemble_depends(PATEConfig(), private, context) == named
    context.precision = "bf16"
    assert ensemble_depends(PATEConfig(), private, context) == {**named, "precision": "bf16"}
    context.precision, context.device = "float32", torch.device("cuda")
    assert ensemble_depends(PATEConfig(), private, context) == {**named, "device": "cuda", "batched": batched.VERSION}
    context.devices = ("cuda:0", "cuda:1")
    assert ensemble_depends(PATEConfig(), private, context) == {**named, "device": "cuda", "devices": 2}
    assert "settle=Settle(" in repr(FitSettings(steps=1, settle=Settle()))


def test_precision_reaches_the_teachers(data: Data) -> None:
    images, labels, _, parts = data
    found = {}
    for precision in ("float32", "bf16"):
        for together in (False, True):
            one = task(SETTINGS["nesterov"], together=together, precision=precision)  # type: ignore[arg-type]
            found[precision, together] = train_teachers(one, images, labels, parts, Streams(3)).states
    for together in (False, True):
        assert 1e-4 < furthest(found["float32", together], found["bf16", together]) < 0.2
    assert furthest(found["bf16", False], found["bf16", True]) < 0.2
    context = Context(torch.device("cpu"), Streams(3), Cache(None, {}), Progress())
    context.precision = "bf16"
    facts = Facts("digits", 61, 100, 10, 3, (1, 8, 8), public_benchmark=True)
    config = PATEConfig(teachers=5, teacher="small_cnn", teacher_steps=3)
    assert train_ensemble(config, PrivateData(images, labels, facts), context).task.precision == "bf16"
    context.precision = "tf32"
    with pytest.raises(BenchError, match="CUDA devices"):
        train_ensemble(config, PrivateData(images, labels, facts), context)
    with pytest.raises(BenchError, match="one of float32"):
        check_precision("half", "cpu")  # type: ignore[arg-type]


def test_all_large_products_are_short_in_bf16() -> None:
    net, seen = build("small_cnn", 3, 1, 8, width=4), []
    for layer in net.modules():
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            layer.register_forward_hook(lambda layer, given, result: seen.append(result.dtype))
    weights = {name: torch.stack([weight.detach()] * 2) for name, weight in net.named_parameters()}
    for bf16 in (True, False):
        seen.clear()
        batched.outputs_of(net, weights, {}, torch.rand(2, 5, 1, 8, 8), bf16=bf16)
        assert seen == [torch.bfloat16 if bf16 else torch.float32] * 4


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_float32_on_a_gpu_is_float32(precision: Precision) -> None:
    def switches() -> tuple[bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    before = switches()
    with arithmetic(precision, "cuda"):
        assert switches() == (precision != "float32",) * 2
    with arithmetic(precision, "cpu"):
        assert switches() == before
    assert switches() == before
