"""Errors in the files of printed numbers are reported in one line, with file and line number."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core.errors import BenchError
from bench.reports.reported.numbers import Verdict, read_reported
from bench.reports.reported.systems import NUMBERS, SYSTEMS, read_systems

HEADER = "paper,table,row,column,system,dataset,setting,epsilon,delta,measure,value,note\n"
GOOD = "dgd,I,Our X,MNIST,X,mnist,,10,1e-5,accuracy,97.4,\n"
YAML = """systems:
  X:
    citation: someone
    unit: record
    public_data: none
    public_kinds: [none]
    verdict: sound
    reason: because
    source: there
    code: {verdict: none found}
"""


def folder(tmp_path: Path, numbers: str = HEADER + GOOD, systems: str = YAML) -> Path:
    (tmp_path / NUMBERS).write_text(numbers)
    (tmp_path / SYSTEMS).write_text(systems)
    return tmp_path


def test_one_line_and_one_system_are_enough(tmp_path: Path) -> None:
    (row,) = read_reported(folder(tmp_path))
    assert (row.value, row.verdict, row.reason, row.method) == (97.4, Verdict.SOUND, "because", None)


BAD_NUMBERS = (
    (GOOD.replace("I,Our X,MNIST,X", "II,Our X,MNIST,Y"), 3, "unknown system 'Y'"),
    (GOOD.replace("97.4", "nan"), 3, "finite"),
    (GOOD.replace("97.4", "inf"), 3, "finite"),
    (GOOD.replace("97.4", "100.1"), 3, "between 0 and 100"),
    (GOOD.replace("97.4", "-1"), 3, "between 0 and 100"),
    (GOOD.replace("97.4", "ninety"), 3, "value"),
    (GOOD.replace("dgd,", "dgb,"), 3, "unknown paper 'dgb'"),
    (GOOD.replace("accuracy", "acuracy"), 3, "unknown measure 'acuracy'"),
    (GOOD.replace(",10,", ",0,"), 3, "epsilon must be positive"),
    (GOOD.replace(",10,", ",nan,"), 3, "epsilon must be positive"),
    (GOOD.replace(",10,", ",inf,").replace("I,", "II,"), 3, "Write inf for a system without privacy"),
    (GOOD.replace("1e-5", "1"), 3, "delta"),
    (GOOD.replace("accuracy", "epsilon"), 3, "both columns"),
    (GOOD.replace("accuracy,97.4", "drop,101"), 3, "between -100 and 100"),
    (GOOD.replace(",\n", "\n"), 3, "11 cells where 12 are needed"),
    (GOOD.replace("MNIST", ""), 3, "column"),
    (GOOD.replace("Our X", "Our Z") + GOOD.replace("97.4", "97.5"), 4, "as line 2"),
    (GOOD.replace("Our X", '"Our\nX"') + GOOD.replace("97.4", "x,y"), 5, "13 cells"),
)


@pytest.mark.parametrize(("second", "line", "says"), BAD_NUMBERS, ids=[says for _, _, says in BAD_NUMBERS])
def test_a_bad_number_is_named_by_file_and_line(tmp_path: Path, second: str, line: int, says: str) -> None:
    with pytest.raises(BenchError) as caught:
        read_reported(folder(tmp_path, HEADER + GOOD + second))
    assert f"{NUMBERS}, line {line}: " in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


BAD_SYSTEMS = (
    (YAML.replace("    reason: because\n", ""), 2, "a verdict needs a reason and a source"),
    (YAML.replace("    source: there\n", ""), 2, "a verdict needs a reason and a source"),
    (YAML.replace("sound", "certain"), 7, "verdict"),
    (YAML.replace("    code: {verdict: none found}\n", ""), 2, "the verdict has two parts: code is missing"),
    (YAML.replace("none found", "no privacy"), 10, "code.verdict"),
    (YAML.replace("none found", "unsound"), 10, "a verdict needs a reason and a source"),
    (YAML.replace("none found", "not read, reason: because"), 10, "a reason needs a source"),
    (YAML.replace("verdict: sound", "verdict: impossible as claimed"), 7, "verdict"),
    (YAML.replace("unit: record", "unit: person"), 4, "unit"),
    (YAML.replace("unit: record", "unit: none"), 2, "go together"),
    (YAML.replace("    public_kinds: [none]\n", ""), 2, "public_kinds"),
    (YAML.replace("[none]", "[ImageNet]"), 6, "public_kinds.0: it must be 'none', 'transferred', 'labelled'"),
    (YAML.replace("[none]", "[]"), 6, "public_kinds"),
    (YAML.replace("[none]", "[none, unlabelled]"), 2, "none and not-stated cannot be combined"),
    (YAML.replace("[none]", "[other, other]"), 2, "must name each kind once"),
    (
        YAML + "    overrides:\n      - {dataset: mnist, public_data: x}\n",
        12,
        "give public_data and public_kinds together",
    ),
    (YAML + "    colour: red\n", 11, "colour"),
    (YAML + "  X:\n    unit: record\n", 11, "'X' appears twice"),
    (YAML + "    overrides: [{verdict: sound, reason: a, source: b}]\n", 11, "an override must name"),
    (YAML + "    overrides:\n      - {dataset: mnist, verdict: sound}\n", 12, "needs a reason and a source"),
    (YAML + "    overrides:\n      - {paper: dgb, method: x}\n", 12, "unknown paper 'dgb'"),
    (YAML + "test_classes:\n  mnist: [1]\n", 11, "2 or more classes"),
    (YAML.replace("because", '"one\\ntwo"'), 2, "one line each"),
    (YAML + "  [\n", 12, "not valid YAML"),
    ("systems: {}\n", 1, "systems"),
)


@pytest.mark.parametrize(("text", "line", "says"), BAD_SYSTEMS, ids=[says for _, _, says in BAD_SYSTEMS])
def test_a_bad_system_is_named_by_file_and_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    with pytest.raises(BenchError) as caught:
        read_systems(folder(tmp_path, systems=text))
    assert f"{SYSTEMS}, line {line}" in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_and_columns_are_said(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=f"cannot read .*{SYSTEMS}"):
        read_reported(tmp_path)
    with pytest.raises(BenchError, match=rf"{NUMBERS}, line 1: the columns must be paper,table"):
        read_reported(folder(tmp_path, HEADER.replace(",note", "") + GOOD))
    with pytest.raises(BenchError, match=rf"{NUMBERS}, line 1: the columns must be"):
        read_reported(folder(tmp_path, ""))


def test_the_first_override_that_fits_is_taken(tmp_path: Path) -> None:
    told = (
        YAML + "    overrides:\n"
        "      - {dataset: mnist, epsilon: 1, verdict: unclear, reason: r1, source: s1}\n"
        "      - {dataset: mnist, verdict: unsound, reason: r2, source: s2, public_data: p2, "
        "public_kinds: [labelled], code: {verdict: not read}}\n"
    )
    lines = GOOD + GOOD.replace("Our X", "one").replace(",10,", ",1,") + GOOD.replace("mnist", "svhn")
    rows = read_reported(folder(tmp_path, HEADER + lines.replace("MNIST,X,svhn", "SVHN,X,svhn"), told))
    assert [(r.verdict.value, r.code_verdict.value, r.reason, r.public_data, r.public_kinds) for r in rows] == [
        ("unsound", "not read", "r2", "p2", ("labelled",)),
        ("unclear", "none found", "r1", "none", ("none",)),
        ("sound", "none found", "because", "none", ("none",)),
    ]


@pytest.mark.parametrize(
    ("paper", "code", "holds", "refuted"),
    [
        ("sound", "{verdict: none found}", True, False),
        ("sound", "{verdict: sound, reason: r, source: s}", True, False),
        ("sound", "{verdict: unclear, reason: r, source: s}", False, False),
        ("sound", "{verdict: unsound, reason: r, source: s}", False, True),
        ('"step fails, number holds"', "{verdict: not read}", True, False),
        ("unclear", "{verdict: sound, reason: r, source: s}", False, False),
        ("unsound", "{verdict: none found}", False, True),
    ],
)
def test_both_parts_decide(tmp_path: Path, paper: str, code: str, holds: bool, refuted: bool) -> None:
    text = YAML.replace("verdict: sound", f"verdict: {paper}").replace("{verdict: none found}", code)
    (row,) = read_reported(folder(tmp_path, systems=text))
    assert (row.holds, row.refuted) == (holds, refuted)
