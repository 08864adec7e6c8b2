"""The command line: parsing only. Slow imports stay inside the commands, so that ``--help`` answers at once."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench import __version__, cli_attack, cli_data, cli_epsilon, cli_weights
from bench.config import Grid, NoiseKind, Preset, Reuse
from bench.console import print_table
from bench.errors import BenchError
from bench.interface import Basis

if TYPE_CHECKING:
    from bench.attack_record import AttackRecord, AuditRecord
    from bench.plan import Cell, State
    from bench.record import Record

app = typer.Typer(
    name="bench",
    help="Benchmark of private students: every row carries a claimed, a proven and an audited epsilon.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.add_typer(cli_data.app, name="data")
app.add_typer(cli_epsilon.app, name="epsilon")
app.add_typer(cli_weights.app, name="weights")
app.command("attack")(cli_attack.attack)
app.command("audit")(cli_attack.audit)

Methods = Annotated[str, typer.Option("--methods", "-m", help="Methods, with commas between them.")]
Datasets = Annotated[str, typer.Option("--datasets", "-d", help="Data sets, with commas; folder:PATH for your own.")]
Epsilons = Annotated[str, typer.Option("--eps", "-e", help="Epsilons to ask for, with commas.")]
Seeds = Annotated[str, typer.Option("--seeds", "-s", help="Seeds, with commas.")]
PresetOption = Annotated[Preset, typer.Option("--preset", "-p", help="paper, quick (minutes) or tiny (seconds).")]
BasisOption = Annotated[Basis, typer.Option("--basis", help="What the epsilon asked for bounds.")]
Delta = Annotated[float | None, typer.Option("--delta", help="Default: 1e-5, or less where records are many.")]
NoiseOption = Annotated[NoiseKind, typer.Option("--noise", help="secure: exact samplers, not reproducible.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE or METHOD.FIELD=VALUE; repeatable.")]
Teacher = Annotated[str | None, typer.Option("--teacher", help="Any timm model, for methods with teachers.")]
StudentOption = Annotated[str | None, typer.Option("--student", help="Any timm model.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Run directory.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"private-student-bench {__version__}")
        raise typer.Exit


@app.command()
def run(
    methods: Methods,
    datasets: Datasets = "mnist",
    eps: Epsilons = "1,10",
    seeds: Seeds = "0",
    preset: PresetOption = Preset.QUICK,
    basis: BasisOption = Basis.CLAIMED,
    delta: Delta = None,
    noise: NoiseOption = NoiseKind.SEEDED,
    set_: Sets = None,
    teacher: Teacher = None,
    student: StudentOption = None,
    out: Out = Path("runs"),
    reuse: Annotated[Reuse, typer.Option("--reuse", help="Which earlier records count as done.")] = Reuse.DONE,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    workers: Annotated[int, typer.Option("--workers", help="Processes for teachers; 0: one per core.", min=0)] = 0,
    threads: Annotated[int, typer.Option("--threads", help="CPU threads of one operation.", min=1)] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")] = False,
    json_: Json = False,
) -> None:
    """Run a grid of methods, data sets, epsilons and seeds; continue one that was stopped; print the board."""
    grid = _grid(methods, datasets, eps, seeds, preset, basis, delta, noise, set_, teacher, student)
    from bench.console import open_progress
    from bench.launch import Outcome, run_inline
    from bench.plan import expand, to_run
    from bench.run import DataSource, prepare_device
    from bench.store import RunDir, available_cores

    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(open_progress(quiet=quiet or json_))
        source = DataSource(progress)
        run_dir = RunDir(out)
        # A place that cannot be written is told before data is fetched, a mistake in the grid before it is made.
        run_dir.check_writable()
        cells = expand(grid, source.describe)
        run_dir.create()
        stack.enter_context(run_dir.locked())
        for line in run_dir.read_records().damaged:
            progress.say(f"warning: {line}")
        todo = to_run(cells, run_dir, reuse)
        if len(todo) < len(cells):
            progress.say(f"{len(cells) - len(todo)} of {len(cells)} cells are done already (--reuse none repeats)")
        outcome = Outcome()
        if todo:  # torch takes seconds to import: not where nothing is left to train
            where = prepare_device(device, threads)
            say = functools.partial(_say_end, progress)
            crew = workers or available_cores()
            outcome = run_inline(todo, run_dir, source, progress, device=where, workers=crew, done=say)
        records = [r for cell in cells if (r := run_dir.read_record(cell.key)) is not None]
        audits = run_dir.read_audits()[0]
    _print_board(records, audits, json_=json_)
    if outcome.stopped is not None:
        left = len(todo) - len(outcome.records)
        print(f"stopped; {left} cells are left. Give the same command again to go on.", file=sys.stderr)
        raise typer.Exit(128 + outcome.stopped)
    if any(record.failure for record in records):
        raise typer.Exit(1)


def _say_end(progress: Any, record: Record) -> None:
    for note in record.notes:
        progress.say(f"{record.key}: {note}")
    if record.failure is not None:
        where = f" (log: {record.failure.log})" if record.failure.log else ""
        progress.say(f"{record.key} FAILED: {record.failure.reason}{where}")
    elif record.utility is not None:
        shared = ", ".join(
            f"{kind} {made} made, {found} found" for kind, (made, found) in record.provenance.artefacts.items()
        )
        progress.say(
            f"{record.key}: accuracy {100 * record.utility.accuracy:.2f}% in {record.provenance.wall_seconds:.0f} s"
            + (f" (cache: {shared})" if shared else "")
        )


@app.command()
def plan(
    methods: Methods,
    datasets: Datasets = "mnist",
    eps: Epsilons = "1,10",
    seeds: Seeds = "0",
    preset: PresetOption = Preset.QUICK,
    basis: BasisOption = Basis.CLAIMED,
    delta: Delta = None,
    noise: NoiseOption = NoiseKind.SEEDED,
    set_: Sets = None,
    teacher: Teacher = None,
    student: StudentOption = None,
    out: Out = Path("runs"),
    json_: Json = False,
) -> None:
    """Print the cells of a grid: state, calibrated setting, claimed epsilon, or the reason why one cannot run."""
    grid = _grid(methods, datasets, eps, seeds, preset, basis, delta, noise, set_, teacher, student)
    from bench.console import open_progress
    from bench.plan import expand, states
    from bench.run import DataSource
    from bench.store import RunDir

    with open_progress(quiet=json_) as progress:
        cells = expand(grid, DataSource(progress).describe)
    state = states(cells, RunDir(out))
    rows = [_plan_row(cell, state[cell.key]) for cell in cells]
    if json_:
        _print_json({"cells": rows})
        return
    print_table(
        f"{len(cells)} cells, preset {preset.value}",
        ("state", "cell", "claimed", "setting", "why not"),
        [(r["state"], r["title"], r["claimed"], r["setting"], r["refused"]) for r in rows],
    )


def _plan_row(cell: Cell, state: State) -> dict[str, Any]:
    from bench.config import as_dict
    from bench.registry import METHODS

    method = METHODS.get(cell.method)
    claimed = "" if cell.refused else f"{method.claimed(cell.config, cell.facts, cell.delta).epsilon:.4g}"
    before, now = as_dict(method.Config()), as_dict(cell.config)
    changed = ", ".join(f"{name}={value}" for name, value in now.items() if value != before[name])
    return {
        "key": cell.key,
        "title": cell.title,
        "state": state.value,
        "claimed": claimed,
        "setting": changed,
        "config": now,
        "delta": cell.delta,
        "refused": cell.refused,
    }


@app.command("ls")
def list_(
    what: Annotated[str, typer.Argument(help="methods, datasets, attacks, models, or a run directory.")] = "methods",
    json_: Json = False,
) -> None:
    """List methods, data sets, attacks or models, or the records of a run directory."""
    from bench.listing import listing

    title, columns, rows, notes = listing(what)
    if json_:
        _print_json({"title": title, "rows": [dict(zip(columns, row, strict=True)) for row in rows], "notes": notes})
        return
    print_table(title, columns, rows)
    for note in notes:
        print(note)


@app.command()
def show(
    what: Annotated[str, typer.Argument(help="A method, or the key of a record (its beginning is enough).")],
    out: Out = Path("runs"),
    json_: Json = False,
) -> None:
    """Show a method (settings and the places that state them) or a record (three epsilons, ledger, provenance)."""
    from bench.listing import find_record, method_page, record_page
    from bench.registry import METHODS
    from bench.store import RunDir
    from reports.attacks import tables

    if what in METHODS or what.endswith(".py"):
        title, text, columns, rows = method_page(METHODS.get(what))
        if json_:
            _print_json({"method": title, "text": text, "settings": [dict(zip(columns, r, strict=True)) for r in rows]})
            return
        print(text)
        print_table(title, columns, rows)
        return
    record = find_record(out, what)
    if json_:
        print(record.to_json(), end="")
        return
    attacks = [found for found in RunDir(out).read_attacks()[0] if found.student == record.key]
    for title, columns, rows in [*record_page(record), *tables([record], attacks)]:
        print_table(title, columns, rows)


@app.command()
def check(
    methods: Annotated[list[str] | None, typer.Argument(help="Methods or Python files; none: all methods.")] = None,
    set_: Sets = None,
    json_: Json = False,
) -> None:
    """Run the non-interference test: does anything private go round the ledger?"""
    from bench.privacy.noninterference import check_method
    from bench.registry import METHODS
    from bench.run import prepare_device

    prepare_device("cpu", 1)
    results = [check_method(METHODS.get(name), overrides=set_ or ()) for name in methods or METHODS.names()]
    if json_:
        _print_json({"checks": [{"method": r.method, "verdict": r.verdict.value, "reason": r.reason} for r in results]})
    else:
        rows = [(r.method, r.verdict.value, r.reason) for r in results]
        print_table("non-interference", ("method", "verdict", "reason"), rows)
    for where, why in METHODS.broken.items():
        print(f"not checked, plug-in failed to import: {where}: {why}", file=sys.stderr)
    if not all(result.ok for result in results):
        raise typer.Exit(1)


@app.command()
def leaderboard(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or leaderboards for the committed records.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of leaderboard.md and .csv; default: the first RUNS.")
    ] = None,
    json_: Json = False,
) -> None:
    """Write the leaderboard of one or more run directories as Markdown and CSV, and print it."""
    from bench.store import RunDir, write_atomic
    from reports.attacks import attacks_page
    from reports.leaderboard import build_board, to_csv, to_markdown
    from reports.trpate import trpate_page

    records: dict[str, Record] = {}
    audits: dict[str, AuditRecord] = {}
    attacks: dict[str, AttackRecord] = {}
    for path in runs:
        read = RunDir(path).read_records()
        found, damaged = RunDir(path).read_audits()
        struck, torn = RunDir(path).read_attacks()
        for line in [*read.damaged, *damaged, *torn]:
            print(f"warning: {line}", file=sys.stderr)
        records.update({record.key: record for record in read.found})
        audits.update({audit.key: audit for audit in found})
        attacks.update({attack.key: attack for attack in struck})
    board = build_board(records.values(), audits.values())
    folder = runs[0] if out is None else out
    write_atomic(folder / "leaderboard.md", to_markdown(board).encode())
    write_atomic(folder / "leaderboard.csv", to_csv(board).encode())
    _print_board(list(records.values()), list(audits.values()), json_=json_)
    print(f"wrote {folder / 'leaderboard.md'} and {folder / 'leaderboard.csv'}", file=sys.stderr)
    transferred = trpate_page(records.values())
    if transferred:
        write_atomic(folder / "trpate.md", transferred.encode())
        print(f"wrote {folder / 'trpate.md'}", file=sys.stderr)
    if attacks:
        write_atomic(folder / "attacks.md", attacks_page(records.values(), list(attacks.values())).encode())
        print(f"wrote {folder / 'attacks.md'}", file=sys.stderr)


def _grid(
    methods: str,
    datasets: str,
    eps: str,
    seeds: str,
    preset: Preset,
    basis: Basis,
    delta: float | None,
    noise: NoiseKind,
    set_: list[str] | None,
    teacher: str | None,
    student: str | None,
) -> Grid:
    overrides = list(set_ or [])
    overrides += [f"teacher={teacher}"] if teacher else []
    overrides += [f"student={student}"] if student else []
    return Grid(
        methods=_names(methods),
        datasets=_names(datasets),
        epsilons=tuple(_number(text, "--eps") for text in _names(eps)),
        seeds=tuple(_whole(text) for text in _names(seeds)),
        preset=preset,
        basis=basis,
        delta=delta,
        noise=noise,
        overrides=tuple(overrides),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BenchError(f"{option} takes numbers with commas between them, for instance 1,10; not {text!r}.") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BenchError(f"--seeds takes whole numbers with commas between them, not {text!r}.") from None


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, default=str))


def _print_board(records: list[Record], audits: list[AuditRecord], *, json_: bool) -> None:
    from bench.audited import with_audits
    from reports.leaderboard import COLUMNS, build_board, cells_of

    if json_:
        filled = with_audits(records, audits)
        _print_json({"records": [record.model_dump(mode="json") for record in filled]})
        return
    board = build_board(records, audits)
    for (dataset, unit), rows in board.tables().items():
        deltas = ", ".join(f"{delta:g}" for delta in sorted({row.delta for row in rows}))
        title = f"{dataset}, unit {unit}, delta {deltas}; accuracy in %"
        # Two columns are for the files: on a screen they would fold every other one.
        shown = [i for i, name in enumerate(COLUMNS) if name not in ("public data",)]
        print_table(
            title,
            tuple(COLUMNS[i] for i in shown),
            [tuple(cells_of(row)[i] for i in shown) for row in rows],
        )
    for record in board.failures:
        print(f"failed: {record.key}: {record.failure.reason if record.failure else ''}")


def main() -> None:
    """Run the command line; a mistake of the user ends with one message and status 2, a bug with its traceback."""
    try:
        app()
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped. Give the same command again to go on.", file=sys.stderr)
        sys.exit(130)
