"""Bounds of settings: what is accepted, what the message says, and that every number of a method or attack has one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args, get_type_hints

import pytest

from bench.core.config import Preset, as_dict, build_config, config_from, parse_overrides, setting, values_of
from bench.core.errors import BenchError
from bench.core.types import Facts
from bench.interface.registry import ATTACKS, METHODS


@dataclass(frozen=True)
class BoundedConfig:
    epochs: int = setting(10, "table 1", ge=1)
    lr: float = setting(0.1, "table 1", gt=0)
    decay: float = setting(0.9, "table 1", ge=0, lt=1)
    records: int | None = setting(None, "ours", ge=1, le=100)
    sizes: tuple[float, ...] = setting((0.5, 1.0), "ours", gt=0, le=1)


class Bounded:
    name: ClassVar[str] = "bounded"
    Config: ClassVar[type] = BoundedConfig

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        return {"quick": {"epochs": 2}}


FACTS: Any = None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("epochs=0", "bounded.epochs must be at least 1, not 0. The paper's value is 10."),
        ("lr=0", "bounded.lr must be positive and finite, not 0.0. The paper's value is 0.1."),
        ("lr=inf", "bounded.lr must be positive and finite, not inf."),
        ("lr=nan", "bounded.lr must be positive and finite, not nan."),
        ("decay=1", "bounded.decay must be at least 0 and below 1, not 1.0."),
        ("records=0", "bounded.records must be at least 1 and at most 100, not 0."),
        ("sizes=[0.5, 2]", r"bounded.sizes must be positive and at most 1, not \(0.5, 2.0\)."),
        (f"epochs={-(10**400)}", "bounded.epochs must be at least 1"),
    ],
)
def test_a_value_out_of_bounds_is_named_with_what_is_accepted(given: str, said: str) -> None:
    if given.startswith("sizes"):
        values = {**as_dict(BoundedConfig()), "sizes": (0.5, 2.0)}
        with pytest.raises(BenchError, match=said):
            config_from(Bounded, values)
        return
    with pytest.raises(BenchError, match=said):
        build_config(Bounded, Preset.QUICK, FACTS, values_of(parse_overrides(Bounded, [given])))


def test_values_within_bounds_and_none_are_accepted() -> None:
    texts = ["lr=1e-9", "decay=0", "records=none"]
    config, _ = build_config(Bounded, Preset.QUICK, FACTS, values_of(parse_overrides(Bounded, texts)))
    assert (config.epochs, config.decay, config.records) == (2, 0.0, None)
    assert config_from(Bounded, as_dict(config)) == config
    with pytest.raises(BenchError, match="decay must be"):
        config_from(Bounded, {**as_dict(config), "decay": math.inf})


MAY_BE_NEGATIVE = {("dpsur", "threshold"), ("brep-mi", "inside")}


def test_no_setting_accepts_a_negative_number_without_a_reason() -> None:
    facts, accepted = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28), True), set()
    for kind in [registry.get(name) for registry in (METHODS, ATTACKS) for name in registry.names()]:
        hints = get_type_hints(kind.Config)
        for field in dataclasses.fields(kind.Config):
            kinds = {hints[field.name], *get_args(hints[field.name])} & {int, float}
            if not kinds:
                continue
            try:
                build_config(kind, Preset.QUICK, facts, {field.name: -1.0 if float in kinds else -1})
            except BenchError:
                continue
            accepted.add((kind.name, field.name))
    assert accepted == MAY_BE_NEGATIVE
