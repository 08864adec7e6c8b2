"""Two rows side by side: the difference of their accuracies, on the same test records if their answers are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bench.reports.compare import compare
from bench.reports.leaderboard import build_board
from bench.results.answers import Answers
from bench.results.record import Record, Utility
from helpers.records import record


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
