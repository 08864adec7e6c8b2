"""All pages of a board from run directories: Markdown, CSV, the site and the README's table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.core.errors import BenchError
from bench.results.attack_record import AttackRecord, AuditRecord
from bench.results.record import Record
from bench.results.run_dir import RunDir
from bench.storage.files import write_together
from reports import summary
from reports.attacks import attacks_page
from reports.leaderboard import Source, to_csv, to_markdown
from reports.papers.trpate_page import trpate_page
from reports.reported.numbers import FOLDER, read_reported
from reports.reported.page import to_markdown as reported_page
from reports.site.build import write_site


def gather(folders: Sequence[Path]) -> Source:
    """Return the records, audits and attacks of `folders`; unreadable files stay in place and become warnings.

    Raise :class:`BenchError` if a folder is no run directory, or no record can be read.
    """
    records: dict[str, Record] = {}
    audits: dict[str, AuditRecord] = {}
    attacks: dict[str, AttackRecord] = {}
    homes: dict[str, Path] = {}
    warnings: list[str] = []
    for path in folders:
        directory = RunDir(path)
        read = directory.read_records(set_aside=False)
        found, damaged = directory.read_audits()
        struck, torn = directory.read_attacks()
        warnings += [*read.damaged, *damaged, *torn]
        if not read.found and not read.damaged and len(folders) > 1:
            warnings.append(f"{path} holds no records")
        records.update({record.key: record for record in read.found})
        audits.update({audit.key: audit for audit in found})
        attacks.update({attack.key: attack for attack in struck})
        keys = [*(r.key for r in read.found), *(a.key for a in found), *(a.key for a in struck)]
        homes.update(dict.fromkeys(keys, path))
    if not records and warnings:
        more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
        raise BenchError(f"no record can be read. {warnings[0]}{more}.")
    if not records:
        names = ", ".join(str(path) for path in folders)
        raise BenchError(
            f"no records in {names}: a run directory has them in records/. `python -m bench run --out {folders[0]}` "
            "makes some; `python -m bench status` says what became of a run."
        )
    printed = read_reported() if FOLDER.is_dir() else []  # absent from an installed package
    return Source(
        list(records.values()), list(audits.values()), list(attacks.values()), printed, homes=homes, warnings=warnings
    )


def write_pages(folder: Path, source: Source, *, readme: Path | None = None) -> list[Path]:
    """Write the pages of `source` into `folder` and return the paths that a reader opens.

    `readme` gets the MNIST table between its marks. ``reported.md`` is written where `folder` has ``reported/``.
    """
    shown = source.shown()
    texts = {
        folder / "leaderboard.md": to_markdown(source.board),
        folder / "leaderboard.csv": to_csv(source.board),
        folder / "trpate.md": trpate_page(shown),
        folder / "attacks.md": attacks_page(shown, source.attacks) if source.attacks else "",
    }
    if (folder / "reported").is_dir():
        texts[folder / "reported.md"] = reported_page(read_reported(folder / "reported"))
    if readme is not None:
        texts[readme] = summary.put(summary.summary(source.board), readme.read_text(encoding="utf-8"))
    made = {path: text.encode() for path, text in texts.items() if text}
    write_together(made)
    write_site(folder, source)
    return [*made, folder / "site" / "index.html"]
