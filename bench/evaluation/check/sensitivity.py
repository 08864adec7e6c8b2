"""The sensitivity test: one record moves a mechanism's input by at most the charged sensitivity.

The ledger cannot verify the sensitivity that a method states, such as a norm bound or one vote per teacher. Here the
method runs with equal seeds on a private set and, given the same answers, on neighbours that differ in one record. Any
difference in mechanism inputs then comes from that record. A difference above the bound proves the bound wrong. Without
such a difference it may still be wrong, because other neighbours may differ more.

A bound may hold only near one data set, for instance if an input jumps at a threshold. So :func:`walk` bisects a path
of changed records to another data set towards the part in which inputs move most.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bench.core.types import Adjacency

Norm = Literal["votes", "l1", "l2", "labels", "records", "range"]
TOLERANCE = 1.0001  # factor for rounding in float32 nets
EQUAL_BATCHES = "use batches of one size (bench.interface.in_equal_batches)"
OTHER_SET = "another private set"
KEPT_PLACES = ". If the method sorts, filters or merges records, let each keep its place: the check compares by place"
PACKED = 2**20  # bytes of values above which a digest stands for each record


@dataclass(frozen=True, slots=True)
class Given:
    """The input `values` of one mechanism call, and the largest change to them by one unit."""

    mechanism: str
    values: NDArray[Any]
    norm: Norm
    bound: float
    window: int = 0
    """For sums over steps: the number of consecutive calls in which one unit moves the values by the bound in total."""
    first: bool = False  # whether this is the first step

    def moved(self, other: Given) -> float:
        """Return the distance to `other` in the norm: a row's maximum for votes and ranges, a count for labels."""
        signed = self._counted() - other._counted()
        difference = np.abs(signed)
        if self.norm == "votes":
            return float(difference.sum(axis=1).max(initial=0.0) / 2)
        if self.norm == "range":
            return float(np.ptp(signed, axis=1).max())
        if self.norm == "labels":
            return float((difference > 0).sum())
        if self.norm == "records":
            return float((difference > 0).any(axis=(0, *range(2, difference.ndim))).sum())
        return float(difference.sum()) if self.norm == "l1" else float(np.sqrt((difference**2).sum()))

    def _counted(self) -> NDArray[np.float64]:
        """Return the values as mechanisms count them: in sums and scores, non-finite ones are 0."""
        values = np.asarray(self.values, dtype=np.float64)
        other_than_any = np.finfo(np.float64).max / 4
        return np.where(np.isfinite(values), values, other_than_any if self.norm in ("records", "labels") else 0.0)

    def packed(self) -> Given:
        """Return the same with one number for each record if only records are counted, which saves memory."""
        if self.norm != "records" or self.values.ndim < 2 or self.values.nbytes < PACKED:
            return self
        counted = self._counted() + 0.0  # -0.0 equals 0.0
        rows = (np.ascontiguousarray(counted[:, row]).tobytes() for row in range(counted.shape[1]))
        digests = [int.from_bytes(hashlib.blake2b(row, digest_size=6).digest(), "big") for row in rows]
        return dataclasses.replace(self, values=np.array(digests, dtype=np.float64)[None])

    def without(self, record: int) -> Given:
        """Return the values of all records but `record`; sums stay."""
        if self.norm not in ("records", "labels"):
            return self
        return dataclasses.replace(self, values=np.delete(self.values, record, axis=self.norm == "records"))


NORMS: dict[str, Norm] = {
    "noisy_max": "votes", "noisy_max_gaussian": "votes", "confident_noisy_max": "votes", "gaussian": "l2",
    "laplace": "l1", "exponential_mechanism": "range", "permute_and_flip": "range", "tree_sum": "l2",
    "banded_sum": "l2",
    "randomized_response": "labels", "top_k_randomized_response": "labels",
    "prior_randomized_response": "labels",
    "sampled_noisy_max": "records", "sampled_gaussian": "records", "sampled_updates": "records",
    "sampled_function": "records",
    "dp_sgd": "records", "sampled_loss_change": "records",
}  # fmt: skip


def sums_of(given: Sequence[Given]) -> list[Given]:
    """Return the inputs that are not given record by record, so that sets of different sizes can be compared."""
    return [one for one in given if one.norm not in ("records", "labels")]


def share(first: Given, second: Given, adjacency: Adjacency) -> float:
    """Return the distance from `first` to `second` in units of what one changed record may move."""
    # Replacing a record is removing one and adding another: twice the norm, but still one teacher's vote.
    steps = 2 if adjacency is Adjacency.ADD_REMOVE and first.norm in ("l1", "l2", "range") else 1
    return first.moved(second) / (steps * max(first.bound, second.bound))


def violation(
    base: list[Given], other: list[Given], adjacency: Adjacency, records: int = 1, absent: int | None = None,
    unit: str = "record",
) -> str:  # fmt: skip
    """Describe the first call whose values differ by more than its charge; "" if none does.

    The two sets differ in `records` records, each of which may move a value by the charge, or in one `unit` of another
    name. Or the second lacks the first's record `absent`: then sums move by at most one charge, and other records'
    values not at all.
    """
    if len(base) != len(other):
        return f"it called mechanisms {len(base)} times on one private set and {len(other)} times on {OTHER_SET}"
    who = f"one {unit} moves" if records == 1 else f"{records} {unit}s together move"
    steps: list[float] = []  # movement of each step of the current sums, in units of its charge
    for number, (first, second) in enumerate(zip(base, other, strict=True)):
        if absent is not None:
            if first.mechanism == second.mechanism == "sampled_function":
                continue  # its charge covers any function of the sample, whose parts hold other records
            first = first.without(absent)
        if first.values.shape != second.values.shape or first.mechanism != second.mechanism:
            return f"its call {number + 1} has another mechanism or shape on {OTHER_SET}"
        if absent is not None and first.norm in ("records", "labels"):
            if others := first.moved(second):
                return (
                    f"the absence of one record changes what call {number + 1} of {first.mechanism} takes from "
                    f"{others:.0f} others. Libraries round differently in batches of another size: {EQUAL_BATCHES}"
                )
            continue
        # Removing a record is one step, replacing it is two under add-remove.
        times, moved = share(first, second, Adjacency.REPLACE if absent is not None else adjacency), first.moved(second)
        if times > records * TOLERANCE:
            by, charged = _told_apart(moved, records * moved / times)
            what = {
                "votes": f"{moved:.0f} votes of one query",
                "labels": f"{moved:.0f} labels",
                "records": f"what the mechanism takes of {moved:.0f} records",
                "range": f"the difference of two scores by {by}",
                "l1": f"the values by {by} (L1)",
                "l2": f"the values by {by} (L2)",
            }[first.norm]
            return f"{who} {what} in its call {number + 1} of {first.mechanism}, which is charged for {charged}" + (
                KEPT_PLACES if first.norm == "records" and moved > records + 1 else ""
            )
        if first.window:
            steps = [times] if first.first else [*steps, times]
            if (together := sum(steps[-first.window :])) > records * TOLERANCE:
                return (
                    f"{who} {len(steps)} steps of {first.mechanism}, up to its call {number + 1}, by {together:.3g} "
                    f"times its sensitivity in all, in {first.window} steps in a row"
                )
    return ""


def _told_apart(*values: float) -> list[str]:
    """Format two unequal numbers so that their texts differ: with three digits, or as many as it takes."""
    texts = ([f"{value:.{digits}g}" for value in values] for digits in range(3, 18))
    return next(pair for pair in texts if pair[0] != pair[1])


def walk(given_at: Callable[[int], list[Given] | str], length: int, adjacency: Adjacency, patience: float) -> str:
    """Return a violation between two points on a path of data sets, each with one more changed or removed record.

    ``given_at(k)`` runs the method with `k` changed records and returns its mechanisms' inputs, or how the run left the
    tape. Bisects the path towards the larger movement for at most `patience` seconds of this process; empty if nothing
    is found.
    """
    begin, low, high = time.process_time(), 0, length
    seen: dict[int, list[Given]] = {}

    def move(start: int, end: int) -> float:
        pairs = zip(seen[start], seen[end], strict=False)
        return max((share(first, second, adjacency) for first, second in pairs), default=0.0) / (end - start)

    for point in (low, high):
        found = given_at(point)
        if isinstance(found, str):
            return found
        seen[point] = found
    while True:
        found = violation(seen[low], seen[high], adjacency, high - low)
        middle = (low + high) // 2
        if found or middle == low or time.process_time() - begin > patience:
            return found
        halfway = given_at(middle)
        if isinstance(halfway, str):
            return halfway
        seen[middle] = halfway
        low, high = (low, middle) if move(low, middle) >= move(middle, high) else (middle, high)
