"""JSON Schema of records, attacks and audits, and a page that describes each field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.core.rows import Row
from bench.results.attack_record import AttackRecord, AuditRecord
from bench.results.record import Record

KINDS: Mapping[str, type[Row]] = {"record": Record, "attack": AttackRecord, "audit": AuditRecord}


def schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a `kind` of file, one of :data:`KINDS`, as pydantic writes it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **KINDS[kind].model_json_schema()}


def fields_page(columns: Mapping[str, str]) -> str:
    """Return the page of all fields as Markdown, with the `columns` of a results frame."""
    parts = [
        "# Fields\n",
        "Made by `python -m bench schema --into docs` from the program's own descriptions.\n",
        "## Columns of a frame of results\n",
        "`bench.load_results` and `bench.run` return these.\n",
        _table(("column", "meaning"), [(f"`{name}`", meaning) for name, meaning in columns.items()]),
    ]
    known: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        schema = schema_of(kind)
        known |= schema["$defs"]
        link = f"JSON Schema: [schemas/{kind}.json](schemas/{kind}.json). Infinity is the text `Infinity`.\n"
        parts += [f"## Files in `{kind}s/`\n", link, *_described(schema)]
    parts.append("## Parts\n")
    for name, part in sorted(known.items()):
        parts += [f"### {name}\n", *_described(part)]
    return "\n".join(parts)


def _described(schema: Mapping[str, Any]) -> Iterator[str]:
    yield re.sub(r":\w+:(`.+?`)", r"\1", schema["description"]) + "\n"  # without Sphinx roles
    if "enum" in schema:
        yield f"One of {_listed(schema['enum'])}.\n"
        return
    rows = [(f"`{name}`", _type(field), field["description"]) for name, field in schema["properties"].items()]
    yield _table(("field", "type", "meaning"), rows)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(f"`{value}`" if value != "" else "an empty text" for value in values)


def _type(field: Mapping[str, Any]) -> str:
    """Return a description of a field's type, with links to parts."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(map(_type, field["anyOf"])))
    if "const" in field or "enum" in field:
        return _listed(field.get("enum", [field.get("const")]))
    kind = str(field.get("type", "any"))
    if kind == "array" and "prefixItems" in field:
        return f"({', '.join(map(_type, field['prefixItems']))})"
    if kind == "array":
        return f"list of {_type(field['items'])}"
    inner = field.get("additionalProperties")
    return f"{kind} of {_type(inner)}" if isinstance(inner, dict) else kind
