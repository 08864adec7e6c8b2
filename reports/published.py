"""The page on which published epsilons hold: claimed, proven and audited epsilon of each system in the papers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from bench.core.grouping import grouped
from bench.reports.board_row import BoardRow
from bench.reports.leaderboard import Board, cells_of, claim_text
from bench.reports.order import dataset_order
from bench.reports.reported.numbers import Reported
from bench.reports.reported.systems import System, Systems
from bench.results.text import markdown_table

TARGET = 10.0
"""The target epsilon, preferably claimed, of the row that represents a method, if the board has it."""

HEAD = f"""# Which published epsilons hold

This page lists every system whose numbers the four papers print. **Measured here** shows the board's row whose target
epsilon is nearest to {TARGET:g}, preferably a claimed one, on the first data set that has one: the claim by the paper's
formula, the epsilon proven for the mechanisms that ran (for a replaced record, unless it says add-remove), the lower
bound of the audit, and the mean accuracy with the number of seeds; a seed whose generator collapsed counts as chance.
If our implementation does not use the paper's mechanism, the row says so, and its claim covers what ran. The line below
a system is its corrected form, calibrated to the proven epsilon. The columns paper and code are verdicts on the epsilon
*as published*; a verdict that relies on someone else's analysis says whose. [reported.md](reported.md) has each reason
in full, with its source.
"""

COLUMNS = (
    "system", "method here", "measured on", "claimed", "proven", "audited", "does the claim hold?", "accuracy (seeds)",
    "paper", "code", "in one line",
)  # fmt: skip


def published_page(board: Board, systems: Systems, numbers: Iterable[Reported]) -> str:
    """Return the page: a table row for each system with a printed number, and one for its corrected form."""
    printed = grouped((number.system, number) for number in numbers)
    rows = grouped((row.method, row) for row in board.rows)
    collapsed = {record.method for record in board.failures if record.collapsed}
    lines = [
        line
        for name in sorted(printed, key=str.casefold)
        for line in _lines(name, systems.systems[name], printed[name], rows, collapsed)
    ]
    return f"{HEAD}\n{markdown_table(COLUMNS, lines)}"


def _lines(
    name: str, system: System, printed: Sequence[Reported], rows: dict[str, list[BoardRow]], collapsed: Set[str]
) -> Iterator[tuple[str, ...]]:
    paper = ", ".join(dict.fromkeys(n.paper_verdict for n in printed))
    code = "–" if system.verdict == "no privacy" else ", ".join(dict.fromkeys(n.code_verdict.value for n in printed))
    reason = system.not_built or system.summary or _first_sentence(system.reason or "")
    row = _shown(rows.get(system.method or "", ()))
    if row is not None:
        *found, claim, accuracy = _measured(row)
        other = f"{claim}, for what runs here" if system.here else claim
        told = f"{reason} Measured here: {system.here}." if system.here else reason
        yield name, *found, other, accuracy, paper, code, told
    else:
        measured = "collapsed" if system.method in collapsed else "no row yet" if system.method else "not built"
        yield name, system.method or "–", measured, "–", "–", "–", "–", "–", paper, code, reason
    corrected = _shown(rows.get(system.corrected or "", ()))
    if corrected is not None:
        yield f"{name}, corrected", *_measured(corrected), "–", "–", "–"


def _shown(rows: Iterable[BoardRow]) -> BoardRow | None:
    """Return the row that represents a method: first by data set, then by distance from the target, then by seeds."""

    def rank(row: BoardRow) -> tuple[object, ...]:
        distance = 0.0 if row.asked is None else abs(row.asked - TARGET)
        return dataset_order(row.dataset), distance, row.basis != "claimed", -len(row.seeds), row.config

    return min(rows, key=rank, default=None)


def _measured(row: BoardRow) -> tuple[str, ...]:
    return (
        row.method, f"{row.dataset}, {row.unit}", cells_of(row)["claimed"], cells_of(row)["proven"], row.audited_text,
        claim_text(row), f"{row.accuracy:.1f} ({len(row.seeds) + row.collapsed})",
    )  # fmt: skip


def _first_sentence(text: str) -> str:
    head, mark, _ = text.partition(". ")
    return head + "." * bool(mark)
