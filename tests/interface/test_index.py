"""The index of methods and attacks states what their modules register."""

from __future__ import annotations

import importlib
import json
import re

from bench.core.listed import Listed
from bench.interface.registry import ATTACKS, METHODS, groups_of
from helpers.paths import ROOT


def registered(folder: str, kind: str) -> dict[str, str]:
    found = {}
    for path in (ROOT / folder).rglob("*.py"):
        module = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts)
        found |= dict.fromkeys(re.findall(rf'^@register_{kind}\("(.+)"\)', path.read_text(), re.MULTILINE), module)
    return found


def written(name: str, entry: Listed) -> str:
    """Return the line of `entry`, without fields that have their default."""
    usual = Listed._field_defaults
    texts = [
        f"{k}={json.dumps(v)}" if k in usual else json.dumps(v) for k, v in entry._asdict().items() if usual.get(k) != v
    ]
    return f'"{name}": Listed({", ".join(texts)}),'


def test_methods_are_listed_as_they_are() -> None:
    for name, module in registered("methods", "method").items():
        importlib.import_module(f"bench.methods.{module}")
        method = METHODS.get(name)
        proven = f"infinite: {method.bypass}" if method.bypass else "finite"
        groups, unit = " ".join(sorted(groups_of(method))), method.unit.value
        entry = Listed(module, method.citation, groups, unit, method.adjacency.value, proven, method.public_data)
        assert METHODS.index().get(name) == entry, f"put into INDEX in methods/__init__.py: {written(name, entry)}"
    assert set(METHODS.index()) == set(registered("methods", "method"))


def test_the_index_of_attacks_is_whole() -> None:
    assert dict(ATTACKS.index()) == registered("attacks", "attack")
