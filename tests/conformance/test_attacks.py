"""Tests of every registered attack; new attacks are included automatically."""

from __future__ import annotations

import dataclasses
import inspect
import sys

import pytest

from bench.core.config import Preset, build_config, source_of
from bench.core.types import Access, Facts
from bench.interface.attack import Attack, InversionAttack, MembershipAttack, ReleaseAttack, RobustnessAttack
from bench.interface.registry import ATTACKS

FACTS = [
    Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28), public_benchmark=True),
    Facts("faces", 140, 0, 60, 20, (1, 112, 92), public_benchmark=True),
    Facts("cifar10", 40_000, 10_000, 10_000, 10, (3, 32, 32), public_benchmark=True),
    Facts("two", 400, 100, 100, 2, (1, 8, 8)),
]


@pytest.fixture(params=ATTACKS.names())
def attack(request: pytest.FixtureRequest) -> type[Attack]:
    return ATTACKS.get(request.param)


def test_attacks_are_found() -> None:
    wanted = {
        "mi-face",
        "inversion-network",
        "data-free",
        "gmi",
        "plg-mi",
        "brep-mi",
        "lira",
        "rmia",
        "loss",
        "label-gap",
        "nearest-record",
        "reconstruction-membership",
        "robustness",
    }
    assert wanted <= set(ATTACKS.names())
    assert ATTACKS.broken == {}


def test_it_says_what_it_is(attack: type[Attack]) -> None:
    text = (inspect.getdoc(sys.modules[attack.__module__]) or "").lower()
    assert len(text) > 200
    assert attack.citation
    assert issubclass(attack, (InversionAttack, MembershipAttack, ReleaseAttack, RobustnessAttack))
    assert issubclass(attack, RobustnessAttack) or attack.access in Access
    if issubclass(attack, (InversionAttack, ReleaseAttack)):
        assert "threat model" in text
        assert "differs from the paper" in text
    if issubclass(attack, MembershipAttack):
        assert attack.references >= 0


def test_every_setting_names_the_place_that_states_it(attack: type[Attack]) -> None:
    for field in dataclasses.fields(attack.Config):
        assert source_of(attack.Config, field.name), field.name


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: facts.dataset)
@pytest.mark.parametrize("preset", list(Preset))
def test_every_preset_can_be_built_for_every_kind_of_data(attack: type[Attack], facts: Facts, preset: Preset) -> None:
    config, reduced = build_config(attack, preset, facts)
    assert isinstance(config, attack.Config)
    if preset is Preset.PAPER:
        assert reduced == []
