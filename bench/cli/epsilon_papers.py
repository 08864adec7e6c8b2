"""``bench epsilon claimed PAPER`` and ``proven PAPER``: a paper's own figure for a setting, and what really follows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli.epsilon_output import load_votes, report
from bench.core.errors import BenchError

if TYPE_CHECKING:
    from bench.core.types import Claim
    from bench.privacy.accountants import Accounted

claimed = typer.Typer(no_args_is_help=True, help="What a paper says its setting costs, and what holds beside it.")
proven = typer.Typer(no_args_is_help=True, help="What is proven for a paper's method as it is described.")

Delta = Annotated[float, typer.Option(help="The delta of (epsilon, delta), strictly between 0 and 1.")]
Json = Annotated[bool, typer.Option("--json", help='Print one JSON object; an infinite epsilon is the string "inf".')]
Gamma = Annotated[float, typer.Option(help="Laplace noise of scale 1 / gamma on every count.")]
Queries = Annotated[int, typer.Option(help="Number of label queries.")]
Eps0 = Annotated[float, typer.Option(help="Pure epsilon of one label query: Laplace noise of scale 2 / eps0.")]
Eps1 = Annotated[float, typer.Option(help="What the paper adds for its VAE: 0.01 there.")]
Beta = Annotated[float, typer.Option(help="Normalisation bound of a gradient.")]
Classes = Annotated[int, typer.Option(help="Number of classes.")]
Iterations = Annotated[int, typer.Option(help="Number of iterations.")]
SynthBatch = Annotated[int, typer.Option(help="Synthetic images per iteration.")]
Sigma = Annotated[float, typer.Option(help="Noise scale.")]
Votes = Annotated[Path | None, typer.Option(help=".npy file of vote counts (queries, classes).")]
First = Annotated[int | None, typer.Option(help="Use only the first so many rows of the votes.")]
Indices = Annotated[Path | None, typer.Option(help=".npy file with the rows of the votes to use.")]
Rate = Annotated[float | None, typer.Option(help="Chance of each record to be in a batch.")]
Batch = Annotated[float | None, typer.Option(help="Expected batch size, with --records.")]
Records = Annotated[int | None, typer.Option(help="Number of records, with --batch.")]


def sampling_rate_of(rate: float | None, batch: float | None, records: int | None) -> float:
    """Return the sampling rate that was given, as itself or as batch size over records.

    Raises:
        BenchError: Where neither or both are given, or they are out of their range.

    """
    if rate is not None and batch is None and records is None:
        return rate
    if rate is not None or batch is None or records is None:
        raise BenchError("give either --sampling-rate, or --batch and --records.")
    if records < 1 or not 0 < batch <= records:
        raise BenchError(f"--batch must lie between 0 and --records, not {batch:g} of {records}.")
    return batch / records


def _row(paper: str, claim: Claim, sound: bool, data_dependent: bool = False) -> Accounted:
    from bench.privacy.accountants import Accounted

    note = "; ".join(filter(None, [claim.source, claim.note]))
    return Accounted(f"claimed-{paper}", claim.epsilon, sound, data_dependent, releasable=not data_dependent, note=note)


def _noted(rows: Sequence[Accounted], note: str) -> list[Accounted]:
    from dataclasses import replace

    return [replace(row, note="; ".join(filter(None, [row.note, note]))) for row in rows]


@claimed.command("pate")
def claimed_pate(
    gamma: Gamma,
    queries: Annotated[int | None, typer.Option(help="Number of label queries, where there is no --votes.")] = None,
    votes: Votes = None,
    first: First = None,
    indices: Indices = None,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """PATE 2017: the figure on votes as printed, or the closed form without votes."""
    from bench.privacy import claims
    from bench.privacy.accountants import account
    from bench.privacy.data_dependent import lnmax_rows
    from bench.privacy.events import LNMax

    if (queries is None) == (votes is None):
        raise BenchError("give one of --queries and --votes.")
    if votes is not None:
        counts = load_votes(votes, first, indices)
        event = LNMax(gamma, len(counts))
        rows = [_row("pate-2017", claims.pate_2017(counts, gamma, delta), sound=False, data_dependent=True)]
        rows += lnmax_rows(counts, gamma, delta)
    else:
        assert queries is not None
        event = LNMax(gamma, queries)
        rows = [_row("pate-2017", claims.pate_closed_form(gamma, queries, delta), sound=True)]
    report([*rows, *account([event], delta)], delta, json, f"PATE 2017: {event.describe()}")


@claimed.command("pate-2018")
def claimed_pate_2018(
    votes: Annotated[Path, typer.Option(help=".npy file of vote counts (queries, classes).")],
    sigma2: Annotated[float, typer.Option("--sigma2", "--sigma", help="Noise on the counts of an answered query.")],
    threshold: Annotated[float | None, typer.Option(help="Confident-GNMax: the count to reach.")] = None,
    sigma1: Annotated[float | None, typer.Option(help="Confident-GNMax: noise on the top count.")] = None,
    first: First = None,
    indices: Indices = None,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """PATE 2018: GNMax, or Confident-GNMax with --threshold and --sigma1, on votes."""
    from bench.privacy import claims
    from bench.privacy.accountants import account
    from bench.privacy.events import ConfidentGNMax, GNMax

    if (threshold is None) != (sigma1 is None):
        raise BenchError("Confident-GNMax takes both --threshold and --sigma1; GNMax takes neither.")
    counts = load_votes(votes, first, indices)
    event: GNMax | ConfidentGNMax = GNMax(sigma2, len(counts))
    if threshold is not None and sigma1 is not None:
        event = ConfidentGNMax(threshold, sigma1, sigma2, len(counts), len(counts))
    claim = claims.pate_2018(counts, sigma2, delta, threshold, sigma1)
    # For Confident-GNMax the claim is an average over runs, which a single run may exceed.
    rows = [_row("pate-2018", claim, sound=threshold is None, data_dependent=True)]
    report([*rows, *account([event], delta)], delta, json, f"PATE 2018: {event.describe()}")


@claimed.command("trpate")
def claimed_trpate(gamma: Gamma, queries: Queries, delta: Delta = 1e-5, json: Json = False) -> None:
    """TrPATE: Theorem 1."""
    from bench.privacy import claims
    from bench.privacy.accountants import account
    from bench.privacy.events import LNMax

    event = LNMax(gamma, queries)
    rows = [_row("trpate", claims.trpate(gamma, queries, delta), sound=True), *account([event], delta)]
    report(rows, delta, json, f"TrPATE: {event.describe()}")


@proven.command("trpate")
def proven_trpate(gamma: Gamma, queries: Queries, delta: Delta = 1e-5, json: Json = False) -> None:
    """TrPATE: what its label queries cost."""
    from bench.privacy.accountants import account
    from bench.privacy.events import LNMax

    event = LNMax(gamma, queries)
    report(account([event], delta), delta, json, f"TrPATE: {event.describe()}")


@claimed.command("dgd")
def claimed_dgd(eps0: Eps0, queries: Queries, eps1: Eps1 = 0.0, delta: Delta = 1e-5, json: Json = False) -> None:
    """DGD: the closed form, and what its label queries alone cost."""
    from bench.privacy import claims
    from bench.privacy.accountants import account
    from bench.privacy.base_event import positive
    from bench.privacy.events import LNMax

    positive("eps0", eps0)
    event = LNMax(eps0 / 2, queries)
    # As a figure for the method the claim does not hold, though it is a loose bound for the label queries.
    claim = _row("dgd", claims.dgd(eps0, queries, delta, eps1), sound=False)
    alone = _noted(account([event], delta), "bounds the label queries alone, not the method")
    report([claim, *alone], delta, json, f"DGD label queries: {event.describe()}")


@proven.command("dgd")
def proven_dgd(eps0: Eps0, queries: Queries, delta: Delta = 1e-5, json: Json = False) -> None:
    """DGD: infinite, as private data is used outside any mechanism; below it, the label queries alone."""
    from bench.privacy.accountants import account
    from bench.privacy.base_event import positive
    from bench.privacy.claims import DGD_BYPASS
    from bench.privacy.events import Bypass, LNMax

    positive("eps0", eps0)
    event = LNMax(eps0 / 2, queries)
    report(account([event, Bypass(DGD_BYPASS)], delta), delta, json, f"DGD: {event.describe()}")


@claimed.command("dpsd")
def claimed_dpsd(
    beta: Beta,
    classes: Classes,
    batch: SynthBatch,
    iterations: Iterations,
    sigma: Sigma,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """DPSD: Theorem 1, and what Eq. (3) really costs."""
    from bench.privacy import claims

    claim = claims.dpsd(beta, classes, batch, iterations, sigma, delta)
    rows = [_row("dpsd", claim, sound=False), *claims.dpsd_proven(batch, iterations, sigma, delta)]
    report(rows, delta, json, f"DPSD: {batch} images, {iterations} iterations, beta {beta:g}, sigma {sigma:g}")


@proven.command("dpsd")
def proven_dpsd(
    batch: SynthBatch,
    iterations: Iterations,
    sigma: Sigma,
    beta: Annotated[float | None, typer.Option(help="Not used: it cancels.")] = None,
    classes: Annotated[int | None, typer.Option(help="Not used: it does not enter.")] = None,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """DPSD: what Eq. (3) really costs."""
    from bench.privacy import claims

    rows = claims.dpsd_proven(batch, iterations, sigma, delta)
    event = claims.dpsd_events(batch, iterations, sigma)[0]
    report(rows, delta, json, f"DPSD, {batch * iterations} answers of one teacher: {event.describe()}")


@claimed.command("dpsd-label")
def claimed_dpsd_label(
    epsilon: Annotated[float, typer.Option(help="Epsilon of randomised response.")],
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """DPSD: Theorem 2, for labels."""
    from bench.privacy import claims

    report([_row("dpsd-label", claims.dpsd_label(epsilon, delta), sound=False)], delta, json, "DPSD, labels")


@proven.command("dpsd-label")
def proven_dpsd_label(
    epsilon: Annotated[float, typer.Option(help="Epsilon of randomised response.")],
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """DPSD: infinite for Eq. (5) as printed."""
    from bench.privacy.accountants import account
    from bench.privacy.claims import DPSD_LABEL_GAP
    from bench.privacy.conversions import check_epsilon
    from bench.privacy.events import Bypass

    check_epsilon(epsilon)
    report(account([Bypass(DPSD_LABEL_GAP)], delta), delta, json, "DPSD, labels")


@claimed.command("dp-sgd")
def claimed_dp_sgd(
    sigma: Annotated[float, typer.Option("--sigma", "--noise-multiplier", help="Noise over the clipping norm.")],
    steps: Annotated[int, typer.Option(help="Number of steps.")],
    sampling_rate: Rate = None,
    batch: Batch = None,
    records: Records = None,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """DP-SGD: the moments accountant, as Renyi accounting."""
    from bench.privacy import claims
    from bench.privacy.accountants import account
    from bench.privacy.events import DPSGD

    event = DPSGD(sampling_rate_of(sampling_rate, batch, records), sigma, steps)
    claim = claims.dp_sgd(event.sampling_rate, sigma, steps, delta)
    report([_row("dp-sgd", claim, sound=True), *account([event], delta)], delta, json, event.describe())
