"""Two runs of a method on adjacent private sets in lockstep: both get the same answer at every call of the ledger.

At each call the auditor sees the mechanism's inputs on both sets, draws the answer, gives it to both runs, and
accumulates the exact privacy loss ``ln P(answers) / P'(answers)``. Both runs have equal public randomness, so if their
releases still differ, private data was used outside the ledger.

Answers may be drawn from a distribution tilted towards large losses, with a known weight: losses that otherwise occur
in one run in a hundred thousand then occur in every second run. The loss assumes noise of the stated distribution,
which :mod:`bench.evaluation.audit.mechanism_audit` tests.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.evaluation.audit.tapped_dp_sgd import TappedTraining, tapped_dp_sgd, tapped_loss_change
from bench.evaluation.check.fingerprint import public_arguments
from bench.evaluation.check.tape import charged_for, public_difference
from bench.privacy.auditing.compared import Comparison, Drawn
from bench.privacy.auditing.transcript_loss import PublicDifference, compare
from bench.privacy.mechanisms.executors import Call, Executor
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import Noise, ZeroNoise
from bench.training.divergence import CollapsedError

T = TypeVar("T")


@dataclass(slots=True)
class Transcript:
    """Results of one pair of runs: the `loss` of all answers under the first set's distribution, and its log weight."""

    loss: float = 0.0
    log_weight: float = 0.0
    calls: int = 0
    difference: str = ""
    """How the runs differ despite equal answers, empty if they do not."""
    comparisons: tuple[Comparison, Comparison] | None = None
    """The only call so far, in both directions; None if calls may depend on answers."""
    exact: tuple[float, float] | None = None  # epsilon in both directions
    training: TappedTraining | None = None  # the last DP-SGD training; holds the distances of all trainings

    @property
    def size(self) -> float:
        """``ln E[exp(loss)]`` along the path taken with tilt 1: mu^2 for Gaussian noise."""
        return self.log_weight + self.loss

    def as_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the parts that can be stored on disk."""
        exact = [math.nan, math.nan] if self.exact is None else list(self.exact)
        text = np.frombuffer(self.difference.encode(), dtype=np.uint8).copy()
        training = self.training
        steps = np.zeros(0)
        if training is not None:
            both = [len(training.distances), *training.distances, *training.displaced]
            steps = np.array([training.rate, training.present, *both])
        numbers = np.array([self.loss, self.log_weight, self.calls, *exact])
        return {"numbers": numbers, "difference": text, "training": steps}

    @classmethod
    def from_arrays(cls, kept: dict[str, NDArray[Any]]) -> Transcript:
        """Invert :meth:`as_arrays`."""
        loss, log_weight, calls, first, second = kept["numbers"].tolist()
        exact = None if math.isnan(first) else (first, second)
        training = None
        if kept["training"].size:
            rate, present, count, *both = kept["training"].tolist()
            training = TappedTraining(loss, log_weight, rate, both[: int(count)], bool(present), both[int(count) :])
        text = kept["difference"].tobytes().decode()
        return cls(loss, log_weight, int(calls), text, exact=exact, training=training)


class Parted(BenchError):
    """The runs call the ledger differently although they got equal answers."""


class _Stopped(BaseException):
    """Ends a run that waits for an answer; a method's `except Exception` does not catch it."""


class Lockstep(Executor):
    """Passes the auditor's answers to one run, in a thread that runs only between two calls of the ledger."""

    def __init__(self, work: Callable[[Ledger], Any], unit: PrivacyUnit, adjacency: Adjacency) -> None:
        super().__init__(ZeroNoise(exact=False))
        self.asked: Call | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self._answer: NDArray[Any] | None = None
        self._stop = False
        self._go, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._states = _global_states()
        self._thread = threading.Thread(target=self._run, args=(work, Ledger(unit, adjacency, self)), daemon=True)

    def _run(self, work: Callable[[Ledger], Any], ledger: Ledger) -> None:
        torch.set_num_threads(1)  # only in this thread
        self._go.acquire()
        try:
            if not self._stop:
                self.result = work(ledger)
        except BaseException as error:  # noqa: BLE001 (raised again by the auditor)
            self.error = error
        self.asked = None
        self._waits.release()

    def answer(self, call: Call, release: Callable[[Noise], Any]) -> Any:
        """Wait for the auditor's answer; the mechanism also runs, without noise, to raise its usual errors."""
        if call.name != "dp_sgd":
            self.draw(release)
        self.asked = call
        self._waits.release()
        self._go.acquire()
        if self._stop:
            raise _Stopped
        return self._answer

    def go(self, answer: Any = None) -> None:
        """Run until the next call of the ledger or the end, with this run's own global random state."""
        if not self._thread.is_alive():
            self._thread.start()
        outside = _global_states()
        _set_global_states(self._states)
        self._answer = answer
        self._go.release()
        self._waits.acquire()
        self._states = _global_states()
        _set_global_states(outside)

    def stop(self) -> None:
        """End the waiting run."""
        self._stop = True
        self._go.release()
        if self._thread.is_alive():
            self._thread.join()


def in_lockstep(
    works: tuple[Callable[[Ledger], T], Callable[[Ledger], T]],
    unit: PrivacyUnit,
    adjacency: Adjacency,
    generator: np.random.Generator,
    tilt: float,
) -> tuple[Transcript, T | None, T | None]:
    """Return the transcript of two runs and their results, None if they diverged.

    `works` train on the first and the second set with a ledger each, which charges for `unit` and `adjacency`. Answers
    come from the distribution on the first set, tilted by `tilt`. Errors of a run propagate unless the other run
    continues, in which case the transcript says that they differ, or both refuse the same answers.
    """
    found, sides = Transcript(), tuple(Lockstep(work, unit, adjacency) for work in works)
    try:
        for side in sides:
            side.go()
        while sides[0].asked is not None and sides[1].asked is not None:
            (name, first, charged), (other, second, also) = (
                (asked.name, asked.arguments, charged_for(asked)) for asked in (sides[0].asked, sides[1].asked)
            )
            found.calls += 1
            if name != other or charged != also:
                raise Parted(f"call {found.calls} is {name} ({charged}) in one run and {other} ({also}) in the other")
            if differs := public_difference(*(public_arguments(asked) for asked in (sides[0].asked, sides[1].asked))):
                raise Parted(f"call {found.calls} of {name} has another {differs} in one run than in the other")
            one: Drawn | TappedTraining
            comparisons = None
            if name == "dp_sgd":
                one = training = tapped_dp_sgd(first, second, generator, tilt)
                if (earlier := found.training) is not None:
                    training = replace(
                        training, distances=[*earlier.distances, *training.distances],
                        displaced=[*earlier.displaced, *training.displaced],
                    )  # fmt: skip
                found.training = training
            elif name == "sampled_loss_change":
                one = tapped_loss_change(first, second, generator, tilt)
            else:
                comparison = compare(name, first, second)
                one = comparison.draw(generator, tilt)
                comparisons = (comparison, compare(name, second, first)) if found.calls == 1 else None
            found.comparisons = comparisons
            found.loss, found.log_weight = found.loss + one.loss, found.log_weight + one.log_weight
            for side in sides:
                side.go(np.array(one.answer) if isinstance(one, Drawn) else None)
        if sides[0].asked is not None or sides[1].asked is not None:
            raise Parted(f"one run ends after {found.calls} calls of the ledger, the other goes on")
    except (Parted, PublicDifference) as parted:
        found.difference = str(parted)
    finally:
        for side in sides:
            side.stop()
    errors = [side.error for side in sides if side.error is not None]
    if not found.difference and errors:  # stopping diverged runs also raises errors
        collapsed = [error for error in errors if isinstance(error, CollapsedError)]
        alike = len(collapsed) == 2 or (str(errors[0]) == str(errors[-1]) and isinstance(errors[0], BenchError))
        # The record of a failed row shows the generated images, so they count as released.
        if len(collapsed) == 2 and not torch.equal(*(error.images.nan_to_num() for error in collapsed)):
            found.difference = "generated images differ though every answer of the ledger is the same"
        if len(errors) == 2 and alike and (found.calls or collapsed):  # neither run could train a student
            return found, None, None
        if len(errors) == 2:
            raise errors[0]
        found.difference = f"one run fails, the other does not: {errors[0]}"
    if found.difference:
        return found, None, None
    return found, sides[0].result, sides[1].result


def _global_states() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _set_global_states(states: tuple[Any, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
