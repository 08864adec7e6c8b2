"""Tables of records: a run directory, a single record, and the settings of a method whose plug-in is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bench.cli.listing import Listing, Page, Rows, print_settings
from bench.core.errors import BenchError, UnknownNameError
from bench.core.progress import echo, print_fields, print_table
from bench.core.types import Adjacency
from bench.data.datasets import all_datasets
from bench.experiments.noise_salt import sweep_salts
from bench.interface.registry import ATTACKS, METHODS
from bench.publishing.reproduce import command_of, missing_plugin
from bench.reports import attacks
from bench.results.audited import with_audits
from bench.results.published import published
from bench.results.record import Record
from bench.results.run_dir import RunDir
from bench.results.text import Table, claimed_text, epsilon_text, record_tables


def print_page(what: str, out: Path, *, json: bool) -> None:
    """Print the page of a record of `out` or the published ones, or of a method whose plug-in is not here."""
    if (page := plugin_page(out, what)) is not None:
        print_settings(what, page, json=json)
        return
    try:
        record, home = find_record([out, *filter(None, [published()])], what, among=METHODS.names())
    except BenchError:
        for kind, group, names in ("an attack", "attacks", ATTACKS.names()), ("a data set", "datasets", all_datasets()):
            if what in names:
                raise BenchError(
                    f"{what} is {kind}; show prints methods and records. See `python -m bench ls {group}`."
                ) from None
        raise
    if json:
        echo(record.to_json().removesuffix("\n"))
        return
    echo(record.key)
    for table in record_page(record):
        print_table(table.caption, table.columns, table.rows)
        if table.note:
            print_fields(table.note)
    mine = [one for one in RunDir(home).read_attacks()[0] if one.student == record.key]
    for title, columns, rows in attacks.tables([record], mine):
        print_table(title, columns, rows)


def records_listing(path: Path) -> Listing:
    """Return the listing of the records in the run directory `path`."""
    run_dir = RunDir(path)
    read = run_dir.read_records(set_aside=False)
    with suppress(BenchError):  # another user's directory
        sweep_salts(run_dir)
    rows = [_record_row(record) for record in read.found]
    missing = Counter(filter(None, map(missing_plugin, read.found)))
    notes = [*read.damaged, *(f"{count} records: {why}" for why, count in sorted(missing.items()))]
    last = "accuracy, or reason of the failure" if any(record.failure for record in read.found) else "accuracy"
    return f"records in {path}", ("key", "status", "claimed", "proven", last), rows, notes


def _record_row(record: Record) -> tuple[str, ...]:
    if record.privacy is None or record.utility is None:
        return (record.key, record.status.value, "", "", record.failure.reason if record.failure else "")
    return (
        record.key,
        record.status.value,
        claimed_text(record.privacy.claimed.epsilon, record.privacy.proven.epsilon),
        epsilon_text(record.privacy.proven.epsilon, "up")
        + (" (add-remove)" if record.own_adjacency is Adjacency.ADD_REMOVE else ""),
        f"{100 * record.utility.accuracy:.2f}%",
    )


def plugin_page(place: Path, name: str) -> Page | None:
    """Return the page of a method whose plug-in is missing, from its records in `place`, or None.

    Records are untrusted, so the file that they name is never imported.
    """
    records = RunDir(place).read_records(set_aside=False).found if place.is_dir() else []
    mine = [record for record in records if record.method == name and record.cell.plugin is not None]
    if not mine:
        return None
    cell = mine[0].cell
    where = f"Show its file: `python -m bench show PATH/{cell.method_file}`" if cell.method_file else "Install it"
    text = f"{name}: a method of the plug-in {cell.plugin_words}. {where} for its text and the sources of its settings."
    rows: Rows = [(setting, str(value)) for setting, value in mine[0].config.items()]
    return f"settings of {mine[0].key}", text, ("setting", "value"), rows


def find_record(places: Sequence[Path], key: str, *, among: Sequence[str] = ()) -> tuple[Record, Path]:
    """Return the only record whose key starts with `key`, and its folder: the first of `places` with a match.

    `among` lists other names that the user may have meant. Raise :class:`BenchError` if no key matches, or if several
    in one folder do.
    """
    known = list(among)
    for path in places:
        home = RunDir(path)
        there = path.is_dir() or not among  # a missing folder is an error only if `key` must be a record
        records = home.read_records(set_aside=False).found if there else []
        found = [record for record in records if record.key.startswith(key)]
        if len(found) == 1:
            return with_audits(found, home.read_audits()[0])[0], path
        if found:
            keys = ", ".join(record.key for record in found[:6])
            raise BenchError(f"{len(found)} records in {path} begin with {key!r}: {keys}. Give a longer prefix.")
        known += [record.key for record in records]
    where = " and ".join(map(str, places))
    kind = "method or record" if among else "record"
    own = " To show a method in your own file, give the file's path." if among else ""
    raise UnknownNameError(kind, key, known, f"Records are read from {where}; --out changes that.{own}")


def record_page(record: Record) -> list[Table]:
    """Return the tables of a record and the command that reproduces it."""
    command, reason = command_of(record)
    notes = filter(None, (reason, missing_plugin(record)))
    again = [("reproduce with", command or "no command"), *(("note", note) for note in notes)]
    found = [table for tables in record_tables(record).values() for table in tables]
    return [*found, Table(record.key, ("what", "value"), tuple(again))]
