"""``bench compose``: the joint privacy cost of several released students. Parsing and printing only."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.options import Json, Quiet, records
from bench.core.progress import echo, print_table, starting

EXAMPLES = """\
python -m bench compose mnist-pate-eps1 mnist-dp-sgd-eps3   # all seeds of both
python -m bench compose mnist-pate-eps1-quick-s0 mnist-dgd-sound-eps10-quick-s0 --group 7"""


Keys = Annotated[
    list[str], typer.Argument(help="Keys of records; a key without seed and hash stands for all seeds of its row.")
]
Runs = Annotated[list[Path] | None, records("--out", "-o", help="Run directories; default: the published records.")]
Group = Annotated[int, typer.Option("--group", min=1, help="Number of records per person, for the risk.")]


def compose(keys: Keys, runs: Runs = None, group: Group = 1, quiet: Quiet = False, json_: Json = False) -> None:
    """Bound the joint epsilon of several released students of the same private records."""
    with starting(quiet=quiet or json_):
        from bench.cli.epsilon_output import report
        from bench.reports.runs import read_board
        from bench.results.composed import composition, released_together
        from bench.results.derived import replaced_epsilon
        from bench.results.text import epsilon_text

        found = released_together(read_board(runs).records, keys)
        together = composition(found)
    if not json_:
        alone = {r.key: (r.privacy.unit.value, replaced_epsilon(r.privacy)) for r in found if r.privacy is not None}
        total = math.fsum(epsilon for _, epsilon in alone.values())
        lines = [(key, unit, epsilon_text(epsilon, "up")) for key, (unit, epsilon) in alone.items()]
        print_table("cost of each student", ("record", "unit", "proven, replace-one"), lines)
        echo(f"sum of epsilons: {epsilon_text(total, 'up')}, at {len(lines)} times the delta\n")
    report(together, found[0].delta, json_, group)
