"""Trials: a method's settings and draws for the runs of a check."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.types import Basis, Budget, Facts
from bench.evaluation.check.check_data import Variant
from bench.evaluation.check.check_runs import MethodPlace, Outcome, Rejected, Trial, loaded, refuse_outside
from bench.evaluation.check.confined_runs import Processes
from bench.evaluation.check.embedded import MOST_SET, settings_size
from bench.evaluation.check.opened import Watch, watched
from bench.experiments.overrides import check_kept
from bench.interface.method import Method, check_costs, check_public

SEEDS = (0, 1)
"""Seeds that repeat one check; see :func:`random_seeds` for others."""
DRAWS = 5
"""Noise draws to try for a method that fails without noise."""
EPSILONS = (10.0, 1.0)  # targets of :data:`SEEDS`
LOWEST, MIDDLE, HIGHEST = 0.5, 3.0, 20.0  # drawn targets: up to the middle with noise, above it without
FEWEST, MOST = 10, 100_000  # upper limits of random seeds: those that rows use, or any


@dataclass(frozen=True, slots=True)
class Draw:
    """The choices made by a check's seed: the target of its runs, and whether their noise is on."""

    seed: int
    budget: Budget
    noisy: bool

    @classmethod
    def of(cls, seed: int) -> Draw:
        """Return the draw of `seed`: odd ones have a low target and noise at its true scale; 0 and 1 are fixed."""
        if seed in SEEDS:
            return cls(seed, Budget(EPSILONS[seed], 1e-5), noisy=False)
        generator = np.random.default_rng([seed, 6])
        noisy = seed % 2 == 1
        low, high = (LOWEST, MIDDLE) if noisy else (MIDDLE, HIGHEST)
        epsilon = float(np.exp(generator.uniform(np.log(low), np.log(high))).round(2))
        if generator.integers(2):  # a branch for the targets of published rows would not run at others
            epsilon = EPSILONS[noisy]
        return cls(seed, Budget(epsilon, 1e-5, list(Basis)[generator.integers(2)]), noisy)

    def __str__(self) -> str:
        noise = "with noise" if self.noisy else "without noise"
        return f"seed {self.seed}, epsilon {self.budget.epsilon:g} {self.budget.basis.value}, {noise}"


def random_seeds() -> tuple[int, int]:
    """Return two unpredictable seeds above 1, in half of all checks below 12; the second keeps the noise on."""
    most = secrets.choice((FEWEST, MOST)) // 2
    return 2 * secrets.randbelow(most) + 2, 2 * secrets.randbelow(most) + 3


def trial_for(
    place: MethodPlace | type[Method], preset: Preset, seed: int, facts: Facts,
    overrides: Mapping[str, Any] | None = None, dataset: str = "", labelled: bool = False,
    last: bool | None = None,
) -> Trial:  # fmt: skip
    """Return the trial of a method with a preset's settings for `facts`, calibrated to the seed's budget.

    Unless `last` is None, another cell runs first: with equal settings for the last seed, so that the charges can be
    compared, and for others with another target, because a cell could read the answers of a weaker one.
    """
    budget = Draw.of(seed).budget
    with _loaded(place, facts) as method:
        values = _calibrated(method, preset, budget, facts, overrides or {})
        before = None if last is None else values
        if last is False:
            epsilon = next(epsilon for epsilon in EPSILONS if epsilon != budget.epsilon)
            other = Budget(epsilon, budget.delta, budget.basis)
            with suppress(BenchError):  # not every method reaches every target
                before = _calibrated(method, preset, other, facts, overrides or {})
    refuse_data_in(values)
    return Trial(place, values, facts, seed, dataset, labelled, Draw.of(seed).noisy, rehearsal=before)


@contextmanager
def _loaded(place: MethodPlace | type[Method], facts: Facts) -> Iterator[type[Method]]:
    """Load a method, and reject it if its code reaches outside while it loads or inside the block."""
    method, outside = loaded(place, facts.dataset)
    refuse_outside(outside)
    with watched(Watch(method.__module__, facts.dataset)) as watch:
        try:
            yield method
        finally:
            refuse_outside(watch.found)


def _calibrated(
    method: type[Method], preset: Preset, budget: Budget, facts: Facts, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings for a budget."""
    built, _ = build_config(method, preset, facts, overrides)
    if method(built, facts).given_teacher() is not None:
        raise BenchError(
            "with a given teacher, only the teacher is private, and there is no second one for a replay. Check the "
            "method without teacher_weights, so that it trains its teacher; the code after that is the same."
        )
    try:  # budgets differ by seed, because code may branch on the number of answers
        config = method(built, facts).calibrate_checked(budget)
    except BenchError:
        budget = Budget(EPSILONS[0], budget.delta)
        config = method(built, facts).calibrate_checked(budget)

    def calibrate(start: object) -> object:
        return method(start, facts).calibrate_checked(budget)

    check_kept(method, built, config, overrides, calibrate, preset, facts, budget)
    check_public(method(config, facts))
    check_costs(method(config, facts), budget.delta)
    return {entry.name: getattr(config, entry.name) for entry in dataclasses.fields(config)}


def few_trial(like: Trial, preset: Preset, overrides: Mapping[str, Any], records: int) -> Trial:
    """Return the trial on `records` generated private records with the settings that calibration chose for `like`.

    Calibrating for each size would take longer than the runs, and this check does not depend on the noise. Raises
    :class:`BenchError` if the method has no settings for so few records.
    """
    facts = dataclasses.replace(like.facts, private_records=records)
    with _loaded(like.method, facts) as method:
        before, _ = build_config(method, preset, like.facts, overrides)
        chosen = {name: value for name, value in like.config.items() if getattr(before, name) != value}
        config = dataclasses.replace(build_config(method, preset, facts, overrides)[0], **chosen)
        check_public(method(config, facts))
    values = {entry.name: getattr(config, entry.name) for entry in dataclasses.fields(config)}
    refuse_data_in(values)
    return Trial(like.method, values, facts, like.seed, "", like.labelled, Draw.of(like.seed).noisy)


def refuse_data_in(settings: Mapping[str, Any]) -> None:
    """Reject settings that hold more than a method needs to be configured."""
    if (size := settings_size(settings)) > MOST_SET:
        name = max(settings, key=lambda name: settings_size(settings[name]))
        raise Rejected(
            f"its settings hold {size} digits and characters of data, most of them in {name}. Read public data "
            "through bench and declare them in public_data and public_data_kinds, or compute them"
        )


def recorded(
    trial: Trial, variants: Sequence[Variant], processes: Processes, draws: int = DRAWS
) -> tuple[Trial, list[Outcome]]:
    """Return the trial and outcomes without noise, or with one of `draws` noise draws if the method fails without."""
    try:
        return trial, processes.run(trial, variants)
    except BenchError:
        failure = None
        for _ in range(draws):  # with some draws, teachers that rarely agree answer nothing
            trial = dataclasses.replace(trial, noisy=True, noise=secrets.randbits(256))
            try:
                return trial, processes.run(trial, variants)
            except BenchError as error:
                failure = error
        assert failure is not None
        raise failure from None
