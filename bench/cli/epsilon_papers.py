"""``bench epsilon claimed PAPER`` and ``proven PAPER``: a paper's own figure for a setting, and the proven one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import epsilon_output as shared
from bench.core.errors import BenchError

if TYPE_CHECKING:
    from bench.core.types import Claim
    from bench.privacy.accounting.accountants import Accounted

claimed = typer.Typer(no_args_is_help=True, help="A paper's claim for its setting, and what holds beside it.")
proven = typer.Typer(no_args_is_help=True, help="What is proven for a paper's method as it is described.")

Queries = Annotated[int, typer.Option(help="Number of label queries.")]
Eps0 = Annotated[float, typer.Option(help="Pure epsilon of one label query: Laplace noise of scale 2 / eps0.")]
Eps1 = Annotated[float, typer.Option(help="Share that the paper adds for its VAE: 0.01 there.")]
Beta = Annotated[float, typer.Option(help="Normalisation bound of a gradient.")]
Classes = Annotated[int, typer.Option(help="Number of classes.")]
Iterations = Annotated[int, typer.Option(help="Number of iterations.")]
SynthBatch = Annotated[int, typer.Option(help="Synthetic images per iteration.")]
Sigma = Annotated[float, typer.Option(help="Noise scale.")]
Response = Annotated[float, typer.Option(help="Epsilon of randomised response.")]


def _row(paper: str, claim: Claim, sound: bool, data_dependent: bool = False) -> Accounted:
    from bench.privacy.accounting.accountants import Accounted

    note = "; ".join(filter(None, [claim.source, claim.note]))
    return Accounted(f"claimed-{paper}", claim.epsilon, sound, data_dependent, releasable=not data_dependent, note=note)


@claimed.command("pate")
def claimed_pate(
    gamma: shared.Gamma,
    queries: Annotated[int | None, typer.Option(help="Number of label queries, where there is no --votes.")] = None,
    votes: shared.Votes = None,
    first: shared.First = None,
    indices: shared.Indices = None,
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """PATE 2017: the figure on votes as printed, or the closed form without votes."""
    from bench.privacy.accounting import claims
    from bench.privacy.accounting.data_dependent import lnmax_rows
    from bench.privacy.events.events import LNMax

    if votes is not None and queries is None:
        counts = shared.load_votes(votes, first, indices)
        queries = len(counts)
        rows = [_row("pate-2017", claims.pate_2017(counts, gamma, delta), sound=False, data_dependent=True)]
        rows += lnmax_rows(counts, gamma, delta)
    elif queries is not None and votes is None:
        rows = [_row("pate-2017", claims.pate_closed_form(gamma, queries, delta), sound=True)]
    else:
        raise BenchError("give one of --queries and --votes.")
    shared.report_events([LNMax(gamma, queries)], delta, json, rows, paper="PATE 2017")


@claimed.command("pate-2018")
def claimed_pate_2018(
    votes: Annotated[Path, typer.Option(help=".npy file of vote counts (queries, classes).")],
    sigma2: Annotated[float, typer.Option("--sigma2", "--sigma", help="Noise on the counts of an answered query.")],
    threshold: Annotated[float | None, typer.Option(help="Confident-GNMax: the count to reach.")] = None,
    sigma1: Annotated[float | None, typer.Option(help="Confident-GNMax: noise on the top count.")] = None,
    first: shared.First = None,
    indices: shared.Indices = None,
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """PATE 2018: GNMax, or Confident-GNMax with --threshold and --sigma1, on votes."""
    from bench.privacy.accounting import claims
    from bench.privacy.events.events import ConfidentGNMax, GNMax

    if (threshold is None) != (sigma1 is None):
        raise BenchError("Confident-GNMax takes both --threshold and --sigma1; GNMax takes neither.")
    counts = shared.load_votes(votes, first, indices)
    event: GNMax | ConfidentGNMax = GNMax(sigma2, len(counts))
    if threshold is not None and sigma1 is not None:
        event = ConfidentGNMax(threshold, sigma1, sigma2, len(counts), len(counts))
    claim = claims.pate_2018(counts, sigma2, delta, threshold, sigma1)
    # For Confident-GNMax the claim is an average over runs; a single run may exceed it.
    row = _row("pate-2018", claim, sound=threshold is None, data_dependent=True)
    shared.report_events([event], delta, json, [row], paper="PATE 2018")


@claimed.command("trpate")
def claimed_trpate(
    gamma: shared.Gamma, queries: Queries, delta: shared.Delta = 1e-5, json: shared.Json = False
) -> None:
    """TrPATE: Theorem 1."""
    from bench.privacy.accounting import cost

    claim, events = cost.trpate(gamma, queries, delta)
    shared.report_events(events, delta, json, [_row("trpate", claim, sound=True)], paper="TrPATE")


@proven.command("trpate")
def proven_trpate(gamma: shared.Gamma, queries: Queries, delta: shared.Delta = 1e-5, json: shared.Json = False) -> None:
    """TrPATE: the cost of its label queries."""
    from bench.privacy.accounting import cost

    shared.report_events(cost.trpate(gamma, queries, delta)[1], delta, json, paper="TrPATE")


@claimed.command("dgd")
def claimed_dgd(
    eps0: Eps0, queries: Queries, eps1: Eps1 = 0.0, delta: shared.Delta = 1e-5, json: shared.Json = False
) -> None:
    """DGD: the closed form, and the cost of its label queries alone."""
    from bench.privacy.accounting import cost
    from bench.privacy.accounting.accountants import account

    claim, (event, _) = cost.dgd(eps0, queries, delta, eps1)
    # The claim bounds the label queries loosely, but not the whole method.
    row = _row("dgd", claim, sound=False)
    note = "bounds the label queries alone, not the method"
    alone = [replace(one, note="; ".join(filter(None, [one.note, note]))) for one in account([event], delta)]
    shared.report([row, *alone], delta, json, f"DGD label queries: {event.describe()}")


@proven.command("dgd")
def proven_dgd(eps0: Eps0, queries: Queries, delta: shared.Delta = 1e-5, json: shared.Json = False) -> None:
    """DGD: infinite, as private data is used outside any mechanism; below it, the label queries alone."""
    from bench.privacy.accounting import cost

    shared.report_events(cost.dgd(eps0, queries, delta)[1], delta, json, paper="DGD")


@claimed.command("dpsd")
def claimed_dpsd(
    beta: Beta,
    classes: Classes,
    batch: SynthBatch,
    iterations: Iterations,
    sigma: Sigma,
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """DPSD: Theorem 1, and the real cost of Eq. (3)."""
    from bench.privacy.accounting import claims

    claim = claims.dpsd(beta, classes, batch, iterations, sigma, delta)
    rows = [_row("dpsd", claim, sound=False), *claims.dpsd_proven(batch, iterations, sigma, delta)]
    shared.report(rows, delta, json, f"DPSD: {batch} images, {iterations} iterations, beta {beta:g}, sigma {sigma:g}")


@proven.command("dpsd")
def proven_dpsd(
    batch: SynthBatch,
    iterations: Iterations,
    sigma: Sigma,
    beta: Annotated[float | None, typer.Option(help="Not used: it cancels.")] = None,
    classes: Annotated[int | None, typer.Option(help="Not used: it does not enter.")] = None,
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """DPSD: the real cost of Eq. (3)."""
    from bench.privacy.accounting import claims

    rows = claims.dpsd_proven(batch, iterations, sigma, delta)
    event = claims.dpsd_events(batch, iterations, sigma)[0]
    shared.report(rows, delta, json, f"DPSD, {batch * iterations} answers of one teacher: {event.describe()}")


@claimed.command("dpsd-label")
def claimed_dpsd_label(epsilon: Response, delta: shared.Delta = 1e-5, json: shared.Json = False) -> None:
    """DPSD: Theorem 2, for labels."""
    from bench.privacy.accounting import claims

    shared.report([_row("dpsd-label", claims.dpsd_label(epsilon, delta), sound=False)], delta, json, "DPSD, labels")


@proven.command("dpsd-label")
def proven_dpsd_label(epsilon: Response, delta: shared.Delta = 1e-5, json: shared.Json = False) -> None:
    """DPSD: infinite for Eq. (5) as printed."""
    from bench.privacy.accounting.accountants import account
    from bench.privacy.accounting.claims import DPSD_LABEL_GAP
    from bench.privacy.events.conversions import check_epsilon
    from bench.privacy.events.events import Bypass

    check_epsilon(epsilon)
    shared.report(account([Bypass(DPSD_LABEL_GAP)], delta), delta, json, "DPSD, labels")


@claimed.command("dp-sgd")
def claimed_dp_sgd(
    sigma: Annotated[float, typer.Option("--sigma", "--noise-multiplier", help="Noise over the clipping norm.")],
    steps: shared.Steps = None,
    epochs: shared.Epochs = None,
    sampling_rate: shared.Rate = None,
    batch: shared.Batch = None,
    records: shared.Records = None,
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """DP-SGD: the moments accountant, as Abadi et al. use it, with the classic conversion."""
    from bench.privacy.accounting import cost

    claim, events = cost.dp_sgd(sigma, delta, steps, epochs, sampling_rate, batch, records)
    shared.report_events(events, delta, json, [_row("dp-sgd", claim, sound=True)])
