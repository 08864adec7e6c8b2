"""Build all pages of a board from run directories: Markdown, CSV, the site, and the README's table and picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.core.printable import page
from bench.core.processes import owner_only
from bench.reports import summary
from bench.reports.attacks import attacks_page
from bench.reports.audits import audits_page
from bench.reports.leaderboard import Source, to_csv, to_markdown
from bench.reports.papers.coverage import coverage_page
from bench.reports.papers.trpate_page import trpate_page
from bench.reports.published import published_page
from bench.reports.reported.numbers import read_reported
from bench.reports.reported.page import to_markdown as reported_page
from bench.reports.reported.systems import read_systems
from bench.reports.runs import read_runs
from bench.reports.site.build import write_site
from bench.reports.site.picture import board_picture
from bench.results.derived import FIGURES, figures_text
from bench.results.published import published
from bench.storage.files import write_together


def gather(folders: Sequence[Path]) -> Source:
    """Return the records, audits and attacks of `folders`. Unreadable files stay in place and cause warnings.

    Raise :class:`BenchError` if a folder is not a run directory, no record can be read, or two results of a key differ.
    """
    names = ", ".join(str(path) for path in folders)
    advice = (
        f"no records in {names}; a run directory keeps them in records/. Make some with `python -m bench run "
        f"--out {folders[0]}`; `python -m bench status` shows the state of a run."
    )
    runs = read_runs(folders, advice, name_empty=len(folders) > 1)
    board = published()
    printed = read_reported(board / "reported") if board and (board / "reported").is_dir() else []
    return Source(
        list(runs.records.values()), list(runs.audits.values()), list(runs.attacks.values()), printed, homes=runs.homes,
        warnings=runs.warnings, replays=runs.replays,
    )  # fmt: skip


def write_pages(folder: Path, source: Source, *, readme: Path | None = None) -> list[Path]:
    """Write the pages of `source` into `folder` and return the paths of the main ones.

    Pages of records on private data are readable only by the owner, like the records themselves. `readme` receives
    the MNIST table between its marks. If `folder` has ``reported/``, ``reported.md``, ``published.md`` and
    ``coverage.md`` are written too.
    """
    shown = source.shown()
    texts = {
        folder / "leaderboard.md": to_markdown(source.board),
        folder / "leaderboard.csv": to_csv(source.board),
        folder / "audits.md": audits_page(source.board),
        folder / "trpate.md": trpate_page(source.board.rows),
        folder / "mnist.svg": board_picture(source, "mnist"),
        folder / "attacks.md": attacks_page(shown, source.attacks) if source.attacks else "",
    }
    if (folder / "reported").is_dir():
        printed = read_reported(folder / "reported")
        texts[folder / "reported.md"] = reported_page(printed)
        if (folder / "records").is_dir():
            texts[folder / "coverage.md"] = coverage_page(folder, printed)
            texts[folder / FIGURES] = figures_text(shown)
        texts[folder / "published.md"] = published_page(source.board, read_systems(folder / "reported"), printed)
    if readme is not None:
        texts[readme] = summary.put(summary.summary(source.board), readme.read_text(encoding="utf-8"))
    made = {path: page(text) for path, text in texts.items() if text}
    with owner_only(source.owner_only):
        write_together(made)
        write_site(folder, source)
    return [*made, folder / "site" / "index.html"]
