"""What all records are made of: strict frozen rows, a setting that differs from the paper's, and what may be wrong."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

Scalar = bool | int | float | str | None


class Row(BaseModel):
    """Base of all parts of a record: frozen, and strict about fields that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    def to_json(self) -> str:
        """Return the row as it is written to its file."""
        return self.model_dump_json(indent=1) + "\n"


RowT = TypeVar("RowT", bound=Row)


class Estimated(Row):
    """A number with its confidence interval, from `n` independent units; an end is None where there is no interval."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int
    confidence: float = 0.95


class SchemaError(ValueError):
    """A record is of a schema that this program does not read."""


class Change(Row):
    """One setting that differs from the paper's; what is no scalar stands there as text."""

    field: str
    paper: Scalar
    value: Scalar

    @classmethod
    def of(cls, field: str, paper: Any, value: Any) -> Change:
        """Return the change of `field` from the paper's value to this one."""
        return cls(field=field, paper=_scalar(paper), value=_scalar(value))

    def __str__(self) -> str:
        return f"{self.field}: {self.paper} -> {self.value}"


def _scalar(value: Any) -> Scalar:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`; raises ValueError, in one line, where there is none."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError("no JSON object")
    return data


def validated(kind: type[RowT], data: dict[str, Any]) -> RowT:
    """Return the row of this `kind`; raises ValueError, in one line, naming the first wrong field."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"field {where}: {first['msg']}") from error
