"""``bench schema``: the JSON Schema of records, and the page of their fields. Parsing and printing only."""

from __future__ import annotations

from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from bench.core.progress import echo, print_json
from bench.storage.files import write_together


class Kind(StrEnum):
    """A kind of file of a run directory."""

    RECORD = "record"
    ATTACK = "attack"
    AUDIT = "audit"


def schema(
    kind: Annotated[Kind, typer.Argument(help="Which files.")] = Kind.RECORD,
    into: Annotated[
        Path | None, typer.Option("--into", help="Write all schemas and fields.md into this folder instead.")
    ] = None,
) -> None:
    """Print the JSON Schema of records, attacks or audits."""
    from bench.results.schema import schema_of

    if into is None:
        print_json(schema_of(kind.value))
        return

    pages = {into / name: text.encode() for name, text in schema_pages().items()}
    (into / "schemas").mkdir(parents=True, exist_ok=True)
    write_together(pages)
    for page in pages:
        echo(f"wrote {page}")


def schema_pages() -> dict[str, str]:
    """Return all schemas and the page of fields, as text by path."""
    from bench.api import COLUMNS
    from bench.results.schema import KINDS, fields_page, schema_of

    schemas = {f"schemas/{kind}.json": dumps(schema_of(kind), indent=1) + "\n" for kind in KINDS}
    return {**schemas, "fields.md": fields_page(COLUMNS)}
