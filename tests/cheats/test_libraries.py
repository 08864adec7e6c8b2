"""What finds the violations of published libraries, rebuilt in :mod:`cheats.libraries`."""

from __future__ import annotations

import re

import pytest

from bench.core.errors import BenchError
from bench.evaluation.check.noninterference import Check, CheckVerdict, check_method
from bench.evaluation.check.trials import SEEDS
from bench.interface.method import Method
from cheats import libraries

FAST: list[tuple[type[Method], str]] = [  # one of each kind
    (libraries.UnclippedSums, "one record moves the values by .* call 1 of gaussian"),
    (libraries.MaximumOfData, "its call 1 of gaussian asks for answers of another shape"),
    (libraries.WeakParent, "differ in the released parent"),
    (libraries.PrivateCount, "its call 1 of gaussian has another noise_multiplier"),
]
SLOW: list[tuple[type[Method], str]] = [
    (libraries.LowerBoundTwice, "one record moves the values by .* call 1 of gaussian"),
    (libraries.OneChangedCell, r"one record moves the values by 1\.41 .* charged for 1\."),
    (libraries.OneError, "the difference of two scores by 4 .* charged for 2"),
    (libraries.ClassesOfData, "its call 1 of gaussian asks for answers of another shape"),
    (libraries.NotANumber, "one record moves the values by .* charged for 2"),
    (libraries.AbsentClass, "its call 1 of gaussian asks for answers of another shape"),
    (libraries.BatchOfData, "its call 1 of dp_sgd has another run.optimizer"),
]
FOUND = [*FAST, *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW)]

REFUSED: list[tuple[type[Method], str]] = [  # by the ledger
    (libraries.NoNoise, "sensitivity must be a positive finite number"),
    (libraries.PaidOnce, "exceeds the declared maximum, of which 0 such runs are left"),
]

HONEST = [
    libraries.HonestSums, libraries.HonestSquares, libraries.HonestHistogram, libraries.HonestAbsence,
    libraries.HonestParent, libraries.HonestGain, libraries.HonestContrast, libraries.HonestTwice,
]  # fmt: skip


def checked(method: type[Method], seconds: float = 1.0) -> Check:
    return check_method(method, seeds=SEEDS, seconds=seconds)


def name_of(value: object) -> str:
    return getattr(value, "name", "")


@pytest.mark.few(1)
@pytest.mark.parametrize(("violation", "why"), FOUND, ids=name_of)
def test_the_check_rejects(violation: type[Method], why: str) -> None:
    check = checked(violation)
    assert check.verdict is CheckVerdict.REJECTED
    assert re.search(why, check.reason), check.reason


@pytest.mark.few(1)
@pytest.mark.parametrize(("violation", "why"), REFUSED, ids=name_of)
def test_the_ledger_refuses(violation: type[Method], why: str) -> None:
    with pytest.raises(BenchError, match=why):
        checked(violation)


@pytest.mark.slow
def test_a_repaired_twin_passes_without_few_records() -> None:
    assert checked(libraries.HonestSums, seconds=0.0).verdict is CheckVerdict.PASSED


@pytest.mark.slow
@pytest.mark.parametrize("honest", HONEST, ids=name_of)
def test_repaired_twins_pass(honest: type[Method]) -> None:
    check = checked(honest)
    assert check.verdict is CheckVerdict.PASSED, check.reason
