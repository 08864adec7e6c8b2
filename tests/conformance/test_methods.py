"""Tests of every registered method; new methods are included automatically."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.core.config import Preset, as_dict, build_config, source_of
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Basis, Budget, Facts, PrivacyUnit, PublicKind
from bench.evaluation.check.noninterference import CheckVerdict, check_method
from bench.interface.method import Method
from bench.interface.registry import METHODS
from bench.privacy.accounting.accountants import proven
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SeededNoise
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.loop import FitSettings
from bench.training.self_training import SelfTrainingSettings
from helpers.local_methods import local
from helpers.small_sets import SMALL, private_pair, public_set

FACTS = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28))
BUDGET = Budget(10.0, 1e-5)
FAST = {
    "alibi", "dgd", "dp-merf", "dp-prototypes", "dp-sgd", "dpsd", "fedavg", "knn-pate", "nonprivate", "pate",
    "pate-confident", "scatter-linear", "trpate",
}  # fmt: skip
"""Methods of every family that CI tests; ``pytest -m slow`` and ``bench check`` test the others."""


@pytest.fixture(params=METHODS.names())
def method(request: pytest.FixtureRequest) -> type[Method]:
    return METHODS.get(request.param)


def test_methods_are_found() -> None:
    assert {"pate", "pate-gnmax", "pate-confident", "dp-sgd", "nonprivate"} <= set(METHODS.names())
    assert METHODS.broken == {}


def named(names: Iterable[str]) -> list[Any]:
    """Return the parameters `names`, all but those of `FAST` marked as slow."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in names]


@pytest.mark.few(3)
@pytest.mark.parametrize("name", named(METHODS.names()))
def test_method_does_not_interfere(name: str) -> None:
    method = METHODS.get(name)
    check = check_method(method)
    assert check.ok, check.reason
    assert (check.verdict is CheckVerdict.BYPASS) == bool(method.bypass)


PATHS = [
    ("pate", f"student_training={training}", f"teacher_recipe={recipe}", f"student={student}")
    for training in ("improved-gan", "self-training", "supervised")
    for recipe, student in (("published", "salimans_mlp"), ("augmented", "small_cnn"))
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    PATHS,
    ids=lambda path: "-".join(word.split("=")[1] for word in path[1:]),
)
def test_every_path_through_pate_does_not_interfere(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny preset takes only one of them, and the family shares this code."""
    few = FitSettings(steps=3, batch_size=8, shift=1)
    short = SelfTrainingSettings(labelled=few, pool=few, committee=2)
    monkeypatch.setattr("bench.methods.pate.family.self_training", lambda facts: short)

    check = check_method(local(METHODS.get(path[0])), overrides=(*path[1:], "teachers=3", "teacher_steps=2"))
    assert check.ok, check.reason


@pytest.mark.few(2)
@pytest.mark.parametrize("name", named(METHODS.names()))
def test_what_is_found_in_the_cache_gives_what_making_it_gave(name: str, tmp_path: Path) -> None:
    """A record must not depend on whether its artefacts were made by the same run."""
    method = METHODS.get(name)
    config = method(method.Config(**method.presets(SMALL).get("tiny", {})), SMALL).calibrate(BUDGET)
    releases, artefacts = [], {}
    for _ in range(2):
        streams, cache = Streams(0), Cache(tmp_path, {})
        context = Context(torch.device("cpu"), streams, cache, Progress(), note=lambda text: None)
        ledger = Ledger(method.unit, method.adjacency, Noisy(SeededNoise(streams.numpy("noise"))))
        released = method(config, private_pair()[0].facts).train_student(
            private_pair()[0], public_set(), ledger, context
        )
        releases.append([*released.student.state_dict().values(), *released.extras.values()])
        artefacts = cache.counts()
        charged = None if method.bypass else method(config, SMALL).charges()
        if charged is not None:
            said, costs = proven(list(ledger.events), BUDGET.delta), proven(charged, BUDGET.delta)
            assert costs.epsilon == pytest.approx(said.epsilon, rel=1e-6), "its charges are not what it spends"
    assert all(made == 0 for made, _ in artefacts.values()), artefacts
    assert all(torch.equal(first, second) for first, second in zip(*releases, strict=True))


def test_method_says_what_it_is(method: type[Method]) -> None:
    assert isinstance(method.unit, PrivacyUnit)
    assert isinstance(method.adjacency, Adjacency)
    assert method.citation
    assert method.public_data
    kinds = method.public_data_kinds
    assert kinds
    assert len(set(kinds)) == len(kinds)
    assert all(isinstance(kind, PublicKind) for kind in kinds)
    assert (PublicKind.NONE in kinds) == (kinds == (PublicKind.NONE,)) == (method.public_data == "none")
    text = inspect.getdoc(sys.modules[method.__module__]) or ""
    for word in ("Threat model" if method.private else "threat model", "rivate:", "ublic:", "eleased:"):
        assert word in text or word.replace(":", "") in text, f"the docstring of {method.name} does not say {word!r}"


def test_every_setting_names_the_place_that_states_it(method: type[Method]) -> None:
    assert dataclasses.is_dataclass(method.Config)
    assert method.Config.__dataclass_params__.frozen
    for field in dataclasses.fields(method.Config):
        assert source_of(method.Config, field.name), f"{method.name}.{field.name} names no source"


@pytest.mark.parametrize("preset", list(Preset))
@pytest.mark.parametrize("facts", [FACTS, SMALL], ids=["mnist", "small"])
def test_presets_exist_and_say_what_they_change(method: type[Method], preset: Preset, facts: Facts) -> None:
    config, changed = build_config(method, preset, facts)
    if preset is Preset.PAPER:
        assert changed == []
        assert config == method.Config()
    # A later field at its default is left out.
    paper = as_dict(method.Config())
    assert {change.field for change in changed} == {n for n, v in as_dict(config).items() if v != paper.get(n)}


PRIVATE = [name for name in METHODS.names() if METHODS.get(name).private]


@pytest.mark.parametrize("name", named(PRIVATE))
@pytest.mark.parametrize("epsilon", [pytest.param(1.0, marks=pytest.mark.slow), 10.0])
def test_a_claimed_budget_is_kept(name: str, epsilon: float) -> None:
    method = METHODS.get(name)
    config, _ = build_config(method, Preset.QUICK, FACTS)
    budget = Budget(epsilon, 1e-5, Basis.CLAIMED)
    calibrated = method(config, FACTS).calibrate(budget)
    assert calibrated == method(config, FACTS).calibrate(budget), "the key of a cell would not be stable"
    claim = method(calibrated, FACTS).claimed(1e-5)
    assert claim.epsilon <= epsilon * (1 + 1e-6)
    assert claim.source


@pytest.mark.parametrize("name", named(name for name in PRIVATE if not METHODS.get(name).bypass))
def test_a_proven_budget_is_kept(name: str) -> None:
    method = METHODS.get(name)
    config, _ = build_config(method, Preset.QUICK, FACTS)
    calibrated = method(config, FACTS).calibrate(Budget(1.0, 1e-5, Basis.PROVEN))
    charged = method(calibrated, FACTS).charges()
    assert charged is not None
    assert proven(charged, 1e-5).epsilon <= 1 + 1e-6
