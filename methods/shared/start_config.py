"""Settings of teachers that start from public weights; separate, because plans load neither timm nor weights."""

from __future__ import annotations

from dataclasses import dataclass

from bench.interface import setting

RANDOM = "random"  # teacher_init without public weights
ON_BACKBONE = "frozen_transfer"  # the student that is a linear head on the teachers' public backbone


class NamesNets:
    """The settings that every config with teachers has."""

    teacher: str
    student: str


@dataclass(frozen=True)
class PublicStartConfig(NamesNets):
    """Where teachers start; see :mod:`bench.methods.shared.public_start`."""

    teacher_init: str = setting(
        RANDOM, "ours: random, or the public weights that teachers start from: package, hub or file:PATH", later=True
    )
    teacher_init_sha256: str = setting("", "ours: the expected SHA-256 of these weights; filled in", later=True)
    teacher_frozen: str = setting(
        "all", "ours: last frozen block of teacher_init, by its timm name; all; nothing", later=True
    )
    teacher_pixels: int = setting(0, "ours: pixels per side of teacher_init's input; 0: timm's", later=True, ge=0)
    teacher_bf16: bool = setting(False, "ours: frozen layers of teacher_init run in bfloat16", later=True)
