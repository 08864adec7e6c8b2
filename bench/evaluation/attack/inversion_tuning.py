"""An adaptive inversion attack: it chooses its settings on shadow students of people whom the attacker knows.

A shadow student comes from the target's method with the same settings and noise, trained on the attacker's data set.
Evaluators trained on other photographs of these people judge the reconstructions of each setting; the target and its
people play no part. Images that the attack may use (GAN, eigenfaces) show people who are not attacked: each half of the
people is attacked with the other half's images.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

import torch

from bench.core.config import parse_overrides, values_of
from bench.core.errors import BenchError
from bench.core.seeds import Streams
from bench.core.types import Knowledge, PrivateData, PublicData, Released
from bench.data.splits import Materialised
from bench.evaluation.attack.data_roles import AttackData
from bench.evaluation.attack.evaluators import Committee
from bench.evaluation.attack.reconstruct import committee_on, reconstruct
from bench.evaluation.attack.reference_models import content_digest
from bench.evaluation.attack.workplace import AttackOptions, Workplace
from bench.evaluation.audit.canary_runs import train_shadow_student
from bench.experiments.plan import Cell
from bench.interface.attack import InversionAttack
from bench.training.context import Context

SHADOW_STUDENTS = 2


@dataclass(frozen=True, slots=True)
class Tuned:
    """The attack at the chosen settings, and the record's entries on the choice."""

    attack: InversionAttack
    told: dict[str, Any]


def settings_to_try(attack: InversionAttack, data: AttackData, options: AttackOptions) -> list[dict[str, float]]:
    """Return ``options.tune`` settings of `attack`, its present one first.

    Raises :class:`BenchError` for an attack without such settings, or without other people's data.
    """
    fixed = values_of(parse_overrides(type(attack), options.overrides))
    tried = settings_of(attack, options.tune, fixed, options.seed)
    if data.rehearsal is None:
        raise BenchError(
            f"--tune trains shadow students on other people or classes, as many as {attack.facts.dataset} has, but no "
            "such data set is known. Name one with --auxiliary (for att-faces-a: att-faces-b), or leave out --tune."
        )
    return tried


def tune(cell: Cell, attack: InversionAttack, data: AttackData, place: Workplace, context: Context) -> Tuned:
    """Return `attack` at the best of its :func:`settings_to_try`, tried on shadow students of `cell`."""
    tried, rehearsal = settings_to_try(attack, data, place.options), data.rehearsal
    assert rehearsal is not None
    people = (rehearsal.private.images, rehearsal.private.labels)
    digest = content_digest(*people, rehearsal.test_images)
    theirs = dataclasses.replace(context, cache=context.cache.child(rehearsal=digest))
    committee = committee_on(
        (rehearsal.test_images, rehearsal.test_labels), people, cell.facts, theirs, private=people[0], tiny=data.tiny
    )
    private = PrivateData(*people, dataclasses.replace(cell.facts, private_records=len(people[0])))
    material = dataclasses.replace(
        rehearsal, private=private, public=data.material.public, public_labels=data.material.public_labels
    )
    seed = place.options.seed
    students = [train_shadow_student(cell, material, index, seed, theirs) for index in range(SHADOW_STUDENTS)]
    scores: list[float] = []
    with context.progress.stage(f"{attack.name}: settings on shadow students", len(tried)) as stage:
        for values in tried:
            trial = type(attack)(dataclasses.replace(attack.config, **values), attack.facts)
            found = [_named(trial, student, rehearsal, committee, seed, theirs) for student, _ in students]
            scores.append(sum(found) / len(found))
            stage.advance()
    best = max(range(len(tried)), key=scores.__getitem__)
    told = {
        "settings": len(tried), "shadow_students": len(students),
        "shadow_accuracy": round(sum(good for _, good in students) / len(students), 4),
        "people": rehearsal.private.facts.dataset, "chosen": tried[best], "named": round(scores[best], 4),
        "named_by_default": round(scores[0], 4),
        "tried": [{**values, "named": round(score, 4)} for values, score in zip(tried, scores, strict=True)],
    }  # fmt: skip
    return Tuned(type(attack)(dataclasses.replace(attack.config, **tried[best]), attack.facts), told)


def settings_of(attack: InversionAttack, count: int, fixed: dict[str, Any], seed: int) -> list[dict[str, float]]:
    """Return `count` different settings from the attack's own grid, its present one first; `fixed` ones stay.

    Raises :class:`BenchError` if it has no grid, or the grid fewer settings.
    """
    grid = {name: values for name, values in attack.tunable.items() if name not in fixed}
    if not grid:
        what = "--set fixes all that it could tune" if attack.tunable else "it has none to tune"
        raise BenchError(f"--tune: {attack.name} cannot choose its settings, {what}. Leave out --tune.")
    present = {name: getattr(attack.config, name) for name in grid}
    every = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    others = [values for values in every if values != present]
    if not 2 <= count <= len(others) + 1:
        raise BenchError(
            f"--tune {count}: {attack.name} has {len(others) + 1} settings to choose from. Give 2 to "
            f"{len(others) + 1}, or 0 not to choose."
        )
    order = Streams(seed, "tuning/").numpy(attack.name).permutation(len(others))[: count - 1]
    return [present, *(others[place] for place in sorted(order))]


def _named(
    attack: InversionAttack, student: Released, rehearsal: Materialised, committee: Committee, seed: int,
    context: Context,
) -> float:  # fmt: skip
    """Return how often evaluators name the right person, averaged over them; the first one's confidence breaks ties."""
    images, labels = rehearsal.private.images, rehearsal.private.labels
    context = dataclasses.replace(context, streams=Streams(seed, "tuning/"))
    halves: list[tuple[PublicData | None, torch.Tensor]] = [(None, torch.ones(attack.facts.classes, dtype=torch.bool))]
    if attack.knows is Knowledge.AUXILIARY:
        first = torch.arange(attack.facts.classes) < attack.facts.classes // 2
        halves = [(PublicData(images[~shown[labels]], "other people"), shown) for shown in (first, ~first)]
    right, sure, count = 0.0, 0.0, 0
    for known, attacked in halves:
        made, _ = reconstruct(attack, student, known, None, context)
        rows = attacked[made.labels]
        verdict = committee.predict(made.images[rows].nan_to_num(0.0).clamp(0, 1))
        meant = made.labels[rows]
        reached = torch.ones(len(meant)) if made.reached is None else made.reached[rows].float()
        right += float(((verdict.labels == meant).double().mean(0) * reached).sum())
        sure += float((verdict.probabilities.gather(1, meant[:, None]).squeeze(1) * reached).sum())
        count += len(meant)
    return (right + sure / 1_000) / count
