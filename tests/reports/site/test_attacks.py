"""Attacks on a student, and robustness, on the site."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from bench.reports.attacks import attacks_page
from bench.reports.leaderboard import Source
from bench.reports.site.addresses import page_name
from bench.reports.site.build import build_site, write_site
from bench.results.run_dir import RunDir
from helpers.records import record
from helpers.site import Page, attack, dead_links


def test_a_record_shows_what_attacks_made_of_its_student(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs").create()
    found = record()
    drawn = [attack(found.key, key=f"{found.key}--{name}", pictures=[f"attacks/{found.key}--{name}.png"])
             for name in ("a", "b")]  # fmt: skip
    Image.new("L", (8, 8)).save(run.path / drawn[0].pictures[0])
    (run.path / drawn[1].pictures[0]).write_bytes(b"no image")
    write_site(run.path, Source([found], [], drawn, homes={one.key: run.path for one in (found, *drawn)}))
    page = Page((run.path / "site" / "records" / f"{page_name(found.key)}.html").read_text())
    (image,) = page.of("img")
    assert image["alt"] == "mi-face (inversion) on this student and its controls"
    assert dead_links(run.path / "site") == []


def test_robustness_stands_apart_from_attacks_on_privacy(tmp_path: Path) -> None:
    found = record()
    made = [attack(found.key), attack(found.key, key=f"{found.key}--r", attack="robustness", goal="robustness")]
    page = Page(dict(build_site(Source([found], [], made)))[f"records/{page_name(found.key)}.html"].decode())
    assert {"attacks", "robustness"} <= set(page.ids)
    assert "does not measure privacy" in page.text
    privacy, apart = attacks_page([found], made).split("# Robustness, which is not privacy\n")
    assert "does not measure privacy" in apart
    assert "mi-face" in privacy
    assert "mi-face" not in apart
