"""Searches for a data set near which one record moves a mechanism's input by more than its charge."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.core.types import Adjacency, PrivacyUnit
from bench.evaluation.check.check_data import Route, Step, Variant, lacks_one, lone_sets
from bench.evaluation.check.check_runs import Outcome, Trial, loaded, refuse_outside, run_once
from bench.evaluation.check.differences import ON_OTHERS, difference
from bench.evaluation.check.replaced import Originals
from bench.evaluation.check.sensitivity import OTHER_SET, Given, sums_of, violation, walk
from bench.experiments.device import prepare_device
from bench.interface.method import Method

Replay = Callable[[Variant], list[Given] | str]
"""Returns the inputs of a method's mechanisms on a set, or how the run differed from the first."""
ROUTES: tuple[Route, ...] = ("unrelated", "unusual", "shades")
"""The paths to walk; on the first two, images may be public."""
FAILS = "it fails"


def searched(trial: Trial, first: Outcome, patience: float, *, briefly: bool = False) -> tuple[str, bool]:
    """Return an error in a stated sensitivity, or "", and whether all searches ended within `patience` seconds each.

    These are seconds of this process, so a busy machine does not end a search early.

    An error is also a release that differs from the `first` run's on a set that a search visits. `briefly` makes only
    the first search, towards an unrelated set.
    """
    method, given = _replays(trial, first)
    whole = True
    recorded = [call.given for call in first.calls if call.given is not None]
    routes = ROUTES[:1] if briefly else ROUTES if method.unit is PrivacyUnit.RECORD else ROUTES[:2]
    searches = [partial(_walked, given, recorded, trial, method, route, patience) for route in routes]
    searches += [partial(_moved_alone, given, trial, method, patience)] if routes == ROUTES else []
    for search in searches:
        begin = time.process_time()
        if found := search():
            return found, whole
        whole = whole and time.process_time() - begin <= patience
    return "", whole


def _walked(
    given: Replay, recorded: list[Given], trial: Trial, method: type[Method], route: Route, patience: float
) -> str:
    fewer = route == "unusual" and lacks_one(method.unit, method.adjacency)

    def given_at(changed: int) -> list[Given] | str:
        known = changed == 0 and route != "shades" and not fewer  # the path begins at the set of the tape
        found = recorded if known else given(Step(changed, route))
        return sums_of(found) if fewer and not isinstance(found, str) else found

    records = trial.facts.private_records
    if fewer:  # each step removes a record, which counts once
        return walk(given_at, records // 2, Adjacency.REPLACE, patience)
    # Some dark images stay: a method that inverts bright sets would make the path's ends equal.
    return walk(given_at, records if route != "shades" else records * 9 // 10, method.adjacency, patience)


def _moved_alone(given: Replay, trial: Trial, method: type[Method], patience: float) -> str:
    """Return how a record unlike all others, or near to many, moves a sum, a vote or a release too far, or "".

    Sets on which a run fails are left out, and so are those that `patience` seconds do not allow.
    """
    absent = 0 if lacks_one(method.unit, method.adjacency) else None
    begin = time.process_time()
    for which in lone_sets(trial.facts.private_records):
        if time.process_time() - begin > patience:
            break
        first, second = given(which), given(dataclasses.replace(which, present=False))
        for one in (first, second):
            if isinstance(one, str) and not one.startswith(FAILS):
                return one
        if isinstance(first, str) or isinstance(second, str):
            continue
        if found := violation(sums_of(first), sums_of(second), method.adjacency, absent=absent):
            return found
    return ""


def _replays(trial: Trial, first: Outcome) -> tuple[type[Method], Replay]:
    """Return the method, and a function that replays the `first` run on a set."""
    prepare_device()
    originals, (method, _) = Originals(), loaded(trial.method, trial.facts.dataset)

    def given(which: Variant) -> list[Given] | str:
        with tempfile.TemporaryDirectory(prefix="runs-") as folder:
            run = run_once(trial, method, which, first.calls, Path(folder), originals, keep=True)
        refuse_outside(run.outside)
        if found := difference(first, run):
            return found if found.endswith(OTHER_SET) else found + ON_OTHERS
        return [call.given for call in run.calls if call.given is not None]

    return method, given
