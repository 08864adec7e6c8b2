"""Slow calibrations are stored, and never reused for another program, method or budget."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bench.core.config import setting
from bench.core.errors import BenchError
from bench.core.types import Basis, Budget, Facts, TargetAdjacency
from bench.experiments import calibration_cache as calibrations
from bench.experiments.calibration_cache import Calibrations

FACTS = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28))
BUDGET = Budget(1.0, 1e-5, Basis.PROVEN)


@dataclass(frozen=True)
class SlowConfig:
    noise: float = setting(1.0, "ours")
    weights: str = setting("", "ours")


class Slow:
    name = "slow"
    version = 1
    Config = SlowConfig
    calls: ClassVar[int] = 0

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def __init__(self, config: SlowConfig, facts: Facts) -> None:
        self.config = config

    def calibrate_checked(self, budget: Budget) -> SlowConfig:
        type(self).calls += 1
        time.sleep(0.02)
        if budget.epsilon > 100:
            raise BenchError("too much")
        return dataclasses.replace(self.config, noise=self.config.noise / budget.epsilon)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrations, "SLOW", 0.01)
    Slow.calls, Slow.version = 0, 1


def calibrated(
    root: Path | None, config: SlowConfig = SlowConfig(), budget: Budget = BUDGET, facts: Facts = FACTS
) -> Any:
    memo = Calibrations(*([] if root is None else [root]))
    made = memo.calibrate(Slow, config, budget, facts)  # type: ignore[type-var]
    memo.keep()
    return made


def test_the_second_plan_finds_what_the_first_computed(tmp_path: Path) -> None:
    first = calibrated(tmp_path, budget=dataclasses.replace(BUDGET, epsilon=3.0))
    assert calibrated(tmp_path, budget=dataclasses.replace(BUDGET, epsilon=3.0)) == first == SlowConfig(1 / 3)
    assert Slow.calls == 1
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.glob("calibrations/*"))


@pytest.mark.parametrize(
    "change",
    [
        {"config": SlowConfig(2.0)},
        {"budget": Budget(2.0, 1e-5, Basis.PROVEN)},
        {"budget": Budget(1.0, 1e-6, Basis.PROVEN)},
        {"budget": Budget(1.0, 1e-5, Basis.CLAIMED)},
        {"budget": Budget(1.0, 1e-5, Basis.PROVEN, TargetAdjacency.OWN)},
        {"facts": dataclasses.replace(FACTS, private_records=50_000)},
    ],
)
def test_anything_else_is_computed(tmp_path: Path, change: dict[str, Any]) -> None:
    calibrated(tmp_path)
    calibrated(tmp_path, **change)
    assert Slow.calls == 2


def test_another_program_computes_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated(tmp_path)
    Slow.version = 2
    calibrated(tmp_path)
    assert Slow.calls == 2
    monkeypatch.setattr(calibrations, "program_digest", lambda source: "edited")
    calibrated(tmp_path)
    assert Slow.calls == 3


def test_an_edit_of_a_methods_file_is_another_program(tmp_path: Path) -> None:
    source = tmp_path / "method.py"
    source.write_text("a = 1")
    before = calibrations.program_digest.__wrapped__(str(source))
    source.write_text("a = 2")
    assert calibrations.program_digest.__wrapped__(str(source)) != before


def test_refusals_and_files_of_weights_are_not_kept(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(BenchError, match="too much"):
            calibrated(tmp_path, budget=Budget(1000.0, 1e-5, Basis.PROVEN))
        calibrated(tmp_path, SlowConfig(weights="file:net.safetensors"))
    assert Slow.calls == 4
    assert not list(tmp_path.glob("calibrations/*"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"noise": "x", "weights": ""}', '{"other": 1}'])
def test_a_damaged_entry_is_computed_anew(tmp_path: Path, text: str) -> None:
    calibrated(tmp_path)
    (entry,) = tmp_path.glob("calibrations/*.json")
    entry.write_text(text)
    assert calibrated(tmp_path) == SlowConfig(1.0)
    assert Slow.calls == 2
    assert json.loads(entry.read_text()) == {"noise": 1.0, "weights": ""}


def test_quick_ones_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrations, "SLOW", 10.0)
    calibrated(tmp_path)
    calibrated(None)
    assert not list(tmp_path.iterdir())


def test_a_methods_quick_ones_are_kept_with_its_slow_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one pays for imports; without this rule the others would on the next run."""
    monkeypatch.setattr(calibrations, "SLOW", 0.3)
    memo = Calibrations(tmp_path)
    for epsilon, seconds in ((1.0, 0.35), (2.0, 0.0)):
        monkeypatch.setattr(time, "sleep", lambda given, seconds=seconds: wait(seconds))
        memo.calibrate(Slow, SlowConfig(), dataclasses.replace(BUDGET, epsilon=epsilon), FACTS)  # type: ignore[type-var]
    memo.keep()
    assert len(list(tmp_path.glob("calibrations/*.json"))) == 2


def wait(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
