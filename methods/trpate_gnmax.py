"""TrPATE with the GNMax aggregator of the newer PATE, which the paper names as the better one and does not try.

See :mod:`methods.trpate` for threat model, data and released parts, :mod:`methods.pate_gnmax` for the aggregator and
its claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bench.config import setting
from bench.interface import Facts
from bench.registry import register_method
from methods._heads import HeadTeachers, HeadTeachersConfig
from methods.pate_gnmax import PATEGNMax


@dataclass(frozen=True)
class TrPATEGNMaxConfig(HeadTeachersConfig):
    """Settings of TrPATE with GNMax."""

    sigma: float = setting(32.0, "ours: PATE 2018's 40 for 250 teachers, for 200")
    claim: Literal["data-dependent", "data-independent", "sanitised"] = setting(
        "data-dependent", "PATE 2018, section 5"
    )


@register_method("trpate-gnmax")
class TrPATEGNMax(HeadTeachers, PATEGNMax):
    """TrPATE with Gaussian noise on the counts."""

    Config = TrPATEGNMaxConfig
    citation = "Wang et al. 2019; Papernot et al. 2018"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`."""
        return {
            name: settings if name == "paper" else
            {**settings, "claim": "data-independent", "sigma": 0.16 * settings["teachers"]}
            for name, settings in cls.head_presets(facts).items()
        }  # fmt: skip
