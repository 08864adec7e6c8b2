"""Save and load a released student as one safetensors file.

Tensor names: ``student/...`` and ``generator/...`` are state dicts, ``extra/...`` is anything else released. Metadata
holds what timm needs to rebuild the student, but no seed, since anyone with the noise seed could subtract the noise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from bench.core.errors import BenchError
from bench.core.lazy import LazyModule
from bench.core.plain_files import open_plain
from bench.core.rows import json_object
from bench.core.types import Facts, Released
from bench.experiments.image_grid import image_grid
from bench.storage.files import write_atomic

if TYPE_CHECKING:
    from bench.models import rebuild as nets
    from bench.results.record import Record
    from bench.results.run_dir import RunDir
else:
    nets = LazyModule("bench.models.rebuild")  # with timm

FORMAT = "private-student-bench/1"


def save_released(released: Released, path: Path) -> str:
    """Write `released` to `path` and return the file's SHA-256; equal releases give equal files.

    Raises :class:`BenchError` if :func:`load_released` would not rebuild the student.
    """
    nets.check_fits(released.student_name, released.student_options, released.student.state_dict())
    generator = {} if released.generator is None else released.generator.state_dict()
    parts = {"student": released.student.state_dict(), "generator": generator, "extra": released.extras}
    # Clone, because safetensors refuses tied weights that share storage.
    tensors = {
        f"{part}/{name}": tensor.detach().cpu().contiguous().clone()
        for part, named in parts.items()
        for name, tensor in named.items()
    }
    about = {"format": FORMAT, "student": released.student_name, "options": released.student_options}
    # Use a single entry, because safetensors writes several in no fixed order.
    data = save(tensors, metadata={"release": json.dumps(about, sort_keys=True)})
    write_atomic(path, data)
    return hashlib.sha256(data).hexdigest()


def save_image_grid(extras: Mapping[str, torch.Tensor], path: Path) -> str | None:
    """Write an image grid of a release's synthetic images to `path` and return its SHA-256; None if not drawable."""
    images, labels = extras.get("synthetic_images"), extras.get("synthetic_labels")
    if images is None or images.ndim != 4 or images.shape[1] not in (1, 3) or images.numel() == 0:
        return None
    if labels is not None and (labels.shape != images.shape[:1] or labels.is_floating_point()):
        labels = None  # soft labels, for example: keep the images' order
    data = image_grid(images, labels)
    write_atomic(path, data)
    return hashlib.sha256(data).hexdigest()


def load_released(path: Path, sha256: str = "") -> Released:
    """Load a release; a generator's tensors are in `extras`.

    Raises :class:`BenchError` for a missing or damaged file, one with another `sha256` (if given), and one whose net
    :func:`bench.models.rebuild.rebuild` does not build.
    """
    try:
        with open_plain(path) as plain:
            other = sha256 and hashlib.file_digest(plain, "sha256").hexdigest() != sha256
        if other:
            raise BenchError(f"{path} is not the file that its record names (SHA-256 differs). Run its cell again.")
        with safe_open(path, framework="pt") as file:
            about = json_object((file.metadata() or {}).get("release", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except FileNotFoundError as error:
        raise BenchError(f"no released student at {path}. Run its cell again, or name its run directory.") from error
    except (SafetensorError, ValueError, OSError) as error:
        raise BenchError(f"{path} is damaged: {error}. Run its cell again with --reuse none.") from error
    if about.get("format") != FORMAT:
        raise BenchError(f"{path} is not a released student of this program (format {about.get('format')!r}).")
    name, options = about.get("student"), about.get("options")
    if not isinstance(name, str) or not isinstance(options, dict):
        raise BenchError(f"{path} names no net and options.")
    student = nets.rebuild(name, options, _below(tensors, "student/"))
    extras = _below(tensors, "extra/")
    extras.update({f"generator/{name}": tensor for name, tensor in _below(tensors, "generator/").items()})
    return Released(student, name, options, extras=extras)


def _below(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def load_student(record: Record, facts: Facts, run_dir: RunDir) -> Released:
    """Return `record`'s student. Raises :class:`BenchError` if its file is absent, altered or does not fit the data."""
    assert record.student is not None
    path = run_dir.path / record.student.file
    released = load_released(path, record.student.sha256)
    try:
        with torch.no_grad():
            outputs = released.student(torch.zeros(1, *facts.shape))
    except RuntimeError as error:
        raise BenchError(
            f"{path} does not take images of shape {facts.shape}: {str(error).splitlines()[0]}. Attack it on the data "
            "set that it was trained on."
        ) from error
    if outputs.shape[-1] != facts.classes:
        raise BenchError(f"{path} has {outputs.shape[-1]} classes, {facts.dataset} has {facts.classes}.")
    return released
