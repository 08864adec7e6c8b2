"""The checks of a method: everything released depends on private data only through the ledger.

*Replay*. Run A trains on a private set that methods can learn, and the ledger's answers are taped; half of the seeds
turn off all noise but DP-SGD's. Other runs with equal config, seeds, context and public data get A's answers whatever
they ask. They must call the mechanisms with A's public arguments and release A's bytes: on unrelated data; on A's data
with renamed classes, so that the best choice for A is the worst; on neighbours of A, where
:mod:`bench.evaluation.check.sensitivity` compares the mechanisms' inputs; and again on A's own data, in A's process and
with A's cache, to expose state that outlives a run. Another cell's run precedes A there: for the last seed with equal
settings, which must charge the ledger as much as A, for the others with another target.

*Few records*. One copy is removed from, or changed in, sets of 2 to 201 records, most of them copies of one record.
Kernels then depend visibly on their operands' shapes (:mod:`bench.evaluation.check.shaped_kernels`). The mechanisms'
inputs from every other record must stay bitwise equal.

*Searches* (:mod:`bench.evaluation.check.walks`). Paths to other sets are bisected towards the largest movement of a
mechanism's input, and a record unlike all others is taken away from copies of one image.

*Renamed classes*. Trained on renamed labels, a student predicts the true ones no better than chance, unless the method
gets labels from outside its arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from scipy.stats import binomtest

from bench.core.config import Preset, parse_overrides, values_of
from bench.core.confinement import is_confinable
from bench.core.errors import BenchError
from bench.core.progress import SILENT, Progress, Stage
from bench.core.types import Facts, PrivacyUnit, PublicKind
from bench.evaluation.check import differences
from bench.evaluation.check.check_data import CHECK_FACTS, Few, Variant
from bench.evaluation.check.check_runs import MethodPlace, Outcome, Rejected, Trial
from bench.evaluation.check.confined_runs import Processes
from bench.evaluation.check.embedded import MOST as MOST_EMBEDDED
from bench.evaluation.check.embedded import constants_of, statistics_in
from bench.evaluation.check.processes import TooLong
from bench.evaluation.check.tape import ROOM
from bench.evaluation.check.trials import SEEDS, Draw, few_trial, recorded, trial_for
from bench.evaluation.check.walks import searched
from bench.experiments.data_source import DataSource
from bench.interface.method import Method
from bench.privacy.accounting.accountants import proven
from bench.privacy.events.base_event import restored
from bench.privacy.events.events import Bypass

SECONDS = 5.0
"""Seconds of a full check for neighbours beyond two per seed."""
BRIEF = 0.5  # seconds for neighbours when all methods are checked
PATIENCE = 6.0  # seconds for an accurate preset's first run in a brief check
WALKED = (PrivacyUnit.RECORD, PrivacyUnit.LABEL)  # for other units, one changed record may change two units
WALK = 4  # time of a walk, as a multiple of the time for neighbours
FEW = (51, 4, 9, 33, 2, 17, 5, 3, 8, 7, 201)
"""Sizes of the sets of few records, most revealing first; the last is for methods that refuse the others. Some are just
above a multiple of a batch size."""
SURELY = 3  # number of sizes always tested, so that findings do not depend on the machine's load
ALONE = (5, 9)  # sets of these sizes also lose a record without copies, perhaps the only one of its class
LEVEL = 1e-6  # significance level of the binomial test of renamed classes
PARTS = 3  # of the check of one seed, for a display of its progress
COVERED = 1 - 1e-4  # share of its stated cost that a run must charge; the rest is rounding
AWAKE = 0.5  # accuracy below which a method may have skipped branches


class CheckVerdict(StrEnum):
    """Outcome of a check."""

    PASSED = "passed"
    BYPASS = "declared bypass"
    REJECTED = "rejected"
    FAILED = "could not be checked"


@dataclass(frozen=True, slots=True)
class Check:
    """Outcome of a check and its reason: the first difference, or the declared bypass."""

    method: str
    verdict: CheckVerdict
    reason: str

    @property
    def ok(self) -> bool:
        """Whether the method may be registered."""
        return self.verdict in (CheckVerdict.PASSED, CheckVerdict.BYPASS)


def check_method(
    method: type[Method],
    *,
    overrides: Sequence[str] = (),
    facts: Facts | None = None,
    labelled: bool = False,
    dataset: str = "",
    labels_of: Sequence[str] = (),
    preset: Preset = Preset.TINY,
    awake: Preset | None = None,
    seeds: Sequence[int] = SEEDS[:1],
    seconds: float = 0.0,
    patience: float | None = None,
    stage: Stage = SILENT,
) -> Check:
    """Return the outcome of replay, sensitivity and renamed classes for `method` with a preset.

    `overrides` (``FIELD=VALUE``) reach other code paths. Run A uses generated data of `facts` (default: digits'), with
    a labelled source if `labelled`, or the data set `dataset`. Classes are renamed in the data sets `labels_of` too.
    With the preset `awake`, whose students are accurate enough to take branches that poor ones skip, one seed is
    replayed on unrelated and renamed data, and walked if `patience` is None; otherwise it is left out if its first run
    takes more than `patience` seconds. Neighbours beyond two per seed are added for `seconds`, followed by a walk to
    the unrelated set for four times as long. Exceptions of the method in run A propagate, because failing to run is not
    a leak. Each of `seeds` decides the target and whether the noise is on: :class:`Draw`. `stage` advances by
    :data:`PARTS` per seed, and by 1 for `awake`.
    """
    source = DataSource(Progress())
    if dataset:
        facts = source.describe(dataset).facts
    values = values_of(parse_overrides(method, overrides))
    run = _Run(method, preset, values, facts or CHECK_FACTS, dataset, labelled, seconds, stage)
    drawn = "; ".join(str(Draw.of(seed)) for seed in seeds)
    declared = ""
    try:
        for seed in seeds:
            trial, declared = run.check_seed(seed, last=seed == seeds[-1])
            # Digits are available everywhere, and expose a method that reads them from disk.
            quiet = dataclasses.replace(trial, noisy=False)  # noise could mask what the student knows
            _renamed(quiet if facts else dataclasses.replace(quiet, dataset=CHECK_FACTS.dataset), run.processes)
            stage.advance()
        for name in labels_of:
            _renamed(run.trial(preset, seeds[0], name, source.describe(name).facts), run.processes)
        if awake and awake.value in method.presets(run.facts) and not declared:
            run.check_awake(awake, seeds[0], patience)
    except Rejected as rejection:
        return Check(method.name, CheckVerdict.REJECTED, f"{rejection} ({drawn})")
    if declared:
        return Check(method.name, CheckVerdict.BYPASS, declared)
    return Check(method.name, CheckVerdict.PASSED, run.reason())


@dataclass
class _Run:
    """The replays of `method` with the settings of :func:`check_method`, and what they have found so far."""

    method: type[Method]
    preset: Preset
    values: Mapping[str, Any]
    facts: Facts
    dataset: str
    labelled: bool
    seconds: float
    stage: Stage
    accuracies: list[float] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    watched: bool = False  # whether inputs of mechanisms were compared
    partly: bool = False  # whether some were too large to be compared whole
    tried: set[int] = field(default_factory=set)  # sizes of sets of few records
    sizes: set[int] = field(default_factory=set)  # those of them that the method can train on
    alone: bool = False  # whether the run of another cell failed
    slow: str = ""
    hurried: bool = False  # whether a search ended for lack of time

    def __post_init__(self) -> None:
        self.place = MethodPlace.of(self.method) or self.method
        self.processes = Processes(dataset=self.dataset)

    def trial(self, preset: Preset, seed: int, dataset: str, facts: Facts, last: bool | None = None) -> Trial:
        """Return the settings of a seed's runs on `dataset`, or on generated data of `facts` if it is empty."""
        given = (self.place, preset, seed, facts, self.values, dataset, self.labelled, last)
        # Calibration runs the method's code, so isolate it from other checks' threads and files.
        return self.processes.apart(self.place, trial_for, *given)

    def check_seed(self, seed: int, *, last: bool) -> tuple[Trial, str]:
        """Check the preset with one seed; return its trial and the bypasses that the method declares."""
        trial = self.trial(self.preset, seed, self.dataset, self.facts, last)
        trial, (first, again) = recorded(trial, ["given", "given"], self.processes)
        self._note(first, self.preset, seed)
        self.watched, self.alone = self.watched or first.watched, self.alone or first.alone
        self.partly = self.partly or any(call.beyond for call in first.calls)
        if declared := declared_by(self.method, first):
            return trial, declared
        costs_covered(first, Draw.of(seed).budget.delta)
        if first.before is not None:
            costs_fixed(first.charged, first.before, Draw.of(seed).budget.delta)
        differences.same_again(first, again)
        sets = differences.FAR + differences.near_sets(self.method)
        runs = self.processes.run(trial, sets, first.calls, self.seconds)
        if differences.difference(first, runs[0]):
            differences.by_itself(first, self.processes.run(trial, ["given"], first.calls)[0])
        differences.replayed(first, runs)
        self.stage.advance()
        self._walk_far(trial, first)
        self.stage.advance()
        self._check_few_records(trial)
        return trial, ""

    def check_awake(self, preset: Preset, seed: int, patience: float | None) -> None:
        """Replay an accurate preset, unless its first run takes more than `patience` seconds."""
        try:
            trial = self.trial(preset, seed, self.dataset, self.facts)
            trial, (first,) = recorded(trial, ["given"], Processes(patience))
        except TooLong:
            self.slow = f"; a run of its preset {preset.value} takes more than {patience:g} s: check it by its name"
            return
        self._note(first, preset, seed)
        differences.replayed(first, self.processes.run(trial, differences.FAR, first.calls, self.seconds))
        if patience is None:
            self._walk_far(trial, first)
        self.stage.advance()

    def reason(self) -> str:
        """Return what a check that found nothing has covered, and what it has not."""
        reason = (
            "its releases were equal to the byte when the private set was replaced, its classes renamed or one record "
            "changed, and the ledger gave the same answers. Accuracy of its students: "
            f"{', '.join(self.told)}"
        )
        if self.watched:
            reason += "; no neighbour moves the inputs of its mechanisms by more than they are charged for"
            reason += f", of which {ROOM >> 20:,} MiB were compared" * self.partly
            reason += ", and the searches for larger movements ended early for lack of time" * self.hurried
        if self.sizes:
            sizes = ", ".join(map(str, sorted(self.sizes)))
            reason += f"; with {sizes} records, changing one changes nothing of the others"
            if untried := sorted(set(FEW) - self.tried):
                reason += f" ({', '.join(map(str, untried))} were left out for lack of time)"
        elif self.seconds:
            reason += "; it refuses sets of few records, so these were not tested"
        if self.alone:
            reason += "; the run of another cell failed, so leaks from one cell to the next were not tested: try again"
        reason += self.slow
        if not is_confinable():
            said = "the kernel cannot confine processes, so files that libraries read outside Python went unnoticed"
            reason += f"; {said}"
        size, where = constants_of(self.method)
        reason += f"; its source holds {size} digits and characters of data, most in {where}" if size else ""
        if typed := statistics_in(self.method):
            reason += f"; its source holds {typed}: if those are private, nothing here counts them"
        if max(self.accuracies) < AWAKE and not self.slow:
            reason += "; branches that only a good student takes may not have run: try --preset quick"
        return reason

    def _note(self, first: Outcome, preset: Preset, seed: int) -> None:
        self.accuracies.append(first.accuracy)
        self.told.append(f"{first.accuracy:.0%} ({preset}, {Draw.of(seed)})")

    def _walk_far(self, trial: Trial, first: Outcome) -> None:
        if first.watched and self.seconds and self.method.unit in WALKED:
            found, whole = self.processes.apart(self.place, searched, trial, first, WALK * self.seconds)
            differences.bounded(found)
            self.hurried = self.hurried or not whole

    def _check_few_records(self, trial: Trial) -> None:
        begin = time.monotonic()
        for number, records in enumerate(FEW):
            late = time.monotonic() - begin > WALK * self.seconds
            if late and number >= SURELY * bool(self.seconds):
                return
            self.tried.add(records)
            known = dataclasses.replace(self.facts, private_records=records)
            with contextlib.suppress(BenchError):  # too few to train on
                try:
                    few = self.processes.apart(self.place, few_trial, trial, self.preset, self.values, records)
                    check_few(few, self.processes)
                except BenchError:
                    check_few(self.trial(self.preset, trial.seed, "", known), self.processes)
                except Rejected:
                    self.trial(self.preset, trial.seed, "", known)  # calibration may refuse so few
                    raise
                self.sizes.add(records)


def declared_by(method: type[Method], first: Outcome) -> str:
    """Return the declared bypasses, possibly none; reject a method that declares them in only one of two places."""
    declared = "; ".join(dict.fromkeys(first.bypasses))
    if declared and not method.bypass:
        raise Rejected(f"it calls ledger.bypass ({declared}) but its class attribute bypass is empty")
    if method.bypass and not declared:
        raise Rejected(
            f"its class attribute bypass says {method.bypass!r}, but it never calls ledger.bypass, so its proven "
            "epsilon would come out finite"
        )
    if method.private and not first.events:
        raise Rejected("it never used the ledger, so its privacy is unknown")
    size, where = constants_of(method)
    if size > MOST_EMBEDDED and PublicKind.OTHER not in method.public_data_kinds:
        raise Rejected(
            f"its source holds {size} digits and characters of data, most of them in {where}, and it declares no such "
            "public data. Say where they come from in public_data and public_data_kinds (other), or compute them"
        )
    return declared


def costs_covered(first: Outcome, delta: float) -> None:
    """Reject a method whose `first` run charged the ledger less, or for another unit, than its charges() state."""
    if first.stated is None or first.stated == first.charged:
        return
    both = tuple(restored(events) for events in (first.charged, first.stated))
    for what in ("unit", "adjacency"):
        ran, said = (
            {getattr(event, what).value for event in events if not isinstance(event, Bypass)} for events in both
        )
        if ran and ran != said:  # a run may charge nothing but a bypass, which has an infinite cost
            raise Rejected(
                f"the {what} of its charges() is {' and '.join(sorted(said))}, and its run charged the ledger for "
                f"{' and '.join(sorted(ran))}. Pass {what}=self.{what} to its events"
            )
    spent, stated = (proven(events, delta).epsilon for events in both)
    if not spent >= stated * COVERED:
        raise Rejected(
            f"its charges() cost epsilon {stated:.4g} at delta {delta:g}, and its run charged the ledger {spent:.4g}. "
            "State the mechanisms that run, with their counts, or call ledger.at_most(self.charges()) first"
        )


def costs_fixed(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], delta: float) -> None:
    """Reject a method that charged the ledger differently in two runs with equal settings and other noise."""
    first, second = (proven(restored(events), delta).epsilon for events in (one, other))
    if not math.isclose(first, second, rel_tol=1e-3):
        raise Rejected(
            f"its ledger charged epsilon {first:.4g} in one run and {second:.4g} in another with other noise: what it "
            "spends depends on the answers, so neither is a bound. Call ledger.at_most(EVENTS) first, with all that "
            "it may spend"
        )


def check_few(trial: Trial, processes: Processes) -> None:
    """Raise :class:`Rejected` if removing or changing one of few records changes what is computed from the others.

    `trial` is on generated data of few private records. Raises :class:`BenchError` if they are too few to train on.
    """
    records = trial.facts.private_records
    trial, (first,) = recorded(trial, [Few(records)], processes, draws=1)
    trial = dataclasses.replace(trial, products=first.products)
    times = 2 if ALONE[0] <= records <= ALONE[1] else 1
    sets: list[Variant] = [Few(records, neighbour=True, alone=alone) for alone in (False, True)[:times]]
    for run in processes.run(trial, sets, first.calls):
        if not first.bypasses:
            differences.near(first, run)


def _renamed(trial: Trial, processes: Processes) -> None:
    """Reject a method whose student knows true class names that its private labels lack."""
    for seed in (trial.seed, trial.seed + 1_000):  # two renamings, because one may swap similar classes by chance
        trial = dataclasses.replace(trial, seed=seed)
        truth = trial.material().test_labels
        chance = float(truth.bincount().max() / len(truth))
        _, (run,) = recorded(trial, ["renamed"], processes)
        right = int((run.predicted == truth.numpy()).sum())
        if binomtest(right, len(truth), chance, alternative="greater").pvalue > LEVEL:
            return
    raise Rejected(
        f"trained on labels under other names, its student still gives {right / len(truth):.0%} of the true ones, and "
        f"chance is {chance:.0%}: it reads labelled records elsewhere, for instance the public copy of the data set on "
        "disk. Use private, public and the ledger only"
    )
