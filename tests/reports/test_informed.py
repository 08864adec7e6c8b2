"""Audits by candidates on the board: their page, their columns, the record's page, and the page on epsilon."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest

from bench.core.types import AuditKind, Instrument
from bench.reports.audits import audits_page, informed_tables
from bench.reports.leaderboard import Source, to_csv, to_markdown
from bench.reports.site.addresses import record_href
from bench.reports.site.build import write_site
from bench.reports.site.meaning import Measured, successes
from bench.results.attack_record import AuditRecord
from bench.results.audited import audited_of
from bench.results.candidates import CandidatesFound
from bench.results.frame import results_frame
from bench.results.record import Record
from helpers.pairs import pair_audit, transcript
from helpers.records import record


def guesses(candidates: int, right: int, low: float, **changes: object) -> CandidatesFound:
    given = {
        "instrument": Instrument.TRANSCRIPT, "candidates": candidates, "runs": 2000, "right": right, "low": low,
        "high": 0.5, "confidence": 0.9875, "bound": 0.389,
    }  # fmt: skip
    return CandidatesFound.model_validate({**given, **changes})


def audit_of(student: Record, *found: CandidatesFound, **changes: object) -> AuditRecord:
    assert student.privacy is not None
    given = {"allowed": student.privacy.proven.epsilon, "epsilon": None, "kind": AuditKind.CANDIDATES, "runs": 0}
    return pair_audit(student=student.key, options="audit-9", **{**given, "candidates": list(found), **changes})


@pytest.fixture
def source() -> Source:
    """A row of two seeds, each with an audit by candidates, the first also with one by pairs."""
    first, second = record(proven=1.0), record(proven=1.0, seed=1)
    found = (
        guesses(10, 710, 0.334),
        guesses(10, 5, 0.031, instrument=Instrument.RELEASE, runs=48, silent=(6, 8)),
        guesses(100, 160, 0.067, bound=0.092),
    )
    audits = [
        audit_of(second, guesses(10, 300, 0.13)),
        audit_of(first, *found),
        pair_audit(transcript(0.7), student=first.key),
    ]
    return Source([first, second], audits)


def test_the_page_lists_what_the_attacker_saw_of_the_first_seed(source: Source) -> None:
    (table,) = informed_tables(source.board)
    assert [row[3:] for row in table.rows] == [
        ("10", "transcript", "710 of 2,000", "35.50", "33.40 to 50.00", "38.90", "–"),
        ("10", "release", "5 of 48", "10.42", "3.10 to 50.00", "38.90", "6 of 8"),
        ("100", "transcript", "160 of 2,000", "8.00", "6.70 to 50.00", "9.20", "–"),
    ]
    page = audits_page(source.board)
    assert page.index("# Audits") < page.index("# The informed attacker") < page.index("710 of 2,000")


def test_a_board_with_nothing_but_candidates_has_the_page_too(source: Source) -> None:
    alone = Source(source.records, [audit for audit in source.audits if audit.candidates])
    assert audits_page(alone.board).startswith("# The informed attacker")
    assert "[audits.md](audits.md)" in to_markdown(alone.board)
    (row,) = alone.board.rows
    assert (row.audited, row.audit_status) == (None, "none"), "a guess is no bound on epsilon"
    assert audited_of(alone.audits, row.unit) is None


def test_columns_have_the_lower_limits_beside_the_bounds(source: Source) -> None:
    (line,) = csv.DictReader(io.StringIO(to_csv(source.board)))
    assert (line["named@0.1"], line["named@0.01"], line["named@0.001"]) == ("0.334", "0.067", "")
    frame = results_frame(source.records, source.audits).set_index("seed")
    assert frame["named@0.1"].tolist() == [0.334, 0.13]
    assert math.isnan(frame.loc[1, "named@0.01"])
    assert frame.loc[0, "audited"] == 0.7


def test_the_record_s_page_has_the_guesses(source: Source, tmp_path: Path) -> None:
    write_site(tmp_path, source)
    page = (tmp_path / "site" / record_href(source.records[0].key)).read_text(encoding="utf-8")
    assert "<td>710 of 2,000</td>" in page
    assert "within the bound. Unit record" in page
    assert "0 runs" not in page
    audits, meaning = (
        (tmp_path / "site" / name).read_text(encoding="utf-8") for name in ("audits.html", "meaning.html")
    )
    assert "710 of 2,000" in audits
    assert "4 games of an attacker who knows all records but one" in " ".join(meaning.split())


def test_guesses_stand_beside_their_own_bound(source: Source) -> None:
    found = [one for one in successes(source) if one.kind is Measured.NAMED]
    assert [(one.value, one.low, one.bound) for one in found if "100" in one.said] == [(0.08, 0.067, 0.092)]
    assert not any(one.exceeds for one in found)
    above = audit_of(source.records[0], guesses(10, 900, 0.43))
    assert [one.exceeds for one in successes(Source(source.records, [above]))] == [True]
    other = audit_of(source.records[0], guesses(10, 900, 0.43), allowed=9.0)
    assert successes(Source(source.records, [other])) == [], "its runs have other privacy settings than the row"
