"""The cost of a private step against a plain step of the same net: `python tests/performance/cost.py`.

Times are the least of some steps, which all ways take in turns in one process: processor time of one core, or wall time
on a GPU. Memory is what a step needs beyond the data and the net, each way in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.models.classifiers import tanh_cnn_mnist
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun, train
from bench.training.heap import tune_malloc

NOISE, NORM, STEPS = 1.0, 0.1, 12
Step = Callable[[Tensor, Tensor], None]


def scattering_linear() -> nn.Module:
    """A linear head on scattering features: 40,000 weights."""
    return nn.Sequential(nn.GroupNorm(27, 81, affine=False), nn.Flatten(), nn.Linear(3969, 10))


def scattering_cnn() -> nn.Module:
    """The net of Tramer and Boneh (2021) on scattering features."""
    return nn.Sequential(
        nn.GroupNorm(27, 81, affine=False), nn.Conv2d(81, 16, 3, 2, 1), nn.Tanh(), nn.Conv2d(16, 32, 3, 1, 1),
        nn.Tanh(), nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


def vit() -> nn.Module:
    """A vision transformer of 16 patches."""
    import timm

    return timm.create_model("test_vit", img_size=28, patch_size=7, in_chans=1, num_classes=10)


NETS: dict[Callable[[], nn.Module], tuple[int, ...]] = {
    scattering_linear: (81, 7, 7), tanh_cnn_mnist: (1, 28, 28), scattering_cnn: (81, 7, 7), vit: (1, 28, 28),
}  # fmt: skip
"""Nets with the shape of an input."""


def descent(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimiser of all ways."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain(net: nn.Module, count: int) -> Step:
    """Return a step without privacy."""
    optimizer = descent(net.parameters())

    def step(images: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        cross_entropy(net(images), labels).backward()
        optimizer.step()

    return step


def hooks(net: nn.Module, count: int) -> Step:
    """Return a step of Opacus with the gradients of all examples in memory."""
    module = GradSampleModule(net)
    optimizer = DPOptimizer(
        descent(net.parameters()), noise_multiplier=NOISE, max_grad_norm=NORM, expected_batch_size=count
    )

    def step(images: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        cross_entropy(module(images), labels).backward()
        optimizer.step()

    return step


def ghost(net: nn.Module, count: int) -> Step:
    """Return a step of Opacus with ghost clipping: norms first, then a second pass of the weighted loss."""
    module = GradSampleModuleFastGradientClipping(net, max_grad_norm=NORM, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        descent(net.parameters()), noise_multiplier=NOISE, max_grad_norm=NORM, expected_batch_size=count
    )
    loss = DPLossFastGradientClipping(module, optimizer, nn.CrossEntropyLoss())

    def step(images: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        loss(module(images), labels).backward()
        optimizer.step()

    return step


def noise(net: nn.Module, count: int) -> Step:
    """Return a step that only draws our noise: no private step with a Gaussian per weight takes less."""
    randomness, shapes = np.random.default_rng(0), [parameter.shape for parameter in net.parameters()]

    def step(images: Tensor, labels: Tensor) -> None:
        for shape in shapes:
            randomness.standard_normal(shape, dtype=np.float32)

    return step


OTHERS: dict[str, Callable[[nn.Module, int], Step]] = {
    "plain": plain, "Opacus": hooks, "Opacus, ghost": ghost, "noise alone": noise,
}  # fmt: skip


def synchronized(device: torch.device) -> float:
    """Return the time when `device` has done its work: of the processor alone on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


class Turns:
    """The progress of our training: after each of its steps the other ways take one, on nets of their own."""

    def __init__(self, make: Callable[[], nn.Module], images: Tensor, labels: Tensor, ways: Iterable[str]) -> None:
        count, self.device = len(images), images.device
        self.others = {name: OTHERS[name](make().to(self.device).train(), count) for name in ways}
        self.images, self.labels, self.chosen = images, labels, torch.arange(count, device=self.device)
        self.least = dict.fromkeys(["ours", *self.others], float("inf"))
        self.begun = synchronized(self.device)

    def ended(self, name: str) -> None:
        """Note the time of a step of `name`."""
        self.least[name] = min(self.least[name], synchronized(self.device) - self.begun)
        self.begun = synchronized(self.device)

    def advance(self, steps: int = 1) -> None:
        """Note our step, then take one of each other way."""
        self.ended("ours")
        for name, step in self.others.items():
            step(self.images[self.chosen], self.labels[self.chosen])  # includes gathering a batch
            self.ended(name)


def batch(make: Callable[[], nn.Module], count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return `count` random images and labels for a net."""
    return torch.rand(count, *NETS[make], device=device), torch.arange(count, device=device) % 10


def seconds(
    make: Callable[[], nn.Module], count: int, device: torch.device, ways: Iterable[str] = OTHERS
) -> dict[str, float]:
    """Return the least seconds of a step by each way, on one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    tune_malloc()
    try:
        turns = Turns(make, *batch(make, count, device), ways)
        _ours(make, count, device, turns, turns.images, turns.labels)
    finally:
        torch.set_num_threads(threads)
    return turns.least


def _ours(
    make: Callable[[], nn.Module], count: int, device: torch.device, stage: Turns | Peak, images: Tensor, labels: Tensor
) -> None:
    # Every record is in every batch; gradients are compared in two of the steps, which are not the fastest.
    run = DPSGDRun(descent, cross_entropy, NOISE, Flat(NORM), count, STEPS, count, stage=stage)
    train(make().to(device), images, labels, run, randomness=np.random.default_rng(0))


class Peak:
    """The most memory that steps after the first take beyond the data, in bytes."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.steps, self.most = device, 0, 0
        self.before = self._now("VmRSS")

    def _now(self, name: str) -> int:
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated() if name == "VmRSS" else torch.cuda.max_memory_allocated()
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))

    def advance(self, steps: int = 1) -> None:
        """Begin to measure after the first step, and measure after each further one."""
        self.steps += 1
        if self.steps > 1:
            self.most = max(self.most, self._now("VmHWM") - self.before)
        elif self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew


def memory(make: Callable[[], nn.Module], count: int, device: torch.device, way: str) -> int:
    """Return the bytes that steps of one way take beyond the data and what the program holds."""
    torch.set_num_threads(1)
    tune_malloc()
    images, labels = batch(make, count, device)
    peak = Peak(device)
    if way == "ours":
        _ours(make, count, device, peak, images, labels)
        return peak.most
    step, chosen = OTHERS[way](make().to(device).train(), count), torch.arange(count, device=device)
    for _ in range(4):
        step(images[chosen], labels[chosen])
        peak.advance()
    return peak.most


def _alone(words: Sequence[str], program: Sequence[str] = (sys.executable, __file__)) -> Any:
    """Return the output of `program`, this file by default, for `words`; None if it fails, as for lack of memory."""
    done = subprocess.run([*program, *words], capture_output=True, text=True, check=False)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--batches", default="64,512,4096", help="sizes of a batch, comma-separated")
    parser.add_argument("--nets", default=",".join(net.__name__ for net in NETS), help="nets, comma-separated")
    parser.add_argument("--jax", help="a Python that has jax_privacy, to time its steps too")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # time, or the way whose memory is measured
    asked = parser.parse_args()
    device, named = torch.device(asked.device), {net.__name__: net for net in NETS}
    counts = [int(count) for count in asked.batches.split(",")]
    if asked.only:
        make = named[asked.nets]
        one = asked.only
        found = seconds(make, counts[0], device) if one == "time" else memory(make, counts[0], device, one)
        print(json.dumps(found))
        return
    ways = ["ours", "Opacus", "Opacus, ghost"]
    timed = [*ways, *["jax_privacy"] * bool(asked.jax), "noise alone"]
    print("| net | batch | plain: ms | " + " | ".join(timed) + " | plain: MB | " + " | ".join(ways) + " |")
    print("|---|---|" + "---|" * (2 + len(timed) + len(ways)))
    for name in asked.nets.split(","):
        for count in counts:
            words = ["--device", asked.device, "--nets", name, "--batches", str(count), "--only"]
            times = dict(_alone([*words, "time"]) or {})
            if asked.jax:
                found = _alone([name, str(count)], [asked.jax, str(Path(__file__).parent / "jax_cost.py")])
                times["jax_privacy"] = dict(found or {}).get("private")
            bytes_of = {way: _alone([*words, way]) for way in ("plain", *ways)}
            line = [name, str(count), *_ratios(times, 1e3, timed)]
            print(f"| {' | '.join([*line, *_ratios(bytes_of, 1e-6, ways)])} |", flush=True)


def _ratios(found: dict[str, object], scale: float, ways: Iterable[str]) -> list[str]:
    base = found.get("plain")
    if not isinstance(base, int | float) or not base:
        return ["–"] * (1 + len(list(ways)))
    others = [found.get(way) for way in ways]
    return [f"{scale * base:.3g}", *(f"{one / base:.2f}" if isinstance(one, int | float) else "–" for one in others)]


if __name__ == "__main__":
    main()
