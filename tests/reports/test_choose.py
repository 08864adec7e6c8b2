"""`bench choose` and `bench compare` agree with the board and state the basis of their answers."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import bench
from bench.core.errors import BenchError
from bench.metrics.intervals import SeedSpread
from bench.metrics.ranking import Contender, difference
from bench.reports.board_row import BoardRow
from bench.reports.choose import Wanted, choose, nearest_dataset, ranked
from bench.reports.leaderboard import Board, Source, build_board, to_csv
from bench.reports.order import BUDGETS
from bench.reports.runs import read_board
from bench.reports.site.front_page import answer
from bench.reports.site.rows import rankings
from bench.reports.summary import BUDGETS as SUMMED
from bench.reports.summary import summary
from bench.results.record import Record
from bench.results.run_dir import RunDir
from helpers import commands
from helpers.paths import BOARD
from helpers.records import provenance, record


def rows(method: str, accuracy: float, proven: float, dataset: str = "mnist", **changes: Any) -> list[Record]:
    kinds = changes.pop("public_kinds", ["none"])
    return [
        record(
            method=method, dataset=dataset, seed=seed, accuracy=accuracy + 0.002 * seed, proven=proven, claimed=proven,
            epsilon=proven, public_kinds=kinds, **changes,
        )
        for seed in range(3)
    ]  # fmt: skip


RECORDS = {
    one.key: one
    for one in [
        *rows("pate", 0.97, 0.9, public_kinds=["unlabelled"]),
        *rows("dp-sgd", 0.90, 0.9, provenance=provenance(wall_seconds=900.0)),
        *rows("dp-merf", 0.80, 0.5, provenance=provenance(wall_seconds=60.0)),
        *rows("dp-gan", 0.99, 9.0),
        *rows("dpsd-sound", 0.9, 1.0, dataset="cifar10"),
    ]
}


@pytest.fixture(scope="module")
def board() -> Board:
    return build_board(RECORDS.values())


def names(chosen: object) -> list[str]:
    assert isinstance(chosen, tuple | list)
    return [row.method for row in chosen if isinstance(row, BoardRow)]


def test_a_budget_admits_what_it_covers(board: Board) -> None:
    def chosen(**changes: Any) -> list[str]:
        return names(choose(board, Wanted(**changes)).rows)

    assert chosen(eps=1) == ["pate", "dp-sgd", "dp-merf"]
    assert chosen(eps=0.89) == ["dp-merf"]
    assert chosen(eps=9) == ["dp-gan", "pate", "dp-sgd", "dp-merf"]
    assert chosen(eps=1, public=False) == ["dp-sgd", "dp-merf"]
    assert chosen(eps=1, public=False, seconds=60) == ["dp-merf"]


def test_what_less_costs_is_the_distance_to_the_best_with_less(board: Board) -> None:
    found = choose(board, Wanted(eps=9))
    less = {one.what: (one.row and one.row.method, one.points) for one in found.less}
    assert less["epsilon at most 1"] == ("pate", pytest.approx(2.0))
    assert "no public data" not in less  # the best uses none


def test_a_budget_that_nothing_satisfies_says_what_would(board: Board) -> None:
    with pytest.raises(BenchError, match=r"smallest budget with one is --eps 0\.50\.$"):
        choose(board, Wanted(eps=0.1))
    cheaper = build_board([*rows("dp-gan", 0.99, 9.0), *rows("dp-gan", 0.5, 0.7)])  # the best up to 9
    with pytest.raises(BenchError, match=r"smallest budget with one is --eps 0\.70\.$"):
        choose(cheaper, Wanted(eps=0.1))
    with pytest.raises(BenchError, match=r"None has three seeds and a finite proven epsilon: run more seeds"):
        choose(build_board(rows("dp-gan", 0.99, 9.0)[:2]), Wanted(eps=1000))
    with pytest.raises(BenchError, match="Leave out --time"):
        choose(board, Wanted(eps=1, seconds=1))
    with pytest.raises(BenchError, match=r"no rows of svhn, unit record. It has: mnist \(record\), cifar10"):
        choose(board, Wanted(eps=1, dataset="svhn"))
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(BenchError, match="--eps takes a positive finite number"):
            Wanted(eps=wrong)


def test_ones_own_folder_gets_the_most_similar_data_set_and_runs_on_itself(board: Board, tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / "two words" / f"c{number}").mkdir(parents=True)
        Image.new("RGB", (30, 30)).save(tmp_path / "two words" / f"c{number}" / "a.png")
    own = f"folder:{tmp_path / 'two words'}"
    found = choose(board, Wanted(eps=1, dataset=own))
    assert found.measured_on == "cifar10"
    assert repr(found.rows[0]).startswith(f"<{found.rows[0].method} on cifar10: ")
    assert f"--datasets '{own}' " in found.commands["dpsd-sound"]
    assert "--delta" not in found.commands["dpsd-sound"]  # the folder's own default
    for command in choose(board, Wanted(eps=7, dataset=own)).commands.values():  # the whole budget
        assert "--eps 7 " in command
        assert "--basis proven" in command
        assert "--adjacency" not in command


def test_nearness_counts_classes_size_and_channels() -> None:
    from bench.data.datasets import DATASETS

    assert nearest_dataset(DATASETS["fmnist"], ["cifar10", "mnist", "cifar100"]) == "mnist"
    assert nearest_dataset(DATASETS["svhn"], ["cifar10", "mnist", "cifar100"]) == "cifar10"


def test_the_command_prints_what_python_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    home = RunDir(tmp_path / "runs").create()
    for one in RECORDS.values():
        home.write_record(one)
    done = commands.bench("choose", home.path, "--eps", "1", "--public-data", "none", "--json")
    assert done.returncode == 0, done.stderr
    found = bench.choose(1, public_data="none", runs=home.path)
    assert json.loads(done.stdout) == json.loads(json.dumps(found.as_dict()))
    text = commands.bench("choose", home.path, "--eps", "1", "--time", "20m", "-q").stdout
    assert "Take pate: its lead is statistically significant" in text
    assert "python -m bench run --methods pate --datasets mnist" in text
    assert max(map(len, [line for line in text.splitlines() if not line.startswith("  python")])) <= 80
    alone = RunDir(tmp_path / "alone").create()
    for one in RECORDS.values():
        if one.method == "pate":
            alone.write_record(one)
    assert "Take pate: no other method is ranked here." in commands.bench("choose", alone.path, "--eps", "1").stdout
    assert "Did you mean mnist?" in commands.refused("choose", str(home.path), "--dataset", "nmist")
    assert "10m or 2h, not 'fast'" in commands.refused("choose", str(home.path), "--time", "fast")


def test_two_rows_side_by_side(tmp_path: Path, board: Board) -> None:
    home = RunDir(tmp_path / "runs").create()
    for one in RECORDS.values():
        home.write_record(one)
    seen = bench.compare("pate", "dp-sgd", runs=home.path, eps=1)
    assert seen.difference == pytest.approx(7.0)
    assert seen.low is not None
    assert seen.high is not None
    assert seen.low > 0
    assert (seen.low + seen.high) / 2 == pytest.approx(seen.difference)
    back = bench.compare("dp-sgd", "mnist-pate-0.9-s1", runs=home.path, eps=1)
    assert (back.low, back.high) == (pytest.approx(-seen.high), pytest.approx(-seen.low))
    assert bench.compare("pate", "cifar10-dpsd", runs=home.path).low is None  # another data set
    with pytest.raises(BenchError, match="select the same row"):
        bench.compare("mnist-pate-0.9-s0", "mnist-pate-0.9-s1", runs=home.path)
    with pytest.raises(BenchError, match=r"dp-gan proves at least 9\.00 on mnist"):
        bench.compare("pate", "dp-gan", runs=home.path, eps=1)


def test_the_interval_of_a_difference_covers_seeds_and_test_records() -> None:
    one = Contender(0.9, 3, SeedSpread(1e-4, 2), 1000)
    records = 1.959964**2 * 0.8984064 * 0.1015936 / 1000
    seeds = 4.302653**2 * 1e-4 / 3
    assert difference(one, one).half == pytest.approx(math.sqrt(2 * (records + seeds)), rel=1e-5)


@pytest.fixture(scope="module")
def source() -> Source:
    found = read_board([BOARD])
    return Source(list(found.records.values()), list(found.audits.values()))


@pytest.fixture(scope="module")
def committed(source: Source) -> Board:
    return source.board


def test_choose_gives_the_answer_of_the_site(source: Source) -> None:
    for ranking in rankings(source):
        said = answer([ranking])
        if said is not None and not said[0].unranked:  # choose lists only ranked rows
            budget = min(budget for budget in BUDGETS if said[0].point.proven <= budget * (1 + 1e-9))
            first = choose(source.board, Wanted(budget, ranking.dataset, ranking.unit)).rows[0]
            assert first.keys == said[0].keys


def test_choose_gives_the_answer_of_board_csv_and_readme(committed: Board) -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(committed))))
    table = [line.split(" | ") for line in summary(committed).splitlines() if line.startswith("| ")][1:]
    for budget in BUDGETS:
        first = choose(committed, Wanted(budget)).best
        for row in committed.rows:
            if (row.dataset, row.unit, row.place, row.budget) == ("mnist", "record", 1, budget):
                assert row.method in names(first)
        for dataset in ("mnist", "cifar10"):
            in_csv = {line["method"] for line in lines
                      if (line["dataset"], line["unit"], line["place"]) == (dataset, "record", "1")
                      and float(line["budget"]) == budget}  # fmt: skip
            assert in_csv == set(names(choose(committed, Wanted(budget, dataset)).best)), (dataset, budget)
        if budget in SUMMED:
            column = 1 + 5 * SUMMED.index(budget)
            in_readme = {cells[0].lstrip("| ") for cells in table if cells[column].split("-")[0].split(" ")[0] == "1"}
            assert in_readme  # which shows fifteen methods
            assert in_readme <= set(names(first))


def test_within_the_smallest_budget_all_ranks_are_those_of_the_board(committed: Board) -> None:
    for every in committed.tables().values():
        mine = {row.keys: row.rank for row in ranked(every, Wanted(BUDGETS[0]))}
        assert mine == {row.keys: row.rank for row in every if row.place is not None and row.budget == BUDGETS[0]}
