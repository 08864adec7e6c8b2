"""TrPATE with PATE's newer Confident-GNMax aggregator, which the paper names as better but does not try.

Threat model: as for :mod:`bench.methods.pate.trpate`, the attacker holds the released student and knows all records but
one. Private: images and labels. Public: the backbone's weights, their source, and unlabelled images. Released: the
student's head, the choice of queries and of answered ones, and noisy labels. The rest is as in
:mod:`bench.methods.pate.pate_confident`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from bench.interface import register_method, setting
from bench.methods.pate.heads import HeadTeachers, HeadTeachersConfig
from bench.methods.pate.pate_confident import ConfidentEvents, PATEConfident, Printed

SHARE = "ours: the share of its 250 teachers that PATE 2018 has on MNIST (table 1), for 200"


@dataclass(frozen=True)
class TrPATEConfidentConfig(ConfidentEvents, HeadTeachersConfig):
    """Settings of TrPATE with Confident-GNMax."""

    queries: int = setting(640, "PATE 2018, section 5 and appendix: MNIST; calibrated to the budget")
    max_answers: int = setting(286, "PATE 2018, table 1: MNIST; calibrated to the budget")
    threshold: float = setting(160.0, SHARE)
    sigma1: float = setting(120.0, SHARE)
    sigma2: float = setting(32.0, SHARE)
    claim: Literal["data-dependent", "data-independent", "sanitised"] = setting(
        "data-dependent", "PATE 2018, section 5"
    )


@register_method("trpate-confident")
class TrPATEConfident(HeadTeachers, PATEConfident):
    """TrPATE that labels those public images on which the teachers clearly agree."""

    config: TrPATEConfidentConfig
    citation = "Wang et al. 2019; Papernot et al. 2018"
    printed: ClassVar[Printed] = {}
