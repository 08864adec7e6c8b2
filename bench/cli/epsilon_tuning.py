"""``bench epsilon tuning``: the cost of choosing the best of a random number of trials, without a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import epsilon_output as shared
from bench.cli.options import LawOption, TrialsMean
from bench.core.errors import BenchError
from bench.core.types import Law, TargetAdjacency

if TYPE_CHECKING:
    from bench.privacy.events.events import Event


def tuning(
    sigma: Annotated[
        float | None, typer.Option("--sigma", "--noise-multiplier", help="Noise of one trial over the sensitivity.")
    ] = None,
    target_epsilon: Annotated[
        float | None, typer.Option(help="Instead of --sigma: the least noise within this epsilon, tuning included.")
    ] = None,
    trials_mean: TrialsMean = 10.0,
    law: LawOption = Law.GEOMETRIC,
    steps: shared.Steps = None,
    epochs: shared.Epochs = None,
    sampling_rate: shared.Rate = None,
    batch: shared.Batch = None,
    records: shared.Records = None,
    delta: shared.Delta = 1e-5,
    json: shared.Json = False,
) -> None:
    """The best of a secret random number of trials: Gaussian noise, or DP-SGD where a sampling rate is given."""
    from bench.core.types import Adjacency, Basis, Budget
    from bench.privacy.accounting.accountants import proven
    from bench.privacy.accounting.calibrate import smallest_noise
    from bench.privacy.accounting.cost import sampling_rate_of, steps_of
    from bench.privacy.events.conversions import check_delta
    from bench.privacy.events.events import DPSGD, Gaussian, RepeatAndSelect

    check_delta(delta)
    sampled = (sampling_rate, batch, records) != (None, None, None)
    rate = sampling_rate_of(sampling_rate, batch, records) if sampled else 1.0
    number = 1 if (steps, epochs) == (None, None) else steps_of(steps, epochs, rate)
    if (sigma is None) == (target_epsilon is None):
        raise BenchError("give one of --sigma and --target-epsilon.")

    def trial(noise: float) -> Event:
        return DPSGD(rate, noise, number) if sampled else Gaussian(noise, number)

    def make(noise: float) -> list[Event]:
        adjacency = Adjacency.ADD_REMOVE if sampled else Adjacency.REPLACE
        return [RepeatAndSelect(((trial(noise),),), trials_mean, law.shape, adjacency=adjacency)]

    facts: dict[str, float] = {}
    if target_epsilon is not None:
        budget = Budget(target_epsilon, delta, Basis.PROVEN, TargetAdjacency.OWN)
        facts["sigma"] = sigma = smallest_noise(make, budget, tolerance=1e-4)
    assert sigma is not None
    facts["epsilon_of_one_trial"] = proven([trial(sigma)], delta).epsilon
    shared.report_events(make(sigma), delta, json, (), facts)
