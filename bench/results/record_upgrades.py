"""Records of earlier schemas turned into those of the next, one function for each step.

They work on what JSON gives. What does not fit is left as it is: :func:`bench.results.record.parse_record` says what is
wrong.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable
from typing import Any

Values = dict[str, Any]
_ASKED = (
    "method", "method_version", "dataset", "dataset_revision", "preset", "epsilon", "delta", "basis", "seed", "noise",
    "precision",
)  # fmt: skip

ON_A_BACKBONE = frozenset(
    {"dp-linear", "dp-linear-gd", "nonprivate-transfer", "trpate", "trpate-confident", "trpate-gnmax"}
)
"""Methods that always learn on the features of a frozen backbone, whatever their words say of its weights."""


def from_1(old: Values) -> Values:
    """Schema 2: the cell's specification is one part, with the ``--set`` values instead of the command.

    What differs from the paper is typed; it was the text ``field: paper's value -> this value``. So are the kinds of
    public data, which only prose stated.
    """
    cell = {name: old[name] for name in _ASKED if name in old}
    values = {name: value for name, value in old.items() if name not in _ASKED} | {"schema_version": 2}
    command, provenance = None, values.get("provenance")
    if isinstance(provenance, dict):
        provenance = values["provenance"] = dict(provenance)
        command = provenance.pop("command", None)
        if isinstance(provenance.get("unread"), dict):
            provenance["unread"] = {name: why for name, why in provenance["unread"].items() if name != "command"}
    values["cell"] = {**cell, **_told(command)}
    if isinstance(values.get("public_data"), str) and not values.get("public_kinds"):
        config = values.get("config")
        transferred = isinstance(config, dict) and bool(config.get("backbone"))
        values["public_kinds"] = public_kinds_of_words(
            values["public_data"], str(old.get("method", "")), transferred=transferred
        )
    if "sheet" in values:
        values["image_grid"] = values.pop("sheet")
    reduced = values.get("reduced")
    if isinstance(reduced, list):
        values["reduced"] = [_change(line) for line in reduced]
    return values


def public_kinds_of_words(words: str, method: str = "", *, transferred: bool = False) -> list[str]:
    """Return the kinds of public data that `words`, the ``public_data`` of an old record of `method`, speak of.

    Give `transferred` where the record's config names a backbone. Never empty.
    """
    kinds = []
    lower = words.lower()
    if transferred or method in ON_A_BACKBONE or "imagenet" in lower or " trained on " in f" {lower} ":
        kinds.append("transferred")
    if "prior from" in lower or ("labelled" in lower.replace("unlabelled", "") and not kinds):
        kinds.append("labelled")
    if "unlabelled" in lower:
        kinds.append("unlabelled")
    if "private" in lower:
        kinds.append("private-images")
    if kinds:
        return kinds
    if lower.strip() in ("", "none"):
        return ["none"]
    return ["not-stated" if "not stated" in lower else "other"]


def _told(command: Any) -> Values:
    """Return what a record's command states of its cell besides the record's own fields."""
    try:
        words = shlex.split(command) if isinstance(command, str) else []
    except ValueError:
        words = []
    if words[:4] != ["python", "-m", "bench", "run"]:
        return {"overrides": None}
    overrides: dict[str, str] = {}
    told: Values = {"overrides": overrides}
    for option, value in zip(words[4::2], words[5::2], strict=False):
        if option == "--set":
            name, _, overrides[name] = value.partition("=")
        elif option in ("--teacher", "--student"):
            overrides[option.removeprefix("--")] = value
        elif option == "--methods" and value.startswith("PATH/"):
            told["method_file"] = value.removeprefix("PATH/")
        elif option == "--datasets" and value.startswith("folder:PATH@"):
            told["image_shape"] = value.removeprefix("folder:PATH@")
    return told


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
