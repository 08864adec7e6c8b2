"""A record's proven epsilon for replace neighbours, computed from its ledger's events: records do not store it.

A board has dozens of different ledgers, and one may take seconds, so figures are cached in the data root. File names
hash the events, the accountants' source and the versions of their packages.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
from importlib.metadata import version
from pathlib import Path

from bench import privacy as accounting
from bench.core.errors import BenchError
from bench.core.plain_files import read_plain
from bench.core.types import Adjacency
from bench.privacy.accounting.accountants import replace_one
from bench.privacy.events.base_event import restored
from bench.results.record import Privacy
from bench.storage.array_store import data_root
from bench.storage.files import write_atomic
from bench.storage.locks import holding


def replaced_epsilon(privacy: Privacy) -> float:
    """Return the proven epsilon for replace neighbours; infinite if the events do not give one."""
    if privacy.adjacency is Adjacency.REPLACE or math.isinf(privacy.proven.epsilon):
        return privacy.proven.epsilon
    return _replaced(json.dumps(privacy.events, sort_keys=True), privacy.delta)


@functools.lru_cache(maxsize=4096)
def _replaced(events: str, delta: float) -> float:
    listed = json.loads(events)
    if not listed:
        return math.inf
    name = hashlib.sha256(f"{_accountants()} {delta!r} {events}".encode()).hexdigest()
    path = data_root() / ".replace-one" / name[:32]
    if (kept := _kept(path)) is not None:
        return kept
    with contextlib.ExitStack() as alone:
        with contextlib.suppress(BenchError):  # without locks, two processes may compute the same figure
            alone.enter_context(holding(path.parent.with_suffix(".lock")))
        if (kept := _kept(path)) is not None:
            return kept
        try:
            found = replace_one(restored(listed), delta).epsilon
        except (BenchError, TypeError, ValueError, OverflowError):
            return math.inf
        with contextlib.suppress(BenchError):  # go on without a cache if it is not writable
            write_atomic(path, found.hex().encode())
    return found


def _kept(path: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError, BenchError):  # absent or damaged
        return float.fromhex(read_plain(path).decode())
    return None


@functools.cache
def _accountants() -> str:
    """Return the digest of everything that a figure depends on besides the events."""
    digest = hashlib.sha256(" ".join(version(name) for name in ("dp-accounting", "numpy", "scipy")).encode())
    for path in sorted(Path(next(iter(accounting.__path__))).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
