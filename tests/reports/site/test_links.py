"""Symbolic links in a site's folder: nothing is written, deleted or copied through them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.core.errors import BenchError
from bench.reports.leaderboard import Source
from bench.reports.site.build import write_site
from bench.results.run_dir import RunDir
from helpers.records import record
from helpers.site import source


@pytest.mark.parametrize("place", ["site", "site/assets", "site/records", "site/raw", "site/raw/records"])
def test_nothing_is_written_or_deleted_behind_a_linked_folder(place: str, tmp_path: Path) -> None:
    outside, link = tmp_path / "outside", tmp_path / "runs" / place
    (outside / "records").mkdir(parents=True)
    for name in ("index.html", "mine.html", "records/mine.html"):
        (outside / name).write_text("mine")
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(BenchError, match=f"{place} is a link"):
        write_site(tmp_path / "runs", source())
    assert {path.read_text() for path in outside.rglob("*.html")} == {"mine"}
    assert len(list(outside.rglob("*.html"))) == 3


def test_linked_files_of_an_older_site_are_replaced_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    outside = tmp_path / "mine.txt"
    outside.write_text("mine")
    stale = tmp_path / "site" / "records" / "stale.html"
    stale.parent.mkdir(parents=True)
    for link in (stale, stale.parent.parent / "index.html"):
        link.symlink_to(outside)
    write_site(tmp_path, source())
    assert outside.read_text() == "mine"
    assert not os.path.lexists(stale)
    assert (tmp_path / "site" / "index.html").read_text().startswith("<!doctype html>")


def test_raw_json_of_a_link_is_not_copied(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs").create()
    secret = tmp_path / "secret"
    secret.write_text("secret")
    one = record()
    (run.records_path / f"{one.key}.json").symlink_to(secret)
    write_site(tmp_path / "out", Source([one], homes={one.key: run.path}))
    assert not (tmp_path / "out" / "site" / "raw").exists()
