"""Several files written as one: all of them, or none where the disk is full."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.store import explain_os_error


def write_together(files: Mapping[Path, bytes], gone: Iterable[Path] = ()) -> None:
    """Write `files` so that none has changed until the data of all of them is on the disk, and delete `gone`.

    Deletions come before the new names: a kill in between leaves too little rather than files that speak of others than
    those that are there.

    Raises :class:`BenchError` on a full disk or a folder that cannot be written; no file has changed then.
    """
    asides: dict[Path, Path] = {}
    path = Path()
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
            asides[path] = aside
            with open(aside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path in gone:
            path.unlink(missing_ok=True)
        for path, aside in asides.items():
            os.replace(aside, path)
    except OSError as error:
        raise explain_os_error(error, path) from error
    finally:
        for aside in asides.values():
            aside.unlink(missing_ok=True)
