"""Outcomes that a stopped ``bench publish`` keeps on the board, so that the same command does not repeat them.

They are kept on the board because methods under check can write to caches, and authors can write to the submitted
records.
"""

from __future__ import annotations

import hashlib
import inspect
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter

from bench.core.plain_files import read_plain
from bench.experiments.calibration_cache import program_digest
from bench.interface.registry import METHODS
from bench.publishing.publish import MACHINE, Fate, Item
from bench.results.provenance import Clock
from bench.results.record import Record
from bench.storage.files import write_atomic

_ITEM = TypeAdapter(Item)


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
            return _ITEM.validate_json(read_plain(path))
        item = make()
        if item.fate is not Fate.REFUSED:
            self._folder.mkdir(exist_ok=True)
            write_atomic(path, _ITEM.dump_json(item))
        return item

    def forget(self) -> None:
        """Delete all outcomes."""
        shutil.rmtree(self._folder, ignore_errors=True)
