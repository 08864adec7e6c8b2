"""The printed numbers equal the papers', verdicts follow from computation, and slips are named."""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.cli.main import app
from bench.core.errors import BenchError
from bench.core.types import PrivacyUnit
from bench.interface.registry import METHODS
from bench.privacy.accounting import claims
from bench.reports.reported.contradictions import conflicts, drop_errors, drop_parts
from bench.reports.reported.numbers import BASELINE, Reported, Verdict
from bench.reports.reported.page import to_markdown
from bench.reports.reported.systems import NUMBERS
from helpers.paths import BOARD, ROOT
from helpers.reported import ROWS, one

PAPERS = ROOT.parent / "shared" / "papers"


def test_every_table_has_all_its_cells() -> None:
    # Counted in the papers: cells with a number, or rows times columns if none is blank.
    assert Counter((r.paper, r.table) for r in ROWS) == {
        ("dgd", "I"): 7 * 8 + 2,
        ("dgd", "II"): 8 * 2,
        ("dgd", "fig 7"): 2,
        ("dgd", "fig 8"): 3,
        ("dgd", "text"): 5,
        ("dpsd", "I"): 4 + 10 * 8 + 3 + 4 + 4,
        ("dpsd", "II"): 3 * 4,
        ("dpsd", "III"): 6 * 4,
        ("dpsd", "IV"): 6 + 3 + 1 + 3 + 6,
        ("dpsd", "V"): 6 * 4,
        ("dpsd", "VI"): 8 * 2,
        ("dpsd", "fig 4"): 3,
        ("dpsd", "fig 5"): 4,
        ("dpsd", "fig 9"): 2,
        ("dpsd", "text"): 15,
        ("trpate", "1"): 3 * 3,
        ("trpate", "2"): 5 * 4,
        ("trpate", "3"): 12 * 4,
        ("trpate", "4"): 8 * 4,
        ("trpate", "5"): 8 * 4,
        ("trpate", "fig 1"): 4,
        ("trpate", "fig 5"): 1,
        ("trpate", "fig 7"): 1,
        ("pate", "fig 4"): 4 * 4,
        ("pate", "text"): 8,
    }


INF = math.inf
SPOTS: tuple[tuple[str, str, str, str, float | None, str, float], ...] = (
    ("dgd", "I", "DGD", "mnist", 10, "", 97.4),
    ("dgd", "I", "DGD", "fmnist", 10, "", 88.2),
    ("dgd", "I", "DGD", "mnist", 1, "", 73.6),
    ("dgd", "I", "DGD", "fmnist", 1, "", 64.9),
    ("dgd", "I", "DP-GAN", "fmnist", 1, "", 10.5),
    ("dgd", "I", "GS-WGAN", "mnist", 1, "", 14.3),
    ("dgd", "I", "DP-MERF", "mnist", 10, "", 68.7),
    ("dgd", "II", "GEDDP", "cifar10", 3, "", 55.0),
    ("dgd", "II", "zCDP", "cifar10", 6.78, "", 44.3),
    ("dgd", "II", "DGD", "cifar10", 3, "", 73.6),
    ("dpsd", "I", "DGD", "mnist", 1, "", 88.20),
    ("dpsd", "I", "P3GM", "celeba-g", 1, "", 56.73),
    ("dpsd", "I", "DPGEN", "celeba-h", 10, "", 81.47),
    ("dpsd", "I", "PSG", "fmnist", 10, "", 77.70),
    ("dpsd", "I", "DPSH", "celeba-g", 10, "", 76.30),
    ("dpsd", "I", BASELINE, "celeba-h", INF, "", 88.68),
    ("dpsd", "I", "DPDFD", "mnist", 1, "", 95.12),
    ("dpsd", "II", "DPSD", "covidx", 10, "", 81.73),
    ("dpsd", "II", "DataLens", "medmnist", 1, "", 53.52),
    ("dpsd", "III", "TSADP", "cifar10", 7.5, "", 66.20),
    ("dpsd", "III", "Spectral-DP", "mnist", 2, "", 95.77),
    ("dpsd", "III", "DPSD", "cifar10", 2, "", 86.59),
    ("dpsd", "IV", "LP-2ST", "celeba-g", 3, "", 28.74),
    ("dpsd", "IV", "DPSD(L)", "celeba-g", 8, "", 74.67),
    ("dpsd", "IV", "ALIBI", "celeba-h", 2, "column inferred", 84.20),
    ("dpsd", "V", "DENSE", "mnist", INF, "5 clients, Dirichlet 0.5", 95.82),
    ("dpsd", "V", "FedDPSD", "imagenet", 10, "5 clients, Dirichlet 0.5", 39.13),
    ("dpsd", "VI", "DPSD", "mnist", 10, "without IE", 66.37),
    ("dpsd", "VI", "DPSD(L)", "fmnist", 10, "without NORM", 81.22),
    ("dpsd", "fig 4", "DPSD", "imagenet", 1, "ShuffleNet transcribed to ResNet34", 47.32),
    ("dpsd", "fig 9", "DPSD", "mnist", 0.1, "", 29.19),
    ("dpsd", "fig 9", "DPSD", "fmnist", 0.1, "", 27.26),
    ("dpsd", "text", "DPSD-T", "mnist", 10, "", 97.93),
    ("trpate", "2", "TrPATE", "cifar10", 7.38, "150 queries", 74.80),
    ("trpate", "2", "PATE", "cifar10", 25.2, "1000 queries", 47.03),
    ("trpate", "3", "TrPATE", "stl10", 8.8, "200 queries, ImageNet0.5x", 86.82),
    ("trpate", "3", "PATE", "stl10", 5.8, "100 queries, ImageNet0.1x", 44.26),
    ("trpate", "4", "TrPATE", "movie-review", 13.6, "CNN, gamma 0.1, 100 queries", 67.81),
    ("trpate", "5", "PATE", "movie-review", 70.4, "naive Bayes, gamma 0.1, 1000 queries", 53.57),
    ("trpate", "5", BASELINE, "movie-review", INF, "naive Bayes", 75.21),
    ("pate", "fig 4", "PATE", "mnist", 2.04, "100 queries", 98.00),
    ("pate", "fig 4", "PATE", "svhn", 5.04, "500 queries", 82.72),
    ("pate", "fig 4", BASELINE, "mnist", INF, "", 99.18),
    ("pate", "text", "DPSGD", "mnist", 8, "", 97.0),
)


@pytest.mark.parametrize("spot", SPOTS, ids=lambda spot: "-".join(str(part) for part in spot[:5]))
def test_numbers_are_the_papers(spot: tuple[Any, ...]) -> None:
    assert one(*spot[:6]).value == spot[6]


def test_blank_cells_are_absent() -> None:
    assert [r.epsilon for r in ROWS if r.system == "DPSH"] == [10, 10, 10]
    assert not [r for r in ROWS if r.paper == "dpsd" and r.table == "I" and r.system == "PSG" and "celeba" in r.dataset]


def test_delta_and_epsilon_are_as_printed() -> None:
    assert {r.delta for r in ROWS if r.paper in ("dgd", "trpate") and r.table in ("I", "II", "2", "3", "4", "5")} == {
        1e-5,
        None,
    }
    assert {r.delta for r in ROWS if r.paper == "pate" and r.dataset == "svhn" and r.system == "PATE"} == {1e-6, None}
    printed = {
        (r.row, r.column): r.value for r in ROWS if r.paper == "dgd" and r.measure in ("queries", "epsilon") and r.row
    }
    assert printed["Our DGD", "queries, eps 10"] == 1300
    assert printed["Our DGD", "queries, eps 1"] == 27
    assert printed["DGD", "1000 queries, moments accountant"] == 8.03


def test_units_verdicts_and_names_are_known() -> None:
    units = {unit.value for unit in PrivacyUnit} | {"none"}
    for row in ROWS:
        assert row.unit in units
        assert row.method is None or row.method in METHODS.names(), row.method
        assert row.reason
        assert row.source
        assert row.public_data
        assert "\n" not in row.reason + row.source
        assert (row.unit == "none") == (row.verdict is Verdict.NONE)
    assert {r.system for r in ROWS if r.unit == "label"} == {"LP-2ST", "ALIBI", "Protocol", "ClusterRR"}
    assert {r.unit for r in ROWS if r.system == "DPSD(L)"} == {"query-label"}
    assert {r.unit for r in ROWS if r.system == "FedDPSD"} == {"client"}
    assert {r.verdict for r in ROWS if r.system.startswith("Fed") and r.system != "FedDPSD"} == {Verdict.NONE}


def test_trpates_epsilons_are_its_theorems() -> None:
    printed = [r for r in ROWS if r.paper == "trpate" and r.measure == "epsilon"]
    assert len(printed) == 5 + 12 + 8 + 8
    for row in printed:
        queries = int(re.search(r"(\d+)$|, (\d+)$", row.row).group(0).strip(", "))  # type: ignore[union-attr]
        gamma = 0.1 if "0.1," in row.row and row.table in ("4", "5") else 0.05
        assert row.value == pytest.approx(claims.trpate(gamma, queries, 1e-5).epsilon, abs=0.06)
    # One number, rounded in two ways.
    assert {r.value for r in printed if r.row == "gamma 0.1, 1000"} == {70.3, 70.4}


def test_drops_follow_from_the_accuracies_but_for_one_slip() -> None:
    drops = [r for r in ROWS if r.measure == "drop"]
    assert len(drops) == 28 + 6
    assert all(drop_parts(drop, ROWS) for drop in drops)
    (slip,) = drop_errors(ROWS)
    assert (slip.drop.paper, slip.drop.value, slip.baseline.value, slip.accuracy.value) == ("dpsd", 1.52, 97.65, 96.03)
    assert slip.difference == pytest.approx(1.62)


def test_a_wrong_drop_is_found_and_rounding_is_not() -> None:
    def row(**changes: Any) -> Reported:
        return Reported(**{**as_dict(one("dgd", "I", "DGD", "mnist", 10)), **changes})

    baseline = next(r for r in ROWS if r.paper == "dgd" and r.system == BASELINE and r.dataset == "mnist")
    accuracy = row()
    good, near, wrong = (row(measure="drop", value=value) for value in (1.80, 1.81, 1.70))
    assert drop_errors([baseline, accuracy, good, near]) == []
    assert [e.drop.value for e in drop_errors([baseline, accuracy, good, wrong])] == [1.70]
    assert drop_errors([accuracy, wrong]) == []  # no baseline, so no remark


def as_dict(row: Reported) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def test_where_papers_contradict_each_other() -> None:
    found = {(c.system, c.dataset, c.epsilon): [r.value for r in c.rows] for c in conflicts(ROWS)}
    assert found == {
        ("DGD", "fmnist", 10): [88.2, 73.6],
        ("DGD", "mnist", 1): [73.6, 88.2],
        ("DP-GAN", "fmnist", 10): [50.9, 60.98],
        ("DP-GAN", "mnist", 10): [60.1, 80.11],
        ("DP-MERF", "fmnist", 1): [61, 58.62],
        ("DP-MERF", "fmnist", 10): [62.5, 61.62],
        ("DP-MERF", "mnist", 1): [65, 63.67],
        ("DP-MERF", "mnist", 10): [68.7, 67.38],
        ("DPSD", "mnist", 10): [97.85, 97.85, 95.85],
        ("G-PATE", "fmnist", 1): [58.1, 55.67],
        ("G-PATE", "mnist", 1): [58.8, 58.1],
        ("GS-WGAN", "fmnist", 10): [65, 65.79],
        ("GS-WGAN", "mnist", 10): [80, 80.75],
    }
    # 40.3 and 40.36 are one number with fewer digits, and so are 70.6 and 70.61.
    assert ("DP-GAN", "mnist", 1) not in found


# ---- the page


def test_committed_page_is_regenerated_to_the_byte() -> None:
    assert (ROOT / "leaderboards" / "reported.md").read_text() == to_markdown(ROWS)


def test_units_never_share_a_table_and_every_accuracy_is_on_the_page() -> None:
    page = to_markdown(ROWS)
    parts = {part.splitlines()[0]: part for part in page.split("\n## ")[1:]}
    unit_of = {(r.dataset, r.system): r.unit for r in ROWS if r.measure == "accuracy"}
    tables = [title for title in parts if ", unit " in title or ", without privacy" in title]
    seen = 0
    for title in tables:
        dataset, _, rest = title.partition(", ")
        unit = "none" if rest == "without privacy" else rest.removeprefix("unit ")
        lines = [line for line in parts[title].splitlines() if line.startswith("| ") and "| paper | code |" not in line]
        systems = [line.split(" | ")[0].removeprefix("| ").replace("&amp;", "&") for line in lines]
        assert {unit_of[dataset, system] for system in systems} == {unit}
        assert systems == sorted(systems, key=str.casefold)
        seen += len(lines)
    wanted = {
        (r.dataset, r.system, r.epsilon, r.value, r.paper, r.table, r.setting) for r in ROWS if r.measure == "accuracy"
    }
    assert seen == len(wanted)
    numbers = [int(n) for n in re.findall(r"\[(\d+)\] \|$", page, flags=re.MULTILINE)]
    assert set(numbers) == {int(n) for n in re.findall(r"^- \[(\d+)\] \*\*", page, flags=re.MULTILINE)}


def test_text_stays_text_on_the_page() -> None:
    row = one("dgd", "I", "DGD", "mnist", 10)
    evil = {**as_dict(row), "system": "<script>|", "reason": "a | b\n<i>", "note": "x|y", "dataset": "<b>"}
    page = to_markdown([Reported(**evil)])
    assert "<script>" not in page
    assert "<i>" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;\\|" in page


# ---- the outside


def test_the_command_prints_and_writes_the_page(tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["reported"]).stdout == to_markdown(ROWS)
    out = tmp_path / "page.md"
    assert runner.invoke(app, ["reported", "--out", str(out)]).exit_code == 0
    assert out.read_text() == to_markdown(ROWS)
    some = runner.invoke(app, ["reported", "--systems", "pate, DGD+"]).stdout
    assert some == to_markdown([row for row in ROWS if row.system in ("PATE", "DGD+")])
    assert isinstance(error := runner.invoke(app, ["reported", "-s", "pat"]).exception, BenchError)
    assert "Did you mean 'PATE'?" in str(error)
    numbers = json.loads(runner.invoke(app, ["reported", "--json"]).stdout, parse_constant=pytest.fail)["numbers"]
    assert len(numbers) == len(ROWS)
    assert numbers[0]["epsilon"] == "inf"


def test_no_torch_is_imported() -> None:
    code = "import sys; from bench.reports.reported import numbers, page; numbers.read_reported(); "
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True, cwd=ROOT)


def lines_of(paper: str) -> list[dict[str, str]]:
    with (BOARD / "reported" / NUMBERS).open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["paper"] == paper]


ABSENT = "the papers' texts are not beside the checkout (../shared/papers)"
TEXTS = {"dgd": "dgd.txt", "dpsd": "dpsd.txt", "trpate": "trpate.md"}  # the text of PATE there ends before its results


@pytest.mark.skipif(not PAPERS.is_dir(), reason=ABSENT)
@pytest.mark.parametrize("paper", TEXTS)
def test_every_number_occurs_in_the_papers_text(paper: str) -> None:
    text = (PAPERS / TEXTS[paper]).read_text().replace("0,000", "0000")
    values = [row["value"] for row in lines_of(paper)]
    assert values
    assert [v for v in values if not re.search(rf"(?<![\d.]){re.escape(v)}(?!\d|\.\d)", text)] == []


@pytest.mark.skipif(not PAPERS.is_dir(), reason=ABSENT)
@pytest.mark.parametrize(
    ("paper", "table", "rows"),
    [("dgd", "I", 7), ("dgd", "II", 8), ("dpsd", "I", 14), ("dpsd", "II", 3), ("dpsd", "III", 6), ("dpsd", "IV", 5),
     ("dpsd", "V", 6)],
)  # fmt: skip
def test_rows_are_those_of_the_papers_tables(paper: str, table: str, rows: int) -> None:
    text = (PAPERS / TEXTS[paper]).read_text().replace("\u00a0", " ")
    body = text[text.index(f"\nTABLE {table}: ") :].splitlines()
    ours: dict[str, list[str]] = {}
    for row in lines_of(paper):
        if row["table"] == table and row["row"] != "BL":
            ours.setdefault(row["row"], []).append(row["value"])
    assert len(ours) == rows
    for label, values in ours.items():
        line = next(line for line in body if line.startswith(label))
        printed = re.findall(r"(?<![\d.])\d+\.\d+", line.removeprefix(label))
        if (paper, table) == ("dgd", "I"):  # the epsilons of both halves
            assert (printed.pop(5), printed.pop(0)) == ("1.00", "10.0")
        assert printed == values, label
