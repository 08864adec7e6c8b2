"""Answers that are used more than once: post-processing of the ledger's releases, at no further cost.

Some answers are held back from training. The student's squared error on them shows when it starts to fit the noise of
the others, because label noise adds the same constant to every student's expected error.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bench.interface import shifted
from bench.models.feature_net import OnFixedMap

HELD = 16  # one batch in this many is held back
WINDOW = 200  # steps over which the student's weights are averaged
BETWEEN = 50  # steps between two evaluations on held-back answers
PATIENCE = 4  # evaluations in a row without improvement after which training stops


def squared_error(probabilities: Tensor, labels: Tensor) -> float:
    """Return the mean squared error of `probabilities` to noisy `labels`, both (n, classes).

    Cross-entropy would add the labels' noise times log-probabilities, which are unbounded.
    """
    return float((probabilities - labels).square().sum(1).mean())


def as_drawn(probabilities: Tensor, uniform: float) -> Tensor:
    """Return the law of labels that are drawn evenly with probability `uniform`, otherwise from `probabilities`."""
    return (1 - uniform) * probabilities + uniform / probabilities.shape[1]


def running_mean(mean: Tensor, now: Tensor, count: Tensor | int) -> Tensor:
    """Return the mean of `count` tensors and `now`; beyond :data:`WINDOW` older ones fade exponentially."""
    return mean + (now - mean) / min(int(count) + 1, WINDOW)


def logits_of(student: nn.Module, seen: Tensor) -> Tensor:
    """Return the logits of `student` for inputs `seen`: features of its frozen map if it has one, otherwise images."""
    return student.forward_head(seen) if isinstance(student, OnFixedMap) else student(seen)


class BestStudent:
    """The weights with the least error on held-back answers, and the stopping rule."""

    def __init__(self) -> None:
        self._weights: dict[str, Tensor] = {}
        self._least, self._misses = math.inf, 0

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state, for a checkpoint."""
        looks = torch.tensor([self._least, self._misses], dtype=torch.float64)
        return {"looks": looks, **{f"best-{name}": tensor for name, tensor in self._weights.items()}}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a state of :meth:`state_dict`."""
        self._least, self._misses = float(state["looks"][0]), int(state["looks"][1])
        self._weights = {
            name.removeprefix("best-"): tensor for name, tensor in state.items() if name.startswith("best-")
        }

    def look(self, student: nn.Module, error: float) -> bool:
        """Keep the weights of `student` if its `error` is the least so far; return whether to continue training."""
        if error < self._least:
            self._least, self._misses = error, 0
            self._weights = {name: tensor.detach().clone() for name, tensor in student.state_dict().items()}
        else:
            self._misses += 1
        return self._misses < PATIENCE

    def restore(self, student: nn.Module) -> None:
        """Give `student` the weights with the least error."""
        if self._weights:
            student.load_state_dict(self._weights)


class AnswerPool:
    """Answered batches with soft labels (n, classes), and the best student.

    A batch holds images (n, channels, height, width) or their features (n, d).
    """

    def __init__(self) -> None:
        self.batches: list[tuple[Tensor, Tensor]] = []
        self.best = BestStudent()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state, for a checkpoint."""
        answers = {
            f"{number}-{what}": tensor
            for number, batch in enumerate(self.batches)
            for what, tensor in zip(("images", "labels"), batch, strict=True)
        }
        return {**self.best.state_dict(), **answers}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a state of :meth:`state_dict`."""
        self.best.load_state_dict(state)
        count = sum(name[0].isdigit() and name.endswith("-images") for name in state)
        self.batches = [(state[f"{number}-images"], state[f"{number}-labels"]) for number in range(count)]

    def to(self, device: torch.device) -> None:
        """Move the answers to `device`."""
        self.batches = [(images.to(device), labels.to(device)) for images, labels in self.batches]

    def batch(self, random: torch.Generator, shift: int) -> tuple[Tensor, Tensor]:
        """Return a batch that is not held back (or the only batch), its images moved by up to `shift` pixels."""
        used = [batch for number, batch in enumerate(self.batches) if number % HELD] or self.batches
        seen, labels = used[int(torch.randint(len(used), (), generator=random))]
        return shifted(seen, shift, random) if shift else seen, labels

    def look(self, student: nn.Module, uniform: float = 0.0) -> bool:
        """Evaluate `student` on the held-back batches; return whether to continue training.

        A share `uniform` of the answers was drawn evenly from all classes.
        """
        student.eval()
        with torch.no_grad():
            errors = [
                squared_error(as_drawn(logits_of(student, seen).softmax(1), uniform), labels)
                for seen, labels in self.batches[::HELD]
            ]
        return self.best.look(student, sum(errors) / len(errors))
