"""Copies of shared files on a disk of this node, in the folder that $BENCH_SCRATCH names.

A copy is made once per node, under a lock, and renamed into place. Scratch only saves time: if it is missing, full
or another user's, files are read in place.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from pathlib import Path

from bench.core.errors import BenchError
from bench.core.progress import echo
from bench.storage.locks import holding

VARIABLE = "BENCH_SCRATCH"


def near(path: Path, version: str) -> Path:
    """Return a copy of the file or folder `path` on this node, or `path` itself without scratch.

    `version` changes with the content. Copies keep the mode of private files: only the owner may enter their folder.
    """
    root = _root(os.environ.get(VARIABLE, ""))
    if root is None:
        return path
    name = hashlib.sha256(f"{path.resolve()}\n{version}".encode()).hexdigest()[:20]
    copy = root / f"{name}{path.suffix}"
    if copy.exists():
        return copy
    part = root / f".{name}.{os.getpid()}"
    try:
        with holding(root / "locks" / name):
            if not copy.exists():
                (shutil.copytree if path.is_dir() else shutil.copyfile)(path, part)
                os.rename(part, copy)
        return copy
    except (OSError, BenchError) as error:
        _say(f"{path.name} is read where it is, and not copied to {root}: {error}")
        return path
    finally:
        if part.exists():
            (shutil.rmtree if part.is_dir() else os.unlink)(part)


@functools.cache
def _root(named: str) -> Path | None:
    if not named:
        return None
    root = Path(named).expanduser() / f"private-student-bench-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        found = root.lstat()
    except OSError as error:
        _say(f"no scratch here: {root} cannot be made ({error.strerror}); files are read where they are")
        return None
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or root.is_symlink():
        _say(f"no scratch here: {root} can be entered by others; files are read where they are")
        return None
    return root


@functools.cache
def _say(text: str) -> None:
    echo(text, err=True)
