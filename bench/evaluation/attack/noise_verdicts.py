"""The classes to which evaluators assign images of noise, white or blurred.

A net assigns noise to some class, often always the same. If an attack targets that class, the net's verdict on a bad
reconstruction says nothing. So a hit counts 1 minus the share of noise images assigned to that class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bench.core.types import Facts
from bench.evaluation.attack.evaluators import Committee
from bench.evaluation.attack.face_judge import FaceJudge

GRAINS = (1, 2, 4, 8)
"""Cell sizes of the noise in pixels, with interpolation between cells; 1 is white noise."""
IMAGES = 100  # noise images per grain
REPORTED = 0.05  # smallest share that records list


@dataclass(frozen=True, slots=True)
class NoiseVerdicts:
    """Shares (classes,) of noise images assigned to a class at the worst grain: by all, each, and the embedding."""

    together: Tensor
    each: Tensor  # (evaluators, classes)
    embedding: Tensor | None

    def told(self, kinds: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return the shares of at least `REPORTED`, by evaluator (`kinds`, all, embedding) and class index."""
        rows = {"all": self.together, **dict(zip(kinds, self.each, strict=True))}
        if self.embedding is not None:
            rows["embedding"] = self.embedding
        return {
            name: {str(label): round(share, 3) for label, share in enumerate(row.tolist()) if share >= REPORTED}
            for name, row in rows.items()
        }


def named_on_noise(committee: Committee, facts: Facts, judge: FaceJudge | None) -> NoiseVerdicts:
    """Return how often the evaluators, and the face embedding if given, name each class in uniform noise."""
    generator = torch.Generator().manual_seed(0)
    channels, high, wide = facts.shape
    together, each, embedding = [], [], []
    for grain in (grain for grain in GRAINS if grain == 1 or min(high, wide) >= 8 * grain):
        cells = torch.rand((IMAGES, channels, -(-high // grain), -(-wide // grain)), generator=generator)
        noise = cells if grain == 1 else functional.interpolate(cells, (high, wide), mode="bilinear")
        named = functional.one_hot(committee.predict(noise).labels, facts.classes).bool()
        together.append(named.all(0).double().mean(0))
        each.append(named.double().mean(1))
        if judge is not None:
            embedding.append(functional.one_hot(judge.labels(noise), facts.classes).double().mean(0))

    def worst(found: list[Tensor]) -> Tensor:
        return torch.stack(found).amax(0)

    return NoiseVerdicts(worst(together), worst(each), worst(embedding) if embedding else None)
