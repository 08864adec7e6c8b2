"""``bench leaderboard``: the board of one or more run directories as Markdown, CSV and a static site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.errors import BenchError

if TYPE_CHECKING:
    from bench.attack_record import AttackRecord, AuditRecord
    from bench.record import Record

COMMITTED = Path("leaderboards")
"""The folder of the committed records, below the repository."""


def leaderboard(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Run directories; default: leaderboards, the committed records.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of leaderboard.md, .csv and site/; default: first RUNS.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Write the leaderboard of one or more run directories as Markdown, CSV and a site, and print it."""
    from bench.cli_run import print_board
    from bench.store import write_atomic
    from reports.attacks import attacks_page
    from reports.leaderboard import build_board, to_csv, to_markdown
    from reports.reported import FOLDER, read_reported
    from reports.site import Source, write_site
    from reports.trpate import trpate_page

    folders = runs or [_committed()]
    records, audits, attacks, homes = read_folders(folders)
    board = build_board(records, audits)
    for key, why in board.refused:
        print(f"warning: {key} is not shown: {why}", file=sys.stderr)
    refused = {key for key, _ in board.refused}
    records = [record for record in records if record.key not in refused]
    folder = folders[0] if out is None else out
    write_atomic(folder / "leaderboard.md", to_markdown(board).encode())
    write_atomic(folder / "leaderboard.csv", to_csv(board).encode())
    print_board(records, audits, json_=json_, board=board)
    print(f"wrote {folder / 'leaderboard.md'} and {folder / 'leaderboard.csv'}", file=sys.stderr)
    transferred = trpate_page(records)
    if transferred:
        write_atomic(folder / "trpate.md", transferred.encode())
        print(f"wrote {folder / 'trpate.md'}", file=sys.stderr)
    if attacks:
        write_atomic(folder / "attacks.md", attacks_page(records, attacks).encode())
        print(f"wrote {folder / 'attacks.md'}", file=sys.stderr)
    printed = read_reported() if FOLDER.is_dir() else []  # an installed package has no such folder
    write_site(folder, Source(board, records, audits, attacks, printed, homes))
    print(f"wrote {folder / 'site' / 'index.html'}", file=sys.stderr)


def _committed() -> Path:
    if not (COMMITTED / "records").is_dir():
        raise BenchError(
            "no run directory is given, and there is no leaderboards/records here. "
            "Give one: `python -m bench leaderboard runs`; `python -m bench run --out runs` makes one."
        )
    return COMMITTED


def read_folders(
    folders: list[Path],
) -> tuple[list[Record], list[AuditRecord], list[AttackRecord], dict[str, Path]]:
    """Return the records, audits and attacks of `folders`, by key the last one's, and where each lies.

    Raises :class:`BenchError` where a folder is no run directory, or none of them holds a record.
    """
    from bench.store import RunDir

    records: dict[str, Record] = {}
    audits: dict[str, AuditRecord] = {}
    attacks: dict[str, AttackRecord] = {}
    homes: dict[str, Path] = {}
    for path in folders:
        directory = RunDir(path)
        read = directory.read_records()
        found, damaged = directory.read_audits()
        struck, torn = directory.read_attacks()
        for line in [*read.damaged, *damaged, *torn]:
            print(f"warning: {line}", file=sys.stderr)
        if not read.found and len(folders) > 1:
            print(f"warning: {path} holds no records", file=sys.stderr)
        records.update({record.key: record for record in read.found})
        audits.update({audit.key: audit for audit in found})
        attacks.update({attack.key: attack for attack in struck})
        for keys in (
            [record.key for record in read.found],
            [audit.key for audit in found],
            [attack.key for attack in struck],
        ):
            homes.update(dict.fromkeys(keys, path))
    if not records:
        names = ", ".join(str(path) for path in folders)
        raise BenchError(
            f"no records in {names}: a run directory has them in records/. `python -m bench run --out {folders[0]}` "
            "makes some; `python -m bench status` says what became of a run."
        )
    return list(records.values()), list(audits.values()), list(attacks.values()), homes
