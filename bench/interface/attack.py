"""Interfaces of attacks on a released student."""

from __future__ import annotations

import abc
from collections.abc import Mapping
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

    Each file in ``attacks/`` registers one :class:`InversionAttack` or :class:`MembershipAttack`. The frozen ``Config``
    dataclass has the paper's values as defaults, each with its source.
    """

    name: ClassVar[str]
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

    references: ClassVar[int] = 0
    """Minimum number of references."""

    @abc.abstractmethod
    def score(self, config: Any, signals: Signals) -> NDArray[np.float64]:
        """Return a score (n,), higher for likelier members; raise :class:`BenchError` on too few references."""
