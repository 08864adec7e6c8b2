"""Records of the committed board, put into run directories, edited, and published."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner, Result

from bench.cli.main import app
from bench.core.errors import BenchError
from bench.evaluation.check.noninterference import Check, CheckVerdict
from bench.publishing.publish import examine, write
from helpers.paths import BOARD

PATE = "mnist-pate-eps10-quick-s0-68885667e3d8"
GNMAX = "mnist-pate-gnmax-eps10-quick-s0-1fa416896021"
NONPRIVATE = "mnist-nonprivate-epsinf-quick-s0-c07d4be95fa5"
AUDIT = f"{PATE}--audit-d8c10740d056"
ATTACK = f"{PATE}--label-gap-0dd1eac6b11d"

Values = dict[str, Any]


SALT = "5a" * 32


def values_of(key: str) -> Values:
    values: Values = json.loads((BOARD / "records" / f"{key}.json").read_text())
    if values["cell"]["epsilon"] is not None:  # as a run of today has one
        values["noise_salt"] = SALT
    return values


def put(run: Path, values: Values, name: str | None = None) -> Path:
    path = run / "records" / f"{name or values['key']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1) + "\n")
    return path


def all_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a board by name, without the outcomes that a stopped publication keeps."""
    names = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {str(name): path.read_bytes() for name, path in names.items() if name.parts[0] != "publishing"}


def all_pass_the_check() -> AbstractContextManager[object]:
    return mock.patch(
        "bench.evaluation.check.noninterference.check_method",
        lambda kind, **options: Check(kind.name, CheckVerdict.PASSED, "not run"),
    )


def publish(*words: str | Path) -> Result:
    """Publish by the command, without its slow parts: no cell runs again, and every method passes the check."""
    with all_pass_the_check():
        return CliRunner().invoke(app, ["publish", "--no-rerun", *map(str, words)], terminal_width=400)


def refusals(run: Path, into: Path, **options: bool) -> list[str]:
    before = all_of(into)
    found = examine([run], into, **options)
    with pytest.raises(BenchError, match="nothing is written"):
        write(found, into)
    assert all_of(into) == before
    return [f"{item.name}: {item.why}" for item in found.refused]


def edit(path: str, value: Any) -> Callable[[Values], None]:
    def change(values: Values) -> None:
        *folders, last = path.split(".")
        for name in folders:
            values = values[int(name)] if isinstance(values, list) else values[name]
        if isinstance(values, list):
            values[int(last)] = value
        else:
            values[last] = value

    return change


def with_rows(run: Path, change: Callable[[Values], None] = lambda values: None) -> None:
    """Put an audit and an attack of PATE's student into `run`, after `change`."""
    for folder, key in (("audits", AUDIT), ("attacks", ATTACK)):
        values = json.loads((BOARD / folder / f"{key}.json").read_text())
        values["notes"] += ["no pair at full size: it takes 700 seconds"] if folder == "audits" else []
        change(values)
        (run / folder).mkdir(exist_ok=True)
        (run / folder / f"{key}.json").write_text(json.dumps(values))
