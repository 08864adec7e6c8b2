"""When a launch ends: against simulated launches, with slots, packs and kinds of unlike length."""

from __future__ import annotations

import heapq
import random
from statistics import median

import pytest

from bench.launchers.runtime_estimate import Progressed, remaining


def simulated(lengths: list[tuple[str, float]], slots: int, at: float) -> tuple[list[Progressed], float]:
    """Return the state `at` seconds after results of these kinds and lengths began in `slots` slots, and the end."""
    free, spans = [0.0] * slots, []
    for kind, length in lengths:
        begin = heapq.heappop(free)
        heapq.heappush(free, begin + length)
        spans.append((kind, begin, begin + length))
    state = [
        Progressed((kind,), min(end, at) - begin, at - begin, end <= at) if begin < at else Progressed((kind,))
        for kind, begin, end in spans
    ]
    return state, max(free)


@pytest.mark.parametrize("slots", [1, 3, 16])
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_it_is_within_a_third_of_what_it_took(slots: int, share: float) -> None:
    wrong = []
    for seed in range(40):
        draws = random.Random(seed)
        kinds = {"short": 10, "long": 60}
        lengths = [(kind, kinds[kind] * draws.uniform(0.8, 1.25)) for kind in draws.choices(list(kinds), k=160)]
        end = simulated(lengths, slots, 0)[1]
        state, _ = simulated(lengths, slots, share * end)
        told = remaining(state)
        assert told is not None
        wrong.append(abs(told / ((1 - share) * end) - 1))
    assert median(wrong) < 0.1
    assert max(wrong) < 0.3


def test_a_long_result_that_is_left_is_a_lower_limit() -> None:
    done = [Progressed(("a",), 10.0, 10.0 + 5 * number, done=True) for number in range(20)]
    assert remaining([*done, Progressed(("a",), 1.0, 1.0)]) == pytest.approx(9 * 2 * 105 / 201)


def test_time_between_two_results_is_time_too() -> None:
    # One at a time, each with as long a break.
    done = [Progressed(("a",), 10.0, 20.0 * number, done=True) for number in range(1, 6)]
    assert remaining([*done, Progressed(("a",)), Progressed(("a",))]) == pytest.approx(40)


def test_nothing_is_told_before_the_first_result() -> None:
    assert remaining([Progressed(("a",), 5.0, 5.0), Progressed(("a",))]) is None
    assert remaining([]) is None
    # A result on private data states no time of day.
    assert remaining([Progressed(("a",), 10.0, None, done=True), Progressed(("a",), 5.0, 5.0)]) is None


def test_a_kind_without_a_result_takes_as_long_as_the_others() -> None:
    assert remaining([Progressed(("a",), 10.0, 10.0, done=True), Progressed(("b",))]) == 10.0
