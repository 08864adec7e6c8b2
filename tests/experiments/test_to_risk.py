"""Cells calibrated to a risk: the largest epsilon, by the exact curve, and the key of the same epsilon."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy.stats import norm

from bench.core.config import Grid, Preset
from bench.core.errors import BenchError, UnknownNameError
from bench.core.options import GridOptions
from bench.core.risk_target import RiskTarget
from bench.core.types import Basis, Facts
from bench.experiments.calibration_cache import Calibrations
from bench.experiments.plan import Cell, Dataset, bound_method, expand
from bench.experiments.to_risk import expand_to_risk, risk_of
from bench.privacy.accounting.distributions import gaussian_total

FACTS = Facts("digits", 1000, 400, 397, 10, (1, 8, 8), public_benchmark=True)


def describe(name: str) -> Dataset:
    return Dataset(name, FACTS, "sha256:0")


def to_risk(method: str, risk: str, optional: bool = False) -> tuple[list[Cell], list[str]]:
    said: list[str] = []
    grid = Grid((method,), ("digits",), preset=Preset.TINY, basis=Basis.PROVEN, risk=RiskTarget.parse(risk))
    return expand_to_risk(grid, describe, Calibrations(), said.append, optional=lambda name: optional), said


def test_the_largest_epsilon_keeps_the_risk_and_has_the_key_of_the_same_epsilon() -> None:
    (cell,), said = to_risk("dp-prototypes", "reconstruction@0.03=0.1")
    events = bound_method(cell).charges()
    assert events is not None
    mu = gaussian_total(tuple(events))
    assert mu is not None
    assert norm.cdf(norm.ppf(0.03) + mu) == pytest.approx(0.1, rel=2e-3)
    assert norm.cdf(norm.ppf(0.03) + mu) <= 0.1
    assert f"epsilon {cell.epsilon:g} (proven)" in said[0]
    grid = Grid(("dp-prototypes",), ("digits",), preset=Preset.TINY, basis=Basis.PROVEN)
    assert cell.epsilon is not None
    same, larger = (
        expand(replace(grid, epsilons=(one,)), describe)[0]
        for one in (cell.epsilon, float(f"{cell.epsilon + 1e-3:.4g}"))
    )
    assert same.key == cell.key
    assert risk_of(larger, RiskTarget.parse("reconstruction@0.03=0.1")) > 0.1


@pytest.mark.parametrize("risk", ["advantage=0.2", "tpr@0.05=0.2"])
def test_membership_is_a_target_too(risk: str) -> None:
    (cell,), _ = to_risk("dp-prototypes", risk)
    target = RiskTarget.parse(risk)
    assert 0.199 < risk_of(cell, target) <= 0.2


def test_a_method_that_counts_queries_gets_the_most_within_the_risk() -> None:
    (cell,), _ = to_risk("pate-gnmax", "reconstruction@0.01=0.6")
    assert 0 < risk_of(cell, RiskTarget.parse("reconstruction@0.01=0.6")) <= 0.6


@pytest.mark.parametrize(
    ("method", "risk", "words"),
    [
        ("pate-gnmax", "reconstruction@0.01=0.0101", "no setting has reconstruction@0.01=0.0101: at the least epsilon"),
        ("dp-prototypes", "advantage=0.00001", "no setting has advantage=1e-05: at the least epsilon, 0.001"),
        ("nonprivate", "advantage=0.2", "no proven curve"),
        ("dgd", "advantage=0.2", "no finite proven epsilon"),
    ],
)
def test_what_has_no_setting_is_told_or_left_out(method: str, risk: str, words: str) -> None:
    with pytest.raises(BenchError, match=words):
        to_risk(method, risk)
    cells, said = to_risk(method, risk, optional=True)
    assert not cells
    assert words in said[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"risk": "reconstruction@1.5=0.5"}, "'1.5' is not a number between 0 and 1"),
        ({"risk": "reconstruction@0=0.5"}, "'0' is not a number between 0 and 1"),
        ({"risk": "advantage=much"}, "'much' is not a number"),
        ({"risk": "reconstruction@0.1=0.1"}, "mere guessing already gives"),
        ({"risk": "tpr=0.1"}, "Write tpr@RATE=VALUE"),
        ({"risk": "advantage@0.1=0.1"}, "Write advantage=VALUE"),
        ({"risk": "advantage"}, "Write advantage=VALUE"),
        ({"risk": "advantage=0.1", "eps": 3}, "not both"),
        ({"risk": "advantage=0.1", "basis": "claimed"}, "give --basis proven"),
    ],
)
def test_a_wrong_target_is_told(given: dict[str, str], words: str) -> None:
    with pytest.raises(BenchError, match=words):
        GridOptions(methods="dp-sgd", **given).grid()  # type: ignore[arg-type]


def test_an_unknown_measure_lists_those_accepted() -> None:
    with pytest.raises(UnknownNameError, match="Accepted: advantage, reconstruction@PRIOR, tpr@RATE"):
        RiskTarget.parse("inversion=0.1")


def test_a_target_needs_no_basis() -> None:
    grid = GridOptions(methods="dp-sgd", risk="reconstruction@0.010=0.05").grid()
    assert grid.basis is Basis.PROVEN
    assert str(grid.risk) == "reconstruction@0.01=0.05"
