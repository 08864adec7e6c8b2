"""``bench epsilon``: the cost of a mechanism by all accountants that apply; those on votes read private data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from bench.cli import epsilon_output as shared
from bench.cli import epsilon_papers
from bench.cli.epsilon_tuning import tuning
from bench.core.errors import BenchError
from bench.core.types import TargetAdjacency

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bench.privacy.accounting.accountants import Accounted
    from bench.privacy.events.events import ConfidentGNMax, Event, GNMax

app = typer.Typer(
    name="epsilon",
    no_args_is_help=True,
    help="The cost of a mechanism by every accountant that applies; no data and no training.",
)
app.add_typer(epsilon_papers.claimed, name="claimed")
app.add_typer(epsilon_papers.proven, name="proven")
app.command()(tuning)

E = TypeVar("E", bound="Event")

Queries = Annotated[int | None, typer.Option(help="Number of answered queries, where there is no --votes.")]
Target = Annotated[float | None, typer.Option(help="Instead: the largest number of queries at this target epsilon.")]
Moment = Annotated[
    int | None, typer.Option(help="Largest moment that is searched: by default 64, and 8 for the figure as published.")
]
Secure = Annotated[
    int | None, typer.Option(help="Exact discrete noise on this fraction of a vote (for instance 1024).")
]
sanitised = partial(typer.Option, rich_help_panel="Sanitised release")
Sanitise = Annotated[bool, sanitised("--sanitise", help="Add the release sanitised by smooth sensitivity.")]
Beta = Annotated[float | None, sanitised(help="Smoothing of the sensitivity, below 1 / (2 order); default by order.")]
SigmaSS = Annotated[float | None, sanitised(help="Noise of the sanitised release; default by order.")]
Order = Annotated[
    float | None,
    sanitised(
        help="Renyi order of the sanitised release, chosen without the votes; default the data-independent best."
    ),
]
Count = Annotated[int, typer.Option(help="Number of releases.")]
Answers = Annotated[int, typer.Option(help="How often the same label is answered.")]
Pure = Annotated[float, typer.Option(help="Pure epsilon of one answer.")]
Classes = Annotated[int, typer.Option(help="Number of classes.")]


def _on_queries(
    make: Callable[[int], E],
    queries: int | None,
    votes: Path | None,
    first: int | None,
    indices: Path | None,
    target: float | None,
    delta: float,
) -> tuple[E, NDArray[np.float64] | None]:
    """Return the event that `make` gives for the number of queries, and their votes where there are some."""
    from bench.privacy.events.conversions import check_delta

    check_delta(delta)
    make(1)
    counts = None if votes is None else shared.load_votes(votes, first, indices)
    options = {"--queries": queries, "--votes": votes, "--target-epsilon": target}
    given = [name for name, value in options.items() if value is not None]
    if len(given) != 1:
        said = " and ".join(given) or "none"
        raise BenchError(f"give exactly one of --queries, --votes and --target-epsilon; {said} given.")
    if counts is not None:
        return make(len(counts)), counts
    if target is not None:
        from bench.core.types import Basis, Budget
        from bench.privacy.accounting.calibrate import largest_count

        return make(largest_count(lambda number: [make(number)], Budget(target, delta, Basis.PROVEN))), None
    assert queries is not None
    return make(queries), None


@app.command()
def lnmax(
    gamma: shared.Gamma,
    queries: Queries = None,
    votes: shared.Votes = None,
    first: shared.First = None,
    indices: shared.Indices = None,
    target_epsilon: Target = None,
    largest_moment: Moment = None,
    secure: Secure = None,
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """Arg max of votes with Laplace noise (PATE 2017)."""
    from bench.privacy.accounting.accountants import account, pate_moments
    from bench.privacy.accounting.data_dependent import lnmax_rows
    from bench.privacy.events.events import LNMax

    event, counts = _on_queries(
        lambda n: LNMax(gamma, n, secure), queries, votes, first, indices, target_epsilon, delta
    )
    rows = account([event], delta)
    if largest_moment is not None:
        limited = pate_moments([event], delta, largest_moment)
        rows = [limited if limited is not None and row.name == limited.name else row for row in rows]
    facts: dict[str, str] = {}
    if counts is not None and secure is None:
        rows = [*lnmax_rows(counts, gamma, delta, largest_moment), *rows]
    elif counts is not None:
        facts["left_out"] = "the data-dependent accountants, whose analysis is of continuous noise"
    shared.report(rows, delta, json, event.describe(), facts)


@app.command()
def gnmax(
    sigma: Annotated[float, typer.Option(help="Standard deviation of the Gaussian noise on every count.")],
    queries: Queries = None,
    votes: shared.Votes = None,
    first: shared.First = None,
    indices: shared.Indices = None,
    target_epsilon: Target = None,
    sanitise: Sanitise = False,
    beta: Beta = None,
    sigma_ss: SigmaSS = None,
    order: Order = None,
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """Arg max of votes with Gaussian noise (PATE 2018)."""
    from bench.privacy.accounting.data_dependent import gnmax_rows
    from bench.privacy.events.events import GNMax

    event, counts = _on_queries(lambda n: GNMax(sigma, n), queries, votes, first, indices, target_epsilon, delta)
    dependent = [] if counts is None else gnmax_rows(counts, sigma, delta)
    if sanitise:
        dependent += _sanitised(counts, event, delta, order, beta, sigma_ss)
    shared.report_events([event], delta, json, dependent)


@app.command("confident-gnmax")
def confident_gnmax(
    threshold: Annotated[float, typer.Option(help="The count that the noisy top count must reach.")],
    sigma1: Annotated[float, typer.Option(help="Noise on the top count, paid on every query.")],
    sigma2: Annotated[float, typer.Option(help="Noise on every count of an answered query.")],
    queries: Queries = None,
    max_answers: Annotated[
        int | None, typer.Option(help="The run stops after N answers; by default all queries may be answered.")
    ] = None,
    votes: shared.Votes = None,
    first: shared.First = None,
    indices: shared.Indices = None,
    sanitise: Sanitise = False,
    beta: Beta = None,
    sigma_ss: SigmaSS = None,
    order: Order = None,
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """GNMax on the queries on which enough teachers agree (PATE 2018)."""
    import numpy as np

    from bench.privacy.accounting.data_dependent import confident_rows
    from bench.privacy.accounting.pate import log_answered
    from bench.privacy.events.events import ConfidentGNMax

    event, counts = _on_queries(
        lambda n: ConfidentGNMax(threshold, sigma1, sigma2, n, n), queries, votes, first, indices, None, delta
    )
    if max_answers is not None:
        event = replace(event, max_answers=max_answers)
    facts: dict[str, float] = {}
    dependent: list[Accounted] = []
    if counts is not None:
        facts["expected_answered"] = float(np.exp(log_answered(counts, threshold, sigma1)).sum())
        dependent = confident_rows(counts, threshold, sigma1, sigma2, delta)
    if sanitise:
        dependent += _sanitised(counts, event, delta, order, beta, sigma_ss)
    shared.report_events([event], delta, json, dependent, facts)


def _sanitised(
    counts: NDArray[np.float64] | None,
    event: GNMax | ConfidentGNMax,
    delta: float,
    order: float | None,
    beta: float | None,
    sigma_ss: float | None,
) -> list[Accounted]:
    import numpy as np

    from bench.privacy.accounting.accountants import pate_2018
    from bench.privacy.accounting.data_dependent import sanitised_rows
    from bench.privacy.accounting.smooth_sensitivity import sanitise
    from bench.privacy.events.events import GNMax

    if counts is None:
        raise BenchError("--sanitise releases a figure that depends on votes: give them with --votes.")
    if order is None:
        best = pate_2018([event], delta)
        assert best is not None
        assert best.order is not None
        order = best.order
    if isinstance(event, GNMax):
        found = sanitise(counts, event.sigma, delta, order, beta, sigma_ss, None, None)
    else:
        found = sanitise(counts, event.sigma2, delta, order, beta, sigma_ss, event.threshold, event.sigma1)
    return sanitised_rows(found, np.random.default_rng(), expected=not isinstance(event, GNMax))


@app.command()
def laplace(
    noise_multiplier: Annotated[float, typer.Option(help="Scale of the noise over the L1 sensitivity.")],
    count: Count = 1,
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """Laplace noise on values of bounded L1 sensitivity."""
    from bench.privacy.events.events import Laplace

    shared.report_events([Laplace(noise_multiplier, count)], delta, json)


@app.command()
def gaussian(
    noise_multiplier: Annotated[
        float, typer.Option("--noise-multiplier", "--sigma", help="Standard deviation over the L2 sensitivity.")
    ],
    count: Count = 1,
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """Gaussian noise on values of bounded L2 sensitivity."""
    from bench.privacy.events.events import Gaussian

    shared.report_events([Gaussian(noise_multiplier, count)], delta, json)


@app.command("sampled-gnmax")
def sampled_gnmax(
    sigma: Annotated[float, typer.Option(help="Standard deviation of the Gaussian noise on every count.")],
    sampling_rate: Annotated[float, typer.Option(help="Chance of each record to be in the sample of a query.")],
    queries: Annotated[int, typer.Option(help="Number of queries.")],
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """Arg max of the votes of the nearest sampled records, with Gaussian noise (Private-kNN)."""
    from bench.privacy.events.events import SampledGNMax

    shared.report_events([SampledGNMax(sampling_rate, sigma, queries)], delta, json)


@app.command("sampled-gaussian")
def sampled_gaussian(
    noise_multiplier: Annotated[
        float, typer.Option("--noise-multiplier", "--sigma", help="Standard deviation over a record's largest L2 norm.")
    ],
    sampling_rate: Annotated[float, typer.Option(help="Chance of each record to be in the sample of a sum.")],
    count: Count = 1,
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """Gaussian noise on sums over Poisson samples."""
    from bench.privacy.events.events import SampledGaussian

    shared.report_events([SampledGaussian(sampling_rate, noise_multiplier, count)], delta, json)


def _probabilities(name: str, keep: float, epsilon: float) -> Mapping[str, float]:
    return {name: keep, "probability_of_each_other": math.exp(-epsilon) * keep}


@app.command("randomized-response")
def randomized_response(
    epsilon: Pure, classes: Classes, count: Answers = 1, delta: shared.Delta = 1e-5, json: shared.Json = False
) -> None:
    """Randomised response over all classes: hides a label."""
    from bench.privacy.events.events import RandomizedResponse

    event = RandomizedResponse(epsilon, classes, count)
    shared.report_events([event], delta, json, (), _probabilities("keep_probability", event.keep_probability, epsilon))


@app.command("top-k")
def top_k(
    epsilon: Pure,
    k: Annotated[int, typer.Option("--k", help="Size of the set, chosen without the private label.")],
    classes: Classes,
    count: Answers = 1,
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """Randomised response over a set of k likely classes: hides a label."""
    from bench.privacy.events.events import TopKRandomizedResponse

    event = TopKRandomizedResponse(epsilon, k, classes, count)
    facts = _probabilities("keep_probability_inside_the_set", event.keep_probability, epsilon)
    shared.report_events([event], delta, json, (), facts)


@app.command("dp-sgd")
def dp_sgd(
    steps: shared.Steps = None,
    epochs: shared.Epochs = None,
    sampling_rate: shared.Rate = None,
    batch: shared.Batch = None,
    records: shared.Records = None,
    sigma: Annotated[
        float | None, typer.Option("--sigma", "--noise-multiplier", help="Noise over the clipping norm.")
    ] = None,
    target_epsilon: Annotated[
        float | None, typer.Option(help="Instead of --sigma: the least noise within this target epsilon.")
    ] = None,
    adjacency: Annotated[
        TargetAdjacency, typer.Option(help="Neighbours of the target: replace-one, or DP-SGD's own add-remove.")
    ] = TargetAdjacency.OWN,
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """DP-SGD with Poisson sampling."""
    from bench.core.types import Basis, Budget
    from bench.privacy.accounting.calibrate import smallest_noise
    from bench.privacy.accounting.cost import sampling_rate_of, steps_of
    from bench.privacy.events.conversions import check_delta
    from bench.privacy.events.events import DPSGD

    check_delta(delta)
    rate = sampling_rate_of(sampling_rate, batch, records)
    number = steps_of(steps, epochs, rate)
    if (sigma is None) == (target_epsilon is None):
        raise BenchError("give one of --sigma and --target-epsilon.")
    facts: dict[str, float] = {}
    if target_epsilon is not None:

        def make(noise: float) -> list[DPSGD]:
            return [DPSGD(rate, noise, number)]

        budget = Budget(target_epsilon, delta, Basis.PROVEN, adjacency)
        facts["sigma_by_rdp"] = smallest_noise(make, budget, sound="rdp")
        facts["sigma"] = sigma = smallest_noise(make, budget)
    assert sigma is not None
    shared.report_events([DPSGD(rate, sigma, number)], delta, json, (), facts)


@app.command()
def impossible(
    eps: Annotated[float, typer.Option("--eps", help="The claimed epsilon, by a proof about one teacher's answers.")],
    accuracy: Annotated[float, typer.Option(help="The accuracy in percent, for instance 96.03.")],
    classes: Annotated[int, typer.Option(help="Number of classes, each with as many test records.")] = 10,
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """Bound a single teacher's student by its claim. For proofs that hold between any two teachers, not for shards."""
    from dataclasses import asdict
    from json import dumps

    from bench.core.types import Budget
    from bench.privacy.auditing.utility_bound import honest_tries, odds, probability_bound, remark

    Budget(eps, delta)
    if not 1 < accuracy <= 100:
        raise BenchError(f"--accuracy is in percent, above 1 and at most 100, not {accuracy:g}. Try 96.03.")
    if classes > 10_000:
        raise BenchError("--classes is at most 10,000 here: for more the bound would take minutes.")
    bound = probability_bound(eps, delta, accuracy / 100, [1 / max(classes, 1)] * classes)
    verdict = remark([bound.probability]) or "not ruled out"
    if json:
        tries = honest_tries([bound.probability])
        found = {"verdict": verdict, "honest_tries": tries if math.isfinite(tries) else "inf", **asdict(bound)}
        typer.echo(dumps({"epsilon": eps, "delta": delta, "accuracy": accuracy, **found}))
        return
    typer.echo(f"accuracy {accuracy:g}% with {classes} classes at epsilon {eps:g}, delta {delta:g}: {verdict}")
    if bound.probability < 1:
        typer.echo(
            f"If the claim held between any two teachers: {odds([bound.probability])}. The bound is that of any "
            f"accuracy above {100 * bound.threshold:.2f}%, by {bound.permutations:.10g} permutations of the classes "
            f"({bound.code}), any two of which differ on {bound.distance} classes or more."
        )
