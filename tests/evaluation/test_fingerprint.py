"""Fingerprints tell values apart wherever an object can hold a difference, and refuse what they cannot read."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.errors import BenchError
from bench.core.progress import LineProgress, Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, PrivacyUnit
from bench.evaluation.check.fingerprint import fingerprint
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import ZeroNoise
from bench.storage.cache import Cache
from bench.storage.checkpoint import Checkpoint

KEPT: list[torch.Tensor] = []  # alive while a weak reference is compared


class Attributed(list[int]):
    """A list with attributes."""


class Number(int):
    """An integer with attributes."""


class Slotted:
    """One hidden slot."""

    __slots__ = ("__held",)

    def __init__(self, held: object) -> None:
        self.__held = held


def attached(value: Any, held: object) -> Any:
    value.held = held
    return value


def stored(value: Any, name: str, held: object) -> Any:
    setattr(value, name, held)
    return value


def ledger() -> Ledger:
    return Ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, Noisy(ZeroNoise(exact=False)))


def hooked(number: int) -> torch.nn.Module:
    layer = torch.nn.Linear(1, 1)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
    layer._forward_hooks[number] = print
    return layer


def of_class(held: object) -> object:
    return type("Held", (), {"__module__": __name__, "held": held})()


def of_disguised_class(held: object) -> object:
    return type("Tensor", (), {"__module__": "torch", "held": held})()


def disguised(held: object) -> Callable[[], object]:
    names = {"held": held, "__name__": "torch"}
    exec("def function():\n    return held", names)
    function: Callable[[], object] = names["function"]  # type: ignore[assignment]
    return function


def weakly(held: torch.Tensor) -> weakref.ref[torch.Tensor]:
    KEPT.append(held)
    return weakref.ref(held)


def called(held: torch.Tensor) -> Callable[[], float]:
    def function() -> float:
        return float(held.sum())

    return function


def wrapped(held: torch.Tensor) -> Callable[[], object]:
    function = functools.cache(called(held))
    function.__wrapped__ = np.median
    return function


HOLDERS: dict[str, Callable[[torch.Tensor], object]] = {
    "closure": called,
    "default": lambda held: lambda value=held: value,
    "built-in method": lambda held: held.clone,
    "partial": lambda held: functools.partial(print, held),
    "cell": lambda held: called(held).__closure__,
    "key of a mapping": lambda held: {held: 0},
    "iterator": lambda held: iter([held]),
    "cycle": lambda held: itertools.cycle([held]),
    "generator": lambda held: generated(held),
    "deque": lambda held: deque([held]),
    "bytes": lambda held: bytearray(held.numpy().tobytes()),
    "weak reference": weakly,
    "attribute of a list": lambda held: attached(Attributed([1]), held),
    "attribute of a number": lambda held: attached(Number(1), held),
    "attribute of a tensor": lambda held: attached(torch.zeros(1), held),
    "attribute of a function": lambda held: attached(lambda: None, held),
    "cached function with another's name": wrapped,
    "slot": Slotted,
    "class": of_class,
    "union of types": lambda held: int | type(of_class(held)),
    "class that says it is torch's": of_disguised_class,
    "global of a function that says it is torch's": disguised,
    "array of objects": lambda held: np.array([held.tolist(), None], dtype=object),
    "ledger": lambda held: attached(ledger(), held),
    "what a ledger keeps": lambda held: stored(ledger(), "_votes", [held]),
    "what it keeps for its executor": lambda held: stored(ledger(), "_executor", held),
    "what a cache keeps": lambda held: stored(Cache(None, {}), "_memory", {"votes": {"held": held}}),
    "names in a cache": lambda held: stored(Cache(None, {}), "made", [str(held.tolist())]),
    "folder of a cache": lambda held: stored(Cache(None, {}), "root", Path(str(held.tolist()))),
    "clock of a cache": lambda held: stored(Cache(None, {}), "waited", held),
    "what a checkpoint found": lambda held: stored(Checkpoint(Cache(None, {}), "student", {}), "_found", [held]),
    "progress": lambda held: attached(Progress(), held),
    "clock of a progress display": lambda held: LineProgress(float(held[0])),
    "cache": lambda held: Cache(None, {"held": held}),
    "number of a hook": lambda held: hooked(int(1e9 * held[0])),
    "hook": lambda held: attached(torch.nn.Linear(1, 1).register_forward_hook(print), held),
}  # fmt: skip


@pytest.mark.parametrize("place", HOLDERS)
def test_a_difference_is_seen_wherever_it_is_held(place: str) -> None:
    one, same, other = (fingerprint(HOLDERS[place](torch.full((3,), value))) for value in (1.0, 1.0, 2.0))
    assert one == same
    assert one != other


@pytest.mark.parametrize(
    ("one", "other"), [(Cache(None, {}), Cache(None, {})), (Progress(), Progress()), (Streams(3), Streams(3))]
)
def test_the_running_state_of_two_runs_is_equal(one: object, other: object) -> None:
    if isinstance(one, Cache):
        one.made.append("votes")
        other.found.append("votes")  # where one run makes an artefact, another may find it
        one.waited = 3.0
    assert fingerprint(one) == fingerprint(other)


def test_equal_tuples_may_be_one_object_or_two() -> None:
    layer, (one, two) = [0], (tuple(map(float, "12")) for _ in range(2))
    assert one is not two
    assert fingerprint([one, one, layer, layer]) == fingerprint([one, two, layer, layer])


def test_what_a_function_kept_is_made_again() -> None:
    box = [2.0]

    @functools.cache
    def kept() -> float:
        return box[0]

    kept()
    box[0] = 1.0
    fingerprint(kept)
    assert kept() == 1.0


def generated(held: object) -> Iterator[object]:
    yield held


def begun() -> Iterator[object]:
    found = generated(1)
    next(found)
    return found


def test_a_value_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(BenchError, match="generator: what a value of this type holds cannot be compared"):
        fingerprint([begun()])
