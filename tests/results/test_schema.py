"""The JSON Schema and the page of fields are current and complete, and match every committed file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from bench.cli.schema import schema_pages
from bench.results.schema import KINDS, schema_of
from helpers.commands import bench
from helpers.pairs import pair_audit, transcript
from helpers.paths import BOARD, ROOT
from helpers.records import failed, record

VALIDATORS = {kind: Draft202012Validator(schema_of(kind)) for kind in KINDS}


def test_the_committed_pages_are_current(tmp_path: Path) -> None:
    assert bench("schema", "--into", tmp_path).returncode == 0
    for name in schema_pages():
        made = (tmp_path / name).read_text()
        assert (ROOT / "docs" / name).read_text() == made, "run `python -m bench schema --into docs`"


@pytest.mark.parametrize("one_in", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_accepts_the_committed_files(kind: str, one_in: int) -> None:
    Draft202012Validator.check_schema(schema_of(kind))
    paths = sorted(path for folder in (BOARD, BOARD / "ablations") for path in (folder / f"{kind}s").glob("*.json"))
    assert len(paths) > 10
    for path in paths[::one_in]:
        values = json.loads(path.read_text())
        if kind != "record":
            values["provenance"].pop("command", None)  # always null in older files; reading drops it
        VALIDATORS[kind].validate(values)


def test_the_schema_accepts_what_the_program_writes() -> None:
    for row in (record(bypasses=("all",)), failed()):
        VALIDATORS["record"].validate(json.loads(row.to_json()))
    assert '"Infinity"' in record(bypasses=("all",)).to_json()
    VALIDATORS["audit"].validate(json.loads(pair_audit(transcript(7.0)).to_json()))


@pytest.mark.parametrize(
    "change",
    [
        {"status": "well"}, {"extra": 1}, {"key": None}, {"utility": {"accuracy": 1.5, "test_records": 10}},
        {"schema_version": 1}, {"cell": {}},
    ],
)  # fmt: skip
def test_the_schema_refuses_what_the_program_refuses(change: dict[str, Any]) -> None:
    values = json.loads(record().to_json()) | change
    assert not VALIDATORS["record"].is_valid(values)


def test_every_field_has_a_description_on_the_page() -> None:
    page = schema_pages()["fields.md"]
    for kind in KINDS:
        schema = schema_of(kind)
        for part in (schema, *schema["$defs"].values()):
            for name, field in part.get("properties", {}).items():
                assert field.get("description"), f"{part['title']}.{name}"
                assert f"| `{name}` | " in page


def test_the_command_prints_a_schema() -> None:
    assert json.loads(bench("schema", "audit").stdout) == schema_of("audit")
    assert bench("schema", "recrd").returncode == 2
