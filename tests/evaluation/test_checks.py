"""The sensitivity test, the data sets of the checks, and how a method is found by another process."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from bench.core.config import Preset
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.types import Adjacency, Facts, PrivacyUnit
from bench.evaluation.check.check_data import (
    CHECK_FACTS,
    Step,
    generated,
    neighbour,
    renamed,
    renamed_source,
    unrelated,
    unusual,
    variant_of,
)
from bench.evaluation.check.check_runs import MethodPlace, Outcome, Trial, session
from bench.evaluation.check.confined_runs import Processes
from bench.evaluation.check.embedded import constants_of
from bench.evaluation.check.noninterference import CheckVerdict, check_method
from bench.evaluation.check.sensitivity import Given, violation, walk
from bench.evaluation.check.trials import DRAWS, EPSILONS, HIGHEST, LOWEST, MIDDLE, Draw, recorded
from bench.experiments.data_source import DataSource
from bench.interface.registry import METHODS, import_file
from cheats.figures import ClassCounts
from cheats.honest import Given as HonestGiven
from cheats.honest import Honest
from helpers.small_sets import private_pair


def given(values: object, norm: str, bound: float = 1.0) -> Given:
    return Given("mechanism", np.array(values), norm, bound)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("norm", "bound", "first", "second", "moved"),
    [
        ("votes", 1.0, [[5, 3, 2], [10, 0, 0]], [[4, 4, 2], [9, 0, 1]], 1.0),
        ("votes", 1.0, [[5, 3, 2], [10, 0, 0]], [[5, 3, 2], [7, 2, 1]], 3.0),
        ("l2", 2.0, [0.0, 0.0], [3.0, 4.0], 5.0),
        ("l1", 2.0, [0.0, 0.0], [3.0, 4.0], 7.0),
        ("labels", 1.0, [1, 2, 3], [1, 0, 0], 2.0),
        ("records", 1.0, [[5, 3, 2], [10, 0, 0]], [[5, 3, 1], [10, 0, 7]], 1.0),
        ("records", 1.0, [[[5], [3]], [[1], [0]]], [[[4], [3]], [[1], [2]]], 2.0),
    ],
)
def test_how_far_a_record_moved_what_was_given(
    norm: str, bound: float, first: object, second: object, moved: float
) -> None:
    a, b = given(first, norm, bound), given(second, norm, bound)
    assert a.moved(b) == pytest.approx(moved)
    assert bool(violation([a], [b], Adjacency.REPLACE)) == (moved > bound)
    # Under add-remove a replaced record is two steps, of one teacher's vote all the same.
    factor = 2 if norm in ("l1", "l2") else 1
    assert bool(violation([a], [b], Adjacency.ADD_REMOVE)) == (moved > factor * bound)
    assert violation([a], [a], Adjacency.REPLACE) == ""


class SampledMean(Honest):
    """Nearest records of a sample vote, in distances from the mean of all: one record moves every column."""

    name = "sampled-mean"
    adjacency = Adjacency.ADD_REMOVE
    centred = True

    def answer(self, given: Any, votes: np.ndarray) -> np.ndarray:
        images = given.private.images.float().flatten(1)
        asked = given.public.images[self.choose(given)].float().flatten(1)
        middle = images.mean(0) if self.centred else 0.0
        distances = (asked[:, None] - (images - middle)[None]).abs().sum(2).numpy()
        return given.ledger.sampled_noisy_max(
            distances, given.private.labels.numpy(), classes=10, neighbours=20, sampling_rate=0.5, sigma=2.0
        )


class SampledAlone(SampledMean):
    name = "sampled-alone"
    centred = False


@pytest.mark.slow
def test_a_record_that_moves_the_distances_of_others_is_found() -> None:
    check = check_method(SampledMean)
    assert check.verdict is CheckVerdict.REJECTED
    assert "takes of 1000 records in its call 1 of sampled_noisy_max, which is charged for 1" in check.reason
    assert check_method(SampledAlone).ok


def test_a_violation_by_sorted_records_says_what_to_do() -> None:
    found = violation([given([range(9)], "records")], [given([range(1, 10)], "records")], Adjacency.REPLACE)
    assert "let each keep its place" in found


def test_another_number_of_calls_or_another_shape_is_a_violation() -> None:
    a = given([[1, 2]], "votes")
    assert "2 times" in violation([a], [a, a], Adjacency.REPLACE)
    assert "another mechanism or shape" in violation([a], [given([[1, 2], [2, 1]], "votes")], Adjacency.REPLACE)


@pytest.mark.parametrize("unit", [PrivacyUnit.RECORD, PrivacyUnit.LABEL])
@pytest.mark.parametrize("number", range(10))
def test_neighbours_differ_in_one_record_and_keep_every_class(number: int, unit: PrivacyUnit) -> None:
    data = private_pair()[1]
    other = neighbour(data, unit, number)
    images = (data.images != other.images).flatten(1).any(1)
    labels = data.labels != other.labels
    inverted = unit is PrivacyUnit.RECORD and number % 6 == 3
    assert int(labels.sum()) == (0 if inverted else 1)
    assert int(images.sum()) == (0 if unit is PrivacyUnit.LABEL or number % 6 == 5 else 1)
    assert not inverted or (data.images[images] == 255 - other.images[images]).all()
    assert set(other.labels.tolist()) == set(range(data.facts.classes))


def test_unusual_sets_have_every_class_and_lose_records_under_add_remove() -> None:
    data = private_pair()[1]
    strange = unusual(data, seed=1)
    labelled = unusual(data, PrivacyUnit.LABEL, seed=1)
    assert torch.equal(labelled.images, data.images)
    assert torch.equal(labelled.labels, strange.labels)
    counts = strange.labels.bincount(minlength=data.facts.classes)
    assert len(strange) == len(data)
    assert counts.min() >= 2
    assert counts.max() > len(data) / 2
    assert len({image.numpy().tobytes() for image in strange.images}) > len(data) / 3
    fewer = variant_of(data, Step(3, "unusual"), PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, 1)
    assert len(fewer) == len(data) - 3
    changed = variant_of(data, Step(3, "unusual"), PrivacyUnit.RECORD, Adjacency.REPLACE, 1)
    assert int((changed.images != data.images).flatten(1).any(1).sum()) == 3


def test_one_element_of_any_stride_has_the_digest_of_its_value() -> None:
    from bench.core.types import Released
    from bench.evaluation.check.check_runs import released_parts

    one, same = torch.tensor([3]).expand(1), torch.tensor([3, 4])[::2]
    strided = torch.tensor(3).expand(1)
    assert strided.stride() == (0,)
    parts = [
        released_parts(Released(torch.nn.Linear(1, 1), "x", {}, extras={"y": t}))[-1] for t in (one, same, strided)
    ]
    assert len(set(parts)) == 1


@pytest.mark.slow
def test_the_outcome_says_which_sets_of_few_records_were_tested() -> None:
    class Leaky(Honest):
        name = "leaky"

        def votes(self, given: HonestGiven, images: torch.Tensor) -> np.ndarray:
            found = super().votes(given, images)
            odd = int(given.private.labels.sum()) % 2  # a changed label changes it
            return np.roll(found, 1, axis=1) if odd and len(given.private.labels) < 500 else found

    class Picky(Leaky):
        name = "picky"

        def calibrate(self, budget: Any) -> Any:
            if self.facts.private_records < 500:
                raise BenchError("too few records")
            return super().calibrate(budget)

    assert "votes of one query" in check_method(Leaky, seconds=1e-3).reason
    assert "it refuses sets of few records, so these were not tested" in check_method(Picky, seconds=1e-3).reason
    assert (
        "with 4, 9, 51 records, changing one changes nothing of the others "
        "(2, 3, 5, 7, 8, 17, 33, 201 were left out for lack of time)" in check_method(Honest, seconds=1e-3).reason
    )


@pytest.mark.slow
def test_what_other_threads_load_meanwhile_is_not_the_methods() -> None:
    """Checks run side by side, and each loads digits for itself."""
    source, ended = DataSource(Progress()), threading.Event()

    def load() -> None:
        while not ended.is_set():
            source.material("digits")

    other = threading.Thread(target=load)
    other.start()
    try:
        check = check_method(METHODS.get("dp-linear"), facts=source.describe("digits").facts)
    finally:
        ended.set()
        other.join()
    assert check.ok, check.reason


class Sleeps(Honest):
    """A method whose quick preset takes long."""

    name = "sleeps"

    @classmethod
    def presets(cls, facts: Facts) -> dict[str, dict[str, Any]]:
        return {"quick": {"steps": 31}, "tiny": {}}

    def begin(self, given: Any) -> None:
        if given.config.steps == 31:
            time.sleep(60)


@pytest.mark.slow
def test_a_brief_check_says_which_preset_was_too_slow_to_replay() -> None:
    check = check_method(Sleeps, awake=Preset.QUICK, patience=0.5)
    assert check.ok
    assert "a run of its preset quick takes more than 0.5 s: check it by its name" in check.reason


def test_texts_and_long_names_are_data(tmp_path: Path) -> None:
    table = ", ".join(repr(f"row {number} of words") for number in range(40))
    few = ", ".join(repr(f"word {number}") for number in range(20))
    defined = "\n    ".join(f"def row_{'ab' * 20}_{number}(self): pass" for number in range(10))
    sizes = []
    for name, code in {
        "table": f"WORDS = ({table})", "text": f"WORDS = {'row ' * 650!r}", "docstring": f"{'row ' * 650!r}; __doc__",
        "functions": defined, "few": f"WORDS = ({few})", "prose": f"{'row ' * 650!r}",
    }.items():  # fmt: skip
        (tmp_path / f"{name}.py").write_text(f"class Mine:\n    {code}\n")
        import_file(name, tmp_path / f"{name}.py")
        sizes.append(constants_of(sys.modules[name].Mine)[0])
    assert min(sizes[:4]) > 400
    assert sizes[4:] == [0, 0]


def test_more_neighbours_follow_as_long_as_they_take_the_seconds_given() -> None:
    trial = Trial(Honest, vars(Honest.Config()), CHECK_FACTS, 0)
    (first,) = session(trial, ["given"], None)
    assert len(session(trial, ["renamed", 0], first.calls, 0.0)) == 2
    with mock.patch("bench.evaluation.check.check_runs.NEIGHBOURS", 4):
        assert len(session(trial, ["renamed", 0], first.calls, 1e9)) == 5


FACTS = [CHECK_FACTS, Facts("two", 300, 60, 60, 2, (3, 32, 32)), Facts("words", 240, 80, 40, 3, (2, 1, 40))]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: facts.dataset)
def test_unrelated_private_sets_share_no_label_no_pixel_and_no_count(facts: Facts, seed: int) -> None:
    """They lack one class of three or more, and their first pixel is constant, which a leak may depend on."""
    first = generated(facts, seed).private
    second = unrelated(first, seed=seed)
    assert first.images.shape == second.images.shape == (facts.private_records, *facts.shape)
    assert not (first.labels == second.labels).any()
    assert not (first.images == second.images).any()
    counts, others = (data.labels.bincount(minlength=facts.classes) for data in (first, second))
    assert counts.min() > 1
    assert others.sort().values.tolist()[0] == 0 if facts.classes > 2 else others.min() > 1
    assert others.sort().values.tolist()[1] > 1
    assert not (counts == others).any()
    assert (second.images[:, :, 0, 0] == second.images[:1, :, 0, 0]).all()
    assert first.images.float().mean() > 1.5 * second.images.float().mean()


def test_other_labels_alone_where_the_images_are_public() -> None:
    first = generated().private
    second = unrelated(first, PrivacyUnit.LABEL)
    assert second.images.equal(first.images)
    assert not (first.labels == second.labels).any()


def test_renaming_moves_every_class_and_the_labelled_source_alike() -> None:
    material = generated(labelled=True)
    private, public = renamed(material.private), renamed_source(material.public, 10)
    assert material.public.labelled is not None
    assert public.labelled is not None
    names = dict(zip(material.private.labels.tolist(), private.labels.tolist(), strict=True))
    assert all(old != new for old, new in names.items())
    assert sorted(names.values()) == list(range(10))
    given, found = material.public.labelled.labels.tolist(), public.labelled.labels.tolist()
    assert found == [names[old] for old in given]


def test_a_nearest_mean_learns_the_generated_set_and_seeds_give_other_sets() -> None:
    sets = [generated(seed=seed) for seed in (0, 1)]
    for material in sets:
        x, y = material.private.images.float().flatten(1), material.private.labels
        means = torch.stack([x[y == c].mean(0) for c in range(10)])
        found = torch.cdist(material.test_images.float().flatten(1), means).argmin(1)
        assert (found == material.test_labels).float().mean() > 0.6
    assert not sets[0].private.labels.equal(sets[1].private.labels)
    assert generated().private.images.equal(sets[0].private.images)


@pytest.mark.slow
def test_a_class_that_no_other_process_can_import_is_checked_in_this_one() -> None:
    class Local(Honest):
        name = "local"

    class LocalLeak(ClassCounts):
        name = "local-leak"

    assert MethodPlace.of(Local) is None
    assert MethodPlace.of(Honest) is not None
    assert check_method(Local).verdict is CheckVerdict.PASSED
    assert check_method(LocalLeak).verdict is CheckVerdict.REJECTED


@pytest.mark.slow
def test_a_method_that_ends_its_process_is_an_error() -> None:
    place = MethodPlace.of(Leaves)
    assert place is not None
    with pytest.raises(BenchError, match=r"leaves calls sys.exit\(3\)"):
        Processes().run(Trial(place, vars(Honest.Config()), CHECK_FACTS, 0), ["given"])


class Leaves(Honest):
    name = "leaves"

    def begin(self, given: object) -> None:
        raise SystemExit(3)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(0,), (1, 2)])
def test_the_reason_says_how_good_the_students_were(seeds: tuple[int, ...]) -> None:
    reason = check_method(Honest, seeds=seeds, dataset="digits").reason
    assert len(re.findall(r"[5-9]\d%", reason)) == len(seeds)
    assert "try --preset quick" not in reason


def test_a_failed_run_of_another_cell_is_said() -> None:
    first = [True]

    class FailsFirst(Honest):
        def begin(self, given: object) -> None:
            if first:
                first.clear()
                raise BenchError("too few answers")

    assert "the run of another cell failed" in check_method(FailsFirst).reason


def test_a_student_at_chance_is_said() -> None:
    class Short(Honest):
        Config = dataclasses.make_dataclass("Config", [("steps", int, 0)], bases=(Honest.Config,), frozen=True)

    reason = check_method(Short).reason
    assert "try --preset quick" in reason
    assert "the run of another cell failed" not in reason


@pytest.mark.parametrize("jump", [0, 1, 612, 999])
def test_a_walk_finds_the_record_at_which_an_input_jumps(jump: int) -> None:
    asked = []

    def given_at(changed: int) -> list[Given]:
        asked.append(changed)
        return [given([0.001 * changed + 30.0 * (changed > jump)], "l2", 0.01)]

    found = walk(given_at, 1000, Adjacency.REPLACE, 60.0)
    assert "records together move the values by" in found or "one record moves" in found
    assert len(asked) <= 12


def test_a_walk_passes_inputs_within_their_charge_and_ends_in_time() -> None:
    assert walk(lambda changed: [given([0.01 * changed], "l2", 0.01)], 1000, Adjacency.REPLACE, 60.0) == ""
    assert walk(lambda changed: [given([0.01 * changed], "l2", 0.01)], 1000, Adjacency.REPLACE, 0.0) == ""
    assert walk(lambda changed: "it left" if changed else [], 10, Adjacency.REPLACE, 1.0) == "it left"


@pytest.mark.parametrize(("failures", "runs"), [(0, 1), (1, 2), (4, 5), (DRAWS + 1, DRAWS + 1)])
def test_noise_with_which_a_method_gives_no_answer_is_drawn_again(failures: int, runs: int) -> None:
    trials: list[Trial] = []

    class Seldom(Processes):
        def run(self, trial: Trial, *_: Any) -> list[Outcome]:
            trials.append(trial)
            if len(trials) <= failures:
                raise BenchError(f"failure {len(trials)}")
            return [Outcome()]

    first = Trial(Honest, {}, CHECK_FACTS, 0)
    with pytest.raises(BenchError, match=f"failure {runs}") if failures > DRAWS else contextlib.nullcontext():
        assert recorded(first, ["given"], Seldom())[0] is trials[-1]
    assert [trial.noisy for trial in trials] == [False] + [True] * (runs - 1)
    assert len({trial.noise for trial in trials}) == runs


def test_even_seeds_have_a_high_target_without_noise_and_odd_ones_a_low_target_with_it() -> None:
    for seed in range(2, 100, 2):
        silent, noisy = Draw.of(seed), Draw.of(seed + 1)
        assert (silent.noisy, noisy.noisy) == (False, True)
        assert LOWEST <= noisy.budget.epsilon <= MIDDLE <= silent.budget.epsilon <= HIGHEST
    published = [Draw.of(seed).budget.epsilon in EPSILONS for seed in range(2, 202)]
    assert 70 < sum(published) < 130  # branches for these targets run in every other check
