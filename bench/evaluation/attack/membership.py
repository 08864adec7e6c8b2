"""A membership attack on a pipeline: shadow runs are targets and references, canaries are candidates; ROC by family.

Every shadow run is the target once, with the others as references. Intervals are over canaries and, from
:data:`RETRAINED` shadow runs on, also over trainings. The baseline is the same attack on a non-private pipeline with
the same canaries and coins.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.config import as_dict, build_config
from bench.core.disclosure import PRIVATE_FIGURES
from bench.core.errors import BenchError
from bench.core.types import Adjacency, Basis, Family, Signals
from bench.data.index_hash import ranks
from bench.data.splits import Materialised
from bench.evaluation.attack.figures import roc_figure
from bench.evaluation.attack.workplace import Workplace
from bench.evaluation.audit.canaries import Canaries, CanaryPlan, canary_unit, draw_canaries, speaks_of
from bench.evaluation.audit.canary_runs import ShadowRun, logits_of, queries_of, train_shadow_runs
from bench.experiments.plan import Cell, Refusal, keyed
from bench.experiments.run import cache_base
from bench.interface.attack import MembershipAttack
from bench.interface.registry import METHODS
from bench.metrics.roc import DRAWS, Floats, membership_metrics, roc
from bench.results.attack_record import Role, Scores
from bench.results.derived import risks_of
from bench.results.record import Privacy, Record
from bench.storage.cache import Cache
from bench.training.context import Context

POPULATION = 1_000  # largest number of test records that an attack may compare with
RATES = (0.001, 0.01)  # false-positive rates of the reported true-positive rates
_RATE_NAMES = tuple(f"tpr@{rate:g}" for rate in RATES)
RETRAINED = 20  # minimum number of shadow runs for a bootstrap over them
POWER_ERROR = 0.05  # probability that an attack without power is judged to have power

Scored = dict[str, tuple["NDArray[np.float64]", "NDArray[np.bool_]", "NDArray[np.int64]"]]
"""Scores (n,), truth (n,), and numbers of canary and perhaps target (1 or 2, n), over all targets, by family."""


def membership(
    record: Record, cell: Cell, attack: MembershipAttack, key: str, place: Workplace, context: Context
) -> dict[str, Any]:
    """Return the parts of the record of `attack` on the pipeline of `record`: metrics, power and figure."""
    count = max(place.options.shadow_run_count(), 2)
    if count <= attack.references:
        raise BenchError(
            f"{attack.name} compares each shadow run with at least {attack.references} others, so {count} are too few. "
            f"Use --shadow-runs {attack.references + 1} or more."
        )
    material = place.source.material(cell.dataset)
    canaries, candidates = draw_membership(cell, material, place.options.seed)
    shift = 1 if min(cell.facts.shape[1:]) >= 16 else 0
    scored: dict[Role, Scored] = {}
    targets: dict[str, Scores] = {}
    assert record.student is not None
    base = baseline_cell(cell, record.student.name)
    for role, which in ((Role.STUDENT, cell), (Role.NON_PRIVATE, base)):
        inner = context
        if which is not cell:
            cache = Cache(context.cache.root, cache_base(which), context.progress.say)
            inner = dataclasses.replace(context, cache=cache)
        shadow_runs = train_shadow_runs(which, canaries, count, material, inner)
        with context.progress.stage(f"{attack.name} on {role}", len(shadow_runs)) as stage:
            signals = signals_of(shadow_runs, candidates, material, shift, context.device)
            scored[role] = _score(attack, signals, shadow_runs, candidates, stage.advance)
        accuracy = float(np.mean([s.accuracy for s in shadow_runs]))
        # Intervals are over canaries, which all targets share, and also over targets if there are enough.
        metrics = {
            f"{family} {name}": value
            for family, rows in scored[role].items()
            for name, value in membership_metrics(*rows, RATES, seed=place.options.seed).items()
        }
        targets[role.value] = Scores(metrics=metrics, accuracy=accuracy)
    headline, powerless = power(scored[Role.NON_PRIVATE], place.options.seed)
    if left_out := [family for family in dict.fromkeys(candidates.family) if family not in scored[Role.STUDENT]]:
        names = ", ".join(left_out)
        context.note(f"no ROC curve for {names}: in every shadow run, all or none were members. Use more --shadow-runs")
    picture = f"attacks/{key}.png"
    bounded = record.privacy is not None and speaks_of(record.privacy.unit)
    proven = record.privacy.proven.epsilon if record.privacy and bounded else math.inf
    title = f"{attack.name} on {record.key}"
    roc_figure(place.run_dir.path / picture, curves_of(scored, headline), proven, cell.delta, title=title)
    if not cell.facts.disclosure.data_figures:
        context.note(PRIVATE_FIGURES)
    context.note(
        f"{count} shadow runs, each the target once with the others as references; headline family: {headline}, the "
        "one with the largest AUC on the pipeline without privacy"
    )
    return {
        "targets": targets,
        "bounds": bounds_of(record.privacy) if record.privacy and bounded else {},
        "no_power": powerless,
        "pictures": [picture],
        "details": {"headline": headline, "siblings": count, "canaries": dict(canaries.plan.counts())},
    }


def curves_of(scored: Mapping[Role, Scored], headline: str) -> dict[str, tuple[Floats, Floats]]:
    """Return the ROC curves of a figure by their labels: all families on the student, the `headline` on the other.

    Duplicated canaries are left out: each is several records, so its curve may lie above the ceiling for one record.
    """
    return {
        f"{role}, {family}": roc(scores, truth)
        for role, families in scored.items()
        for family, (scores, truth, _) in families.items()
        if family != Family.DUPLICATED and (role is Role.STUDENT or family == headline)
    }


def bounds_of(privacy: Privacy) -> dict[str, float]:
    """Return the upper bounds of the proven curve on an attack's measures for one unit, by name."""
    allowed = risks_of(privacy)[0].as_dict()
    most = allowed["advantage"]
    # No point of the ROC curve lies above its false positive rate plus the advantage.
    return {"auc": 0.5 + most - most**2 / 2, **{name: allowed[name] for name in ("advantage", *_RATE_NAMES)}}


def _score(
    attack: MembershipAttack,
    signals: Sequence[Signals],
    shadow_runs: Sequence[ShadowRun],
    candidates: Candidates,
    advance: Callable[[], None],
) -> Scored:
    every: list[NDArray[np.float64]] = []
    for seen in signals:
        every.append(np.asarray(attack.score(seen), dtype=np.float64))
        advance()
    truth = [candidates.inside(shadow_run) for shadow_run in shadow_runs]
    found: Scored = {}
    for family in Family:
        mine = candidates.family == family.value
        if mine.any():
            canary = np.tile(candidates.canary[mine], len(shadow_runs))
            target = np.repeat(np.arange(len(shadow_runs)), mine.sum())
            members = np.concatenate([inside[mine] for inside in truth])
            if members.all() or not members.any():
                continue
            found[family.value] = (
                np.concatenate([scores[mine] for scores in every]),
                members,
                np.stack([canary, target] if len(shadow_runs) >= RETRAINED else [canary]),
            )
    return found


def power(baseline: Scored, seed: int, draws: int = DRAWS) -> tuple[str, str]:
    """Return the family with the largest AUC without privacy, and the reason if that shows no power.

    The choice does not depend on the student. The error :data:`POWER_ERROR` is split equally among the families.
    """
    # Epsilon allows more leakage for a group than for a record.
    records = {family: rows for family, rows in baseline.items() if family != Family.DUPLICATED.value}
    if not records:
        raise BenchError("no family of canaries has members and non-members. Use more --shadow-runs.")
    strict = 1 - 2 * POWER_ERROR / len(records)  # the interval is two-sided, but only one side counts
    auc = {name: membership_metrics(*rows, (), seed, draws, confidence=strict)["auc"] for name, rows in records.items()}
    best = max(auc, key=lambda name: auc[name].value)
    low = auc[best].low
    assert low is not None
    return best, f"without privacy the AUC may be as low as {low:.3f}, no better than chance" if low <= 0.5 else ""


@dataclass(frozen=True, slots=True)
class Candidates:
    """One or both alternatives of every canary: images uint8 (n, channels, height, width), other fields (n,)."""

    images: torch.Tensor
    labels: NDArray[np.int64]
    canary: NDArray[np.int64]
    side: NDArray[np.bool_]
    family: NDArray[np.str_]

    def inside(self, shadow_run: ShadowRun) -> NDArray[np.bool_]:
        """Return (n,) whether each candidate is in the training set of `shadow_run`."""
        inside: NDArray[np.bool_] = shadow_run.coins[self.canary] == self.side
        return inside


def candidates_of(canaries: Canaries) -> Candidates:
    """Return the candidates: both alternatives under replace adjacency, the second under add-remove."""
    sides = (0, 1) if canaries.adjacency is Adjacency.REPLACE else (1,)
    count = len(canaries)
    return Candidates(
        images=torch.cat([canaries.images[:, side] for side in sides]),
        labels=np.concatenate([canaries.labels[:, side].numpy() for side in sides]),
        canary=np.tile(np.arange(count), len(sides)),
        side=np.repeat(np.array([bool(side) for side in sides]), count),
        family=np.tile(canaries.family, len(sides)),
    )


def membership_plan(private_records: int, seed: int) -> CanaryPlan:
    """Return the canaries of membership attacks: a quarter of small private sets, a smaller share of others."""
    unit = max(1, min(200, private_records // 60))
    return CanaryPlan(
        outlier=unit,
        natural=min(5 * unit, max(1, private_records // 12)),
        mislabelled=unit,
        duplicated=max(1, unit // 8) if private_records >= 100 else 0,
        seed=seed,
    )


def baseline_cell(cell: Cell, student: str) -> Cell:
    """Return the cell of the non-private baseline for this net, data and seed, with the same frozen backbone if any."""
    name, shared = "nonprivate", {"student": student}
    if student == "frozen_transfer":
        name = "nonprivate-transfer"
        # Settings shared by its family are in the base class of their configs.
        base = [base for base in METHODS.get(name).Config.__mro__ if dataclasses.is_dataclass(base)][-1]
        fields = {field.name for field in dataclasses.fields(base)}
        shared = {key: value for key, value in as_dict(cell.config).items() if key in fields}
    method = METHODS.get(name)
    config, reduced = build_config(method, cell.preset, cell.facts, shared)
    asked = {
        "method": name, "method_version": method.version, "method_file": "", "epsilon": None, "basis": Basis.CLAIMED,
        "overrides": {key: str(value) for key, value in shared.items()},
    }  # fmt: skip
    return keyed(
        dataclasses.replace(
            cell, spec=cell.spec.model_copy(update=asked), config=config, reduced=tuple(reduced), refusal=Refusal.NONE,
            refused="", key="",
        )
    )  # fmt: skip


def signals_of(
    shadow_runs: Sequence[ShadowRun], candidates: Candidates, material: Materialised, shift: int, device: torch.device
) -> list[Signals]:
    """Return an attack's view of each of `shadow_runs` as the target, with the others as references.

    Raises :class:`BenchError` if a shadow run diverged.
    """
    queries = queries_of(candidates.images, shift)
    logits = np.stack([logits_of(s.released, queries, device) for s in shadow_runs])
    inside = np.stack([candidates.inside(s) for s in shadow_runs])
    # Splits and folders may order their test records by class.
    chosen = np.sort(ranks("population", len(material.test_labels), "membership")[:POPULATION])
    images, labels = material.test_images[torch.from_numpy(chosen)], material.test_labels.numpy()[chosen]
    population = np.stack([logits_of(s.released, images[None], device)[0] for s in shadow_runs])
    if np.isnan(logits).any() or np.isnan(population).any():  # an attack could take NaN for the surest member
        raise BenchError("a shadow run's outputs are not numbers: its training diverged. Lower its learning rate.")
    return [
        Signals(
            labels=candidates.labels, target=logits[target], references=np.delete(logits, target, 0),
            inside=np.delete(inside, target, 0), population_labels=labels, population_target=population[target],
            population_references=np.delete(population, target, 0),
        )
        for target in range(len(shadow_runs))
    ]  # fmt: skip


def draw_membership(cell: Cell, material: Materialised, seed: int) -> tuple[Canaries, Candidates]:
    """Return the canaries and candidates of membership attacks on `cell`."""
    method = METHODS.get(cell.method)
    plan = membership_plan(cell.facts.private_records, seed)
    canaries = draw_canaries(material.private, plan, canary_unit(method.unit), method.adjacency)
    return canaries, candidates_of(canaries)
