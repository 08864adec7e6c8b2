"""The order of a ranking's rows, and the style of methods in its plot."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

from bench.reports.leaderboard import Source
from bench.reports.pages import gather
from bench.reports.reported.numbers import Verdict
from bench.reports.site.rows import NAMED, rankings
from bench.reports.site.svg import COLOURS, ONLY_REPORTED, Look, front, looks
from helpers.paths import ROOT
from helpers.records import record
from helpers.site import reported


def test_rows_are_ranked_within_the_budget_that_covers_what_is_proven() -> None:
    found = [
        record(method="dear", epsilon=10.0, accuracy=0.99),
        record(method="strong", epsilon=1.0, claimed=1.0, proven=0.9, accuracy=0.90),
        record(method="weak", epsilon=1.0, claimed=1.0, proven=0.9, accuracy=0.80),
        record(method="nonprivate", epsilon=None, claimed=math.inf, accuracy=1.0, bypasses=("all",)),
    ]
    theirs = [reported(epsilon=1.0, value=99.9), reported(epsilon=None, value=99.8), reported(epsilon=3.0)]
    everything = Source(found, reported=theirs)
    (ranking,) = rankings(everything)
    assert [(row.group, row.name, row.place) for row in ranking.rows] == [
        ("proven epsilon up to 1", "strong", "–"),
        ("proven epsilon up to 1", "weak", "–"),
        ("proven epsilon up to 10", "dear", "–"),
        *[("printed in papers, epsilon not proven", "dgd", "–")] * 3,
        ("without privacy", "nonprivate", "–"),
    ]


def test_the_front_rises_and_holds_proven_rows_of_ours_alone() -> None:
    found = [
        record(method="cheap", claimed=1.0, proven=0.9, accuracy=0.6),
        record(method="worse", claimed=1.0, proven=2.0, accuracy=0.5),
        record(method="best", claimed=1.0, proven=29.0, accuracy=0.9),
        record(method="dgd", bypasses=("it saw everything",), accuracy=0.99),
    ]
    theirs = [reported(verdict=Verdict.SOUND, value=95.0)]
    (ranking,) = rankings(Source(found, reported=theirs))
    points = [row.point for row in ranking.rows]
    assert [p.said.split(",")[0] for p in front(points)] == ["cheap", "best"]
    plot = str(ranking.plot)
    assert plot.count('class="pt') == 5
    assert plot.count(' data-x="') == 3, "reported and unproven rows are never on the front"
    assert plot.count("fails") == 3, "worse, best and dgd claim less than is proven"
    assert plot.count('class="ghost"') == 3, "the other claims are close to the proof"
    assert "hollow" not in ranking.card


def test_methods_of_the_committed_board_differ_in_colour_or_symbol() -> None:
    committed = gather([ROOT / "leaderboards"])
    methods = {row.method for row in committed.board.rows}
    known = looks(methods)
    assert len(set(known.values()) | {ONLY_REPORTED}) == len(methods) + 1 > 16
    drawn: dict[str, set[Look]] = {}
    for ranking in rankings(committed):
        for name, look in ranking.key:
            drawn.setdefault(name, set()).add(look)
        for row in ranking.rows:
            look = known.get(row.name, ONLY_REPORTED)
            drawn_as = f"k{look.colour}" if (row.name, look) in ranking.key else "rest"
            assert f'class="pt {drawn_as}' in ranking.plot
        assert len(ranking.key) <= NAMED
    assert drawn == {name: {known[name]} for name in drawn}, "the same in every ranking"


def test_forty_methods_differ_and_have_the_same_look_in_any_order() -> None:
    names = [f"method {i}" for i in range(40)]
    assert len(set(looks(names).values())) == 40
    assert looks(names) == looks(reversed(names))


CVD = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""What is seen of linear RGB by readers who lack a kind of cone (Machado et al. 2009, severity 1)."""


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_of_methods_differ_for_every_reader(theme: int) -> None:
    style = (ROOT / "reports" / "site" / "assets" / "plot.css").read_text()
    found = re.findall(r"--(k\d+|paper): #([0-9a-f]{6});", style)
    half = len(found) // 2
    names = [name for name, _ in found[:half]]
    colours = [int(name[1:]) for name in names if name != "paper"]
    assert sorted(names) == ["k0", *(f"k{i}" for i in range(1, COLOURS + 1)), "paper"]
    assert [name for name, _ in found[half:]] == names
    assert all(f".k{i} {{ color: var(--k{i}); }}" in style for i in range(COLOURS + 1))
    rgb = [[int(text[i : i + 2], 16) / 255 for i in (0, 2, 4)] for _, text in found[theme * half :][:half]]
    linear = np.array([[v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in one] for one in rgb])
    light = linear @ [0.2126, 0.7152, 0.0722] + 0.05
    paper = light[names.index("paper")]
    assert min(np.maximum(light, paper)[1:] / np.minimum(light, paper)[1:]) > 3, "WCAG 1.4.11"
    to_cones = [[0.4122, 0.5363, 0.0515], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
    to_lab = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]  # Oklab
    for kind, seen in CVD.items():
        lab = np.cbrt(np.clip(linear[1:] @ np.array(seen).T, 0, 1) @ np.array(to_cones).T) @ np.array(to_lab).T
        apart = np.linalg.norm(lab[:, None] - lab[None], axis=2) + np.eye(len(lab))
        assert apart.min() > 0.1, kind
        for one, other in itertools.combinations(looks(f"method {i:02}" for i in range(22)).values(), 2):
            assert one.symbol != other.symbol or apart[colours.index(one.colour), colours.index(other.colour)] > 0.14
