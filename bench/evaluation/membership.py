"""A membership attack on a pipeline, judged: ROC by family of canaries, beside the pipeline without privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.core.types import Family
from bench.evaluation.audit import PRIVATE_FIGURES
from bench.evaluation.canary_runs import train_shadow_runs
from bench.evaluation.membership_data import Candidates, baseline_cell, draw_membership, signals_of
from bench.experiments.run import cache_base
from bench.results.attack_record import Role, Scores
from bench.storage.cache import Cache

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.core.types import Signals
    from bench.evaluation.canary_runs import ShadowRun
    from bench.evaluation.workplace import Workplace
    from bench.experiments.plan import Cell
    from bench.interface.attack import MembershipAttack
    from bench.results.record import Record
    from bench.training.context import Context

RATES = (0.001, 0.01)
"""False-positive rates at which the true-positive rate is stated."""

Scored = dict[str, tuple["NDArray[np.float64]", "NDArray[np.bool_]", "NDArray[np.int64]"]]
"""Family to scores, truth and number of the canary, over all targets."""


def membership(
    record: Record, cell: Cell, attack: MembershipAttack, config: Any, key: str, place: Workplace, context: Context
) -> dict[str, Any]:
    """Return the parts of the record of `attack` on the pipeline of `record`: metrics, verdict and picture."""
    from bench.evaluation.figures import roc_figure
    from bench.metrics.roc import membership_metrics, roc

    material = place.source.material(cell.dataset)
    canaries, candidates = draw_membership(cell, material, place.options.seed)
    count = max(place.options.shadow_run_count(), 2)
    shift = 1 if min(cell.facts.shape[1:]) >= 16 else 0
    scored: dict[Role, Scored] = {}
    targets: dict[str, Scores] = {}
    assert record.student is not None
    base = baseline_cell(cell, record.student.name)
    for role, which in ((Role.STUDENT, cell), (Role.NON_PRIVATE, base)):
        inner = context if which is cell else _with_base(context, which)
        shadow_runs = train_shadow_runs(which, canaries, count, material, inner, place.run_dir)
        with context.progress.stage(f"{attack.name} on {role}", len(shadow_runs)) as stage:
            signals = signals_of(shadow_runs, candidates, material, shift, context.device)
            scored[role] = _score(attack, config, signals, shadow_runs, candidates, stage.advance)
        accuracy = float(np.mean([s.accuracy for s in shadow_runs]))
        # Intervals are over canaries: of a canary's two alternatives one is in, and targets share them.
        metrics = {
            f"{family} {name}": value
            for family, rows in scored[role].items()
            for name, value in membership_metrics(*rows, RATES, seed=place.options.seed).items()
        }
        targets[role.value] = Scores(metrics=metrics, accuracy=accuracy)
    headline = _headline(targets[Role.NON_PRIVATE.value])
    picture = f"attacks/{key}.png"
    proven = record.privacy.proven.epsilon if record.privacy else math.inf
    curves = {}
    for role, families in scored.items():
        for family, (scores, truth, _) in families.items():
            if role is Role.STUDENT or family == headline:
                curves[f"{role}, {family}"] = roc(scores, truth)
    title = f"{attack.name} on {record.key}"
    roc_figure(place.run_dir.path / picture, curves, proven, cell.delta, title=title)
    auc = targets[Role.NON_PRIVATE.value].metrics[f"{headline} auc"]
    powerless = auc.low is None or auc.low <= 0.5
    if not cell.facts.public_benchmark:
        context.note(PRIVATE_FIGURES)
    context.note(
        f"{count} siblings, each the target once with the others as references; headline family: {headline}, which the "
        "pipeline without privacy gives away most"
    )
    return {
        "targets": targets,
        "no_power": f"on the pipeline without privacy the AUC may be {auc.low:.3f}" if powerless else "",
        "pictures": [picture],
        "details": {"headline": headline, "siblings": count, "canaries": dict(canaries.plan.counts())},
    }


def _with_base(context: Context, cell: Cell) -> Context:
    import dataclasses

    cache = Cache(context.cache.root, cache_base(cell), context.progress.say)
    return dataclasses.replace(context, cache=cache)


def _score(
    attack: MembershipAttack,
    config: Any,
    signals: Sequence[Signals],
    shadow_runs: Sequence[ShadowRun],
    candidates: Candidates,
    advance: Any,
) -> Scored:
    every: list[NDArray[np.float64]] = []
    for seen in signals:
        every.append(np.asarray(attack.score(config, seen), dtype=np.float64))
        advance()
    truth = [candidates.inside(shadow_run) for shadow_run in shadow_runs]
    found: Scored = {}
    for family in Family:
        mine = candidates.family == family.value
        if mine.any():
            found[family.value] = (
                np.concatenate([scores[mine] for scores in every]),
                np.concatenate([inside[mine] for inside in truth]),
                np.tile(candidates.canary[mine], len(shadow_runs)),
            )
    return found


def _headline(baseline: Scores) -> str:
    """Return the family that the pipeline without privacy gives away most: fixed without a look at the student.

    Among those of single records: what epsilon allows for a duplicated one is more.
    """
    areas = {name.removesuffix(" auc"): e.value for name, e in baseline.metrics.items() if name.endswith(" auc")}
    areas.pop(Family.DUPLICATED.value, None)
    return max(areas, key=lambda family: areas[family])
