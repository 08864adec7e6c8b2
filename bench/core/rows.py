"""Building blocks of all records: strict frozen rows, setting changes, and parsing errors."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

Scalar = bool | int | float | str | None


class Row(BaseModel):
    """Base of all record parts: frozen, rejects unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    def to_json(self) -> str:
        """Return the row as JSON text, as stored on disk."""
        return self.model_dump_json(indent=1) + "\n"


RowT = TypeVar("RowT", bound=Row)


class Estimated(Row):
    """An estimate over `n` independent units; `low` and `high` are None without a confidence interval."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int
    confidence: float = 0.95


class Plugin(Row):
    """The plug-in that a method comes from; see :func:`bench.interface.plugin_source.plugin_of`."""

    distribution: str  # empty for a single file
    version: str
    source_sha256: str


class SchemaError(ValueError):
    """A record has an unsupported schema version."""


class Change(Row):
    """One difference from the paper's setting; non-scalar values are stored as text."""

    field: str
    paper: Scalar
    value: Scalar

    @classmethod
    def of(cls, field: str, paper: Any, value: Any) -> Change:
        """Return the change of `field` from the `paper` value to `value`."""
        return cls(field=field, paper=_scalar(paper), value=_scalar(value))

    def __str__(self) -> str:
        return f"{self.field}: {self.paper} -> {self.value}"


def _scalar(value: Any) -> Scalar:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`; raise ValueError (one line) if it is not one."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError("no JSON object")
    return data


def validated(kind: type[RowT], data: dict[str, Any]) -> RowT:
    """Return `data` as a row of this `kind`; raise ValueError (one line) with the first invalid field."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"field {where}: {first['msg']}") from error
