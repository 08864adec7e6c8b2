"""TrPATE: PATE whose teachers and student are small heads on one frozen backbone with public weights.

``trpate`` has the paper's aggregator, LNMax. ``trpate-gnmax`` and ``trpate-confident`` have PATE's newer aggregators,
which the paper names as better but does not try; their noise and claims are those of
:mod:`bench.methods.pate.pate_gnmax` and :mod:`bench.methods.pate.pate_confident`.

Wang, Zheng, Cao, Wang, "Enhance PATE on Complex Tasks With Knowledge Transferred From Non-Private Data", IEEE Access
2019, sections III, IV.A and V.

Threat model: the attacker holds the released student and knows all records but one. Private: images and labels; each
record trains one teacher, chosen by a hash of its index. Public: the backbone's weights and training data, and
unlabelled images of the target's distribution. Released: the student's head on the public backbone, the choice of
queries (and of those answered), and their noisy labels. Unit record: one record changes one teacher and so one vote per
query. No guarantee covers records in the public source; the row states the known overlap.

Claimed by ``trpate``: Theorem 1, the strong composition of 2*gamma-DP queries; with ``claim=data-dependent`` PATE's
moments accountant on the votes, which the paper names but does not use. Proven: the composition of the noisy
histograms.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bench.interface import Claim, Facts, register_method, setting
from bench.methods.pate import pate_confident
from bench.methods.pate.heads import HeadTeachers, HeadTeachersConfig
from bench.methods.pate.pate import PATE, Printed
from bench.methods.pate.pate_confident import ConfidentEvents, PATEConfident
from bench.methods.pate.pate_gnmax import GNMaxEvents, PATEGNMax
from bench.methods.shared.transfer import PAPER

SHARE = "ours: PATE 2018's value for 250 teachers on MNIST (table 1), scaled to 200 teachers"


@dataclass(frozen=True)
class TrPATEConfig(HeadTeachersConfig):
    """Settings of TrPATE with LNMax, the paper's aggregator."""

    gamma: float = setting(0.05, f"{PAPER}, section V.A: tables 2 and 3; tables 4 and 5 have 0.1 too", ge=0)
    least_queries: int = setting(1, "the paper keeps gamma; a larger number lowers it if the budget covers fewer", ge=1)
    claim: Literal["closed-form", "data-dependent"] = setting("closed-form", f"{PAPER}, Theorem 1")


@register_method("trpate")
class TrPATE(HeadTeachers, PATE):
    """Label public images by the noisy plurality of heads on a frozen backbone; train a head on the answers."""

    config: TrPATEConfig
    citation = "Wang et al. 2019"
    printed: ClassVar[Printed] = {}

    @classmethod
    def scaled(cls, settings: dict[str, Any], facts: Facts) -> dict[str, Any]:
        # Forty queries per 100 teachers, at least four per class; noise of a twentieth of the teachers, or what these
        # queries need. Chosen on Fashion-MNIST's public records.
        teachers = settings["teachers"]
        return {**settings, "least_queries": max(4 * facts.classes, teachers * 2 // 5), "gamma": 20 / teachers}

    def claimed(self, delta: float) -> Claim:
        """Return Theorem 1, which needs no votes."""
        return dataclasses.replace(super().claimed(delta), source=f"{PAPER}, Theorem 1")


@dataclass(frozen=True)
class TrPATEGNMaxConfig(GNMaxEvents, HeadTeachersConfig):
    """Settings of TrPATE with GNMax."""

    sigma: float = setting(32.0, "ours: PATE 2018's 40 for 250 teachers, scaled to 200", ge=0)
    claim: Literal["data-dependent", "data-independent", "sanitised"] = setting(
        "data-dependent", "PATE 2018, section 5"
    )


@register_method("trpate-gnmax")
class TrPATEGNMax(HeadTeachers, PATEGNMax):
    """TrPATE with Gaussian noise on the counts."""

    config: TrPATEGNMaxConfig
    citation = "Wang et al. 2019; Papernot et al. 2018"


@dataclass(frozen=True)
class TrPATEConfidentConfig(ConfidentEvents, HeadTeachersConfig):
    """Settings of TrPATE with Confident-GNMax."""

    queries: int = setting(640, "PATE 2018, section 5 and appendix: MNIST; calibrated to the budget")
    max_answers: int = setting(286, "PATE 2018, table 1: MNIST; calibrated to the budget", ge=1)
    threshold: float = setting(160.0, SHARE, ge=0)
    sigma1: float = setting(120.0, SHARE, ge=0)
    sigma2: float = setting(32.0, SHARE, ge=0)
    claim: Literal["data-dependent", "data-independent", "sanitised"] = setting(
        "data-dependent", "PATE 2018, section 5"
    )


@register_method("trpate-confident")
class TrPATEConfident(HeadTeachers, PATEConfident):
    """TrPATE that labels those public images on which the teachers clearly agree."""

    config: TrPATEConfidentConfig
    citation = "Wang et al. 2019; Papernot et al. 2018"
    printed: ClassVar[pate_confident.Printed] = {}
