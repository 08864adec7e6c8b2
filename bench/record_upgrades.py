"""Records of earlier schemas turned into those of the next, one function for each step.

They work on what JSON gives. What does not fit is left as it is: :func:`bench.record.parse_record` says what is wrong.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

Values = dict[str, Any]


def from_1(old: Values) -> Values:
    """Schema 2: what differs from the paper is typed; it was the text ``field: paper's value -> this value``."""
    values = {**old, "schema_version": 2}
    reduced = values.get("reduced")
    if isinstance(reduced, list):
        values["reduced"] = [_change(line) for line in reduced]
    return values


def _change(line: Any) -> Any:
    if not isinstance(line, str) or ": " not in line or " -> " not in line:
        return line
    field, _, change = line.partition(": ")
    paper, _, value = change.partition(" -> ")
    return {"field": field, "paper": _scalar(paper), "value": _scalar(value)}


def _scalar(text: str) -> Any:
    """Return the number, truth value or None that prints as `text`, or the text itself."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, (bool, int, float, type(None))) and str(value) == text else text


UPGRADES: dict[int, Callable[[Values], Values]] = {1: from_1}
"""Schema version to the function that turns a record of that version into one of the next."""
