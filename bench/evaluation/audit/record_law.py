"""Likelihoods of DP-SGD's noisy sums under candidates for one record, given the others and what their draws reveal."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench.core.types import Sampling
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from bench.privacy.dpsgd.sampling import Rows, batches
from bench.privacy.events.batch_events import steps_of_epoch

Floats = NDArray[np.float64]


class FirstInFront:
    """Draws DP-SGD's batches and puts `count` candidates for the first place in front, whether or not it is drawn.

    `inside` says whether the last batch holds the first place. Of a fixed batch, the observer knows all members but
    one, which is either the first place or a known other record. That record follows the candidates if it is present
    (`displaced`).
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.inside = self.displaced = False

    def __call__(self, run: DPSGDRun, present: int, randomness: np.random.Generator) -> Iterator[Rows]:
        """Yield rows of a set whose first `count` records are the candidates."""
        records = present - self.count + 1  # one candidate and all others
        fixed = run.sampling is Sampling.FIXED
        shown = run.records if fixed else records  # including the empty places
        for drawn in batches(run.sampling, run.records, run.expected_batch_size, shown, randomness):
            self.inside = len(drawn) > 0 and int(drawn.min()) == 0
            rows, front = drawn[drawn > 0], np.arange(self.count)
            if fixed and len(drawn) < run.records:
                known = np.setdiff1d(np.arange(run.records), drawn) if self.inside else drawn
                other = int(randomness.choice(known))
                rows, self.displaced = rows[rows != other], other < records
                front = np.append(front, other + self.count - 1)[: self.count + self.displaced]
            yield np.concatenate([front, rows[rows < records] + self.count - 1])


class RecordLaw:
    """The log likelihood ratio of all noisy sums: each of `count` candidates in the first place against none."""

    def __init__(self, run: DPSGDRun, draws: FirstInFront) -> None:
        self.run, self.draws = run, draws
        self.rate = run.expected_batch_size / run.records
        self._log: Floats = np.zeros(draws.count)
        self._epoch: list[Floats] = []

    def add(self, exponents: Floats, other: float) -> None:
        """Add one step: the log likelihoods of its sum with each candidate, (count,), and with the displaced record."""
        log_in, log_out = math.log(self.rate), float(special.log1p(-self.rate))
        if self.run.sampling is Sampling.POISSON:
            self._log += np.logaddexp(log_out, log_in + exponents)
        elif self.run.sampling is Sampling.FIXED:
            self._log += np.logaddexp(log_out + other, log_in + exponents) - np.logaddexp(log_out + other, log_in)
        elif self.run.sampling is Sampling.SHUFFLED:
            self._log += exponents * self.draws.inside  # the other records' places reveal this one's
        else:
            self._epoch.append(exponents)
            if len(self._epoch) == steps_of_epoch(self.rate):
                self._log, self._epoch = self.log, []

    @property
    def log(self) -> Floats:
        """The log likelihoods so far (count,)."""
        if not self._epoch:
            return self._log
        steps = steps_of_epoch(self.rate)
        left = np.zeros((steps - len(self._epoch), self.draws.count))  # the epoch's remaining steps
        found: Floats = self._log + np.logaddexp.reduce(np.vstack([*self._epoch, left])) - math.log(steps)
        return found
