"""Plan the commands that a report prints for missing cells, with the methods' own configs, without running them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from bench.core.config import Grid, as_dict, build_config, check_overrides, parse_overrides, values_of
from bench.core.options import GridOptions, flags_of
from bench.data.splits import TRPATE_POOLED, TRPATE_PUBLIC
from bench.experiments.plan import Cell as Planned
from bench.experiments.plan import Dataset, expand
from bench.interface import DATASETS, METHODS, BenchError, Facts
from bench.reports.papers.evidence import Evidence, WantedCell, answers
from bench.reports.papers.spec import Attacked, Material, Ours, Paper, Picture, Spec, TableSpec, entries_of
from bench.reports.reported.numbers import read_reported
from bench.results.record import Record
from helpers.records import record


def cells_of(paper: Paper) -> Iterator[tuple[Spec, WantedCell]]:
    """Return all cells that the specs of `paper` ask for where there is no record, each once for each spec."""
    material = material_of(paper)
    for spec in (*paper.tables, *paper.figures):
        entries = entries_of(spec.rows(material) if isinstance(spec, TableSpec) else spec.panels(material))
        wanted = {entry.cell: None for entry in entries if isinstance(entry, Ours | Attacked | Picture)}
        yield from ((spec, one) for one in wanted)


def grid_of(command: str) -> Grid:
    """Return the grid of a printed command; raises ValueError for words that the test does not know."""
    words = shlex.split(command)
    if words[:4] != ["python", "-m", "bench", "run"]:
        raise ValueError(command)
    flags = list(zip(words[4::2], words[5::2], strict=True))
    fields = {flag: name for name, flag in flags_of(GridOptions).items()}
    if odd := {flag for flag, _ in flags} - set(fields):
        raise ValueError(f"unknown options: {odd}")
    given: dict[str, Any] = {fields[flag]: value for flag, value in flags}
    given |= {"set_": [value for flag, value in flags if flag == "--set"]}
    given |= {"delta": float(given["delta"])} if "delta" in given else {}
    return GridOptions(**given).grid()


def describe(name: str) -> Dataset:
    """Return what is public about a data set, from its specification; counts that only its files tell are made up."""
    if name not in DATASETS:
        raise BenchError(f"no data set {name}")
    spec = DATASETS[name]
    train, test = spec.train_records or 9_000, spec.test_records or 1_000
    pooled = TRPATE_POOLED.get(name)
    private, public = (pooled[0], pooled[1]) if pooled else (train, 9_000)
    if name in TRPATE_PUBLIC:
        private, public = train - TRPATE_PUBLIC[name], TRPATE_PUBLIC[name]
    return Dataset(name, Facts(name, private, public, test, spec.classes, spec.shape, public_benchmark=True), "r")


def planned(cell: WantedCell) -> Planned:
    """Return what the command of `cell` runs, of its first seed."""
    return expand(grid_of(cell.command), describe)[0]


def record_of(cell: WantedCell, accuracy: float = 0.5) -> Record:
    """Return a record as the command of `cell` would write it."""
    plan = planned(cell)
    return record(
        method=plan.method, dataset=plan.dataset, epsilon=plan.epsilon, basis=plan.basis, seed=plan.seed, key=plan.key,
        preset=plan.preset.value, config=as_dict(plan.config), reduced=list(plan.reduced), accuracy=accuracy,
    )  # fmt: skip


def material_of(paper: Paper, *records: Record) -> Material:
    """Return the material that fills the specs of `paper`, with only these records."""
    printed = [number for number in read_reported() if number.paper == paper.name]
    return Material(Evidence(list(records)), printed, paper.plain)


def check_settings(paper: Paper) -> int:
    """Raise :class:`BenchError` if a printed command names an unknown method, data set, preset or setting.

    Returns how many commands were looked at.
    """
    commands = {cell.command for _, cell in cells_of(paper)} - {""}
    for command in commands:
        grid = grid_of(command)
        methods = [METHODS.get(name) for name in grid.methods]
        check_overrides(methods, grid.overrides)
        for dataset in grid.datasets:
            for method in methods:
                values = values_of(parse_overrides(method, grid.overrides))
                build_config(method, grid.preset, describe(dataset).facts, values)
    return len(commands)


def check_records(paper: Paper) -> None:
    """Check that what each printed command makes answers its cell, and no cell that asks for something else."""
    made = {cell: record_of(cell) for cell in {cell for _, cell in cells_of(paper)} if not cell.cannot}
    for cell in made:
        assert not planned(cell).refused, cell
        plain = paper.plain.get(cell.method, {})
        for other, row in made.items():
            if answers(row, cell, plain):
                assert row.key == made[cell].key, f"{other.label} answers {cell.label}"
            else:
                assert other is not cell, f"nothing answers {cell.label}"
