"""Two runs in lockstep: exact losses, equal answers, and differences despite equal answers are reported."""

from __future__ import annotations

import dataclasses
import math
import random
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.types import Adjacency, Facts, PrivacyUnit, PrivateData, PublicData, Released
from bench.data.splits import Materialised
from bench.evaluation.audit.lockstep import Transcript, in_lockstep
from bench.evaluation.audit.pair_runs import Runs, transcript
from bench.evaluation.audit.pairs import WorstPair
from bench.evaluation.audit.tapped_dp_sgd import TappedTraining
from bench.privacy.auditing.transcript_loss import exact_epsilon
from bench.privacy.events.conversions import exact_gaussian_epsilon
from bench.privacy.mechanisms.ledger import Ledger
from bench.training.divergence import CollapsedError
from helpers.ledgers import seeded_ledger
from helpers.lockstep import Work, lockstep

FACTS = Facts("small", 40, 4, 4, 2, (1, 2, 2))
TIED, MOVED = np.array([[4.0, 4.0], [6.0, 2.0]]), np.array([[5.0, 3.0], [6.0, 2.0]])


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


# -------------------------------------------------------------------------------------------------------- exact losses


@pytest.mark.parametrize("tilt", [0.0, 1.0])
def test_one_gaussian_release_has_its_log_ratio_as_the_loss(tilt: float) -> None:
    def work(value: float) -> Work:
        return lambda ledger: ledger.gaussian(np.array([value, 1.0]), sensitivity=1.0, noise_multiplier=2.0)

    found, one, other = lockstep(work(0.0), work(3.0), tilt)
    mu = 3.0 / 2
    assert np.array_equal(one, other)
    assert found.loss == pytest.approx(((one[0] - 3) ** 2 - one[0] ** 2) / (2 * 2**2))
    assert found.log_weight == pytest.approx(-tilt * found.loss + tilt * (tilt + 1) * mu**2 / 2)
    assert (found.calls, found.difference) == (1, "")
    assert found.comparisons is not None
    for comparison in found.comparisons:
        assert exact_epsilon(comparison, 1e-5) == pytest.approx(exact_gaussian_epsilon(mu, 1e-5))
    if tilt == 1:
        assert found.size == pytest.approx(mu**2)


def adaptive(value: float) -> Work:
    """Three releases, each of the private value at a position chosen by earlier answers."""

    def work(ledger: Ledger) -> list[np.ndarray]:
        answers = [np.zeros(2)]
        for _ in range(3):
            values = np.sign(answers[-1]) + np.array([value, 0.0]) * (1 + (answers[-1][0] > 0))
            answers.append(ledger.gaussian(values, sensitivity=1.0, noise_multiplier=2.0))
        return answers[1:]

    return work


def test_losses_of_adaptive_calls_add_up() -> None:
    found, one, other = lockstep(adaptive(0.0), adaptive(1.0), tilt=0.5)
    assert np.array_equal(one, other)
    assert (found.calls, found.comparisons) == (3, None), "later calls may depend on answers"
    wanted, before = 0.0, np.zeros(2)
    for answer in one:
        shift = 1.0 + (before[0] > 0)
        centre = np.sign(before[0])
        wanted += ((answer[0] - centre - shift) ** 2 - (answer[0] - centre) ** 2) / 8
        before = answer
    assert found.loss == pytest.approx(wanted)


def test_untilted_losses_have_the_moments_of_gaussian_ones() -> None:
    def work(value: float) -> Work:
        def asks(ledger: Ledger) -> None:
            for _ in range(4):
                ledger.gaussian(np.array([value]), sensitivity=1.0, noise_multiplier=2.0)

        return asks

    losses = np.array([lockstep(work(0.0), work(1.0), seed=seed)[0].loss for seed in range(120)])
    mu = math.sqrt(4 * 0.5**2)
    assert losses.mean() == pytest.approx(mu**2 / 2, abs=5 * mu / math.sqrt(120))
    assert losses.std() == pytest.approx(mu, rel=5 / math.sqrt(240))


def test_votes_are_answered_equally_and_counted_as_answered() -> None:
    def work(votes: np.ndarray) -> Work:
        def asks(ledger: Ledger) -> tuple[np.ndarray, int]:
            threshold = {"threshold": 5.0, "sigma1": 2.0, "sigma2": 1.0, "max_answers": 2}
            answers = ledger.confident_noisy_max(votes, teachers=8, **threshold)
            return answers, ledger.answered

        return asks

    counts = set()
    for seed in range(20):
        found, one, other = lockstep(work(TIED), work(MOVED), seed=seed)
        assert np.array_equal(one[0], other[0])
        assert one[1] == other[1] == (one[0] >= 0).sum(), "not what the silent mechanism answered"
        assert found.loss != 0
        counts.add(one[1])
    assert len(counts) > 1


def test_randomised_responses_lose_their_epsilon() -> None:
    def work(label: int) -> Work:
        return lambda ledger: ledger.randomized_response(np.array([label, 2]), epsilon=0.7, classes=3)

    losses = {}
    for seed in range(30):
        found, one, _ = lockstep(work(0), work(1), seed=seed, unit=PrivacyUnit.LABEL)
        losses[int(one[0])] = found.loss
    assert losses == pytest.approx({0: 0.7, 1: -0.7, 2: 0.0})


def test_calls_charged_again_count_as_the_answers_of_the_stopped_run() -> None:
    def work(value: float) -> Work:
        def asks(ledger: Ledger) -> list[np.ndarray]:
            with ledger.charging_again():
                kept = ledger.gaussian(np.array([value]), sensitivity=1.0, noise_multiplier=2.0)
            answers = [kept, ledger.gaussian(np.array([value]), sensitivity=1.0, noise_multiplier=2.0)]
            assert len(ledger.events) == 2
            return answers

        return asks

    found, one, other = lockstep(work(0.0), work(1.0))
    assert one == other
    assert found.loss == pytest.approx(sum(((answer[0] - 1) ** 2 - answer[0] ** 2) / 8 for answer in one))


# ------------------------------------------------------------------------------------------- each run's own randomness


def from_globals(ledger: Ledger) -> tuple[Any, ...]:
    drawn = [float(torch.rand(1)), float(np.random.rand()), random.random()]
    ledger.gaussian(np.zeros(1), sensitivity=1.0, noise_multiplier=1.0)
    return (*drawn, float(torch.rand(1)), float(np.random.rand()), random.random())


def seed_globals(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def test_global_random_numbers_are_each_runs_own_as_in_a_plain_run() -> None:
    def work(ledger: Ledger) -> tuple[Any, ...]:
        seed_globals(5)
        return from_globals(ledger)

    seed_globals(5)
    plain = from_globals(seeded_ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, np.random.default_rng(0)))
    seed_globals(9)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    _, one, other = lockstep(work, work)
    assert one == other == plain
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:], "the auditor's own are untouched"


# ------------------------------------------------------------------------------------------------------------ parting


def asks(*values: float, noise: float = 2.0) -> Work:
    def work(ledger: Ledger) -> None:
        for value in values:
            ledger.gaussian(np.array([value]), sensitivity=1.0, noise_multiplier=noise)

    return work


def fails(ledger: Ledger) -> None:
    asks(0.0)(ledger)
    raise ValueError("too dark")


@pytest.mark.parametrize(
    ("second", "difference"),
    [
        (lambda ledger: ledger.laplace(np.array([0.0]), sensitivity=1.0, noise_multiplier=2.0), "call 1 is gaussian"),
        (asks(0.0, noise=3.0), "call 1 is gaussian .* in one run and gaussian"),
        (asks(0.0, 0.0), "one run ends after 1 calls of the ledger, the other goes on"),
        (asks(), "one run ends after 0 calls of the ledger, the other goes on"),
        (fails, "one run fails, the other does not: too dark"),
    ],
    ids=["mechanism", "charge", "more", "fewer", "exception"],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_runs_that_part_are_a_difference(second: Work, difference: str, swapped: bool) -> None:
    works = (second, asks(0.0)) if swapped else (asks(0.0), second)
    found, one, other = lockstep(*works)
    assert one is other is None
    wanted = difference.replace("call 1 is gaussian", "call 1 is (gaussian|laplace)")
    assert re.search(wanted, found.difference), found.difference


def test_an_exception_of_both_runs_is_raised() -> None:
    with pytest.raises(ValueError, match="too dark"):
        lockstep(fails, fails)


def test_two_generators_that_collapse_are_an_outcome_and_their_images_are_compared() -> None:
    def collapsing(spread: float, *, asking: bool = True) -> Work:
        def work(ledger: Ledger) -> None:
            if asking:
                ledger.gaussian(np.array([spread]), sensitivity=1.0, noise_multiplier=2.0)
            raise CollapsedError(
                f"its images are almost equal ({spread:.2g})", torch.full((1,), spread), torch.zeros(1)
            )

        return work

    found, one, other = lockstep(collapsing(0.1), collapsing(0.1), 0.0)
    assert (found.calls, found.difference, one, other) == (1, "", None, None)
    found, one, other = lockstep(collapsing(0.1, asking=False), collapsing(0.2, asking=False), 0.0)
    assert (found.calls, one, other) == (0, None, None)
    assert "images differ though every answer" in found.difference


def test_a_method_that_catches_every_exception_is_ended_all_the_same() -> None:
    ended = []

    def stubborn(ledger: Ledger) -> None:
        for number in range(100):
            try:
                asks(0.0)(ledger)
            except Exception:
                ended.append(number)

    found, _, _ = lockstep(stubborn, asks(0.0))
    assert "goes on" in found.difference
    assert ended == []


def test_a_stopped_auditor_ends_both_runs() -> None:
    class Interrupted(np.random.Generator):
        def normal(self, *given: Any, **options: Any) -> Any:
            raise KeyboardInterrupt

    stopped = []

    def work(ledger: Ledger) -> None:
        try:
            asks(0.0)(ledger)
        except BaseException:
            stopped.append(ledger)
            raise

    generator = Interrupted(np.random.PCG64(0))
    with pytest.raises(KeyboardInterrupt):
        in_lockstep((work, work), PrivacyUnit.RECORD, Adjacency.REPLACE, generator, 0.0)
    assert len({id(ledger) for ledger in stopped}) == 2


@pytest.mark.parametrize(
    ("changes", "difference"),
    [({"sensitivity": 2.0}, "another sensitivity"), ({"values": np.zeros(2)}, r"shape \(1,\) on one .* \(2,\)")],
)
def test_a_public_argument_or_a_shape_that_differs_is_a_difference(changes: dict[str, Any], difference: str) -> None:
    """The charge alone does not show it: neither is charged."""

    def work(**changes: Any) -> Work:
        return lambda ledger: ledger.gaussian(
            **{"values": np.zeros(1), "sensitivity": 1.0, "noise_multiplier": 2.0} | changes
        )

    found, one, _ = lockstep(work(), work(**changes))
    assert re.search(difference, found.difference)
    assert one is None


# ----------------------------------------------------------------------------------------------- what bypasses a ledger


def leaks(where: str) -> type[Any]:
    """A method that asks one noisy question and releases the private brightness at `where`."""

    class Method:
        name, version = "leaks", 1
        unit, adjacency = PrivacyUnit.RECORD, Adjacency.REPLACE
        Config = dict

        def __init__(self, config: Any, facts: Any) -> None:
            pass

        def train_checked(self, private: Any, public: Any, ledger: Ledger, context: Any) -> Released:
            bright = private.images.float().mean()
            answer = ledger.gaussian(np.array([float(bright)]), sensitivity=255.0, noise_multiplier=1.0)
            student = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))
            with torch.no_grad():
                student[1].weight.fill_(float(answer[0]))
                student[1].bias.fill_(0.0)
                if where == "weights":
                    student[1].bias[0] = bright
                if where == "buffers":
                    student[2].running_mean[0] = bright
            extras = {"images": bright.repeat(3)} if where == "extras" else {"images": torch.zeros(3)}
            generator = torch.nn.Linear(1, 1)
            torch.nn.init.constant_(generator.weight, float(bright) if where == "generator" else 0.0)
            torch.nn.init.zeros_(generator.bias)
            options = {"width": int(bright)} if where == "options" else {}
            return Released(student, "none", options, generator=generator, extras=extras)

    return Method


@pytest.mark.parametrize(
    ("where", "part"),
    [
        ("nowhere", ""),
        ("weights", "the runs differ in the student's 1.bias"),
        ("buffers", "the runs differ in the student's 2.running_mean"),
        ("generator", "the runs differ in the generator's weight"),
        ("extras", "the runs differ in the released images"),
        ("options", "the runs differ in student_options"),
    ],
)
def test_the_part_that_private_data_reached_outside_the_ledger_is_named(where: str, part: str) -> None:
    dark, labels = torch.zeros((1, 1, 2, 2), dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    facts = dataclasses.replace(FACTS, private_records=1)
    first, second = PrivateData(dark, labels, facts), PrivateData(dark + 255, labels, facts)
    material = Materialised(first, PublicData(dark, "dark"), labels, dark, labels)
    pair = WorstPair("blank or saturated", {}, facts, first, second, material, ())
    found = transcript(Runs(leaks(where), pair), False, 0.0, 1e-5)
    assert found.difference.startswith(part)
    assert bool(found.difference) == bool(part)
    if part:
        assert found.difference.endswith("though every answer of the ledger is the same")
    assert found.exact == pytest.approx((exact_gaussian_epsilon(1.0, 1e-5),) * 2)


def test_a_transcript_survives_its_arrays() -> None:
    training = TappedTraining(1.0, -2.0, 0.25, [0.5, 0.75], present=False)
    for found in (Transcript(1.0, -2.0, 3, "the weights differ"), Transcript(exact=(0.5, math.inf)),
                  Transcript(1.0, -2.0, 1, training=training)):  # fmt: skip
        again = Transcript.from_arrays(found.as_arrays())
        assert again == found
        assert again.size == found.size
