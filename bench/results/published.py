"""The published records: a folder in a checkout, or an archive in an installed package, unpacked at first use."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from bench.core.errors import BenchError
from bench.storage.archives import extract
from bench.storage.array_store import storage_errors, user_cache

CHECKOUT = Path(__file__).resolve().parents[2] / "leaderboards"
ARCHIVE = Path(__file__).with_name("published.tar.xz")
"""Records, audits, attacks, ablations and the papers' numbers; `setup.py` puts it into wheels."""


def published() -> Path | None:
    """Return the folder of published records, or None: ``leaderboards`` here, in this checkout, or of the package.

    Raise :class:`BenchError` if the package's archive cannot be unpacked into the user's cache folder.
    """
    here = Path("leaderboards")
    return here if (here / "records").is_dir() else shipped()


def shipped() -> Path | None:
    """Return the folder of records that came with this code: its checkout's, or the package's. Raises as above."""
    if (CHECKOUT / "records").is_dir():
        return CHECKOUT
    return _unpacked() if ARCHIVE.is_file() else None


def named(folder: Path) -> Path:
    """Return `folder`; ``leaderboards``, if no such folder exists, is the published records'. Raises as above."""
    return published() or folder if folder == Path("leaderboards") and not folder.exists() else folder


def need_published() -> Path:
    """Return the folder of published records; raise :class:`BenchError` if there is none."""
    found = published()
    if found is None:
        raise BenchError(
            "the published records are missing: this package was built without them. Give a run "
            "directory, or work in a clone of the project."
        )
    return found


def _unpacked() -> Path:
    target = user_cache() / "published" / hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()[:16]
    if target.is_dir():
        return target
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as aside:
            extract(ARCHIVE, Path(aside) / "all", lambda name: name)
            try:
                os.rename(Path(aside) / "all", target)
            except OSError:
                if not target.is_dir():  # otherwise another process was first
                    raise
    return target
