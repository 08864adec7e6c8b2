"""The checks of a method: everything released depends on private data only through the ledger.

*Replay*. Run A trains on a private set that methods can learn, and the ledger's answers are taped; half of the seeds
turn off all noise but DP-SGD's. Other runs with equal config, seeds, context and public data get A's answers whatever
they ask. They must call the mechanisms with A's public arguments and release A's bytes: on unrelated data; on A's data
with renamed classes, so that the best choice for A is the worst; on neighbours of A, where
:mod:`bench.evaluation.check.sensitivity` compares the mechanisms' inputs; and again on A's own data, in A's process and
with A's cache, to expose state that outlives a run. For the last seed, another cell's run precedes A there.

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
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from scipy.stats import binomtest

from bench.core.config import Preset, build_config, parse_overrides, values_of
from bench.core.confinement import is_confinable
from bench.core.errors import BenchError
from bench.core.progress import SILENT, Progress, Stage
from bench.core.types import Basis, Budget, Facts, PrivacyUnit, PublicKind
from bench.evaluation.check.check_data import CHECK_FACTS, Few, Variant
from bench.evaluation.check.check_runs import (
    MethodPlace,
    Outcome,
    Processes,
    Rejected,
    Trial,
    loaded,
    refuse_outside,
)
from bench.evaluation.check.differences import (
    FAR,
    bounded,
    by_itself,
    difference,
    near,
    near_sets,
    replayed,
    same_again,
)
from bench.evaluation.check.embedded import MOST as MOST_EMBEDDED
from bench.evaluation.check.embedded import MOST_SET, constants_of, settings_size
from bench.evaluation.check.opened import Watch, watched
from bench.evaluation.check.processes import TooLong
from bench.evaluation.check.walks import searched
from bench.experiments.data_source import DataSource
from bench.experiments.overrides import check_kept
from bench.interface.method import Method, check_costs, check_public
from bench.privacy.accounting.accountants import proven
from bench.privacy.events.base_event import restored

SEEDS = (0, 1)
"""Seeds that repeat one check; see :func:`random_seeds` for others."""
DRAWS = 5
"""Noise draws to try for a method that fails without noise."""
EPSILONS = (10.0, 1.0)  # targets of :data:`SEEDS`
LOWEST, MIDDLE, HIGHEST = 0.5, 3.0, 20.0  # drawn targets: up to the middle with noise, above it without
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
MOST = 100_000  # upper limit of random seeds
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


@dataclass(frozen=True, slots=True)
class Draw:
    """The choices made by a check's seed: the target of its runs, and whether their noise is on."""

    seed: int
    budget: Budget
    noisy: bool

    @classmethod
    def of(cls, seed: int) -> Draw:
        """Return the draw of `seed`: odd ones have a low target and noise at its true scale; 0 and 1 are fixed."""
        if seed in SEEDS:
            return cls(seed, Budget(EPSILONS[seed], 1e-5), noisy=False)
        generator = np.random.default_rng([seed, 6])
        noisy = seed % 2 == 1
        low, high = (LOWEST, MIDDLE) if noisy else (MIDDLE, HIGHEST)
        epsilon = float(np.exp(generator.uniform(np.log(low), np.log(high))).round(2))
        return cls(seed, Budget(epsilon, 1e-5, list(Basis)[generator.integers(2)]), noisy)

    def __str__(self) -> str:
        noise = "with noise" if self.noisy else "without noise"
        return f"seed {self.seed}, epsilon {self.budget.epsilon:g} {self.budget.basis.value}, {noise}"


def random_seeds() -> tuple[int, int]:
    """Return two unpredictable seeds; the second keeps the noise on."""
    return 2 * secrets.randbelow(MOST // 2), 2 * secrets.randbelow(MOST // 2) + 1


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
    processes, accuracies, told = Processes(dataset=dataset), list[float](), list[str]()
    declared, watched, alone = "", False, False
    sizes: set[int] = set()
    place = MethodPlace.of(method) or method
    slow, drawn = "", "; ".join(str(Draw.of(seed)) for seed in seeds)

    def trial_of(preset: Preset, seed: int, dataset: str = dataset, known: Facts = facts or CHECK_FACTS) -> Trial:
        # Calibration runs the method's code, so isolate it from other checks' threads and files.
        return processes.apart(place, trial_for, place, preset, seed, known, values, dataset, labelled)

    def few(seed: int) -> None:
        begin = time.monotonic()
        for number, records in enumerate(FEW):
            if time.monotonic() - begin > WALK * seconds and number >= SURELY * bool(seconds):
                return
            with contextlib.suppress(BenchError):  # too few to train on
                known = dataclasses.replace(facts or CHECK_FACTS, private_records=records)
                check_few(trial_of(preset, seed, "", known), processes)
                sizes.add(records)

    def walk_far(trial: Trial, first: Outcome) -> None:
        if first.watched and seconds and method.unit in WALKED:
            bounded(processes.apart(place, searched, trial, first.calls, WALK * seconds))

    try:
        for seed in seeds:
            trial = dataclasses.replace(trial_of(preset, seed), rehearsed=seed == seeds[-1])
            trial, (first, again) = recorded(trial, ["given", "given"], processes)
            accuracies.append(first.accuracy)
            told.append(f"{first.accuracy:.0%} ({preset}, {Draw.of(seed)})")
            watched, alone = watched or first.watched, alone or first.alone
            declared = declared_by(method, first)
            if not declared:
                costs_covered(first, Draw.of(seed).budget.delta)
                same_again(first, again)
                runs = processes.run(trial, FAR + near_sets(method), first.calls, seconds)
                if difference(first, runs[0]):
                    by_itself(first, processes.run(trial, ["given"], first.calls)[0])
                replayed(first, runs)
                stage.advance()
                walk_far(trial, first)
                stage.advance()
                few(seed)
            # Digits are available everywhere, and expose a method that reads them from disk.
            quiet = dataclasses.replace(trial, noisy=False)  # noise could mask what the student knows
            _renamed(quiet if facts else dataclasses.replace(quiet, dataset=CHECK_FACTS.dataset), processes)
            stage.advance()
        for name in labels_of:
            _renamed(trial_of(preset, seeds[0], name, source.describe(name).facts), processes)
        if awake and awake.value in method.presets(facts or CHECK_FACTS) and not declared:
            try:
                trial, (first,) = recorded(trial_of(awake, seeds[0]), ["given"], Processes(patience))
            except TooLong:
                slow = f"; a run of its preset {awake.value} takes more than {patience:g} s: check it by its name"
            else:
                accuracies.append(first.accuracy)
                told.append(f"{first.accuracy:.0%} ({awake}, {Draw.of(seeds[0])})")
                replayed(first, processes.run(trial, FAR, first.calls, seconds))
                if patience is None:
                    walk_far(trial, first)
                stage.advance()
    except Rejected as rejection:
        return Check(method.name, CheckVerdict.REJECTED, f"{rejection} ({drawn})")
    if declared:
        return Check(method.name, CheckVerdict.BYPASS, declared)
    reason = (
        "its releases were equal to the byte when the private set was replaced, its classes renamed or one record "
        "changed, and the ledger gave the same answers. Accuracy of its students: "
        f"{', '.join(told)}"
    )
    if watched:
        reason += "; no neighbour moves the inputs of its mechanisms by more than they are charged for"
    if sizes:
        reason += f"; with {', '.join(map(str, sorted(sizes)))} records, changing one changes nothing of the others"
    elif seconds:
        reason += "; it refuses sets of few records, so these were not tested"
    if alone:
        reason += "; the run of another cell failed, so leaks from one cell to the next were not tested: try again"
    reason += slow
    if not is_confinable():
        reason += "; the kernel cannot confine processes, so files that libraries read outside Python went unnoticed"
    size, where = constants_of(method)
    reason += f"; its source holds {size} numbers and characters of data, most in {where}" if size else ""
    if max(accuracies) < AWAKE and not slow:
        reason += "; branches that only a good student takes may not have run: try --preset quick"
    return Check(method.name, CheckVerdict.PASSED, reason)


def trial_for(
    place: MethodPlace | type[Method], preset: Preset, seed: int, facts: Facts,
    overrides: Mapping[str, Any] | None = None, dataset: str = "", labelled: bool = False,
) -> Trial:  # fmt: skip
    """Return the trial of a method with a preset's settings for `facts`, calibrated to the seed's budget."""
    method, outside = loaded(place, facts.dataset)
    refuse_outside(outside)
    with watched(Watch(method.__module__, facts.dataset)) as watch:
        try:
            values = _calibrated(method, preset, seed, facts, overrides or {})
        finally:
            refuse_outside(watch.found)
    refuse_data_in(values)
    return Trial(place, values, facts, seed, dataset, labelled, Draw.of(seed).noisy)


def _calibrated(
    method: type[Method], preset: Preset, seed: int, facts: Facts, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of the trial."""
    built, _ = build_config(method, preset, facts, overrides)
    if method(built, facts).given_teacher() is not None:
        raise BenchError(
            "a given teacher is all that is private, and there is no other to replay with: check the method with "
            "the teacher that it trains, without teacher_weights. What follows the teacher is the same code."
        )
    budget = Draw.of(seed).budget
    try:  # budgets differ by seed, since few answers take other branches than many
        config = method(built, facts).calibrate_checked(budget)
    except BenchError:
        budget = Budget(EPSILONS[0], budget.delta)
        config = method(built, facts).calibrate_checked(budget)

    def calibrate(start: object) -> object:
        return method(start, facts).calibrate_checked(budget)

    check_kept(method, built, config, overrides, calibrate, preset, facts, budget)
    check_public(method(config, facts))
    check_costs(method(config, facts), budget.delta)
    return {entry.name: getattr(config, entry.name) for entry in dataclasses.fields(config)}


def refuse_data_in(settings: Mapping[str, Any]) -> None:
    """Reject settings that hold more than a method needs to be configured."""
    if (size := settings_size(settings)) > MOST_SET:
        name = max(settings, key=lambda name: settings_size(settings[name]))
        raise Rejected(
            f"its settings hold {size} numbers and characters of data, most of them in {name}. Read public data "
            "through bench and declare them in public_data and public_data_kinds, or compute them"
        )


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
        raise Rejected("it took nothing through the ledger, so its privacy is unknown")
    size, where = constants_of(method)
    if size > MOST_EMBEDDED and PublicKind.OTHER not in method.public_data_kinds:
        raise Rejected(
            f"its source holds {size} numbers and characters of data, most of them in {where}, and it declares no such "
            "public data. Say where they come from in public_data and public_data_kinds (other), or compute them"
        )
    return declared


def costs_covered(first: Outcome, delta: float) -> None:
    """Reject a method whose `first` run charged the ledger less than its charges() state for the same settings."""
    if first.stated is None or first.stated == first.charged:
        return
    spent, stated = (proven(restored(events), delta).epsilon for events in (first.charged, first.stated))
    if not spent >= stated * COVERED:
        raise Rejected(
            f"its charges() cost epsilon {stated:.4g} at delta {delta:g}, and its run charged the ledger {spent:.4g}. "
            "State the mechanisms that run, with their counts, or call ledger.at_most(self.charges()) first"
        )


def recorded(
    trial: Trial, variants: Sequence[Variant], processes: Processes, draws: int = DRAWS
) -> tuple[Trial, list[Outcome]]:
    """Return the trial and outcomes without noise, or with one of `draws` noise draws if the method fails without."""
    try:
        return trial, processes.run(trial, variants)
    except BenchError:
        failure = None
        for _ in range(draws):  # with some draws, teachers that rarely agree answer nothing
            trial = dataclasses.replace(trial, noisy=True, noise=secrets.randbits(256))
            try:
                return trial, processes.run(trial, variants)
            except BenchError as error:
                failure = error
        assert failure is not None
        raise failure from None


def check_few(trial: Trial, processes: Processes) -> None:
    """Raise :class:`Rejected` if removing or changing one of few records changes what is computed from the others.

    `trial` is on generated data of few private records. Raises :class:`BenchError` if they are too few to train on.
    """
    records = trial.facts.private_records
    trial, (first,) = recorded(trial, [Few(records)], processes, draws=1)
    trial = dataclasses.replace(trial, products=first.products)
    for alone in (False, True)[: 2 if ALONE[0] <= records <= ALONE[1] else 1]:
        (run,) = processes.run(trial, [Few(records, neighbour=True, alone=alone)], first.calls)
        if not first.bypasses:
            near(first, run)


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
