"""Everything that a plug-in imports; names that need torch or an accountant load lazily, so that planning is fast."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bench.core.config import setting
from bench.core.errors import BenchError, UnknownNameError
from bench.core.types import (
    Access,
    Adjacency,
    AuditKind,
    Basis,
    Budget,
    Claim,
    Facts,
    Family,
    GivenTeacher,
    Knowledge,
    LabelledSource,
    PrivacyUnit,
    PrivateData,
    PublicData,
    PublicKind,
    Reconstructions,
    Released,
    Signals,
    TargetAdjacency,
)
from bench.interface.attack import Attack, InversionAttack, MembershipAttack, ReleaseAttack, ReleasedImages
from bench.interface.method import Method
from bench.interface.registry import ATTACKS, METHODS, register_attack, register_method

if TYPE_CHECKING:
    from bench.core.transforms import as_float, shifted
    from bench.data.datasets import DATASETS
    from bench.data.splits import partition
    from bench.interface.target_model import Target
    from bench.models.build import features_and_logits
    from bench.privacy.accounting.accountants import accountant, claim_by, proven
    from bench.privacy.accounting.calibrate import largest_count, smallest_noise
    from bench.privacy.accounting.claims import pate_closed_form
    from bench.privacy.events.base_event import Event
    from bench.privacy.events.events import ConfidentGNMax, Gaussian, GNMax, LNMax, SampledGaussian, SampledGNMax
    from bench.privacy.mechanisms.ledger import Ledger
    from bench.training.by_record import in_equal_batches, nearest
    from bench.training.context import Context
    from bench.training.loop import FitSettings, fit, predict
    from bench.training.student import make_student

_LAZY = {
    "DATASETS": "bench.data.datasets",
    "partition": "bench.data.splits",
    "Target": "bench.interface.target_model",
    "features_and_logits": "bench.models.build",
    "accountant": "bench.privacy.accounting.accountants",
    "claim_by": "bench.privacy.accounting.accountants",
    "proven": "bench.privacy.accounting.accountants",
    "Event": "bench.privacy.events.base_event",
    "largest_count": "bench.privacy.accounting.calibrate",
    "smallest_noise": "bench.privacy.accounting.calibrate",
    "pate_closed_form": "bench.privacy.accounting.claims",
    "ConfidentGNMax": "bench.privacy.events.events",
    "Gaussian": "bench.privacy.events.events",
    "GNMax": "bench.privacy.events.events",
    "LNMax": "bench.privacy.events.events",
    "SampledGNMax": "bench.privacy.events.events",
    "SampledGaussian": "bench.privacy.events.events",
    "Ledger": "bench.privacy.mechanisms.ledger",
    "in_equal_batches": "bench.training.by_record",
    "nearest": "bench.training.by_record",
    "Context": "bench.training.context",
    "FitSettings": "bench.training.loop",
    "fit": "bench.training.loop",
    "predict": "bench.training.loop",
    "make_student": "bench.training.student",
    "as_float": "bench.core.transforms",
    "shifted": "bench.core.transforms",
}

__all__ = [
    "ATTACKS",
    "DATASETS",
    "METHODS",
    "Access",
    "Adjacency",
    "Attack",
    "AuditKind",
    "Basis",
    "BenchError",
    "Budget",
    "Claim",
    "ConfidentGNMax",
    "Context",
    "Event",
    "Facts",
    "Family",
    "FitSettings",
    "GNMax",
    "Gaussian",
    "GivenTeacher",
    "InversionAttack",
    "Knowledge",
    "LNMax",
    "LabelledSource",
    "Ledger",
    "MembershipAttack",
    "Method",
    "PrivacyUnit",
    "PrivateData",
    "PublicData",
    "PublicKind",
    "Reconstructions",
    "ReleaseAttack",
    "Released",
    "ReleasedImages",
    "SampledGNMax",
    "SampledGaussian",
    "Signals",
    "Target",
    "TargetAdjacency",
    "UnknownNameError",
    "accountant",
    "as_float",
    "claim_by",
    "features_and_logits",
    "fit",
    "in_equal_batches",
    "largest_count",
    "make_student",
    "nearest",
    "partition",
    "pate_closed_form",
    "predict",
    "proven",
    "register_attack",
    "register_method",
    "setting",
    "shifted",
    "smallest_noise",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
