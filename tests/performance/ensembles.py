"""What training an ensemble of small nets costs: a plain loop, this project's loop, and many teachers as one program.

    python tests/performance/ensembles.py                        # the quick preset's teachers, on a CPU
    python tests/performance/ensembles.py --net pate_mnist --recipe published --batch 128
    python tests/performance/ensembles.py --device cuda --net pate_mnist --recipe published --batch 128 --teachers 250
    python tests/performance/ensembles.py --device cuda --teachers 250 --at-least 20   # fails where no variant is

All variants train the same teachers, from the same starts on the same batches, each variant in a process of its own.
The plain loop is the obvious first version: a net, float images, torch's default optimiser, one teacher after another.
Times are per step and teacher and include building the nets; on a CPU they are times of one core, whatever else runs
there. Accuracy is that of single teachers on public images: mean and deviation over the teachers.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.core.precision import arithmetic
from bench.core.seeds import Streams, seeded
from bench.core.transforms import shifted
from bench.core.types import Facts
from bench.data.datasets import load
from bench.data.splits import materialise, split
from bench.methods.pate.pate import PATEConfig
from bench.methods.shared.teachers import augmented_settings
from bench.models.build import build
from bench.training import stacked_convolution
from bench.training.ensemble import Ensemble, train_teachers
from bench.training.heap import tune_malloc
from bench.training.loop import Batches, predict
from bench.training.teacher import Arrays, Labels, TeacherTask, train_teacher


@dataclasses.dataclass(frozen=True)
class Setting:
    """The setting. Loops train only `in_loop` teachers, because each costs the same."""

    net: str = "small_cnn"
    recipe: Literal["augmented", "published"] = "augmented"
    data: str = "mnist"
    teachers: int = 20
    in_loop: int = 20
    records: int = 240
    steps: int = 240
    batch: int = 60
    lr: float = 0.1
    device: str = "cpu"

    def task(self, **changes: object) -> TeacherTask:
        facts = Facts("speed", 60_000, 9_000, 0, 10, (1, 28, 28), public_benchmark=True)
        if self.recipe == "augmented":
            settings = augmented_settings(self.steps, self.batch, self.lr, facts)
        else:
            config = PATEConfig(teacher_steps=self.steps, teacher_batch=self.batch, teacher_lr=self.lr)
            settings = config.teacher_settings(self.records, facts)
        options: dict[str, object] = {"device": self.device, "batched": False, **changes}
        return TeacherTask(self.net, 10, settings, **options)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Row:
    """Measurements of one variant."""

    name: str
    milliseconds: float
    votes: float
    accuracies: list[float]
    memory: float

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0


@dataclasses.dataclass(frozen=True)
class Data:
    images: Tensor
    labels: Tensor
    queries: Tensor
    truth: Tensor
    parts: list[Labels]


def data_of(setting: Setting) -> Data:
    """Return private records cut to parts, and 1,000 public images with their labels."""
    count = setting.teachers * setting.records
    if setting.data == "synthetic":
        images, labels = synthetic(count + 1000)
        queries, truth = images[count:], labels[count:]
    else:
        loaded = load(setting.data, fetch=False)
        every = materialise(loaded, split(loaded))
        images, labels = every.private.images, every.private.labels
        queries, truth = every.public.images[:1000], every.public_labels[:1000]
    order = np.random.default_rng(0).permutation(min(count, len(images)))
    return Data(images, labels, queries, truth, [np.sort(part) for part in np.array_split(order, setting.teachers)])


def synthetic(count: int) -> tuple[Tensor, Tensor]:
    """Return images (count, 1, 28, 28) of ten coarse patterns, moved and under noise, where MNIST is not at hand."""
    generator = torch.Generator().manual_seed(0)
    patterns = functional.interpolate(torch.rand(10, 1, 7, 7, generator=generator), scale_factor=4)
    labels = torch.randint(0, 10, (count,), generator=generator)
    clean = torch.cat([shifted(patterns[rows], 3, generator) for rows in torch.split(labels, 10_000)])
    noisy = clean + 1.0 * torch.randn(clean.shape, generator=generator)
    return (noisy.clamp(0, 1) * 255).to(torch.uint8), labels


def plain(setting: Setting, data: Data) -> tuple[list[nn.Module], Callable[[], Labels]]:
    """Train with the plain loop."""
    task, nets = setting.task(), []
    settings, device = task.settings, torch.device(setting.device)
    for number in range(setting.in_loop):
        streams, part = Streams(0).child(f"teacher-{number}"), torch.from_numpy(data.parts[number])
        with seeded(streams.torch("weights")):
            net = build(task.model, 10, 1, 28).to(device).train()
        images, labels = (data.images[part].float() / 255).to(device), data.labels[part].to(device)
        order = streams.torch("order")
        optimizer = torch.optim.SGD(
            net.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay,
            nesterov=settings.nesterov,
        )  # fmt: skip
        dense = [layer.weight for layer in net.modules() if isinstance(layer, nn.Linear)][:-1]
        average = [p.detach().clone() for p in net.parameters()]
        batches = Batches(len(part), settings.batch_size, order if settings.order == "shuffle" else None)
        torch.randint(0, 2**62, (), generator=order)  # so that batches and shifts are those of the other variants
        for step in range(setting.steps):
            index = next(batches).to(device)
            batch = shifted(images[index], settings.shift, order) if settings.shift else images[index]
            loss = functional.cross_entropy(net(batch), labels[index], label_smoothing=settings.label_smoothing)
            for weight in dense:
                loss = loss + 0.5 * settings.dense_decay * (weight**2).sum()
            for group in optimizer.param_groups:
                group["lr"] = settings.rate(step, setting.steps)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if settings.ema is not None:
                decay = min(settings.ema, (1 + step) / (10 + step))
                with torch.no_grad():
                    for mean, parameter in zip(average, net.parameters(), strict=True):
                        mean.mul_(decay).add_(parameter, alpha=1 - decay)
        if settings.ema is not None:
            with torch.no_grad():
                for mean, parameter in zip(average, net.parameters(), strict=True):
                    parameter.copy_(mean)
        nets.append(net.eval())
    return nets, lambda: np.stack([predict(net, data.queries, device=device).argmax(1).numpy() for net in nets])


def loop(setting: Setting, data: Data, task: TeacherTask) -> tuple[object, Callable[[], Labels]]:
    """Train with this project's loop."""
    made: list[Arrays] = []
    for number in range(setting.in_loop):
        part = torch.from_numpy(data.parts[number])
        made.append(train_teacher(task, data.images[part], data.labels[part], Streams(0).child(f"teacher-{number}")))
    ensemble = Ensemble(task, (1, 28, 28), {name: np.stack([state[name] for state in made]) for name in made[0]})
    return ensemble, lambda: ensemble.labels(data.queries)


def program(data: Data, task: TeacherTask) -> tuple[object, Callable[[], Labels]]:
    """Train all teachers as one program."""
    ensemble = train_teachers(task, data.images, data.labels, data.parts, Streams(0))
    return ensemble, lambda: ensemble.labels(data.queries)


VARIANTS = {
    "plain loop": {},
    "this project's loop": {"precision": "float32"},
    "this project's loop, bf16": {"precision": "bf16"},
    "one program": {"batched": True},
    "one program, tf32": {"batched": True, "precision": "tf32"},
    "one program, bf16": {"batched": True, "precision": "bf16"},
    "one program, bf16, grouped": {"batched": True, "precision": "bf16"},
}


def measure(setting: Setting, name: str) -> Row:
    """Train and ask the teachers of one variant; in a fresh process."""
    on_gpu = torch.device(setting.device).type == "cuda"
    if not on_gpu:
        torch.set_num_threads(1)
    if name != "plain loop":
        tune_malloc()

    def train(setting: Setting, data: Data) -> tuple[object, Callable[[], Labels]]:
        if name == "plain loop":
            return plain(setting, data)
        task = setting.task(**VARIANTS[name])
        if "grouped" in name:  # torch's own way for all convolutions
            stacked_convolution.LARGE = math.inf
        with arithmetic(task.precision, task.device):
            return program(data, task) if task.batched else loop(setting, data, task)

    data = data_of(setting)
    # Exclude one-time work: choosing kernels for these shapes.
    train(dataclasses.replace(setting, in_loop=1, steps=3), data)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    clock = time.perf_counter if on_gpu else time.process_time
    begin = clock()
    _, ask = train(setting, data)
    trained = clock() - begin
    begin = clock()
    labels = ask()
    asked = clock() - begin
    right = (torch.from_numpy(labels) == data.truth).double().mean(1)
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Row(
        name, 1e3 * trained / len(labels) / setting.steps, 1e3 * asked / len(labels), right.tolist(), peak / 2**20
    )


def rows_of(setting: Setting, names: Sequence[str]) -> list[Row]:
    """Measure the variants `names`, one after the other, each in a process of its own, and print what is found."""
    context = multiprocessing.get_context("spawn")
    rows: list[Row] = []
    print(TITLES, "-" * len(TITLES), sep="\n", flush=True)
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        for name in names:
            rows.append(pool.submit(measure, setting, name).result())
            print(line_of(rows[-1], rows[0]), flush=True)
    return rows


def variants_for(device: str) -> list[str]:
    """Return the variants that a device has."""
    on_gpu = torch.device(device).type == "cuda"
    return [name for name in VARIANTS if on_gpu or not ("tf32" in name or "grouped" in name)]


def close(one: Row, other: Row) -> bool:
    """Whether two means of accuracies differ by no more than four standard errors and half a percent."""
    spread = math.hypot(
        one.deviation / math.sqrt(len(one.accuracies)), other.deviation / math.sqrt(len(other.accuracies))
    )
    return abs(one.mean - other.mean) <= 4 * spread + 0.005


def aligned(*cells: str) -> str:
    """Return `cells` as one line of the table."""
    widths = (-30, 15, 6, 13, 14, 9)
    return " ".join(cell.ljust(-w) if w < 0 else cell.rjust(w) for cell, w in zip(cells, widths, strict=True))


TITLES = aligned("variant", "ms/teacher-step", "ratio", "ms/1000 votes", "accuracy in %", "peak MiB")


def line_of(row: Row, first: Row) -> str:
    """Return `row` as a line of the table; its ratio is to `first`."""
    ratio, accuracy = first.milliseconds / row.milliseconds, f"{100 * row.mean:.2f} ± {100 * row.deviation:.2f}"
    numbers = (f"{row.milliseconds:.3f}", f"{ratio:.2f}", f"{row.votes:.1f}", accuracy, f"{row.memory:.0f}")
    return aligned(row.name, *numbers)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in dataclasses.fields(Setting):
        default = None if field.name == "in_loop" else field.default
        kind = int if field.name == "in_loop" else type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=default)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, help="none but these; ratios are to the first")
    parser.add_argument("--at-least", type=float, default=0.0, help="ratio that one variant must reach")
    given = vars(parser.parse_args())
    wanted, names = given.pop("at_least"), given.pop("variants")
    given["in_loop"] = given["in_loop"] or min(20, given["teachers"])
    setting = Setting(**given)
    print(", ".join(f"{name} {value}" for name, value in given.items()), f"torch {torch.__version__}", flush=True)
    rows = rows_of(setting, names or variants_for(setting.device))
    # Equal accuracy comes first: a variant that loses accuracy does not count.
    best = max(rows[0].milliseconds / row.milliseconds for row in rows if close(rows[0], row))
    print(f"largest ratio at equal accuracy: {best:.2f}" + (f", wanted {wanted:g}" if wanted else ""))
    if best < wanted:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
