"""Canaries: records that coin tosses insert into a private set, so that audits and attacks can be scored on them.

A canary has two alternatives. Under *replace* adjacency the coin chooses which one is in the set; under *add-remove* it
decides whether the second is. So the coins test the neighbours of the privacy claim. For the unit *label* both
alternatives are one image with two labels. Families, with their add-remove form in brackets:

- natural: two private records [one]; the risk of an ordinary record.
- mislabelled: one private image under two wrong labels [one wrong label].
- duplicated: the same at several places: a group, so its bound on epsilon is divided by the group's size.
- outlier: a coarse random pattern, unlike any record, under two random labels [one].
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Family, PrivacyUnit, PrivateData


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """Canaries per family, copies of a duplicated one (fewer than 2 raise :class:`BenchError`), and the seed."""

    outlier: int = 0
    natural: int = 0
    mislabelled: int = 0
    duplicated: int = 0
    copies: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.copies < 2:
            raise BenchError(f"a duplicated canary has 2 or more copies, not {self.copies}.")

    def counts(self) -> dict[Family, int]:
        """Return the number of canaries of each family, in numbering order."""
        return {family: getattr(self, family.value) for family in Family}

    def places(self) -> int:
        """Return the number of positions in the private set that the canaries occupy."""
        return sum(self.counts().values()) + (self.copies - 1) * self.duplicated

    def streams(self) -> Streams:
        """Return the plan's random streams, separate from those of methods."""
        return Streams(self.seed, "canaries/")


@dataclass(frozen=True, slots=True)
class Canaries:
    """Drawn canaries: `family` (m,), images uint8 (m, 2, channels, height, width), labels int64 (m, 2).

    Canary ``owner[i]`` takes position ``place[i]`` of the private set; both are (places,). A coin of True inserts
    alternative 1.
    """

    plan: CanaryPlan
    unit: PrivacyUnit
    adjacency: Adjacency
    family: NDArray[np.str_]
    images: torch.Tensor
    labels: torch.Tensor
    place: NDArray[np.int64]
    owner: NDArray[np.int64]
    withdrawn: NDArray[np.int64]
    """Positions of records that leave the set, because they serve as alternatives of natural canaries."""

    def __len__(self) -> int:
        return len(self.family)

    def of(self, family: Family) -> NDArray[np.int64]:
        """Return the numbers of the canaries of `family`."""
        return np.flatnonzero(self.family == family.value)

    def group(self, family: Family) -> int:
        """Return the number of records in one canary of `family`."""
        return self.plan.copies if family is Family.DUPLICATED else 1

    def coins(self, seed: int, index: int) -> NDArray[np.bool_]:
        """Return independent fair coins (m,) for the shadow run number `index` of a cell with this seed.

        A single canary gets opposite coins in runs 2k and 2k + 1, so that many-run audits have arms of equal size.
        """
        if len(self) == 1 and index % 2:
            return ~self.coins(seed, index - 1)
        return self.plan.streams().numpy(f"coins/{seed}/{index}").random(len(self)) < 0.5


def draw_canaries(private: PrivateData, plan: CanaryPlan, unit: PrivacyUnit, adjacency: Adjacency) -> Canaries:
    """Return the canaries of `plan` for `private`, which depend only on it and the plan's seed.

    Raises :class:`BenchError` for a private set that is too small: canaries take at most half of every class.
    """
    if unit is PrivacyUnit.LABEL and adjacency is not Adjacency.REPLACE:
        raise BenchError("a label can only be replaced: the unit label requires the adjacency replace.")
    streams, counts = plan.streams(), plan.counts()
    pairs = plan.natural if adjacency is Adjacency.REPLACE and unit is not PrivacyUnit.LABEL else 0
    chosen = _choose(private, plan.places() + pairs, streams.numpy("places"))
    place, withdrawn = chosen[: plan.places()], chosen[plan.places() :]
    family = np.repeat([f.value for f in counts], list(counts.values()))
    repeats = np.where(family == Family.DUPLICATED.value, plan.copies, 1)
    owner = np.repeat(np.arange(len(family)), repeats)
    first = place[np.flatnonzero(np.diff(owner, prepend=-1))]
    images = private.images[torch.from_numpy(first)][:, None].repeat(1, 2, 1, 1, 1)
    true = private.labels[torch.from_numpy(first)].numpy()
    labels = np.stack(_two_others(true, private.facts.classes, streams.numpy("labels")), axis=1)
    if adjacency is Adjacency.ADD_REMOVE:
        labels = labels[:, ::-1].copy()  # with two classes, insert the wrong label
    natural = np.flatnonzero(family == Family.NATURAL.value)
    labels[natural, 1] = true[natural]
    if pairs:
        images[torch.from_numpy(natural), 0] = private.images[torch.from_numpy(withdrawn)]
        labels[natural, 0] = private.labels[torch.from_numpy(withdrawn)].numpy()
    outlier = np.flatnonzero(family == Family.OUTLIER.value)
    patterns = _patterns(len(outlier), private.facts.shape, streams.numpy("patterns"))
    images[torch.from_numpy(outlier)] = patterns[:, None].repeat(1, 2, 1, 1, 1)
    return Canaries(plan, unit, adjacency, family, images, torch.from_numpy(labels), place, owner, withdrawn)


def place(private: PrivateData, canaries: Canaries, coins: NDArray[np.bool_]) -> PrivateData:
    """Return `private` with the alternatives that `coins` (m,) choose at the canaries' positions.

    Under add-remove the facts keep the public number of records; the coins make some records absent.
    """
    images, labels = private.images.clone(), private.labels.clone()
    side = torch.from_numpy(coins[canaries.owner].astype(np.int64))
    owner, where = torch.from_numpy(canaries.owner), torch.from_numpy(canaries.place)
    images[where], labels[where] = canaries.images[owner, side], canaries.labels[owner, side]
    keep = torch.ones(len(private), dtype=torch.bool)
    keep[torch.from_numpy(canaries.withdrawn)] = False
    if canaries.adjacency is Adjacency.ADD_REMOVE:
        keep[where] = side.bool()
    facts = dataclasses.replace(private.facts, private_records=len(private) - len(canaries.withdrawn))
    return PrivateData(images[keep], labels[keep], facts)


def _choose(private: PrivateData, number: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return `number` positions in random order, at most half of each class."""
    labels = private.labels.numpy()
    order = generator.permutation(len(labels)).astype(np.int64)
    # The rank of each position within its class, in that order.
    by_class = np.argsort(labels[order], kind="stable")
    sizes = np.bincount(labels, minlength=private.facts.classes)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    rank = np.empty(len(labels), dtype=np.int64)
    rank[by_class] = np.arange(len(labels)) - starts
    free = order[rank < sizes[labels[order]] // 2]
    if number > len(free):
        raise BenchError(
            f"too few private records for this many canaries: they need {number} places, but only {len(free)} of "
            f"{len(labels)} records can be replaced without emptying a class. Lower --canaries."
        )
    taken: NDArray[np.int64] = free[:number]
    return taken


def _two_others(
    true: NDArray[np.int64], classes: int, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return two labels (n,) other than `true` and each other; with two classes, the wrong one and the true one."""
    if classes == 2:
        return 1 - true, true.copy()
    first = generator.integers(1, classes, len(true))
    second = generator.integers(1, classes - 1, len(true))
    second += second >= first
    return (true + first) % classes, (true + second) % classes


def _patterns(count: int, shape: tuple[int, int, int], generator: np.random.Generator) -> torch.Tensor:
    """Return uint8 (count, *shape): random black and white blocks of four or more pixels a side."""
    channels, height, width = shape
    side = max(1, math.ceil(min(height, width) / 7))
    rows, columns = math.ceil(height / side), math.ceil(width / side)
    coarse = generator.integers(0, 2, (count, channels, rows, columns)).astype(np.uint8) * 255
    fine = coarse.repeat(side, axis=2).repeat(side, axis=3)[:, :, :height, :width]
    return torch.from_numpy(np.ascontiguousarray(fine))


def canary_unit(unit: PrivacyUnit) -> PrivacyUnit:
    """Return the unit of a canary for methods that protect `unit`: a label or a training record.

    Queries have no canaries, and a client's records may depend on others: for both it is a training record.
    """
    return PrivacyUnit.LABEL if unit is PrivacyUnit.LABEL else PrivacyUnit.RECORD


def speaks_of(unit: PrivacyUnit) -> bool:
    """Return whether an audit's canaries are of the unit that the method's claim protects."""
    return canary_unit(unit) is unit
