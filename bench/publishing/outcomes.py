"""Outcomes that a stopped ``bench publish`` keeps on the board, so that the same command does not repeat them.

They are kept on the board because methods under check can write to caches, and authors to the submitted records.
"""

from __future__ import annotations

import hashlib
import inspect
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from bench.core.plain_files import read_plain
from bench.core.rows import Row, json_object
from bench.experiments.calibration_cache import program_digest
from bench.interface.registry import METHODS
from bench.publishing.publish import MACHINE, Fate, Item
from bench.results.provenance import Clock
from bench.results.record import Record
from bench.storage.files import write_atomic


class _Kept(Row):
    kind: str
    name: str
    fate: Fate
    why: str


class Outcomes:
    """The kept outcomes of the board in `into`; :meth:`forget` them once the records are written."""

    def __init__(self, into: Path) -> None:
        self._folder = into / "publishing"
        here = Clock().stop()
        self._machine = [str(getattr(here, name)) for name in MACHINE]

    def once(self, kind: str, method: str, records: Iterable[Record], make: Callable[[], Item]) -> Item:
        """Return the kept outcome of `kind` for these records of `method`, or that of `make`.

        An outcome holds for the program, the method's code, the machine and the content of all `records`: if one of
        them changes, so may the random choice among them. Refusals are not kept.
        """
        program = program_digest(inspect.getsourcefile(METHODS.get(method)) or "")
        parts = [kind, method, program, *self._machine, *sorted(record.to_json() for record in records)]
        path = self._folder / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.json"
        with suppress(OSError, ValueError):
            kept = _Kept.model_validate(json_object(read_plain(path)))
            return Item(kept.kind, kept.name, kept.fate, kept.why)
        item = make()
        if item.fate is not Fate.REFUSED:
            self._folder.mkdir(exist_ok=True)
            write_atomic(path, _Kept(kind=item.kind, name=item.name, fate=item.fate, why=item.why).to_json().encode())
        return item

    def forget(self) -> None:
        """Delete all outcomes."""
        shutil.rmtree(self._folder, ignore_errors=True)
