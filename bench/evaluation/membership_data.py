"""Membership attacks on a student's pipeline: shadow runs as targets and as references, canaries as candidates.

Every shadow run is the target once, with the others as its references, so a few of them give many scores; intervals are
drawn over canaries, and say nothing of other trainings. The same attack on a pipeline without privacy, with the same
canaries and coins, is what the student's figures are measured against.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.core.config import as_dict, build_config
from bench.core.types import Adjacency, Basis, Signals
from bench.evaluation.canaries import Canaries, CanaryPlan, draw_canaries
from bench.evaluation.canary_runs import ShadowRun, logits_of, queries_of
from bench.experiments.plan import Cell, Refusal, keyed
from bench.interface.registry import METHODS

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from bench.data.splits import Materialised

POPULATION = 1_000
"""How many records that nobody trained on an attack may compare with, at most."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The records that an attack is asked about: one or both alternatives of every canary."""

    images: torch.Tensor
    """uint8 (n, channels, height, width)"""
    labels: NDArray[np.int64]
    canary: NDArray[np.int64]
    """(n,) which canary each belongs to"""
    side: NDArray[np.bool_]
    """(n,) which alternative it is"""
    family: NDArray[np.str_]

    def inside(self, shadow_run: ShadowRun) -> NDArray[np.bool_]:
        """Return (n,) whether the shadow run was trained with each candidate."""
        inside: NDArray[np.bool_] = shadow_run.coins[self.canary] == self.side
        return inside


def candidates_of(canaries: Canaries) -> Candidates:
    """Return the candidates: both alternatives under replace adjacency, the second alone under add-remove."""
    import torch

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
    """Return the canaries of membership attacks on so many records: a quarter of small sets, less of others."""
    unit = max(1, min(200, private_records // 60))
    return CanaryPlan(
        outlier=unit,
        natural=min(5 * unit, max(1, private_records // 12)),
        mislabelled=unit,
        duplicated=max(1, unit // 8) if private_records >= 100 else 0,
        seed=seed,
    )


def baseline_cell(cell: Cell, student: str) -> Cell:
    """Return the cell of the baseline without privacy that trains a net of this name on the same data and seed.

    For a head on a frozen backbone it is a head on the same one.
    """
    name, overrides = "nonprivate", [f"nonprivate.student={student}"]
    if student == "frozen_transfer":
        from methods._transfer import TransferConfig

        name, fields = "nonprivate-transfer", {field.name for field in dataclasses.fields(TransferConfig)}
        shared = {key: value for key, value in as_dict(cell.config).items() if key in fields}
        overrides = [f"{name}.{key}={value}" for key, value in shared.items()]
    method = METHODS.get(name)
    config, reduced = build_config(method, cell.preset, cell.facts, overrides)
    asked = {
        "method": name, "method_version": method.version, "method_file": "", "epsilon": None, "basis": Basis.CLAIMED,
        "overrides": dict(text.removeprefix(f"{name}.").split("=", 1) for text in overrides),
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
    """Return what an attack sees when each of `shadow_runs` is the target and the others are its references."""
    queries = queries_of(candidates.images, shift)
    logits = np.stack([logits_of(s.released, queries, device) for s in shadow_runs])
    inside = np.stack([candidates.inside(s) for s in shadow_runs])
    images, labels = material.test_images[:POPULATION], material.test_labels[:POPULATION].numpy()
    population = np.stack([logits_of(s.released, images[None], device)[0] for s in shadow_runs])
    others = [
        np.array([k for k in range(len(shadow_runs)) if k != target], dtype=int) for target in range(len(shadow_runs))
    ]
    return [
        Signals(
            labels=candidates.labels,
            target=logits[target],
            references=logits[rest],
            inside=inside[rest],
            population_labels=labels,
            population_target=population[target],
            population_references=population[rest],
        )
        for target, rest in enumerate(others)
    ]


def draw_membership(cell: Cell, material: Materialised, seed: int) -> tuple[Canaries, Candidates]:
    """Return the canaries of membership attacks on `cell` and the candidates that they give."""
    from bench.evaluation.canaries import canary_unit

    method = METHODS.get(cell.method)
    plan = membership_plan(cell.facts.private_records, seed)
    canaries = draw_canaries(material.private, plan, canary_unit(method.unit), method.adjacency)
    return canaries, candidates_of(canaries)
