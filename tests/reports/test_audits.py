"""Pair audits on the board, on their page and on the site: numbers, marks and escaped text."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest

from bench.cli.audit_output import print_audits
from bench.core.types import AuditKind, Instrument, PrivacyUnit
from bench.reports.audits import audits_page
from bench.reports.leaderboard import Source, build_board, cells_of, to_csv, to_markdown
from bench.reports.pages import write_pages
from bench.reports.site.addresses import page_name, record_href
from bench.reports.site.build import write_site
from bench.reports.site.rows import rankings
from bench.reports.summary import summary
from bench.results.candidates import CandidatesFound
from bench.results.full_size import with_full_size
from bench.results.record import Record
from bench.results.run_dir import RunDir
from helpers.pairs import full_size, pair_audit, release, transcript
from helpers.paths import BOARD
from helpers.records import provenance, record
from helpers.site import NASTY, Page, dead_links
from helpers.site import audit as canary_audit


def rows() -> tuple[list[Record], Source]:
    """Return a sound row, a refuted one, one refuted at record level, and an inconclusive one, with their audits."""
    sound, dpsd = record(method="pate-gnmax", claimed=1.0, proven=0.995), record(method="dpsd", claimed=1.0, proven=3e5)
    label = record(method="dpsd-label", claimed=1.0, proven=1.0, unit=PrivacyUnit.QUERY_LABEL)
    blind = record(method="pate", claimed=1.0, proven=0.49)
    audits = [
        pair_audit(release(0.09), transcript(0.704), student=sound.key),
        pair_audit(release(4.91, 5.55, 5.55), student=dpsd.key, allowed=3e5),
        pair_audit(release(3.59, 5.55, 5.55), student=label.key, allowed=99.0, record_level=True),
        pair_audit(release(0.0, 3.75, 0.4), student=blind.key, allowed=0.49),
    ]
    found = [sound, dpsd, label, blind]
    return found, Source(found, audits)


def test_the_board_has_the_bound_and_one_mark_for_a_refuted_claim() -> None:
    found, source = rows()
    board = {row.method: row for row in source.board.rows}
    assert {name: cells_of(row)["audited"] for name, row in board.items()} == {
        "pate-gnmax": "0.70", "dpsd": "4.91", "dpsd-label": "3.59 (record)", "pate": "inconclusive (sees at most 0.40)",
    }  # fmt: skip
    assert {name: cells_of(row)["claim"] for name, row in board.items()} == {
        "pate-gnmax": "holds", "dpsd": "refuted by experiment", "dpsd-label": "holds, refuted at record level",
        "pate": "holds",
    }  # fmt: skip
    assert "refuted by experiment: release" in board["dpsd"].remarks
    assert "refuted by experiment, at record level: release" in board["dpsd-label"].remarks
    assert "audit inconclusive: the releases could have shown at most 0.40" in board["pate"].remarks
    assert not any("audit" in remark or "refuted" in remark for remark in board["pate-gnmax"].remarks)
    table = summary(source.board)
    assert "Further methods on the board: dpsd." in table, "its claim fails, so no proven epsilon ranks it"
    assert to_markdown(source.board).count("| refuted by experiment |") == 1
    assert "[audits.md](audits.md)" in to_markdown(source.board)
    assert "audits.md" not in to_markdown(build_board(found)), "no page where nothing is audited"


def test_the_csv_says_what_was_audited_and_has_no_zero_for_what_could_not_be_seen() -> None:
    lines = {line["method"]: line for line in csv.DictReader(io.StringIO(to_csv(rows()[1].board)))}
    assert lines["pate"]["audited"] == ""
    assert lines["pate"]["audited_by"].startswith("release inconclusive (logits; one record's label flips")
    assert float(lines["pate-gnmax"]["audited"]) == 0.704
    assert lines["pate-gnmax"]["audited_by"].startswith("transcript 0.70 (answers of the ledger;")


def test_a_bound_above_proven_is_a_bug_and_no_mark() -> None:
    one = record(claimed=1.0, proven=0.995)
    (row,) = build_board([one], [pair_audit(transcript(1.2), student=one.key)]).rows
    assert "BUG: audited > proven" in row.remarks
    escaped = pair_audit(transcript(0.5), student=one.key, bypassed="the images differ")
    (row,) = build_board([one], [escaped]).rows
    assert "BUG: private data outside the ledger" in row.remarks


def test_a_violation_by_an_audit_that_does_not_count_is_a_bug_too() -> None:
    seeds = [record(proven=1.0, seed=seed) for seed in range(3)]
    fine, above = (pair_audit(transcript(e), student=seeds[s].key, allowed=1.0) for s, e in enumerate((0.5, 1.2)))
    measured = CandidatesFound(
        instrument=Instrument.TRANSCRIPT, candidates=10, runs=2000, right=900, low=0.42, high=0.48, confidence=0.95,
        bound=0.389,
    )  # fmt: skip
    named = pair_audit(student=seeds[0].key, kind=AuditKind.CANDIDATES, candidates=[measured], epsilon=None)
    for audits, said in (
        ([fine, above], "audited > proven"), ([named], "an attack exceeds the proven curve"),
        ([fine, named], "an attack exceeds the proven curve"),
    ):  # fmt: skip
        (row,) = build_board(seeds, audits).rows
        assert f"BUG: {said}" in row.remarks
        assert (row.rank, row.unranked) == ("–", "an audit contradicts what is proven")
    (row,) = build_board(seeds, [fine]).rows
    assert row.rank == "1"


def test_the_page_counts_pairs_at_full_size_and_tells_one_without_a_bound() -> None:
    one = record(claimed=1.0, proven=0.995)
    drawn = pair_audit(transcript(0.5, exact=False), student=one.key)
    older = with_full_size(drawn, [full_size(exact=False)], "", [], provenance())
    for audit, said in ((drawn, "| 0.50 |"), (older, "| 0.50; no difference at full size |")):
        page = audits_page(build_board([one], [audit]))
        assert said in page
        assert f"{int(audit is older)} of the 1 audit below ran the pair at full size." in page


def test_the_page_has_both_instruments_of_each_audited_row() -> None:
    page = audits_page(rows()[1].board)
    assert page.startswith("# Audits\n")
    assert (
        "| pate-gnmax | 10 (claimed) | 1.00 | 1.00 | 0.09 | 3.75 | 3.75 | 0.70 | release: one record's label flips; "
        in page
    )
    assert (
        "| dpsd | 10 (claimed) | 1.00 | 3.0e5 | 4.91 | 5.55 | 5.55 | – | one record's label flips | 200 + 200 | "
        in page
    )
    assert "| claim refuted by release |" in page
    assert "| 99.00 (record) | 3.59 |" in page
    assert "| inconclusive | 3.75 | 0.40 | – |" in page
    assert "mnist, unit query-label; delta 1e-05, confidence 95%" in page
    assert audits_page(build_board([record()])) == ""


def test_pages_are_written_and_the_site_shows_where_a_bound_comes_from(tmp_path: Path) -> None:
    source = rows()[1]
    written = {path.name for path in write_pages(tmp_path, source)}
    assert "audits.md" in written
    assert "claim refuted by release" in (tmp_path / "site" / "audits.html").read_text()
    own = (tmp_path / "site" / "records" / f"{page_name(source.records[1].key)}.html").read_text()
    assert "claim refuted by release. Unit record, adjacency replace" in Page(own).text
    assert dead_links(tmp_path / "site") == []
    every = {row.name: row for ranking in rankings(source) for row in ranking.rows}
    assert every["dpsd"].claim == "refuted by experiment"
    assert every["dpsd"].point.fails
    assert every["dpsd"].audited.note.startswith(
        "release 4.91 (logits; one record's label flips; 200 + 200 runs, cap 5.5"
    )
    assert every["dpsd-label"].audited.href.endswith("#audits")
    assert every["pate"].audited.powerless
    index = (tmp_path / "site" / "index.html").read_text()
    assert "release 4.91 (logits;" in index
    assert "refuted by experiment: refuted by release" in index


def test_the_link_leads_to_the_audit_that_counts() -> None:
    seeds = [record(seed=seed) for seed in (0, 1)]
    canaries = pair_audit(student=seeds[0].key, options="audit-0", kind=AuditKind.ONE_RUN, epsilon=None)
    (ranking,) = rankings(Source(seeds, [canaries, pair_audit(transcript(), student=seeds[1].key)]))
    assert ranking.rows[0].audited.href == record_href(seeds[1].key, "#audits")


def test_the_command_prints_pair_audits_and_canaries_apart(capsys: pytest.CaptureFixture[str]) -> None:
    print_audits([*rows()[1].audits, canary_audit("b")])
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("audits at 95% confidence") == 2
    assert said.index("by transcript") < said.index("right guesses")
    assert "inconclusive" in said


def test_texts_of_pair_audits_stay_text(tmp_path: Path) -> None:
    one = record(bypasses=(NASTY,), method=NASTY, key="nasty")
    bound = release(0.2, pair=NASTY, seen=NASTY, curve=0.3, curve_of=NASTY)
    audit = pair_audit(bound, student="nasty", bypassed=NASTY, allowed=math.inf, notes=[NASTY], method=NASTY)
    source = Source([one], [audit])
    write_site(tmp_path, source)
    for path in (tmp_path / "site").rglob("*.html"):
        page = Page(path.read_text())
        assert all(script.get("src") or script.get("type") == "application/json" for script in page.of("script")), path
    assert "{{ 7*7 }}" in Page((tmp_path / "site" / "audits.html").read_text()).text
    text = audits_page(source.board)
    assert "<script>" not in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1, "no cell opens another"
    assert "<script>" not in to_markdown(source.board)


@pytest.mark.parametrize("width", [100, 160])
def test_the_table_of_audits_breaks_no_key(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    committed = RunDir(BOARD).read_audits()[0]
    print_audits(committed)
    lines = capsys.readouterr().out.splitlines()
    for audit in committed:
        if audit.kind is AuditKind.CANDIDATES:
            assert any(line.startswith(f"{audit.student}: which candidate?") for line in lines)
            continue
        names = (audit.student.rpartition("-")[0], audit.student)  # with the hash if names share a prefix
        whole = tuple(start for name in names for start in (f"│ {name} ", f"student: {name}"))  # a cell, or a block
        assert any(f"{line} ".startswith(whole) for line in lines)
        assert audit.student in lines, "its whole key, above what the table leaves out"


def test_a_key_keeps_its_hash_where_others_begin_alike(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    print_audits([canary_audit(key) for key in ("digits-pate-s1-aa", "digits-pate-s1-bb", "digits-pate-s2-cc")])
    first = [line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert first == ["digits-pate-s1-aa", "digits-pate-s1-bb", "digits-pate-s2"]


def test_mechanisms_that_an_audit_does_not_draw_from_are_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    (dp_sgd, *_) = (a for a in RunDir(BOARD).read_audits()[0] if a.method == "dp-sgd" and a.kind is AuditKind.ONE_RUN)
    print_audits([dp_sgd])
    assert "hold" not in capsys.readouterr().out
