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
    Sampling,
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
    from bench.models.build import features_and_logits
    from bench.models.rebuild import make_student
    from bench.privacy.accounting.accountants import accountant, claim_by, proven
    from bench.privacy.accounting.calibrate import largest_count, smallest_noise
    from bench.privacy.accounting.claims import pate_closed_form
    from bench.privacy.dpsgd.anchor_subspace import Subspace
    from bench.privacy.dpsgd.clipping import Adaptive, Flat, PerLayer, TopK
    from bench.privacy.dpsgd.dp_sgd import DPSGDRun
    from bench.privacy.events.base_event import Event
    from bench.privacy.events.batch_events import training_event
    from bench.privacy.events.choice_events import Exponential, PermuteAndFlip
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
    from bench.privacy.events.gaussian_events import BandedSums, TreeSums
    from bench.privacy.events.label_events import PriorRandomizedResponse, RandomizedResponse, TopKRandomizedResponse
    from bench.privacy.mechanisms.ledger import Ledger
    from bench.training.by_record import in_equal_batches, nearest
    from bench.training.context import Context
    from bench.training.loop import FitSettings, fit, predict

__all__ = [
    "ATTACKS", "DATASETS", "DPSGD", "METHODS", "Access", "Adaptive", "Adjacency", "Attack", "AuditKind", "BandedSums",
    "Basis", "BenchError", "Budget", "Claim", "ConfidentGNMax", "Context", "DPSGDRun", "Event", "Exponential", "Facts",
    "Family", "FitSettings", "Flat", "GNMax", "Gaussian", "GivenTeacher", "InversionAttack", "Knowledge", "LNMax",
    "LabelledSource", "Laplace", "Ledger", "MembershipAttack", "Method", "PerLayer", "PermuteAndFlip",
    "PriorRandomizedResponse", "PrivacyUnit", "PrivateData", "PublicData", "PublicKind", "RandomizedResponse",
    "Reconstructions", "ReleaseAttack", "Released", "ReleasedImages", "RobustnessAttack", "SampledGNMax",
    "SampledGaussian", "Sampling", "Signals", "Subspace", "Target", "TargetAdjacency", "TopK",
    "TopKRandomizedResponse", "TreeSums", "UnknownNameError", "accountant", "as_float", "claim_by",
    "features_and_logits", "fit", "in_equal_batches", "largest_count", "make_student", "nearest", "partition",
    "pate_closed_form", "predict", "proven", "register_attack", "register_method", "setting", "shifted",
    "smallest_noise", "training_event",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
