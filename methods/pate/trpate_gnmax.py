"""TrPATE with PATE's newer GNMax aggregator, which the paper names as better but does not try.

Threat model: as for :mod:`bench.methods.pate.trpate`, the attacker holds the released student and knows all records but
one. Private: images and labels. Public: the backbone's weights, their source, and unlabelled images. Released: the
student's head, the choice of queries, and their noisy labels. Aggregator and claims are those of
:mod:`bench.methods.pate.pate_gnmax`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.interface import register_method, setting
from bench.methods.pate.heads import HeadTeachers, HeadTeachersConfig
from bench.methods.pate.pate_gnmax import GNMaxEvents, PATEGNMax


@dataclass(frozen=True)
class TrPATEGNMaxConfig(GNMaxEvents, HeadTeachersConfig):
    """Settings of TrPATE with GNMax."""

    sigma: float = setting(32.0, "ours: PATE 2018's 40 for 250 teachers, for 200")
    claim: Literal["data-dependent", "data-independent", "sanitised"] = setting(
        "data-dependent", "PATE 2018, section 5"
    )


@register_method("trpate-gnmax")
class TrPATEGNMax(HeadTeachers, PATEGNMax):
    """TrPATE with Gaussian noise on the counts."""

    config: TrPATEGNMaxConfig
    citation = "Wang et al. 2019; Papernot et al. 2018"
