"""Marks that say whether a row's claim holds, with the reason, and remarks on the row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import StrEnum

from bench.core.margins import covered
from bench.core.types import AuditKind, PrivacyUnit
from bench.privacy.auditing.utility_bound import remark
from bench.reports.seed_group import SeedGroup
from bench.results.attack_record import AuditRecord, MechanismVerdict, above
from bench.results.audited import audited_of, no_power
from bench.results.record import Status
from bench.results.text import audited_text, epsilon_text

CHOSEN_ON_TEST = {
    # PATE's quick student and teachers, which other methods share, and the beta, sets and gradients of DPSD's family:
    # docs/reproduction.md.
    ("mnist", "quick"): {
        "dgd", "dgd-plus", "dgd-sound", "diet-pate", "dpdfd", "dpsd", "dpsd-label", "dpsd-sound", "dpsd-t", "fed-dpsd",
        "pate", "pate-bayes", "pate-confident", "pate-gnmax", "trpate-bayes",
    },
    # Chosen on the public part of the test file, which the accuracy on the whole file includes.
    ("fmnist", "quick"): {"dp-fc", "dp-least-squares", "dp-prototypes", "pate-ridge"},
    # The window and batch size of the text CNN: docs/transfer.md.
    ("movie-review", "paper"): {"nonprivate-transfer", "trpate"},
}  # fmt: skip
"""Methods with settings that were chosen on the test records, by data set and preset.

Given by name, because reports do not import methods.
"""

CHOSEN_ON_PRIVATE = {
    # Chosen on held-out training records: see each method's presets, and docs/reproduction.md for gs-wgan.
    ("mnist", "paper"): {"class-gaussians"},
    ("mnist", "quick"): {"class-gaussians", "dp-gan", "dp-sinkhorn", "gs-wgan", "psg"},
    # DP-SGD's learning rate and its dependence on the noise, shared by methods built on it; methods/dpsgd/scatter.py.
    ("fmnist", "quick"): {
        "dp-sgd", "dpsur", "gep", "gm-dp", "rgp", "scatter-cnn", "scatter-linear", "spectral-dp", "topagg", "tsadp",
        "zcdp",
    },
}  # fmt: skip
"""The same for settings chosen on training records, which the epsilons protect; excludes ``bench tune``."""

_ON_TEST = "settings chosen on this data set's test records"
_ON_PRIVATE = "settings chosen on this data set's training records, which no epsilon covers"
CHOSEN = {_ON_TEST: CHOSEN_ON_TEST, _ON_PRIVATE: CHOSEN_ON_PRIVATE}
CHOSEN_BY_HAND = (
    # docs/reproduction.md: answers used more than once; a thousand teachers.
    (_ON_PRIVATE, "mnist", {"dpsd", "dpsd-label", "dpsd-t", "fed-dpsd", "dpdfd"}, {"pool_steps": 1200}),
    (_ON_PRIVATE, "mnist", {"dgd", "dgd-sound", "dpsd-sound"}, {"teachers": 1000}),
    # CIFAR-10: trials without public data held out private records; with public images, the passes over the answers
    # were chosen on test records.
    (_ON_PRIVATE, "cifar10", {"dgd", "dpsd"}, {"teacher_init": "package"}),
    (_ON_TEST, "cifar10", {"pate-gnmax"}, {"teacher_init": "package"}),
    # docs/reproduction.md: students of a noise-free net, on several kinds of random images.
    (
        _ON_TEST, "fmnist",
        {
            "dgd", "dgd-plus", "dgd-sound", "diet-pate", "dpdfd", "dpsd", "dpsd-label", "dpsd-sound", "dpsd-t",
            "fed-dpsd", "pate-ridge",
        },
        {"random_kind": "objects"},
    ),
)  # fmt: skip
"""The same for settings that no preset has: the remark, data set, methods, and the settings that identify the rows."""


class Claim(StrEnum):
    """The mark of a claimed epsilon; NONE if the paper claims nothing."""

    NONE = ""
    HOLDS = "holds"
    DATA_DEPENDENT = "data-dependent"
    FAILS = "does not hold"
    REFUTED = "refuted by experiment"
    IMPOSSIBLE = "impossible"

    @property
    def bad(self) -> bool:
        """Whether the claim is known to be wrong."""
        return self in (Claim.FAILS, Claim.REFUTED, Claim.IMPOSSIBLE)


def claim_of(row: SeedGroup) -> tuple[Claim, str]:
    """Return the mark of a row's claim, and the reason for it."""
    proven = f"proven: {epsilon_text(row.proven, 'up')}"
    if math.isinf(row.claimed):
        return Claim.NONE, "nothing is claimed"
    if by := _refuted(row):
        if not row.data_dependent and all(audit.unit is row.unit for audit in row.counted):
            return Claim.REFUTED, f"refuted by {by}; {proven}"
        proven += f"; refuted by {by} if read {'for any votes' if row.data_dependent else 'at record level'}"
    if impossible := remark(row.impossible):
        return Claim.IMPOSSIBLE, f"{impossible}; {proven}"
    if covered(row.proven, row.claimed):
        return Claim.HOLDS, proven
    if row.bypasses:
        return Claim.FAILS, f"outside the ledger: {'; '.join(row.bypasses)}"
    if row.data_dependent:
        return Claim.DATA_DEPENDENT, f"holds only for the votes of this run; for any votes {proven}"
    return Claim.FAILS, proven


def _refuted(row: SeedGroup) -> str:
    """Return the experimental results that refute a row's claim, or "" if there are none."""
    done, proven = row.counted, row.proven
    if done and done[0].kind is AuditKind.PAIR:
        return " and ".join(done[0].refuted_by)
    audited, limit = audited_of(done, row.unit), _limit(proven, done)
    slack = limit / proven if math.isfinite(limit) and proven > 0 else 1.0
    return "canaries" if audited is not None and above(audited.epsilon, row.claimed * slack) else ""


def _limit(proven: float, audits: Iterable[AuditRecord]) -> float:
    # Audited pipelines may have one record more or less, so use their proven epsilon, which may be slightly larger.
    return max([proven, *(audit.allowed for audit in audits if audit.allowed is not None)])


def remarks_of(row: SeedGroup) -> Iterator[str]:
    """Yield the remarks on a row that follow from its records and audits."""
    if row.plugin:
        yield f"plug-in {row.plugin}"
    if row.tuned:
        yield row.tuned
    if lost := row.collapsed:
        yield f"{lost} of {lost + len(row.keys)} seeds collapsed, counted at chance"
    if row.bypasses:
        yield "; ".join(row.bypasses)
    elif not covered(row.proven, row.claimed):
        yield "proven > claimed" + " without the votes" * row.data_dependent
    if row.record_level is not None:
        why = ", as images are public" if row.unit is PrivacyUnit.LABEL else ""
        yield f"record level: epsilon {epsilon_text(row.record_level, 'up')}{why}"
    if impossible := remark(row.impossible):
        yield impossible
    yield from _audit_remarks(row)
    if not row.plugin:
        place = row.dataset, row.preset
        yield from (said for said, methods in CHOSEN.items() if row.method in methods.get(place, ()))
        config = row.records[0].config
        yield from (
            said
            for said, dataset, methods, settings in CHOSEN_BY_HAND
            if row.dataset == dataset and row.method in methods and settings.items() <= config.items()
        )
    if count := len(row.reduced):
        yield f"{count} setting{'s differ' if count > 1 else ' differs'} from the paper's"
    if row.noise == "secure":
        yield "secure noise, not reproducible"
    if row.precision != "float32":
        yield f"teachers in {row.precision}"


def _audit_remarks(row: SeedGroup) -> Iterator[str]:
    """Yield the remarks that follow from the audits of a row."""
    if not (done := row.counted):
        return
    first, bug = done[0], ""
    audited = audited_of(done, first.unit)
    assert audited is not None
    own = first.unit is row.unit
    if not own:
        yield f"audited at record level: {audited_text(audited)}"
    if first.kind is AuditKind.PAIR:
        bug = first.verdict.partition("VIOLATED: ")[2]
    elif own and above(audited.epsilon, _limit(row.proven, done)):
        bug = "audited > proven"
    elif not own and row.record_level is not None and above(audited.epsilon, _limit(row.record_level, done)):
        bug = "audited > proven at record level"
    if bug:
        yield f"BUG: {bug}"
    elif refuted := _refuted(row):
        where = ", if read for any votes" if row.data_dependent else ", at record level" * (not own)
        yield f"refuted by experiment{where}: {refuted}"
    if first.verdict.startswith("inconclusive"):
        yield f"audit {first.verdict}"
    elif first.kind is not AuditKind.PAIR and no_power(done):
        seen = max((channel.epsilon for audit in done for channel in audit.power), default=None)
        known = "" if seen is None else f": {epsilon_text(seen, 'down')} seen without any noise"
        yield f"audit without power{known}"
    mechanisms = [m for audit in row.audits if audit.status is Status.DONE for m in audit.mechanisms]
    if broken := sorted({m.kind for m in mechanisms if m.verdict is MechanismVerdict.VIOLATED}):
        yield f"BUG: {', '.join(broken)} gives away more than it is charged for"
