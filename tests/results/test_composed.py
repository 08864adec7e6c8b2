"""The joint cost of several students: at least the largest, at most the sum, exact if known."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import bench
from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.accounting.accountants import common_unit
from bench.privacy.events.base_event import Event, stored
from bench.privacy.events.events import Bypass, Gaussian
from bench.results.composed import composition, released_together
from bench.results.record import Record
from bench.results.run_dir import RunDir
from helpers.commands import bench as command
from helpers.paths import BOARD
from helpers.records import record


def student(seed: int, *events: Event, epsilon: float = 1.0, **changes: object) -> Record:
    made = record(seed=seed, epsilon=epsilon, **changes)
    assert made.privacy is not None
    return made.model_copy(update={"privacy": made.privacy.model_copy(update={"events": stored(events)})})


GAUSSIAN = Gaussian(noise_multiplier=8.0, unit=PrivacyUnit.RECORD, adjacency=Adjacency.REPLACE)
ABSENT = Gaussian(noise_multiplier=16.0, unit=PrivacyUnit.RECORD, adjacency=Adjacency.ADD_REMOVE)


def test_equal_gaussian_releases_cost_one_of_half_the_noise() -> None:
    # With twice the noise multiplier, an add-remove release costs as much for replace neighbours.
    four = [student(s, GAUSSIAN) for s in range(2)] + [student(s, ABSENT) for s in range(2, 4)]
    cost = bench.epsilon("gaussian", noise_multiplier=4.0, delta=1e-5)
    together = composition(four)
    exact = [row.epsilon for row in together.accounted(1e-5) if row.name == "exact-gaussian"]
    assert exact == [pytest.approx(cost.proven, rel=1e-6)]


def test_a_label_s_guarantee_stays_one_whatever_unit_its_events_state() -> None:
    """`pate-fm` charges votes, whose event is stated for records, for a label; with the image a record has no bound."""
    label = student(1, GAUSSIAN, unit=PrivacyUnit.LABEL)
    together = composition([student(0, GAUSSIAN), label])
    assert common_unit(together.events)[0] is PrivacyUnit.LABEL
    assert "for one replaced label" in together.title
    assert "for one label (replace), the weakest of the units" in together.accounted(1e-5)[0].note
    assert "for one replaced record" in composition([student(0, GAUSSIAN)]).title
    with pytest.raises(BenchError, match="do not compose"):
        composition([label, student(2, GAUSSIAN, unit=PrivacyUnit.QUERY_LABEL)])


def test_one_bypass_leaves_nothing_proven() -> None:
    together = composition([student(0, GAUSSIAN), student(1, GAUSSIAN, Bypass("looked"))])
    assert together.accounted(1e-5)[0].epsilon == float("inf")


def test_names_stand_for_whole_parts_of_a_key() -> None:
    known = {one.key: one for one in (*(student(s, GAUSSIAN) for s in range(3)), student(0, GAUSSIAN, epsilon=10.0))}
    first = record(epsilon=1.0).key
    assert [one.epsilon for one in released_together(known, [first.removesuffix("-s0")])] == [1.0] * 3
    assert len(released_together(known, [first, first])) == 1
    other = student(1, GAUSSIAN, config={"lr": 0.1}).model_copy(update={"key": f"{first}-other"})
    with pytest.raises(BenchError, match=f"different settings begin with '{first}'. Name those you mean:\n  {first}\n"):
        released_together({**known, other.key: other}, [first])
    with pytest.raises(BenchError, match="no record is named"):
        released_together(known, [])
    with pytest.raises(BenchError, match="unknown record 'mnist-pate-1'"):
        released_together(known, ["mnist-pate-1"])  # the beginning of two targets


@pytest.mark.parametrize(
    ("changes", "said"), [({"dataset": "fmnist"}, "different data sets"), ({"delta": 1e-6}, "different deltas")]
)
def test_what_does_not_belong_together_is_refused(changes: dict[str, object], said: str) -> None:
    known = {one.key: one for one in (student(0, GAUSSIAN), student(1, GAUSSIAN, **changes))}
    with pytest.raises(BenchError, match=said):
        released_together(known, list(known))


def test_published_students_together(tmp_path: Path) -> None:
    key = "mnist-dp-sgd-eps3"
    run = RunDir(tmp_path / "runs").create()
    for path in sorted((BOARD / "records").glob(f"{key}-*")):
        shutil.copy(path, run.records_path)
    done = command("compose", key, "-o", run.path, "--json", "-q")
    assert done.returncode == 0, done.stderr
    together = bench.compose(key, runs=run.path)
    alone = bench.load_results(run.path)["replace_one"]
    assert alone.max() < together.proven < alone.sum()
    assert f'"epsilon": {together.proven}' in done.stdout
