"""Features of images by a frozen public backbone, computed once for all methods, seeds and epsilons.

Those of private images are private artefacts, in chunks; by digests, a shadow run reuses what the original shares.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from bench.models.frozen_backbone import BackboneSpec, FrozenBackbone, FrozenTransfer
from bench.training.loop import predict
from bench.training.processes import one_thread, worker_pool

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    from numpy.typing import NDArray

    from bench.storage.cache import Arrays, Cache
    from bench.training.context import Context

CHUNK = 1_000  # Images per artefact.
BATCH = 50  # Images per forward pass on a CPU, ten times as many on a GPU.
Part = Literal["private", "public", "test", "source", "counterfactual"]


def features_of(images: Tensor, backbone: FrozenBackbone, context: Context, part: Part) -> Tensor:
    """Return the features (n, num_features), float32 on the CPU, of uint8 `images` (n, channels, height, width).

    `part` and the cache's base name the images, so that private ones never enter a key.
    """
    prints = image_digests(images)
    known = _known(context.cache.parent, backbone.spec, part, context.device.type)
    found: Tensor | None = None
    rows = np.full(len(images), -1, dtype=np.int64)
    if known is not None:
        rows, found = _matched(prints, known["digests"]), torch.from_numpy(known["features"])
    missing = np.flatnonzero(rows < 0)
    result = torch.empty(len(images), backbone.num_features)
    if found is not None and len(missing) < len(images):
        result[torch.from_numpy(rows >= 0)] = found[torch.from_numpy(rows[rows >= 0])]
    if len(missing):
        wanted = torch.from_numpy(missing)
        result[wanted] = _computed(images[wanted], prints[missing], backbone, context, part)
    return result


def student_logits(student: nn.Module, images: Tensor, context: Context, part: Part = "test") -> Tensor:
    """Return the logits (n, classes) of `student` on `images`, on the CPU; a backbone's features are cached."""
    if not isinstance(student, FrozenTransfer):
        return predict(student, images, device=context.device)
    student.to(context.device).eval()
    features = features_of(images, student.backbone, context, part)
    with torch.no_grad():
        return torch.cat([student.forward_head(f.to(context.device)).cpu() for f in torch.split(features, 10_000)])


def trained_part(student: nn.Module, images: Tensor, context: Context, part: Part) -> tuple[nn.Module, Tensor]:
    """Return the trained part of `student` and its inputs: a head and features, or the whole net and `images`."""
    if not isinstance(student, FrozenTransfer):
        return student, images
    return student.head, features_of(images, student.backbone, context, part)


def image_digests(images: Tensor) -> NDArray[np.void]:
    """Return 16 bytes per image of `images` (n, ...), equal for equal images: (n,) of void."""
    flat = images.contiguous().flatten(1).numpy()
    digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in flat)
    return np.frombuffer(digests, dtype="V16")


def _depends(spec: BackboneSpec, part: Part, first: int, device: str) -> dict[str, Any]:
    return {"backbone": spec.identity(), "part": part, "first": first, "chunk": CHUNK, "device": device}


def _known(cache: Cache | None, spec: BackboneSpec, part: Part, device: str) -> Arrays | None:
    """Return the features and digests in the original data set's cache, joined; None if there are none."""
    chunks: list[Arrays] = []
    while cache is not None:
        chunk = cache.find("features", _depends(spec, part, CHUNK * len(chunks), device))
        if chunk is None:
            break
        chunks.append(chunk)
    if not chunks:
        return None
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in ("features", "digests")}


def _matched(prints: NDArray[np.void], known: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the row of `known` (m, 16) that equals each of `prints`, -1 without one."""
    row_of = {row.tobytes(): number for number, row in enumerate(known)}
    return np.array([row_of.get(one.tobytes(), -1) for one in prints], dtype=np.int64)


def _computed(
    images: Tensor, prints: NDArray[np.void], backbone: FrozenBackbone, context: Context, part: Part
) -> Tensor:
    wanted = np.frombuffer(prints.tobytes(), dtype=np.uint8).reshape(-1, 16)
    starts = range(0, len(images), CHUNK)
    depends = {first: _depends(backbone.spec, part, first, context.device.type) for first in starts}
    chunks: dict[int, Arrays] = {}

    def look() -> list[int]:
        for first in starts:
            if first in chunks:
                continue
            chunk = context.cache.find("features", depends[first])
            # Only digests identify images: a shadow run has its own, and another part may have the same name.
            if chunk is not None and np.array_equal(chunk["digests"], wanted[first : first + CHUNK]):
                chunks[first] = chunk
        return [first for first in starts if first not in chunks]

    if look():
        with context.cache.making("all-features", _depends(backbone.spec, part, 0, context.device.type)):
            left = look()  # another process may have made them meanwhile
            if left:
                backbone.to(context.device)
                title = f"features of {part} images"
                with _pool(backbone, context, len(left)) as pool, context.progress.stage(title, len(images)) as stage:
                    stage.advance(min(len(images), CHUNK * len(chunks)))
                    pieces = (images[first : first + CHUNK] for first in left)
                    for first, features in zip(left, _each(pieces, backbone, context, pool), strict=True):
                        chunks[first] = {"features": features.numpy(), "digests": wanted[first : first + CHUNK]}
                        context.cache.put("features", depends[first], chunks[first])
                        stage.advance(len(features))
    return torch.cat([torch.from_numpy(chunks[first]["features"]) for first in starts])


def _pool(backbone: FrozenBackbone, context: Context, chunks: int) -> Any:
    # A process takes seconds to start, and a backbone that is not on disk would be sent with each job.
    workers = min(context.workers, chunks) if chunks > 2 and not backbone.spec.carried else 1
    return worker_pool(workers, context.device.type)


def _each(
    pieces: Iterator[Tensor], backbone: FrozenBackbone, context: Context, pool: ProcessPoolExecutor | None
) -> Iterator[Tensor]:
    if pool is None:
        for piece in pieces:
            yield _features(backbone, piece, context.device)
        return
    # A longer queue would hold the images of a large set in memory twice.
    waiting = []
    for piece in pieces:
        waiting.append(pool.submit(_worker_features, backbone.spec, piece))
        if len(waiting) > 2 * context.workers:
            yield waiting.pop(0).result()
    for job in waiting:
        yield job.result()


@torch.no_grad()
def _features(backbone: FrozenBackbone, images: Tensor, device: torch.device) -> Tensor:
    from bench.training.transforms import as_float

    batches = torch.split(images, BATCH if device.type == "cpu" else 10 * BATCH)
    # One thread sums in a fixed order: any number of workers gives the same features.
    with one_thread():
        return torch.cat([backbone(as_float(batch.to(device))).cpu() for batch in batches])


@functools.lru_cache(maxsize=1)
def _worker_backbone(spec: BackboneSpec) -> FrozenBackbone:
    from bench.models.pretrained import load_backbone, weights_by_digest

    return FrozenBackbone(spec, load_backbone(weights_by_digest(spec.name, spec.sha256), spec.size or None))


def _worker_features(spec: BackboneSpec, images: Tensor) -> Tensor:
    return _features(_worker_backbone(spec), images, torch.device("cpu"))
