"""The target of ``bench run --risk``: the largest success that an attacker may have by the proven curve."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.core.errors import BenchError, UnknownNameError

ACCEPTED = ("advantage", "tpr@RATE", "reconstruction@PRIOR")
_EXAMPLE = "For instance --risk reconstruction@0.01=0.05."


@dataclass(frozen=True, slots=True)
class RiskTarget:
    """The measure `name`, its rate or prior `at` if it needs one, and its largest value; both numbers in (0, 1)."""

    name: str
    at: float | None
    largest: float

    @classmethod
    def parse(cls, text: str) -> RiskTarget:
        """Parse a target such as ``reconstruction@0.01=0.05``; raise :class:`BenchError` on anything else."""
        measure, equals, value = text.partition("=")
        name, at, where = measure.partition("@")
        known = {one.partition("@")[0]: one for one in ACCEPTED}
        if name not in known:
            raise UnknownNameError("measure in --risk", name, ACCEPTED)
        if not equals or bool(at) is ("@" not in known[name]):
            raise BenchError(f"cannot read --risk {text!r}. Write {known[name]}=VALUE. {_EXAMPLE}")
        target = cls(name, _share(text, where) if at else None, _share(text, value))
        if target.at is not None and target.largest <= target.at:
            raise BenchError(
                f"--risk {text}: no setting reaches it, because mere guessing already gives {name} {target.at:g}. Ask "
                f"for a value above {target.at:g}."
            )
        return target

    @property
    def measure(self) -> str:
        """The measure as in :data:`bench.privacy.accounting.risk.NAMES`."""
        return self.name if self.at is None else f"{self.name}@{self.at:g}"

    def __str__(self) -> str:
        return f"{self.measure}={self.largest:g}"


def _share(text: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise BenchError(f"--risk {text}: {word!r} is not a number between 0 and 1. {_EXAMPLE}")
    return value
