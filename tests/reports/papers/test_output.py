"""Files of `bench report`: tables in three formats, figures, captions, an index."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.core.errors import BenchError
from bench.core.rows import Change
from bench.core.types import PublicKind
from bench.reports.papers import build
from bench.reports.papers import spec as papers
from bench.reports.papers.evidence import Evidence, WantedCell, cell
from bench.reports.papers.figures import POINT_COLUMNS, point_rows
from bench.reports.papers.notes import Marks, commands_of, marked_panels
from bench.reports.papers.spec import (
    FigureSpec,
    Material,
    Ours,
    Panel,
    Paper,
    PaperPoint,
    Picture,
    PicturePanel,
    Series,
    TableRow,
    TableSpec,
    Theirs,
    curve,
)
from bench.reports.papers.tables import latex, latex_table
from bench.reports.reported.numbers import Reported, Verdict
from bench.results.text import csv_text, markdown_table
from helpers.records import failed, record

EVIL = '=cmd|"x" & <b>$5_%{}~^#\\ @a\nb`'


def printed(value: float = 97.4) -> Reported:
    return Reported(
        "test", "I", "r", "c", EVIL, "dgd", "mnist", "", "record", "none", (PublicKind.NONE,), 10.0, 1e-5, "accuracy",
        value, Verdict.UNSOUND, "because | of <i>", "there",
    )  # fmt: skip


def rows(material: Material) -> list[TableRow]:
    wanted = cell("dgd", "mnist", 10.0)
    number = material.one(system=EVIL)
    return [
        TableRow((EVIL, Ours(wanted, beside=number), Theirs(number), Ours(wanted, "proven"))),
        TableRow(("other", Ours(cell("dgd", "mnist", 1.0)), Theirs(number, "verdicts"), 3.5), rule=True),
        TableRow(("third", Ours(cell("dgd", "fmnist", 10.0)), Theirs(None), Ours(wanted, "audited")), rule=True),
    ]


def panels(material: Material) -> list[Panel | PicturePanel]:
    points = tuple(PaperPoint(x, Ours(cell("dgd", "mnist", x))) for x in (1.0, 10.0))
    lines = (
        Series("ours", points, 0),
        curve("theirs", 0, [(10.0, material.one(system=EVIL))], "theirs"),
        curve("curve", 1, [(1.0, 2.0), (10.0, 90.0)], "formula"),
    )
    bars = tuple(Series(name, (PaperPoint("a", Ours(WantedCell("dgd", "mnist", 10.0))), PaperPoint("b", 3.0)), slot)
                 for slot, name in enumerate(("one", "two")))  # fmt: skip
    return [
        Panel("lines", "x", "y", lines, x_scale="log"),
        Panel("bars", "x", "y", bars, form="bars"),
        Panel("nothing", "x", "y", (curve("of it", 0, [(1.0, cell("dgd", "fmnist", 1.0))]),)),
        PicturePanel("sheet", (Picture("none", cell("dgd", "mnist", 10.0)),)),
    ]


TABLE = TableSpec("I", "A table of 5 & more", "It says.", ("name", "ours", "theirs", "ε"), rows, lambda m: ("We see.",))
FIGURE = FigureSpec("2", "A figure", "It says.", panels, columns=2)
PAPER = Paper("test", "Test (2026)", (TABLE,), (FIGURE,))


def evidence() -> Evidence:
    good = [
        record(
            method="dgd", key=f"k{seed}", seed=seed, accuracy=0.9 - seed / 10, bypasses=(EVIL,),
            reduced=[Change.of("queries", 1000, 100)],
        )
        for seed in (0, 1)
    ]  # fmt: skip
    return Evidence([*good, failed("no | memory", method="dgd", dataset="fmnist")])


def made(out: Path, spec: Any = TABLE) -> build.Artefact:
    return build.make_artefact(PAPER, spec, evidence(), [printed()], out)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_table_in_three_formats(tmp_path: Path) -> None:
    artefact = made(tmp_path)
    assert (artefact.filled, artefact.wanted) == (2, 5)
    folder = tmp_path / "test"
    assert sorted(path.name for path in folder.iterdir()) == [
        "table-I.caption.md", "table-I.csv", "table-I.md", "table-I.tex",
    ]  # fmt: skip
    lines = (folder / "table-I.md").read_text().splitlines()
    assert "| 85.00 ± 7.07 (2 seeds) \\[a] | 97.40 | ∞ \\[a] |" in lines[4]
    assert lines[5] == "| other | not run | paper: unsound; code: not read | 3.5 |"
    assert lines[6:] == ["", "\\[a] quick preset, 1 setting differs (queries)"]
    assert "\\par\\footnotesize [a] quick preset, 1 setting differs (queries)" in (folder / "table-I.tex").read_text()
    table = list(csv.reader(io.StringIO((folder / "table-I.csv").read_text())))
    assert table[0] == ["name", "ours", "theirs", "ε"]
    assert table[1][1] == "85.00 ± 7.07 (2 seeds) [quick preset, 1 setting differs (queries)]"
    assert table[2] == ["other", "not run", "paper: unsound; code: not read", "3.5"]
    assert table[3] == ["third", "failed", "–", "not audited"]


def test_strange_text_stays_text(tmp_path: Path) -> None:
    artefact = made(tmp_path)
    page, image_grid, tex = (path.read_text() for path in artefact.files[:3])
    row = page.splitlines()[4]
    assert row.replace("\\|", "").count("|") == 5
    assert "<b>" not in page + artefact.caption
    assert "<i>" not in artefact.caption
    assert next(csv.reader(io.StringIO(image_grid.split("\n", 1)[1])))[0].startswith("'=cmd")
    (line,) = [line for line in tex.splitlines() if "cmd" in line]
    assert line.endswith("\\\\")
    assert r"\& \textless{}b\textgreater{}\$5\_\%\{\}\textasciitilde{}\textasciicircum{}\#\textbackslash{} @a b" in line
    assert line.count(" & ") == 3


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", " =1"])
def test_csv_holds_no_formulas(text: str) -> None:
    assert list(csv.reader(io.StringIO(csv_text(["a"], [[text]]))))[1][0].startswith("'")


def test_csv_keeps_numbers_and_gaps() -> None:
    assert csv_text(["a", "b", "c", "d"], [[-1.5, None, float("inf"), 3]]) == "a,b,c,d\n-1.5,,inf,3\n"


def test_latex_keeps_what_readers_know() -> None:
    assert latex("ε ≤ 5 ± 1 – ∞") == r"$\varepsilon$ $\le$ 5 $\pm$ 1 -- $\infty$"
    table = latex_table(["a", "b"], [["[x]", "y"], ["1", "2"]], [False, True], "A_b", "t")
    assert "\\begin{tabular}{ll}" in table
    assert "{}[x] & y \\\\\n\\midrule\n{}1 & 2 \\\\" in table
    assert table.count("{") == table.count("}")
    assert "\\caption{A\\_b}" in table


def test_markdown_pipes_are_escaped() -> None:
    assert markdown_table(["a|b"], [["c|d"]]) == "| a\\|b |\n|---|\n| c\\|d |\n"


def test_a_row_of_another_length_is_a_bug_that_is_named(tmp_path: Path) -> None:
    spec = TableSpec("9", "t", "s", ("a", "b"), lambda material: [TableRow(("only one",))])
    with pytest.raises(BenchError, match="table 9: a row has 1 entries, not 2"):
        made(tmp_path, spec)


# --- captions and figures ---------------------------------------------------------------------------------------------


def test_a_caption_says_what_is_behind_a_table(tmp_path: Path) -> None:
    caption = made(tmp_path).caption
    for words in (
        "It says.",
        "We see.",
        "- row third: failed; not audited. Filled by `python -m bench run --methods dgd --datasets fmnist --eps 10 "
        "--seeds 0,1,2` and 1 more, below",
        "here 85.00 ± 7.07 (2 seeds) \\[quick preset, 1 setting differs (queries)], printed 97.40 (-12.40)",
        "paper: unsound; code: not read. because \\| of",
        "| dgd | mnist | 10 (claimed) | 10.00 | ∞ | ∞ | does not hold | – | 85.00 (21.4–100.0) | 0, 1 | quick |",
        "2 of 5 of our numbers are available.",
        "- dgd on fmnist, eps 10 claimed: failed: no \\| memory",
        "python -m bench run --methods dgd --datasets mnist --eps 1 --seeds 0,1,2\n",
        "python -m bench audit --methods dgd\n",
    ):
        assert words in caption


def test_runs_come_before_audits_and_each_command_once(tmp_path: Path) -> None:
    found = made(tmp_path).missing
    commands = commands_of([*found, *found])
    assert [command.split()[3] for command in commands] == ["run", "run", "audit"]


def test_runs_that_differ_in_epsilon_are_one_command() -> None:
    run = "python -m bench run --methods dgd --datasets mnist"
    wanted = [(10.0, 0), (None, 0), (2.5, 0), (1.0, 1)]
    cells = [WantedCell("dgd", "mnist", epsilon, seeds=(seed,)) for epsilon, seed in wanted]
    assert commands_of([papers.Missing("a", "not run", run=one) for one in cells]) == [
        f"{run} --eps 2.5,10 --seeds 0",
        f"{run} --seeds 0",
        f"{run} --eps 1 --seeds 1",
    ]


def test_a_figure_and_its_points(tmp_path: Path) -> None:
    artefact = made(tmp_path, FIGURE)
    pdf, png, points = artefact.files[:3]
    assert pdf.read_bytes().startswith(b"%PDF")
    assert png.read_bytes().startswith(b"\x89PNG")
    table = list(csv.DictReader(io.StringIO(points.read_text())))
    assert tuple(table[0]) == POINT_COLUMNS
    assert [(r["series"], r["whose"], r["x"], r["y"], r["missing"]) for r in table[:4]] == [
        ("ours", "ours", "1", "", "not run"),
        ("ours", "ours", "10", "85", ""),
        ("theirs", "theirs", "10", "97.4", ""),
        ("curve", "formula", "1", "2", ""),
    ]
    assert (table[1]["seeds"], table[1]["spread"], table[1]["keys"], table[1]["proven"]) == (
        "2", "7.07107", "k0; k1", "inf",
    )  # fmt: skip
    assert (table[1]["preset"], table[1]["note"]) == ("quick", "quick preset, 1 setting differs (queries)")
    assert "file is not stored with its record" in table[-1]["missing"]


def test_figures_tell_no_date_and_no_program_and_embed_their_fonts(tmp_path: Path) -> None:
    pdf, png = made(tmp_path, FIGURE).files[:2]
    text = pdf.read_bytes()
    for word in (b"CreationDate", b"ModDate", b"atplotlib", b"/Type3"):
        assert word not in text
    assert b"/CIDFontType2" in text or b"/TrueType" in text
    assert b"oftware" not in png.read_bytes()


def write_all(out: Path) -> None:
    artefacts = [made(out), made(out, FIGURE)]
    (out / "index.md").write_text(build.index_text(artefacts, ["w"]))


@pytest.mark.slow
def test_equal_records_give_equal_bytes(tmp_path: Path) -> None:
    """Independent of the hash seed and of the folder."""
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = ['tests', 'tests/reports/papers']; "
        "import test_output as t; t.write_all(Path(sys.argv[1]))"
    )
    here, there = tmp_path / "0", tmp_path / "1"
    write_all(here)
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", code, str(there)], check=True, env=environment)
    bytes_ = [{path.relative_to(out): path.read_bytes() for path in sorted(out.rglob("*.*"))} for out in (here, there)]
    assert len(bytes_[0]) == 9
    assert bytes_[0] == bytes_[1]
    assert not any(str(tmp_path).encode() in data for data in bytes_[0].values())


def test_what_has_no_number_of_ours_is_named_and_not_drawn(tmp_path: Path) -> None:
    caption = made(tmp_path, FIGURE).caption
    fills = "Filled by `python -m bench run --methods dgd --datasets fmnist --eps 1 --seeds 0,1,2`"
    assert f"- nothing: not run. {fills}\n" in caption
    assert "- sheet: the file is not stored with its record" in caption


def test_an_empty_figure_is_text_and_an_older_picture_of_it_goes(tmp_path: Path) -> None:
    def none(material: Material) -> list[Panel | PicturePanel]:
        wanted = cell("dgd", "fmnist", 1.0)
        lines = (curve("of it", 0, [(1.0, wanted)]), curve("printed", 0, [(1.0, material.one(system=EVIL))], "theirs"))
        return [Panel("", "x", "y", lines), PicturePanel("", (Picture("images", wanted),))]

    old = tmp_path / "test" / "figure-2.png"
    old.parent.mkdir()
    old.touch()
    artefact = made(tmp_path, FigureSpec("2", "A figure", "It says.", none))
    assert [path.name for path in artefact.files] == ["figure-2.csv", "figure-2.caption.md"]
    assert not old.exists()
    assert artefact.body == "Not drawn: we have no results for it.\n"
    for name in ("the figure", "images"):
        assert f"- {name}: not run. Filled by `python -m bench run " in artefact.caption
    # The printed numbers stay in the file of points.
    assert ",97.4," in artefact.files[0].read_text()


def test_a_column_without_a_number_of_ours_is_left_out(tmp_path: Path) -> None:
    wanted = cell("dgd", "mnist", 1.0)
    spec = TableSpec("9", "t", "s", ("a", "b", "c"), lambda material: [TableRow(("x", Ours(wanted), 1.0))])
    artefact = made(tmp_path, spec)
    assert artefact.body == "| a | c |\n|---|---|\n| x | 1 |\n"
    assert "- column b: not run. Filled by `python -m bench run" in artefact.caption


def test_a_rule_above_a_row_that_is_left_out_stays(tmp_path: Path) -> None:
    wanted = cell("dgd", "mnist", 1.0)
    of = [TableRow(("top", 1.0)), TableRow(("gone", Ours(wanted)), rule=True), TableRow(("end", 2.0))]
    tex = made(tmp_path, TableSpec("9", "t", "s", ("a", "b"), lambda material: of)).files[2].read_text()
    assert "{}top & 1 \\\\\n\\midrule\n{}end & 2" in tex


@pytest.mark.parametrize("form", ["lines", "bars"])
@pytest.mark.parametrize("y_scale", ["linear", "log"])
@pytest.mark.parametrize("y_limits", [None, (1.0, 105.0)])
def test_no_cross_lies_on_a_point(form: Any, y_scale: Any, y_limits: Any) -> None:
    from bench.reports.papers.figures import draw_panel
    from bench.reports.papers.style import new_figure

    x = ["1", "2"]
    series = (
        curve("ours", 0, zip(x, (cell("dgd", "mnist", 10.0), cell("dgd", "mnist", 1.0)), strict=True)),
        curve("formula", 1, zip(x, (1.0, 90.0), strict=True), "formula"),
    )
    panel = Panel("", "x", "y", series, form=form, y_scale=y_scale, y_limits=y_limits)
    axes = new_figure(3.0, 2.0).add_subplot()
    draw_panel(axes, panel, Material(evidence(), []))
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    drawn = [line for line in axes.lines if line.get_marker() != "x" and len(line.get_ydata())]
    heights = [line.get_transform().transform([(0.0, y)])[0][1] for line in drawn for y in line.get_ydata()]
    heights += [patch.get_window_extent().y1 for patch in axes.patches if patch.get_label() == "_nolegend_"]
    assert len(crosses) == 1
    ((_, at),) = crosses[0].get_transform().transform(crosses[0].get_xydata())
    assert axes.bbox.y0 < at < min(heights) - 2
    assert min(axes.get_yticks()) >= 0


def test_marks_of_bars_stand_at_the_categories_where_those_differ() -> None:
    paper = record(method="dgd", epsilon=2.0, preset="paper", key="p")
    material = Material(Evidence([*evidence().records, paper]), [])
    pairs = [("a", cell("dgd", "mnist", 10.0)), ("b", cell("dgd", "mnist", 2.0))]
    other = record(method="pate", reduced=[Change.of("a", 1, 2), Change.of("b", 1, 2)])
    material.evidence = Evidence([*material.evidence.records, other])
    bars = Panel("", "", "", (curve("one", 0, [*pairs, ("c", cell("pate", "mnist", 10.0))]),), form="bars")
    lines = Panel("", "", "", (curve("one", 0, pairs),))
    marks = Marks(material)
    (first, second) = marked_panels([bars, lines], marks)
    assert isinstance(first, Panel)
    assert isinstance(second, Panel)
    assert [point.x for point in first.series[0].points] == ["a\n[a]", "b", "c\n[b]"]
    assert second.series[0].label == "one [a]"
    assert marks.lines == [
        "[a] quick preset, 1 setting differs (queries)",
        "[b] quick preset, 2 settings differ (a, b)",
    ]


def test_a_part_of_a_figure_without_records_is_drawn(tmp_path: Path) -> None:
    empty = build.make_artefact(PAPER, FIGURE, Evidence(), [], tmp_path)
    assert empty.filled == 0
    assert empty.files[0].exists()
    assert all(row[4] is None for row in point_rows(panels(Material(Evidence(), [])), Material(Evidence(), []))[:3])


@pytest.mark.parametrize(("number", "same"), [("I", "1"), ("ii", "2"), ("IX", "9"), ("3", "3"), ("queries", "queries")])
def test_roman_numbers_are_numbers(number: str, same: str) -> None:
    assert papers.plain_number(number) == same
