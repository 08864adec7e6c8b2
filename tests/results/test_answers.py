"""A record's answers: their content, agreement with the accuracy, and refusals."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bench.results.answers import Answers
from bench.results.record import Utility


@given(st.integers(2, 300), st.integers(1, 60), st.integers(0, 2**32))
def test_right_answers_are_found_again(classes: int, records: int, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    logits = torch.randn(records, classes, generator=draws)
    labels = torch.randint(classes, (records,), generator=draws)
    found = Answers.of(logits, labels)
    assert list(found.right(records)) == (logits.argmax(1) == labels).int().tolist()
    for other in (records - 1, records + 1):
        with pytest.raises(ValueError, match="not those of"):
            found.right(other)


def test_worst_class_and_calibration_of_known_answers() -> None:
    # All confidences are 0.8; class 0 is right in 3 of 4 cases, class 1 in 1 of 4, and class 2 has no records.
    logits = torch.log(
        torch.tensor([[0.8, 0.1, 0.1]] * 3 + [[0.1, 0.8, 0.1]] + [[0.1, 0.8, 0.1]] + [[0.8, 0.1, 0.1]] * 3)
    )
    found = Answers.of(logits, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    assert found.worst_class == 0.25
    assert found.calibration_error == pytest.approx(0.8 - 0.5)


def test_ten_thousand_answers_take_less_than_ten_kilobytes() -> None:
    draws = np.random.default_rng(0)
    labels = torch.from_numpy(draws.integers(0, 10, 10_000))
    answers = torch.where(
        torch.from_numpy(draws.random(10_000) < 0.8), labels, torch.from_numpy(draws.integers(0, 10, 10_000))
    )
    assert len(Answers.of(torch.nn.functional.one_hot(answers, 10).double(), labels).model_dump_json()) < 10_000


def utility(errors: bytes, accuracy: float, records: int = 4) -> Utility:
    packed = base64.b64encode(zlib.compress(errors)).decode()
    answers = Answers(classes=10, errors=packed, worst_class=0.0, calibration_error=0.0)
    return Utility(accuracy=accuracy, test_records=records, answers=answers)


def test_answers_that_disagree_with_the_accuracy_are_refused() -> None:
    assert utility(bytes([0, 0, 0, 3]), 0.75).right == bytes([1, 1, 1, 0])
    with pytest.raises(ValidationError, match="answers and accuracy disagree"):
        utility(bytes([0, 0, 0, 3]), 0.8)
    with pytest.raises(ValidationError, match="not those of 4 records"):
        utility(bytes(100_000_000), 1.0)  # a hundred kilobytes that unpack to a hundred megabytes
    whole = {"official_accuracy": 0.5, "official_records": 4}
    kept = utility(bytes([0, 0, 0, 3]), 0.75).answers
    with pytest.raises(ValidationError, match="answers and accuracy disagree"):
        Utility(accuracy=1.0, test_records=2, answers=kept, **whole)
    Utility(accuracy=1.0, test_records=2, answers=kept, official_accuracy=0.75, official_records=4)


@pytest.mark.parametrize("errors", ["AAAA", "?", "eJw="])
def test_damaged_answers_are_one_error(errors: str) -> None:
    answers = Answers(classes=10, errors=errors, worst_class=0.0, calibration_error=0.0)
    with pytest.raises(ValidationError, match=r"errors are|Invalid|padding|base64"):
        Utility(accuracy=0.5, test_records=4, answers=answers)
