"""Texts of records produce no links or images on Markdown pages."""

from __future__ import annotations

import re
from pathlib import Path

from markdown_it import MarkdownIt
from typer.testing import CliRunner

from bench.cli.jobs import bad
from bench.cli.main import app
from bench.core.rows import Change, Estimated
from bench.reports.attacks import findings, tables
from bench.reports.leaderboard import Source
from bench.reports.pages import write_pages
from bench.results.attack_record import AttackRecord
from bench.results.record import ImageGrid
from bench.results.run_dir import RunDir
from bench.results.text import markdown_table, md
from helpers.records import failed, record
from helpers.site import LINKS, attack


def leads(text: str) -> list[str]:
    """Return the targets of the page's links and images, and plain addresses that GitHub turns into links."""
    found = []
    for block in MarkdownIt("commonmark").enable("table").parse(text):
        for token in block.children or ():
            found += [str(token.attrs[name]) for name in ("href", "src") if name in token.attrs]
    return found + re.findall(r"(?:\w+://|www\.)\S+", text)


def test_a_table_cell_makes_no_link_and_reads_as_it_is() -> None:
    assert leads(LINKS) != []
    table = markdown_table(("what",), [(LINKS,), (LINKS.replace("`", ""),)])
    assert leads(table) == []
    (cell,) = MarkdownIt("commonmark").parseInline(md(LINKS))
    shown = "".join(token.content for token in cell.children or ())
    assert shown == LINKS


def test_pages_of_forged_records_lead_nowhere_else(tmp_path: Path) -> None:
    forged = record(
        method=LINKS, key="forged", public_data=LINKS, bypasses=(LINKS,), config={LINKS: LINKS}, notes=[LINKS],
        reduced=[Change.of(LINKS, 1, 2)], citation=LINKS,
    )  # fmt: skip
    grid = ImageGrid(file="x) [a](http://evil.example", sha256="0" * 64)
    broken = failed(LINKS, method="broken", key="broken").model_copy(update={"image_grid": grid})
    struck = attack("forged", no_power=LINKS, attack=LINKS)
    write_pages(tmp_path, Source([forged, broken, record(dataset=LINKS, key="other")], attacks=[struck]))
    pages = list(tmp_path.glob("*.md"))
    assert len(pages) >= 2
    for page in pages:
        assert [
            where for where in leads(page.read_text()) if "evil" in where and not where.startswith("x%29%20%5B")
        ] == []


def test_the_report_of_forged_records_leads_nowhere_else(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    run.write_record(record(method="dgd", epsilon=10.0, reduced=[Change.of(f"x]({LINKS})", 1, 2)], notes=[LINKS]))
    run.write_record(failed(LINKS, method="dgd", epsilon=1.0))
    run.write_row(attack(record(method="dgd", epsilon=10.0).key, no_power=LINKS))
    words = ["report", str(tmp_path / "run"), "--paper", "dgd", "--table", "I", "--into", str(tmp_path / "out")]
    assert CliRunner().invoke(app, words).exit_code == 0
    for page in (tmp_path / "out").rglob("*.md"):
        assert [where for where in leads(page.read_text()) if "evil" in where] == []


def test_a_measure_above_its_bound_is_loud() -> None:
    def struck(low: float, family: str = "outlier") -> AttackRecord:
        measures = {f"{family} {name}": Estimated(value=0.9, low=low, high=1.0, n=9) for name in ("auc", "tpr@0.01")}
        return attack(
            "x", goal="membership", attack="lira", details={"headline": family},
            targets={"student": {"metrics": measures}},
            bounds={"auc": 0.95, "tpr@0.01": 0.3001},
        )  # fmt: skip

    ((_, columns, rows),) = tables([], [struck(0.3)])
    assert (dict(zip(columns, rows[0], strict=True))["TPR at 1%"], "verdict" in columns) == (
        "90.0 [30.0, 100.0] / 30.1", False,
    )  # fmt: skip
    ((_, columns, rows),) = tables([], [struck(0.4)])
    assert rows[0][columns.index("verdict")] == "ABOVE THE PROVEN BOUND"
    assert findings([struck(0.4)]) == [
        "ABOVE THE PROVEN BOUND: x--mi-face-1: outlier tpr@0.01 is at least 0.4000, and the proven curve allows 0.3001"
    ]
    assert (bad(struck(0.4)), bad(struck(0.3))) == (True, False)
    assert not bad(struck(0.4, "duplicated")), "four records may leak more than one"
