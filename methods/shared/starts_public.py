"""A mixin for methods whose teachers may start from public weights, which are public data of the row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.core.lazy import LazyModule
from bench.interface import BenchError, Method, PublicKind
from bench.methods.shared.start_config import ON_BACKBONE, RANDOM, PublicStartConfig

if TYPE_CHECKING:
    from bench.methods.shared import public_start as public_start
else:
    public_start = LazyModule("bench.methods.shared.public_start")  # with timm, which plans do not need


class StartsPublic(Method):
    """A method whose teachers may start from public weights; mixed in before the class that states its public data."""

    def pin_teacher(self) -> Any:
        """Return `config` with the public weights named by digest; see :meth:`bench.interface.Method.pin_teacher`."""
        if not self.starts_public():
            if getattr(self.config, "student", "") == ON_BACKBONE:
                raise BenchError(
                    f"student={ON_BACKBONE} is a head on the teachers' public backbone: set teacher_init too, to "
                    "package, hub or file:PATH."
                )
            return self.config
        return public_start.pinned(self.config, self.facts)

    def starts_public(self) -> bool:
        """Return whether teachers start from public weights."""
        return isinstance(self.config, PublicStartConfig) and self.config.teacher_init != RANDOM

    def public_words(self) -> str:
        stated = super().public_words()
        if not self.starts_public():
            return stated
        words = public_start.words(self.config, self.facts)
        return words if stated == "none" else f"{words}; {stated}"

    def public_kinds(self) -> tuple[PublicKind, ...]:
        stated = super().public_kinds()
        if not self.starts_public():
            return stated
        return (PublicKind.TRANSFERRED, *(kind for kind in stated if kind is not PublicKind.NONE))
