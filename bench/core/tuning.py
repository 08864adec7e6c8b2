"""Tuning, as stated in a cell's specification."""

from __future__ import annotations

from bench.core.rows import Row
from bench.core.types import Law, Score


class Tuning(Row):
    """How a cell's settings were chosen: the best of a secret random number of trials of random candidates."""

    candidates: list[dict[str, str]]
    """The ``--set`` values of each candidate, all of the same settings; a trial draws one, each as likely."""
    law: Law
    """Law of the number of trials, which is told nowhere."""
    trials_mean: float
    """Mean of the number of trials."""
    score: Score
    """What the best trial is chosen by."""
    score_noise: float | None = None
    """Standard deviation of a noisy score, in records; null for a public one."""
    epsilon: float
    """Proven epsilon of one trial, for which candidates are calibrated; the epsilon of the cell includes tuning."""

    @property
    def words(self) -> str:
        """The remark on a tuned row."""
        by = "public labels" if self.score is Score.PUBLIC else "a noisy score"
        return (
            f"tuned, which epsilon includes: {len(self.candidates)} candidates, {self.trials_mean:g} trials in the "
            f"mean ({self.law}), chosen by {by}"
        )
