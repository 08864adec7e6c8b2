"""``bench compare``: two rows of the board side by side. Parsing and printing only."""

from __future__ import annotations

from typing import Annotated

import typer

from bench.cli.options import Json, Quiet, Runs
from bench.core.progress import echo, print_fields, print_json, print_table, starting
from bench.core.types import PrivacyUnit

EXAMPLES = """\
python -m bench compare scatter-linear dp-sgd --eps 2
python -m bench compare mnist-pate-eps1-quick-s0 mnist-dp-sgd-eps3-quick-s0"""


One = Annotated[str, typer.Argument(help="A method, or the key of a record (a unique prefix is enough).")]
Other = Annotated[str, typer.Argument(help="A second method or key, of another row.")]
Dataset = Annotated[str, typer.Option("--dataset", "-d", help="Data set on which to compare methods.")]
Unit = Annotated[PrivacyUnit, typer.Option("--unit", help="Unit for which to compare methods.")]
Eps = Annotated[
    float | None,
    typer.Option(
        "--eps",
        "-e",
        help="Largest proven epsilon of a method's row, for replace-one. Default: 10, or any if it proves none.",
    ),
]


def compare(
    one: One, other: Other, runs: Runs = None, dataset: Dataset = "mnist", unit: Unit = PrivacyUnit.RECORD,
    eps: Eps = None, quiet: Quiet = False, json_: Json = False,
) -> None:  # fmt: skip
    """Compare two rows of the board: epsilons, differing settings, and the difference in accuracy with its interval."""
    with starting(quiet=quiet or json_):
        from bench.api.boards import compare as compared

        seen = compared(one, other, dataset=dataset, unit=unit, eps=eps, runs=runs)
    if json_:
        print_json(seen.as_dict())
        return
    print_table(
        "comparison (differing settings at the end)",
        ("", f"{seen.one.method} (A)", f"{seen.other.method} (B)"),
        seen.lines,
        folded=True,
    )
    for note in seen.notes:
        print_fields(note)
    if seen.one.dataset != seen.other.dataset or seen.one.unit != seen.other.unit:
        echo("The rows have different data sets or units, so their accuracies cannot be compared.")
    elif seen.low is None or seen.high is None:
        print_fields(f"A - B: {seen.difference:+.1f} points; no interval, because a row has only one seed.")
    else:
        apart = "the difference is not significant" if seen.low <= 0 <= seen.high else "the difference is significant"
        tested = (
            f"paired on {seen.paired:,} of these"
            if seen.paired
            else "unpaired, because one row has no per-record predictions"
        )
        print_fields(
            f"A - B: {seen.difference:+.1f} points (95%: {seen.low:+.1f} to {seen.high:+.1f}); {apart}. The interval "
            f"covers seeds and test records, {tested}."
        )
