"""Where public weights lie: files named by backbone and origin, each with a small manifest beside it.

The manifest of a user's own file tells its digest and its place; nothing of it is copied.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from bench.data.array_store import data_root, storage_errors
from bench.storage.files import write_atomic

FORMAT = 1

_digests: dict[tuple[str, int, int], str] = {}
"""SHA-256 by path, size and time of change: a file is hashed once per process unless it changes."""


@dataclass(frozen=True, slots=True)
class PublicWeights:
    """Weights that are here. `mean` and `std` are of RGB values in [0, 1], `size` is the native input in pixels."""

    backbone: str
    """Name of the timm model they fit."""
    origin: str
    """``package``, ``hub`` or ``file``."""
    sha256: str
    """SHA-256 of the file at `path`, in hex."""
    source: str
    """Where they come from, in words for a record."""
    trained_on: str
    """Public source data set, lower case; empty where it is not known."""
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    path: Path
    """A file with a state dict in timm's names, with or without the classifier."""


def folder() -> Path:
    """Return where weights lie: ``weights`` below the data root."""
    return data_root() / "weights"


def file_sha256(path: Path, *, anew: bool = False) -> str:
    """Return the SHA-256 of a file in hex; it is read once per process unless it changes or `anew` asks."""
    status = path.stat()
    key = (str(path), status.st_size, status.st_mtime_ns)
    if anew or key not in _digests:
        with path.open("rb") as handle:
            _digests[key] = hashlib.file_digest(handle, "sha256").hexdigest()
    return _digests[key]


def stored_path(backbone: str, origin: str) -> Path:
    """Return where fetched weights lie once they are converted."""
    return folder() / f"{backbone}-{origin}.safetensors"


def manifest_path(found: PublicWeights) -> Path:
    """Return where the manifest of `found` lies: a user may have several files for one backbone."""
    if found.origin == "file":
        return folder() / f"{found.backbone}-file-{found.sha256[:16]}.json"
    return stored_path(found.backbone, found.origin).with_suffix(".json")


def is_whole(found: PublicWeights, *, anew: bool = False) -> bool:
    """Return whether the file of `found` is there and has its digest."""
    return found.path.is_file() and file_sha256(found.path, anew=anew) == found.sha256


def known_weights() -> list[PublicWeights]:
    """Return all that a manifest tells of, in the order of their names; the files themselves are not read."""
    found = [read_manifest(path) for path in sorted(folder().glob("*.json"))]
    return [weights for weights in found if weights is not None]


def set_aside(found: PublicWeights) -> Path:
    """Rename a damaged stored file to ``FILE.damaged``, drop its manifest, and return the new path."""
    aside = found.path.with_name(found.path.name + ".damaged")
    with storage_errors(found.path):
        if found.path.exists():
            os.replace(found.path, aside)
        manifest_path(found).unlink(missing_ok=True)
    return aside


def write_manifest(found: PublicWeights) -> None:
    """Write the manifest of `found`, in one piece."""
    entry = {
        "format": FORMAT,
        "backbone": found.backbone,
        "origin": found.origin,
        "sha256": found.sha256,
        "source": found.source,
        "trained_on": found.trained_on,
        "size": found.size,
        "mean": list(found.mean),
        "std": list(found.std),
        "file": str(found.path) if found.origin == "file" else found.path.name,
    }
    write_atomic(manifest_path(found), (json.dumps(entry, indent=1) + "\n").encode())


def read_manifest(path: Path) -> PublicWeights | None:
    """Return what a manifest tells of; None where there is none or it cannot be understood, as after a torn disk."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        if held["format"] != FORMAT:
            return None
        # A stored file lies beside its manifest, whatever the manifest says.
        file = Path(held["file"]) if held["origin"] == "file" else path.parent / Path(held["file"]).name
        return PublicWeights(
            str(held["backbone"]), str(held["origin"]), str(held["sha256"]), str(held["source"]),
            str(held["trained_on"]), int(held["size"]), tuple(held["mean"]), tuple(held["std"]), file,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return None
