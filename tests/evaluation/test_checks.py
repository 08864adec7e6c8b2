"""The sensitivity test, and three cheats that were written by someone who had not read the checks or the audits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.core.config import Grid
from bench.core.progress import Progress
from bench.core.types import Adjacency, PrivacyUnit
from bench.evaluation.audit import AuditOptions, audit_student
from bench.evaluation.noninterference import CheckVerdict, check_method, private_pair
from bench.evaluation.sensitivity import Given, neighbours, violation
from bench.experiments.data_source import DataSource
from bench.experiments.device import prepare_device
from bench.experiments.plan import expand
from bench.experiments.run import run_cell
from bench.interface.registry import METHODS
from bench.results.run_dir import RunDir
from helpers.paths import CHEATS


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


def test_another_number_of_calls_or_another_shape_is_a_violation() -> None:
    a = given([[1, 2]], "votes")
    assert "2 times" in violation([a], [a, a], Adjacency.REPLACE)
    assert "another" in violation([a], [given([[1, 2], [2, 1]], "votes")], Adjacency.REPLACE)


@pytest.mark.parametrize("unit", [PrivacyUnit.RECORD, PrivacyUnit.LABEL])
def test_neighbours_differ_in_one_record_and_keep_every_class(unit: PrivacyUnit) -> None:
    data = private_pair()[1]
    for other in neighbours(data, unit, count=5):
        images = (data.images != other.images).flatten(1).any(1)
        labels = data.labels != other.labels
        assert int(labels.sum()) == 1
        assert int(images.sum()) == (0 if unit is PrivacyUnit.LABEL else 1)
        assert set(other.labels.tolist()) == set(range(data.facts.classes))


@pytest.mark.parametrize(
    ("name", "why"),
    [("cheat_virtual_teachers", "votes of one query"), ("cheat_clustered_labels", "differs between the two runs")],
)
def test_cheats_are_rejected_by_the_check(name: str, why: str) -> None:
    method = METHODS.get(str(CHEATS / f"{name}.py"))
    try:
        check = check_method(method)
    finally:
        del METHODS._members[method.name]
    assert check.verdict is CheckVerdict.REJECTED
    assert why in check.reason


@pytest.mark.network
def test_a_cheat_that_passes_the_check_is_refuted_by_the_audit(tmp_path: Path) -> None:
    """On MNIST, fetched where it is not here: a thousand small digits do not give enough away. Two minutes."""
    method = METHODS.get(str(CHEATS / "cheat_output_noise.py"))
    try:
        assert check_method(method).verdict is CheckVerdict.PASSED
        source, run_dir = DataSource(Progress()), RunDir(tmp_path).create()
        (cell,) = expand(Grid((method.name,), ("mnist",), (1.0,)), source.describe)
        prepare_device("cpu", 1)
        student = run_cell(cell, run_dir, source, Progress())
        audit = audit_student(student, AuditOptions(power=False, draws=0), run_dir, source, Progress())
    finally:
        del METHODS._members[method.name]
    assert audit.failure is None
    assert audit.violated
