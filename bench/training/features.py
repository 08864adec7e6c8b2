"""Image features from a public map, such as a frozen backbone, computed once for all methods, seeds and epsilons.

Features of private images are private artefacts, stored in chunks; a shadow run finds those of the original run by
image digest. Mapped images are read batch by batch and large features live in an unnamed mapped file, so memory stays
flat.
"""

from __future__ import annotations

import functools
import hashlib
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.core.errors import BenchError
from bench.core.processes import memory_bytes
from bench.core.transforms import as_float
from bench.data.image_map import mapping_of
from bench.models.feature_net import FixedMap, OnFixedMap
from bench.models.frozen_backbone import BackboneSpec, FrozenBackbone
from bench.models.pretrained import load_backbone, weights_by_digest
from bench.storage.files import writing
from bench.training.by_record import in_equal_batches
from bench.training.context import Context
from bench.training.heap import release_freed
from bench.training.loop import predict
from bench.training.mapped_rows import rows_of
from bench.training.processes import worker_pool

CHUNK = 1_000  # Images per artefact.
SPILL = 2**25  # Features of this many bytes or more go to a file.
BATCH = 50  # Images per forward pass on a CPU, ten times as many on a GPU.
BESIDE = 16  # Images that a student answers again, in smaller batches.
APART = 0.01  # Share of the logits' standard deviation, above rounding by other batch sizes and TF32.
Part = Literal["private", "public", "test", "source", "counterfactual"]


def features_of(images: Tensor, fixed: FixedMap, context: Context, part: Part) -> Tensor:
    """Return the features (n, num_features), of the map's type on the CPU, of uint8 `images` (n, channels, ...).

    `part` and the cache's base name the images, so that private ones never enter a key. Raise :class:`BenchError` if
    the features need more than the memory of this machine.
    """
    needed, memory = len(images) * fixed.num_features * fixed.dtype.itemsize, memory_bytes()
    spilled = needed >= SPILL and context.cache.root is not None
    if needed > memory and not spilled:
        raise BenchError(
            f"the {fixed.num_features} features of {len(images)} {part} images need {needed / 1e9:.1f} GB, and this "
            f"machine has {memory / 1e9:.1f} GB of memory. Use a larger machine, smaller images or fewer records."
        )
    prints = image_digests(images)
    shape = len(images), fixed.num_features
    result = _on_disk(shape, fixed.dtype, context) if spilled else torch.empty(shape, dtype=fixed.dtype)
    missing = _copy_known(result, prints, fixed, context, part)
    if len(missing):
        _compute(result, missing, images, prints, fixed, context, part)
    return result


def _on_disk(shape: tuple[int, int], dtype: torch.dtype, context: Context) -> Tensor:
    """Return an uninitialised tensor on an unnamed file in the private cache, freed together with its mapping."""
    folder = context.cache.root
    assert folder is not None
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # Allocate all of it now: a full disk must be an error here, not a signal at a later write.
            os.posix_fallocate(file.fileno(), 0, math.prod(shape) * dtype.itemsize)
            held = mmap.mmap(file.fileno(), 0)
    return torch.frombuffer(held, dtype=dtype).view(shape)


def uncached_features(fixed: FixedMap, images: Tensor, context: Context, what: str) -> Tensor:
    """Return the features (n, num_features) of uint8 `images` that no other run has, such as generated ones."""
    fixed.to(context.device)
    found = torch.empty(len(images), fixed.num_features, dtype=fixed.dtype)
    with context.progress.stage(f"features of {what}", len(images)) as stage:
        for first in range(0, len(images), CHUNK):
            piece = _features(fixed, images[first : first + CHUNK], context.device)
            found[first : first + CHUNK] = piece
            stage.advance(len(piece))
    return found


def student_logits(
    student: nn.Module, images: Tensor, context: Context, part: Part = "test", *, alone: bool = False
) -> Tensor:
    """Return the logits (n, classes) of `student` on `images`, on the CPU; features of a fixed map are cached.

    Those of private images depend on each image alone, bit for bit. With `alone`, raises :class:`BenchError` if an
    answer depends on the images beside it, other than by rounding.
    """
    private = part == "private"
    if isinstance(student, OnFixedMap):
        student.to(context.device).eval()
        inputs = features_of(images, student.fixed, context, part)

        def head(features: Tensor) -> Tensor:
            return student.forward_head(features.to(context.device).float()).cpu()

        def answers(rows: Tensor) -> Tensor:
            return head(inputs[rows])

        with torch.no_grad():
            pieces = in_equal_batches(head, inputs, 1000) if private else map(head, torch.split(inputs, 10_000))
            logits = torch.cat(list(pieces))
    else:
        logits = predict(student, images, device=context.device, by_record=private)

        def answers(rows: Tensor) -> Tensor:
            return predict(student, rows_of(images, rows), device=context.device)

    if alone and _depends_on_batch(answers, logits):
        raise BenchError(
            "the student's answer to an image depends on the images beside it, as with batch normalisation without "
            "running statistics. Each answer must depend on one image alone."
        )
    return logits


@torch.no_grad()
def _depends_on_batch(answers: Callable[[Tensor], Tensor], logits: Tensor) -> bool:
    """Return whether ``answers(rows)``, a few at a time, differ from the `logits` of all rows by more than rounding."""
    few = torch.linspace(len(logits) - 1, 0, min(BESIDE, len(logits))).long()
    again = torch.cat([answers(rows) for rows in torch.tensor_split(few, 3) if len(rows)])
    apart = (again - logits[few]).abs().nan_to_num().max()
    return bool(apart > APART * max(1.0, float(logits.std().nan_to_num())))


def trained_part(student: nn.Module, images: Tensor, context: Context, part: Part) -> tuple[nn.Module, Tensor]:
    """Return the trained part of `student` and its inputs: a head and features, or the whole net and `images`."""
    if not isinstance(student, OnFixedMap):
        return student, images
    return student.head, features_of(images, student.fixed, context, part)


def image_digests(images: Tensor) -> NDArray[np.void]:
    """Return 16 bytes per image of `images` (n, ...), equal for equal images: (n,) of void."""
    if found := mapping_of(images):  # the digests were computed with the file
        mapping, first = found
        return np.frombuffer(mapping.digests[first : first + len(images)].tobytes(), dtype="V16")
    flat = images.contiguous().flatten(1).numpy()
    digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in flat)
    return np.frombuffer(digests, dtype="V16")


def _depends(fixed: FixedMap, part: Part, first: int, device: str) -> dict[str, Any]:
    return {"backbone": fixed.identity(), "part": part, "first": first, "chunk": CHUNK, "device": device}


def _copy_known(
    result: Tensor, prints: NDArray[np.void], fixed: FixedMap, context: Context, part: Part
) -> NDArray[np.int64]:
    """Copy features in the original data set's cache into `result`; return the positions of all other images."""
    cache, first, missing = context.cache.parent, 0, np.arange(len(prints))
    while cache is not None and len(missing):
        chunk = cache.find("features", _depends(fixed, part, first, context.device.type))
        if chunk is None:
            break
        row_of = {row.tobytes(): number for number, row in enumerate(chunk["digests"])}
        rows = np.array([row_of.get(prints[at].tobytes(), -1) for at in missing])
        result[torch.from_numpy(missing[rows >= 0])] = torch.from_numpy(chunk["features"][rows[rows >= 0]])
        missing, first = missing[rows < 0], first + CHUNK
    return missing


def _compute(
    result: Tensor, missing: NDArray[np.int64], images: Tensor, prints: NDArray[np.void], fixed: FixedMap,
    context: Context, part: Part,
) -> None:  # fmt: skip
    """Fill the rows `missing` of `result` with the features of their images, from the cache or computed."""
    wanted = np.frombuffer(prints[missing].tobytes(), dtype=np.uint8).reshape(-1, 16)
    positions = dict(zip(range(0, len(missing), CHUNK), torch.split(torch.from_numpy(missing), CHUNK), strict=True))
    depends = {first: _depends(fixed, part, first, context.device.type) for first in positions}
    left = list(positions)

    def look() -> list[int]:
        for first in list(left):
            chunk = context.cache.find("features", depends[first])
            # Only digests identify images: a shadow run has others, and another part may have the same name.
            if chunk is not None and np.array_equal(chunk["digests"], wanted[first : first + CHUNK]):
                result[positions[first]] = torch.from_numpy(chunk["features"])
                left.remove(first)
        return left

    if not look():
        return
    # Another process may compute them in the meantime.
    with context.cache.making("all-features", depends[0]):
        if not look():
            return
        fixed.to(context.device)
        title = f"features of {part} images"
        with _pool(fixed, context, len(left)) as pool, context.progress.stage(title, len(missing)) as stage:
            stage.advance(sum(len(positions[first]) for first in positions if first not in left))
            pieces = (rows_of(images, positions[first]) for first in left)
            for first, features in zip(left, _each(pieces, fixed, context, pool), strict=True):
                result[positions[first]] = features
                made = {"features": features.numpy(), "digests": wanted[first : first + CHUNK]}
                context.cache.put("features", depends[first], made)
                release_freed()
                stage.advance(len(features))


def _pool(fixed: FixedMap, context: Context, chunks: int) -> Any:
    # A process takes seconds to start, and a backbone that is not on disk would have to be sent with each job.
    workers = min(context.workers, chunks) if chunks > 2 and not fixed.carried else 1
    return worker_pool(workers, context.device.type)


def _each(
    pieces: Iterator[Tensor], fixed: FixedMap, context: Context, pool: ProcessPoolExecutor | None
) -> Iterator[Tensor]:
    if pool is None:
        for piece in pieces:
            yield _features(fixed, piece, context.device)
        return
    sent = fixed.spec if isinstance(fixed, FrozenBackbone) else fixed
    # A longer queue would hold the images of a large set in memory twice.
    waiting = []
    for piece in pieces:
        waiting.append(pool.submit(_worker_features, sent, piece))
        if len(waiting) > 2 * context.workers:
            yield waiting.pop(0).result()
    for job in waiting:
        yield job.result()


@torch.no_grad()
def _features(fixed: FixedMap, images: Tensor, device: torch.device) -> Tensor:
    size = BATCH if device.type == "cpu" else 10 * BATCH

    def mapped(batch: Tensor) -> Tensor:
        features: Tensor = fixed(as_float(batch.to(device))).to("cpu", fixed.dtype)
        return features

    return torch.cat([*in_equal_batches(mapped, images, size)])


@functools.lru_cache(maxsize=1)
def _worker_backbone(spec: BackboneSpec) -> FrozenBackbone:
    return FrozenBackbone(spec, load_backbone(weights_by_digest(spec.name, spec.sha256), spec.size or None))


def _worker_features(sent: BackboneSpec | FixedMap, images: Tensor) -> Tensor:
    fixed = _worker_backbone(sent) if isinstance(sent, BackboneSpec) else sent
    return _features(fixed, images, torch.device("cpu"))
