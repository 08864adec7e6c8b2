"""The impossibility check: its codes by enumeration, its bound against a student, and its use in rows and commands."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom
from typer.testing import CliRunner

from bench.cli.epsilon import app
from bench.cli.record_pages import record_page
from bench.core.errors import BenchError
from bench.privacy.auditing.utility_bound import (
    IMPLAUSIBLE,
    TRIES,
    bounds,
    codes,
    honest_tries,
    odds,
    probability_bound,
    remark,
    rounded_up,
)
from bench.reports.leaderboard import build_board, to_csv
from bench.results.record import Plausibility, Record, parse_record
from helpers.one_teacher import OneTeacher, run
from helpers.records import record

Permutation = tuple[int, ...]
TEN = [0.1] * 10


def distance(first: Permutation, second: Permutation) -> int:
    return sum(a != b for a, b in zip(first, second, strict=True))


def sign(permutation: Permutation) -> int:
    return (-1) ** sum(a > b for a, b in itertools.combinations(permutation, 2))


def greedy(classes: int, least: int) -> list[Permutation]:
    """Collect permutations, in a shuffled order, that are far enough from all collected before."""
    everything = list(itertools.permutations(range(classes)))
    chosen: list[Permutation] = []
    for index in np.random.default_rng(0).permutation(len(everything)):
        if all(distance(everything[index], other) >= least for other in chosen):
            chosen.append(everything[index])
    return chosen


def affine(q: int) -> list[Permutation]:
    """Return the maps x -> ux + v over the field of a prime q."""
    return [tuple((u * x + v) % q for x in range(q)) for u in range(1, q) for v in range(q)]


def fractional(q: int) -> list[Permutation]:
    """Return the maps x -> (ax + b) / (cx + d) over the field of a prime q and infinity, which is the number q."""
    found = set()
    for a, b, c, d in itertools.product(range(q), repeat=4):
        if (a * d - b * c) % q:
            images = []
            for x in range(q + 1):
                top, bottom = (a, c) if x == q else ((a * x + b) % q, (c * x + d) % q)
                images.append(q if bottom == 0 else top * pow(bottom, -1, q) % q)
            found.add(tuple(images))
    return sorted(found)


def enumerated(name: str, classes: int, least: int) -> list[Permutation]:
    everything = list(itertools.permutations(range(classes)))
    if name == "all permutations":
        return everything
    # On four and five points the maps over the field of four elements are the even permutations.
    over_four = (name, classes) in (("affine maps of a field", 4), ("fractional linear maps", 5))
    if name == "even permutations" or over_four:
        return [p for p in everything if sign(p) == 1]
    if name == "cyclic shifts":
        return [tuple((x + k) % classes for x in range(classes)) for k in range(classes)]
    if name == "affine maps of a field":
        return affine(classes)
    if name == "fractional linear maps":
        return fractional(classes - 1)
    return greedy(classes, least)


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 6])
def test_codes_are_as_large_and_as_far_apart_as_is_said(classes: int) -> None:
    for code in codes(classes):
        found = enumerated(code.name, classes, code.distance)
        assert len(found) >= code.permutations, code
        assert code.name == "Gilbert-Varshamov" or len(found) == code.permutations, code
        pairs = itertools.combinations(found, 2)
        assert min((distance(*pair) for pair in pairs), default=classes) >= code.distance, code


def test_which_codes_are_known() -> None:
    def names(classes: int) -> set[str]:
        return {code.name for code in codes(classes)} - {"Gilbert-Varshamov"}

    usual = {"all permutations", "even permutations", "cyclic shifts"}
    assert names(10) == usual | {"fractional linear maps"}  # 10 - 1 = 3^2
    assert names(9) == usual | {"affine maps of a field", "fractional linear maps"}  # 3^2 and 2^3 + 1
    assert names(7) == usual | {"affine maps of a field"}
    assert names(15) == usual
    sizes = {(code.name, code.distance): code.permutations for code in codes(10)}
    assert sizes["fractional linear maps", 8] == 720
    assert sizes["even permutations", 3] == 1_814_400
    assert sizes["Gilbert-Varshamov", 3] == math.ceil(math.factorial(10) / (1 + 45))
    assert sizes["Gilbert-Varshamov", 4] == math.ceil(math.factorial(10) / (1 + 45 + 240))


@pytest.mark.parametrize("counts", [(2, 2, 2, 2), (5, 1, 1, 1), (3, 3, 1, 1), (6, 2, 0, 0)])
def test_no_predictions_agree_with_two_permutations_above_the_threshold(counts: tuple[int, ...]) -> None:
    classes, total = len(counts), sum(counts)
    labels = np.repeat(np.arange(classes), counts)
    # Agreement depends only on how the records of each class are distributed over predictions.
    splits = [
        [split for split in itertools.product(range(count + 1), repeat=classes) if sum(split) == count]
        for count in counts
    ]
    assert len(labels) == total
    tables = np.array(list(itertools.product(*splits)))  # (predictions, true class, predicted class)
    for code, bound in zip(codes(classes), bounds(1.0, 0.0, [count / total for count in counts]), strict=True):
        members = enumerated(code.name, classes, code.distance)
        hits = np.stack([tables[:, np.arange(classes), list(p)].sum(1) for p in members])
        assert ((hits > bound.threshold * total + 1e-6).sum(0) <= 1).all(), code


def test_threshold_is_no_higher_than_it_must_be() -> None:
    """Just below the threshold for all permutations, one student agrees with two of them."""
    bound = next(b for b in bounds(1.0, 0.0, [0.25] * 4) if b.code == "all permutations")
    labels = np.repeat(np.arange(4), 100)
    student = labels.copy()
    student[:50], student[100:150] = 1, 0  # half of the two classes that a transposition swaps
    exchanged = np.array([1, 0, 2, 3])[labels]
    for truth in (labels, exchanged):
        assert (student == truth).mean() == pytest.approx(bound.threshold)


def test_figures() -> None:
    assert probability_bound(1, 0, 0.51, TEN).probability == pytest.approx(math.e / 10)
    assert probability_bound(1, 1e-5, 0.51, TEN).probability == pytest.approx(math.e / 10 + 1e-5)
    at = {bound.code: bound for bound in bounds(10, 0, TEN) if bound.code != "Gilbert-Varshamov"}
    assert at["even permutations"].probability == pytest.approx(0.01214, abs=1e-5)
    assert at["even permutations"].threshold == pytest.approx(0.85)
    assert at["fractional linear maps"].threshold == pytest.approx(0.6)
    for accuracy in (0.9603, 0.9785):
        best = probability_bound(10, 1e-5, accuracy, TEN)
        assert (best.probability, best.threshold) == (pytest.approx(0.00608, abs=1e-5), pytest.approx(0.9))
    assert probability_bound(10, 1e-5, 0.7, TEN).probability == 1.0
    assert probability_bound(1, 1e-5, 0.5, TEN).probability == 1.0


def test_accuracy_must_exceed_the_threshold() -> None:
    assert probability_bound(1, 0, 0.6, TEN).permutations < 720
    assert probability_bound(1, 0, 0.601, TEN).permutations == 720


def test_uneven_classes_and_empty_ones_give_the_weaker_bound() -> None:
    assert probability_bound(1, 0, 0.91, TEN).permutations == 3_628_800
    uneven = probability_bound(1, 0, 0.91, [0.46, *[0.06] * 9])  # even permutations: the threshold is 0.91 itself
    assert (uneven.permutations, uneven.threshold) == (12_689, pytest.approx(0.88))
    # Two of four classes are not tested, so only the 12 placements of the other two can be distinguished.
    assert probability_bound(1, 0, 1.0, [0.5, 0.5, 0, 0]).probability == pytest.approx(math.e / 12)


def test_many_classes() -> None:
    bound = probability_bound(50, 1e-5, 0.7, [1 / 1000] * 1000)
    assert bound.probability == pytest.approx(1e-5)
    assert math.isfinite(bound.permutations)


@pytest.mark.parametrize(("classes", "epsilon", "accuracy"), [(3, 0.5, 0.55), (5, 1.0, 0.95), (5, 3.0, 0.95)])
def test_a_student_by_randomised_response_never_beats_the_bound(classes: int, epsilon: float, accuracy: float) -> None:
    """It learns the teacher's permutation by the best epsilon-private answer, so it nearly attains the bound."""
    bound = probability_bound(epsilon, 0.0, accuracy, [1 / classes] * classes)
    members = enumerated(bound.code, classes, bound.distance)
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), 20)
    truth = members.index(tuple(range(classes)))
    weights = np.full(len(members), 1.0)
    weights[truth] = math.exp(epsilon)
    runs = 20_000
    answers = generator.choice(len(members), size=runs, p=weights / weights.sum())
    right = np.array([(np.array(members[k])[labels] == labels).mean() > bound.threshold for k in range(len(members))])
    frequency = right[answers].mean()
    deviation = math.sqrt(bound.probability / runs)
    assert frequency <= bound.probability + 4 * deviation
    assert frequency >= bound.probability * (1 - bound.probability) - 4 * deviation


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((-1.0, 0.0, 0.9, TEN), "epsilon"),
        ((math.nan, 0.0, 0.9, TEN), "epsilon"),
        ((1.0, 1.0, 0.9, TEN), "delta"),
        ((1.0, 0.0, 96.0, TEN), "between 0 and 1"),
        ((1.0, 0.0, math.nan, TEN), "between 0 and 1"),
        ((1.0, 0.0, 0.9, [1.0]), "at least 2 classes"),
        ((1.0, 0.0, 0.9, [0.5, 0.4]), "sum to 1"),
        ((1.0, 0.0, 0.9, [1.5, -0.5]), "non-negative"),
    ],
)
def test_what_cannot_be_meant(arguments: tuple[float, float, float, list[float]], says: str) -> None:
    with pytest.raises(BenchError, match=says):
        probability_bound(*arguments)


def test_an_infinite_claim_rules_nothing_out() -> None:
    assert probability_bound(math.inf, 0.0, 1.0, TEN).probability == 1.0


@pytest.mark.parametrize(
    ("probability", "text"),
    [(0.27183, "0.28"), (0.29, "0.29"), (0.0061, "0.0061"), (0.00608, "0.0061"), (1.07e-5, "1.1e-05"), (1.0, "1")],
)
def test_probabilities_are_rounded_up(probability: float, text: str) -> None:
    assert rounded_up(probability) == text
    assert float(rounded_up(0.0)) > 0


def test_seeds_are_independent() -> None:
    assert remark([]) == remark([0.05]) == remark([0.3, 0.2]) == ""
    assert "at most 0.025" in odds([0.05, 0.05 * 3.1])
    assert "at most 0.027" in odds([0.3, 0.2, 0.1])


@pytest.mark.parametrize(("bound", "tries"), [(0.0061, 9), (0.0122, 5), (0.05, 1), (1.0, 1), (1.1e-5, 4664)])
def test_honest_tries_of_one_run(bound: float, tries: int) -> None:
    assert honest_tries([bound]) == tries
    assert 1 - (1 - bound) ** tries >= IMPLAUSIBLE
    assert tries == 1 or 1 - (1 - bound) ** (tries - 1) < IMPLAUSIBLE


@pytest.mark.parametrize("bounds_of_seeds", [[0.0061] * 3, [0.02, 0.001], [0.2, 0.1, 0.3, 0.05], [0.01] * 1000])
def test_honest_tries_count_the_choice_of_the_best_seeds(bounds_of_seeds: list[float]) -> None:
    tries, seeds = honest_tries(bounds_of_seeds), len(bounds_of_seeds)
    assert binom.sf(seeds - 1, tries, max(bounds_of_seeds)) >= IMPLAUSIBLE
    assert binom.sf(seeds - 1, tries - 1, max(bounds_of_seeds)) < IMPLAUSIBLE


def test_only_what_survives_a_hundred_tries_is_marked() -> None:
    assert remark([0.0006]) == ""
    assert honest_tries([0.0006]) < TRIES < honest_tries([0.0005])
    assert "103 honest tries would reach 5%" in remark([0.0005])
    assert "more than a billion honest tries" in remark([0.0])


def plausible(probability: float | None, seed: int = 0) -> Record:
    found = record(seed=seed)
    assert found.privacy is not None
    row = None if probability is None else Plausibility(probability=probability, threshold=0.9, permutations=3628800)
    return record(seed=seed, privacy=found.privacy.model_copy(update={"plausibility": row}))


def test_board_says_what_is_impossible() -> None:
    def remarks(*records: Record) -> tuple[str, ...]:
        (row,) = build_board(records).rows
        return tuple(text for text in row.remarks if "chosen on" not in text and "one seed" not in text)

    assert remarks(plausible(None)) == remarks(plausible(0.06)) == remarks(plausible(0.0061)) == ()
    assert remarks(plausible(0.00023)) == (
        "impossible as claimed (such an accuracy has probability at most 0.00023; 223 honest tries would reach 5%)",
    )
    # The best two of 58 runs reach this by chance; for the best three it takes 135 runs.
    assert remarks(plausible(0.0061, 0), plausible(0.001, 1)) == ()
    assert (
        "the best 3 of 135 honest tries" in remarks(plausible(0.0061, 0), plausible(0.001, 1), plausible(0.001, 2))[0]
    )
    assert to_csv(build_board([plausible(None)])) == to_csv(build_board([record()])), "and nothing else changes"


def test_record_survives_and_older_ones_have_none() -> None:
    given = plausible(0.0061)
    assert parse_record(given.to_json()) == given
    older = json.loads(record().to_json())
    del older["privacy"]["plausibility"]
    assert parse_record(json.dumps(older)) == record()


def shown(given: Record) -> str:
    return "\n".join(" ".join(row) for table in record_page(given) for row in table.rows)


def test_run_sets_the_measured_accuracy_against_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(tmp_path / "good", "epochs=6.0")
    assert found.privacy is not None
    assert found.utility is not None
    assert found.utility.accuracy > 0.9
    assert found.privacy.plausibility is not None
    assert found.privacy.plausibility.probability < 1e-3
    assert "impossible as claimed" in shown(found)
    (row,) = build_board([found]).rows
    assert any("impossible as claimed" in text for text in row.remarks)
    poor = run(tmp_path / "poor")
    assert poor.privacy is not None
    assert poor.privacy.plausibility == Plausibility(probability=1.0, threshold=0.0, permutations=1.0)
    assert "no bound rules out such an accuracy" in shown(poor)
    monkeypatch.setattr(OneTeacher, "single_teacher", False)
    sharded = run(tmp_path / "sharded", "epochs=6.0")
    assert sharded.privacy is not None
    assert sharded.privacy.plausibility is None
    assert "under the claim" not in shown(sharded)


def asked(*words: object) -> str:
    return CliRunner().invoke(app, ["impossible", *map(str, words)], catch_exceptions=False).stdout


def test_published_figures_from_the_shell() -> None:
    text = asked("--eps", 1, "--accuracy", 96.03)
    assert "impossible as claimed" in text
    assert "above 90.00%" in text
    assert "not ruled out" in asked("--eps", 10, "--accuracy", 70)
    content = json.loads(asked("--eps", 10, "--accuracy", 97.85, "--json"))
    assert content["probability"] == pytest.approx(0.00608, abs=1e-5)
    assert (content["verdict"], content["honest_tries"]) == ("not ruled out", 9)
    assert "9 honest tries would reach 5%" in asked("--eps", 10, "--accuracy", 97.85)
    assert json.loads(asked("--eps", 1, "--accuracy", 55, "--classes", 5, "--json"))["permutations"] == 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--eps", 0, "--accuracy", 90), "epsilon"),
        (("--eps", 1, "--accuracy", 0.96), "in percent"),
        (("--eps", 1, "--accuracy", 101), "in percent"),
        (("--eps", 1, "--accuracy", 90, "--delta", 0), "delta"),
        (("--eps", 1, "--accuracy", 90, "--classes", 1), "at least 2 classes"),
        (("--eps", 1, "--accuracy", 90, "--classes", -3), "at least 2 classes"),
    ],
)
def test_mistakes_in_the_shell(words: tuple[object, ...], says: str) -> None:
    with pytest.raises(BenchError, match=says):
        asked(*words)
