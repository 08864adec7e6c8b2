"""``bench schema``: the JSON Schema of records, and the page of their fields. Parsing and printing only."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.core.progress import echo, print_json
from bench.storage.files import write_together


def schema(
    kind: Annotated[Literal["record", "attack", "audit"], typer.Argument(help="Which files.")] = "record",
    into: Annotated[
        Path | None, typer.Option("--into", help="Write all schemas and fields.md into this folder instead.")
    ] = None,
) -> None:
    """Print the JSON Schema of records, attacks or audits."""
    from bench.results.schema import schema_of

    if into is None:
        print_json(schema_of(kind))
        return

    pages = {into / name: text.encode() for name, text in schema_pages().items()}
    write_together(pages)
    for page in pages:
        echo(f"wrote {page}")


def schema_pages() -> dict[str, str]:
    """Return all schemas and the page of fields, as text by path."""
    from bench.api import COLUMNS
    from bench.results.schema import KINDS, fields_page, schema_of

    schemas = {f"schemas/{kind}.json": dumps(schema_of(kind), indent=1) + "\n" for kind in KINDS}
    return {**schemas, "fields.md": fields_page(COLUMNS)}
