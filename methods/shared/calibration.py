"""The least noise within a budget, claims by one accountant, and the steps of Poisson batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from bench.interface import Basis, Budget, Claim, Event, Method, claim_by, smallest_noise
from bench.privacy.accounting import distributions
from bench.privacy.accounting.accountants import AccountantFunction
from bench.privacy.accounting.claims import moments_accountant, moments_claim, zcdp_accountant
from bench.privacy.events.batch_events import AllocatedSteps, steps_of_epoch

PAPERS: dict[str, AccountantFunction] = {"moments": moments_accountant, "zcdp": zcdp_accountant}
"""Accountants that only papers' claims use, never a ledger."""
NO_CLAIM = "the proven figure: no paper claims anything for this variant"


class ClaimedBy(Method):
    """A method whose claim is one accountant's figure for its charges, or for its `claimed_charges` if it has some."""

    claimed_by: ClassVar[str]
    """The accountant: ``moments``, or one of the ledger's."""
    claimed_in: ClassVar[str]
    """The source of the claim."""
    claim_note: ClassVar[str] = ""

    def claimed(self, delta: float) -> Claim:
        events = getattr(self, "claimed_charges", self.charges)() or []
        note = [self.claim_note] if self.claim_note else []
        if self.claimed_by == "moments":
            return moments_claim(events, delta, self.claimed_in, *note)
        return claim_by(self.claimed_by, events, delta, self.claimed_in, *note)


class PoissonBatches:
    """Steps and sampling rate from a config's epochs and expected batch size."""

    epochs: float
    batch_size: int
    sampling: str = "poisson"

    def steps(self, records: int) -> int:
        """Return the number of Poisson batches in all epochs over `records` records."""
        return max(1, round(self.epochs * records / self.batch_size))

    def sampling_rate(self, records: int) -> float:
        """Return the probability that a record enters a batch."""
        return self.batch_size / records

    def batch_share(self, records: int) -> float:
        """Return the share of the records in a batch: a whole number of batches make an epoch if orders are drawn."""
        rate = self.sampling_rate(records)
        return rate if self.sampling in ("poisson", "fixed") else 1 / steps_of_epoch(rate)


def least_noise(
    events: Callable[[float], Sequence[Event]], budget: Budget, claimed: AccountantFunction | str, sound: str = "pld",
    *, tolerance: float,
) -> float:  # fmt: skip
    """Return the least noise for which `claimed` or the accountant `sound` (proven) fits `budget`, rounded up.

    `claimed` is a function, or a name among :data:`PAPERS` and those of the ledger's accountants. A `sound` of ``pld``
    stands for the proven figure where the PLD does not apply, or may be infinite.
    """
    if sound == "pld" and not _has_pld(events(1.0), budget.delta):
        sound = "proven"
    paper = PAPERS.get(claimed, claimed) if isinstance(claimed, str) else claimed
    noise = smallest_noise(events, budget, claimed=paper, sound=sound, tolerance=tolerance)
    # Rounding up stays within the budget, and a short number reads well in a record.
    return math.ceil(noise * 1e4) / 1e4


def _has_pld(events: Sequence[Event], delta: float) -> bool:
    """Return whether `events` have a PLD that is finite at `delta` with any noise."""
    allocated = any(isinstance(event, AllocatedSteps) for event in events)  # with few steps, some losses are infinite
    resolved = distributions.resolves(distributions.composed_losses(events), delta)
    return distributions.gaussian_total(events) is None and resolved and not allocated


def with_least_noise(
    method: Method, budget: Budget, claimed: AccountantFunction | str, sound: str = "pld", *, tolerance: float
) -> Any:
    """Return the config of `method` with :func:`least_noise` as the `noise_multiplier` of its charges.

    On the claimed basis, these are the method's `claimed_charges` if it has some.
    """

    def events(noise: float) -> Sequence[Event]:
        changed = method.changed(noise_multiplier=noise)
        of_claim = getattr(changed, "claimed_charges", changed.charges)
        return (of_claim if budget.basis is Basis.CLAIMED else changed.charges)() or []

    noise = least_noise(events, budget, claimed, sound, tolerance=tolerance)
    return dataclasses.replace(method.config, noise_multiplier=noise)
