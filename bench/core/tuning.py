"""Tuning as a cell's specification states it: candidates, score, and the law of the secret number of trials."""

from __future__ import annotations

from enum import StrEnum

from bench.core.rows import Row


class Law(StrEnum):
    """The law of the number of trials."""

    LOGARITHMIC = "logarithmic"
    GEOMETRIC = "geometric"

    @property
    def shape(self) -> float:
        """The shape of the truncated negative binomial; see :mod:`bench.privacy.tuning`."""
        return 0.0 if self is Law.LOGARITHMIC else 1.0


class Score(StrEnum):
    """What the best trial is chosen by."""

    PUBLIC = "public"  # accuracy on the public records, whose labels only tuning reads
    NOISY = "noisy"  # right answers on the private records, with Gaussian noise that every trial is charged for


class Tuning(Row):
    """How the settings of a cell were chosen: the best of a random number of trials, of random candidates."""

    candidates: list[dict[str, str]]
    """The ``--set`` values of each candidate, all over the same settings; a trial draws one, each as likely."""
    law: Law
    """The law of the number of trials, which is told nowhere."""
    trials_mean: float
    """Its mean."""
    score: Score
    """What the best trial is chosen by."""
    score_noise: float | None = None
    """Standard deviation of a noisy score, in records; null for a public one."""
    epsilon: float
    """Proven epsilon of one trial, for which every candidate is calibrated; the cell's epsilon includes tuning."""
