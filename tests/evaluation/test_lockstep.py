"""Two runs in lockstep: exact losses, equal answers, and whatever differs in spite of them is named."""

from __future__ import annotations

import dataclasses
import math
import random
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.errors import BenchError
from bench.core.types import Adjacency, Facts, PrivacyUnit, PrivateData, PublicData, Released
from bench.data.splits import Materialised
from bench.evaluation.lockstep import Transcript, _Stopped, in_lockstep
from bench.evaluation.pair_runs import Runs, transcript
from bench.evaluation.pairs import WorstPair
from bench.privacy.conversions import exact_gaussian_epsilon
from bench.privacy.dp_sgd import DPSGDRun
from bench.privacy.ledger import Ledger, seeded_ledger
from bench.privacy.losses import sampled_gaussian_pld
from bench.privacy.noise import ZeroNoise
from bench.privacy.transcript_loss import exact_epsilon

Work = Callable[[Ledger], Any]
TIED, MOVED = np.array([[4.0, 4.0], [6.0, 2.0]]), np.array([[5.0, 3.0], [6.0, 2.0]])


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def silent(unit: PrivacyUnit = PrivacyUnit.RECORD, adjacency: Adjacency = Adjacency.REPLACE) -> Ledger:
    return Ledger(unit, adjacency, ZeroNoise(exact=False))


def lockstep(
    first: Work, second: Work, tilt: float = 0.0, seed: int = 0, ledgers: tuple[Ledger, Ledger] | None = None
) -> tuple[Transcript, Any, Any]:
    return in_lockstep((first, second), ledgers or (silent(), silent()), np.random.default_rng(seed), tilt)


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
        assert exact_epsilon([comparison], 1e-5) == pytest.approx(exact_gaussian_epsilon(mu, 1e-5))
    if tilt == 1:
        assert found.size == pytest.approx(mu**2)


def adaptive(value: float) -> Work:
    """Three releases, each of the private value at a place that the answers before decide."""

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
        ledgers = silent(PrivacyUnit.LABEL), silent(PrivacyUnit.LABEL)
        found, one, _ = lockstep(work(0), work(1), seed=seed, ledgers=ledgers)
        losses[int(one[0])] = found.loss
    assert losses == pytest.approx({0: 0.7, 1: -0.7, 2: 0.0})


def test_calls_charged_again_count_as_the_answers_of_the_stopped_run() -> None:
    def work(value: float) -> Work:
        def asks(ledger: Ledger) -> list[np.ndarray]:
            with ledger.charging_again():
                kept = ledger.gaussian(np.array([value]), sensitivity=1.0, noise_multiplier=2.0)
            return [kept, ledger.gaussian(np.array([value]), sensitivity=1.0, noise_multiplier=2.0)]

        return asks

    ledgers = silent(), silent()
    found, one, other = lockstep(work(0.0), work(1.0), ledgers=ledgers)
    assert one == other
    assert [len(ledger.events) for ledger in ledgers] == [2, 2]
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
        except _Stopped:
            stopped.append(ledger)
            raise

    ledgers = silent(), silent()
    with pytest.raises(KeyboardInterrupt):
        in_lockstep((work, work), ledgers, Interrupted(np.random.PCG64(0)), 0.0)
    assert stopped == list(ledgers)


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


# -------------------------------------------------------------------------------------------------------------- DP-SGD


RECORDS, FACTS = 40, Facts("small", 40, 4, 4, 2, (1, 2, 2))


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = torch.zeros((count, 1, 2, 2), dtype=torch.uint8)
    found[0] = 255
    labels = torch.zeros(count, dtype=torch.int64)
    labels[0] = 1
    return found, labels


def trains(present: bool, batch: int, steps: int, noise: float, count: int = 4) -> Work:
    """DP-SGD on `count` records, of which the first may be absent, from a start at which its gradient is clipped."""

    def work(ledger: Ledger) -> dict[str, torch.Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
        run = DPSGDRun(
            lambda parameters: torch.optim.SGD(parameters, lr=0.01), torch.nn.functional.cross_entropy, noise, 0.1,
            batch, steps, RECORDS,
        )  # fmt: skip
        x, y = images(count)
        ledger.dp_sgd(model, x[not present :], y[not present :], run)
        return {name: value.clone() for name, value in model.state_dict().items()}

    return work


def dp_sgd(present: bool, batch: int, steps: int, noise: float, tilt: float, seed: int = 0) -> Transcript:
    ledgers = silent(adjacency=Adjacency.ADD_REMOVE), silent(adjacency=Adjacency.ADD_REMOVE)
    works = trains(present, batch, steps, noise), trains(not present, batch, steps, noise)
    found, one, other = lockstep(*works, tilt, seed, ledgers)
    assert found.difference == ""
    assert all(torch.equal(one[name], other[name]) for name in one), "both models are trained"
    assert [event.as_dict() for event in ledgers[0].events] == [event.as_dict() for event in ledgers[1].events]
    return found


def test_dp_sgd_on_whole_batches_is_the_gaussian_mechanism() -> None:
    steps, noise = 4, 2.0
    found = dp_sgd(True, RECORDS, steps, noise, tilt=1.0)
    assert found.training is not None
    assert found.training.rate == 1
    assert found.training.distances == pytest.approx([1 / noise] * steps, rel=1e-4), "clipped to the norm"
    mu2 = steps / noise**2
    assert found.size == pytest.approx(mu2, abs=0.02)
    losses = np.array([dp_sgd(True, RECORDS, steps, noise, 0.0, seed).loss for seed in range(40)])
    assert losses.mean() == pytest.approx(mu2 / 2, abs=5 * math.sqrt(mu2 / 40))
    assert losses.std() == pytest.approx(math.sqrt(mu2), rel=5 / math.sqrt(80))


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize("tilt", [0.0, 2.0])
def test_the_losses_of_dp_sgd_estimate_the_delta_of_its_pld(present: bool, tilt: float) -> None:
    batch, steps, noise, epsilon = 10, 4, 1.0, 0.3
    pld = sampled_gaussian_pld(noise, batch / RECORDS, 1e-4).self_compose(steps)
    pmf = pld._pmf_remove if present or pld._symmetric else pld._pmf_add
    runs = [dp_sgd(present, batch, steps, noise, tilt, seed) for seed in range(80)]
    loss, log_weight = np.array([(run.loss, run.log_weight) for run in runs]).T
    shown = np.exp(log_weight) * np.maximum(-np.expm1(epsilon - loss), 0)
    error = shown.std() / math.sqrt(len(runs))
    wanted = pmf.get_delta_for_epsilon(epsilon)
    assert wanted > 0.01
    assert shown.mean() == pytest.approx(wanted, abs=5 * error + 0.01 * wanted)


@pytest.mark.parametrize("other", [trains(True, 10, 2, 1.0), trains(False, 10, 2, 1.0, count=3)])
def test_dp_sgd_on_sets_that_differ_otherwise_is_refused(other: Work) -> None:
    ledgers = silent(adjacency=Adjacency.ADD_REMOVE), silent(adjacency=Adjacency.ADD_REMOVE)
    with pytest.raises(BenchError, match="differ in a first record, present or absent"):
        lockstep(trains(True, 10, 2, 1.0), other, ledgers=ledgers)


# ----------------------------------------------------------------------------------------------- what bypasses a ledger


def leaks(where: str) -> type[Any]:
    """A method that asks one noisy question and releases the private brightness at `where`."""

    class Method:
        name, version = "leaks", 1
        unit, adjacency = PrivacyUnit.RECORD, Adjacency.REPLACE
        Config = dict

        def train_student(self, config: Any, private: Any, public: Any, ledger: Ledger, context: Any) -> Released:
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
        ("weights", "the student's 1.bias differs"),
        ("buffers", "the student's 2.running_mean differs"),
        ("generator", "the generator's weight differs"),
        ("extras", "the released images differs"),
        ("options", "student_options differs"),
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
    for found in (Transcript(1.0, -2.0, 3, "the weights differ"), Transcript(exact=(0.5, math.inf)),
                  dp_sgd(True, 10, 3, 1.0, 1.0)):  # fmt: skip
        again = Transcript.from_arrays(found.as_arrays())
        assert again == found
        assert again.size == found.size
