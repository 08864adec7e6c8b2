"""The loss attack: records on which the target's loss is small are guessed to be members.

Yeom, Giacomelli, Fredrikson and Jha, "Privacy Risk in Machine Learning", CSF 2018 (arXiv:1709.01604), without a fixed
threshold. It ignores how hard a record is, so it is a baseline, weak at low false positive rates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.interface import Access, MembershipAttack, Signals, register_attack
from bench.interface.signals import log_probability


@dataclass(frozen=True)
class LossConfig:
    """The attack has no settings."""


@register_attack("loss")
class LossThreshold(MembershipAttack[LossConfig]):
    """Score by minus the cross-entropy of the record itself."""

    access = Access.CONFIDENCES
    citation = "Yeom, Giacomelli, Fredrikson and Jha 2018"

    def score(self, signals: Signals) -> NDArray[np.float64]:
        """Return the log probability of the label at the record itself (n,); variations are ignored."""
        return log_probability(signals.target[0], signals.labels)
