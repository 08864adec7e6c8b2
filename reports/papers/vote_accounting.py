"""Panels of accounting without records: what answers of a noisy vote cost, by several accountants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from reports.papers.spec import Panel, Point, Series

DELTA = 1e-5


def advanced(queries: int, scale: float) -> float:
    """Return what advanced composition says `queries` answers with Lap(`scale`) noise on each count cost.

    It is PATE's closed form, TrPATE's Theorem 1 and DGD's analysis without the share of its VAE.
    """
    from bench.privacy.claims import dgd

    return dgd(2 / scale, queries, DELTA).epsilon


def moments(queries: int, scale: float) -> float:
    """Return what PATE 2017's moments accountant says of the same, whatever the votes."""
    from bench.privacy.pate import pure_moments_epsilon

    return pure_moments_epsilon(2 / scale, queries, DELTA)[0]


@functools.cache
def exact(queries: int, scale: float) -> float:
    """Return what privacy loss distributions say of the same: the tightest of the sound accountants here."""
    from bench.privacy.accountants import pld
    from bench.privacy.events import LNMax

    found = pld([LNMax(1 / scale, queries)], DELTA)
    assert found is not None  # it applies to every noisy vote
    return found.epsilon


_CURVES: tuple[tuple[str, Callable[[int, float], float]], ...] = (
    ("advanced composition (the papers')", advanced),
    ("moments accountant (PATE 2017)", moments),
    ("privacy loss distributions", exact),
)


def queries_panel(queries: Iterable[int], scale: float) -> Panel:
    """Return epsilon against the number of queries at one noise scale."""
    numbers = tuple(queries)
    series = tuple(
        Series(name, tuple(Point(float(n), of(n, scale)) for n in numbers), slot, "formula")
        for slot, (name, of) in enumerate(_CURVES)
    )
    return Panel(f"noise scale {scale:g}", "label queries", "ε of the queries", series, x_scale="log", y_scale="log")


def noise_panel(queries: int, scales: Iterable[float] = (5, 10, 15, 20, 30, 40, 60, 80, 100)) -> Panel:
    """Return epsilon against the noise scale for one number of queries."""
    numbers = tuple(scales)
    series = tuple(
        Series(name, tuple(Point(s, of(queries, s)) for s in numbers), slot, "formula")
        for slot, (name, of) in enumerate(_CURVES)
    )
    title = f"{queries:,} queries"
    return Panel(title, "noise scale 2/ε₀", "ε of the queries", series, y_scale="log")
