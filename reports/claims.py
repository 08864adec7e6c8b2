"""Whether the claim of a row holds: one of four marks, with its reason."""

from __future__ import annotations

from enum import StrEnum


class Claim(StrEnum):
    """The mark of a claimed epsilon; NONE where nothing is claimed."""

    NONE = ""
    HOLDS = "holds"
    DATA_DEPENDENT = "data-dependent"
    FAILS = "does not hold"
    REFUTED = "refuted by experiment"
    IMPOSSIBLE = "impossible"

    @property
    def bad(self) -> bool:
        """Whether the claim is wrong."""
        return self in (Claim.FAILS, Claim.REFUTED, Claim.IMPOSSIBLE)
