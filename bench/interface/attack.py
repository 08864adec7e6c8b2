"""Interfaces of attacks on a released student."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.core.types import Access, Facts, Knowledge, PublicData, Reconstructions, Signals
from bench.training.context import Context

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from bench.interface.target_model import Target


class Attack(abc.ABC):
    """An attack on a released student. Returns reconstructions or scores, never statistics.

    Each file in ``attacks/`` registers one :class:`InversionAttack`, :class:`MembershipAttack` or
    :class:`ReleaseAttack`. The frozen ``Config`` dataclass has the paper's values as defaults, each with its source.
    """

    name: ClassVar[str]
    goal: ClassVar[str]
    """What the attacker wants, as records name it."""
    version: ClassVar[int] = 1
    """Increment whenever the same config gives another result: part of every key."""
    Config: ClassVar[type]
    access: ClassVar[Access]
    knowledge: ClassVar[Knowledge] = Knowledge.NONE
    citation: ClassVar[str] = ""

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """Return the changes of ``quick`` and ``tiny`` from the paper's config, by field; default: none."""
        return {"quick": {}, "tiny": {}}


class InversionAttack(Attack):
    """An attack that reconstructs training images."""

    goal = "inversion"

    @abc.abstractmethod
    def run(
        self,
        config: Any,
        target: Target,
        auxiliary: PublicData | None,
        observed: torch.Tensor | None,
        context: Context,
    ) -> Reconstructions:
        """Return reconstructions of every class.

        `auxiliary` is the attacker's public data, None for `knowledge` none. `observed` (m, classes) are the target's
        confidences on unseen images; an attack that inverts single answers returns one image for each.
        """


class MembershipAttack(Attack):
    """An attack that separates the pipeline's training records from other records."""

    goal = "membership"
    references: ClassVar[int] = 0
    """Minimum number of references."""

    @abc.abstractmethod
    def score(self, config: Any, signals: Signals) -> NDArray[np.float64]:
        """Return a score (n,), higher for likelier members; raise :class:`BenchError` on too few references."""


@dataclass(frozen=True, slots=True)
class ReleasedImages:
    """What a release, or a control in its place, shows: float images (k, channels, height, width) in [0, 1].

    `generator` maps `inputs` (m, values) to the last m of the images; both are None without a known generator. Their
    first `free` values are noise, the rest names the class.
    """

    images: torch.Tensor
    generator: torch.nn.Module | None = None
    inputs: torch.Tensor | None = None
    free: int = 0


class ReleaseAttack(Attack):
    """An attack on released images and generators."""

    goal = "release"
    of_images: ClassVar[bool] = False
    """Whether a score belongs to an image (does it copy one of the records?), not to a record (was it trained on?)."""

    @abc.abstractmethod
    def score(
        self, config: Any, release: ReleasedImages, records: torch.Tensor, others: torch.Tensor, context: Context
    ) -> NDArray[np.float64]:
        """Return a score for each record (n,), higher for likelier members, or for each image (k,), its nearness.

        `records` (n, channels, height, width) and `others`, further images that no student saw, are in [0, 1].
        """
