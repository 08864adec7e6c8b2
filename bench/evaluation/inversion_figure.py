"""Image grids of inversion attacks: one beside each record, and one of several students of a data set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.core.types import Knowledge
from bench.interface.attack import InversionAttack
from bench.interface.registry import ATTACKS
from bench.results.attack_record import Role

if TYPE_CHECKING:
    import torch

    from attacks.inversion_scores import Labelled, Scored
    from bench.core.types import Reconstructions
    from bench.evaluation.figures import Column
    from bench.evaluation.workplace import Workplace
    from bench.results.record import Record

ROWS = 10
"""Largest number of classes on a grid."""
TRIES = 3
"""Tries shown of the student; one of each control."""
SEARCHED = 500
"""Largest pool of a class for the nearest image, with as many members as non-members."""
MOST = 8
"""Largest number of students on an image grid."""


def draw(
    path: Path,
    made: Mapping[Role, Reconstructions],
    scored: Mapping[Role, Scored],
    records: tuple[Labelled, Labelled] | None,
    class_names: tuple[str, ...],
    *,
    title: str,
) -> None:
    """Write the image grid to `path`; it shows the first tries of the first classes, none chosen by its looks.

    `records` are members and non-members, of which the nearest are shown; None shows none.
    """
    from bench.evaluation.figures import comparison_grid

    classes = list(dict.fromkeys(made[Role.STUDENT].labels.tolist()))[:ROWS]
    columns: list[Column] = []
    for role in made:
        for place in range(TRIES if role is Role.STUDENT else 1):
            name = role.value if role is not Role.STUDENT else f"student, try {place + 1}"
            good = (scored[role].values["top1"] > 0).tolist()
            columns.append(_column(name, made[role], good, classes, place, apart=role is Role.NON_PRIVATE))
    references: list[Column] = []
    note = "green: all three evaluators name it"
    if records is not None:
        references = [
            _nearest("nearest member", made[Role.STUDENT], *records, classes),
            _nearest("nearest other", made[Role.STUDENT], records[1], records[0], classes),
        ]
        note += "; nearest: to the student's first try by SSIM, of equally large pools"
    names = [class_names[label] for label in classes]
    comparison_grid(path, names, columns, references, title=title, note=note)


def _column(
    name: str, made: Reconstructions, good: Sequence[bool], classes: list[int], place: int, *, apart: bool
) -> Column:
    import torch

    from bench.evaluation.figures import Column

    rows = [int((made.labels == label).nonzero().flatten()[place % int((made.labels == label).sum())])
            for label in classes]  # fmt: skip
    verdicts = [bool(good[row]) for row in rows]
    absent = [] if made.reached is None else [not bool(made.reached[row]) for row in rows]
    captions = ["yes" if verdict else "no" for verdict in verdicts]
    return Column(name, made.images[torch.tensor(rows)], captions, verdicts, apart, absent)


def _nearest(name: str, made: Reconstructions, pool: Labelled, other: Labelled, classes: list[int]) -> Column:
    import torch

    from bench.evaluation.figures import Column
    from bench.metrics.images import pairwise

    images: list[torch.Tensor] = []
    captions: list[str] = []
    for label in classes:
        first = made.images[(made.labels == label).nonzero().flatten()[:1]]
        where, others = (pool[1] == label).nonzero().flatten(), int((other[1] == label).sum())
        if not len(where):
            images.append(torch.zeros_like(first[0]))
            captions.append("none")
            continue
        mine = pool[0][where[: max(1, min(SEARCHED, others or SEARCHED))]]
        scores = pairwise(first, mine, "ssim")[0]
        images.append(mine[int(scores.argmax())].float() / 255)
        captions.append(f"{float(scores.max()):.2f}")
    return Column(name, torch.stack(images), captions)


def compare(records: Sequence[Record], names: Sequence[str], place: Workplace) -> list[str]:
    """Write an image grid for each inversion attack of `names` and each data set with two students; return the files.

    Only of public data sets: an image grid shows a record of each class. The reconstructions come from the cache.
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
    from bench.evaluation.figures import Column, comparison_grid
    from bench.evaluation.inversion import committee_of, observed_of, reconstruct
    from bench.evaluation.reference_models import make_control
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
        cell, config, _ = configured(record, name, place)
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
    classes = list(dict.fromkeys(shown[0][1].labels.tolist()))[:ROWS]
    columns = [
        _column(title, made, good, classes, 0, apart=number == len(shown))
        for number, (title, made, good) in enumerate([*shown, *controls])
    ]
    images, labels = data.members
    members = torch.stack([images[labels == label][0].float() / 255 for label in classes])
    comparison_grid(
        place.run_dir.path / file, [get_dataset(dataset).class_names[label] for label in classes], columns,
        [Column("a member", members)], title=f"{name} on students of {dataset}",
        note="the first try on each student; green: all three evaluators name it",
    )  # fmt: skip
    return file


def _title(record: Record) -> str:
    if record.epsilon is None:
        return f"{record.method}, s{record.seed}"
    return f"{record.method} {record.epsilon:g}, s{record.seed}"
