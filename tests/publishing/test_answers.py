"""Publishing a student's answers on the test records."""

from __future__ import annotations

from pathlib import Path

import torch

from bench.publishing.publish import Fate, examine, write
from bench.results.answers import Answers
from bench.results.record import parse_record
from helpers.publishing import PATE, put, values_of


def test_the_answers_of_a_student_that_is_often_wrong_are_published(into: Path, tmp_path: Path) -> None:
    values, count = values_of(PATE), 10_000
    chosen = torch.randint(10, (count,), generator=torch.Generator().manual_seed(0))
    answers = Answers.of(torch.eye(10)[chosen], torch.zeros(count, dtype=torch.int64)).model_dump()
    assert len(answers["errors"]) > 5_000
    first = values["utility"]["test_records"]
    found = {"accuracy": float((chosen[:first] == 0).double().mean()), "official_records": count}
    put(tmp_path / "new", {**values, "utility": {
        **values["utility"], **found, "official_accuracy": float((chosen == 0).double().mean()), "answers": answers,
    }})  # fmt: skip
    assert [item.fate for item in examine([tmp_path / "new"], into).items] == [Fate.ADDED]


def test_a_published_record_gets_the_answers_that_it_lacks(into: Path, tmp_path: Path) -> None:
    values = values_of(PATE)
    records = values["utility"]["test_records"]
    right = round(values["utility"]["accuracy"] * records)
    logits = torch.eye(10)[[*[0] * right, *[1] * (records - right)]]
    answers = Answers.of(logits, torch.zeros(records, dtype=torch.int64)).model_dump()
    put(into, values)
    again = {**values, "utility": {**values["utility"], "answers": answers}}
    put(tmp_path / "another", {**again, "student": {**values["student"], "sha256": "0" * 64}})
    assert not examine([tmp_path / "another"], into).files
    put(tmp_path / "again", again)
    found = examine([tmp_path / "again"], into)
    assert [item.fate for item in found.items] == [Fate.COMPLETED]
    assert "it got its answers" in found.items[0].why
    write(found, into)
    there = parse_record((into / "records" / f"{PATE}.json").read_text())
    assert there.utility is not None
    assert there.utility.right == bytes([*[1] * right, *[0] * (records - right)])
    assert examine([tmp_path / "again"], into).items[0].fate is Fate.SKIPPED
