"""The gap attack: a record that the target classifies correctly is guessed to be a member. It needs only labels.

Yeom et al. 2018 (arXiv:1709.01604), the floor of label-only attacks: its advantage is the gap between training and test
accuracy. Variations of the record refine the score (Choquette-Choo et al. 2021, arXiv:2007.14321).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.interface import Access, MembershipAttack, Signals, register_attack, setting


@dataclass(frozen=True)
class LabelGapConfig:
    """Settings of the attack."""

    variations: float = setting(0.5, "ours: the record's own label decides, variations break its ties", ge=0, le=1)


@register_attack("label-gap")
class LabelGap(MembershipAttack[LabelGapConfig]):
    """Score by whether the predicted label is right, and how often it stays right under variations."""

    access = Access.LABELS
    citation = "Yeom et al. 2018; Choquette-Choo et al. 2021"

    def score(self, signals: Signals) -> NDArray[np.float64]:
        """Return (n,): 1 if the record's prediction is right, plus `variations` times the share of right variations.

        Only the largest logit is used.
        """
        right = (signals.target.argmax(axis=-1) == signals.labels).astype("float64")
        own: NDArray[np.float64] = right[0]
        return own if len(right) == 1 else own + self.config.variations * right[1:].mean(axis=0)
