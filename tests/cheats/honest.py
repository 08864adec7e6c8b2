"""A small honest method with hooks, which the cheats of this folder override, and two honest twins of cheats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bench.interface import (
    Budget,
    Claim,
    Context,
    Event,
    Facts,
    Ledger,
    LNMax,
    Method,
    PrivateData,
    PublicData,
    PublicKind,
    Released,
)  # fmt: skip


class Student(nn.Module):
    """Normalise, one batch-normed hidden layer, classify."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(0.5))
        self.register_buffer("deviation", torch.tensor(0.5))
        self.hidden, self.norm, self.head = nn.Linear(pixels, 16), nn.BatchNorm1d(16), nn.Linear(16, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # Floats are in [0, 1].
        flat = images.flatten(1) if images.is_floating_point() else images.float().flatten(1) / 255
        return self.head(torch.relu(self.norm(self.hidden((flat - self.mean) / self.deviation))))


@dataclass(frozen=True)
class Config:
    teachers: int = 20
    queries: int = 100
    gamma: float = 0.05
    steps: int = 30


@dataclass
class Given:
    """What a run was given, for the hooks."""

    config: Config
    private: PrivateData
    public: PublicData
    ledger: Ledger
    context: Context

    def score(self, student: nn.Module) -> float:
        """The accuracy on private records."""
        student.eval()
        with torch.no_grad():
            return float((student(self.private.images).argmax(1) == self.private.labels).float().mean())

    def loss(self, student: nn.Module) -> float:
        """The loss on private records."""
        student.eval()
        with torch.no_grad():
            return float(cross_entropy(student(self.private.images), self.private.labels))


class Honest(Method):
    """Nearest-mean teachers, LNMax, a small student on the answers."""

    name = "honest"
    public_data_kinds = (PublicKind.UNLABELLED,)
    Config = Config

    @classmethod
    def presets(cls, facts: Facts) -> dict[str, dict[str, Any]]:
        return {"quick": {}, "tiny": {}}

    def calibrate(self, budget: Budget) -> Config:
        return self.config

    def claimed(self, delta: float) -> Claim:
        return Claim(1.0, delta, "nowhere")

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        given = Given(self.config, private, public, ledger, context)
        self.begin(given)
        asked = self.choose(given)
        labels = torch.from_numpy(self.answer(given, self.votes(given, public.images[asked])))
        student = self.learn(given, public.images[asked], labels)
        self.finish(given, student)
        return Released(student, "none", self.options(given), extras=self.extras(given))

    def begin(self, given: Given) -> None: ...

    def choose(self, given: Given) -> torch.Tensor:
        order = given.context.streams.numpy("queries").permutation(len(given.public))
        return torch.from_numpy(order[: given.config.queries])

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        return given.ledger.noisy_max(votes, teachers=given.config.teachers, gamma=given.config.gamma)

    def votes(self, given: Given, images: torch.Tensor) -> np.ndarray:
        private, classes = given.private, given.private.facts.classes
        counts = np.zeros((len(images), classes))
        for teacher in range(given.config.teachers):
            part = slice(teacher, None, given.config.teachers)
            x, y = private.images[part].float().flatten(1) / 255, private.labels[part]
            means = torch.stack([x[y == c].mean(0) for c in range(classes)]).nan_to_num(nan=1e3)
            votes = torch.cdist(images.float().flatten(1) / 255, means).argmin(1)
            counts[np.arange(len(images)), votes.numpy()] += 1
        return counts

    def learn(self, given: Given, images: torch.Tensor, labels: torch.Tensor) -> Student:
        return self.trained(given, images, labels)

    def trained(
        self, given: Given, images: torch.Tensor, labels: torch.Tensor, *, lr: float = 0.5, start: str = "student"
    ) -> Student:
        facts = given.private.facts
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(given.context.streams.integer(start))
            student = Student(int(np.prod(facts.shape)), facts.classes)
        self.prepare(given, student)
        optimizer = torch.optim.SGD(student.parameters(), lr=lr)
        for step in range(given.config.steps):
            if self.stop(given, student, step):
                break
            student.train()
            optimizer.zero_grad()
            cross_entropy(student(images), labels).backward()
            optimizer.step()
        return student

    def prepare(self, given: Given, student: Student) -> None: ...

    def stop(self, given: Given, student: Student, step: int) -> bool:
        return False

    def finish(self, given: Given, student: Student) -> None: ...

    def options(self, given: Given) -> dict[str, Any]:
        return {}

    def extras(self, given: Given) -> dict[str, torch.Tensor]:
        return {}


class HonestCache(Honest):
    """Keeps its teachers' votes, as ensembles do: a check must not give a run votes from other data."""

    name = "honest-cache"

    def votes(self, given: Given, images: torch.Tensor) -> np.ndarray:
        depends = {"of": self.name, "asked": images.sum().item()}
        make = super().votes
        return given.context.cache.get("votes", depends, lambda: {"counts": make(given, images)})["counts"]


class HonestRate(Honest):
    """Twin of :class:`cheats.choices.LearningRate`: the rate that fits answers held back from training best."""

    name = "honest-rate"

    def learn(self, given: Given, images: torch.Tensor, labels: torch.Tensor) -> Student:
        kept = len(labels) // 2

        def right(student: Student) -> int:
            student.eval()
            with torch.no_grad():
                return int((student(images[kept:]).argmax(1) == labels[kept:]).sum())

        students = [self.trained(given, images[:kept], labels[:kept], lr=lr) for lr in (1.0, 0.1, 0.01)]
        return max(students, key=right)


class HonestStop(Honest):
    """Asks until its student foresees the answers on the next public images; charged for the most it may ask."""

    name = "honest-stop"

    def charges(self) -> list[Event]:
        return [LNMax(self.config.gamma, self.config.queries)]

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        given = Given(self.config, private, public, ledger, context)
        ledger.at_most(self.charges())
        asked, answers = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
        student: Student | None = None
        for part in self.choose(given).split(20):
            images = public.images[part]
            labels = torch.from_numpy(self.answer(given, self.votes(given, images)))
            foreseen = 0.0
            if student is not None:
                student.eval()
                with torch.no_grad():
                    foreseen = float((student(images).argmax(1) == labels).float().mean())
            asked, answers = torch.cat([asked, part]), torch.cat([answers, labels])
            student = self.learn(given, public.images[asked], answers)
            if foreseen > 0.5:
                break
        assert student is not None
        return Released(student, "none", {}, extras={"asked": torch.tensor(len(asked))})


class HonestFineTuning(Honest):
    """Twin of :class:`cheats.choices.FineTuning`: where the student is good on the answers, on the answers."""

    name = "honest-fine-tuning"

    def learn(self, given: Given, images: torch.Tensor, labels: torch.Tensor) -> Student:
        student = self.trained(given, images, labels)
        student.eval()
        with torch.no_grad():
            good = (student(images).argmax(1) == labels).float().mean() > 0.6
        if good:
            cross_entropy(student(images), labels).backward()
            with torch.no_grad():
                for parameter in student.parameters():
                    parameter -= 0.01 * parameter.grad
        return student
