"""The tables and figures that ``bench report`` draws, and what it prints about them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.core.errors import BenchError
from bench.core.printable import page
from bench.core.progress import echo, open_progress, print_json, print_table
from bench.reports.papers.build import index_text, make_artefact
from bench.reports.papers.evidence import Evidence, read_evidence
from bench.reports.papers.notes import commands_of
from bench.reports.papers.spec import PAPERS, Paper, Spec, choose, load_paper
from bench.reports.reported.numbers import read_reported
from bench.results.published import need_published
from bench.storage.files import write_atomic

_SHOWN = 8


def evidence_of(runs: Sequence[Path] | None, made: Sequence[Path]) -> Evidence:
    """Return the results in `runs` (default: the published ones) and `made`; print warnings."""
    if not runs:
        board = need_published()
        runs = [board, *filter(Path.is_dir, [board / "ablations"])]
    evidence = read_evidence([*runs, *made])
    for line in evidence.warnings:
        echo(f"warning: {line}", err=True)
    return evidence


def chosen_items(paper: str, figures: list[str], tables: list[str], all_: bool) -> list[tuple[Paper, Spec]]:
    """Return the papers' tables and figures that the options name; raise :class:`BenchError` if they contradict."""
    if paper:
        load_paper(paper)
    if not (figures or tables or all_):
        raise BenchError("say what to draw: --figure N, --table N or --all.")
    if all_ and (figures or tables):
        raise BenchError("give either --all, or --figure and --table, not both.")
    if (figures or tables) and not paper:
        raise BenchError(f"--figure and --table need --paper, one of: {', '.join(PAPERS)}.")
    if all_:
        return [(of, spec) for of in map(load_paper, [paper] if paper else PAPERS) for spec in of.specs]
    of = load_paper(paper)
    chosen: list[Spec] = [choose(of.tables, number, "table", paper) for number in tables]
    chosen += [choose(of.figures, number, "figure", paper) for number in figures]
    return [(of, spec) for spec in chosen]


def draw(chosen: Sequence[tuple[Paper, Spec]], evidence: Evidence, into: Path, *, quiet: bool, json: bool) -> None:
    """Draw tables and figures into `into`, and print a table of them and the commands for missing results."""
    artefacts, reported = [], read_reported()
    with open_progress(quiet=quiet) as progress, progress.stage("tables and figures", len(chosen)) as stage:
        for of, spec in chosen:
            artefacts.append(make_artefact(of, spec, evidence, reported, into))
            stage.advance()
    index = into / "index.md"
    write_atomic(index, page(index_text(artefacts, evidence.warnings)))
    missing = [one for artefact in artefacts for one in artefact.missing]
    if json:
        print_json(
            {
                "index": str(index),
                "artefacts": [
                    {
                        "paper": a.paper, "kind": a.kind, "number": a.number, "title": a.title, "filled": a.filled,
                        "wanted": a.wanted, "files": [str(path) for path in a.files],
                        "missing": [{"what": m.label, "why": m.why, "commands": m.commands} for m in a.missing],
                    }
                    for a in artefacts
                ],
                "commands": commands_of(missing),
                "warnings": evidence.warnings,
            }
        )  # fmt: skip
        return
    print_table(
        "tables and figures",
        ("paper", "what", "title", "filled", "files"),
        [
            (a.paper, f"{a.kind} {a.number}", a.title, f"{a.filled} of {a.wanted}" if a.wanted else "no cells",
             f"{a.files[0].parent / a.files[0].stem}.*")
            for a in artefacts
        ],
    )  # fmt: skip
    if commands := commands_of(missing):
        echo(f"{len(commands)} commands produce the missing results; {index} lists them under each table and figure:")
        more = [f"... and {len(commands) - _SHOWN} more"] if len(commands) > _SHOWN else []
        echo("\n".join(f"  {line}" for line in [*commands[:_SHOWN], *more]))
    echo(f"wrote {index}", err=True)
    echo(f"{sum(a.filled for a in artefacts)} of {sum(a.wanted for a in artefacts)} cells are filled")
