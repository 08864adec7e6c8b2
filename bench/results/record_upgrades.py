"""Upgrade older records to the next schema; the parser reports invalid values, which stay unchanged."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable
from itertools import groupby
from typing import Any

Values = dict[str, Any]
_ASKED = (
    "method", "method_version", "dataset", "dataset_revision", "preset", "epsilon", "delta", "basis", "seed", "noise",
    "precision",
)  # fmt: skip

ON_A_BACKBONE = frozenset(
    {"dp-linear", "dp-linear-gd", "nonprivate-transfer", "trpate", "trpate-confident", "trpate-gnmax"}
)
"""Methods that always use a frozen backbone, whatever their public-data text states."""


def from_1(old: Values) -> Values:
    """Upgrade to schema 2, which replaces command, textual changes and public-data prose by typed fields."""
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
    """Return the kinds (never empty) in an old record's ``public_data``; `transferred`: its config has a backbone."""
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
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, (bool, int, float, type(None))) and str(value) == text else text


def from_2(old: Values) -> Values:
    """Upgrade to schema 3, which stores equal successive events once, with their number as ``times``."""
    values = old | {"schema_version": 3}
    for part, name in (("privacy", "events"), ("failure", "spent")):
        found = values.get(part)
        if isinstance(found, dict) and isinstance(found.get(name), list):
            values[part] = found | {name: _once(found[name])}
    return values


def _once(events: list[Any]) -> list[Any]:
    if not all(isinstance(event, dict) and "times" not in event for event in events):
        return events
    runs = ((event, len(list(run))) for event, run in groupby(events))
    return [event | {"times": times} if times > 1 else event for event, times in runs]


UPGRADES: dict[int, Callable[[Values], Values]] = {
    1: from_1,
    2: from_2,
}  # schema version to its upgrade to the next version
