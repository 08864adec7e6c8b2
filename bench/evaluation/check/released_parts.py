"""The parts of a release, and digests of tensors."""

from __future__ import annotations

import hashlib
import json

import torch

from bench.core.types import Released


def released_parts(released: Released) -> list[tuple[str, str]]:
    """Return names and digests of all parts of a release, in the method's order."""
    parts = [("student_name", released.student_name), ("student_options", json.dumps(released.student_options))]
    parts += [(f"the student's {name}", digest_of(tensor)) for name, tensor in released.student.state_dict().items()]
    if released.generator is not None:
        states = released.generator.state_dict()
        parts += [(f"the generator's {name}", digest_of(tensor)) for name, tensor in states.items()]
    return parts + [(f"the released {name}", digest_of(tensor)) for name, tensor in released.extras.items()]


def digest_of(tensor: torch.Tensor) -> str:
    """Return the type, the shape and a digest of `tensor`."""
    # Digest bytes, so that NaN equals itself; copy first: single elements count as contiguous with any stride.
    data = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    raw = data.reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{data.dtype} {tuple(data.shape)} {hashlib.sha256(raw).hexdigest()}"
