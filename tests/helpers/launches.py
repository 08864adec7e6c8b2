"""A launcher in a separate process: start it, wait for it, and inspect it."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from helpers.paths import GRID_METHOD

METHOD = str(GRID_METHOD)


def finish(process: subprocess.Popen[bytes], status: int = 0, seconds: float = 500) -> str:
    output, errors = process.communicate(timeout=seconds)
    assert process.returncode == status, errors.decode()
    return output.decode() + errors.decode()


def outcome(out: Path) -> dict[str, str]:
    found = {}
    for path in sorted((out / "records").glob("*.json")):
        record = json.loads(path.read_text())
        del record["provenance"]
        found[path.name] = json.dumps(record)
    return found


def lines(out: Path) -> Counter[str]:
    """Return how often each thing was done, without the process numbers."""
    return Counter(line.rpartition(" ")[0] for line in (out.parent / "log").read_text().splitlines())


def nothing_is_left_over(out: Path) -> None:
    assert not list(out.glob("claims/*"))
    assert not list(out.glob("**/.*.tmp"))
    assert not list(out.glob("**/*.damaged"))
    assert not list(out.glob("records/damaged/*"))


def until(true: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
