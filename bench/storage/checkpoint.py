"""Checkpoints: a killed stage resumes and ends with the same result, to the byte on a CPU.

A checkpoint contains the full state of a training loop. It is private like the artefacts next to it, is deleted when
its stage is done, and is loaded with ``weights_only=True``, which runs no code. Its name encodes the stage's
dependencies, and its content includes a digest of the inputs, so no other stage can use it: a student never resumes
with labels from different noise, and cells never share noise.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from bench.core.errors import BenchError
from bench.core.progress import SILENT, Stage
from bench.core.version import __version__
from bench.storage.cache import Cache

VERSION = 2  # Increment with every change of the layout.
SECONDS = 120.0  # Seconds between two saves.
FIRST = 600.0  # Seconds before the first save: shorter stages are cheaper to retrain than to checkpoint.
LARGEST_SHARE = 0.05  # Maximum share of the running time spent on saving, however slow the disk.


@contextlib.contextmanager
def saving_every(seconds: float) -> Iterator[None]:
    """Make checkpoints inside the block save at least every `seconds`, for processes with a time limit."""
    global FIRST, SECONDS
    before = FIRST, SECONDS
    FIRST, SECONDS = min(FIRST, seconds), min(SECONDS, seconds)
    try:
        yield
    finally:
        FIRST, SECONDS = before


State = dict[str, Any]  # Tensors, numbers, strings, and dictionaries and lists of them.


@runtime_checkable
class Stateful(Protocol):
    """An object whose state consists of named tensors, whose shapes may change from step to step."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a state of :meth:`state_dict`, whose tensors are on the CPU."""


Part = nn.Module | torch.optim.Optimizer | torch.Generator | np.random.Generator | Tensor | Sequence[Tensor] | Stateful
"""A part of a loop's state. Tensors, alone or in a sequence, are restored in place."""


class Checkpoint:
    """The saved state of one stage, in a run's cache; a ``with`` block deletes it on success."""

    def __init__(self, cache: Cache, kind: str, depends: Mapping[str, Any]) -> None:
        self.kind = kind
        self._cache, self.name = cache, f"checkpoint-{kind}"
        self.depends = {**depends, "checkpoint": VERSION, "program": __version__}
        self.interval, self.saved_at = FIRST if SECONDS > 0 else 0.0, time.monotonic()
        self._phase, self._carried, self._inputs = 0, State(), input_digest([])
        self._found: State | None = None
        self._looked = False

    def load(self) -> State | None:
        """Return the last saved state, or None if it is missing, damaged or from another phase."""
        found = self._all()
        if found is None or found["phase"] != self._phase:
            return None
        state: State = found["state"]
        return state

    def due(self) -> bool:
        """Return whether it is time to save."""
        return time.monotonic() - self.saved_at >= self.interval

    def save(self, state: State) -> None:
        """Replace the saved state with `state`; a full disk is reported once and is not an error."""
        begin = time.monotonic()
        file = io.BytesIO()
        whole = {"phase": self._phase, "inputs": self._inputs(), "carried": self._carried, "state": state}
        torch.save(whole, file)
        try:
            self._cache.keep(self.name, self.depends, {"saved": np.frombuffer(file.getvalue(), dtype=np.uint8)})
        except BenchError as error:
            self._cache.say(
                f"a checkpoint could not be written, and the run continues without: {error}", once="checkpoint"
            )
        self._found, self._looked = None, True
        self.saved_at = time.monotonic()
        if SECONDS > 0:
            self.interval = max(SECONDS, (self.saved_at - begin) / LARGEST_SHARE)

    def clear(self) -> None:
        """Delete the saved state."""
        self._found, self._looked = None, True
        self._cache.forget(self.name, self.depends)

    def phase(self, inputs: Iterable[Tensor | None]) -> int:
        """Return the saved phase of a stage of several loops with these `inputs`; 0 if none was saved."""
        self._inputs, found = input_digest(inputs), self._all()
        if found is not None and found["inputs"] != self._inputs():
            self.refuse()
            return 0
        return 0 if found is None else int(found["phase"])

    def begin(self, phase: int, carried: Mapping[str, Part]) -> None:
        """Start a phase from `carried`, which is first restored if this is the saved phase."""
        self._phase, found = phase, self._all()
        if found is not None and found["phase"] == phase:
            self.restore(carried, found["carried"])
        self._carried = copy.deepcopy({name: state_of(part) for name, part in carried.items()})

    def restore(self, parts: Mapping[str, Part], states: State) -> None:
        """Put `states` into `parts`; raise :class:`BenchError` and delete the checkpoint if they do not fit."""
        try:
            if states.keys() != parts.keys():
                raise ValueError(f"it holds {', '.join(sorted(states))}")
            with torch.no_grad():
                for name, part in parts.items():
                    _put(part, states[name])
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            self.clear()  # the parts may be partly restored
            raise BenchError(
                f"a checkpoint does not fit the stage {self.kind} ({error}); it is deleted. Start the run again."
            ) from error

    def refuse(self) -> None:
        """Ignore the saved state, because its inputs differ, and report this."""
        self._found, self._looked = None, True
        self._cache.say(
            f"the checkpoint of the stage {self.kind} is not used, because it belongs to a stage with other inputs; "
            "the stage starts from the beginning"
        )

    def say_resumed(self) -> None:
        """Report that the stage resumes, but not at which step: that may depend on private records."""
        self._cache.say(f"the stage {self.kind} resumes where an earlier run was stopped")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.clear()

    def _all(self) -> State | None:
        if not self._looked:
            self._looked = True
            arrays = self._cache.recall(self.name, self.depends)
            if arrays is not None:
                self._found = torch.load(io.BytesIO(arrays["saved"].tobytes()), map_location="cpu", weights_only=True)
        return self._found


class Loop:
    """A training loop that can resume after any step (`start`, then `done` each step); inert without a checkpoint.

    `parts` is all state that changes and affects later steps; the global generators of torch and of `device` are added.
    For `inputs`, which the loop only reads, the checkpoint stores a digest.
    """

    def __init__(
        self, checkpoint: Checkpoint | None, parts: Mapping[str, Part], inputs: Iterable[object] = (),
        device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        self._checkpoint = checkpoint
        if checkpoint is None:
            return
        self._parts = {**parts, "torch": _GlobalGenerators(torch.device(device))}
        # Other random numbers would continue a different training.
        random = [part for part in parts.values() if isinstance(part, torch.Generator | np.random.Generator)]
        self._inputs = input_digest([*inputs, *map(state_of, random)])

    def start(self, stage: Stage = SILENT) -> int:
        """Restore the saved state, advance `stage` and return the number of steps done, 0 if none was saved."""
        checkpoint = self._checkpoint
        found = None if checkpoint is None else checkpoint.load()
        if checkpoint is None or found is None:
            return 0
        if found["inputs"] != self._inputs():
            checkpoint.refuse()
            return 0
        checkpoint.restore(self._parts, found["parts"])
        checkpoint.say_resumed()
        stage.advance(found["steps"])
        return int(found["steps"])

    def done(self, steps: int, total: int) -> None:
        """Save after `steps` of `total` steps if due, but never after the last, whose loss is checked later."""
        checkpoint = self._checkpoint
        if checkpoint is None or steps >= total or not checkpoint.due():
            return
        parts = {name: state_of(part) for name, part in self._parts.items()}
        checkpoint.save({"parts": parts, "steps": steps, "inputs": self._inputs()})


def input_digest(inputs: Iterable[object]) -> Callable[[], str]:
    """Return a cached function for the SHA-256 of `inputs`; stages too short to save never compute it."""
    held = list(inputs)

    @functools.cache
    def digest() -> str:
        found = hashlib.sha256()
        for one in held:
            if isinstance(one, Tensor):
                tensor = one.detach().cpu().contiguous()
                found.update(f"{tensor.dtype}|{tuple(tensor.shape)}|".encode())
                found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
            elif isinstance(one, dict):  # the state of a NumPy generator
                found.update(str(one).encode())
            else:  # None or lazy images, which the name of the checkpoint covers
                found.update(f"{type(one).__name__}|{tuple(getattr(one, 'shape', ()))}|".encode())
        return found.hexdigest()

    return digest


class _GlobalGenerators:
    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None

    def state_dict(self) -> dict[str, Tensor]:
        found = {"cpu": torch.get_rng_state()}
        if self._device is not None:
            found["cuda"] = torch.cuda.get_rng_state(self._device)
        return found

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        torch.set_rng_state(state["cpu"])
        if self._device is not None and "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"], self._device)


def state_of(part: Part) -> Any:
    """Return the state of `part` for :meth:`Checkpoint.restore`; tensors are not copied."""
    if isinstance(part, torch.Generator):
        return part.get_state()
    if isinstance(part, np.random.Generator):
        return part.bit_generator.state
    if isinstance(part, Tensor | Sequence):
        return [value.detach() for value in _tensors(part)]
    return part.state_dict()


def _put(part: Part, state: Any) -> None:
    if isinstance(part, torch.Generator):
        part.set_state(state)
    elif isinstance(part, np.random.Generator):
        part.bit_generator.state = state
    elif isinstance(part, Tensor | Sequence):
        # Copy in place to keep the memory layout and references.
        for value, saved in zip(_tensors(part), state, strict=True):
            value.copy_(saved)
    else:
        part.load_state_dict(state)


def _tensors(part: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    return [part] if isinstance(part, Tensor) else part
