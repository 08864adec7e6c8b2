"""A ranking's picture is self-contained, and its key lists the best methods once."""

from __future__ import annotations

from xml.etree import ElementTree

from bench.reports.pages import gather
from bench.reports.site.picture import board_picture
from bench.reports.site.rows import best_methods
from helpers.paths import ROOT

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_stands_alone_and_its_key_is_complete() -> None:
    source = gather([ROOT / "leaderboards"])
    text = board_picture(source, "mnist")
    picture = ElementTree.fromstring(text)
    methods = best_methods(source.board.tables()["mnist", "record"])
    key = [group.find(f"{SVG}text") for group in picture.findall(f"{SVG}g")]
    assert sorted(found.text or "" for found in key if found is not None) == sorted(methods)
    assert not any(name.endswith("href") for element in picture.iter() for name in element.attrib)
    assert "prefers-color-scheme: dark" in text
    # One point per row, and a ghost if the claim differs.
    points = [element for element in picture.iter(f"{SVG}g") if element.get("data-row")]
    assert len(points) == len(source.board.tables()["mnist", "record"])


def test_a_data_set_without_rows_has_no_picture() -> None:
    assert board_picture(gather([ROOT / "leaderboards"]), "imagenet") == ""
