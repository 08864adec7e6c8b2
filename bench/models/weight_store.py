"""Stored public weights: state dicts, with a manifest per backbone and origin; a user's file is not copied."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors import torch as tensor_files
from torch import Tensor

from bench.core.errors import BenchError
from bench.core.plain_files import read_plain
from bench.core.rows import json_object
from bench.storage.array_store import data_root, storage_errors
from bench.storage.download import file_digest
from bench.storage.files import write_atomic

State = dict[str, Tensor]
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
FORMAT = 1

_digests: dict[tuple[str, int, int], str] = {}
"""SHA-256 by path, size and modification time, to hash an unchanged file once per process."""


@dataclass(frozen=True, slots=True)
class PublicWeights:
    """Weights on disk. `mean` and `std` refer to RGB values in [0, 1], `size` is the native input in pixels."""

    backbone: str
    origin: str
    """``package``, ``hub`` or ``file``."""
    sha256: str
    source: str
    trained_on: str
    """Public source data set, lower case; empty if unknown."""
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    path: Path
    """File of a state dict in timm's names, with or without the classifier."""


def folder() -> Path:
    """Return ``weights`` below the data root."""
    return data_root() / "weights"


def file_sha256(path: Path, *, anew: bool = False) -> str:
    """Return the hex SHA-256 of a file, cached per process while the file is unchanged, unless `anew` is set."""
    status = path.stat()
    key = (str(path), status.st_size, status.st_mtime_ns)
    if anew or key not in _digests:
        _digests[key] = file_digest(path, "sha256")
    return _digests[key]


def stored_path(backbone: str, origin: str) -> Path:
    """Return the path of converted weights."""
    return folder() / f"{backbone}-{origin}.safetensors"


def manifest_path(found: PublicWeights) -> Path:
    """Return the path of the manifest; a user may have several files for one backbone."""
    if found.origin == "file":
        return folder() / f"{found.backbone}-file-{found.sha256[:16]}.json"
    return stored_path(found.backbone, found.origin).with_suffix(".json")


def is_whole(found: PublicWeights, *, anew: bool = False) -> bool:
    """Return whether the file of `found` exists and has its digest."""
    return found.path.is_file() and file_sha256(found.path, anew=anew) == found.sha256


def known_weights() -> list[PublicWeights]:
    """List the weights of all manifests, sorted by file name, without reading the weights themselves."""
    return [found for path in sorted(folder().glob("*.json")) if (found := read_manifest(path)) is not None]


def set_aside(found: PublicWeights) -> Path:
    """Rename a damaged stored file to ``FILE.damaged``, remove its manifest, and return the new path."""
    aside = found.path.with_name(found.path.name + ".damaged")
    with storage_errors(found.path):
        if found.path.exists():
            os.replace(found.path, aside)
        manifest_path(found).unlink(missing_ok=True)
    return aside


def write_manifest(found: PublicWeights) -> None:
    """Write the manifest of `found` atomically."""
    entry = {"format": FORMAT, **asdict(found)}
    path = entry.pop("path")
    entry["file"] = str(path) if found.origin == "file" else path.name
    write_atomic(manifest_path(found), (json.dumps(entry, indent=1) + "\n").encode())


def read_manifest(path: Path) -> PublicWeights | None:
    """Return the weights of a manifest; None if it is missing or unreadable, for example after a disk failure."""
    try:
        held = json_object(read_plain(path))
        if held.pop("format") != FORMAT:
            return None
        file = Path(held.pop("file"))
        # A stored file lies next to its manifest, whatever the manifest says.
        held["path"] = file if held["origin"] == "file" else path.parent / file.name
        return TypeAdapter(PublicWeights).validate_python(held)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def read_state(path: Path) -> State:
    """Return the state dict in a safetensors or torch.save file, running no code; raise BenchError if unusable."""
    if not path.is_file():
        raise BenchError(f"there is no file {path}. Give file:PATH of one that ends in {', '.join(SUFFIXES)}.")
    if path.suffix not in SUFFIXES:
        raise BenchError(f"{path} is of no known kind: weight files end in {', '.join(SUFFIXES)}.")
    if path.suffix != ".safetensors":
        return read_checkpoint(path)
    try:
        return dict(tensor_files.load_file(path))
    except (SafetensorError, ValueError, OSError) as error:
        raise BenchError(f"{path} is not a safetensors file, or is damaged: {error}.") from error


def read_checkpoint(path: Path) -> State:
    """Return the state dict in a torch.save file, also under ``state_dict`` or ``model``, without running code.

    The prefix ``module.`` of data-parallel training is removed. Raise BenchError for a damaged file or other content.
    """
    try:
        held: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, LookupError, AttributeError,
            ImportError) as error:  # fmt: skip
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise BenchError(
            f"{path} does not hold only tensors: {reason}. Accepted: .safetensors, or a state dict written "
            "by torch.save. Save the state dict, not the model."
        ) from error
    for name in ("state_dict", "model"):
        if isinstance(held, Mapping) and isinstance(held.get(name), Mapping):
            held = held[name]
            break
    if not isinstance(held, Mapping) or not held or not all(isinstance(v, Tensor) for v in held.values()):
        raise BenchError(
            f"{path} holds no state dict (a mapping of names to tensors, at the top level or under 'model')."
        )
    state = {str(name): tensor for name, tensor in held.items()}
    if all(name.startswith("module.") for name in state):
        state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    return state
