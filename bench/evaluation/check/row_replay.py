"""The replay of a published row: its own cell, noise and data, against other records."""

from __future__ import annotations

import dataclasses
import math
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.core.errors import BenchError
from bench.core.seeds import new_salt
from bench.evaluation.check.check_runs import MethodPlace, Outcome, Rejected, Row, Trial
from bench.evaluation.check.confined_runs import Processes
from bench.evaluation.check.differences import FAR, NEAR, bounded, near_sets, replayed
from bench.evaluation.check.noninterference import WALKED, Check, CheckVerdict, costs_fixed, declared_by
from bench.evaluation.check.trials import refuse_data_in
from bench.evaluation.check.walks import searched
from bench.experiments.noise_salt import cell_token
from bench.experiments.plan import Cell, bound_method
from bench.experiments.run import cache_base
from bench.interface.registry import METHODS
from bench.privacy.events.base_event import restored

FRESH = 5  # maximum number of runs with other noise that a row is compared with


@dataclass(frozen=True, slots=True)
class Stated:
    """A record's account of its run: the student's digest, the accuracy, and the ledger's stored events."""

    sha256: str
    accuracy: float
    events: list[dict[str, Any]]


def check_row(cell: Cell, salt: str | None, stated: Stated | None = None) -> Check:
    """Return the outcome of replaying `cell` itself: its data, settings, seed, and noise drawn from `salt`.

    Unless `stated` is None, the run must reproduce it, which catches methods that behave differently in a check. The
    other runs use unrelated, renamed and neighbouring data of the same size, drawn with a secret seed, and a search
    follows a path to the unrelated data for about the time of the first run. Runs with other noise must be about as
    accurate: an author may have searched for a salt that triggers a branch. Exceptions of the method in the first run
    propagate.
    """
    method = METHODS.get(cell.method)
    if bound_method(cell).given_teacher() is not None:
        return Check(method.name, CheckVerdict.BYPASS, "only its given teacher is private: nothing to replay on")
    values = {entry.name: getattr(cell.config, entry.name) for entry in dataclasses.fields(cell.config)}
    with tempfile.TemporaryDirectory(prefix="runs-") as folder:
        processes = Processes(folder=folder)
        row = Row(cell.key, salt, cache_base(cell), folder, stated is not None)
        trial = Trial(
            MethodPlace.of(method) or method, values, cell.facts, cell.seed, cell.dataset, noisy=True,
            cell=cell_token(cell, salt), row=row, sets=secrets.randbits(32),
        )  # fmt: skip
        try:
            refuse_data_in(values)
            begin = time.monotonic()
            (first,) = processes.run(trial, ["given"])
            took = time.monotonic() - begin
            if stated is not None and (found := _otherwise(first, stated)):
                raise Rejected(f"with the same data, settings, seed and noise {found}")
            declared = declared_by(method, first)
            if not declared:
                replayed(first, processes.run(trial, [*FAR, *near_sets(method, NEAR[:1])], first.calls))
                if first.watched and method.unit in WALKED:
                    bounded(processes.apart(trial.method, partial(searched, briefly=True), trial, first, took)[0])
                if len(first.predicted):  # its generator did not collapse
                    _by_luck(first, lambda: _with_other_noise(cell, trial, row, processes, first))
        except Rejected as rejection:
            return Check(method.name, CheckVerdict.REJECTED, str(rejection))
    if declared:
        return Check(method.name, CheckVerdict.BYPASS, declared)
    reached = f"in which the student reached {first.accuracy:.0%}; runs with other noise reach about as much"
    return Check(
        method.name, CheckVerdict.PASSED,
        "equal releases, to the byte, on unrelated, renamed and neighbouring records with the answers and the noise of "
        f"its own run, {reached if len(first.predicted) else 'whose images collapsed'}",
    )  # fmt: skip


def _with_other_noise(cell: Cell, trial: Trial, row: Row, processes: Processes, first: Outcome) -> float | None:
    """Return the accuracy of another run of `cell`, with fresh noise; None if it gives no student.

    Raises :class:`Rejected` if it charges the ledger otherwise than `first`.
    """
    salt = new_salt()
    with tempfile.TemporaryDirectory(dir=row.folder) as folder:  # the gradients of DP-SGD can fill gigabytes
        own = dataclasses.replace(row, salt=salt, digest=False, folder=folder)
        try:
            (run,) = processes.run(dataclasses.replace(trial, cell=cell_token(cell, salt), row=own), ["given"])
        except BenchError:  # some noise leaves too few answers to train on
            return None
    costs_fixed(first.charged, run.charged, cell.delta)
    return run.accuracy


def _by_luck(first: Outcome, run: Callable[[], float | None]) -> None:
    """Reject a row whose accuracy exceeds the best of :data:`FRESH` runs by more than twice their range.

    Stop at the first run whose accuracy is not significantly below the row's.
    """
    records, share = len(first.predicted), first.accuracy
    middle = (share * records + 1) / (records + 2)
    alike = 2.6 * math.sqrt(2 * middle * (1 - middle) / records)  # 99%, as if both were independent
    seen: list[float] = []
    for _ in range(FRESH):
        if (found := run()) is not None:
            seen.append(found)
            if share <= max(seen) + alike:
                return
    if not seen or share > max(seen) + max(alike, 2 * (max(seen) - min(seen))):
        reached = f"reach {', '.join(f'{one:.1%}' for one in seen)}" if seen else "give no student"
        raise Rejected(
            f"its student reaches {share:.1%}, and {FRESH} runs with other noise {reached}, so the row's noise is "
            "unusual. Publish runs whose noise was not chosen"
        )


def _otherwise(first: Outcome, stated: Stated) -> str:
    """Return how `first` differs from its record, or ""."""
    if first.sha256 != stated.sha256:
        return "it trains a different student from its record's"
    if round(first.accuracy, 6) != round(stated.accuracy, 6):
        return f"its student reaches {first.accuracy:.2%}, and its record states {stated.accuracy:.2%}"
    same = Counter(restored(first.charged)) == Counter(restored(stated.events))
    return "" if same else "its ledger charges for other events than its record states"
