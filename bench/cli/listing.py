"""Tables for ``bench ls`` and ``bench show``."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Sequence

from bench.core.config import field_table
from bench.core.errors import UnknownNameError
from bench.core.progress import echo, make_console, print_fields, print_json, print_table
from bench.core.types import NO_PRIVACY, ROBUSTNESS, Facts
from bench.interface.registry import ALL, ATTACKS, METHODS, listed, method_groups

Rows = list[tuple[str, ...]]
Listing = tuple[str, tuple[str, ...], Rows, list[str]]
"""Title, columns, rows and notes."""
Page = tuple[str, str, tuple[str, ...], Rows]
"""Title, text, columns and rows."""
LISTINGS = ("methods", "datasets", "attacks", "models")

MNIST_FACTS = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28))


def print_listing(what: str, *, json: bool) -> None:
    """Print the listing `what`: methods by family, others as tables; raise UnknownNameError on an unknown one."""
    found = listings(what)
    if what == "methods" and not json:
        print_fields(*methods_by_family())
        found = [("", (), [], [note for note in found[0][3] if not note.startswith("--methods")])]
    print_listed(found, json=json)


def print_listed(found: Sequence[Listing], *, json: bool) -> None:
    """Print listings as tables with notes, or as JSON."""
    if json:
        said = [dict(zip(columns, row, strict=True)) for _, columns, rows, _ in found for row in rows]
        print_json({"title": found[0][0], "rows": said, "notes": [note for *_, notes in found for note in notes]})
        return
    for title, columns, rows, notes in found:
        if title and (rows or not notes):  # "none" would be wrong if there are records that cannot be read
            print_table(title, columns, rows)
        for note in notes:
            print_fields(note)


def listings(what: str) -> list[Listing]:
    """Return the listing `what`, attacks on privacy apart from others; raise UnknownNameError on an unknown one."""
    if what == "methods":
        rows: Rows = [(name, *listed(name)[2:]) for name in METHODS.names()]
        columns: tuple[str, ...] = ("method", "groups", "unit", "adjacency", "proven", "public data")
        groups = method_groups().items()
        notes = [f"--methods {group}: {', '.join(names)}" for group, names in groups if group != ALL]
        notes += [f"--methods {ALL}: all of them", *_broken(METHODS.broken)]
        return [("methods", columns, rows, notes)]
    if what == "attacks":
        kinds = (ATTACKS.get(name) for name in ATTACKS.names())
        rows = [(kind.name, kind.goal, kind.access or "", kind.knowledge or "", kind.citation) for kind in kinds]
        columns = ("attack", "goal", "access", "knowledge", "citation")
        return [
            ("attacks on privacy", columns, [row for row in rows if row[1] != ROBUSTNESS], _broken(ATTACKS.broken)),
            ("robustness (not a privacy attack)", columns, [row for row in rows if row[1] == ROBUSTNESS], [NO_PRIVACY]),
        ]
    if what == "datasets":
        from bench.data.datasets import DATASETS

        sets = (DATASETS[name] for name in sorted(DATASETS))
        rows = [
            (s.name, str(s.classes), "x".join(map(str, s.shape)), str(s.train_records or "?"),
             s.revision or "not pinned")
            for s in sets
        ]  # fmt: skip
        columns = ("name", "classes", "shape", "records", "revision")
        return [("data sets", columns, rows, ["`bench data list` shows more."])]
    if what == "models":
        from timm.models import list_models, model_entrypoint

        from bench.models.registration import OWN_MODULES, register_all

        register_all()
        made = {name: model_entrypoint(name) for name in sorted(list_models())}
        own = {name: make for name, make in made.items() if make.__module__.startswith(OWN_MODULES)}
        rows = [(name, (inspect.getdoc(make) or "").splitlines()[0]) for name, make in own.items()]
        return [("models of this project", ("name", "about"), rows, ["Any other timm model also works by name."])]
    raise UnknownNameError("listing", what, LISTINGS, "Or give a run directory.")


def methods_by_family() -> tuple[str, list[tuple[str, str]]]:
    """Return the legend of the marks, and the marked method names of each family."""
    families: dict[str, list[str]] = {}
    for name in METHODS.names():
        package, dot, _ = listed(name).module.rpartition(".")
        families.setdefault(package if dot and name in METHODS.index() else "others", []).append(name)

    def marked(name: str, unit: str) -> str:
        entry = listed(name)
        marks = ("" if entry.proven == "finite" else "∞") + ("" if entry.public_data == "none" else "+")
        return name + marks + ("" if entry.unit == unit else f" ({entry.unit})")

    fields = []
    for family, names in sorted(families.items()):
        units = {listed(name).unit for name in names}
        unit = units.pop() if len(units) == 1 else "record"
        title = family if unit == "record" else f"{family}, unit {unit}"
        fields.append((title, ", ".join(marked(name, unit) for name in names)))
    fields.append(("groups for --methods", ", ".join(method_groups())))
    told = (
        "∞: the proven epsilon is infinite; +: uses public data. `bench show NAME` gives the reason and the settings."
    )
    return f"{len(METHODS.names())} methods by family. {told}", fields


def _broken(broken: dict[str, str]) -> list[str]:
    return [f"plug-in failed to import: {where}: {why}" for where, why in broken.items()]


def print_method(what: str, *, json: bool) -> bool:
    """Print the page of a method, a name or a file; return whether `what` is one."""
    if what not in METHODS and not what.endswith(".py"):
        return False
    method = METHODS.get(what)
    module = sys.modules[method.__module__]
    text = inspect.getdoc(module) or inspect.getdoc(method) or ""
    rows: Rows = list(field_table(method, method.presets(MNIST_FACTS)))
    page = (method.name, text, ("setting", "paper", "quick (MNIST)", "stated by"), rows)
    print_settings(method.name, page, json=json)
    return True


def print_settings(method: str, page: Page, *, json: bool) -> None:
    """Print the `page` of a method."""
    title, text, columns, rows = page
    if json:
        print_json({"method": method, "text": text, "settings": [dict(zip(columns, row, strict=True)) for row in rows]})
        return
    for part in re.split(r"(?<=\n)\n|\n(?=- )", text):
        indent = "  " if part.startswith("- ") else ""
        fold = textwrap.TextWrapper(min(120, make_console().width), subsequent_indent=indent, break_on_hyphens=False)
        echo(fold.fill(" ".join(part.split())) + "\n" * part.endswith("\n"))
    print_table(title, columns, rows)
