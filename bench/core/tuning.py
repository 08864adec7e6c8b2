"""Tuning, as stated in a cell's specification."""

from __future__ import annotations

from bench.core.rows import Row
from bench.core.types import Law, Score


class Tuning(Row):
    """How a cell's settings were chosen: the best of a secret random number of trials of random candidates."""

    candidates: list[dict[str, str]]
    """The ``--set`` values of each candidate, all for the same settings; a trial draws one uniformly at random."""
    law: Law
    """Distribution of the number of trials; the number itself is disclosed nowhere."""
    trials_mean: float
    """Mean of the number of trials."""
    score: Score
    """Score by which the best trial is chosen."""
    score_noise: float | None = None
    """Standard deviation of a noisy score, in records; null for a public one."""
    epsilon: float
    """Proven epsilon of one trial, to which candidates are calibrated; the cell's epsilon includes tuning."""

    @property
    def words(self) -> str:
        """The remark on a tuned row."""
        by = "public labels" if self.score is Score.PUBLIC else "a noisy score"
        return (
            f"tuned, which epsilon includes: {len(self.candidates)} candidates, {self.trials_mean:g} trials in the "
            f"mean ({self.law}), chosen by {by}"
        )
