"""The display of progress in a log."""

from __future__ import annotations

import pytest

from bench.core import progress
from bench.core.progress import LineProgress


def test_an_estimate_waits_for_two_steps_and_leaves_out_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([0.0, 6.0, 7.0, 9.0, 12.0, 12.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    with LineProgress(every=1.0).stage("votes", 250) as stage:
        for steps in (1, 1, 1, 2):  # the first takes six seconds, for what is done once
            stage.advance(steps)
    assert capsys.readouterr().err.splitlines() == [
        "votes: 0/250",
        "  votes: 1/250",
        "  votes: 2/250",
        "  votes: 3/250, about 370 s left",
        "  votes: 5/250, about 368 s left",
        "votes: done in 12.0 s",
    ]


def test_an_estimate_follows_the_pace_since_the_last_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([0.0, 10.0, 40.0, 50.0, 51.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    with LineProgress(every=5.0).stage("iterations", 200) as stage:
        for steps in (1, 1, 100):  # the first two make what the others reuse
            stage.advance(steps)
    assert capsys.readouterr().err.splitlines()[1:4] == [
        "  iterations: 1/200",
        "  iterations: 2/200, about 5940 s left",
        "  iterations: 102/200, about 10 s left",
    ]


def test_an_estimate_never_exceeds_the_time_that_a_stage_may_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([0.0, 10.0, 20.0, 50.0, 51.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    with LineProgress(every=5.0).stage("runs", 1000, 45.0) as stage:
        for steps in (1, 1, 1):
            stage.advance(steps)
    assert [line.rpartition(", ")[2] for line in capsys.readouterr().err.splitlines()[2:4]] == [
        "about 25 s left", "about 0 s left",
    ]  # fmt: skip
