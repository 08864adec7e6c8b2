"""The gap attack: a record whose label the target gets right is guessed a member. It needs labels alone.

Yeom et al. 2018 (arXiv:1709.01604); the floor that every attack on labels has to beat (Choquette-Choo et al. 2021,
arXiv:2007.14321, whose attack by variations of the record is the second part of the score). Its advantage is the gap
between the accuracies on training and on other records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.interface import Access, BenchError, MembershipAttack, Signals, register_attack, setting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class LabelGapConfig:
    """Settings of the attack."""

    variations: float = setting(0.5, "ours: the record's own label decides, variations break its ties")


@register_attack("label-gap")
class LabelGap(MembershipAttack):
    """Score by whether the label is right, and how often it stays right under variations."""

    Config = LabelGapConfig
    access = Access.LABELS
    citation = "Yeom et al. 2018; Choquette-Choo et al. 2021"
    references = 0

    def score(self, config: LabelGapConfig, signals: Signals) -> NDArray[np.float64]:
        """Return 1 where the label of the record itself is right, plus `variations` times the share of right others.

        The result is (n,). Only the place of the largest logit is used. Raises :class:`BenchError` on a weight outside
        [0, 1], by which variations would overrule the record.
        """
        if not 0 <= config.variations <= 1:
            raise BenchError(f"label-gap takes variations in [0, 1], not {config.variations}.")
        right = (signals.target.argmax(axis=-1) == signals.labels).astype("float64")
        own: NDArray[np.float64] = right[0]
        return own if len(right) == 1 else own + config.variations * right[1:].mean(axis=0)
