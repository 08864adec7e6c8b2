"""Configs, overrides, budgets, cells and their keys."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.core.config import (
    Grid,
    NoiseKind,
    Preset,
    Reuse,
    build_config,
    default_delta,
    parse_overrides,
    setting,
    values_of,
)
from bench.core.errors import BenchError, UnknownNameError
from bench.core.rows import Change
from bench.core.types import Basis, Budget, Facts, TargetAdjacency
from bench.experiments.plan import Cell, Dataset, Refusal, State, expand, keyed, states, to_run
from bench.interface.registry import METHODS
from bench.privacy.accounting.accountants import proven, replace_one
from bench.results.run_dir import RunDir
from cheats.honest import Honest
from helpers.records import failed, record

FACTS = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28))


def describe(name: str) -> Dataset:
    if name != "mnist":
        raise UnknownNameError("data set", name, ["mnist"])
    return Dataset(name, FACTS, "sha256:0")


def cells(**changes: object) -> list[Cell]:
    return expand(Grid(**{"methods": ("pate",), **changes}), describe)  # type: ignore[arg-type]


def test_grid_is_the_product() -> None:
    made = cells(methods=("pate", "nonprivate"), epsilons=(1.0, 10.0), seeds=(0, 1, 2))
    assert len([c for c in made if c.method == "pate"]) == 6
    assert len([c for c in made if c.method == "nonprivate"]) == 3, "a method without privacy runs once a seed"
    assert len({c.key for c in made}) == 9


def test_planning_advances_by_every_target() -> None:
    planned: list[int] = []
    expand(Grid(("pate", "nonprivate"), epsilons=(1.0, 10.0)), describe, advance=planned.append)
    assert planned == [1, 1, 2], "a method without privacy is planned once for all epsilons"


def test_key_depends_on_what_matters_and_on_nothing_else() -> None:
    (base,) = cells(epsilons=(10.0,))
    for change in (
        {"seeds": (1,)}, {"epsilons": (9.0,)}, {"delta": 1e-6}, {"basis": Basis.PROVEN}, {"preset": Preset.TINY},
        {"noise": NoiseKind.SECURE}, {"overrides": ("teachers=100",)},
    ):  # fmt: skip
        (other,) = cells(**{"epsilons": (10.0,), **change})
        assert other.key != base.key, change
    (again,) = cells(epsilons=(10.0,))
    assert again.key == base.key
    # A neighbour in the grid does not change a cell.
    assert base.key in {c.key for c in cells(epsilons=(1.0, 10.0), methods=("nonprivate", "pate"), seeds=(0, 5))}
    assert set(base.key) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+-_")


def test_the_adjacency_of_a_target_is_in_the_key_where_it_matters() -> None:
    whole = ("dp-sgd.batch_size=60000",)  # no sampling: fast to calibrate

    def key(method: str, basis: Basis, adjacency: TargetAdjacency) -> tuple[str, TargetAdjacency]:
        methods = ("dp-sgd", "pate")
        made = cells(methods=methods, epsilons=(2.0,), basis=basis, adjacency=adjacency, overrides=whole)
        return next((cell.key, cell.spec.adjacency) for cell in made if cell.method == method)

    replace_one, own = TargetAdjacency.REPLACE_ONE, TargetAdjacency.OWN
    for method, basis in (("pate", Basis.PROVEN), ("pate", Basis.CLAIMED), ("dp-sgd", Basis.CLAIMED)):
        assert key(method, basis, replace_one) == key(method, basis, own)
        assert key(method, basis, replace_one)[1] is own
    ours, theirs = (key("dp-sgd", Basis.PROVEN, adjacency) for adjacency in (replace_one, own))
    assert ours[0] != theirs[0]
    assert (ours[1], theirs[1]) == (replace_one, own)


def test_a_target_for_replace_neighbours_takes_more_noise() -> None:
    (ours,), (own,) = (
        cells(
            methods=("dp-sgd",),
            epsilons=(2.0,),
            basis=Basis.PROVEN,
            adjacency=adjacency,
            overrides=("batch_size=60000",),
        )
        for adjacency in (TargetAdjacency.REPLACE_ONE, TargetAdjacency.OWN)
    )
    assert ours.config.noise_multiplier > own.config.noise_multiplier
    method = METHODS.get("dp-sgd")
    assert replace_one(method(ours.config, ours.facts).charges(), ours.delta).epsilon == pytest.approx(2.0, rel=0.01)
    assert proven(method(own.config, own.facts).charges(), own.delta).epsilon == pytest.approx(2.0, rel=0.01)
    assert record().cell.adjacency is TargetAdjacency.OWN, "as in records from before this setting"


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_bad_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(BenchError, match="epsilon must be a positive finite number"):
        Grid(methods=("pate",), epsilons=(epsilon,))
    with pytest.raises(BenchError, match="epsilon must be a positive finite number"):
        Budget(epsilon, 1e-5)


@pytest.mark.parametrize("delta", [0.0, -1.0, 1.0, math.nan])
def test_bad_delta_is_refused(delta: float) -> None:
    with pytest.raises(BenchError, match="delta must lie"):
        Grid(methods=("pate",), delta=delta)
    with pytest.raises(BenchError, match="delta must lie"):
        Budget(1.0, delta)


def test_a_delta_that_publishes_a_record_is_refused() -> None:
    with pytest.raises(BenchError, match=r"--delta 0.0001 is too large for the 60,000 private records of mnist"):
        cells(methods=("dp-sgd",), epsilons=(2.0,), delta=1e-4)
    assert cells(methods=("dp-sgd",), epsilons=(2.0,), delta=1.6e-5)
    assert cells(methods=("nonprivate",), delta=1e-4)


@pytest.mark.parametrize(
    ("records", "delta"), [(60_000, 1e-5), (1_000, 1e-5), (73_257, 1e-5), (162_770, 1e-6), (1_281_167, 1e-7)]
)
def test_default_delta_is_below_one_in_n(records: int, delta: float) -> None:
    assert default_delta(records) == pytest.approx(delta)
    assert default_delta(records) < 1 / records


def test_unknown_names_show_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'pate'"):
        cells(methods=("pat",))
    with pytest.raises(UnknownNameError, match="mnist"):
        cells(datasets=("mnits",))
    with pytest.raises(UnknownNameError, match="teachers"):
        cells(overrides=("teacherz=3",))
    with pytest.raises(UnknownNameError, match="option of pate"):
        cells(overrides=("pate.teacherz=3",))
    with pytest.raises(UnknownNameError, match="method in --set"):
        cells(overrides=("dgd.teachers=3",))


@pytest.mark.parametrize("text", ["teachers", "=3", "teachers=many", "teachers=1.5", "gamma=x"])
def test_bad_override_is_refused(text: str) -> None:
    with pytest.raises(BenchError):
        cells(overrides=(text,))


def test_overrides_reach_their_method_with_the_right_type() -> None:
    pate = METHODS.get("pate")
    given = parse_overrides(pate, ["teachers=50", "pate.gamma=0.1", "dp-sgd.epochs=3"])
    assert values_of(given) == {"teachers": 50, "gamma": 0.1}
    config, changed = build_config(pate, Preset.PAPER, FACTS, {"teachers": 50})
    assert config.teachers == 50
    assert changed == [Change(field="teachers", paper=250, value=50)]
    assert str(changed[0]) == "teachers: 250 -> 50"


@pytest.mark.parametrize(
    ("method", "override", "preset"),
    [
        ("dp-sgd", "noise_multiplier=0.001", Preset.QUICK),
        ("scatter-linear", "noise_multiplier=0.001", Preset.QUICK),  # whose learning rate follows the stated noise
        ("pate", "gamma=5", Preset.QUICK),
        ("pate", "queries=50", Preset.PAPER),
        ("rr", "epsilon=3", Preset.TINY),
    ],
)
def test_an_override_that_calibration_throws_away_is_an_error_that_names_eps(
    method: str, override: str, preset: Preset
) -> None:
    for text in (override, f"{method}.{override}"):
        with pytest.raises(BenchError, match=rf"{method}\.{override}.* has no effect.*--eps"):
            cells(methods=(method,), epsilons=(2.0,), overrides=(text,), preset=preset)


@pytest.mark.parametrize(
    ("method", "overrides", "preset"),
    [
        ("scatter-linear", ("lr=4",), Preset.QUICK),  # scaled by the noise
        ("pate-fm", ("sigma1=200",), Preset.QUICK),  # in its ratio to the other noise
        ("pate", ("gamma=0.02", "least_queries=400"), Preset.PAPER),  # the second asks for less than the first
        ("g-pate", ("threshold=none",), Preset.QUICK),  # for calibration to choose
        ("dp-sgd", ("epochs=2", "lr=1"), Preset.QUICK),
    ],
)
def test_an_override_that_calibration_starts_from_stays(
    method: str, overrides: tuple[str, ...], preset: Preset
) -> None:
    (base,) = cells(methods=(method,), epsilons=(2.0,), preset=preset)
    (cell,) = cells(methods=(method,), epsilons=(2.0,), overrides=overrides, preset=preset)
    assert cell.refused == base.refused == ""
    assert (cell.key != base.key) == (overrides != ("threshold=none",))


def test_cell_that_cannot_run_has_a_reason_and_stops_no_other() -> None:
    low, high = cells(epsilons=(0.01, 10.0), preset=Preset.PAPER)
    assert "whatever the votes. Ask for that" in low.refused
    assert high.refused == ""
    (cell,) = cells(epsilons=(10.0,), overrides=("teachers=70000",))
    assert "more teachers than records" in cell.refused
    assert (high.refusal, low.refusal, cell.refusal) == (Refusal.NONE, Refusal.CALIBRATION, Refusal.CALIBRATION)


def test_the_words_of_a_refusal_are_in_no_key() -> None:
    (cell,) = cells(epsilons=(10.0,), overrides=("teachers=70000",))
    assert keyed(dataclasses.replace(cell, refused="said in other words")).key == cell.key
    assert keyed(dataclasses.replace(cell, refusal=Refusal.BYPASS)).key != cell.key


class Repaired(Honest):
    """Stands for a method whose paper is used outside any mechanism."""

    name = "with-bypass"
    bypass = "its generator saw all records"
    repaired_by = "with-bypass-sound"


def test_proven_basis_refuses_a_bypass_and_names_the_repaired_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    METHODS.names()
    monkeypatch.setitem(METHODS.members, "with-bypass", Repaired)
    (cell,) = cells(methods=("with-bypass",), epsilons=(1.0,), basis=Basis.PROVEN)
    assert "its generator saw all records" in cell.refused
    assert "with-bypass-sound" in cell.refused
    assert cell.refusal is Refusal.BYPASS
    (cell,) = cells(methods=("with-bypass",), epsilons=(1.0,))
    assert cell.refused == ""


def test_states_and_reuse(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path).create()
    a, b, c, d = cells(epsilons=(1.0, 2.0, 4.0, 8.0))
    run_dir.write_record(record(key=a.key))
    run_dir.write_record(failed(key=b.key))
    refused = dataclasses.replace(d, refused="it cannot")
    found = states([a, b, c, refused], run_dir)
    assert [found[cell.key] for cell in (a, b, c, refused)] == [State.DONE, State.FAILED, State.TODO, State.REFUSED]
    assert to_run([a, b, c], run_dir, Reuse.DONE) == [b, c]
    assert to_run([a, b, c], run_dir, Reuse.ALL) == [c]
    assert to_run([a, b, c], run_dir, Reuse.NONE) == [a, b, c]
    held = run_dir.claim(c.key)
    assert held is not None
    assert states([c], run_dir)[c.key] is State.RUNNING
    held.release()
    assert states([c], run_dir)[c.key] is State.TODO


@dataclass(frozen=True)
class Plain:
    value: int = setting(3, "table 1")


def test_setting_keeps_its_source() -> None:
    from bench.core.config import source_of

    assert Plain().value == 3
    assert source_of(Plain, "value") == "table 1"


@dataclass(frozen=True)
class Grown:
    value: int = setting(3, "table 1")
    added: int | None = setting(None, "ours", later=True)


class Growing:
    name = "growing"
    Config = Grown

    @classmethod
    def presets(cls, facts: object) -> dict[str, dict[str, object]]:
        return {}


def test_a_field_that_came_later_leaves_older_keys_as_they_are() -> None:
    from bench.core.config import as_dict, config_from, field_table

    assert as_dict(Grown()) == {"value": 3}
    assert as_dict(Grown(added=2)) == {"value": 3, "added": 2}
    assert config_from(Growing, {"value": 4}) == Grown(4)
    assert config_from(Growing, {"value": 4, "added": 1}) == Grown(4, 1)
    with pytest.raises(BenchError, match="value"):
        config_from(Growing, {"added": 1})
    assert [row[0] for row in field_table(Growing, {})] == ["value", "added"]
    config, reduced = build_config(Growing, Preset.PAPER, FACTS, {"added": 5})
    assert config == Grown(3, 5)
    assert reduced == [Change.of("added", None, 5)]
