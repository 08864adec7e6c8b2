"""Expand a grid to cells with calibrated config, key, and any refusal. Planning reads no private record."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

from bench.core.config import (
    Grid,
    Override,
    PrecisionKind,
    Reuse,
    as_dict,
    build_config,
    changes_from_paper,
    check_overrides,
    config_from,
    default_delta,
    needed_overrides,
    parse_overrides,
    values_of,
)
from bench.core.errors import BenchError, no_exit, telling
from bench.core.rows import Change
from bench.core.tuning import Tuning
from bench.core.types import Adjacency, Basis, Budget, Facts, TargetAdjacency
from bench.data.own_arrays import FEATURE_NETS, is_features
from bench.data.own_name import PREFIX, stated_after
from bench.experiments.calibration_cache import Calibrations
from bench.experiments.overrides import check_kept
from bench.interface.method import Method, check_public
from bench.interface.plugin_source import plugin_of, sources_of
from bench.interface.registry import METHODS, plugin_file
from bench.results.cell_spec import CellSpec, Specified
from bench.results.command import public_overrides
from bench.results.record import Record, Status
from bench.results.run_dir import RunDir
from bench.storage.cache import canonical_json

KEY_VERSION = 1  # independent of record schemas: a record keeps its key when its schema changes


class State(StrEnum):
    """State of a cell."""

    DONE = "done"
    FAILED = "failed"
    RUNNING = "running"
    TODO = "to do"
    REFUSED = "refused"
    UNREADABLE = "unreadable"
    """The system cannot read its record now, but the record may be intact."""


class Refusal(StrEnum):
    """Why a cell cannot run. Keys hash this value, not the message, so messages may change."""

    NONE = ""
    BYPASS = "bypass"
    """The cell has the proven basis, but its method uses private data outside any mechanism."""
    CALIBRATION = "calibration"


@dataclass(frozen=True, slots=True)
class Cell(Specified):
    """One planned cell. `config` is calibrated; `refused` says why the cell cannot run, or is empty."""

    spec: CellSpec
    dataset: str
    """The name for loading the data set; for a user's folder it contains the path."""
    facts: Facts
    config: Any
    reduced: tuple[Change, ...] = ()
    refusal: Refusal = Refusal.NONE
    refused: str = ""
    key: str = ""

    @property
    def title(self) -> str:
        """The cell's name for display."""
        budget = "no privacy" if self.epsilon is None else f"eps {self.epsilon:g} {self.basis.value}"
        return f"{self.method} on {self.dataset}, {budget}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Dataset:
    """Public information on a data set: the requested name, its facts and its revision."""

    name: str
    facts: Facts
    revision: str


def expand(
    grid: Grid, describe: Callable[[str], Dataset], calibrations: Calibrations | None = None,
    advance: Callable[[int], None] = lambda planned: None, tuning: Tuning | None = None,
) -> list[Cell]:  # fmt: skip
    """Return the cells of `grid`; `describe` maps a data set's name to its public facts.

    With `tuning`, cells are calibrated for the epsilon of one trial. Cells of one data set, method and seed are
    adjacent, so that their shared artefacts are made once, early. `advance` gets the number of targets (data sets x
    methods x epsilons) planned since its last call. Raises :class:`BenchError` for unknown names and options before any
    planning.
    """
    calibrations = calibrations or Calibrations()
    methods = [METHODS.get(name) for name in grid.methods]
    check_overrides(methods, grid.overrides)
    given = {method: parse_overrides(method, grid.overrides) for method in methods}
    for method in methods:
        _check_models(method, values_of(given[method]))
    cells: list[Cell] = []
    for dataset in (describe(name) for name in grid.datasets):
        for method in methods:
            values = values_of(given[method])
            asked = SimpleNamespace(**{field.name: field.default for field in fields(method.Config)} | values)
            meant = replace(dataset, facts=private_facts(method, asked, dataset.facts))
            config, reduced = build_config(method, grid.preset, meant.facts, values)
            overrides = needed_overrides(method, grid.preset, meant.facts, given[method])
            # A wrong file raises here, because the reason in a record would reveal its path.
            pinned = method(config, meant.facts).pin_teacher()
            if pinned != config:
                config, reduced = pinned, changes_from_paper(method, pinned, meant.facts)
            planned = []
            targets: Sequence[float | None] = grid.epsilons if method.private else (None,)
            for epsilon in targets:
                planned += [_calibrated(method, config, reduced, overrides, meant, epsilon, grid, calibrations, tuning)]
                advance(len(grid.epsilons) // len(targets))
            meanings = [_meaning(cell) for cell in planned]
            cells.extend(
                replace(cell, spec=spec, key=_key(spec, meaning))
                for seed in grid.seeds
                for cell, meaning in zip(planned, meanings, strict=True)
                for spec in [cell.spec.model_copy(update={"seed": seed})]
            )
    return cells


def bound_method(cell: Cell) -> Method:
    """Return the method of `cell`, bound to its config and facts."""
    return METHODS.get(cell.method)(cell.config, cell.facts)


def private_facts(method: type[Method], config: object, facts: Facts) -> Facts:
    """Return `facts` as `config` sees them: the private records are those of a given teacher, if any.

    Raises :class:`BenchError` if there are no private records.
    """
    given = method(config, facts).given_teacher()
    if given is not None:
        return given.facts(facts)
    if not facts.private_records:
        raise BenchError(
            f"{facts.dataset} has only test records, none to train {method.name} on. Use a method that "
            "takes a trained teacher (--set teacher_weights=package or file:PATH), or another data set."
        )
    return facts


def _check_models(method: type[Method], named: Mapping[str, Any]) -> None:
    """Raise :class:`UnknownNameError` for a `named` net that is not registered, before data is fetched."""
    for name in (named[field] for field in ("teacher", "student", "backbone") if named.get(field)):
        # A plug-in may register its nets only during training.
        if not any(str(name).encode() in source for source in sources_of(method).values()):
            from bench.models.registration import check_model  # imports torch, which other plans do not need

            check_model(name)


def _check_features(method: type[Method], config: Any, facts: Facts) -> None:
    """Raise :class:`BenchError` if the data is rows of features and `config` names a net of images."""
    if not is_features(facts.shape):
        return
    named = {name: getattr(config, name, "") for name in ("teacher", "student", "backbone")}
    wrong = {name: net for name, net in named.items() if net and net not in FEATURE_NETS}
    if wrong:
        nets = ", ".join(dict.fromkeys(wrong.values()))
        flags = " ".join(f"--{'teacher' if name == 'backbone' else name} {FEATURE_NETS[0]}" for name in wrong)
        raise BenchError(
            f"{facts.dataset} holds rows of features, and {method.name} takes {nets}, for images. "
            f"Take a method of the group transfer, pate-bayes or dp-sgd; PATE and methods for labels: {flags}."
        )


def _calibrated(
    method: type[Method], config: Any, reduced: list[Change], overrides: dict[str, Override], dataset: Dataset,
    epsilon: float | None, grid: Grid, calibrations: Calibrations, tuning: Tuning | None,
) -> Cell:  # fmt: skip
    usual = default_delta(dataset.facts.private_records)
    delta = usual if grid.delta is None else grid.delta
    if method.private and delta * dataset.facts.private_records >= 1:
        raise BenchError(
            f"--delta {delta:g} is too large for the {dataset.facts.private_records:,} private records of "
            f"{dataset.name}: it would allow a method to publish one of them. Give less than one over their number; "
            f"default: {usual:g}."
        )
    # A non-private method has no basis: the requested one must not change its key.
    basis = grid.basis if method.private else Basis.CLAIMED
    # Precision applies to ensembles only: it must not change the keys of other methods.
    precision = grid.precision if method.shardable else PrecisionKind.FLOAT32
    # Record the setting only if the two adjacencies differ, so that keys from before this setting stay valid.
    own = basis is Basis.CLAIMED or method.adjacency is Adjacency.REPLACE
    adjacency = TargetAdjacency.OWN if own else grid.adjacency
    refusal, refused = Refusal.NONE, ""
    if basis is Basis.PROVEN and method.bypass:
        variant = f" Its repaired variant is {method.repaired_by}." if method.repaired_by else ""
        variant += " --basis claimed runs it at its paper's epsilon."
        refusal = Refusal.BYPASS
        refused = f"{method.name} has no finite proven epsilon: {method.bypass}.{variant}"
    else:
        # A non-private method ignores the budget, but calibration also pins the digest of public weights.
        asked = epsilon if tuning is None else tuning.epsilon
        budget = Budget(1.0 if asked is None else asked, delta, basis, adjacency)

        def calibrate(start: Any) -> Any:
            _check_features(method, start, dataset.facts)
            with no_exit(f"calibrate of {method.name}"):
                return calibrations.calibrate(method, start, budget, dataset.facts)

        start = config
        try:
            config = calibrate(start)
        except BenchError as error:
            refusal, refused = Refusal.CALIBRATION, str(error)
        else:
            check_kept(method, start, config, values_of(overrides), calibrate, grid.preset, dataset.facts, budget)
    check_public(method(config, dataset.facts))
    facts = dataset.facts
    stated = stated_after(dataset.name) if facts.dataset.startswith(PREFIX) else ""
    spec = CellSpec(
        method=method.name,
        method_version=method.version,
        method_file=plugin_file(method),
        plugin=plugin_of(method),
        dataset=facts.dataset,
        dataset_revision=dataset.revision,
        image_shape=stated,
        preset=grid.preset,
        overrides=public_overrides({given.name: given.text for given in overrides.values()}, config),
        epsilon=epsilon,
        delta=delta,
        basis=basis,
        seed=0,
        noise=grid.noise,
        precision=precision,
        adjacency=adjacency,
        tuning=tuning,
    )
    if precision is not PrecisionKind.FLOAT32:
        reduced = [*reduced, Change.of("precision", PrecisionKind.FLOAT32.value, precision.value)]
    return Cell(spec, dataset.name, facts, config, tuple(reduced), refusal, refused)


def keyed(cell: Cell) -> Cell:
    """Return `cell` with its key: names and a hash of what determines the result; no path, device or private data."""
    return replace(cell, key=_key(cell.spec, _meaning(cell)))


def _meaning(cell: Cell) -> dict[str, Any]:
    """Return everything the result of `cell` depends on except the seed."""
    spec = cell.spec
    return {
        "schema": KEY_VERSION,
        "method": spec.method,
        "version": spec.method_version,
        "config": as_dict(cell.config),
        "dataset": spec.dataset,
        "revision": spec.dataset_revision,
        "epsilon": spec.epsilon,
        "delta": spec.delta,
        "basis": spec.basis.value,
        "preset": spec.preset.value,
        "noise": spec.noise.value,
        "refused": cell.refusal.value,
        # Omitted at its default, so that keys from before this setting stay valid.
        **({} if spec.precision is PrecisionKind.FLOAT32 else {"precision": spec.precision.value}),
        # A plug-in's author may forget to raise its version.
        **({} if spec.plugin is None else {"source": spec.plugin.source_sha256}),
        **({} if spec.adjacency is TargetAdjacency.OWN else {"adjacency": spec.adjacency.value}),
        **({} if spec.tuning is None else {"tuning": spec.tuning.model_dump(mode="json")}),
    }


def _key(spec: CellSpec, meaning: dict[str, Any]) -> str:
    digest = hashlib.sha256(canonical_json({**meaning, "seed": spec.seed}).encode()).hexdigest()[:12]
    budget = "inf" if spec.epsilon is None else f"{spec.epsilon:g}"
    words = f"{spec.dataset}-{spec.method}-eps{budget}-{spec.preset.value}-s{spec.seed}"
    return f"{re.sub(r'[^A-Za-z0-9.+-]', '_', words)}-{digest}"


def other_program(spec: CellSpec, method: type[Method]) -> str:
    """Return how `method` differs from the one in `spec` (version or plug-in source), or ""."""
    if method.version != spec.method_version:
        return f"version {spec.method_version} of {spec.method} made it, but this is version {method.version}"
    made, here = (None if plugin is None else plugin.source_sha256 for plugin in (spec.plugin, plugin_of(method)))
    if made == here:
        return ""
    told = "" if made else ", or its record does not say which"
    return f"another source of the plug-in {spec.method} made it than the one here{told}"


@telling()
def rebuild(
    spec: CellSpec, dataset: Dataset, config: dict[str, Any], key: str, *, again: str, reduced: Sequence[Change] = (),
    refusal: Refusal = Refusal.NONE, refused: str = "",
) -> Cell:  # fmt: skip
    """Return a stored cell. Raises :class:`BenchError`, with the remedy `again`, if program or data have changed."""
    method = METHODS.get(spec.method)
    if why := other_program(spec, method):
        raise BenchError(f"{key}: {why}. {again}")
    if dataset.revision != spec.dataset_revision:
        raise BenchError(f"{key} was made on another revision of {spec.dataset}. {again}")
    calibrated = config_from(method, config)
    facts = private_facts(method, calibrated, dataset.facts)
    cell = keyed(Cell(spec, dataset.name, facts, calibrated, tuple(reduced), refusal, refused))
    if cell.key != key:
        raise BenchError(f"{key} does not follow from its own settings. {again}")
    return cell


def data_named(record: Record, given: str | None) -> str:
    """Return the name of the data that the student trained on: `given` (``folder:PATH``) if it is a user's own.

    What followed @ is in the record, so `given` may omit it. Raises :class:`BenchError` if `given` states another, or
    is missing for a user's own data.
    """
    if not record.cell.own_folder:
        return record.dataset
    stated = record.cell.image_shape
    option = f"--data {PREFIX}PATH{'@' if stated else ''}{stated}"
    if given is None:
        raise BenchError(
            f"{record.key} was trained on your own data, and records never store its path. Give it as in "
            f"`bench run`: {option}; or give keys of other students."
        )
    after = stated_after(given)
    if after not in ("", stated):
        raise BenchError(f"{record.key} was trained with {option}, not {given}.")
    return given if after or not stated else f"{given}@{stated}"


def cell_of(record: Record, dataset: Dataset) -> Cell:
    """Return the cell of `record`, to run its pipeline again; see :func:`rebuild`."""
    again = "Run its cell again with the same command, then attack or audit that."
    return rebuild(record.cell, dataset, record.config, record.key, again=again, reduced=record.reduced)


def states(cells: Sequence[Cell], run_dir: RunDir | None, reuse: Reuse = Reuse.DONE) -> dict[str, State]:
    """Return each cell's state by key, from the records in `run_dir` (None: no such directory)."""
    found: dict[str, Status | None] = {}
    running: set[str] = set()
    if run_dir is not None and run_dir.path.is_dir():
        found = run_dir.statuses([cell.key for cell in cells])
        running = run_dir.running()
    state: dict[str, State] = {}
    for cell in cells:
        status = found.get(cell.key)
        if cell.key in running:
            state[cell.key] = State.RUNNING
        elif reuse is not Reuse.NONE and cell.key in found and status is None:
            state[cell.key] = State.UNREADABLE
        elif reuse is not Reuse.NONE and status is Status.DONE:
            state[cell.key] = State.DONE
        elif cell.refused:
            state[cell.key] = State.REFUSED
        elif reuse is not Reuse.NONE and status is Status.FAILED:
            state[cell.key] = State.FAILED
        else:
            state[cell.key] = State.TODO
    return state


def to_run(cells: Sequence[Cell], run_dir: RunDir, reuse: Reuse) -> list[Cell]:
    """Return the cells to execute: all except those with a record that `reuse` accepts or the system cannot read."""
    kept = {State.DONE, State.UNREADABLE} | ({State.FAILED} if reuse is Reuse.ALL else set())
    state = states(cells, run_dir, reuse)
    return [cell for cell in cells if state[cell.key] not in kept]
