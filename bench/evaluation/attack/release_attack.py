"""An attack on a release's images and generator: its training records against others of the same data set.

Members are private records; the others are test records and, if the method takes no public data, public ones, except
those equal to a private record. A quarter of them stands in for the release (*counterfactual*), a quarter belongs to
the attacker, half are non-members. Controls show as many images as the release:

- non-private: private records themselves, a release that copies. An attack that misses it is inconclusive.
- counterfactual: other records, a release without any private one. It shows the effect of the split alone.
- prior: the same generator with random weights, if the release has a known generator.

Intervals are over records, or over images as if independent, and do not cover retraining.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.disclosure import PRIVATE_FIGURES
from bench.core.errors import BenchError
from bench.core.rows import Estimated
from bench.core.seeds import seeded
from bench.core.transforms import as_float
from bench.core.types import PublicKind, Released
from bench.data.index_hash import ranks
from bench.data.splits import Materialised
from bench.evaluation.attack.evaluators import digest_each, digests
from bench.evaluation.attack.inversion import committee_of
from bench.evaluation.attack.inversion_scores import KID_IMAGES
from bench.evaluation.attack.membership import RATES
from bench.evaluation.attack.workplace import Workplace
from bench.experiments.plan import Cell, bound_method
from bench.experiments.release import load_student
from bench.interface.attack import ReleaseAttack, ReleasedImages
from bench.metrics.bootstrap import clustered
from bench.metrics.images import scaled_kid
from bench.metrics.roc import membership_metrics
from bench.models.generators import ConditionalGenerator, DataFreeGenerator, generator_of
from bench.privacy.auditing.bounds import clopper_pearson
from bench.results.attack_record import Role, Scores
from bench.results.record import Record
from bench.training.context import Context

FAMILY = "records"
COPIED, NEAREST = "copies", "nearest is private"
COPIED_BEYOND = f"{COPIED} above chance"
LEAST = 100
"""Images for a KID: with 10 MNIST records it is off by a third of the KID of useless images."""


def attack_release(
    record: Record, cell: Cell, attack: ReleaseAttack, place: Workplace, context: Context
) -> dict[str, Any]:
    """Return the parts of the record of `attack` on the release of `record`."""
    material = place.source.material(cell.dataset)
    student = load_student(record, cell.facts, place.run_dir)
    releases = releases_of(student, record.method, attack.config.draws, material, context)
    other = others(cell, material)
    quarter = len(other) // 4
    if quarter < 1:
        raise BenchError(f"{cell.dataset} has {len(other)} images that no student saw; {attack.name} needs 4 or more.")
    shown, known, fresh = other[:quarter], other[quarter : 2 * quarter], other[2 * quarter :]
    members = material.private.images[_order(cell, len(material.private), "release-members")]
    count = len(releases[Role.STUDENT].images)
    copied = torch.randperm(len(members), generator=context.streams.torch("copies"))[:count]
    releases[Role.NON_PRIVATE] = ReleasedImages(as_float(members[copied]))
    releases[Role.COUNTERFACTUAL] = ReleasedImages(as_float(shown[:count]))
    kid = _kid_to(members, cell, place, context) if attack.of_images else None
    targets: dict[str, Scores] = {}
    with context.progress.stage(attack.name, len(releases)) as stage:
        for role, release in sorted(releases.items(), key=lambda item: [*Role].index(item[0])):
            if attack.of_images:
                parts = [fresh, *torch.split(members, len(fresh))]
                near = -np.stack([attack.score(release, part, known, context) for part in parts])
                metrics = copy_metrics(near[1:], near[0], len(members), len(fresh), attack.config.ratio)
                if kid is not None and len(release.images) >= LEAST:
                    metrics["kid"] = kid(release.images)
            else:
                size = min(attack.config.records, len(members), len(fresh))
                scores = attack.score(release, torch.cat([members[:size], fresh[:size]]), known, context)
                found = membership_metrics(scores, np.arange(len(scores)) < size, fprs=RATES, seed=place.options.seed)
                metrics = {f"{FAMILY} {name}": value for name, value in found.items()}
            targets[role.value] = Scores(metrics=metrics, queries=len(release.images))
            stage.advance()
    figure = COPIED_BEYOND if attack.of_images else f"{FAMILY} auc"
    headline, chance = (targets[role.value].metrics[figure] for role in (Role.NON_PRIVATE, Role.COUNTERFACTUAL))
    if not cell.facts.disclosure.data_figures:
        context.note(PRIVATE_FIGURES)
    context.note(f"{count:,} images of the release; {len(members):,} private records and {len(fresh):,} others")
    return {
        "targets": targets,
        "auxiliary": f"{quarter:,} other images of {cell.dataset}, without labels",
        "no_power": no_power(headline, chance),
        "details": {"headline": "" if attack.of_images else FAMILY, "images": count},
    }  # fmt: skip


def _kid_to(
    members: torch.Tensor, cell: Cell, place: Workplace, context: Context
) -> Callable[[torch.Tensor], Estimated] | None:
    """Return a function that gives the KID of images (k, ...) to private `members` of `cell`, both cut to a limit.

    Return None, and add a note, if there are too few records for evaluators.
    """
    try:
        committee = committee_of(place.data_of(cell.dataset), context)
    except BenchError as error:
        context.note(f"no KID: {error}")
        return None
    features = committee.predict(members[:KID_IMAGES]).features

    def kid(images: torch.Tensor) -> Estimated:
        found = committee.predict(images[:KID_IMAGES].clamp(0, 1)).features
        return Estimated(value=scaled_kid(found, features), n=len(found))

    return kid


def no_power(private: Estimated, other: Estimated) -> str:
    """Return why a figure on `private` records shows nothing, or "" if it exceeds that on `other` records.

    The reference is not one half, because private and other records may differ even without a student.
    """
    if private.low is not None and private.low > (other.high or 0.0):
        return ""
    return (
        f"a release of so many private records gives {private.value:.3f}, one of other records {other.value:.3f}: "
        "their intervals overlap"
    )


def others(cell: Cell, material: Materialised) -> torch.Tensor:
    """Return uint8 images that no student of `cell` saw, in a fixed order, without copies of private ones."""
    found = material.test_images
    if bound_method(cell).public_kinds() == (PublicKind.NONE,):
        found = torch.cat([found, material.public.images])
    private = digests(material.private.images)
    new = torch.tensor([digest not in private for digest in digest_each(found)], dtype=torch.bool)
    return found[new][_order(cell, int(new.sum()), "release-others")]


def releases_of(
    released: Released, method: str, draws: int, material: Materialised, context: Context
) -> dict[Role, ReleasedImages]:
    """Return what the release shows, including images from its generator, and what that generator shows untrained."""
    facts, name = material.private.facts, "synthetic_images"
    images = released.extras.get(name)
    if images is None or images.ndim != 4 or tuple(images.shape[1:]) != facts.shape or not len(images):
        raise BenchError(
            f"this attack needs released images, and {method} released none of the data's shape. Use a "
            "student of a generative method (`bench ls methods`), or an attack on the student itself."
        )
    images = as_float(images)
    weights = {
        key[len("generator/") :]: value for key, value in released.extras.items() if key.startswith("generator/")
    }
    net = generator_of(weights, facts.shape, facts.classes) if weights else None
    if net is None:
        if weights:
            context.note("the released generator's net is not known here: attacked by the released images alone")
        return {Role.STUDENT: ReleasedImages(images)}
    found = {Role.STUDENT: draw(net, images, draws, context)}
    untrained = generator_of(weights, facts.shape, facts.classes)
    assert untrained is not None
    with seeded(context.streams.torch("untrained")):
        for layer in untrained.modules():
            if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d | torch.nn.modules.batchnorm._BatchNorm):
                layer.reset_parameters()
    blank = draw(untrained, images[:0], len(found[Role.STUDENT].images), context)
    return {**found, Role.PRIOR: blank}


def draw(
    net: DataFreeGenerator | ConditionalGenerator, released: torch.Tensor, count: int, context: Context
) -> ReleasedImages:
    """Return the `released` images and `count` that `net` draws, evenly over classes if it takes one."""
    draws, net = context.streams.torch("draws"), net.to(context.device)
    if isinstance(net, ConditionalGenerator):
        inputs = net.codes(torch.arange(count) % net.classes, draws, context.device)
    else:
        inputs = net.noise(count, draws, context.device)
    with torch.no_grad():
        made = torch.cat([released, *(net(part).cpu() for part in torch.split(inputs, 500) if len(part))])
    return ReleasedImages(made, net, inputs, net.noise_size)


def copy_metrics(
    private: NDArray[np.float64], other: NDArray[np.float64], members: int, others: int, ratio: float
) -> dict[str, Estimated]:
    """Return how often images lie near private records, from distances to the nearest of each kind.

    `private` is (blocks, k), for blocks of as many of the `members` as there are `others` and a smaller last one;
    `other` is (k,). `copies`: the nearest private record is nearer than `ratio` times the nearest other one. If records
    were exchangeable, the nearest would be private with the probability `by chance`, the share of private records.

    Private records outnumber the others, so one of them is nearer by chance. If a block is exchangeable with the
    others, it is nearer than `ratio` times them as often as they are nearer than `ratio` times it. So the frequency of
    the latter, times the number of blocks, bounds the `copies by chance`.
    """
    nearest = private.min(axis=0)
    chance = len(private) * (other < ratio * private[: max(1, members // others)]).mean(axis=0)
    beyond = clustered((nearest < ratio * other) - chance, np.arange(len(other)), bounds=(-1, 1))
    beyond = beyond.model_copy(update={"value": max(-1.0, beyond.value), "low": max(-1.0, beyond.low or 0.0)})

    def share(hits: NDArray[np.bool_]) -> Estimated:
        low, high = clopper_pearson(int(hits.sum()), len(hits))
        return Estimated(value=float(hits.mean()), low=low, high=high, n=len(hits))

    return {
        COPIED: share(nearest < ratio * other),
        f"{COPIED} by chance": Estimated(value=min(1.0, float(chance.mean())), n=len(other)),
        COPIED_BEYOND: beyond,
        NEAREST: share(nearest < other),
        "by chance": Estimated(value=members / (members + others), n=members + others),
        "distance to private": Estimated(value=float(nearest.mean()), n=len(nearest)),
        "distance to others": Estimated(value=float(other.mean()), n=len(other)),
    }


def _order(cell: Cell, count: int, purpose: str) -> torch.Tensor:
    return torch.from_numpy(ranks(cell.dataset, count, purpose).copy())
