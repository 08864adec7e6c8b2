"""Records of pair audits: verdicts and the meaning of bounds."""

from __future__ import annotations

import json
import math

import pytest

from bench.core.rows import Change
from bench.core.types import AuditKind, PrivacyUnit
from bench.results.attack_record import AuditRecord, Channel, PairBound, parse_row
from bench.results.audited import audited_of
from bench.results.record import Failure, Status
from bench.results.text import audited_text
from helpers.pairs import full_size, pair_audit, release, transcript
from helpers.paths import ROOT

COMMITTED = sorted((ROOT / "leaderboards" / "audits").glob("*.json"))


def test_a_pair_audit_survives_its_file_infinite_cap_included() -> None:
    given = pair_audit(
        release(0.09, errors=(80, 200, 90, 200), tests=4, curve=0.12, curve_of="exact Gaussian"), transcript(),
        reduced=[Change.of("epochs", 40.0, 1.0)], bypassed="the images differ", record_level=True,
    )  # fmt: skip
    assert parse_row(given.to_json(), AuditRecord) == given


def test_audits_of_earlier_versions_stay_readable() -> None:
    old = [text for text in (path.read_text() for path in COMMITTED) if '"pairs"' not in text]
    assert old
    for text in old:
        audit = parse_row(text, AuditRecord)
        assert (audit.pairs, audit.reduced, audit.bypassed, audit.record_level) == ([], [], "", False)
        assert audit.kind is not AuditKind.PAIR
        written, again = json.loads(text), json.loads(audit.model_dump_json(exclude_unset=True))
        del written["provenance"], again["provenance"]  # has fields that are no longer written
        assert again == written


CASES: dict[str, tuple[list[PairBound], dict[str, object], str]] = {
    "above proven": ([transcript(0.996)], {}, "VIOLATED: audited > proven"),
    "equal to proven but for rounding": ([transcript(0.995 + 1e-9)], {}, "consistent"),
    "outside the ledger": ([transcript()], {"bypassed": "the images differ"},
                           "VIOLATED: private data outside the ledger"),
    "release above claimed": ([release(4.91, 5.55)], {"allowed": 3e5}, "claim refuted by release"),
    "transcript above claimed": ([release(0.0), transcript(9e4)], {"allowed": 3e5}, "claim refuted by transcript"),
    "both": ([transcript(9e4), release(4.9, 5.55)], {"allowed": 3e5}, "claim refuted by release and transcript"),
    "refuted without a run without noise": ([release(2.5, power=None)], {"allowed": math.inf},
                                            "claim refuted by release"),
    "a query's claim, a record's pair": ([release(3.59)], {"allowed": 99.0, "record_level": True},
                                         "claim refuted by release, at record level"),
    "nothing above": ([release(0.09), transcript()], {}, "consistent"),
    "release with power": ([release()], {}, "consistent"),
    "too few runs": ([release(4.91, 5.55, 5.55)], {"claimed": 10.0, "allowed": math.inf},
                     "inconclusive: the releases could have shown at most 5.55"),
    "no power": ([release(0.0, 3.75, 0.4)], {}, "inconclusive: the releases could have shown at most 0.40"),
    "power not run": ([release(0.0, 3.75, None)], {}, "inconclusive: the releases could have shown at most 3.75"),
    "unmoved transcript": ([transcript(0.0)], {}, "inconclusive: the ledger's answers reveal nothing"),
    "unmoved transcript, a loss at full size": ([transcript(0.0), full_size()], {},
                                                "inconclusive: the ledger's answers reveal nothing"),
    "a loss at full size alone": ([full_size()], {}, "inconclusive: no counted run ended in the time given"),
    "a loss at full size above proven": ([transcript(), full_size(0.996)], {}, "VIOLATED: audited > proven"),
    "a loss at full size above claimed": ([full_size(1.1)], {"allowed": 3e5},
                                          "claim refuted by transcript at full size"),
    "bypassed transcript": ([transcript(0.5)], {"allowed": math.inf, "bypassed": "the images differ"},
                            "inconclusive: the images differ"),
    "no bound": ([], {}, "inconclusive: no counted run ended in the time given"),
    "no privacy": ([release(3.75)], {"claimed": math.inf, "allowed": math.inf}, "nothing is claimed or proven"),
    "failed": ([], {"status": Status.FAILED, "failure": Failure(kind="error", reason="no GPU")}, "failed: no GPU"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_verdict(case: str) -> None:
    pairs, changes, verdict = CASES[case]
    audit = pair_audit(*pairs, **changes)
    assert audit.verdict == verdict
    assert audit.violated == verdict.startswith("VIOLATED")
    assert bool(audit.refuted_by) == ("refuted" in verdict)
    assert audit.powerless == (verdict.startswith(("inconclusive", "failed")) or case == "no privacy")


def test_a_low_release_bound_tells_only_what_cap_and_power_could_have_shown() -> None:
    weak, strong = release(0.0, 0.9, 3.0), release(0.0, 3.75, 1.1)
    audit = pair_audit(weak, strong, unit=PrivacyUnit.RECORD)
    assert [audit.conclusive(pair) for pair in audit.pairs] == [False, True]
    assert audit.at_most == 1.1


def canaries(student: str = "a", correct: int = 100) -> AuditRecord:
    channel = Channel(
        name="student", family="outlier", canaries=1000, guesses=100, correct=correct, epsilon=3.46, cap=3.46
    )
    return pair_audit(student=student, options="audit-0", kind=AuditKind.ONE_RUN, channels=[channel], epsilon=3.46)


def test_a_pair_audit_counts_before_canaries_whatever_either_saw() -> None:
    found = audited_of([canaries(), pair_audit(transcript(0.5)), canaries("b")], PrivacyUnit.RECORD)
    assert found is not None
    assert found.epsilon == 0.5
    failure = Failure(kind="error", reason="no GPU")
    failed = pair_audit(status=Status.FAILED, failure=failure)
    again = audited_of([canaries(), failed], PrivacyUnit.RECORD)
    assert again is not None
    assert again.epsilon > 3


def test_a_pair_audit_that_had_nothing_to_refute_hides_no_canaries() -> None:
    nothing = pair_audit(claimed=math.inf, allowed=None)
    assert audited_of([nothing], PrivacyUnit.RECORD) is None
    assert audited_of([nothing, canaries()], PrivacyUnit.RECORD) == audited_of([canaries()], PrivacyUnit.RECORD)
    late = audited_of([pair_audit(), canaries()], PrivacyUnit.RECORD)
    assert audited_text(late) == "inconclusive", "a claim, and no run was counted in time"


def test_of_several_pair_audits_the_lowest_seed_counts_not_the_largest_bound() -> None:
    audits = [
        pair_audit(transcript(0.9), student="mnist-pate-eps1-quick-s10-0a"),
        pair_audit(transcript(0.7), student="mnist-pate-eps1-quick-s2-ff", options="audit-2"),
        pair_audit(transcript(0.8), student="mnist-pate-eps1-quick-s2-ff", options="audit-1", plan={"seed": 1}),
    ]
    for order in (audits, audits[::-1]):
        found = audited_of(order, PrivacyUnit.RECORD)
        assert found is not None
        assert found.epsilon == 0.7


def test_a_record_level_audit_counts_for_records_alone() -> None:
    level = pair_audit(release(3.59), record_level=True)
    assert audited_of([level], PrivacyUnit.QUERY_LABEL) is None
    found = audited_of([level], PrivacyUnit.RECORD)
    assert found is not None
    assert found.epsilon == 3.59


def test_what_was_audited_is_said_the_larger_bound_first() -> None:
    bounds = (release(0.094, cap=3.759, power=3.7, curve=0.12, curve_of="exact Gaussian"), transcript(0.788))
    found = audited_of([pair_audit(*bounds)], PrivacyUnit.RECORD)
    assert found is not None
    assert audited_text(found) == "0.78"
    assert found.audit == (
        "transcript 0.78 (answers of the ledger; one record per teacher, the vote tied; exact); release 0.09 (logits; "
        "one record's label flips; 200 + 200 runs, cap 3.75, without noise 3.70, by the curve 0.12, exact Gaussian)"
    )


@pytest.mark.parametrize(
    ("pairs", "changes", "text"),
    [
        ([release(0.0, 3.759, None)], {}, "inconclusive (sees at most 3.75)"),
        ([release(0.0, 3.75, 0.4)], {}, "inconclusive (sees at most 0.40)"),
        ([release(0.0, 3.75, 0.0)], {}, "inconclusive"),
        ([transcript(0.0)], {}, "inconclusive"),
        ([transcript(0.0), full_size()], {}, "inconclusive"),
        ([transcript(), full_size(0.99)], {}, "0.99"),
        ([], {}, "inconclusive"),
        ([release(0.0, 3.75, 3.75)], {}, "0.00"),
        ([release(0.0, 0.03, None), transcript()], {}, "0.78"),
        ([release(4.919, 5.55)], {"claimed": 10.0, "allowed": math.inf}, "4.91"),
    ],
)
def test_zero_is_printed_only_where_more_would_have_been_seen(
    pairs: list[PairBound], changes: dict[str, object], text: str
) -> None:
    audit = pair_audit(*pairs, **changes)
    found = audited_of([audit], PrivacyUnit.RECORD)
    assert audited_text(found) == text
    assert found is not None
    assert "release 0.00" not in found.audit or text == "0.00"
