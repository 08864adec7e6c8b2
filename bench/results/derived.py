"""Figures computed from the events of a record's ledger: the proven epsilon for replace neighbours, and the risk.

Records do not store them. A board has dozens of different ledgers, and one may take seconds, so figures are cached in
the data root. File names hash the events, the accountants' source and the versions of their packages. Those of the
published records come with them in ``figures.json``, for this source of the accountants and any versions.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from bench import privacy as accounting
from bench.core.errors import BenchError
from bench.core.plain_files import read_plain
from bench.core.types import Adjacency
from bench.privacy.accounting.accountants import replace_one
from bench.privacy.accounting.risk import NAMES, UNBOUNDED, Risk, risk
from bench.privacy.events.base_event import Event, restored
from bench.results.published import published
from bench.results.record import Privacy, Record
from bench.storage.array_store import data_root
from bench.storage.files import write_atomic
from bench.storage.locks import holding

GROUP = 7
"""Number of one person's records, for the bounds beside those for one record."""
COARSENESS = 5.0
"""See :func:`bench.privacy.accounting.risk.risk`."""


def replaced_epsilon(privacy: Privacy) -> float:
    """Return the proven epsilon for replace neighbours; infinite if the events do not give one."""
    if privacy.adjacency is Adjacency.REPLACE or math.isinf(privacy.proven.epsilon):
        return privacy.proven.epsilon
    events, delta = json.dumps(privacy.events, sort_keys=True), privacy.delta
    return _figures("replace-one", events, delta)[0] if privacy.events else math.inf


def risk_of(privacy: Privacy, *, group: bool = False) -> Risk:
    """Return what the proven curve allows an attacker on one unit, or on a group of :data:`GROUP`.

    All 1 where nothing is proven.
    """
    if math.isinf(privacy.proven.epsilon):
        return UNBOUNDED
    found = _figures("risk", json.dumps(privacy.events, sort_keys=True), None)
    return Risk.from_values(found[len(NAMES) :] if group else found[: len(NAMES)])


def _figures(kind: str, events: str, delta: float | None) -> tuple[float, ...]:
    """Return the figures of `kind`: that of replaced records at `delta`, or without a delta the risk."""
    return _published().get(_name(kind, events, delta)) or _own_figures(kind, events, delta)


@functools.lru_cache(maxsize=4096)
def _own_figures(kind: str, events: str, delta: float | None) -> tuple[float, ...]:
    name = hashlib.sha256(f"{_accountants()} {delta!r} {events}".encode()).hexdigest()
    path = data_root() / f".{kind}" / name[:32]
    if (kept := _kept(path)) is not None:
        return kept
    with contextlib.ExitStack() as alone:
        with contextlib.suppress(BenchError):  # without locks, two processes may compute the same figure
            alone.enter_context(holding(path.parent.with_suffix(".lock")))
        if (kept := _kept(path)) is not None:
            return kept
        try:
            found = _computed(restored(json.loads(events)), delta)
        except (BenchError, TypeError, ValueError, OverflowError):
            return (math.inf,) if delta is not None else (1.0,) * 2 * len(NAMES)
        with contextlib.suppress(BenchError):  # go on without a cache if it is not writable
            write_atomic(path, " ".join(map(float.hex, found)).encode())
    return found


def _computed(events: list[Event], delta: float | None) -> tuple[float, ...]:
    if delta is not None:
        return (replace_one(events, delta).epsilon,)
    found = [risk(events, group, COARSENESS).as_dict() for group in (1, GROUP)]
    return tuple(bound for one in found for bound in one.values())


def _kept(path: Path) -> tuple[float, ...] | None:
    with contextlib.suppress(OSError, ValueError, BenchError):  # absent or damaged
        return tuple(map(float.fromhex, read_plain(path).decode().split())) or None
    return None


@functools.cache
def _source() -> str:
    """Return the digest of the accountants' source."""
    digest = hashlib.sha256()
    for path in sorted(Path(next(iter(accounting.__path__))).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _accountants() -> str:
    """Return the digest of everything that a figure depends on besides the events."""
    return f"{_source()} {' '.join(version(name) for name in ('dp-accounting', 'numpy', 'scipy'))}"


FIGURES = "figures.json"
"""File of a board with the figures of its records, so that its readers need not compute them."""


def _name(kind: str, events: str, delta: float | None) -> str:
    return hashlib.sha256(f"{kind} {delta!r} {events}".encode()).hexdigest()[:32]


@functools.cache
def _published() -> dict[str, tuple[float, ...]]:
    """Return the figures that came with the published records, if this source of the accountants gave them."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, BenchError):
        board = published()
        found = {} if board is None else json.loads(read_plain(board / FIGURES))
        if found.get("source") == _source():
            return {name: tuple(map(float.fromhex, text.split())) for name, text in found["figures"].items()}
    return {}


def figures_text(records: Iterable[Record]) -> str:
    """Return :data:`FIGURES` for `records`: each figure's hexadecimal numbers by the hash of its ledger."""
    figures: dict[str, str] = {}
    for privacy in (record.privacy for record in records if record.privacy is not None):
        if math.isinf(privacy.proven.epsilon):
            continue
        events = json.dumps(privacy.events, sort_keys=True)
        wanted: list[tuple[str, float | None]] = [("risk", None)]
        if privacy.adjacency is not Adjacency.REPLACE and privacy.events:
            wanted.append(("replace-one", privacy.delta))
        for kind, delta in wanted:
            figures[_name(kind, events, delta)] = " ".join(map(float.hex, _own_figures(kind, events, delta)))
    return json.dumps({"source": _source(), "figures": dict(sorted(figures.items()))}, indent=0) + "\n"
