"""The committee that judges reconstructions: three different classifiers, none trained on private records.

One classifier may accept noise, but three rarely agree on it, so a reconstruction counts only if all three assign it to
the right class. The committee would recognise images that it was trained on, so private images and the attacker's are
refused for training, by hash.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from bench.core.rows import Estimated
from bench.core.seeds import Streams
from bench.evaluation.attack.evaluator_nets import Recipe
from bench.interface import BenchError, Context, Facts, as_float, features_and_logits
from bench.models.feature_net import FeatureNet
from bench.storage.cache import Arrays

VERSION = 1  # increment when the same images would give different evaluators
SEED = 0  # not the context's, so that all cells have the same evaluators

Digests = frozenset[bytes]


def digest_each(images: Tensor) -> list[bytes]:
    """Return the 16-byte BLAKE2b of each of `images` (n, channels, height, width), uint8 or float in [0, 1]."""
    pixels = images if images.dtype == torch.uint8 else (images.float().clamp(0, 1) * 255).round().to(torch.uint8)
    rows = pixels.cpu().contiguous().numpy()
    shape = str(tuple(rows.shape[1:])).encode()
    return [blake2b(shape + row.tobytes(), digest_size=16).digest() for row in rows]


def digests(images: Tensor) -> Digests:
    """Return the set of digests of `images`; see :func:`digest_each`."""
    return frozenset(digest_each(images))


def check_disjoint(name_a: str, a: Digests, name_b: str, b: Digests) -> None:
    """Raise :class:`BenchError`, with the number and a remedy, if the images `a` and `b`, with names, overlap."""
    if common := len(a & b):
        raise BenchError(
            f"{name_a} and {name_b} have {common} image{'s' if common > 1 else ''} in common (of {len(a)} and "
            f"{len(b)}), so a reconstruction could be recognised without being recovered. Use other records for "
            f"{name_a}, or leave the common ones out."
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """The committee's verdict on n images: `labels` int64 (3, n), `top5` bool (3, n, classes), by evaluator.

    `features` (n, d) and `probabilities` (n, classes), float32, are the first evaluator's. All are on the CPU.
    """

    labels: Tensor
    top5: Tensor
    features: Tensor
    probabilities: Tensor

    def hits(self, meant: Tensor) -> Tensor:
        """Return bool (n,): whether all evaluators name the class `meant` (n,)."""
        return (self.labels == meant.cpu()).all(0)

    def within_five(self, meant: Tensor) -> Tensor:
        """Return bool (n,): whether all evaluators have the class `meant` (n,) in their top five."""
        index = meant.cpu().view(1, -1, 1).expand(len(self.top5), -1, 1)
        return self.top5.gather(2, index).squeeze(2).all(0)


@dataclass(frozen=True, slots=True)
class Committee:
    """Evaluators with their `kinds` and `accuracies` on held-out records; `agreement` is the share that all get right.

    `false_positives`: share of other classes' natural images that all assign to a class, for the worst class.
    """

    nets: tuple[FeatureNet, ...]
    kinds: tuple[str, ...]
    accuracies: tuple[float, ...]
    agreement: float
    false_positives: float
    trained_on: int
    held_out: int
    classes: int
    device: torch.device
    seen: Digests = frozenset()  # digests of the training images

    @torch.no_grad()
    def predict(self, images: Tensor, batch_size: int = 500) -> Judgement:
        """Return the verdict on `images` (n, channels, height, width), uint8 or float in [0, 1]."""
        if len(images) == 0:
            raise BenchError("the committee needs at least one image.")
        parts: list[list[Tensor]] = [[] for _ in self.nets]
        features: list[Tensor] = []
        for start in range(0, len(images), batch_size):
            batch = as_float(images[start : start + batch_size].to(self.device))
            for place, net in enumerate(self.nets):
                hidden, logits = features_and_logits(net, batch)
                parts[place].append(logits.float().cpu())
                if place == 0:
                    features.append(hidden.float().cpu())
        logits = torch.stack([torch.cat(part) for part in parts])
        best = logits.topk(min(5, logits.shape[2]), dim=2).indices
        top5 = torch.zeros(logits.shape, dtype=torch.bool).scatter_(2, best, True)
        return Judgement(logits.argmax(2), top5, torch.cat(features), logits[0].softmax(1))

    def __str__(self) -> str:
        each = ", ".join(f"{kind} {100 * a:.1f} %" for kind, a in zip(self.kinds, self.accuracies, strict=True))
        return (
            f"evaluators trained on {self.trained_on} records, right on {self.held_out} held-out ones: {each}; all "
            f"three {100 * self.agreement:.1f} %; of other classes' images they take at most "
            f"{100 * self.false_positives:.2f} % for a class"
        )


def train_committee(
    images: Tensor,
    labels: Tensor,
    facts: Facts,
    context: Context,
    forbidden: Mapping[str, Digests],
    *,
    held_out: tuple[Tensor, Tensor],
    chosen: Sequence[Recipe],
) -> Committee:
    """Train the evaluators of a data set, or take them from the cache, and measure each on held-out records.

    `images` are uint8 (n, channels, height, width), `labels` int64 (n,). `forbidden` maps descriptions to images that
    no evaluator may see. `held_out` may be private: it does not select, stop or tune anything. Raises
    :class:`BenchError` if a training image is forbidden or held out, or a class has none.
    """
    seen = digests(images)
    for name, others in forbidden.items():
        check_disjoint("the evaluators' training images", seen, name, others)
    check_disjoint("the evaluators' training images", seen, "the images held out to test them", digests(held_out[0]))
    if missing := (labels.bincount(minlength=facts.classes) == 0).nonzero().flatten().tolist():
        raise BenchError(f"class {missing[0]} has no image for the evaluators to train on. Add at least one.")
    content = hashlib.sha256(images.cpu().numpy().tobytes() + labels.cpu().numpy().tobytes()).hexdigest()
    depends = {
        "version": VERSION,
        "data": content,
        "recipes": [asdict(recipe) for recipe in chosen],
        "shape": list(facts.shape),
        "classes": facts.classes,
        "seed": SEED,
        "device": context.device.type,
    }
    arrays = context.cache.get("evaluators", depends, lambda: _train(chosen, images, labels, facts, context, depends))
    nets = tuple(_restore(recipe, place, arrays, facts, context) for place, recipe in enumerate(chosen))
    kinds = tuple(recipe.kind for recipe in chosen)
    counts = {"trained_on": len(images), "held_out": len(held_out[0]), "classes": facts.classes}
    committee = Committee(nets, kinds, (), 0.0, 0.0, **counts, device=context.device, seen=seen)
    verdict, truth = committee.predict(held_out[0]), held_out[1].cpu()
    committee = replace(
        committee,
        accuracies=tuple((verdict.labels == truth).double().mean(1).tolist()),
        agreement=float(verdict.hits(truth).double().mean()),
        false_positives=_false_positives(verdict, truth, facts.classes),
    )
    context.progress.say(str(committee))
    return committee


def _false_positives(verdict: Judgement, truth: Tensor, classes: int) -> float:
    others = [(label, truth != label) for label in range(classes)]
    named = [(verdict.labels[:, other] == label).all(0) for label, other in others if other.any()]
    return max((float(hits.double().mean()) for hits in named), default=0.0)


def _train(
    chosen: Sequence[Recipe], images: Tensor, labels: Tensor, facts: Facts, context: Context,
    depends: Mapping[str, Any],
) -> Arrays:  # fmt: skip
    out: dict[str, Any] = {}
    streams = Streams(SEED, "evaluators/")
    # The nets are one artefact: keep all checkpoints until every net is trained.
    with contextlib.ExitStack() as opened, context.progress.stage("training evaluators", len(chosen)) as stage:
        for place, recipe in enumerate(chosen):
            generator = streams.torch(f"{place} {recipe.kind}")
            checkpoint = opened.enter_context(context.checkpoint("evaluator", {**depends, "place": place}))
            net = recipe.train(images, labels, facts, generator, context.device, checkpoint)
            out |= {f"{place}.{key}": value.cpu().numpy() for key, value in net.state_dict().items()}
            stage.advance()
    return out


def _restore(recipe: Recipe, place: int, arrays: Arrays, facts: Facts, context: Context) -> FeatureNet:
    with torch.random.fork_rng([]):
        net = recipe.build(facts)
    prefix = f"{place}."
    state = {key.removeprefix(prefix): torch.from_numpy(a) for key, a in arrays.items() if key.startswith(prefix)}
    net.load_state_dict(state)
    return net.to(context.device).eval().requires_grad_(False)


def gate(nonprivate: Estimated, prior: Estimated, classes: int, false_positive_rate: float) -> str:
    """Return why an attack has no power on such data (it also fails on the non-private student), or "".

    `nonprivate` is the attack's committee top-1 on the non-private student, `prior` its top-1 without a target.
    `false_positive_rate` is the share of natural images of other classes that the whole committee assigns to a class.
    """
    # Three times chance, or halfway from chance to 1 if that is less.
    chance = 1 / classes
    needed = min(3 * chance, (1 + chance) / 2)
    if false_positive_rate >= 0.05:
        share = 100 * false_positive_rate
        return f"the committee takes {share:.1f} % of natural images of other classes for a class (5 % are allowed)"
    if nonprivate.value <= needed:
        return (
            f"top-1 on the non-private student is {100 * nonprivate.value:.1f} %, not above {100 * needed:.1f} % "
            f"(chance is {100 * chance:.1f} %)"
        )
    low = nonprivate.value if nonprivate.low is None else nonprivate.low
    high = prior.value if prior.high is None else prior.high
    if low <= high:
        return (
            f"top-1 on the non-private student may be as low as {100 * low:.1f} %, and without any target as high as "
            f"{100 * high:.1f} %"
        )
    return ""
