"""The interfaces of attacks on a released student."""

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
    """An attack on a released student. It returns reconstructions or scores, and computes no statistics.

    One file in ``attacks/``, one class, registered under one name: an :class:`InversionAttack` or a
    :class:`MembershipAttack`. The frozen ``Config`` dataclass has the paper's values as its defaults, each with the
    place that states it; ``presets`` names what other presets change, as for a method.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raised whenever the same config would give another result: part of every key."""
    Config: ClassVar[type]
    access: ClassVar[Access]
    knowledge: ClassVar[Knowledge] = Knowledge.NONE
    citation: ClassVar[str] = ""

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """Return what ``quick`` and ``tiny`` change in the config for such data, field name to value; here nothing."""
        return {"quick": {}, "tiny": {}}


class InversionAttack(Attack):
    """An attack that makes images of what the student was trained on."""

    @abc.abstractmethod
    def run(
        self,
        config: Any,
        target: Target,
        auxiliary: PublicData | None,
        observed: torch.Tensor | None,
        context: Context,
    ) -> Reconstructions:
        """Attack `target` and return images of every class.

        `auxiliary` is what the attacker knows, None where `knowledge` is none. `observed` (m, classes) are confidences
        that the target gave to images which the attacker did not see; an attack that inverts single answers returns
        one image for each.
        """


class MembershipAttack(Attack):
    """An attack that separates training records of the pipeline from others."""

    references: ClassVar[int] = 0
    """The fewest references that it needs."""

    @abc.abstractmethod
    def score(self, config: Any, signals: Signals) -> NDArray[np.float64]:
        """Return a score (n,) for each candidate, larger for likelier members.

        Raises :class:`BenchError` where there are too few references.
        """
