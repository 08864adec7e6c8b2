"""The picture beside an inversion attack's record: what was made of each target, and the nearest real images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bench.controls import Role

if TYPE_CHECKING:
    import torch

    from attacks.inversion_scores import Labelled, Scored
    from bench.interface import Reconstructions
    from reports.pictures import Column

ROWS = 10
"""At most so many classes are shown."""
TRIES = 3
"""So many tries on the student; one on each control."""
SEARCHED = 500
"""Among at most so many images of a class the nearest is looked for, as many members as non-members."""


def draw(
    path: Path,
    made: Mapping[Role, Reconstructions],
    scored: Mapping[Role, Scored],
    members: Labelled,
    nonmembers: Labelled,
    class_names: tuple[str, ...],
    *,
    title: str,
) -> None:
    """Write the sheet to `path`; the first classes are shown, and of each the first tries, none chosen by its looks."""
    from reports.pictures import comparison_sheet

    classes = list(dict.fromkeys(made[Role.STUDENT].labels.tolist()))[:ROWS]
    columns: list[Column] = []
    for role in made:
        for place in range(TRIES if role is Role.STUDENT else 1):
            name = role.value if role is not Role.STUDENT else f"student, try {place + 1}"
            columns.append(_tries(name, made[role], scored[role], classes, place, apart=role is Role.NON_PRIVATE))
    references = [
        _nearest("nearest member", made[Role.STUDENT], members, nonmembers, classes),
        _nearest("nearest other", made[Role.STUDENT], nonmembers, members, classes),
    ]
    names = [class_names[label] for label in classes]
    note = "green: all three evaluators name it; nearest: to the student's first try by SSIM, of equally large pools"
    comparison_sheet(path, names, columns, references, title=title, note=note)


def _tries(name: str, made: Reconstructions, scored: Scored, classes: list[int], place: int, *, apart: bool) -> Column:
    import torch

    from reports.pictures import Column

    rows = [int((made.labels == label).nonzero().flatten()[place % int((made.labels == label).sum())])
            for label in classes]  # fmt: skip
    chosen = torch.tensor(rows)
    good = [bool(scored.values["top1"][row]) for row in rows]
    absent = [] if made.reached is None else [not bool(made.reached[row]) for row in rows]
    return Column(name, made.images[chosen], ["yes" if g else "no" for g in good], good, apart, absent)


def _nearest(name: str, made: Reconstructions, pool: Labelled, other: Labelled, classes: list[int]) -> Column:
    import torch

    from bench.similarity import pairwise
    from reports.pictures import Column

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
