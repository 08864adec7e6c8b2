"""The page on the meaning of epsilon: its curves, and measured success rates next to their limits."""

from __future__ import annotations

import math

import pytest

from bench.core.rows import Estimated
from bench.core.types import PrivacyUnit
from bench.privacy.accounting.risk import PRIORS
from bench.privacy.events.conversions import exact_gaussian_epsilon
from bench.reports.leaderboard import Source
from bench.reports.site.meaning import (
    Measured,
    drawn,
    gaussian_table,
    naming_picture,
    reconstruction_by_gaussian,
    success_picture,
    successes,
)
from bench.results.attack_record import AttackRecord, AuditRecord, Scores
from bench.results.derived import risks_of
from bench.results.record import Record
from helpers.pairs import pair_audit, release
from helpers.records import record
from helpers.site import attack

EVENT = {"kind": "gaussian", "noise_multiplier": 1.0, "unit": "record", "adjacency": "add-remove"}


@pytest.mark.parametrize(("sigma", "known"), [(4.0, (0.15114, 0.01893, 0.00225)), (1.0, (0.38914, 0.09236, 0.01830))])
def test_the_curves_are_the_exact_ones_of_gaussian_noise(sigma: float, known: tuple[float, ...]) -> None:
    epsilon = exact_gaussian_epsilon(1 / sigma, 1e-5)
    assert [reconstruction_by_gaussian(epsilon, prior) for prior in PRIORS] == pytest.approx(known, abs=5e-6)


def test_the_table_begins_at_guesses_and_rises() -> None:
    rows = [[float(cell.rstrip("%")) for cell in row[1:]] for row in gaussian_table().rows]
    assert rows[0] == [10.0, 1.0, 0.1]
    assert rows == sorted(rows)


def of_gaussian() -> Record:
    epsilon = exact_gaussian_epsilon(1.0, 1e-5)
    found = record(proven=epsilon)
    assert found.privacy is not None
    return found.model_copy(update={"privacy": found.privacy.model_copy(update={"events": [EVENT]})})


def measured(errors: tuple[int, int, int, int], **changes: object) -> AuditRecord:
    student = of_gaussian()
    allowed = student.privacy.proven.epsilon if student.privacy else None
    return pair_audit(
        release(errors=errors, tests=4), student=student.key, **{"allowed": allowed, **changes}
    )  # fmt: skip


def source_of(audits: list[AuditRecord], attacks: list[AttackRecord]) -> Source:
    return Source([of_gaussian()], audits, attacks)


def test_an_audit_stands_beside_the_limit_of_its_row() -> None:
    source = source_of([measured((300, 1000, 400, 1000))], [])
    (one,) = successes(source)
    privacy = of_gaussian().privacy
    assert privacy is not None
    assert one.bound == risks_of(privacy)[0].advantage == pytest.approx(0.3829, abs=1e-4)
    assert one.value == pytest.approx(0.3)
    assert 0.2 < one.low < 0.3
    assert not one.exceeds
    assert "1 in" not in success_picture([one])
    assert "at least" in success_picture([one])


def test_what_exceeds_its_limit_is_marked() -> None:
    (one,) = successes(source_of([measured((0, 1000, 0, 1000))], []))
    assert one.exceeds
    assert 'class="pt fails' in success_picture([one])


@pytest.mark.parametrize(
    "changes", [{"record_level": True}, {"allowed": 0.5}, {"allowed": None}, {"unit": PrivacyUnit.CLIENT}]
)
def test_audits_of_something_else_than_the_row_are_left_out(changes: dict[str, object]) -> None:
    assert successes(source_of([measured((300, 1000, 400, 1000), **changes)], [])) == []


def test_membership_attacks_stand_beside_the_limit_at_their_rate() -> None:
    metrics = {"natural tpr@0.01": Estimated(value=0.05, low=0.02, high=0.09, n=100)}
    changes = {"goal": "membership", "attack": "rmia", "details": {"headline": "natural"}}
    found = attack(of_gaussian().key, targets={"student": Scores(metrics=metrics)}, **changes)
    (one,) = successes(source_of([], [found, attack(of_gaussian().key)]))
    privacy = of_gaussian().privacy
    assert privacy is not None
    assert (one.value, one.low, one.kind) == (0.05, 0.02, Measured.MEMBER)
    assert one.bound == risks_of(privacy)[0].tpr[0]
    label = of_gaussian().model_copy(update={"privacy": privacy.model_copy(update={"unit": PrivacyUnit.QUERY_LABEL})})
    assert successes(Source([label], [], [found])) == [], "its curve bounds no record, which the attack guesses"


def test_rows_without_a_finite_proof_are_not_drawn() -> None:
    rows = Source([of_gaussian(), record(method="dgd", bypasses=("it saw everything",))], [], []).board.rows
    assert [row.method for row in drawn(rows)] == ["pate"]
    assert naming_picture(rows).count('class="pt') == len(PRIORS)
    assert all(math.isfinite(row.proven) for row in drawn(rows))
