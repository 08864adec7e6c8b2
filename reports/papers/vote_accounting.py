"""Panels that compare accountants on the cost of noisy votes, without records."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from bench.privacy.accounting.accountants import pld
from bench.privacy.accounting.claims import dgd
from bench.privacy.accounting.pate import pure_moments_epsilon
from bench.privacy.events.events import LNMax
from bench.reports.papers.spec import Panel, Series, curves

DELTA = 1e-5


@functools.cache
def exact(queries: int, scale: float) -> float:
    """Return the epsilon of `queries` answers with Lap(`scale`) noise on each count, by our tightest accountant."""
    found = pld([LNMax(1 / scale, queries)], DELTA)
    assert found is not None  # this accountant applies to every noisy vote
    return found.epsilon


def _curves(points: Iterable[tuple[float, int, float]]) -> tuple[Series, ...]:
    accountants: dict[str, Callable[[int, float], float]] = {
        # PATE's closed form, TrPATE's Theorem 1, and DGD's analysis without its VAE's share.
        "advanced composition (the papers')": lambda queries, scale: dgd(2 / scale, queries, DELTA).epsilon,
        "moments accountant (PATE 2017)": lambda queries, scale: pure_moments_epsilon(2 / scale, queries, DELTA)[0],
        "privacy loss distributions": exact,
    }
    at = list(points)
    return curves(
        {name: [(x, cost(queries, scale)) for x, queries, scale in at] for name, cost in accountants.items()}, "formula"
    )


def queries_panel(queries: Iterable[int], scale: float) -> Panel:
    """Return epsilon against the number of queries at one noise scale."""
    series = _curves((float(n), n, scale) for n in queries)
    return Panel(f"noise scale {scale:g}", "label queries", "ε of the queries", series, x_scale="log", y_scale="log")


def noise_panel(queries: int, scales: Iterable[float] = (5, 10, 15, 20, 30, 40, 60, 80, 100)) -> Panel:
    """Return epsilon against the noise scale for one number of queries."""
    series = _curves((scale, queries, scale) for scale in scales)
    return Panel(f"{queries:,} queries", "noise scale 2/ε₀", "ε of the queries", series, y_scale="log")
