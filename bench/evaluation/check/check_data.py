"""Data sets for the checks: generated ones that methods can learn, unrelated and renamed ones, and neighbours.

A generated set has smooth class templates with shifts, contrast and noise; private, public and test records are
different draws of the same templates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.types import Adjacency, Facts, LabelledSource, PrivacyUnit, PrivateData, PublicData
from bench.data.splits import Materialised

CHECK_FACTS = Facts("digits", 1_000, 400, 397, 10, (1, 8, 8), public_benchmark=True)
"""The facts of digits, so that a generated set does not reveal to a method that it is being checked."""


def generated(facts: Facts = CHECK_FACTS, seed: int = 0, *, labelled: bool = False) -> Materialised:
    """Return a generated data set of `facts`, with a labelled source if `labelled`; equal seeds give equal sets."""
    generator = np.random.default_rng([seed, 0])
    templates = _templates(facts, generator)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = _labels(count, facts.classes, generator)
        return _images(templates, labels, generator), torch.from_numpy(labels)

    private, public, test = draw(facts.private_records), draw(facts.public_records), draw(facts.test_records)
    source = f"{facts.public_records} official training records of {facts.dataset}, without labels"
    related = LabelledSource(*draw(facts.public_records), "related", "nothing") if labelled else None
    return Materialised(PrivateData(*private, facts), PublicData(public[0], source, related), public[1], *test)


def unrelated(data: PrivateData, unit: PrivacyUnit = PrivacyUnit.RECORD, seed: int = 0) -> PrivateData:
    """Return a set that shares only its facts with `data`: other templates, class counts, brightness.

    No label and no pixel equals the one at the same position in `data`. Of three or more classes, one has no record,
    and the first pixel is constant. For the unit label, whose images are public, the images are `data`'s.
    """
    generator = np.random.default_rng([seed, 1])
    labels = data.labels.numpy()
    classes, counts = data.facts.classes, np.bincount(labels, minlength=data.facts.classes)
    empty = int(generator.integers(classes)) if classes > 2 else -1
    for _ in range(100):  # until every other class has a different count above 1
        weights = generator.dirichlet(np.full(classes, 3.0)) * (np.arange(classes) != empty)
        drawn = generator.choice(classes, len(labels), p=weights / weights.sum())
        following = (drawn + 1) % classes
        drawn = np.where(drawn == labels, (following + (following == empty)) % classes, drawn)
        found = np.delete(np.bincount(drawn, minlength=classes), [empty] * (empty >= 0))
        if ((found != np.delete(counts, [empty] * (empty >= 0))) & (found > 1)).all():
            break
    if unit is PrivacyUnit.LABEL:
        return dataclasses.replace(data, labels=torch.from_numpy(drawn))
    images = _images(_templates(data.facts, generator), drawn, generator) // 2
    images += (images == data.images).to(images.dtype)
    for channel in range(images.shape[1]):
        images[:, channel, 0, 0] = int(data.images[:, channel, 0, 0].int().bincount(minlength=256).argmin())
    return dataclasses.replace(data, images=images, labels=torch.from_numpy(drawn))


def renaming(classes: int, seed: int = 0) -> torch.Tensor:
    """Return a permutation of the classes without a fixed point."""
    order = torch.from_numpy(np.random.default_rng([seed, 2]).permutation(classes))
    renamed = torch.empty_like(order)
    renamed[order] = order.roll(1)
    return renamed


def renamed(data: PrivateData, seed: int = 0) -> PrivateData:
    """Return `data` with every class under another's name, so that what fits the true names fits these badly."""
    return dataclasses.replace(data, labels=renaming(data.facts.classes, seed)[data.labels])


def renamed_source(public: PublicData, classes: int, seed: int = 0) -> PublicData:
    """Return `public` with the classes of its labelled source, if any, renamed as in :func:`renamed`."""
    if public.labelled is None:
        return public
    labels = renaming(classes, seed)[public.labelled.labels]
    return dataclasses.replace(public, labelled=dataclasses.replace(public.labelled, labels=labels))


def clients_replaced(
    data: PrivateData, clients: Sequence[NDArray[np.int64]], which: Variant, seed: int = 0
) -> tuple[PrivateData, int]:
    """Return `data` with other images or labels of one client, or other images of half of them, and their number.

    The one client has several records, if any has; its images become patterns, which move its sums farther than
    unrelated images, as smooth as the given ones. Its labels become the class that it has fewest of.
    """
    half = which == "clients"
    several = [rows for rows in clients if len(rows) > 1] or [rows for rows in clients if len(rows)]
    number = max(1, len(several) // 2) if half else 1
    chosen = np.random.default_rng([seed, 9]).permutation(len(several))[:number]
    rows = torch.from_numpy(np.concatenate([several[place] for place in chosen]))
    if which == "client's labels":
        labels = data.labels.clone()
        labels[rows] = data.labels[rows].bincount(minlength=data.facts.classes).argmin()
        return dataclasses.replace(data, labels=labels), number
    images = data.images.clone()
    images[rows] = (unrelated(data, seed=seed) if half else unusual(data, seed=seed)).images[rows]
    return dataclasses.replace(data, images=images), number


INVERTED = 3
"""The kind of :func:`neighbour` whose record keeps its label."""


def neighbour(data: PrivateData, unit: PrivacyUnit, number: int, seed: int = 0) -> PrivateData:
    """Return the neighbour `number` of `data`: one record has another image, another label or both, in six kinds.

    With another label, these are random black and white pixels, all white, a copy of another record, a :func:`pattern`,
    and its own image; the other is its image inverted under its own label, which moves one class's sum most. For the
    unit label the image stays and the label changes. No class loses its last record.
    """
    generator = np.random.default_rng([seed, 3, number])
    images, labels = data.images.clone(), data.labels.clone()
    position = int(generator.choice(np.flatnonzero((data.labels.bincount()[data.labels] > 1).numpy())))
    copied = int(generator.integers(len(data)))
    kinds = [
        generator.integers(0, 2, data.facts.shape) * 255, np.full(data.facts.shape, 255), images[copied].numpy(),
        255 - images[position].numpy(), pattern(int(generator.integers(1_000)), data.facts.shape),
    ]  # fmt: skip
    kind = number % (len(kinds) + 1)
    if unit is not PrivacyUnit.LABEL and kind < len(kinds):
        images[position] = torch.from_numpy(kinds[kind].astype(np.uint8))
        if kind == INVERTED:
            return dataclasses.replace(data, images=images, labels=labels)
    labels[position] = (labels[position] + 1 + int(generator.integers(data.facts.classes - 1))) % data.facts.classes
    return dataclasses.replace(data, images=images, labels=labels)


def unusual(data: PrivateData, unit: PrivacyUnit = PrivacyUnit.RECORD, seed: int = 0) -> PrivateData:
    """Return as many records of :func:`pattern` images, nine in ten of one class, in random order.

    Those of one class differ as much as they can, so that a sum over some of a class moves if another record takes the
    place of one that is absent. For the unit label, whose images are public, the images are `data`'s.
    """
    generator = np.random.default_rng([seed, 8])
    images = torch.from_numpy(np.stack([pattern(number, data.facts.shape) for number in range(len(data))]))
    labels = np.full(len(data), generator.integers(data.facts.classes))
    others = max(2 * data.facts.classes, len(data) // 10)
    labels[:others] = (np.arange(others) % data.facts.classes)[: len(data)]
    order = torch.from_numpy(generator.permutation(len(data)))
    images = data.images if unit is PrivacyUnit.LABEL else images[order]
    return dataclasses.replace(data, images=images, labels=torch.from_numpy(labels)[order])


def pattern(number: int, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Return the black image `number` of `shape` with a white half, row, column or pixel, or an inverted one."""
    _, height, width = shape
    image, place = np.zeros(shape, np.uint8), number // 5
    if number % 5 == 0:
        halves = np.s_[:, : height // 2], np.s_[:, height // 2 :], np.s_[..., : width // 2], np.s_[..., width // 2 :]
        image[halves[place % 4]] = 255
    elif number % 5 == 1:
        image[:, place % height] = 255
    elif number % 5 == 2:
        image[..., place % width] = 255
    else:
        image.reshape(len(image), -1)[:, place % (height * width)] = 255
    return 255 - image if number % 5 == 4 else image


Route = Literal["unrelated", "unusual", "shades"]
"""What the records along a path are replaced by: those of :func:`unrelated` or :func:`unusual`, or bright images."""


@dataclass(frozen=True, slots=True)
class Step:
    """The set on a path whose first `changed` records, in random order, are those of its end.

    On the path of shades all images are dark at its start and bright at its end, and one class follows the other. Where
    a neighbour lacks one record, the unusual path is the unusual set without its first `changed` records.
    """

    changed: int
    route: Route = "unrelated"

    def of(self, data: PrivateData, unit: PrivacyUnit, adjacency: Adjacency, seed: int) -> PrivateData:
        """Return this set, made from `data`."""
        if self.route == "shades":
            data = dataclasses.replace(data, images=data.images // 32)
            other = dataclasses.replace(data, images=255 - data.images)
        else:
            other = unusual(data, unit, seed) if self.route == "unusual" else unrelated(data, unit, seed)
        rows = np.random.default_rng([seed, 4]).permutation(len(data))
        if self.route == "shades":  # classes that are half bright could cancel
            rows = rows[np.argsort(data.labels.numpy()[rows], kind="stable")]
        if self.route == "unusual" and lacks_one(unit, adjacency):
            kept = torch.from_numpy(np.sort(rows[self.changed :]))
            return dataclasses.replace(data, images=other.images[kept], labels=other.labels[kept])
        images, labels, taken = data.images.clone(), data.labels.clone(), torch.from_numpy(rows[: self.changed])
        images[taken], labels[taken] = other.images[taken], other.labels[taken]
        return dataclasses.replace(data, images=images, labels=labels)


@dataclass(frozen=True, slots=True)
class Lone:
    """A set of copies of one image in one class, with a single record of another image, or without that record.

    Without the single record, the set has one record fewer (add-remove) or another copy in its place (replace). `kind`
    selects the two images. `copies` of the copies are in the record's class and the rest in the next class (0: all are
    in the record's class); with `apart`, the record has a class of its own.
    """

    kind: int
    copies: int = 0
    apart: bool = False
    present: bool = True

    def of(self, data: PrivateData, unit: PrivacyUnit, adjacency: Adjacency, seed: int) -> PrivateData:
        """Return this set, of the size of `data`."""
        generator = np.random.default_rng([seed, 10])
        common, other = _extremes(data.facts.shape)[self.kind]
        label, place = int(generator.integers(data.facts.classes)), int(generator.integers(len(data)))
        following = (label + 1) % data.facts.classes
        images = torch.from_numpy(np.repeat(common[None], len(data), axis=0))
        labels = torch.full((len(data),), label)
        if self.copies:
            labels[torch.from_numpy(generator.permutation(len(data))[self.copies :])] = following
        labels[place] = following if self.apart else label
        if self.present:
            images[place] = torch.from_numpy(other)
        elif lacks_one(unit, adjacency):
            kept = torch.arange(len(data)) != place
            images, labels = images[kept], labels[kept]
        elif self.apart:
            labels[place] = label
        return dataclasses.replace(data, images=images, labels=labels)


@dataclass(frozen=True, slots=True)
class Hub:
    """A set in one class whose first image is nearer to sixteen others than these are to each other, or without it.

    Each of the others differs from the first by `step` grey levels in a part of its own. A method that drops records
    near to one that it keeps uses the first alone, and all the others if it is absent (add-remove) or a copy of one of
    them (replace).
    """

    step: int
    present: bool = True

    def of(self, data: PrivateData, unit: PrivacyUnit, adjacency: Adjacency, seed: int) -> PrivateData:
        """Return this set, of the size of `data`."""
        _, height, width = data.facts.shape
        part = (4 * np.arange(height) // height)[:, None] * 4 + 4 * np.arange(width) // width
        others = torch.from_numpy(np.where(part == np.arange(16)[:, None, None], 64 + self.step, 64).astype(np.uint8))
        images = others[torch.arange(len(data)) % 16, None].repeat(1, data.images.shape[1], 1, 1)
        if self.present:
            images[0] = 64
        label = int(np.random.default_rng([seed, 11]).integers(data.facts.classes))
        first = 1 if lacks_one(unit, adjacency) and not self.present else 0
        return dataclasses.replace(data, images=images[first:], labels=torch.full((len(images) - first,), label))


def lone_sets(records: int) -> list[Lone | Hub]:
    """Return the sets in which one record among `records` matters most, most revealing first."""
    sizes = sorted({round(1.5**power) for power in range(2, 100) if 1.5**power < records})
    hubs = [Hub(round(2 ** (power / 2))) for power in (10, 8, 6, 12, 4, 14, 9, 11, 7, 13, 5, 2, 0)]
    return [*map(Lone, range(4)), Lone(2, apart=True), *hubs, *(Lone(2, copies=size) for size in sizes)]


def _extremes(shape: tuple[int, int, int]) -> list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Return pairs of images: nearly black and white, two halves, white and black, black and a chequerboard."""
    black, half = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    half[..., : shape[2] // 2] = 255
    squares = black + (np.indices(shape[1:]).sum(axis=0) % 2 * 255).astype(np.uint8)
    return [(black + 2, 255 - black), (255 - half, half), (255 - black, black), (black, squares)]


@dataclass(frozen=True, slots=True)
class Few:
    """A set of `records` private records, most of them copies of one, or its neighbour that differs in one copy.

    Of up to four records, all are copies; of more, just over half. In the neighbour a copy is absent (add-remove) or
    has another image and label (replace); with `alone`, the record has no copies.
    """

    records: int
    neighbour: bool = False
    alone: bool = False

    def rows(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return the positions of its records among `count`."""
        generator = np.random.default_rng([seed, 5, self.records])
        alike = self.records if self.records <= 4 else self.records // 2 + 1
        drawn = generator.permutation(count)[: 1 + self.records - alike]
        return generator.permutation(np.concatenate([np.repeat(drawn[:1], alike), drawn[1:]]))

    def changed(self, count: int, seed: int) -> int:
        """Return the position of the record that is absent or changed in the neighbour."""
        rows = self.rows(count, seed)
        times = np.bincount(rows)
        return int(np.flatnonzero(rows == (np.flatnonzero(times == 1)[0] if self.alone else times.argmax()))[0])


Variant = (
    Literal["given", "unrelated", "renamed", "absent", "client", "clients", "client's labels"]
    | int | Step | Lone | Hub | Few
)  # fmt: skip
"""A private set made from another; a number selects a neighbour, and "absent" is the set without one record. In
"client" one client's records have other images, in "client's labels" other labels, and in "clients" the records of half
of the clients have other images; :func:`clients_replaced` makes these."""


def lacks_one(unit: PrivacyUnit, adjacency: Adjacency) -> bool:
    """Return whether neighbours differ by the presence of one record."""
    return adjacency is Adjacency.ADD_REMOVE and unit is PrivacyUnit.RECORD


def absent_place(which: Variant, count: int, unit: PrivacyUnit, adjacency: Adjacency, seed: int) -> int | None:
    """Return the position, among `count` records, of the one that the set `which` lacks, if any."""
    if which == "absent":
        return int(np.random.default_rng([seed, 7]).integers(count))
    if isinstance(which, Few) and which.neighbour and lacks_one(unit, adjacency):
        return which.changed(count, seed)
    return None


def few_of(data: PrivateData, which: Few, unit: PrivacyUnit, adjacency: Adjacency, seed: int) -> PrivateData:
    """Return the set `which` of records of `data`; its facts state `which`'s number of records."""
    rows, place = torch.from_numpy(which.rows(len(data), seed)), which.changed(len(data), seed)
    images, labels = data.images[rows].clone(), data.labels[rows].clone()
    if which.neighbour and lacks_one(unit, adjacency):
        kept = torch.arange(len(rows)) != place
        images, labels = images[kept], labels[kept]
    elif which.neighbour:
        if unit is not PrivacyUnit.LABEL:
            images[place] = 255 - images[place]
        labels[place] = (labels[place] + 1) % data.facts.classes
    facts = dataclasses.replace(data.facts, private_records=which.records)
    return dataclasses.replace(data, images=images, labels=labels, facts=facts)


def variant_of(data: PrivateData, which: Variant, unit: PrivacyUnit, adjacency: Adjacency, seed: int) -> PrivateData:
    """Return the private set `which`, made from `data`."""
    if isinstance(which, Few):
        return few_of(data, which, unit, adjacency, seed)
    if which == "unrelated":
        return unrelated(data, unit, seed)
    if which == "renamed":
        return renamed(data, seed)
    if isinstance(which, Step | Lone | Hub):
        return which.of(data, unit, adjacency, seed)
    if which == "absent":
        kept = torch.arange(len(data)) != absent_place(which, len(data), unit, adjacency, seed)
        return dataclasses.replace(data, images=data.images[kept], labels=data.labels[kept])
    if which == "given" or which == "client" or which == "clients" or which == "client's labels":
        return dataclasses.replace(data, images=data.images.clone(), labels=data.labels.clone())
    return neighbour(data, unit, which, seed)


def _labels(count: int, classes: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return uneven labels in random order, with every class at least twice if there are enough."""
    weights = 1 + 0.5 * generator.permutation(classes) / classes
    drawn = generator.choice(classes, count, p=weights / weights.sum())
    drawn[: 2 * classes] = (np.arange(2 * classes) % classes)[:count]
    return generator.permutation(drawn).astype(np.int64)


def _templates(facts: Facts, generator: np.random.Generator) -> torch.Tensor:
    channels, height, width = facts.shape
    coarse = generator.normal(0, 1, (facts.classes, channels, -(-height // 3) + 1, -(-width // 3) + 1))
    smooth = torch.nn.functional.interpolate(torch.from_numpy(coarse), (height, width), mode="bilinear")
    low, high = smooth.flatten(1).min(1).values, smooth.flatten(1).max(1).values
    shape = (-1, 1, 1, 1)
    return (smooth - low.view(shape)) / (high - low).clamp_min(1e-6).view(shape)


def _images(templates: torch.Tensor, labels: NDArray[np.int64], generator: np.random.Generator) -> torch.Tensor:
    images = torch.empty((len(labels), *templates.shape[1:]), dtype=torch.uint8)
    step = 1 if min(templates.shape[2:]) >= 8 else 0
    shifts = generator.integers(-step, step + 1, (len(labels), 2))
    for shift in np.unique(shifts, axis=0):
        rows = np.flatnonzero((shifts == shift).all(1))
        clean = templates[torch.from_numpy(labels[rows])].roll(tuple(shift.tolist()), (2, 3)).numpy()
        contrast = generator.uniform(0.7, 1.0, (len(rows), 1, 1, 1))
        noisy = 250 * contrast * clean + generator.normal(0, 12, clean.shape)
        images[torch.from_numpy(rows)] = torch.from_numpy(np.clip(noisy, 0, 255).astype(np.uint8))
    return images
