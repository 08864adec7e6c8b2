"""Attacks as tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.core.progress import echo, print_table
from bench.reports.attacks import findings, tables
from bench.results.attack_record import AttackRecord
from bench.results.run_dir import RunDir


def print_attacks(results: Sequence[AttackRecord], out: Path) -> None:
    """Print a table per attack goal, then violated bounds, reasons for inconclusive cells and paths of pictures."""
    for title, columns, rows in tables(RunDir(out).read_records().found, results):
        print_table(title, columns, rows)
    for line in findings(results):
        echo(line)
    pictures = [picture for result in results for picture in result.pictures]
    if pictures:
        echo(f"{len(pictures)} pictures in {out / 'attacks'}")
