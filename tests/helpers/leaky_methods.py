"""A small honest method, and one that leaks by each of the usual ways: what the non-interference test is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bench.interface import Budget, Claim, Context, Facts, Ledger, Method, PrivateData, PublicData, Released


class Student(nn.Module):
    """Normalise, one batch-normed hidden layer, classify."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(0.5))
        self.register_buffer("deviation", torch.tensor(0.5))
        self.hidden, self.norm, self.head = nn.Linear(pixels, 16), nn.BatchNorm1d(16), nn.Linear(16, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        flat = (images.float().flatten(1) / 255 - self.mean) / self.deviation
        return self.head(torch.relu(self.norm(self.hidden(flat))))


@dataclass(frozen=True)
class Config:
    teachers: int = 20
    queries: int = 40
    gamma: float = 0.05
    steps: int = 20


class Honest(Method):
    """Nearest-mean teachers, LNMax, a small student on the answers."""

    name = "honest"
    Config = Config

    @classmethod
    def presets(cls, facts: Facts) -> dict[str, dict[str, Any]]:
        return {"quick": {}, "tiny": {}}

    @classmethod
    def calibrate(cls, config: Config, budget: Budget, facts: Facts) -> Config:
        return config

    @classmethod
    def claimed(cls, config: Config, facts: Facts, delta: float) -> Claim:
        return Claim(1.0, delta, "nowhere")

    def train_student(
        self, config: Config, private: PrivateData, public: PublicData, ledger: Ledger, context: Context
    ) -> Released:
        queries = self.choose(config, private, public, context)
        labels = ledger.noisy_max(
            self.votes(config, private, public.images[queries]), teachers=config.teachers, gamma=config.gamma
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(context.streams.integer("student"))
            student = Student(int(np.prod(private.facts.shape)), private.facts.classes)
        self.prepare(student, private)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        for step in range(config.steps):
            if self.stop(student, private, step):
                break
            optimizer.zero_grad()
            cross_entropy(student(public.images[queries]), torch.from_numpy(labels)).backward()
            optimizer.step()
        self.finish(student, private)
        return Released(student, "none", {})

    def votes(self, config: Config, private: PrivateData, images: torch.Tensor) -> np.ndarray:
        classes = private.facts.classes
        counts = np.zeros((len(images), classes))
        for teacher in range(config.teachers):
            part = slice(teacher, None, config.teachers)
            means = torch.stack(
                [
                    private.images[part][private.labels[part] == c].float().flatten(1).sum(0) / 255
                    for c in range(classes)
                ]
            )
            votes = torch.cdist(images.float().flatten(1) / 255, means).argmin(1)
            counts[np.arange(len(images)), votes.numpy()] += 1
        return counts

    def choose(self, config: Config, private: PrivateData, public: PublicData, context: Context) -> torch.Tensor:
        return torch.from_numpy(context.streams.numpy("queries").permutation(len(public))[: config.queries])

    def prepare(self, student: Student, private: PrivateData) -> None: ...

    def stop(self, student: Student, private: PrivateData, step: int) -> bool:
        return False

    def finish(self, student: Student, private: PrivateData) -> None: ...


class NormalisationLeak(Honest):
    """Normalises by the mean and deviation of the private images."""

    name = "leak-normalisation"

    def prepare(self, student: Student, private: PrivateData) -> None:
        student.mean.copy_((private.images.float() / 255).mean())
        student.deviation.copy_((private.images.float() / 255).std())


class BatchNormLeak(Honest):
    """Adapts the batch-norm statistics to the private images."""

    name = "leak-batch-norm"

    def finish(self, student: Student, private: PrivateData) -> None:
        with torch.no_grad():
            student(private.images)


class EarlyStoppingLeak(Honest):
    """Stops when the accuracy on private records stops rising."""

    name = "leak-early-stopping"

    def stop(self, student: Student, private: PrivateData, step: int) -> bool:
        student.eval()
        with torch.no_grad():
            right = int((student(private.images).argmax(1) == private.labels).sum())
        student.train()
        worse = step > 0 and right <= self.best
        self.best = right if step == 0 else max(right, self.best)
        return worse


class ClassCountLeak(Honest):
    """Starts the last bias at the log of the private class frequencies."""

    name = "leak-class-counts"

    def prepare(self, student: Student, private: PrivateData) -> None:
        counts = torch.bincount(private.labels, minlength=private.facts.classes).float()
        with torch.no_grad():
            student.head.bias.copy_((counts / counts.sum()).log())


class QuerySelectionLeak(Honest):
    """Asks about the public images that look most like the private ones."""

    name = "leak-query-selection"

    def choose(self, config: Config, private: PrivateData, public: PublicData, context: Context) -> torch.Tensor:
        centre = private.images.float().mean(0)
        distance = (public.images.float() - centre).square().flatten(1).sum(1)
        return distance.argsort()[: config.queries]


class UndeclaredBypass(Honest):
    """Calls ledger.bypass without the class attribute that planning and refusing rely on."""

    name = "undeclared-bypass"

    def prepare(self, student: Student, private: PrivateData) -> None:
        self.ledger.bypass("looked at everything")

    def train_student(self, config: Any, private: Any, public: Any, ledger: Ledger, context: Any) -> Released:
        self.ledger = ledger
        return super().train_student(config, private, public, ledger, context)


class UncalledBypass(Honest):
    """Declares a bypass in its class and never tells the ledger, so its proven epsilon would come out finite."""

    name = "uncalled-bypass"
    bypass = "something"


class Forgetful(Honest):
    """Answers its queries by the private votes themselves and never opens the ledger."""

    name = "forgetful"

    def train_student(self, config: Any, private: Any, public: Any, ledger: Ledger, context: Any) -> Released:
        class Open:
            def noisy_max(self, votes: np.ndarray, **_: Any) -> np.ndarray:
                return votes.argmax(1)

        return super().train_student(config, private, public, Open(), context)  # type: ignore[arg-type]


LEAKS = [NormalisationLeak, BatchNormLeak, EarlyStoppingLeak, ClassCountLeak, QuerySelectionLeak]
