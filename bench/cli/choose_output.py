"""What ``bench choose`` prints."""

from __future__ import annotations

from bench.core.progress import echo, print_fields, print_table
from bench.reports.board_row import BoardRow
from bench.reports.choose import CANDIDATES, Choice
from bench.reports.order import LEGEND
from bench.results.text import epsilon_text

SHOWN = 8


def print_choice(choice: Choice) -> None:
    """Print the ranked methods, the best ones with their commands, and what smaller budgets cost."""
    wanted, own = choice.wanted, choice.wanted.dataset != choice.measured_on
    if own:
        print_fields(
            f"The board's data set most like {wanted.dataset} in classes, image size and channels is "
            f"{choice.measured_on}. The figures below are of its {choice.rows[0].records[0].private_records:,} private "
            "records; with fewer records, privacy costs more accuracy."
        )
    print_table(
        f"{choice.measured_on}, unit {wanted.unit}, proven epsilon at most {wanted.eps:g} (replace-one); accuracy in %",
        ("rank", "method", "proven", "claim", "accuracy", "time"),
        [
            (f"{row.rank} {row.marks}".rstrip(), row.method, epsilon_text(row.replace_one, "up"), str(row.claim) or "–",
             f"{row.accuracy:.1f} ({row.low:.1f}–{row.high:.1f})", "–" if row.cost is None else f"{row.cost:.0f} s")
            for row in choice.rows[:SHOWN]
        ],
    )  # fmt: skip
    if any(row.marks for row in choice.rows[:SHOWN]):
        print_fields(LEGEND)
    if len(choice.rows) > SHOWN:
        echo(f"{len(choice.rows) - SHOWN} more methods rank below; --json lists them.")
    best = choice.best
    names = ", ".join(row.method for row in best)
    if len(best) > 1:
        print_fields(f"Take one of {names}: their accuracies do not differ significantly.")
    else:
        lead = "its lead is statistically significant" if len(choice.rows) > 1 else "no other method is ranked here"
        print_fields(f"Take {names}: {lead}.")
    for row in choice.rows[:CANDIDATES] if own else best[:CANDIDATES]:
        print_fields(_why(row))
        echo(f"  {choice.commands[row.method]}")
    for less in choice.less:
        if less.row is None:
            print_fields(f"With {less.what}: no ranked method.")
        else:
            cost = f"{less.points:.1f} points less" if less.points >= 0.05 else "at no loss"
            print_fields(f"With {less.what}: {less.row.method}, {less.row.accuracy:.1f}%, {cost}.")
    if choice.untimed:
        print_fields(f"Left out (time unknown, because every run reused cached parts): {', '.join(choice.untimed)}.")


def _why(row: BoardRow) -> str:
    seeds = len(row.seeds) + row.collapsed
    public = "no public data" if row.public_data == "none" else f"public data: {row.public_data}"
    proven = epsilon_text(row.proven, "up")
    audited = "not audited" if row.audit is None else f"audited {row.audited_text} of {proven} ({row.adjacency})"
    return f"{row.method}: {audited}, {seeds} seeds, preset {row.preset}, {public}."
