"""Audit of one student's pipeline: shadow runs with canaries, guesses of their coins, a lower bound on epsilon.

:mod:`bench.evaluation.audit.canary_runs` gives the scores, :mod:`bench.evaluation.audit.guesses` the statistics. The
options fix what is guessed before any shadow run. Independent runs form one audit of their composition, so their counts
add up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.core.disclosure import PRIVATE_FIGURES
from bench.core.errors import BenchError
from bench.core.options import ONE_CPU, Resources
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import AuditKind, Family, PrivacyUnit
from bench.data.splits import Materialised
from bench.evaluation.audit.canaries import Canaries, CanaryPlan, canary_unit, draw_canaries, speaks_of
from bench.evaluation.audit.canary_runs import ShadowRun, coin_scores, image_scores, train_shadow_run, train_shadow_runs
from bench.evaluation.audit.full_size import pair_for
from bench.evaluation.audit.guesses import check_power, many_run_errors, right_guesses
from bench.evaluation.audit.informed import informed_attack
from bench.evaluation.audit.mechanism_audit import audit_events
from bench.evaluation.audit.options import AuditOptions
from bench.evaluation.audit.pair_audit import FULL_SHARE, PairPlan, audit_pairs
from bench.evaluation.common import ContextOf, attempted, refuse_given
from bench.experiments.data_source import DataSource
from bench.experiments.plan import Cell, cell_of, data_named
from bench.interface.registry import METHODS
from bench.privacy.events.base_event import Event, restored
from bench.privacy.mechanisms.noise import SeededNoise
from bench.results.attack_record import AuditRecord, Channel, MechanismAudited
from bench.results.audited import CHANNELS, bounded, corrected, many_bounded
from bench.results.record import Record
from bench.results.run_dir import RunDir
from bench.results.text import epsilon_text
from bench.storage.cache import digest_of
from bench.training.context import Context

LEAST_SHARE = 0.5
"""The share of the record's accuracy above chance that shadow runs must reach; seeds on the board differ less."""
CHOSEN_SETS = (AuditKind.PAIR, AuditKind.CANDIDATES)
"""Kinds whose sets the auditor chooses."""
AUDIT_VERSION = 3  # part of every key; increment when the same options give a different bound


def _canary_plan(options: AuditOptions) -> CanaryPlan:
    """Return the canaries: the family's, and natural ones for released images."""
    counts: dict[str, int] = {options.family.value: options.canaries}
    if options.family is not Family.NATURAL and options.kind is AuditKind.ONE_RUN:
        counts[Family.NATURAL.value] = max(2, options.canaries // 4)
    return CanaryPlan(**counts, copies=options.copies, seed=options.seed)


def audit_student(
    record: Record,
    options: AuditOptions,
    run_dir: RunDir,
    source: DataSource,
    progress: Progress,
    *,
    dataset: str | None = None,
    resources: Resources = ONE_CPU,
) -> AuditRecord:
    """Audit the pipeline of `record`; write and return the audit's record, also for a failure.

    `dataset` is the name in `source` of a user's folder. Raises :class:`BenchError` only if the record is not writable.
    """
    with contextlib.suppress(BenchError):  # raised again below, because a failure's record also needs a key
        options = options.fitted(record.private_records)

    def audit(context_of: ContextOf) -> dict[str, Any]:
        if record.cell.tuning is not None:
            raise BenchError(
                "an audit repeats one training, and this student is the best of a random number of them. Audit the "
                "same method with fixed settings."
            )
        cell = cell_of(record, source.describe(data_named(record, dataset)))
        refuse_given(cell)
        fitted = options.fitted(cell.facts.private_records)
        return _audit(record, cell, fitted, source, context_of(cell, Streams(cell.seed)))

    key = _key(record, options)
    parts = attempted(audit, record, key, run_dir, progress, resources)
    protects = record.privacy or METHODS.get(record.method)  # an unknown method is also a failure
    by_pairs = options.kind in CHOSEN_SETS
    speaks = by_pairs or speaks_of(protects.unit)
    planned = {} if by_pairs else {"canaries": options.canaries, "guesses": options.guesses, "seed": options.seed}
    result = AuditRecord.model_validate(
        {
            "key": key,
            "student": record.key,
            "method": record.method,
            "dataset": record.dataset,
            "unit": _unit(protects.unit, options.kind),
            "adjacency": protects.adjacency,
            "delta": record.delta,
            "claimed": record.privacy.claimed.epsilon if record.privacy and speaks else None,
            "confidence": options.confidence,
            "kind": options.kind,
            "plan": planned,
            "runs": 0 if by_pairs else options.runs,
            **parts,
        }
    )
    with run_dir.guarded(record.disclosure.owner_only):
        run_dir.write_row(result)
    return result


def _unit(unit: PrivacyUnit, kind: AuditKind) -> PrivacyUnit:
    """Return the unit in which audited sets differ; it is a client only if the auditor chooses its records."""
    return unit if kind in CHOSEN_SETS and unit is PrivacyUnit.CLIENT else canary_unit(unit)


def audit_key(record: Record, options: AuditOptions) -> str:
    """Return the key of a record's audit with these options. Raise :class:`BenchError` if they do not fit it."""
    return _key(record, options.fitted(record.private_records))


def _key(record: Record, options: AuditOptions) -> str:
    values = dataclasses.asdict(options)
    minutes, candidates = values.pop("minutes"), values.pop("candidates")
    if options.kind is AuditKind.PAIR:
        names = ("kind", "confidence", "draws", "refute", "power")
        values = {name: values[name] for name in names} | {"minutes": minutes}
    if options.kind is AuditKind.CANDIDATES:
        chosen = {name: values[name] for name in ("kind", "confidence", "power", "seed")}
        # Version 2 of the sets: in version 1, candidates that replace each other were blank images.
        values = chosen | {"minutes": minutes, "candidates": candidates, "sets": 2}
    return f"{record.key}--audit-{digest_of([AUDIT_VERSION, values])[:12]}"


def _audit(record: Record, cell: Cell, options: AuditOptions, source: DataSource, context: Context) -> dict[str, Any]:
    method = METHODS.get(cell.method)
    if options.kind is AuditKind.PAIR:
        return _pairs(record, cell, options, source, context)
    if options.kind is AuditKind.CANDIDATES:
        return _candidates(record, cell, options, context)
    material = source.material(cell.dataset)
    canaries = draw_canaries(material.private, _canary_plan(options), canary_unit(method.unit), method.adjacency)
    if options.kind is AuditKind.MANY_RUN:
        return _many_runs(record, cell, canaries, options, material, context)
    if options.refute is not None:
        total, strict = options.runs * options.guesses, corrected(options.confidence, CHANNELS)
        group = canaries.group(options.family)
        check_power(options.runs * options.canaries, total, options.refute, cell.delta, strict, group)
    mechanisms = mechanisms_of(record, options, context)
    shadow_runs: dict[bool, list[ShadowRun]] = {False: [], True: []}
    passes = [False, True] if options.power and method.private else [False]
    with context.progress.stage("shadow runs", len(passes) * options.runs) as stage:
        for index in range(options.runs):
            for noiseless in passes:
                name = f"shadow run {index}" + (", without noise" if noiseless else "")
                with context.progress.stage(name, 1):
                    shadow_run = train_shadow_run(cell, canaries, index, material, context, noiseless=noiseless)
                shadow_runs[noiseless].append(shadow_run)
                stage.advance()
    events = events_of(record, canaries.unit)
    channels = count_guesses(shadow_runs[False], canaries, options, cell.delta, context, events)
    power = count_guesses(shadow_runs[True], canaries, options, cell.delta, context) if shadow_runs[True] else []
    if not cell.facts.disclosure.data_figures:
        context.note(PRIVATE_FIGURES)
    if not method.private:
        context.note("there is no noise to leave out, so the audit itself shows its power")
    found = {**_result(method.unit, channels, shadow_runs[False]), "power": power, "mechanisms": mechanisms}
    return _like_the_record(found, record, cell)


def _pairs(record: Record, cell: Cell, options: AuditOptions, source: DataSource, context: Context) -> dict[str, Any]:
    """Audit the method of `record`, with its privacy settings, on worst-case pairs and on one at full size."""
    method, privacy = METHODS.get(cell.method), record.privacy
    if privacy is None or not method.private:
        context.note("no epsilon is claimed or proven: there is nothing to refute")
        return {}
    # For query labels the audit changes a record, for record labels only its label.
    level = privacy.record_level if privacy.unit is PrivacyUnit.QUERY_LABEL else None
    allowed = level or privacy.proven
    limits = [limit for limit in (privacy.claimed.epsilon, allowed.epsilon) if math.isfinite(limit)]
    target = options.refute if options.refute is not None else min(limits, default=math.inf)
    events = events_of(record, _unit(method.unit, AuditKind.PAIR))
    plan = PairPlan(
        options.minutes, target, cell.delta, options.confidence, context.workers, events, options.power, cell.seed
    )
    full = pair_for(record, cell, 60 * options.minutes * FULL_SHARE, source, context.note)
    found = audit_pairs(method, cell.config, cell.facts, plan, context.cache, context.progress, full)
    for line in found.notes:
        context.note(line)
    return {
        "pairs": found.bounds,
        "epsilon": max((bound.epsilon for bound in found.bounds), default=None),
        "allowed": allowed.epsilon,
        "reduced": found.reduced,
        "bypassed": found.bypassed,
        "record_level": level is not None,
        "mechanisms": mechanisms_of(record, options, context),
    }


def _candidates(record: Record, cell: Cell, options: AuditOptions, context: Context) -> dict[str, Any]:
    """Attack the method of `record`, with its privacy settings, as an attacker who knows all records but one."""
    method = METHODS.get(cell.method)
    unit = _unit(method.unit, AuditKind.CANDIDATES)
    if record.privacy is None or record.privacy.unit is not unit or not method.private:
        raise BenchError(f"no curve is proven for one {unit} of {record.key}, so there is no bound to test.")
    found = informed_attack(method, cell, restored(record.privacy.events), options, context)
    return {"candidates": found, "allowed": record.privacy.proven.epsilon}


def _like_the_record(found: dict[str, Any], record: Record, cell: Cell) -> dict[str, Any]:
    """Return `found`; raise :class:`BenchError` if nothing was refuted because shadow runs were weak."""
    limits = [found["allowed"], record.privacy.claimed.epsilon if record.privacy else None]
    refuted = any(limit is not None and found["epsilon"] > limit for limit in limits)
    if record.utility is not None and not refuted:
        check_accuracy(record.utility.accuracy, found["accuracy"], cell.facts.classes, record.utility.test_records)
    return found


def check_accuracy(record: float, shadow: float, classes: int, tests: int) -> None:
    """Raise :class:`BenchError` if shadow runs are far less accurate than the record, both on `tests` records.

    Far less: below chance plus :data:`LEAST_SHARE` of the record's excess over chance, by over three standard errors of
    the difference. Canaries and other seeds lower it less than that; a method that behaves differently when audited may
    lower it more. Accuracies below chance count as chance, because students that learn nothing get 5% as easily as 10%.
    """
    error = math.sqrt((record * (1 - record) + shadow * (1 - shadow)) / tests)
    least = 1 / classes + LEAST_SHARE * (record - 1 / classes) - 3 * error
    if max(shadow, 1 / classes) < least:
        raise BenchError(
            f"the shadow runs have accuracy {shadow:.3f}, and the record has {record:.3f}: at least {least:.3f} is "
            "needed, or the bound says nothing about the record. Does the method behave differently in an "
            "audit, or do its runs vary this much? Try another --seed, or more --runs."
        )


def _result(unit: PrivacyUnit, channels: list[Channel], shadow_runs: Sequence[ShadowRun]) -> dict[str, Any]:
    return {
        "channels": channels,
        "epsilon": max(channel.epsilon for channel in channels),
        "allowed": None if unit is PrivacyUnit.CLIENT else max(shadow_run.proven for shadow_run in shadow_runs),
        "accuracy": sum(shadow_run.accuracy for shadow_run in shadow_runs) / len(shadow_runs),
    }


def _many_runs(
    record: Record, cell: Cell, canaries: Canaries, options: AuditOptions, material: Materialised, context: Context
) -> dict[str, Any]:
    """Audit one canary over many runs: half of each arm sets the threshold, the other half is counted."""
    method, strict = METHODS.get(cell.method), corrected(options.confidence, CHANNELS)
    per_arm = options.runs // 2
    counted = per_arm - max(1, round(0.5 * per_arm))  # the other half sets the threshold
    cap = many_bounded("student", options.family.value, (0, counted, 0, counted), cell.delta, strict).cap
    if options.refute is not None and cap < options.refute:
        raise BenchError(
            f"{options.runs} runs certify an epsilon of at most {epsilon_text(cap)}, not {options.refute:g}. Raise "
            "--runs."
        )
    shadow_runs = train_shadow_runs(cell, canaries, options.runs, material, context)
    scores = np.array([coin_scores(s, canaries, options.family, context.device)[0] for s in shadow_runs])
    coins = np.array([bool(s.coins[0]) for s in shadow_runs])
    errors = many_run_errors(scores[coins], scores[~coins], 0.5, cell.delta, options.confidence)
    events = events_of(record, canaries.unit)
    channel = many_bounded("student", options.family.value, errors, cell.delta, strict, events)
    found = {**_result(method.unit, [channel], shadow_runs), "mechanisms": mechanisms_of(record, options, context)}
    return _like_the_record(found, record, cell)


def count_guesses(
    shadow_runs: Sequence[ShadowRun],
    canaries: Canaries,
    options: AuditOptions,
    delta: float,
    context: Context,
    events: Sequence[Event] = (),
) -> list[Channel]:
    """Return each channel's correct guesses and bounds, corrected for the number of channels.

    Channels: the student's confidences on the family's canaries and, if every shadow run released images, their
    distance to natural canaries. If a curve is proven for `events`, each also has the bound by that curve.
    """
    counted: list[tuple[str, Family, int, int]] = []
    scored = [(s, coin_scores(s, canaries, options.family, context.device)) for s in shadow_runs]
    seen = [(s, image_scores(s, canaries, Family.NATURAL)) for s in shadow_runs]
    tables = [("student", options.family, scored)]
    known = [(s, scores) for s, scores in seen if scores is not None]
    if canaries.unit is PrivacyUnit.LABEL:
        known = []  # both alternatives are the same image
    if len(known) == len(shadow_runs) and canaries.of(Family.NATURAL).size:
        tables.append(("released images", Family.NATURAL, known))
    for name, family, rows in tables:
        numbers = canaries.of(family)
        guesses = min(options.guesses, len(numbers) // 2 * 2)
        correct = 0
        for shadow_run, scores in rows:
            ties = Streams(options.seed, "audit/").numpy(f"ties/{name}/{shadow_run.index}")
            correct += right_guesses(scores, shadow_run.coins[numbers], guesses // 2, guesses // 2, ties)
        counted.append((name, family, guesses * len(rows), correct))
    confidence = corrected(options.confidence, CHANNELS)
    return [
        bounded(name, family.value, len(canaries.of(family)) * len(shadow_runs), guesses, correct,
                canaries.group(family), delta, confidence, events)
        for name, family, guesses, correct in counted
    ]  # fmt: skip


def events_of(record: Record, unit: PrivacyUnit) -> list[Event]:
    """Return the events of the record's ledger if they protect `unit`; otherwise none: no curve can be tested."""
    if record.privacy is None or record.privacy.unit is not unit:
        return []
    return restored(record.privacy.events)


def mechanisms_of(record: Record, options: AuditOptions, context: Context) -> list[MechanismAudited]:
    """Return audits of every distinct mechanism of the record's ledger on the worst known adjacent inputs."""
    if not options.draws or record.privacy is None:
        return []
    events = restored(record.privacy.events)
    noise = SeededNoise(Streams(options.seed, "audit/").numpy(f"mechanisms/{record.key}"))
    with context.progress.stage("mechanisms", 1):
        return audit_events(events, noise, options.draws, record.delta, options.confidence)
