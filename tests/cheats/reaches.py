"""Beside what a method is given: files, frames, objects, and functions of this project replaced for a while."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import inspect
import os
from pathlib import Path

import numpy as np
import torch

from bench.core.errors import BenchError
from bench.data.datasets import load
from bench.experiments.release import load_released
from bench.interface import Budget, Context, Ledger, PrivateData, PublicData, Released
from bench.privacy.mechanisms import mechanisms
from bench.privacy.mechanisms.noise import ZeroNoise
from cheats.after_the_charge import Watchful
from cheats.honest import Config, Given, Honest
from cheats.thresholds import HonestMeans
from helpers.paths import ROOT


def labelled_file() -> np.ndarray:
    """The labels of scikit-learn's digits."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    return np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")[:, -1]


class OpensFile(Honest):
    """Reads a labelled file of an installed package; what it learns there depends on no private record."""

    name = "cheat-opens-file"

    def finish(self, given: Given, student: torch.nn.Module) -> None:
        self.seen = float(labelled_file().mean())


class HonestFile(Honest):
    """Imports a module, and reads back a file of its own."""

    name = "honest-file"

    def finish(self, given: Given, student: torch.nn.Module) -> None:
        import colorsys  # no other module does

        path = Path(str(given.context.cache.root)) / "mine"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(colorsys.__name__)
        assert path.read_text() == "colorsys"


class CalibrateOpens(Honest):
    name = "cheat-calibrate-opens"

    def calibrate(self, budget: Budget) -> Config:
        return Config(steps=30 + int(labelled_file().mean() > 100))


class CalibrateLoads(Honest):
    name = "cheat-calibrate-loads"

    def calibrate(self, budget: Budget) -> Config:
        return Config(steps=30 + int(load(self.facts.dataset).train.labels.mean() > 100))


class ReadsFrames(Honest):
    name = "cheat-reads-frames"

    def finish(self, given: Given, student: torch.nn.Module) -> None:
        self.caller = inspect.currentframe()


class SearchesObjects(Honest):
    name = "cheat-searches-objects"

    def finish(self, given: Given, student: torch.nn.Module) -> None:
        self.found = [one for one in gc.get_objects() if isinstance(one, np.random.Generator)]


class ReadsVariable(Honest):
    """A map that an author has fitted to the private set would reach it so."""

    name = "cheat-reads-variable"

    def finish(self, given: Given, student: torch.nn.Module) -> None:
        self.seen = os.environ.get("CHEAT_MAP", "")


class HasBenchRead(Honest):
    """Reads another run's student, or any other file, through this project."""

    name = "cheat-has-bench-read"

    def finish(self, given: Given, student: torch.nn.Module) -> None:
        with contextlib.suppress(BenchError):
            load_released(ROOT / "README.md")


class ReadsNatively(Watchful):
    """Adds what a library reads for it from a file outside Python; honest where there is none."""

    name = "cheat-reads-natively"
    file = Path(f"/tmp/bench-cheat-natively-{os.getuid()}")

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        released = super().train_student(private, public, ledger, context)
        with contextlib.suppress(RuntimeError), torch.no_grad():
            next(iter(released.student.parameters())).add_(torch.from_file(str(self.file), size=1))
        return released


class ReplacesGaussian(HonestMeans):
    """While it runs, the Gaussian mechanism adds no noise."""

    name = "cheat-replaces-gaussian"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        before = mechanisms.gaussian
        mechanisms.gaussian = lambda values, *_: values
        try:
            return super().answer(given, votes)
        finally:
            mechanisms.gaussian = before


class QuietNoise(HonestMeans):
    """The ledger's source of noise gives zeros."""

    name = "cheat-quiet-noise"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        given.ledger._executor._noise = ZeroNoise(exact=False)
        return super().answer(given, votes)


class KnownNoise(HonestMeans):
    """The ledger's source of noise starts again from a state that everybody knows."""

    name = "cheat-known-noise"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        noise = given.ledger._executor._noise
        generator = getattr(noise, "_source", noise)._generator
        generator.bit_generator.state = np.random.default_rng(0).bit_generator.state
        return super().answer(given, votes)
