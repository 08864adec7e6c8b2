"""A method's page: which runs it shows, and how it renders docstrings."""

from __future__ import annotations

from pathlib import Path

from bench.reports.leaderboard import Source
from bench.reports.site.build import write_site
from bench.reports.site.record_pages import paragraphs
from helpers.records import record
from helpers.site import Page


def test_docstrings_become_paragraphs() -> None:
    found = paragraphs("A ``code``\nline.\n\n<b> & :mod:`bench.experiments.run`\n\n- a list\n- of two")
    assert found[0] == (False, "A <code>code</code> line.")
    assert found[1] == (False, "&lt;b&gt; &amp; <code>bench.experiments.run</code>")
    assert found[2][0]


def test_a_method_page_tells_of_the_median_seed_at_the_middle_budget(tmp_path: Path) -> None:
    found = [
        record(epsilon=epsilon, seed=seed, claimed=epsilon, proven=epsilon / 2, accuracy=accuracy)
        for epsilon in (1.0, 3.0, 10.0)
        for seed, accuracy in enumerate((0.7, 0.9, 0.8))
    ]
    found += [record(dataset="att-faces-a")]
    write_site(tmp_path, Source(found))
    text = Page((tmp_path / "site" / "methods" / "pate.html").read_text()).text
    assert text.index("mnist, unit record") < text.index("att-faces-a, unit record")
    assert "A typical run: mnist-pate-3.0-s2" in text
    assert "claims epsilon 3.00" in text
