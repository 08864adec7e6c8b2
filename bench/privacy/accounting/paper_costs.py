"""Papers' own figures for a setting, each with the events that the method would charge, including any bypass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from bench.core.errors import BenchError
from bench.core.lazy import lazy_modules
from bench.core.types import Claim, Sampling
from bench.privacy.accounting import described as shared
from bench.privacy.accounting.described import Described, Gamma, Option, give_one, sampling_rate_of, steps_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from bench.privacy.accounting import accountants, claims, data_dependent
    from bench.privacy.accounting import pate as votes_of
    from bench.privacy.events import batch_events, events
else:
    globals().update(lazy_modules(__file__))

Queries = Annotated[int, Option("Number of label queries.")]
MaybeQueries = Annotated[int | None, Option("Number of label queries, where there is no --votes.")]
OwnVotes = Annotated["ArrayLike", Option(".npy file of vote counts (queries, classes).")]
Sigma2 = Annotated[float, Option("Noise on the counts of an answered query.", "sigma")]
Threshold = Annotated[float | None, Option("Confident-GNMax: the count to reach.")]
Sigma1 = Annotated[float | None, Option("Confident-GNMax: noise on the top count.")]
Eps0 = Annotated[float, Option("Pure epsilon of one label query: Laplace noise of scale 2 / eps0.")]
_ALONE = "Not used: a part of the claim alone."
Eps1 = Annotated[float, Option("Share that the paper adds for its VAE: 0.01 there.", unused=_ALONE)]
Beta = Annotated[float, Option("Normalisation bound of a gradient.", unused="Not used: it cancels.")]
Classes = Annotated[int, Option("Number of classes.", unused="Not used: it does not enter.")]
Images = Annotated[int, Option("Synthetic images per iteration.")]
Iterations = Annotated[int, Option("Number of iterations.")]
Scale = Annotated[float, Option("Noise scale.")]
Whole = Annotated[bool, Option("Read the norm of equation 3 as the whole batch's.", panel="Reading")]
Response = Annotated[float, Option("Epsilon of randomised response.")]


def _paper(
    name: str, claim: Claim, found: Sequence[events.Event], sound: bool, title: str = "", **more: Any
) -> Described:
    """Return a paper's answer; its claim is data-dependent if `more` has figures on votes."""
    note, votes = "; ".join(filter(None, [claim.source, claim.note])), "rows" in more
    row = accountants.Accounted(f"claimed-{name}", claim.epsilon, sound, votes, releasable=not votes, note=note)
    title = title and title.format(found[0].describe())
    return Described(found, title, claim, **{**more, "rows": [row, *more.get("rows", ())]})


def pate(gamma: Gamma, queries: MaybeQueries = None, votes: shared.Votes = None, *, delta: float) -> Described:
    """PATE 2017: the figure on votes as printed, or the closed form without votes."""
    give_one(queries=queries, votes=votes)
    title = "PATE 2017: {}"
    if queries is not None:
        claim = claims.pate_closed_form(gamma, queries, delta)
        return _paper("pate-2017", claim, [events.LNMax(gamma, queries)], True, title)
    assert votes is not None
    counts = votes_of.check_votes(votes)
    claim, rows = claims.pate_2017(counts, gamma, delta), data_dependent.lnmax_rows(counts, gamma, delta)
    return _paper("pate-2017", claim, [events.LNMax(gamma, len(counts))], False, title, rows=rows)


def pate_2018(
    votes: OwnVotes, sigma2: Sigma2, threshold: Threshold = None, sigma1: Sigma1 = None, *, delta: float
) -> Described:
    """PATE 2018: GNMax, or Confident-GNMax with --threshold and --sigma1, on votes."""
    if (threshold is None) != (sigma1 is None):
        raise BenchError("Confident-GNMax takes both threshold and sigma1; GNMax takes neither.")
    counts = votes_of.check_votes(votes)
    event: events.Event = events.GNMax(sigma2, len(counts))
    if threshold is not None and sigma1 is not None:
        event = events.ConfidentGNMax(threshold, sigma1, sigma2, len(counts), len(counts))
    claim = claims.pate_2018(counts, sigma2, delta, threshold, sigma1)
    # For Confident-GNMax the claim is an average over runs; a single run may exceed it.
    return _paper("pate-2018", claim, [event], threshold is None, "PATE 2018: {}", rows=())


def trpate(gamma: Gamma, queries: Queries, *, delta: float) -> Described:
    """TrPATE: Theorem 1."""
    claim = claims.trpate(gamma, queries, delta)
    return _paper("trpate", claim, [events.LNMax(gamma, queries)], True, "TrPATE: {}")


def dgd(eps0: Eps0, queries: Queries, eps1: Eps1 = 0.0, *, delta: float) -> Described:
    """DGD: the closed form, and the cost of only its label queries."""
    claim, event = claims.dgd(eps0, queries, delta, eps1), events.LNMax(eps0 / 2, queries)
    said = "bounds the label queries alone, not the method"
    alone = accountants.account([event], delta)
    alone = [replace(row, note="; ".join(filter(None, [row.note, said]))) for row in alone]
    # The claim bounds the label queries loosely, but not the whole method.
    return _paper("dgd", claim, [event, events.Bypass(claims.DGD_BYPASS)], False, "DGD: {}", shown=alone)


def dpsd(
    beta: Beta, classes: Classes, batch: Images, iterations: Iterations, sigma: Scale, batch_norm: Whole = False,
    *, delta: float,
) -> Described:  # fmt: skip
    """DPSD: Theorem 1, and the real cost of equation 3."""
    claim = claims.dpsd(beta, classes, batch, iterations, sigma, delta)
    title = f"DPSD: {batch} images, {iterations} iterations, sigma {sigma:g}"
    return _paper("dpsd", claim, claims.dpsd_events(1 if batch_norm else batch, iterations, sigma), False, title)


def dpsd_label(epsilon: Response, *, delta: float) -> Described:
    """DPSD: Theorem 2, for labels."""
    claim, found = claims.dpsd_label(epsilon, delta), [events.Bypass(claims.DPSD_LABEL_GAP)]
    return _paper("dpsd-label", claim, found, False, "DPSD, labels", shown=())


def dp_sgd(
    sigma: Annotated[float, shared.Multiplier], steps: shared.Steps = None, epochs: shared.Epochs = None,
    sampling_rate: shared.Rate = None, batch: shared.Batch = None, records: shared.Records = None,
    sampling: shared.Batches = Sampling.POISSON, *, delta: float,
) -> Described:  # fmt: skip
    """DP-SGD: the moments accountant on Poisson batches, as Abadi et al. use it, with the classic conversion."""
    rate = sampling_rate_of(sampling_rate, batch, records)
    drawn = Sampling(sampling)
    number = steps_of(steps, epochs, rate, drawn)
    event = batch_events.training_event(drawn, rate, sigma, number)
    return _paper("dp-sgd", claims.dp_sgd(rate, sigma, number, delta), [event], drawn is Sampling.POISSON)


PAPERS = shared.by_name(pate, pate_2018, trpate, dgd, dpsd, dpsd_label, dp_sgd)
PROVEN = {
    "trpate": "TrPATE: the cost of its label queries.",
    "dgd": "DGD: infinite, as private data is used outside any mechanism; below it, the label queries alone.",
    "dpsd": "DPSD: the real cost of equation 3.",
    "dpsd-label": "DPSD: infinite for equation 5 as printed.",
}
"""Proven costs of papers' methods as described."""
