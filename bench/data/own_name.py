"""Names of a user's data, ``folder:PATH``, ``folder:PATH@CxHxW`` or ``folder:PATH@LOW..HIGH``, and its secret salt.

A revision must not reveal the content, so it is an HMAC-SHA256 with a random salt in the data root (``folder-salt``,
readable only by its owner): nobody can test a guess of the content without the salt.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from bench.core.errors import BenchError
from bench.core.plain_files import user_path
from bench.core.types import OWN_DATA
from bench.storage.array_store import storage_errors

PREFIX = OWN_DATA
TEST_NAMES = ("test", "val", "valid", "validation")
"""Names of the half that is for testing."""
HALVES = {"train", "training", "testing", *TEST_NAMES}
TEST_SHARE = 0.2
"""Share of the records that a hash selects for testing if the data does not state which are."""
SALT = "folder-salt"
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
SUFFIX = re.compile(
    rf"@(?:(?P<c>[13])x(?P<h>[1-9]\d{{0,4}})x(?P<w>[1-9]\d{{0,4}})|(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER}))$"
)
"""What may follow the path: the shape of images, or the public range of an array's values."""


@dataclass(frozen=True, slots=True)
class OwnName:
    """A parsed name: the path and, if stated, the shape of images or the range of values."""

    path: Path
    shape: tuple[int, int, int] | None = None
    values: tuple[float, float] | None = None


def parse(name: str) -> OwnName:
    """Return the parts of ``folder:PATH@...``; raise BenchError for an empty range, or another text after @."""
    text = name.removeprefix(PREFIX)
    match = SUFFIX.search(text)
    before = text.rpartition("@")[0]
    if match is None and before and not user_path(text).exists() and user_path(before).exists():
        raise BenchError(
            f"{text}: a table or an array of numbers takes the range LOW..HIGH of its values after @, such as @0..16, "
            "and images take their shape, such as @1x28x28 or @3x32x32."
        )
    if match is None or match.start() == 0 or user_path(text).exists():
        return OwnName(user_path(text))
    path = user_path(text[: match.start()])
    if match["c"]:
        return OwnName(path, (int(match["c"]), int(match["h"]), int(match["w"])))
    values = float(match["low"]), float(match["high"])
    if not values[0] < values[1] < float("inf"):
        raise BenchError(f"{text}: the range after @ is LOW..HIGH with LOW below HIGH, for instance @-3..3.")
    return OwnName(path, values=values)


def stated_after(name: str) -> str:
    """Return what follows the path in ``folder:PATH@...``, or ""."""
    own = parse(name)
    return name.rpartition("@")[2] if own.shape or own.values else ""


def salt_of(root: Path) -> bytes:
    """Return the salt of this data root, created atomically the first time."""
    target = root / SALT
    with storage_errors(target):
        root.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            aside = root / f".{SALT}.{os.getpid()}"
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as handle:
                    handle.write(os.urandom(32))
                    handle.flush()
                    os.fsync(handle.fileno())
                # The link fails if another process was first; use its salt then.
                os.link(aside, target)
            except FileExistsError:
                pass
            finally:
                aside.unlink(missing_ok=True)
        salt = target.read_bytes()
    if len(salt) != 32:
        raise BenchError(
            f"{target} is damaged: 32 bytes are expected. Remove it; the revisions of folders then change."
        )
    return salt
