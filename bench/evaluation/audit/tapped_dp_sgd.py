"""DP-SGD that exposes one record's contribution: each step's privacy loss, given the other records' samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.core.types import Sampling
from bench.evaluation.audit.probe import RECORDS, probed
from bench.evaluation.audit.record_law import FirstInFront, RecordLaw
from bench.privacy.auditing.compared import Drawn
from bench.privacy.auditing.sampled_loss import SampledSums, sampled_shift
from bench.privacy.auditing.transcript_loss import PublicDifference
from bench.privacy.dpsgd.clipping import Flat, PerLayer
from bench.privacy.dpsgd.dp_sgd import DPSGDRun, NoisySteps, train
from bench.privacy.dpsgd.gradient_forms import Gradients, picked, without
from bench.privacy.mechanisms.loss_change import loss_change
from bench.privacy.mechanisms.mechanisms import poisson_sample
from bench.privacy.mechanisms.noise import SeededNoise

S = TypeVar("S", bound=NoisySteps)


class _Tapped(NoisySteps):
    """Keeps the record's clipped gradient out of the batch's sum, and draws what the sum reveals of it.

    The record comes first in every batch's first pass. Along its gradient, the draw of `shift` replaces the noise.
    """

    shift: Callable[[float], tuple[float, float, float]]
    taking_part: Callable[[], bool]
    loss = log_weight = 0.0
    _part: torch.Tensor

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.distances: list[float] = []

    def add(self, samples: Sequence[Gradients]) -> None:
        if self.sums:
            return super().add(samples)
        # Clip the record like the others, but keep its part out of the sum.
        self._part = _flat(self.clipping.summed([picked(sample, [0]) for sample in samples]))
        first = torch.tensor([0], device=self._part.device)
        others = [without(sample, first) for sample in samples]
        super().add(others)
        # Subtract the contribution of the record's zeros, because adaptive clipping counts zero gradients too.
        zeros = self.clipping.summed([picked(sample, [0]) for sample in others])
        self.sums = [total - zero for total, zero in zip(self.sums, zeros, strict=True)]

    def draw(self) -> Iterator[NDArray[np.float32]]:
        drawn = list(super().draw())
        noise, part = _flat(map(torch.from_numpy, drawn)).double(), self._part.double().cpu()
        norm = float(part.norm())
        self.distances.append(self.taking_part() * norm / (self.noise_multiplier * self.clipping.sensitivity))
        seen, loss, log_weight = self.shift(self.distances[-1])
        self.loss, self.log_weight = self.loss + loss, self.log_weight + log_weight
        if norm > 0:
            along = part / norm
            noise += (seen - noise @ along) * along
        pieces = torch.split(noise, [one.size for one in drawn])
        return (piece.view(one.shape).float().numpy() for piece, one in zip(pieces, drawn, strict=True))


class _Candidates(NoisySteps):
    """Keeps the candidates' clipped gradients out of the batch's sum, and adds that of the true one, if it is drawn.

    The candidates come first in every batch, then the record that the true one displaces, if any. `law` has the log
    likelihoods of all noisy sums. No candidate is true if `true` is None.
    """

    true: int | None
    law: RecordLaw
    _parts: torch.Tensor

    def add(self, samples: Sequence[Gradients]) -> None:
        if self.sums:
            return super().add(samples)
        draws = self.law.draws
        count = draws.count + draws.displaced
        first = torch.arange(count, device=self.parameters[0].device)
        others = [without(sample, first) for sample in samples]
        super().add(others)
        zero = _flat(self.clipping.summed([picked(sample, [0]) for sample in others]))
        zeros = self.clipping.summed([picked(sample, slice(count)) for sample in others])
        self.sums = [total - none for total, none in zip(self.sums, zeros, strict=True)]
        candidates = [picked(sample, slice(count)) for sample in samples]
        if isinstance(self.clipping, (Flat, PerLayer)):
            kept, factors = self.clipping.clipped(candidates)
            formed = (picked(one, slice(None)).flatten(1) for one in kept)
            self._parts = torch.cat([factor[:, None] * one for factor, one in zip(factors, formed, strict=True)], 1)
        else:
            rows = ([one[[row]] for one in candidates] for row in range(count))
            self._parts = torch.stack([_flat(self.clipping.summed(row)) for row in rows]) - zero
        if len(self._parts) < count:
            raise BenchError(f"DP-SGD takes too few examples per pass for {count} candidates. Give fewer.")

    def draw(self) -> Iterator[NDArray[np.float32]]:
        drawn = list(super().draw())
        noise = _flat(map(torch.from_numpy, drawn)).double()
        parts = self._parts.double().cpu() / (self.noise_multiplier * self.clipping.sensitivity)
        draws = self.law.draws
        if draws.inside and self.true is not None:
            noise += parts[self.true]
        if draws.displaced and not draws.inside:
            noise += parts[-1]
        along = (parts @ noise - (parts**2).sum(1) / 2).numpy()
        self.law.add(along[: draws.count], float(along[-1]) if draws.displaced else 0.0)
        pieces = torch.split(noise, [one.size for one in drawn])
        return (piece.view(one.shape).float().numpy() for piece, one in zip(pieces, drawn, strict=True))


class _Exchanged(_Candidates):
    """Draws what each sum of a fixed batch reveals of the record, which takes the place of the displaced one.

    Given the others, an answer is centred on the displaced record's part or, with a probability equal to the sampling
    rate, on the record's own part, which is zero on the set without it.
    """

    generator: np.random.Generator
    tilt: float
    present: bool
    loss = log_weight = 0.0

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.distances: list[float] = []
        self.displaced: list[float] = []

    def draw(self) -> Iterator[NDArray[np.float32]]:
        drawn = list(NoisySteps.draw(self))
        parts = self._parts.double().cpu().numpy() / (self.noise_multiplier * self.clipping.sensitivity)
        other = parts[-1] if self.law.draws.displaced else np.zeros_like(parts[0])
        length = float(np.linalg.norm(parts[0]))
        self.distances.append(length)
        self.displaced.append(float(parts[0] @ other) / length if length else 0.0)
        first, second = (parts[0] - other)[None], -other[None]
        if not self.present:
            first, second = second, first
        none = np.zeros((1, 0, len(other)))
        found = SampledSums(none, first, second, self.law.rate, 1.0).draw(self.generator, self.tilt)
        self.loss, self.log_weight = self.loss + found.loss, self.log_weight + found.log_weight
        pieces = np.split(other + found.answer[0], np.cumsum([one.size for one in drawn])[:-1])
        return (piece.reshape(one.shape).astype(np.float32) for piece, one in zip(pieces, drawn, strict=True))


def _trained(
    kind: type[S], given: Mapping[str, Any], run: DPSGDRun, draws: FirstInFront, generator: np.random.Generator,
    settings: Mapping[str, Any],
) -> S:  # fmt: skip
    """Train the model of `given` by DP-SGD in steps of this `kind`, with `settings` as attributes; return the steps."""
    made: list[S] = []

    def make_steps(*parts: Any) -> S:
        made.append(kind(*parts))
        vars(made[0]).update(settings)
        return made[0]

    randomness = np.random.Generator(np.random.PCG64(generator.integers(2**63)))
    data = given["model"], given["images"], given["labels"]
    train(*data, run, randomness=randomness, make_steps=make_steps, draw_batches=draws)
    return made[0]


def candidates_dp_sgd(
    given: Sequence[Mapping[str, Any]], neighbour: Mapping[str, Any], true: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Train the models of all sets by one DP-SGD on the set with the candidate `true`; return all losses (candidates,).

    `given` are the arguments of the ledger's ``dp_sgd`` on sets with one candidate each, in front, and `neighbour`
    those on the set without. Raises :class:`BenchError` on other sets, and if a pass holds too few examples.
    """
    if not all(_more_and_fewer(one, neighbour)[0] for one in given):
        raise BenchError("DP-SGD is attacked on sets that differ in a first record, present or absent.")
    run: DPSGDRun = dataclasses.replace(given[true]["run"], checkpoint=None, stage=None)
    images, labels = (torch.cat([*(one[name][:1] for one in given), neighbour[name]]) for name in ("images", "labels"))
    draws, front = FirstInFront(len(given)), {**given[true], "images": images, "labels": labels}
    found = _trained(_Candidates, front, run, draws, generator, {"true": true, "law": RecordLaw(run, draws)})
    for one in (*given, neighbour):
        one["model"].load_state_dict(given[true]["model"].state_dict())
        # The optimiser's state includes everything else that follows noisy gradients, such as a generator.
        optimizer = one["run"].optimizer(one["model"].parameters())
        optimizer.load_state_dict(found.optimizer.state_dict())
    return found.law.log


def _flat(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


@dataclass(frozen=True, slots=True)
class TappedTraining:
    """The loss of all noisy sums of a training, its log weight, and what the loss depends on.

    `distances` are the norms of the record's clipped gradients in standard deviations of the noise, one per step, where
    the loss is a sum over steps at the `rate` (1 and known steps for shuffled records); `present` says whether the
    first set holds the record. In fixed batches `displaced` has the other record's, along the record's gradient.
    """

    loss: float
    log_weight: float
    rate: float
    distances: list[float]
    present: bool
    displaced: list[float] = field(default_factory=list)


def _changed(fewer: Mapping[str, Any], more: Mapping[str, Any]) -> bool:
    """Return whether an image of `fewer` is missing from `more`."""
    one, other = (given["images"].flatten(1).float() for given in (fewer, more))
    return any(bool((torch.cdist(rows, other).amin(1) > 1e-3).any()) for rows in torch.split(one, 1000))


def _more_and_fewer(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> tuple[bool, Mapping[str, Any], Mapping[str, Any]]:
    """Return whether `first` has the extra record, the arguments with it and those without; it comes first."""
    present = len(first["images"]) > len(second["images"])
    more, fewer = (first, second) if present else (second, first)
    # The same image's features differ by rounding between batches.
    if len(more["images"]) != len(fewer["images"]) + 1 or not all(
        torch.allclose(more[name][1:], fewer[name], rtol=1e-5, atol=1e-5) for name in ("images", "labels")
    ):
        if len(more["images"]) > len(fewer["images"]) and _changed(fewer, more):
            raise PublicDifference("DP-SGD trains on records that change where another record is present or absent")
        raise BenchError("DP-SGD is audited on sets that differ in a first record, present or absent.")
    return present, more, fewer


def tapped_loss_change(
    first: Mapping[str, Any], second: Mapping[str, Any], generator: np.random.Generator, tilt: float
) -> Drawn:
    """Draw the answer of the ledger's ``sampled_loss_change`` on two sets, like :func:`tapped_dp_sgd`."""
    present, more, _ = _more_and_fewer(first, second)
    bound, rate = more["bound"], more["sampling_rate"]
    sampled = poisson_sample((len(more["labels"]),), rate, SeededNoise(generator))

    def change(included: bool) -> float:
        sampled[0] = included
        rows = torch.from_numpy(np.flatnonzero(sampled))
        return loss_change(more["before"], more["after"], more["images"][rows], more["labels"][rows], bound)

    without, deviation = change(False), 2 * bound * more["noise_multiplier"]
    moved = (change(True) - without) / deviation
    seen, loss, log_weight = sampled_shift(rate, abs(moved), generator, tilt, present)
    return Drawn(np.array([without + math.copysign(deviation, moved) * seen]), loss, log_weight)


def _compare_code(more: Mapping[str, Any], fewer: Mapping[str, Any]) -> None:
    """Raise :class:`PublicDifference` if nets and losses give the same records different gradients."""
    shown = more["images"][:RECORDS].detach().cpu(), more["labels"][:RECORDS].detach().cpu()
    first, second = (probed(one["model"], one["run"].loss, *shown) for one in (more, fewer))
    if first != second:
        raise PublicDifference("net and loss of DP-SGD give different gradients for the same records in the two runs")


def tapped_dp_sgd(
    first: Mapping[str, Any], second: Mapping[str, Any], generator: np.random.Generator, tilt: float
) -> TappedTraining:
    """Train both models by one DP-SGD whose answers come from the first set's distribution, tilted by `tilt`.

    `first` and `second` are the arguments of the ledger's ``dp_sgd`` on two sets, one of which has an extra first
    record. Raises :class:`BenchError` on other sets, :class:`PublicDifference` if net or loss differ.
    """
    present, more, fewer = _more_and_fewer(first, second)
    run: DPSGDRun = dataclasses.replace(more["run"], checkpoint=None, stage=None)
    _compare_code(more, fewer)
    draws, shuffled = FirstInFront(), run.sampling is Sampling.SHUFFLED
    law, of_record = RecordLaw(run, draws), partial(_trained, given=more, run=run, draws=draws, generator=generator)
    if shuffled or run.sampling is Sampling.POISSON:
        rate = 1.0 if shuffled else law.rate
        shift = partial(sampled_shift, rate, generator=generator, tilt=tilt, present=present)
        taking_part = (lambda: draws.inside) if shuffled else lambda: True
        tapped = of_record(_Tapped, settings={"shift": shift, "taking_part": taking_part})
        found = TappedTraining(tapped.loss, tapped.log_weight, rate, tapped.distances, present)
        optimizer = tapped.optimizer
    elif run.sampling is Sampling.FIXED:
        told = {"law": law, "generator": generator, "tilt": tilt, "present": present}
        seen = of_record(_Exchanged, settings=told)
        shown = seen.distances, present, seen.displaced
        found, optimizer = TappedTraining(seen.loss, seen.log_weight, law.rate, *shown), seen.optimizer
    else:  # untilted, because the loss is not a sum over steps
        steps = of_record(_Candidates, settings={"law": law, "true": 0 if present else None})
        loss = float(law.log[0]) * (1 if present else -1)
        found, optimizer = TappedTraining(loss, 0.0, law.rate, [], present), steps.optimizer
    fewer["model"].load_state_dict(more["model"].state_dict())
    _compare_code(more, fewer)
    # The optimiser's state includes everything else that follows noisy gradients, such as a generator.
    other, state = fewer["run"].optimizer(fewer["model"].parameters()), optimizer.state_dict()
    for one in (optimizer, other):  # load into both, because loading reorders an optimiser's settings
        one.load_state_dict(state)
    return found
