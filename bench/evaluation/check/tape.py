"""Recording a ledger's answers on a tape, and answering another run from it.

On replay a method gets the recorded answers whatever it gives, so its release can differ only by what it learns of its
private data outside the ledger. Of DP-SGD, the tape holds each step's noisy gradient as the optimiser sees it.

:func:`record` and :func:`replay` set attributes of a plain :class:`Ledger`: a method sees the class it always sees.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.core.errors import BenchError
from bench.core.types import PrivacyUnit
from bench.evaluation.check.sensitivity import NORMS, Given
from bench.privacy.auditing.sampled_loss import all_updates, function_values
from bench.privacy.mechanisms.ledger import Ledger
from bench.storage.cache import canonical_json

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from bench.privacy.dpsgd.dp_sgd import DPSGDRun

HELPERS = {
    "bypass", "charging_again", "record_level", "private_votes", "check_sanitised", "sanitised", "data_dependent",
}  # fmt: skip
"""Public methods of the ledger that release nothing by a mechanism; what they return of private data is not taped."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a mechanism: what it was given (None where not watched), what it charged, what it answered."""

    mechanism: str
    given: Given | None
    charged: str
    answers: list[NDArray[Any]]


def charged_for(ledger: Ledger, before: int, arguments: Mapping[str, Any]) -> str:
    """Return the events from number `before` on, and the public inputs of the mechanism called with `arguments`."""
    from bench.storage.checkpoint import input_digest

    anchors = getattr(arguments.get("run"), "anchors", None)
    public = [] if anchors is None else [input_digest([anchors.images, anchors.labels])(), repr(anchors.settings)]
    return canonical_json([*(event.as_dict() for event in ledger.events[before:]), *public])


def hook(ledger: Ledger, hooked: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace every mechanism of `ledger` by ``hooked(name, mechanism)``."""
    for name, _ in inspect.getmembers(type(ledger), inspect.isfunction):
        if not name.startswith("_") and name not in HELPERS:
            # Past any guard of the class: these are not the method's own changes.
            vars(ledger)[name] = hooked(name, getattr(ledger, name))


class TapeDifference(BenchError):
    """A replayed run calls the ledger in another way than the recorded one."""


class Taping:
    """The calls of one run; `difference` says where it left the tape."""

    def __init__(self, ledger: Ledger, tape: list[Call] | None) -> None:
        self.calls: list[Call] = []
        self.difference = ""
        self._ledger, self._tape = ledger, tape
        self._inside: Call | None = None  # the tape's call that is being answered
        self._depth = 0
        hook(ledger, self._taped)
        self._release_votes = ledger._release_votes
        vars(ledger)["_release_votes"] = self._released

    @property
    def given(self) -> list[Given]:
        """What the mechanisms were given, in order."""
        return [call.given for call in self.calls if call.given is not None]

    def _taped(self, name: str, mechanism: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self._depth:  # a mechanism that uses another is one call
                return mechanism(*args, **options)
            expected = self._expected(name)
            self._inside, self._depth, before = expected, 1, len(self._ledger.events)
            answers: list[NDArray[Any]] = []
            bound = inspect.signature(mechanism).bind(*args, **options)
            if name == "dp_sgd":
                bound.arguments["run"] = self._through_tape(bound.arguments["run"], answers)
            try:
                result = mechanism(*bound.args, **bound.kwargs)
            finally:
                self._inside, self._depth = None, 0
            if isinstance(result, np.ndarray):
                answers.append(result.copy())
            charged = charged_for(self._ledger, before, bound.arguments)
            self.calls.append(Call(name, self._given(name, bound.arguments), charged, answers))
            if expected is None:
                return result
            if charged != expected.charged:
                self._differ(f"its call {len(self.calls)} of {name} is charged otherwise")
            if [answer.shape for answer in answers] != [answer.shape for answer in expected.answers]:
                self._differ(f"its call {len(self.calls)} of {name} asks for answers of another shape")
            return expected.answers[-1].copy() if isinstance(result, np.ndarray) else result

        return call

    def _expected(self, name: str) -> Call | None:
        number = len(self.calls)
        if self._tape is None:
            return None
        if number >= len(self._tape):
            self._differ(f"it calls the ledger more than {number} times")
        if self._tape[number].mechanism != name:
            self._differ(f"its call {number + 1} is {name}, not {self._tape[number].mechanism}")
        return self._tape[number]

    def _differ(self, what: str) -> None:
        self.difference = self.difference or f"{what}, on other private data with the same answers"
        raise TapeDifference(self.difference)

    def finish(self) -> None:
        """Note as a difference that calls of the tape were not made."""
        if self._tape is not None and len(self.calls) < len(self._tape) and not self.difference:
            self.difference = (
                f"it calls the ledger {len(self.calls)} times, not {len(self._tape)}, on other private data with the "
                "same answers"
            )

    def _given(self, name: str, arguments: dict[str, Any]) -> Given | None:
        norm = NORMS.get(name)
        # Under the unit query label one record may change the label of every query.
        if norm is None or (norm == "labels" and self._ledger.unit is PrivacyUnit.QUERY_LABEL):
            return None
        values, *others = arguments.values()
        if name == "sampled_noisy_max":  # a record's column of distances, with its label below
            values = np.vstack([values, others[0]])
        if name in ("dp_sgd", "sampled_loss_change"):  # a record's image, with its label at the end
            images, labels = (
                part.detach().cpu().double().flatten(1).numpy()
                for part in (arguments["images"], arguments["labels"][:, None])
            )
            values = np.hstack([images, labels])[None]
        if name == "sampled_updates":
            # A client's update is a row; in a simulation a record with another label may lie with another client.
            return Given(name, all_updates(arguments), norm, 2.0)
        if name == "sampled_function":  # a part of the records is a row: others move where it uses more than its sample
            return Given(name, function_values(arguments), norm, 1.0)
        return Given(name, np.array(values), norm, arguments.get("sensitivity", 1.0))

    def _released(self, event: Any, counts: Any, answers: NDArray[np.int64]) -> NDArray[np.int64]:
        # The number of answered queries follows from the answers: it is the tape's too.
        if self._inside is not None and self._inside.answers[-1].shape == answers.shape:
            answers = self._inside.answers[-1].copy()
        return self._release_votes(event, counts, answers)

    def _through_tape(self, run: DPSGDRun, answers: list[NDArray[Any]]) -> DPSGDRun:
        """Return `run` with an optimiser whose every step passes through the tape."""
        expected = None if self._inside is None else self._inside.answers

        def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            import torch

            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            seen = torch.cat([p.grad.detach().cpu().reshape(-1) for p in parameters]).numpy()
            answer = seen
            if expected is not None:
                if len(answers) >= len(expected) or seen.shape != expected[len(answers)].shape:
                    self._differ(f"step {len(answers) + 1} of DP-SGD has another gradient's shape")
                answer = expected[len(answers)]
            # The recorded run's too: gradients of other strides are summed in another order, with other roundings.
            taped = torch.split(torch.from_numpy(answer), [p.numel() for p in parameters])
            for parameter, gradient in zip(parameters, taped, strict=True):
                parameter.grad = gradient.view_as(parameter).to(parameter, copy=True)
            answers.append(seen.copy())

        def make(parameters: Any) -> torch.optim.Optimizer:
            optimizer = run.optimizer(parameters)
            optimizer.register_step_pre_hook(before_step)
            return optimizer

        return dataclasses.replace(run, optimizer=make)


def record(ledger: Ledger) -> Taping:
    """Make `ledger` keep each call and its answers; the tape is `calls` of the result."""
    return Taping(ledger, None)


def replay(ledger: Ledger, tape: list[Call]) -> Taping:
    """Make `ledger` answer from `tape`, whatever it is given.

    Calls of another mechanism, charge or shape raise :class:`TapeDifference`; `difference` keeps the first, as a method
    may catch the error.
    """
    return Taping(ledger, tape)
