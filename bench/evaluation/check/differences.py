"""Comparison of a check's runs: differences between their releases, and inputs that one record moved."""

from __future__ import annotations

from collections.abc import Sequence

from bench.core.types import PrivacyUnit
from bench.evaluation.check.check_data import Variant, lacks_one
from bench.evaluation.check.check_runs import Outcome, Rejected
from bench.evaluation.check.sensitivity import EQUAL_BATCHES, OTHER_SET
from bench.interface.method import Method

FAR: list[Variant] = ["unrelated", "renamed"]
NEAR: list[Variant] = [0, 1]
"""Sets in which one record is replaced."""
ON_OTHERS = ", on other images with the same answers of the ledger"
LEAKS = (
    "It uses private data outside any mechanism. Usual leaks: normalisation statistics, class counts, batch-norm "
    "statistics, early stopping, votes before their noise, or choices of settings, restarts or queries by private "
    "data. Route it through the ledger, or declare it with ledger.bypass"
)


def near_sets(method: type[Method], replaced: Sequence[Variant] = NEAR) -> list[Variant]:
    """Return the sets `replaced`, and one that lacks a record or has other images of clients, depending on the unit."""
    if method.unit is PrivacyUnit.CLIENT:
        return [*replaced, "client", "clients", "client's labels"]
    return [*replaced, "absent"] if lacks_one(method.unit, method.adjacency) else [*replaced]


def same_again(first: Outcome, again: Outcome) -> None:
    """Reject a method whose second run on the same data, in the same process and cache, gives a different result."""
    if found := difference(first, again):
        raise Rejected(
            f"{found}, though the second had the data, the cache and the process of the first. What one run leaves "
            "behind, in a module, a class or the cache, must not change the next"
        )


def by_itself(first: Outcome, run: Outcome) -> None:
    """Reject a method whose `first` run, after another cell's, differs from a `run` by itself on the same data."""
    if found := difference(first, run):
        raise Rejected(
            f"{found}, though both had the same data and answers: before the first, another cell with other noise ran "
            "in its process and cache. A row's epsilon does not cover another cell's answers. Add context.cell to the "
            "`depends` of cached results that depend on the ledger's answers, and keep no other state between runs"
        )


def replayed(first: Outcome, runs: Sequence[Outcome]) -> None:
    """Reject a method by replays of the `first` run on :data:`FAR` sets and then on neighbours."""
    for run in runs[: len(FAR)]:
        if found := difference(first, run):
            raise Rejected(f"{found}. {LEAKS}")
    for run in runs[len(FAR) :]:
        near(first, run)
    for run in runs:
        # A replay has a cache of its own. In the first run's, an artefact of another cell may hide those it is made of.
        if more := sorted(kind for kind, count in first.artefacts.items() if count > run.artefacts.get(kind, 0)):
            raise Rejected(
                f"the number of its artefacts of the kind {more[0][:60]!r} depends on private records, and records "
                "state it. Derive kinds and numbers of artefacts from the settings"
            )


def near(first: Outcome, run: Outcome) -> None:
    """Reject a method by a `run` on a set that differs from the `first`'s in one record."""
    found = difference(first, run)
    if not run.difference:  # a run that ended early lacks calls
        bounded(run.moved)
    if found:
        raise Rejected(f"{found}. The two sets differ in one record or client, which it uses outside any mechanism")


def bounded(moved: str) -> None:
    """Reject a method if one record `moved` an input by more than its charge."""
    if moved.endswith(EQUAL_BATCHES):  # rounding, which other noise would not fix
        raise Rejected(moved)
    if moved.endswith(ON_OTHERS):
        raise Rejected(f"{moved}. {LEAKS}")
    if moved.endswith(OTHER_SET):
        raise Rejected(f"{moved}. The number, the order and the shapes of its calls must not depend on private records")
    if moved:
        raise Rejected(
            f"{moved}. The noise is sized for less than the effect of one record. State the sensitivity that holds for "
            "all data, clip, or give each record to one teacher only. If the stated sensitivity is right, a "
            "record's values depend on other records: compute them from that record alone. Even rounding counts: use "
            "bench.interface.nearest for distances and bench.interface.in_equal_batches for a net's outputs"
        )


def difference(first: Outcome, other: Outcome) -> str:
    """Return the first difference between two outcomes, empty if they are equal."""
    if other.difference:
        return other.difference
    for (name, value), (other_name, other_value) in zip(first.released, other.released, strict=False):
        if name != other_name:
            return f"one run released {name} where the other released {other_name}: what is released differs"
        if value != other_value:
            return f"the two runs differ in {name}"
    if len(first.released) != len(other.released):
        longer = max(first.released, other.released, key=len)
        name = longer[min(len(first.released), len(other.released))][0]
        return f"only one of the two runs gave {name}: what is released differs"
    return ""
