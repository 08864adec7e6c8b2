"""``bench report``: the papers' tables and figures, drawn from records. Parsing and printing only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli.options import Json, Quiet, with_options
from bench.core.errors import BenchError
from bench.core.options import LaunchOptions
from bench.core.printable import page
from bench.core.progress import echo, open_progress, print_json, print_table
from bench.storage.files import write_atomic

if TYPE_CHECKING:
    from bench.reports.papers.spec import Paper, Spec


@with_options(detach=...)
def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Run directories; default: the published records and ablations.", show_default=False),
    ] = None,
    *,
    paper: Annotated[str, typer.Option("--paper", help="dgd, dpsd, trpate or pate; default: all.")] = "",
    figure: Annotated[
        list[str] | None, typer.Option("--figure", help="Number of a figure in the paper; repeatable.")
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="Number of a table in the paper; repeatable.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All tables and figures.")] = False,
    missing_: Annotated[
        bool, typer.Option("--missing", help="Only list the empty cells, with reasons and commands.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Run directory for results of --launcher.")] = Path("runs"),
    launch: LaunchOptions,
    into: Annotated[Path, typer.Option("--into", help="Output folder.")] = Path("reports-out"),
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Draw the papers' tables and figures from records, ours next to theirs, with the commands for missing records.

    --missing --launcher runs these commands: all runs in one launch, then attacks and audits.
    """
    from bench.reports.papers.build import index_text, make_artefact
    from bench.reports.papers.evidence import read_evidence
    from bench.reports.papers.notes import commands_of
    from bench.reports.reported.numbers import read_reported

    chosen = _chosen(paper, figure or [], table or [], all_ or (missing_ and not (figure or table)))
    by_launcher = launch.launcher is not None or launch.cluster is not None
    if by_launcher and (not missing_ or json_):
        raise BenchError("--launcher makes what --missing lists: give both, without --json.")
    made = [out] if by_launcher and out.is_dir() and out not in (runs or ()) else []
    evidence = read_evidence([*(runs or _published()), *made])
    for line in evidence.warnings:
        echo(f"warning: {line}", err=True)
    reported = read_reported()
    if missing_:
        from bench.cli.report_missing import fill, print_missing
        from bench.reports.papers.coverage import items_of

        items = items_of(chosen, evidence, reported)
        if by_launcher:
            fill(items, out, launch, quiet=quiet)
        else:
            print_missing(items, json=json_)
        return
    artefacts = []
    with open_progress(quiet=quiet or json_) as progress, progress.stage("tables and figures", len(chosen)) as stage:
        for of, spec in chosen:
            artefacts.append(make_artefact(of, spec, evidence, reported, into))
            stage.advance()
    index = into / "index.md"
    write_atomic(index, page(index_text(artefacts, evidence.warnings)))
    missing = [one for artefact in artefacts for one in artefact.missing]
    if json_:
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
    commands = commands_of(missing)
    if commands:
        echo(f"{len(commands)} commands produce the missing results; {index} lists them under each table and figure:")
        more = [f"... and {len(commands) - _SHOWN} more"] if len(commands) > _SHOWN else []
        echo("\n".join(f"  {line}" for line in [*commands[:_SHOWN], *more]))
    echo(f"wrote {index}", err=True)
    echo(f"{sum(a.filled for a in artefacts)} of {sum(a.wanted for a in artefacts)} cells are filled")


_SHOWN = 8


def _published() -> list[Path]:
    from bench.results.published import need_published

    board = need_published()
    return [board, *filter(Path.is_dir, [board / "ablations"])]


def _chosen(paper: str, figures: list[str], tables: list[str], all_: bool) -> list[tuple[Paper, Spec]]:
    from bench.reports.papers.spec import PAPERS, choose, load_paper

    if paper:
        load_paper(paper)
    if not (figures or tables or all_):
        raise BenchError("say what to draw: --figure N, --table N or --all.")
    if all_ and (figures or tables):
        raise BenchError("give either --all, or --figure and --table, not both.")
    if (figures or tables) and not paper:
        raise BenchError(f"--figure and --table need --paper, one of: {', '.join(PAPERS)}.")
    if all_:
        found: list[tuple[Paper, Spec]] = []
        for of in map(load_paper, [paper] if paper else PAPERS):
            found += [(of, table) for table in of.tables]
            found += [(of, figure) for figure in of.figures]
        return found
    of = load_paper(paper)
    chosen: list[Spec] = [choose(of.tables, number, "table", paper) for number in tables]
    chosen += [choose(of.figures, number, "figure", paper) for number in figures]
    return [(of, spec) for spec in chosen]
