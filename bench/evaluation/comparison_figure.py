"""One image grid for each inversion attack on several students of one data set: what epsilon does, seen at one look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.core.types import Knowledge
from bench.interface.attack import InversionAttack
from bench.interface.registry import ATTACKS
from bench.results.attack_record import Role

if TYPE_CHECKING:
    from bench.core.types import Reconstructions
    from bench.evaluation.workplace import Workplace
    from bench.results.record import Record

MOST = 8
"""At most so many students stand on an image grid."""


def compare(records: Sequence[Record], names: Sequence[str], place: Workplace) -> list[str]:
    """Write an image grid for each inversion attack of `names` and each data set with two students; return the files.

    Only of public data sets: an image grid shows a record of each class. Nothing is attacked anew: what was made is
    read.
    """
    files = []
    by_dataset: dict[str, list[Record]] = {}
    for record in records:
        if record.public_benchmark:
            by_dataset.setdefault(record.dataset, []).append(record)
    for name in names:
        if name not in ATTACKS or not issubclass(ATTACKS.get(name), InversionAttack):
            continue
        for dataset, students in by_dataset.items():
            if len(students) > 1:
                files.append(_image_grid(dataset, name, sorted(students, key=_rank)[:MOST], place))
    return [file for file in files if file]


def _rank(record: Record) -> tuple[float, str, int]:
    """Order students: without privacy first, then by falling epsilon."""
    return (-math.inf if record.epsilon is None else -record.epsilon, record.method, record.seed)


def _image_grid(dataset: str, name: str, students: Sequence[Record], place: Workplace) -> str:
    import torch

    from bench.core.seeds import Streams
    from bench.data.datasets import get_dataset
    from bench.evaluation.attack import configured
    from bench.evaluation.inversion import committee_of, observed_of, reconstruct
    from bench.evaluation.inversion_figure import draw_comparison
    from bench.evaluation.reference_models import make_control
    from bench.experiments.plan import cell_of
    from bench.experiments.release import load_student
    from bench.experiments.run import cache_base
    from bench.storage.cache import Cache
    from bench.training.context import Context

    attack = ATTACKS.get(name)()
    assert isinstance(attack, InversionAttack)
    data = place.data_of(dataset)
    facts = data.material.private.facts
    options = place.options
    observed = observed_of(data, options.seed) if attack.knowledge is Knowledge.AUXILIARY else None
    auxiliary = data.auxiliary if attack.knowledge is Knowledge.AUXILIARY else None
    shown: list[tuple[str, Reconstructions, list[bool]]] = []
    controls: list[tuple[str, Reconstructions, list[bool]]] = []
    for record in students:
        cell = cell_of(record, place.source.describe(dataset))
        config, _ = configured(name, record, cell, options)
        cache = Cache(place.run_dir.cache_path, cache_base(cell), place.progress.say)
        context = Context(torch.device(place.device), Streams(options.seed, f"attack/{name}/"), cache, place.progress)
        committee = committee_of(data, context)
        student = load_student(record, facts, place.run_dir)
        targets = [(_title(record), student, shown)]
        if not controls:
            for role in (Role.COUNTERFACTUAL, Role.PRIOR):
                net = make_control(
                    role, student, 0.0, data.material, data.disjoint, options.preset.value, options.seed, context
                )
                if net is not None:
                    targets.append((role.value, net, controls))
        for title, released, into in targets:
            made, _ = reconstruct(attack, config, released, auxiliary, observed, facts, context)
            good = committee.predict(made.images.clamp(0, 1)).hits(made.labels)
            if made.reached is not None:
                good &= made.reached
            into.append((title, made, good.tolist()))
    file = f"attacks/compare-{dataset}-{name}.png"
    draw_comparison(
        place.run_dir.path / file, shown, controls, data.members, get_dataset(dataset).class_names,
        title=f"{name} on students of {dataset}",
    )  # fmt: skip
    return file


def _title(record: Record) -> str:
    if record.epsilon is None:
        return f"{record.method}, s{record.seed}"
    return f"{record.method} {record.epsilon:g}, s{record.seed}"
