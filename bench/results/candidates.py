"""The success of an attacker who knows all records but one, next to the bound by the proven curve."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from pydantic import Field, model_validator

from bench.core.rows import Row
from bench.core.types import Instrument
from bench.privacy.accounting.risk import PRIORS

NAMED = {round(1 / prior): f"named@{prior:g}" for prior in PRIORS}
"""Columns of :func:`named` by number of candidates."""


class CandidatesFound(Row):
    """How often an attacker who knows all records but one names that one out of equally likely candidates."""

    instrument: Instrument
    """What the attacker sees: the ledger's answers or the release."""
    candidates: int = Field(ge=2)
    """Number of candidates."""
    runs: int = Field(ge=1)
    """Number of guesses."""
    right: int = Field(ge=0)
    """Number of right guesses."""
    low: float = Field(ge=0, le=1)
    """Lower end of the two-sided Clopper-Pearson interval of the probability of a right guess."""
    high: float = Field(ge=0, le=1)
    """Upper end."""
    confidence: float = Field(gt=0, lt=1)
    """Confidence of that interval, corrected for all that were computed."""
    bound: float = Field(ge=0, le=1)
    """The largest probability that the proven curve allows; 1 if nothing is proven."""
    silent: tuple[int, int] | None = None
    """Right guesses and all guesses at releases without noise; null if none were made."""

    @model_validator(mode="after")
    def _possible_counts(self) -> Self:
        if self.right > self.runs:
            raise ValueError("more right guesses than guesses")
        return self


def named(found: Iterable[CandidatesFound]) -> dict[str, float | None]:
    """Return the lower limit of the success by column of :data:`NAMED`, for the better of answers and release."""
    limits: dict[str, float | None] = dict.fromkeys(NAMED.values())
    for one in found:
        if (column := NAMED.get(one.candidates)) is not None:
            limits[column] = max(one.low, limits[column] or 0.0)
    return limits
