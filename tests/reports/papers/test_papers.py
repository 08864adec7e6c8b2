"""Every table and figure of every paper requests existing methods and settings, and its commands are valid."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from bench.core.config import Grid, Preset, as_dict, parse_overrides, values_of
from bench.core.types import Basis, Facts
from bench.reports.papers.build import commands_of
from bench.reports.papers.evidence import MEASURES, OF_ROW, Evidence, Usual, WantedCell
from bench.reports.papers.spec import (
    PAPERS,
    Attacked,
    Entry,
    FigureSpec,
    Material,
    Ours,
    Panel,
    Paper,
    Picture,
    Spec,
    TableSpec,
    Theirs,
    entries_of,
    load_paper,
)
from bench.reports.reported.numbers import read_reported
from helpers.records import record

MNIST = Facts("mnist", 60_000, 9000, 1000, classes=10, shape=(1, 28, 28))
SPECS = [
    pytest.param(paper, spec, id=f"{name} {'table' if isinstance(spec, TableSpec) else 'figure'} {spec.number}")
    for name in PAPERS
    for paper in [load_paper(name)]
    for spec in (*paper.tables, *paper.figures)
]


def material(paper: Paper) -> Material:
    return Material(Evidence(), [n for n in read_reported() if n.paper == paper.name], paper.plain)


@functools.cache
def parts_of(name: str, kind: type, number: str) -> list[Any]:
    paper = load_paper(name)
    (spec,) = [spec for spec in (*paper.tables, *paper.figures) if isinstance(spec, kind) and spec.number == number]
    given = material(paper)
    return list(spec.rows(given) if isinstance(spec, TableSpec) else spec.panels(given))


def parts(paper: Paper, spec: Spec) -> list[Any]:
    return parts_of(paper.name, type(spec), spec.number)


def entries(paper: Paper, spec: Spec) -> list[Entry | Picture]:
    return list(entries_of(parts(paper, spec)))


def cells(paper: Paper, spec: Spec) -> Iterator[WantedCell]:
    for entry in entries(paper, spec):
        if isinstance(entry, Ours | Attacked | Picture):
            yield entry.cell


@pytest.mark.few(12)
@pytest.mark.parametrize(("paper", "spec"), SPECS)
def test_cells_name_real_methods_data_sets_and_settings(paper: Paper, spec: Spec) -> None:
    from bench.data.datasets import all_datasets
    from bench.interface.registry import METHODS

    datasets = all_datasets()
    for cell in dict.fromkeys(cells(paper, spec)):
        method = METHODS.get(cell.method)
        assert cell.dataset in datasets
        values = values_of(parse_overrides(method, [text for word, text in _pairs(cell) if word == "--set"]))
        assert set(values) == {name for name, _ in cell.settings}
        assert list(values.values()) == [value for _, value in cell.settings]
        assert cell.epsilon is None or cell.epsilon > 0


def _pairs(cell: WantedCell) -> list[tuple[str, str]]:
    words = shlex.split(dataclasses.replace(cell, cannot="").command)
    return list(itertools.pairwise(words))


@pytest.mark.few(5)
@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.slow, id="all"), pytest.param(15, id="one in fifteen")]
)
@pytest.mark.parametrize(("paper", "spec"), SPECS)
def test_what_a_command_makes_answers_its_cell(paper: Paper, spec: Spec, every: int) -> None:
    """For example, a setting that calibration changes again would leave the cell missing forever."""
    for cell in list(dict.fromkeys(cells(paper, spec)))[::every]:
        if not cell.cannot:
            planned = _planned(cell)
            assert not planned.refused, (cell.command, planned.refused)
            made = record(
                method=cell.method, dataset=cell.dataset, epsilon=planned.epsilon, basis=planned.basis,
                preset=planned.preset.value, config=as_dict(planned.config), delta=planned.delta,
            )  # fmt: skip
            assert Evidence([made]).find(cell, paper.plain) is not None, cell.command


@functools.cache
def _planned(cell: WantedCell) -> Any:
    """Return the first cell of the command of `cell`."""
    from bench.experiments.plan import Dataset, expand

    given = dict(_pairs(cell))
    grid = Grid(
        methods=(given["--methods"],), datasets=(given["--datasets"],), seeds=(0,),
        epsilons=(float(given.get("--eps", 1)),), basis=Basis(given.get("--basis", "claimed")),
        preset=Preset(given.get("--preset", "quick")), delta=float(given["--delta"]) if "--delta" in given else None,
        overrides=tuple(text for word, text in _pairs(cell) if word == "--set"),
    )  # fmt: skip
    return expand(grid, lambda name: Dataset(name, _facts(name), "sha256:0"))[0]


@functools.cache
def _facts(name: str) -> Facts:
    """Return the facts of the real split, on which presets may depend, or invented ones if `name` is not pinned."""
    from bench.data.datasets import get_dataset
    from bench.publishing.reproduce import public_dataset

    known, found = public_dataset(name), get_dataset(name)
    records = found.train_records or 60_000
    made_up = Facts(name, records, 9000, 1000, classes=found.classes, shape=found.shape, public_benchmark=True)
    return made_up if known is None else known.facts


@pytest.mark.few(12)
@pytest.mark.parametrize(("paper", "spec"), SPECS)
def test_commands_are_accepted_by_the_command_line(paper: Paper, spec: Spec) -> None:
    from typer.main import get_command

    from bench.cli.main import app

    given = material(paper)
    missing = [found for entry in entries(paper, spec) if (found := given.missing(entry)) is not None]
    group: Any = get_command(app)
    for command in commands_of(missing):
        _, _, program, name, *options = shlex.split(command)
        assert program == "bench"
        # Raises on an unknown option and on an option without its value.
        group.commands[name].make_context(name, list(options))


@pytest.mark.parametrize(("paper", "spec"), SPECS)
def test_measures_attacks_and_printed_numbers_exist(paper: Paper, spec: Spec) -> None:
    from bench.interface.registry import ATTACKS

    for entry in entries(paper, spec):
        if isinstance(entry, Ours):
            assert entry.measure in {*MEASURES, *OF_ROW}
        if isinstance(entry, Attacked):
            assert entry.attack in ATTACKS
        if isinstance(entry, Picture) and entry.attack:
            assert entry.attack in ATTACKS
        if isinstance(entry, Theirs):
            assert entry.number is None or entry.number.paper == paper.name


@pytest.mark.parametrize("name", PAPERS)
def test_usual_settings_are_those_of_the_presets(name: str) -> None:
    from bench.interface.registry import METHODS

    for method_name, usual in load_paper(name).plain.items():
        method = METHODS.get(method_name)
        paper = dataclasses.asdict(method.Config())
        quick = {**paper, **method.presets(MNIST)["quick"]}
        for field, value in usual.items():
            if isinstance(value, Usual):
                here = value.paper if value.quick is None else value.quick
                assert (value.paper, here) == (paper[field], quick[field]), (method_name, field)


def test_every_table_and_figure_prints_what_the_paper_prints() -> None:
    """If a table had no printed numbers, its query would match none."""
    for name in ("dgd", "pate"):
        paper = load_paper(name)
        for table in paper.tables:
            numbers = [e.number for e in entries(paper, table) if isinstance(e, Theirs)]
            assert len({n for n in numbers if n is not None}) >= 8, table.number
            assert all(isinstance(e.number, object) for e in entries(paper, table) if isinstance(e, Theirs))
    dgd = load_paper("dgd")
    for number, least in (("3", 1), ("6", 2), ("7", 2), ("8", 3)):
        (spec,) = [spec for spec in dgd.figures if spec.number == number]
        assert sum(isinstance(e, Theirs) and e.number is not None for e in entries(dgd, spec)) >= least


def test_pictures_of_generators_hold_no_random_images() -> None:
    """The quick preset's mixture is the plain method and fills no cell of the figure."""
    dgd = load_paper("dgd")
    (spec,) = [spec for spec in dgd.figures if spec.number == "5"]
    wanted = [entry.cell for entry in entries(dgd, spec) if isinstance(entry, Picture)]
    assert len(wanted) == 8
    plain, alone = ({"images": "data-free", "synthetic": 6000, "random_share": share} for share in (0.75, 0.0))
    for config, of_figure in ((plain, False), (alone, True)):
        there = Evidence([record(method="dgd", config=config)])
        assert (there.find(wanted[0], dgd.plain) is not None) is of_figure
        assert (there.find(WantedCell("dgd", "mnist", 10.0), dgd.plain) is None) is of_figure


def test_the_papers_own_epsilons_lie_on_its_formula() -> None:
    """DGD's figure 8: 400 and 1,000 queries by advanced composition, as printed."""
    dgd = load_paper("dgd")
    (spec,) = [spec for spec in dgd.figures if spec.number == "8"]
    panel = parts(dgd, spec)[3]
    assert isinstance(spec, FigureSpec)
    assert isinstance(panel, Panel)
    curve = {point.x: point.y for point in panel.series[0].points}
    (told,) = [series for series in panel.series if series.label == "printed, advanced composition"]
    assert [point.x for point in told.points] == [400.0, 1000.0]
    for point in told.points:
        assert isinstance(point.y, Theirs)
        assert point.y.number is not None
        assert curve[point.x] == pytest.approx(point.y.number.value, abs=0.05)
    sound = {point.x: point.y for point in panel.series[2].points}
    assert all(sound[x] <= curve[x] for x in curve)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", PAPERS)
def test_nothing_slow_is_imported(name: str) -> None:
    """Reports are functions of records, so they import neither torch nor anything that imports it."""
    code = (
        "import sys\n"
        "from bench.reports.papers.spec import Material, entries_of, load_paper\n"
        "from bench.reports.papers.evidence import read_evidence\n"
        "from bench.reports.reported.numbers import read_reported\n"
        "from pathlib import Path\n"
        "evidence, reported = read_evidence([Path('leaderboards')]), read_reported()\n"
        f"paper = load_paper({name!r})\n"
        f"material = Material(evidence, [n for n in reported if n.paper == {name!r}], paper.plain)\n"
        "for spec in (*paper.tables, *paper.figures):\n"
        "    parts = (spec.rows if hasattr(spec, 'rows') else spec.panels)(material)\n"
        "    [material.missing(entry) for entry in entries_of(parts)]\n"
        "    list(spec.shows(material))\n"
        "from bench.cli.main import app\n"
        "app(['report', '--paper', 'dgd', '--figure', '6', '--table', 'I', '-q', '--into', sys.argv[1]], "
        "standalone_mode=False)\n"
        "heavy = ('torch', 'timm', 'torchvision', 'opacus', 'methods', 'attacks')\n"
        "print('heavy:', [name for name in heavy if name in sys.modules])\n"
    )
    import tempfile

    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([sys.executable, "-c", code, out], capture_output=True, text=True)
    assert done.stdout.strip().endswith("heavy: []"), done.stdout[-300:] + done.stderr[-2000:]
