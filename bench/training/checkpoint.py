"""Checkpoints: a long stage that was killed goes on where it was, and ends as one that was not, to the byte on a CPU.

A checkpoint holds all that a training loop carries from one step to the next: weights, the optimiser's moments, the
states of random generators, what is left of a permutation. It lies beside the artefacts, private as they are, is
written every two minutes (:data:`SECONDS`) and deleted once its stage is done. Nothing is ever unpickled.

Going on is only right where everything is as it was. What a stage depends on is in the checkpoint's name; besides, the
checkpoint holds a digest of the stage's inputs (images, labels, the starts of its random generators), and one of other
inputs is left alone. So a student never goes on with labels that were answered with other noise, and no two cells share
noise through a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from bench import __version__
from bench.core.errors import BenchError

if TYPE_CHECKING:
    from types import TracebackType

    from bench.core.progress import Stage
    from bench.storage.cache import Cache

VERSION = 1
"""Raised whenever what a loop stores is laid out in another way."""
SECONDS = 120.0
"""How often a stage is saved; stages shorter than this never are."""
LARGEST_SHARE = 0.05
"""Saving takes no more than this share of the time, however slow the disk is."""

OTHER_INPUTS = "it is of a stage with other inputs"

State = dict[str, Tensor]


@runtime_checkable
class Stateful(Protocol):
    """Something with a state of its own, as tensors by name; the shapes may change from step to step."""

    def state_dict(self) -> State:
        """Return the state."""

    def load_state_dict(self, state: State) -> None:
        """Take over a state that :meth:`state_dict` gave."""


Part = nn.Module | torch.optim.Optimizer | torch.Generator | np.random.Generator | Tensor | Sequence[Tensor] | Stateful
"""What a loop may hold. Tensors, alone or in a sequence, are written in place."""


class Checkpoint:
    """The saved state of one stage in a run's cache; in memory where the cache is.

    `depends` names everything that the stage depends on, by the rule of :meth:`bench.storage.cache.Cache.get`. As a
    context manager it deletes what it saved when the block ends without an error.
    """

    def __init__(self, cache: Cache, kind: str, depends: Mapping[str, Any]) -> None:
        self.kind = kind
        self._cache, self._name = cache, f"checkpoint-{kind}"
        self._depends = {**depends, "checkpoint": VERSION, "program": __version__}
        self._wait = SECONDS
        self._last = time.monotonic()
        self._phase, self._carried, self._inputs = 0, State(), _Inputs([])
        self._found: State | None = None
        self._looked = False

    def load(self) -> State | None:
        """Return what was saved last; None where nothing was, or where it is damaged or of another phase."""
        found = self._all()
        if found is None or int(found["phase"]) != self._phase:
            return None
        return _below("state", found)

    def due(self) -> bool:
        """Return whether it is time to save."""
        return time.monotonic() - self._last >= self._wait

    def save(self, state: Mapping[str, Tensor]) -> None:
        """Save `state`, of contiguous tensors on the CPU, in place of what was saved before; it is taken over.

        A full disk is said, once, and is no error.
        """
        begin = time.monotonic()
        arrays = {f"state/{name}": value for name, value in state.items()}
        arrays |= {f"carried/{name}": value for name, value in self._carried.items()}
        arrays |= {"phase": torch.tensor(self._phase), "inputs": self._inputs.digest()}
        try:
            self._cache.keep(self._name, self._depends, {name: value.numpy() for name, value in arrays.items()})
        except BenchError as error:
            self._cache.say(
                f"a checkpoint could not be written, and the run goes on without: {error}", once="checkpoint"
            )
        self._found, self._looked = None, True
        self._last = time.monotonic()
        if SECONDS > 0:
            self._wait = max(SECONDS, (self._last - begin) / LARGEST_SHARE)

    def clear(self) -> None:
        """Delete what was saved: the stage is done."""
        self._found, self._looked = None, True
        self._cache.forget(self._name, self._depends)

    def phase(self, inputs: Iterable[Tensor | None]) -> int:
        """Return the phase that was saved last, of a stage of several loops one after the other; 0 where none was.

        `inputs` are what the whole stage is given: what was saved of others is left alone, with all its phases.
        """
        self._inputs, found = _Inputs(inputs), self._all()
        if found is not None and not self._inputs.same(found.get("inputs")):
            self.refuse(OTHER_INPUTS)
            found = None
        return 0 if found is None else int(found["phase"])

    def begin(self, phase: int, carried: Mapping[str, Part]) -> None:
        """Begin a phase that starts from what is `carried`; where it is the one that was saved, put that back first."""
        self._phase, found = phase, self._all()
        if found is not None and int(found["phase"]) == phase:
            try:
                restore(carried, _below("carried", found))
            except MismatchError as error:
                self.clear()
                raise BenchError(
                    f"a checkpoint does not fit the stage {self.kind} ({error}); it is deleted."
                ) from error
        self._carried = flatten(carried)

    def refuse(self, why: str) -> None:
        """Leave alone what was saved, and say `why`."""
        self._found, self._looked = None, True
        self._cache.say(f"the checkpoint of the stage {self.kind} is not used: {why}; the stage begins anew")

    def say_resumed(self) -> None:
        """Say that the stage goes on. Not where: the number of steps may tell of private records."""
        self._cache.say(f"the stage {self.kind} goes on where an earlier run was stopped")

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
            arrays = self._cache.recall(self._name, self._depends)
            if arrays is not None and "phase" in arrays:
                self._found = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        return self._found


class Loop:
    """A training loop that can be stopped after any step; without a checkpoint nothing happens.

    `parts` are all that changes from step to step and shapes what comes after; torch's global generators are saved with
    them, those of `device` too. `inputs` are what the loop is given and does not change: they are compared, not kept.

        loop = Loop(checkpoint, {"model": model, "optimizer": optimizer, "order": generator}, [images, labels])
        for step in range(loop.start(stage), total):
            ...
            loop.done(step + 1, total)
    """

    def __init__(
        self,
        checkpoint: Checkpoint | None,
        parts: Mapping[str, Part],
        inputs: Iterable[Tensor | None] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        self._checkpoint = checkpoint
        if checkpoint is None:
            return
        self._parts = {**parts, "torch": _GlobalGenerators(torch.device(device))}
        # Two runs that draw other numbers are two trainings, whatever else they share.
        random = {name: part for name, part in parts.items() if isinstance(part, torch.Generator | np.random.Generator)}
        self._inputs = _Inputs([*inputs, *flatten(random).values()])

    def start(self, stage: Stage | None = None) -> int:
        """Put back what was saved and return how many steps are done, 0 where none are; `stage` is advanced by them."""
        checkpoint = self._checkpoint
        found = None if checkpoint is None else checkpoint.load()
        if checkpoint is None or found is None:
            return 0
        try:
            if not self._inputs.same(found["inputs"]):
                raise MismatchError(OTHER_INPUTS)
            restore(self._parts, _below("parts", found))
        except (KeyError, MismatchError) as error:
            checkpoint.refuse(str(error))
            return 0
        steps = int(found["steps"])
        checkpoint.say_resumed()
        if stage is not None:
            stage.advance(steps)
        return steps

    def done(self, steps: int, total: int) -> None:
        """Save the loop where it is time, after so many of `total` steps; never after the last, which others judge."""
        checkpoint = self._checkpoint
        if checkpoint is None or steps >= total or not checkpoint.due():
            return
        state = {f"parts/{name}": value for name, value in flatten(self._parts).items()}
        checkpoint.save({**state, "steps": torch.tensor(steps), "inputs": self._inputs.digest()})


class _Inputs:
    """What a stage is given, by its digest. It is read minutes after the start, so that short stages pay nothing."""

    def __init__(self, tensors: Iterable[Tensor | None]) -> None:
        self._tensors = list(tensors)
        self._digest: Tensor | None = None

    def digest(self) -> Tensor:
        if self._digest is None:
            digest = hashlib.sha256()
            for tensor in self._tensors:
                if isinstance(tensor, Tensor):
                    given = tensor.detach().cpu().contiguous()
                    digest.update(f"{given.dtype}|{tuple(given.shape)}|".encode())
                    digest.update(given.reshape(-1).view(torch.uint8).numpy().data)
                else:  # none, or images that no memory holds: those are named by what the checkpoint depends on
                    digest.update(f"{type(tensor).__name__}|{tuple(getattr(tensor, 'shape', ()))}|".encode())
            self._digest = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
        return self._digest

    def same(self, digest: Tensor | None) -> bool:
        return digest is not None and torch.equal(digest, self.digest())


class MismatchError(ValueError):
    """A saved state that does not fit what it is to be put back into."""


def flatten(parts: Mapping[str, Part]) -> State:
    """Return the states of `parts` as one dictionary, ``PART/NAME``: copies, contiguous, on the CPU."""
    found = State()
    for name, part in parts.items():
        assert "/" not in name
        found |= {f"{name}/{key}": _copy(value) for key, value in _state_of(part).items()}
    return found


def restore(parts: Mapping[str, Part], state: Mapping[str, Tensor]) -> None:
    """Put what :func:`flatten` gave back into `parts`. All or nothing: a state that does not fit changes nothing.

    Raises :class:`MismatchError` for one that does not fit.
    """
    apply = [_plan(name, part, _below(name, state)) for name, part in parts.items()]
    names = {name.partition("/")[0] for name in state}
    if not names <= parts.keys():
        raise MismatchError(f"it holds {', '.join(sorted(names - parts.keys()))}, which the stage has not")
    with torch.no_grad():
        for put in apply:
            put()


def generator_bytes(generator: np.random.Generator) -> Tensor:
    """Return the state of a NumPy generator as uint8 (n,)."""
    text = json.dumps(generator.bit_generator.state).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def set_generator(generator: np.random.Generator, state: Tensor) -> None:
    """Put `generator` where :func:`generator_bytes` said that it was."""
    generator.bit_generator.state = json.loads(state.numpy().tobytes())


class _GlobalGenerators:
    """Torch's own generators, of which layers draw: the CPU's, and that of the device in use."""

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None

    def state_dict(self) -> State:
        found = {"cpu": torch.get_rng_state()}
        if self._device is not None:
            found["cuda"] = torch.cuda.get_rng_state(self._device)
        return found

    def load_state_dict(self, state: State) -> None:
        torch.set_rng_state(state["cpu"])
        if self._device is not None and "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"], self._device)


def _state_of(part: Part) -> State:
    if isinstance(part, torch.optim.Optimizer):
        return _optimizer_state(part)
    if isinstance(part, torch.Generator):
        return {"state": part.get_state()}
    if isinstance(part, np.random.Generator):
        return {"state": generator_bytes(part)}
    if isinstance(part, Tensor):
        return {"value": part}
    if isinstance(part, Sequence):
        return {str(number): value for number, value in enumerate(part)}
    return dict(part.state_dict())


def _plan(name: str, part: Part, state: State) -> Callable[[], object]:
    """Return what puts `state` back into `part`, once it is known that all parts fit."""
    if isinstance(part, torch.optim.Optimizer):
        return _optimizer_plan(name, part, state)
    if isinstance(part, torch.Generator):
        _check(name, {"state": part.get_state()}, state)
        return lambda: part.set_state(state["state"])
    if isinstance(part, np.random.Generator):
        if "state" not in state:
            raise MismatchError(f"{name} is not in it")
        return lambda: set_generator(part, state["state"])
    if isinstance(part, nn.Module | Tensor | Sequence):
        into = _state_of(part)
        _check(name, into, state)
        # In place: the layout in memory stays, and so do all references.
        return lambda: [value.copy_(state[key]) for key, value in into.items()]
    return lambda: part.load_state_dict(state)


def _optimizer_state(optimizer: torch.optim.Optimizer) -> State:
    found = State()
    for number, group in enumerate(optimizer.param_groups):
        found[f"lr/{number}"] = torch.tensor(float(group["lr"]), dtype=torch.float64)
    for number, parameter in enumerate(_parameters(optimizer)):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                found[f"{number}/{key}"] = value
                if not value.is_contiguous():
                    # Fused optimisers go through memory as it lies: a moment must lie as its parameter does.
                    found[f"{number}/{key}/strides"] = torch.tensor(value.stride())
    return found


def _optimizer_plan(name: str, optimizer: torch.optim.Optimizer, state: State) -> Callable[[], None]:
    parameters = _parameters(optimizer)
    rates = [state.pop(f"lr/{number}", None) for number in range(len(optimizer.param_groups))]
    moments: dict[int, State] = {}
    for key, value in state.items():
        number, _, what = key.partition("/")
        if what.endswith("/strides"):
            continue
        if not number.isdecimal() or int(number) >= len(parameters):
            raise MismatchError(f"{name} has no {key}")
        parameter = parameters[int(number)]
        if value.ndim and value.shape != parameter.shape:
            raise MismatchError(f"{name}/{key} has the shape {tuple(value.shape)}, not {tuple(parameter.shape)}")
        strides = state.get(f"{key}/strides")
        if strides is not None:
            value = torch.empty_strided(value.shape, strides.tolist(), dtype=value.dtype).copy_(value)
        # Counts of steps stay on the CPU, but for fused optimisers.
        stays = what == "step" and not optimizer.param_groups[0].get("fused")
        moments.setdefault(int(number), {})[what] = value if stays else value.to(parameter.device)
    if any(rate is None for rate in rates):
        raise MismatchError(f"{name} has another number of groups")

    def put() -> None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            assert rate is not None
            group["lr"] = float(rate)
        optimizer.state.clear()
        for number, values in moments.items():
            optimizer.state[parameters[number]] = dict(values)

    return put


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _check(name: str, into: State, state: State) -> None:
    if into.keys() != state.keys():
        odd = sorted(into.keys() ^ state.keys())
        raise MismatchError(f"{name} has other tensors: {', '.join(odd[:3])}")
    for key, value in into.items():
        if value.shape != state[key].shape or value.dtype != state[key].dtype:
            raise MismatchError(f"{name}/{key} has another shape or type")


def _below(name: str, state: Mapping[str, Tensor]) -> State:
    return {key[len(name) + 1 :]: value for key, value in state.items() if key.startswith(f"{name}/")}


def _copy(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True).contiguous()
