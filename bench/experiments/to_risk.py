"""Cells calibrated to a risk: the largest proven epsilon at which the method's events satisfy the bound.

The cells are those of the same grid with that epsilon on the proven basis, keys included.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

from scipy import optimize, special

from bench.core.config import Grid, as_dict
from bench.core.errors import BenchError
from bench.core.risk_target import RiskTarget
from bench.core.types import Basis
from bench.experiments.calibration_cache import Calibrations
from bench.experiments.plan import Cell, Dataset, Refusal, bound_method, expand
from bench.interface.registry import METHODS
from bench.privacy.accounting.risk import bound_on
from bench.privacy.events.conversions import exact_gaussian_epsilon
from bench.results.text import epsilon_digits

DIGITS = 4
"""Significant digits of a found epsilon."""
EPSILONS = (1e-3, 500.0)
"""The smallest and the largest epsilon that is tried."""
TOLERANCE = 1e-4
"""Tolerance of the search, in the logarithm of epsilon."""


def expand_to_risk(
    grid: Grid, describe: Callable[[str], Dataset], calibrations: Calibrations, say: Callable[[str], None],
    advance: Callable[[int], None] = lambda planned: None, optional: Callable[[str], bool] = lambda method: False,
) -> list[Cell]:  # fmt: skip
    """Return the cells of `grid`, whose epsilons do not matter, each calibrated to ``grid.risk``; `say` gets the risks.

    `advance` as in :func:`bench.experiments.plan.expand`. Raises :class:`BenchError` for a method that has no proven
    curve or no setting that keeps the risk; if it is `optional`, it is left out instead.
    """
    target, cells = grid.risk, list[Cell]()
    assert target is not None
    for dataset in grid.datasets:
        for method in grid.methods:
            of_one = replace(grid, methods=(method,), datasets=(dataset,), basis=Basis.PROVEN, risk=None)
            try:
                epsilon = _largest(of_one, target, describe, calibrations)
            except BenchError as error:
                if not optional(method):
                    raise
                say(f"left out: {error}")
            else:
                found = expand(replace(of_one, epsilons=(epsilon,)), describe, calibrations)
                risk = epsilon_digits(risk_of(found[0], target), "up")
                say(f"{method} on {dataset}: epsilon {epsilon:g} (proven) has {target.measure} of at most {risk}")
                cells += found
            advance(len(grid.epsilons))
    return cells


def risk_of(cell: Cell, target: RiskTarget) -> float:
    """Return the bound on the measure of `target` by the events of a whole run of `cell`, which is not refused.

    Raises :class:`BenchError` if the events are known only after a run.
    """
    events = bound_method(cell).charges()
    if events is None:
        raise BenchError(f"{cell.method}: its charges are known only after a run. Use --eps with --basis proven.")
    return bound_on(target, events)


def _largest(grid: Grid, target: RiskTarget, describe: Callable[[str], Dataset], calibrations: Calibrations) -> float:
    """Return the largest epsilon of :data:`DIGITS` digits at which the one method of `grid` keeps `target`."""
    title = f"{grid.methods[0]} on {grid.datasets[0]}"
    if not METHODS.get(grid.methods[0]).private:
        raise BenchError(
            f"{title} has no privacy and so no proven curve. Leave it out of --risk, or run it without --risk."
        )

    @functools.cache
    def cell_at(epsilon: float) -> Cell:
        return expand(replace(grid, epsilons=(epsilon,), seeds=grid.seeds[:1]), describe, calibrations)[0]

    @functools.cache
    def risk_at(epsilon: float) -> float:
        cell = cell_at(epsilon)
        if cell.refusal is Refusal.BYPASS:
            raise BenchError(f"{title}: {cell.refused}")
        return 0.0 if cell.refused else risk_of(cell, target)  # refused: the method cannot spend so little

    def kept(epsilon: float) -> bool:
        return risk_at(epsilon) <= target.largest

    unreached = f"{title}: no setting has {target}: at the least epsilon, {{:.4g}}, {target.measure} is {{:.4g}}."
    least, most = EPSILONS
    low = high = min(max(_rounded(_guess(target, cell_at(1.0).delta)), least), most)
    while not kept(low):
        if low <= least:
            raise BenchError(unreached.format(least, risk_at(least)))
        high, low = low, max(_rounded(low / 1.5), least)
    while kept(high):
        if high >= most:
            if cell_at(most).refused:
                raise BenchError(f"{title}: {cell_at(most).refused}")
            return _first_alike(cell_at)
        low, high = high, min(_rounded(high * 1.5), most)

    def excess(log_epsilon: float) -> float:
        one = _rounded(math.exp(log_epsilon))
        risk = min(max(risk_at(one), 1e-12), 1 - 1e-12)
        return float(special.logit(risk) - special.logit(target.largest))

    found = _rounded(math.exp(optimize.brentq(excess, math.log(low), math.log(high), xtol=TOLERANCE)))
    while not kept(found):
        found = _next(found, -1)
    while kept(_next(found, 1)):
        found = _next(found, 1)
    if cell_at(found).refused:
        raise BenchError(unreached.format(_next(found, 1), risk_at(_next(found, 1))))
    return found


def _guess(target: RiskTarget, delta: float) -> float:
    """Return the epsilon of the Gaussian mechanism with this risk."""
    if target.at is None:
        return exact_gaussian_epsilon(float(2 * special.ndtri((1 + target.largest) / 2)), delta)
    return exact_gaussian_epsilon(float(special.ndtri(target.largest) - special.ndtri(target.at)), delta)


def _first_alike(cell_at: Callable[[float], Cell]) -> float:
    """Return the smallest epsilon above which the calibrated config no longer changes."""
    low, high = EPSILONS
    last = as_dict(cell_at(high).config)
    while _next(low, 1) < high:
        middle = min(max(_rounded(math.sqrt(low * high)), _next(low, 1)), _next(high, -1))
        same = not cell_at(middle).refused and as_dict(cell_at(middle).config) == last
        low, high = (low, middle) if same else (middle, high)
    return high


def _rounded(epsilon: float) -> float:
    return float(f"{epsilon:.{DIGITS}g}")


def _next(epsilon: float, steps: int) -> float:
    """Return the epsilon of :data:`DIGITS` digits that is `steps` after this one."""
    unit = 10.0 ** (math.floor(math.log10(epsilon) + 1e-9) - DIGITS + 1)
    return _rounded(epsilon + steps * unit)
