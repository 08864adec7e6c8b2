"""Scores of reconstructions: per image, and estimates over classes.

Everything is scored, including reported failures. Every measure against private (member) images is also taken against
unseen ones (non-members): only the difference concerns privacy, because a good picture of a class is close to both. The
best match in a larger pool is closer by chance, so that pool is scored by the expected best match in a random subset of
the smaller pool's size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.core.rows import Estimated
from bench.evaluation.attack.data_roles import Labelled
from bench.evaluation.attack.evaluators import Committee, digests
from bench.evaluation.attack.face_judge import FaceJudge
from bench.evaluation.attack.noise_verdicts import NoiseVerdicts
from bench.interface import BenchError, Reconstructions
from bench.metrics.bootstrap import clustered, difference
from bench.metrics.images import PAIRED, dpsd_inception_score, pairwise, scaled_kid

POOL = 500  # maximum number of images searched per class
KID_IMAGES = 2_000  # maximum number of images per set
RECOVERED_AT = 0.01
MEASURES = ("ssim", "psnr")
_JUDGED = {
    "committee top-1 beyond noise": "top1 beyond noise",
    "embedding top-1": "embedding",
    "embedding top-1 beyond noise": "embedding beyond noise",
}
_BOUNDS = {"ssim": (-1.0, 1.0), "psnr": (0.0, 60.0)}


@dataclass(frozen=True, slots=True)
class Observed:
    """The images behind the answers that an attacker observed, in order: the right reconstructions."""

    images: Tensor
    labels: Tensor
    member: Tensor  # bool (m,): whether in the target's training set


@dataclass(frozen=True, slots=True)
class Scored:
    """One target's reconstructions, scored one by one; every array has one row per image.

    `values` by name: ``top1``, ``embedding``, both also ``beyond noise``, ``evaluator 1`` to ``3``, ``top5``;
    ``distance member``, ``distance nonmember`` (squared, in the first evaluator's features); ``ssim`` and ``psnr``,
    each with ``member`` and ``nonmember``; NaN if the pool has no image of the class. `observed`: ``ssim`` and ``psnr``
    to the image behind each answer.
    """

    labels: NDArray[np.int64]
    values: dict[str, NDArray[np.float64]]
    recovered: NDArray[np.float64]  # per member image; classes are in `recovered_labels`
    recovered_labels: NDArray[np.int64]
    recovery_chance: float
    kid: float | None
    inception: float
    observed: dict[str, NDArray[np.float64]]
    observed_labels: NDArray[np.int64]
    observed_member: NDArray[np.bool_]
    judged_on: str  # text on the limitations of the figures, or empty


def score(
    reconstructions: Reconstructions,
    committee: Committee,
    members: Labelled,
    nonmembers: Labelled,
    observed: Observed | None = None,
    judge: FaceJudge | None = None,
    noise: NoiseVerdicts | None = None,
) -> Scored:
    """Score each reconstruction of one target.

    `members` are the target's training images and labels, `nonmembers` unseen ones of the same classes, `observed` the
    images behind observed answers. `judge` and `noise` add the embedding's verdict and the share beyond noise. Raises
    :class:`BenchError` without a reconstruction, or if the attack returned another number of images for `observed`.
    """
    images, labels = reconstructions.images.cpu(), reconstructions.labels.cpu()
    if len(images) == 0 or len(labels) != len(images):
        raise BenchError(f"an attack returned {len(images)} images and {len(labels)} labels.")
    images = images.nan_to_num(0.0).clamp(0, 1)
    reached = reconstructions.reached
    reached = torch.ones(len(images), dtype=torch.bool) if reached is None else reached.cpu().bool()
    verdict = committee.predict(images)
    values: dict[str, Tensor] = {"top1": verdict.hits(labels) & reached}
    values |= {f"evaluator {i + 1}": (row == labels) & reached for i, row in enumerate(verdict.labels)}
    values["top5"] = verdict.within_five(labels) & reached
    if noise is not None:
        values["top1 beyond noise"] = values["top1"] * (1 - noise.together[labels])
    if judge is not None:
        values["embedding"] = (judge.labels(images) == labels) & reached
        if noise is not None and noise.embedding is not None:
            values["embedding beyond noise"] = values["embedding"] * (1 - noise.embedding[labels])
    pools = [_pool(*pair) for pair in (members, nonmembers)]
    spaces = [committee.predict(pool[0]).features if len(pool[0]) else torch.zeros(0, 1) for pool in pools]

    def farther(rows: Tensor, which: int, columns: Tensor) -> Tensor:
        return -torch.cdist(verdict.features[rows].double(), spaces[which][columns].double()).square()

    def similar(measure: Any) -> Callable[[Tensor, int, Tensor], Tensor]:
        return lambda rows, which, columns: pairwise(images[rows], pools[which][0][columns], measure)

    tables = {"distance": farther, **{measure: similar(measure) for measure in MEASURES}}
    recovery: dict[int, tuple[Tensor, float]] = {}
    for name, table in tables.items():
        for side in ("member", "nonmember"):
            values[f"{name} {side}"] = torch.full((len(images),), math.nan, dtype=torch.float64)
        for label in sorted(set(labels.tolist())):
            rows = (labels == label).nonzero().flatten()
            columns = [(pool[1] == label).nonzero().flatten() for pool in pools]
            size = min(map(len, columns))
            if size == 0:
                continue
            both = [table(rows, which, columns[which]).double() for which in (0, 1)]
            for side, scores in zip(("member", "nonmember"), both, strict=True):
                best = expected_best(scores, size)
                values[f"{name} {side}"][rows] = -best if name == "distance" else best
            if name == "ssim":
                recovery[label] = _recovered(*(scores.max(0).values for scores in both))
    for name in MEASURES:
        values[f"{name} gap"] = values[f"{name} member"] - values[f"{name} nonmember"]
    sets = verdict.features[:KID_IMAGES], spaces[0][:KID_IMAGES]
    seen = bool(committee.seen & digests(pools[1][0]))
    return Scored(
        labels=labels.numpy(),
        values={name: value.double().numpy() for name, value in values.items()},
        recovered=np.array([hit for hits, _ in recovery.values() for hit in hits.tolist()]),
        recovered_labels=np.array([label for label, (hits, _) in recovery.items() for _ in hits], dtype=np.int64),
        recovery_chance=float(np.mean([chance for _, chance in recovery.values()])) if recovery else math.nan,
        kid=scaled_kid(*sets) if min(map(len, sets)) > 1 else None,
        inception=dpsd_inception_score(verdict.probabilities),
        **_observed(reconstructions.observed, observed),
        judged_on="the evaluators were trained on non-members: distances in their features do not compare" * seen,
    )


def _recovered(members: Tensor, nonmembers: Tensor) -> tuple[Tensor, float]:
    """Return which members (m,) of a class are recovered, 0 or 1, and the probability of that by chance.

    The arguments are the best similarity of each member (m,) and each non-member (k,) to any reconstruction. The
    threshold is the i-th best non-member, which a further non-member exceeds with probability i / (k + 1).
    """
    place = max(1, math.floor(RECOVERED_AT * (len(nonmembers) + 1)))
    threshold = nonmembers.sort(descending=True).values[place - 1]
    return (members > threshold).double(), place / (len(nonmembers) + 1)


def expected_best(scores: Tensor, size: int) -> Tensor:
    """Return the expected maximum (n,) of `size` values drawn without replacement from each row of `scores` (n, m).

    The j-th largest of m, counted from 0, is the largest drawn in binomial(m - 1 - j, size - 1) of binomial(m, size)
    draws.
    """
    count = scores.shape[1]
    ordered = scores.double().sort(dim=1, descending=True).values
    weight = [math.comb(count - 1 - j, size - 1) / math.comb(count, size) for j in range(count)]
    return ordered @ torch.tensor(weight, dtype=torch.float64, device=scores.device)


def _pool(images: Tensor, labels: Tensor) -> Labelled:
    images, labels = images.cpu(), labels.cpu()
    kept = []
    for label in sorted(set(labels.tolist())):
        where = (labels == label).nonzero().flatten()
        kept.append(where[torch.linspace(0, len(where) - 1, min(POOL, len(where))).round().long()])
    index = torch.cat(kept) if kept else torch.zeros(0, dtype=torch.int64)
    # Shuffle classes, so that a prefix represents all.
    index = index[torch.randperm(len(index), generator=torch.Generator().manual_seed(0))]
    return images[index], labels[index]


def _observed(made: Tensor | None, truth: Observed | None) -> dict[str, Any]:
    if made is None or truth is None:
        empty = np.zeros(0, dtype=np.int64)
        return {"observed": {}, "observed_labels": empty, "observed_member": empty.astype(np.bool_)}
    if len(made) != len(truth.images):
        raise BenchError(f"an attack returned {len(made)} images for {len(truth.images)} observed answers.")
    made = made.cpu().nan_to_num(0.0).clamp(0, 1)
    return {
        "observed": {name: PAIRED[name](made, truth.images.cpu()).double().numpy() for name in ("ssim", "psnr")},
        "observed_labels": truth.labels.cpu().numpy(),
        "observed_member": truth.member.cpu().numpy().astype(np.bool_),
    }


def summarise(scored: Scored, committee: Committee) -> dict[str, Estimated]:
    """Return one target's estimates over classes, by their names in a record, without undefined ones.

    - ``committee top-1``: all evaluators name the class; unreached images are failures
    - ``committee top-5``: it is among the first five of all, with more than five classes
    - ``committee top-1 beyond noise``: the same, but a hit counts 1 minus the share of noise images named as that class
    - ``embedding top-1``: the face embedding's nearest person is the right one; ``beyond noise`` as above
    - ``evaluator 1 top-1`` to 3: each evaluator's own share
    - ``distance``: squared, in the first evaluator's features, to members and non-members
    - ``ssim``, ``psnr`` (decibels): to the nearest member, non-member, and the difference; only its excess over a
      counterfactual target's or the prior's concerns training: pools differ by chance
    - ``instance recovery``: share of members nearer to a reconstruction than all but 1 % of the class's non-members;
      ``by chance``: that share if members are no nearer
    - ``answers``: SSIM and PSNR to the image behind each observed answer
    - ``[IS]``: see :func:`bench.metrics.images.dpsd_inception_score`
    - ``kid``: to the members, in the first evaluator's features over their root mean square
    """
    found: dict[str, Estimated | None] = {}

    def over(name: str, column: str, bounds: tuple[float, float] | None = None) -> None:
        values = scored.values[column]
        here = np.isfinite(values)
        found[name] = clustered(values[here], scored.labels[here], bounds=bounds) if here.any() else None

    over("committee top-1", "top1")
    for place in range(1, len(committee.nets) + 1):
        over(f"evaluator {place} top-1", f"evaluator {place}")
    for name, column in _JUDGED.items():
        if column in scored.values:
            over(name, column)
    if committee.classes > 5:
        over("committee top-5", "top5")
    for name, (low, high) in {"distance": (0.0, math.inf), **_BOUNDS}.items():
        over(f"{name} member", f"{name} member", (low, high))
        over(f"{name} non-member", f"{name} nonmember", (low, high))
        if name in MEASURES:
            over(f"{name} member - non-member", f"{name} gap", (low - high, high - low))
    if len(scored.recovered):
        found["instance recovery"] = clustered(scored.recovered, scored.recovered_labels)
        found["instance recovery by chance"] = Estimated(value=scored.recovery_chance, n=1)
    found |= _over_answers(scored)
    found["[IS]"] = Estimated(value=scored.inception, n=1)
    if scored.kid is not None:
        found["kid"] = Estimated(value=scored.kid, n=1)
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def _over_answers(scored: Scored) -> dict[str, Estimated | None]:
    out: dict[str, Estimated | None] = {}
    labels, member = scored.observed_labels, scored.observed_member
    both = np.isin(labels, np.intersect1d(labels[member], labels[~member]))
    for name, values in scored.observed.items():
        bounds = _BOUNDS[name]
        for side, chosen in (("member", member), ("nonmember", ~member)):
            if chosen.any():
                out[f"answers: {name} {side}"] = clustered(values[chosen], labels[chosen], bounds=bounds)
        if both.any():
            yes, no = member & both, ~member & both
            gap = difference(values[yes], values[no], labels[yes], clusters_b=labels[no], bounds=bounds)
            out[f"answers: {name} gap"] = gap
    return out


def margin(target: Scored, control: Scored, name: str = "top1") -> Estimated:
    """Return the mean of `name` over `target` minus that over `control`, paired by class.

    The control is a counterfactual target or none (prior). Raises :class:`BenchError` if the classes differ.
    """
    a, b = target.values[name], control.values[name]
    bounds = None if name.endswith("gap") else _BOUNDS.get(name.split()[0])
    here, there = np.isfinite(a), np.isfinite(b)
    return difference(a[here], b[there], target.labels[here], clusters_b=control.labels[there], bounds=bounds)
