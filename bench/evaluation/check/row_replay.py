"""The replay of a published row: its own cell, noise and data, against other records."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from dataclasses import dataclass
from typing import Any

from bench.evaluation.check.check_runs import MethodPlace, Outcome, Processes, Rejected, Row, Trial
from bench.evaluation.check.differences import FAR, NEAR, near_sets, replayed
from bench.evaluation.check.noninterference import Check, CheckVerdict, declared_by
from bench.evaluation.check.trials import refuse_data_in
from bench.experiments.noise_salt import cell_token
from bench.experiments.plan import Cell, bound_method
from bench.experiments.run import cache_base
from bench.interface.registry import METHODS
from bench.privacy.events.base_event import restored


@dataclass(frozen=True, slots=True)
class Stated:
    """A record's account of its run: the student's digest, the accuracy, and the ledger's stored events."""

    sha256: str
    accuracy: float
    events: list[dict[str, Any]]


def check_row(cell: Cell, salt: str | None, stated: Stated | None = None) -> Check:
    """Return the outcome of replaying `cell` itself: its data, settings, seed, and noise drawn from `salt`.

    Unless `stated` is None, the run must reproduce it, which catches methods that behave differently in a check. The
    other runs use unrelated, renamed and neighbouring data of the same size. Exceptions of the method in the first run
    propagate.
    """
    method = METHODS.get(cell.method)
    if bound_method(cell).given_teacher() is not None:
        return Check(method.name, CheckVerdict.BYPASS, "its given teacher is all that is private: nothing to replay on")
    values = {entry.name: getattr(cell.config, entry.name) for entry in dataclasses.fields(cell.config)}
    with tempfile.TemporaryDirectory(prefix="runs-") as folder:
        processes = Processes(folder=folder)
        trial = Trial(
            MethodPlace.of(method) or method, values, cell.facts, cell.seed, cell.dataset, noisy=True,
            cell=cell_token(cell, salt), row=Row(cell.key, salt, cache_base(cell), folder, stated is not None),
        )  # fmt: skip
        try:
            refuse_data_in(values)
            (first,) = processes.run(trial, ["given"])
            if stated is not None and (found := _otherwise(first, stated)):
                raise Rejected(f"with the same data, settings, seed and noise {found}")
            declared = declared_by(method, first)
            if not declared:
                replayed(first, processes.run(trial, [*FAR, *near_sets(method, NEAR[:1])], first.calls))
        except Rejected as rejection:
            return Check(method.name, CheckVerdict.REJECTED, str(rejection))
    if declared:
        return Check(method.name, CheckVerdict.BYPASS, declared)
    return Check(
        method.name, CheckVerdict.PASSED,
        "equal releases, to the byte, on unrelated, renamed and neighbouring records with the answers and the noise of "
        f"its own run, in which the student reached {first.accuracy:.0%}",
    )  # fmt: skip


def _otherwise(first: Outcome, stated: Stated) -> str:
    """Return how `first` differs from its record, or ""."""
    if first.sha256 != stated.sha256:
        return "it trains another student than its record's"
    if round(first.accuracy, 6) != round(stated.accuracy, 6):
        return f"its student reaches {first.accuracy:.2%}, and its record states {stated.accuracy:.2%}"
    same = Counter(restored(first.charged)) == Counter(restored(stated.events))
    return "" if same else "its ledger charges for other events than its record states"
