"""docs/mechanisms.md: every example runs and charges its event, and no mechanism is missing."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.accounting import accountants
from bench.privacy.accounting.accountants import account
from bench.privacy.events import events
from bench.privacy.events.base_event import EVENTS
from bench.privacy.mechanisms.charging import PRIVATE
from bench.privacy.mechanisms.ledger import Ledger
from helpers.ledgers import seeded_ledger
from helpers.paths import ROOT

PAGE = (ROOT / "docs" / "mechanisms.md").read_text()
TABLE = re.findall(r"^\| (.+?)(?::.*?)? \| `(\w+)` \| .+? \| (.+?) \| `(\w+)` \| (.+?) \|$", PAGE, flags=re.MULTILINE)
EXAMPLES = re.findall(r"^### (.+?)\n.*?```python\n(.*?)```", PAGE, flags=re.MULTILINE | re.DOTALL)
OF = {
    "exact Gaussian": "exact-gaussian", "Renyi": "rdp", "PLD": "pld", "optimal composition": "optimal-composition",
    "PATE 2017's": "pate-2017-closed-form", "PATE 2018's": "pate-2018-rdp-data-independent",
}  # fmt: skip


def ledger(stated: str) -> Ledger:
    adjacency = Adjacency.ADD_REMOVE if stated.endswith(("add-remove", "either")) else Adjacency.REPLACE
    unit = stated.partition(",")[0].replace("the method's", "record")
    return seeded_ledger(PrivacyUnit(unit), adjacency, np.random.default_rng(0))


def test_the_table_has_every_mechanism() -> None:
    assert {call for _, call, *_ in TABLE} == set(PRIVATE)
    kinds = {kind.__name__ for name, kind in EVENTS.items() if kind.__module__.startswith("bench.")}
    assert {event for *_, event, _ in TABLE} == kinds - {"Bypass", "PrintedTopK", "RepeatAndSelect"}
    assert set(OF.values()) <= set(accountants.ACCOUNTANTS)


@pytest.mark.parametrize(("name", "code"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_charges_its_event(name: str, code: str) -> None:
    (row,) = [row for row in TABLE if row[0] == name]
    _, call, stated, kind, listed = row
    book = ledger(stated)
    assert f"ledger.{call}(" in code
    exec(code, {"ledger": book, "rng": np.random.default_rng(1)})
    (event,) = book.events
    assert type(event) is getattr(events, kind)
    assert event.unit.value == stated.partition(",")[0].replace("the method's", "record")
    assert {OF[words] for words in listed.split(", ")} <= {row.name for row in account([event], 1e-5)}
    if stated.endswith("either"):
        again = ledger(stated.replace("either", "replace"))
        exec(code, {"ledger": again, "rng": np.random.default_rng(1)})
        assert again.events == (event.replaced(),)


def test_one_example_each() -> None:
    assert [name for name, _ in EXAMPLES] == [name for name, *_ in TABLE]


def test_the_example_of_a_maximum() -> None:
    (code,) = re.findall(r"## A maximum.*?\n.*?```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(code, {"ledger": ledger("record, replace"), "rng": np.random.default_rng(1)})


def test_the_example_of_adjacency() -> None:
    (code,) = re.findall(r"## Adjacency\n.*?```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(code, {})
