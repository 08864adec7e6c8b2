"""Everything that a plug-in imports; names that need torch or an accountant load lazily, so that planning is fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.core.config import setting
from bench.core.errors import BenchError, UnknownNameError
from bench.core.lazy import lazy_names
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
from bench.interface.attack import (
    Attack,
    InversionAttack,
    MembershipAttack,
    ReleaseAttack,
    ReleasedImages,
    RobustnessAttack,
)
from bench.interface.method import Method
from bench.interface.registry import ATTACKS, METHODS, register_attack, register_method

if TYPE_CHECKING:
    from bench.core.transforms import as_float, shifted
    from bench.data.datasets import DATASETS
    from bench.data.splits import partition
    from bench.interface.target_model import Target
    from bench.models.build import features_and_logits, make_student
    from bench.privacy.accounting.accountants import accountant, claim_by, proven
    from bench.privacy.accounting.calibrate import largest_count, smallest_noise
    from bench.privacy.accounting.claims import pate_closed_form
    from bench.privacy.dpsgd.clipping import Flat
    from bench.privacy.dpsgd.dp_sgd import DPSGDRun
    from bench.privacy.events.base_event import Event
    from bench.privacy.events.events import (
        DPSGD,
        ConfidentGNMax,
        Gaussian,
        GNMax,
        Laplace,
        LNMax,
        SampledGaussian,
        SampledGNMax,
    )
    from bench.privacy.mechanisms.ledger import Ledger
    from bench.training.by_record import in_equal_batches, nearest
    from bench.training.context import Context
    from bench.training.loop import FitSettings, fit, predict

__all__ = [
    "ATTACKS", "DATASETS", "DPSGD", "METHODS", "Access", "Adjacency", "Attack", "AuditKind", "Basis", "BenchError",
    "Budget", "Claim", "ConfidentGNMax", "Context", "DPSGDRun", "Event", "Facts", "Family", "FitSettings", "Flat",
    "GNMax", "Gaussian", "GivenTeacher", "InversionAttack", "Knowledge", "LNMax", "LabelledSource", "Laplace", "Ledger",
    "MembershipAttack", "Method", "PrivacyUnit", "PrivateData", "PublicData", "PublicKind", "Reconstructions",
    "ReleaseAttack", "Released", "ReleasedImages", "RobustnessAttack", "SampledGNMax", "SampledGaussian", "Signals",
    "Target", "TargetAdjacency", "UnknownNameError", "accountant", "as_float", "claim_by", "features_and_logits", "fit",
    "in_equal_batches", "largest_count", "make_student", "nearest", "partition", "pate_closed_form", "predict",
    "proven", "register_attack", "register_method", "setting", "shifted", "smallest_noise",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
