"""The command line: parsing only. Commands import slow modules when they run, which keeps ``--help`` fast."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bench import __version__
from bench.cli import (
    attack,
    bundle,
    check,
    choose,
    commands,
    compare,
    compose,
    data,
    epsilon,
    export,
    leaderboard,
    new,
    publish,
    report,
    run,
    schema,
    tune,
    weights,
)
from bench.cli.options import Json, Out
from bench.core.errors import BenchError, no_exit
from bench.core.processes import keep_path
from bench.core.progress import close_stdout, echo, open_streams


class _Commands(TyperGroup):
    """Keep a plug-in's `sys.exit` from ending a command with status 0."""

    def invoke(self, ctx: Any) -> Any:
        with no_exit("a plug-in"):
            return super().invoke(ctx)


app = typer.Typer(
    name="bench",
    cls=_Commands,
    help="Benchmark of private students: every row has a claimed, a proven and an audited epsilon.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.add_typer(data.app, name="data")
app.add_typer(epsilon.app, name="epsilon", short_help="Compute the privacy cost of a mechanism.")
app.add_typer(weights.app, name="weights")
app.command("run", epilog=run.EXAMPLES, short_help="Run or resume a grid and print the board.")(run.run)
app.command("tune", epilog=tune.EXAMPLE, short_help="Tune settings, at a price in proven epsilon.")(tune.tune)
app.command("bundle", short_help="Pack a grid and its data for offline machines.")(bundle.bundle)
app.command("merge", short_help="Copy the results of run directories into one.")(bundle.merge)
app.command("status", short_help="Show cells that are done, running, failed or left.")(run.status)
app.command("cancel", short_help="Stop all processes and jobs of a run directory.")(run.cancel)
app.command("logs", short_help="Print the output of a launched cell, audit or attack.")(run.logs)
app.command("attack", short_help="Attack the students of a run directory.")(attack.attack)
app.command("audit", short_help="Bound the epsilon of each student from below.")(attack.audit)
app.command("new", short_help="Write a small method, to start from.")(new.new)
app.command("check", short_help="Test whether a method bypasses its mechanisms.")(check.check)
app.command("choose", epilog=choose.EXAMPLES, short_help="Rank the methods within a budget.")(choose.choose)
app.command("compare", epilog=compare.EXAMPLES, short_help="Compare two rows of the board.")(compare.compare)
app.command("compose", epilog=compose.EXAMPLES, short_help="Bound the joint epsilon of students.")(compose.compose)
app.command("leaderboard", short_help="Write and print the leaderboard.")(leaderboard.leaderboard)
app.command("report", short_help="Draw the papers' tables and figures from records.")(report.report)
app.command("publish", short_help="Add records, audits and attacks to the board.")(publish.publish)
app.command("export", short_help="Write released students in timm's format.")(export.export)
app.command("reported", short_help="Print the papers' numbers, with verdicts.")(report.reported)
app.command("schema")(schema.schema)


def _version(asked: bool) -> None:
    if asked:
        echo(f"private-student-bench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Parse the options before the command."""


@app.command("ls", short_help="List methods, data sets, attacks, models or records.")
def list_(
    what: Annotated[str, typer.Argument(help="methods, datasets, attacks, models, or a run directory.")] = "methods",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Run directory: list its records.")] = None,
    json_: Json = False,
) -> None:
    """List methods by family, data sets, attacks or models, or the records of a run directory."""
    from bench.cli.listing import LISTINGS, print_listed, print_listing

    if out is None and what not in LISTINGS:
        from bench.results.published import named

        folder = named(Path(what))
        out = folder if folder.is_dir() else None
    if out is None:
        print_listing(what, json=json_)
        return
    from bench.cli.record_pages import records_listing

    print_listed([records_listing(out)], json=json_)


@app.command(short_help="Show a method or a record.")
def show(
    what: Annotated[str, typer.Argument(help="A method, or the key of a record (a unique prefix is enough).")],
    out: Out = Path("runs"),
    json_: Json = False,
) -> None:
    """Show a method (settings and their sources) or a record (three epsilons, ledger, provenance).

    If a record is not in --out, the command looks for it among the published ones.
    """
    from bench.cli.listing import print_method

    if print_method(what, json=json_):
        return
    from bench.cli.record_pages import print_page

    print_page(what, out, json=json_)


commands.dress(app)


def main() -> None:
    """Run the command line; a user error prints one message and exits with status 2, a bug shows its traceback."""
    open_streams()
    keep_path()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except BenchError as error:
        echo(f"error: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:  # the reader, for instance `head`, closed the pipe
        close_stdout()
        sys.exit(1)
    except OSError as error:  # an operating-system error, not a bug: a full disk, another user's folder
        if error.filename is None:
            close_stdout()
        what = f"{error.filename or 'a file or standard output'} cannot be read or written ({error.strerror or error})"
        echo(f"error: {what}. Free some space, make it accessible, or use another path.", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        echo("stopped. Give the same command again to resume.", err=True)
        sys.exit(130)
