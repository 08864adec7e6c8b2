"""Building blocks of all records: strict frozen rows, setting changes, and parsing errors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import from_json

from bench.core.errors import first_problem

_NOT_FINITE = {"enum": ["Infinity", "-Infinity", "NaN"]}  # JSON numbers cannot express these
Unbounded = Annotated[float, Field(allow_inf_nan=True), WithJsonSchema({"anyOf": [{"type": "number"}, _NOT_FINITE]})]
Epsilon = Annotated[
    float,
    Field(ge=0, allow_inf_nan=True),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"const": "Infinity"}]}),
]
"""Zero or more, infinite if nothing finite is known, never NaN."""
Share = Annotated[float, Field(ge=0, le=1)]
_INFINITE = (math.inf, -math.inf)
Scalar = bool | int | Unbounded | str | None
RunFile = Annotated[str, Field(max_length=1000, pattern="^[ -.0-~]{0,255}(/[ -.0-~]{0,255})*$")]
"""A path below a run directory that every system can look up: ASCII without control characters, no name too long."""


class Row(BaseModel):
    """Base of all record parts: frozen, rejects unknown fields and, unless a field says otherwise, NaN and infinity."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="strings", use_attribute_docstrings=True
    )

    def to_json(self) -> str:
        """Return the row as JSON text, as stored on disk."""
        return self.model_dump_json(indent=1) + "\n"


RowT = TypeVar("RowT", bound=Row)


class Estimated(Row):
    """An estimate over `n` independent units; `low` and `high` are None without a confidence interval."""

    value: float
    """The estimate."""
    low: Unbounded | None = None
    """Lower end of the confidence interval; null without one."""
    high: Unbounded | None = None
    """Upper end of the confidence interval; null without one."""
    n: int
    """Number of independent units."""
    confidence: float = 0.95
    """Confidence of the interval."""


class Plugin(Row):
    """The plug-in that a method comes from; see :func:`bench.interface.plugin_source.plugin_of`."""

    distribution: str
    """Python distribution; empty for a single file."""
    version: str
    """Version of the distribution."""
    source_sha256: str
    """Hash of the source that the method imports from the plug-in; part of the key."""


class SchemaError(ValueError):
    """A record has an unsupported schema version."""


class Change(Row):
    """One difference from the paper's setting; non-scalar values are stored as text."""

    field: str
    """Name of the setting."""
    paper: Scalar
    """The paper's value."""
    value: Scalar
    """The value used."""

    @classmethod
    def of(cls, field: str, paper: Any, value: Any) -> Change:
        """Return the change of `field` from the `paper` value to `value`."""
        return cls(field=field, paper=_scalar(paper), value=_scalar(value))

    def __str__(self) -> str:
        return f"{self.field}: {self.paper} -> {self.value}"


def _scalar(value: Any) -> Scalar:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def json_object(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object in `text`, UTF-8 and at most 200 levels deep.

    Raise ValueError (one line) if it is not one, or holds NaN or a number beyond floats; rows write infinity as a text.
    """
    try:
        data = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError("no JSON object")
    if _overflows(data):
        raise ValueError("no JSON: a number is too large")
    return data


def _overflows(data: dict[str, Any]) -> bool:
    parts: list[Iterable[object]] = [data.values()]
    while parts:
        for value in parts.pop():
            if type(value) is dict:  # the parser makes no subclasses; isinstance would take twice as long
                parts.append(value.values())
            elif type(value) is list:
                parts.append(value)
            elif type(value) is float and value in _INFINITE:
                return True
    return False


def validated(kind: type[RowT], data: dict[str, Any]) -> RowT:
    """Return `data` as a row of this `kind`; raise ValueError (one line) with the first invalid field."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        where, said = first_problem(error)
        raise ValueError(f"field {where}: {said}") from error
