"""Values derived from a record but not stored in it: the key of its row, and figures of its ledger's events.

A board has dozens of different ledgers, each of which may take seconds, so figures are cached in the data root. File
names hash the events, the accountants' source and the versions of their packages. Those of the published records come
with them in ``figures.json``, for this source of the accountants and any versions.
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
from bench.core.margins import covered
from bench.core.plain_files import read_plain
from bench.core.types import Adjacency
from bench.privacy.accounting.accountants import replace_one
from bench.privacy.accounting.risk import NAMES, UNBOUNDED, Risk, risk
from bench.privacy.events.base_event import Event, restored
from bench.results.published import shipped
from bench.results.record import Privacy, Record
from bench.storage.array_store import data_root
from bench.storage.cache import digest_of
from bench.storage.files import write_atomic
from bench.storage.locks import holding

GROUP = 7
"""Number of one person's records, for the bounds beside those for one record."""
COARSENESS = 5.0
"""See :func:`bench.privacy.accounting.risk.risk`."""


def row_key(record: Record) -> str:
    """Return the key that all records of one board row share: what was requested, without the seed."""
    return digest_of(
        [
            record.dataset, record.dataset_revision, record.method, record.method_version, record.preset,
            record.epsilon, record.basis.value, record.delta, record.noise, record.precision, record.config,
            *([] if record.cell.plugin is None else [record.cell.plugin.source_sha256]),
            record.cell.adjacency.value,
            *([] if record.cell.tuning is None else [record.cell.tuning.model_dump(mode="json")]),
        ]
    )  # fmt: skip


def backbone_of(record: Record) -> str:
    """Return the net whose public weights students or teachers use, or ""."""
    config = record.config
    starts = config.get("teacher_init", "random") != "random"
    return str(config.get("backbone") or (config.get("teacher") if starts else "") or "")


def data_dependent(privacy: Privacy) -> float | None:
    """Return the least sound epsilon that depends on the private data of the run, or None without one."""
    return min((one.epsilon for one in privacy.accountants if one.data_dependent and one.sound), default=None)


def claims_of_votes(privacy: Privacy, *, sound: bool = False) -> bool:
    """Return whether the claim is about the votes of the run, so that no audit on other data can refute it.

    With `sound`, whether a sound figure for these votes covers it. There is none for answers that a noisy threshold
    selects: another run on the same votes may answer more queries, and cost more.
    """
    votes = (one for one in privacy.accountants if one.data_dependent and (one.sound or not sound))
    return any(covered(one.epsilon, privacy.claimed.epsilon) for one in votes)


def replaced_epsilon(privacy: Privacy) -> float:
    """Return the proven epsilon for replace neighbours; infinite if the events have none."""
    if privacy.adjacency is Adjacency.REPLACE or math.isinf(privacy.proven.epsilon):
        return privacy.proven.epsilon
    return _figures("replace-one", privacy.events_text, privacy.delta)[0] if privacy.events else math.inf


def risks_of(privacy: Privacy) -> tuple[Risk, Risk]:
    """Return the bounds of the proven curve on attacks on one unit, and on a group of :data:`GROUP`.

    All are 1 if nothing is proven.
    """
    if math.isinf(privacy.proven.epsilon):
        return UNBOUNDED, UNBOUNDED
    found = _figures("risk", privacy.events_text, None)
    return Risk.from_values(found[: len(NAMES)]), Risk.from_values(found[len(NAMES) :])


def _figures(kind: str, events: str, delta: float | None) -> tuple[float, ...]:
    return published_figures().get(_name(kind, events, delta)) or figures_of(kind, events, delta)


@functools.lru_cache(maxsize=4096)
def figures_of(kind: str, events: str, delta: float | None) -> tuple[float, ...]:
    """Return the figures of `kind`, computed here: that of replaced records at `delta`, or without a delta the risk."""
    name = hashlib.sha256(f"{accountants_digest()} {delta!r} {events}".encode()).hexdigest()
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
def accountants_digest() -> str:
    """Return the digest of everything that a figure depends on besides the events."""
    versions = " ".join(version(name) for name in ("dp-accounting", "numpy", "scipy"))
    return hashlib.sha256(f"{_source()} {versions}".encode()).hexdigest()


FIGURES = "figures.json"
"""File of a board with the figures of its records, so that its readers need not compute them."""


@functools.lru_cache(maxsize=4096)
def _name(kind: str, events: str, delta: float | None) -> str:
    return hashlib.sha256(f"{kind} {delta!r} {events}".encode()).hexdigest()[:32]


@functools.cache
def published_figures() -> dict[str, tuple[float, ...]]:
    """Return the figures that came with this code, if they are from this source of the accountants.

    Never those of the working directory's board, because an epsilon must not come from a file of unknown origin.
    """
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError, AttributeError, BenchError):
        board = shipped()
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
        events = privacy.events_text
        wanted: list[tuple[str, float | None]] = [("risk", None)]
        if privacy.adjacency is not Adjacency.REPLACE and privacy.events:
            wanted.append(("replace-one", privacy.delta))
        for kind, delta in wanted:
            name, now = _name(kind, events, delta), figures_of(kind, events, delta)
            kept = published_figures().get(name, now)
            # Processors round differently: keep what agrees, so that a rebuilt board changes only where it must.
            alike = len(kept) == len(now) and all(map(functools.partial(math.isclose, rel_tol=1e-5), kept, now))
            figures[name] = " ".join(map(float.hex, kept if alike else now))
    return json.dumps({"source": _source(), "figures": dict(sorted(figures.items()))}, indent=0) + "\n"
