"""Two rows side by side: the difference of their accuracies, on the same test records if their answers are known."""

from __future__ import annotations

import shlex
from functools import cache, partial

import numpy as np
import pytest
import torch

from bench.cli.compare import EXAMPLES as COMPARE
from bench.cli.compose import EXAMPLES as COMPOSE
from bench.core.errors import BenchError
from bench.interface.registry import METHODS
from bench.reports.compare import compare
from bench.reports.leaderboard import build_board
from bench.results.answers import Answers
from bench.results.composed import released_together
from bench.results.record import Record, Utility
from bench.results.run_dir import RunDir
from helpers.paths import BOARD
from helpers.records import record


@cache
def published_records() -> dict[str, Record]:
    return {one.key: one for one in RunDir(BOARD).read_records(set_aside=False).found}


def test_a_method_without_a_proof_is_compared_by_the_row_nearest_to_the_default_and_says_so() -> None:
    def row(method: str, epsilon: float, proven: float, accuracy: float, seeds: int = 3) -> list[Record]:
        of_row = partial(record, method=method, epsilon=epsilon, proven=proven, accuracy=accuracy, config={"t": seeds})
        return [of_row(seed=seed, key=f"{method}-{epsilon}-{seeds}-s{seed}") for seed in range(seeds)]

    nearer = [*row("dpsd", 10, 1e7, 0.95), *row("dpsd", 10, 1e5, 0.96, seeds=1)]
    board = build_board([*row("dp-sgd", 9, 9, 0.9), *nearer, *row("dpsd", 5, 1e6, 0.97)])
    seen = compare(board, "dp-sgd", "dpsd")
    assert (seen.other.asked, len(seen.other.seeds)) == (10, 3)
    assert seen.notes == ("dpsd proves no epsilon up to 10 on mnist: its row with the nearest target is shown.",)
    assert compare(board, "dp-sgd", seen.other.keys[0]).notes == ()
    with pytest.raises(BenchError, match="dpsd proves at least"):
        compare(board, "dp-sgd", "dpsd", eps=10)


@pytest.mark.parametrize("line", [*COMPARE.splitlines(), *COMPOSE.splitlines()])
def test_an_example_of_the_help_works_on_the_published_board(line: str) -> None:
    python, dash_m, program, command, *words = shlex.split(line, comments=True)
    assert (python, dash_m, program) == ("python", "-m", "bench")
    options = next((place for place, word in enumerate(words) if word.startswith("--")), len(words))
    if command == "compose":
        assert released_together(published_records(), words[:options])
    else:
        for name in words[:options]:
            assert name in METHODS or sum(key.startswith(name) for key in published_records()) == 1


def test_two_rows_with_known_answers_are_compared_on_the_same_test_records() -> None:
    hard = np.random.default_rng(0).random(400) < 0.3

    def row(method: str, more: int) -> list[Record]:
        made = []
        for seed in range(3):
            wrong = np.flatnonzero(hard)[more + seed :]
            labels = torch.zeros(400, dtype=torch.int64)
            answers = labels.index_fill(0, torch.from_numpy(wrong), 1)
            known = Answers.of(torch.nn.functional.one_hot(answers, 10).double(), labels)
            utility = Utility(accuracy=round(1 - len(wrong) / 400, 6), test_records=400, answers=known)
            made.append(record(method=method, seed=seed, utility=utility))
        return made

    known = [*row("pate", 8), *row("dgd", 0)]
    unknown = [
        one.model_copy(update={"utility": one.utility and one.utility.model_copy(update={"answers": None})})
        for one in known
    ]
    paired, apart = (compare(build_board(records), "pate", "dgd") for records in (known, unknown))
    assert (paired.paired, apart.paired) == (400, 0)
    assert paired.difference == pytest.approx(apart.difference) == pytest.approx(2.0)
    assert paired.low is not None
    assert apart.low is not None
    assert apart.low < 0 < paired.low, "the same eight records: only pairs show it"
