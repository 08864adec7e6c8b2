"""Recording a ledger's answers on a tape, and answering another run from it.

On replay a method gets the recorded answers whatever its inputs, so its release can differ only by what it learns about
private data outside the ledger. For DP-SGD, the tape holds each step's noisy gradient as the optimiser sees it.

The recorder and the replayer are executors of a plain ledger, so a method sees the usual class.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.hooks import RemovableHandle

from bench.core.errors import BenchError
from bench.core.types import PrivacyUnit
from bench.evaluation.check.fingerprint import public_arguments
from bench.evaluation.check.inner_calls import Listener, Sample
from bench.evaluation.check.known_batches import KnownBatch, Noting, kept_steps
from bench.evaluation.check.replaced import Originals
from bench.evaluation.check.sensitivity import NORMS, Given
from bench.privacy.auditing.sampled_loss import all_updates, function_values
from bench.privacy.dpsgd.dp_sgd import Batch
from bench.privacy.dpsgd.gradient_forms import Gradients
from bench.privacy.events.base_event import Event
from bench.privacy.events.batch_events import Training
from bench.privacy.mechanisms.executors import Call, Executor
from bench.privacy.mechanisms.noise import Noise
from bench.storage.cache import canonical_json

A = TypeVar("A")
MUST_BE_PUBLIC = (
    "This argument must be public, because no noise hides what it is computed from: use settings, public data and "
    "earlier answers of the ledger"
)
AFTERWARDS = " afterwards"  # suffix for the names of DP-SGD's arguments after its last step
ONLY_STEPS = (
    "Only DP-SGD's own steps may change its arguments: code that it runs (a hook, the loss, the optimiser, a layer) "
    "stores something about the private records in them"
)
ONLY_GIVEN = (
    "It may use the records that it is given, settings, public data and earlier answers of the ledger, and must keep "
    "no trace of its calls"
)
ROOM = 2**30
"""Bytes of mechanism inputs that a tape keeps; for later calls it keeps only the answers."""


@dataclass(frozen=True, slots=True)
class OnDisk:
    """An array in a file, because the gradients of a long training do not fit in memory."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def write(cls, path: Path, values: NDArray[Any]) -> OnDisk:
        """Append `values` to the file."""
        with path.open("ab") as file:
            kept = cls(path, file.tell(), values.shape, str(values.dtype))
            file.write(np.ascontiguousarray(values).tobytes())
        return kept

    def copy(self) -> NDArray[Any]:
        """Return the array."""
        count = math.prod(self.shape)
        return np.fromfile(self.path, self.dtype, count, offset=self.offset).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Taped:
    """One call of a mechanism: its input (None if not watched), charge and answer."""

    mechanism: str
    given: Given | None
    charged: str
    answers: list[NDArray[Any] | OnDisk]
    public: dict[str, str]  # fingerprints of the public arguments
    batches: dict[int, KnownBatch]  # of some steps of DP-SGD
    samples: tuple[Sample, ...] = ()  # for a mechanism's function
    beyond: bool = False  # whether the input was left out because earlier ones used up the memory limit


def charged_for(call: Call) -> str:
    """Return the events of `call`."""
    return canonical_json([event.as_dict() for event in call.charged])


def public_difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the name of the first public argument that differs, or ""."""
    return next((name for name in {**one, **other} if one.get(name) != other.get(name)), "")


class TapeDifference(BenchError):
    """A replayed run calls the ledger differently from the recorded one."""


class Recording(Executor):
    """Records the calls of one run, answering them with noise; inside `around` it computes for a mechanism.

    The file `steps`, if any, stores DP-SGD's gradients.
    """

    def __init__(
        self, noise: Noise, originals: Originals | None = None,
        around: Callable[[], AbstractContextManager[None]] = nullcontext, steps: Path | None = None,
    ) -> None:  # fmt: skip
        super().__init__(noise)
        self._originals = originals
        self.replaced = ""
        """The function of this project that had been replaced when the ledger was called."""
        self.changed = ""
        """Says how the method changed the ledger's noise or charges; empty if it did not."""
        self._source = _state_of(noise)
        self._charges: list[str] = []
        self._file, self._room = steps, ROOM
        self.calls: list[Taped] = []
        self.difference = ""
        """Where a replayed run diverged from the tape."""
        self._around = around
        self._steps: list[NDArray[Any] | OnDisk] = []  # steps of the current DP-SGD
        self._batches: dict[int, KnownBatch] = {}
        self._kept: Container[int] = ()  # steps of the current DP-SGD
        self._noted: KnownBatch | None = None  # the batch of the current step, if it is kept or compared
        self._hooks: list[RemovableHandle] = []
        self._asked: Call | None = None  # the call as the method made it
        self._public: dict[str, str] = {}
        self._answering = False
        self._listener: Listener | None = None

    @property
    def given(self) -> list[Given]:
        """The mechanisms' inputs, in order."""
        return [call.given for call in self.calls if call.given is not None]

    def begin(self, call: Call) -> Call:
        """Note the public arguments; route every DP-SGD step through the tape."""
        if self._originals is not None:
            self.replaced = self.replaced or self._originals.replaced(at_call=True)
        self._check_noise()
        self._steps, self._batches, self._asked, self._public = [], {}, call, public_arguments(call)
        self._noted, self._listener = None, Listener.of(call)
        if self._listener is not None:
            return self._listener.listening()
        if call.name != "dp_sgd":
            return call
        run = call.public["run"]

        def make(parameters: Any) -> torch.optim.Optimizer:
            optimizer: torch.optim.Optimizer = run.optimizer(parameters)
            self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
            return optimizer

        return replace(call, public={**call.public, "run": replace(run, optimizer=make)})

    def answer(self, call: Call, release: Callable[[Noise], A]) -> A:
        """Return the mechanism's answer, and record it with the mechanism's input."""
        with self._around():
            self._answering = True
            try:
                answer, answers = release(self._noise), self._steps
            finally:
                self._answering = False
                while self._hooks:  # a method may keep its optimiser, which is then compared at the next call
                    self._hooks.pop().remove()
                self._source = _state_of(self._noise)
            if isinstance(answer, np.ndarray):
                answers.append(answer.copy())
            if call.name == "dp_sgd" and self._asked is not None:  # net and loss may have changed during training
                after = public_arguments(self._asked)
                self._public |= {name + AFTERWARDS: digest for name, digest in after.items()}
            samples = () if self._listener is None else self._repeated(self._listener)
            beyond = self._room <= 0
            given = None if beyond else _given(call if self._listener is None else self._listener.call)
            given = given if given is None else given.packed()
            self._room -= 0 if given is None else given.values.nbytes
            found = Taped(call.name, given, charged_for(call), answers, self._public, self._batches, samples, beyond)
            self.calls.append(found)
        return answer

    def _repeated(self, listener: Listener) -> tuple[Sample, ...]:
        """Call the mechanism's function again, and return samples for other runs."""
        self.changed = self.changed or listener.trace()
        return listener.samples(len(self.calls))

    def draw(self, release: Callable[[Noise], A]) -> A:
        """Return ``release(noise)``, and record it as a call's answer, unless a running mechanism asks."""
        if self._answering:
            return super().draw(release)
        self._check_noise()
        drawn = super().draw(release)
        self._source = _state_of(self._noise)
        self.calls.append(Taped("draw", None, "", [np.array(drawn)], {}, {}))
        return drawn

    def charged(self, event: Event, *, joined: bool) -> None:
        """Keep a copy of what is charged."""
        self._charges[len(self._charges) - joined :] = [canonical_json(event.as_dict())]

    def finish(self, events: Sequence[Event]) -> None:
        """Note whether the run's `events` are those that were charged."""
        if [canonical_json(event.as_dict()) for event in events] != self._charges:
            self.changed = "its code changes what the ledger has charged"

    def _check_noise(self) -> None:
        """Note whether the noise is as the last call left it: a method that replaced or reset it could predict it."""
        if _state_of(self._noise) != self._source:
            self.changed = "its code changes the noise that the ledger adds"

    def _step(self, seen: NDArray[Any]) -> NDArray[Any]:
        """Return the gradient with which DP-SGD steps instead of `seen`."""
        return seen

    def train(self, *given: Any, **options: Any) -> Training:
        """Also note the gradients of some steps; see :mod:`bench.evaluation.check.known_batches`."""
        if not self.exact:
            self._kept = kept_steps(*given[1:])
            options |= {"make_steps": partial(Noting, self._note), "batch_of": self._batch_of}
        return super().train(*given, **options)

    def _batch_of(self, step: int, batch: Batch) -> Batch:
        """Return the batch of `step`, here the run's own, and keep it for other runs."""
        self._noted = None
        if step in self._kept:
            self._noted = self._batches[step] = KnownBatch.of(step, batch)
        return batch

    def _note(self, samples: Sequence[Gradients]) -> None:
        if self._noted is not None:
            self._noted.note(samples)

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        seen = torch.cat([p.grad.detach().cpu().reshape(-1) for p in parameters]).numpy()
        # The recorded run does this too: other strides change the summation order and so the rounding.
        taped = torch.split(torch.from_numpy(self._step(seen)), [p.numel() for p in parameters])
        for parameter, gradient in zip(parameters, taped, strict=True):
            parameter.grad = gradient.view_as(parameter).to(parameter, copy=True)
        self._steps.append(seen.copy() if self._file is None else OnDisk.write(self._file, seen))


class Replaying(Recording):
    """Answers from the `tape` of a recorded run, whatever the input.

    The run on unrelated data is `far`; see :mod:`bench.evaluation.check.known_batches`. Mechanisms draw different noise
    than the recorded run's, so that subtracting it does not reveal the hidden value. Calls with another mechanism,
    charge or shape raise :class:`TapeDifference`; `difference` keeps the first one, because a method may catch the
    error.
    """

    def __init__(
        self, noise: Noise, tape: Sequence[Taped], originals: Originals | None = None,
        around: Callable[[], AbstractContextManager[None]] = nullcontext, *, far: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(noise, originals, around)
        self._far = far
        # Leave out the recorded run's inputs, which are those of the first private set.
        self._tape = [replace(call, given=None) for call in tape]
        self._number = 0  # number of the current call
        self._wanted: list[str] = []  # digests of the current step's gradients in the recorded run

    def begin(self, call: Call) -> Call:
        """Check that the tape's next call is of this mechanism, with these public arguments."""
        number = self._number = len(self.calls)
        if number >= len(self._tape):
            self._differ(f"it calls the ledger more than {number} times")
        if self._tape[number].mechanism != call.name:
            self._differ(f"its call {number + 1} is {call.name}, not {self._tape[number].mechanism}")
        begun = super().begin(call)
        self._compare_public(call)
        return begun

    def answer(self, call: Call, release: Callable[[Noise], Any]) -> Any:
        """Return the recorded answer."""
        answer, expected, given = super().answer(call, release), self._tape[self._number], self.calls[-1]
        if given.charged != expected.charged:
            self._differ(f"its call {len(self.calls)} of {call.name} is charged differently")
        if [one.shape for one in given.answers] != [one.shape for one in expected.answers]:
            self._differ(f"its call {len(self.calls)} of {call.name} asks for answers of another shape")
        self._compare_public(call)
        return expected.answers[-1].copy() if isinstance(answer, np.ndarray) else answer

    def draw(self, release: Callable[[Noise], Any]) -> Any:
        """Return what the recorded run drew."""
        number = len(self.calls)
        drawn = super().draw(release)
        if self._answering:
            return drawn
        if number >= len(self._tape) or self._tape[number].mechanism != "draw":
            self._differ(f"its call {number + 1} draws noise alone")
        kept = self._tape[number].answers[0].copy()
        return kept if isinstance(drawn, np.ndarray) else kept.item()

    def finish(self, events: Sequence[Event]) -> None:
        """Also note a difference if the run did not make all calls on the tape."""
        super().finish(events)
        if len(self.calls) < len(self._tape) and not self.difference:
            self.difference = (
                f"it calls the ledger {len(self.calls)} times, not {len(self._tape)}, on other private data with the "
                "same answers"
            )

    def _compare_public(self, call: Call) -> None:
        """Compare what is known so far; results of a training are known only after it."""
        expected = self._tape[self._number].public
        if found := public_difference({name: expected.get(name, "") for name in self._public}, self._public):
            advice = ONLY_STEPS if found.endswith(AFTERWARDS) else MUST_BE_PUBLIC
            self._differ(f"its call {self._number + 1} of {call.name} has another {found}", advice)

    def _repeated(self, listener: Listener) -> tuple[Sample, ...]:
        self.changed = self.changed or listener.trace()
        if listener.differs(self._tape[self._number].samples):
            self._differ(
                f"the function in its call {self._number + 1} of {listener.call.name} gives another value for the same "
                "records", ONLY_GIVEN,
            )  # fmt: skip
        return ()

    def _batch_of(self, step: int, batch: Batch) -> Batch:
        """Return the recorded run's batch, if this run gets it."""
        known = self._tape[self._number].batches.get(step)
        if known is None or known.far is not self._far:
            self._noted = None
            return batch
        self._noted, self._wanted = known.again(), known.digests
        return self._noted.batch()

    def _step(self, seen: NDArray[Any]) -> NDArray[Any]:
        expected, number = self._tape[self._number].answers, len(self._steps)
        if self._noted is not None and self._noted.digests != self._wanted:
            self._differ(
                f"in step {number + 1} of its DP-SGD, its net and loss give different gradients for the same records",
                "A hook, the loss or the net holds private data: clipping bounds none of what that changes",
            )
        if number >= len(expected) or seen.shape != expected[number].shape:
            self._differ(f"step {number + 1} of DP-SGD has another gradient's shape")
        return expected[number].copy()

    def _differ(self, what: str, advice: str = "") -> NoReturn:
        said = f"{what}, in another run with the same answers"
        self.difference = self.difference or (f"{said}. {advice}" if advice else said)
        raise TapeDifference(self.difference)


def _state_of(noise: Noise) -> bytes:
    try:
        return pickle.dumps(noise)
    except (pickle.PicklingError, AttributeError, TypeError):  # it holds an object of the method
        return b""


def _given(call: Call) -> Given | None:
    norm, arguments = NORMS.get(call.name), call.arguments
    # Under the unit query label one record may change the label of every query.
    if norm is None or (norm == "labels" and call.unit is PrivacyUnit.QUERY_LABEL):
        return None
    if call.name == "sampled_updates":
        # Each row is a client's update; in a simulation a relabelled record may move to another client.
        return Given(call.name, all_updates(arguments), norm, 2.0)
    if call.name == "sampled_function":  # one row per part; other rows move if the function uses more than its sample
        return Given(call.name, function_values(arguments), norm, 1.0)
    if call.name in ("dp_sgd", "sampled_loss_change"):  # a record's image followed by its label
        images, labels = (
            part.detach().cpu().double().flatten(1).numpy()
            for part in (arguments["images"], arguments["labels"][:, None])
        )
        values = np.hstack([images, labels])[None]
    elif call.name == "sampled_noisy_max":  # a record's column of distances, then its label
        values = np.vstack([arguments["distances"], arguments["labels"]])
    elif call.name in ("tree_sum", "banded_sum"):  # the step's own values, and the released sum
        window = arguments.get("separation", arguments["steps"])
        own = np.array(arguments["values"][0])
        return Given(call.name, own, norm, arguments["sensitivity"], window, arguments["step"] == 0)
    else:
        (values,) = call.private.values()
    times = 2 if norm == "range" and not arguments["monotonic"] else 1  # two scores may move in opposite directions
    return Given(call.name, np.array(values), norm, times * arguments.get("sensitivity", 1.0))
