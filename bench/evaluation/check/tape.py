"""Recording a ledger's answers on a tape, and answering another run from it.

On replay a method gets the recorded answers whatever it gives, so its release can differ only by what it learns of its
private data outside the ledger. Of DP-SGD, the tape holds each step's noisy gradient as the optimiser sees it.

Both are executors of a plain ledger: a method sees the class it always sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.core.types import PrivacyUnit
from bench.evaluation.check.sensitivity import NORMS, Given
from bench.privacy.auditing.sampled_loss import all_updates, function_values
from bench.privacy.mechanisms.executors import Call, Executor
from bench.privacy.mechanisms.noise import Noise
from bench.storage.cache import canonical_json

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Taped:
    """One call of a mechanism: what it was given (None where not watched), what it charged, what it answered."""

    mechanism: str
    given: Given | None
    charged: str
    answers: list[NDArray[Any]]


def charged_for(call: Call) -> str:
    """Return the events of `call` and its public inputs."""
    public = call.public["run"].clipping.public() if call.name == "dp_sgd" else []
    return canonical_json([*(event.as_dict() for event in call.charged), *public])


class TapeDifference(BenchError):
    """A replayed run calls the ledger in another way than the recorded one."""


class Recording(Executor):
    """Keeps the calls of one run, which it answers with noise; inside `around` it computes for a mechanism."""

    def __init__(self, noise: Noise, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        super().__init__(noise)
        self.calls: list[Taped] = []
        self.difference = ""
        """Where a replayed run left the tape."""
        self._around = around
        self._steps: list[NDArray[Any]] = []  # of the DP-SGD in progress

    @property
    def given(self) -> list[Given]:
        """What the mechanisms were given, in order."""
        return [call.given for call in self.calls if call.given is not None]

    def begin(self, call: Call) -> Call:
        """Let every step of DP-SGD pass through the tape."""
        self._steps = []
        if call.name != "dp_sgd":
            return call
        run = call.public["run"]

        def make(parameters: Any) -> torch.optim.Optimizer:
            optimizer: torch.optim.Optimizer = run.optimizer(parameters)
            optimizer.register_step_pre_hook(self._before_step)
            return optimizer

        return replace(call, public={**call.public, "run": replace(run, optimizer=make)})

    def answer(self, call: Call, release: Callable[[Noise], A]) -> A:
        """Return the mechanism's answer, and keep it with what the mechanism was given."""
        with self._around():
            answer, answers = self.draw(release), self._steps
            if isinstance(answer, np.ndarray):
                answers.append(answer.copy())
            self.calls.append(Taped(call.name, _given(call), charged_for(call), answers))
        return answer

    def finish(self) -> None:
        """Note as a difference that calls of the tape were not made."""

    def _step(self, seen: NDArray[Any]) -> NDArray[Any]:
        """Return the gradient with which DP-SGD steps where it would step with `seen`."""
        return seen

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        seen = torch.cat([p.grad.detach().cpu().reshape(-1) for p in parameters]).numpy()
        # The recorded run's too: gradients of other strides are summed in another order, with other roundings.
        taped = torch.split(torch.from_numpy(self._step(seen)), [p.numel() for p in parameters])
        for parameter, gradient in zip(parameters, taped, strict=True):
            parameter.grad = gradient.view_as(parameter).to(parameter, copy=True)
        self._steps.append(seen.copy())


class Replaying(Recording):
    """Answers from the `tape` of a recorded run, whatever it is given.

    Calls of another mechanism, charge or shape raise :class:`TapeDifference`; `difference` keeps the first, as a method
    may catch the error.
    """

    def __init__(
        self, noise: Noise, tape: Sequence[Taped], around: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        super().__init__(noise, around)
        self._tape = tape

    def begin(self, call: Call) -> Call:
        """Check that the tape has a call of this mechanism here."""
        number = len(self.calls)
        if number >= len(self._tape):
            self._differ(f"it calls the ledger more than {number} times")
        if self._tape[number].mechanism != call.name:
            self._differ(f"its call {number + 1} is {call.name}, not {self._tape[number].mechanism}")
        return super().begin(call)

    def answer(self, call: Call, release: Callable[[Noise], Any]) -> Any:
        """Return the recorded answer."""
        answer, expected, given = super().answer(call, release), self._tape[len(self.calls) - 1], self.calls[-1]
        if given.charged != expected.charged:
            self._differ(f"its call {len(self.calls)} of {call.name} is charged otherwise")
        if [one.shape for one in given.answers] != [one.shape for one in expected.answers]:
            self._differ(f"its call {len(self.calls)} of {call.name} asks for answers of another shape")
        return expected.answers[-1].copy() if isinstance(answer, np.ndarray) else answer

    def finish(self) -> None:
        """See :meth:`Recording.finish`."""
        if len(self.calls) < len(self._tape) and not self.difference:
            self.difference = (
                f"it calls the ledger {len(self.calls)} times, not {len(self._tape)}, on other private data with the "
                "same answers"
            )

    def _step(self, seen: NDArray[Any]) -> NDArray[Any]:
        expected, number = self._tape[len(self.calls)].answers, len(self._steps)
        if number >= len(expected) or seen.shape != expected[number].shape:
            self._differ(f"step {number + 1} of DP-SGD has another gradient's shape")
        return expected[number]

    def _differ(self, what: str) -> NoReturn:
        self.difference = self.difference or f"{what}, on other private data with the same answers"
        raise TapeDifference(self.difference)


def _given(call: Call) -> Given | None:
    norm, arguments = NORMS.get(call.name), call.arguments
    # Under the unit query label one record may change the label of every query.
    if norm is None or (norm == "labels" and call.unit is PrivacyUnit.QUERY_LABEL):
        return None
    if call.name == "sampled_updates":
        # A client's update is a row; in a simulation a record with another label may lie with another client.
        return Given(call.name, all_updates(arguments), norm, 2.0)
    if call.name == "sampled_function":  # a part of the records is a row: others move if it uses more than its sample
        return Given(call.name, function_values(arguments), norm, 1.0)
    if call.name in ("dp_sgd", "sampled_loss_change"):  # a record's image, with its label at the end
        images, labels = (
            part.detach().cpu().double().flatten(1).numpy()
            for part in (arguments["images"], arguments["labels"][:, None])
        )
        values = np.hstack([images, labels])[None]
    elif call.name == "sampled_noisy_max":  # a record's column of distances, with its label below
        values = np.vstack([arguments["distances"], arguments["labels"]])
    elif call.name in ("tree_sum", "banded_sum"):  # the step's own values, and what is released
        window = arguments.get("separation", arguments["steps"])
        own = np.array(arguments["values"][0])
        return Given(call.name, own, norm, arguments["sensitivity"], window, arguments["step"] == 0)
    else:
        (values,) = call.private.values()
    times = 2 if norm == "range" and not arguments["monotonic"] else 1  # of two scores, which may move apart
    return Given(call.name, np.array(values), norm, times * arguments.get("sensitivity", 1.0))
