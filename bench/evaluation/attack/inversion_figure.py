"""The image grid of an inversion attack: reconstructions of each target next to the nearest real images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from bench.core.types import Reconstructions
from bench.evaluation.attack.data_roles import Labelled
from bench.evaluation.attack.figures import Column, comparison_grid
from bench.evaluation.attack.inversion_scores import Scored
from bench.metrics.images import pairwise
from bench.results.attack_record import Role

ROWS = 10  # largest number of classes on a grid
TRIES = 3  # maximum number of tries shown per student; each control shows one
SEARCHED = 500  # images searched per class for the nearest, equally many members and non-members


def draw(
    path: Path,
    made: Mapping[Role, Reconstructions],
    scored: Mapping[Role, Scored],
    records: tuple[Labelled, Labelled] | None,
    class_names: tuple[str, ...],
    *,
    title: str,
) -> None:
    """Write the grid of first tries of the first classes, with the nearest of `records` (members, non-members)."""
    classes = list(dict.fromkeys(made[Role.STUDENT].labels.tolist()))[:ROWS]
    tries = min(TRIES, int((made[Role.STUDENT].labels == classes[0]).sum()))
    columns: list[Column] = []
    for role in made:
        for place in range(tries if role is Role.STUDENT else 1):
            name = role.value if role is not Role.STUDENT else f"student, try {place + 1}"
            good = (scored[role].values["top1"] > 0).tolist()
            columns.append(column_of(name, made[role], good, classes, place, apart=role is Role.NON_PRIVATE))
    references: list[Column] = []
    note = "yes: all three evaluators name it"
    if records is not None:
        references = [
            _nearest("nearest\nmember", made[Role.STUDENT], *records, classes),
            _nearest("nearest\nother", made[Role.STUDENT], records[1], records[0], classes),
        ]
        note += "; nearest: to the student's first try by SSIM, of equally large pools"
    names = [class_names[label] for label in classes]
    comparison_grid(path, names, columns, references, title=title, note=note)


def column_of(
    name: str, made: Reconstructions, good: Sequence[bool], classes: list[int], place: int, *, apart: bool
) -> Column:
    """Return the column of try `place` at each of `classes`; `good` holds the evaluators' verdicts on all images."""
    rows = [int((made.labels == label).nonzero().flatten()[place % int((made.labels == label).sum())])
            for label in classes]  # fmt: skip
    verdicts = [bool(good[row]) for row in rows]
    absent = [] if made.reached is None else [not bool(made.reached[row]) for row in rows]
    captions = ["yes" if verdict else "no" for verdict in verdicts]
    return Column(name, made.images[torch.tensor(rows)], captions, verdicts, apart, absent)


def turned(rows: Sequence[Column], names: Sequence[str]) -> list[Column]:
    """Return `rows`, each a student's images with their captions, as one column for each class, called `names`."""
    return [
        Column(
            name,
            torch.stack([row.images[place] for row in rows]),
            [row.captions[place] for row in rows],
            [row.good[place] for row in rows],
            absent=[bool(row.absent) and row.absent[place] for row in rows],
        )
        for place, name in enumerate(names)
    ]


def _nearest(name: str, made: Reconstructions, pool: Labelled, other: Labelled, classes: list[int]) -> Column:
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
