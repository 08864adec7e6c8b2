"""The page of published epsilons: one line per system, from the board's rows and the verdicts."""

from __future__ import annotations

import functools
import math

from bench.core.types import Basis
from bench.reports.leaderboard import build_board
from bench.reports.published import COLUMNS, published_page
from bench.reports.reported.numbers import Reported, read_reported
from bench.reports.reported.systems import Systems, read_systems
from bench.results.record import Record
from helpers.records import collapsed, failed, record


@functools.cache
def systems() -> Systems:
    return read_systems()


@functools.cache
def numbers() -> list[Reported]:
    return read_reported()


def lines(*records: Record) -> dict[str, dict[str, str]]:
    page = published_page(build_board(records), systems(), numbers())
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    assert all(len(row) == len(COLUMNS) for row in rows)
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in rows}


def test_every_system_has_one_line_and_a_reason() -> None:
    found = lines(record(method="somebody-elses"))
    assert len(found) == len({number.system for number in numbers()})
    assert [name for name, line in found.items() if len(line["in one line"]) < 15] == []
    assert {line["measured on"] for line in found.values()} <= {"no row yet", "not built"}


def test_a_method_that_only_collapsed_says_so() -> None:
    assert lines(collapsed(method="gs-wgan"))["GS-WGAN"]["measured on"] == "collapsed"
    assert lines(failed(method="gs-wgan"))["GS-WGAN"]["measured on"] == "no row yet"


def test_a_line_has_the_row_nearest_to_ten_as_claimed_and_the_corrected_form_below() -> None:
    dpsd = [
        record(method="dpsd", epsilon=1.0, claimed=1.0, proven=3e5, accuracy=0.5),
        record(method="dpsd", epsilon=10.0, claimed=10.0, proven=2e7, accuracy=0.6),
        record(method="dpsd", epsilon=10.0, claimed=3.0, proven=10.0, accuracy=0.7, basis=Basis.PROVEN, key="proven"),
        record(method="dpsd", dataset="fmnist", epsilon=10.0, claimed=10.0, proven=math.inf, accuracy=0.8),
    ]
    found = lines(*dpsd, record(method="dpsd-sound", basis=Basis.PROVEN, proven=9.999, accuracy=0.9))
    line, below = found["DPSD"], found["DPSD, corrected"]
    assert (line["claimed"], line["proven"], line["accuracy (seeds)"]) == ("10.00", "2.0e7", "60.0 (1)")
    assert (line["measured on"], line["does the claim hold?"]) == ("mnist, record", "does not hold")
    assert (below["method here"], below["proven"], below["accuracy (seeds)"]) == ("dpsd-sound", "10.00", "90.0 (1)")
    assert "DGD, corrected" not in found


def test_every_system_names_its_method_or_why_there_is_none() -> None:
    from bench.interface.registry import METHODS

    named = {name for each in systems().systems.values() for name in (each.method, each.corrected) if name is not None}
    assert named <= {*METHODS.names()}
    unsaid = [name for name, each in systems().systems.items() if (each.method is None) == (each.not_built is None)]
    assert unsaid == []


def test_a_row_of_another_mechanism_than_the_papers_says_so() -> None:
    found = lines(record(method="gs-wgan"), record(method="psg"))
    assert found["GS-WGAN"]["does the claim hold?"] == "holds, for what runs here"
    assert "Measured here: critics are sampled one by one" in found["GS-WGAN"]["in one line"]
    assert found["PSG"]["does the claim hold?"] == "holds"


def test_a_verdict_that_rests_on_anothers_account_says_whose() -> None:
    found = lines()
    assert found["P3GM"]["paper"] == "unsound, by Dockhorn et al."
    assert found["DPGEN"]["paper"] == "unsound, by Dockhorn et al."
    taken = [name for name, each in systems().systems.items() if " account of " in (each.reason or "") and not each.by]
    assert taken == []
