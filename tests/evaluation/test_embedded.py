"""What data the source and the settings of a method hold."""

from __future__ import annotations

import pytest

from bench.evaluation.check.check_runs import Rejected
from bench.evaluation.check.embedded import statistics_in
from bench.evaluation.check.trials import refuse_data_in
from bench.interface.registry import METHODS
from helpers.one_teacher import OneTeacher


@pytest.mark.parametrize(
    "settings",
    [
        {"table": "x" * 251},
        {"words": " ".join(["short"] * 60)},
        {"rows": tuple(range(251))},
        {"nested": [{"a": list(range(200))}, "y" * 60]},
    ],
)
def test_settings_that_hold_data_are_rejected(settings: dict[str, object]) -> None:
    with pytest.raises(Rejected, match=f"most of them in {next(iter(settings))}"):
        refuse_data_in({"rate": 0.1, **settings})


def test_ordinary_settings_pass() -> None:
    refuse_data_in({"rate": 0.123456789012345, "net": "tf_efficientnet_lite0.in1k", "widths": (64, 128), "none": None})


class Typed(OneTeacher):
    mean, deviation = 0.1307, 0.3081


def test_typed_statistics_of_the_training_images_are_named() -> None:
    assert statistics_in(Typed) == "0.1307, 0.3081, statistics of mnist's training images"
    assert not any(statistics_in(METHODS.get(name)) for name in METHODS.names())
