"""Adversarial robustness of a student: a sweep over perturbation sizes. No measure of privacy, and not ranked."""

from __future__ import annotations

import math
from typing import Any

from bench.core.errors import BenchError
from bench.core.rows import Estimated
from bench.data.text import is_text
from bench.evaluation.attack.figures import robustness_figure
from bench.evaluation.attack.robustness_rows import masked, median_perturbations, rows_of
from bench.evaluation.attack.workplace import Workplace
from bench.experiments.plan import Cell
from bench.experiments.release import load_student
from bench.interface.attack import RobustnessAttack
from bench.results.attack_record import Role, Scores
from bench.results.record import Record
from bench.training.context import Context


def robustness(
    record: Record, cell: Cell, attack: RobustnessAttack, key: str, place: Workplace, context: Context
) -> dict[str, Any]:
    """Return the parts of the record of `attack` on the student of `record`: accuracies, remarks and a figure."""
    material = place.source.material(cell.dataset)
    if is_text(material.private.facts.shape):
        raise BenchError(f"{attack.name} changes pixels, and {material.private.facts.dataset} holds sentences.")
    student = load_student(record, material.private.facts, place.run_dir)
    withstood = attack.withstood(student.student, material.test_images, material.test_labels, context)
    rows = rows_of(withstood)
    picture = f"attacks/{key}.png"
    robustness_figure(place.run_dir.path / picture, rows, title=f"{attack.name} of {record.key}")
    metrics = {
        f"{row.attack}@{row.perturbation:.6g}": Estimated(value=row.accuracy, low=row.low, high=row.high, n=row.n)
        for row in rows
    }
    clean = next(row for row in rows if row.perturbation == 0)
    metrics["clean"] = Estimated(value=clean.accuracy, low=clean.low, high=clean.high, n=clean.n)
    if masked(rows):
        context.note("masked gradients: Square, which uses none, beats PGD; the rows of FGSM and PGD mean little")
    accuracy = record.utility.accuracy if record.utility else None
    return {
        "targets": {Role.STUDENT.value: Scores(metrics=metrics, accuracy=accuracy)},
        "pictures": [picture],
        "details": {
            "attacks": [name for name in withstood if name != "autoattack"],  # autoattack is the worst of the others
            # A sweep that never halves the accuracy has no median.
            "median perturbation": {k: v for k, v in median_perturbations(rows).items() if math.isfinite(v)},
        },
    }
